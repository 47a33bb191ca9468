//! A shared receive queue: its entries receive the next messages, from whichever peer they come.
//!
//! Knows addresses and how to post them in one chain; not whose memory they are.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::chain::{CHAIN_MAX, Chain, ChainRequest};
use super::device::last_errno;
use super::domain::Domain;
use super::error::VerbsError;
use super::sys;

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
    /// Entries that the next call posts.
    spare: Chain<sys::ibv_recv_wr>,
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
        Ok(Self {
            srq,
            spare: Chain::new(),
            is_left: false,
            domain: Arc::clone(domain),
        })
    }

    /// Puts an entry behind those that wait to be posted, and posts them once they are `CHAIN_MAX`. True if it did.
    ///
    /// # Errors
    /// The error number; some may have been posted.
    ///
    /// # Safety
    /// The entry is memory of a live registration of the same domain, and it is neither read nor written until its
    /// completion, or until the queue is destroyed.
    #[inline]
    pub unsafe fn add(&mut self, entry: &ReceiveEntry) -> Result<bool, i32> {
        let (request, piece) = self.spare.add();
        *piece = sys::ibv_sge {
            addr: entry.address,
            length: entry.len,
            lkey: entry.lkey,
        };
        request.wr_id = entry.id;
        if self.spare.len() < CHAIN_MAX {
            return Ok(false);
        }
        self.post().map(|()| true)
    }

    /// Posts the entries that wait, with one call.
    ///
    /// # Errors
    /// As [`SharedReceive::add`].
    pub fn post(&mut self) -> Result<(), i32> {
        let srq = self.srq.as_ptr();
        // SAFETY: `ibv_post_srq_recv(3)`: the queue is live, and the chain ends with a null and lives in `self`; the
        // library copies it in the call. For the memory those answer who added it.
        self.spare
            .post(|first, bad| unsafe { sys::ibv_post_srq_recv(srq, first, bad) })
            .map_err(|(_, errno)| errno)
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

// SAFETY: not automatic because of the pointer: `srq` may be used by any thread.
unsafe impl Send for SharedReceive {}

impl ChainRequest for sys::ibv_recv_wr {
    fn empty(piece: *mut sys::ibv_sge) -> Self {
        Self {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: piece,
            num_sge: 1,
        }
    }

    #[inline]
    fn next(&mut self) -> &mut *mut Self {
        &mut self.next
    }
}
