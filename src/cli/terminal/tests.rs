//! What is written arrives, and a reader that goes away is noticed.

use std::sync::{Arc, Mutex};

use super::*;
use crate::cli::error::CliError;

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
            let status = crate::cli::run(arguments, &mut terminal, &mut errors);
            assert_eq!(status, 0, "{}", String::from_utf8_lossy(&errors));
            assert_eq!(terminal.width(), width, "{order:?}");
        }
    }
}
