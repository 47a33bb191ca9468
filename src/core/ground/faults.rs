//! Faults: the statuses a shard makes, each with its catalogue code and a text that says what, where and what to do.
//!
//! Only cold paths come here; the hot path refuses with small numbers.

use std::fmt;

use super::catalogue as reason;
use super::device::TaskName;
use super::{Code, Incarnation, Key, Status, StepId, limits};

/// What to do where the system refused a call with that error number, to be said after that: if it was for want of
/// descriptors.
pub const fn more_descriptors(errno: i32) -> &'static str {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    match errno {
        ENFILE | EMFILE => "; raise the limit on open files (`ulimit -n`, `LimitNOFILE`)",
        _ => "",
    }
}

pub(crate) fn keys_exhausted(limit: usize) -> Status {
    Status::new(
        Code::ResourceExhausted,
        reason::KEYS,
        format!(
            "this shard knows {limit} keys that are in use, its limit; finish steps that are over"
        ),
    )
}

pub(crate) fn peers_exhausted(limit: usize) -> Status {
    Status::new(
        Code::ResourceExhausted,
        reason::KEYS,
        format!(
            "this shard knows {limit} other tasks, the limit: those that are connected, and those that keys in use or \
             tensors read in place belong to; finish steps that are over, and release prepared keys of tasks that are \
             gone"
        ),
    )
}

pub(crate) fn incoming_exhausted() -> Status {
    let limit = limits::INCOMING;
    Status::of(
        reason::OFFERS_EXHAUSTED,
        format!("{limit} values that peers offer wait for a receiver on this shard, its limit"),
    )
}

pub(crate) fn offers_exhausted() -> Status {
    let limit = 2 * limits::OFFERS + limits::PARKED_REQUESTS;
    Status::of(
        reason::OFFERS_EXHAUSTED,
        format!("{limit} values are on offer to one shard of a peer, the limit"),
    )
}

pub(crate) fn waiters_exhausted(limit: usize) -> Status {
    Status::new(
        Code::ResourceExhausted,
        reason::WAITERS,
        format!("{limit} receives wait on this shard, its limit; ask for fewer at once"),
    )
}

pub(crate) fn requests_exhausted(limit: usize) -> Status {
    let whose = match limit {
        limits::ASKED => "peers",
        _ => "one peer",
    };
    Status::of(
        reason::WAITERS,
        format!(
            "{limit} requests of {whose} wait on a shard of this task, the limit; ask for fewer at once"
        ),
    )
}

/// The shard's mailbox has as many commands as it may.
pub fn mailbox_full(limit: usize) -> Status {
    Status::new(
        Code::ResourceExhausted,
        reason::MAILBOX_FULL,
        format!(
            "{limit} requests wait for the shard, its limit; ask again, send in a way that waits for room \
             (`Step::send_async`), or raise `mailbox`"
        ),
    )
}

/// What this shard has to say to another of its task is more than may wait.
pub(crate) fn neighbour_behind(shard: u16, limit: usize) -> Status {
    Status::new(
        Code::ResourceExhausted,
        reason::MAILBOX_FULL,
        format!("{limit} messages wait for shard {shard} of this task, their limit; slow down"),
    )
}

/// As many sends wait as may.
pub fn sends_exhausted(limit: u32) -> Status {
    Status::new(
        Code::ResourceExhausted,
        reason::WAITING_SENDS,
        format!(
            "{limit} sends wait for room in this shard, its limit; wait for some of them first"
        ),
    )
}

/// A value in a device's memory cannot go to another task.
pub fn device_value(key: Option<&Key>, tensor: &impl fmt::Debug) -> Status {
    let of = key.map_or_else(String::new, |key| format!(" of {}", key.text()));
    Status::of(
        reason::TENSOR_DEVICE,
        format!(
            "the value{of}, {tensor:?}, goes to another task; copy it into a host tensor first"
        ),
    )
}

pub(crate) fn send_behind(key: Option<&Key>, step: StepId) -> Status {
    let of = key.map_or_else(String::new, |key| format!(" of {}", key.text()));
    Status::new(
        Code::ResourceExhausted,
        reason::SEND_BEHIND,
        format!(
            "step {step}: earlier values{of} wait for room, and this one may not overtake them; wait for them, or \
             send it with `send_async`"
        ),
    )
}

