//! Descriptors from peers: what they are, as far as the kernel says.
//!
//! Knows descriptors; not what they are for, nor who sent them.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Mode, OFlags, fstat, fstatfs, open, readlinkat};
use rustix::io::Errno;
use rustix::path::DecInt;

/// `HUGETLBFS_MAGIC` of `linux/magic.h`.
const HUGETLBFS: u32 = 0x9584_58f6;

/// True for a file of reserved huge pages. Where its seals allow writing, anyone who holds it may punch a hole into it:
/// a mapping then faults there for as long as no huge page is free. Its mappings end only as whole huge pages.
pub(super) fn has_huge_pages(file: impl AsFd) -> Result<bool, Errno> {
    Ok(fstatfs(file)?.f_type as u32 == HUGETLBFS)
}

/// True for an eventfd. Where there is no `/proc` to ask, for whatever has no type of file: pipes, sockets and files of
/// a file system have one.
pub(super) fn is_eventfd(event: impl AsFd) -> Result<bool, Errno> {
    let event = event.as_fd();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let all = open("/proc/self/fd", flags, Mode::empty());
    match all.and_then(|all| readlinkat(all, DecInt::from_fd(event), [])) {
        Ok(name) => Ok(name.as_bytes() == b"anon_inode:[eventfd]"),
        Err(_) => has_no_type(event),
    }
}

fn has_no_type(event: impl AsFd) -> Result<bool, Errno> {
    let mode = fstat(event)?.st_mode;
    Ok(FileType::from_raw_mode(mode) == FileType::Unknown)
}

#[cfg(test)]
mod tests;
