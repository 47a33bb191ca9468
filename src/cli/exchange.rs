//! Exchange: hands files of tensors from one task to another, by key, and checks them.
//!
//! Knows engines and keys; not how the two have found each other, nor what becomes of what was taken.
//!
//! ```text
//!   source                                                       destination
//!   manifest ──────────────────────────────────────────────────▶ names, lengths
//!   each file: header, tensor, tensor, …, SHA-256 ─────────────▶ taken piece by piece, and digested
//!            ◀────────────────────────────────────────── "taken", after each piece
//!            ◀──────────── report, when all of it was checked, written and synced, or why not
//!   heard ─────────────────────────────────────────────────────▶ ends only now: its last word has arrived
//! ```
//!
//! Each direction is one key, first in first out. What is under way is bounded: the source goes on when pieces were
//! taken. A source that fails sends a dead value that says why.

mod words;

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::{Duration, Instant};

use futures_lite::future::{block_on, or};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

pub(super) use self::words::Manifest;
use self::words::{Described, Failed, Report, judge, malformed};
use super::clock::before;
use super::error::CliError;
use super::push_files::{Content, Kept, PushFiles};
use super::weights::{self, Entry, Weights};
use rendez::engine::{Engine, Recv};
use rendez::ground::{Code, DType, Key, Shape, Status, StepId, TaskName, catalogue};
use rendez::mail::Received;
use rendez::memory::Tensor;

/// The step of exchanges: none of those that programs count up from zero.
const STEP: StepId = StepId(u64::MAX - 1);

/// From the source.
const DATA: &str = "rendez.push.data";
/// To the source.
const TAKEN: &str = "rendez.push.taken";

/// From the source, after the report.
const HEARD: &str = "rendez.push.heard";
/// Never sent: a receive of it learns that the other cannot be reached, and takes nothing that is for others.
const THERE: &str = "rendez.push.there";

/// How much longer a receive is waited for than a dial: the dial reports an absent task first, and knows why.
pub(super) const GRACE: Duration = Duration::from_secs(3);

/// Bytes under way before some must have been taken; one piece may be longer.
const WINDOW: u64 = 256 << 20;

/// Pieces under way.
const PIECES_MAX: usize = 256;

/// Bytes a second that any disk and any network moves: for so long a piece may take, and the last word.
const SLOWEST: u64 = 10 << 20;

/// How long the last words of both ends may take, and what is under way before them.
const SETTLES_IN: Duration = Duration::from_secs(10);

/// What came of it, at either end.
#[derive(Debug)]
pub(super) struct ExchangeOutcome {
    /// SHA-256 of each file, in order: the same at both ends.
    pub(super) sums: Vec<String>,
    /// The destination has written and synced it.
    pub(super) is_written: bool,
}

/// A tensor that came.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    /// What it is in its file.
    pub(super) entry: &'a Entry,
    /// It, and the path it took.
    pub(super) received: &'a Received,
    /// From the receive to the value.
    pub(super) took: Duration,
}

/// Where what was taken goes.
pub(super) trait Sink {
    /// Before anything else: what will come.
    fn begin(&mut self, manifest: &Manifest) -> Result<(), CliError>;
    /// The next bytes of a file.
    fn write(&mut self, file: usize, bytes: &[u8]) -> Result<(), CliError>;
    /// A tensor whose bytes were written.
    fn took(&mut self, taken: &Taken<'_>) -> Result<(), CliError>;
    /// All files came, and are right. Gives whether they were written, and are there.
    fn finish(&mut self) -> Result<bool, CliError>;
}

/// Files on their way to a task.
#[must_use = "without waiting it is not known whether it was taken"]
pub(super) struct Delivery<'a> {
    push_files: &'a PushFiles,
    engine: &'a Engine,
    to: TaskName,
    patience: Duration,
    heard: Recv,
    /// Ends when the other is lost, and began before that: a receive that begins later waits for it to come back.
    there: Recv,
    /// The file that is being sent, and its next piece.
    at: (usize, usize),
    digest: Context,
    sums: Vec<String>,
    under_way: VecDeque<u64>,
    taken: u64,
}

/// Ends if `task` cannot be reached, or is lost, with the reason; and never else.
pub(super) fn probe(engine: &Engine, task: &TaskName) -> Result<Recv, Status> {
    let step = engine.step(STEP);
    step.recv(&key(task, engine.task(), THERE)?).start()
}

