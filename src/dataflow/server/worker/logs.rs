//! Logs: what the last steps of a worker took, for queries.
//!
//! Knows steps and times. Off unless switched on; bounded.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rendez::ground::StepId;
use rendez::ground::limits::STEP_LOG_MAX;
use rendez_proto::tensorflow::{DeviceStepStats, LabeledStepStats, NodeExecStats, StepStats};

/// One part that has run.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) step: StepId,
    /// Which part.
    pub(super) graph: String,
    /// When it began, since the worker did.
    pub(super) began: Duration,
    pub(super) took: Duration,
}

/// The last steps.
#[derive(Debug, Default)]
pub(super) struct Logs {
    is_on: AtomicBool,
    is_traced: AtomicBool,
    entries: Mutex<VecDeque<Entry>>,
}

impl Logs {
    pub(super) fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Logs for a trace, whether it is switched on or not.
    pub(super) fn trace(&self, is_traced: bool) {
        self.is_traced.store(is_traced, Ordering::Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed) || self.is_traced.load(Ordering::Relaxed)
    }

    /// Notes a part; the oldest goes where there is no room.
    pub(super) fn note(&self, entry: Entry) {
        let mut entries = self.entries();
        if entries.len() >= STEP_LOG_MAX {
            entries.pop_front();
        }
        entries.push_back(entry);
    }

    pub(super) fn clear(&self) {
        self.entries().clear();
    }

    /// What is known of the parts that are wanted, by step, in order of each one's first part.
    pub(super) fn told(
        &self,
        device: &str,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Vec<LabeledStepStats> {
        let mut told: Vec<LabeledStepStats> = vec![];
        for entry in self.entries().iter().filter(|entry| wanted(entry)) {
            let stats = NodeExecStats {
                node_name: format!("RunGraph {}", entry.graph),
                all_start_micros: micros(entry.began),
                all_end_rel_micros: micros(entry.took),
            };
            let id = entry.step.0.cast_signed();
            match told.iter_mut().find(|known| known.step_id == id) {
                Some(known) => {
                    let devices = known
                        .step_stats
                        .iter_mut()
                        .flat_map(|stats| &mut stats.dev_stats);
                    devices.for_each(|device| device.node_stats.push(stats.clone()));
                }
                None => told.push(LabeledStepStats {
                    step_id: id,
                    step_stats: Some(StepStats {
                        dev_stats: vec![DeviceStepStats {
                            device: device.to_owned(),
                            node_stats: vec![stats],
                        }],
                    }),
                }),
            }
        }
        told
    }

    fn entries(&self) -> std::sync::MutexGuard<'_, VecDeque<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
