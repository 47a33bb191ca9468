//! A worker: the machine, a local engine, and what brings messages, put together.
//!
//! Threads of the application, and those that bring messages, hand their input to the machine and then do what it says:
//! of one context one thread at a time, in order; of several contexts several at once. So a parameter server computes
//! for all its trainers at the same time, and no thread of its own is needed.

mod current;
mod progress;
mod scope;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

pub(crate) use current::enter_nested;
pub use current::{Entered, current_context};
pub use scope::Scope;

use crate::autograd::{
    Autograd, ContextId, Effect, Envelope, Load, LocalEngine, Message, Options, PassId, WorkerId,
};
use rendez::ground::{Locked, Status, Unpoisoned, catalogue};

/// When what comes back is to be heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hearing {
    /// At once, though the thread that sends goes on to other things.
    Soon,
    /// When the thread that sends waits, which it does next; or nothing depends on it.
    Later,
}

/// What brings messages of the machine to other workers.
pub trait Link<G>: Send + Sync {
    /// Brings `messages` to `to`, each once or more often, or says [`Worker::undelivered`] of each. Returns at once.
    fn send(&self, to: WorkerId, messages: Vec<Message<G>>, hearing: Hearing);

    /// Does `work` soon, on a thread that may take its time.
    fn offload(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    /// Waits until `is_over` says so, or so long; what it is given is woken then, perhaps too often. A link whose
    /// messages come sooner if the thread that waits takes part in bringing them does so here. False if it does not
    /// wait at all.
    ///
    /// # Errors
    /// Why this thread cannot wait, or there is nothing to wait for any more.
    fn wait(
        &self,
        is_over: &dyn Fn(Option<&Waker>) -> bool,
        patience: Option<Duration>,
    ) -> Result<bool, Status> {
        let _ = (is_over, patience);
        Ok(false)
    }
}

/// A worker of a group. Cheap to clone; all threads of a process share it.
pub struct Worker<E: LocalEngine> {
    inner: Arc<Inner<E>>,
}

/// A worker, as what it owns may hold it.
pub struct WeakWorker<E: LocalEngine>(Weak<Inner<E>>);

struct Inner<E: LocalEngine> {
    /// It is there when the machine may be used.
    me: OnceLock<WorkerId>,
    engine: E,
    link: Box<dyn Link<E::Gradient>>,
    state: Mutex<State<E::Gradient>>,
    ended: Condvar,
}

struct State<G> {
    machine: Autograd<G>,
    /// What is to be done, by context.
    effects: BTreeMap<ContextId, VecDeque<Effect<G>>>,
    /// Contexts that a thread is at.
    busy: BTreeSet<ContextId>,
    /// Passes that a thread waits for.
    awaited: BTreeMap<PassId, Option<Result<(), Status>>>,
    /// Of those that wait by the link.
    wakers: Vec<Waker>,
    /// Threads that wait for `ended`.
    blocked: usize,
}

/// A backward pass that was begun. Dropping it does nothing to the pass.
#[must_use = "a pass is over when it was waited for"]
pub struct Backward<E: LocalEngine> {
    worker: Worker<E>,
    pass: PassId,
}

impl<E: LocalEngine> Worker<E> {
    /// Worker `me`.
    pub fn new(me: WorkerId, engine: E, link: Box<dyn Link<E::Gradient>>) -> Self {
        let worker = Self::unnumbered(engine, link);
        worker.set_number(me, 0);
        worker
    }

