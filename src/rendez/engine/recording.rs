//! What the shards record, seen from outside: where recorders lie, what their histograms hold, and how the counters of
//! peers compare with ours.
//!
//! Knows recorders by their memory only: nothing here stops a shard, and a shard notices only a comparison of clocks.

mod files;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use super::{Engine, Inner};
use crate::control::Path as Way;
use crate::files::Output;
use crate::ground::device::TaskName;
use crate::ground::hash::fnv1a;
use crate::ground::limits::COUNTER_DRIFT_PPM;
use crate::ground::{Key, Locked, Nanos, Status, StepId, Traceparent, Unpoisoned};
use crate::mail::forks;
use crate::shard::Call;
use crate::trace::clock::Scale;
use crate::trace::recorder::{CLASSES, Recorder, Stage, Way as ValueWay, cell_of};
use crate::trace::stages::{PeerClock, woke_thread};
use files::{MISSED, copy_of, name, unwritable};
pub(super) use files::{clear, place};
use rendez_proto::methods::engine_service::GetClock;
use rendez_proto::services::{ClockReply, ClockRequest};

/// How often a peer's counter is asked for when it is compared: the quickest answer counts.
const ASKS: usize = 5;
/// How long such an answer may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// The times of one stage of one way and size class, of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageTimes {
    /// The shard.
    pub shard: u16,
    /// The stage.
    pub stage: Stage,
    /// The way.
    pub way: ValueWay,
    /// The size class, an index into [`CLASSES`].
    pub class: usize,
    /// The sum of what was recorded, in nanoseconds.
    pub sum_ns: u64,
    /// Times, each within one part in 128, and how often each was recorded; in order.
    pub times: Vec<(u64, u64)>,
}

impl StageTimes {
    /// How many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.times.iter().map(|(_, count)| count).sum()
    }
}

/// How a peer's clocks compare with ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ComparedClock {
    /// The peer's time of day less ours, in nanoseconds; `None` if it does not say. It is what a person compares logs
    /// by: stages go by counters, which cannot be set.
    pub offset_ns: Option<i64>,
    /// By how much that, and every time between the two, may be wrong: half of the quickest question's round trip, and
    /// what the counters may have drifted apart since it was asked.
    pub error: Duration,
}

impl ComparedClock {
    /// The same, as true as it still is when the comparison is `age` old.
    fn aged(self, age: Duration) -> Self {
        // A peer that shares our counter shares its rate: nothing drifts.
        if self.error.is_zero() {
            return self;
        }
        let drift = age.saturating_mul(COUNTER_DRIFT_PPM) / 1_000_000;
        Self {
            error: self.error.saturating_add(drift),
            ..self
        }
    }
}

impl Engine {
    /// The times of every stage that were recorded so far, of every shard. No shard is disturbed.
    #[must_use]
    pub fn stages(&self) -> Vec<StageTimes> {
        let mut found = Vec::new();
        for (shard, recorder) in self.inner.recorders() {
            for &stage in Stage::ALL {
                for &way in ValueWay::ALL {
                    for class in 0..CLASSES.len() {
                        let cell = recorder.cell(cell_of(stage, way, class));
                        found.extend(cell.map(|(sum_ns, times)| StageTimes {
                            shard,
                            stage,
                            way,
                            class,
                            sum_ns,
                            times,
                        }));
                    }
                }
            }
        }
        found
    }

    /// As [`Engine::stages`], without what there was at an earlier time.
    #[must_use]
    pub fn stages_since(&self, before: &[StageTimes]) -> Vec<StageTimes> {
        let mut now = self.stages();
        for times in &mut now {
            let same = |other: &&StageTimes| {
                (other.shard, other.stage, other.way, other.class)
                    == (times.shard, times.stage, times.way, times.class)
            };
            let Some(then) = before.iter().find(same) else {
                continue;
            };
            times.sum_ns = times.sum_ns.saturating_sub(then.sum_ns);
            for (time, count) in &mut times.times {
                let known = then.times.iter().find(|(other, _)| other == time);
                *count = count.saturating_sub(known.map_or(0, |(_, count)| *count));
            }
            times.times.retain(|(_, count)| *count > 0);
        }
        now.retain(|times| !times.times.is_empty());
        now
    }

