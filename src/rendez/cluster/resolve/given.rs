//! Flags and `RENDEZ_*` variables: a cluster and which task this is, or a root, a rank and a size.
//!
//! A flag beats the variable of the same name, one by one.

use super::ranks::Ranks;
use super::{Answer, Found, Membership, View, absent};
use crate::cluster::spec::ClusterSpec;
use crate::cluster::variables;
use crate::ground::{Status, TaskName};

pub(super) fn ask(view: &View<'_>) -> Result<Answer, Status> {
    let flags = &view.surroundings.flags;
    let (cluster, origin) = match (&flags.cluster, view.variable(variables::CLUSTER)) {
        (Some(cluster), _) => (Some(cluster.clone()), "--cluster"),
        (None, Some(text)) => (Some(ClusterSpec::parse(text)?), variables::CLUSTER),
        (None, None) => (None, ""),
    };
    if let Some(cluster) = cluster {
        let said = || match task(view)? {
            Some(task) => Ok(task),
            None => cluster.only(None, None),
        };
        let task = view.place(&cluster, said)?;
        return Found::new(Membership::Known(cluster), task, origin).found();
    }
    match (view.given_root()?, view.given_rank()?, view.given_size()?) {
        (Some(root), Some(rank), Some(size)) => {
            let ranks = Ranks::new((variables::RANK, rank), (variables::WORLD_SIZE, size))?;
            let origin = format!(
                "{}, {} and {}",
                variables::ROOT,
                variables::RANK,
                variables::WORLD_SIZE
            );
            ranks.rooted(root, origin)?.found()
        }
        (None, None, None) => {
            absent("neither --cluster nor RENDEZ_CLUSTER nor RENDEZ_ROOT is given")
        }
        (root, rank, size) => {
            let missing: Vec<&str> = [
                (root.is_none(), variables::ROOT),
                (rank.is_none(), variables::RANK),
                (size.is_none(), variables::WORLD_SIZE),
            ]
            .into_iter()
            .filter_map(|(is_missing, name)| is_missing.then_some(name))
            .collect();
            absent(format!(
                "{} not given; a launcher may say",
                missing.join(" and ")
            ))
        }
    }
}

/// This task, if flags or environment say.
pub(super) fn task(view: &View<'_>) -> Result<Option<TaskName>, Status> {
    match (
        &view.surroundings.flags.task,
        view.variable(variables::TASK),
    ) {
        (Some(task), _) => Ok(Some(task.clone())),
        (None, Some(text)) => Ok(Some(TaskName::parse(text)?)),
        (None, None) => Ok(None),
    }
}
