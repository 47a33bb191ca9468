//! Calls: asking services of peers, and having asked-for services carried out.
//!
//! Knows conversations, answers and the pool; not what a service does. All of it runs on the control thread, except
//! that the outcome goes to its waiter's thread.
//!
//! A call belongs to a task and, once it was sent, to that life of it; not to a connection. It waits while there is
//! none, is sent again over the next one, and fails when the task comes back in another life. The caller keeps the
//! time: it gives the call up at its deadline, which the other side is told in milliseconds from now.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::ground::limits::{CALL_PAYLOAD_MAX, CALL_WINDOW, CALLS_MAX};
use crate::ground::{Code, Incarnation, Status, catalogue};
use rendez_proto::{self as proto, envelope::Body};

use super::answers::{Admitted, Answers, CallKey};
use super::conversation::Conversation;
use super::lookout::Lookout;
use super::mailbox::Sender;
use super::peer::PeerId;
use super::plane::Command;
use super::refusal::{Refusal, clip_lines, protocol_refusal};
use super::service::{CallJob, Incoming, Outcome, Pool};

/// The version of calls.
const VERSION: u32 = 1;
/// The longest a service is told that its caller waits.
const PATIENCE_MAX: Duration = Duration::from_secs(86_400);

/// A call of ours.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) task: String,
    pub(crate) method: u32,
    pub(crate) trace: u64,
    pub(crate) payload: Vec<u8>,
    pub(crate) deadline: Instant,
    /// Takes the one outcome.
    pub(crate) outcome: SyncSender<Outcome>,
}

/// All calls of a control plane.
#[derive(Debug)]
pub(crate) struct Calls {
    pool: Pool,
    commands: Sender<Command>,
    answers: RefCell<Answers>,
    asked: RefCell<BTreeMap<u64, Waiting>>,
    /// Calls that were given up between two connections, the oldest first.
    untold: RefCell<VecDeque<Untold>>,
    conversations: RefCell<BTreeMap<PeerId, Weak<Conversation>>>,
    lookout: Lookout,
}

#[derive(Debug)]
struct Waiting {
    asked: Asked,
    /// The life it was sent to.
    life: Option<Incarnation>,
    /// The connection it is under way on.
    on: Option<PeerId>,
    /// It was under way on a connection before: that life may have it.
    is_repeated: bool,
}

/// A call that a life of a task may be at, and that no caller waits for any more.
#[derive(Debug)]
struct Untold {
    task: String,
    life: Incarnation,
    request: u64,
}

impl Calls {
    /// None; outcomes of services come back as commands.
    pub(crate) fn new(pool: Pool, commands: Sender<Command>, lookout: Duration) -> Rc<Self> {
        Rc::new(Self {
            pool,
            commands,
            answers: RefCell::default(),
            asked: RefCell::default(),
            untold: RefCell::default(),
            conversations: RefCell::default(),
            lookout: Lookout::new(lookout),
        })
    }

    /// What the control thread looks for after a call.
    pub(crate) const fn lookout(&self) -> &Lookout {
        &self.lookout
    }

    /// A call of ours begins.
    pub(crate) fn begin(&self, request: u64, asked: Asked) {
        if self.asked.borrow().len() >= CALLS_MAX {
            let message = format!("{CALLS_MAX} calls wait, the limit CALLS_MAX");
            return tell(&asked, Err(Status::of(catalogue::CALL_BUSY, message)));
        }
        let task = asked.task.clone();
        let waiting = Waiting {
            asked,
            life: None,
            on: None,
            is_repeated: false,
        };
        self.asked.borrow_mut().insert(request, waiting);
        if let Some(conversation) = self.conversation_with(&task) {
            self.send(&conversation);
        }
    }

    /// A call of ours is given up.
    pub(crate) fn give_up(&self, request: u64) {
        let Some(waiting) = self.asked.borrow_mut().remove(&request) else {
            return;
        };
        let on = waiting.on.and_then(|peer| self.conversation(peer));
        if let Some(conversation) = on {
            conversation.give_up(request, waiting.is_repeated);
            self.send(&conversation);
        } else if let Some(life) = waiting.life
            && Instant::now() < waiting.asked.deadline
        {
            self.tell_later(Untold {
                task: waiting.asked.task,
                life,
                request,
            });
        }
    }

    /// The next connection with that life tells it. Past its deadline a service knows by itself that no caller waits.
    fn tell_later(&self, untold: Untold) {
        let mut all = self.untold.borrow_mut();
        if all.len() >= CALLS_MAX {
            all.pop_front();
        }
        all.push_back(untold);
    }

