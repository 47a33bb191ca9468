//! What the handles of an agent, its desk and its pool share.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, RwLock, Weak};
use std::time::Duration;

use crossbeam::queue::SegQueue;
use rendez::engine::{Engine, Offer};
use rendez::ground::{Locked, Nanos, TaskName, Unpoisoned, catalogue};
use rendez::mail::forks;
use rendez::mail::wait::Awaited;
use rendez::shard::TaskWaker;
use smol_str::SmolStr;

use super::figures::Figures;
use super::guests::Guest;
use super::notices::Notices;
use super::packed::Packed;
use super::place::Place;
use super::pool::Pool;
use super::promise::{Admission, Promise};
use super::rref::Handle;
use super::seat::Seat;
use super::slot::Slot;
use super::store::Member;
use super::{Options, Pending};
use crate::error::Error;
use crate::functions::{Ended, Functions, HOUSE, Kept};
use crate::header::Header;
use crate::id::{CallId, ForkId, GlobalId, RRefId, WorkerId, check_name};
use crate::message::{Fault, Outcome, Target};
use crate::node::Ending;
use crate::payload::Payload;
use crate::spans::{CallSpan, Home, Recording, Span};
use crate::value::Value;

/// Calls that wait for the desk at most: it may be held up with its shard. All other commands are about what there is
/// already.
pub(super) const QUEUED_MAX: usize = 1 << 16;

/// How a call ended, with the references in its answer.
pub(crate) struct CallAnswer {
    pub(crate) at: WorkerId,
    pub(crate) ending: Ending<Payload>,
    pub(crate) handles: Vec<Handle>,
}

impl CallAnswer {
    /// Of a call that a worker which has left does not make.
    pub(super) const fn shutdown(to: WorkerId) -> Self {
        Self {
            at: to,
            ending: Ending::Shutdown,
            handles: Vec::new(),
        }
    }
}

/// A call of ours: where its end is waited for, and what is told of it meanwhile.
pub(crate) struct Ticket {
    pub(crate) slot: Slot<CallAnswer>,
    pub(crate) to: WorkerId,
    /// Empty for the fetch of a value.
    pub(crate) function: SmolStr,
    /// Whose value is fetched.
    pub(crate) fetched: Option<RRefId>,
    pub(crate) began: Nanos,
    /// Zero is no limit.
    pub(crate) timeout: Duration,
}

impl Ticket {
    /// What is waited for, as errors have it.
    pub(crate) fn what(&self) -> String {
        match self.fetched {
            Some(rref) => format!("the fetch of {rref}"),
            None if self.is_of_the_house() => "the call".into(),
            None => format!("the call of '{}'", self.function),
        }
    }

    /// Its result, as errors have it.
    pub(crate) fn result(&self) -> String {
        match self.fetched {
            Some(rref) => format!("the value of {rref}"),
            None if self.is_of_the_house() => "the result".into(),
            None => format!("the result of '{}'", self.function),
        }
    }

    /// Python's calls are all of one function, and bear their own name within.
    fn is_of_the_house(&self) -> bool {
        self.function.starts_with(HOUSE)
    }
}

/// By which the desk knows a call of ours.
pub(crate) struct Token {
    pub(crate) ticket: Promise,
    /// Kept until the call has ended. Most calls have none.
    pub(crate) keeps: Option<Arc<Vec<Handle>>>,
    /// Of its caller's recording; it ends with the last of these.
    pub(crate) span: Option<Arc<CallSpan>>,
}

shown! { Token {} }

/// The end of a function, on its way to the desk.
pub(crate) struct Done {
    pub(crate) from: WorkerId,
    pub(crate) id: CallId,
    pub(crate) rref: Option<RRefId>,
    pub(crate) result: Result<Ended, Fault>,
    pub(crate) header: Option<Header>,
    /// What goes home before the answer.
    pub(crate) spans: Option<(Home, Vec<Span>)>,
}

