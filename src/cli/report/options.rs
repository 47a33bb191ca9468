//! The options that change what a row measures: only rows that agree in them may be compared.
//!
//! Knows how each is said on the command line. What is at its default is not written, and what is not there reads as
//! the default: so rows of files that know nothing of an option are of its default.

use serde::{Deserialize, Serialize};

use super::super::args::{From, Poll};

/// What was asked for of a measurement beyond its pattern, transport and size.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// What calls the engine.
    #[serde(skip_serializing_if = "is_default")]
    pub from: From,
    /// How the shards wait, if not as `from` implies.
    #[serde(skip_serializing_if = "is_default")]
    pub poll: Option<Poll>,
    /// Sends a second, in an open loop.
    #[serde(skip_serializing_if = "is_default")]
    pub rate: Option<f64>,
    /// Whether every byte is written and read.
    #[serde(skip_serializing_if = "is_default")]
    pub touch: bool,
    /// Whether every byte is checked.
    #[serde(skip_serializing_if = "is_default")]
    pub check: bool,
    /// Values kept parked.
    #[serde(skip_serializing_if = "is_default")]
    pub parked: Option<u64>,
    /// Whether the far side was a process that listened, as on another machine.
    #[serde(skip_serializing_if = "is_default")]
    pub connect: bool,
}

/// Whether nothing is to be said of it.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Options {
    /// Each option in which `former` differs, with both values; empty if the two may be compared.
    #[must_use]
    pub fn differences(&self, former: &Self) -> Vec<String> {
        let pairs = former.said().into_iter().zip(self.said());
        pairs
            .filter(|(before, now)| before != now)
            .map(|((option, before), (_, now))| format!("--{option} ({before} before, {now} now)"))
            .collect()
    }

    fn said(&self) -> [(&'static str, String); 7] {
        let none = || "none".to_owned();
        let on = |is_on: bool| if is_on { "on" } else { "off" }.to_owned();
        let poll = self.poll.unwrap_or_else(|| Poll::implied(self.from));
        // A number that went through a file may come back with another last digit.
        let rate = self.rate.map(|rate| (rate * 1e6).round() / 1e6);
        [
            ("from", self.from.name().to_owned()),
            ("poll", poll.name().to_owned()),
            ("rate", rate.map_or_else(none, |rate| rate.to_string())),
            ("touch", on(self.touch)),
            ("check", on(self.check)),
            (
                "parked",
                self.parked.map_or_else(none, |count| count.to_string()),
            ),
            ("connect", on(self.connect)),
        ]
    }
}
