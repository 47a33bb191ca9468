//! The file that workers meet through: who is in the group, under a lock.
//!
//! Its first line says how the group meets and which number comes next; each other line is a worker: its number, its
//! name, its task and its address, with tabs between. It is read and written whole, under a lock of the system's, so it
//! must lie where that works: on one machine, or on a file system that all of them share.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rendez::control::Address;
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
/// What a group says that is static here and dynamic there.
pub(super) const MIXED: &str =
    "RPC group mixes statically and dynamically initialized members which is not supported.";
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

    /// Changes the members under the lock. `change` says whether it did.
    fn with<R>(
        &self,
        change: impl FnOnce(&mut Members) -> Result<(R, bool), Error>,
    ) -> Result<R, Error> {
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.path);
        let mut file = open.map_err(|error| self.fault(error))?;
        file.lock()
            .map_err(|error| self.fault(format!("it cannot be locked: {error}")))?;
        let mut members = self.read(&mut file)?;
        let (result, is_changed) = change(&mut members)?;
        if is_changed {
            self.write(&mut file, &members)
                .map_err(|error| self.fault(error))?;
        }
        Ok(result)
    }

    fn read(&self, file: &mut File) -> Result<Members, Error> {
        let mut text = String::new();
        let read = file.take(BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| self.fault(error))?;
        let mut lines = text.lines();
        let mut members = Members {
            next: 0,
            members: BTreeMap::new(),
        };
        let Some(head) = lines.next() else {
            return Ok(members);
        };
        let mut words = head.split('\t');
        let how = (
            words.next(),
            words.next(),
            words.next().and_then(|next| next.parse().ok()),
        );
        let (Some("rendez-rpc 1"), Some(how), Some(next)) = how else {
            return Err(self.fault("line 1: it is no file of a group; delete it, or name another"));
        };
        members.next = next;
        for (number, line) in lines.enumerate() {
            let member =
                member(line).map_err(|what| self.fault(format!("line {}: {what}", number + 2)))?;
            members.members.insert(member.0.id, member);
        }
        let own = if self.is_dynamic { DYNAMIC } else { STATIC };
        if how != own && !members.members.is_empty() {
            return Err(Error::of(catalogue::RPC_GROUP, MIXED));
        }
        Ok(members)
    }

    fn write(&self, file: &mut File, members: &Members) -> std::io::Result<()> {
        let how = if self.is_dynamic { DYNAMIC } else { STATIC };
        // An empty group begins again.
        let next = if members.members.is_empty() {
            0
        } else {
            members.next
        };
        let mut text = format!("rendez-rpc 1\t{how}\t{next}\n");
        for (info, address) in members.members.values() {
            text.push_str(&format!(
                "{}\t{}\t{}\t{address}\n",
                info.id, info.name, info.task
            ));
        }
        file.rewind()?;
        file.write_all(text.as_bytes())?;
        file.set_len(text.len() as u64)
    }

    /// This worker is in the group. One that has started again takes its former place.
    pub(super) fn join(
        &self,
        name: &str,
        task: &TaskName,
        address: &Address,
    ) -> Result<WorkerId, Error> {
        self.with(|members| {
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
            Ok((id, true))
        })
    }

    /// It is not in the group any more.
    pub(super) fn leave(&self, id: WorkerId) -> Result<(), Error> {
        self.with(|members| Ok(((), members.members.remove(&id).is_some())))
    }

    /// Who is in the group.
    pub(super) fn members(&self) -> Result<BTreeMap<WorkerId, Member>, Error> {
        self.with(|members| Ok((std::mem::take(&mut members.members), false)))
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
