//! Output of `rendez up`: the tasks' lines on their way to standard output, each with its task's name before it.
//!
//! Knows lines and names. A thread of its own writes them, so that whatever else is to be done goes on while the reader
//! of the output does not read. As many lines wait as fit; then the tasks wait, as a terminal would make them.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::error::CliError;
use super::super::terminal::Terminal;
use rendez::ground::Locked;

/// Lines that wait to be written.
const LINES_MAX: usize = 256;

/// Output that does not move for so long stands still.
const STILL: Duration = Duration::from_millis(500);

/// A line of the task of that index.
pub(super) type Line = (usize, String);

/// The lines' writer, as the rest of the command sees it.
pub(super) struct Output {
    thread: Option<JoinHandle<io::Result<()>>>,
    shared: Arc<Shared>,
    /// The turn that was seen last, and since when.
    seen: (u64, Instant),
}

struct Shared {
    /// The writer holds it while it waits for a line, and not while it writes one.
    lines: Mutex<Receiver<Line>>,
    /// Counts lines twice: it is odd while one is being written.
    turn: AtomicU64,
}

impl Output {
    /// Has the lines that are sent written to `terminal`, which is the writer's from here on. It ends with the last
    /// sender.
    pub(super) fn begin(
        names: Vec<String>,
        terminal: Terminal,
    ) -> io::Result<(SyncSender<Line>, Self)> {
        let (lines, heard) = sync_channel(LINES_MAX);
        let shared = Arc::new(Shared {
            lines: Mutex::new(heard),
            turn: AtomicU64::new(0),
        });
        let thread = std::thread::Builder::new().spawn({
            let shared = Arc::clone(&shared);
            move || shared.write(&names, terminal)
        })?;
        let output = Self {
            thread: Some(thread),
            shared,
            seen: (0, Instant::now()),
        };
        Ok((lines, output))
    }

    /// How it ended, if it did: all is written, or it cannot be. Told once.
    ///
    /// # Errors
    /// What the output says.
    pub(super) fn ended(&mut self) -> Option<Result<(), CliError>> {
        let thread = self.thread.take_if(|thread| thread.is_finished())?;
        match thread.join() {
            Ok(written) => Some(written.map_err(CliError::from)),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Lets `time` pass. Lines are thrown away meanwhile if the output stands still: a task that was told to end must
    /// get rid of what it still has to say.
    pub(super) fn relieve(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let is_blocked = self.stands_still() == Some(Still::Blocked);
        if is_blocked && let Some(lines) = self.shared.try_lines() {
            while let Some(left) = end.checked_duration_since(Instant::now()) {
                if lines.recv_timeout(left) == Err(RecvTimeoutError::Disconnected) {
                    break;
                }
            }
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }

    /// Waits until all that was said is written. `is_interrupted` waits a moment for an interrupt, and says whether
    /// there was one: then what cannot be written is given up.
    ///
    /// # Errors
    /// What the output says.
    pub(super) fn finish(
        mut self,
        mut is_interrupted: impl FnMut() -> bool,
    ) -> Result<(), CliError> {
        self.seen.1 = Instant::now();
        while self.thread.is_some() {
            let interrupted = is_interrupted();
            if let Some(written) = self.ended() {
                return written;
            }
            match self.stands_still() {
                // What a task left running may hold its pipe for ever.
                Some(Still::Waiting) => return Ok(()),
                Some(Still::Blocked) if interrupted => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }

    fn stands_still(&mut self) -> Option<Still> {
        let turn = self.shared.turn.load(Ordering::Acquire);
        if turn != self.seen.0 {
            self.seen = (turn, Instant::now());
        }
        let still = match turn % 2 {
            0 => Still::Waiting,
            _ => Still::Blocked,
        };
        (self.seen.1.elapsed() >= STILL).then_some(still)
    }
}

/// Why nothing moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Still {
    /// There is no line.
    Waiting,
    /// The output takes none.
    Blocked,
}

impl Shared {
    fn write(&self, names: &[String], mut terminal: Terminal) -> io::Result<()> {
        while let Some((index, line)) = self.next() {
            self.turn.fetch_add(1, Ordering::AcqRel);
            show(names, index, &line, &mut terminal)?;
            self.turn.fetch_add(1, Ordering::AcqRel);
        }
        Ok(())
    }

    fn next(&self) -> Option<Line> {
        let lines = self.lines.locked();
        lines.recv().ok()
    }

    fn try_lines(&self) -> Option<std::sync::MutexGuard<'_, Receiver<Line>>> {
        match self.lines.try_lock() {
            Ok(lines) => Some(lines),
            Err(TryLockError::Poisoned(lines)) => Some(lines.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// One line with its task's name before it, in a colour of the task's own on a terminal.
fn show(names: &[String], index: usize, line: &str, terminal: &mut Terminal) -> io::Result<()> {
    const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];
    let widest = names.iter().map(String::len).max().unwrap_or(0);
    let name = names.get(index).map_or("", String::as_str);
    let name = format!("{name:<widest$}");
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let name = if terminal.width().is_some() && !is_plain {
        let colour = COLOURS[index % COLOURS.len()];
        format!("\x1b[{colour}m{name}\x1b[0m")
    } else {
        name
    };
    terminal.line(format!("{name} │ {line}"))
}