    /// A worker that has no contexts, and hears of none, before [`set_number`](Self::set_number).
    pub fn unnumbered(engine: E, link: Box<dyn Link<E::Gradient>>) -> Self {
        let state = State {
            machine: Autograd::new(WorkerId(0)),
            effects: BTreeMap::new(),
            busy: BTreeSet::new(),
            awaited: BTreeMap::new(),
            wakers: Vec::new(),
            blocked: 0,
        };
        let inner = Inner {
            me: OnceLock::new(),
            engine,
            link,
            state: Mutex::new(state),
            ended: Condvar::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// It is worker `me`, if it has no number yet. Its ids begin at `counter`: one that starts again must give none
    /// that it gave before.
    pub fn set_number(&self, me: WorkerId, counter: u64) {
        let mut state = self.state();
        if self.inner.me.set(me).is_ok() {
            state.machine = Autograd::starting_at(me, counter);
        }
    }

    /// The worker, as what it owns may hold it.
    #[must_use]
    pub fn downgrade(&self) -> WeakWorker<E> {
        WeakWorker(Arc::downgrade(&self.inner))
    }

    /// Which worker it is, once its agent has begun.
    #[must_use]
    pub fn id(&self) -> Option<WorkerId> {
        self.inner.me.get().copied()
    }

    /// Its local engine.
    #[must_use]
    pub fn engine(&self) -> &E {
        &self.inner.engine
    }

    fn state(&self) -> MutexGuard<'_, State<E::Gradient>> {
        self.inner.state.locked()
    }

    /// Begins a context, and makes it that of this thread until the scope is dropped.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_NESTED` if the thread is in one; as [`create_context`](Self::create_context).
    pub fn scope(&self) -> Result<Scope<E>, Status> {
        current::check()?;
        self.nested_scope()
    }

    /// The same inside the context of the thread, which is that of the thread again afterwards.
    ///
    /// # Errors
    /// As [`create_context`](Self::create_context).
    pub fn nested_scope(&self) -> Result<Scope<E>, Status> {
        let context = self.create_context()?;
        Ok(Scope::enter(self.clone(), context))
    }

    /// Begins a context that no thread is in yet.
    ///
    /// # Errors
    /// `AUTOGRAD_IDS`; `AUTOGRAD_JOINING` if the worker has no number yet.
    pub fn create_context(&self) -> Result<ContextId, Status> {
        if self.id().is_none() {
            let message = "a context was to begin before the worker's agent";
            return Err(Status::of(catalogue::AUTOGRAD_JOINING, message));
        }
        self.with(Hearing::Soon, Autograd::create_context)
    }

    /// Makes `context` that of this thread until what is returned is dropped.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_NESTED` if the thread is in one.
    pub fn enter(&self, context: ContextId) -> Result<Entered, Status> {
        current::check()?;
        Ok(current::enter_nested(context))
    }

    /// Releases a context that was created here, at all workers.
    ///
    /// # Errors
    /// As [`Autograd::release_context`].
    pub fn release_context(&self, context: ContextId) -> Result<(), Status> {
        self.with(Hearing::Later, |machine| machine.release_context(context))
    }

    /// Prepares values for a call to `to`, or `is_reply` for an answer, inside `context`: what rides along, and what
    /// travels.
    ///
    /// # Errors
    /// As [`Autograd::record_send`].
    pub fn outgoing(
        &self,
        context: ContextId,
        to: WorkerId,
        values: &[E::Value],
        is_reply: bool,
    ) -> Result<(Option<Envelope>, Vec<E::Gradient>), Status> {
        let engine = self.engine();
        let requires: Vec<_> = values
            .iter()
            .map(|value| engine.requires_gradient(value))
            .collect();
        let mut state = self.state();
        let envelope = state
            .machine
            .record_send(context, to, &requires, is_reply)?;
        // Under the lock, so that the context is not forgotten in between.
        if let Some(envelope) = envelope.as_ref().filter(|envelope| envelope.has_function()) {
            engine.record_send(envelope, values);
        }
        drop(state);
        Ok((
            envelope,
            values.iter().map(|value| engine.value(value)).collect(),
        ))
    }

    /// The values that came from `from`. Without an envelope they have no history.
    ///
    /// # Errors
    /// As [`Autograd::record_receive`], if gradients are wanted of one of them: without history the pass would go well
    /// and be wrong. `AUTOGRAD_MESSAGE` for an envelope of another call.
    pub fn incoming(
        &self,
        from: WorkerId,
        envelope: Option<&Envelope>,
        tensors: Vec<E::Gradient>,
    ) -> Result<Vec<E::Value>, Status> {
        let Some(envelope) = envelope else {
            return Ok(self.engine().constants(tensors));
        };
        if envelope.requires.len() != tensors.len() {
            let message = format!(
                "an envelope of {} tensors came with {}",
                envelope.requires.len(),
                tensors.len()
            );
            return Err(Status::of(catalogue::AUTOGRAD_MESSAGE, message));
        }
        let recorded = self.with(Hearing::Soon, |machine| {
            machine.record_receive(from, envelope)
        });
        if !envelope.has_function() {
            return Ok(self.engine().constants(tensors));
        }
        recorded?;
        Ok(self.engine().record_receive(envelope, tensors))
    }

    /// Refuses a call to `to` inside `context` that could not be recorded.
    ///
    /// # Errors
    /// As [`Autograd::check_send`].
    pub fn check_send(&self, context: ContextId, to: WorkerId) -> Result<(), Status> {
        self.state().machine.check_send(context, to)
    }

    /// Runs a backward pass, and waits for its end at all workers.
    ///
    /// # Errors
    /// `AUTOGRAD_ROOT`; `AUTOGRAD_CONTEXT_UNKNOWN`; what went wrong at any worker.
    pub fn backward(
        &self,
        context: ContextId,
        roots: &[E::Value],
        options: Options,
    ) -> Result<(), Status> {
        self.backward_within(context, roots, options, Duration::ZERO)
    }

    /// The same, for at most `patience`; zero is no limit.
    ///
    /// # Errors
    /// As [`backward`](Self::backward) and [`Backward::wait_within`].
    pub fn backward_within(
        &self,
        context: ContextId,
        roots: &[E::Value],
        options: Options,
        patience: Duration,
    ) -> Result<(), Status> {
        let begun = self.begin(context, roots, options, Hearing::Later);
        begun?.wait_within(patience)
    }

    /// Begins a backward pass.
    ///
    /// # Errors
    /// `AUTOGRAD_ROOT`; `AUTOGRAD_CONTEXT_UNKNOWN`.
    pub fn begin_backward(
        &self,
        context: ContextId,
        roots: &[E::Value],
        options: Options,
    ) -> Result<Backward<E>, Status> {
        self.begin(context, roots, options, Hearing::Soon)
    }

    fn begin(
        &self,
        context: ContextId,
        roots: &[E::Value],
        options: Options,
        hearing: Hearing,
    ) -> Result<Backward<E>, Status> {
        self.engine().check_roots(roots)?;
        let count = u32::try_from(roots.len()).unwrap_or(u32::MAX);
        let mut state = self.state();
        let pass = state.machine.start_backward(context, count, options)?;
        self.engine().begin(pass, roots.to_vec());
        state.awaited.insert(pass, None);
        let touched = state.sort_out();
        drop(state);
        self.proceed(touched, hearing);
        Ok(Backward {
            worker: self.clone(),
            pass,
        })
    }

    /// The gradients of the leaves here, by their ids, of all passes of the context together. Those of each pass are
    /// kept until the context is released, for it may yet fail elsewhere: N passes take N times the memory of one.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN`.
    pub fn gradients(&self, context: ContextId) -> Result<BTreeMap<u64, E::Gradient>, Status> {
        let all = self.state().machine.gradients(context)?;
        let sum = |(leaf, parts)| Ok((leaf, self.engine().sum(parts)?));
        all.into_iter().map(sum).collect()
    }

    /// A message has come.
    pub fn deliver(&self, from: WorkerId, message: Message<E::Gradient>) {
        self.with(Hearing::Soon, |machine| {
            machine.handle_message(from, message)
        });
    }

    /// A message could not be brought.
    pub fn undelivered(&self, to: WorkerId, message: Message<E::Gradient>, error: &Status) {
        self.with(Hearing::Soon, |machine| {
            machine.handle_undelivered(to, message, error);
        });
    }

    /// A worker is dead.
    pub fn worker_dead(&self, worker: WorkerId) {
        self.with(Hearing::Soon, |machine| machine.handle_worker_dead(worker));
    }

    /// Another worker has the id of a dead one.
    pub fn worker_joined(&self, worker: WorkerId) {
        self.with(Hearing::Soon, |machine| {
            machine.handle_worker_joined(worker)
        });
    }

    /// How much there is.
    #[must_use]
    pub fn load(&self) -> Load {
        self.state().machine.load()
    }

    /// The figures that PyTorch's `_get_debug_info` gives, by its names.
    #[must_use]
    pub fn debug_info(&self) -> BTreeMap<&'static str, usize> {
        let Load {
            contexts, passes, ..
        } = self.load();
        BTreeMap::from([
            ("num_autograd_contexts", contexts),
            ("num_current_backward_passes", passes),
        ])
    }

