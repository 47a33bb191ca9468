//! How spans travel: what a call carries of its caller's, and the report by which a callee's come home.

use std::sync::Arc;
use std::time::Duration;

use super::report::{NAME_BYTES_MAX, Span};
use crate::agent::context::Context;
use crate::agent::packed::Packed;
use crate::agent::promise::Promise;
use crate::agent::shared::{Command, Shared, Ticket};
use crate::agent::slot::Slot;
use crate::codec::{Malformed, Reader, Writer};
use crate::functions::Functions;
use crate::id::WorkerId;
use crate::message::Target;
use crate::payload::digest;
use crate::value::{Packer, Unpacker, Value, ValueError};
use rendez::ground::Locked;

/// The function that spans come home by. Every agent has it.
pub(crate) const REPORT: &str = "rendez.spans";
/// Spans of one report.
const REPORT_SPANS_MAX: usize = 1024;
/// How long a report may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a call carries of its caller's recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Trace {
    /// The identity of the whole.
    pub(crate) trace: u128,
    /// The caller's recording.
    pub(crate) recording: u64,
    /// The call's span.
    pub(crate) span: u64,
}

impl Trace {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.word((self.trace >> 64) as u64);
        writer.word(self.trace as u64);
        writer.word(self.recording);
        writer.word(self.span);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let high = u128::from(reader.word()?) << 64;
        Ok(Self {
            trace: high | u128::from(reader.word()?),
            recording: reader.word()?,
            span: reader.word()?,
        })
    }
}

/// Where spans go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    pub(crate) worker: WorkerId,
    pub(crate) recording: u64,
}

/// Spans on their way home.
struct Report {
    recording: u64,
    spans: Vec<Span>,
}

impl Value for Report {
    fn name(to: &mut String) {
        to.push_str("rendez::Spans");
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        to.plain(&self.recording)?;
        to.plain(&self.spans)
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        let (recording, spans) = (from.plain()?, from.plain::<Vec<Span>>()?);
        let is_long = |span: &Span| span.name.len() > NAME_BYTES_MAX;
        if spans.len() > REPORT_SPANS_MAX || spans.iter().any(is_long) {
            return Err(ValueError::new(
                "more spans, or longer names, than a report has",
            ));
        }
        Ok(Self { recording, spans })
    }
}

/// True if these bytes are a report.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn is_report(plain: &[u8]) -> bool {
    let mut from = Unpacker::new(plain.into(), Vec::new(), Vec::new());
    Report::take(&mut from).is_ok() && from.end().is_ok()
}

/// What every agent can be called for by others.
pub(crate) fn functions() -> Functions {
    Functions::new().add_in_shard(REPORT, |report: Report| {
        if let Some(call) = Context::current() {
            call.shared.spans_came(call.caller, report);
        }
    })
}

impl Shared {
    fn spans_came(&self, from: WorkerId, report: Report) {
        let all = self.recordings.locked();
        let recording = all
            .get(&report.recording)
            .and_then(std::sync::Weak::upgrade);
        drop(all);
        let is_taken = recording.is_some_and(|one| one.came(from, report.spans));
        if !is_taken {
            self.figures.spans_dropped();
        }
    }

    /// Sends spans home, outside of any call that is served.
    pub(crate) fn send_home(self: &Arc<Self>, home: Home, spans: Vec<Span>) {
        for command in self.reports(home, spans) {
            self.push(command);
        }
    }

    /// The calls by which spans go home.
    pub(crate) fn reports(&self, home: Home, mut spans: Vec<Span>) -> Vec<Command> {
        let now = self.engine.clock().stamp();
        let mut commands = Vec::new();
        while !spans.is_empty() {
            let rest = spans.split_off(spans.len().min(REPORT_SPANS_MAX));
            let spans = std::mem::replace(&mut spans, rest);
            let report = Report {
                recording: home.recording,
                spans,
            };
            let ticket = Ticket {
                slot: Slot::default(),
                to: home.worker,
                function: REPORT.into(),
                fetched: None,
                began: now,
                timeout: PATIENCE,
            };
            commands.extend(pack(self, &report).map(|packed| Command::Call {
                to: home.worker,
                target: Target::Function(ticket.function.clone()),
                deadline: now.after(PATIENCE),
                packed,
                ticket: Promise::new(Arc::new(ticket)),
                span: None,
            }));
        }
        commands
    }
}

/// A report as arguments. Observers do not see it.
fn pack(shared: &Shared, report: &Report) -> Option<Packed> {
    let mut packer = Packer::default();
    report.put(&mut packer).ok()?;
    let mut names = crate::value::name_of::<Report>();
    names.push(',');
    shared.packed(digest(&names), None, packer).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spans::SpanId;

    fn report(count: usize, name: usize) -> Report {
        let span = |id| Span {
            id: SpanId(id),
            parent: SpanId(0),
            name: "x".repeat(name),
            worker: WorkerId(3),
            began_ns: 5,
            took_ns: 7,
            is_error: true,
        };
        Report {
            recording: 9,
            spans: (0..count as u64).map(span).collect(),
        }
    }

    fn there_and_back(report: &Report) -> Result<Report, ValueError> {
        let mut packer = Packer::default();
        report.put(&mut packer).expect("it is written");
        Report::take(&mut Unpacker::new(packer.plain, Vec::new(), Vec::new()))
    }

    #[test]
    fn a_report_comes_back_and_one_beyond_its_bounds_is_refused() {
        let one = report(REPORT_SPANS_MAX, 5);
        let back = there_and_back(&one).expect("a report");
        assert_eq!((back.recording, back.spans), (one.recording, one.spans));
        assert!(there_and_back(&report(REPORT_SPANS_MAX + 1, 1)).is_err());
        assert!(there_and_back(&report(1, NAME_BYTES_MAX)).is_ok());
        assert!(there_and_back(&report(1, NAME_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn a_trace_comes_back() {
        let trace = Trace {
            trace: u128::MAX - 5,
            recording: 1 << 63,
            span: 7,
        };
        let mut writer = Writer::default();
        trace.write(&mut writer);
        assert_eq!(Trace::read(&mut Reader::new(&writer.bytes)), Ok(trace));
        assert!(Trace::read(&mut Reader::new(&writer.bytes[1..])).is_err());
    }
}