/// What threads ask of the desk.
pub(crate) enum Command {
    Call {
        to: WorkerId,
        target: Target,
        deadline: Nanos,
        packed: Packed,
        ticket: Promise,
        span: Option<Arc<CallSpan>>,
    },
    Cancel(WorkerId, Arc<Ticket>),
    Done(Box<Done>),
    CreateOwned {
        rref: RRefId,
        is_made: bool,
    },
    DropUser(ForkId),
    DropOwned(RRefId),
    Meet(WorkerInfo),
    Gone(WorkerId),
    Admit(TaskName, String, Admission),
    Leave(Option<Duration>),
    LeaveNow,
    Ask(Box<dyn FnOnce(&super::desk::View<'_>) + Send>),
}

impl Command {
    /// No desk obeys it: what waits for it ends, by what it was promised.
    pub(super) fn refuse(self, ending: Ending<Payload>) {
        if let Self::Call {
            to,
            packed,
            ticket,
            span,
            ..
        } = self
        {
            // What rides along is told first.
            drop(packed);
            end_span(span, &ending);
            ticket.slot.fill(CallAnswer {
                at: to,
                ending,
                handles: Vec::new(),
            });
        }
    }
}

/// A call has ended: its span too, and before anyone is told.
pub(crate) fn end_span(span: Option<Arc<CallSpan>>, ending: &Ending<Payload>) {
    let is_error = !matches!(ending, Ending::Answered(Outcome::Value { .. }));
    if let (Some(span), true) = (&span, is_error) {
        span.fail();
    }
}

/// How a call is made, as the names of spans have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Its caller waits.
    Sync,
    /// It has a future.
    Async,
    /// Its result stays where it is.
    Remote,
}

impl Mode {
    const fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
            Self::Remote => "remote",
        }
    }
}

/// A function's name; the fetch of a reference's value has none.
pub(crate) fn shown(function: &str) -> &str {
    match function {
        "" => "to_here",
        name => name,
    }
}

/// A worker of the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerInfo {
    /// Its number.
    pub id: WorkerId,
    /// Its name.
    pub name: String,
    /// Its task, as the engine names it.
    pub task: TaskName,
}

/// How this worker has left its group.
#[derive(Clone)]
pub(crate) struct Left {
    /// In good order, or with what was outstanding when time was over.
    pub(crate) how: Result<(), Vec<String>>,
    /// References that the program still held.
    pub(crate) leaks: Vec<String>,
}

impl Default for Left {
    fn default() -> Self {
        Self {
            how: Ok(()),
            leaks: Vec::new(),
        }
    }
}

/// Values that are kept for others, or why they could not be made.
type Values = HashMap<RRefId, Result<Arc<dyn Kept>, Fault>>;

/// See the module.
pub(crate) struct Shared {
    pub(crate) engine: Engine,
    pub(crate) me: WorkerId,
    pub(crate) name: String,
    pub(crate) options: Options,
    pub(crate) functions: Functions,
    pub(crate) workers: RwLock<BTreeMap<WorkerId, WorkerInfo>>,
    pub(crate) values: Mutex<Values>,
    pub(crate) queue: SegQueue<Command>,
    /// Calls in it.
    pub(super) queued: AtomicUsize,
    pub(crate) waker: OnceLock<TaskWaker>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) notices: Notices,
    pub(crate) locals: AtomicU64,
    pub(crate) is_closed: AtomicBool,
    pub(crate) async_calls: AtomicUsize,
    pub(crate) figures: Figures,
    /// Recordings that are under way, by number.
    pub(crate) recordings: Mutex<HashMap<u64, Weak<Recording>>>,
    pub(crate) span_ids: AtomicU64,
    pub(crate) joined: Slot<Result<(), Error>>,
    pub(crate) left: Slot<Left>,
    /// Those that call and are no workers of the group.
    pub(super) guests: Mutex<BTreeMap<WorkerId, Guest>>,
    /// By which peers ask for the agent, while it is there.
    pub(super) offer: Mutex<Option<Offer>>,
    /// Where the group meets, until this worker has left it.
    pub(super) place: Mutex<Option<Place>>,
    /// Its place at the engine, until it has left.
    pub(super) seat: Mutex<Option<Seat>>,
}

impl Shared {
    /// Asks the desk for something. In a child of `fork` there is none, and the queue is as another thread left it.
    pub(crate) fn push(&self, command: Command) {
        if forks::is_child() {
            return;
        }
        self.queue.push(command);
        self.tell();
    }

    /// Tells the desk that something is queued.
    fn tell(&self) {
        if let Some(waker) = self.waker.get() {
            self.engine.wake(self.options.shard, waker);
        }
    }

    /// As [`Shared::tell`], for a call whose answer need not be heard before this thread waits, or soon.
    fn nudge(&self) {
        if let Some(waker) = self.waker.get() {
            self.engine.nudge(self.options.shard, waker);
        }
    }

    /// Another agent of the group may begin at this engine.
    pub(super) fn leave_seat(&self) {
        let mut seat = self.seat.locked();
        *seat = None;
    }

