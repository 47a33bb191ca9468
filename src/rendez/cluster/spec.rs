//! The specification of a cluster: jobs, their tasks, and where each listens.
//!
//! Knows nothing of where it came from, nor which of the tasks this process is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::address::HostPort;
use super::quoted::shown;
use crate::ground::limits::{CLUSTER_TASKS_MAX, CLUSTER_TEXT_BYTES_MAX};
use crate::ground::{Status, TaskName, catalogue};

/// Jobs and their tasks. The tasks of a job have numbers, among which some may be missing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterSpec {
    jobs: BTreeMap<String, BTreeMap<u32, HostPort>>,
    /// Where a task listens, on a port that is said.
    taken: BTreeSet<HostPort>,
}

impl ClusterSpec {
    /// A cluster without jobs.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            jobs: BTreeMap::new(),
            taken: BTreeSet::new(),
        }
    }

    /// A cluster of one job, whose tasks listen at `addresses` in order.
    ///
    /// # Errors
    /// As [`add_job`](Self::add_job).
    pub fn of_job(
        job: &str,
        addresses: impl IntoIterator<Item = HostPort>,
    ) -> Result<Self, Status> {
        let mut spec = Self::new();
        spec.add_job(job, (0..).zip(addresses))?;
        Ok(spec)
    }

    /// Reads `ps=a:1,b:1;worker=c:2`: jobs apart by semicolons, tasks by commas, counted from 0. `3@d:2` gives a task
    /// its number, and those after it count on.
    ///
    /// # Errors
    /// `CLUSTER_SPEC` and `CLUSTER_ADDRESS` say what is wrong, `CLUSTER_DUPLICATE_JOB` which job comes twice.
    ///
    /// ```
    /// let spec = rendez::cluster::ClusterSpec::parse("ps=a:1;worker=b:2,7@[::1]:2")?;
    /// assert_eq!(spec.find("worker", 7)?.host(), "::1");
    /// assert_eq!(spec.to_string(), "ps=a:1;worker=b:2,7@[::1]:2");
    /// # Ok::<(), rendez::ground::Status>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, Status> {
        check_length(text)?;
        let mut spec = Self::new();
        for job in text.split(';').filter(|job| !job.trim().is_empty()) {
            let Some((name, tasks)) = job.split_once('=') else {
                let message = format!(
                    "'{}' is not a job: write job=host:port,host:port;job=…",
                    shown(job)
                );
                return Err(Status::of(catalogue::CLUSTER_SPEC, message));
            };
            let mut next = 0u32;
            let mut numbered = Vec::new();
            for task in tasks
                .split(',')
                .map(str::trim)
                .filter(|task| !task.is_empty())
            {
                let (index, address) = match task.split_once('@') {
                    Some((index, address)) => (self::index(name, index)?, address),
                    None => (next, task),
                };
                next = index.saturating_add(1);
                numbered.push((index, address.parse()?));
            }
            spec.add_job(name.trim(), numbered)?;
        }
        Ok(spec)
    }

    /// Reads a table of jobs, each a list of addresses or a table from numbers to addresses.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub fn from_toml(table: &toml::Table) -> Result<Self, Status> {
        let mut spec = Self::new();
        for (job, tasks) in table {
            let address = |value: &toml::Value| match value {
                toml::Value::String(text) => text.parse(),
                other => Err(no_tasks(job, other.type_str())),
            };
            let tasks: Vec<(u32, HostPort)> = match tasks {
                toml::Value::Array(list) => (0..)
                    .zip(list)
                    .map(|(index, value)| Ok((index, address(value)?)))
                    .collect::<Result<_, Status>>()?,
                toml::Value::Table(table) => table
                    .iter()
                    .map(|(index, value)| Ok((self::index(job, index)?, address(value)?)))
                    .collect::<Result<_, Status>>()?,
                other => return Err(no_tasks(job, other.type_str())),
            };
            spec.add_job(job, tasks)?;
        }
        Ok(spec)
    }

    /// Adds a job.
    ///
    /// # Errors
    /// `CLUSTER_DUPLICATE_JOB` if there is one of that name, `CLUSTER_SPEC` if `job` is no name of a job, a number
    /// comes twice, two tasks listen at one address, or there are more than [`CLUSTER_TASKS_MAX`] tasks.
    pub fn add_job(
        &mut self,
        job: &str,
        tasks: impl IntoIterator<Item = (u32, HostPort)>,
    ) -> Result<(), Status> {
        if self.jobs.contains_key(job) {
            let message = format!("Duplicate job ID in cluster specification: {job}");
            return Err(Status::of(catalogue::CLUSTER_DUPLICATE_JOB, message));
        }
        if TaskName::new(job, 0, 0).is_err() {
            let message = format!(
                "'{}' is not the name of a job: write a letter, then letters, digits and underscores",
                shown(job)
            );
            return Err(Status::of(catalogue::CLUSTER_SPEC, message));
        }
        let room = CLUSTER_TASKS_MAX - self.len();
        let mut added = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for (index, address) in tasks {
            if added.len() == room {
                let message = format!(
                    "the cluster has more than {CLUSTER_TASKS_MAX} tasks, which is the limit (CLUSTER_TASKS_MAX)"
                );
                return Err(Status::of(catalogue::CLUSTER_SPEC, message));
            }
            if address.port() != 0
                && (self.taken.contains(&address) || !taken.insert(address.clone()))
            {
                return Err(self.twice(&added, (job, index), &address));
            }
            if added.insert(index, address).is_some() {
                let message = format!("Duplicate task {index} in job '{job}'");
                return Err(Status::of(catalogue::CLUSTER_SPEC, message));
            }
        }
        self.jobs.insert(job.to_owned(), added);
        self.taken.append(&mut taken);
        Ok(())
    }

    /// Of a task that is to listen where another does, here or among those `added` to its own job.
    fn twice(
        &self,
        added: &BTreeMap<u32, HostPort>,
        (job, index): (&str, u32),
        address: &HostPort,
    ) -> Status {
        let others = self.jobs().chain([(job, added)]);
        let mut others = others.flat_map(|(job, tasks)| tasks.iter().map(move |task| (job, task)));
        let other = others.find(|(_, (_, theirs))| *theirs == address);
        let other = other.map_or_else(String::new, |(job, (index, _))| {
            format!("task {index} of job '{job}' listens there")
        });
        let message = format!(
            "task {index} of job '{job}' cannot listen at {address}: {other}; give each task an address of its own"
        );
        Status::of(catalogue::CLUSTER_SPEC, message)
    }

    /// The jobs in order of name, each with its tasks in order of number.
    pub fn jobs(&self) -> impl Iterator<Item = (&str, &BTreeMap<u32, HostPort>)> {
        self.jobs.iter().map(|(job, tasks)| (job.as_str(), tasks))
    }

    /// All tasks, each with where it listens.
    pub fn tasks(&self) -> impl Iterator<Item = (TaskName, &HostPort)> {
        self.jobs().flat_map(|(job, tasks)| {
            tasks.iter().filter_map(move |(&index, address)| {
                Some((TaskName::new(job, 0, index).ok()?, address))
            })
        })
    }

    /// Where `task` listens, if it is in the cluster. Replicas share an entry.
    #[must_use]
    pub fn address(&self, task: &TaskName) -> Option<&HostPort> {
        self.jobs.get(task.job())?.get(&task.task())
    }

    /// Where the task of this job and number listens.
    ///
    /// # Errors
    /// `CLUSTER_TASK_UNDEFINED` says whether the job or the task is missing, and what there is.
    pub fn find(&self, job: &str, index: u32) -> Result<&HostPort, Status> {
        let tasks = self.jobs.get(job).ok_or_else(|| {
            let jobs: Vec<&str> = self.jobs.keys().take(16).map(String::as_str).collect();
            let message = format!(
                "Job \"{}\" was not defined in cluster; its jobs are {}",
                shown(job),
                jobs.join(", ")
            );
            Status::of(catalogue::CLUSTER_TASK_UNDEFINED, message)
        })?;
        tasks.get(&index).ok_or_else(|| {
            let message = format!(
                "Task {index} was not defined in job \"{job}\", which has {} tasks",
                tasks.len()
            );
            Status::of(catalogue::CLUSTER_TASK_UNDEFINED, message)
        })
    }

    /// The one task that is meant where the job or the number is left out.
    ///
    /// # Errors
    /// `CLUSTER_SPEC` if there are several, or none.
    pub fn only(&self, job: Option<&str>, index: Option<u32>) -> Result<TaskName, Status> {
        let ambiguous = |what: &str| {
            let message = format!("{what}: say which with `task` (RENDEZ_TASK=/job:worker/task:0)");
            Status::of(catalogue::CLUSTER_SPEC, message)
        };
        let job = match (job, self.jobs.len()) {
            (Some(job), _) => job,
            (None, 1) => self.jobs.keys().next().map_or("", String::as_str),
            (None, count) => {
                return Err(ambiguous(&format!(
                    "the cluster has {count} jobs, and this process may belong to any of them"
                )));
            }
        };
        let tasks = self.jobs.get(job);
        let index = match (index, tasks.map_or(0, BTreeMap::len)) {
            (Some(index), _) => index,
            (None, 1) => tasks
                .and_then(|tasks| tasks.keys().next().copied())
                .unwrap_or(0),
            (None, count) => {
                return Err(ambiguous(&format!(
                    "job \"{}\" has {count} tasks, and this process may be any of them",
                    shown(job)
                )));
            }
        };
        Ok(TaskName::new(job, 0, index)?)
    }

    /// How many tasks there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.values().map(BTreeMap::len).sum()
    }

    /// True if there is no task.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.values().all(BTreeMap::is_empty)
    }
}

