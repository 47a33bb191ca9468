//! How each kind of value is read from a file, a variable or a flag, and how it is shown.
//!
//! Knows kinds, not settings. Variables and flags are texts, so every kind reads a text as well as what TOML has for
//! it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use toml::Value;

use crate::cluster::{ClusterSpec, HostPort};
use crate::control::{Address, RuntimeKind};
use crate::drive::{Driver, PollPolicy};
use crate::engine::DeviceUse;
use crate::ground::{TaskName, units};
use crate::memory::HugePages;

/// A kind of value, for settings of type `T`.
pub(super) trait Codec<T> {
    /// What a value should be.
    fn expects() -> String;

    /// Reads a value over the one that is there. The error says what is wrong beyond [`expects`](Self::expects).
    fn read(into: &mut T, value: &Value) -> Result<(), String>;

    /// The value as a file would have it; empty for none.
    fn show(value: &T) -> String;
}

/// A text.
pub(super) struct Text;
/// A path of a file.
pub(super) struct FilePath;
/// True or false.
pub(super) struct Switch;
/// A number from 0 on.
pub(super) struct Count;
/// A number from 0 on, or none.
pub(super) struct MaybeCount;
/// Bytes.
pub(super) struct Size;
/// A duration with its unit.
pub(super) struct Time;
/// One of some words.
pub(super) struct Choice;
/// What reads and shows itself.
pub(super) struct Itself;
/// Numbers of cores.
pub(super) struct Cores;
/// Addresses by task.
pub(super) struct Peers;
/// Jobs and their tasks.
pub(super) struct Cluster;

/// Words and what they mean.
pub(super) trait Words: Copy + PartialEq + 'static {
    /// All of them.
    const ALL: &'static [(&'static str, Self)];
}

impl Words for PollPolicy {
    const ALL: &'static [(&'static str, Self)] = &[
        ("adaptive", Self::Adaptive),
        ("busy", Self::Busy),
        ("park", Self::Park),
    ];
}

impl Words for Driver {
    const ALL: &'static [(&'static str, Self)] = &[
        ("adaptive", Self::Adaptive),
        ("thread", Self::Thread),
        ("caller", Self::Caller),
    ];
}

impl Words for DeviceUse {
    const ALL: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("auto", Self::Auto),
        ("require", Self::Require),
    ];
}

impl Words for HugePages {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("off", Self::Off),
        ("require", Self::Require),
    ];
}

impl Words for Option<RuntimeKind> {
    const ALL: &'static [(&'static str, Self)] = &[
        ("auto", None),
        ("glommio", Some(RuntimeKind::Glommio)),
        ("poll", Some(RuntimeKind::Poll)),
    ];
}

impl Words for super::Require {
    const ALL: &'static [(&'static str, Self)] = &crate::engine::transports::REQUIRES;
}

impl<T: Words> Codec<T> for Choice {
    fn expects() -> String {
        let words: Vec<&str> = T::ALL.iter().map(|(word, _)| *word).collect();
        match words.split_last() {
            Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
            None => String::new(),
        }
    }

    fn read(into: &mut T, value: &Value) -> Result<(), String> {
        let found = T::ALL
            .iter()
            .find(|(word, _)| Some(*word) == value.as_str());
        *into = found.ok_or_else(String::new)?.1;
        Ok(())
    }

    fn show(value: &T) -> String {
        let found = T::ALL.iter().find(|(_, known)| known == value);
        found.map_or_else(String::new, |(word, _)| quoted(word))
    }
}

impl Codec<String> for Text {
    fn expects() -> String {
        "a text".into()
    }

    fn read(into: &mut String, value: &Value) -> Result<(), String> {
        *into = value.as_str().ok_or_else(String::new)?.to_owned();
        Ok(())
    }

    fn show(value: &String) -> String {
        quoted(value)
    }
}

impl Codec<Option<String>> for Text {
    fn expects() -> String {
        "a text".into()
    }

    fn read(into: &mut Option<String>, value: &Value) -> Result<(), String> {
        <Self as Codec<String>>::read(into.get_or_insert_default(), value)
    }

