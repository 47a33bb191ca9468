//! Every bound of the system, each with the sum that justifies it.
//!
//! A number that bounds memory, time or work stands here and nowhere else; going past one is a
//! `ResourceExhausted` that names the limit and its setting.

/// Bytes of a hot frame: one cache line.
pub const FRAME_BYTES: usize = 64;

/// Rendezvous points (step, key, frame, iteration) that one shard remembers at once. One costs two cache lines and
/// 24 bytes beside them, and a value parked there as much: a table full of both is 300 MiB, without its keys, which are
/// fewer where points share them: see [`IDLE_KEYS`]. A step of ten thousand edges runs a hundred iterations before it
/// has to end.
pub const TABLE_RECORDS: u32 = 1 << 20;

/// Values parked in one shard, over all keys: one for each rendezvous point it can remember. Values on their way to a
/// waiter are not parked: they come on top, and are no more than `TABLE_WAITERS`.
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

/// Places in streams that are marked at once, for each segment of a device's arena: values whose bytes are not there
/// yet, and tensors that streams still read; less one, whose word tells of the device. The words are 32 KiB, pinned.
/// Beyond it the host waits for the stream.
pub const DEVICE_MARKS: usize = 1 << 12;

/// Streams for copies that each device keeps when they have nothing to do; those of a burst end when it is over. As
/// many as any driver has queues for (CUDA at most 32), so that more would bring nothing.
pub const DEVICE_LANES_IDLE: usize = 32;

/// The least pinned memory for copies to and from a device: three chunks of an arena's page, 16 KiB.
pub const DEVICE_PINNED_BYTES_MIN: u64 = 3 * (16 << 10);

/// Steps alive in one shard: a master keeps a few in flight, a shard may serve hundreds of masters.
pub const STEPS: u32 = 1 << 12;

/// Ended steps that a shard remembers to refuse latecomers: at 1000 steps a second, the last minute. Many times the
/// steps alive: a shard passes on each abort that is new to it, so one that is forgotten while it is still on its way
/// would circulate for ever.
pub const TOMBSTONES: u32 = 1 << 16;

/// Steps that only peers have spoken of: a quarter of those alive. Frames of peers that run ahead
/// of this one make them, so it is a bound on a peer's invention, not on work.
pub const GRACE_STEPS: u32 = STEPS / 4;

/// How long such a step waits for its first local use. A graph may take a minute to be built after its first peer
/// runs; past that, the step was stray.
pub const GRACE_TTL_NS: u64 = 60_000_000_000;

const _: () = assert!(TABLE_VALUES as u64 * 4096 == PARKED_BYTES);
const _: () = assert!(PARKED_BYTES_PER_STEP < PARKED_BYTES && GRACE_STEPS < STEPS);
const _: () = assert!(TOMBSTONES >= 8 * (STEPS + GRACE_STEPS));
const _: () = assert!(WAITERS_PER_KEY < TABLE_WAITERS && TABLE_RECORDS < 1 << 31);

