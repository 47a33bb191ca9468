//! Two cache lines and a stretch of bytes, shared by two processes: the least that can be handed over.
//!
//! Knows nothing of clocks, rows or rendez. What a round trip through here costs is the machine's own price.
//!
//! ```text
//! offset 0          128        256                          4096
//!   | ping: seq, len | pong: seq, sum | unused                | bytes …            |
//!   near writes        far writes                               near writes, far reads
//! ```
//!
//! The sides take turns. Near writes bytes, then `len`, then a new `seq` into the ping line; far sees it, reads `len`
//! bytes, writes their sum and the same `seq` into the pong line. So the bytes have one user at any time: near from
//! seeing pong until it stores ping, far from seeing ping until it stores pong. Lines are 128 bytes apart, because
//! processors fetch them in pairs.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rendez::memory::files;
use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};

use super::touch;

/// Where the bytes start: a page in.
const DATA_OFFSET: usize = 4096;

/// Far's first word: it has mapped the memory and is on its core.
const HELLO: u64 = 1;

/// Near's last word.
const QUIT: u64 = u64::MAX;

/// Spins between two looks at whether the other side lives: about a hundred microseconds.
const SPINS_PER_LOOK: u32 = 1 << 17;

/// One direction's line.
#[repr(C, align(128))]
struct Line {
    seq: AtomicU64,
    word: AtomicU64,
}

const _: () = assert!(2 * size_of::<Line>() <= DATA_OFFSET);

/// Why the other side gave no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gone;

/// How a side waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// Each side has a core: look without pause.
    Spin,
    /// Both share one: give it to the other after each look.
    Yield,
}

/// The mapped memory.
#[derive(Debug)]
struct Shared {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `base` is what stops it being automatic. The mapping belongs to the process, not to a thread, and stays until
// `drop`; the value is its only owner.
unsafe impl Send for Shared {}

/// The side that measures: it writes and waits.
#[derive(Debug)]
pub struct Near {
    shared: Shared,
    seq: u64,
    waiting: Waiting,
}

/// The side that answers.
#[derive(Debug)]
pub struct Far {
    shared: Shared,
    waiting: Waiting,
}

impl Near {
    /// Makes the memory, with room for `bytes`, and gives the descriptor to hand to the other side.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(bytes: usize, waiting: Waiting) -> rustix::io::Result<(Self, OwnedFd)> {
        let len = DATA_OFFSET
            .checked_add(bytes)
            .ok_or(rustix::io::Errno::OVERFLOW)?;
        let fd = files::create_of(c"rendez-baseline", len).map_err(|(_, errno)| errno)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let shared = Shared::map(&fd, len)?;
        Ok((
            Self {
                shared,
                seq: HELLO,
                waiting,
            },
            fd,
        ))
    }

    /// Waits until the other side is there.
    ///
    /// # Errors
    /// [`Gone`] once `is_alive` says that it is not.
    pub fn wait_for_hello(&self, is_alive: &mut dyn FnMut() -> bool) -> Result<(), Gone> {
        wait(
            &self.shared.pong().seq,
            self.waiting,
            |seq| seq == HELLO,
            is_alive,
        )
        .map(|_| ())
    }

    /// Signals without bytes. [`Near::wait`] must follow.
    #[inline(always)]
    pub fn signal(&mut self) {
        self.seq += 1;
        // Release: pairs with the Acquire in `Far::serve`.
        self.shared.ping().seq.store(self.seq, Ordering::Release);
    }

    /// Says that each signal from now on is for `len` bytes; zero for none.
    ///
    /// # Panics
    /// If the memory has no room for them.
    pub fn set_len(&self, len: usize) {
        assert!(
            len <= self.shared.len - DATA_OFFSET,
            "the memory was made for less"
        );
        // Relaxed: the Release store of the next signal publishes it.
        self.shared.ping().word.store(len as u64, Ordering::Relaxed);
    }

