//! The far side: answers pings, or takes a stream and reports what it saw.

use std::io::Read;
use std::time::Duration;

use super::super::allocations;
use super::super::args::{BenchPeerArgs, From, Pattern};
use super::super::baseline::touch;
use super::super::bench::{Case, Measured};
use super::super::error::CliError;
use super::super::histogram::{Recorder, Schedule};
use super::super::interrupt::Interrupts;
use super::super::machine::Pair;
use super::super::secret;
use super::super::stopwatch::Stamp;
use super::stamps::StampReader;
use super::{
    Job, Keys, PATIENCE, SMALL_MAX, STEP, Timing, config, engine, failed, near, ready_tensor,
    thread,
};
use rendez::engine::Engine;
use rendez::ground::{Code, DType, Shape, Status, TensorMeta, catalogue};
use rendez::mail::Received;
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, Task, TaskContext, TaskEvent};

/// The far side in this process, over loopback.
pub(super) fn start(near: &Engine, pair: &Pair, case: &Case, job: Job) -> Result<Engine, CliError> {
    let far = engine("far", pair.far, pair, case)?;
    near.connect_local(&far).map_err(|status| failed(&status))?;
    begin(&far, job, Keys::new(STEP)?, case.from, pair.far)?;
    Ok(far)
}

/// The far side as a process: runs until its standard input ends.
///
/// # Errors
/// The engine's, or the address's.
pub fn serve(args: &BenchPeerArgs) -> Result<(), CliError> {
    Interrupts::pass_by()?;
    let case = args.case();
    let job = Job::of(&case);
    let pair = Pair {
        near: args.core,
        far: args.core,
        note: None,
    };
    let near = if args.shared_core {
        args.core
    } else {
        usize::MAX
    };
    let mut config = config("far", args.core, &Pair { near, ..pair }, &case);
    if config.listen.is_some() {
        config.cluster_secret_fd = secret::inherited();
    }
    let far = Engine::start(config).map_err(|status| failed(&status))?;
    let address = args
        .connect
        .parse()
        .map_err(|error| CliError::usage("CONTROL_ADDRESS", format!("{error}")))?;
    let keys = Keys::new(STEP)?;
    let near = keys.there.source_task();
    far.add_peer(near.clone(), address);
    // The near side only listens: who cannot reach it knows why.
    far.reach(near, PATIENCE)
        .map_err(|status| failed(&status))?;
    begin(&far, job, keys, case.from, args.core)?;
    // Anything on standard input is meaningless; its end is the near side's.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    far.shutdown(Duration::from_millis(100));
    Ok(())
}

/// Begins to answer, in the shard or in a thread of its own.
pub(super) fn begin(
    far: &Engine,
    job: Job,
    keys: Keys,
    from: From,
    core: usize,
) -> Result<(), CliError> {
    let tensor = if job.touch {
        Tensor::scalar(1u32)
    } else {
        ready_tensor(far, job.bytes)?
    };
    if from == From::Thread {
        thread::serve(far, job, keys, tensor, core);
        return Ok(());
    }
    let task: Box<dyn Task> = match job.pattern {
        Pattern::Pingpong => Box::new(Ponger {
            job,
            keys,
            tensor,
            there: None,
            back: None,
            count: 0,
        }),
        Pattern::Oneway | Pattern::Rate => Box::new(Sink::new(job, keys)),
    };
    far.spawn(0, task).map_err(|status| failed(&status))?;
    Ok(())
}

struct Ponger {
    job: Job,
    keys: Keys,
    tensor: Tensor,
    there: Option<PreparedKey>,
    back: Option<PreparedKey>,
    count: u64,
}