/// Bytes of one control message. The longest is a batch of descriptors: 32 entries, one of them a link with 32
/// numbers of
/// ten bytes, the rest under 32 bytes; a hello is under 8 KiB. 64 KiB leaves room for lists to come, and 64 greeted
/// connections that stall in mid-message hold 4 MiB.
pub const CONTROL_MESSAGE_MAX: usize = 64 << 10;
/// Descriptors in one batch of the lane; the kernel takes at most 253 in one message.
pub const DESCRIPTORS_PER_BATCH: usize = 32;
/// Segments of an arena that are as long as its settings say. Each that follows is at least a quarter of what there is.
pub const ARENA_USUAL_SEGMENTS: usize = 64;
/// Segments one task may announce: 150 are the most of an arena of 16 TiB with segments of 4 KiB, and there may be 65
/// arenas of shards and the application, and two of each of 64 devices, with the times.
pub const SEGMENTS_PER_TASK_MAX: u32 = 1 << 15;
/// Descriptors one peer may offer in its greeting: two of each shard's doorbell, a link, and its segments.
pub const DESCRIPTORS_PER_GREETING: usize = 2 * SHARDS + 1 + SEGMENTS_PER_TASK_MAX as usize;
/// Batches under way in a lane, unanswered: each costs the socket's buffer under 1 KiB of some 200 KiB.
pub const DESCRIPTOR_WINDOW: usize = 8;
/// Control requests of one connection that wait for their answers: the window of batches, a ping and a bye, and room.
pub const CONTROL_REQUESTS_MAX: usize = 16;
/// Answers queued to one peer. It asks at most [`CONTROL_REQUESTS_MAX`] and [`CALL_WINDOW`] before it has read answers,
/// so a peer fills it only by flooding.
pub const CONTROL_QUEUE_MAX: usize = 128;
/// Connections accepted whose greeting is not over: further ones wait in the kernel's backlog.
pub const GREETINGS_MAX: usize = 64;
/// Of them, those of other users of this machine: half, so that they cannot lock out our own.
pub const GREETINGS_OF_OTHERS_MAX: usize = GREETINGS_MAX / 2;
/// Peers connected at once. Each costs five descriptors and under 100 KiB.
pub const PEERS_MAX: usize = 1024;
/// Peers whose connection is gone while their process is still watched.
pub const DEPARTED_MAX: usize = 1024;
/// Commands of the application to the control thread that it has not taken yet.
pub const CONTROL_COMMANDS_MAX: usize = 8192;
/// Bytes of a task's name.
pub const TASK_NAME_MAX: usize = 127;
/// Shards of one task: a core each.
pub const SHARDS_MAX: u16 = 1024;
/// Frames under way in one direction of a channel that a hello may ask for: 65536 × 64 B = 4 MiB a ring.
pub const FRAME_WINDOW_MAX: u32 = 1 << 16;
/// Cache lines of bodies under way that a hello may ask for: 2²⁰ × 64 B = 64 MiB a ring.
pub const LINE_WINDOW_MAX: u32 = 1 << 20;
/// Bytes of a body that a hello may ask for: it must fit the line window.
pub const BODY_MAX_MAX: u32 = 1 << 24;
/// Bytes of an arena segment that a peer may announce.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 40;
/// Numbers that describe a link's layout.
pub const LINK_NUMBERS_MAX: usize = 32;
/// Feature names in a hello, and bytes of each.
pub const FEATURES_MAX: usize = 64;
/// Bytes of a feature's name.
pub const FEATURE_NAME_MAX: usize = 64;
/// Bytes of text that a refusal, an error or a bye may carry.
pub const CONTROL_TEXT_MAX: usize = 1024;

/// Bytes of a host's name, as the domain name system has it.
pub const HOST_NAME_MAX: usize = 253;
/// Addresses of one host that a dial tries in turn: a few cards, each with both versions of the protocol.
pub const ADDRESSES_OF_HOST_MAX: usize = 8;
/// Dials, and ends of transports being made, that may block at once, each on a thread of its own: half a cluster of 64
/// tasks coming up, with 64 KiB of touched stack each 2 MiB. Half are for dials of our own alone. A greeting that finds
/// no thread is put off.
pub const ERRANDS_MAX: usize = 32;
/// Bytes of a cluster secret: 128 bits cannot be guessed from a recorded handshake; above 4 KiB it is another file.
pub const SECRET_BYTES_MIN: usize = 16;
/// Bytes of a cluster secret, at most.
pub const SECRET_BYTES_MAX: usize = 4096;
/// TCP connections that have not said what they are for: 512 × under 256 B, and a descriptor each. A task of 64 that
/// come up at once meets 63 dials and 8 data connections of each.
pub const NEWCOMERS_MAX: usize = 512;
/// Of them, those from one address, or from all other users of this machine: half, so that none can lock out all
/// others.
pub const NEWCOMERS_PER_SOURCE_MAX: usize = NEWCOMERS_MAX / 2;
/// TCP conversations whose greeting is not over; further ones wait among the newcomers.
pub const TCP_GREETINGS_MAX: usize = GREETINGS_MAX;
/// Of them, those from one address.
pub const TCP_GREETINGS_PER_SOURCE_MAX: usize = TCP_GREETINGS_MAX / 2;
/// Data connections of one peer: a channel for each pair of 64 shards.
pub const DATA_CHANNELS_MAX: u32 = 64 * 64;
/// Queue pairs with one peer: what a control message can name. With more channels the way is TCP.
pub const RDMA_ENDS_MAX: usize = 512;
/// Data connections dialled at once for one peer: enough to hide a round trip, few enough not to look like a flood.
pub const DATA_DIALS_WINDOW: usize = 8;
/// Sets of data connections awaited at once: one for each greeting.
pub const TICKET_SETS_MAX: usize = TCP_GREETINGS_MAX;
/// Sets of data connections that are over and remembered, to tell latecomers why: 1024 × under 512 B.
pub const TICKETS_ENDED_MAX: usize = 1024;
/// Handshakes remembered, to tell a replay from a mistake: 4096 × 32 B. An older replay fails as any wrong proof does.
pub const NONCES_MAX: usize = 4096;
/// Other lives of a connected task that are remembered while it is asked whether it lives: 16 × 40 B a connection.
pub const RIVALS_MAX: usize = 16;
/// Bytes read of the kernel's table of TCP sockets, to find whose one is: 150 each, so some 50 000 sockets.
pub const SOCKET_TABLE_BYTES_MAX: u64 = 8 << 20;

