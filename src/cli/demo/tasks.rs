//! The two in-shard tasks of a demonstration: one has the tensors, the other asks for them one by one and checks them.
//!
//! Know keys and tensors; nothing of processes and files. They run within the shards, so that a latency is that of the
//! engine and not of a thread that waits for its core.
//!
//! ```text
//! producer                              consumer
//!    │  ◀──────────── go ─────────────── │  receives tensor i, and says so
//!  sent[i] = now                         │
//!    │  ────────── tensor i ───────────▶ │  received[i] = now; then every byte is compared, a piece a turn
//!    │  ◀──────────── go ─────────────── │  tensor i + 1, …, and round again
//!    │  ◀─────────── over ────────────── │
//!    │  ◀────────── findings ─────────── │
//! ```

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::plan::{self, CONSUMER, Findings, PRODUCER, TENSORS};
use crate::error::CliError;
use rendez::ground::{Key, Shape, Status, TensorMeta, catalogue};
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, Task, TaskContext, TaskEvent};

/// Bytes compared in one turn: about 20 µs of work, so that the shard's loop is never long away.
const COMPARED_PER_TURN: usize = 256 << 10;

/// Records for which there is room from the start: nothing is allocated between two hand-overs of a small file.
const RECORDS_ROOM: usize = 1 << 16;

/// What the consumer says: a tensor is awaited, or the batch is over.
const GO: u32 = 1;
const OVER: u32 = 0;

/// Where a task says why it gave up, for the thread that waits for it.
pub(super) type Failure = Arc<OnceLock<Status>>;

/// The keys that both tasks of a batch use beside the tensors' own.
#[derive(Clone, Debug)]
pub(super) struct BatchKeys {
    /// Consumer to producer: [`GO`] or [`OVER`].
    go: Key,
    /// Consumer to producer: the [`Findings`].
    pub(super) findings: Key,
    /// Producer to itself: when each tensor was sent.
    pub(super) sent: Key,
    /// Consumer to itself: the batch is over.
    pub(super) over: Key,
}

impl BatchKeys {
    pub(super) fn new() -> Result<Self, CliError> {
        Ok(Self {
            go: plan::key(CONSUMER, PRODUCER, "go")?,
            findings: plan::key(CONSUMER, PRODUCER, "findings")?,
            sent: plan::key(PRODUCER, PRODUCER, "sent")?,
            over: plan::key(CONSUMER, CONSUMER, "over")?,
        })
    }
}

/// Sends the tensors of a batch, each when the consumer says that it waits, as often as it says so.
pub(super) struct Producer {
    pub(super) keys: BatchKeys,
    pub(super) tensors: Vec<(Key, Tensor)>,
    pub(super) failure: Failure,
    prepared: Vec<PreparedKey>,
    go: Option<PreparedKey>,
    next: usize,
    sent: Vec<u64>,
}

impl Producer {
    pub(super) fn new(keys: BatchKeys, tensors: Vec<(Key, Tensor)>, failure: Failure) -> Self {
        let sent =
            Vec::with_capacity((tensors.len() * plan::ROUNDS_MAX as usize).min(RECORDS_ROOM));
        Self {
            keys,
            tensors,
            failure,
            prepared: Vec::new(),
            go: None,
            next: 0,
            sent,
        }
    }

    fn start(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        self.prepared = self
            .tensors
            .iter()
            .map(|(key, _)| context.prepare(key))
            .collect::<Result<_, _>>()?;
        let go = context.prepare(&self.keys.go)?;
        self.go = Some(go);
        context.recv(TENSORS, go, 0);
        Ok(())
    }

    #[inline]
    fn serve(&mut self, said: &Tensor, context: &mut TaskContext<'_>) -> Result<(), Status> {
        if said.as_slice::<u32>().map_err(Status::from)? != [GO] {
            let sent = context.prepare(&self.keys.sent)?;
            context.send(TENSORS, sent, numbers(&self.sent)?)?;
            context.finish();
            return Ok(());
        }
        let tensor = self.tensors[self.next].1.clone();
        let now = plan::now_ns();
        context.send(TENSORS, self.prepared[self.next], tensor)?;
        self.sent.push(now);
        self.next = (self.next + 1) % self.tensors.len();
        if let Some(go) = self.go {
            context.recv(TENSORS, go, 0);
        }
        Ok(())
    }
}

impl Task for Producer {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let done = match event {
            TaskEvent::Started => self.start(context),
            TaskEvent::Received {
                outcome: Ok(said), ..
            } => self.serve(&said.tensor, context),
            TaskEvent::Received {
                outcome: Err(status),
                ..
            } => Err(status),
            _ => Ok(()),
        };
        give_up_on(done, &self.failure, context);
    }
}

/// What the consumer awaits: a key, and what the file says of its tensor.
#[derive(Clone, Debug)]
pub(super) struct Awaited {
    pub(super) key: Key,
    pub(super) meta: TensorMeta,
    /// Where its bytes lie in the batch's.
    pub(super) start: usize,
    pub(super) len: usize,
}

/// How long a consumer goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    /// Rounds, at most.
    pub(super) rounds: u64,
    /// Time, after which no further round begins once there were the least number of them.
    pub(super) time: Duration,
}

