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