    /// False once another agent of the group may have begun at this engine.
    pub(super) fn has_seat(&self) -> bool {
        self.seat.locked().is_some()
    }

    /// Waits for what is brought to `slot` after what was queued, of which the desk knows nothing yet. Else as
    /// [`Shared::wait`].
    pub(super) fn tell_and_wait<T>(&self, slot: &Slot<T>) -> bool {
        let Some(waker) = self.waker.get() else {
            return self.wait(slot, None);
        };
        let wait = || {
            self.engine
                .wake_and_wait(self.options.shard, waker, slot, None)
        };
        Pool::blocking(wait).is_some()
    }

    /// Waits for what is brought to `slot`. This thread turns the desk's shard meanwhile, if no other does; if it is of
    /// a pool, another takes its place. False if `patience` is over first, or the engine has ended.
    pub(crate) fn wait<T>(&self, slot: &Slot<T>, patience: Option<Duration>) -> bool {
        slot.is_filled() || self.wait_for(slot, patience)
    }

    pub(super) fn wait_for<A: Awaited>(&self, what: &A, patience: Option<Duration>) -> bool {
        let wait = || self.engine.wait_for(self.options.shard, what, patience);
        Pool::blocking(wait).is_some()
    }

    /// This worker is in the group no more, where that meets, and has no more guests.
    pub(super) fn leave_place(&self) {
        drop(self.offer.locked().take());
        // Another that does so meanwhile waits: it may start again at once.
        let mut place = self.place.locked();
        if let Some(place) = place.take()
            && let Err(error) = place.leave()
        {
            tracing::warn!(%error, "this worker cannot leave the group's meeting place: it stays listed there");
        }
    }

    /// Who is in a group that grows and shrinks.
    pub(super) fn see(&self, members: BTreeMap<WorkerId, Member>) {
        let mut found = Vec::new();
        let mut workers = self.workers.write().unpoisoned();
        let is_gone = |id: &WorkerId| *id != self.me && !members.contains_key(id);
        let gone: Vec<WorkerId> = workers.keys().copied().filter(is_gone).collect();
        workers.retain(|id, _| !is_gone(id));
        for (id, (info, address)) in members {
            if id == self.me {
                continue;
            }
            // One that has left and come again between two looks may listen elsewhere.
            self.engine.add_peer(info.task.clone(), address);
            if workers.get(&id) != Some(&info) {
                workers.insert(id, info.clone());
                found.push(info);
            }
        }
        // The desk, which looks at them too, may run in this thread.
        drop(workers);
        let gone = gone.into_iter().map(Command::Gone);
        gone.chain(found.into_iter().map(Command::Meet))
            .for_each(|command| self.push(command));
    }

    /// A worker has said its name, where nothing else does.
    pub(super) fn learn(&self, worker: WorkerId, name: String) -> Result<(), Error> {
        if !self.options.is_named_by_itself() {
            return Ok(());
        }
        check_name(&name).map_err(|error| Error::of(catalogue::RPC_NAME, error.to_string()))?;
        let mut workers = self.workers.write().unpoisoned();
        let other = workers
            .values()
            .find(|info| info.name == name && info.id != worker);
        if let Some(other) = other {
            let other = other.id;
            let message = format!(
                "RPC worker name {name} is not unique. Workers {other} and {worker} share the same name."
            );
            return Err(Error::of(catalogue::RPC_NAME, message));
        }
        if let Some(info) = workers.get_mut(&worker) {
            info.name = name;
        }
        Ok(())
    }

    /// An identity that nothing else has.
    pub(crate) fn fresh(&self) -> GlobalId {
        GlobalId {
            on: self.me,
            local: self.locals.fetch_add(1, Ordering::Relaxed) & (GlobalId::LOCAL_END - 1),
        }
    }

    /// A number for a span that no other of the group has, and that is not zero.
    pub(crate) fn fresh_span(&self) -> u64 {
        let local = self.span_ids.fetch_add(1, Ordering::Relaxed);
        u64::from(self.me.0) << 48 | (local & (GlobalId::LOCAL_END - 1))
    }

    pub(crate) fn name_of(&self, worker: WorkerId) -> String {
        let known = self
            .workers
            .read()
            .unpoisoned()
            .get(&worker)
            .map(|info| info.name.clone());
        // The desk looks at the workers while it has the guests: here they are let go before.
        known
            .or_else(|| self.guest_name(worker))
            .unwrap_or_else(|| worker.to_string())
    }