/// The send was cancelled.
pub fn send_cancelled() -> Status {
    Status::new(
        Code::Cancelled,
        reason::SEND_CANCELLED,
        "the send was cancelled before there was room for its value",
    )
    .derived()
}

pub(crate) fn send_deadline(key: &Key, step: StepId) -> Status {
    Status::new(
        Code::DeadlineExceeded,
        reason::DEADLINE,
        format!("Timed out waiting for room: {} in step {step}", key.text()),
    )
}

pub(crate) fn step_deadline(step: StepId) -> Status {
    Status::new(
        Code::DeadlineExceeded,
        reason::DEADLINE,
        format!("step {step} had not ended by its deadline"),
    )
}

pub(crate) fn stale_key() -> Status {
    Status::new(
        Code::FailedPrecondition,
        reason::STALE,
        "the key was prepared for another shard, or is no longer known; prepare it again",
    )
}

pub(crate) fn stale_offer() -> Status {
    Status::new(
        Code::FailedPrecondition,
        reason::STALE,
        "the offer is gone: it was taken, or its step ended",
    )
}

/// The key names another task as its source.
pub fn foreign_source(key: &Key, task: &TaskName) -> Status {
    Status::new(
        Code::InvalidArgument,
        reason::DEVICE_FOREIGN_SOURCE,
        format!(
            "this task is {task}, and the key's source is {}: send the value there. The key: {}",
            key.source_task(),
            key.text()
        ),
    )
}

/// The key names another task as its destination.
pub fn foreign_destination(key: &Key, task: &TaskName) -> Status {
    Status::new(
        Code::InvalidArgument,
        reason::DEVICE_FOREIGN_DESTINATION,
        format!(
            "this task is {task}, and the key's destination is {}: receive the value there. The key: {}",
            key.destination_task(),
            key.text()
        ),
    )
}

pub(crate) fn step_unclaimed() -> Status {
    Status::new(
        Code::Aborted,
        reason::STEP_UNCLAIMED,
        "no step of that number was opened here in time; open it on all tasks at about the same time",
    )
}

/// `absence` says why its peer is not there, if it is not.
pub(crate) fn deadline(key: Option<&Key>, step: StepId, absence: Option<String>) -> Status {
    let of = key.map_or_else(String::new, |key| {
        format!(": {} in step {step}", key.text())
    });
    Status::new(
        Code::DeadlineExceeded,
        reason::DEADLINE,
        format!(
            "Timed out waiting for notification{of}{}",
            clause(absence.as_deref())
        ),
    )
}

/// `; {text}`, if there is one.
fn clause(text: Option<&str>) -> String {
    text.map_or_else(String::new, |text| format!("; {text}"))
}

/// The receive was cancelled.
pub fn cancelled() -> Status {
    Status::new(
        Code::Cancelled,
        reason::RECV_CANCELLED,
        "RecvAsync is cancelled.",
    )
    .derived()
}

/// A dead value was read as a living one.
pub(crate) fn dead_value() -> Status {
    Status::of(
        reason::VALUE_DEAD,
        "the value is dead: its sender says that nothing will come; see `Received::is_dead`",
    )
}

/// A value does not fit the caller's memory.
pub fn room_short(needed: usize, room: usize) -> Status {
    Status::of(
        reason::RECV_ROOM,
        format!("the value has {needed} bytes, and the memory to copy it to {room}"),
    )
}

pub(crate) fn peer_restarted(task: &TaskName, expected: Incarnation, found: Incarnation) -> Status {
    Status::new(
        Code::Aborted,
        reason::PEER_RESTARTED,
        format!(
            "{task} came back as incarnation {found}; what was bound to {expected} is gone. Begin the step again"
        ),
    )
}

/// The same life of the peer, which gave us up in between.
pub(crate) fn peer_began_anew(task: &TaskName) -> Status {
    Status::new(
        Code::Unavailable,
        reason::PEER_LOST,
        format!(
            "{task} had given this task up, and is connected again; what was under way is gone. Begin the step again"
        ),
    )
}

