//! Hands: what a scripted test does in a world: a value given, a value asked for, time that passes.

use rendez::ground::{DType, Key, Nanos, Shape, Status, StepId, TensorMeta};
use rendez::memory::Tensor;
use rendez::testing::solo::Waiting;

use crate::world::World;

/// The type and shape of so many bytes.
pub fn row(len: usize) -> TensorMeta {
    TensorMeta::new(DType::U8, Shape::new(&[len as u64]).unwrap()).unwrap()
}

impl World {
    /// A tensor of the task's own memory: its number, in as many bytes as are wanted.
    pub fn made(&mut self, node: usize, number: u64, len: usize) -> Result<Tensor, Status> {
        self.nodes[node].solos[0].enter(|context| {
            let mut builder = context.builder(row(len))?;
            let number = number.to_le_bytes();
            for (at, byte) in builder.bytes_mut().iter_mut().enumerate() {
                *byte = number[at % 8];
            }
            Ok(builder.finish())
        })
    }

    /// The first shard of a task sends.
    pub fn give(
        &mut self,
        node: usize,
        step: u64,
        key: &Key,
        number: u64,
        len: usize,
    ) -> Result<(), Status> {
        let tensor = self.made(node, number, len)?;
        self.hand(node, step, key, tensor)
    }

    /// The first shard of a task sends what it has.
    pub fn hand(
        &mut self,
        node: usize,
        step: u64,
        key: &Key,
        tensor: Tensor,
    ) -> Result<(), Status> {
        self.nodes[node].solos[0].enter(|context| {
            let key = context.prepare(key)?;
            context.send(StepId(step), key, tensor)
        })
    }

    /// The first shard of a task receives, and waits for as long as it takes.
    pub fn want(&mut self, node: usize, step: u64, key: &Key) -> Waiting {
        self.nodes[node].solos[0].recv(StepId(step), key, Nanos::NEVER)
    }

    /// So many ticks pass.
    pub fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.tick().unwrap();
        }
    }

    /// Ticks until a receive ends, and the number it brings.
    pub fn ticks_until(&mut self, waiting: &Waiting, most: usize) -> Option<(usize, u64)> {
        for count in 0..most {
            if let Some(outcome) = waiting.take() {
                return Some((count, number_of(outcome.unwrap().tensor.host().unwrap())));
            }
            self.tick().unwrap();
        }
        None
    }
}

/// The number that the bytes of a value repeat.
pub fn number_of(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    for (at, &byte) in bytes.iter().enumerate() {
        assert!(at < 8 || number[at % 8] == byte, "bytes of two values");
        number[at % 8] = byte;
    }
    u64::from_le_bytes(number)
}
