//! Mappings: bytes of a file in this process's address space, until they are dropped.
//!
//! Knows neither what the file is nor what lies there, and never looks: code that does says why it may.
#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::MemoryError;

/// What may be done to mapped bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapAccess {
    /// They are read.
    Read,
    /// They are read and written, and other processes see it.
    Write,
    /// They are read and written, and a page is copied first that is written to.
    Copy,
}

/// Bytes of a file, mapped at an address of the kernel's choice.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// `len` bytes of `file`, from `offset` on, which begins a page. What lies behind the file's end must not be
    /// touched. The error says that it was for `what`.
    pub(super) fn new(
        file: impl AsFd,
        offset: u64,
        len: usize,
        access: MapAccess,
        what: &'static str,
    ) -> Result<Self, MemoryError> {
        let (protection, flags) = match access {
            MapAccess::Read => (ProtFlags::READ, MapFlags::SHARED),
            MapAccess::Write => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            MapAccess::Copy => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
        };
        let refused = |errno: Errno| MemoryError::Map {
            what,
            len: len as u64,
            errno: errno.raw_os_error(),
        };
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing Rust knows of.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, flags, file, offset) };
        let base = base.map_err(refused)?;
        let base = NonNull::new(base.cast()).ok_or_else(|| refused(Errno::NOMEM))?;
        Ok(Self { base, len })
    }

    /// Where it starts.
    #[inline]
    pub(super) const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Its length in bytes.
    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping made in `new`, unmapped once. What was made of `base` borrows the
        // mapping's owner, or keeps it, as that says.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping of our own can be unmapped");
    }
}

// SAFETY: not automatic because of `base`. The mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

// SAFETY: as above: a shared one gives out an address and a length, and nothing that can race.
unsafe impl Sync for Mapping {}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::{MapAccess, Mapping};
    use crate::ground::Status;

    #[test]
    fn a_refusal_says_what_for_how_much_and_what_limits_it() {
        let file = rustix::fs::memfd_create(c"test", MemfdFlags::CLOEXEC).expect("a file");
        let all = 1 << 62;
        let refused = Mapping::new(&file, 0, all, MapAccess::Read, "a test").expect_err("too long");
        let status = Status::from(refused);
        assert_eq!(status.reason(), "SYSTEM_LIMIT");
        let said = status.message();
        for part in ["a test", &all.to_string(), "ulimit -v", "vm.max_map_count"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
