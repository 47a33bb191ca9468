//! Philox 4x32-10: random bits from a counter and a key, as the original draws them. Knows no distributions.
//!
//! From Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (2011). How seeds become key and
//! counter, and how a counter is skipped ahead, is TensorFlow's `philox_random.h`, so that the same seeds give the same
//! bits.

/// Numbers of 32 bits in a block.
pub(in super::super) const BLOCK: usize = 4;

const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const ROUNDS: usize = 10;

/// A stream of blocks.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Philox {
    key: [u32; 2],
    counter: u128,
}

impl Philox {
    /// The stream of two seeds.
    pub(in super::super) const fn new(seed: u64, seed2: u64) -> Self {
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            counter: (seed2 as u128) << 64,
        }
    }

    /// The stream without its next `blocks`.
    pub(in super::super) const fn skip(self, blocks: u64) -> Self {
        Self {
            counter: self.counter.wrapping_add(blocks as u128),
            ..self
        }
    }

    /// The next block.
    pub(in super::super) fn block(&mut self) -> [u32; BLOCK] {
        let mut block = [0, 32, 64, 96].map(|shift| (self.counter >> shift) as u32);
        let mut key = self.key;
        for _ in 0..ROUNDS {
            let wide = |factor: u32, word: u32| u64::from(factor) * u64::from(word);
            let (low, high) = (
                wide(MULTIPLIERS[0], block[0]),
                wide(MULTIPLIERS[1], block[2]),
            );
            block = [
                (high >> 32) as u32 ^ block[1] ^ key[0],
                high as u32,
                (low >> 32) as u32 ^ block[3] ^ key[1],
                low as u32,
            ];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        self.counter = self.counter.wrapping_add(1);
        block
    }
}
