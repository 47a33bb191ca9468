//! Where a group meets: a file, or a store of keys; what both are asked for.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rendez::control::Address;
use rendez::ground::{Locked, TaskName, catalogue};

use super::log::{self, Log};
use super::shared::Shared;
use super::store::{self, Member, Store};
use crate::error::Error;
use crate::id::WorkerId;
use crate::store::Client;

/// Longer than anybody waits, and no overflow of a clock.
const EVER: Duration = Duration::from_secs(365 * 86_400);
/// How long a watcher of a dynamic group waits for the bell, before it looks whether it has missed one.
const BELL: Duration = Duration::from_secs(5);
/// So many rings of the bell are kept, for watchers that are slow.
const RINGS: i64 = 64;
/// How long a watcher that has lost its store waits before it dials again.
const REDIAL: Duration = Duration::from_secs(1);
/// How long a store may take to answer one that leaves.
const FAREWELL: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Debug)]
pub(super) enum Place {
    File(Arc<Store>),
    Keys(Arc<Keys>),
}

impl Place {
    /// This worker is in the group.
    pub(super) fn join(
        &self,
        name: &str,
        task: &TaskName,
        address: &Address,
        patience: Duration,
    ) -> Result<WorkerId, Error> {
        match self {
            Self::File(store) => store.join(name, task, address),
            Self::Keys(keys) => keys.join(name, task, address, patience),
        }
    }

    /// Waits until all workers of a static group are in it.
    pub(super) fn gather(
        &self,
        size: usize,
        patience: Duration,
    ) -> Result<BTreeMap<WorkerId, Member>, Error> {
        match self {
            Self::File(store) => store.gather(size, patience),
            Self::Keys(keys) => keys.gather(size, patience),
        }
    }

    /// Who is in a dynamic group.
    pub(super) fn members(&self) -> Result<BTreeMap<WorkerId, Member>, Error> {
        match self {
            Self::File(store) => store.members(),
            Self::Keys(keys) => keys.members(),
        }
    }

    /// This worker is not in the group any more.
    pub(super) fn leave(&self) -> Result<(), Error> {
        match self {
            Self::File(store) => store.leave(),
            Self::Keys(keys) => keys.leave(),
        }
    }

    /// Lets a dynamic group's worker hear of those that join or leave, in a thread of its own, until it ends.
    pub(super) fn watch(&self, shared: &Arc<Shared>) -> Result<(), Error> {
        let (weak, place) = (Arc::downgrade(shared), self.clone());
        let look = move || match place {
            Self::File(store) => watch_file(&weak, &store),
            Self::Keys(keys) => keys.watch(&weak),
        };
        let thread = std::thread::Builder::new()
            .name("rpc-members".into())
            .spawn(look);
        thread.map(drop).map_err(|error| {
            let message = format!("the system gives no thread to watch the group: {error}");
            Error::of(catalogue::RPC_GROUP, message)
        })
    }
}

/// The agent, while it is in the group.
fn alive(shared: &Weak<Shared>) -> Option<Arc<Shared>> {
    shared
        .upgrade()
        .filter(|shared| !shared.is_closed.load(Ordering::Acquire))
}

fn watch_file(shared: &Weak<Shared>, store: &Store) {
    while let Some(shared) = alive(shared) {
        match store.members() {
            Ok(members) => shared.see(members),
            Err(error) => tracing::warn!(%error, "the group's file cannot be read"),
        }
        drop(shared);
        std::thread::sleep(store::LOOK);
    }
}

/// A group in a store of keys: its log, a bell that is rung when the log has grown, and a key for each round of a
/// static group that is complete.
#[derive(Debug)]
pub(super) struct Keys {
    address: String,
    prefix: String,
    size: usize,
    client: Mutex<Option<Client>>,
    /// By which the log knows this worker, and the round it is in.
    me: Mutex<(u64, u64)>,
    /// Ends the wait of the watcher.
    breaker: Mutex<Option<crate::store::Breaker>>,
}

impl Keys {
    pub(super) fn new(address: &str, group: &str, size: Option<usize>) -> Self {
        Self {
            address: address.to_owned(),
            prefix: format!("rendez-rpc/{group}/"),
            size: size.unwrap_or(0),
            client: Mutex::new(None),
            me: Mutex::new((0, 0)),
            breaker: Mutex::new(None),
        }
    }

    fn key(&self, name: impl std::fmt::Display) -> String {
        format!("{}{name}", self.prefix)
    }

    fn me(&self) -> (u64, u64) {
        *self.me.locked()
    }

