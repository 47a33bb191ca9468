//! Backward passes in the machine: who is asked what, what is waited for, and how it ends.
//!
//! In smart mode a pass goes through the workers twice. First each is told which of its send functions will get
//! gradients, finds what these flow to, and tells the next. When all is answered, every worker knows exactly what it
//! has to wait for, and the root lets the gradients go: a worker that gets one knows by that alone that nothing more
//! will be marked. With P gradients that cross between workers, at most P marks and P answers are sent; all that one
//! worker finds out for another at a time is one message, and the root answers none.

use std::collections::{BTreeMap, BTreeSet};

use super::context::Sent;
use super::ids::{ContextId, MessageId, PassId, WorkerId};
use super::machine::{Autograd, dead, unknown};
use super::message::{Body, Effect, Input, Mode, Options, Port, Standing, Start};
use super::pass::{Pass, Phase, State};
use super::rules::MachineRule;
use rendez::ground::{Status, catalogue};

/// How many passes of one context may be remembered here for nothing but their failure.
const TOLD_MAX: usize = 4096;

/// What an engine has to report of a run: the gradients of receive functions, which go to who sent their tensors, and
/// those of leaves.
#[derive(Clone, PartialEq, Debug)]
pub struct Ran<G> {
    /// By message, one for each of its tensors.
    pub received: Vec<(MessageId, Vec<Option<G>>)>,
    /// By leaf.
    pub leaves: Vec<(u64, G)>,
}

impl<G> Default for Ran<G> {
    fn default() -> Self {
        Self {
            received: vec![],
            leaves: vec![],
        }
    }
}

impl<G: Clone> Autograd<G> {
    /// Begins a backward pass from `roots` local values, which the engine knows by their places. Several passes may be
    /// under way in one context.
    ///
    /// # Errors
    /// `AUTOGRAD_CONTEXT_UNKNOWN`; `AUTOGRAD_ROOT` without roots.
    pub fn start_backward(
        &mut self,
        context: ContextId,
        roots: u32,
        options: Options,
    ) -> Result<PassId, Status> {
        let held = self
            .contexts
            .get_mut(&context)
            .ok_or_else(|| unknown(context))?;
        if roots == 0 {
            return Err(Status::of(
                catalogue::AUTOGRAD_ROOT,
                "No tensors provided for gradient computation.",
            ));
        }
        let id = PassId {
            context,
            root: self.me,
            number: self.next_pass,
        };
        self.next_pass = self.next_pass.wrapping_add(1);
        let phase = match options.mode {
            Mode::Fast => Phase::Runs,
            Mode::Smart => Phase::Marks,
        };
        let mut starts: Vec<_> = (0..roots).map(Start::Root).collect();
        let mut pass = Pass::new(options, phase, roots);
        pass.is_begun = true;
        if options.mode == Mode::Fast {
            starts.extend(starts_of(&held.sends));
            pass.expected = held.sends.keys().copied().collect();
            pass.inputs = (0..roots).map(Input::Root).collect();
        }
        pass.marking = 1;
        held.passes.insert(id, pass);
        self.effects.push_back(Effect::Mark { pass: id, starts });
        Ok(id)
    }

    /// Takes what the engine found for an [`Effect::Mark`]: outputs of receive functions that gradients will flow to.
    pub fn handle_marked(&mut self, id: PassId, found: Result<Vec<Port>, Status>) {
        let me = self.me;
        let Some((pass, receives)) = self.open(id) else {
            return;
        };
        pass.marking -= 1;
        let ports = match found {
            Ok(ports) => ports,
            Err(error) => return self.fail(id, at_worker(me, id, &error), None),
        };
        if pass.options.mode == Mode::Smart {
            let options = pass.options;
            let mut by_worker: BTreeMap<WorkerId, Vec<Port>> = BTreeMap::new();
            for port in ports {
                match receives.get(&port.message) {
                    Some(&from) => by_worker.entry(from).or_default().push(port),
                    None => return self.fail(id, not_received(id, port.message), None),
                }
            }
            for (to, ports) in by_worker {
                if !self.send_of_pass(id, to, |pass| Body::Mark {
                    pass,
                    options,
                    ports,
                }) {
                    return;
                }
            }
        }
        self.proceed(id);
    }

