//! The near side as an in-shard task: pings, or streams.
//!
//! Stamps are taken just after a send, while the line travels, as the raw reference takes them: the difference of
//! two is one whole round trip.

use std::sync::mpsc;
use std::time::Duration;

use super::super::allocations;
use super::super::args::Pattern;
use super::super::baseline::touch;
use super::super::bench::Measured;
use super::super::error::CliError;
use super::super::histogram::{Recorder, Schedule};
use super::super::interrupt::interrupted;
use super::super::stopwatch::Stamp;
use super::far::{BEGINS, FarReport};
use super::{
    Job, Keys, PATIENCE, SMALL_MAX, Timing, await_outcome, failed, meta, ready_tensor, stamps,
};
use rendez::engine::{Engine, counters};
use rendez::ground::{Status, TaskName, TensorMeta};
use rendez::mail::Received;
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, Task, TaskContext, TaskEvent};
use rendez_proto::methods::engine_service::GetStat;
use rendez_proto::services::{StageStat, StatRequest};

pub(super) fn measure(engine: &Engine, job: Job, keys: Keys) -> Result<Measured, CliError> {
    let (done, outcome) = mpsc::channel();
    let (begins, begun) = mpsc::channel();
    let tensor = ready_tensor(engine, job.bytes)?;
    let meta = meta(job.bytes)?;
    let timing = Timing::new(job);
    let far = keys.there.destination_task().clone();
    let task: Box<dyn Task> = match job.pattern {
        Pattern::Pingpong => Box::new(Pinger {
            job,
            keys,
            meta,
            tensor,
            timing,
            there: None,
            back: None,
            last: Stamp::default(),
            began: Stamp::default(),
            is_measuring: false,
            sent: 0,
            recorder: Recorder::nanos(),
            // Made now: there is no time for it later.
            spare: (1..SLICES).map(|_| Recorder::nanos()).collect(),
            slices: Vec::with_capacity(SLICES),
            slice_ends: 0,
            begins: Some(begins),
            schedule: None,
            due: 0,
            allocations: 0,
            done: Some(done),
        }),
        Pattern::Oneway | Pattern::Rate => {
            drop(begins);
            Box::new(Streamer {
                job,
                keys,
                meta,
                tensor,
                timing,
                there: None,
                back: None,
                schedule: None,
                sent: 0,
                begins_at: 0,
                acknowledged: 0,
                is_done: false,
                allocations: None,
                done: Some(done),
            })
        }
    };
    engine.spawn(0, task).map_err(|status| failed(&status))?;
    // What came before the measurement is no part of it; a workload that does not say when it begins has no stages.
    let before = begun
        .recv_timeout(job.warmup + PATIENCE)
        .ok()
        .map(|()| (engine.stages(), far_stages(engine, &far)));
    let mut measured = await_outcome(&outcome, job)?;
    if let Some((ours, theirs)) = before {
        let ours = engine.stages_since(&ours);
        if let (Some(before), Some(now)) = (theirs, far_stages(engine, &far)) {
            measured.both_sides = counters::stage_stats(engine, ours.clone());
            measured.both_sides.extend(since(&before, now));
        }
        measured.stages = counters::merged(ours);
        let far_ways = measured.stages.iter();
        let errors = far_ways.map(|times| engine.error_of(times.stage, times.way));
        measured.clock_error = errors.max().filter(|error| !error.is_zero());
    }
    Ok(measured)
}

/// How long the far side may take to say what it has timed.
const ANSWER: Duration = Duration::from_secs(5);

/// What the far side has timed so far; `None` if it does not say: over loopback there is no control plane.
fn far_stages(engine: &Engine, far: &TaskName) -> Option<Vec<StageStat>> {
    let reply = engine
        .ask::<GetStat>(far, &StatRequest::default(), ANSWER)
        .ok()?;
    Some(reply.stages)
}

/// Counts and sums of `now` without those of `before`; quantiles are of the whole time, and are not looked at.
fn since(before: &[StageStat], mut now: Vec<StageStat>) -> Vec<StageStat> {
    for stat in &mut now {
        let same = |other: &&StageStat| {
            (&other.stage, &other.way, &other.size_class)
                == (&stat.stage, &stat.way, &stat.size_class)
        };
        if let Some(then) = before.iter().find(same) {
            let (count, sum_ns) = (then.count, then.sum_ns);
            stat.count = stat.count.saturating_sub(count);
            stat.sum_ns = stat.sum_ns.saturating_sub(sum_ns);
        }
    }
    now
}