/// Bytes that a call or its answer carries: a control message less its other fields and a status text.
pub const CALL_PAYLOAD_MAX: usize = CONTROL_MESSAGE_MAX - 2 * CONTROL_TEXT_MAX;
/// Calls of one peer carried out at once, and asked of one peer at once; further ones of ours wait.
pub const CALL_WINDOW: usize = 64;
/// Calls of ours that wait or are asked, over all peers: 4096 × at most 62 KiB is 248 MiB, of the application's own.
pub const CALLS_MAX: usize = 4096;
/// Calls of all peers that wait for a thread to carry them out.
pub const SERVICE_QUEUE_MAX: usize = 1024;
/// Threads that carry out calls. They may block, so there are a few more than a control plane has cores.
pub const SERVICE_THREADS: usize = 4;
/// Answers kept for callers that have not acknowledged them: the oldest of the task that has most of them goes first.
pub const ANSWERS_MAX: usize = 1024;
/// Bytes of such answers.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

const _: () = assert!(CALL_WINDOW + CONTROL_REQUESTS_MAX <= CONTROL_QUEUE_MAX);
const _: () = assert!(ANSWER_BYTES_MAX >= CALL_WINDOW * CALL_PAYLOAD_MAX);
const _: () = assert!(DESCRIPTORS_PER_BATCH <= 253);
const _: () = assert!((SHARDS + 1 + 2 * 64) * 150 <= SEGMENTS_PER_TASK_MAX as usize);
const _: () = assert!(DATA_CHANNELS_MAX as usize == SHARDS * SHARDS);
const _: () = assert!(ERRANDS_MAX * DATA_DIALS_WINDOW <= NEWCOMERS_PER_SOURCE_MAX);
const _: () = assert!(DESCRIPTOR_WINDOW + 2 <= CONTROL_REQUESTS_MAX);
const _: () =
    assert!(FEATURES_MAX * (FEATURE_NAME_MAX + 4) + 2 * TASK_NAME_MAX + 512 < CONTROL_MESSAGE_MAX);
const _: () = assert!(DESCRIPTORS_PER_BATCH * 40 + LINK_NUMBERS_MAX * 10 < CONTROL_MESSAGE_MAX);
const _: () = assert!(BODY_MAX_MAX as u64 <= LINE_WINDOW_MAX as u64 * 64);

/// Keys a shard knows at once: a million parked keys, and room.
pub const KEYS: usize = 1 << 21;

/// Keys a shard knows before it forgets those that rest, least recently used first: some 540 bytes each, so 34 MiB. A
/// graph of ten thousand edges is six times under it, so that none of its keys is ever met twice; and as many have a
/// number on a connection, so that a key that comes round again finds neither or both. Steps may use more, up to
/// [`KEYS`]. Those rest from the end of their step, and go as others come, two for each; the tables stay as long as
/// they were, for the next such step.
pub const IDLE_KEYS: usize = INTERNED_KEYS;

/// Other tasks that a shard may know. One that is gone does not count, unless a key that names it or a lease of its
/// memory is still in use.
pub const PEERS: usize = 4096;

/// Ends of steps that a shard keeps for peers that are not there, to be told when they are: of as many steps as a job
/// runs at once, and 16 bytes each.
pub const UNTOLD_ENDS: usize = 256;

/// Receives of application threads and neighbours that wait on one shard: what a ticket can name, less a half.
pub const WAITS: usize = 1 << 19;

/// Notes that wait for a neighbour's ring.
pub const SHARD_MESSAGES: usize = 1 << 16;

/// Frames in flight on one link: 256 lines are 16 KiB of ring, and cover 25 µs at 100 ns a frame.
pub const FRAME_WINDOW: u16 = 256;

