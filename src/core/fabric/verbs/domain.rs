//! A protection domain: what is registered with a device, and what the device tells of itself.
//!
//! Knows segments and queue pairs by their memory and their events; not what uses them. One domain serves an engine;
//! every shard's queues hold it.
//!
//! **Events.** The device tells of a queue pair that has used its last receive entry, of ports that go down, and of its
//! own end, through one descriptor. Its reader ([`Domain::look_at_events`], on any thread; it never blocks) sets flags:
//! a queue pair's in the [`Signal`] that it was made with, the rest in the domain. An event is told once: where one
//! thread tells others of what it read, it is the only reader ([`Domain::watch`]); else ports read while they wait for
//! the end of a queue pair. Nothing is locked.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::device::{DevicePath, PathConfig, VerbsDevice, last_errno};
use super::error::VerbsError;
use super::sys::{self, VerbsTable};
use crate::memory::ArenaSegment;
use crate::memory::arena::HostSegment;
use crate::sync::{AtomicU32, Ordering};

/// Events read at a time: there are few, and the rest is there the next time.
const EVENTS_MAX: usize = 64;

/// A protection domain on an open device.
#[derive(Debug)]
pub struct Domain {
    pd: NonNull<sys::ibv_pd>,
    device: VerbsDevice,
    path: DevicePath,
    /// Set for good once the device is gone.
    is_dead: AtomicU32,
    /// How often a port went down.
    port_losses: AtomicU32,
    /// Set for good once a thread reads the events.
    is_watched: AtomicU32,
}

/// What an event says of one queue pair. Its memory is the queue pair's `qp_context`.
#[derive(Debug, Default)]
pub(super) struct Signal {
    /// No receive entry will be taken by it any more.
    pub(super) last_entry: AtomicU32,
    /// The device put it into its error state.
    pub(super) is_broken: AtomicU32,
}

impl Domain {
    /// Opens the device that `config` names and makes a domain on it.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn open(table: &'static VerbsTable, config: &PathConfig) -> Result<Arc<Self>, VerbsError> {
        let (device, path) = VerbsDevice::open(table, config)?;
        // SAFETY: the descriptor is the context's, which is open as long as `device`.
        let events = unsafe { BorrowedFd::borrow_raw(device.async_fd()) };
        // A look that blocked would be a shard that stands.
        rustix::fs::fcntl_getfl(events)
            .and_then(|flags| rustix::fs::fcntl_setfl(events, flags | OFlags::NONBLOCK))
            .map_err(|errno| device.failed("fcntl(async_fd)", errno.raw_os_error()))?;
        // SAFETY: `ibv_alloc_pd(3)`: the context is open.
        let pd = unsafe { (table.alloc_pd)(device.context().as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| device.failed("ibv_alloc_pd", last_errno()))?;
        Ok(Arc::new(Self {
            pd,
            device,
            path,
            is_dead: AtomicU32::new(0),
            port_losses: AtomicU32::new(0),
            is_watched: AtomicU32::new(0),
        }))
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> &VerbsDevice {
        &self.device
    }

    /// The way out of it.
    #[must_use]
    pub const fn path(&self) -> &DevicePath {
        &self.path
    }

    /// True once the device said that it is broken or gone: nothing on it will work again.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Relaxed) != 0
    }

    /// How often one of its ports went down.
    #[must_use]
    pub fn port_losses(&self) -> u32 {
        self.port_losses.load(Ordering::Relaxed)
    }

