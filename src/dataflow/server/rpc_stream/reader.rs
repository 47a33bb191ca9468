//! The reader of one direction of a line: a task of a shard that puts messages together with their tensors.
//!
//! Knows keys and messages. Messages are heard in the order in which they are complete, which is that of their sending
//! except for those with tensors, or longer than a frame.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use prost::Message;

use super::status_of;
use rendez::engine::Engine;
use rendez::ground::limits::{LINE_MESSAGE_BYTES_MAX, LINE_QUESTIONS_MAX, LINE_TENSORS_MAX};
use rendez::ground::{FrameIter, Key, Status, StepId, catalogue};
use rendez::mail::Received;
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, Task, TaskContext, TaskEvent};
use rendez_proto::services::{Failure, LineMessage};

/// The receiving side. Called by a shard: nothing in it may block.
pub(super) trait Handler: Send + Sync {
    /// A message came whose tensors are on their way: it is heard when they are there, and what comes after it may be
    /// heard before.
    fn announced(&self, message: &LineMessage);
    /// The message of that number came with its tensors, or why those cannot be sent.
    fn heard(self: Arc<Self>, number: u64, message: Result<(LineMessage, Vec<Tensor>), Status>);
    /// None comes any more.
    fn lost(self: Arc<Self>, status: Status);
}

/// The token of messages; the others count what is gathered.
const MESSAGES: u64 = 0;

/// Why the engine ends the receive of one tensor alone, where it has no room for it.
const NO_ROOM_HERE: [&str; 3] = [
    catalogue::ARENA_FULL,
    catalogue::ARENA_UNFIT,
    catalogue::LANDING_UNOPENED,
];

/// Reads until the line ends, or its handler is gone.
pub(super) struct Reader {
    handler: Weak<dyn Handler>,
    step: StepId,
    keys: (Key, Key),
    prepared: Option<(PreparedKey, PreparedKey)>,
    /// Messages that wait for tensors, by number.
    gathered: BTreeMap<u64, Gathered>,
    next: u64,
}

struct Gathered {
    message: LineMessage,
    tensors: Vec<Option<Tensor>>,
    missing: usize,
    /// Why one of them was not sent, or has no room here.
    refused: Option<Status>,
}

impl Reader {
    /// Reads in the shard that owns the key of messages.
    pub(super) fn spawn(
        engine: &Engine,
        step: StepId,
        keys: (Key, Key),
        handler: Weak<dyn Handler>,
    ) -> Result<(), Status> {
        let shards = u32::try_from(engine.shards()).unwrap_or(u32::MAX);
        let shard = keys.0.shard_of(shards) as usize;
        let reader = Self {
            handler,
            step,
            keys,
            prepared: None,
            gathered: BTreeMap::new(),
            next: 1,
        };
        engine.spawn(shard, Box::new(reader)).map(drop)
    }

    fn start(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let keys = (
            context.prepare(&self.keys.0)?,
            context.prepare(&self.keys.1)?,
        );
        self.prepared = Some(keys);
        context.recv(self.step, keys.0, MESSAGES);
        Ok(())
    }

    fn received(
        &mut self,
        token: u64,
        outcome: Result<Received, Status>,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        if token == MESSAGES {
            let received = outcome?;
            let (messages, tensors) =
                (self.prepared).ok_or_else(|| malformed("before its start"))?;
            context.recv(self.step, messages, MESSAGES);
            return self.message(&received.tensor, tensors, context);
        }
        let (number, index) = (token / PER_MESSAGE, token % PER_MESSAGE);
        let received = match outcome {
            Err(status) if !NO_ROOM_HERE.contains(&status.reason()) => return Err(status),
            received => received,
        };
        let Some(gathered) = self.gathered.get_mut(&number) else {
            return Ok(());
        };
        gathered.missing -= 1;
        match gathered.kept(received, context)? {
            Ok(tensor) => {
                if let Some(place) = gathered.tensors.get_mut(index as usize) {
                    *place = Some(tensor);
                }
            }
            Err(status) => drop(gathered.refused.get_or_insert(status)),
        }
        if gathered.refused.is_some() {
            gathered.tensors.clear();
        }
        if gathered.missing == 0
            && let Some(whole) = self.gathered.remove(&number)
        {
            self.tell(whole.message.number, whole.into_message()?);
        }
        Ok(())
    }

