//! Answers: which calls of peers are being carried out, and the outcomes of those whose callers may ask again.
//!
//! Pure: names and outcomes; no socket, no clock, no thread. A request is known by its caller's life and its number
//! there, not by the connection it came over: so one that is repeated over another connection joins the call that is
//! under way, or gets the answer that is kept, and is carried out once. An answer is kept until its caller has
//! acknowledged it, has been followed by another life, or is the oldest of the task that has most, of too many.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::ground::Incarnation;
use crate::ground::limits::{ANSWER_BYTES_MAX, ANSWERS_MAX, CALL_WINDOW};

use super::peer::PeerId;
use super::service::Outcome;

/// A request, whatever it came over.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CallKey {
    pub(crate) task: String,
    pub(crate) incarnation: Incarnation,
    pub(crate) request: u64,
}

/// Where an answer goes: a connection, and the envelope's number there.
pub(crate) type Asker = (PeerId, u64);

/// What becomes of a call that came in.
#[derive(Debug)]
pub(crate) enum Admitted {
    /// It is new, and to be carried out; the flag is set when it is given up.
    New(Arc<AtomicBool>),
    /// It is under way: its answer will go to this asker too.
    Joined,
    /// It has been carried out.
    Answered(Outcome),
    /// The caller has as many under way as it may.
    Busy,
}

#[derive(Debug)]
enum Entry {
    Active {
        askers: Vec<Asker>,
        cancelled: Arc<AtomicBool>,
    },
    Finished(Outcome),
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    entries: BTreeMap<CallKey, Entry>,
    /// The finished ones, oldest first; some may be gone already.
    order: VecDeque<CallKey>,
    bytes: usize,
    kept: usize,
}

impl Answers {
    /// A call came in.
    pub(crate) fn admit(&mut self, key: CallKey, asker: Asker) -> Admitted {
        if !self.entries.contains_key(&key) && self.active(&key) >= CALL_WINDOW {
            return Admitted::Busy;
        }
        match self.entries.get_mut(&key) {
            Some(Entry::Active { askers, .. }) => {
                // The connection it came over before may be gone, and the answer with it.
                askers.retain(|known| known.0 != asker.0);
                askers.push(asker);
                Admitted::Joined
            }
            Some(Entry::Finished(outcome)) => Admitted::Answered(outcome.clone()),
            None => {
                let cancelled = Arc::new(AtomicBool::new(false));
                let entry = Entry::Active {
                    askers: vec![asker],
                    cancelled: Arc::clone(&cancelled),
                };
                self.entries.insert(key, entry);
                Admitted::New(cancelled)
            }
        }
    }

    /// A call has been carried out: keeps the outcome, and returns its askers.
    pub(crate) fn finish(&mut self, key: &CallKey, outcome: &Outcome) -> Vec<Asker> {
        let Some(entry @ Entry::Active { .. }) = self.entries.get_mut(key) else {
            return Vec::new();
        };
        let before = std::mem::replace(entry, Entry::Finished(outcome.clone()));
        self.order.push_back(key.clone());
        self.bytes += size(outcome);
        self.kept += 1;
        self.shrink();
        match before {
            Entry::Active { askers, .. } => askers,
            Entry::Finished(_) => Vec::new(),
        }
    }

    /// A call will not be carried out: nothing is kept of it.
    pub(crate) fn refuse(&mut self, key: &CallKey) {
        self.forget(key);
    }

    /// The caller gives a call up: its handler is told, and answers all the same.
    pub(crate) fn cancel(&self, key: &CallKey) {
        if let Some(Entry::Active { cancelled, .. }) = self.entries.get(key) {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// The caller has the answer.
    pub(crate) fn acknowledge(&mut self, key: &CallKey) {
        if let Some(Entry::Finished(_)) = self.entries.get(key) {
            self.forget(key);
        }
    }

    /// A task is connected with this incarnation: calls of an earlier one will not be repeated.
    pub(crate) fn task_is(&mut self, task: &str, incarnation: Incarnation) {
        let old: Vec<_> = self
            .of_task(task)
            .filter(|(key, _)| key.incarnation != incarnation)
            .map(|(key, _)| key.clone())
            .collect();
        for key in old {
            self.cancel(&key);
            self.forget(&key);
        }
    }

    fn forget(&mut self, key: &CallKey) {
        if let Some(Entry::Finished(outcome)) = self.entries.remove(key) {
            self.bytes -= size(&outcome);
            self.kept -= 1;
        }
        // What is acknowledged in order leaves no trace; stray ones are swept when they are the oldest.
        while self
            .order
            .front()
            .is_some_and(|oldest| !self.is_finished(oldest))
        {
            self.order.pop_front();
        }
    }

    /// Keeps no more than may be. What goes is of the task that has most of it: one that acknowledges nothing pushes no
    /// other's out.
    fn shrink(&mut self) {
        while self.kept > ANSWERS_MAX || self.bytes > ANSWER_BYTES_MAX {
            let task = self.keeper_of_most(self.kept <= ANSWERS_MAX);
            let oldest = |key: &&CallKey| key.task == task && self.is_finished(key);
            let Some(oldest) = self.order.iter().find(oldest).cloned() else {
                return;
            };
            self.forget(&oldest);
        }
        if self.order.len() > 2 * ANSWERS_MAX {
            let mut order = std::mem::take(&mut self.order);
            // One that came again after it was acknowledged stands there twice.
            let mut seen = BTreeSet::new();
            order.retain(|key| self.is_finished(key) && seen.insert(key.clone()));
            self.order = order;
        }
    }

    /// The task of which most answers are kept, or most bytes of them.
    fn keeper_of_most(&self, in_bytes: bool) -> String {
        let mut most = (0, "");
        let mut share = (0, "");
        // Those of one task follow each other.
        for (key, entry) in &self.entries {
            let Entry::Finished(outcome) = entry else {
                continue;
            };
            if share.1 != key.task {
                share = (0, &key.task);
            }
            share.0 += if in_bytes { size(outcome) } else { 1 };
            most = most.max(share);
        }
        most.1.to_owned()
    }

    fn is_finished(&self, key: &CallKey) -> bool {
        matches!(self.entries.get(key), Some(Entry::Finished(_)))
    }

    fn active(&self, key: &CallKey) -> usize {
        self.of_task(&key.task)
            .filter(|(_, entry)| matches!(entry, Entry::Active { .. }))
            .count()
    }

    fn of_task<'a>(&'a self, task: &'a str) -> impl Iterator<Item = (&'a CallKey, &'a Entry)> {
        let first = CallKey {
            task: task.to_owned(),
            incarnation: Incarnation(0),
            request: 0,
        };
        self.entries
            .range(first..)
            .take_while(move |(key, _)| key.task == task)
    }
}

fn size(outcome: &Outcome) -> usize {
    match outcome {
        Ok(payload) => payload.len(),
        Err(status) => status.message().len(),
    }
}

#[cfg(test)]
mod tests;
