//! What an agent tells of itself: to its program, on its engine's metrics page, in `rendez stat` and `rendez pending`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rendez::engine::counters::stat_of;
use rendez::engine::reporters::{Family, Number, Outstanding, Reporter, Sample};
use rendez::ground::{Nanos, TaskName, Unpoisoned};
use rendez_proto::services::StageStat;

use super::desk::View;
use super::figures::Recorded;
use super::shared::{Command, Shared, shown};
use super::slot::Slot;
use super::{Agent, context};
use crate::id::WorkerId;
use crate::message::Target;
use crate::metrics;
use crate::node::Progress;
use crate::references::Counts;

/// How often one that asks the desk looks whether it is gone, and how many times before it gives up.
const LOOK: Duration = Duration::from_millis(100);
const ASKED_FOR: usize = 50;
/// References that are named at most; the others are counted.
const NAMED_MAX: usize = 256;

/// Something that waits or is held, before it is told of what it waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    what: &'static str,
    name: String,
    on: WorkerId,
    since: Nanos,
    count: u32,
}

/// Figures that the desk alone knows.
#[derive(Clone, Copy, Default, Debug)]
struct Figures {
    references: Counts,
    client: usize,
    server: usize,
    in_window: usize,
    held: usize,
    repeated: u64,
    implausible: u64,
}

/// An answer that is given in any case: with nothing, if the question was dropped.
struct Answering<R>(Arc<Slot<Option<R>>>);

impl<R> Drop for Answering<R> {
    fn drop(&mut self) {
        self.0.fill(None);
    }
}

impl Shared {
    /// Asks the desk something; `None` once it is gone, and in the shard's own thread.
    pub(crate) fn ask<R: Send + 'static>(
        &self,
        question: impl FnOnce(&View<'_>) -> R + Send + 'static,
    ) -> Option<R> {
        context::may_wait().ok()?;
        if self.is_gone() {
            return None;
        }
        let slot = Arc::new(Slot::default());
        let answer = Answering(Arc::clone(&slot));
        self.push(Command::Ask(Box::new(move |view| {
            answer.0.fill(Some(question(view)));
        })));
        // It may have gone meanwhile, and not have seen the question.
        for _ in 0..ASKED_FOR {
            if self.wait(&slot, Some(LOOK)) || self.is_gone() {
                break;
            }
        }
        slot.take().flatten()
    }

    fn is_gone(&self) -> bool {
        self.left.is_filled()
    }

    fn figures_of_desk(&self) -> Option<Figures> {
        self.ask(|view| {
            let (client, server) = view.node.call_counts();
            Figures {
                references: view.node.reference_counts(),
                client,
                server,
                in_window: view
                    .node
                    .outgoing()
                    .filter(|call| call.progress == Progress::Waiting)
                    .count(),
                held: view.node.held_calls().count(),
                repeated: view.node.repeated(),
                implausible: view.node.implausible(),
            }
        })
    }

