//! A shared receive queue: its entries receive the next messages, from whichever peer they come.
//!
//! Knows addresses and how to post them in one chain; not whose memory they are.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::device::last_errno;
use super::domain::Domain;
use super::error::VerbsError;
use super::sys;

/// Entries posted at once.
pub(super) const REFILL_MAX: usize = 32;

/// Memory that a message may be received into.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceiveEntry {
    /// Comes back in its completion.
    pub id: u64,
    /// Where.
    pub address: u64,
    /// How long.
    pub len: u32,
    /// The key of its registration.
    pub lkey: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceive {
    srq: NonNull<sys::ibv_srq>,
    requests: Box<[sys::ibv_recv_wr; REFILL_MAX]>,
    pieces: Box<[sys::ibv_sge; REFILL_MAX]>,
    is_left: bool,
    domain: Arc<Domain>,
}

impl SharedReceive {
    /// A queue of at least `entries`.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] beyond what the device can do; [`VerbsError::Call`].
    pub fn new(domain: &Arc<Domain>, entries: u32) -> Result<Self, VerbsError> {
        let device = domain.device();
        let limit = device.limits().shared_receives_max;
        if entries > limit {
            return Err(VerbsError::Limit {
                device: device.name().clone(),
                what: "entries of a shared receive queue",
                limit: limit.into(),
            });
        }
        let mut wanted = sys::ibv_srq_init_attr {
            srq_context: ptr::null_mut(),
            attr: sys::ibv_srq_attr {
                max_wr: entries,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: `ibv_create_srq(3)`: the domain is live, and the attributes are read and written in the call.
        let srq = unsafe { (domain.table().create_srq)(domain.pd().as_ptr(), &raw mut wanted) };
        let srq = NonNull::new(srq).ok_or_else(|| device.failed("ibv_create_srq", last_errno()))?;
        let empty = sys::ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: ptr::null_mut(),
            num_sge: 0,
        };
        Ok(Self {
            srq,
            requests: Box::new([empty; REFILL_MAX]),
            pieces: Box::new([sys::ibv_sge::default(); REFILL_MAX]),
            is_left: false,
            domain: Arc::clone(domain),
        })
    }

    /// Posts up to `REFILL_MAX` entries with one call.
    ///
    /// # Errors
    /// The error number; some may have been posted.
    ///
    /// # Safety
    /// Each entry is memory of a live registration of the same domain, and it is neither read nor written until its
    /// completion, or until the queue is destroyed.
    #[inline]
    pub unsafe fn post(&mut self, entries: &[ReceiveEntry]) -> Result<(), i32> {
        let count = entries.len().min(REFILL_MAX);
        if count == 0 {
            return Ok(());
        }
        let requests = self.requests.as_mut_ptr();
        let pieces = self.pieces.as_mut_ptr();
        for (index, entry) in entries[..count].iter().enumerate() {
            let next = if index + 1 == count {
                ptr::null_mut()
            } else {
                requests.wrapping_add(index + 1)
            };
            let piece = sys::ibv_sge {
                addr: entry.address,
                length: entry.len,
                lkey: entry.lkey,
            };
            // SAFETY: `index` is within the array, which `self` owns and borrows uniquely.
            unsafe { pieces.wrapping_add(index).write(piece) };
            let request = sys::ibv_recv_wr {
                wr_id: entry.id,
                next,
                sg_list: pieces.wrapping_add(index),
                num_sge: 1,
            };
            // SAFETY: as for its piece.
            unsafe { requests.wrapping_add(index).write(request) };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: `ibv_post_srq_recv(3)`: the queue is live, the chain of `count` ends with a null and lives in `self`;
        // the library copies it in the call. For the memory the caller answers.
        match unsafe { sys::ibv_post_srq_recv(self.srq.as_ptr(), requests, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// It outlives us: a queue pair on it cannot be destroyed.
    pub(super) const fn leave(&mut self) {
        self.is_left = true;
    }

    pub(super) const fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.srq.as_ptr()
    }
}

impl Drop for SharedReceive {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        // SAFETY: `ibv_destroy_srq(3)`: made in `new` and destroyed once, after the queue pairs that name it (the order
        // of the port's fields).
        let _ = unsafe { (self.domain.table().destroy_srq)(self.srq.as_ptr()) };
    }
}

// SAFETY: not automatic because of the pointers: `srq` may be used by any thread, and those of the requests
// point into `self` and are written anew in every call.
unsafe impl Send for SharedReceive {}