/// Stretches that a ping-pong is recorded in.
const SLICES: usize = 20;

/// What is sent: the ready tensor again, or a new one with every byte written in place.
#[inline]
fn value(
    context: &mut TaskContext<'_>,
    job: &Job,
    meta: TensorMeta,
    ready: &Tensor,
    round: u64,
) -> Result<Tensor, Status> {
    if !job.touch {
        return Ok(ready.clone());
    }
    let mut builder = context.builder(meta)?;
    touch::write(builder.bytes_mut(), round);
    Ok(builder.finish())
}

struct Pinger {
    job: Job,
    keys: Keys,
    meta: TensorMeta,
    tensor: Tensor,
    timing: Timing,
    there: Option<PreparedKey>,
    back: Option<PreparedKey>,
    last: Stamp,
    began: Stamp,
    is_measuring: bool,
    sent: u64,
    recorder: Recorder,
    spare: Vec<Recorder>,
    slices: Vec<Recorder>,
    slice_ends: u64,
    begins: Option<mpsc::Sender<()>>,
    schedule: Option<Schedule>,
    due: u64,
    allocations: u64,
    done: Option<mpsc::Sender<Result<Measured, Status>>>,
}

impl Task for Pinger {
    #[inline]
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let handled = match event {
            TaskEvent::Started => self.start(context),
            TaskEvent::Received { outcome, .. } => self.pong(outcome, context),
            TaskEvent::Again => self.ping_when_due(context),
            _ => Ok(()),
        };
        if let Err(status) = handled {
            self.end(Err(status), context);
        }
    }
}

impl Pinger {
    fn start(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        self.there = Some(context.prepare(&self.keys.there)?);
        self.back = Some(context.prepare(&self.keys.back)?);
        self.began = self.timing.stopwatch.stamp();
        self.last = self.began;
        self.ping(context)
    }

    #[inline]
    fn ping(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let (Some(there), Some(back)) = (self.there, self.back) else {
            return Ok(());
        };
        self.sent += 1;
        let tensor = value(context, &self.job, self.meta, &self.tensor, self.sent)?;
        context.send(self.keys.step, there, tensor)?;
        context.recv(self.keys.step, back, 0);
        Ok(())
    }

    #[inline]
    fn pong(
        &mut self,
        outcome: Result<Received, Status>,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let received = outcome?;
        if self.schedule.is_some() {
            return self.pong_when_due(&received, context);
        }
        // The next one leaves first; what follows is hidden in its flight.
        self.ping(context)?;
        let now = self.timing.stopwatch.stamp();
        if self.is_wrong(&received) {
            return Err(wrong());
        }
        drop(received);
        if self.is_measuring {
            self.recorder
                .record(self.timing.stopwatch.nanos(self.last, now));
        }
        self.last = now;
        if now.0 >= self.slice_ends && self.is_measuring {
            self.next_slice();
        }
        let length = if self.is_measuring {
            self.timing.duration
        } else {
            self.timing.warmup
        };
        if self.timing.is_over(self.began, now, length) {
            self.next_phase(now, context);
        }
        Ok(())
    }

    /// Whether other bytes came than were sent: the far side found it, and sends a dead value, or the answer shows it.
    /// Where every byte is touched the answer is a small one, and the far side alone checks.
    #[inline]
    fn is_wrong(&self, received: &Received) -> bool {
        let is_checked = self.job.check && !self.job.touch;
        received.is_dead || is_checked && received.tensor.bytes() != self.tensor.bytes()
    }

