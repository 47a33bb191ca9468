//! Recordings: where the spans of a profile, or of a function that is called within one, are kept until they go home.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use rendez::ground::{Locked, Nanos};

use super::report::{NAME_BYTES_MAX, Span, SpanId, Spans};
use super::travelling::{Home, Trace};
use crate::agent::Agent;
use crate::agent::shared::Shared;
use crate::id::WorkerId;

/// Spans that one recording keeps; more are counted and dropped.
pub(super) const SPANS_MAX: usize = 1 << 16;

std::thread_local! {
    /// The recordings that this thread is in, the innermost last, each with the span that is open there.
    static CURRENT: RefCell<Vec<(Arc<Recording>, SpanId)>> = const { RefCell::new(Vec::new()) };
}

/// See the module.
pub(crate) struct Recording {
    pub(super) id: u64,
    pub(super) trace: u128,
    /// Where its spans go; `None` for that of a profile, which keeps them.
    pub(super) home: Option<Home>,
    shared: Weak<Shared>,
    me: WorkerId,
    /// A moment on the agent's clock and by the time of day, in nanoseconds since 1970: all its times are from there.
    origin: (Nanos, u64),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    spans: Vec<Span>,
    dropped: u64,
    /// Workers that were called from here: only they may send spans.
    called: Vec<WorkerId>,
}

impl Recording {
    pub(super) fn new(shared: &Arc<Shared>, trace: u128, home: Option<Home>) -> Arc<Self> {
        let day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let day = day.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        let recording = Arc::new(Self {
            id: shared.fresh().to_bits(),
            trace,
            home,
            shared: Arc::downgrade(shared),
            me: shared.me,
            origin: (shared.engine.clock().stamp(), day),
            state: Mutex::default(),
        });
        let mut all = shared.recordings.locked();
        all.insert(recording.id, Arc::downgrade(&recording));
        drop(all);
        recording
    }

    /// An identity for a span: of the group, zero for none.
    pub(crate) fn fresh(&self) -> SpanId {
        let shared = self.shared.upgrade();
        SpanId(shared.map_or(0, |shared| shared.fresh_span()))
    }

    pub(super) fn now(&self) -> Nanos {
        let shared = self.shared.upgrade();
        shared.map_or(self.origin.0, |shared| shared.engine.clock().stamp())
    }

    /// Keeps a span that began at `began` and ends now.
    pub(crate) fn ended(
        &self,
        id: SpanId,
        parent: SpanId,
        name: &str,
        began: Nanos,
        is_error: bool,
    ) {
        self.between(id, parent, name, (began, self.now()), is_error);
    }

    /// Keeps a span between two moments.
    pub(crate) fn between(
        &self,
        id: SpanId,
        parent: SpanId,
        name: &str,
        times: (Nanos, Nanos),
        is_error: bool,
    ) {
        let (began, ended) = times;
        let since = began.0.wrapping_sub(self.origin.0.0).cast_signed();
        let end = name.floor_char_boundary(NAME_BYTES_MAX);
        self.keep([Span {
            id,
            parent,
            name: name[..end].to_owned(),
            worker: self.me,
            began_ns: self.origin.1.saturating_add_signed(since),
            took_ns: ended.0.saturating_sub(began.0),
            is_error,
        }]);
    }

    fn keep(&self, spans: impl IntoIterator<Item = Span>) {
        let mut state = self.state.locked();
        for span in spans {
            match state.spans.len() < SPANS_MAX {
                true => state.spans.push(span),
                false => state.dropped += 1,
            }
        }
    }

    /// Spans of a worker come home. False if that worker was never called from here.
    pub(super) fn came(&self, from: WorkerId, spans: Vec<Span>) -> bool {
        if !self.state.locked().called.contains(&from) {
            return false;
        }
        self.keep(spans);
        true
    }

    /// What it has kept; it is empty afterwards.
    pub(crate) fn take(&self) -> Vec<Span> {
        std::mem::take(&mut self.state.locked().spans)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        shared.recordings.locked().remove(&self.id);
        let spans = self.take();
        if let (Some(home), false) = (self.home, spans.is_empty()) {
            shared.send_home(home, spans);
        }
    }
}

/// The innermost recording of this thread, and the span that is open there.
pub(super) fn current() -> Option<(Arc<Recording>, SpanId)> {
    CURRENT.with_borrow(|current| current.last().cloned())
}

/// Does `work` in a recording, with that span open; in none, as it is.
pub(super) fn within<R>(
    recording: Option<(&Arc<Recording>, SpanId)>,
    work: impl FnOnce() -> R,
) -> R {
    let Some((recording, span)) = recording else {
        return work();
    };
    push(Arc::clone(recording), span);
    let popped = Popped;
    let result = work();
    drop(popped);
    result
}

/// Leaves the innermost recording also when what is done there panics.
struct Popped;

impl Drop for Popped {
    fn drop(&mut self) {
        pop();
    }
}

pub(super) fn push(recording: Arc<Recording>, span: SpanId) {
    CURRENT.with_borrow_mut(|current| current.push((recording, span)));
}

pub(super) fn pop() {
    // Dropped outside: the last of a recording sends what it has.
    let popped = CURRENT.with_borrow_mut(Vec::pop);
    drop(popped);
}

/// A call as its caller's recording has it: it ends when this is dropped.
pub(crate) struct CallSpan {
    recording: Arc<Recording>,
    id: SpanId,
    parent: SpanId,
    name: String,
    began: Nanos,
    has_failed: AtomicBool,
}

