//! Resolving the cluster: one resolver for each source, asked in order until one answers.
//!
//! Knows the order and what an answer is; how each source says it stands with its resolver.

mod file;
mod given;
mod kubernetes;
mod mpi;
mod ranks;
mod slurm;
mod tf_config;
mod torchrun;
mod view;

use std::collections::BTreeMap;
use std::fmt;

use super::address::HostPort;
use super::quoted::shown;
use super::spec::ClusterSpec;
use super::variables;
use crate::ground::{Status, TaskName, catalogue};
use view::View;

/// Everything a resolver may look at, gathered by a caller that may do I/O.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Surroundings {
    /// What the command line or the program says itself.
    pub flags: Flags,
    /// The environment. A variable that is set to nothing counts as not set.
    pub environment: BTreeMap<String, String>,
    /// The configuration file, if there is one.
    pub file: Option<File>,
    /// This machine's own name, where it is known: in a pod it is the pod's.
    pub host_name: Option<String>,
}

/// What the command line or the program says of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Flags {
    /// This task.
    pub task: Option<TaskName>,
    /// The cluster.
    pub cluster: Option<ClusterSpec>,
    /// Where rank 0 listens.
    pub root: Option<HostPort>,
    /// This task's rank.
    pub rank: Option<u32>,
    /// How many ranks there are.
    pub world_size: Option<u32>,
    /// The port of tasks whose launcher names none.
    pub port: Option<u16>,
    /// The subdomain of a Kubernetes job's pods.
    pub subdomain: Option<String>,
}

/// A configuration file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct File {
    /// Where it lies, for messages.
    pub path: String,
    /// What stands in it.
    pub text: String,
}

/// A cluster, and this process's place in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// Its members.
    pub membership: Membership,
    /// Which of them this is.
    pub task: TaskName,
    /// Which life of the job this is, where the launcher counts them. Tasks of different epochs must not meet.
    pub epoch: Option<Epoch>,
    /// This process among those of its machine, where the launcher says.
    pub local: Option<Local>,
    /// The source that said so.
    pub source: Source,
    /// With which flags, variables or file.
    pub origin: String,
    /// What was assumed or ignored on the way.
    pub notes: Vec<String>,
    /// The sources asked before, and why they do not apply.
    pub passed_over: Vec<PassedOver>,
}

/// The members of a cluster.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Membership {
    /// All tasks and their addresses.
    Known(ClusterSpec),
    /// Only where rank 0 is: it listens at `root`, the others tell it their addresses and learn those of the rest
    /// from it. Rank *r* is task *r* of the one job.
    Rooted {
        /// Where rank 0 listens.
        root: HostPort,
        /// This process's rank, below `size`.
        rank: u32,
        /// How many ranks there are.
        size: u32,
    },
}

/// One life of a job.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize)]
pub struct Epoch {
    /// The run, as its launcher names it.
    pub run: String,
    /// How often it was restarted.
    pub restart: u64,
}

/// A process among those of its machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Local {
    /// Its rank there.
    pub rank: u32,
    /// How many there are, where the launcher says.
    pub size: Option<u32>,
}

/// A source that does not apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PassedOver {
    /// Which.
    pub source: Source,
    /// Why not.
    pub why: String,
}

listed! {
    /// Sources of the cluster's description, in the order in which they are asked.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum Source {
        /// Flags and `RENDEZ_*` variables.
        Given => "flags and RENDEZ_*",
        /// The configuration file.
        File => "configuration file",
        /// TensorFlow's variable.
        TfConfig => variables::TF_CONFIG,
        /// torchrun.
        Torchrun => "torchrun",
        /// Open MPI, PMIx, Hydra.
        Mpi => "MPI",
        /// Slurm.
        Slurm => "Slurm",
        /// Kubernetes.
        Kubernetes => "Kubernetes",
    }
}