/// Lines of unrequested values that wait on one link: 16384 lines are 1 MiB, 963 values of 1 KiB.
pub const LINE_WINDOW: u16 = 16_384;

/// The fewest of them, however small the bound of what may be parked: two of the longest bodies, with their frames.
pub const LINE_WINDOW_MIN: u16 = 2 * (1 + BODY_MAX / FRAME_BYTES) as u16;

/// The longest body that travels in a frame: 1 KiB of values and eight dimensions of four bytes, and a ticket.
pub const INLINE_MAX: usize = 1024 + LEAD_MAX;

/// The longest that goes before a value's bytes in its frame's body.
pub const LEAD_MAX: usize = 40;

/// Leases of peers' memory held by one shard.
pub const LEASES: u32 = 1 << 16;

/// Bytes of landings open at once on one shard.
pub const LANDING_BYTES: u64 = 1 << 30;

/// Of the bytes for values on offer, the part that one link may have open: a quarter. Four peers that stand still in
/// the middle of their writes are needed to keep a fifth one waiting.
pub const LANDING_SHARES: u64 = 4;

/// How long after a fabric refused to register a landing it is asked again: a thousandth of a second finds room that
/// came free before the delay is noticeable, and costs nothing.
pub const OPEN_AGAIN_NS: u64 = 1_000_000;

/// How long an acknowledgement waits for a frame to ride on: 2 ms.
pub const ACK_DELAY_NS: u64 = 2_000_000;

/// Requests of ours outstanding on one link.
pub const REQUESTS: usize = 1 << 16;

/// Values and offers of one link that may wait for others of their key, which they overtook: one for each request of
/// ours, and what a peer may send unrequested.
pub const EARLY: usize = REQUESTS + (1 << 15);

/// Values that may come on one connection for requests of ours that have had their answer: a value whose write ended
/// with the connection before is offered, though it may have arrived. A request that is repeated counts by itself.
pub const SECOND_ANSWERS: u32 = REQUESTS as u32;

/// Frames for one link that wait to be posted or acknowledged: above all that its other bounds let a peer leave.
pub const STREAM_FRAMES: usize = 1 << 19;

/// Values of ours on offer on one link. Apart from them as many again may be kept that lost peers may still read.
pub const OFFERS: usize = 1 << 14;

/// Offers of peers whose bytes are not here yet, on one shard.
pub const INCOMING: usize = 1 << 18;

const _: () = assert!(INLINE_MAX <= BODY_MAX);
const _: () = assert!(LINE_WINDOW < 1 << 15);
const _: () = assert!(REQUESTS <= PARKED_REQUESTS);
const _: () = assert!(IDLE_KEYS < KEYS);
// Values that are not received press for requests before they hold every place on offer.
const _: () = assert!(LINE_WINDOW as usize <= OFFERS);

// ── Names and keys ──────────────────────────────────────────────────────────────────────────────────────────────

/// Bytes of a job name. A job is one word of a cluster's specification; the field's longest worker names have 127.
pub const JOB_NAME_BYTES_MAX: usize = 128;

/// Bytes of a device type, as `CPU`: room for a vendor's own words.
pub const DEVICE_TYPE_BYTES_MAX: usize = 64;

/// Bytes of a device name in its text form, whichever way it is spelled.
pub const DEVICE_NAME_BYTES_MAX: usize = 256;

// A u32 has at most 10 digits: "/job:" + job + "/replica:" + 10 + "/task:" + 10 + "/device:" + type + ":" + 10.
const _: () = assert!(
    5 + JOB_NAME_BYTES_MAX + 9 + 10 + 6 + 10 + 8 + DEVICE_TYPE_BYTES_MAX + 1 + 10
        <= DEVICE_NAME_BYTES_MAX
);

/// Bytes of an edge name: `edge_<number>_<node>`, where a deeply scoped node name takes a few hundred.
pub const EDGE_NAME_BYTES_MAX: usize = 1024;

/// Bytes of a key in its text form; offsets into it fit sixteen bits.
///
/// Two device names, sixteen hex digits, an edge name, two u64 with a colon between, and four semicolons.
pub const KEY_TEXT_BYTES_MAX: usize = 2 * DEVICE_NAME_BYTES_MAX + 16 + EDGE_NAME_BYTES_MAX + 41 + 4;
const _: () = assert!(KEY_TEXT_BYTES_MAX <= u16::MAX as usize);

