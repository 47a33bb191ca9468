//! Held: tensors that receivers keep for a while, and what they must still say when they are let go.
//!
//! Knows tensors and bytes; not shards or steps.

use rendez::ground::rng::Rng;
use rendez::memory::Tensor;

/// Tensors that are held, by the task that holds them.
#[derive(Default)]
pub struct Held(Vec<Holding>);

struct Holding {
    node: usize,
    place: String,
    tensor: Tensor,
    bytes: Vec<u8>,
}

impl Held {
    /// A task keeps a tensor that was just received, and judged.
    pub fn keep(&mut self, node: usize, place: String, tensor: &Tensor) {
        self.0.push(Holding {
            node,
            place,
            bytes: tensor.host().unwrap().to_vec(),
            tensor: tensor.clone(),
        });
    }

    /// One that a task holds, if it holds any, for it to send on.
    pub fn one_of(&self, node: usize, rng: &mut Rng) -> Option<&Tensor> {
        let its = |holding: &&Holding| holding.node == node;
        let count = self.0.iter().filter(its).count() as u64;
        let nth = (count > 0).then(|| rng.below(count) as usize)?;
        self.0
            .iter()
            .filter(its)
            .nth(nth)
            .map(|holding| &holding.tensor)
    }

    /// Lets one go. True if there was one.
    pub fn drop_one(&mut self, rng: &mut Rng) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(false);
        }
        let at = rng.below(self.0.len() as u64) as usize;
        self.0.swap_remove(at).judge()?;
        Ok(true)
    }

    /// A task is gone, and what it held with it.
    pub fn drop_of(&mut self, node: usize) -> Result<(), String> {
        let (gone, stay) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|holding| holding.node == node);
        self.0 = stay;
        Vec::into_iter(gone).try_for_each(Holding::judge)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Holding {
    /// The holder of a tensor reads the bytes it received, whatever became of its sender meanwhile.
    fn judge(self) -> Result<(), String> {
        if self.tensor.host().unwrap() == self.bytes {
            return Ok(());
        }
        Err(format!(
            "{}: t{} held {} bytes, and they changed",
            self.place,
            self.node,
            self.bytes.len()
        ))
    }
}