    pub(crate) fn find(&self, name: &str) -> Result<WorkerId, Error> {
        super::context::may_call()?;
        let workers = self.workers.read().unpoisoned();
        let found = workers
            .values()
            .find(|info| info.name == name)
            .map(|info| info.id);
        found.ok_or_else(|| {
            let known: Vec<&str> = workers.values().map(|info| &*info.name).take(32).collect();
            let message = format!(
                "there is no worker '{name}'; there are: {}",
                known.join(", ")
            );
            Error::of(catalogue::RPC_WORKER, message)
        })
    }

    /// Starts a call.
    pub(crate) fn start<R>(
        self: &Arc<Self>,
        to: WorkerId,
        target: Target,
        packed: Packed,
        timeout: Duration,
        mode: Mode,
    ) -> Pending<R> {
        let ticket = self.queue(to, target, packed, timeout, mode);
        self.tell();
        Pending::new(Arc::clone(self), to, ticket)
    }

    /// Starts a call whose answer need not be heard before this thread waits, or soon.
    pub(crate) fn post(
        self: &Arc<Self>,
        to: WorkerId,
        target: Target,
        packed: Packed,
        timeout: Duration,
    ) -> Pending<()> {
        let ticket = self.queue(to, target, packed, timeout, Mode::Async);
        self.nudge();
        Pending::new(Arc::clone(self), to, ticket)
    }

    /// Makes a call, and waits for its result: the thread that waits is the one that sends and receives.
    pub(crate) fn call<R: Value>(
        &self,
        to: WorkerId,
        target: Target,
        packed: Packed,
        timeout: Duration,
    ) -> Result<R, Error> {
        super::context::may_wait()?;
        let ticket = self.queue(to, target, packed, timeout, Mode::Sync);
        let slot = &ticket.slot;
        if !slot.is_filled() && !self.tell_and_wait(slot) && !slot.is_filled() {
            return Err(Error::local(crate::error::shut_down()));
        }
        self.unpack(to, &ticket, slot.take())
    }

    /// A call that the desk is yet to be told of.
    fn queue(
        &self,
        to: WorkerId,
        target: Target,
        mut packed: Packed,
        timeout: Duration,
        mode: Mode,
    ) -> Arc<Ticket> {
        let (function, fetched) = match &target {
            Target::Function(function) | Target::Remote { function, .. } => {
                (function.clone(), None)
            }
            Target::Fetch(rref) => (SmolStr::default(), Some(*rref)),
        };
        let began = self.engine.clock().stamp();
        let deadline = match timeout.is_zero() {
            true => Nanos::NEVER,
            false => began.after(timeout),
        };
        let name = || {
            let (mode, function) = (mode.name(), shown(&function));
            format!(
                "rpc_{mode}#{function}({} -> {})",
                self.name,
                self.name_of(to)
            )
        };
        let span = CallSpan::begin(to, began, name).map(|(trace, span)| {
            packed.payload.trace = Some(Box::new(trace));
            span
        });
        let ticket = Arc::new(Ticket {
            slot: Slot::default(),
            to,
            function,
            fetched,
            began,
            timeout,
        });
        let call = Command::Call {
            to,
            target,
            deadline,
            packed,
            ticket: Promise::new(Arc::clone(&ticket)),
            span,
        };
        if self.is_closed.load(Ordering::Acquire) {
            call.refuse(Ending::Shutdown);
        } else if self.is_held_up() {
            self.figures.refused();
            call.refuse(Ending::Unsent(crate::error::held_up(QUEUED_MAX)));
        } else {
            self.hand_in(call, to, &ticket);
        }
        ticket
    }

    /// True if the desk has as many calls to look at as may wait for it.
    pub(super) fn is_held_up(&self) -> bool {
        self.queued.load(Ordering::Relaxed) >= QUEUED_MAX
    }

    /// Queues a call of a worker that was not closed when it was looked at.
    pub(super) fn hand_in(&self, call: Command, to: WorkerId, ticket: &Ticket) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.queue.push(call);
        if self.is_missed() {
            ticket.slot.fill(CallAnswer::shutdown(to));
        }
    }

    /// True if the desk may have closed, and not have seen what was queued just now: who queued it ends what waits for
    /// it.
    pub(super) fn is_missed(&self) -> bool {
        // Pairs with the fence in `Desk::close`.
        fence(Ordering::SeqCst);
        self.is_closed.load(Ordering::Acquire)
    }
}
