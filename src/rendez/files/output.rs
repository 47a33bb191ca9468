//! Output: one file that is written, from its opening to the moment at which it is there.
//!
//! | at the path lies | what happens |
//! |---|---|
//! | nothing, or a regular file | the bytes go into a nameless file beside it, which takes the path when it is whole |
//! | a regular file that something was mounted over | it is emptied when the first byte comes, and written in place |
//! | a device, a FIFO | it is opened and written through |
//! | a symbolic link | what it leads to is taken for what it is, also if that is nothing yet |
//! | a descriptor of a process (`/dev/stdout`, `/proc/self/fd/3`) | it is written through, at its end |
//! | a directory, a socket | refused |
//!
//! A file without a name (`O_TMPFILE`) is gone when its process is, however that ends: a kill leaves nothing. Where the
//! file system has none, the draft has a name, `.rendez-*.part`, that is removed when the output is dropped, and that
//! only a kill leaves behind.
//!
//! A path where nothing lies is taken by one `linkat`. A file that is there cannot be replaced so: the draft first gets
//! the name `.rendez-*.part` and is renamed at once. A kill between these two calls leaves that name, with a whole
//! file. What lies at the path is looked at once more right before; what another process puts there between that look
//! and the rename is replaced.
//!
//! A file that is replaced keeps its mode, and its owner and group as far as the process may give files away; where it
//! may not keep the group, the group's rights are cut to those of all others. Access lists and extended attributes are
//! not kept. Hard links to the old file go on leading to the old content.

mod place;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Stat, StatxAttributes, StatxFlags, Uid,
};
use rustix::io::Errno;

use place::{OutputPlace, look, resolve, split};

use crate::users::UserNumbers;

/// The mode of files that every user may read, within the umask.
const SHARED: Mode = Mode::from_raw_mode(0o666);

/// The mode of files that are for their owner alone.
const PRIVATE: Mode = Mode::from_raw_mode(0o600);

/// Names that are tried for a draft.
const NAMES_MAX: usize = 100;

/// A file that is being written. Dropped before [`Output::finish`], it leaves what was there before.
#[derive(Debug)]
#[must_use = "nothing is there before it is finished"]
pub struct Output {
    file: File,
    draft: Option<Draft>,
    /// What was there before is still in the file: it goes when the first byte comes, or when this is finished.
    is_old: bool,
}

/// A file that is not at its path yet.
#[derive(Debug)]
struct Draft {
    folder: OwnedFd,
    name: OsString,
    /// Its own name, where it has one: removed when this is dropped.
    own: Option<OsString>,
    is_private: bool,
}

/// How an output is opened.
#[derive(Clone, Copy, Debug)]
struct How {
    /// Of a file that was not there.
    mode: Mode,
    /// For its owner alone, whatever lies there and whatever the umask says; no link is followed.
    is_private: bool,
    /// What is written is to be seen at once: a regular file is written in place.
    is_live: bool,
    /// Files without a name are not tried.
    is_named: bool,
}

impl How {
    const USUAL: Self = Self {
        mode: SHARED,
        is_private: false,
        is_live: false,
        is_named: false,
    };
}

