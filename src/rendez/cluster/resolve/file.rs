//! The configuration file: its `[cluster]`, and the keys that stand above it.
//!
//! Reads what describes the cluster and leaves the other keys to the settings. Flags and environment say which task
//! this is, if they do, so that one file serves all tasks.

use super::ranks::Ranks;
use super::{Answer, File, Found, Membership, View, absent, given};
use crate::cluster::spec::ClusterSpec;
use crate::ground::{Status, TaskName, catalogue};

pub(super) fn ask(view: &View<'_>) -> Result<Answer, Status> {
    let Some(file) = &view.surroundings.file else {
        return absent("there is none");
    };
    if let Some(cluster) = cluster(file, &view.table)? {
        let said = || match (given::task(view)?, view.table.get("task")) {
            (Some(task), _) => Ok(task),
            (None, Some(toml::Value::String(text))) => {
                TaskName::parse(text).map_err(|error| placed(file, &error.into()))
            }
            (None, _) => cluster.only(None, None),
        };
        let task = view.place(&cluster, said)?;
        let membership = Membership::Known(cluster);
        return Found::new(membership, task, file.path.as_str()).found();
    }
    // With all three from elsewhere, this file would not be asked.
    match (view.root()?, view.rank()?, view.size()?) {
        (Some(root), Some(rank), Some(size)) => {
            let ranks = Ranks::new(("rank", rank), ("world_size", size))?;
            ranks.rooted(root, file.path.as_str())?.found()
        }
        _ => absent(format!(
            "{} has neither a [cluster] nor root, rank and world_size",
            file.path
        )),
    }
}

fn cluster(file: &File, table: &toml::Table) -> Result<Option<ClusterSpec>, Status> {
    let cluster = match table.get("cluster") {
        None => return Ok(None),
        Some(toml::Value::Table(jobs)) => ClusterSpec::from_toml(jobs),
        Some(toml::Value::String(text)) => ClusterSpec::parse(text),
        Some(other) => {
            let message = format!(
                "`cluster` is a {}, and should be a table of jobs",
                other.type_str()
            );
            Err(Status::of(catalogue::CLUSTER_FILE_MALFORMED, message))
        }
    };
    cluster.map(Some).map_err(|status| placed(file, &status))
}

/// What is wrong with a job or an address has a reason of its own; here it gets its place.
fn placed(file: &File, status: &Status) -> Status {
    let message = format!("{}: {}", file.path, status.message());
    Status::of(status.reason(), message)
}
