//! A group of workers in one process, without a network: for programs that are tried out, and for tests.
//!
//! Messages of the machines go through a queue for each worker, which a thread of it empties; a call runs its handler
//! in the thread that calls.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::current::{current_context, enter_nested};
use super::{Hearing, Link, Worker};
use crate::autograd::{LocalEngine, Message, WorkerId};
use rendez::ground::{Status, catalogue};

/// A function that workers call.
pub type Handler<E> = fn(
    &Worker<E>,
    Vec<<E as LocalEngine>::Value>,
) -> Result<Vec<<E as LocalEngine>::Value>, Status>;

/// Who sent it, and what; none is the end.
type Mail<G> = Option<(WorkerId, Message<G>)>;

struct Wire<G> {
    me: WorkerId,
    doors: Arc<OnceLock<Vec<Sender<Mail<G>>>>>,
}

impl<G: Send> Link<G> for Wire<G> {
    fn send(&self, to: WorkerId, messages: Vec<Message<G>>, _: Hearing) {
        if let Some(door) = self
            .doors
            .get()
            .and_then(|doors| doors.get(usize::from(to.0)))
        {
            for message in messages {
                // Whose queue is gone is gone with the whole group.
                let _ = door.send(Some((self.me, message)));
            }
        }
    }
}

/// Workers 0 to n − 1 of one process.
#[derive(Debug)]
pub struct LocalGroup<E: LocalEngine> {
    workers: Vec<Worker<E>>,
    threads: Vec<JoinHandle<()>>,
    handlers: BTreeMap<&'static str, Handler<E>>,
    doors: Vec<Sender<Mail<E::Gradient>>>,
}

impl<E: LocalEngine + 'static> LocalGroup<E>
where
    E::Value: 'static,
    E::Gradient: 'static,
{
    /// A worker for each engine; all can be called by the names of `handlers`.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn new(engines: Vec<E>, handlers: &[(&'static str, Handler<E>)]) -> Result<Self, Status> {
        let doors = Arc::new(OnceLock::new());
        let (mut workers, mut threads, mut senders) = (vec![], vec![], vec![]);
        for (id, engine) in (0u16..).zip(engines) {
            let me = WorkerId(id);
            let worker = Worker::new(
                me,
                engine,
                Box::new(Wire {
                    me,
                    doors: Arc::clone(&doors),
                }),
            );
            let (sender, receiver): (_, Receiver<Mail<E::Gradient>>) = channel();
            let (at, name) = (worker.clone(), format!("autograd-{id}"));
            let empties = move || {
                while let Ok(Some((from, message))) = receiver.recv() {
                    at.deliver(from, message);
                }
            };
            let thread = std::thread::Builder::new().name(name).spawn(empties);
            threads.push(
                thread.map_err(|error| Status::of(catalogue::CONTROL_SYSTEM, error.to_string()))?,
            );
            workers.push(worker);
            senders.push(sender);
        }
        let _ = doors.set(senders.clone());
        Ok(Self {
            workers,
            threads,
            handlers: handlers.iter().copied().collect(),
            doors: senders,
        })
    }

    /// Worker number `index`.
    #[must_use]
    pub fn worker(&self, index: u16) -> &Worker<E> {
        &self.workers[usize::from(index)]
    }

    /// Calls the function `name` of worker `to` from worker `from`, in the context of this thread if it is in one.
    ///
    /// # Errors
    /// What the function says; `NotFound` if there is none of that name or no such worker.
    pub fn call(
        &self,
        from: WorkerId,
        to: WorkerId,
        name: &str,
        values: &[E::Value],
    ) -> Result<Vec<E::Value>, Status> {
        let find = |id: WorkerId| self.workers.get(usize::from(id.0));
        let (Some(caller), Some(callee), Some(handler)) =
            (find(from), find(to), self.handlers.get(name))
        else {
            let message = format!(
                "worker {} has no function '{name}', or is none of the group",
                to.0
            );
            return Err(Status::of(catalogue::AUTOGRAD_OPERATION, message));
        };
        let pass = |from: &Worker<E>, to: &Worker<E>, values: &[E::Value], is_reply| {
            let plain = || {
                values
                    .iter()
                    .map(|value| from.engine().value(value))
                    .collect()
            };
            let (envelope, tensors) = match current_context() {
                Some(context) => from.outgoing(context, to.id(), values, is_reply)?,
                None => (None, plain()),
            };
            to.incoming(from.id(), envelope.as_ref(), tensors)
        };
        let arguments = pass(caller, callee, values, false)?;
        // The handler's context is the call's.
        let entered = enter_nested(current_context());
        let results = handler(callee, arguments)?;
        drop(entered);
        pass(callee, caller, &results, true)
    }
}

impl<E: LocalEngine> Drop for LocalGroup<E> {
    fn drop(&mut self) {
        for door in &self.doors {
            let _ = door.send(None);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
