//! Descriptors from peers: what they are, as far as the kernel says.
//!
//! Knows descriptors; not what they are for, nor who sent them.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;
use rustix::io::Errno;

/// `HUGETLBFS_MAGIC` of `linux/magic.h`.
const HUGETLBFS: u32 = 0x9584_58f6;

/// True for a file of reserved huge pages. Where its seals allow writing, anyone who holds it may punch a hole into it:
/// a mapping then faults there for as long as no huge page is free. Its mappings end only as whole huge pages.
pub(super) fn has_huge_pages(file: impl AsFd) -> Result<bool, Errno> {
    Ok(fstatfs(file)?.f_type as u32 == HUGETLBFS)
}