    /// Tells a peer which of its calls were given up before it was connected. Those of its other lives are over.
    fn tell_given_up(&self, conversation: &Conversation) {
        let hello = &conversation.hello;
        self.untold.borrow_mut().retain(|untold| {
            let is_its = untold.task == hello.task;
            if is_its && untold.life == hello.incarnation {
                conversation.cancel(untold.request);
            }
            !is_its
        });
    }

    /// A peer is connected: what waits for it goes out, and what was for an earlier life of it fails.
    pub(crate) fn up(&self, conversation: &Rc<Conversation>) {
        let hello = &conversation.hello;
        self.conversations
            .borrow_mut()
            .insert(conversation.peer, Rc::downgrade(conversation));
        self.answers
            .borrow_mut()
            .task_is(&hello.task, hello.incarnation);
        let is_stale = |waiting: &Waiting| {
            waiting.asked.task == hello.task
                && waiting.life.is_some_and(|life| life != hello.incarnation)
        };
        for (_, stale) in self
            .asked
            .borrow_mut()
            .extract_if(.., |_, waiting| is_stale(waiting))
        {
            let message = format!(
                "{} has come back as another life before it answered",
                hello.task
            );
            tell(
                &stale.asked,
                Err(Status::of(catalogue::PEER_RESTARTED, message)),
            );
        }
        self.tell_given_up(conversation);
        self.send(conversation);
    }

    /// A connection is over: what was asked on it will be asked again on the next. The peer may not have heard what was
    /// given up on it, since the end of a connection is noticed later than it comes: the next one tells that too.
    pub(crate) fn down(&self, peer: PeerId) {
        let over = self.conversations.borrow_mut().remove(&peer);
        if let Some(over) = over.and_then(|over| over.upgrade()) {
            over.each_unanswered(|request| {
                if !self.asked.borrow().contains_key(&request) {
                    self.tell_later(Untold {
                        task: over.hello.task.clone(),
                        life: over.hello.incarnation,
                        request,
                    });
                }
            });
        }
        for waiting in self.asked.borrow_mut().values_mut() {
            if waiting.on == Some(peer) {
                waiting.on = None;
                waiting.is_repeated = true;
            }
        }
    }

    /// An answer came.
    pub(crate) fn answered(
        &self,
        conversation: &Conversation,
        request: u64,
        reply: proto::CallReply,
    ) {
        // Acknowledged even if no caller waits any more: so that it need not be kept. That goes out with the next
        // request, or soon without one.
        conversation.acknowledge(request);
        if !self.attend(conversation) {
            conversation.acknowledge_all();
        }
        if let Some(waiting) = self.asked.borrow_mut().remove(&request) {
            tell(&waiting.asked, read_reply(&conversation.hello.task, reply));
        }
        self.send(conversation);
    }

    /// A peer calls a service of ours: the answer, if there is one at once.
    pub(crate) fn serve(
        &self,
        conversation: &Conversation,
        id: u64,
        call: proto::Call,
    ) -> Result<Option<Body>, Refusal> {
        let hello = &conversation.hello;
        if call.request == 0 || call.payload.len() > CALL_PAYLOAD_MAX {
            let what = "a call without a number, or longer than a call may be";
            return Err(protocol_refusal(&hello.task, what));
        }
        if call.version != VERSION {
            let message = format!(
                "calls are of version {VERSION} here, and this one is of version {}",
                call.version
            );
            return Ok(Some(emit_reply(Err(Status::of(
                catalogue::PEER_VERSION,
                message,
            )))));
        }
        let key = key(conversation, call.request);
        let admitted = self
            .answers
            .borrow_mut()
            .admit(key.clone(), (conversation.peer, id));
        let cancelled = match admitted {
            Admitted::Joined => return Ok(None),
            Admitted::Answered(outcome) => return Ok(Some(emit_reply(outcome))),
            Admitted::Busy => {
                let message = format!(
                    "{} has {CALL_WINDOW} calls under way here, the limit CALL_WINDOW",
                    hello.task
                );
                let busy = Err(Status::of(catalogue::CALL_BUSY, message));
                return Ok(Some(emit_reply(busy)));
            }
            Admitted::New(cancelled) => cancelled,
        };
        self.attend(conversation);
        let patience = Duration::from_millis(call.deadline_ms).min(PATIENCE_MAX);
        let incoming = Incoming {
            task: hello.task.clone(),
            incarnation: hello.incarnation,
            method: call.method,
            trace: call.trace,
            deadline: Instant::now() + patience,
            payload: call.payload,
            cancelled,
        };
        if let Some(outcome) = self.pool.at_once(&incoming) {
            // No other connection can have joined this call yet.
            self.answers.borrow_mut().finish(&key, &outcome);
            return Ok(Some(emit_reply(outcome)));
        }
        let commands = self.commands.clone();
        let done_key = key.clone();
        let job = CallJob {
            incoming,
            done: Box::new(move |outcome| {
                // Bounded by the window of each peer; refused only if the control plane has stopped.
                let _ = commands.send(Command::Served {
                    key: done_key,
                    outcome,
                });
            }),
        };
        Ok(self.pool.begin(job).err().map(|status| {
            self.answers.borrow_mut().refuse(&key);
            emit_reply(Err(status))
        }))
    }