impl Output {
    /// Opens the output at `path`. A new file gets the mode 0666 less the umask.
    ///
    /// Opening a FIFO waits until it has a reader.
    ///
    /// # Errors
    /// That the folder is not there or may not be written to; that a directory or a socket lies there; that the file
    /// there may not be written to, or belongs to another user in a folder that all may write to (as with the
    /// kernel's `fs.protected_regular`).
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_how(path, How::USUAL)
    }

    /// As [`Output::open`]; a new file gets the mode 0600.
    ///
    /// # Errors
    /// As [`Output::open`].
    pub fn confidential(path: &Path) -> io::Result<Self> {
        let mode = PRIVATE;
        Self::open_how(path, How { mode, ..How::USUAL })
    }

    /// A regular file for its owner alone, of mode 0600 whatever the umask is. No link at `path` is followed, and only
    /// a regular file of the same user is replaced.
    ///
    /// # Errors
    /// As [`Output::open`]; that anything else lies there.
    pub fn private(path: &Path) -> io::Result<Self> {
        let how = How {
            mode: PRIVATE,
            is_private: true,
            ..How::USUAL
        };
        Self::open_how(path, how)
    }

    /// As [`Output::open`], for what is worth reading before it is whole: a regular file is emptied, and written in
    /// place.
    ///
    /// # Errors
    /// As [`Output::open`].
    pub fn live(path: &Path) -> io::Result<Self> {
        let is_live = true;
        Self::open_how(
            path,
            How {
                is_live,
                ..How::USUAL
            },
        )
    }

    /// The output of this name, without a slash, in `folder`. A link there is refused: the path was resolved already.
    ///
    /// # Errors
    /// As [`Output::open`]; that a link lies there.
    pub fn at(folder: OwnedFd, name: &OsStr) -> io::Result<Self> {
        let found = look(folder.as_fd(), name)?;
        if found
            .as_ref()
            .is_some_and(|found| kind(found) == FileType::Symlink)
        {
            return Err(refused("it is a symbolic link"));
        }
        let name = name.to_owned();
        open_named(
            OutputPlace::Named {
                folder,
                name,
                found,
            },
            How::USUAL,
        )
    }

    fn open_how(path: &Path, how: How) -> io::Result<Self> {
        let place = if how.is_private {
            let (folder, name) = split(path)?;
            let found = look(folder.as_fd(), &name)?;
            OutputPlace::Named {
                folder,
                name,
                found,
            }
        } else {
            resolve(path)?
        };
        open_named(place, how)
    }

    /// Takes out what was there before, once.
    fn empty(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.is_old) {
            self.file.set_len(0)?;
        }
        Ok(())
    }

    fn written_through(file: File, is_old: bool) -> Self {
        let draft = None;
        Self {
            file,
            draft,
            is_old,
        }
    }

    /// True if it is written through to the same file as `other`.
    #[must_use]
    pub fn is_same(&self, other: impl AsFd) -> bool {
        let stats = (rustix::fs::fstat(&self.file), rustix::fs::fstat(other));
        matches!(stats, (Ok(one), Ok(other)) if is_same(&one, &other))
    }

    /// True if both are to lie at one path, or are written to one file that each empties first. A device or a pipe
    /// takes one after the other.
    #[must_use]
    pub fn is_one_with(&self, other: &Self) -> bool {
        match (&self.draft, &other.draft) {
            (Some(one), Some(other)) => {
                let folders = [&one.folder, &other.folder].map(rustix::fs::fstat);
                one.name == other.name
                    && matches!(folders, [Ok(one), Ok(other)] if is_same(&one, &other))
            }
            _ => self.is_old && self.is_same(&other.file),
        }
    }

    /// What was written is there, whole, and may be lost with the system: for files that mean nothing without the
    /// processes that wrote them. It costs no wait for a disk.
    ///
    /// # Errors
    /// What the system says; what was there before is then as it was.
    pub fn finish_unsynced(mut self) -> io::Result<()> {
        self.empty()?;
        match self.draft {
            Some(mut draft) => draft.publish(&self.file, true),
            None => Ok(()),
        }
    }

    /// What was written is synced, and may take its path: for files that belong together, before the first is finished.
    ///
    /// # Errors
    /// As [`Output::finish`].
    pub fn prepare(&mut self) -> io::Result<()> {
        self.empty()?;
        let Some(draft) = &self.draft else {
            // Pipes and most devices have nothing to sync.
            return match self.file.sync_all() {
                Err(error) if is_unsyncable(&error) => Ok(()),
                synced => synced,
            };
        };
        self.file.sync_all()?;
        let now = look(draft.folder.as_fd(), &draft.name)?;
        now.map_or(Ok(()), |now| draft.may_replace(&now))
    }

    /// What was written is synced, and then it is there.
    ///
    /// # Errors
    /// What the system says; what was there before is then as it was.
    pub fn finish(self) -> io::Result<()> {
        self.finish_how(true)
    }

    /// The same, and never in place of anything.
    ///
    /// # Errors
    /// That something is there; as [`Output::finish`].
    pub fn finish_new(self) -> io::Result<()> {
        self.finish_how(false)
    }

    fn finish_how(mut self, replaces: bool) -> io::Result<()> {
        self.prepare()?;
        let Some(mut draft) = self.draft else {
            return match replaces {
                true => Ok(()),
                false => Err(Errno::EXIST.into()),
            };
        };
        draft.publish(&self.file, replaces)?;
        // The name is on the disk when its folder is; some file systems cannot sync folders.
        let folder = rustix::fs::openat(
            &draft.folder,
            c".",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        match folder.map(File::from).map(|folder| folder.sync_all()) {
            Ok(Err(error)) if !is_unsyncable(&error) => Err(error),
            // A folder that may be written to and not read cannot be opened to be synced.
            _ => Ok(()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.empty()?;
        self.file.write(bytes)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.empty()?;
        self.file.write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Draft {
    /// Gives the whole file its name.
    fn publish(&mut self, file: &File, replaces: bool) -> io::Result<()> {
        let (folder, name) = (&self.folder, &self.name);
        let linked = match &self.own {
            None => link(file, folder, name),
            Some(_) if replaces => Err(Errno::EXIST),
            // NFS and others rename in place of what is there or not at all; its own name goes when this is dropped.
            Some(own) => match rustix::fs::linkat(folder, own, folder, name, AtFlags::empty()) {
                // VFAT and others have no links, and refuse in more ways than one.
                Err(errno) if errno != Errno::EXIST => {
                    rustix::fs::renameat_with(folder, own, folder, name, RenameFlags::NOREPLACE)
                }
                linked => linked,
            },
        };
        match linked {
            Err(Errno::EXIST) if replaces => {}
            linked => return Ok(linked?),
        }
        if self.own.is_none() {
            self.own = Some(named(|own| link(file, folder, own))?);
        }
        if let Some(now) = look(folder.as_fd(), name)? {
            self.may_replace(&now)?;
        }
        if let Some(own) = &self.own {
            rustix::fs::renameat(folder, own, folder, name)?;
        }
        self.own = None;
        Ok(())
    }

    fn may_replace(&self, found: &Stat) -> io::Result<()> {
        if kind(found) != FileType::RegularFile {
            return Err(refused(
                "something that is no regular file was put there meanwhile",
            ));
        }
        is_own(found, self.is_private)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(own) = &self.own {
            // The error has no receiver, and what stays is only a name with a dot.
            let _ = rustix::fs::unlinkat(&self.folder, own, AtFlags::empty());
        }
    }
}

/// Gives a file without a name one.
fn link(file: &File, folder: &OwnedFd, name: &OsStr) -> Result<(), Errno> {
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(CWD, unnamed, folder, name, AtFlags::SYMLINK_FOLLOW) {
        // Without /proc: the privileged may name the descriptor itself.
        Err(Errno::NOENT) => rustix::fs::linkat(file, c"", folder, name, AtFlags::EMPTY_PATH),
        linked => linked,
    }
}

/// Tries names that are not taken.
fn named<T>(mut make: impl FnMut(&OsStr) -> Result<T, Errno>) -> io::Result<OsString> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..NAMES_MAX {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!(".rendez-{}-{number}.part", std::process::id()));
        match make(&name) {
            // What a process of the same number left when it was killed.
            Err(Errno::EXIST) => {}
            made => return Ok(made.map(|_| name)?),
        }
    }
    Err(Errno::EXIST.into())
}

fn open_named(place: OutputPlace, how: How) -> io::Result<Output> {
    let (folder, name, found) = match place {
        OutputPlace::Named {
            folder,
            name,
            found,
        } => (folder, name, found),
        OutputPlace::Descriptor(file) => return Ok(Output::written_through(file, false)),
    };
    let Some(found) = found else {
        if how.is_live {
            let flags =
                OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&folder, &name, flags, how.mode)?;
            return Ok(Output::written_through(file.into(), false));
        }
        return drafted(folder, name, None, how);
    };
    match kind(&found) {
        FileType::RegularFile => {}
        _ if how.is_private => return Err(refused("what lies there is no regular file")),
        FileType::Directory => return Err(directory()),
        FileType::Socket => return Err(refused("it is a socket; name a file")),
        FileType::Fifo => is_planted(&folder, &found)?,
        _ => {}
    }
    is_own(&found, how.is_private)?;
    let mut flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let is_regular = kind(&found) == FileType::RegularFile;
    if is_regular {
        is_planted(&folder, &found)?;
        // Should it have become a FIFO, that does not hold us up.
        flags |= OFlags::NONBLOCK;
    }
    let file = File::from(rustix::fs::openat(&folder, &name, flags, Mode::empty())?);
    if !is_same(&rustix::fs::fstat(&file)?, &found) {
        return Err(refused("it was replaced while it was opened"));
    }
    if !is_regular || how.is_live || is_mounted(&file) {
        let mut output = Output::written_through(file, is_regular);
        if how.is_live {
            output.empty()?;
        }
        return Ok(output);
    }
    drop(file);
    drafted(folder, name, Some(&found), how)
}

/// An output that takes that name when it is whole, in place of what is there `before`.
fn drafted(folder: OwnedFd, name: OsString, before: Option<&Stat>, how: How) -> io::Result<Output> {
    // What replaces a file stays private until it has that file's mode.
    let mode = before.map_or(how.mode, |_| PRIVATE);
    let (file, own) = draft(&folder, mode, how.is_named)?;
    let draft = Draft {
        folder,
        name,
        own,
        is_private: how.is_private,
    };
    let file = File::from(file);
    match before {
        // Whatever the umask takes away.
        _ if how.is_private => rustix::fs::fchmod(&file, PRIVATE)?,
        Some(before) => dress(&file, before)?,
        None => {}
    }
    Ok(Output {
        file,
        draft: Some(draft),
        is_old: false,
    })
}

/// A file in `folder` that has no name, or where there is none such, one of its own.
fn draft(folder: &OwnedFd, mode: Mode, is_named: bool) -> io::Result<(OwnedFd, Option<OsString>)> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if !is_named {
        match rustix::fs::openat(folder, c".", flags | OFlags::TMPFILE, mode) {
            // No such thing in this file system, or kernel.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            opened => return Ok((opened?, None)),
        }
    }
    let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mut file = None;
    let name = named(|name| {
        file = Some(rustix::fs::openat(folder, name, flags, mode)?);
        Ok(())
    })?;
    let file = file.ok_or(Errno::EXIST)?;
    Ok((file, Some(name)))
}

