//! The desk: the task inside a shard that drives a worker's machine over its lanes.
//!
//! Everything of a worker that is not carrying out functions happens here, in one thread: no lock is taken for a call
//! but those of its slot and of the pool.

mod calling;
mod sending;
mod serving;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use rendez::ground::{Locked, Nanos, Status, StepId, TaskName, Unpoisoned, catalogue};
use rendez::shard::{Task, TaskContext, TaskEvent};
use smol_str::SmolStr;

use super::context::Gate;
#[cfg(any(test, feature = "testing"))]
use super::faulty::AgentFaults;
use super::lanes::{Brought, Lanes, leaves};
use super::notices::Notice;
use super::shared::{CallAnswer, Command, Left, Shared, Ticket, Token, WorkerInfo, end_span};
use super::timer::Timer;
use crate::error::Error;
use crate::id::{CallId, RRefId, WorkerId};
use crate::message::Outcome;
use crate::node::{Ending, Node, Output};
use crate::payload::Payload;
use sending::Again;

/// After how long a worker that cannot be heard is listened to again.
const LISTEN_AGAIN: Duration = Duration::from_millis(200);
/// How long a worker that has left waits for room for what it has sent, and for its word that it leaves.
const FAREWELL: Duration = Duration::from_secs(1);

/// What a question to the desk may see.
pub(crate) struct View<'a> {
    pub(crate) node: &'a Node<Payload, Token>,
    /// Functions that are carried out.
    pub(crate) running: &'a HashMap<(WorkerId, CallId), Running>,
}

/// A function that is carried out.
pub(crate) struct Running {
    gate: Arc<Gate>,
    pub(crate) function: SmolStr,
    pub(crate) began: Nanos,
}

/// See the module.
pub(crate) struct Desk {
    shared: Arc<Shared>,
    /// The same, for the next call that is carried out here: lent and given back, it is counted once.
    lent: Option<Arc<Shared>>,
    node: Node<Payload, Token>,
    lanes: Lanes,
    timer: Option<Arc<Timer>>,
    running: HashMap<(WorkerId, CallId), Running>,
    /// Calls that the program has given up since it last asked for anything else.
    given_up: Vec<(WorkerId, Arc<Ticket>)>,
    /// When workers that cannot be heard are listened to again.
    listen_at: Nanos,
    again: Again,
    now: Nanos,
    #[cfg(any(test, feature = "testing"))]
    faults: Option<AgentFaults>,
    is_over: bool,
    /// How it has left, until all that it has sent has gone, and until when it waits for that.
    farewell: Option<(Left, Nanos)>,
    /// All that waits for this worker has ended.
    is_closed: bool,
}

impl Desk {
    pub(crate) fn new(shared: Arc<Shared>, node: Node<Payload, Token>, step: StepId) -> Self {
        let lanes = Lanes::new(shared.engine.task().clone(), &shared.options.group, step);
        Self {
            #[cfg(any(test, feature = "testing"))]
            faults: shared.options.faulty.clone().map(AgentFaults::new),
            lent: Some(Arc::clone(&shared)),
            shared,
            node,
            lanes,
            timer: None,
            running: HashMap::new(),
            given_up: Vec::new(),
            listen_at: Nanos::NEVER,
            again: Again::default(),
            now: Nanos::ZERO,
            is_over: false,
            farewell: None,
            is_closed: false,
        }
    }

    fn start(&mut self, context: &mut TaskContext<'_>) {
        let workers = self.shared.workers.read().unpoisoned().clone();
        for (id, info) in workers {
            if id != self.shared.me {
                self.meet(id, &info, context);
            }
        }
        self.node.join(self.now);
    }

    fn start_timer(&mut self, waker: rendez::shard::TaskWaker) {
        let (engine, shard) = (self.shared.engine.downgrade(), self.shared.options.shard);
        let clock = {
            let engine = engine.clone();
            move || {
                engine
                    .upgrade()
                    .map_or(Nanos::NEVER, |engine| engine.clock().stamp())
            }
        };
        let wake = move || {
            if let Some(engine) = engine.upgrade() {
                engine.wake(shard, &waker);
            }
        };
        match Timer::start(clock, wake) {
            Ok(timer) => self.timer = Some(timer),
            Err(error) => {
                let message = format!("the system gives no thread for deadlines: {error}");
                self.shared
                    .joined
                    .fill(Err(Error::of(catalogue::RPC_GROUP, message)));
            }
        }
    }

