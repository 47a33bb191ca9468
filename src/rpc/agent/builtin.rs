//! Functions that every worker has: what it can be asked, and what it knows of references.

use serde::{Deserialize, Serialize};

use super::context::Context;
use crate::error::Error;
use crate::functions::Functions;
use crate::id::GlobalId;

/// Gives the signatures of a worker's functions.
pub(crate) const FUNCTIONS: &str = "rendez.functions";
/// What workers of Python's have, and no others. It is told beside their functions: callers know them by it.
const PYTHON: &str = "rendez.python.call";
/// Gives what a worker knows of references.
pub(crate) const REFERENCES: &str = "rendez.references";

/// What a worker knows of a reference: [`Agent::references`](crate::Agent::references).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReferenceInfo {
    /// The reference: the number of the worker that asked for the value, a colon, and a counter.
    pub rref: String,
    /// The name of the worker that has the value.
    pub owner: String,
    /// This worker's share, as the reference is written; `None` where the value is.
    pub fork: Option<String>,
    /// Of a value `made` or `expected`; of a share `pending`, `in doubt`, `confirmed`, `ending` or `gone`.
    pub state: String,
    /// How many handles this worker's program holds.
    pub handles: u64,
    /// How many messages that carry it are not settled.
    pub carriers: u64,
    /// The shares that others have of a value here, and the names of those workers.
    pub users: Vec<(String, String)>,
    /// Nanoseconds since this worker has known it.
    pub age_ns: u64,
}

crate::plain!(ReferenceInfo);

fn short(id: GlobalId) -> String {
    format!("{}:{}", id.on, id.local)
}

fn functions_here() -> Vec<String> {
    let Some(context) = Context::current() else {
        return Vec::new();
    };
    let functions = &context.shared.functions;
    let mut all = functions.signatures();
    all.extend(functions.signature(PYTHON).map(str::to_owned));
    all
}

fn references_here() -> Result<Vec<ReferenceInfo>, Error> {
    let context = Context::current().ok_or_else(|| Error::local(crate::error::shut_down()))?;
    context.agent().references()
}

/// They have a prefix that a program's own have not.
pub(super) fn functions() -> Functions {
    Functions::new()
        .add(FUNCTIONS, functions_here)
        .add(REFERENCES, references_here)
}

impl super::Agent {
    /// What this worker knows of references: its values that anybody has a share of, and its shares of values
    /// elsewhere.
    ///
    /// # Errors
    /// `RPC_SHUTDOWN` when it has left.
    pub fn references(&self) -> Result<Vec<ReferenceInfo>, Error> {
        let shared = self.shared();
        let now = shared.engine.clock().stamp();
        let listed = shared
            .ask(|view| view.node.listed_references())
            .ok_or_else(|| Error::local(crate::error::shut_down()))?;
        let info = |one: crate::references::Listed| ReferenceInfo {
            rref: short(one.rref),
            owner: shared.name_of(one.owner),
            fork: one.fork.map(short),
            state: one.state.into(),
            handles: one.handles as u64,
            carriers: one.carriers as u64,
            users: one
                .forks
                .into_iter()
                .map(|(fork, user)| (short(fork), shared.name_of(user)))
                .collect(),
            age_ns: now.since(one.since).as_nanos() as u64,
        };
        Ok(listed.into_iter().map(info).collect())
    }
}
