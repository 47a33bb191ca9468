//! What the machine wants done, of one context by one thread at a time.
//!
//! A thread that may take its time does all of it. One that may not, a shard's with a message, does what is light, and
//! hands the context on at the first effect that is not. Messages to one worker that follow each other go together.

use std::collections::{BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::TryLockError;
use std::task::Waker;

use super::{Hearing, State, Worker};
use crate::autograd::{ContextId, Effect, Envelope, LocalEngine, Message, WorkerId};
use rendez::ground::{Status, catalogue};

/// Messages that go together at most.
const TOGETHER_MAX: usize = 64;
/// Gradients that go together at most: as many as a call may carry. A message has no more, since it is of one call.
const GRADIENTS_MAX: usize = 4096;

/// Messages to one worker that have not gone yet.
struct Mail<G> {
    to: WorkerId,
    messages: Vec<Message<G>>,
    /// So many are beside them.
    gradients: usize,
    hearing: Hearing,
}

impl<E: LocalEngine + 'static> Worker<E>
where
    E::Gradient: 'static,
{
    /// A message has come, on a thread that waits for nothing and computes nothing long. What follows from it and is
    /// not light goes to [`Link::offload`](super::Link::offload).
    pub fn deliver_in_passing(&self, from: WorkerId, message: Message<E::Gradient>) {
        let mut state = match self.inner.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let worker = self.clone();
                let work = move || worker.deliver(from, message);
                return self.inner.link.offload(Box::new(work));
            }
        };
        state.machine.handle_message(from, message);
        let touched = state.sort_out();
        drop(state);
        for context in touched {
            if self.state().busy.insert(context) {
                self.proceed_in_passing(context);
            }
        }
    }

    /// A call or an answer that was prepared did not leave. On any thread: to forget what it took away is left to
    /// [`Link::offload`](super::Link::offload) unless it is light.
    pub fn not_sent(&self, envelope: &Envelope) {
        self.state().machine.forget_send(envelope);
        if !envelope.has_function() {
            return;
        }
        if self.engine().forgets_lightly(envelope.context) {
            return self.engine().forget_send(envelope);
        }
        let (worker, envelope) = (self.clone(), envelope.clone());
        let work = move || worker.engine().forget_send(&envelope);
        self.inner.link.offload(Box::new(work));
    }

    /// Does what is light of a context; another thread does the rest, with what is added meanwhile.
    fn proceed_in_passing(&self, context: ContextId) {
        let mut mail = self.mail(Hearing::Soon);
        while let Some(effect) = self.next(context, &mut mail) {
            if self.is_light(&effect) {
                self.perform(effect);
                continue;
            }
            let worker = self.clone();
            let work = move || {
                worker.perform(effect);
                worker.proceed_with(context, Hearing::Soon);
            };
            return self.inner.link.offload(Box::new(work));
        }
    }

    fn is_light(&self, effect: &Effect<E::Gradient>) -> bool {
        match effect {
            Effect::Mark { pass, starts } => self.engine().is_light(*pass, starts),
            Effect::Run { pass, .. } => self.engine().is_light(*pass, &[]),
            Effect::Forget { context } => self.engine().forgets_lightly(*context),
            // It lets go of all functions of a pass, however many those are.
            Effect::Discard { .. } => false,
            // What ran here is light, and so is its end.
            Effect::Finish { .. } | Effect::Send { .. } | Effect::Ended { .. } => true,
        }
    }
}

impl<E: LocalEngine> Worker<E> {
    pub(super) fn proceed(&self, contexts: BTreeSet<ContextId>, hearing: Hearing) {
        for context in contexts {
            // Otherwise the thread that is at it takes what was added.
            if self.state().busy.insert(context) {
                self.proceed_with(context, hearing);
            }
        }
    }

    /// Does what is to be done of a context, which this thread is at.
    fn proceed_with(&self, context: ContextId, hearing: Hearing) {
        let mut mail = self.mail(hearing);
        while let Some(effect) = self.next(context, &mut mail) {
            self.perform(effect);
        }
    }

