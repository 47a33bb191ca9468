//! Builder: what a server is made of, checked before anything is started.

use std::sync::{Arc, Condvar, Mutex};

use super::{Inner, Place, Protocol, Server, Stage, dialled};
use crate::operations::Operations;
use rendez::cluster::{ClusterSpec, Epoch, Local, Membership, Resolved};
use rendez::control::Services;
use rendez::engine::Config;
use rendez::ground::{Code, Status, TaskName, catalogue};
use rendez_proto::tensorflow::ServerDef;

/// See [`Server::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until it builds"]
pub struct ServerBuilder {
    config: Option<Config>,
    membership: Option<Membership>,
    task: Option<TaskName>,
    epoch: Option<Epoch>,
    protocol: Option<String>,
    port: Option<u16>,
    local: Option<Local>,
    operations: Operations,
    services: Services,
}

impl ServerBuilder {
    /// The settings of the engine, and those that servers take. Without them the usual ones.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// The cluster.
    pub fn cluster(mut self, cluster: ClusterSpec) -> Self {
        self.membership = Some(Membership::Known(cluster));
        self
    }

    /// Which task of the cluster this is.
    pub fn task(mut self, task: TaskName) -> Self {
        self.task = Some(task);
        self
    }

    /// The cluster and the task, as a launcher or a file describes them.
    pub fn resolved(mut self, resolved: &Resolved) -> Self {
        self.membership = Some(resolved.membership.clone());
        self.task = Some(resolved.task.clone());
        self.epoch.clone_from(&resolved.epoch);
        self.local = resolved.local;
        self
    }

    /// All of it from TensorFlow's message.
    ///
    /// # Errors
    /// What is wrong with the message, in TensorFlow's words.
    pub fn def(mut self, def: &ServerDef) -> Result<Self, Status> {
        let described = rendez::cluster::Server::try_from(def)?;
        self.membership = Some(Membership::Known(described.cluster));
        self.task = Some(described.task);
        self.protocol = Some(described.protocol);
        self.port = Some(described.port);
        Ok(self)
    }

    /// How peers are reached; beats the settings' own.
    pub fn protocol(mut self, name: impl Into<String>) -> Self {
        self.protocol = Some(name.into());
        self
    }

    /// The operations that its graphs may have; without it the [standard](Operations::standard) ones. All tasks of a
    /// cluster should have the same.
    pub fn operations(mut self, operations: Operations) -> Self {
        self.operations = operations;
        self
    }

    /// More that its engine answers to other tasks than every server does. Numbers up to 31 are the engine's and the
    /// server's.
    pub fn services(mut self, services: Services) -> Self {
        self.services = services;
        self
    }

    /// The server, not started.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no cluster or no task; `Internal` if the cluster does not have the task;
    /// `NotFound` for an unknown protocol, `FailedPrecondition` with the reason for one that is unavailable.
    pub fn build(self) -> Result<Server, Status> {
        let missing = |what: &str| {
            let message = format!("a server needs {what}");
            Status::new(Code::InvalidArgument, catalogue::CLUSTER_SPEC, message)
        };
        let task = self
            .task
            .ok_or_else(|| missing("its task: Builder::task, or Builder::resolved"))?;
        let membership = self
            .membership
            .ok_or_else(|| missing("a cluster: Builder::cluster, or Builder::resolved"))?;
        let mut config = self.config.unwrap_or_else(|| Config::new(task.to_string()));
        config.task = task.to_string();
        let protocol = Protocol::find(self.protocol.as_deref().unwrap_or(&config.protocol))?;
        config.require = protocol.require(config.require)?;
        config.epoch = self
            .epoch
            .map(|epoch| format!("{}/{}", epoch.run, epoch.restart));
        settle(&mut config, &membership, &task)?;
        Ok(Server {
            inner: Arc::new(Inner {
                config,
                task,
                membership,
                place: Place {
                    port: self.port,
                    local: self.local,
                },
                protocol,
                operations: self.operations,
                services: self.services,
                stage: Mutex::new(Stage::New),
                changed: Condvar::new(),
            }),
        })
    }
}

/// Which peers the engine may meet, and that the cluster has it.
fn settle(config: &mut Config, membership: &Membership, task: &TaskName) -> Result<(), Status> {
    match membership {
        Membership::Known(spec) => {
            spec.find(task.job(), task.task())?;
            for (other, address) in spec.tasks().filter(|(other, _)| other != task) {
                let name = other.to_string();
                config.peers.entry(name).or_insert_with(|| dialled(address));
            }
            config.closed = true;
        }
        Membership::Rooted { root, rank, size } => {
            for other in (0..*size).filter(|other| other != rank) {
                let name = TaskName::new(task.job(), 0, other)?.to_string();
                if other == 0 {
                    config.peers.insert(name, dialled(root));
                } else {
                    config.known.insert(name);
                }
            }
            config.closed = true;
        }
    }
    Ok(())
}