impl Task for Ponger {
    #[inline]
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => {
                self.there = context.prepare(&self.keys.there).ok();
                self.back = context.prepare(&self.keys.back).ok();
                if let Some(there) = self.there {
                    context.recv(self.keys.step, there, 0);
                }
            }
            TaskEvent::Received {
                outcome: Ok(received),
                ..
            } if !received.is_dead => {
                self.count += 1;
                let mut received = Some(received);
                if self.job.touch
                    && let Some(received) = received.take()
                    && received.tensor.host().map(touch::read)
                        != Ok(touch::expected(received.tensor.size(), self.count))
                {
                    return self.refuse(context);
                }
                let (Some(there), Some(back)) = (self.there, self.back) else {
                    return;
                };
                if context
                    .send(self.keys.step, back, self.tensor.clone())
                    .is_err()
                {
                    return context.finish();
                }
                context.recv(self.keys.step, there, 0);
                if self.job.check
                    && received
                        .is_some_and(|received| received.tensor.bytes() != self.tensor.bytes())
                {
                    self.refuse(context);
                }
            }
            // The near side is done, or gone.
            TaskEvent::Received { .. } => context.finish(),
            _ => {}
        }
    }
}

impl Ponger {
    /// Tells the near side that other bytes came than were sent, and ends.
    #[cold]
    fn refuse(&self, context: &mut TaskContext<'_>) {
        if let Some(back) = self.back {
            // The near side may be gone already.
            let _ = context.send_dead(self.keys.step, back, Tensor::scalar(0u8));
        }
        context.finish();
    }
}

/// Values between two acknowledgements.
const PER_ACKNOWLEDGEMENT: u64 = 512;
/// Operations timed together where a single one is too short to time.
const PER_RECORD: u64 = 1024;
/// How often a stream at a given rate looks at the time, unless its values are further apart.
const LOOKS_PER_SECOND: f64 = 100.0;

/// Operations timed together: a large one alone, and of a slow stream few enough that it ends in time.
fn per_record(job: &Job) -> u64 {
    match job.rate {
        _ if job.bytes > SMALL_MAX => 1,
        Some(rate) => ((rate / LOOKS_PER_SECOND) as u64).clamp(1, PER_RECORD),
        None => PER_RECORD,
    }
}

/// What a dead value of a stream says that ends nothing: the values after it are measured. It comes in their order,
/// so neither side has to know the other's clock.
pub(super) const BEGINS: u8 = 1;

/// How far a stream has come.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    WarmingUp,
    /// The near side was told that the warm-up is over.
    Warm,
    Measuring,
    Done,
}

struct Sink {
    job: Job,
    keys: Keys,
    timing: Timing,
    stamps: StampReader,
    there: Option<PreparedKey>,
    back: Option<PreparedKey>,
    /// `u64::MAX` until the first value.
    began: u64,
    phase: Phase,
    count: u64,
    measured_from: u64,
    /// Where batches begin: in an open loop with the first value, for before it none was due.
    batch_from: u64,
    /// How many values of an open loop are due while it is measured.
    due: u64,
    batch_began: Stamp,
    /// When the last value that is measured was due, or sent in a closed loop, if it says so.
    last_due: Option<u64>,
    latency: Recorder,
    per_operation: Recorder,
    allocations: u64,
    wrong: bool,
    per_acknowledgement: u64,
    per_record: u64,
}

impl Sink {
    fn new(job: Job, keys: Keys) -> Self {
        let is_large = job.bytes > SMALL_MAX;
        let timing = Timing::new(job);
        let nanos = job.duration.as_nanos() as u64;
        let due = |rate| Schedule::new(0, rate).due_before(nanos);
        Self {
            job,
            keys,
            stamps: StampReader::new(job.rate, &timing.stopwatch),
            timing,
            there: None,
            back: None,
            began: u64::MAX,
            phase: Phase::WarmingUp,
            count: 0,
            measured_from: 0,
            batch_from: 0,
            due: job.rate.map_or(u64::MAX, due),
            batch_began: Stamp::default(),
            last_due: None,
            latency: Recorder::nanos(),
            per_operation: Recorder::picos(),
            allocations: 0,
            wrong: false,
            per_acknowledgement: if is_large { 4 } else { PER_ACKNOWLEDGEMENT },
            per_record: per_record(&job),
        }
    }