/// Begins to listen for what `to` says. If it cannot be reached this ends with the reason.
pub(super) fn hear_taken(engine: &Engine, to: &TaskName) -> Result<Recv, Status> {
    let step = engine.step(STEP);
    step.recv(&key(to, engine.task(), TAKEN)?).start()
}

/// Begins to listen for what `from` sends. If it cannot be reached this ends with the reason.
pub(super) fn hear_data(engine: &Engine, from: &TaskName) -> Result<Recv, Status> {
    let step = engine.step(STEP);
    step.recv(&key(from, engine.task(), DATA)?).start()
}

impl PushFiles {
    /// Reads all files of weights once, for all who take them: their tensors stay in the arena.
    pub(super) fn keep(&self, engine: &Engine) -> Result<(), CliError> {
        for push_file in &self.push_files {
            let Content::Weights(weights) = &push_file.content else {
                continue;
            };
            let mut digest = Context::new(&SHA256);
            digest.update(&(weights.header().len() as u64).to_le_bytes());
            digest.update(weights.header());
            let mut tensors = Vec::new();
            for entry in weights.entries() {
                let tensor = tensor_of(engine, weights, entry)?;
                digest.update(tensor.host().map_err(Status::from)?);
                tensors.push(tensor);
            }
            let sum = hex(digest.finish().as_ref());
            push_file.kept.get_or_init(|| Kept { tensors, sum });
        }
        Ok(())
    }

    /// Begins to send everything to `to`, as much as may be under way. `heard` listens to it already.
    pub(super) fn send<'a>(
        &'a self,
        engine: &'a Engine,
        to: &TaskName,
        heard: Recv,
        patience: Duration,
    ) -> Result<Delivery<'a>, CliError> {
        let described = self.push_files.iter().map(|push_file| Described {
            name: push_file.name.clone(),
            bytes: push_file.bytes(),
            is_weights: matches!(push_file.content, Content::Weights(_)),
        });
        let manifest = Manifest {
            name: self.name().to_owned(),
            is_folder: self.is_folder,
            files: described.collect(),
        };
        let mut delivery = Delivery {
            push_files: self,
            engine,
            to: to.clone(),
            patience,
            heard,
            there: probe(engine, to)?,
            at: (0, 0),
            digest: Context::new(&SHA256),
            sums: Vec::new(),
            under_way: VecDeque::new(),
            taken: 0,
        };
        delivery.give(text(&manifest, to)?)?;
        delivery.fill()?;
        Ok(delivery)
    }
}

