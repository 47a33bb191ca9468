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
//! | `link.rs` | messages of the machine as calls |
//! | `backward.rs` | a pass that begins where a reference's value is |
//! | `optimizer.rs` | an optimizer of parameters at several workers |

mod backward;
mod link;
mod optimizer;
mod riding;
#[cfg(test)]
mod tests;
mod value;

pub use backward::backward;
pub use optimizer::DistributedOptimizer;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;

use crate::autograd::{COUNTER_MAX, Message, WorkerId, codec};
use crate::tape::Tape;
use crate::worker::Worker;
use rendez::engine::Engine;
use rendez::ground::{Code, Status, catalogue};
use rendez::memory::Tensor;
use rendez_dataflow::server::executor;
use rendez_rpc::{Agent, Context, Error, Functions, Options, Packer, Unpacker, Value, ValueError};

/// The function that messages of the machine are calls of.
pub(crate) const MESSAGE: &str = "autograd.message";

/// Autograd of a worker whose agent is not there yet.
#[derive(Debug)]
pub struct Joining {
    worker: Worker<Tape>,
    link: link::ByCalls,
}

/// Messages as they travel together.
struct Travelling(Arc<Vec<Message<Tensor>>>);

impl Joining {
    /// A worker on `engine`. Its tape has its tensors in the engine's memory, so that calls bring them without a copy;
    /// its number in the group is that of its agent.
    #[must_use]
    pub fn new(engine: &Engine) -> Self {
        let tape = Tape::with(executor::home(engine.downgrade()));
        let link = link::ByCalls::default();
        let worker = Worker::unnumbered(tape, Box::new(link.clone()));
        link.set_worker(worker.downgrade());
        Self { worker, link }
    }

    /// The worker: functions that are registered may keep it.
    #[must_use]
    pub const fn worker(&self) -> &Worker<Tape> {
        &self.worker
    }

    /// What it computes on: functions that are registered may keep a clone.
    #[must_use]
    pub fn tape(&self) -> &Tape {
        self.worker.engine()
    }

    /// What the agent has to be started with, beside its own: the functions of autograd, and what rides along.
    #[must_use]
    pub fn options(&self, options: Options) -> Options {
        let worker = self.worker.clone();
        let deliver = move |Travelling(messages): Travelling| -> Result<(), Error> {
            if let Some(call) = Context::current() {
                for message in Arc::unwrap_or_clone(messages) {
                    worker.deliver_in_passing(WorkerId(call.caller().0), message);
                }
            }
            Ok(())
        };
        let functions = Functions::new().add_in_shard(MESSAGE, deliver);
        let functions = optimizer::register(functions, &self.worker);
        let functions = backward::register(functions, &self.worker);
        options
            .functions(functions)
            .observer(Arc::new(riding::Riding::new(self.worker.clone())))
    }

    /// Begins: `agent` was started with [`options`](Self::options).
    ///
    /// # Errors
    /// `AUTOGRAD_JOINING` if no agent was started with them, or the last one that was had another number than `agent`.
    pub fn attach(self, agent: &Agent) -> Result<Worker<Tape>, Status> {
        let (is, was) = (agent.worker().id.0, self.worker.id().map(|id| id.0));
        if was != Some(is) {
            let what = match was {
                None => "the agent was not begun with the options of this `Joining`".to_owned(),
                Some(was) => format!(
                    "this `Joining` was worker {was}'s, and the agent is worker {is}: make one for each `Agent::init`"
                ),
            };
            return Err(Status::of(catalogue::AUTOGRAD_JOINING, what));
        }
        self.link.set_agent(agent.downgrade());
        Ok(self.worker)
    }
}

/// Where the ids of a worker begin: elsewhere each time that it starts, for others may keep what has ids of a former
/// life. Three quarters of all ids are left.
fn first_id() -> u64 {
    // The standard library seeds each of these from the system's random numbers.
    let random = RandomState::new().build_hasher().finish();
    random & (COUNTER_MAX >> 2)
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
        to.push_str("autograd::Messages");
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        to.plain(&(self.0.len() as u64))?;
        for message in &*self.0 {
            let (bytes, tensors) = codec::encode(message);
            to.plain(&(tensors.len() as u64))?;
            for tensor in tensors {
                to.tensor(tensor)?;
            }
            to.bytes(&bytes)?;
        }
        Ok(())
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        let mut messages = vec![];
        for _ in 0..from.plain::<u64>()? {
            let mut tensors = vec![];
            for _ in 0..from.plain::<u64>()? {
                tensors.push(from.tensor()?);
            }
            let message = codec::decode(from.bytes()?, tensors);
            messages.push(message.map_err(|error| ValueError::new(error.message()))?);
        }
        Ok(Self(Arc::new(messages)))
    }
}