    fn next_phase(&mut self, now: Stamp, context: &mut TaskContext<'_>) {
        if !self.is_measuring && self.timing.interrupts.came() {
            return self.end(Err(interrupted()), context);
        }
        if !self.is_measuring {
            self.is_measuring = true;
            self.began = now;
            if let Some(rate) = self.job.rate {
                self.schedule = Some(Schedule::new(0, rate));
                self.due = 0;
            }
            self.slice_ends = now.0 + self.timing.duration / SLICES as u64;
            if let Some(begins) = self.begins.take() {
                let _ = begins.send(());
            }
            self.allocations = allocations::count();
            return;
        }
        let allocations =
            allocations::is_counting().then(|| allocations::count() - self.allocations);
        let elapsed = self.timing.stopwatch.nanos(self.began, now);
        let end = elapsed.min(self.job.duration.as_nanos() as u64);
        let overdue = self.schedule.map_or(0, |schedule| {
            self.recorder
                .record_overdue(&schedule, self.due, end, elapsed)
        });
        let mut whole = self.recorder.clone();
        self.slices.iter().for_each(|slice| whole.merge(slice));
        self.slices.push(self.recorder.clone());
        let count = whole.count() - overdue;
        if count == 0 {
            return self.end(Err(interrupted()), context);
        }
        let measured = Measured {
            count,
            overdue,
            round_trips: Some(whole),
            slices: std::mem::take(&mut self.slices),
            allocations,
            ..Measured::default()
        };
        self.end(Ok(measured), context);
    }

    fn next_slice(&mut self) {
        self.slice_ends += self.timing.duration / SLICES as u64;
        if let Some(spare) = self.spare.pop() {
            self.slices
                .push(std::mem::replace(&mut self.recorder, spare));
        }
    }

    /// Open loop: the answer's latency counts from when its ping was due.
    fn pong_when_due(
        &mut self,
        received: &Received,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let now = self.timing.stopwatch.stamp();
        if self.is_wrong(received) {
            return Err(wrong());
        }
        if let Some(schedule) = &self.schedule
            && self.due > 0
        {
            let elapsed = self.timing.stopwatch.nanos(self.began, now);
            self.recorder
                .record(schedule.latency_ns(self.due - 1, elapsed));
        }
        if now.0 >= self.slice_ends {
            self.next_slice();
        }
        // The first answer may be one to the warm-up, and the machine so busy that the time is over with it.
        if self.due > 0 && self.timing.is_over(self.began, now, self.timing.duration) {
            self.next_phase(now, context);
            return Ok(());
        }
        self.ping_when_due(context)
    }

    fn ping_when_due(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let Some(schedule) = &self.schedule else {
            return Ok(());
        };
        let now = self.timing.stopwatch.stamp();
        let elapsed = self.timing.stopwatch.nanos(self.began, now);
        if elapsed < schedule.due_ns(self.due) {
            match self.timing.interrupts.came() {
                true => self.next_phase(now, context),
                false => context.again(),
            }
            return Ok(());
        }
        self.due += 1;
        self.ping(context)
    }

    fn end(&mut self, outcome: Result<Measured, Status>, context: &mut TaskContext<'_>) {
        if let Some(done) = self.done.take() {
            if let Some(there) = self.there {
                let _ = context.send_dead(self.keys.step, there, Tensor::scalar(0u8));
            }
            // The waiter may have given up.
            let _ = done.send(outcome);
            context.finish();
        }
    }
}

/// Values on their way at once: enough that the stream never waits for its acknowledgements.
const WINDOW: u64 = 4096;
/// Values sent in one turn.
const BURST: u64 = 64;

struct Streamer {
    job: Job,
    keys: Keys,
    meta: TensorMeta,
    tensor: Tensor,
    timing: Timing,
    there: Option<PreparedKey>,
    back: Option<PreparedKey>,
    schedule: Option<(Stamp, Schedule)>,
    sent: u64,
    /// The value that the schedule begins with.
    begins_at: u64,
    acknowledged: u64,
    is_done: bool,
    /// How many there were when the measurement began.
    allocations: Option<u64>,
    done: Option<mpsc::Sender<Result<Measured, Status>>>,
}

/// What the streamer's receives are for.
const ACKNOWLEDGEMENT: u64 = 0;
const REPORT: u64 = 1;

impl Task for Streamer {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let handled = match event {
            TaskEvent::Started => self.start(context),
            TaskEvent::Received {
                token: REPORT,
                outcome,
            } => self.reported(outcome, context),
            TaskEvent::Received { outcome, .. } => self.acknowledge(outcome, context),
            TaskEvent::Again => self.stream(context),
            _ => Ok(()),
        };
        if let Err(status) = handled {
            self.end(Err(status), context);
        }
    }
}

