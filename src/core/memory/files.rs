//! Files in memory: everything that processes share lies in one, and all are made and given their length here.
//!
//! Knows what of the system meets such files, and not what lies in them. To `ulimit -f` they are files as any other:
//! the kernel ends a process that would make one longer, by a signal that few programs expect. Where `vm.memfd_noexec`
//! is 2 it makes none that might be executed. The command makes its own here too.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// A call that the system refused, and why.
pub type Refused = (&'static str, Errno);

/// A file in memory, empty, to be sealed by its maker: none can ever execute it.
///
/// # Errors
/// What the system says.
pub fn create(name: &CStr, flags: MemfdFlags) -> Result<OwnedFd, Refused> {
    let flags = flags | MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let made = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know that flag.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    };
    made.map_err(|errno| ("memfd_create", errno))
}

/// The same, of so many zeroes.
///
/// # Errors
/// What the system says; `EFBIG` for more than it lets a file have.
pub fn create_of(name: &CStr, len: usize) -> Result<OwnedFd, Refused> {
    check_len(len as u64)?;
    let file = create(name, MemfdFlags::empty())?;
    set_len(&file, len as u64)?;
    Ok(file)
}

/// Gives a file its length.
///
/// # Errors
/// As [`create_of`].
pub(crate) fn set_len(file: impl AsFd, len: u64) -> Result<(), Refused> {
    check_len(len)?;
    rustix::fs::ftruncate(file, len).map_err(|errno| ("ftruncate", errno))
}

/// Refuses a length for which the kernel would end the process.
///
/// # Errors
/// `EFBIG`.
pub(crate) fn check_len(len: u64) -> Result<(), Refused> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if len > limit => Err(("ftruncate beyond `ulimit -f`", Errno::FBIG)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