    /// Takes what the engine made of an [`Effect::Run`].
    pub fn handle_ran(&mut self, id: PassId, ran: Result<Ran<G>, Status>) {
        let me = self.me;
        let Some((pass, receives)) = self.open(id) else {
            return;
        };
        pass.is_running = false;
        let ran = match ran {
            Ok(ran) => ran,
            Err(error) => return self.fail(id, at_worker(me, id, &error), None),
        };
        let options = pass.options;
        let mut out = vec![];
        for (message, gradients) in ran.received {
            match receives.get(&message) {
                Some(&from) => out.push((from, message, gradients)),
                None => return self.fail(id, not_received(id, message), None),
            }
        }
        pass.spent
            .extend(out.iter().map(|(_, message, _)| *message));
        if let Some(held) = self
            .contexts
            .get_mut(&id.context)
            .filter(|_| !ran.leaves.is_empty())
        {
            held.gradients.entry(id).or_default().extend(ran.leaves);
        }
        for (to, message, gradients) in out {
            if !self.send_of_pass(id, to, |pass| Body::Gradient {
                pass,
                options,
                message,
                gradients,
            }) {
                return;
            }
        }
        self.proceed(id);
    }

    /// Takes a message of a pass.
    pub(super) fn handle_of_pass(&mut self, from: WorkerId, number: u64, body: Body<G>) {
        let context = body.context();
        match body {
            Body::Fail { pass, error } => self.fail(pass, error, Some(from)),
            Body::Doubt { pass } => self.handle_doubt(pass, from),
            Body::Ack {
                pass,
                of,
                standings,
            } => {
                let Some(held) = self.contexts.get_mut(&context) else {
                    return;
                };
                if let Some(open) = held.passes.get_mut(&pass)
                    && open.unanswered.remove(&(from, of))
                {
                    open.merge(standings);
                    self.proceed(pass);
                }
            }
            Body::Mark {
                pass,
                options,
                ports,
            } => {
                let first = ports.first().map(|port| port.message);
                if self.engage(pass, options, (from, number), first) {
                    self.handle_mark(pass, from, ports);
                }
            }
            Body::Gradient {
                pass,
                options,
                message,
                gradients,
            } => {
                if self.engage(pass, options, (from, number), Some(message)) {
                    self.handle_gradient(pass, from, message, gradients);
                }
            }
            Body::Joined { .. } | Body::Release { .. } | Body::Forgot => {}
        }
    }

    /// A worker that took part cannot tell whether the pass has failed, and whom it went on to may not know it either.
    fn handle_doubt(&mut self, id: PassId, from: WorkerId) {
        // Of one that is not here any more nothing is known: it may have gone well.
        let Some(pass) = self.pass_mut(id) else {
            return;
        };
        if let State::Failed(error) = &pass.state {
            let error = error.clone();
            self.send(from, Body::Fail { pass: id, error });
        } else if !pass.is_root() {
            self.doubt(id);
        } else if !pass.is_ended {
            pass.peers.insert(from);
        }
    }

    /// Another that takes part in the pass is lost, and may have known that it failed: the root is asked, and all that
    /// the pass came from or went to do the same.
    pub(super) fn doubt(&mut self, id: PassId) {
        let is_asked = self.rules.on(MachineRule::DoubtAsked);
        let (me, pass) = (self.me, self.pass_mut(id));
        let Some(pass) = pass.filter(|pass| is_asked && !pass.is_root() && !pass.is_doubted) else {
            return;
        };
        pass.is_doubted = true;
        let mut asked = pass.peers.clone();
        asked.insert(id.root);
        asked.remove(&me);
        for to in asked {
            self.send(to, Body::Doubt { pass: id });
        }
    }