    /// The timer is told only of what is earlier than all that it knows.
    fn arm_timer(&mut self) {
        let next = self
            .node
            .next_timer()
            .min(self.listen_at)
            .min(self.again.at);
        #[cfg(any(test, feature = "testing"))]
        let next = next.min(self.faults.as_ref().map_or(Nanos::NEVER, AgentFaults::next));
        if let Some(timer) = &self.timer
            && next < timer.armed_at()
        {
            timer.arm(next);
        }
    }

    fn meet(&mut self, id: WorkerId, info: &WorkerInfo, context: &mut TaskContext<'_>) {
        if let Err(status) = self.open(id, info.task.clone(), context) {
            tracing::warn!(worker = %info.name, %status, "a worker cannot be listened to");
        }
        self.node.add_peer(self.now, id);
    }

    /// Opens a lane, which takes the place of another's of the same task: both would hear the same keys. A task has one
    /// worker at a time, so the other has left; its word may still be on its way.
    fn open(
        &mut self,
        id: WorkerId,
        task: TaskName,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        if let Some(other) = self.lanes.other_at(&task, id) {
            self.node.handle_left(self.now, other);
            self.lanes.forget(other);
        }
        self.lanes.open(id, task, context)
    }

    fn listen(&mut self, context: &mut TaskContext<'_>) {
        let absent: Vec<WorkerId> = self.node.absent().collect();
        for worker in absent {
            if let Err(status) = self.lanes.listen(worker, context) {
                tracing::debug!(%worker, %status, "a worker cannot be listened to");
            }
        }
    }

    fn obey(&mut self, command: Command, context: &mut TaskContext<'_>) {
        let now = self.now;
        match command {
            command @ Command::Call { .. } => {
                self.shared.queued.fetch_sub(1, Ordering::Relaxed);
                self.call(command, now);
            }
            Command::Cancel(to, ticket) => self.given_up.push((to, ticket)),
            Command::Done(done) => self.done(*done, now),
            Command::CreateOwned { rref, is_made } => self.node.create_owned(rref, is_made),
            Command::DropUser(fork) => self.node.drop_user(now, fork),
            Command::DropOwned(rref) => self.node.drop_owned(now, rref),
            Command::Admit(task, name, asked) => asked.0.fill(self.admit(task, name, context)),
            Command::Meet(info) => self.meet(info.id, &info, context),
            Command::Gone(id) => self.node.remove_peer(now, id),
            Command::Leave(patience) => {
                let deadline = patience.map_or(Nanos::NEVER, |patience| now.after(patience));
                self.node.leave(now, deadline);
            }
            Command::LeaveNow => self.node.leave_now(now),
            Command::Ask(question) => question(&View {
                node: &self.node,
                running: &self.running,
            }),
        }
    }

    /// A guest may come, unless this worker leaves: what the guest asked for would hold that up.
    fn admit(
        &mut self,
        task: TaskName,
        name: String,
        context: &mut TaskContext<'_>,
    ) -> Result<WorkerId, Error> {
        if self.node.is_leaving() {
            return Err(Error::local(crate::error::shut_down()));
        }
        let id = self.shared.seat(&task, name)?;
        self.node.admit(context.now(), id);
        let opened = self.open(id, task, context);
        opened.map(|()| id).map_err(|status| {
            self.node.handle_lost(context.now(), id, &status);
            Error::local(status)
        })
    }

    /// Does what the machine wants, until it wants nothing.
    fn pump(&mut self, context: &mut TaskContext<'_>) {
        while let Some(mut output) = self.node.poll() {
            // What travels is read where it lies.
            if let Output::Send { to, message } = &mut output
                && *to != self.shared.me
            {
                self.send(*to, message, context);
                continue;
            }
            match output {
                Output::Send { to, mut message } => {
                    leaves(&mut message);
                    self.shared.figures.answered(&message);
                    self.node.handle_message(self.now, to, message);
                }
                Output::Serve {
                    from,
                    id,
                    target,
                    payload,
                    references,
                    deadline,
                } => {
                    self.serve(from, id, target, payload, &references, deadline);
                }
                Output::Stop { from, id } => {
                    if let Some(running) = self.running.get(&(from, id)) {
                        running.gate.stop();
                    }
                }
                Output::Ended { token, at, ending } => {
                    self.ended(token, at, ending, || context.now());
                }
                Output::Broken(rref, fault) => {
                    let mut values = self.shared.values.locked();
                    values.insert(rref, Err(fault));
                }
                Output::Release(rref) => self.release(rref),
                Output::Named(worker, name) => {
                    if let Err(error) = self.shared.learn(worker, name) {
                        self.shared.joined.fill(Err(error));
                    }
                }
                Output::Up(guest) if self.shared.is_guest(guest) => {}
                Output::Down(guest, status, _) if self.shared.unseat(guest) => {
                    // It may live on, and wait for what was to come.
                    if status.reason() != catalogue::PEER_LOST {
                        self.lanes.give_up_to(guest, context);
                    }
                    self.lanes.forget(guest);
                }
                Output::Up(worker) => {
                    tracing::debug!(%worker, "a worker is there");
                    self.shared.notice(Notice::Found(worker));
                }
                Output::Down(worker, status, is_over) => {
                    tracing::debug!(%worker, %status, "a worker is gone");
                    // Nothing of its life is heard there any more.
                    if is_over {
                        self.lanes.drop_waiting(worker);
                    }
                    self.shared.notice(Notice::Lost(worker));
                    self.listen_at = self.listen_at.min(self.now.after(LISTEN_AGAIN));
                }
                Output::Joined => self.joined(),
                Output::Refused(why) => {
                    self.shared
                        .joined
                        .fill(Err(Error::of(catalogue::RPC_GROUP, why)));
                }
                Output::Left(how) => {
                    self.is_over = true;
                    for name in self.node.leaks() {
                        tracing::warn!(worker = %self.shared.name, "Leaking RRef {name}: it was held at shutdown");
                    }
                    let leaks = self.node.leaks().to_vec();
                    self.farewell = Some((Left { how, leaks }, self.now.after(FAREWELL)));
                }
            }
        }
    }