impl Streamer {
    fn start(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        self.there = Some(context.prepare(&self.keys.there)?);
        self.back = Some(context.prepare(&self.keys.back)?);
        let report = context.prepare(&self.keys.report)?;
        context.recv(self.keys.step, report, REPORT);
        if let Some(back) = self.back {
            context.recv(self.keys.step, back, ACKNOWLEDGEMENT);
        }
        self.begin_schedule();
        context.again();
        Ok(())
    }

    fn begin_schedule(&mut self) {
        let now = self.timing.stopwatch.stamp();
        self.schedule = self.job.rate.map(|rate| (now, Schedule::new(0, rate)));
        self.begins_at = self.sent;
    }

    /// The far side is warm: what is measured begins with the next value, and owes nothing to those before it.
    fn begin(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        if let Some(there) = self.there {
            context.send_dead(self.keys.step, there, Tensor::scalar(BEGINS))?;
        }
        self.begin_schedule();
        self.allocations = Some(allocations::count());
        Ok(())
    }

    fn acknowledge(
        &mut self,
        outcome: Result<Received, Status>,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let received = outcome?;
        if let Ok([count]) = received.tensor.as_slice::<u64>() {
            self.acknowledged = *count;
        }
        if let Some(back) = self.back {
            context.recv(self.keys.step, back, ACKNOWLEDGEMENT);
        }
        match received.is_dead {
            true => self.begin(context),
            false => Ok(()),
        }
    }

    fn stream(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let Some(there) = self.there else {
            return Ok(());
        };
        if self.is_done {
            return Ok(());
        }
        if self.timing.interrupts.came() {
            // The far side reports what it has seen.
            return context.send_dead(self.keys.step, there, Tensor::scalar(0u8));
        }
        let window = if self.job.bytes > SMALL_MAX {
            16
        } else {
            WINDOW
        };
        for _ in 0..BURST {
            if self.sent - self.acknowledged >= window {
                break;
            }
            let stamp = match &self.schedule {
                None => self.timing.stopwatch.stamp(),
                Some((began, schedule)) => {
                    let due = schedule.due_ns(self.sent - self.begins_at);
                    if self
                        .timing
                        .stopwatch
                        .nanos(*began, self.timing.stopwatch.stamp())
                        < due
                    {
                        break;
                    }
                    Stamp(
                        began.0
                            + self
                                .timing
                                .stopwatch
                                .ticks(std::time::Duration::from_nanos(due)),
                    )
                }
            };
            let tensor = self.stamped(stamp, context)?;
            context.send(self.keys.step, there, tensor)?;
            self.sent += 1;
        }
        context.again();
        Ok(())
    }

    /// A value that carries its stamp, where latency is asked for, or is written; the ready one otherwise.
    #[inline]
    fn stamped(&mut self, stamp: Stamp, context: &mut TaskContext<'_>) -> Result<Tensor, Status> {
        let is_stamped = self.job.stamp_bytes() > 0;
        if !is_stamped && !self.job.touch {
            return Ok(self.tensor.clone());
        }
        let mut builder = context.builder(self.meta)?;
        if self.job.check || self.job.touch {
            touch::write(builder.bytes_mut(), self.job.round(self.sent));
        }
        if is_stamped {
            stamps::put(builder.bytes_mut(), stamp.0);
        }
        Ok(builder.finish())
    }

    fn reported(
        &mut self,
        outcome: Result<Received, Status>,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let received = outcome?;
        if received.is_dead {
            return Err(wrong());
        }
        self.is_done = true;
        let ours = self
            .allocations
            .filter(|_| allocations::is_counting())
            .map(|before| {
                let sent = (self.sent - self.begins_at).max(1);
                (allocations::count() - before) as f64 / sent as f64
            });
        let report = FarReport::read(received.tensor.host()?)?;
        if report.per_operation.count() == 0 {
            return Err(interrupted());
        }
        self.end(Ok(report.measured(self.job, ours)), context);
        Ok(())
    }

    fn end(&mut self, outcome: Result<Measured, Status>, context: &mut TaskContext<'_>) {
        if let Some(done) = self.done.take() {
            let _ = done.send(outcome);
            context.finish();
        }
    }
}

pub(super) fn wrong() -> Status {
    use rendez::ground::{Code, catalogue};
    Status::new(
        Code::DataLoss,
        catalogue::DATA_MISMATCH,
        "a tensor came with other bytes than were sent",
    )
}