    fn message(
        &mut self,
        bytes: &Tensor,
        tensors: PreparedKey,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let message = read(bytes)?;
        let count = message.tensors as usize;
        if count == 0 {
            self.tell(message.number, Ok((message, vec![])));
            return Ok(());
        }
        if count > LINE_TENSORS_MAX + usize::from(message.apart)
            || self.gathered.len() >= LINE_QUESTIONS_MAX
        {
            return Err(malformed("with more tensors than may come"));
        }
        let number = self.next;
        self.next += 1;
        for iter in 0..count as u64 {
            let at = FrameIter {
                frame: message.frame,
                iter,
            };
            context.recv(self.step, tensors.at(at), number * PER_MESSAGE + iter);
        }
        if let Some(handler) = self.handler.upgrade() {
            handler.announced(&message);
        }
        let gathered = Gathered {
            message,
            tensors: vec![None; count],
            missing: count,
            refused: None,
        };
        self.gathered.insert(number, gathered);
        Ok(())
    }

    fn tell(&self, number: u64, message: Result<(LineMessage, Vec<Tensor>), Status>) {
        if let Some(handler) = self.handler.upgrade() {
            handler.heard(number, message);
        }
    }
}

impl Task for Reader {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let outcome = match event {
            TaskEvent::Started => self.start(context),
            TaskEvent::Received { token, outcome } => self.received(token, outcome, context),
            TaskEvent::Stopping => Err(Status::of(catalogue::SHUTDOWN, "Shutdown")),
            _ => Ok(()),
        };
        let handler = self.handler.upgrade();
        if let (Err(status), Some(handler)) = (&outcome, &handler) {
            Arc::clone(handler).lost(status.clone());
        }
        if outcome.is_err() || handler.is_none() {
            context.finish();
        }
    }
}

impl Gathered {
    /// What came of one of its tensors, to keep until all are there; or why it is not there. An error of our own is
    /// that of the line.
    fn kept(
        &self,
        received: Result<Received, Status>,
        context: &mut TaskContext<'_>,
    ) -> Result<Result<Tensor, Status>, Status> {
        let tensor = match received {
            Ok(received) if received.is_dead => return why(&received.tensor).map(Err),
            Ok(received) => received.tensor,
            Err(status) => return Ok(Err(status)),
        };
        // What is read in place takes room at the sender, which those that are missing may wait for.
        let takes_room = tensor.is_leased() && !tensor.is_device();
        if takes_room && self.message.waits && self.missing > 0 && self.refused.is_none() {
            return Ok(copied(&tensor, context));
        }
        Ok(Ok(tensor))
    }

    /// The message, or why it is none. An error of our own is that of the line.
    fn into_message(self) -> Result<Result<(LineMessage, Vec<Tensor>), Status>, Status> {
        if let Some(status) = self.refused {
            return Ok(Err(status));
        }
        let mut tensors = self.tensors.into_iter().flatten();
        let message = match self.message.apart {
            true => read(&tensors.next().ok_or_else(|| malformed("without itself"))?)?,
            false => self.message,
        };
        Ok(Ok((message, tensors.collect())))
    }
}

/// Tokens of one message's tensors, the message itself among them.
const PER_MESSAGE: u64 = LINE_TENSORS_MAX as u64 + 1;

fn read(bytes: &Tensor) -> Result<LineMessage, Status> {
    let bytes = bytes.host()?;
    if bytes.len() > LINE_MESSAGE_BYTES_MAX {
        return Err(malformed("longer than LINE_MESSAGE_BYTES_MAX"));
    }
    LineMessage::decode(bytes).map_err(|_| malformed("no message"))
}

/// A tensor of another task, in memory of this one. The shard does nothing else meanwhile, however long it is: it is so
/// only where something waits.
fn copied(leased: &Tensor, context: &mut TaskContext<'_>) -> Result<Tensor, Status> {
    Ok(context.tensor_from(leased.meta(), leased.host()?)?)
}

/// What a dead tensor says.
fn why(dead: &Tensor) -> Result<Status, Status> {
    let bytes = dead.host()?;
    if bytes.len() > LINE_MESSAGE_BYTES_MAX {
        return Err(malformed(
            "whose failure is longer than LINE_MESSAGE_BYTES_MAX",
        ));
    }
    let failure = Failure::decode(bytes).map_err(|_| malformed("whose failure is none"))?;
    Ok(status_of(&failure))
}

fn malformed(what: &str) -> Status {
    let message = format!("a message on a line came {what}: it is closed");
    Status::of(catalogue::CALL_MALFORMED, message)
}