    fn take(&mut self, received: &Received, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let (Some(there), Some(back)) = (self.there, self.back) else {
            return Ok(());
        };
        context.recv(self.keys.step, there, 0);
        let round = self.job.round(self.count);
        let is_measured = self.phase == Phase::Measuring && self.measured() < self.due;
        self.count += 1;
        if self.job.touch {
            let bytes = received.tensor.host()?;
            let bytes = bytes.get(self.job.stamp_bytes()..).unwrap_or_default();
            self.wrong |= touch::read(bytes) != touch::expected(bytes.len(), round);
        }
        if self.job.check {
            let byte = round as u8;
            self.wrong |= received.tensor.size() as u64 != self.job.bytes
                || received
                    .tensor
                    .host()?
                    .iter()
                    .skip(self.job.stamp_bytes())
                    .any(|&other| other != byte);
        }
        if self.count.is_multiple_of(self.per_acknowledgement) {
            context.send(self.keys.step, back, Tensor::scalar(self.count))?;
        }
        if self.job.pattern == Pattern::Oneway {
            let now = self.timing.stopwatch.stamp();
            let ticks = self.stamps.since(received.tensor.host()?, now.0);
            if let Some(ticks) = ticks.filter(|_| is_measured) {
                self.last_due = Some(now.0 - ticks);
                self.latency
                    .record(self.timing.stopwatch.nanos(Stamp(0), Stamp(ticks)));
            }
        }
        match self.count - self.batch_from {
            0 => self.batch_began = self.timing.stopwatch.stamp(),
            values if values.is_multiple_of(self.per_record) => self.end_batch(context)?,
            _ => {}
        }
        Ok(())
    }

    /// How many of the values that came are measured.
    #[inline]
    fn measured(&self) -> u64 {
        (self.count - self.measured_from).min(self.due)
    }

    fn end_batch(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let now = self.timing.stopwatch.stamp();
        if self.began == u64::MAX {
            self.began = now.0;
        }
        if self.phase == Phase::Measuring {
            let picos = self.timing.stopwatch.picos(self.batch_began, now) / self.per_record;
            self.per_operation.record(picos);
        }
        self.batch_began = now;
        let elapsed = now.0 - self.began;
        match self.phase {
            Phase::WarmingUp if elapsed >= self.timing.warmup => self.ask(context),
            Phase::Measuring if elapsed >= self.timing.duration => self.report(now, context),
            _ => Ok(()),
        }
    }

    /// Tells the near side that the warm-up is over.
    #[cold]
    fn ask(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        self.phase = Phase::Warm;
        let Some(back) = self.back else { return Ok(()) };
        context.send_dead(self.keys.step, back, Tensor::scalar(self.count))
    }

    /// From here on values are measured.
    #[cold]
    fn begin(&mut self, context: &mut TaskContext<'_>) {
        if let Some(there) = self.there {
            context.recv(self.keys.step, there, 0);
        }
        let now = self.timing.stopwatch.stamp();
        self.phase = Phase::Measuring;
        (self.began, self.batch_began) = (now.0, now);
        self.measured_from = self.count;
        self.batch_from = self.count + u64::from(self.job.rate.is_some());
        // The stamps begin anew, too.
        self.stamps = StampReader::new(self.job.rate, &self.timing.stopwatch);
        self.allocations = allocations::count();
    }

    /// Tells what was seen until `now`.
    #[cold]
    fn report(&mut self, now: Stamp, context: &mut TaskContext<'_>) -> Result<(), Status> {
        self.phase = Phase::Done;
        let key = context.prepare(&self.keys.report)?;
        if self.wrong {
            return context.send_dead(self.keys.step, key, Tensor::scalar(0u8));
        }
        let report = FarReport {
            count: self.measured(),
            overdue: self.overdue(now),
            allocations: allocations::count() - self.allocations,
            latency: self.latency.clone(),
            per_operation: self.per_operation.clone(),
        };
        context.send(self.keys.step, key, report.write()?)
    }