// ── Statuses ────────────────────────────────────────────────────────────────────────────────────────────────────

/// Bytes of a status message, cut where it is made: what an operator still reads.
pub const STATUS_MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Different statuses a group keeps of each kind; at 8 KiB a message it holds 2 × 64 × 8 KiB = 1 MiB at most.
pub const STATUS_GROUP_MAX: usize = 64;

/// Bytes of a frame's body, at most: a tensor that goes inline with its eight dimensions and a request's ticket,
/// and a key's text, are all shorter.
pub const BODY_MAX: usize = 4096;

/// Bytes of a status message that a frame carries; longer ones are cut.
pub const STATUS_TEXT_MAX: usize = 1024;

const _: () = assert!(STATUS_TEXT_MAX <= BODY_MAX);
const _: () = assert!(KEY_TEXT_BYTES_MAX <= BODY_MAX);

/// Keys that have a number on one connection, in each direction: as many as a ticket's index can name would be
/// 2²⁰; a sixteenth of that keeps the tables of a channel under 2 MiB.
pub const INTERNED_KEYS: usize = 1 << 16;

/// Requests of one peer shard that may wait here: the most a ticket index names at the peer.
pub const PARKED_REQUESTS: usize = 1 << 16;

/// Requests of all peers that may wait in one shard: half of `TABLE_WAITERS`, so that its own receives have the other.
pub(crate) const ASKED: usize = TABLE_WAITERS as usize / 2;

/// Of them, those of one peer: half, so that no peer can lock out all others. Four of its shards may ask for all they
/// can.
pub(crate) const ASKED_OF_PEER: usize = ASKED / 2;

const _: () = assert!(ASKED_OF_PEER >= 4 * PARKED_REQUESTS);

/// Shards of one task.
pub const SHARDS: usize = 64;

/// Commands that wait for one shard.
pub const MAILBOX: usize = 4096;

/// The most commands a mailbox may be set to hold: its room is taken at the start, some 300 bytes each, so 80 MiB for
/// each shard.
pub const MAILBOX_MAX: usize = 1 << 18;

/// Sends that wait for room in one shard: each for a command's place twice over. One costs under 1 KiB here, so 4 MiB,
/// and its tensor, which is its sender's until it is taken. As many again may wait that are owed.
pub const WAITING_SENDS: u32 = MAILBOX as u32;

/// Notes in the ring between two shards of a process.
pub const SHARD_MESSAGE_RING: usize = 1024;

/// Wait cells that each thread keeps for another use.
pub const SPARE_CELLS: usize = 64;

/// States of steps that are kept before those without handles are dropped.
pub const STEP_HANDLES: usize = 4096;

/// Frames in a link's ring, each way: the frame window, and as many again for credit, hellos and the fabric's own.
pub const LINK_SLOTS: u32 = 512;

/// Bytes of bodies in a link's ring, each way: a quarter of what fills all its frames with the longest push.
pub const LINK_PAYLOAD_BYTES: u32 = 1 << 18;

const _: () = assert!(LINK_SLOTS >= 2 * FRAME_WINDOW as u32);

/// The shortest `failure_detection`, in milliseconds: a peer is then asked every 6 ms, and a machine that lets a
/// process wait 36 ms for its turn loses connections.
pub const FAILURE_DETECTION_MIN_MS: u64 = 50;

/// How long a peer that a key names may take to be there, unless configured: 10 s.
pub const CONNECT_TIMEOUT_NS: u64 = 10_000_000_000;

/// Bytes of a file with a secret, a key or certificates: a chain of a dozen of the largest certificates.
pub const SECRET_FILE_BYTES_MAX: u64 = 1 << 17;

// ── Byte streams ────────────────────────────────────────────────────────────────────────────────────────────────

/// Bytes that wait to be sent on one connection, frames and bodies: three of the longest, or sixty of the usual. 256
/// peers hold 16 MiB at most, and idle ones a page each.
pub const STREAM_SEND_BYTES: usize = 64 << 10;

/// Bytes received on one connection and not given on: the longest frame with its body fits twice, less its head.
pub const STREAM_RECEIVE_BYTES: usize = 32 << 10;

/// Bytes of one chunk of a write, at most, and within a machine: a quarter of a millisecond at 4 GB/s, for which frames
/// behind it wait.
pub const STREAM_CHUNK_MAX: usize = 1 << 20;