    fn mail(&self, hearing: Hearing) -> Mail<E::Gradient> {
        Mail {
            to: WorkerId(0),
            messages: vec![],
            gradients: 0,
            hearing,
        }
    }

    /// What is to be done next of a context beside messages, which are sent before; when that is nothing, this thread
    /// is not at it any more.
    fn next(
        &self,
        context: ContextId,
        mail: &mut Mail<E::Gradient>,
    ) -> Option<Effect<E::Gradient>> {
        loop {
            let next = self.state().next(context);
            match next {
                Some(Effect::Send { to, message }) if Some(to) != self.id() => {
                    let gradients = message.body.gradients();
                    let is_full = mail.messages.len() == TOGETHER_MAX
                        || mail.gradients + gradients > GRADIENTS_MAX;
                    if to != mail.to || is_full {
                        self.post(mail);
                    }
                    mail.to = to;
                    mail.gradients += gradients;
                    mail.messages.push(message);
                }
                // It is over at once, and messages behind it may be to the same worker.
                Some(effect @ Effect::Finish { .. }) => self.perform(effect),
                next => {
                    self.post(mail);
                    return next;
                }
            }
        }
    }

    fn post(&self, mail: &mut Mail<E::Gradient>) {
        let messages = std::mem::take(&mut mail.messages);
        mail.gradients = 0;
        if !messages.is_empty() {
            self.inner.link.send(mail.to, messages, mail.hearing);
        }
    }

    fn perform(&self, effect: Effect<E::Gradient>) {
        let engine = self.engine();
        match effect {
            Effect::Send { to, message } if Some(to) == self.id() => self.deliver(to, message),
            Effect::Send { to, message } => {
                self.inner.link.send(to, vec![message], Hearing::Soon);
            }
            Effect::Mark { pass, starts } => {
                let found = guarded(|| engine.mark(pass, &starts));
                let mut state = self.state();
                state.machine.handle_marked(pass, found);
                state.sort_out();
            }
            Effect::Run { pass, inputs } => {
                let ran = guarded(|| engine.run(pass, inputs));
                let mut state = self.state();
                state.machine.handle_ran(pass, ran);
                state.sort_out();
            }
            Effect::Finish { pass, retain } => engine.finish(pass, retain),
            Effect::Discard { pass } => engine.discard(pass),
            Effect::Forget { context } => engine.forget(context),
            Effect::Ended { pass, result } => {
                let mut state = self.state();
                if let Some(awaited) = state.awaited.get_mut(&pass) {
                    *awaited = Some(result);
                }
                let (wakers, blocked) = (std::mem::take(&mut state.wakers), state.blocked);
                drop(state);
                if blocked > 0 {
                    self.inner.ended.notify_all();
                }
                wakers.into_iter().for_each(Waker::wake);
            }
        }
    }
}

impl<G: Clone> State<G> {
    /// Puts what the machine wants done where its context's turn is. Returns the contexts.
    pub(super) fn sort_out(&mut self) -> BTreeSet<ContextId> {
        let mut touched = BTreeSet::new();
        while let Some(effect) = self.machine.poll_effect() {
            let context = match &effect {
                Effect::Send { message, .. } => message.body.context(),
                Effect::Mark { pass, .. }
                | Effect::Run { pass, .. }
                | Effect::Finish { pass, .. }
                | Effect::Discard { pass }
                | Effect::Ended { pass, .. } => pass.context,
                Effect::Forget { context } => *context,
            };
            self.effects.entry(context).or_default().push_back(effect);
            touched.insert(context);
        }
        touched
    }

    /// What is to be done next of a context; when that is nothing, no thread is at it any more.
    fn next(&mut self, context: ContextId) -> Option<Effect<G>> {
        let effects = self.effects.get_mut(&context);
        let next = effects.and_then(VecDeque::pop_front);
        if next.is_none() {
            self.effects.remove(&context);
            self.busy.remove(&context);
        }
        next
    }
}

/// What the engine gives; its panic is an error of this pass and of nothing else.
fn guarded<T>(run: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_default();
        Err(Status::of(
            catalogue::KERNEL_FAILED,
            format!("a function panicked in a backward pass: {text}"),
        ))
    })
}
