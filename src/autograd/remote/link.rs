//! Messages of the machine as calls, which are made again while their receiver is busy.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{MESSAGE, Travelling, status_of};
use crate::autograd::{Message, WorkerId};
use crate::tape::Tape;
use crate::worker::{Link, WeakWorker};
use rendez::ground::{Status, catalogue};
use rendez::memory::Tensor;
use rendez_rpc::{Agent, Pending, WeakAgent};

/// How often a message that a busy worker refuses is sent again.
const RETRIES: u32 = 20;
/// After how long first; each time half as long again, at most [`DELAY_MAX`].
const DELAY: Duration = Duration::from_millis(10);
const DELAY_MAX: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct ByCalls {
    shared: Arc<Shared>,
}

/// It holds neither the agent, which has the worker among its functions, nor the worker, which has this.
#[derive(Debug, Default)]
struct Shared {
    agent: OnceLock<WeakAgent>,
    worker: OnceLock<WeakWorker<Tape>>,
    /// The way to the thread that deals with failures; it begins with the first.
    failures: Mutex<Option<Sender<Failure>>>,
}

/// A message that did not come to its receiver.
#[derive(Debug)]
struct Failure {
    to: WorkerId,
    message: Message<Tensor>,
    tries: u32,
    error: Status,
}

impl ByCalls {
    /// The agent that carries the messages.
    pub(super) fn set_agent(&self, agent: WeakAgent) {
        let _ = self.shared.agent.set(agent);
    }

    /// Who is told of messages that could not be brought.
    pub(super) fn set_worker(&self, worker: WeakWorker<Tape>) {
        let _ = self.shared.worker.set(worker);
    }
}

impl Link<Tensor> for ByCalls {
    fn send(&self, to: WorkerId, message: Message<Tensor>) {
        self.shared.post(to, message, 0);
    }

    fn wait(&self, is_over: &dyn Fn(Option<&Waker>) -> bool) -> bool {
        let agent = self.shared.agent.get().and_then(WeakAgent::upgrade);
        agent.is_some_and(|agent| agent.wait_until(is_over))
    }
}

impl Shared {
    fn post(self: &Arc<Self>, to: WorkerId, message: Message<Tensor>, tries: u32) {
        let Some(agent) = self.agent.get().and_then(WeakAgent::upgrade) else {
            return;
        };
        let failure = |error| Failure {
            to,
            message: message.clone(),
            tries,
            error,
        };
        match call(&agent, to, &message) {
            Ok(call) => {
                let (shared, failure) = (Arc::downgrade(self), failure(no_worker()));
                call.then(move |outcome| {
                    if let (Err(error), Some(shared)) = (outcome, shared.upgrade()) {
                        let error = status_of(&error);
                        shared.failed(Failure { error, ..failure });
                    }
                });
            }
            Err(error) => self.failed(failure(error)),
        }
    }

    /// Hands a failure on: who sees it may be the shard's own thread, and what follows from it may take time.
    fn failed(self: &Arc<Self>, failure: Failure) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.is_none() {
            let (sender, receiver) = channel();
            let shared = Arc::downgrade(self);
            let thread = std::thread::Builder::new().name("autograd-failures".into());
            match thread.spawn(move || attend(&shared, &receiver)) {
                Ok(_) => *failures = Some(sender),
                // Without a thread there is no second try.
                Err(_) => return self.give_up(&failure),
            }
        }
        if let Some(sender) = &*failures {
            // The thread lives as long as the sender.
            let _ = sender.send(failure);
        }
    }

    fn give_up(&self, failure: &Failure) {
        if let Some(worker) = self.worker.get().and_then(WeakWorker::upgrade) {
            worker.undelivered(failure.to, failure.message.number, &failure.error);
        }
    }
}

/// Deals with failures until the link is gone.
fn attend(shared: &Weak<Shared>, failures: &Receiver<Failure>) {
    let mut later: Vec<(Instant, Failure)> = vec![];
    loop {
        let next = later.iter().map(|(at, _)| *at).min();
        let failure = match next {
            None => failures.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => failures.recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        let Some(shared) = shared.upgrade() else {
            return;
        };
        match failure {
            Ok(failure) if is_passing(&failure) => {
                let delay = DELAY.mul_f64(1.5_f64.powi(failure.tries.cast_signed()));
                later.push((Instant::now() + delay.min(DELAY_MAX), failure));
            }
            Ok(failure) => shared.give_up(&failure),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        let (due, rest) = later.into_iter().partition(|(at, _)| *at <= now);
        later = rest;
        let due: Vec<(Instant, Failure)> = due;
        for (_, failure) in due {
            shared.post(failure.to, failure.message, failure.tries + 1);
        }
    }
}

/// True if it may go well the next time.
fn is_passing(failure: &Failure) -> bool {
    failure.error.reason() == catalogue::RPC_BUSY && failure.tries < RETRIES
}

fn call(agent: &Agent, to: WorkerId, message: &Message<Tensor>) -> Result<Pending<()>, Status> {
    let workers = agent.workers().into_iter();
    let mut named = workers.filter(|info| info.id.0 == to.0);
    let name = named.next().ok_or_else(no_worker)?.name;
    let argument = (Travelling(message.clone()),);
    agent
        .rpc_async_within(&name, MESSAGE, argument, Duration::ZERO)
        .map_err(|error| status_of(&error))
}

fn no_worker() -> Status {
    Status::of(
        catalogue::AUTOGRAD_WORKER_DEAD,
        "the group has no such worker",
    )
}