/// Bytes of one chunk of a write to another machine: a quarter of a millisecond at 8 Gbit/s.
pub const STREAM_CHUNK_FAR: usize = 256 << 10;

/// Bytes of TLS records sealed and not sent, on one connection: eight of the longest records, and a system call for all
/// of them.
pub const TLS_SEND_BYTES: usize = 128 << 10;

/// Bytes of TLS records received and not opened, on one connection.
pub const TLS_RECEIVE_BYTES: usize = 128 << 10;

/// Records that one connection may seal under keys that the kernel has: 2²⁴, the most that AES-GCM may (RFC 8446, 5.5,
/// rounded down). Of full records that is 256 GiB.
pub const KERNEL_TLS_RECORDS_MAX: u64 = 1 << 24;

/// Bytes of one TLS record, at most (RFC 8446, 5.1).
pub const KERNEL_TLS_RECORD_BYTES: usize = 16 << 10;

/// How long a closed connection may take to send what it began and to say goodbye: 100 ms.
pub const STREAM_LINGER_NS: u64 = 100_000_000;

/// How long bytes may wait for a peer's acknowledgement, or a silent peer for a probe's, unless configured: 10 s.
pub const TCP_USER_TIMEOUT_MS: u32 = 10_000;

// ── RDMA ────────────────────────────────────────────────────────────────────────────────────────────────────────

/// Bytes of a message on a queue pair: a frame, the longest usual body, and three grants (64 + 1064 + 3 × 48 = 1272),
/// in whole cache lines. A longer body goes on in the next messages.
pub const VERBS_SLOT_BYTES: usize = 1280;
/// Receive entries that one queue pair grants its peer: 128 frames cover 10 µs at 80 ns a frame.
pub const VERBS_WINDOW: u16 = 128;
/// The fewest that may be configured: with half of them consumed and untold, the longest frame still fits.
pub const VERBS_WINDOW_MIN: u16 = 32;
/// Of them, those that are kept for returning credit and for the goodbye: one each.
pub const VERBS_WINDOW_RESERVE: u16 = 2;
/// Receive entries beyond the grants, for each queue pair: consumed ones are posted again this many at a time.
pub const VERBS_REFILL: usize = 32;
/// Slots that one queue pair sends from: a burst.
pub const VERBS_SEND_SLOTS: usize = 32;
/// Entries of a queue pair's send queue: all the peer may be sent, and as much again for writes and what is done but
/// not told.
pub const VERBS_SENDS: u32 = 256;
/// Requests of which the device tells one completion.
pub const VERBS_SIGNAL_EVERY: u32 = 32;
/// Queue pairs of one port, unless configured: 64 × 128 entries is a quarter of what common cards hold.
pub const VERBS_QUEUE_PAIRS: u32 = 64;
/// The most queue pairs a shard may be set to have: their memory is 800 MiB then.
pub const VERBS_QUEUE_PAIRS_MAX: u32 = 4096;
/// Bytes of one piece of a large write: 160 µs at 25 GB/s. Frames wait for the pieces that are under way before them,
/// those of all writes to the peer. Far under the 4 GiB that a request can say.
pub const VERBS_SLICE_BYTES: usize = 4 << 20;
/// Pieces of one write that are under way at once: one is sent while the next is posted.
pub const VERBS_SLICES: u32 = 2;
/// Bytes of memory that is not registered are copied this many at a time: a first-level cache.
pub const VERBS_STAGE_BYTES: usize = 32 << 10;
/// Such copies under way at once on one port: 256 KiB.
pub const VERBS_STAGES: usize = 8;
/// Bytes that are sent inline where the device can: a frame, a body of a hundred bytes and a grant.
pub const VERBS_INLINE_BYTES: u32 = 220;
/// The most bytes that may be asked to be posted inline: no device is known to take more than 1 KiB.
pub const VERBS_INLINE_BYTES_MAX: u32 = 4096;
/// How long a closed queue pair may take to say goodbye, and one in error to have used its last entry: 100 ms each.
/// Devices answer within microseconds; Soft-RoCE never tells of the entry.
pub const VERBS_DRAIN_NS: u64 = 100_000_000;

/// The fabric's own words that wait on one queue pair: a close and an answer for each landing, and a question and an
/// answer for each write. A peer that makes us keep more asks without taking answers.
pub const VERBS_WORDS: usize = 2 * REQUESTS + 256;