    /// Writes what the shards have recorded, a file for each shard, into `folder`: what `rendez dump` reads. The files
    /// are of mode 0600, whatever the umask is; no link is followed, and only a regular file of the same user replaced.
    ///
    /// # Errors
    /// `FILE_UNWRITABLE`.
    pub fn dump(&self, folder: &Path, why: &str) -> Result<Vec<PathBuf>, Status> {
        let mut written = Vec::new();
        for (shard, recorder) in self.inner.recorders() {
            let file = name(&self.inner.task, self.inner.incarnation, shard);
            let path = folder.join(copy_of(&file, why));
            let unwritable = |error: std::io::Error| unwritable(&path, &error);
            // Whole or not at all: a reader may be looking.
            let mut file = Output::private(&path).map_err(unwritable)?;
            let mut bytes = Vec::with_capacity(1 << 16);
            for words in recorder.copy().chunks(1 << 13) {
                bytes.clear();
                words
                    .iter()
                    .for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
                file.write_all(&bytes).map_err(unwritable)?;
            }
            file.finish().map_err(unwritable)?;
            written.push(path);
        }
        Ok(written)
    }

    /// Where recorders lie that outlive a crash, if anywhere.
    #[must_use]
    pub fn recorder_dir(&self) -> Option<PathBuf> {
        self.inner.config.recorder_dir.clone()
    }

    /// The folder below which kernels may touch files, if there is one.
    #[must_use]
    pub fn files_root(&self) -> Option<PathBuf> {
        self.inner.config.files_root.clone()
    }

    /// What each shard has recorded, as `rendez dump` reads it.
    #[must_use]
    pub fn recordings(&self) -> Vec<Vec<u64>> {
        let recorders = self.inner.recorders();
        recorders.map(|(_, recorder)| recorder.copy()).collect()
    }

    /// How the clocks of connected peers compared last, of those that were compared.
    #[must_use]
    pub fn compared_clocks(&self) -> Vec<(TaskName, ComparedClock)> {
        if forks::is_child() {
            return Vec::new();
        }
        let clocks = self.inner.clocks.lock();
        let clocks = clocks.unpoisoned().clone();
        let connected = self.connected();
        let is_connected = |task: &TaskName| connected.iter().any(|peer| peer.task == *task);
        let now = self.inner.clock.stamp();
        let compared = clocks.into_iter();
        compared
            .filter(|(task, _)| is_connected(task))
            .map(|(task, (clock, at))| {
                let age = Duration::from_nanos(now.0.saturating_sub(at.0));
                (task, clock.aged(age))
            })
            .collect()
    }

    /// By how much the times of a stage may be wrong: where a value came from another machine's clock, by the worst
    /// comparison with a peer.
    #[must_use]
    pub fn error_of(&self, stage: Stage, way: ValueWay) -> Duration {
        let is_between = matches!(stage, Stage::Wire | Stage::Whole);
        let is_far = !matches!(
            way,
            ValueWay::Local | ValueWay::ShmInline | ValueWay::ShmLease | ValueWay::ShmCopy
        );
        if !(is_between && is_far) {
            return Duration::ZERO;
        }
        let clocks = self.compared_clocks().into_iter();
        let errors = clocks.map(|(_, clock)| clock.error);
        errors.max().unwrap_or_default()
    }

