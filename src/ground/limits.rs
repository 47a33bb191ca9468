//! Every bound of the system, each with the sum that justifies it.
//!
//! A number that bounds memory, time or work stands here and nowhere else; going past one is a
//! `ResourceExhausted` that names the limit and its setting.

/// Bytes of a hot frame: one cache line.
pub const FRAME_BYTES: usize = 64;

/// Rendezvous points (step, key, frame, iteration) that one shard remembers at once. One costs three cache lines,
/// so a full table is 200 MiB; a step of ten thousand edges runs a hundred iterations before it has to end.
pub const TABLE_RECORDS: u32 = 1 << 20;

/// Values parked in one shard, over all keys: one for each rendezvous point it can remember.
pub const TABLE_VALUES: u32 = TABLE_RECORDS;

/// Receives and peers' requests waiting in one shard: one for each rendezvous point it can remember.
pub const TABLE_WAITERS: u32 = TABLE_RECORDS;

/// Receives waiting for one key: a consumer that runs this far ahead of its producer is no longer consuming.
/// It also bounds the walk from the front of a queue to the place a new receive stands at.
pub const WAITERS_PER_KEY: u32 = 1 << 12;

/// Bytes of the values parked in one shard: `TABLE_VALUES` of a mean 4 KiB, which is the longest inline body.
pub const PARKED_BYTES: u64 = 4 << 30;

/// Bytes of the values parked for one step in one shard: half of the whole, so that one step whose consumers are
/// gone cannot stop the next.
pub const PARKED_BYTES_PER_STEP: u64 = PARKED_BYTES / 2;

/// Steps alive in one shard: a master keeps a few in flight, a shard may serve hundreds of masters.
pub const STEPS: u32 = 1 << 12;

/// Ended steps that a shard remembers to refuse latecomers: at 1000 steps a second, the last minute.
pub const TOMBSTONES: u32 = 1 << 16;

/// Steps that only peers have spoken of: a quarter of those alive. Frames of peers that run ahead
/// of this one make them, so it is a bound on a peer's invention, not on work.
pub const GRACE_STEPS: u32 = STEPS / 4;

/// How long such a step waits for its first local use. A graph may take a minute to be built after its first peer
/// runs; past that, the step was stray.
pub const GRACE_TTL_NS: u64 = 60_000_000_000;

const _: () = assert!(TABLE_VALUES as u64 * 4096 == PARKED_BYTES);
const _: () = assert!(PARKED_BYTES_PER_STEP < PARKED_BYTES && GRACE_STEPS < STEPS);
const _: () = assert!(WAITERS_PER_KEY < TABLE_WAITERS && TABLE_RECORDS < 1 << 31);

/// Keys a shard knows at once: a million parked keys, and room.
pub const KEYS: usize = 1 << 21;

/// Tasks that keys may name.
pub const PEERS: usize = 4096;

/// Receives of application threads and neighbours that wait on one shard: what a ticket can name, less a half.
pub const WAITS: usize = 1 << 19;

/// Notes that wait for a neighbour's ring.
pub const NOTES: usize = 1 << 16;

/// Frames in flight on one link: 256 lines are 16 KiB of ring, and cover 25 µs at 100 ns a frame.
pub const FRAME_WINDOW: u16 = 256;

/// Lines of unrequested values that wait on one link: 16384 lines are 1 MiB, 963 values of 1 KiB.
pub const LINE_WINDOW: u16 = 16_384;

/// The longest body that travels in a frame: 1 KiB of values and eight dimensions of four bytes, and a ticket.
pub const INLINE_MAX: usize = 1024 + 40;

/// Leases of peers' memory held by one shard.
pub const LEASES: usize = 1 << 16;

/// Bytes of landings open at once on one shard.
pub const LANDING_BYTES: u64 = 1 << 30;

/// How long an acknowledgement waits for a frame to ride on: 2 ms.
pub const ACK_DELAY_NS: u64 = 2_000_000;

/// Requests of ours outstanding on one link.
pub const REQUESTS: usize = 1 << 16;

/// Values of ours on offer on one link.
pub const OFFERS: usize = 1 << 14;

/// Offers of peers whose bytes are not here yet, on one shard.
pub const INCOMING: usize = 1 << 18;

const _: () = assert!(INLINE_MAX <= BODY_MAX);
const _: () = assert!(LINE_WINDOW < 1 << 15);
const _: () = assert!(REQUESTS <= PARKED_REQUESTS);