    /// Does something with a connection, which is dialled again if it was lost.
    fn with<R>(
        &self,
        patience: Duration,
        work: impl FnOnce(&mut Client) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut place = self.client.locked();
        let mut client = match place.take() {
            Some(client) => client,
            None => Client::connect(&self.address, or_ever(patience))?,
        };
        let outcome = work(&mut client);
        if !client.is_broken() {
            *place = Some(client);
        }
        outcome
    }

    fn read(&self, client: &mut Client) -> Result<(Vec<u8>, Log), Error> {
        let bytes = client.find(&self.key("log"))?.unwrap_or_default();
        let log = Log::read(&bytes).map_err(|why| {
            let message = format!(
                "the store {}, key '{}': {why}",
                self.address,
                self.key("log")
            );
            Error::of(catalogue::RPC_STORE, message)
        })?;
        Ok((bytes, log))
    }

    fn join(
        &self,
        name: &str,
        task: &TaskName,
        address: &Address,
        patience: Duration,
    ) -> Result<WorkerId, Error> {
        let token = super::random()?;
        *self.me.locked() = (token, 0);
        let has_come = std::cell::Cell::new(false);
        let joined = self.with(patience, |client| {
            let line = log::comes(token, self.size, name, task, address);
            has_come.set(true);
            client.append(&self.key("log"), line.as_bytes())?;
            let (bytes, log) = self.read(client)?;
            let (id, round) = match log.verdict(token) {
                Some(Ok(place)) => place,
                Some(Err(refusal)) => return Err(refusal.into()),
                None => {
                    let message = format!(
                        "worker '{name}' was started a second time, or the group's log was lost"
                    );
                    return Err(Error::of(catalogue::RPC_GROUP, message));
                }
            };
            *self.me.locked() = (token, round);
            if self.size == 0 {
                self.ring(client)?;
            } else if log.members(round).len() == self.size {
                client.set(&self.key(format_args!("full/{round}")), b"")?;
                if round > 1 {
                    client.delete(&self.key(format_args!("full/{}", round - 2)))?;
                }
            }
            if let Some(short) = log.compacted() {
                // If the log has grown meanwhile, another does it.
                client.compare_set(&self.key("log"), &bytes, short.as_bytes())?;
            }
            Ok(id)
        });
        // It may stand in the log of a group that grows: others would wait for it. In a static one it keeps its place,
        // which is its own when it starts again. The first failure is told.
        joined.inspect_err(|_| {
            if self.size == 0 && has_come.get() {
                drop(self.leave());
            }
        })
    }

    /// Tells those that watch that the log has grown. The number comes from the store, which counts on from the highest
    /// with the lowest.
    fn ring(&self, client: &mut Client) -> Result<(), Error> {
        let rung = client.add(&self.key("bell"), 1)?;
        client.set(&self.key(format_args!("bell/{rung}")), b"")?;
        let old = rung.wrapping_sub(RINGS);
        client.delete(&self.key(format_args!("bell/{old}")))?;
        Ok(())
    }

    fn gather(&self, size: usize, patience: Duration) -> Result<BTreeMap<WorkerId, Member>, Error> {
        let (_, round) = self.me();
        let until = Instant::now() + or_ever(patience);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let members = self.with(patience, |client| {
                let is_full = client.wait(&[&self.key(format_args!("full/{round}"))], left)?;
                let members = self.read(client)?.1.members(round);
                Ok((is_full, members))
            })?;
            match members {
                (_, members) if members.len() == size => return Ok(members),
                // One has come and left again: the next that comes completes it.
                (true, _) if !left.is_zero() => std::thread::sleep(store::LOOK),
                (_, members) => {
                    let names: Vec<&str> = members.values().map(|(info, _)| &*info.name).collect();
                    return Err(store::incomplete(&names, size, patience));
                }
            }
        }
    }

    fn members(&self) -> Result<BTreeMap<WorkerId, Member>, Error> {
        self.with(REDIAL, |client| Ok(self.read(client)?.1.members(0)))
    }

    /// Takes at most a few times [`FAREWELL`], also if the store hangs.
    fn leave(&self) -> Result<(), Error> {
        drop(self.breaker.locked().take());
        let (token, _) = self.me();
        let go = |client: &mut Client| {
            client.set_answer(FAREWELL);
            client.append(&self.key("log"), log::goes(token).as_bytes())?;
            if self.size == 0 {
                return self.ring(client);
            }
            // What is appended has no answer, and a connection that the other side has lost takes it all the same.
            client.check(&[&self.key("log")]).map(drop)
        };
        // The connection that there is may have been lost since it was used last.
        let before = self.client.locked().take();
        if before.is_some_and(|mut client| go(&mut client).is_ok()) {
            return Ok(());
        }
        if self.size > 0 && Client::is_refused(&self.address) {
            // The store has ended with its host: no worker meets there any more.
            return Ok(());
        }
        go(&mut Client::connect_within(
            &self.address,
            FAREWELL,
            FAREWELL,
        )?)
    }

    fn watch(&self, shared: &Weak<Shared>) {
        let mut is_told = false;
        while alive(shared).is_some() {
            let Err(error) = self.watch_once(shared) else {
                return;
            };
            if alive(shared).is_none() {
                return;
            }
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(%error, "the group's store cannot be read: joining and leaving workers are missed");
            }
            std::thread::sleep(REDIAL);
        }
    }

    fn watch_once(&self, shared: &Weak<Shared>) -> Result<(), Error> {
        let mut client = Client::connect(&self.address, REDIAL)?;
        *self.breaker.locked() = client.breaker();
        loop {
            // What was rung before this is in the log that is read after it.
            let rung = client.add(&self.key("bell"), 0)?;
            let members = self.read(&mut client)?.1.members(0);
            let Some(shared) = alive(shared) else {
                return Ok(());
            };
            shared.see(members);
            drop(shared);
            let next = rung.wrapping_add(1);
            client.wait(&[&self.key(format_args!("bell/{next}"))], BELL)?;
        }
    }
}