/// Asks for the tensors of a batch, round after round, and compares every byte with the file's.
pub(super) struct Consumer {
    keys: BatchKeys,
    awaited: Vec<Awaited>,
    /// The bytes of the batch, as this side has read them.
    expected: Vec<u8>,
    until: Until,
    failure: Failure,
    prepared: Vec<PreparedKey>,
    go: Option<PreparedKey>,
    at: usize,
    round: u64,
    started_ns: u64,
    /// The tensor being compared, and how far.
    current: Option<(Tensor, usize)>,
    findings: Findings,
}

impl Consumer {
    pub(super) fn new(
        keys: BatchKeys,
        awaited: Vec<Awaited>,
        expected: Vec<u8>,
        until: Until,
        failure: Failure,
    ) -> Self {
        let records = (awaited.len() as u64)
            .saturating_mul(until.rounds)
            .min(RECORDS_ROOM as u64) as usize;
        let findings = Findings {
            received: Vec::with_capacity(records),
            ..Findings::default()
        };
        Self {
            keys,
            awaited,
            expected,
            until,
            failure,
            prepared: Vec::new(),
            go: None,
            at: 0,
            round: 0,
            started_ns: 0,
            current: None,
            findings,
        }
    }

    fn start(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        self.prepared = self
            .awaited
            .iter()
            .map(|awaited| context.prepare(&awaited.key))
            .collect::<Result<_, _>>()?;
        self.go = Some(context.prepare(&self.keys.go)?);
        self.started_ns = plan::now_ns();
        self.ask(context)
    }

    /// Waits for the next tensor, and only then says so: the hand-over finds its receiver ready.
    fn ask(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        context.recv(TENSORS, self.prepared[self.at], 0);
        self.say(GO, context)
    }

    fn say(&self, word: u32, context: &mut TaskContext<'_>) -> Result<(), Status> {
        match self.go {
            Some(go) => context.send(TENSORS, go, Tensor::scalar(word)),
            None => Ok(()),
        }
    }

    fn compare(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        let Some((tensor, from)) = self.current.take() else {
            return Ok(());
        };
        let awaited = &self.awaited[self.at];
        let expected = &self.expected[awaited.start..][..awaited.len];
        let found = tensor.host()?;
        if tensor.meta() != awaited.meta || found.len() != expected.len() {
            return self.end(Some((self.at, 0)), context);
        }
        let to = expected.len().min(from + COMPARED_PER_TURN);
        if found[from..to] != expected[from..to] {
            let at = (from..to)
                .find(|&at| found[at] != expected[at])
                .unwrap_or(from);
            return self.end(Some((self.at, at as u64)), context);
        }
        if to < expected.len() {
            self.current = Some((tensor, to));
            context.again();
            return Ok(());
        }
        drop(tensor);
        self.advance(context)
    }

    fn advance(&mut self, context: &mut TaskContext<'_>) -> Result<(), Status> {
        self.at += 1;
        if self.at < self.awaited.len() {
            return self.ask(context);
        }
        self.at = 0;
        self.round += 1;
        let now = plan::now_ns();
        if self.round == 1 {
            self.findings.began_ns = now;
        }
        self.findings.ended_ns = now;
        let is_late = u128::from(now - self.started_ns) >= self.until.time.as_nanos();
        if self.round >= self.until.rounds || is_late && self.round >= plan::ROUNDS_MIN {
            return self.end(None, context);
        }
        self.ask(context)
    }

    fn end(
        &mut self,
        differs: Option<(usize, u64)>,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        self.findings.differs = differs;
        self.say(OVER, context)?;
        let findings = context.prepare(&self.keys.findings)?;
        context.send(TENSORS, findings, numbers(&self.findings.numbers())?)?;
        let over = context.prepare(&self.keys.over)?;
        context.send(TENSORS, over, Tensor::scalar(OVER))?;
        context.finish();
        Ok(())
    }
}

impl Task for Consumer {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        let done = match event {
            TaskEvent::Started => self.start(context),
            TaskEvent::Received {
                outcome: Ok(received),
                ..
            } => {
                self.findings.received.push((plan::now_ns(), received.path));
                self.current = Some((received.tensor, 0));
                self.compare(context)
            }
            TaskEvent::Received {
                outcome: Err(status),
                ..
            } => Err(status),
            TaskEvent::Again => self.compare(context),
            _ => Ok(()),
        };
        give_up_on(done, &self.failure, context);
    }
}

fn give_up_on(done: Result<(), Status>, failure: &Failure, context: &mut TaskContext<'_>) {
    if let Err(status) = done {
        // The first failure is the one that is told.
        let _ = failure.set(status);
        context.finish();
    }
}

/// A row of numbers as a tensor.
pub(super) fn numbers(numbers: &[u64]) -> Result<Tensor, Status> {
    let shape = Shape::new(&[numbers.len() as u64])
        .map_err(|error| Status::of(catalogue::TENSOR_SHAPE, error.to_string()))?;
    Tensor::from_vec(numbers.to_vec(), shape).map_err(Status::from)
}
