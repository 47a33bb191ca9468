//! The file that workers meet through: who is in the group, under a lock.
//!
//! Its first line says how many lines follow, and those are the state of the group as its log has it ([`Log`]). A file
//! that ends before that is torn, and refused.
//!
//! A change is a new file that takes the path when it is whole ([`Output`]), so a reader needs no lock, and one that is
//! killed in the middle of a change leaves the file as it was. Who changes it holds a lock of the system's on the file
//! that lies there, and looks once more whether it still does: so the file must lie where that works, on one machine or
//! on a file system that all of them share. The system takes the lock back from who is killed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rendez::control::Address;
use rendez::files::Output;
use rendez::ground::{Locked, TaskName, catalogue};

use super::WorkerInfo;
use super::log::{Log, Refusal};
use crate::error::Error;
use crate::id::WorkerId;

/// More bytes than the file of a group of 65 536 workers has.
const BYTES_MAX: u64 = 64 << 20;
/// How often it is looked at, once the first looks are over.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// The pause after the first look, doubled after each until it is [`LOOK`]: a group that starts together is there soon.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// How long a change may be held up by others: each takes milliseconds, unless its process is stopped.
const LOCKED: Duration = Duration::from_secs(30);
/// How often the lock is tried.
const LOCK_LOOK: Duration = Duration::from_millis(2);
/// What a group says that is static here and dynamic there.
pub(super) const MIXED: &str =
    "RPC group mixes statically and dynamically initialized members which is not supported.";
/// How the file begins: what it is, and the version of its text.
const HEAD: &str = "rendez-rpc 3";

/// A worker, and where it listens.
pub(super) type Member = (WorkerInfo, Address);

/// See the module.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// How many workers a static group has, zero for a dynamic one.
    size: usize,
    /// By which the group knows this worker, and the round it is in.
    me: Mutex<(u64, u64)>,
}

impl Store {
    pub(super) fn new(path: &Path, size: Option<usize>) -> Self {
        Self {
            path: path.to_owned(),
            size: size.unwrap_or(0),
            me: Mutex::new((0, 0)),
        }
    }

    fn fault(&self, what: impl std::fmt::Display) -> Error {
        Error::of(
            catalogue::RPC_STORE,
            format!("{}: {what}", self.path.display()),
        )
    }

    /// Changes the group under the lock.
    fn change<R>(&self, change: impl FnOnce(&mut Log) -> Result<R, Error>) -> Result<R, Error> {
        // It is given back when this returns.
        let locked = self.lock()?;
        let mut group = self.parse(&locked)?;
        let result = change(&mut group)?;
        self.write(&group).map_err(|error| self.fault(error))?;
        Ok(result)
    }

    /// The file that lies at the path, locked. It is made if there is none.
    fn lock(&self) -> Result<File, Error> {
        let until = Instant::now() + LOCKED;
        loop {
            let open = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&self.path);
            let file = open.map_err(|error| self.fault(error))?;
            match file.try_lock() {
                // Who held the lock before has put another file there, or the file has been deleted.
                Ok(()) if self.is_there(&file)? => return Ok(file),
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    std::thread::sleep(LOCK_LOOK);
                }
                Err(TryLockError::WouldBlock) => {
                    let message = format!(
                        "another process has had its lock for {LOCKED:?}: is one of the group stopped?"
                    );
                    return Err(self.fault(message));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(self.fault(format!("it cannot be locked: {error}")));
                }
            }
        }
    }

    /// True if it is the file at the path.
    fn is_there(&self, file: &File) -> Result<bool, Error> {
        let own = file.metadata().map_err(|error| self.fault(error))?;
        match std::fs::metadata(&self.path) {
            Ok(there) => Ok((there.dev(), there.ino()) == (own.dev(), own.ino())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.fault(error)),
        }
    }

    fn read(&self) -> Result<Log, Error> {
        match File::open(&self.path) {
            Ok(file) => self.parse(&file),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Log::default()),
            Err(error) => Err(self.fault(error)),
        }
    }

    fn parse(&self, file: &File) -> Result<Log, Error> {
        let mut text = String::new();
        let read = file.take(BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| self.fault(error))?;
        parse(&text).map_err(|what| self.fault(what))
    }

    fn write(&self, group: &Log) -> std::io::Result<()> {
        let text = group.text();
        let mut file = Output::open(&self.path)?;
        file.write_all(format!("{HEAD}\t{}\n{text}", text.lines().count()).as_bytes())?;
        // A group does not outlive its machines: to wait for the disk would cost each join some milliseconds.
        file.finish_unsynced()
    }

    /// This worker is in the group. One that has started again takes its former place.
    pub(super) fn join(
        &self,
        name: &str,
        task: &TaskName,
        address: &Address,
    ) -> Result<WorkerId, Error> {
        let token = super::random()?;
        let (id, round) = self.change(|group| {
            let place = group.come(token, self.size, name, task.clone(), address.clone());
            place.map_err(|refusal| match refusal {
                Refusal::Group(why) if why != MIXED => Error::of(
                    catalogue::RPC_GROUP,
                    format!(
                        "{why}: {}; delete it when none of the group is there",
                        self.path.display()
                    ),
                ),
                other => other.into(),
            })
        })?;
        *self.me.locked() = (token, round);
        Ok(id)
    }

    /// It is not in the group any more. Nothing happens if it has started again meanwhile.
    pub(super) fn leave(&self) -> Result<(), Error> {
        let (token, _) = *self.me.locked();
        self.change(|group| {
            group.go(token);
            Ok(())
        })
    }

    /// Who is in a dynamic group.
    pub(super) fn members(&self) -> Result<BTreeMap<WorkerId, Member>, Error> {
        Ok(self.read()?.members(0))
    }

    /// Waits until so many are in this worker's round of the group.
    pub(super) fn gather(
        &self,
        size: usize,
        patience: Duration,
    ) -> Result<BTreeMap<WorkerId, Member>, Error> {
        let (began, (_, round)) = (Instant::now(), *self.me.locked());
        let mut pause = FIRST_LOOK;
        loop {
            let members = self.read()?.members(round);
            if members.len() == size {
                return Ok(members);
            }
            if !patience.is_zero() && began.elapsed() > patience {
                let names: Vec<&str> = members.values().map(|(info, _)| &*info.name).collect();
                return Err(incomplete(&names, size, patience));
            }
            std::thread::sleep(pause);
            pause = LOOK.min(pause * 2);
        }
    }
}

/// Not all workers of a static group were there in time.
pub(super) fn incomplete(names: &[&str], size: usize, patience: Duration) -> Error {
    let message = format!(
        "after {patience:?} only {} of {size} workers were there: {}",
        names.len(),
        names.join(", ")
    );
    Error::of(catalogue::RPC_INIT, message)
}

/// The group that the file has.
fn parse(text: &str) -> Result<Log, String> {
    let Some((head, state)) = text.split_once('\n') else {
        return match text.is_empty() {
            true => Ok(Log::default()),
            false => {
                Err("line 1: it is torn, or no file of a group; delete it, or name another".into())
            }
        };
    };
    let count = head
        .strip_prefix(HEAD)
        .and_then(|rest| rest.strip_prefix('\t'));
    let Some(count) = count.and_then(|count| count.parse::<usize>().ok()) else {
        return Err("line 1: it is no file of a group; delete it, or name another".into());
    };
    let read = state.lines().count();
    if read != count || !text.ends_with('\n') {
        return Err(format!(
            "it is torn: it says that {count} lines follow, and {read} do; delete it when none of the group is there"
        ));
    }
    Log::read(state.as_bytes()).map_err(|what| format!("below line 1, {what}"))
}