    /// Records what was due until `now`, while it was measured, and has not come.
    #[cold]
    fn overdue(&mut self, now: Stamp) -> u64 {
        let (Some(rate), Some(last_due)) = (self.job.rate, self.last_due) else {
            return 0;
        };
        // The next was due an interval after the last that came.
        let schedule = Schedule::new(0, rate);
        let waited = self.timing.stopwatch.nanos(Stamp(last_due), now);
        let end = schedule.due_ns(self.due - self.measured() + 1).min(waited);
        self.latency.record_overdue(&schedule, 1, end, waited)
    }
}

impl Task for Sink {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Started => {
                self.there = context.prepare(&self.keys.there).ok();
                self.back = context.prepare(&self.keys.back).ok();
                if let Some(there) = self.there {
                    for _ in 0..self.job.receives {
                        context.recv(self.keys.step, there, 0);
                    }
                }
            }
            TaskEvent::Received {
                outcome: Ok(received),
                ..
            } if !received.is_dead => match self.take(&received, context) {
                Ok(()) => {}
                Err(_) => context.finish(),
            },
            TaskEvent::Received {
                outcome: Ok(received),
                ..
            } if received.tensor.as_slice() == Ok(&[BEGINS]) => self.begin(context),
            TaskEvent::Received { outcome, .. } => {
                // A dead value: the near side was interrupted. Otherwise it is gone.
                if outcome.is_ok() && self.phase != Phase::Done {
                    let now = self.timing.stopwatch.stamp();
                    let _ = self.report(now, context);
                }
                context.finish();
            }
            _ => {}
        }
    }
}

/// What the far side found, as it crosses to the near side.
#[derive(Debug)]
pub(super) struct FarReport {
    pub(super) count: u64,
    pub(super) overdue: u64,
    pub(super) allocations: u64,
    pub(super) latency: Recorder,
    pub(super) per_operation: Recorder,
}

impl FarReport {
    /// Three numbers, the length of the first distribution, and both.
    pub(super) fn write(&self) -> Result<Tensor, Status> {
        let (latency, per_operation) = (self.latency.to_bytes(), self.per_operation.to_bytes());
        let mut bytes = Vec::new();
        for number in [
            self.count,
            self.overdue,
            self.allocations,
            latency.len() as u64,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&latency);
        bytes.extend_from_slice(&per_operation);
        let shape = Shape::new(&[bytes.len() as u64]).map_err(|_| near::wrong())?;
        let meta = TensorMeta {
            dtype: DType::U8,
            shape,
        };
        Tensor::from_bytes(meta, bytes.into()).map_err(|_| near::wrong())
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Status> {
        let broken = || {
            Status::new(
                Code::DataLoss,
                catalogue::DATA_MISMATCH,
                "the far side's report is not one",
            )
        };
        let number = |at: usize| {
            bytes
                .get(8 * at..8 * at + 8)
                .and_then(|eight| eight.try_into().ok())
                .map(u64::from_le_bytes)
        };
        let numbers = (number(0), number(1), number(2), number(3));
        let (Some(count), Some(overdue), Some(allocations), Some(split)) = numbers else {
            return Err(broken());
        };
        let rest = bytes.get(32..).ok_or_else(broken)?;
        let (latency, per_operation) = rest
            .split_at_checked(usize::try_from(split).map_err(|_| broken())?)
            .ok_or_else(broken)?;
        Ok(Self {
            count,
            overdue,
            allocations,
            latency: Recorder::nanos_from(latency).ok_or_else(broken)?,
            per_operation: Recorder::picos_from(per_operation).ok_or_else(broken)?,
        })
    }

    /// `ours` are the sender's allocations for each value that it sent.
    pub(super) fn measured(self, job: Job, ours: Option<f64>) -> Measured {
        let mut notes = Vec::new();
        if job.pattern == Pattern::Oneway && job.bytes < 4 {
            notes.push("values under 4 bytes carry no stamp: no one-way latency".to_owned());
        }
        Measured {
            count: self.count,
            overdue: self.overdue,
            one_way: (self.latency.count() > 0).then_some(self.latency),
            per_operation: Some(self.per_operation),
            allocations: ours
                .map(|ours| (ours * self.count as f64).round() as u64 + self.allocations),
            notes,
            ..Measured::default()
        }
    }
}
