//! Within one shard: a send and a receive that meet in the table, and nothing else.
//!
//! With parked values the receive takes one of them at random, and the send parks it again: what a large table
//! costs.

use std::sync::mpsc;
use std::time::Duration;

use super::super::allocations;
use super::super::bench::{Case, Measured};
use super::super::error::CliError;
use super::super::histogram::Recorder;
use super::super::interrupt::interrupted;
use super::super::machine::{self, Pair};
use super::super::stopwatch::Stamp;
use super::{Job, STEP, Timing, await_outcome, engine, failed, ready_tensor};
use rendez::ground::rng::Rng;
use rendez::ground::{FrameIter, Key, Status};
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, Task, TaskContext, TaskEvent};

pub(super) fn measure(case: &Case) -> Result<Measured, CliError> {
    let job = Job::of(case);
    let core = machine::pair()?.near;
    let engine = engine(
        "near",
        core,
        &Pair {
            near: core,
            far: usize::MAX,
            note: None,
        },
        case,
    )?;
    let (done, outcome) = mpsc::channel();
    let task = Pairs {
        tensor: ready_tensor(&engine, case.bytes)?,
        parked: case.parked.unwrap_or(0),
        key: Key::between("near", "near", "pair").map_err(|error| failed(&error.into()))?,
        prepared: None,
        timing: Timing::new(job),
        rng: Rng::new(1),
        began: None,
        measured: false,
        count: 0,
        received: 0,
        last: Stamp::default(),
        recorder: Recorder::picos(),
        allocations: 0,
        done: Some(done),
    };
    engine
        .spawn(0, Box::new(task))
        .map_err(|status| failed(&status))?;
    let outcome = await_outcome(&outcome, job);
    engine.shutdown(Duration::from_millis(100));
    outcome
}

/// Pairs of one event: within what a turn delivers.
const BATCH: u64 = 64;
/// Values parked in one event, while the table is filled.
const FILL: u64 = 4096;

struct Pairs {
    tensor: Tensor,
    parked: u64,
    key: Key,
    prepared: Option<PreparedKey>,
    timing: Timing,
    rng: Rng,
    began: Option<Stamp>,
    measured: bool,
    count: u64,
    received: u64,
    last: Stamp,
    recorder: Recorder,
    allocations: u64,
    done: Option<mpsc::Sender<Result<Measured, Status>>>,
}

impl Task for Pairs {
    #[inline]
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let handled = match event {
            TaskEvent::Started => context.prepare(&self.key).map(|key| {
                self.prepared = Some(key);
                context.again();
            }),
            TaskEvent::Again if self.count < self.parked => self.fill(context),
            TaskEvent::Again => self.batch(context),
            TaskEvent::Received { outcome, .. } => {
                self.received += 1;
                outcome.map(drop)
            }
            _ => Ok(()),
        };
        if let Err(status) = handled
            && let Some(done) = self.done.take()
        {
            let _ = done.send(Err(status));
            context.finish();
        }
    }
}

impl Pairs {
    fn fill(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let Some(key) = self.prepared else {
            return Ok(());
        };
        for _ in 0..FILL.min(self.parked - self.count) {
            let at = FrameIter {
                frame: 0,
                iter: self.count,
            };
            context.send(STEP, key.at(at), self.tensor.clone())?;
            self.count += 1;
        }
        context.again();
        Ok(())
    }

    /// A batch of pairs, and the time they took: the deliveries of the batch before are part of it.
    #[inline]
    fn batch(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let Some(key) = self.prepared else {
            return Ok(());
        };
        let now = self.timing.stopwatch.stamp();
        let began = *self.began.get_or_insert(now);
        if self.measured {
            self.recorder
                .record(self.timing.stopwatch.picos(self.last, now) / BATCH);
        }
        let length = if self.measured {
            self.timing.duration
        } else {
            self.timing.warmup
        };
        if self.timing.is_over(began, now, length) {
            self.next_phase(now, context)?;
        }
        self.last = now;
        if self.parked == 0 {
            for _ in 0..BATCH {
                context.recv(STEP, key, 0);
                context.send(STEP, key, self.tensor.clone())?;
            }
        } else {
            let mut slots = [key; BATCH as usize];
            for slot in &mut slots {
                *slot = key.at(FrameIter {
                    frame: 0,
                    iter: self.rng.below(self.parked),
                });
            }
            context.touch(STEP, &slots);
            for slot in slots {
                context.recv(STEP, slot, 0);
                context.send(STEP, slot, self.tensor.clone())?;
            }
        }
        context.again();
        Ok(())
    }

    fn next_phase(&mut self, now: Stamp, context: &mut TaskContext<'_>) -> Result<(), Status> {
        self.began = Some(now);
        if !self.measured && self.timing.interrupts.came() {
            return Err(interrupted());
        }
        if !self.measured {
            self.measured = true;
            self.allocations = allocations::count();
            self.received = 0;
            return Ok(());
        }
        if let Some(done) = self.done.take() {
            let measured = Measured {
                count: self.received,
                per_operation: Some(self.recorder.clone()),
                allocations: allocations::is_counting()
                    .then(|| allocations::count() - self.allocations),
                ..Measured::default()
            };
            let _ = done.send(Ok(measured));
            context.finish();
        }
        Ok(())
    }
}
