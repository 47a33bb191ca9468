//! Where the command writes: results to standard output, progress and errors to standard error.
//!
//! Knows nothing of what is written. All output goes through one [`Terminal`], so that a test can read it, and so that
//! what a terminal gets (progress, and lines cut to its width) a pipe or a file never sees.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The width to assume of a terminal that does not tell.
const WIDTH_DEFAULT: usize = 80;

/// No table is laid out for less: a line that wraps reads better than one cut to nothing.
const WIDTH_MIN: usize = 40;

/// The command's output.
pub struct Terminal {
    out: Box<dyn Write + Send>,
    /// Columns, where standard output is a terminal.
    width: Option<usize>,
    /// True where standard error is a terminal.
    progress: bool,
}

impl Terminal {
    /// The process's own standard output and error.
    #[must_use]
    pub fn standard() -> Self {
        let out = io::stdout();
        let width = out
            .is_terminal()
            .then(|| columns(&out).unwrap_or(WIDTH_DEFAULT).max(WIDTH_MIN));
        Self {
            out: Box::new(io::BufWriter::new(out)),
            width,
            progress: io::stderr().is_terminal(),
        }
    }

    /// Output into `out`, laid out for `width` columns if that is a terminal's.
    #[must_use]
    pub fn into_writer(out: Box<dyn Write + Send>, width: Option<usize>) -> Self {
        Self {
            out,
            width,
            progress: false,
        }
    }

    /// Hands the output over, as to a thread that writes; what is written here from then on goes nowhere.
    pub(super) fn take(&mut self) -> Self {
        let nowhere = Self {
            out: Box::new(io::sink()),
            ..*self
        };
        std::mem::replace(self, nowhere)
    }

    /// Columns of the terminal; `None` where the output is a pipe or a file, and nothing should be cut.
    #[must_use]
    pub const fn width(&self) -> Option<usize> {
        self.width
    }

    /// From now on tables keep all columns, as they do where the output is no terminal.
    pub const fn widen(&mut self) {
        self.width = None;
    }

    /// Writes one line, and flushes: a reader sees a result when there is one.
    ///
    /// # Errors
    /// What the output says; `BrokenPipe` if the reader is gone.
    pub fn line(&mut self, text: impl Display) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    /// A progress bar of `steps` steps, on standard error, drawn only on a terminal.
    #[must_use]
    pub fn progress(&self, steps: u64) -> Progress {
        Progress::new(self.target(), steps, STEPS)
    }

    /// A progress bar of so many bytes, with their rate and the time that is left; drawn as [`Terminal::progress`] is.
    #[must_use]
    pub fn transfer(&self, bytes: u64) -> Progress {
        Progress::new(self.target(), bytes, TRANSFER)
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.progress {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        }
    }
}

rendez::shown! { Terminal { width, progress } }

/// A progress bar; it is gone from the screen when dropped. Draws only when told something, never by itself.
#[derive(Debug)]
pub struct Progress(ProgressBar);

/// What bars of steps show, and those of bytes.
const STEPS: &str = "{bar:24} {pos}/{len}  {msg}";
const TRANSFER: &str =
    "{bar:24} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left";

impl Progress {
    fn new(target: ProgressDrawTarget, len: u64, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(len), target);
        // Without a steady tick: that would be a thread of its own, on a core that is being measured.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Says what comes next.
    pub fn begin(&self, what: impl Display, takes: Duration) {
        self.0
            .set_message(format!("{what} ({:.1}s)", takes.as_secs_f64()));
        self.0.tick();
    }

    /// So many steps are done, and this is how it stands.
    pub fn at(&self, steps: u64, how: impl Display) {
        self.0.set_message(how.to_string());
        self.0.set_position(steps);
        self.0.tick();
    }

    /// Of a transfer: there are so many bytes.
    pub fn of_bytes(&self, bytes: u64) {
        if self.0.length() != Some(bytes) {
            self.0.set_length(bytes);
            self.0.reset_eta();
        }
    }

    /// Of a transfer: so many bytes are done.
    pub fn at_byte(&self, bytes: u64) {
        self.0.set_position(bytes);
    }

    /// One step is done.
    pub fn step(&self) {
        self.0.inc(1);
    }

    /// Takes the bar off the screen while something else is written there.
    pub fn suspend<R>(&self, write: impl FnOnce() -> R) -> R {
        self.0.suspend(write)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// `COLUMNS`, which a user may set, before what the terminal says.
fn columns(out: &io::Stdout) -> Option<usize> {
    let set = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    let asked = || {
        rustix::termios::tcgetwinsize(out)
            .ok()
            .map(|size| usize::from(size.ws_col))
    };
    set.or_else(asked).filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests;
