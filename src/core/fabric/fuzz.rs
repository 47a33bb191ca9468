//! A seam for fuzzing: a port over rings whose peer writes what it pleases into the memory that they share.
//!
//! Not part of the interface. Whatever the peer does, the port must not panic, must give each buffer and each source
//! back once, and must say at last that the queue pair is down.

use super::lane::{Geometry, MemoryLane};
use super::link::Endpoint;
use super::queue_pair::{ANSWER, CHUNK, fabric_frame};
use super::ring::{Reserve, RingMemory, RingProducer, RingProgress};
use super::{Arrival, BODY_MAX, Landing, PeerWake, Port, QpId, RingPort, Token, Write};
use crate::ground::{DType, Nanos, Region, Shape, TensorMeta};
use crate::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};
use crate::wire::Frame;

const GEOMETRY: Geometry = Geometry {
    slots: 16,
    payload_bytes: 4096,
};

/// Landings that are open when the peer begins.
const LANDINGS: u32 = 4;

/// Bytes of the sources of our writes.
const SOURCE: usize = 3000;

/// The longest body that a frame of the peer has.
const BODY: u32 = 400;

/// A port and its peer, which does what a list of bytes says.
#[derive(Debug)]
pub struct Spoiled {
    port: RingPort,
    qp: QpId,
    /// The peer as far as it keeps the rules of the ring.
    posts: RingProducer<MemoryLane>,
    /// Where the peer tells its progress.
    hears: MemoryLane,
    pool: Pool,
    /// Where the peer was told that each landing lies.
    regions: [Region; LANDINGS as usize],
    /// The peer's writes and answers until now.
    sequences: [u32; 2],
    opened: u32,
    given_back: u32,
    posted: u64,
    ended: u64,
    landed: u32,
    is_down: bool,
}

/// Bytes that say what happens; zeros behind their end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        bytes.fill_with(|| self.byte());
        u64::from_le_bytes(bytes)
    }

    /// A frame of any words.
    fn frame(&mut self) -> Frame {
        let mut frame = Frame::default();
        frame.words.fill_with(|| self.word());
        frame
    }

    /// A frame of the fabric's own, with words as small as those of true ones.
    fn fabric_frame(&mut self) -> Frame {
        let mut frame = Frame::default();
        for word in &mut frame.words[1..] {
            *word = u64::from(self.byte() % 8);
        }
        frame.words[0] = u64::from(0xf0 | self.byte()) << 32;
        frame.words[1] |= u64::from(self.byte()) << 32;
        frame
    }
}

impl Spoiled {
    /// A port with one peer, and with landings and writes under way.
    ///
    /// # Panics
    /// Where there is no memory.
    #[must_use]
    pub fn new() -> Self {
        let config = ArenaConfig {
            segment_bytes: 1 << 20,
            bytes_max: 1 << 20,
            huge_pages: HugePages::Off,
        };
        let (one, other) = Endpoint::heap_pair(GEOMETRY);
        let mut port = RingPort::new();
        let qp = port.attach_local(one, PeerWake::NEVER_SLEEPS);
        let mut spoiled = Self {
            port,
            qp: qp.expect("a place"),
            posts: RingProducer::new(other.tx),
            hears: other.rx,
            pool: Pool::new(ArenaId(0), config).expect("1 MiB"),
            regions: [Region::default(); LANDINGS as usize],
            sequences: [0; 2],
            opened: 0,
            given_back: 0,
            posted: 0,
            ended: 0,
            landed: 0,
            is_down: false,
        };
        for index in 0..LANDINGS {
            spoiled.open(index);
        }
        spoiled.write(0);
        spoiled.write(1);
        spoiled
    }

    fn open(&mut self, index: u32) {
        // Blocks of closed landings come back with the next poll.
        let Ok(buffer) = self.pool.buffer(64 << index) else {
            return;
        };
        let landing = Landing {
            index,
            generation: 0,
        };
        if let Ok(region) = self.port.open_landing(self.qp, landing, buffer) {
            self.regions[index as usize] = region;
            self.opened += 1;
        }
    }

    fn write(&mut self, landing: u8) {
        let meta = Shape::new(&[SOURCE as u64]).and_then(|shape| TensorMeta::new(DType::U8, shape));
        let source = Tensor::from_bytes(meta.expect("small"), vec![7; SOURCE].into());
        let write = Write {
            qp: self.qp,
            token: Token(self.posted),
            source: source.expect("as many bytes"),
            landing: Landing {
                index: u32::from(landing),
                generation: 0,
            },
            region: Region {
                len: SOURCE as u64,
                ..Region::default()
            },
        };
        if self.port.post_write(write).is_ok() {
            self.posted += 1;
        }
    }