    fn show(value: &Option<String>) -> String {
        value.as_deref().map_or_else(String::new, quoted)
    }
}

impl Codec<Option<PathBuf>> for FilePath {
    fn expects() -> String {
        "a path".into()
    }

    fn read(into: &mut Option<PathBuf>, value: &Value) -> Result<(), String> {
        let text = value.as_str().filter(|text| !text.is_empty());
        *into = Some(text.ok_or_else(String::new)?.into());
        Ok(())
    }

    fn show(value: &Option<PathBuf>) -> String {
        let path = value.as_ref().map(|path| path.display().to_string());
        path.map_or_else(String::new, |path| quoted(&path))
    }
}

impl Codec<bool> for Switch {
    fn expects() -> String {
        "true or false".into()
    }

    fn read(into: &mut bool, value: &Value) -> Result<(), String> {
        *into = match value {
            Value::Boolean(value) => *value,
            Value::String(text) => text.parse().map_err(|_| String::new())?,
            _ => return Err(String::new()),
        };
        Ok(())
    }

    fn show(value: &bool) -> String {
        value.to_string()
    }
}

/// A whole number, as TOML has it or as text.
fn number<N: FromStr + TryFrom<i64>>(value: &Value) -> Result<N, String> {
    let found = match value {
        Value::Integer(number) => N::try_from(*number).ok(),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    found.ok_or_else(String::new)
}

impl<N: FromStr + TryFrom<i64> + ToString> Codec<N> for Count {
    fn expects() -> String {
        "a number".into()
    }

    fn read(into: &mut N, value: &Value) -> Result<(), String> {
        *into = number(value)?;
        Ok(())
    }

    fn show(value: &N) -> String {
        value.to_string()
    }
}

impl Codec<Option<u32>> for MaybeCount {
    fn expects() -> String {
        "a number".into()
    }

    fn read(into: &mut Option<u32>, value: &Value) -> Result<(), String> {
        *into = Some(number(value)?);
        Ok(())
    }

    fn show(value: &Option<u32>) -> String {
        value.map_or_else(String::new, |number| number.to_string())
    }
}

impl<N: TryFrom<u64> + TryInto<u64> + Copy> Codec<N> for Size {
    fn expects() -> String {
        "bytes, as 4096 or \"64KiB\"".into()
    }

    fn read(into: &mut N, value: &Value) -> Result<(), String> {
        let bytes = match value {
            Value::Integer(number) => u64::try_from(*number).map_err(|_| String::new())?,
            Value::String(text) => units::any_bytes(text).map_err(|error| error.to_string())?,
            _ => return Err(String::new()),
        };
        *into = N::try_from(bytes).map_err(|_| String::new())?;
        Ok(())
    }

    fn show(value: &N) -> String {
        let text = units::exact_bytes((*value).try_into().unwrap_or(u64::MAX));
        match text.parse::<u64>() {
            Ok(_) => text,
            Err(_) => quoted(&text),
        }
    }
}

impl Codec<Duration> for Time {
    fn expects() -> String {
        "a duration with its unit, as \"50ms\" or \"10s\"".into()
    }

    fn read(into: &mut Duration, value: &Value) -> Result<(), String> {
        let text = value.as_str().ok_or_else(String::new)?;
        *into = units::duration(text).map_err(|error| error.to_string())?;
        Ok(())
    }

    fn show(value: &Duration) -> String {
        quoted(&units::exact_duration(*value))
    }
}

/// What reads and shows itself, and is called something.
pub(super) trait NamedValue {
    /// What it should be.
    const WHAT: &'static str;
}

impl NamedValue for Address {
    const WHAT: &'static str =
        "an address, as \"host:port\", \"unix:@name\" or \"unix:/absolute/path\"";
}

impl NamedValue for HostPort {
    const WHAT: &'static str = "an address, as \"host:port\"";
}

impl<T: NamedValue + FromStr<Err: ToString> + ToString> Codec<Option<T>> for Itself {
    fn expects() -> String {
        T::WHAT.into()
    }

    fn read(into: &mut Option<T>, value: &Value) -> Result<(), String> {
        let text = value.as_str().ok_or_else(String::new)?;
        *into = Some(text.parse().map_err(|error: T::Err| error.to_string())?);
        Ok(())
    }

    fn show(value: &Option<T>) -> String {
        let text = value.as_ref().map(ToString::to_string);
        text.map_or_else(String::new, |text| quoted(&text))
    }
}

impl Codec<Vec<usize>> for Cores {
    fn expects() -> String {
        "numbers of cores, as [0, 2] or \"0,2-3\"".into()
    }

    fn read(into: &mut Vec<usize>, value: &Value) -> Result<(), String> {
        *into = match value {
            Value::Array(list) => list.iter().map(number).collect::<Result<_, _>>()?,
            Value::String(text) if text.is_empty() => Vec::new(),
            Value::String(text) => {
                let mut cores = Vec::new();
                for part in text.split(',') {
                    let (first, last) = part.split_once('-').unwrap_or((part, part));
                    let core = |text: &str| text.trim().parse::<u16>().map_err(|_| String::new());
                    let (first, last) = (core(first)?, core(last)?);
                    if first > last {
                        return Err(format!("{first}-{last} runs backwards"));
                    }
                    cores.extend((first..=last).map(usize::from));
                }
                cores
            }
            _ => return Err(String::new()),
        };
        Ok(())
    }

    fn show(value: &Vec<usize>) -> String {
        let cores: Vec<String> = value.iter().map(ToString::to_string).collect();
        format!("[{}]", cores.join(", "))
    }
}

/// Peers of a later layer come to those that are there, and take the place of those of the same task. Keys are names in
/// full where they name a task: a name has several spellings.
impl Codec<BTreeMap<String, Address>> for Peers {
    fn expects() -> String {
        "a table of addresses by task, or \"/job:a/task:0=unix:@name,…\"".into()
    }

    fn read(into: &mut BTreeMap<String, Address>, value: &Value) -> Result<(), String> {
        let mut layer = BTreeMap::new();
        let mut add = |task: &str, at: &str| {
            let address = at.parse().map_err(|error| format!("{task}: {error}"))?;
            let task = TaskName::parse(task).map_or_else(|_| task.to_owned(), |it| it.to_string());
            match layer.insert(task.clone(), address) {
                None => Ok(()),
                Some(_) => Err(format!("{task} is named twice")),
            }
        };
        match value {
            Value::Table(table) => {
                for (task, at) in table {
                    add(task, at.as_str().ok_or_else(|| format!("{task}: no text"))?)?;
                }
            }
            Value::String(text) => {
                for part in text.split(',').filter(|part| !part.trim().is_empty()) {
                    let (task, at) = part.split_once('=').ok_or_else(String::new)?;
                    add(task.trim(), at.trim())?;
                }
            }
            _ => return Err(String::new()),
        }
        into.append(&mut layer);
        Ok(())
    }

    fn show(value: &BTreeMap<String, Address>) -> String {
        let peers: Vec<String> = value
            .iter()
            .map(|(task, at)| format!("{} = {}", quoted(task), quoted(&at.to_string())))
            .collect();
        match peers.len() {
            0 => "{}".into(),
            _ => format!("{{ {} }}", peers.join(", ")),
        }
    }
}

impl Codec<Option<ClusterSpec>> for Cluster {
    fn expects() -> String {
        "a table of jobs, or \"job=host:port,host:port;job=…\"".into()
    }

    fn read(into: &mut Option<ClusterSpec>, value: &Value) -> Result<(), String> {
        let spec = match value {
            Value::Table(table) => ClusterSpec::from_toml(table),
            Value::String(text) => ClusterSpec::parse(text),
            _ => return Err(String::new()),
        };
        *into = Some(spec.map_err(|status| status.message().to_owned())?);
        Ok(())
    }

    fn show(value: &Option<ClusterSpec>) -> String {
        let spec = value.as_ref().map(ToString::to_string);
        spec.map_or_else(String::new, |spec| quoted(&spec))
    }
}

/// As TOML writes a text.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
