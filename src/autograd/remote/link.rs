//! Messages of the machine as calls, which are made again while their receiver is busy.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{MESSAGE, Travelling, status_of};
use crate::autograd::{Message, WorkerId};
use crate::tape::Tape;
use crate::worker::{Hearing, Link, WeakWorker};
use rendez::ground::{Locked, Status, catalogue};
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
    /// What went before the agent was known here: others may call it already.
    early: Mutex<Early>,
    worker: OnceLock<WeakWorker<Tape>>,
    /// The way to the thread that deals with failures; it begins with the first.
    failures: Mutex<Option<Sender<Failure>>>,
}

/// Messages, by whom they are for.
type Early = Vec<(WorkerId, Arc<Vec<Message<Tensor>>>)>;

/// Messages that did not come to their receiver.
#[derive(Debug)]
struct Failure {
    to: WorkerId,
    messages: Arc<Vec<Message<Tensor>>>,
    tries: u32,
    error: Status,
}

/// Work that is done also if no thread of the agent does it, as when the worker leaves: a context waits for it.
struct Offloaded(Option<Box<dyn FnOnce() + Send>>);

impl ByCalls {
    /// The agent that carries the messages.
    pub(super) fn set_agent(&self, agent: WeakAgent) {
        let early = {
            let mut early = self.shared.early();
            let _ = self.shared.agent.set(agent);
            std::mem::take(&mut *early)
        };
        for (to, messages) in early {
            self.shared.post(to, messages, 0, Hearing::Soon);
        }
    }

    #[cfg(test)]
    pub(super) fn has_early(&self) -> bool {
        !self.shared.early().is_empty()
    }

    /// Who is told of messages that could not be brought.
    pub(super) fn set_worker(&self, worker: WeakWorker<Tape>) {
        let _ = self.shared.worker.set(worker);
    }
}

impl Link<Tensor> for ByCalls {
    fn send(&self, to: WorkerId, messages: Vec<Message<Tensor>>, hearing: Hearing) {
        self.shared.post(to, Arc::new(messages), 0, hearing);
    }

    fn offload(&self, work: Box<dyn FnOnce() + Send>) {
        let work = Offloaded(Some(work));
        if let Some(agent) = self.shared.agent.get().and_then(WeakAgent::upgrade) {
            agent.offload(move || work.run());
        }
    }

    fn wait(
        &self,
        is_over: &dyn Fn(Option<&Waker>) -> bool,
        patience: Option<Duration>,
    ) -> Result<bool, Status> {
        match self.shared.agent.get().and_then(WeakAgent::upgrade) {
            Some(agent) => agent
                .wait_until(is_over, patience)
                .map(|()| true)
                .map_err(|error| status_of(&error)),
            // Its end was told: nothing is under way.
            None => Ok(false),
        }
    }
}

impl Offloaded {
    fn run(mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

impl Drop for Offloaded {
    /// The shard's thread may drop it, which may not take its time.
    fn drop(&mut self) {
        let Some(work) = self.0.take() else {
            return;
        };
        let work = Arc::new(Mutex::new(Some(work)));
        let run = move || {
            let work = work.locked().take();
            work.into_iter().for_each(|work| work());
        };
        let thread = std::thread::Builder::new().name("autograd-offloaded".into());
        if thread.spawn(run.clone()).is_err() {
            // Better here than never.
            run();
        }
    }
}

impl Shared {
    fn early(&self) -> MutexGuard<'_, Early> {
        self.early.locked()
    }

    fn post(
        self: &Arc<Self>,
        to: WorkerId,
        messages: Arc<Vec<Message<Tensor>>>,
        tries: u32,
        hearing: Hearing,
    ) {
        if self.agent.get().is_none() {
            let mut early = self.early();
            // It may have come meanwhile.
            if self.agent.get().is_none() {
                return early.push((to, messages));
            }
        }
        let Some(agent) = self.agent.get().and_then(WeakAgent::upgrade) else {
            return;
        };
        let failure = move |messages, error| Failure {
            to,
            messages,
            tries,
            error,
        };
        match call(&agent, to, &messages, hearing) {
            Ok(call) => {
                let shared = Arc::downgrade(self);
                call.then(move |outcome| {
                    if let (Err(error), Some(shared)) = (outcome, shared.upgrade()) {
                        shared.failed(failure(messages, status_of(&error)));
                    }
                });
            }
            Err(error) => self.failed(failure(messages, error)),
        }
    }

    /// Hands a failure on: who sees it may be the shard's own thread, and what follows from it may take time.
    fn failed(self: &Arc<Self>, failure: Failure) {
        let mut failures = self.failures.locked();
        if failures.is_none() {
            let (sender, receiver) = channel();
            let shared = Arc::downgrade(self);
            let thread = std::thread::Builder::new().name("autograd-failures".into());
            match thread.spawn(move || attend(&shared, &receiver)) {
                Ok(_) => *failures = Some(sender),
                // Without a thread there is no second try.
                Err(_) => return self.give_up(failure),
            }
        }
        if let Some(sender) = &*failures {
            // The thread lives as long as the sender.
            let _ = sender.send(failure);
        }
    }

    /// A call may fail for its tensors alone: messages that have none and rode with others that have go once more, by
    /// themselves. They may be of other passes.
    fn give_up(self: &Arc<Self>, failure: Failure) {
        let messages = Arc::unwrap_or_clone(failure.messages);
        let brings = |message: &Message<Tensor>| message.body.gradients() > 0;
        let (mut lost, others): (Vec<_>, Vec<_>) = messages.into_iter().partition(brings);
        match lost.is_empty() || others.is_empty() {
            true => lost.extend(others),
            false => self.post(failure.to, Arc::new(others), 0, Hearing::Soon),
        }
        if let Some(worker) = self.worker.get().and_then(WeakWorker::upgrade) {
            for message in lost {
                worker.undelivered(failure.to, message, &failure.error);
            }
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
            Ok(failure) => shared.give_up(failure),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        let (due, rest) = later.into_iter().partition(|(at, _)| *at <= now);
        later = rest;
        let due: Vec<(Instant, Failure)> = due;
        for (_, failure) in due {
            shared.post(
                failure.to,
                failure.messages,
                failure.tries + 1,
                Hearing::Soon,
            );
        }
    }
}

/// True if it may go well the next time.
fn is_passing(failure: &Failure) -> bool {
    failure.error.reason() == catalogue::RPC_BUSY && failure.tries < RETRIES
}

fn call(
    agent: &Agent,
    to: WorkerId,
    messages: &Arc<Vec<Message<Tensor>>>,
    hearing: Hearing,
) -> Result<Pending<()>, Status> {
    let name = agent
        .name_of(rendez_rpc::WorkerId(to.0))
        .ok_or_else(no_worker)?;
    let argument = (Travelling(Arc::clone(messages)),);
    let call = match hearing {
        Hearing::Soon => agent.rpc_async_within(&name, MESSAGE, argument, Duration::ZERO),
        Hearing::Later => agent.rpc_post(&name, MESSAGE, argument, Duration::ZERO),
    };
    call.map_err(|error| status_of(&error))
}

fn no_worker() -> Status {
    Status::of(
        catalogue::AUTOGRAD_WORKER_DEAD,
        "the group has no such worker",
    )
}
