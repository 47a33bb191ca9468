//! Distributed autograd over remote calls: what calls of a context carry is recorded, and messages of the machine are
//! calls themselves.
//!
//! ```text
//!   Joining ── options(…) ──▶ Agent::init ── attach(agent) ──▶ Autograd
//! ```
//!
//! A function takes and returns [`Var`](crate::tape::Var)s; those of its caller that want gradients have a receive
//! function as their history. A thread that is in a context ([`Worker::scope`]) makes its calls in it, and a function
//! that is called so runs in it too.
//!
//! | file | |
//! |---|---|
//! | `riding.rs` | what rides along with calls |
//! | `value.rs` | eager tensors as arguments and results |
//! | `optimizer.rs` | an optimizer of parameters at several workers |

mod optimizer;
mod riding;
#[cfg(test)]
mod tests;
mod value;

use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;

pub use optimizer::{DistributedOptimizer, LocalPart};

use crate::autograd::{Message, WorkerId, codec};
use crate::tape::Tape;
use crate::worker::{Link, Worker};
use rendez::ground::{Code, Status, catalogue};
use rendez::memory::Tensor;
use rendez_rpc::{Agent, Context, Error, Functions, Options, Packer, Unpacker, Value, ValueError};

/// The function that messages of the machine are calls of.
pub(crate) const MESSAGE: &str = "autograd.message";

/// Autograd of a worker whose agent is not there yet.
#[derive(Debug)]
pub struct Joining {
    worker: Worker<Tape>,
    agent: Arc<OnceLock<Agent>>,
}

/// A message as it travels.
struct Travelling(Message<Tensor>);

impl Joining {
    /// Worker number `id` of a group, as the agent will have it, which computes on `tape`.
    #[must_use]
    pub fn new(id: u16, tape: Tape) -> Self {
        let agent = Arc::new(OnceLock::new());
        let link = ByCalls {
            agent: Arc::clone(&agent),
            worker: Arc::new(OnceLock::new()),
        };
        let known = Arc::clone(&link.worker);
        let worker = Worker::new(WorkerId(id), tape, Box::new(link));
        let _ = known.set(worker.clone());
        Self { worker, agent }
    }

    /// The worker: functions that are registered may keep it.
    #[must_use]
    pub const fn worker(&self) -> &Worker<Tape> {
        &self.worker
    }

    /// What the agent has to be started with, beside its own: the functions of autograd, and what rides along.
    #[must_use]
    pub fn options(&self, options: Options) -> Options {
        let worker = self.worker.clone();
        let deliver = move |Travelling(message): Travelling| -> Result<(), Error> {
            if let Some(call) = Context::current() {
                worker.deliver(WorkerId(call.caller().0), message);
            }
            Ok(())
        };
        let functions = Functions::new().add(MESSAGE, deliver);
        let functions = optimizer::register(functions, &self.worker);
        options
            .functions(functions)
            .observer(Arc::new(riding::Riding::new(self.worker.clone())))
    }

    /// Begins: `agent` was started with [`options`](Self::options).
    ///
    /// # Errors
    /// `AUTOGRAD_MESSAGE` if the agent has another number than was said.
    pub fn attach(self, agent: &Agent) -> Result<Worker<Tape>, Status> {
        let id = agent.worker().id.0;
        if id != self.worker.id().0 {
            let message = format!(
                "autograd was made for worker {}, and the agent is worker {id}",
                self.worker.id().0
            );
            return Err(Status::of(catalogue::AUTOGRAD_MESSAGE, message));
        }
        let _ = self.agent.set(agent.clone());
        Ok(self.worker)
    }
}

/// Messages as calls.
struct ByCalls {
    agent: Arc<OnceLock<Agent>>,
    worker: Arc<OnceLock<Worker<Tape>>>,
}

impl Link<Tensor> for ByCalls {
    fn send(&self, to: WorkerId, message: Message<Tensor>) {
        let (Some(agent), Some(worker)) = (self.agent.get(), self.worker.get()) else {
            return;
        };
        let number = message.number;
        let name = agent
            .workers()
            .into_iter()
            .find(|info| info.id.0 == to.0)
            .map(|info| info.name);
        let call = name.ok_or_else(no_worker).and_then(|name| {
            let call = agent.rpc_async_within::<()>(
                &name,
                MESSAGE,
                (Travelling(message),),
                Duration::ZERO,
            );
            call.map_err(|error| status_of(&error))
        });
        match call {
            Ok(call) => {
                let worker = worker.clone();
                call.on_end(move |outcome| {
                    if let Err(error) = outcome {
                        worker.undelivered(to, number, &status_of(&error));
                    }
                });
            }
            Err(error) => worker.undelivered(to, number, &error),
        }
    }

    fn wait(&self, is_over: &dyn Fn(Option<&Waker>) -> bool) -> bool {
        let agent = self.agent.get();
        agent.is_some_and(|agent| agent.wait_until(is_over))
    }
}

fn no_worker() -> Status {
    Status::of(
        catalogue::AUTOGRAD_WORKER_DEAD,
        "the group has no such worker",
    )
}

/// The error of a call, as a status.
pub(crate) fn status_of(error: &Error) -> Status {
    match catalogue::find(error.reason()) {
        Some(entry) => Status::of(entry.reason, error.to_string()),
        None => Status::new(Code::Unknown, catalogue::PEER_STATUS, error.to_string()),
    }
}

impl Value for Travelling {
    fn name(to: &mut String) {
        to.push_str("autograd::Message");
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        let (bytes, tensors) = codec::encode(self.0.clone());
        to.plain(&bytes)?;
        to.plain(&(tensors.len() as u64))?;
        tensors
            .into_iter()
            .try_for_each(|tensor| to.tensor(tensor).map(drop))
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        let bytes: Vec<u8> = from.plain()?;
        let count: u64 = from.plain()?;
        let mut tensors = vec![];
        for _ in 0..count {
            tensors.push(from.tensor()?);
        }
        let message = codec::decode(&bytes, tensors);
        message
            .map(Self)
            .map_err(|error| ValueError::new(error.message()))
    }
}
