//! Device names: where a tensor comes from or goes to, as `/job:a/replica:0/task:0/device:CPU:0`.
//!
//! Knows nothing of clusters: a name is syntax, and whether such a device exists is for others to say.
//!
//! A name has five components, each set or unset; a name with all five is *full*. Three of them (job, replica,
//! task) say which process, and are a [`TaskName`]; two (type, index) say which device inside it. Parsing makes
//! them values and emitting gives one canonical text, so two spellings of one device are one device:
//!
//! ```
//! # extern crate rendez_core as rendez;
//! use rendez::ground::DeviceName;
//!
//! let name = DeviceName::parse_full("/task:0/job:a/replica:0/cpu:0")?;
//! assert_eq!(name.to_string(), "/job:a/replica:0/task:0/device:CPU:0");
//! assert_eq!(DeviceName::parse("/job:a/gpu:*")?.index(), None);
//! # Ok::<(), rendez::ground::device::DeviceError>(())
//! ```
//!
//! One thing is stricter than in the original: a component that is given twice is refused, where there the last
//! one won. A name that contradicts itself is a mistake, and the peer that made it wants to know.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::limits::{DEVICE_NAME_BYTES_MAX, DEVICE_TYPE_BYTES_MAX, JOB_NAME_BYTES_MAX};
use super::{Status, catalogue, status};

mod scan;
#[cfg(test)]
mod tests;

use scan::is_word;

/// A device name, full or partial.
///
/// The order is by job, replica, task, type and index; in each of them an unset component comes first.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct DeviceName {
    job: Option<Arc<str>>,
    replica: Option<u32>,
    task: Option<u32>,
    kind: Option<Arc<str>>,
    index: Option<u32>,
}

/// The name of a task, one process of a cluster: `/job:a/replica:0/task:0`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TaskName {
    job: Arc<str>,
    replica: u32,
    task: u32,
}

/// What to do where two names disagree on the device's type or index. On job, replica or task they may never disagree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conflict {
    /// Refuse.
    Strict,
    /// Soft placement: another type leaves both type and index unset, another index leaves the index unset.
    Clear,
}

/// A component of a device name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Component {
    /// The job.
    Job,
    /// The replica.
    Replica,
    /// The task.
    Task,
    /// The device's type.
    Type,
    /// The device's index among those of its type.
    Index,
}

/// What is wrong with a text that should be a device name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Longer than [`DEVICE_NAME_BYTES_MAX`].
    TooLong,
    /// Neither a known component nor the end.
    Unknown,
    /// A component is given twice.
    Repeated(Component),
    /// This component's value is not one: a job or type that is no word or too long, a number that is none.
    Value(Component),
    /// This component is missing and must be set.
    Missing(Component),
    /// This component is set and must not be.
    Unwanted(Component),
}

/// Why a device name was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The text is not a device name, or not the kind of device name that is wanted here.
    #[error(
        "Could not parse \"{text}\": {fault}. A task is written /job:worker/task:0, and a device of it \
         /job:worker/replica:0/task:0/device:CPU:0."
    )]
    Malformed {
        /// The text, cut if it is absurdly long.
        text: Box<str>,
        /// What is wrong with it.
        fault: Fault,
    },
    /// Two names that contradict each other were merged.
    #[error("Cannot merge devices with incompatible {}: '{first}' and '{second}'", component.plural())]
    Incompatible {
        /// Where they disagree.
        component: Component,
        /// The first name.
        first: Box<str>,
        /// The second.
        second: Box<str>,
    },
}

impl DeviceName {
    /// The full name of a device of `task`.
    ///
    /// # Errors
    /// [`DeviceError::Malformed`] if `kind` is not a device type: a letter, then letters, digits and underscores.
    pub fn new(task: &TaskName, kind: &str, index: u32) -> Result<Self, DeviceError> {
        if !is_word(kind) || kind.len() > DEVICE_TYPE_BYTES_MAX {
            return Err(malformed(kind, Fault::Value(Component::Type)));
        }
        Ok(Self::of_task(task, kind, index))
    }

    /// The first CPU of `task`: where a tensor lives unless stated otherwise.
    #[must_use]
    pub fn cpu(task: &TaskName) -> Self {
        Self::of_task(task, "CPU", 0)
    }

