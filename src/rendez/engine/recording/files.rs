//! The files of recorders: what they are called, and which of them stay.
//!
//! Each life of a task has its own, so that no life takes the last words of another.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::engine::Inner;
use crate::engine::config::Config;
use crate::ground::device::TaskName;
use crate::ground::limits::RECORDINGS_LEFT;
use crate::ground::{Incarnation, Locked, Status, catalogue};
use crate::trace::recorder::words_for;
use crate::trace::stages::RecorderPlace;
use crate::users::UserNumbers;

/// Recordings are for their owner alone: they tell what a task does, with all its keys.
const RECORDING_MODE: u32 = 0o600;

/// What copies that missed deadlines leave are named after.
pub(super) const MISSED: &str = "missed";

/// How the names of recorders and their copies end.
const RECORDER: &str = ".rdz";

/// How the names of what lives leave end, in the order in which it makes room: a copy is short of what came after it,
/// but was made on purpose.
const LEFT: [&str; 2] = [RECORDER, "-missed.rdz"];

/// How often a new file is tried to be locked.
const LOCK_TRIES: u32 = 100;

/// What a task's files begin with: its name, as a file's.
fn prefix(task: &TaskName) -> String {
    let task: String = task
        .to_string()
        .trim_start_matches('/')
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        })
        .collect();
    format!("rendez-{task}-")
}

/// The file of a shard's recorder in one life of a task. A container gives all its lives one number of a process.
pub(super) fn name(task: &TaskName, life: Incarnation, shard: u16) -> String {
    let (prefix, process) = (prefix(task), std::process::id());
    format!("{prefix}{process}-{:016x}-{shard}{RECORDER}", life.0)
}

/// The file of a copy of it.
pub(super) fn copy_of(recorder: &str, why: &str) -> String {
    let stem = recorder.strip_suffix(RECORDER).unwrap_or(recorder);
    format!("{stem}-{why}{RECORDER}")
}

/// The life and the shard of a file of the task whose name ends so; `None` if it is none. Copies that a person asked
/// for are theirs to remove.
fn whose(file: &str, task: &TaskName, end: &str) -> Option<(u64, u16)> {
    let rest = file.strip_prefix(&prefix(task))?.strip_suffix(end)?;
    let (process, rest) = rest.split_once('-')?;
    let (life, shard) = rest.split_once('-')?;
    let is_one = process.parse::<u32>().is_ok() && life.len() == 16;
    let life = u64::from_str_radix(life, 16).ok().filter(|_| is_one)?;
    Some((life, shard.parse().ok()?))
}

/// Where the recorder of a shard is to lie.
pub(in crate::engine) fn place(
    config: &Config,
    task: &TaskName,
    life: Incarnation,
    shard: usize,
) -> Result<RecorderPlace, Status> {
    let open = |folder: &PathBuf| {
        let path = folder.join(name(task, life, shard as u16));
        #[cfg(test)]
        tests::fail(&path, shard).map_err(|error| unplaced(&path, &error))?;
        let file = make_folder(folder).and_then(|()| make(&path));
        let file = file.map_err(|error| unplaced(&path, &error))?;
        // As long as it is locked, its life goes on. Another that begins may hold it for the moment of a look. Where
        // files cannot be locked, one is taken for dead too early.
        let _ = (0..LOCK_TRIES).any(|_| {
            std::thread::yield_now();
            file.try_lock().is_ok()
        });
        thin_out(folder, task, life, shard as u16);
        let reserved = reserve(&file, &path, config.recorder_bytes as usize, || {
            let mut spare = LEFT
                .iter()
                .flat_map(|end| left(folder, task, life, end, None));
            spare
                .next()
                .is_some_and(|(_, oldest)| fs::remove_file(oldest).is_ok())
        });
        reserved.map_err(|error| {
            let _ = fs::remove_file(&path);
            unplaced(&path, &error)
        })?;
        Ok::<_, Status>(file)
    };
    let file = config
        .recorder_dir
        .as_ref()
        .filter(|_| config.stage_sampling > 0);
    Ok(RecorderPlace {
        file: file.map(open).transpose()?,
        ring_bytes: config.recorder_bytes as usize,
    })
}