    fn joined(&self) {
        for worker in self.node.absent() {
            let name = self.shared.name_of(worker);
            tracing::warn!(worker = %name, "a worker of the group is gone or unreachable: this one does not wait");
        }
        self.shared.joined.fill(Ok(()));
    }

    /// A call of ours has ended: who waits for it is told.
    fn ended(
        &self,
        token: Token,
        at: WorkerId,
        mut ending: Ending<Payload>,
        now: impl Fn() -> Nanos,
    ) {
        let handles = match &ending {
            Ending::Answered(Outcome::Value { references, .. }) => self.shared.handles(references),
            _ => Vec::new(),
        };
        // No value: whatever looks at the end of the call sees a failure.
        if let Ending::Answered(Outcome::Value { payload, .. }) = &ending
            && let Some(why) = &payload.lacking
        {
            let message = format!(
                "the result at '{}': {}",
                self.shared.name_of(at),
                why.message()
            );
            ending = Ending::Unsent(Status::new(why.code(), why.reason(), message));
        }
        let Token {
            ticket,
            keeps,
            span,
        } = token;
        self.shared.figures.ended(&ending, ticket.began, now);
        drop(keeps);
        end_span(span, &ending);
        ticket.slot.fill(CallAnswer {
            at,
            ending,
            handles,
        });
    }

