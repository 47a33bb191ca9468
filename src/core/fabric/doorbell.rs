//! Doorbells: how a shard that sleeps is woken, from its own process or another.
//!
//! Knows a word and an eventfd; not which process rings, nor why.
//!
//! ```text
//!  owner                                      poster
//!  arm:  sleeping = 1                         publish into a ring
//!        fence ────────── either ────────────── fence
//!        look at every ring again               ring: sleeping == 1 ? write the eventfd
//!        nothing: wait on the eventfd
//! ```
//!
//! Of two threads that each store, fence and then load what the other stored, at least one sees the other's store
//! (Dekker). So either the owner finds the frame on its second look, or the poster finds the owner asleep and rings.
//! A poster pays the fence once per burst, and only for peers that may sleep.
//!
//! The word lies in a sealed page of its own: peers map it read-only, and after the owner's mapping no process can make
//! a writable one.
//!
//! An eventfd is shared whole: counter and flags are the same for all who hold it, and owner and posters do. What a
//! hostile one can do:
//!
//! * It rings for nothing, which costs the owner a look.
//! * It reads the counter before the owner does, and so takes away rings of others. The owner then sleeps for as long
//!   as it would without a ring; a shard's thread bounds that.
//! * It takes `O_NONBLOCK` away. The owner reads without waiting all the same, where the kernel knows such a read
//!   (Linux 5.8). A write that never waits is known to no kernel: an owner that takes the flag away from its own
//!   doorbell and fills the counter holds up each thread that rings it, until it reads the counter or ends.
#![allow(unsafe_code)]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use smallvec::SmallVec;

use super::descriptors::{has_huge_pages, is_eventfd};
use crate::ground::Nanos;
use crate::memory::files;
use crate::sync::AtomicU64;

mod word;

const PAGE: usize = 4096;

/// Descriptors that a sleeper of one shard waits for beside its doorbell: one for each kind of fabric, and one more.
const OTHERS: usize = 5;

/// Why a doorbell could not be made or opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoorbellError {
    /// A system call failed.
    #[error("{0}: {1}")]
    Os(&'static str, Errno),
    /// The page's descriptor could be shrunk beneath us.
    #[error("the doorbell's page is not sealed against shrinking")]
    Unsealed,
    /// The page's descriptor is of huge pages, which the peer could take away again.
    #[error("the doorbell's page is a huge page")]
    HugePages,
    /// What is to be rung is no eventfd: writing to it could wait, or end the process.
    #[error("the doorbell's descriptor is not an eventfd")]
    NoEvent,
    /// The page's descriptor is shorter than a page.
    #[error("the doorbell's page is shorter than a page")]
    Short,
}

/// A sleeper's own end.
#[derive(Debug)]
pub struct Doorbell {
    page: Arc<Page>,
    memory: OwnedFd,
    event: Arc<OwnedFd>,
}

impl Doorbell {
    /// A doorbell for one sleeper.
    ///
    /// # Errors
    /// [`DoorbellError::Os`] when the kernel refuses a memfd, a mapping or an eventfd.
    pub fn new() -> Result<Self, DoorbellError> {
        let memory = files::create_of(c"rendez-doorbell", PAGE)
            .map_err(|(call, errno)| DoorbellError::Os(call, errno))?;
        let page = Arc::new(Page::map(&memory, ProtFlags::READ | ProtFlags::WRITE)?);
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        fcntl_add_seals(&memory, seals)
            .map_err(|errno| DoorbellError::Os("fcntl(F_ADD_SEALS)", errno))?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| DoorbellError::Os("eventfd", errno))?;
        Ok(Self {
            page,
            memory,
            event: Arc::new(event),
        })
    }

    /// Says "about to sleep". After it the owner must look at all its rings once more, and only then wait.
    pub fn arm(&self) {
        word::arm(self.page.sleeping());
    }

    /// Says "awake", and forgets the rings so far.
    pub fn disarm(&self) {
        word::disarm(self.page.sleeping());
        let mut count = [0; 8];
        let at = u64::MAX; // None: an eventfd has no places.
        let buffer = &mut [IoSliceMut::new(&mut count)];
        // The flag of the descriptor is not relied on: peers share it.
        match preadv2(&*self.event, buffer, at, ReadWriteFlags::NOWAIT) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            // The kernel knows no such read of an eventfd. An error is EAGAIN: no ring came.
            Err(_) => drop(rustix::io::read(&*self.event, &mut count)),
        }
    }

    /// Sleeps until it rings, or `timeout` is over (`None`: for ever); true if it rang. Early returns are possible and
    /// harmless. Only between [`Doorbell::arm`] and [`Doorbell::disarm`].
    ///
    /// # Errors
    /// [`DoorbellError::Os`] when poll fails other than by a signal.
    pub fn wait(&self, timeout: Option<Nanos>) -> Result<bool, DoorbellError> {
        self.wait_beside([], timeout)
    }

    /// The same, and until one of `others` is readable.
    ///
    /// # Errors
    /// As [`Doorbell::wait`].
    pub fn wait_beside<'a>(
        &'a self,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
        timeout: Option<Nanos>,
    ) -> Result<bool, DoorbellError> {
        let timeout = timeout.map(|Nanos(total)| Timespec {
            tv_sec: (total / 1_000_000_000) as i64,
            tv_nsec: (total % 1_000_000_000) as i64,
        });
        let all = [self.event.as_fd()].into_iter().chain(others);
        let mut fds: SmallVec<[_; 1 + OTHERS]> = all
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(DoorbellError::Os("poll", errno)),
        }
    }

    /// Rings our own doorbell, for instance to make another loop of this process look.
    pub fn ring(&self) {
        self.page.ring(&self.event);
    }

    /// What a poster of this process rings with.
    #[must_use]
    pub fn wake(&self) -> PeerWake {
        PeerWake(Some(Ringer {
            page: Arc::clone(&self.page),
            event: Arc::clone(&self.event),
        }))
    }

    /// The page's and the eventfd's descriptors: what a poster of another process needs for [`PeerWake::open`], and
    /// what a loop that waits on more than this adds to its own set.
    #[must_use]
    pub fn fds(&self) -> (BorrowedFd<'_>, BorrowedFd<'_>) {
        (self.memory.as_fd(), self.event.as_fd())
    }
}

