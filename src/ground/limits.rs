//! Every bound of the system, each with the sum that justifies it.
//!
//! A number that bounds memory, time or work stands here and nowhere else; going past one is a
//! `ResourceExhausted` that names the limit and its setting.

/// Bytes of a hot frame: one cache line.
pub const FRAME_BYTES: usize = 64;

/// Bytes of one control message. The longest is a batch of descriptors: 32 entries, one of them a link with 32
/// numbers of ten bytes, the rest under 32 bytes; a hello is under 8 KiB. 64 KiB leaves room for lists to come, and
/// 64 greeted connections that stall in mid-message hold 4 MiB.
pub const CONTROL_MESSAGE_MAX: usize = 64 << 10;
/// Descriptors in one batch of the lane; the kernel takes at most 253 in one message.
pub const DESCRIPTORS_PER_BATCH: usize = 32;
/// Descriptors one peer may offer in its greeting: a doorbell for each shard, a link, and 4096 segments of 64 MiB
/// (256 GiB).
pub const DESCRIPTORS_PER_GREETING: usize = SHARDS_MAX as usize + 1 + 4096;
/// Batches under way in a lane, unanswered: each costs the socket's buffer under 1 KiB of some 200 KiB.
pub const DESCRIPTOR_WINDOW: usize = 8;
/// Control requests of one connection that wait for their answers: the window of batches, a ping and a bye, and room.
pub const CONTROL_REQUESTS_MAX: usize = 16;
/// Control messages queued to one peer. It answers at most one for each request and we ask at most
/// [`CONTROL_REQUESTS_MAX`], so a peer that does not read fills it only by flooding.
pub const CONTROL_QUEUE_MAX: usize = 128;
/// Connections accepted whose greeting is not over: further ones wait in the kernel's backlog.
pub const GREETINGS_MAX: usize = 64;
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

const _: () = assert!(DESCRIPTORS_PER_BATCH <= 253);
const _: () = assert!(DESCRIPTOR_WINDOW + 2 <= CONTROL_REQUESTS_MAX);
const _: () = assert!(2 * CONTROL_REQUESTS_MAX <= CONTROL_QUEUE_MAX);
const _: () =
    assert!(FEATURES_MAX * (FEATURE_NAME_MAX + 4) + 2 * TASK_NAME_MAX + 512 < CONTROL_MESSAGE_MAX);
const _: () = assert!(DESCRIPTORS_PER_BATCH * 40 + LINK_NUMBERS_MAX * 10 < CONTROL_MESSAGE_MAX);
const _: () = assert!(BODY_MAX_MAX as u64 <= LINE_WINDOW_MAX as u64 * 64);