    fn handle_mark(&mut self, id: PassId, from: WorkerId, ports: Vec<Port>) {
        let me = self.me;
        let Some(held) = self.contexts.get_mut(&id.context) else {
            return;
        };
        let Some(pass) = held.passes.get_mut(&id) else {
            return;
        };
        let is_send = |port: &Port| {
            let sent = held.sends.get(&port.message).filter(|sent| sent.to == from);
            sent.is_some_and(|sent| sent.requires.get(usize::from(port.index)) == Some(&true))
        };
        if let Some(port) = ports.iter().find(|port| !is_send(port)) {
            let error = at_worker(me, id, &self.gone(port.message));
            return self.fail(id, error, None);
        }
        if pass.options.mode == Mode::Fast || pass.state != State::Open || pass.phase == Phase::Runs
        {
            let what = format!(
                "worker {} marks functions of a pass that does not ask for marks",
                from.0
            );
            return self.fail(id, Status::of(catalogue::AUTOGRAD_MESSAGE, what), None);
        }
        pass.is_begun = true;
        pass.expected.extend(ports.iter().map(|port| port.message));
        pass.marking += 1;
        let starts = ports.into_iter().map(Start::Send).collect();
        self.effects.push_back(Effect::Mark { pass: id, starts });
    }

    fn handle_gradient(
        &mut self,
        id: PassId,
        from: WorkerId,
        message: MessageId,
        gradients: Vec<Option<G>>,
    ) {
        let me = self.me;
        let Some(held) = self.contexts.get_mut(&id.context) else {
            return;
        };
        let Some(pass) = held.passes.get_mut(&id) else {
            return;
        };
        let sent = held.sends.get(&message).filter(|sent| sent.to == from);
        let Some(sent) = sent.filter(|sent| sent.requires.len() == gradients.len()) else {
            let error = at_worker(me, id, &self.gone(message));
            return self.fail(id, error, None);
        };
        debug_assert!(
            sent.requires.contains(&true),
            "recorded only if one wants gradients"
        );
        if !pass.is_begun && pass.options.mode == Mode::Fast {
            pass.is_begun = true;
            pass.expected = held.sends.keys().copied().collect();
            let starts = starts_of(&held.sends).collect();
            pass.marking += 1;
            self.effects.push_back(Effect::Mark { pass: id, starts });
        }
        if !pass.expected.contains(&message) || !pass.fed.insert(message) {
            let what = format!(
                "worker {} sent a gradient for message {message:?}, which waits for none",
                from.0
            );
            return self.fail(id, Status::of(catalogue::AUTOGRAD_MESSAGE, what), None);
        }
        pass.inputs.push(Input::Send { message, gradients });
        self.proceed(id);
    }

    /// Notes that a message of the pass came, which asks for the send function `of`. The first one is answered when all
    /// that follows from it is done, others at once; the root counts them instead. False if the pass is not to go on
    /// here.
    fn engage(
        &mut self,
        id: PassId,
        options: Options,
        (from, number): (WorkerId, u64),
        of: Option<MessageId>,
    ) -> bool {
        let is_delayed = self.rules.on(MachineRule::AnswerDelayed);
        let Some(held) = self.contexts.get_mut(&id.context) else {
            let error = match of.filter(|of| self.is_of_former_life(*of)) {
                Some(of) => self.gone(of),
                None => unknown(id.context),
            };
            self.send(from, Body::Fail { pass: id, error });
            return false;
        };
        let is_mine = id.root == self.me;
        if !held.passes.contains_key(&id) && (is_mine || self.peers.is_dead(id.root)) {
            let error = if is_mine {
                unknown(id.context)
            } else {
                dead(id.root)
            };
            if !is_mine && held.passes.len() < TOLD_MAX {
                // What still comes of it may come when the root is there again.
                held.passes.insert(id, Pass::failed(error.clone()));
            }
            self.send(from, Body::Fail { pass: id, error });
            return false;
        }
        let new = || Pass::new(options, Phase::Follows, 0);
        let pass = held.passes.entry(id).or_insert_with(new);
        if let State::Failed(error) = &pass.state {
            let error = error.clone();
            self.send(from, Body::Fail { pass: id, error });
            return false;
        }
        pass.peers.insert(from);
        if pass.is_root() && from != self.me {
            *pass.heard.entry(from).or_default() += 1;
        } else if pass.is_root() || pass.parent.is_some() || !is_delayed {
            self.send(
                from,
                Body::Ack {
                    pass: id,
                    of: number,
                    standings: vec![],
                },
            );
        } else {
            pass.parent = Some((from, number));
            pass.version += 1;
        }
        true
    }