// Memory of one peer on one shard: 240 KiB of slots of the 256 KiB that are promised.
const _: () = assert!(
    (VERBS_WINDOW as usize + VERBS_REFILL + VERBS_SEND_SLOTS) * VERBS_SLOT_BYTES < 256 << 10
);
const _: () = assert!(VERBS_SLOT_BYTES.is_multiple_of(FRAME_BYTES));
const _: () = assert!(FRAME_BYTES + INLINE_MAX + 3 * 48 <= VERBS_SLOT_BYTES);
const _: () = assert!(VERBS_SENDS >= VERBS_WINDOW as u32 + 3 * VERBS_SIGNAL_EVERY);
const _: () = assert!(VERBS_WINDOW_RESERVE < VERBS_WINDOW / 8);
// Counts of entries come round at 2¹⁶, and a place among so many is found by the rest.
const _: () = assert!(VERBS_WINDOW.is_power_of_two());
// A further message holds 1272 bytes of a body.
const _: () = assert!(
    VERBS_WINDOW_MIN as usize / 2 > VERBS_WINDOW_RESERVE as usize + BODY_MAX.div_ceil(1272)
);

// ── Clusters ────────────────────────────────────────────────────────────────────────────────────────────────────

/// Tasks of a cluster: as many as keys may name.
pub const CLUSTER_TASKS_MAX: usize = PEERS;

/// Bytes of a host's name, as the domain name system has it.
pub const HOST_NAME_BYTES_MAX: usize = 253;

/// Bytes of a cluster's description: each task with the longest name, a port of five digits, brackets, quotes and a
/// number of ten digits; and as much again for layout.
pub const CLUSTER_TEXT_BYTES_MAX: usize = 2 * CLUSTER_TASKS_MAX * (HOST_NAME_BYTES_MAX + 5 + 32);

const _: () = assert!(CLUSTER_TEXT_BYTES_MAX < 4 << 20);

/// Where a task listens whose launcher names no port: below the range that systems deal out to callers, and none of
/// those that rendezvous stores and metrics of this field commonly take.
pub const TASK_PORT: u16 = 29_700;

/// Bytes of a graph's message: half of what the format itself can carry.
pub const GRAPH_BYTES_MAX: usize = 1 << 30;
/// Bytes that a graph's message may become: its own bytes for constants, and 3 KiB for each of the most nodes. Two
/// bytes of a message can ask for some hundreds, so this is counted before they are given.
pub const GRAPH_MEMORY_MAX: usize = GRAPH_BYTES_MAX + GRAPH_NODES_MAX * 3072;
/// Nodes of a graph: ten times the largest that is promised to be cut in two seconds.
pub const GRAPH_NODES_MAX: usize = 1 << 20;
/// Edges of a graph: eight for each of the most nodes.
pub const GRAPH_EDGES_MAX: usize = 8 * GRAPH_NODES_MAX;
/// Inputs and outputs of all nodes of a graph, connected or not: a node names their number, and each takes 8 bytes.
pub const GRAPH_PORTS_MAX: usize = 2 * GRAPH_EDGES_MAX;
/// Dimensions of all shapes that are inferred of a graph: four for each of the most edges, 16 bytes each.
pub const GRAPH_DIMENSIONS_MAX: usize = 4 * GRAPH_EDGES_MAX;
/// Tensors that go into one node or come out of it: a graph names their number, so two of its bytes can ask for many.
pub const GRAPH_OUTPUTS_PER_NODE_MAX: usize = 1 << 14;
/// Dimensions of a shape in a graph, as the original has it. A tensor has fewer.
pub const GRAPH_RANK_MAX: usize = 254;
/// Bytes of a tensor of strings that a kernel makes, and of its table: a kernel may have them on the heap before it
/// asks the arena for room. A batch of a thousand images as files is a tenth of it.
pub const STRING_TENSOR_BYTES_MAX: usize = 1 << 30;
/// Arguments of one part of a graph, and its results: a graph numbers them, and room is made for each of the numbers.
pub const RUN_VALUES_MAX: usize = 1 << 16;
/// Runs of parts of graphs under way at once in one task, waiting to begin or begun.
pub const RUNS_MAX: usize = 1 << 16;
/// Iterations of one loop under way at once, however many a graph asks for.
pub const LOOP_PARALLEL_MAX: usize = 1 << 10;
/// Bytes of run states kept for another use, for each part of a graph and shard; one is kept however large it is.
pub const SPARE_RUN_BYTES: usize = 4 << 20;
/// Bytes of a checkpoint's header: the bound of the format's own library, some million names.
pub const CHECKPOINT_HEADER_BYTES_MAX: usize = 100_000_000;
/// Bytes of a node's name, so that `edge_<number>_<name>` is an edge's.
pub const NODE_NAME_BYTES_MAX: usize = EDGE_NAME_BYTES_MAX - 26;

