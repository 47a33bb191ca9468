//! The metrics of agents: the families that an engine's page shows for each agent on it, with their meanings.
//!
//! `METRICS.md` is made of this table.

use rendez::engine::reporters::{Family, Kind};

/// Calls of this worker that have ended.
pub const CALLS: Family = Family {
    name: "rendez_rpc_calls",
    kind: Kind::Counter,
    labels: "group, worker, outcome",
    help: "Calls of this worker that ended, by outcome: `value`; `error`, `panic`, `function`, `reference` \
        or `shutdown`, as the other side answered; `arguments`, `timeout`, `cancelled`, `busy`, as either side had it; \
        `lost`, the other side is gone.",
};
/// Answers that this worker gave.
pub const ANSWERS: Family = Family {
    name: "rendez_rpc_answers",
    kind: Kind::Counter,
    labels: "group, worker, outcome",
    help: "Answers that this worker gave to calls of others and its own, with the outcomes of \
        `rendez_rpc_calls_total`. A call whose caller gave it up gets none.",
};
/// Calls that are under way.
pub const ACTIVE: Family = Family {
    name: "rendez_rpc_active_calls",
    kind: Kind::Gauge,
    labels: "group, worker, side: `client`, `server`, `future`",
    help: "Calls under way now: of this worker (`client`); of others that are not finished here (`server`), of them \
        functions that have returned a future (`future`).",
};
/// Calls that wait.
pub const QUEUED: Family = Family {
    name: "rendez_rpc_queued_calls",
    kind: Kind::Gauge,
    labels: "group, worker, queue: `window`, `references`, `pool`",
    help: "Calls that wait now: of this worker for `window`; of others until the references among their arguments are \
        confirmed, or the value they ask for is made (`references`), or for a thread (`pool`).",
};
/// Threads of the pool.
pub const THREADS: Family = Family {
    name: "rendez_rpc_pool_threads",
    kind: Kind::Gauge,
    labels: "group, worker, state: `busy`, `waiting`, `idle`",
    help: "Threads of the pool: that carry a function out, whose function waits for a call of its own, and without \
        work.",
};
/// References.
pub const REFERENCES: Family = Family {
    name: "rendez_rpc_references",
    kind: Kind::Gauge,
    labels: "group, worker, kind: `owned`, `unmade`, `forks`, `held`, `pending`, `carried`",
    help: "References now: values of this worker that anyone refers to (`owned`), of them those not made yet \
        (`unmade`), and the shares that others have of them (`forks`); shares of values elsewhere (`held`), of them \
        those that the owner has not confirmed (`pending`); messages with references that are not settled (`carried`).",
};
/// What workers sent that is no message.
pub const MALFORMED: Family = Family {
    name: "rendez_rpc_malformed_messages",
    kind: Kind::Counter,
    labels: "group, worker",
    help: "What other workers sent that is no message, or that no worker sends that keeps the protocol: it was \
        dropped.",
};
/// Control messages that were repeated.
pub const REPEATED: Family = Family {
    name: "rendez_rpc_repeated_messages",
    kind: Kind::Counter,
    labels: "group, worker",
    help: "Control messages that were sent again because no acknowledgement had come.",
};
/// Spans that came home too late.
pub const SPANS_DROPPED: Family = Family {
    name: "rendez_rpc_span_reports_dropped",
    kind: Kind::Counter,
    labels: "group, worker",
    help: "Reports of spans that came home when their profile or function had ended, or from a worker that it had not \
        called.",
};
/// How long calls take.
pub const WHOLE: Family = Family {
    name: "rendez_rpc_call_seconds",
    kind: Kind::Histogram,
    labels: "group, worker",
    help: "Time of a call at its caller, from the call until it ended, however it ended. Buckets from 100 ns to 10 s. \
        Not timed with `stage_sampling = 0`.",
};
/// How long the stages of calls take.
pub const STAGE: Family = Family {
    name: "rendez_rpc_stage_seconds",
    kind: Kind::Histogram,
    labels: "group, worker, stage: `queued`, `run`",
    help: "Time of a stage of a call that is carried out here: `queued`, from when it could begin until it began; \
        `run`, until it had ended. The same buckets.",
};

/// All of them, in the order of their names.
pub const FAMILIES: [Family; 11] = [
    ACTIVE,
    ANSWERS,
    WHOLE,
    CALLS,
    MALFORMED,
    THREADS,
    QUEUED,
    REFERENCES,
    REPEATED,
    SPANS_DROPPED,
    STAGE,
];

/// The reference of all of them.
#[must_use]
pub fn reference_page() -> String {
    format!(
        "<!-- Made by `cargo run -p rendez-rpc --example metrics`; a test compares it with the code. -->\n\n\
         # Metrics of remote calls\n\n\
         An engine with agents on it shows these beside its own, for each of them; \
         `group` and `worker` are the agent's.\n\n{}",
        rendez::engine::metrics::reference_rows(&FAMILIES)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_that_of_the_table() {
        assert!(
            include_str!("METRICS.md") == reference_page(),
            "METRICS.md is stale: write it anew with `cargo run -p rendez-rpc --example metrics > src/rpc/METRICS.md`"
        );
        assert!(FAMILIES.is_sorted_by_key(|family| family.name));
    }
}