/// Zero is no limit, and what is longer than any clock counts is none either.
fn or_ever(patience: Duration) -> Duration {
    if patience.is_zero() {
        EVER
    } else {
        patience.min(EVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Server;

    #[test]
    fn a_store_that_hangs_is_left_all_the_same() {
        // Who dials it is accepted, and hears nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = silent.local_addr().expect("an address").to_string();
        let began = Instant::now();
        let error = Keys::new(&address, "rpc", None).leave().unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_STORE);
        assert!(began.elapsed() < 20 * FAREWELL, "{:?}", began.elapsed());
    }

    #[test]
    fn a_connection_that_was_lost_keeps_no_worker_in_the_group() {
        let server = Server::start("127.0.0.1:0").expect("a store");
        let keys = Keys::new(&server.address().to_string(), "rpc", None);
        let task = TaskName::parse("/job:keys/task:0").expect("a name");
        let address = "127.0.0.1:4000".parse().expect("an address");
        keys.join("w0", &task, &address, REDIAL).expect("it joins");
        let breaker = keys.client.locked().as_ref().and_then(Client::breaker);
        drop(breaker.expect("it is connected"));
        keys.leave().expect("it leaves");
        assert!(keys.members().expect("the group").is_empty());
    }

    /// The store had ended the connection, which this side does not see before it reads.
    #[test]
    fn that_a_worker_of_a_static_group_leaves_is_told_until_the_store_has_heard_it() {
        let server = Server::start("127.0.0.1:0").expect("a store");
        let address = server.address().to_string();
        let keys = Keys::new(&address, "rpc", Some(2));
        let task = TaskName::parse("/job:keys/task:0").expect("a name");
        let own = "127.0.0.1:4000".parse().expect("an address");
        keys.join("w0", &task, &own, REDIAL).expect("it joins");
        drop(server);
        let _server = Server::start(&address).expect("another store");
        keys.leave().expect("it leaves");
        let mut client = Client::connect(&address, REDIAL).expect("it is there");
        let log = client.find("rendez-rpc/rpc/log").expect("an answer");
        assert_eq!(log, Some(log::goes(keys.me().0).into_bytes()));
    }

    #[test]
    fn the_store_of_a_static_group_may_have_ended_with_the_worker_that_had_it() {
        let server = Server::start("127.0.0.1:0").expect("a store");
        let keys = Keys::new(&server.address().to_string(), "rpc", Some(2));
        let task = TaskName::parse("/job:keys/task:0").expect("a name");
        let own = "127.0.0.1:4000".parse().expect("an address");
        keys.join("w0", &task, &own, REDIAL).expect("it joins");
        drop(server);
        keys.leave().expect("no store is to hear it");
    }

    #[test]
    fn one_that_fails_after_it_has_said_that_it_comes_is_not_in_the_group() {
        let server = Server::start("127.0.0.1:0").expect("a store");
        let address = server.address().to_string();
        let mut client = Client::connect(&address, REDIAL).expect("it is there");
        let bell = client.set("rendez-rpc/rpc/bell", b"no number");
        bell.expect("it is set");
        let keys = Keys::new(&address, "rpc", None);
        let task = TaskName::parse("/job:keys/task:0").expect("a name");
        let own = "127.0.0.1:4000".parse().expect("an address");
        let error = keys.join("w0", &task, &own, REDIAL).unwrap_err();
        assert_eq!(error.reason(), catalogue::RPC_STORE, "{error}");
        assert!(keys.members().expect("the group").is_empty());
    }
}