/// Bytes of a message on a line: names of what is fed and fetched. Values and graphs travel beside it.
pub const LINE_MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Tensors that come with one message: what is fed or fetched in one step.
pub const LINE_TENSORS_MAX: usize = 1 << 12;
/// Questions that wait on one line: as many as steps may be alive.
pub const LINE_QUESTIONS_MAX: usize = STEPS as usize;
/// Things of one kind that a task does for others on threads of their own: its master reads, places and cuts graphs,
/// asks all workers, and waits for pieces of partial runs, so many for each client; its worker prepares parts. So many
/// parts of one session may also be under way to one worker, which hold no thread.
pub const ERRANDS_OF_SESSIONS_MAX: usize = 64;
/// Sessions of one worker, and of one master.
pub const SESSIONS_MAX: usize = 1 << 10;
/// Kinds of steps whose plans a session keeps at its master for the next step; beyond that the oldest goes.
pub const SESSION_PLANS_MAX: usize = 1 << 11;
/// Graphs that a session has prepared at a worker: as many as plans may be held by the session, by callables, and by
/// steps and partial runs that are alive, so that none of these ever takes the room of the others.
pub const SESSION_GRAPHS_MAX: usize =
    SESSION_PLANS_MAX + SESSION_CALLABLES_MAX + 2 * SESSION_STEPS_MAX;
/// Steps of one session that are under way: as many as an engine may have alive.
pub const SESSION_STEPS_MAX: usize = STEPS as usize;
/// Callables of one session.
pub const SESSION_CALLABLES_MAX: usize = 1 << 12;

/// Pushes that wait beside a task that runs: each is a process of its own, and takes some 200 bytes.
pub const OFFERED_PUSHES_MAX: usize = 64;

/// Connections to the metrics at once: a scraper, a probe or two, and a person looking.
pub const METRICS_GUESTS: usize = 16;

/// One value in so many is timed through its stages on the fastest ways. A timed one costs some 150 ns more, on a
/// hop of 300: one in 64 is less than one part in a hundred.
pub const STAGE_SAMPLING: u32 = 64;

/// Bytes of each shard's ring of last events: 16,384 of them, of 64 bytes each.
pub const RECORDER_BYTES: usize = 1 << 20;

/// Bytes of that ring at most: with 5.3 MiB of histograms and names a recorder stays within 16 MiB.
pub const RECORDER_BYTES_MAX: usize = 8 << 20;

/// Recorders that earlier lives of a task left in `recorder_dir`, of each shard, and as many copies of missed
/// deadlines: 2 × 4 × 6.3 MiB as they are by default.
pub const RECORDINGS_LEFT: usize = 4;

/// Recordings that are given away at once, packed: 4 × some MiB. Of more askers the first is displaced.
pub const DUMPS_MAX: usize = 4;

/// The least bytes an arena or its segments may be set to: a page.
pub const BYTES_MIN: u64 = 4096;

/// The most bytes a segment may be set to: a sixteenth of what a peer takes in an offer (`SEGMENT_BYTES_MAX`).
pub const ARENA_SEGMENT_BYTES_MAX: u64 = SEGMENT_BYTES_MAX / 16;

/// The most bytes an arena, or a bound on what lies in one, may be set to: more than any machine's memory, and 65
/// arenas of them are counted in 64 bits.
pub const ARENA_BYTES_MAX: u64 = 16 << 40;

const _: () = assert!(ARENA_BYTES_MAX.checked_mul(SHARDS as u64 + 1).is_some());

/// The least a frame may be set to carry: `inline_max` below it would leave no room for dimensions.
pub const INLINE_LEAST: usize = 64;

/// By how much two machines' counters may drift apart, in millionths: each process measures its counter's rate over
/// 5 ms, which was seen to be wrong by up to 47 millionths; twice that, for two.
pub const COUNTER_DRIFT_PPM: u32 = 100;
