//! Files that kernels may touch: those below one folder, the setting `files_root`, and no others.
//!
//! A graph comes from the client that runs it, and names paths. Every path is resolved by the kernel below the folder
//! (`openat2`, `RESOLVE_BENEATH`): neither `..` nor a symbolic link leads out of it, whatever is moved meanwhile, and
//! the links of `/proc` lead nowhere. Knows paths and descriptors, and nothing of what lies in a file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use rendez::files::Output;
use rendez::ground::{Status, catalogue};

/// How often a path that was moved meanwhile is resolved again.
const TRIES: usize = 16;

/// The folder below which kernels may touch files, if there is one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Files {
    root: Option<PathBuf>,
}

/// A place below the folder, which a path named.
#[derive(Debug)]
pub(crate) struct FilePlace {
    root: OwnedFd,
    below: PathBuf,
    named: PathBuf,
}

/// The folder in which a place lies, opened, and the place's name there.
#[derive(Debug)]
pub(crate) struct Within {
    folder: OwnedFd,
    name: OsString,
}

impl Files {
    /// None: whatever touches a file is refused.
    #[must_use]
    pub const fn none() -> Self {
        Self { root: None }
    }

    /// Those below `root`.
    #[must_use]
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self {
            root: Some(root.into()),
        }
    }

    /// The place that `path` names for operation `op`: relative to the folder, or absolute and below it.
    ///
    /// # Errors
    /// `FILES_REFUSED` if there is no such folder, or the path does not lie below it.
    pub(crate) fn place(&self, op: &str, path: &Path) -> Result<FilePlace, Status> {
        let Some(root) = &self.root else {
            return Err(refused(format!(
                "{op} may not touch '{}': files_root is not set, and no graph touches a file of this task until it \
                 names a folder (files_root in a file, RENDEZ_FILES_ROOT, --files-root, or --files of `rendez run`)",
                path.display()
            )));
        };
        let unfit = |error: io::Error| {
            let root = root.display();
            refused(format!(
                "{op}: files_root is '{root}', which cannot be used: {error}"
            ))
        };
        let below = match path.is_absolute() {
            false => Some(path.to_owned()),
            true => {
                let whole = std::path::absolute(root).map_err(unfit)?;
                // Its name, or what its name leads to.
                let below = path.strip_prefix(&whole).ok().map(Path::to_owned);
                match below {
                    None => {
                        let whole = root.canonicalize().map_err(unfit)?;
                        path.strip_prefix(whole).ok().map(Path::to_owned)
                    }
                    below => below,
                }
            }
        };
        let Some(below) = below else {
            return Err(outside(op, path, root));
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(root, flags, Mode::empty());
        let place = FilePlace {
            root: opened.map_err(|errno| unfit(errno.into()))?,
            below,
            named: path.to_owned(),
        };
        // A path that leads out is told now, whatever is to be done there; one that leads nowhere is not.
        match place.resolve(&place.below, OFlags::PATH) {
            Err(Errno::XDEV | Errno::LOOP) => Err(outside(op, path, root)),
            Err(Errno::NOSYS) => Err(refused(format!(
                "{op}: this kernel cannot keep a path below a folder; openat2 came with Linux 5.6"
            ))),
            _ => Ok(place),
        }
    }
}

impl FilePlace {
    /// The path as it was named.
    pub(crate) fn path(&self) -> &Path {
        &self.named
    }

    /// Opens the file to be read. Only a regular one: of others the reading may never end.
    pub(crate) fn open(&self) -> io::Result<File> {
        // Without waiting for a writer, where it is a pipe.
        let file = self.resolve(&self.below, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let stat = rustix::fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(File::from(file)),
            _ => Err(io::Error::other("it is no regular file")),
        }
    }

    /// Which file it is, by whatever path: its device and its number there.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(self.resolve(&self.below, OFlags::PATH)?)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// True if nothing is there; what is there and cannot be opened is.
    pub(crate) fn is_missing(&self) -> bool {
        self.identity()
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }

    /// The folder in which it lies, which is made if it is not there, with those above it.
    pub(crate) fn make_folder(&self) -> io::Result<Within> {
        let (folder, name) = self.parts()?;
        let mut made = PathBuf::new();
        for part in folder.components() {
            made.push(part);
            match self.resolve(&made, OFlags::PATH | OFlags::DIRECTORY) {
                Err(Errno::NOENT) => {
                    let above = match made.parent() {
                        Some(above) if !above.as_os_str().is_empty() => above,
                        _ => Path::new("."),
                    };
                    let above = self.resolve(above, OFlags::PATH | OFlags::DIRECTORY)?;
                    let Component::Normal(part) = part else {
                        return Err(Errno::NOENT.into());
                    };
                    match rustix::fs::mkdirat(above, part, Mode::from_raw_mode(0o777)) {
                        // Another process or thread made it.
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                }
                Err(errno) => return Err(errno.into()),
                Ok(_) => {}
            }
        }
        self.within(folder, name)
    }

    /// Removes the file, and its folder if that is empty then and not the whole of what may be touched.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let (folder, name) = self.parts()?;
        let within = self.within(folder, name)?;
        rustix::fs::unlinkat(&within.folder, &within.name, AtFlags::empty())?;
        if let (Some(above), Some(name)) = (folder.parent(), folder.file_name()) {
            let above = self.within(above, name)?;
            rustix::fs::unlinkat(&above.folder, name, AtFlags::REMOVEDIR)?;
        }
        Ok(())
    }

    fn within(&self, folder: &Path, name: &OsStr) -> io::Result<Within> {
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        Ok(Within {
            folder: self.resolve(folder, OFlags::RDONLY | OFlags::DIRECTORY)?,
            name: name.to_owned(),
        })
    }

    fn parts(&self) -> io::Result<(&Path, &OsStr)> {
        let parts = self.below.parent().zip(self.below.file_name());
        parts.ok_or_else(|| io::Error::other("the path ends in no name"))
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let rules = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        for _ in 0..TRIES {
            let flags = flags | OFlags::CLOEXEC;
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), rules) {
                // Something above it was moved while it was looked up.
                Err(Errno::AGAIN) => {}
                outcome => return outcome,
            }
        }
        Err(Errno::AGAIN)
    }
}

impl Within {
    /// Begins a file there, in the place of a regular file or of none: it is there whole when it is finished, or not at
    /// all.
    pub(crate) fn output(self) -> io::Result<Output> {
        match rustix::fs::statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => {}
            Ok(_) => {
                return Err(io::Error::other(
                    "something stands there that is no regular file",
                ));
            }
        }
        Output::at(self.folder, &self.name)
    }
}

fn outside(op: &str, path: &Path, root: &Path) -> Status {
    refused(format!(
        "{op} may not touch '{}': it does not lie below files_root, '{}'",
        path.display(),
        root.display()
    ))
}

fn refused(message: String) -> Status {
    Status::of(catalogue::FILES_REFUSED, message)
}

#[cfg(test)]
mod tests;