    /// Parses a full or partial name: components in any order, `*` for unset, `/` alone for nothing set.
    ///
    /// # Errors
    /// [`DeviceError::Malformed`] says what is wrong.
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        if text.len() > DEVICE_NAME_BYTES_MAX {
            return Err(malformed(text, Fault::TooLong));
        }
        scan::name(text).map_err(|fault| malformed(text, fault))
    }

    /// Parses a name that must have all five components.
    ///
    /// # Errors
    /// [`DeviceError::Malformed`] says what is wrong or names the first component that is missing.
    pub fn parse_full(text: &str) -> Result<Self, DeviceError> {
        let name = Self::parse(text)?;
        match name.missing() {
            None => Ok(name),
            Some(component) => Err(malformed(text, Fault::Missing(component))),
        }
    }

    /// Takes over what `other` sets. Where the two disagree on type or index, `conflict` decides.
    ///
    /// # Errors
    /// [`DeviceError::Incompatible`]; `self` is then unchanged.
    pub fn merge(&mut self, other: &Self, conflict: Conflict) -> Result<(), DeviceError> {
        if let Some(component) = self.first_conflict(other, conflict) {
            return Err(DeviceError::Incompatible {
                component,
                first: self.to_string().into(),
                second: other.to_string().into(),
            });
        }
        take_over(&mut self.job, &other.job);
        take_over(&mut self.replica, &other.replica);
        take_over(&mut self.task, &other.task);
        if conflict == Conflict::Clear && differ(&self.kind, &other.kind) {
            self.kind = None;
            self.index = None;
            return Ok(());
        }
        take_over(&mut self.kind, &other.kind);
        if conflict == Conflict::Clear && differ(&self.index, &other.index) {
            self.index = None;
            return Ok(());
        }
        take_over(&mut self.index, &other.index);
        Ok(())
    }

    /// Sets from `other` what is unset here, and nothing else.
    pub fn fill(&mut self, other: &Self) {
        let Self {
            job,
            replica,
            task,
            kind,
            index,
        } = other;
        self.job = self.job.take().or_else(|| job.clone());
        self.replica = self.replica.or(*replica);
        self.task = self.task.or(*task);
        self.kind = self.kind.take().or_else(|| kind.clone());
        self.index = self.index.or(*index);
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    /// The replica.
    #[must_use]
    pub const fn replica(&self) -> Option<u32> {
        self.replica
    }

    /// The task's index within its job.
    #[must_use]
    pub const fn task(&self) -> Option<u32> {
        self.task
    }

    /// The device's type, as `CPU`.
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// The device's index among those of its type.
    #[must_use]
    pub const fn index(&self) -> Option<u32> {
        self.index
    }

    /// True if all five components are set.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.missing().is_none()
    }

    /// The task this device belongs to; `None` unless job, replica and task are set.
    #[must_use]
    pub fn task_name(&self) -> Option<TaskName> {
        let (Some(job), Some(replica), Some(task)) = (&self.job, self.replica, self.task) else {
            return None;
        };
        Some(TaskName {
            job: Arc::clone(job),
            replica,
            task,
        })
    }

    /// The name and its task's; refused unless it is full.
    pub(super) fn into_full(self) -> Result<(Self, TaskName), DeviceError> {
        match (self.missing(), self.task_name()) {
            (None, Some(task)) => Ok((self, task)),
            (missing, _) => {
                let fault = Fault::Missing(missing.unwrap_or(Component::Job));
                Err(malformed(&self.to_string(), fault))
            }
        }
    }

    fn of_task(task: &TaskName, kind: &str, index: u32) -> Self {
        Self {
            job: Some(Arc::clone(&task.job)),
            replica: Some(task.replica),
            task: Some(task.task),
            kind: Some(kind.into()),
            index: Some(index),
        }
    }

    const fn missing(&self) -> Option<Component> {
        match self {
            Self { job: None, .. } => Some(Component::Job),
            Self { replica: None, .. } => Some(Component::Replica),
            Self { task: None, .. } => Some(Component::Task),
            Self { kind: None, .. } => Some(Component::Type),
            Self { index: None, .. } => Some(Component::Index),
            _ => None,
        }
    }

    fn first_conflict(&self, other: &Self, conflict: Conflict) -> Option<Component> {
        let strict = conflict == Conflict::Strict;
        let conflicts = [
            (differ(&self.job, &other.job), Component::Job),
            (differ(&self.replica, &other.replica), Component::Replica),
            (differ(&self.task, &other.task), Component::Task),
            (strict && differ(&self.kind, &other.kind), Component::Type),
            (
                strict && differ(&self.index, &other.index),
                Component::Index,
            ),
        ];
        conflicts
            .into_iter()
            .find_map(|(differs, component)| differs.then_some(component))
    }
}

