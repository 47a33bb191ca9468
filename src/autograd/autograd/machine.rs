//! The machine: contexts from their first call to their release, and who is told.
//!
//! What happens in a backward pass is in `passes.rs`.
//!
//! A context lives at its creator and at all workers that a call inside it reached. PyTorch releases it along the
//! calls, from worker to worker, and so loses those behind a worker that died. Here a worker that comes to hold a
//! context through another says so to its creator, one message for each such worker and context; the creator tells all
//! holders itself. If the creator dies, all workers hear that anyway, and drops what was its.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::context::{Context, Sent};
use super::ids::{ContextId, Counter, MessageId, PassId, WorkerId};
use super::message::{Body, Effect, Envelope, Message, Session};
use super::pass::{Pass, State};
use super::peers::{Heard, Peers};
use super::rules::{MachineRule, Rules};
use rendez::ground::{Status, catalogue};

/// Distributed autograd at one worker. Pure: calls and messages come in, effects go out by
/// [`poll_effect`](Self::poll_effect). `G` is a gradient.
#[derive(Clone, Debug)]
pub struct Autograd<G> {
    pub(super) me: WorkerId,
    pub(super) contexts: BTreeMap<ContextId, Context<G>>,
    pub(super) peers: Peers,
    context_ids: Counter,
    message_ids: Counter,
    /// The next pass that begins here: a context may be dropped and come again, and no pass has the number of another.
    pub(super) next_pass: u32,
    pub(super) effects: VecDeque<Effect<G>>,
    pub(super) rules: Rules,
}

/// How much there is at a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// Contexts that it holds; `num_autograd_contexts` in PyTorch.
    pub contexts: usize,
    /// Passes that are under way in them; `num_current_backward_passes`.
    pub passes: usize,
    /// Send and receive functions in them.
    pub functions: usize,
    /// Releases that are remembered one by one.
    pub tombstones: usize,
}

impl<G: Clone> Autograd<G> {
    /// Worker `me`, which holds nothing.
    #[must_use]
    pub fn new(me: WorkerId) -> Self {
        Self::starting_at(me, 0)
    }

    /// The same, whose ids begin at `counter`.
    #[must_use]
    pub fn starting_at(me: WorkerId, counter: u64) -> Self {
        Self {
            me,
            contexts: BTreeMap::new(),
            peers: Peers::new(counter),
            context_ids: Counter::at(me, counter),
            message_ids: Counter::at(me, counter),
            // Others may remember passes of a former life.
            next_pass: counter as u32,
            effects: VecDeque::new(),
            rules: Rules::ALL,
        }
    }

    /// Which worker it is.
    #[must_use]
    pub const fn worker(&self) -> WorkerId {
        self.me
    }

    /// What the owner has to do next, if there is something.
    pub fn poll_effect(&mut self) -> Option<Effect<G>> {
        self.effects.pop_front()
    }

    /// Begins a context.
    ///
    /// # Errors
    /// `AUTOGRAD_IDS` if all ids are used.
    pub fn create_context(&mut self) -> Result<ContextId, Status> {
        let (worker, counter) = self.context_ids.take("contexts")?;
        let context = ContextId::new(worker, counter);
        self.contexts.insert(context, Context::default());
        Ok(context)
    }

    /// Releases a context that was created here, at all workers that hold it. Its passes end with an error.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN` if there is none; `AUTOGRAD_CONTEXT_FOREIGN` if it was created elsewhere.
    pub fn release_context(&mut self, context: ContextId) -> Result<(), Status> {
        let held = self.context(context)?;
        if context.worker() != self.me {
            let message = format!(
                "context {context} is worker {}'s: it is released there, not at worker {}",
                context.worker().0,
                self.me.0
            );
            return Err(Status::of(catalogue::AUTOGRAD_CONTEXT_FOREIGN, message));
        }
        let told: BTreeSet<_> = held.known.union(&held.holders).copied().collect();
        self.drop_context(context, no_longer_valid);
        let oldest = self.oldest();
        if self.rules.on(MachineRule::ReleaseTold) {
            for to in told {
                self.send(to, Body::Release { context, oldest });
            }
        }
        Ok(())
    }

