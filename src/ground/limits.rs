//! Every bound of the system, each with the sum that justifies it.
//!
//! A number that bounds memory, time or work stands here and nowhere else; going past one is a
//! `ResourceExhausted` that names the limit and its setting.

/// Bytes of a hot frame: one cache line.
pub const FRAME_BYTES: usize = 64;

/// Bytes of a frame's body, at most: a tensor that goes inline with its eight dimensions and a request's ticket,
/// and a key's text, are all shorter.
pub const BODY_MAX: usize = 4096;

/// Bytes of a status message that a frame carries; longer ones are cut.
pub const STATUS_TEXT_MAX: usize = 1024;

const _: () = assert!(STATUS_TEXT_MAX <= BODY_MAX);

/// Keys that have a number on one connection, in each direction: as many as a ticket's index can name would be
/// 2²⁰; a sixteenth of that keeps the tables of a channel under 2 MiB.
pub const INTERNED_KEYS: usize = 1 << 16;

/// Requests of one peer shard that may wait here: the most a ticket index names at the peer.
pub const PARKED_REQUESTS: usize = 1 << 16;