    /// Takes the next step that can be taken.
    fn proceed(&mut self, id: PassId) {
        let (me, rules) = (self.me, self.rules);
        let Some(pass) = self.pass_mut(id) else {
            return;
        };
        if pass.state == State::Open {
            if pass.marking == 0 && !pass.is_running && !pass.inputs.is_empty() {
                pass.is_running = true;
                let inputs = std::mem::take(&mut pass.inputs);
                self.effects.push_back(Effect::Run { pass: id, inputs });
                return;
            }
            if pass.is_exhausted(rules.on(MachineRule::DependenciesCounted)) {
                self.complete(id);
            }
        }
        let is_settled = |pass: &Pass<G>| pass.is_settled(me) || !rules.on(MachineRule::RootCounts);
        let is_over = |pass: &&mut Pass<G>| pass.is_idle() && (!pass.is_root() || is_settled(pass));
        let Some(pass) = self.pass_mut(id).filter(is_over) else {
            return;
        };
        let standing = pass.standing();
        pass.standings.insert(me, standing);
        if let Some((parent, of)) = pass.parent.take() {
            let standings = std::mem::take(&mut pass.standings).into_iter().collect();
            self.send(
                parent,
                Body::Ack {
                    pass: id,
                    of,
                    standings,
                },
            );
        } else if pass.phase == Phase::Marks {
            // All is marked, everywhere.
            pass.phase = Phase::Runs;
            pass.standings.clear();
            pass.inputs = (0..pass.roots).map(Input::Root).collect();
            self.proceed(id);
        } else if pass.phase == Phase::Runs && !pass.is_ended {
            self.end(id);
        }
    }

    /// All functions have run here.
    fn complete(&mut self, id: PassId) {
        let Some(held) = self.contexts.get_mut(&id.context) else {
            return;
        };
        let Some(pass) = held.passes.get_mut(&id) else {
            return;
        };
        pass.state = State::Complete;
        let retain = pass.options.retain;
        if !retain {
            for message in &pass.expected {
                held.sends.remove(message);
            }
            for message in &pass.spent {
                held.receives.remove(message);
            }
        }
        pass.settle_down();
        self.effects.push_back(Effect::Finish { pass: id, retain });
    }

    /// Nothing of the pass is under way at any worker.
    fn end(&mut self, id: PassId) {
        let Some(pass) = self.pass_mut(id) else {
            return;
        };
        let waits = |(worker, standing): (&WorkerId, &Standing)| {
            (standing.outstanding > 0).then_some((*worker, *standing))
        };
        let stuck = pass.standings.iter().find_map(waits);
        if let Some((
            worker,
            Standing {
                outstanding,
                example,
                ..
            },
        )) = stuck
        {
            let example = example.map_or_else(String::new, |message| {
                format!(", message {message:?} for one")
            });
            let message = format!(
                "backward pass {id} ended with {outstanding} send functions of worker {} that got no \
                 gradient{example}: \
                 what they sent was not used for the roots, or only where no gradient flows; use it, or choose \
                 smart mode",
                worker.0
            );
            return self.fail(
                id,
                Status::of(catalogue::AUTOGRAD_UNUSED_SEND, message),
                None,
            );
        }
        pass.is_ended = true;
        pass.standings.clear();
        pass.peers.clear();
        self.effects.push_back(Effect::Ended {
            pass: id,
            result: Ok(()),
        });
    }