impl TaskName {
    /// The name of a task.
    ///
    /// # Errors
    /// [`DeviceError::Malformed`] if `job` is not a job name: a letter, then letters, digits and underscores.
    pub fn new(job: &str, replica: u32, task: u32) -> Result<Self, DeviceError> {
        if !is_word(job) || job.len() > JOB_NAME_BYTES_MAX {
            return Err(malformed(job, Fault::Value(Component::Job)));
        }
        Ok(Self {
            job: job.into(),
            replica,
            task,
        })
    }

    /// Parses `/job:a/replica:0/task:0`; the replica may be left out and is then 0.
    ///
    /// # Errors
    /// [`DeviceError::Malformed`] says what is wrong; a name with a device in it is not a task's.
    pub fn parse(text: &str) -> Result<Self, DeviceError> {
        let name = DeviceName::parse(text)?;
        let fault = match &name {
            DeviceName { kind: Some(_), .. } => Fault::Unwanted(Component::Type),
            DeviceName { index: Some(_), .. } => Fault::Unwanted(Component::Index),
            DeviceName { job: None, .. } => Fault::Missing(Component::Job),
            DeviceName {
                job: Some(job),
                replica,
                task: Some(task),
                ..
            } => {
                return Ok(Self {
                    job: Arc::clone(job),
                    replica: replica.unwrap_or(0),
                    task: *task,
                });
            }
            DeviceName { task: None, .. } => Fault::Missing(Component::Task),
        };
        Err(malformed(text, fault))
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// The replica.
    #[must_use]
    pub const fn replica(&self) -> u32 {
        self.replica
    }

    /// The task's index within its job.
    #[must_use]
    pub const fn task(&self) -> u32 {
        self.task
    }
}

impl Component {
    const fn plural(self) -> &'static str {
        match self {
            Self::Job => "jobs",
            Self::Replica => "replicas",
            Self::Task => "tasks",
            Self::Type => "types",
            Self::Index => "ids",
        }
    }

    const fn singular(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Replica => "replica",
            Self::Task => "task",
            Self::Type => "device type",
            Self::Index => "device id",
        }
    }
}

/// The canonical text. A partial name leaves out what is unset (a name with nothing set is `/`), except that a
/// device with only one of type and index writes `*` for the other.
impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("/");
        }
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        match (&self.kind, self.index) {
            (Some(kind), Some(index)) => write!(f, "/device:{kind}:{index}"),
            (Some(kind), None) => write!(f, "/device:{kind}:*"),
            (None, Some(index)) => write!(f, "/device:*:{index}"),
            (None, None) => Ok(()),
        }
    }
}

impl FromStr for DeviceName {
    type Err = DeviceError;
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        Self::parse(text)
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "/job:{}/replica:{}/task:{}",
            self.job, self.replica, self.task
        )
    }
}

impl FromStr for TaskName {
    type Err = DeviceError;
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        Self::parse(text)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "it is longer than {DEVICE_NAME_BYTES_MAX} bytes"),
            Self::Unknown => f.write_str("it has a part that is not a component of a device name"),
            Self::Repeated(component) => write!(f, "it has two {}", component.plural()),
            Self::Value(component) => write!(f, "its {} is not one", component.singular()),
            Self::Missing(component) => write!(f, "it has no {}", component.singular()),
            Self::Unwanted(component) => write!(
                f,
                "it has a {}, which has no place here",
                component.singular()
            ),
        }
    }
}

impl From<DeviceError> for Status {
    fn from(error: DeviceError) -> Self {
        let reason = match error {
            DeviceError::Incompatible { .. } => catalogue::DEVICE_CONFLICT,
            _ => catalogue::DEVICE_MALFORMED,
        };
        Self::of(reason, error.to_string())
    }
}

/// Both set, and not the same.
fn differ<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

fn take_over<T: Clone>(target: &mut Option<T>, other: &Option<T>) {
    if other.is_some() {
        target.clone_from(other);
    }
}

fn malformed(text: &str, fault: Fault) -> DeviceError {
    DeviceError::Malformed {
        text: echo(text),
        fault,
    }
}

/// What a refusal repeats of the text it refuses: all of it, or as much as a name may have.
fn echo(text: &str) -> Box<str> {
    status::cut(text, DEVICE_NAME_BYTES_MAX)
}
