//! A group of workers in one process, without a network.
//!
//! Messages of the machines go through a queue for each worker, which a thread of it empties; a call runs its handler
//! in the thread that calls.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::super::current::{current_context, enter_nested};
use super::super::{Hearing, Link, Worker};
use crate::autograd::{Message, WorkerId};
use crate::tape::{Tape, Var};
use rendez::ground::Status;
use rendez::memory::Tensor;

/// A function that workers call.
pub(super) type Handler = fn(&Worker<Tape>, Vec<Var>) -> Result<Vec<Var>, Status>;

/// Who sent it, and what; none is the end.
type Mail = Option<(WorkerId, Message<Tensor>)>;

struct Wire {
    me: WorkerId,
    doors: Arc<OnceLock<Vec<Sender<Mail>>>>,
}

impl Link<Tensor> for Wire {
    fn send(&self, to: WorkerId, messages: Vec<Message<Tensor>>, _: Hearing) {
        let doors = self.doors.get();
        if let Some(door) = doors.and_then(|doors| doors.get(usize::from(to.0))) {
            for message in messages {
                // Whose queue is gone is gone with the whole group.
                let _ = door.send(Some((self.me, message)));
            }
        }
    }
}

/// Workers 0 to n − 1 of one process.
pub(super) struct LocalGroup {
    workers: Vec<Worker<Tape>>,
    threads: Vec<JoinHandle<()>>,
    handlers: BTreeMap<&'static str, Handler>,
    doors: Vec<Sender<Mail>>,
}

impl LocalGroup {
    /// A worker for each engine; all can be called by the names of `handlers`.
    pub(super) fn new(engines: Vec<Tape>, handlers: &[(&'static str, Handler)]) -> Self {
        let doors = Arc::new(OnceLock::new());
        let (mut workers, mut threads, mut senders) = (vec![], vec![], vec![]);
        for (id, engine) in (0u16..).zip(engines) {
            let me = WorkerId(id);
            let wire = Wire {
                me,
                doors: Arc::clone(&doors),
            };
            let worker = Worker::new(me, engine, Box::new(wire));
            let (sender, receiver): (_, Receiver<Mail>) = channel();
            let at = worker.clone();
            threads.push(std::thread::spawn(move || {
                while let Ok(Some((from, message))) = receiver.recv() {
                    at.deliver(from, message);
                }
            }));
            workers.push(worker);
            senders.push(sender);
        }
        let _ = doors.set(senders.clone());
        Self {
            workers,
            threads,
            handlers: handlers.iter().copied().collect(),
            doors: senders,
        }
    }

    /// Worker number `index`.
    pub(super) fn worker(&self, index: u16) -> &Worker<Tape> {
        &self.workers[usize::from(index)]
    }

    /// Calls the function `name` of worker `to` from worker `from`, in the context of this thread if it is in one.
    pub(super) fn call(
        &self,
        from: WorkerId,
        to: WorkerId,
        name: &str,
        values: &[Var],
    ) -> Result<Vec<Var>, Status> {
        let (caller, callee) = (self.worker(from.0), self.worker(to.0));
        let pass = |from: &Worker<Tape>, to: &Worker<Tape>, values: &[Var], is_reply| {
            let (envelope, tensors) = match current_context() {
                Some(context) => {
                    from.outgoing(context, to.id().expect("numbered"), values, is_reply)?
                }
                None => {
                    let plain = values.iter().map(|value| value.tensor().clone());
                    (None, plain.collect())
                }
            };
            to.incoming(from.id().expect("numbered"), envelope.as_ref(), tensors)
        };
        let arguments = pass(caller, callee, values, false)?;
        // The handler's context is the call's.
        let entered = enter_nested(current_context());
        let results = self.handlers[name](callee, arguments)?;
        drop(entered);
        pass(callee, caller, &results, true)
    }
}

impl Drop for LocalGroup {
    fn drop(&mut self) {
        for door in &self.doors {
            let _ = door.send(None);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
