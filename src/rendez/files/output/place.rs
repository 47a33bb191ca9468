//! Places: what a path leads to, and what lies there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{directory, is_planted, is_same, kind, refused};

/// Links in a row that are followed, as many as the kernel follows.
const LINKS_MAX: usize = 40;

/// What a path leads to.
pub(super) enum OutputPlace {
    /// A name in a folder, and what lies there.
    Named {
        folder: OwnedFd,
        name: OsString,
        found: Option<Stat>,
    },
    /// A link that leads to no path: a descriptor of a process.
    Descriptor(File),
}

/// Follows links, as the kernel would, to a name in a folder.
pub(super) fn resolve(path: &Path) -> io::Result<OutputPlace> {
    let mut path = PathBuf::from(path);
    for _ in 0..=LINKS_MAX {
        // Also what the kernel refuses to follow for us, such as another user's link in a folder that all may write to.
        match rustix::fs::stat(&path) {
            Ok(_) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let (folder, name) = split(&path)?;
        let found = look(folder.as_fd(), &name)?;
        if found
            .as_ref()
            .is_none_or(|found| kind(found) != FileType::Symlink)
        {
            return Ok(OutputPlace::Named {
                folder,
                name,
                found,
            });
        }
        if rustix::fs::fstatfs(&folder)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
            return descriptor(&path, &folder, &name).map(OutputPlace::Descriptor);
        }
        let target = target(&folder, &name)?;
        path = path
            .parent()
            .map_or_else(|| target.clone(), |parent| parent.join(&target));
    }
    Err(Errno::LOOP.into())
}

/// Where a link leads. It may have been put there after the kernel judged the path, so it is judged here as well.
fn target(folder: &OwnedFd, name: &OsStr) -> io::Result<PathBuf> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let link = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    is_planted(folder, &rustix::fs::fstat(&link)?)?;
    let target = rustix::fs::readlinkat(&link, c"", Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(target.as_bytes())))
}

/// The folder of a path, opened, and the name there.
pub(super) fn split(path: &Path) -> io::Result<(OwnedFd, OsString)> {
    let is_folder = path.as_os_str().as_bytes().ends_with(b"/");
    let Some(name) = path.file_name().filter(|_| !is_folder) else {
        return Err(if path.as_os_str().is_empty() {
            Errno::NOENT.into()
        } else {
            directory()
        });
    };
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::open(parent, flags, Mode::empty()) {
        Ok(folder) => Ok((folder, name.to_owned())),
        Err(Errno::NOENT) => {
            let message = format!("there is no folder '{}'", parent.display());
            Err(io::Error::new(ErrorKind::NotFound, message))
        }
        Err(errno) => Err(errno.into()),
    }
}

pub(super) fn look(folder: BorrowedFd<'_>, name: &OsStr) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// A descriptor that procfs names: our own output as it is, any other opened anew.
fn descriptor(path: &Path, folder: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let of_process = rustix::fs::stat("/proc/self/fd");
    let is_ours = matches!((of_process, rustix::fs::fstat(folder)),
        (Ok(one), Ok(other)) if is_same(&one, &other));
    let shared = match name.as_bytes() {
        b"1" if is_ours => Some(io::stdout().as_fd().try_clone_to_owned()?),
        b"2" if is_ours => Some(io::stderr().as_fd().try_clone_to_owned()?),
        _ => None,
    };
    let found = rustix::fs::stat(path)?;
    if kind(&found) == FileType::Directory {
        return Err(directory());
    }
    if let Some(shared) = shared {
        let flags = rustix::fs::fcntl_getfl(&shared)?;
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            return Err(refused("it is open for reading only"));
        }
        return Ok(File::from(shared));
    }
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::super::tests::skipped::skipped;
    use super::*;

    #[test]
    fn another_users_link_in_a_common_folder_is_not_followed() {
        if !rustix::process::geteuid().is_root() {
            skipped("only root gives links away");
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("planted");
        symlink("victim", &path).expect("made");
        lchown(&path, Some(12_345), Some(12_345)).expect("given away");
        let (of, name) = split(&path).expect("a folder");
        assert_eq!(target(&of, &name).expect("a link"), Path::new("victim"));
        let common = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(folder.path(), common).expect("set");
        let error = target(&of, &name).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        lchown(&path, Some(0), Some(0)).expect("given back");
        assert_eq!(target(&of, &name).expect("a link"), Path::new("victim"));
    }
}