    /// Readable when the device has something to tell.
    #[must_use]
    pub fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the context's, which is open as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.device.async_fd()) }
    }

    /// From here on the caller reads the events ([`Domain::look_at_events`]) and has ports look at their flags
    /// ([`VerbsPort::look_at_events`](super::VerbsPort::look_at_events)): no port takes an event that it must hear of.
    pub fn watch(&self) {
        self.is_watched.store(1, Ordering::Relaxed);
    }

    /// Reads the events for a port, unless a thread reads them.
    pub(super) fn look_unwatched(&self) {
        if self.is_watched.load(Ordering::Relaxed) == 0 {
            self.look_at_events();
        }
    }

    /// Reads what the device has to tell, and sets the flags of those it is about. Does not block; from any thread.
    pub fn look_at_events(&self) {
        for _ in 0..EVENTS_MAX {
            let mut event = sys::ibv_async_event {
                element: sys::ibv_async_element { port_num: 0 },
                event_type: 0,
            };
            // SAFETY: `ibv_get_async_event(3)`: the context is open, there is room for the event, and the descriptor
            // does not block.
            let failed = unsafe {
                (self.table().get_async_event)(self.device.context().as_ptr(), &raw mut event)
            };
            if failed != 0 {
                return;
            }
            self.note(&event);
            // SAFETY: `ibv_ack_async_event(3)`: the event was just got, and is acknowledged once.
            unsafe { (self.table().ack_async_event)(&raw mut event) };
        }
    }

    /// Registers a segment, whole: for writes by peers if they may, and for reading what is sent either way.
    ///
    /// # Errors
    /// [`VerbsError::Call`]: most often locked memory is limited.
    pub fn register<S: HostSegment>(
        self: &Arc<Self>,
        segment: &Arc<S>,
        access: Access,
    ) -> Result<Registration, VerbsError> {
        let base = segment.base();
        let flags = match access {
            Access::Local => sys::IBV_ACCESS_LOCAL_WRITE,
            // The order of the bytes within a write does not matter: a landing is read after its completion.
            Access::Peers => {
                sys::IBV_ACCESS_LOCAL_WRITE
                    | sys::IBV_ACCESS_REMOTE_WRITE
                    | sys::IBV_ACCESS_RELAXED_ORDERING
            }
        };
        let address = base.expose_provenance() as u64;
        // SAFETY: `ibv_reg_mr(3)`: the domain is live, and the range is the segment's own memory, which the
        // registration keeps. Peers call it by its own addresses.
        let mr = unsafe {
            (self.table().reg_mr)(
                self.pd.as_ptr(),
                base.cast(),
                segment.size(),
                address,
                flags,
            )
        };
        let mr = NonNull::new(mr).ok_or_else(|| self.device.failed("ibv_reg_mr", last_errno()))?;
        // SAFETY: the library made it just now, and writes it no more.
        let keys = unsafe { mr.as_ref() };
        let (lkey, rkey) = (keys.lkey, keys.rkey);
        Ok(Registration {
            mr,
            lkey,
            rkey,
            address,
            len: segment.size() as u64,
            _segment: Arc::clone(segment) as Arc<dyn ArenaSegment>,
            domain: Arc::clone(self),
        })
    }

    pub(super) const fn table(&self) -> &'static VerbsTable {
        self.device.table()
    }

    pub(super) const fn pd(&self) -> NonNull<sys::ibv_pd> {
        self.pd
    }

    fn note(&self, event: &sys::ibv_async_event) {
        match event.event_type {
            sys::IBV_EVENT_QP_LAST_WQE_REACHED
            | sys::IBV_EVENT_QP_FATAL
            | sys::IBV_EVENT_QP_REQ_ERR
            | sys::IBV_EVENT_QP_ACCESS_ERR => {
                // SAFETY: the manual's table of events: for these the element is a queue pair.
                let qp = unsafe { event.element.qp };
                // SAFETY: `ibv_destroy_qp(3)` waits until the event is acknowledged, so the queue pair is live. Its
                // context was set when it was made, and is never written after.
                let signal = unsafe { (*qp).qp_context }.cast::<Signal>();
                // SAFETY: every queue pair of this domain was made with a `Signal` (`queue_pair.rs`), which lives until
                // it is destroyed.
                let signal = unsafe { &*signal };
                if event.event_type == sys::IBV_EVENT_QP_LAST_WQE_REACHED {
                    signal.last_entry.store(1, Ordering::Relaxed);
                } else if !mutant!("verbs_pair_event_ignored") {
                    signal.is_broken.store(1, Ordering::Relaxed);
                }
            }
            sys::IBV_EVENT_PORT_ERR if !mutant!("verbs_port_event_ignored") => {
                self.port_losses.fetch_add(1, Ordering::Relaxed);
            }
            sys::IBV_EVENT_DEVICE_FATAL | sys::IBV_EVENT_CQ_ERR | sys::IBV_EVENT_SRQ_ERR
                if !mutant!("verbs_device_event_ignored") =>
            {
                self.is_dead.store(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: `ibv_dealloc_pd(3)`: made in `open` and freed once. Registrations and queues hold the domain, so none
        // is left.
        let _ = unsafe { (self.table().dealloc_pd)(self.pd.as_ptr()) };
    }
}

// SAFETY: not automatic because of `pd`, which any thread may use (`ibv_reg_mr`, `ibv_create_qp`).
unsafe impl Send for Domain {}

// SAFETY: as above, also from several threads at once.
unsafe impl Sync for Domain {}

/// Which side may write to registered memory through the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The device alone, to receive messages into it.
    Local,
    /// Peers too, where they were granted an address.
    Peers,
}

/// A segment that is registered; deregistered with this. The segment stays mapped as long.
#[derive(Debug)]
pub struct Registration {
    mr: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    address: u64,
    len: u64,
    /// Kept, so that it stays where it is.
    _segment: Arc<dyn ArenaSegment>,
    domain: Arc<Domain>,
}

impl Registration {
    /// The key by which this side posts it.
    #[must_use]
    pub const fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key by which a peer writes to it.
    #[must_use]
    pub const fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Where it starts, as the device calls it.
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The domain it is registered with.
    #[must_use]
    pub const fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// True if `len` bytes at `address` lie in it.
    #[must_use]
    pub const fn holds(&self, address: u64, len: u64) -> bool {
        match address.checked_sub(self.address) {
            Some(offset) => offset <= self.len && len <= self.len - offset,
            None => false,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: `ibv_dereg_mr(3)`: made in `register` and given back once. A port drops its registrations after its
        // queue pairs are destroyed, so the device works on it no more.
        let _ = unsafe { (self.domain.table().dereg_mr)(self.mr.as_ptr()) };
    }
}

// SAFETY: not automatic because of `mr`, which is read once, when it is made, and given back from any thread.
unsafe impl Send for Registration {}

// SAFETY: as above; what is shared is plain numbers.
unsafe impl Sync for Registration {}
