//! Every bound of the system, each with the sum that justifies it.
//!
//! A number that bounds memory, time or work stands here and nowhere else; going past one is a
//! `ResourceExhausted` that names the limit and its setting.

/// Bytes of a hot frame: one cache line.
pub const FRAME_BYTES: usize = 64;

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

/// Bytes of a status message that comes from a peer or joins several: what an operator still reads.
pub const STATUS_MESSAGE_BYTES_MAX: usize = 8 * 1024;

/// Different statuses a group keeps of each kind; at 8 KiB a message it holds 2 × 64 × 8 KiB = 1 MiB at most.
pub const STATUS_GROUP_MAX: usize = 64;