/// We gave the peer up and it did not know, or the other way round: values that it sent meanwhile are gone.
pub(crate) fn peer_dropped(task: &TaskName) -> Status {
    Status::new(
        Code::Unavailable,
        reason::PEER_LOST,
        format!(
            "the connection with {task} was lost, and what it sent since is gone; it is connected again. Begin the \
             step again"
        ),
    )
}

pub(crate) fn wrong_incarnation(task: &TaskName, wanted: Incarnation, have: Incarnation) -> Status {
    Status::new(
        Code::Aborted,
        reason::PEER_RESTARTED,
        format!(
            "RecvTensor expects a different device incarnation: {wanted} vs. {have}. Your worker job (\"{task}\") was \
             probably restarted. Check your worker job for the reason why it was restarted."
        ),
    )
}

/// The key is meant for another life of this task.
pub fn own_incarnation(wanted: Incarnation, have: Incarnation) -> Status {
    Status::new(
        Code::Aborted,
        reason::PEER_RESTARTED,
        format!(
            "the key names source incarnation {wanted}, and this task is {have}: make the key again"
        ),
    )
}

pub(crate) fn peer_exited(task: &TaskName) -> Status {
    Status::new(
        Code::Unavailable,
        reason::PEER_LOST,
        format!("task {task} is gone: its process has exited"),
    )
}

pub(crate) fn frame_malformed(task: &TaskName, violation: &impl fmt::Display) -> Status {
    Status::new(
        Code::DataLoss,
        reason::FRAME_MALFORMED,
        format!(
            "the connection to {task} was closed: {violation}. Check that both run the same version"
        ),
    )
}

pub(crate) fn task_panicked(shard: u16, task: u32, what: &str) -> Status {
    Status::new(
        Code::Internal,
        reason::TASK_PANICKED,
        format!("task {task} of shard {shard} panicked: {what}"),
    )
}

pub(crate) fn shard_panicked(shard: u16, what: &str) -> Status {
    Status::new(
        Code::Internal,
        reason::SHARD_PANICKED,
        format!("shard {shard} panicked, and its engine has ended: {what}"),
    )
}

/// The engine has shut down.
pub fn shutdown() -> Status {
    Status::new(Code::Aborted, reason::SHUTDOWN, "Shutdown")
}

/// A handle that came here by a fork.
pub fn forked() -> Status {
    let message = "this process was forked from one with an engine, whose threads are not here: fork before engines \
                   start, or exec in the child";
    Status::new(Code::FailedPrecondition, reason::ENGINE_FORKED, message)
}

/// A wait on the thread of a shard.
pub fn wait_in_shard() -> Status {
    let message =
        "a shard's own thread must not wait: use the task's context, or wait on another thread";
    Status::new(Code::FailedPrecondition, reason::WAIT_IN_SHARD, message)
}

/// The step was finished.
pub fn step_finished(step: StepId) -> Status {
    Status::new(
        Code::Aborted,
        reason::STEP_FINISHED,
        format!("step {step} was finished: nothing more is sent or received in it"),
    )
}

/// There is no room for a value of a peer's, and none that is on its way makes room by its end.
pub(crate) fn landing_unfit(len: u64, why: &Status) -> Status {
    let message = format!(
        "no room for a peer's value of {len} bytes: {}",
        why.message()
    );
    Status::new(why.code(), why.reason(), message)
}

pub(crate) fn landing_unopened(len: u64) -> Status {
    Status::new(
        Code::ResourceExhausted,
        reason::LANDING_UNOPENED,
        format!(
            "no landing of {len} bytes could be registered within `connect_timeout`; raise the limit of locked memory"
        ),
    )
}

pub(crate) fn connect_deadline(task: &TaskName, timeout_ns: u64, why: Option<&str>) -> Status {
    Status::new(
        Code::Unavailable,
        reason::CONNECT_DEADLINE,
        format!(
            "No worker known as {task}: it was not there within {} ms{}. Start it, check its address, or raise \
             `connect_timeout`",
            timeout_ns / 1_000_000,
            clause(why)
        ),
    )
}