    /// Writes the first `len` bytes for the coming round, which is the number of the next signal.
    #[inline]
    pub fn write(&mut self, len: usize) {
        let round = self.seq + 1;
        touch::write(&mut self.shared.bytes_mut()[..len], round);
    }

    /// Waits for the answer to the last signal; gives the sum that the other side read.
    ///
    /// # Errors
    /// [`Gone`] once `is_alive` says that the other side is not there.
    #[inline(always)]
    pub fn wait(&self, is_alive: &mut dyn FnMut() -> bool) -> Result<u64, Gone> {
        let pong = self.shared.pong();
        wait(&pong.seq, self.waiting, |seq| seq == self.seq, is_alive)?;
        // Relaxed: the Acquire load in `wait` has seen far's Release store, which came after this word's.
        Ok(pong.word.load(Ordering::Relaxed))
    }

    /// True if `sum` is that of `len` bytes of the last round.
    #[must_use]
    pub const fn is_right(&self, len: usize, sum: u64) -> bool {
        sum == touch::expected(len, self.seq)
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.shared.ping().seq.store(QUIT, Ordering::Release);
    }
}

impl Far {
    /// Maps the memory behind `fd`, if it is what [`Near::create`] makes: a descriptor that could shrink would be a
    /// fault waiting to happen.
    ///
    /// # Errors
    /// What the kernel says; `EINVAL` for a descriptor that is not sealed or too short.
    pub fn open(fd: impl AsFd, waiting: Waiting) -> rustix::io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        let len = usize::try_from(rustix::fs::fstat(&fd)?.st_size)
            .map_err(|_| rustix::io::Errno::INVAL)?;
        if !seals.contains(SealFlags::SHRINK) || len < DATA_OFFSET {
            return Err(rustix::io::Errno::INVAL);
        }
        Ok(Self {
            shared: Shared::map(&fd, len)?,
            waiting,
        })
    }

    /// Says hello, then answers until the other side quits.
    ///
    /// # Errors
    /// [`Gone`] once `is_alive` says that the other side is not there, or if it claims more bytes than there are.
    pub fn serve(&self, is_alive: &mut dyn FnMut() -> bool) -> Result<(), Gone> {
        let (ping, pong) = (self.shared.ping(), self.shared.pong());
        pong.seq.store(HELLO, Ordering::Release);
        let mut last = 0;
        loop {
            // Its Acquire pairs with the Release in `Near::signal`.
            last = wait(&ping.seq, self.waiting, |seq| seq != last, is_alive)?;
            if last == QUIT {
                return Ok(());
            }
            let len = ping.word.load(Ordering::Relaxed) as usize;
            if len > 0 {
                let bytes = self.shared.bytes().get(..len).ok_or(Gone)?;
                pong.word.store(touch::read(bytes), Ordering::Relaxed);
            }
            // Release: pairs with the Acquire in `Near::wait`.
            pong.seq.store(last, Ordering::Release);
        }
    }
}

impl Shared {
    fn map(fd: impl AsFd, len: usize) -> rustix::io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // Populated, so that no page fault is measured.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a null hint lets the kernel choose the place, so that nothing of ours is mapped over; the length is
        // not zero, because callers add or check `DATA_OFFSET`, and the file is at least as long and sealed.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    #[inline(always)]
    const fn ping(&self) -> &Line {
        // SAFETY: the mapping is page-aligned, hence aligned for a `Line`; at least 4096 bytes long, of which this line
        // is the first 128; it lives as long as `self`. A `Line` is atomics, valid as any bits and shared by design.
        unsafe { self.base.cast::<Line>().as_ref() }
    }

    #[inline(always)]
    const fn pong(&self) -> &Line {
        // SAFETY: one `Line` on is byte 128 of at least 4096 in the same mapping.
        let pong = unsafe { self.base.cast::<Line>().add(1) };
        // SAFETY: as in `ping`, for the second 128 bytes.
        unsafe { pong.as_ref() }
    }

