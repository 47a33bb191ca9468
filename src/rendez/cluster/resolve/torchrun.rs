//! torchrun: every process is told its rank, how many there are, and where rank 0 is.
//!
//! Ranks may be dealt out anew after a restart, so run and restart count make the epoch, on one machine: the agents of
//! several count restarts each for itself, and there the run is the epoch. `MASTER_PORT` belongs to torchrun's own
//! store, which runs while we do; the root listens one port beside it.

use super::ranks::Ranks;
use super::view::number;
use super::{Answer, Epoch, Local, View, absent, wrong};
use crate::cluster::HostPort;
use crate::cluster::variables::torchrun as names;
use crate::ground::Status;

pub(super) fn ask(view: &View<'_>) -> Result<Answer, Status> {
    // Others set some of these for themselves, a Kubernetes service named `master` its own port: only all four together
    // are torchrun's.
    let four = [
        names::RANK,
        names::WORLD_SIZE,
        names::MASTER_ADDR,
        names::MASTER_PORT,
    ]
    .map(|name| (name, view.variable(name)));
    let [
        (_, Some(rank)),
        (_, Some(size)),
        (_, Some(host)),
        (_, Some(port)),
    ] = four
    else {
        let missing = four.iter().filter(|(_, text)| text.is_none());
        let missing: Vec<&str> = missing.map(|(name, _)| *name).collect();
        return absent(format!("{} not set", missing.join(", ")));
    };
    let rank = number(names::RANK, rank)?;
    let size = number(names::WORLD_SIZE, size)?;
    let port = number(names::MASTER_PORT, port)?;
    let ranks = Ranks::new((names::RANK, rank), (names::WORLD_SIZE, size))?;
    let mut notes = Vec::new();
    let root = match view.root()? {
        Some(root) => root,
        None => {
            let port = match u16::try_from(port) {
                Ok(0) | Err(_) => {
                    let why = "a port is from 1 to 65535";
                    return Err(wrong(names::MASTER_PORT, &port.to_string(), why));
                }
                Ok(u16::MAX) => u16::MAX - 1,
                Ok(port) => port + 1,
            };
            notes.push(format!(
                "MASTER_PORT is torchrun's own: rank 0 listens at {port} unless RENDEZ_ROOT says otherwise"
            ));
            HostPort::new(host, port).map_err(|_| {
                wrong(
                    names::MASTER_ADDR,
                    host,
                    "it is neither a host nor an address",
                )
            })?
        }
    };
    let origin = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT";
    let mut found = ranks.rooted(root, origin)?;
    found.epoch = view
        .variable(names::RUN_ID)
        .map(|run| {
            let restart = match view.number(names::GROUP_WORLD_SIZE)? {
                Some(1) => view.number(names::RESTART_COUNT)?.unwrap_or(0),
                _ => 0,
            };
            Ok::<_, Status>(Epoch {
                run: run.to_owned(),
                restart: restart.into(),
            })
        })
        .transpose()?;
    found.local = view
        .number(names::LOCAL_RANK)?
        .map(|rank| Local { rank, size: None });
    if let Some(local) = &mut found.local {
        local.size = view.number(names::LOCAL_WORLD_SIZE)?;
    }
    if let Some(group) = view.number(names::GROUP_RANK)? {
        notes.push(format!("machine {group} of the run"));
    }
    found.notes = notes;
    found.found()
}
