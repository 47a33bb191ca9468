//! Devices as Python names them: `cuda:0`, the kind of memory and the number among the devices of that kind.
//!
//! Knows the kinds by the table of the engine's; what DLPack calls them is in `dlpack.rs`.

use std::fmt;

use rendez::engine::EngineDevices;
use rendez::memory::MemoryError;
use rendez::{DevicePtr, MemoryKind};

use super::errors::{Failure, Outcome, argument};

/// A device of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceId {
    pub(crate) kind: MemoryKind,
    pub(crate) number: u32,
}

impl DeviceId {
    /// The device that memory lies on.
    pub(crate) const fn of(place: DevicePtr) -> Self {
        Self {
            kind: place.kind,
            number: place.device,
        }
    }

    /// The device of that name; without a number the first of its kind.
    pub(crate) fn parse(name: &str) -> Outcome<Self> {
        let (word, number) = match name.split_once(':') {
            None => (name, Some(0)),
            Some((word, number)) => (word, number.parse().ok()),
        };
        let kind = kinds().find(|kind| word_of(*kind) == word);
        match (kind, number) {
            (Some(kind), Some(number)) => Ok(Self { kind, number }),
            _ => Err(unknown(name)),
        }
    }

    /// Its number among the devices that the engine uses, which are of one kind.
    pub(crate) fn number_in(self, devices: &EngineDevices) -> Outcome<u32> {
        if devices.accelerator()?.kind() == self.kind {
            return Ok(self.number);
        }
        Err(Failure::from(MemoryError::Ordinal {
            kind: self.kind,
            device: self.number,
            count: 0,
        }))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", word_of(self.kind), self.number)
    }
}

/// Where a value lies, as Python names it: a device, or the processor.
pub(crate) fn name_of(device: Option<DeviceId>) -> String {
    device.map_or_else(|| "cpu".into(), |device| device.to_string())
}

/// The kinds of memory that devices have.
fn kinds() -> impl Iterator<Item = MemoryKind> {
    let all = MemoryKind::ALL.iter().copied();
    all.filter(|kind| *kind != MemoryKind::Host)
}

fn word_of(kind: MemoryKind) -> String {
    kind.name().to_ascii_lowercase()
}

fn unknown(name: &str) -> Failure {
    let quoted = |kind| format!("\"{}\"", word_of(kind));
    let words: Vec<_> = kinds().map(quoted).collect();
    let second = kinds().next().map(|kind| DeviceId { kind, number: 1 });
    argument(format!(
        "device {name:?} is none: it is \"cpu\", {}, or \"{}\" for the second",
        words.join(", "),
        name_of(second)
    ))
}
