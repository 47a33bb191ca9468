//! Exchange: hands all tensors of a file from one task of a cluster to another, by key, and checks or keeps them.
//!
//! Knows servers, keys and files; not who runs it: `push`, `pull` and `serve --check` do.
//!
//! ```text
//!   source                                   destination
//!   manifest ───────────────────────────────▶ names, types, shapes, a digest of each
//!   tensor 0, 1, 2, … ──────────────────────▶ each checked against its digest
//!            ◀─────────────────────────────── done
//! ```

use std::time::{Duration, Instant};

use async_io::Timer;
use futures_lite::future::{block_on, or};
use serde::{Deserialize, Serialize};

use super::error::CliError;
use super::weights::Weights;
use crate::engine::{Engine, Recv};
use crate::ground::{Code, DType, Key, Shape, Status, StepId, TaskName, catalogue};
use crate::memory::Tensor;
use crate::shard::Received;

/// The step of exchanges: none of those that programs count up from zero.
const STEP: StepId = StepId(u64::MAX - 1);

const MANIFEST: &str = "rendez.push.manifest";
const DONE: &str = "rendez.push.done";

/// How much longer a receive is waited for than a dial: who is not there is told by the dial, which knows why.
const GRACE: Duration = Duration::from_secs(1);

/// What a file holds, as its source says.
#[derive(Serialize, Deserialize, Debug)]
struct Manifest {
    file: String,
    tensors: Vec<Described>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Described {
    name: String,
    dtype: String,
    shape: Vec<u64>,
    digest: u64,
}

/// A tensor that came.
#[derive(Debug)]
pub(super) struct Taken {
    /// Its name in the file.
    pub(super) name: String,
    /// It, and the path it took.
    pub(super) received: Received,
    /// From the receive to the value.
    pub(super) took: Duration,
}

/// What was sent to a task, until it has taken everything.
#[derive(Debug)]
#[must_use = "whoever does not wait does not know whether it was taken"]
pub(super) struct Delivery {
    to: TaskName,
    count: u64,
    until: Instant,
    done: Recv,
}

/// A file's tensors, read once and handed to any number of tasks.
#[derive(Debug)]
pub(super) struct Cargo {
    manifest: Manifest,
    tensors: Vec<Tensor>,
}

impl Cargo {
    /// Reads all tensors into the engine's memory.
    pub(super) fn load(engine: &Engine, weights: &Weights) -> Result<Self, CliError> {
        let mut tensors = Vec::new();
        let mut described = Vec::new();
        for entry in weights.entries() {
            let dims: Vec<u64> = entry.meta.shape.dims().collect();
            let mut builder = engine.tensor(entry.meta.dtype, &dims)?;
            weights.read_into(entry, builder.bytes_mut())?;
            let tensor = builder.finish();
            described.push(Described {
                name: entry.name.clone(),
                dtype: entry.meta.dtype.name().to_owned(),
                shape: dims,
                digest: digest(tensor.bytes()),
            });
            tensors.push(tensor);
        }
        let manifest = Manifest {
            file: weights.name().to_owned(),
            tensors: described,
        };
        Ok(Self { manifest, tensors })
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> u64 {
        self.tensors
            .iter()
            .map(|tensor| tensor.bytes().len() as u64)
            .sum()
    }

    /// Tensors.
    pub(super) fn count(&self) -> usize {
        self.tensors.len()
    }

    /// Sends everything to `to`, which never waits for a receiver, and begins to listen for its last word: once it has
    /// taken everything it may leave, and what nobody waits for goes with it.
    pub(super) fn send(
        &self,
        engine: &Engine,
        to: &TaskName,
        patience: Duration,
    ) -> Result<Delivery, Status> {
        let step = engine.step(STEP);
        let from = engine.task();
        let until = Instant::now() + patience + GRACE;
        let done = step.recv(&key(to, from, DONE)?).start()?;
        let delivery = Delivery {
            to: to.clone(),
            count: self.tensors.len() as u64,
            until,
            done,
        };
        let text = serde_json::to_vec(&self.manifest).map_err(|error| malformed(from, &error))?;
        let shape = Shape::row(text.len() as u64).ok_or_else(|| malformed(from, &"too long"))?;
        let manifest = Tensor::from_vec(text, shape).map_err(|error| malformed(from, &error))?;
        step.send(&key(from, to, MANIFEST)?, manifest)?;
        for (index, tensor) in self.tensors.iter().enumerate() {
            step.send(&key(from, to, &edge(index))?, tensor.clone())?;
        }
        Ok(delivery)
    }
}

impl Delivery {
    /// Waits until everything was taken.
    pub(super) fn wait(self) -> Result<(), Status> {
        let got = wait(self.done, &self.to, self.until)?;
        match got.tensor.as_slice::<u64>() {
            Ok([count]) if *count == self.count => Ok(()),
            _ => Err(malformed(&self.to, &"it did not take every tensor")),
        }
    }
}

/// Takes what `from` sends, checks every tensor, and tells `each` of it. Returns the name of the file.
pub(super) fn take(
    engine: &Engine,
    from: &TaskName,
    patience: Duration,
    each: &mut dyn FnMut(Taken) -> Result<(), CliError>,
) -> Result<String, CliError> {
    let until = Instant::now() + patience + GRACE;
    let step = engine.step(STEP);
    let recv = |edge: &str| -> Result<Received, Status> {
        let received = wait(step.recv(&key(from, engine.task(), edge)?), from, until);
        received.map_err(|status| engine.with_cause(from, status))
    };
    let manifest = recv(MANIFEST)?;
    let manifest: Manifest =
        serde_json::from_slice(manifest.tensor.bytes()).map_err(|error| malformed(from, &error))?;
    for (index, described) in manifest.tensors.iter().enumerate() {
        let began = Instant::now();
        let received = recv(&edge(index))?;
        let took = began.elapsed();
        let meta = received.tensor.meta();
        let is_same = meta.dtype.name() == described.dtype
            && meta.shape.dims().eq(described.shape.iter().copied())
            && digest(received.tensor.bytes()) == described.digest;
        if !is_same {
            let message = format!("tensor {} of {from} is not what was sent", described.name);
            return Err(Status::new(Code::DataLoss, catalogue::DATA_MISMATCH, message).into());
        }
        each(Taken {
            name: described.name.clone(),
            received,
            took,
        })?;
    }
    let count = Tensor::scalar(manifest.tensors.len() as u64);
    step.send(&key(engine.task(), from, DONE)?, count)?;
    Ok(manifest.file)
}

/// Waits for what `from` sends. The receive has no deadline of its own: so it ends with the dial, if that fails.
fn wait(receive: Recv, from: &TaskName, until: Instant) -> Result<Received, Status> {
    block_on(or(receive, async {
        Timer::at(until).await;
        let message = format!("{from} is connected, and did not send all it should in time");
        Err(Status::of(catalogue::DEADLINE, message))
    }))
}

fn key(from: &TaskName, to: &TaskName, edge: &str) -> Result<Key, Status> {
    Ok(Key::between(&from.to_string(), &to.to_string(), edge)?)
}

/// Names in files may hold what keys may not: tensors go by their place.
fn edge(index: usize) -> String {
    format!("rendez.push.{index}")
}

/// FNV-1a over 64-bit words: it finds what went wrong on the way, and is no proof against anybody.
fn digest(bytes: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.fold(BASIS ^ bytes.len() as u64, |hash, word| {
        (hash ^ word).wrapping_mul(PRIME).rotate_left(29)
    })
}

fn malformed(task: &TaskName, what: &dyn std::fmt::Display) -> Status {
    let message = format!("what {task} sent is no file: {what}");
    Status::new(
        Code::InvalidArgument,
        catalogue::SAFETENSORS_MALFORMED,
        message,
    )
}

/// The data type of that name, for files that are written.
pub(super) fn safetensors_dtype(dtype: DType) -> Option<safetensors::Dtype> {
    use safetensors::Dtype as To;
    Some(match dtype {
        DType::Bool => To::BOOL,
        DType::U8 => To::U8,
        DType::I8 => To::I8,
        DType::U16 => To::U16,
        DType::I16 => To::I16,
        DType::U32 => To::U32,
        DType::I32 => To::I32,
        DType::U64 => To::U64,
        DType::I64 => To::I64,
        DType::F16 => To::F16,
        DType::BF16 => To::BF16,
        DType::F32 => To::F32,
        DType::F64 => To::F64,
        _ => return None,
    })
}