    /// Figures, under the names that PyTorch gives them where it has them.
    pub(crate) fn debug_info(&self) -> BTreeMap<&'static str, u64> {
        let pool = self.pool.figures();
        let asked = self.figures_of_desk().unwrap_or_default();
        let references = asked.references;
        BTreeMap::from([
            ("agent.thread_pool_size", pool.size as u64),
            ("agent.num_threads", pool.threads as u64),
            // Threads begin when they are needed: those that have not yet are as idle as any.
            (
                "agent.num_idle_threads",
                pool.size.saturating_sub(pool.busy()) as u64,
            ),
            ("agent.num_queued_calls", pool.queued as u64),
            ("agent.client_active_calls", asked.client as u64),
            ("agent.server_active_calls", asked.server as u64),
            (
                "agent.server_active_async_calls",
                self.async_calls.load(Ordering::Relaxed) as u64,
            ),
            ("num_owner_rrefs", references.owners as u64),
            ("num_pending_futures", references.pending_futures as u64),
            ("num_pending_users", references.pending_users as u64),
            ("num_forks", references.forks as u64),
        ])
    }

    /// What waits and what is held, the oldest first; and what is outstanding beside, in words.
    fn items(&self) -> Option<(Vec<Item>, Vec<String>)> {
        self.ask(|view| (items(view), view.node.outstanding_controls()))
    }

    /// The same for people, a line each.
    pub(crate) fn pending(&self) -> Vec<String> {
        let Some((items, mut words)) = self.items() else {
            return Vec::new();
        };
        let now = self.engine.clock().stamp();
        let mut lines: Vec<String> = items
            .into_iter()
            .map(|item| self.line(&item, now))
            .collect();
        lines.append(&mut words);
        lines
    }

    fn line(&self, item: &Item, now: Nanos) -> String {
        let mut line = format!("{} {} at '{}'", item.what, item.name, self.name_of(item.on));
        // Writing into a text cannot fail.
        let _ = match item.count {
            1 => write!(line, ", since {:?}", now.since(item.since)),
            count => write!(
                line,
                ": {count}, the oldest since {:?}",
                now.since(item.since)
            ),
        };
        line
    }

    fn task_of(&self, worker: WorkerId) -> TaskName {
        let workers = self.workers.read().unpoisoned();
        let task = workers.get(&worker).map(|info| info.task.clone());
        task.unwrap_or_else(|| self.engine.task().clone())
    }

    fn sample(
        &self,
        family: &'static Family,
        more: &[(&'static str, &str)],
        number: Number,
    ) -> Sample {
        let mut labels = vec![
            ("group", self.options.group.clone()),
            ("worker", self.name.clone()),
        ];
        labels.extend(
            more.iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        Sample {
            family,
            labels,
            number,
        }
    }
}

impl Agent {
    /// What is under way, the oldest first: calls by function and worker, functions that are carried out, references
    /// by name; each with how long it has been so.
    #[must_use]
    pub fn pending(&self) -> Vec<String> {
        self.shared().pending()
    }

    /// Figures, under the names that PyTorch gives them.
    #[must_use]
    pub fn debug_info(&self) -> BTreeMap<&'static str, u64> {
        self.shared().debug_info()
    }
}

/// Calls of one function, worker and stage together; references by name, as far as there are not too many.
fn items(view: &View<'_>) -> Vec<Item> {
    let mut calls: BTreeMap<(&'static str, String, WorkerId), (Nanos, u32)> = BTreeMap::new();
    let mut add = |what, name: &str, on, since: Nanos| {
        let (oldest, count) = calls
            .entry((what, name.to_owned(), on))
            .or_insert((since, 0));
        *oldest = since.min(*oldest);
        *count += 1;
    };
    for call in view.node.outgoing() {
        let what = match call.progress {
            Progress::Waiting => "call that waits",
            Progress::Sent => "call",
            Progress::Confirming => "call with references",
        };
        add(
            what,
            shown(&call.token.ticket.function),
            call.to,
            call.token.ticket.began,
        );
    }
    for (from, since, target) in view.node.held_calls() {
        let name = match target {
            Target::Function(function) | Target::Remote { function, .. } => function,
            Target::Fetch(_) => "",
        };
        add("function that waits", shown(name), from, since);
    }
    for ((from, _), running) in view.running {
        add("function", shown(&running.function), *from, running.began);
    }
    let mut items: Vec<Item> = calls
        .into_iter()
        .map(|((what, name, on), (since, count))| Item {
            what,
            name,
            on,
            since,
            count,
        })
        .collect();
    items.append(&mut references(view));
    items.sort_by_key(|item| item.since);
    items
}

fn references(view: &View<'_>) -> Vec<Item> {
    let item = |(what, name, on, since)| Item {
        what,
        name,
        on,
        since,
        count: 1,
    };
    let mut all: Vec<Item> = view.node.references().shares().map(item).collect();
    all.sort_by_key(|item| item.since);
    if let Some(oldest) = all.get(NAMED_MAX) {
        let rest = Item {
            what: "references",
            name: "and more".into(),
            on: oldest.on,
            since: oldest.since,
            count: u32::try_from(all.len() - NAMED_MAX).unwrap_or(u32::MAX),
        };
        all.truncate(NAMED_MAX);
        all.push(rest);
    }
    all
}

impl Reporter for Shared {
    fn samples(&self) -> Vec<Sample> {
        let Some(desk) = self.figures_of_desk() else {
            return Vec::new();
        };
        let (pool, references) = (self.pool.figures(), desk.references);
        let mut all = Vec::new();
        for (outcome, count) in self.figures.calls() {
            all.push(self.sample(
                &metrics::CALLS,
                &[("outcome", outcome)],
                Number::One(count as f64),
            ));
        }
        for (outcome, count) in self.figures.answers() {
            all.push(self.sample(
                &metrics::ANSWERS,
                &[("outcome", outcome)],
                Number::One(count as f64),
            ));
        }
        let futures = self.async_calls.load(Ordering::Relaxed);
        let gauges = [
            (&metrics::ACTIVE, "side", "client", desk.client),
            (&metrics::ACTIVE, "side", "server", desk.server),
            (&metrics::ACTIVE, "side", "future", futures),
            (&metrics::QUEUED, "queue", "window", desk.in_window),
            (&metrics::QUEUED, "queue", "references", desk.held),
            (&metrics::QUEUED, "queue", "pool", pool.queued),
            (&metrics::THREADS, "state", "busy", pool.busy()),
            (&metrics::THREADS, "state", "waiting", pool.waiting),
            (&metrics::THREADS, "state", "idle", pool.idle),
            (&metrics::REFERENCES, "kind", "owned", references.owners),
            (
                &metrics::REFERENCES,
                "kind",
                "unmade",
                references.pending_futures,
            ),
            (&metrics::REFERENCES, "kind", "forks", references.forks),
            (&metrics::REFERENCES, "kind", "held", references.users),
            (
                &metrics::REFERENCES,
                "kind",
                "pending",
                references.pending_users,
            ),
            (&metrics::REFERENCES, "kind", "carried", references.carriers),
        ];
        for (family, label, value, number) in gauges {
            all.push(self.sample(family, &[(label, value)], Number::One(number as f64)));
        }
        let malformed = self.figures.malformed_messages() + desk.implausible;
        all.push(self.sample(&metrics::MALFORMED, &[], Number::One(malformed as f64)));
        let dropped = self.figures.dropped_spans();
        all.push(self.sample(&metrics::SPANS_DROPPED, &[], Number::One(dropped as f64)));
        all.push(self.sample(&metrics::REPEATED, &[], Number::One(desk.repeated as f64)));
        if let Some((sum_ns, times)) = self.figures.whole() {
            all.push(self.sample(&metrics::WHOLE, &[], Number::Times(sum_ns, times)));
        }
        for (stage, (sum_ns, times)) in self.figures.stages() {
            all.push(self.sample(
                &metrics::STAGE,
                &[("stage", stage)],
                Number::Times(sum_ns, times),
            ));
        }
        all
    }

    fn outstanding(&self) -> Vec<Outstanding> {
        let now = self.engine.clock().stamp();
        let items = self.items().map(|(items, _)| items).unwrap_or_default();
        let outstanding = |item: Item| Outstanding {
            what: item.what.into(),
            name: item.name,
            on: self.task_of(item.on),
            age_ns: now.0.saturating_sub(item.since.0),
            count: item.count,
        };
        items.into_iter().map(outstanding).collect()
    }

    fn stages(&self) -> Vec<StageStat> {
        let whole = self
            .figures
            .whole()
            .into_iter()
            .map(|times| ("call", times));
        let all = whole.chain(self.figures.stages());
        let all = all.filter(|(_, (_, times))| !times.is_empty());
        let stat = |(stage, (sum_ns, times)): (&str, Recorded)| StageStat {
            way: "rpc".into(),
            ..stat_of(stage, sum_ns, &times)
        };
        all.map(stat).collect()
    }
}