    /// Ends a pass with an error, here and at all workers it came from or went to, except `teller`, which knows.
    pub(super) fn fail(&mut self, id: PassId, error: Status, teller: Option<WorkerId>) {
        let (me, rules) = (self.me, self.rules);
        let Some(held) = self.contexts.get_mut(&id.context) else {
            return;
        };
        let Some(pass) = held.passes.get_mut(&id) else {
            if id.root != me && held.passes.len() < TOLD_MAX {
                held.passes.insert(id, Pass::failed(error));
            }
            return;
        };
        if matches!(pass.state, State::Failed(_)) || (pass.is_root() && pass.is_ended) {
            return;
        }
        let mut told: BTreeSet<_> = std::mem::take(&mut pass.peers);
        told.insert(id.root);
        told.remove(&me);
        if let Some(teller) = teller {
            told.remove(&teller);
        }
        let was_open = pass.state == State::Open;
        let is_root = pass.is_root();
        let phase = pass.phase;
        *pass = Pass {
            phase,
            is_ended: true,
            ..Pass::failed(error.clone())
        };
        if rules.on(MachineRule::FailedTakenBack) {
            held.gradients.remove(&id);
        }
        if !rules.on(MachineRule::FailTold) {
            told.clear();
        }
        if was_open {
            self.effects.push_back(Effect::Discard { pass: id });
        }
        for to in told {
            self.send(
                to,
                Body::Fail {
                    pass: id,
                    error: error.clone(),
                },
            );
        }
        if is_root {
            self.effects.push_back(Effect::Ended {
                pass: id,
                result: Err(error),
            });
        }
    }

    /// Sends a message that wants an answer, unless it goes from another worker to the root. False if the pass failed
    /// because its receiver is dead.
    fn send_of_pass(
        &mut self,
        id: PassId,
        to: WorkerId,
        body: impl FnOnce(PassId) -> Body<G>,
    ) -> bool {
        let Some(number) = self.send(to, body(id)) else {
            self.fail(id, dead(to), None);
            return false;
        };
        if let Some(pass) = self.pass_mut(id) {
            if to == id.root && !pass.is_root() {
                pass.told_root = pass.told_root.saturating_add(1);
            } else {
                pass.unanswered.insert((to, number));
            }
            pass.peers.insert(to);
        }
        true
    }

    fn pass_mut(&mut self, id: PassId) -> Option<&mut Pass<G>> {
        self.contexts.get_mut(&id.context)?.passes.get_mut(&id)
    }

    /// A pass that goes on, and what came here in its context.
    fn open(&mut self, id: PassId) -> Option<(&mut Pass<G>, &BTreeMap<MessageId, WorkerId>)> {
        let held = self.contexts.get_mut(&id.context)?;
        let pass = held
            .passes
            .get_mut(&id)
            .filter(|pass| pass.state == State::Open)?;
        Some((pass, &held.receives))
    }
}

/// All inputs of send functions that want gradients.
fn starts_of(sends: &BTreeMap<MessageId, Sent>) -> impl Iterator<Item = Start> + '_ {
    sends.iter().flat_map(|(&message, sent)| {
        let wanted = (0u16..).zip(&sent.requires).filter(|(_, wants)| **wants);
        wanted.map(move |(index, _)| Start::Send(Port { message, index }))
    })
}

/// What failed at `me`, as the root is told.
fn at_worker(me: WorkerId, id: PassId, error: &Status) -> Status {
    if me == id.root {
        return error.clone();
    }
    let message = format!("Error on Node {}: {}", me.0, error.message());
    Status::new(error.code(), error.reason(), message)
}

fn not_received(id: PassId, message: MessageId) -> Status {
    let text = format!(
        "context {} has not received message {message}, which a root of the pass depends on: a call in another context \
         brought it, so begin the pass in that one or detach the value; or a pass before this one used it up, and was \
         not told to retain the graph",
        id.context
    );
    Status::of(catalogue::AUTOGRAD_FUNCTION_UNKNOWN, text)
}