/// A poster's end of a peer's doorbell, or of none when the peer never sleeps.
#[derive(Clone, Debug)]
pub struct PeerWake(Option<Ringer>);

impl PeerWake {
    /// For a peer that never sleeps: ringing costs nothing.
    pub const NEVER_SLEEPS: Self = Self(None);

    /// Opens a peer's doorbell from the descriptors it sent.
    ///
    /// # Errors
    /// [`DoorbellError`] when the page is not sealed, huge, too short, or cannot be mapped, or there is no eventfd.
    pub fn open(memory: &OwnedFd, event: OwnedFd) -> Result<Self, DoorbellError> {
        let seals = fcntl_get_seals(memory).map_err(|_| DoorbellError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(DoorbellError::Unsealed);
        }
        if has_huge_pages(memory).map_err(|errno| DoorbellError::Os("fstatfs", errno))? {
            return Err(DoorbellError::HugePages);
        }
        let stat = fstat(memory).map_err(|errno| DoorbellError::Os("fstat", errno))?;
        if stat.st_size < PAGE as i64 {
            return Err(DoorbellError::Short);
        }
        if !is_eventfd(&event).map_err(|errno| DoorbellError::Os("fstat", errno))? {
            return Err(DoorbellError::NoEvent);
        }
        // A peer could hand us a blocking descriptor with a full counter. That it stays so is the peer's word.
        rustix::io::ioctl_fionbio(&event, true)
            .map_err(|errno| DoorbellError::Os("ioctl(FIONBIO)", errno))?;
        let page = Page::map(memory, ProtFlags::READ)?;
        Ok(Self(Some(Ringer {
            page: Arc::new(page),
            event: Arc::new(event),
        })))
    }

    /// True if the peer may sleep, so that it must be rung after posts.
    #[inline]
    #[must_use]
    pub const fn may_sleep(&self) -> bool {
        self.0.is_some()
    }

    /// Wakes the peer if it sleeps. Call after publishing; once per burst is enough.
    #[inline]
    pub fn ring(&self) {
        if let Some(ringer) = &self.0 {
            ringer.page.ring(&ringer.event);
        }
    }
}

#[derive(Clone, Debug)]
struct Ringer {
    page: Arc<Page>,
    event: Arc<OwnedFd>,
}

/// The mapped page; its first word is `sleeping`.
#[derive(Debug)]
struct Page(NonNull<u8>);

impl Page {
    fn map(memory: &OwnedFd, protection: ProtFlags) -> Result<Self, DoorbellError> {
        // SAFETY: a null hint lets the kernel choose unused addresses, so no memory of ours is replaced; whatever the
        // page holds is only touched as an atomic word.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                PAGE,
                protection,
                MapFlags::SHARED,
                memory,
                0,
            )
        };
        let base = base.map_err(|errno| DoorbellError::Os("mmap", errno))?;
        NonNull::new(base.cast())
            .map(Self)
            .ok_or(DoorbellError::Os("mmap", Errno::NOMEM))
    }

    fn sleeping(&self) -> &AtomicU64 {
        // SAFETY: the page is mapped as long as `self` lives, cannot shrink (sealed: our own by us, a peer's checked
        // in `open`), and its start is aligned. The owner writes the word, others only load it: a read-only mapping is
        // never stored to, since only `Doorbell` stores. Every access is atomic.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().cast()) }
    }

    #[inline]
    fn ring(&self, event: &OwnedFd) {
        if word::must_ring(self.sleeping()) {
            // An error is EAGAIN: the counter is full, so the sleeper is being woken already.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; only this value unmaps it, and no borrow of the word outlives it.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), PAGE) };
        debug_assert!(unmapped.is_ok());
    }
}

// SAFETY: `NonNull` stopped it. The page is touched only as an atomic word, and unmapping needs no particular thread.
unsafe impl Send for Page {}
// SAFETY: as above: all shared use is of one atomic.
unsafe impl Sync for Page {}

#[cfg(test)]
mod tests;
