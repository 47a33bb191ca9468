//! The file that workers meet through: who is in the group, under a lock.
//!
//! Its first line says how the group meets, which number comes next, and how many lines follow; each of those is a
//! worker: its number, its name, its task and its address, with tabs between. A file that ends before that is torn, and
//! refused.
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
use std::time::{Duration, Instant};

use rendez::control::Address;
use rendez::files::Output;
use rendez::ground::{TaskName, catalogue};

use super::WorkerInfo;
use crate::error::Error;
use crate::id::{WorkerId, check_name};

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
const HEAD: &str = "rendez-rpc 2";
const STATIC: &str = "static";
const DYNAMIC: &str = "dynamic";

/// A worker, and where it listens.
pub(super) type Member = (WorkerInfo, Address);

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Store {
    path: PathBuf,
    is_dynamic: bool,
}

#[derive(Debug, Default)]
struct Members {
    next: u32,
    members: BTreeMap<WorkerId, Member>,
}

impl Store {
    pub(super) fn new(path: &Path, is_dynamic: bool) -> Self {
        Self {
            path: path.to_owned(),
            is_dynamic,
        }
    }

    fn fault(&self, what: impl std::fmt::Display) -> Error {
        Error::of(
            catalogue::RPC_STORE,
            format!("{}: {what}", self.path.display()),
        )
    }

    /// Changes the members under the lock.
    fn change<R>(&self, change: impl FnOnce(&mut Members) -> Result<R, Error>) -> Result<R, Error> {
        // It is given back when this returns.
        let locked = self.lock()?;
        let mut members = self.parse(&locked)?;
        let result = change(&mut members)?;
        self.write(&members).map_err(|error| self.fault(error))?;
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

    fn read(&self) -> Result<Members, Error> {
        match File::open(&self.path) {
            Ok(file) => self.parse(&file),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Members::default()),
            Err(error) => Err(self.fault(error)),
        }
    }

    fn parse(&self, file: &File) -> Result<Members, Error> {
        let mut text = String::new();
        let read = file.take(BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| self.fault(error))?;
        let (how, members) = parse(&text).map_err(|what| self.fault(what))?;
        let own = if self.is_dynamic { DYNAMIC } else { STATIC };
        if how != own && !members.members.is_empty() {
            return Err(Error::of(catalogue::RPC_GROUP, MIXED));
        }
        Ok(members)
    }

    fn write(&self, members: &Members) -> std::io::Result<()> {
        let how = if self.is_dynamic { DYNAMIC } else { STATIC };
        let mut file = Output::open(&self.path)?;
        file.write_all(show(how, members).as_bytes())?;
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
        self.change(|members| {
            let before = members.members.values().find(|(info, _)| info.name == name);
            let id = match before {
                Some((info, _)) if info.task == *task => info.id,
                Some((info, _)) => {
                    let message = format!(
                        "RPC worker name {name} is not unique: it is worker {}, the task {}",
                        info.id, info.task
                    );
                    return Err(Error::of(catalogue::RPC_NAME, message));
                }
                None => {
                    let id = u16::try_from(members.next).map_err(|_| {
                        self.fault("65536 workers have joined: begin with a new file")
                    })?;
                    members.next += 1;
                    WorkerId(id)
                }
            };
            let info = WorkerInfo {
                id,
                name: name.to_owned(),
                task: task.clone(),
            };
            members.members.insert(id, (info, address.clone()));
            Ok(id)
        })
    }

    /// It is not in the group any more.
    pub(super) fn leave(&self, id: WorkerId) -> Result<(), Error> {
        self.change(|members| {
            members.members.remove(&id);
            Ok(())
        })
    }

    /// Who is in the group.
    pub(super) fn members(&self) -> Result<BTreeMap<WorkerId, Member>, Error> {
        Ok(self.read()?.members)
    }

    /// Waits until so many are in the group.
    pub(super) fn gather(
        &self,
        size: usize,
        patience: Duration,
    ) -> Result<BTreeMap<WorkerId, Member>, Error> {
        let began = Instant::now();
        let mut pause = FIRST_LOOK;
        loop {
            let members = self.members()?;
            if members.len() == size {
                return Ok(members);
            }
            if members.len() > size {
                let message = format!("{} workers have joined a group of {size}", members.len());
                return Err(Error::of(catalogue::RPC_GROUP, message));
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

/// What the file says: how the group meets, and its workers.
fn parse(text: &str) -> Result<(&str, Members), String> {
    let mut lines = text.lines();
    let mut members = Members::default();
    let Some(head) = lines.next() else {
        return Ok((STATIC, members));
    };
    let words: Vec<&str> = head.split('\t').collect();
    let [HEAD, how @ (STATIC | DYNAMIC), next, count] = words[..] else {
        return Err("line 1: it is no file of a group; delete it, or name another".into());
    };
    let number = |word: &str| {
        word.parse::<u32>()
            .map_err(|_| format!("line 1: '{word}' is no number; delete it, or name another"))
    };
    let count = number(count)?;
    members.next = number(next)?;
    for (number, line) in (2..).zip(lines) {
        let member = member(line).map_err(|what| format!("line {number}: {what}"))?;
        members.members.insert(member.0.id, member);
    }
    let read = members.members.len();
    if read != count as usize || !text.ends_with('\n') {
        return Err(format!(
            "it is torn: it says that {count} workers follow, and {read} do; delete it when none of the group is there"
        ));
    }
    Ok((how, members))
}

/// The text that [`parse`] reads.
fn show(how: &str, members: &Members) -> String {
    // An empty group begins again.
    let next = if members.members.is_empty() {
        0
    } else {
        members.next
    };
    let mut text = format!("{HEAD}\t{how}\t{next}\t{}\n", members.members.len());
    for (info, address) in members.members.values() {
        text.push_str(&format!(
            "{}\t{}\t{}\t{address}\n",
            info.id, info.name, info.task
        ));
    }
    text
}

fn member(line: &str) -> Result<Member, String> {
    let words: Vec<&str> = line.split('\t').collect();
    let [id, name, task, address] = words[..] else {
        return Err("it has not four words with tabs between".into());
    };
    let id = id
        .parse()
        .map_err(|_| format!("'{id}' is no worker's number"))?;
    check_name(name).map_err(|error| error.to_string())?;
    let task = TaskName::parse(task).map_err(|error| error.to_string())?;
    let address = address
        .parse::<Address>()
        .map_err(|error| error.to_string())?;
    Ok((
        WorkerInfo {
            id: WorkerId(id),
            name: name.to_owned(),
            task,
        },
        address,
    ))
}