    /// Gives the machine an input, and does what follows.
    fn with<R>(&self, hearing: Hearing, input: impl FnOnce(&mut Autograd<E::Gradient>) -> R) -> R {
        let mut state = self.state();
        let result = input(&mut state.machine);
        let touched = state.sort_out();
        drop(state);
        self.proceed(touched, hearing);
        result
    }
}

impl<E: LocalEngine> Backward<E> {
    /// Which pass it is.
    #[must_use]
    pub const fn pass(&self) -> PassId {
        self.pass
    }

    /// Waits for its end at all workers.
    ///
    /// # Errors
    /// What went wrong at any of them; where messages travel as calls, `WAIT_IN_SHARD` in a shard's own thread, and
    /// `RPC_SHUTDOWN` when the engine has ended.
    pub fn wait(self) -> Result<(), Status> {
        let ended = self.end_by(None)?;
        ended.unwrap_or(Ok(()))
    }

    /// Waits for its end at all workers, and gives the pass up if that takes longer than `patience`: it ends here and
    /// at all that take part, and leaves nothing behind. Zero waits for ever.
    ///
    /// A worker that is there and does not get on, one whose process is stopped for instance, holds a pass up without
    /// end: only a limit tells.
    ///
    /// # Errors
    /// As [`wait`](Self::wait); `AUTOGRAD_TIMEOUT` when the time is over.
    pub fn wait_within(self, patience: Duration) -> Result<(), Status> {
        // More than a clock can say is as long as ever.
        let until = Instant::now().checked_add(patience);
        let until = until.filter(|_| !patience.is_zero());
        if let Some(result) = self.end_by(until)? {
            return result;
        }
        let message = format!(
            "backward pass {} had not ended after {patience:?}",
            self.pass
        );
        let error = Status::of(catalogue::AUTOGRAD_TIMEOUT, message);
        let give_up = |machine: &mut Autograd<E::Gradient>| machine.give_up(self.pass, error);
        self.worker.with(Hearing::Soon, give_up);
        self.wait()
    }

