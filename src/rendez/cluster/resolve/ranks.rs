//! What launchers of ranks have in common: a rank below a size, one job of all ranks, and a root.
//!
//! Knows no launcher.

use super::{Found, Membership, wrong};
use crate::cluster::address::HostPort;
use crate::ground::limits::CLUSTER_TASKS_MAX;
use crate::ground::{Status, TaskName, catalogue};

/// The job of launchers that know ranks only.
pub(super) const JOB: &str = "worker";

/// A rank below its size, with the names of the variables that said so.
#[derive(Clone, Copy)]
pub(super) struct Ranks {
    pub(super) rank: u32,
    pub(super) size: u32,
}

impl Ranks {
    pub(super) fn new(
        (rank_name, rank): (&str, u32),
        (size_name, size): (&str, u32),
    ) -> Result<Self, Status> {
        if size as usize > CLUSTER_TASKS_MAX {
            let why = format!("at most {CLUSTER_TASKS_MAX} tasks make a cluster");
            return Err(wrong(size_name, &size.to_string(), &why));
        }
        if rank >= size {
            let why = format!("a rank is below the size, and {size_name}={size}");
            return Err(wrong(rank_name, &rank.to_string(), &why));
        }
        Ok(Self { rank, size })
    }

    pub(super) fn task(self) -> Result<TaskName, Status> {
        Ok(TaskName::new(JOB, 0, self.rank)?)
    }

    pub(super) fn rooted(self, root: HostPort, origin: impl Into<String>) -> Result<Found, Status> {
        let membership = Membership::Rooted {
            root,
            rank: self.rank,
            size: self.size,
        };
        Ok(Found::new(membership, self.task()?, origin))
    }
}

/// A launcher that does not say where rank 0 is.
pub(super) fn rootless(ranks: Ranks, who: &str, why: &str) -> Status {
    let Ranks { rank, size } = ranks;
    let message = format!(
        "{who} says that this is rank {rank} of {size}, but not where rank 0 is ({why}): set RENDEZ_ROOT=host:port, \
         the same for all ranks"
    );
    Status::of(catalogue::CLUSTER_ROOT_UNKNOWN, message)
}
