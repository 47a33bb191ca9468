//! The report of a training's cut edges: how long values took from task to task, by stage.
//!
//! Knows what shards have recorded, and how keys of cut edges are named; nothing of the graph.

use std::collections::BTreeMap;

use crate::report::lay_out;
use crate::units::show_nanos;
use rendez::trace::recorder::{Event, Recording, Way, What};

#[cfg(test)]
mod tests;

/// How the edges are named that cutting a graph makes.
const CUT: &str = "edge_";

/// What was seen of one edge.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Edge {
    pub(super) edge: String,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) way: &'static str,
    /// How many values were received.
    pub(super) count: u64,
    /// The mean time in each stage, in nanoseconds: at the sender queued, matched and posted, on the wire, and at the
    /// receiver landed and woken. `None` if unknown.
    pub(super) stages: [Option<f64>; 6],
}

/// Sums of times and how many there are.
#[derive(Clone, Copy, Default)]
struct Mean(f64, u64);

impl Mean {
    fn add(&mut self, nanos: u32) {
        if nanos != u32::MAX {
            self.0 += f64::from(nanos);
            self.1 += 1;
        }
    }

    fn of(self) -> Option<f64> {
        (self.1 > 0).then(|| self.0 / self.1 as f64)
    }
}

#[derive(Default)]
struct Seen {
    count: u64,
    way: Option<Way>,
    stages: [Mean; 6],
}

/// The edges that these recordings tell of, by tasks and name.
pub(super) fn of(recordings: &[Recording]) -> Vec<Edge> {
    let events = recordings.iter().flat_map(|recording| {
        // A shard forgets a name whose place another takes: then the other end of the edge knows it.
        let name_of = |key| recordings.iter().find_map(|known| known.name_of(key));
        let named = move |event: Event| Some((name_of(event.key)?, event));
        recording.events().into_iter().filter_map(named)
    });
    gather(events)
}

/// The edges of events with their keys' names: `source;incarnation;destination;edge` and more.
fn gather(events: impl Iterator<Item = (String, Event)>) -> Vec<Edge> {
    let mut all: BTreeMap<(String, String, String), Seen> = BTreeMap::new();
    for (key, event) in events {
        let mut parts = key.split(';');
        let (Some(from), _, Some(to), Some(edge)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (from, to) = (task_of(from), task_of(to));
        if from == to || !edge.starts_with(CUT) {
            continue;
        }
        let times: &[(usize, u32)] = match event.what {
            What::Sent => &[(0, event.a), (1, event.b), (2, event.c)],
            What::Took => &[(3, event.c), (4, event.a), (5, event.b)],
            _ => continue,
        };
        let seen = all.entry((from, to, edge.to_owned())).or_default();
        for (stage, nanos) in times {
            if let Some(mean) = seen.stages.get_mut(*stage) {
                mean.add(*nanos);
            }
        }
        if event.what == What::Took {
            seen.count += 1;
            seen.way = Some(event.way);
        }
    }
    let edge = |((from, to, edge), seen): (_, Seen)| Edge {
        edge,
        from,
        to,
        way: seen.way.map_or("", Way::name),
        count: seen.count,
        stages: seen.stages.map(Mean::of),
    };
    all.into_iter().map(edge).collect()
}

/// `/job:ps/replica:0/task:0/device:CPU:0` → `ps:0`
fn task_of(device: &str) -> String {
    let part = |name: &str| {
        let mut parts = device.split('/');
        parts
            .find_map(|part| part.strip_prefix(name))
            .unwrap_or("?")
    };
    format!("{}:{}", part("job:"), part("task:"))
}

/// The edges as a table.
pub(super) fn table(edges: &[Edge], width: Option<usize>) -> String {
    let heading = [
        "edge", "from", "to", "way", "values", "queued", "matched", "posted", "wire", "landed",
        "woken", "sum",
    ];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    for edge in edges {
        let show = |nanos: &Option<f64>| nanos.map_or_else(|| "?".to_owned(), show_nanos);
        let mut line = vec![
            edge.edge.clone(),
            edge.from.clone(),
            edge.to.clone(),
            edge.way.to_owned(),
            edge.count.to_string(),
        ];
        line.extend(edge.stages.iter().map(show));
        line.push(show_nanos(edge.stages.iter().flatten().sum()));
        lines.push(line);
    }
    lay_out(&lines, &[0, 1, 2, 3], &[5, 6, 10, 3], width)
}

/// An edge as an object.
pub(super) fn json(edge: &Edge) -> serde_json::Value {
    let [queued, matched, posted, wire, landed, woken] = edge.stages;
    serde_json::json!({
        "edge": edge.edge, "from": edge.from, "to": edge.to, "way": edge.way, "count": edge.count,
        "mean_ns": {
            "queued": queued, "matched": matched, "posted": posted, "wire": wire, "landed": landed, "woken": woken,
        },
    })
}
