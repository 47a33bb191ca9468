//! The configuration file: its `[cluster]`, and the `task` that stands above it.
//!
//! Reads these two and leaves the other keys to the settings. Flags and environment say which task this is, if they
//! do, so that one file serves all tasks.

use super::{Answer, File, Found, Membership, Surroundings, absent, given};
use crate::cluster::spec::{ClusterSpec, check_length};
use crate::ground::{Status, TaskName, catalogue};

pub(super) fn ask(surroundings: &Surroundings) -> Result<Answer, Status> {
    let Some(file) = &surroundings.file else {
        return absent("there is none");
    };
    let (task, cluster) = read(file)?;
    let Some(cluster) = cluster else {
        return absent(format!("{} has no [cluster]", file.path));
    };
    let task = match (given::task(surroundings)?, task) {
        (Some(task), _) | (None, Some(task)) => task,
        (None, None) => cluster.only(None, None)?,
    };
    Found::new(Membership::Known(cluster), task, file.path.as_str()).found()
}

fn read(file: &File) -> Result<(Option<TaskName>, Option<ClusterSpec>), Status> {
    let malformed = |why: &dyn std::fmt::Display| {
        let message = format!("{}: {why}", file.path);
        Status::of(catalogue::CLUSTER_FILE_MALFORMED, message)
    };
    check_length(&file.text)?;
    let table: toml::Table = file
        .text
        .parse()
        .map_err(|error| malformed(&error as &toml::de::Error))?;
    // What is wrong with a job or an address has a reason of its own; here it gets its place.
    let placed = |status: Status| {
        Status::of(
            status.reason(),
            format!("{}: {}", file.path, status.message()),
        )
    };
    let cluster = match table.get("cluster") {
        None => None,
        Some(toml::Value::Table(jobs)) => Some(ClusterSpec::from_toml(jobs).map_err(placed)?),
        Some(toml::Value::String(text)) => Some(ClusterSpec::parse(text).map_err(placed)?),
        Some(other) => {
            let why = format!(
                "`cluster` is a {}, and should be a table of jobs",
                other.type_str()
            );
            return Err(malformed(&why));
        }
    };
    let task = match table.get("task") {
        Some(toml::Value::String(text)) if cluster.is_some() => {
            Some(TaskName::parse(text).map_err(|error| placed(error.into()))?)
        }
        _ => None,
    };
    Ok((task, cluster))
}