    /// The bytes, for far's turn.
    #[inline(always)]
    const fn bytes(&self) -> &[u8] {
        // SAFETY: `len` is at least `DATA_OFFSET`, so the sum stays within the mapping or one past it.
        let start = unsafe { self.base.add(DATA_OFFSET) };
        // SAFETY: `len - DATA_OFFSET` bytes lie from `start` in one live mapping, initialised by the kernel; the slice
        // is used only between seeing ping and storing pong, when near does not write (see the drawing above).
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len - DATA_OFFSET) }
    }

    /// The bytes, for near's turn.
    #[inline(always)]
    const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        let start = unsafe { self.base.add(DATA_OFFSET) };
        // SAFETY: as in `bytes`; used only between seeing pong and storing ping, when far does not read, and `&mut
        // self` excludes another user on this side.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.len - DATA_OFFSET) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `base` and `len` are those of the mapping made in `map`, which this value alone owns; no reference
        // into it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Waits until `is_it` likes what is in `word`. No pause instruction: it would cost the very time that is measured.
#[inline(always)]
fn wait(
    word: &AtomicU64,
    waiting: Waiting,
    is_it: impl Fn(u64) -> bool,
    is_alive: &mut dyn FnMut() -> bool,
) -> Result<u64, Gone> {
    let mut spins = 0u32;
    loop {
        let seq = word.load(Ordering::Acquire);
        if is_it(seq) {
            return Ok(seq);
        }
        spins = spins.wrapping_add(1);
        if waiting == Waiting::Yield {
            std::thread::yield_now();
        }
        if spins.is_multiple_of(SPINS_PER_LOOK) && !is_alive() {
            return Err(Gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides in one process, taking turns on whatever cores there are.
    fn with_far(bytes: usize, near_does: impl FnOnce(&mut Near)) -> Result<(), Gone> {
        let (mut near, fd) = Near::create(bytes, Waiting::Yield).unwrap();
        let far = Far::open(&fd, Waiting::Yield).unwrap();
        std::thread::scope(|scope| {
            let far = scope.spawn(move || far.serve(&mut || true));
            near.wait_for_hello(&mut || true).unwrap();
            near_does(&mut near);
            drop(near);
            far.join().unwrap()
        })
    }

    #[test]
    fn each_signal_is_answered() {
        let served = with_far(0, |near| {
            for _ in 0..100 {
                near.signal();
                near.wait(&mut || true).unwrap();
            }
        });
        assert_eq!(served, Ok(()));
    }

    #[test]
    fn every_byte_is_read_in_its_round() {
        let served = with_far(1000, |near| {
            for len in [1, 8, 999, 1000] {
                near.set_len(len);
                for _ in 0..10 {
                    near.write(len);
                    near.signal();
                    let sum = near.wait(&mut || true).unwrap();
                    assert!(near.is_right(len, sum));
                }
            }
        });
        assert_eq!(served, Ok(()));
    }

    #[test]
    fn a_side_that_died_is_noticed() {
        let (mut near, _fd) = Near::create(0, Waiting::Spin).unwrap();
        assert_eq!(near.wait_for_hello(&mut || false), Err(Gone));
        near.signal();
        assert_eq!(near.wait(&mut || false), Err(Gone));
    }

    #[test]
    fn a_claim_past_the_end_ends_the_service() {
        let (mut near, fd) = Near::create(8, Waiting::Spin).unwrap();
        let far = Far::open(&fd, Waiting::Spin).unwrap();
        near.shared.ping().word.store(9, Ordering::Relaxed);
        near.signal();
        assert_eq!(far.serve(&mut || true), Err(Gone));
    }

    #[test]
    fn a_descriptor_that_could_shrink_is_refused() {
        let fd = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 8192).unwrap();
        assert_eq!(
            Far::open(&fd, Waiting::Spin).unwrap_err(),
            rustix::io::Errno::INVAL
        );
        assert!(Far::open(std::io::stdin(), Waiting::Spin).is_err() || cfg!(miri));
    }
}
