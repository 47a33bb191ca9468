//! Layers of settings: a file over the defaults, variables over the file, flags over the variables; and the origin of
//! every value.
//!
//! Reads texts that the caller found, and names the place of each error in them.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Spanned, Value};

use super::table::{SETTINGS, Setting, Taker};
use super::{Config, invalid};
use crate::cluster::variables::{SERVICE_HOST, is_service_link};
use crate::ground::Status;
use crate::ground::spelling::distance;

/// Where a value comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Not set: the default holds.
    Default,
    /// A file, and the line of the key.
    File {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// A flag of the command.
    Flag(String),
    /// The program set it itself.
    Code,
}

/// Where values come from, by key, and what they were.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origins(BTreeMap<&'static str, (Origin, String)>);

impl Config {
    /// Lets a TOML text override.
    ///
    /// # Errors
    /// `InvalidArgument` names `origin`, the line, and what would be right; unknown keys are errors.
    pub fn apply_toml(&mut self, text: &str, origin: &str) -> Result<(), Status> {
        let file: BTreeMap<Spanned<String>, Value> =
            toml::from_str(text).map_err(|error| invalid(format!("{origin}: {error}")))?;
        for (key, value) in &file {
            let line = 1 + text[..key.span().start].matches('\n').count();
            let place = Origin::File {
                path: origin.to_owned(),
                line,
            };
            let key = key.get_ref();
            let Some(setting) = Setting::find(key) else {
                let known = SETTINGS.iter().map(|setting| setting.key);
                let hint = hint(key, known, |key| key.to_owned());
                return Err(invalid(format!(
                    "{place}: there is no setting `{key}`{hint}"
                )));
            };
            self.set(setting, value, place, &format!("{key} = {value}"))?;
        }
        Ok(())
    }

    /// Lets the variables of the table override: each is `RENDEZ_` and the key in capitals. One that is set to nothing
    /// counts as not set, and so does Kubernetes' [link](is_service_link) to a service, of which the log warns.
    ///
    /// # Errors
    /// `InvalidArgument` names the variable, and what would be right.
    pub fn apply_env(&mut self, variable: impl Fn(&str) -> Option<String>) -> Result<(), Status> {
        let has_service = variable(SERVICE_HOST).is_some();
        for setting in SETTINGS {
            let name = setting.variable();
            if let Some(text) = variable(name).filter(|text| !text.trim().is_empty()) {
                if is_service_link(name, &text, has_service) {
                    tracing::warn!("{}", of_service(name, &text));
                    continue;
                }
                let shown = format!("{name}={text}");
                self.set(
                    setting,
                    &Value::String(text),
                    Origin::Variable(name.to_owned()),
                    &shown,
                )?;
            }
        }
        Ok(())
    }

    /// Lets a flag override.
    ///
    /// # Errors
    /// `InvalidArgument` names the flag, and what would be right.
    pub fn apply_flag(&mut self, setting: &'static Setting, text: &str) -> Result<(), Status> {
        let flag = format!("--{}", setting.flag());
        let shown = format!("{flag} {text}");
        self.set(
            setting,
            &Value::String(text.to_owned()),
            Origin::Flag(flag),
            &shown,
        )
    }

    /// Where the setting's value comes from.
    #[must_use]
    pub fn origin(&self, setting: &Setting) -> Origin {
        let shown = setting.show(self);
        match self.origins.0.get(setting.key) {
            Some((origin, then)) if *then == shown => origin.clone(),
            Some(_) => Origin::Code,
            None if setting.show(&Self::default()) == shown => Origin::Default,
            None => Origin::Code,
        }
    }

    /// Settings that were loaded and that an engine alone does not take.
    pub(super) fn beyond_an_engine(&self) -> impl Iterator<Item = (&'static Setting, &Origin)> {
        let loaded =
            |setting: &'static Setting| Some((setting, &self.origins.0.get(setting.key)?.0));
        SETTINGS
            .iter()
            .filter(|setting| setting.taker != Taker::Engine)
            .filter_map(loaded)
    }

    pub(super) fn set(
        &mut self,
        setting: &'static Setting,
        value: &Value,
        origin: Origin,
        shown: &str,
    ) -> Result<(), Status> {
        // What is refused leaves the settings as they were.
        let mut read = self.clone();
        setting.read(&mut read, value).map_err(|why| {
            // A variable or a flag is its own place.
            let place = match &origin {
                Origin::File { .. } => format!("{origin}: "),
                _ => String::new(),
            };
            invalid(format!("{place}{shown}: {why}"))
        })?;
        *self = read;
        let shown = setting.show(self);
        self.origins.0.insert(setting.key, (origin, shown));
        Ok(())
    }
}

/// What people are told of a variable that is a service's.
pub(super) fn of_service(name: &str, text: &str) -> String {
    format!(
        "{name}={text} comes from a Kubernetes Service named rendez, and is ignored as a port: set \
         enableServiceLinks: false in the pod's spec"
    )
}

/// `; did you mean …?`, if any of `known` is near.
pub(super) fn hint<'a>(
    name: &str,
    known: impl Iterator<Item = &'a str>,
    show: impl Fn(&str) -> String,
) -> String {
    let name = bare(name);
    let nearest = known
        .map(|known| (distance(name, bare(known)), known))
        .min()
        .filter(|(distance, known)| *distance <= bare(known).len().max(4) / 2);
    nearest.map_or_else(
        || "; `rendez config show` lists them all".to_owned(),
        |(_, known)| format!("; did you mean `{}`?", show(known)),
    )
}

/// A name without what all variables begin with, which makes none of them near.
fn bare(name: &str) -> &str {
    name.strip_prefix("RENDEZ_").unwrap_or(name)
}

/// `rendez.toml:3`, `RENDEZ_SHARDS`, `--shards`
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(flag) => f.write_str(flag),
            Self::Code => f.write_str("code"),
        }
    }
}
