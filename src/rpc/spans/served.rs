//! What a function records that is called within a profile: itself, what it does, and the calls that it makes.

use std::sync::Arc;

use rendez::ground::{Nanos, Traceparent};

use super::recording::{Recording, within};
use super::report::{Span, SpanId};
use super::travelling::{Home, Trace};
use crate::agent::shared::Shared;
use crate::id::WorkerId;

/// See the module.
#[derive(Clone)]
pub(crate) struct ServedSpan {
    recording: Arc<Recording>,
    home: Home,
    id: SpanId,
    /// The call's, at its caller.
    parent: SpanId,
}

impl ServedSpan {
    pub(crate) fn new(shared: &Arc<Shared>, from: WorkerId, trace: &Trace) -> Self {
        let home = Home {
            worker: from,
            recording: trace.recording,
        };
        let recording = Recording::new(shared, trace.trace, Some(home));
        Self {
            id: recording.fresh(),
            recording,
            home,
            parent: SpanId(trace.span),
        }
    }

    /// It was queued from one moment to the other.
    pub(crate) fn queued(&self, times: (Nanos, Nanos)) {
        let id = self.recording.fresh();
        self.recording
            .between(id, self.parent, "queued", times, false);
    }

    /// Does `work` as that function.
    pub(crate) fn within<R>(served: Option<&Self>, work: impl FnOnce() -> R) -> R {
        within(served.map(|one| (&one.recording, one.id)), work)
    }

    /// It has ended, and began at `began`: what goes home now. What comes later goes when all that it began is over.
    pub(crate) fn end(&self, function: &str, began: Nanos, is_error: bool) -> (Home, Vec<Span>) {
        self.recording
            .ended(self.id, self.parent, function, began, is_error);
        (self.home, self.recording.take())
    }

    /// As what other systems know it.
    pub(crate) fn traceparent(&self) -> Option<Traceparent> {
        Traceparent::new(self.recording.trace, self.id.0, 1)
    }
}
