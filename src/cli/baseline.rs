//! The raw references: what this machine's cache lines and memory cost without rendez, measured in the same run.
//!
//! Knows nothing of engines. Two processes, each on its own core, share a memfd (see `line.rs`); the other side is this
//! program again, under a hidden subcommand, with the memfd as its standard input.
//!
//! * **Ping-pong:** a cache line there and another back. Half of it bounds every hand-over from below.
//! * **Write-signal-read:** one side writes the bytes in place, signals, the other reads them all in place and signals
//!   back: the whole cycle is what a producer and a consumer pay at least when nothing is copied.
//! * **memcpy:** one core copies the bytes.
//! * **TCP:** a ping-pong, and a stream counted at its receiver, over a bare socket (see `socket.rs`).
//!
//! How a round trip is timed: one stamp per round trip, taken just *after* signalling, while the line travels, so that
//! reading the clock is hidden in the wait; the difference of two stamps is one whole round trip. Nothing is
//! subtracted.
//! Stamps go to a plain array, and into the histogram only between batches.

pub mod line;
pub mod socket;
pub mod touch;

use std::hint::black_box;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime};

use self::line::{Far, Near, Waiting};
use self::socket::Mode;
use super::error::CliError;
use super::histogram::{Interval, Recorder};
use super::interrupt::Interrupts;
use super::itself::{self, Other};
use super::machine::{self, Pair};
use super::report::{Baseline, Row};
use super::stopwatch::{Stamp, Stopwatch};
use super::units::show_bytes;

/// The hidden subcommand under which this program is the other side.
pub const PEER_COMMAND: &str = "baseline-peer";

/// Bytes of a cache line, which a ping-pong moves.
const LINE_BYTES: u64 = 64;

/// Stamps between two visits to the histogram: 32 KiB of them, which stay in the first-level cache.
const BATCH: usize = 4096;

/// How long the other side may take to start; a loaded machine starts a process in milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A copy is timed in batches of about this many bytes, so that the clock's own cost disappears in them.
const COPY_BATCH_BYTES: u64 = 64 << 10;

/// The most copies in a batch.
const COPIES_MAX: u64 = 4096;

/// A measured reference: its row, and its distribution for the log.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The row.
    pub row: Row,
    /// The distribution.
    pub interval: Interval,
}

/// All references at one size.
#[derive(Clone, Debug)]
pub struct References {
    /// The ping-pong of a line.
    pub pingpong: Reference,
    /// The write-signal-read cycle.
    pub write_signal_read: Reference,
    /// The copy.
    pub memcpy: Reference,
}

impl References {
    /// The rows, as a report carries them.
    #[must_use]
    pub fn baseline(&self) -> Baseline {
        Baseline {
            pingpong: self.pingpong.row.clone(),
            write_signal_read: Some(self.write_signal_read.row.clone()),
            memcpy: Some(self.memcpy.row.clone()),
            stream: None,
        }
    }
}

/// Measures all references at `bytes`, each for `duration`. The other side lives only as long as this call: one that
/// waited for the next would spin on a core that something else is measured on.
///
/// # Errors
/// `BASELINE_TOO_LARGE`, `BASELINE_PEER_DIED`, `BASELINE_WRONG_BYTES`, `PINNING_REFUSED`, `AFFINITY_UNKNOWN`.
pub fn measure(bytes: u64, duration: Duration) -> Result<References, CliError> {
    let pair = machine::pair()?;
    let size = check_room(bytes, 3)?;
    apart(move || {
        let mut raw = Raw::start(size, pair)?;
        let pingpong = raw.cycles(0, duration)?;
        let write_signal_read = raw.cycles(size, duration)?;
        drop(raw.peer);
        let memcpy = memcpy(size, duration, &raw.watch, &raw.interrupts);
        raw.interrupts.check()?;
        Ok(References {
            pingpong,
            write_signal_read,
            memcpy,
        })
    })
}