    /// The smallest counter of the contexts that were created here and live.
    fn oldest(&self) -> u64 {
        let first = self.contexts_of(self.me).next();
        first.map_or_else(|| self.context_ids.peek(), ContextId::counter)
    }

    /// Those that `creator` made, in order.
    fn contexts_of(&self, creator: WorkerId) -> impl Iterator<Item = ContextId> + use<'_, G> {
        let all = ContextId::new(creator, 0)..=ContextId::new(creator, super::ids::COUNTER_MAX);
        self.contexts.range(all).map(|(context, _)| *context)
    }

    /// Records that a call (or, `is_reply`, an answer) goes to `to` inside `context`, with tensors of which those that
    /// `requires` says want gradients. What is returned goes with it.
    ///
    /// A call always has an envelope, for its answer may bring what wants gradients; an answer has one only if it does.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN`; `AUTOGRAD_WORKER_DEAD` if `to` is known to be dead; `AUTOGRAD_IDS`.
    pub fn record_send(
        &mut self,
        context: ContextId,
        to: WorkerId,
        requires: &[bool],
        is_reply: bool,
    ) -> Result<Option<Envelope>, Status> {
        self.check_send(context, to)?;
        let wants = requires.contains(&true);
        if is_reply && !wants {
            return Ok(None);
        }
        if requires.len() > usize::from(u16::MAX) {
            let message = format!(
                "a call brings {} tensors, and at most {} can be recorded",
                requires.len(),
                u16::MAX
            );
            return Err(Status::of(catalogue::AUTOGRAD_MESSAGE, message));
        }
        let (worker, counter) = self.message_ids.take("messages")?;
        let message = MessageId::new(worker, counter);
        let requires = requires.to_vec();
        if let Some(held) = self.contexts.get_mut(&context) {
            if to != self.me {
                held.known.insert(to);
            }
            if wants {
                held.sends.insert(
                    message,
                    Sent {
                        to,
                        requires: requires.clone(),
                    },
                );
            }
        }
        Ok(Some(Envelope {
            context,
            message,
            requires,
        }))
    }

    /// Refuses a call to `to` inside `context` that could not be recorded.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN`; `AUTOGRAD_WORKER_DEAD` if `to` is known to be dead.
    pub fn check_send(&self, context: ContextId, to: WorkerId) -> Result<(), Status> {
        self.context(context)?;
        match self.peers.is_dead(to) {
            true => Err(dead(to)),
            false => Ok(()),
        }
    }

    /// Forgets the send function of a call that failed before it came to its receiver: nothing will flow back.
    pub fn forget_send(&mut self, envelope: &Envelope) {
        if let Some(held) = self.contexts.get_mut(&envelope.context) {
            held.sends.remove(&envelope.message);
        }
    }

    /// Records that a call or answer came from `from`. The context is made if it is not here. That it comes again
    /// changes nothing.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN` if the context is released, or its creator dead: then the tensors have no history;
    /// `AUTOGRAD_MESSAGE` for an id that is not `from`'s or that names another message.
    pub fn record_receive(&mut self, from: WorkerId, envelope: &Envelope) -> Result<(), Status> {
        let Envelope {
            context, message, ..
        } = *envelope;
        let creator = context.worker();
        if message.worker() != from {
            let what = format!(
                "worker {} sent message {message:?}, whose id is another's",
                from.0
            );
            return Err(Status::of(catalogue::AUTOGRAD_MESSAGE, what));
        }
        let is_released = self.peers.is_released(context);
        let is_over = (is_released && self.rules.on(MachineRule::ReleaseRemembered))
            || self.peers.is_dead(creator)
            || self.peers.is_dead(from);
        let is_here = self.contexts.contains_key(&context);
        if is_over || (creator == self.me && !is_here) {
            return Err(unknown(context));
        }
        let is_told = !is_here && creator != from && self.rules.on(MachineRule::JoinedTold);
        if is_told {
            self.send(creator, Body::Joined { context });
        }
        let held = self.contexts.entry(context).or_default();
        if from != self.me {
            held.known.insert(from);
        }
        if envelope.has_function() {
            let known = *held.receives.entry(message).or_insert(from);
            if known != from {
                let what = format!("message {message:?} came from worker {} already", known.0);
                return Err(Status::of(catalogue::AUTOGRAD_MESSAGE, what));
            }
        }
        Ok(())
    }

    /// Takes a message from another worker. One that was taken before, or that comes from a worker that is dead, is
    /// ignored.
    pub fn handle_message(&mut self, from: WorkerId, message: Message<G>) {
        let number = message.number;
        let is_of_session = self.is_of_session(from, message.from, message.to);
        if let Body::Release { context, oldest } = message.body {
            // True in any session, and however often.
            if context.worker() == from {
                self.handle_release(message.from.life, context, oldest);
            }
            return;
        }
        if !is_of_session {
            return;
        }
        if !self.peers.is_new(from, number) && self.rules.on(MachineRule::MessagesCountOnce) {
            return;
        }
        let body = message.body;
        match body {
            Body::Joined { context } if context.worker() == self.me => {
                self.handle_joined(from, context)
            }
            // Of a context that is not theirs to speak of.
            Body::Joined { .. } | Body::Release { .. } | Body::Forgot => {}
            body => self.handle_of_pass(from, number, body),
        }
    }

    /// True if a message is of sessions that go on. A loss is told at each side on its own, and may be told later than
    /// what follows it: so one side may have lost the other alone. The side that hears that the other has forgotten
    /// what was between them forgets it as well, and passes that wait for it fail.
    fn is_of_session(&mut self, from: WorkerId, theirs: Session, ours: Option<Session>) -> bool {
        let heard = self.peers.hear(from, theirs, ours);
        if !self.rules.on(MachineRule::SessionsCompared) {
            return heard != Heard::Late;
        }
        if let Heard::Anew {
            has_forgotten: true,
            ..
        } = heard
        {
            self.end_dealings(from, &forgotten(from, self.me));
        }
        match heard {
            Heard::Current | Heard::Anew { is_over: false, .. } => true,
            Heard::Over | Heard::Anew { is_over: true, .. } => {
                self.send(from, Body::Forgot);
                false
            }
            Heard::Late => false,
        }
    }

    fn handle_joined(&mut self, from: WorkerId, context: ContextId) {
        if let Some(held) = self.contexts.get_mut(&context) {
            held.holders.insert(from);
        } else {
            let oldest = self.oldest();
            self.send(from, Body::Release { context, oldest });
        }
    }

    fn handle_release(&mut self, life: u64, context: ContextId, oldest: u64) {
        let creator = context.worker();
        self.peers.released(life, context, oldest);
        let of_life = self.contexts_of(creator).filter(|of| of.counter() >= life);
        let older = of_life.filter(|older| older.counter() < oldest);
        for context in older.chain([context]).collect::<BTreeSet<_>>() {
            self.drop_context(context, no_longer_valid);
        }
    }

    /// `worker` is dead: nothing comes from it, and nothing gets there. Its contexts are released here, and passes that
    /// need it fail.
    pub fn handle_worker_dead(&mut self, worker: WorkerId) {
        if worker == self.me || self.peers.is_dead(worker) {
            return;
        }
        self.peers.died(worker);
        self.end_dealings(worker, &dead(worker));
    }

    /// Ends a pass that began here with `error`, here and at all workers that take part, if it has not ended.
    pub fn give_up(&mut self, pass: PassId, error: Status) {
        if pass.root == self.me {
            self.fail(pass, error, None);
        }
    }

    /// Contexts of `worker` are released here, and passes that need it fail.
    fn end_dealings(&mut self, worker: WorkerId, error: &Status) {
        for context in self.contexts.keys().copied().collect::<Vec<_>>() {
            if context.worker() == worker && self.rules.on(MachineRule::DeathReleases) {
                self.drop_context(context, |_| error.clone());
                continue;
            }
            let Some(held) = self.contexts.get(&context) else {
                continue;
            };
            let suffers = held.passes.iter().filter(|(id, pass)| {
                let is_orphan = id.root == worker && pass.state == State::Open;
                is_orphan || pass.suffers(worker)
            });
            let suffers = suffers.map(|(id, _)| *id).collect::<Vec<_>>();
            let is_done = |(id, pass): &(&PassId, &Pass<G>)| {
                let took_part = pass.peers.contains(&worker) || id.root == worker;
                took_part && pass.state == State::Complete && !suffers.contains(id)
            };
            let doubtful = held.passes.iter().filter(is_done).map(|(id, _)| *id);
            for pass in doubtful.collect::<Vec<_>>() {
                self.doubt(pass);
            }
            if self.rules.on(MachineRule::DeathFailsPasses) {
                suffers
                    .into_iter()
                    .for_each(|id| self.fail(id, error.clone(), None));
            }
        }
    }

    /// A worker is there. One that was dead may not have lost this one, and hears that this one has.
    pub fn handle_worker_joined(&mut self, worker: WorkerId) {
        let was_dead = self.peers.is_dead(worker);
        self.peers.joined(worker);
        if was_dead && self.rules.on(MachineRule::SessionsCompared) {
            self.send(worker, Body::Forgot);
        }
    }

    /// A message to `to` was given up, though `to` is not known to be dead: a pass that needs it fails. A context whose
    /// creator cannot be told of this holder would stay for ever, and is released here. What ends something at a worker
    /// that is only too busy is told again.
    pub fn handle_undelivered(&mut self, to: WorkerId, message: Message<G>, error: &Status) {
        if self.peers.ours(to) != message.from {
            return;
        }
        let is_loss = [catalogue::PEER_LOST, catalogue::PEER_RESTARTED].contains(&error.reason());
        if is_loss && self.peers.is_watched(to) {
            // It may have come all the same. What depends on that ends when the loss itself is told.
            return;
        }
        match message.body {
            Body::Mark { pass, .. } | Body::Gradient { pass, .. }
                if self.rules.on(MachineRule::UndeliveredFails) =>
            {
                self.fail(pass, error.clone(), None);
            }
            Body::Mark { .. } | Body::Gradient { .. } => {}
            body if error.reason() == catalogue::RPC_BUSY => drop(self.send(to, body)),
            Body::Joined { context } if self.rules.on(MachineRule::UntoldReleases) => {
                self.drop_context(context, |_| error.clone());
            }
            _ => {}
        }
    }

    /// Ends what a context has here, and forgets it. Others may go on with it: all that take part in a pass that goes
    /// through this worker are told.
    fn drop_context(&mut self, context: ContextId, error: impl Fn(ContextId) -> Status) {
        let Some(held) = self.contexts.get(&context) else {
            return;
        };
        let goes_on = |pass: &Pass<G>| {
            let is_awaited = pass.parent.is_some() || (pass.is_root() && !pass.is_ended);
            pass.state == State::Open || is_awaited
        };
        let passes = held.passes.iter().filter(|(_, pass)| goes_on(pass));
        for id in passes.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.fail(id, error(context), None);
        }
        self.contexts.remove(&context);
        self.effects.push_back(Effect::Forget { context });
    }

    /// Queues a message, unless its receiver is dead.
    pub(super) fn send(&mut self, to: WorkerId, body: Body<G>) -> Option<u64> {
        if self.peers.is_dead(to) {
            return None;
        }
        let (from, theirs, number) = self.peers.next(to);
        let message = Message {
            from,
            to: theirs,
            number,
            body,
        };
        self.effects.push_back(Effect::Send { to, message });
        Some(number)
    }

    /// Why there is no send function of `message`, which another says that this worker sent.
    pub(super) fn gone(&self, message: MessageId) -> Status {
        match self.is_of_former_life(message) {
            true => started_again(self.me, message),
            false => freed(message),
        }
    }

    /// True if a former life of this worker gave the id: this one has not.
    pub(super) fn is_of_former_life(&self, message: MessageId) -> bool {
        let given = self.peers.life()..self.message_ids.peek();
        message.worker() == self.me && !given.contains(&message.counter())
    }

    fn context(&self, context: ContextId) -> Result<&Context<G>, Status> {
        self.contexts.get(&context).ok_or_else(|| unknown(context))
    }

    /// True if the context is here.
    #[must_use]
    pub fn holds(&self, context: ContextId) -> bool {
        self.contexts.contains_key(&context)
    }

    /// The workers that calls of the context went to or came from, here, and that are not dead.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN`.
    #[cfg(test)]
    pub(super) fn known_workers(&self, context: ContextId) -> Result<BTreeSet<WorkerId>, Status> {
        let known = self.context(context)?.known.iter().copied();
        Ok(known.filter(|of| !self.peers.is_dead(*of)).collect())
    }

    /// The send functions, and the receive functions, that the context has here.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN`.
    pub fn functions(
        &self,
        context: ContextId,
    ) -> Result<(Vec<MessageId>, Vec<MessageId>), Status> {
        let held = self.context(context)?;
        Ok((
            held.sends.keys().copied().collect(),
            held.receives.keys().copied().collect(),
        ))
    }

    /// The gradients of leaves here: for each leaf one from every pass that went through it, in the order of the
    /// passes. Their sum is its gradient.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN`.
    pub fn gradients(&self, context: ContextId) -> Result<BTreeMap<u64, Vec<G>>, Status> {
        let mut all: BTreeMap<u64, Vec<G>> = BTreeMap::new();
        for (leaf, gradient) in self.context(context)?.gradients.values().flatten() {
            all.entry(*leaf).or_default().push(gradient.clone());
        }
        Ok(all)
    }

    /// How much there is.
    #[must_use]
    pub fn load(&self) -> Load {
        let each = self.contexts.values();
        let open = |held: &Context<G>| {
            held.passes
                .values()
                .filter(|pass| pass.state == State::Open)
                .count()
        };
        Load {
            contexts: self.contexts.len(),
            passes: each.clone().map(open).sum(),
            functions: each
                .map(|held| held.sends.len() + held.receives.len())
                .sum(),
            tombstones: self.peers.tombstones(),
        }
    }

    /// Passes that began here and are not over.
    #[cfg(test)]
    pub(super) fn open_passes(&self) -> Vec<PassId> {
        let all = self.contexts.values().flat_map(|held| &held.passes);
        all.filter(|(_, pass)| pass.is_root() && !pass.is_ended)
            .map(|(id, _)| *id)
            .collect()
    }
}