    fn release(&self, rref: RRefId) {
        let mut values = self.shared.values.locked();
        let value = values.remove(&rref);
        drop(values);
        // Its type's drop is not ours: it may hold references, or panic.
        if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
            tracing::warn!(%rref, "a value panicked when it was dropped");
        }
    }

    /// What a worker sent is dropped, and nothing else happens.
    fn malformed(&self, from: WorkerId, what: String) {
        let (status, name) = (
            Status::of(catalogue::RPC_MESSAGE, what),
            self.shared.name_of(from),
        );
        self.shared.figures.malformed();
        tracing::warn!(worker = %name, %status, "a malformed message from a worker is dropped");
    }

    fn heard(&mut self, brought: Brought) {
        let now = self.now;
        match brought {
            Brought::Nothing => {}
            Brought::Message(from, message) => self.node.handle_message(now, from, message),
            Brought::Garbage(from, error) => self.malformed(from, error),
            Brought::Left(from) => {
                self.node.handle_left(now, from);
                self.listen_at = self.listen_at.min(now.after(LISTEN_AGAIN));
            }
            Brought::Lost(from, status) => {
                self.node.handle_lost(now, from, &status);
                self.listen_at = self.listen_at.min(now.after(LISTEN_AGAIN));
            }
        }
    }

    fn look_at_time(&mut self, context: &mut TaskContext<'_>) {
        let now = self.now;
        if self.node.next_timer() <= now {
            self.node.handle_time(now);
        }
        if self.listen_at <= now {
            self.listen_at = Nanos::NEVER;
            self.listen(context);
        }
    }

    /// The engine stops: nothing more is answered.
    fn stop(&mut self, context: &mut TaskContext<'_>) {
        self.node.leave_now(self.now);
        self.pump(context);
        self.close(context);
    }

    /// It has left, and goes when what it has sent has gone: answers, and its word that it leaves. It hears nothing
    /// meanwhile. If its seat is another's already, it does not wait: both would hear the same keys.
    fn part(&mut self, context: &mut TaskContext<'_>) {
        let (has_gone, _) = self.lanes.flush(context);
        let until = self.farewell.as_ref().map_or(Nanos::ZERO, |(_, at)| *at);
        let is_late = until <= self.now || self.timer.is_none();
        if !self.lanes.has_waiting() || is_late || !self.shared.has_seat() {
            return self.close(context);
        }
        self.listen_at = Nanos::NEVER;
        #[cfg(any(test, feature = "testing"))]
        {
            self.faults = None;
        }
        self.again.flushed(self.now, true, has_gone);
        self.arm_timer();
    }

    fn close(&mut self, context: &mut TaskContext<'_>) {
        self.lanes.give_up(context);
        self.end();
        context.finish();
    }

    /// All that waits for this worker ends, apart from calls that the machine knows.
    fn end(&mut self) {
        (self.is_over, self.is_closed) = (true, true);
        self.shared.is_closed.store(true, Ordering::Release);
        if let Some(timer) = self.timer.take() {
            timer.stop();
        }
        self.running.drain().for_each(|(_, one)| one.gate.stop());
        self.shared.pool.close();
        // What came meanwhile ends as all that comes later. Pairs with the fence in `Shared::is_missed`: what is not
        // found here was queued by a thread that sees that this worker is closed.
        fence(Ordering::SeqCst);
        while let Some(command) = self.shared.queue.pop() {
            command.refuse(Ending::Shutdown);
        }
        self.shared
            .joined
            .fill(Err(Error::local(crate::error::shut_down())));
        self.shared.leave_seat();
        let left = self.farewell.take().map(|(left, _)| left);
        self.shared.left.fill(left.unwrap_or_default());
        self.drop_values();
    }

    /// The values that were kept for others go. Their types' drops are not ours: they may call the agent, or panic.
    fn drop_values(&self) {
        let mut values = self.shared.values.locked();
        let gone = std::mem::take(&mut *values);
        drop(values);
        for (rref, value) in gone {
            if catch_unwind(AssertUnwindSafe(|| drop(value))).is_err() {
                tracing::warn!(%rref, "a value panicked when it was dropped");
            }
        }
    }
}

/// A desk that goes without having been closed has panicked, or its shard has: all that waits for it ends nonetheless.
/// Other workers are not told: there is no shard to send by.
impl Drop for Desk {
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        self.end();
        // Nothing says where the machine was when it was left. Calls that it does not end now end when it goes, as
        // those do that the desk had in its hands: that much is promised.
        let left = catch_unwind(AssertUnwindSafe(|| {
            self.node.leave_now(self.now);
            while let Some(output) = self.node.poll() {
                if let Output::Ended { token, at, ending } = output {
                    self.ended(token, at, ending, || self.now);
                }
            }
        }));
        if left.is_err() {
            tracing::error!(worker = %self.shared.name, "the worker's state machine panicked: its calls end with it");
        }
    }
}

impl Task for Desk {
    /// A thread that waits for a call turns the shard itself, and runs the desk: no other thread has to be woken.
    fn roams(&self) -> bool {
        true
    }

    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if self.is_closed {
            return;
        }
        // Read once: an event is short.
        self.now = context.now();
        if self.is_over {
            return match event {
                TaskEvent::Stopping => self.close(context),
                _ => self.part(context),
            };
        }
        self.node.tick(self.now);
        // The first event may come before the desk's spawner has its waker; another follows when it has.
        if let (None, Some(waker)) = (&self.timer, self.shared.waker.get()) {
            self.start_timer(waker.clone());
        }
        match event {
            TaskEvent::Started => self.start(context),
            TaskEvent::Received { token, outcome } => {
                let brought = self.lanes.brought(token, outcome, context);
                self.heard(brought);
                let last = self.lanes.last_word();
                self.heard(last);
                // The answer goes first.
                self.pump(context);
                self.lanes.listen_on(context);
            }
            TaskEvent::Stopping => return self.stop(context),
            _ => {}
        }
        // Most often it is empty, and to look is less than to try.
        while !self.shared.queue.is_empty()
            && let Some(command) = self.shared.queue.pop()
        {
            if matches!(command, Command::Cancel(..)) {
                self.obey(command, context);
                continue;
            }
            self.give_up();
            self.obey(command, context);
            self.pump(context);
        }
        self.give_up();
        self.look_at_time(context);
        self.pump(context);
        #[cfg(any(test, feature = "testing"))]
        self.send_due(context);
        if self.is_over {
            return self.part(context);
        }
        if self.lanes.has_waiting() {
            self.flush(context);
        }
        self.arm_timer();
    }
}