/// Gives a draft the owner, group and mode of the file that it will replace, as far as this process may.
fn dress(file: &File, before: &Stat) -> io::Result<()> {
    let now = rustix::fs::fstat(file)?;
    let mut mode = before.st_mode & 0o7777;
    let chown = |uid: Option<Uid>, gid: Option<Gid>| rustix::fs::fchown(file, uid, gid).is_ok();
    let (uid, gid) = (Uid::from_raw(before.st_uid), Gid::from_raw(before.st_gid));
    let is_owner_kept = now.st_uid == before.st_uid;
    let is_group_kept = now.st_gid == before.st_gid;
    let is_dressed = (is_owner_kept && is_group_kept) || chown(Some(uid), Some(gid));
    if !is_dressed {
        mode &= 0o777;
        if !is_group_kept && !chown(None, Some(gid)) {
            // What the old group might is not for the new one.
            mode &= !0o070 | ((mode & 0o007) << 3);
        }
    }
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(mode))?)
}

/// A file of another user in a folder where all may put some, with the sticky bit: it may have been put there for us to
/// fill.
fn is_planted(folder: &OwnedFd, found: &Stat) -> io::Result<()> {
    let of = rustix::fs::fstat(folder)?;
    let is_common = of.st_mode & 0o1000 != 0 && of.st_mode & 0o022 != 0;
    let users = UserNumbers::read();
    if is_common && !users.is_own(found.st_uid) && !users.are_one(found.st_uid, of.st_uid) {
        return Err(refused(
            "it belongs to another user, in a folder that all may write to",
        ));
    }
    Ok(())
}

/// What is private replaces only what is of the same user.
fn is_own(found: &Stat, is_private: bool) -> io::Result<()> {
    if is_private && !UserNumbers::read().is_own(found.st_uid) {
        return Err(refused("a file of another user lies there"));
    }
    Ok(())
}

/// A file that something was mounted over cannot be renamed over.
fn is_mounted(file: &File) -> bool {
    let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

const fn is_same(one: &Stat, other: &Stat) -> bool {
    one.st_dev == other.st_dev && one.st_ino == other.st_ino
}

fn is_unsyncable(error: &io::Error) -> bool {
    let unsyncable = [Errno::INVAL, Errno::NOTSUP, Errno::ROFS, Errno::NOSYS];
    Errno::from_io_error(error).is_some_and(|errno| unsyncable.contains(&errno))
}

fn directory() -> io::Error {
    io::Error::new(ErrorKind::IsADirectory, "it is a directory; name a file")
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests;
