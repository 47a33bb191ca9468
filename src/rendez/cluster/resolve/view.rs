//! What resolvers see of their surroundings: variables as text and as numbers, and what flags, environment and file
//! say beside a launcher, each beating the next.
//!
//! Knows the names of these settings, and no launcher.

use std::borrow::Cow;

use super::{File, Surroundings, wrong};
use crate::cluster::HostPort;
use crate::cluster::spec::{ClusterSpec, check_length};
use crate::cluster::variables;
use crate::ground::limits::TASK_PORT;
use crate::ground::{Status, TaskName, catalogue};

/// Surroundings with the file read.
pub(super) struct View<'a> {
    pub(super) surroundings: &'a Surroundings,
    /// The keys of the file; empty if there is none.
    pub(super) table: toml::Table,
    /// Who asks is none of the cluster's tasks.
    is_outside: bool,
}

impl<'a> View<'a> {
    pub(super) fn new(surroundings: &'a Surroundings, is_outside: bool) -> Result<Self, Status> {
        let table = surroundings.file.as_ref().map(read).transpose()?;
        Ok(Self {
            surroundings,
            table: table.unwrap_or_default(),
            is_outside,
        })
    }

    /// Which task of `cluster` this is: the one that is `said`. Who asks from outside is none, and any stands for it.
    pub(super) fn place(
        &self,
        cluster: &ClusterSpec,
        said: impl FnOnce() -> Result<TaskName, Status>,
    ) -> Result<TaskName, Status> {
        match cluster.tasks().next() {
            Some((any, _)) if self.is_outside => Ok(any),
            _ => said(),
        }
    }

    /// The variable, if it is set to anything.
    pub(super) fn variable(&self, name: &str) -> Option<&'a str> {
        let environment = &self.surroundings.environment;
        let value = environment.get(name)?.trim();
        let has_service = environment.contains_key(variables::SERVICE_HOST);
        let is_link = variables::is_service_link(name, value, has_service);
        (!value.is_empty() && !is_link).then_some(value)
    }

    /// The first of `names` that is set.
    pub(super) fn first_of<'n>(&self, names: &[&'n str]) -> Option<(&'n str, &'a str)> {
        names
            .iter()
            .find_map(|&name| Some((name, self.variable(name)?)))
    }

    /// The variable as a number from 0 on.
    pub(super) fn number(&self, name: &str) -> Result<Option<u32>, Status> {
        self.variable(name)
            .map(|text| number(name, text))
            .transpose()
    }

    /// Where rank 0 listens, if flags, environment or file say so.
    pub(super) fn root(&self) -> Result<Option<HostPort>, Status> {
        match self.given_root()? {
            Some(root) => Ok(Some(root)),
            None => self.key("root").map(|text| text.parse()).transpose(),
        }
    }

    /// The same without the file.
    pub(super) fn given_root(&self) -> Result<Option<HostPort>, Status> {
        match &self.surroundings.flags.root {
            Some(root) => Ok(Some(root.clone())),
            None => self.variable(variables::ROOT).map(str::parse).transpose(),
        }
    }

    /// This task's rank.
    pub(super) fn rank(&self) -> Result<Option<u32>, Status> {
        self.or_key(self.given_rank()?, "rank")
    }

    /// The same without the file.
    pub(super) fn given_rank(&self) -> Result<Option<u32>, Status> {
        match self.surroundings.flags.rank {
            None => self.number(variables::RANK),
            rank => Ok(rank),
        }
    }

    /// How many ranks there are.
    pub(super) fn size(&self) -> Result<Option<u32>, Status> {
        self.or_key(self.given_size()?, "world_size")
    }

    /// The same without the file.
    pub(super) fn given_size(&self) -> Result<Option<u32>, Status> {
        match self.surroundings.flags.world_size {
            None => self.number(variables::WORLD_SIZE),
            size => Ok(size),
        }
    }

    /// Where tasks listen whose launcher does not say.
    pub(super) fn port(&self) -> Result<u16, Status> {
        if let Some(port) = self.surroundings.flags.port {
            return Ok(port);
        }
        let port = self.or_key(self.number(variables::PORT)?, "port")?;
        port.map_or(Ok(TASK_PORT), |port| {
            let why = "a port is at most 65535";
            u16::try_from(port).map_err(|_| wrong(variables::PORT, &port.to_string(), why))
        })
    }

    /// The subdomain of a Kubernetes job's pods.
    pub(super) fn subdomain(&self) -> Option<Cow<'_, str>> {
        let flag = self.surroundings.flags.subdomain.as_deref();
        let given = flag.or_else(|| self.variable(variables::SUBDOMAIN));
        given.map(Cow::Borrowed).or_else(|| self.key("subdomain"))
    }

    fn or_key(&self, given: Option<u32>, key: &str) -> Result<Option<u32>, Status> {
        match given {
            None => self.key(key).map(|text| number(key, &text)).transpose(),
            given => Ok(given),
        }
    }

    /// A key of the file as text.
    fn key(&self, key: &str) -> Option<Cow<'_, str>> {
        match self.table.get(key)? {
            toml::Value::String(text) => Some(text.into()),
            other => Some(other.to_string().into()),
        }
    }
}

pub(super) fn number(name: &str, text: &str) -> Result<u32, Status> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.ok_or_else(|| wrong(name, text, "it should be a number from 0 on"))
}

fn read(file: &File) -> Result<toml::Table, Status> {
    check_length(&file.text)?;
    file.text.parse().map_err(|error: toml::de::Error| {
        let message = format!("{}: {error}", file.path);
        Status::of(catalogue::CLUSTER_FILE_MALFORMED, message)
    })
}