impl Delivery<'_> {
    /// Sends the rest, and waits until the other end has it for good. `progress` hears how many bytes were taken.
    pub(super) fn wait(
        mut self,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ExchangeOutcome, CliError> {
        let report = loop {
            self.fill()?;
            // The last word comes when all of it was synced.
            let awaited = self.under_way.front().copied();
            let awaited = awaited.unwrap_or_else(|| self.push_files.bytes());
            let got = self.next(self.patience + GRACE + slowly(awaited))?;
            if got.tensor.dtype() == DType::U64 {
                let len = self.under_way.pop_front();
                let len = len.ok_or_else(|| malformed(&self.to, &"it took what was not sent"))?;
                self.taken += len;
                progress(self.taken);
                continue;
            }
            break read::<Report>(&got, &self.to)?;
        };
        self.ends();
        if let Some(failed) = report.failed {
            return Err(failed.status(&self.to).into());
        }
        let is_all = self.at.0 == self.push_files.push_files.len();
        if !is_all || report.sums != self.sums {
            let message = format!("what {} has is not what was sent", self.to);
            return Err(Status::new(Code::DataLoss, catalogue::DATA_MISMATCH, message).into());
        }
        Ok(ExchangeOutcome {
            sums: report.sums,
            is_written: report.is_written,
        })
    }

    /// What the other end says next.
    fn next(&mut self, patience: Duration) -> Result<Received, Status> {
        let next = hear_taken(self.engine, &self.to)?;
        let heard = std::mem::replace(&mut self.heard, next);
        wait(heard, &mut self.there, &self.to, Instant::now() + patience)
            .map_err(|status| self.engine.with_cause(&self.to, status))
    }

    /// Tells the other end that its report is here, and that it may go.
    fn ends(&self) {
        let step = self.engine.step(STEP);
        let key = key(self.engine.task(), &self.to, HEARD);
        let told = key.and_then(|key| step.send(&key, Tensor::scalar(1_u64)));
        if let Err(status) = told {
            tracing::debug!(%status, "the other end waits a while for nothing");
        }
    }

    /// Sends as much as may be under way.
    fn fill(&mut self) -> Result<(), CliError> {
        while let Some(push_file) = self.push_files.push_files.get(self.at.0) {
            let under_way: u64 = self.under_way.iter().sum();
            let len = match &push_file.content {
                Content::Weights(weights) => self
                    .at
                    .1
                    .checked_sub(1)
                    .and_then(|tensor| weights.entries().get(tensor))
                    .map_or(0, |entry| entry.len),
                Content::Index(text) => text.len() as u64,
            };
            let is_full = under_way + len > WINDOW || self.under_way.len() >= PIECES_MAX;
            if is_full && !self.under_way.is_empty() {
                return Ok(());
            }
            let piece = match self.piece() {
                Ok(piece) => piece,
                // What is taken makes room.
                Err(error) if is_no_room(&error) && !self.under_way.is_empty() => return Ok(()),
                Err(error) => {
                    self.give_up(&error);
                    return Err(error);
                }
            };
            self.give(piece)?;
        }
        Ok(())
    }

    /// The next piece: the header or a tensor of a file of weights, the text of an index, or the file's digest.
    fn piece(&mut self) -> Result<Tensor, CliError> {
        let (file, piece) = self.at;
        let push_file = &self.push_files.push_files[file];
        let kept = push_file.kept.get();
        let tensor = match (&push_file.content, piece) {
            (Content::Weights(weights), 0) => {
                let header = weights.header();
                self.digest.update(&(header.len() as u64).to_le_bytes());
                row(header.to_vec(), &self.to)?
            }
            (Content::Weights(weights), piece) if piece <= weights.entries().len() => match kept {
                Some(kept) => kept.tensors[piece - 1].clone(),
                None => tensor_of(self.engine, weights, &weights.entries()[piece - 1])?,
            },
            (Content::Index(text), 0) => row(text.clone(), &self.to)?,
            _ => {
                let digest = std::mem::replace(&mut self.digest, Context::new(&SHA256));
                let digested = || hex(digest.finish().as_ref());
                let sum = kept.map_or_else(digested, |kept| kept.sum.clone());
                self.sums.push(sum.clone());
                self.at = (file + 1, 0);
                return Ok(row(sum.into_bytes(), &self.to)?);
            }
        };
        if kept.is_none() {
            self.digest.update(tensor.host().map_err(Status::from)?);
        }
        self.at.1 += 1;
        Ok(tensor)
    }

    fn give(&mut self, piece: Tensor) -> Result<(), CliError> {
        let len = piece.size() as u64;
        let step = self.engine.step(STEP);
        let key = key(self.engine.task(), &self.to, DATA)?;
        let patience = self.patience + slowly(self.under_way.iter().sum());
        let send = step.send_async(&key, piece).deadline(patience);
        let sent = async { send.await.map_err(Status::from) };
        block_on(or(sent, lost(&mut self.there)))
            .map_err(|status| self.engine.with_cause(&self.to, status))?;
        self.under_way.push_back(len);
        Ok(())
    }

    /// Tells the other end why nothing more comes, and waits until it knows.
    fn give_up(&mut self, error: &CliError) {
        let mut told = || -> Result<(), Status> {
            let step = self.engine.step(STEP);
            let why = text(&Failed::of(error), &self.to)?;
            step.send_dead(&key(self.engine.task(), &self.to, DATA)?, why)?;
            let patience = SETTLES_IN + slowly(self.under_way.iter().sum());
            while self.next(patience)?.tensor.dtype() == DType::U64 {}
            self.ends();
            Ok(())
        };
        if let Err(status) = told() {
            tracing::debug!(%status, "the other end is not told why nothing more comes");
        }
    }
}

/// A tensor of a file, read into the arena.
pub(super) fn tensor_of(
    engine: &Engine,
    weights: &Weights,
    entry: &Entry,
) -> Result<Tensor, CliError> {
    let dims: Vec<u64> = entry.meta.shape.dims().collect();
    let mut builder = engine.tensor(entry.meta.dtype, &dims)?;
    let bytes = builder.bytes_mut();
    weights.read_into(entry, bytes)?;
    // Finished, each that is not zero is one, and what comes out is another file.
    weights.check_truths(entry, bytes)?;
    Ok(builder.finish())
}