    /// A service of ours is done with a call.
    pub(crate) fn finish(&self, key: &CallKey, outcome: Outcome) {
        let askers = self.answers.borrow_mut().finish(key, &outcome);
        let body = emit_reply(outcome);
        for (peer, id) in askers {
            if let Some(conversation) = self.conversation(peer) {
                conversation.reply(id, body.clone());
                self.lookout.attend(&conversation);
            }
        }
    }

    /// A peer gives a call up.
    pub(crate) fn cancel(&self, conversation: &Conversation, request: u64) {
        self.answers.borrow().cancel(&key(conversation, request));
    }

    /// A peer has answers.
    pub(crate) fn acknowledge(&self, conversation: &Conversation, requests: &[u64]) {
        let mut answers = self.answers.borrow_mut();
        for request in requests {
            answers.acknowledge(&key(conversation, *request));
        }
    }

    /// Sends what waits for this peer, as far as the window lets.
    fn send(&self, conversation: &Conversation) {
        let hello = &conversation.hello;
        let peer = conversation.peer;
        let mut asked = self.asked.borrow_mut();
        // Those that were given up count until they are answered: the peer may have them all still to read.
        let mut room = CALL_WINDOW.saturating_sub(conversation.unanswered());
        for (request, waiting) in asked.iter_mut() {
            if room == 0 || !conversation.is_open() {
                break;
            }
            if waiting.asked.task != hello.task || waiting.on.is_some() {
                continue;
            }
            let left = waiting
                .asked
                .deadline
                .saturating_duration_since(Instant::now());
            let call = proto::Call {
                version: VERSION,
                method: waiting.asked.method,
                request: *request,
                deadline_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
                trace: waiting.asked.trace,
                payload: waiting.asked.payload.clone(),
            };
            conversation.call(*request, call);
            waiting.life = Some(hello.incarnation);
            waiting.on = Some(peer);
            room -= 1;
            self.attend(conversation);
        }
    }

    fn attend(&self, conversation: &Conversation) -> bool {
        let conversation = self.conversation(conversation.peer);
        conversation.is_some_and(|conversation| self.lookout.attend(&conversation))
    }

    fn conversation(&self, peer: PeerId) -> Option<Rc<Conversation>> {
        self.conversations.borrow().get(&peer)?.upgrade()
    }

    fn conversation_with(&self, task: &str) -> Option<Rc<Conversation>> {
        self.conversations
            .borrow()
            .values()
            .filter_map(Weak::upgrade)
            .find(|conversation| conversation.hello.task == task && conversation.is_open())
    }
}

fn key(conversation: &Conversation, request: u64) -> CallKey {
    CallKey {
        task: conversation.hello.task.clone(),
        incarnation: conversation.hello.incarnation,
        request,
    }
}

/// Gives an outcome to its waiter, if there still is one.
fn tell(asked: &Asked, outcome: Outcome) {
    let _ = asked.outcome.try_send(outcome);
}

fn emit_reply(outcome: Outcome) -> Body {
    Body::CallReply(match outcome {
        Ok(payload) => proto::CallReply {
            payload,
            ..proto::CallReply::default()
        },
        Err(status) => proto::CallReply {
            code: status.code() as u32,
            reason: status.reason().to_owned(),
            message: clip_lines(status.message()),
            payload: Vec::new(),
        },
    })
}

/// An answer of `task`: its payload, or its status with a reason that we know.
fn read_reply(task: &str, reply: proto::CallReply) -> Outcome {
    let code = u8::try_from(reply.code).map_or(Code::Unknown, Code::from_wire);
    if code == Code::Ok {
        return Ok(reply.payload);
    }
    let reason =
        catalogue::find(&reply.reason).map_or(catalogue::PEER_STATUS, |entry| entry.reason);
    let message = format!("task {task} says: {}", clip_lines(&reply.message));
    Err(Status::new(code, reason, message))
}

#[cfg(test)]
mod tests;
