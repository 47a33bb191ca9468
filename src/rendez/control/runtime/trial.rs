//! What runtimes need of the system, tried before one is made: where they get less they panic.
//!
//! Knows system calls, and how much a runtime asks for; makes no runtime.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::thread::Builder;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io_uring::{
    IoringEnterFlags, IoringRegisterOp, io_uring_enter, io_uring_params, io_uring_register,
    io_uring_setup,
};
use rustix::process::{Resource, test_kill_process};
use rustix::thread::CapabilitySet;

const NAME: &str = "rendez-trial";
/// Lockable memory glommio's rings need where the kernel counts it: 512 KiB was seen to do, with nothing to spare.
const MEMLOCK_MIN: u64 = 512 << 10;
/// What the kernel says of its operations: a head of 16 bytes, and 8 bytes for each of at most 256.
const OPERATIONS: usize = 256;
const OPERATIONS_BYTES: usize = 16 + 8 * OPERATIONS;

/// glommio opens three rings and two eventfds; async-io an epoll, an eventfd and a timer.
const DESCRIPTORS: usize = 5;
/// How often, and how long, a thread that has ended is waited for: the kernel counts it until it has taken it down.
const LOOKS: usize = 1000;
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// Why there is no ring for glommio here; `None` if there is one.
///
/// The end of a ring leaves work to the thread that made it, and the next wait of that thread is cut short as if by a
/// signal. So the trial has a thread of its own. What came of it is not kept: a process may take rights from itself.
pub(super) fn ring_refusal() -> Option<String> {
    match on_a_thread(try_ring) {
        Ok(refusal) => refusal,
        Err(error) => Some(format!("there is no thread to try io_uring on: {error}")),
    }
}

/// Whether the system still gives the descriptors and the thread that a runtime asks for without taking a refusal.
pub(crate) fn room() -> io::Result<()> {
    let held: Result<Vec<OwnedFd>, _> = (0..DESCRIPTORS)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC))
        .collect();
    drop(held?);
    on_a_thread(|| ())
}

/// Runs `what` on a thread of its own, and waits until the kernel does not count that any more.
fn on_a_thread<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let thread = Builder::new()
        .name(NAME.into())
        .spawn(|| (rustix::thread::gettid(), what()))?;
    let Ok((id, made)) = thread.join() else {
        return Err(io::Error::other("the thread of a trial panicked"));
    };
    for _ in 0..LOOKS {
        if test_kill_process(id).is_err() {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(made)
}

fn try_ring() -> Option<String> {
    if let Err((call, errno)) = use_ring() {
        return Some(format!(
            "{call} is refused ({errno}): a container's seccomp filter, \
             kernel.io_uring_disabled, or no memory to lock"
        ));
    }
    let may_lock = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    match limit {
        Some(limit) if limit < MEMLOCK_MIN && !may_lock => Some(format!(
            "RLIMIT_MEMLOCK is {} KiB and this process lacks CAP_IPC_LOCK; glommio needs {} KiB",
            limit >> 10,
            MEMLOCK_MIN >> 10
        )),
        _ => None,
    }
}

/// Makes a ring, and asks of it what glommio does: filters may allow one of these calls and refuse another.
fn use_ring() -> Result<(), (&'static str, rustix::io::Errno)> {
    let mut parameters = io_uring_params::default();
    // SAFETY: the contract asks only that `wq_fd` be open if `ATTACH_WQ` is set; all flags are zero.
    let ring =
        unsafe { io_uring_setup(8, &mut parameters) }.map_err(|errno| ("io_uring_setup", errno))?;
    let mut operations = [0_u8; OPERATIONS_BYTES];
    let into = operations.as_mut_ptr().cast();
    let probe = IoringRegisterOp::RegisterProbe;
    // SAFETY: the kernel writes a head and at most `OPERATIONS` records to `into`, which has room for as many, is zero
    // as it demands, and lives until the call returns; it needs no alignment to be written to.
    unsafe { io_uring_register(&ring, probe, into, OPERATIONS as u32) }
        .map_err(|errno| ("io_uring_register", errno))?;
    // SAFETY: nothing is submitted, nothing is waited for, and all flags are zero: the call reads no memory of ours.
    unsafe { io_uring_enter(&ring, 0, 0, IoringEnterFlags::empty()) }
        .map_err(|errno| ("io_uring_enter", errno))?;
    Ok(())
}
