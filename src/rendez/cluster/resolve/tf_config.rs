//! `TF_CONFIG`: TensorFlow's cluster as JSON, as its own programs and Kubernetes operators set it.
//!
//! `cluster` lists jobs (`chief`, `master`, `worker`, `ps`, …), `task` says which task this is. An `evaluator` is
//! commonly no part of the cluster: it calls, and no task calls it.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{Answer, Found, Membership, View, absent};
use crate::cluster::spec::{ClusterSpec, check_length, index};
use crate::cluster::{HostPort, variables};
use crate::ground::{Status, TaskName, catalogue};

/// The task that evaluates beside the others.
const EVALUATOR: &str = "evaluator";

pub(super) fn ask(view: &View<'_>) -> Result<Answer, Status> {
    let Some(text) = view.variable(variables::TF_CONFIG) else {
        return absent("TF_CONFIG is not set");
    };
    check_length(text)?;
    let config: Config = serde_json::from_str(text).map_err(|error| malformed(&error))?;
    let cluster = cluster(&config.cluster.unwrap_or_default().0)?;
    if cluster.is_empty() {
        return absent("TF_CONFIG names no cluster, which TensorFlow takes for a single process");
    }
    let (job, number) = match config.task {
        None => (None, None),
        Some(task) => {
            let job = task.r#type;
            let number = match task.index {
                None => None,
                Some(Index::Number(number)) => Some(number),
                Some(Index::Text(text)) => Some(index(job.as_deref().unwrap_or(""), &text)?),
            };
            (job, number)
        }
    };
    let is_evaluator =
        job.as_deref() == Some(EVALUATOR) && cluster.jobs().all(|(job, _)| job != EVALUATOR);
    let task = if is_evaluator {
        TaskName::new(EVALUATOR, 0, number.unwrap_or(0))?
    } else {
        view.place(&cluster, || cluster.only(job.as_deref(), number))?
    };
    let mut found = Found::new(Membership::Known(cluster), task, variables::TF_CONFIG);
    found.may_be_outside = is_evaluator;
    if is_evaluator {
        found.notes.push(
            "the evaluator is not in the cluster: it calls others, and is never called".into(),
        );
    }
    if config.rpc_layer.is_some() {
        let note = "rpc_layer of TF_CONFIG is ignored: the protocol is a setting of its own";
        found.notes.push(note.into());
    }
    if config.environment.is_some() {
        found
            .notes
            .push("environment of TF_CONFIG is ignored".into());
    }
    found.found()
}

fn cluster(jobs: &[(String, Tasks)]) -> Result<ClusterSpec, Status> {
    let mut spec = ClusterSpec::new();
    for (job, tasks) in jobs {
        let address = |text: &String| text.parse::<HostPort>();
        let tasks = match tasks {
            Tasks::Dense(list) => (0..)
                .zip(list)
                .map(|(index, text)| Ok((index, address(text)?)))
                .collect::<Result<Vec<_>, Status>>()?,
            Tasks::Sparse(Pairs(pairs)) => pairs
                .iter()
                .map(|(number, text)| Ok((index(job, number)?, address(text)?)))
                .collect::<Result<Vec<_>, Status>>()?,
        };
        spec.add_job(job, tasks)?;
    }
    Ok(spec)
}

fn malformed(error: &serde_json::Error) -> Status {
    let message = format!(
        "TF_CONFIG is not what TensorFlow's would be: {error}; it looks like {{\"cluster\": {{\"worker\": \
         [\"host:port\", …]}}, \"task\": {{\"type\": \"worker\", \"index\": 0}}}}"
    );
    Status::of(catalogue::TF_CONFIG_MALFORMED, message)
}

/// The parts that are read; TensorFlow's programs put others beside them.
#[derive(Deserialize)]
struct Config {
    cluster: Option<Pairs<Tasks>>,
    task: Option<Task>,
    rpc_layer: Option<IgnoredAny>,
    environment: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Task {
    r#type: Option<String>,
    index: Option<Index>,
}

/// Some operators write the number as text.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a task's index is a number from 0 on")]
enum Index {
    Number(u32),
    Text(String),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a job is a list of \"host:port\", or an object from task numbers to them"
)]
enum Tasks {
    Dense(Vec<String>),
    Sparse(Pairs<String>),
}

/// The members of an object, in order and with those that come twice: a map would drop all but the last.
struct Pairs<T>(Vec<(String, T)>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Pairs<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Pairs<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Members(std::marker::PhantomData))
    }
}