    /// What a peer said of the trace that a step belongs to. What is no traceparent is counted and left out: a step
    /// runs without its trace rather than not at all.
    pub fn heard_traceparent(
        &self,
        text: &str,
        from: &dyn std::fmt::Display,
    ) -> Option<Traceparent> {
        if text.is_empty() {
            return None;
        }
        let heard = text.parse();
        if let Err(error) = &heard {
            self.inner.refused_traces.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%from, %error, "a peer sent a malformed traceparent: it is ignored");
        }
        heard.ok()
    }

    /// As [`Step::traced`](super::Step::traced), without a handle of the step.
    pub fn trace_step(&self, step: StepId, trace: Traceparent) {
        self.inner.trace_step(step, trace);
    }

    /// How many times a peer has sent what is no traceparent.
    #[must_use]
    pub fn refused_traceparents(&self) -> u64 {
        self.inner.refused_traces.load(Ordering::Relaxed)
    }

    /// Compares a peer's counter with ours, so that the time of values on the wire can be told: by asking it over the
    /// control plane, to half of the quickest round trip. Gives that error; zero for a peer that shares our counter.
    ///
    /// # Errors
    /// That it does not answer.
    pub fn compare_clocks(&self, task: &TaskName) -> Result<Duration, Status> {
        let mut best: Option<(u64, PeerClock, Option<i64>)> = None;
        for _ in 0..ASKS {
            let (sent, day) = (self.inner.clock.stamp(), unix_ns());
            let reply = self.ask::<GetClock>(task, &ClockRequest {}, PATIENCE)?;
            let heard = self.inner.clock.stamp();
            if !reply.boot_id.is_empty() && reply.boot_id == boot_id() {
                // One counter for both: nothing is to be measured.
                let scale = self.inner.clock.scale();
                best = Some((0, PeerClock { scale, error_ns: 0 }, Some(0)));
                break;
            }
            let (trip, clock, offset) = compared(&reply, sent, heard, day);
            if best.is_none_or(|(least, ..)| trip < least) {
                best = Some((trip, clock, offset));
            }
        }
        let Some((_, clock, offset_ns)) = best else {
            return Ok(Duration::ZERO);
        };
        let compared = ComparedClock {
            offset_ns,
            error: Duration::from_nanos(clock.error_ns),
        };
        let clocks = self.inner.clocks.lock();
        let mut clocks = clocks.unpoisoned();
        clocks.insert(task.clone(), (compared, self.inner.clock.stamp()));
        drop(clocks);
        self.inner.call_all(|| Call::PeerClock {
            task: task.clone(),
            clock,
        });
        Ok(Duration::from_nanos(clock.error_ns))
    }

    /// Compares the counters of all peers over TCP; those of this machine's shared memory share ours.
    pub fn compare_all_clocks(&self) {
        if forks::is_child() {
            return;
        }
        let connected = self.connected();
        let is_connected = |task: &TaskName| connected.iter().any(|peer| peer.task == *task);
        let clocks = self.inner.clocks.lock();
        // A short visitor, as `rendez stat` is, has another name every time.
        let mut clocks = clocks.unpoisoned();
        clocks.retain(|task, _| is_connected(task));
        drop(clocks);
        for peer in connected {
            if peer.path != Way::Shm
                && peer.task.job() != super::OBSERVER_JOB
                && let Err(status) = self.compare_clocks(&peer.task)
            {
                tracing::debug!(task = %peer.task, %status, "its clock could not be compared");
            }
        }
    }
}

/// The time of day, in nanoseconds since 1970.
pub(super) fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0))
}

/// Which boot of which machine this is; empty if unknown.
pub(super) fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

/// The same as a number, for recordings.
pub(super) fn boot() -> u64 {
    // All that matters is that two boots differ.
    fnv1a(boot_id().as_bytes())
}

/// What an answer to a question that was sent and answered at these moments, the first at that time of day, says of the
/// peer's clocks: the round trip, its counter, and its time of day less ours, if it says so.
fn compared(
    reply: &ClockReply,
    sent: Nanos,
    heard: Nanos,
    day: u64,
) -> (u64, PeerClock, Option<i64>) {
    let trip = heard.0.saturating_sub(sent.0);
    let clock = PeerClock {
        scale: Scale {
            ticks: reply.ticks,
            nanos: sent.0 + trip / 2,
            rate: reply.rate,
        },
        // Only a peer that shares our counter is without error.
        error_ns: (trip / 2).max(1),
    };
    let ours = day.saturating_add(trip / 2);
    let is_told = reply.unix_ns != 0;
    let offset = is_told.then(|| reply.unix_ns.wrapping_sub(ours).cast_signed());
    (trip, clock, offset)
}

/// Between two recordings of missed deadlines there is at least a second: a step that fails misses many.
const DUMP_EVERY_NS: u64 = 1_000_000_000;

/// How long a comparison of clocks is good: counters drift apart by at most [`COUNTER_DRIFT_PPM`], so by 500 µs.
const COMPARED_FOR: Duration = Duration::from_secs(5);

