//! Words: numbers in a shared mapping of their own, which outlives its writer for as long as its file exists.
//!
//! Knows nothing of what the numbers mean. Every access is atomic and relaxed, so a reader in another thread or process
//! sees each word whole, old or new. Untouched pages cost no memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::mapping::{MapAccess, Mapping};
use super::{MemoryError, files};

/// Words of eight bytes, mapped for reading and writing.
#[derive(Debug)]
pub struct Words {
    mapping: Mapping,
    count: usize,
    file: OwnedFd,
}

impl Words {
    /// `count` words, all zero, in memory that has no name: gone with the last process that has it open or mapped.
    ///
    /// # Errors
    /// [`MemoryError::System`] and [`MemoryError::Map`].
    pub fn anonymous(count: usize) -> Result<Self, MemoryError> {
        let file = files::create(c"rendez-recorder", MemfdFlags::empty())?;
        let words = Self::map(file, count)?;
        // If the file became shorter than its mapping, a read of it would fault.
        rustix::fs::fcntl_add_seals(&words.file, SealFlags::SHRINK | SealFlags::SEAL)
            .map_err(|errno| MemoryError::system("fcntl F_ADD_SEALS", errno))?;
        Ok(words)
    }

    /// The same in a new file, which stays however the process ends. No process may make that file shorter.
    ///
    /// # Errors
    /// [`MemoryError::System`] and [`MemoryError::Map`].
    pub fn in_file(file: File, count: usize) -> Result<Self, MemoryError> {
        let len = (count.max(1) * size_of::<AtomicU64>()) as u64;
        files::check_len(len)?;
        // Its blocks are reserved now: a full file system is an error here, and not a fault at the first write.
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, len) {
            // A file system of a network, as a rule: to write the bytes takes the blocks as well.
            Err(Errno::OPNOTSUPP) => write_zeroes(&file, len)?,
            done => done.map_err(|errno| MemoryError::system("fallocate", errno))?,
        }
        Self::map(OwnedFd::from(file), count)
    }

    fn map(file: OwnedFd, count: usize) -> Result<Self, MemoryError> {
        let count = count.max(1);
        let len = count * size_of::<AtomicU64>();
        files::set_len(&file, len as u64)?;
        let mapping = Mapping::new(&file, 0, len, MapAccess::Write, "counters and events")?;
        Ok(Self {
            mapping,
            count,
            file,
        })
    }

    /// All of them.
    #[inline]
    #[must_use]
    pub fn all(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, so aligned for `AtomicU64`; it holds `count` of them, initialised by the
        // kernel to zero, and lives as long as `self`; any other writer there writes atomically.
        unsafe { slice::from_raw_parts(self.mapping.base().cast(), self.count) }
    }
}

/// Fills the first `len` bytes of a file that is empty, up to the disk.
fn write_zeroes(mut file: &File, len: u64) -> Result<(), MemoryError> {
    let written = std::io::copy(&mut std::io::repeat(0).take(len), &mut file);
    let synced = written.and_then(|_| file.sync_data());
    synced.map_err(|error| MemoryError::System {
        call: "write",
        errno: error.raw_os_error().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::Words;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_are_zero_and_keep_what_is_written() {
        let words = Words::anonymous(1000).expect("memory");
        assert!(
            words
                .all()
                .iter()
                .all(|word| word.load(Ordering::Relaxed) == 0)
        );
        words.all()[999].store(7, Ordering::Relaxed);
        assert_eq!(words.all()[999].load(Ordering::Relaxed), 7);
        assert_eq!(words.all().len(), 1000);
    }

    /// What a file system without `fallocate` is given in its place.
    #[test]
    fn a_file_can_be_filled_by_writing() {
        let file = tempfile::tempfile().expect("a file");
        super::write_zeroes(&file, 100_001).expect("written");
        let stat = rustix::fs::fstat(&file).expect("there");
        assert_eq!(stat.st_size, 100_001);
        assert!(
            stat.st_blocks * 512 >= 100_001,
            "its blocks are taken: {}",
            stat.st_blocks
        );
    }

    #[test]
    fn what_is_in_a_file_stays_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("words");
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let words = Words::in_file(file.expect("new"), 8).expect("mapped");
        words.all()[3].store(0x0102_0304, Ordering::Relaxed);
        drop(words);
        let bytes = std::fs::read(path).expect("readable");
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[24..32], 0x0102_0304_u64.to_le_bytes());
    }
}