impl CallSpan {
    /// Begins in the current recording, if there is one: what travels with the call, and what ends with it.
    pub(crate) fn begin(
        to: WorkerId,
        began: Nanos,
        name: impl FnOnce() -> String,
    ) -> Option<(Trace, Arc<Self>)> {
        let (recording, parent) = current()?;
        let id = recording.fresh();
        let mut state = recording.state.locked();
        if !state.called.contains(&to) {
            state.called.push(to);
        }
        drop(state);
        let trace = Trace {
            trace: recording.trace,
            recording: recording.id,
            span: id.0,
        };
        let has_failed = AtomicBool::new(false);
        let span = Self {
            recording,
            id,
            parent,
            name: name(),
            began,
            has_failed,
        };
        Some((trace, Arc::new(span)))
    }

    /// It ends without a result.
    pub(crate) fn fail(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        let has_failed = self.has_failed.load(Ordering::Relaxed);
        self.recording
            .ended(self.id, self.parent, &self.name, self.began, has_failed);
    }
}

/// Records what the threads in its scope do, and the calls that they make. See the [module](super).
///
/// ```no_run
/// # fn profiled(agent: rendez_rpc::Agent) -> Result<(), Box<dyn std::error::Error>> {
/// use rendez_rpc::spans::{Profile, span};
///
/// let profile = Profile::new(&agent);
/// let sum: u32 = profile.scope("step", || {
///     let _forward = span("forward");
///     agent.rpc_sync("two", "add", (1_u32, 2_u32))
/// })?;
/// println!("{}", profile.finish());
/// # Ok(())
/// # }
/// ```
pub struct Profile {
    recording: Arc<Recording>,
    agent: Agent,
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Profile({:032x})", self.recording.trace)
    }
}

/// How many profiles this process has made: with the time of day what tells their traces apart.
static PROFILES: AtomicU64 = AtomicU64::new(1);

impl Profile {
    /// Of calls by `agent`.
    #[must_use]
    pub fn new(agent: &Agent) -> Self {
        let mut bytes = [0; 16];
        // Without random numbers two traces may have one name: spans are told apart by theirs.
        let is_random = getrandom::fill(&mut bytes).is_ok();
        let trace = match is_random {
            true => u128::from_le_bytes(bytes).max(1),
            false => u128::from(PROFILES.fetch_add(1, Ordering::Relaxed)),
        };
        Self {
            recording: Recording::new(agent.shared(), trace, None),
            agent: agent.clone(),
        }
    }

    /// What its spans are known by beyond the group: the trace's identity of a
    /// [`Traceparent`](rendez::ground::Traceparent).
    #[must_use]
    pub fn trace_id(&self) -> u128 {
        self.recording.trace
    }

    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.recording.id
    }

    /// Does `work` in this profile, as a span of that name. From any thread, as often as wanted.
    pub fn scope<R>(&self, name: &str, work: impl FnOnce() -> R) -> R {
        let _entered = self.enter(name);
        work()
    }

    /// What this thread does from now on is recorded, as a span of that name, until what is returned is dropped.
    #[must_use = "the span ends when this is dropped"]
    pub fn enter(&self, name: &str) -> Entered {
        Entered(SpanGuard::open(
            Arc::clone(&self.recording),
            SpanId(0),
            name,
        ))
    }

    /// What was recorded so far, as [`Profile::finish`] gives it.
    #[must_use]
    pub fn so_far(&self) -> Spans {
        let state = self.recording.state.locked();
        let (spans, dropped) = (state.spans.clone(), state.dropped);
        drop(state);
        Spans::new(spans, dropped, &self.agent)
    }

    /// What was recorded, in the order in which it began. Spans of calls that have not ended are not among it.
    #[must_use]
    pub fn finish(self) -> Spans {
        let dropped = self.recording.state.locked().dropped;
        Spans::new(self.recording.take(), dropped, &self.agent)
    }
}

/// A thread is in a profile as long as this is there.
#[derive(Debug)]
#[must_use = "the span ends when this is dropped"]
pub struct Entered(SpanGuard);

impl Entered {
    /// The span that was begun.
    #[must_use]
    pub fn id(&self) -> SpanId {
        self.0.open.as_ref().map_or(SpanId(0), |open| open.id)
    }
}

/// A span that is open in this thread until this is dropped.
#[must_use = "the span ends when this is dropped"]
pub struct SpanGuard {
    open: Option<Open>,
    /// It must be dropped in its own thread.
    thread: PhantomData<*const ()>,
}

struct Open {
    recording: Arc<Recording>,
    id: SpanId,
    parent: SpanId,
    name: String,
    began: Nanos,
}

impl std::fmt::Debug for SpanGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "SpanGuard({:?})",
            self.open.as_ref().map(|open| &open.name)
        )
    }
}

impl SpanGuard {
    fn open(recording: Arc<Recording>, parent: SpanId, name: &str) -> Self {
        let (id, began) = (recording.fresh(), recording.now());
        push(Arc::clone(&recording), id);
        let open = Open {
            recording,
            id,
            parent,
            name: name.to_owned(),
            began,
        };
        Self {
            open: Some(open),
            thread: PhantomData,
        }
    }
}

impl Drop for SpanGuard {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            pop();
            open.recording.ended(
                open.id,
                open.parent,
                &open.name,
                open.began,
                std::thread::panicking(),
            );
        }
    }
}

/// A span of that name, from now until what is returned is dropped, in the profile that this thread is in. Nothing if
/// it is in none.
pub fn span(name: &str) -> SpanGuard {
    match current() {
        Some((recording, parent)) => SpanGuard::open(recording, parent, name),
        None => SpanGuard {
            open: None,
            thread: PhantomData,
        },
    }
}