/// As [`ClusterSpec::parse`] reads it.
impl fmt::Display for ClusterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (job, tasks)) in self.jobs().enumerate() {
            write!(f, "{}{job}=", if place == 0 { "" } else { ";" })?;
            let mut next = 0;
            for (place, (&index, address)) in tasks.iter().enumerate() {
                f.write_str(if place == 0 { "" } else { "," })?;
                if index != next {
                    write!(f, "{index}@")?;
                }
                write!(f, "{address}")?;
                next = index.saturating_add(1);
            }
        }
        Ok(())
    }
}

/// As a table of tables.
impl serde::Serialize for ClusterSpec {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.jobs.serialize(serializer)
    }
}

/// A task's number.
pub(super) fn index(job: &str, text: &str) -> Result<u32, Status> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| {
        let message = format!(
            "'{}' is not the number of a task in job '{}': write 0, 1, 2, …",
            shown(text),
            shown(job)
        );
        Status::of(catalogue::CLUSTER_SPEC, message)
    })
}

/// Nothing longer is read.
pub(super) fn check_length(text: &str) -> Result<(), Status> {
    if text.len() <= CLUSTER_TEXT_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the cluster's description has {} bytes, over the limit of {CLUSTER_TEXT_BYTES_MAX} (CLUSTER_TEXT_BYTES_MAX)",
        text.len()
    );
    Err(Status::of(catalogue::CLUSTER_SPEC, message))
}

fn no_tasks(job: &str, kind: &str) -> Status {
    let message = format!(
        "job '{}': a {kind} where tasks should be; write [\"host:port\", …] or {{ 0 = \"host:port\", … }}",
        shown(job)
    );
    Status::of(catalogue::CLUSTER_SPEC, message)
}