    /// Its result, if it ends by then.
    fn end_by(&self, until: Option<Instant>) -> Result<Option<Result<(), Status>>, Status> {
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        let is_over = |waker: Option<&Waker>| {
            let mut state = self.worker.state();
            let is_over = !matches!(state.awaited.get(&self.pass), Some(None));
            if let (false, Some(waker)) = (is_over, waker)
                && !state.wakers.iter().any(|other| other.will_wake(waker))
            {
                state.wakers.push(waker.clone());
            }
            is_over
        };
        if !is_over(None) {
            self.worker.inner.link.wait(&is_over, left())?;
        }
        let mut state = self.worker.state();
        loop {
            match state.awaited.get_mut(&self.pass) {
                Some(ended) => {
                    if let Some(result) = ended.take() {
                        return Ok(Some(result));
                    }
                }
                None => return Ok(Some(Ok(()))),
            }
            let ended = &self.worker.inner.ended;
            let left = left();
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            state.blocked += 1;
            state = match left {
                None => ended.wait(state).unpoisoned(),
                Some(left) => {
                    let waited = ended.wait_timeout(state, left);
                    waited.unpoisoned().0
                }
            };
            state.blocked -= 1;
        }
    }
}

impl<E: LocalEngine> Drop for Backward<E> {
    fn drop(&mut self) {
        self.worker.state().awaited.remove(&self.pass);
    }
}

impl<E: LocalEngine> WeakWorker<E> {
    /// The worker, if it is there.
    #[must_use]
    pub fn upgrade(&self) -> Option<Worker<E>> {
        let inner = self.0.upgrade()?;
        Some(Worker { inner })
    }
}

shown! { <E: LocalEngine> WeakWorker<E> {} }

impl<E: LocalEngine> Clone for Worker<E> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

shown! { <E: LocalEngine> Worker<E> { id() } }

shown! { <E: LocalEngine> Backward<E> { pass } }