impl Inner {
    /// A step belongs to a trace: every shard keeps that.
    pub(crate) fn trace_step(&self, step: StepId, trace: Traceparent) {
        if crate::trace::stages::ON && self.config.stage_sampling > 0 {
            self.call_all(|| Call::Traced { step, trace });
        }
    }

    /// A peer that may be on another machine has connected: from now on its clock is compared with ours.
    pub(crate) fn keep_clocks(self: &Arc<Self>, way: Way) {
        // Those of shared memory have our counter.
        let is_off =
            way == Way::Shm || !crate::trace::stages::ON || self.config.stage_sampling == 0;
        let keeper = self.clock_keeper.lock();
        let mut keeper = keeper.unpoisoned();
        if is_off || keeper.is_some() {
            return;
        }
        let engine = Arc::downgrade(self);
        let body = move || {
            while let Some(inner) = engine.upgrade() {
                let is_stopped = inner.mailboxes.iter().all(|mailbox| mailbox.is_closed());
                if is_stopped {
                    return;
                }
                Engine::within(inner).compare_all_clocks();
                std::thread::park_timeout(COMPARED_FOR);
            }
        };
        let thread = std::thread::Builder::new().name("rendez-clocks".into());
        match thread.spawn(body) {
            Ok(thread) => *keeper = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "cannot start a thread to compare clocks: times on the wire are unavailable");
            }
        }
    }

    /// A receive's deadline passed. Where recorders are kept, what led to it is written down before it is forgotten,
    /// by a thread of its own and at most once in [`DUMP_EVERY_NS`].
    pub(crate) fn deadline_missed(self: &Arc<Self>, step: StepId, key: &Key) {
        let now = self.clock.stamp();
        let last = self.dumped.load(Ordering::Relaxed);
        let is_early = last != 0 && now.0.saturating_sub(last) < DUMP_EVERY_NS;
        let Some(folder) = self.config.recorder_dir.clone() else {
            return;
        };
        // Of two shards at once the one that changes it writes.
        let won = |then| {
            self.dumped
                .compare_exchange(last, then, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        };
        if is_early || !won(now.0.max(1)) {
            return;
        }
        let (engine, key) = (Arc::downgrade(self), key.to_string());
        let body = move || {
            let Some(inner) = engine.upgrade() else {
                return;
            };
            match Engine::within(inner).dump(&folder, MISSED) {
                Ok(paths) => {
                    let files = paths
                        .iter()
                        .map(|path| path.display().to_string())
                        .collect::<Vec<_>>();
                    let files = files.join(" ");
                    tracing::warn!(%step, key, files, "a deadline was missed; `files` hold what led to it");
                }
                Err(status) => {
                    tracing::warn!(%step, key, %status, "a deadline was missed; no events could be kept")
                }
            }
        };
        // Without a thread the event in the ring is all that is kept.
        let thread = std::thread::Builder::new()
            .name("rendez-dump".into())
            .spawn(body);
        *self.dumping.locked() = thread.ok();
    }

    pub(crate) fn recorders(&self) -> impl Iterator<Item = (u16, &Recorder)> {
        let all = self.recorders.get().map_or(&[][..], Vec::as_slice);
        let with_number = all.iter().enumerate();
        with_number.filter_map(|(shard, recorder)| Some((shard as u16, recorder.as_deref()?)))
    }

    /// A thread has what it waited for: how long that took, if the value is timed.
    #[inline]
    pub(crate) fn woke(&self, key: &Key, word: u64) {
        if word == 0 {
            return;
        }
        let shard = key.shard_of(self.mailboxes.len() as u32) as usize;
        let recorder = self.recorders.get().and_then(|all| all.get(shard));
        if let Some(Some(recorder)) = recorder {
            woke_thread(recorder, word, self.clock.stamp());
        }
    }
}

/// The clock thread has nothing to do any more. It ends by itself: it may be asking a peer.
pub(super) fn release_keeper(inner: &Inner) {
    let keeper = inner.clock_keeper.lock();
    let keeper = keeper.unpoisoned().take();
    if let Some(keeper) = keeper {
        keeper.thread().unpark();
    }
}

#[cfg(test)]
mod tests;
