//! What is written arrives, and a reader that goes away is noticed.

use std::sync::{Arc, Mutex};

use indicatif::TermLike;

use super::*;
use crate::error::CliError;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn lines_arrive_whole() {
    let kept = Kept::default();
    let mut terminal = Terminal::into_writer(Box::new(kept.clone()), None);
    terminal.line("one").unwrap();
    terminal.line(2).unwrap();
    assert_eq!(*kept.0.lock().unwrap(), b"one\n2\n");
}

#[test]
fn a_reader_that_went_away_is_no_failure() {
    let mut terminal = Terminal::into_writer(Box::new(Gone), None);
    let error = CliError::from(terminal.line("one").unwrap_err());
    assert_eq!((error.exit(), error.reason()), (0, "OUTPUT_CLOSED"));
}

#[test]
fn who_asks_for_it_gets_all_columns_on_a_narrow_terminal() {
    for (wide, width) in [(None, Some(80)), (Some("--wide"), None)] {
        // Before the command or after it.
        for order in [[wide, Some("completions")], [Some("completions"), wide]] {
            let mut terminal = Terminal::into_writer(Box::new(Kept::default()), Some(80));
            let words = order.into_iter().flatten().chain(["bash"]);
            let arguments = std::iter::once("rendez").chain(words).map(Into::into);
            let mut errors = Vec::new();
            let status = crate::run(arguments, &mut terminal, &mut errors);
            assert_eq!(status, 0, "{}", String::from_utf8_lossy(&errors));
            assert_eq!(terminal.width(), width, "{order:?}");
        }
    }
}

/// A terminal of 80 columns in memory, as far as bars need one: its lines, and where its cursor is.
#[derive(Clone, Default, Debug)]
struct Screen(Arc<Mutex<Shown>>);

/// The lines, and the cursor's line and column.
type Shown = (Vec<Vec<char>>, usize, usize);

impl Screen {
    /// What stands there, without blanks at the ends of lines.
    fn contents(&self) -> String {
        let lines = self.0.lock().unwrap().0.clone();
        let lines = lines.iter().map(|line| line.iter().collect::<String>());
        let lines: Vec<String> = lines.map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n").trim_end().to_owned()
    }

    fn moved(&self, to: impl FnOnce(usize, usize) -> (usize, usize)) -> io::Result<()> {
        let mut screen = self.0.lock().unwrap();
        (screen.1, screen.2) = to(screen.1, screen.2);
        Ok(())
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        80
    }
    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.moved(|line, column| (line.saturating_sub(n), column))
    }
    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.moved(|line, column| (line + n, column))
    }
    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.moved(|line, column| (line, column + n))
    }
    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.moved(|line, column| (line, column.saturating_sub(n)))
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)?;
        self.write_str("\n")
    }
    fn write_str(&self, text: &str) -> io::Result<()> {
        let mut screen = self.0.lock().unwrap();
        let (lines, line, column) = &mut *screen;
        for letter in text.chars() {
            match letter {
                '\n' => (*line, *column) = (*line + 1, 0),
                '\r' => *column = 0,
                _ => {
                    let room = lines.len().max(*line + 1);
                    lines.resize(room, Vec::new());
                    let room = lines[*line].len().max(*column + 1);
                    lines[*line].resize(room, ' ');
                    lines[*line][*column] = letter;
                    *column += 1;
                }
            }
        }
        Ok(())
    }
    fn clear_line(&self) -> io::Result<()> {
        let mut screen = self.0.lock().unwrap();
        let (lines, line, column) = &mut *screen;
        if let Some(line) = lines.get_mut(*line) {
            line.clear();
        }
        *column = 0;
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_transfer_shows_its_rate_and_the_time_left_and_leaves_nothing() {
    let screen = Screen::default();
    let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
    let progress = Progress::new(target, 0, TRANSFER);
    // A pull hears how much there is when something comes.
    progress.of_bytes(1 << 30);
    progress.at_byte(1000 << 20);
    progress.0.tick();
    let shown = screen.contents();
    assert_eq!(shown.lines().count(), 1, "{shown}");
    assert!(shown.chars().count() < 80, "{shown}");
    assert!(shown.contains("1000.00 MiB/1.00 GiB"), "{shown}");
    let words: Vec<&str> = shown.split_whitespace().collect();
    let [.., rate, time, "left"] = words[..] else {
        panic!("{shown}");
    };
    assert!(rate.ends_with("B/s"), "{shown}");
    let is_time = time.ends_with(['s', 'm', 'h']) && time.starts_with(|c: char| c.is_ascii_digit());
    assert!(is_time, "{shown}");
    let written = progress.suspend(|| screen.contents());
    assert_eq!(
        written, "",
        "nothing stands where something else is written"
    );
    drop(progress);
    assert_eq!(screen.contents(), "");
}

#[test]
fn nothing_is_drawn_where_no_terminal_is() {
    let terminal = Terminal::into_writer(Box::new(Kept::default()), Some(80));
    assert!(terminal.target().is_hidden());
    assert!(terminal.transfer(10).0.is_hidden() && terminal.progress(10).0.is_hidden());
}
