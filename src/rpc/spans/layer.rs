//! A layer for subscribers of `tracing`: its spans are a profile's too, and calls stand under them.

use std::sync::{Arc, Mutex, Weak};

use rendez::ground::{Locked, Nanos, Unpoisoned};
use tracing::{Id, Subscriber, span::Attributes};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::recording::{Recording, current, pop, push};
use super::report::SpanId;

/// A layer by which spans of `tracing` that are entered in a [profile](super::Profile) are recorded there, from their
/// first entry until they are closed; calls that are made in them stand under them.
///
/// `tracing_subscriber::registry().with(rendez_rpc::spans::layer())`.
#[must_use]
pub fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    SpanLayer
}

struct SpanLayer;

/// What is kept of a span of `tracing`: where it is recorded, once it was entered in a profile.
#[derive(Default)]
struct Kept(Mutex<Option<Begun>>);

struct Begun {
    /// Those that it was entered in; it keeps none of them alive.
    recording: Weak<Recording>,
    id: SpanId,
    parent: SpanId,
    began: Nanos,
    /// How many of its entries were in the profile and are not left.
    depth: usize,
}

impl<S> Layer<S> for SpanLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Kept::default());
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let (Some((recording, parent)), Some(span)) = (current(), context.span(id)) else {
            return;
        };
        let extensions = span.extensions();
        let Some(kept) = extensions.get::<Kept>() else {
            return;
        };
        let mut begun = kept.0.locked();
        let begun = begun.get_or_insert_with(|| Begun {
            recording: Arc::downgrade(&recording),
            id: recording.fresh(),
            parent,
            began: recording.now(),
            depth: 0,
        });
        // A span that was begun in another profile is recorded there.
        if begun.recording.as_ptr() == Arc::as_ptr(&recording) {
            begun.depth += 1;
            push(recording, begun.id);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else {
            return;
        };
        let extensions = span.extensions();
        let Some(kept) = extensions.get::<Kept>() else {
            return;
        };
        let mut begun = kept.0.locked();
        let is_open = |begun: &&mut Begun| {
            begun.depth > 0 && current().is_some_and(|(_, open)| open == begun.id)
        };
        if let Some(begun) = begun.as_mut().filter(is_open) {
            begun.depth -= 1;
            pop();
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else {
            return;
        };
        let kept = span.extensions_mut().remove::<Kept>();
        let begun = kept.and_then(|kept| kept.0.into_inner().unpoisoned());
        if let Some(begun) = begun
            && let Some(recording) = begun.recording.upgrade()
        {
            recording.ended(begun.id, begun.parent, span.name(), begun.began, false);
        }
    }
}