/// Takes what `from` sends, checks it, and has it written. `heard` listens to it already. When this returns the source
/// is being told how it went: [`settle`] waits until it knows.
pub(super) fn take(
    engine: &Engine,
    from: &TaskName,
    heard: Recv,
    patience: Duration,
    sink: &mut dyn Sink,
) -> Result<ExchangeOutcome, CliError> {
    let mut taker = Taker {
        engine,
        from,
        heard,
        there: probe(engine, from)?,
        patience,
    };
    let outcome = taker.all(sink);
    let report = match &outcome {
        Ok(outcome) => Report {
            sums: outcome.sums.clone(),
            is_written: outcome.is_written,
            failed: None,
        },
        Err(error) => Report {
            sums: Vec::new(),
            is_written: false,
            failed: Some(Failed::of(error)),
        },
    };
    let told = text(&report, from).and_then(|report| taker.say(report));
    match (outcome, told) {
        (Ok(outcome), told) => {
            if let Err(status) = told {
                tracing::warn!(%from, %status, "the source could not be told that everything was received");
            }
            Ok(outcome)
        }
        (Err(error), _) => Err(error),
    }
}

/// Begins to listen for the word that `from` has the report of a [`take`]. Before that is made: a task that has left
/// sends nothing any more, and what it sent and nothing waited for is gone with it.
pub(super) fn hear_known(engine: &Engine, from: &TaskName) -> Result<Recv, Status> {
    let step = engine.step(STEP);
    step.recv(&key(from, engine.task(), HEARD)?).start()
}

/// Waits until `from` has the report of a [`take`], as `known` says, or cannot have it any more: a task that leaves
/// earlier may take its last word with it. What `from` has sent meanwhile, since it did not know, is let go of.
pub(super) fn settle(engine: &Engine, from: &TaskName, known: Recv) {
    if let Err(status) = settled(engine, from, known) {
        tracing::debug!(%from, %status, "the source may not know how it went");
    }
}

fn settled(engine: &Engine, from: &TaskName, known: Recv) -> Result<(), Status> {
    let unwanted = async {
        loop {
            drop(hear_data(engine, from)?.await?);
        }
    };
    let settles = or(async { known.await.map(drop) }, unwanted);
    before(Instant::now() + SETTLES_IN, settles).unwrap_or_else(|| {
        let message = format!("{from} did not say that it knows how it went");
        Err(Status::of(catalogue::DEADLINE, message))
    })
}

struct Taker<'a> {
    engine: &'a Engine,
    from: &'a TaskName,
    heard: Recv,
    /// As a delivery's.
    there: Recv,
    patience: Duration,
}