/// The folder, for its owner alone if it is not there yet: recordings have names that are easy to guess.
fn make_folder(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// A new file. What another user put there, for us to follow or fill, is an error.
fn make(path: &Path) -> std::io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(RECORDING_MODE)
        .open(path)?;
    // The umask may have taken from it.
    file.set_permissions(Permissions::from_mode(RECORDING_MODE))?;
    Ok(file)
}

/// Takes the blocks of a recorder. Where the folder is full, what `spare` can remove makes room: the last words of
/// earlier lives, and what they kept of missed deadlines, are no reason not to begin another.
fn reserve(
    file: &File,
    path: &Path,
    ring_bytes: usize,
    spare: impl Fn() -> bool,
) -> std::io::Result<()> {
    let len = (words_for(ring_bytes) * size_of::<u64>()) as u64;
    let take = || {
        #[cfg(test)]
        tests::has_room(path)?;
        let _ = path;
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, len)?;
        Ok(())
    };
    // File systems that take no blocks ahead, as NFS 3 and some over the network, take them for what is written.
    let take = || match take() {
        Err::<(), std::io::Error>(error) if error.kind() == ErrorKind::Unsupported => {
            fill(file, len)
        }
        taken => taken,
    };
    loop {
        match take() {
            Err(error) if is_full(&error) && spare() => {}
            taken => return taken,
        }
    }
}

fn fill(mut file: &File, len: u64) -> std::io::Result<()> {
    file.rewind()?;
    std::io::copy(&mut std::io::repeat(0).take(len), &mut file)?;
    // A file system over the network may say only now that there is no room.
    file.sync_data()
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// Of the lives that left a recorder, by a crash or a missed deadline, the last ones keep it; so do those that left a
/// copy.
fn thin_out(folder: &Path, task: &TaskName, own: Incarnation, shard: u16) {
    for end in LEFT {
        let left = left(folder, task, own, end, Some(shard));
        let spare = left.len().saturating_sub(RECORDINGS_LEFT);
        for (_, path) in &left[..spare] {
            let _ = fs::remove_file(path);
        }
    }
}

/// The files of a kind that other lives of the task have left, of that shard or of all, the oldest first.
fn left(
    folder: &Path,
    task: &TaskName,
    own: Incarnation,
    end: &str,
    shard: Option<u16>,
) -> Vec<((i64, i64), PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.filter(|entry| {
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| whose(name, task, end));
        of.is_some_and(|(life, of)| life != own.0 && shard.is_none_or(|shard| shard == of))
    });
    let mut left: Vec<_> = found
        .filter_map(|entry| Some((left_at(&entry.path())?, entry.path())))
        .collect();
    left.sort();
    left
}

/// When a file was written last; `None` while the life goes on whose recorder it is, and for what is none of ours.
fn left_at(path: &Path) -> Option<(i64, i64)> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.ok()?;
    let found = file.metadata().ok().filter(fs::Metadata::is_file)?;
    if !UserNumbers::read().is_own(found.uid()) {
        return None;
    }
    file.try_lock().ok()?;
    Some((found.mtime(), found.mtime_nsec()))
}

/// A task that ends in good order, and missed no deadline, leaves nothing to look at.
pub(in crate::engine) fn clear(inner: &Inner) {
    let dumping = inner.dumping.locked().take();
    // What is being written down may be all that is known of why the task ends.
    let own = std::thread::current().id();
    if let Some(dumping) = dumping.filter(|thread| thread.thread().id() != own) {
        let _ = dumping.join();
    }
    let (config, shards) = (&inner.config, inner.mailboxes.len());
    let is_clean = inner.dumped.load(Ordering::Relaxed) == 0;
    if let Some(folder) = config.recorder_dir.as_ref().filter(|_| is_clean) {
        for shard in 0..shards {
            let name = name(&inner.task, inner.incarnation, shard as u16);
            let _ = fs::remove_file(folder.join(name));
        }
    }
}

/// As [`unwritable`], for what a setting asks for.
fn unplaced(path: &Path, error: &std::io::Error) -> Status {
    let message = format!("recorder_dir: cannot write '{}': {error}", path.display());
    Status::of(catalogue::FILE_UNWRITABLE, message)
}

pub(super) fn unwritable(path: &Path, error: &std::io::Error) -> Status {
    let message = format!("cannot write '{}': {error}", path.display());
    Status::of(catalogue::FILE_UNWRITABLE, message)
}

#[cfg(test)]
mod tests;