/// Asks all sources in order; the first that says anything is believed, and must then say all of it.
///
/// # Errors
/// `CLUSTER_UNRESOLVED` lists why no source applies: this process is alone. Any other status says what is wrong with
/// the source that does apply.
pub fn resolve(surroundings: &Surroundings) -> Result<Resolved, Status> {
    first_of_all(&View::new(surroundings, false)?)
}

/// The cluster, for one that is none of its tasks: nothing needs to say which this is, and what does is not heeded.
///
/// # Errors
/// As [`resolve`].
pub fn members(surroundings: &Surroundings) -> Result<Membership, Status> {
    Ok(first_of_all(&View::new(surroundings, true)?)?.membership)
}

fn first_of_all(view: &View<'_>) -> Result<Resolved, Status> {
    let mut passed_over = Vec::new();
    for &source in Source::ALL {
        match source.ask(view)? {
            Answer::Absent(why) => passed_over.push(PassedOver { source, why }),
            Answer::Found(found) => return found.checked(source, passed_over),
        }
    }
    let whys: Vec<String> = passed_over
        .iter()
        .map(|passed| format!("{}: {}", passed.source, passed.why))
        .collect();
    let message = format!("nothing says what the cluster is. {}", whys.join("; "));
    Err(Status::of(catalogue::CLUSTER_UNRESOLVED, message))
}

impl Resolved {
    /// Where this task listens, as far as the cluster says.
    #[must_use]
    pub fn address(&self) -> Option<&HostPort> {
        match &self.membership {
            Membership::Known(spec) => spec.address(&self.task),
            Membership::Rooted { root, rank: 0, .. } => Some(root),
            Membership::Rooted { .. } => None,
        }
    }
}

impl Source {
    fn ask(self, view: &View<'_>) -> Result<Answer, Status> {
        match self {
            Self::Given => given::ask(view),
            Self::File => file::ask(view),
            Self::TfConfig => tf_config::ask(view),
            Self::Torchrun => torchrun::ask(view),
            Self::Mpi => mpi::ask(view),
            Self::Slurm => slurm::ask(view),
            Self::Kubernetes => kubernetes::ask(view),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `run, restart 3`
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, restart {}", self.run, self.restart)
    }
}

/// What a resolver says.
enum Answer {
    /// This source does not apply, and why.
    Absent(String),
    /// It applies.
    Found(Box<Found>),
}

/// What a source that applies says.
struct Found {
    membership: Membership,
    task: TaskName,
    epoch: Option<Epoch>,
    local: Option<Local>,
    origin: String,
    notes: Vec<String>,
    /// The task need not be in the cluster: it only calls, and no task calls it.
    may_be_outside: bool,
}

impl Found {
    fn new(membership: Membership, task: TaskName, origin: impl Into<String>) -> Self {
        Self {
            membership,
            task,
            epoch: None,
            local: None,
            origin: origin.into(),
            notes: Vec::new(),
            may_be_outside: false,
        }
    }

    fn checked(self, source: Source, passed_over: Vec<PassedOver>) -> Result<Resolved, Status> {
        if let Membership::Known(spec) = &self.membership
            && !self.may_be_outside
        {
            spec.find(self.task.job(), self.task.task())?;
        }
        Ok(Resolved {
            membership: self.membership,
            task: self.task,
            epoch: self.epoch,
            local: self.local,
            source,
            origin: self.origin,
            notes: self.notes,
            passed_over,
        })
    }

    fn found(self) -> Result<Answer, Status> {
        Ok(Answer::Found(Box::new(self)))
    }
}

fn absent(why: impl Into<String>) -> Result<Answer, Status> {
    Ok(Answer::Absent(why.into()))
}

/// A variable of a launcher that makes no sense.
fn wrong(name: &str, value: &str, why: &str) -> Status {
    let message = format!("{name}={}: {why}", shown(value));
    Status::of(catalogue::LAUNCHER_ENVIRONMENT, message)
}