impl Taker<'_> {
    fn all(&mut self, sink: &mut dyn Sink) -> Result<ExchangeOutcome, CliError> {
        let (got, _) = self.next(0)?;
        let manifest: Manifest = read(&got, self.from)?;
        judge(&manifest, self.from)?;
        self.took()?;
        sink.begin(&manifest)?;
        let mut sums = Vec::new();
        for (file, described) in manifest.files.iter().enumerate() {
            let mut digest = Context::new(&SHA256);
            let mut put = |sink: &mut dyn Sink, bytes: &[u8]| {
                digest.update(bytes);
                sink.write(file, bytes)
            };
            let (first, _) = self.next(described.bytes.min(weights::HEADER_BYTES_MAX))?;
            let first = bytes_of(&first, self.from)?;
            if described.is_weights {
                let entries = self.entries(first, described)?;
                put(sink, &(first.len() as u64).to_le_bytes())?;
                put(sink, first)?;
                self.took()?;
                for entry in &entries {
                    let (received, took) = self.next(entry.len)?;
                    if received.tensor.meta() != entry.meta {
                        return Err(mismatch(&entry.name, self.from));
                    }
                    put(sink, received.tensor.host().map_err(Status::from)?)?;
                    sink.took(&Taken {
                        entry,
                        received: &received,
                        took,
                    })?;
                    // It goes home before its owner hears that it may send more.
                    drop(received);
                    self.took()?;
                }
            } else {
                if first.len() as u64 != described.bytes {
                    return Err(mismatch(&described.name, self.from));
                }
                put(sink, first)?;
                self.took()?;
            }
            let (theirs, _) = self.next(0)?;
            let ours = hex(digest.finish().as_ref());
            if bytes_of(&theirs, self.from)? != ours.as_bytes() {
                return Err(mismatch(&described.name, self.from));
            }
            sums.push(ours);
            self.took()?;
        }
        let is_written = sink.finish()?;
        Ok(ExchangeOutcome { sums, is_written })
    }

    /// The tensors that a header promises. It is a claim, as a file is.
    fn entries(&self, header: &[u8], described: &Described) -> Result<Vec<Entry>, Status> {
        weights::of_header(header, described.bytes)
            .map_err(|fault| malformed(self.from, &fault.of(&described.name)))
    }

    /// The next piece, of about so many bytes, and how long it took.
    fn next(&mut self, len: u64) -> Result<(Received, Duration), Status> {
        let began = Instant::now();
        // The next one is waited for already: so it comes while this one is written.
        let next = hear_data(self.engine, self.from)?;
        let heard = std::mem::replace(&mut self.heard, next);
        let until = began + self.patience + GRACE + slowly(len);
        let got = wait(heard, &mut self.there, self.from, until)
            .map_err(|status| self.engine.with_cause(self.from, status))?;
        if got.is_dead {
            let failed: Failed = read(&got, self.from)?;
            return Err(failed.status(self.from));
        }
        Ok((got, began.elapsed()))
    }

    fn took(&self) -> Result<(), Status> {
        self.say(Tensor::scalar(1_u64))
    }

    fn say(&self, word: Tensor) -> Result<(), Status> {
        let step = self.engine.step(STEP);
        step.send(&key(self.engine.task(), self.from, TAKEN)?, word)
    }
}

/// How much longer so many bytes may take than a mere word.
const fn slowly(bytes: u64) -> Duration {
    Duration::from_secs(bytes / SLOWEST)
}

/// Waits for what `task` sends, as long as it is `there`. The receive has no deadline of its own: so it ends with the
/// dial, if that fails.
fn wait(
    receive: Recv,
    there: &mut Recv,
    task: &TaskName,
    until: Instant,
) -> Result<Received, Status> {
    // What came before it was lost counts.
    before(until, or(receive, lost(there))).unwrap_or_else(|| {
        let message = format!(
            "{task} is connected, and did not send all it should in time; raise `--patience`"
        );
        Err(Status::of(catalogue::DEADLINE, message))
    })
}

/// Ends when a [`probe`] does, with the reason.
pub(super) async fn lost<T>(there: &mut Recv) -> Result<T, Status> {
    let Err(status) = there.await else {
        return Err(Status::of(
            catalogue::CALL_MALFORMED,
            "it sent something unknown: the other end is of another version",
        ));
    };
    Err(status)
}

fn is_no_room(error: &CliError) -> bool {
    error.code() == Code::ResourceExhausted
}

fn key(from: &TaskName, to: &TaskName, edge: &str) -> Result<Key, Status> {
    Ok(Key::between(&from.to_string(), &to.to_string(), edge)?)
}

fn row(bytes: Vec<u8>, task: &TaskName) -> Result<Tensor, Status> {
    let shape = Shape::row(bytes.len() as u64).ok_or_else(|| malformed(task, &"too long"))?;
    Tensor::from_vec(bytes, shape).map_err(|error| malformed(task, &error))
}

fn text(what: &impl Serialize, task: &TaskName) -> Result<Tensor, Status> {
    let text = serde_json::to_vec(what).map_err(|error| malformed(task, &error))?;
    row(text, task)
}

fn bytes_of<'a>(got: &'a Received, from: &TaskName) -> Result<&'a [u8], Status> {
    let bytes = got.tensor.as_slice::<u8>();
    bytes.map_err(|error| malformed(from, &error))
}

fn read<T: for<'a> Deserialize<'a>>(got: &Received, from: &TaskName) -> Result<T, Status> {
    serde_json::from_slice(bytes_of(got, from)?).map_err(|error| malformed(from, &error))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Into memory, which takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn mismatch(what: &str, from: &TaskName) -> CliError {
    let message = format!("{what} of {from} is not what was sent");
    Status::new(Code::DataLoss, catalogue::DATA_MISMATCH, message).into()
}

#[cfg(test)]
mod tests;
