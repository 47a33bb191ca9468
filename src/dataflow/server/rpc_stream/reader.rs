//! The reader of one direction of a line: a task of a shard that puts messages together with their tensors.
//!
//! Knows keys and messages. Messages are heard in the order in which they are complete, which is that of their sending
//! except for those with tensors.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use prost::Message;

use rendez::engine::Engine;
use rendez::ground::limits::{LINE_MESSAGE_BYTES_MAX, LINE_QUESTIONS_MAX, LINE_TENSORS_MAX};
use rendez::ground::{FrameIter, Key, Status, StepId, catalogue};
use rendez::mail::Received;
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, Task, TaskContext, TaskEvent};
use rendez_proto::services::LineMessage;

/// The receiving side. Called by a shard: nothing in it may block.
pub(super) trait Handler: Send + Sync {
    /// A message came whose tensors are on their way: it is heard when they are there, and what comes after it may be
    /// heard before.
    fn announced(&self, message: &LineMessage);
    /// A message came, with its tensors.
    fn heard(self: Arc<Self>, message: LineMessage, tensors: Vec<Tensor>);
    /// None comes any more.
    fn lost(self: Arc<Self>, status: Status);
}

/// The token of messages; the others count what is gathered.
const MESSAGES: u64 = 0;

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
        received: Received,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let (messages, tensors) = self.prepared.ok_or_else(|| malformed("before its start"))?;
        if token == MESSAGES {
            context.recv(self.step, messages, MESSAGES);
            return self.message(&received.tensor, tensors, context);
        }
        let (number, index) = (token / PER_MESSAGE, token % PER_MESSAGE);
        let Some(gathered) = self.gathered.get_mut(&number) else {
            return Ok(());
        };
        if let Some(place) = gathered.tensors.get_mut(index as usize) {
            *place = Some(received.tensor);
            gathered.missing -= 1;
        }
        if gathered.missing == 0
            && let Some(whole) = self.gathered.remove(&number)
        {
            self.tell(whole.message, whole.tensors.into_iter().flatten().collect());
        }
        Ok(())
    }

    fn message(
        &mut self,
        bytes: &Tensor,
        tensors: PreparedKey,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        let bytes = bytes.host()?;
        if bytes.len() > LINE_MESSAGE_BYTES_MAX {
            return Err(malformed("longer than LINE_MESSAGE_BYTES_MAX"));
        }
        let message = LineMessage::decode(bytes).map_err(|_| malformed("no message"))?;
        let count = message.tensors as usize;
        if count == 0 {
            self.tell(message, vec![]);
            return Ok(());
        }
        if count > LINE_TENSORS_MAX || self.gathered.len() >= LINE_QUESTIONS_MAX {
            return Err(malformed("with more tensors than may come"));
        }
        let number = self.next;
        self.next += 1;
        for iter in 0..count as u64 {
            let at = FrameIter {
                frame: message.number,
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
        };
        self.gathered.insert(number, gathered);
        Ok(())
    }

    fn tell(&self, message: LineMessage, tensors: Vec<Tensor>) {
        if let Some(handler) = self.handler.upgrade() {
            handler.heard(message, tensors);
        }
    }
}

impl Task for Reader {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let outcome = match event {
            TaskEvent::Started => self.start(context),
            TaskEvent::Received { token, outcome } => {
                outcome.and_then(|received| self.received(token, received, context))
            }
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

/// Tokens of one message's tensors.
const PER_MESSAGE: u64 = LINE_TENSORS_MAX as u64;

fn malformed(what: &str) -> Status {
    let message = format!("a message on a line came {what}: it is closed");
    Status::of(catalogue::CALL_MALFORMED, message)
}