/// There is no such context.
pub(super) fn unknown(context: ContextId) -> Status {
    let message = format!("Could not find autograd context with id: {context}");
    Status::of(catalogue::AUTOGRAD_CONTEXT_UNKNOWN, message)
}

fn no_longer_valid(context: ContextId) -> Status {
    let message = format!(
        "Autograd context no longer valid! Context {context} was released while it was in use"
    );
    Status::of(catalogue::AUTOGRAD_CONTEXT_RELEASED, message)
}

/// A worker has lost this one meanwhile, and knows no more of what was between them.
fn forgotten(worker: WorkerId, me: WorkerId) -> Status {
    let message = format!(
        "worker {} had lost worker {}, and has forgotten what it was to do",
        worker.0, me.0
    );
    Status::of(catalogue::AUTOGRAD_WORKER_DEAD, message)
}

/// A worker is dead.
pub(super) fn dead(worker: WorkerId) -> Status {
    Status::of(
        catalogue::AUTOGRAD_WORKER_DEAD,
        format!("worker {} is dead", worker.0),
    )
}

/// What was sent before worker `me` started again is forgotten.
fn started_again(me: WorkerId, message: MessageId) -> Status {
    let text = format!(
        "worker {} has started again since it sent message {message}, and has forgotten what that was computed from",
        me.0
    );
    Status::of(catalogue::AUTOGRAD_WORKER_DEAD, text)
}

fn freed(message: MessageId) -> Status {
    let text = format!(
        "Could not find send function for autograd message id: {message}; a pass before this one used it up, unless it \
         was told to retain the graph"
    );
    Status::of(catalogue::AUTOGRAD_FUNCTION_UNKNOWN, text)
}