    fn poll(&mut self, budget: usize) {
        let Self {
            port,
            given_back,
            ended,
            landed,
            is_down,
            ..
        } = self;
        port.poll(Nanos(0), budget, &mut |arrival| {
            assert!(!*is_down, "nothing comes after the end");
            match arrival {
                Arrival::Frame { frame, body, .. } => {
                    assert_eq!(body.len(), frame.body_len() as usize);
                    assert!(body.len() <= BODY_MAX);
                }
                Arrival::Landed { len, buffer, .. } => {
                    assert!(len <= buffer.len() as u64);
                    *given_back += 1;
                    *landed += 1;
                }
                Arrival::Quiet { .. } => *given_back += 1,
                Arrival::Wrote { .. } => *ended += 1,
                Arrival::Down { .. } => *is_down = true,
            }
        });
        self.pool.reclaim();
    }

    /// Posts a frame as the rules want it, whatever it says.
    fn post(&mut self, mut frame: Frame) {
        let len = frame.body_len() % BODY;
        frame.words[1] = u64::from(len) << 32 | frame.words[1] & 0xffff_ffff;
        let body = vec![9; len as usize];
        let _ = self.posts.post(&frame, [&body, &[]], Reserve::default());
    }

    /// A chunk of a write as it should be, of as many bytes as its write has or not.
    fn chunk(&mut self, landing: u8, len: u8, total: u8) {
        let region = self.regions[usize::from(landing) % self.regions.len()];
        let mut frame = fabric_frame(CHUNK, self.sequences[0]);
        frame.words[1] |= u64::from(len) << 32;
        frame.words[2] = u64::from(landing);
        frame.words[3] = region.offset;
        frame.words[4] = u64::from(total);
        frame.words[5] = region.place();
        self.sequences[0] += u32::from(len >= total);
        self.post(frame);
    }

    /// An answer to the next write.
    fn answer(&mut self, outcome: u64) {
        let mut frame = fabric_frame(ANSWER, self.sequences[1]);
        frame.words[2] = outcome;
        self.sequences[1] += 1;
        self.post(frame);
    }

    fn act(&mut self, script: &mut Script<'_>) {
        // What ends the connection is rare, so that it comes late.
        match script.byte() {
            0..60 => self.poll(usize::from(script.byte())),
            60..120 => {
                let [landing, len, total] = [script.byte() % 4, script.byte(), script.byte()];
                match total % 4 {
                    0 => self.chunk(landing, len, total),
                    _ => self.chunk(landing, len, len),
                }
            }
            120..130 => self.answer(u64::from(script.byte() % 2)),
            130..160 => {
                let mut frame = script.frame();
                frame.words[0] &= !(0xff << 32);
                self.post(frame);
            }
            160..180 => {
                let mut frame = Frame::default();
                frame.words[1] = u64::from(script.byte()) << 32;
                let body = vec![1; frame.body_len() as usize];
                let _ = self.port.post_send(self.qp, &frame, [&body, &[]]);
            }
            180..210 => {
                let index = u32::from(script.byte()) % LANDINGS;
                let landing = Landing {
                    index,
                    generation: 0,
                };
                self.port.close_landing(self.qp, landing);
                self.open(index);
            }
            210..235 => {
                self.write(script.byte() % 8);
                if self.port.arm() {
                    self.port.disarm();
                }
            }
            235..240 => {
                let frame = script.fabric_frame();
                self.post(frame);
            }
            // In its turn, whether there is room or not, and with any length.
            240..243 => self.posts.put(&script.frame()),
            243..246 => self.posts.put(&script.fabric_frame()),
            // Any words in any slot.
            246..249 => {
                let slot = u64::from(script.byte()) % u64::from(GEOMETRY.slots);
                let frame = script.frame();
                self.posts.lane().fill(slot, &frame);
                self.posts.lane().publish(slot, frame.words[0]);
            }
            249..253 => self.hears.set_progress(RingProgress {
                slots: u64::from(script.byte()),
                payload: u64::from(script.byte()) * 64,
            }),
            _ => self.hears.set_progress(RingProgress {
                slots: script.word(),
                payload: script.word(),
            }),
        }
    }

    /// Does what `script` says, and ends the connection. How many writes of the peer landed.
    ///
    /// # Panics
    /// Where the port breaks a promise.
    pub fn play(mut self, script: &[u8]) -> u32 {
        let mut script = Script(script);
        while !script.0.is_empty() {
            self.act(&mut script);
        }
        self.port.close(self.qp);
        for _ in 0..100 {
            self.poll(64);
        }
        assert!(self.is_down, "a closed queue pair goes down");
        assert_eq!(
            (self.given_back, self.ended),
            (self.opened, self.posted),
            "each buffer and each source comes back once"
        );
        self.landed
    }
}

impl Default for Spoiled {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::rng::Rng;

    #[test]
    fn a_peer_that_writes_what_it_pleases_costs_its_connection_alone() {
        let mut landed = 0;
        for seed in 0..2000 {
            let mut rng = Rng::new(seed);
            let mut script = vec![0; rng.below(2000) as usize];
            script.fill_with(|| rng.next_u64() as u8);
            landed += Spoiled::new().play(&script);
        }
        assert!(landed > 500, "writes of the peer were taken: {landed}");
    }
}
