//! Clusters as TensorFlow's messages `ClusterDef` and `ServerDef`, read.
//!
//! Knows the messages and what makes them valid; the errors are the original's.

use super::spec::ClusterSpec;
use crate::ground::{Status, TaskName, catalogue};
use rendez_proto::tensorflow::{ClusterDef, ClusterDeviceFilters, ServerDef};

/// One server of a cluster, as a valid `ServerDef` describes it.
#[derive(Clone, PartialEq, Debug)]
pub struct Server {
    /// The cluster.
    pub cluster: ClusterSpec,
    /// Which of its tasks this is.
    pub task: TaskName,
    /// How it speaks, as `grpc`.
    pub protocol: String,
    /// Where it listens: the explicit port, else that of its entry in the cluster.
    pub port: u16,
    /// Which devices of which tasks are looked at; nothing means all.
    pub device_filters: Option<ClusterDeviceFilters>,
}

impl TryFrom<&ClusterDef> for ClusterSpec {
    type Error = Status;

    /// # Errors
    /// `CLUSTER_DUPLICATE_JOB`, `CLUSTER_ADDRESS` or `CLUSTER_SPEC`.
    fn try_from(def: &ClusterDef) -> Result<Self, Status> {
        let mut spec = Self::new();
        for job in &def.job {
            let tasks = job.tasks.iter().map(|(&index, address)| {
                let index = u32::try_from(index).map_err(|_| {
                    let message = format!("task {index} of job '{}' is negative", job.name);
                    Status::of(catalogue::CLUSTER_SPEC, message)
                })?;
                Ok((index, address.parse()?))
            });
            spec.add_job(&job.name, tasks.collect::<Result<Vec<_>, Status>>()?)?;
        }
        Ok(spec)
    }
}

impl TryFrom<&ServerDef> for Server {
    type Error = Status;

    /// # Errors
    /// As for a `ClusterDef`; `CLUSTER_TASK_UNDEFINED` if the server is not in its cluster, `CLUSTER_SPEC` for a port
    /// that is none, or that is missing where there are replicas.
    fn try_from(def: &ServerDef) -> Result<Self, Status> {
        let refuse = |message: String| Status::of(catalogue::CLUSTER_SPEC, message);
        let cluster = def.cluster.as_ref().map(ClusterSpec::try_from);
        let cluster = cluster.transpose()?.unwrap_or_default();
        let number = |what: &str, number: i32| {
            u32::try_from(number).map_err(|_| refuse(format!("{what} {number} is negative")))
        };
        let index = number("task", def.task_index)?;
        let replica = number("replica", def.replica)?;
        let address = cluster.find(&def.job_name, index)?;
        let port = match (def.port, replica) {
            (0, 0) => address.port(),
            (0, _) => {
                let message = format!(
                    "replica {replica} needs a port of its own: set `port` in its ServerDef"
                );
                return Err(refuse(message));
            }
            (port, _) => u16::try_from(port).map_err(|_| {
                refuse(format!(
                    "Could not parse port for local server from \"{port}\"."
                ))
            })?,
        };
        Ok(Self {
            task: TaskName::new(&def.job_name, replica, index)?,
            cluster,
            protocol: def.protocol.clone(),
            port,
            device_filters: def.cluster_device_filters.clone(),
        })
    }
}
