//! What a profile has recorded, for programs and people.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::id::WorkerId;

/// Bytes of a span's name; longer ones are cut.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// The identity of a span, in its group; zero for none.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
pub struct SpanId(pub u64);

/// Something that took time, at one worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Which.
    pub id: SpanId,
    /// What it is a part of; zero if of nothing.
    pub parent: SpanId,
    /// What it is. Of a call, as PyTorch names it: `rpc_sync#function(caller -> callee)`.
    pub name: String,
    /// The worker where it was.
    pub worker: WorkerId,
    /// When it began, in nanoseconds since 1970 by the clock of the one who has recorded.
    pub began_ns: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// It ended with a failure, or a panic.
    pub is_error: bool,
}

impl Span {
    /// How long it took.
    #[must_use]
    pub const fn took(&self) -> Duration {
        Duration::from_nanos(self.took_ns)
    }
}

/// What a profile has recorded: all spans, in the order in which they began. As text, a tree of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spans {
    spans: Vec<Span>,
    names: HashMap<WorkerId, String>,
    dropped: u64,
}

impl Spans {
    pub(super) fn new(mut spans: Vec<Span>, dropped: u64, agent: &Agent) -> Self {
        let workers = agent.workers();
        let clocks = agent.engine().compared_clocks();
        let offset_of = |worker: WorkerId| {
            let info = workers.iter().find(|info| info.id == worker)?;
            let (_, clock) = clocks.iter().find(|(task, _)| *task == info.task)?;
            clock.offset_ns
        };
        let offsets: HashMap<WorkerId, i64> = workers
            .iter()
            .filter_map(|info| Some((info.id, offset_of(info.id)?)))
            .collect();
        for span in &mut spans {
            let offset = offsets.get(&span.worker).copied().unwrap_or(0);
            span.began_ns = span.began_ns.saturating_add_signed(offset.saturating_neg());
        }
        spans.sort_by_key(|span| (span.began_ns, span.id));
        let names = workers.into_iter().map(|info| (info.id, info.name));
        Self {
            spans,
            names: names.collect(),
            dropped,
        }
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Span> {
        self.spans.iter()
    }

    /// How many there were no room for.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The one of that identity.
    #[must_use]
    pub fn get(&self, id: SpanId) -> Option<&Span> {
        self.spans.iter().find(|span| span.id == id)
    }

    /// Those directly under a span.
    pub fn children(&self, of: SpanId) -> impl Iterator<Item = &Span> {
        self.spans
            .iter()
            .filter(move |span| span.parent == of && span.id != of)
    }

    /// A span's name behind those of the calls that it is under, as PyTorch concatenates them:
    /// `rpc_sync#f(a -> b)#remote_op: rpc_sync#g(b -> c)#remote_op: norm`.
    #[must_use]
    pub fn key(&self, span: &Span) -> String {
        let is_call = |name: &str| name.starts_with("rpc_") && name.contains('#');
        let mut key = span.name.clone();
        let mut seen = HashSet::from([span.id]);
        let mut parent = span.parent;
        while let Some(above) = self.get(parent)
            && seen.insert(above.id)
        {
            if is_call(&above.name) {
                key = format!("{}#remote_op: {key}", above.name);
            }
            parent = above.parent;
        }
        key
    }

    /// The name of a worker that a span was at.
    #[must_use]
    pub fn worker(&self, span: &Span) -> String {
        let name = self.names.get(&span.worker);
        name.cloned().unwrap_or_else(|| span.worker.to_string())
    }

    /// A timeline, as the JSON that the viewers of Chrome and Perfetto read: a process for each worker, a slice for
    /// each span.
    #[must_use]
    pub fn timeline(&self) -> String {
        let mut events = Vec::new();
        let mut workers: Vec<(WorkerId, String)> = self
            .spans
            .iter()
            .map(|span| (span.worker, self.worker(span)))
            .collect();
        workers.sort();
        workers.dedup();
        for (worker, name) in workers {
            events.push(serde_json::json!({
                "ph": "M", "name": "process_name", "pid": worker.0, "args": { "name": name },
            }));
        }
        for (track, span) in self.tracks().into_iter().zip(&self.spans) {
            events.push(serde_json::json!({
                "ph": "X", "name": span.name, "pid": span.worker.0, "tid": track,
                "ts": span.began_ns as f64 / 1000.0, "dur": span.took_ns as f64 / 1000.0,
                "args": {
                    "id": format!("{:016x}", span.id.0), "parent": format!("{:016x}", span.parent.0),
                    "key": self.key(span), "failed": span.is_error,
                },
            }));
        }
        serde_json::json!({ "traceEvents": events, "displayTimeUnit": "ns" }).to_string()
    }

    /// A track for each span, so that those of one track of a worker lie within each other, or one behind the other.
    fn tracks(&self) -> Vec<usize> {
        let mut open: HashMap<WorkerId, Vec<Vec<u64>>> = HashMap::new();
        let mut tracks = Vec::new();
        for span in &self.spans {
            let end = span.began_ns.saturating_add(span.took_ns);
            let of_worker = open.entry(span.worker).or_default();
            let fits = |ends: &mut Vec<u64>| {
                while ends.last().is_some_and(|last| *last <= span.began_ns) {
                    ends.pop();
                }
                ends.last().is_none_or(|last| *last >= end)
            };
            let track = of_worker
                .iter_mut()
                .position(fits)
                .unwrap_or(of_worker.len());
            if track == of_worker.len() {
                of_worker.push(Vec::new());
            }
            of_worker[track].push(end);
            tracks.push(track);
        }
        tracks
    }

    fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        span: &Span,
        depth: usize,
        seen: &mut HashSet<SpanId>,
    ) -> fmt::Result {
        if !seen.insert(span.id) {
            return Ok(());
        }
        let (indent, failed) = (
            "  ".repeat(depth),
            if span.is_error { ", failed" } else { "" },
        );
        writeln!(
            f,
            "{indent}{} at {}: {:?}{failed}",
            span.name,
            self.worker(span),
            span.took()
        )?;
        // What a peer sends may be as deep as it likes.
        if depth >= 100 {
            return Ok(());
        }
        self.children(span.id)
            .try_for_each(|child| self.write(f, child, depth + 1, seen))
    }
}

impl<'a> IntoIterator for &'a Spans {
    type Item = &'a Span;
    type IntoIter = std::slice::Iter<'a, Span>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: HashSet<SpanId> = self.spans.iter().map(|span| span.id).collect();
        let mut seen = HashSet::new();
        let roots = self
            .spans
            .iter()
            .filter(|span| !known.contains(&span.parent));
        roots
            .into_iter()
            .try_for_each(|root| self.write(f, root, 0, &mut seen))?;
        match self.dropped {
            0 => Ok(()),
            dropped => writeln!(f, "and {dropped} spans that there was no room for"),
        }
    }
}