/// Measures on a thread of its own, so that pinning it leaves the caller's affinity as it was.
fn apart<T: Send + 'static>(
    measure: impl FnOnce() -> Result<T, CliError> + Send + 'static,
) -> Result<T, CliError> {
    let thread = std::thread::Builder::new().name("baseline".into());
    let measuring = thread.spawn(measure).map_err(|error| {
        CliError::failure("THREAD_REFUSED", format!("cannot start a thread: {error}"))
    })?;
    measuring
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The references of a bare TCP socket at one size.
#[derive(Clone, Debug)]
pub struct TcpReferences {
    /// The ping-pong of a message of that size.
    pub pingpong: Reference,
    /// A stream of such messages, at its receiver.
    pub stream: Reference,
}

impl TcpReferences {
    /// The rows, as a report carries them.
    #[must_use]
    pub fn baseline(&self) -> Baseline {
        Baseline {
            pingpong: self.pingpong.row.clone(),
            write_signal_read: None,
            memcpy: None,
            stream: Some(self.stream.row.clone()),
        }
    }
}

/// Measures a bare TCP socket on loopback at `bytes`, each reference for `duration`; the other side is a process on its
/// own core, as in [`measure`].
///
/// # Errors
/// As [`measure`], and `BASELINE_NO_LOOPBACK`.
pub fn measure_tcp(bytes: u64, duration: Duration) -> Result<TcpReferences, CliError> {
    let pair = machine::pair()?;
    let size = check_room(bytes.max(1), socket::STREAM_BUFFERS + 1)?;
    apart(move || {
        Ok(TcpReferences {
            pingpong: tcp(Mode::PingPong, size, duration, pair)?,
            stream: tcp(Mode::Stream, size, duration, pair)?,
        })
    })
}

/// One reference over a socket of its own.
fn tcp(mode: Mode, size: usize, duration: Duration, pair: Pair) -> Result<Reference, CliError> {
    let (mut near, far) = socket::pair(mode, waiting(pair.is_shared()), size).map_err(|error| {
        CliError::failure(
            "BASELINE_NO_LOOPBACK",
            format!("cannot connect two sockets of this machine: {error}; is its loopback up?"),
        )
    })?;
    let _peer = start(far, pair, true)?;
    machine::pin(pair.near)?;
    let (watch, interrupts) = (Stopwatch::calibrated(), Interrupts::of_process());
    let gone = |_| peer_died("while it was measured");
    near.ask(mode).map_err(gone)?;
    let mut message = || {
        // As in the cycles above: the stamp is taken while the message travels.
        if mode == Mode::PingPong {
            near.send().map_err(gone)?;
        }
        let stamp = watch.stamp();
        near.receive().map_err(gone)?;
        Ok::<_, CliError>(stamp)
    };
    let mut rounds = |duration, mut recorder: Option<&mut Recorder>| {
        let mut last = message()?;
        let end = Stamp(last.0.saturating_add(watch.ticks(duration)));
        while last < end {
            interrupts.check()?;
            let stamp = message()?;
            if let Some(recorder) = recorder.as_deref_mut() {
                recorder.record(watch.nanos(last, stamp));
            }
            last = stamp;
        }
        Ok::<(), CliError>(())
    };
    rounds(duration / 10, None)?;
    let (start, mut recorder) = (SystemTime::now(), Recorder::nanos());
    rounds(duration, Some(&mut recorder))?;
    let times = recorder.summary();
    let mut row = Row {
        transport: "raw_tcp",
        bytes: size as u64,
        count: recorder.count(),
        notes: pair.note.map(str::to_owned).into_iter().collect(),
        ..Row::default()
    };
    if mode == Mode::PingPong {
        row.pattern = "pingpong";
        row.rtt_ns = times;
        row.half_rtt_ns = times.map(|rtt| rtt.times(0.5));
    } else {
        row.pattern = "oneway";
        row.bytes_per_s = recorder.rates(size as f64);
    }
    Ok(Reference::new(row, start, duration, recorder))
}

/// The other side: answers on the memory behind standard input until the measuring side quits or dies; on the socket
/// there, if `is_tcp` says that it is one.
///
/// # Errors
/// `BASELINE_PEER_MISUSED` if it was not started by [`measure`].
pub fn serve(parent: i32, core: usize, is_shared: bool, is_tcp: bool) -> Result<(), CliError> {
    let misused = |what: String| {
        CliError::failure(
            "BASELINE_PEER_MISUSED",
            format!("{what}; this subcommand is for 'rendez bench --baseline' only"),
        )
    };
    let has_parent = || rustix::process::Pid::as_raw(rustix::process::getppid()) == parent;
    // Whatever kills the parent ends this process too, even where it spins on one core for ever.
    let told =
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    told.map_err(|error| misused(format!("cannot be told of the parent's end: {error}")))?;
    // It may have died before that, and then no signal will come.
    if !has_parent() {
        return Err(misused(format!(
            "the measuring side is not process {parent}"
        )));
    }
    Interrupts::pass_by()?;
    machine::pin(core)?;
    if is_tcp {
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let room = usize::try_from(machine::available_bytes()).unwrap_or(usize::MAX);
        let served = socket.and_then(|socket| socket::serve(socket, waiting(is_shared), room));
        return served.map_err(|error| misused(format!("standard input is no socket: {error}")));
    }
    let far = Far::open(std::io::stdin(), waiting(is_shared));
    let far =
        far.map_err(|error| misused(format!("standard input is not the shared memory: {error}")))?;
    let served = far.serve(&mut || has_parent());
    served.map_err(|_| {
        misused("the measuring side is gone, or claimed bytes that are not there".into())
    })
}

struct Raw {
    near: Near,
    peer: Other,
    watch: Stopwatch,
    interrupts: Interrupts,
    stamps: Vec<Stamp>,
    note: Option<&'static str>,
}

impl Raw {
    fn start(bytes: usize, pair: Pair) -> Result<Self, CliError> {
        let made = Near::create(bytes, waiting(pair.is_shared()));
        let (near, fd) = made.map_err(|error| {
            let message = format!(
                "cannot make {} of shared memory: {error}; measure less",
                show_bytes(bytes as u64)
            );
            CliError::failure("BASELINE_TOO_LARGE", message)
        })?;
        let mut peer = start(fd, pair, false)?;
        machine::pin(pair.near)?;
        let watch = Stopwatch::calibrated();
        let deadline = Instant::now() + START_TIMEOUT;
        let hello =
            near.wait_for_hello(&mut || peer.ended().is_none() && Instant::now() < deadline);
        hello.map_err(|_| peer_died("before it was ready"))?;
        Ok(Self {
            near,
            peer,
            watch,
            interrupts: Interrupts::of_process(),
            stamps: vec![Stamp::default(); BATCH],
            note: pair.note,
        })
    }

    /// Round trips of `len` bytes written and read in place; of a bare line where `len` is zero.
    fn cycles(&mut self, len: usize, duration: Duration) -> Result<Reference, CliError> {
        self.near.set_len(len);
        // A tenth first, unrecorded: caches, branch predictors and clock frequency settle.
        self.rounds(len, duration / 10, None)?;
        let (start, mut recorder) = (SystemTime::now(), Recorder::nanos());
        self.rounds(len, duration, Some(&mut recorder))?;
        let rtt = recorder.summary();
        let mut row = Row {
            transport: "raw",
            count: recorder.count(),
            rtt_ns: rtt,
            notes: self.note.map(str::to_owned).into_iter().collect(),
            ..Row::default()
        };
        if len == 0 {
            row = Row {
                pattern: "pingpong",
                bytes: LINE_BYTES,
                half_rtt_ns: rtt.map(|rtt| rtt.times(0.5)),
                ..row
            };
        } else {
            let bandwidth = recorder.rates(len as f64);
            row = Row {
                pattern: "write_signal_read",
                bytes: len as u64,
                bytes_per_s: bandwidth,
                ..row
            };
        }
        Ok(Reference::new(row, start, duration, recorder))
    }

    fn rounds(
        &mut self,
        len: usize,
        duration: Duration,
        mut recorder: Option<&mut Recorder>,
    ) -> Result<(), CliError> {
        let Self {
            near,
            peer,
            watch,
            interrupts,
            stamps,
            ..
        } = self;
        let mut is_alive = || peer.ended().is_none();
        let end = Stamp(watch.stamp().0.saturating_add(watch.ticks(duration)));
        let mut is_over = false;
        while !is_over {
            let mut taken = 0;
            while taken < stamps.len() && !is_over {
                if len > 0 {
                    near.write(len);
                }
                near.signal();
                let stamp = watch.stamp();
                stamps[taken] = stamp;
                taken += 1;
                is_over = stamp >= end || interrupts.came();
                let sum = near
                    .wait(&mut is_alive)
                    .map_err(|_| peer_died("while it was measured"))?;
                if len > 0 && !near.is_right(len, sum) {
                    let message = "the bytes read are not those written; the machine's memory is not to be trusted";
                    return Err(CliError::failure("BASELINE_WRONG_BYTES", message));
                }
            }
            if let Some(recorder) = recorder.as_deref_mut() {
                stamps[..taken]
                    .windows(2)
                    .for_each(|pair| recorder.record(watch.nanos(pair[0], pair[1])));
            }
        }
        interrupts.check()
    }
}

/// Starts the other side.
fn start(input: OwnedFd, pair: Pair, is_tcp: bool) -> Result<Other, CliError> {
    let cannot = |error: std::io::Error| {
        CliError::failure(
            "BASELINE_PEER_DIED",
            format!(
                "cannot start the other process: {}",
                itself::refused(&error)
            ),
        )
    };
    let mut command = itself::again();
    command.arg(PEER_COMMAND);
    command.args([
        "--parent",
        &std::process::id().to_string(),
        "--core",
        &pair.far.to_string(),
    ]);
    if pair.is_shared() {
        command.arg("--shared-core");
    }
    if is_tcp {
        command.arg("--tcp");
    }
    command.stdin(Stdio::from(input)).stdout(Stdio::null());
    Other::spawn(&mut command).map_err(cannot)
}

impl Reference {
    fn new(row: Row, start: SystemTime, duration: Duration, recorder: Recorder) -> Self {
        let tag = format!("{}-{}-{}", row.transport, row.pattern, row.bytes);
        Self {
            row,
            interval: Interval {
                tag,
                start,
                duration,
                recorder,
            },
        }
    }
}

/// Copies of `len` bytes between two buffers of this process: means of batches, in picoseconds.
fn memcpy(len: usize, duration: Duration, watch: &Stopwatch, interrupts: &Interrupts) -> Reference {
    // Written, not only allocated: an unwritten page is the kernel's one page of zeros.
    let (source, mut target) = (vec![1u8; len + 64], vec![2u8; len + 64]);
    // From a cache line's start, as tensors lie: a small copy across two lines costs several times one within.
    let at = |buffer: &[u8]| buffer.as_ptr().align_offset(64).min(64);
    let (from, to) = (at(&source), at(&target));
    let (source, target) = (&source[from..][..len], &mut target[to..][..len]);
    let copies = (COPY_BATCH_BYTES / len as u64).clamp(1, COPIES_MAX);
    let mut batch = |watch: &Stopwatch| {
        let start = watch.stamp();
        for _ in 0..copies {
            black_box(&mut *target).copy_from_slice(black_box(source));
        }
        watch.picos(start, watch.stamp()) / copies
    };
    let mut recorder = Recorder::picos();
    let begun = SystemTime::now();
    let (start, ticks) = (watch.stamp(), watch.ticks(duration));
    batch(watch);
    loop {
        recorder.record(batch(watch));
        if watch.stamp().0.saturating_sub(start.0) >= ticks || interrupts.came() {
            break;
        }
    }
    let row = Row {
        pattern: "memcpy",
        transport: "raw",
        bytes: len as u64,
        count: recorder.count() * copies,
        time_ns: recorder.summary(),
        bytes_per_s: recorder.rates(len as f64),
        notes: (copies > 1)
            .then(|| format!("means of batches of {copies} copies"))
            .into_iter()
            .collect(),
        ..Row::default()
    };
    Reference::new(row, begun, duration, recorder)
}

/// The references hold the bytes several times: in memory three, shared and as source and target of the copy; by TCP
/// where they are sent from, and in each buffer that they are received into.
fn check_room(bytes: u64, times: u64) -> Result<usize, CliError> {
    let available = machine::available_bytes();
    match usize::try_from(bytes) {
        Ok(size) if bytes.saturating_mul(times) < available => Ok(size),
        _ => {
            let (bytes, available) = (show_bytes(bytes), show_bytes(available));
            let message = format!(
                "the references at {bytes} take {times} times that, and {available} are free; measure less"
            );
            Err(CliError::failure("BASELINE_TOO_LARGE", message))
        }
    }
}

fn peer_died(when: &str) -> CliError {
    let message = format!(
        "the other process ended {when}; was it killed for memory? its own words stand above"
    );
    CliError::failure("BASELINE_PEER_DIED", message)
}

const fn waiting(is_shared: bool) -> Waiting {
    if is_shared {
        Waiting::Yield
    } else {
        Waiting::Spin
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_bytes_than_the_machine_has_are_refused() {
        assert_eq!(
            check_room(u64::MAX, 3).unwrap_err().reason(),
            "BASELINE_TOO_LARGE"
        );
        assert_eq!(check_room(1, 3), Ok(1));
    }

    #[test]
    fn a_copy_is_timed_in_batches_and_counted_singly() {
        let found = memcpy(
            64,
            Duration::from_millis(1),
            &Stopwatch::calibrated(),
            &Interrupts::default(),
        );
        assert_eq!(found.row.count, found.interval.recorder.count() * 1024);
        assert_eq!(found.row.notes.len(), 1);
    }
}
