//! A completion queue, and the channel that wakes a sleeper.
//!
//! Knows completions as the library gives them, in bursts; not what was posted.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::device::last_errno;
use super::domain::Domain;
use super::error::VerbsError;
use super::sys;

/// Events of the channel that are acknowledged at once: each takes a lock in the library.
const ACKNOWLEDGE_AT: u32 = 64;

/// A completion queue with its channel. One owner polls it.
#[derive(Debug)]
pub struct CompletionQueue {
    cq: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    /// Events taken from the channel and not acknowledged.
    events: u32,
    is_left: bool,
    domain: Arc<Domain>,
}

impl CompletionQueue {
    /// A queue of at least `entries`.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] beyond what the device can do; [`VerbsError::Call`].
    pub fn new(domain: &Arc<Domain>, entries: u32) -> Result<Self, VerbsError> {
        let device = domain.device();
        let limit = device.limits().completions_max;
        let count = i32::try_from(entries).ok().filter(|_| entries <= limit);
        let count = count.ok_or_else(|| VerbsError::Limit {
            device: device.name().clone(),
            what: "entries of a completion queue",
            limit: limit.into(),
        })?;
        let table = domain.table();
        let context = device.context().as_ptr();
        // SAFETY: `ibv_create_comp_channel(3)`: the context is open.
        let channel = unsafe { (table.create_comp_channel)(context) };
        let channel = NonNull::new(channel)
            .ok_or_else(|| device.failed("ibv_create_comp_channel", last_errno()))?;
        // SAFETY: `ibv_create_cq(3)`: the context is open, and so is the channel; vector 0 there always is.
        let cq = unsafe { (table.create_cq)(context, count, ptr::null_mut(), channel.as_ptr(), 0) };
        let Some(cq) = NonNull::new(cq) else {
            let error = device.failed("ibv_create_cq", last_errno());
            // SAFETY: `ibv_destroy_comp_channel(3)`: made above, with no queue on it.
            let _ = unsafe { (table.destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Self {
            cq,
            channel,
            events: 0,
            is_left: false,
            domain: Arc::clone(domain),
        };
        // A sleeper waits for the descriptor beside others, and never in the library.
        rustix::fs::fcntl_getfl(queue.fd())
            .and_then(|flags| rustix::fs::fcntl_setfl(queue.fd(), flags | OFlags::NONBLOCK))
            .map_err(|errno| device.failed("fcntl(comp_channel)", errno.raw_os_error()))?;
        Ok(queue)
    }

    /// Takes completions, as many as fit into `out`. Fewer than that means that there were no more.
    ///
    /// # Errors
    /// The error number, after which the queue is of no use.
    #[inline]
    pub fn poll(&mut self, out: &mut [sys::ibv_wc]) -> Result<usize, i32> {
        let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
        // SAFETY: `ibv_poll_cq(3)`: the queue is live, and there is room for as many entries as is said.
        let count = unsafe { sys::ibv_poll_cq(self.cq.as_ptr(), room, out.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| -count)
    }

    /// Asks for one event in the channel at the next completion. What came before is not told: poll once more.
    ///
    /// # Errors
    /// The error number.
    pub fn arm(&mut self) -> Result<(), i32> {
        // SAFETY: `ibv_req_notify_cq(3)`: the queue is live.
        match unsafe { sys::ibv_req_notify_cq(self.cq.as_ptr(), 0) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// Takes the events that are in the channel, so that it is no longer readable.
    pub fn take_events(&mut self) {
        let (mut cq, mut of) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: `ibv_get_cq_event(3)`: the channel is live and does not block, and there is room for both answers.
        while unsafe {
            (self.domain.table().get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut of)
        } == 0
        {
            self.events += 1;
        }
        if self.events >= ACKNOWLEDGE_AT {
            self.acknowledge();
        }
    }

    /// Readable when an event is in the channel.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live, and its descriptor is written once, when it is made.
        let fd = unsafe { (*self.channel.as_ptr()).fd };
        // SAFETY: the descriptor is open as long as the channel, which is as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// It outlives us: a queue pair on it cannot be destroyed.
    pub(super) const fn leave(&mut self) {
        self.is_left = true;
    }

    pub(super) const fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.cq.as_ptr()
    }

    fn acknowledge(&mut self) {
        // SAFETY: `ibv_ack_cq_events(3)`: so many were got from this queue's channel, and no other queue is on it.
        unsafe { (self.domain.table().ack_cq_events)(self.cq.as_ptr(), self.events) };
        self.events = 0;
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        // Destroying waits for acknowledgements.
        self.acknowledge();
        // SAFETY: `ibv_destroy_cq(3)`: made in `new`, destroyed once, after the queue pairs and the receive queue that
        // name it (the order of the port's fields), and with every event acknowledged.
        let _ = unsafe { (self.domain.table().destroy_cq)(self.cq.as_ptr()) };
        // SAFETY: `ibv_destroy_comp_channel(3)`: made in `new`, destroyed once, and its only queue is gone.
        let _ = unsafe { (self.domain.table().destroy_comp_channel)(self.channel.as_ptr()) };
    }
}

// SAFETY: not automatic because of the pointers. The library lets any thread use the queue; this has one owner, which
// may move to another thread.
unsafe impl Send for CompletionQueue {}
