//! Meeting: how a push and a pull find each other, also where tasks of their names run already.
//!
//! A push or a pull is the task of the cluster that it was told to be. If that task runs already, as `rendez serve`, it
//! is a visitor beside it: a task of no cluster, that proves the secret like any other. A visitor that pushes listens
//! at a port of its own, and has the running task tell where.
//!
//! ```text
//!   push, as the task a: ─ tells at a's address that it pushes to b
//!   push beside a:       ─ OFFER ─▶ a                      every second, as long as it waits
//!   pull, as b or beside it: ─ FIND ─▶ the task a ─▶ the task that pushes to b, and its address
//!                            ─ TAKE ─▶ that task           now it sends, to the asker
//!   push beside a, when it ends: ─ WITHDRAW ─▶ a           an offer that is not repeated ends soon as well
//! ```

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::clock::before;
use super::error::CliError;
use super::exchange::{GRACE, hear_data, hear_taken, lost, probe};
use super::observer::undefined;
use super::serve;
use super::settings::{SettingArgs, resolved};
use rendez::cluster::Membership;
use rendez::control::{Address, Incoming, Services};
use rendez::engine::{Config, DeviceUse, Engine, OBSERVER_JOB, Recv};
use rendez::ground::limits::OFFERED_PUSHES_MAX;
use rendez::ground::{Code, Locked, Status, TaskName, catalogue};
use rendez_dataflow::server::{Server, dialled, listen_at};

/// Says where a visitor pushes from, and to which task.
const OFFER: u32 = 48;
/// Asks which task pushes to a task.
const FIND: u32 = 49;
/// Has the pushing task begin.
const TAKE: u32 = 50;
/// Says that a visitor pushes no more.
const WITHDRAW: u32 = 51;

/// How often an offer is repeated.
const OFFER_EVERY: Duration = Duration::from_secs(1);

/// How long an offer holds that is not repeated.
const OFFER_HOLDS: Duration = Duration::from_secs(5);

/// How often is looked whether the other end is there.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How long what a visitor said last may take to leave.
const DRAIN: Duration = Duration::from_secs(5);

/// How long a single question may take.
const ANSWERS_IN: Duration = Duration::from_secs(2);

/// Visitors have one of so many names: what is remembered of names stays small.
const NAMES: u32 = 1 << 16;

/// Names that are tried.
const ATTEMPTS: usize = 8;

/// What an offer says.
#[derive(Serialize, Deserialize, Debug)]
struct Offered {
    to: String,
    address: String,
}

/// The task that is asked for, or that asks.
#[derive(Serialize, Deserialize, Debug)]
struct Wanted {
    to: String,
}

/// The task that takes a push. It may ask again: its answer may have been lost.
#[derive(Serialize, Deserialize, Debug)]
struct Taking {
    to: String,
    token: u64,
}

/// The pushing task, if there is one, and where it listens; without an address it is the task that was asked.
#[derive(Serialize, Deserialize, Debug)]
struct Found {
    pusher: Option<(String, String)>,
}

/// Pushes from a task, and their addresses: what a running task keeps for its visitors.
#[derive(Clone, Debug, Default)]
pub(super) struct Board(Arc<Mutex<Vec<Offer>>>);

#[derive(Debug)]
struct Offer {
    pusher: String,
    to: TaskName,
    address: String,
    until: Instant,
}

/// A task, or a visitor beside one that runs already.
#[derive(Debug)]
pub(super) struct Presence {
    engine: Engine,
    /// None for a visitor.
    server: Option<Server>,
    task: TaskName,
    /// Where the task that a visitor is beside is dialled: others know the visitor's machine by that.
    place: Option<Address>,
}

impl Board {
    /// What a task answers about those that push from it.
    pub(super) fn services(&self) -> Services {
        let (offers, finds, ends) = (self.clone(), self.clone(), self.clone());
        Services::new()
            .on(OFFER, move |call| {
                let offered: Offered = read(&call.payload)?;
                let to = TaskName::parse(&offered.to)?;
                let until = Instant::now() + OFFER_HOLDS;
                offers.put(Offer {
                    pusher: call.task.clone(),
                    to,
                    address: offered.address,
                    until,
                })?;
                Ok(Vec::new())
            })
            .on(FIND, move |call| {
                let wanted: Wanted = read(&call.payload)?;
                let to = TaskName::parse(&wanted.to)?;
                let pusher = finds.find(&to);
                written(&Found { pusher })
            })
            .on(WITHDRAW, move |call| {
                ends.withdraw(&call.task);
                Ok(Vec::new())
            })
    }

    fn put(&self, offer: Offer) -> Result<(), Status> {
        let mut offers = self.0.locked();
        let now = Instant::now();
        offers.retain(|other| other.until > now && other.pusher != offer.pusher);
        if offers.len() >= OFFERED_PUSHES_MAX {
            let message =
                format!("{OFFERED_PUSHES_MAX} pushes wait here already (OFFERED_PUSHES_MAX)");
            return Err(Status::of(catalogue::PUSH_LIMIT, message));
        }
        offers.push(offer);
        Ok(())
    }

    fn withdraw(&self, pusher: &str) {
        let mut offers = self.0.locked();
        offers.retain(|offer| offer.pusher != pusher);
    }

    fn find(&self, to: &TaskName) -> Option<(String, String)> {
        let offers = self.0.locked();
        let now = Instant::now();
        let offer = offers
            .iter()
            .rev()
            .find(|offer| offer.to == *to && offer.until > now)?;
        Some((offer.pusher.clone(), offer.address.clone()))
    }
}

/// Which task takes a push: the first that asks for it, and no other.
#[derive(Debug)]
struct Takes {
    wanted: TaskName,
    /// The receiver of the taker's name, and the taker's token.
    told: Mutex<(mpsc::Sender<TaskName>, Option<u64>)>,
}

impl Takes {
    const fn new(wanted: TaskName, told: mpsc::Sender<TaskName>) -> Self {
        let told = Mutex::new((told, None));
        Self { wanted, told }
    }

    fn answer(&self, call: &Incoming) -> Result<Vec<u8>, Status> {
        let asked: Taking = read(&call.payload)?;
        let elsewhere = |what: String| Status::of(catalogue::PUSH_ELSEWHERE, what);
        if TaskName::parse(&asked.to)? != self.wanted {
            return Err(elsewhere(format!("this push is for {}", self.wanted)));
        }
        let taker = TaskName::parse(&call.task)?;
        let mut told = self.told.locked();
        match told.1 {
            None => {
                let sent = told.0.send(taker);
                sent.map_err(|_| elsewhere("this push has ended".into()))?;
                told.1 = Some(asked.token);
            }
            Some(token) if token == asked.token => {}
            Some(_) => return Err(elsewhere("another takes this push already".into())),
        }
        Ok(Vec::new())
    }
}

impl Presence {
    /// Becomes the task that settings and surroundings describe, or a visitor beside it.
    fn enter(
        settings: &SettingArgs,
        patience: Duration,
        services: &Services,
        must_listen: bool,
    ) -> Result<Self, CliError> {
        let mut loaded = settings.load()?;
        // Another task of this machine may have these settings, the address and the folder; a push needs none of them.
        (loaded.config.metrics, loaded.config.recorder_dir) = (None, None);
        loaded.config.devices.usage = DeviceUse::Off;
        let taken = match serve::start_with(loaded.clone(), patience, services.clone()) {
            Ok((server, _)) => {
                let (engine, task) = (server.engine()?, server.task().clone());
                return Ok(Self {
                    engine,
                    server: Some(server),
                    task,
                    place: None,
                });
            }
            Err(error) if error.reason() == catalogue::PEER_DUPLICATE_NAME => error,
            Err(error) => return Err(error),
        };
        let resolved = resolved(&loaded)?;
        let Membership::Known(spec) = &resolved.membership else {
            return Err(taken);
        };
        let task = resolved.task;
        let own = dialled(spec.find(task.job(), task.task())?);
        let peers = loaded.config.peers.clone();
        let mut config = Config {
            connect_timeout: patience,
            peers,
            ..loaded.config.of_client()
        };
        config.listen = match must_listen {
            true => Some(listen_at(spec, &task, Some(0))?),
            false => None,
        };
        for (other, address) in spec.tasks() {
            let name = other.to_string();
            config.peers.entry(name).or_insert_with(|| dialled(address));
        }
        for _ in 0..ATTEMPTS {
            let number = getrandom::u32().map_err(no_random)?;
            config.task = format!("/job:{OBSERVER_JOB}/task:{}", number % NAMES);
            let engine = Engine::start_with(config.clone(), services.clone())?;
            engine.connect(&task);
            // That very task must run there, and not just any process that has the port.
            let question = written(&Wanted {
                to: task.to_string(),
            })?;
            match engine.call(&task, FIND, &question, patience) {
                Ok(_) => {
                    return Ok(Self {
                        engine,
                        server: None,
                        task,
                        place: Some(own.clone()),
                    });
                }
                Err(status) if status.reason() == catalogue::PEER_DUPLICATE_NAME => {
                    engine.shutdown(Duration::ZERO);
                }
                Err(status) => {
                    engine.shutdown(Duration::ZERO);
                    let message = format!(
                        "{}; and what has the address passes no push on as `rendez serve` does: {}",
                        taken.message(),
                        status.message()
                    );
                    return Err(CliError::failure(taken.reason(), message));
                }
            }
        }
        Err(taken)
    }

    pub(super) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What it is, or visits.
    pub(super) const fn task(&self) -> &TaskName {
        &self.task
    }

    /// Ends when what is on its way has left; at once if who would take it `is_lost`.
    pub(super) fn leave(self, is_lost: bool) {
        let drain = is_lost.then_some(Duration::ZERO);
        match self.server {
            Some(server) => server.stop(drain),
            None => self.engine.shutdown(drain.unwrap_or(DRAIN)),
        }
    }
}

/// A push that waits for its taker.
#[derive(Debug)]
pub(super) struct Offering {
    pub(super) presence: Presence,
    to: TaskName,
    patience: Duration,
    takers: mpsc::Receiver<TaskName>,
    board: Board,
}

impl Offering {
    /// Is there for a pull of `to` to find.
    pub(super) fn open(
        settings: &SettingArgs,
        to: &TaskName,
        patience: Duration,
    ) -> Result<Self, CliError> {
        check_member(settings, to)?;
        let (told, takers) = mpsc::channel();
        let (takes, board) = (Takes::new(to.clone(), told), Board::default());
        let services = board.services().on(TAKE, move |call| takes.answer(call));
        let presence = Presence::enter(settings, patience, &services, true)?;
        Ok(Self {
            presence,
            to: to.clone(),
            patience,
            takers,
            board,
        })
    }

    /// Waits for its taker, and listens to it.
    pub(super) fn taker(&self) -> Result<(TaskName, Recv), CliError> {
        let engine = self.presence.engine();
        let until = Instant::now() + self.patience + GRACE;
        let mut there = probe(engine, &self.to)?;
        let mut offered: Option<Instant> = None;
        while Instant::now() < until {
            if offered.is_none_or(|offered| offered.elapsed() >= OFFER_EVERY) {
                offered = Some(Instant::now());
                self.offer()?;
            }
            if let Ok(taker) = self.takers.try_recv() {
                let heard = hear_taken(engine, &taker)?;
                return Ok((taker, heard));
            }
            failed(&mut there).map_err(|status| waited(engine.with_cause(&self.to, status)))?;
        }
        let message = format!(
            "no one took it at {} in time: run `rendez pull --from {}` there, or raise `--patience`",
            self.to,
            self.presence.task()
        );
        Err(Status::of(catalogue::DEADLINE, message).into())
    }

    /// Ends as [`Presence::leave`] does, and can no longer be found.
    pub(super) fn leave(self, is_lost: bool) {
        let presence = self.presence;
        if presence.server.is_none() {
            let told = presence
                .engine
                .call(&presence.task, WITHDRAW, &[], ANSWERS_IN);
            if let Err(status) = told {
                tracing::debug!(%status, "the offer stays for some seconds");
            }
        }
        presence.leave(is_lost);
    }

    fn offer(&self) -> Result<(), Status> {
        let engine = self.presence.engine();
        if self.presence.server.is_some() {
            let until = Instant::now() + OFFER_HOLDS;
            return self.board.put(Offer {
                pusher: engine.task().to_string(),
                to: self.to.clone(),
                address: String::new(),
                until,
            });
        }
        let address = engine.address_for(self.presence.place.as_ref(), ANSWERS_IN)?;
        let offered = Offered {
            to: self.to.to_string(),
            address: address.to_string(),
        };
        let told = engine.call(self.presence.task(), OFFER, &written(&offered)?, ANSWERS_IN);
        match told {
            // It is busy. The offer before this one holds for a while, and there will be another.
            Err(status) if status.code() == Code::DeadlineExceeded => Ok(()),
            told => told.map(drop),
        }
    }
}

/// Finds the task that pushes from `from` to the task of `settings`, has it begin, and listens to it.
pub(super) fn seek(
    settings: &SettingArgs,
    from: &TaskName,
    patience: Duration,
) -> Result<(Presence, TaskName, Recv), CliError> {
    check_member(settings, from)?;
    let presence = Presence::enter(settings, patience, &Board::default().services(), false)?;
    let engine = presence.engine();
    let question = written(&Wanted {
        to: presence.task().to_string(),
    })?;
    let taking = written(&Taking {
        to: presence.task().to_string(),
        token: getrandom::u64().map_err(no_random)?,
    })?;
    let until = Instant::now() + patience + GRACE;
    let mut there = probe(engine, from)?;
    let mut silent = None;
    let mut data: Option<(TaskName, Recv)> = None;
    while Instant::now() < until {
        failed(&mut there).map_err(|status| waited(engine.with_cause(from, status)))?;
        let found = match engine.call(from, FIND, &question, ANSWERS_IN) {
            Ok(found) => read::<Found>(&found)?,
            Err(status) if status.code() == Code::Unimplemented => return Err(status.into()),
            Err(status) => {
                silent = Some(status);
                continue;
            }
        };
        silent = None;
        let Some((pusher, address)) = found.pusher else {
            continue;
        };
        let pusher = TaskName::parse(&pusher).map_err(Status::from)?;
        if data.as_ref().is_none_or(|(of, _)| *of != pusher) {
            if pusher != *from {
                let address = address
                    .parse::<Address>()
                    .map_err(|error| Status::of(catalogue::CONTROL_ADDRESS, error.to_string()))?;
                engine.add_peer(pusher.clone(), address);
                engine.connect(&pusher);
            }
            // Listened to before it begins: else what it sends is not wanted, and waits for credit.
            data = Some((pusher.clone(), hear_data(engine, &pusher)?));
        }
        // One that was killed is on the board for a while: it is not waited for long.
        match engine.call(&pusher, TAKE, &taking, ANSWERS_IN.min(patience)) {
            Ok(_) => {
                if let Some((pusher, data)) = data.take() {
                    return Ok((presence, pusher, data));
                }
            }
            // It was another's, or has ended, or its answer was lost: all of that may be asked again.
            Err(status) => {
                tracing::debug!(%pusher, %status, "it cannot be taken now");
                if status.reason() == catalogue::PUSH_ELSEWHERE {
                    data = None;
                }
            }
        }
    }
    if let Some(status) = silent {
        return Err(waited(engine.with_cause(from, status)).into());
    }
    let message = format!(
        "{from} answers, and nothing was pushed to {} there in time: run `rendez push … --to {}`, or raise \
         `--patience`",
        presence.task(),
        presence.task()
    );
    Err(Status::of(catalogue::DEADLINE, message).into())
}

/// Refuses to wait for a task that the cluster does not have.
fn check_member(settings: &SettingArgs, task: &TaskName) -> Result<(), CliError> {
    let loaded = settings.read()?;
    let resolved = resolved(&loaded)?;
    let peers = loaded.config.peers.keys();
    let mut known: Vec<TaskName> = peers
        .filter_map(|name| TaskName::parse(name).ok())
        .collect();
    match &resolved.membership {
        Membership::Known(spec) => known.extend(spec.tasks().map(|(task, _)| task)),
        Membership::Rooted { size, .. } => {
            let job = resolved.task.job();
            known.extend((0..*size).filter_map(|rank| TaskName::new(job, 0, rank).ok()));
        }
    }
    match known.contains(task) {
        true => Ok(()),
        false => Err(undefined(task, known.iter()).into()),
    }
}

/// `status` of a task that was waited for, with the option that says how long.
fn waited(status: Status) -> Status {
    const OPTION: &str = "raise `--patience`";
    let is_wait = [
        catalogue::CONNECT_DEADLINE,
        catalogue::CONNECTION_REFUSED,
        catalogue::GREETING_LATE,
    ];
    let message = status.message().replace("raise `connect_timeout`", OPTION);
    let message = match is_wait.contains(&status.reason()) && !message.contains(OPTION) {
        true => format!("{message}; {OPTION} if it comes later"),
        false => message,
    };
    Status::new(status.code(), status.reason(), message)
}

fn no_random(error: getrandom::Error) -> CliError {
    CliError::failure("CONTROL_SYSTEM", format!("no random number: {error}"))
}

/// Looks for a moment whether a probe has failed, as it does when its peer cannot be reached.
fn failed(there: &mut Recv) -> Result<(), Status> {
    before(Instant::now() + LOOK_EVERY, lost(there)).unwrap_or(Ok(()))
}

fn read<T: for<'a> Deserialize<'a>>(payload: &[u8]) -> Result<T, Status> {
    serde_json::from_slice(payload)
        .map_err(|error| Status::of(catalogue::CALL_MALFORMED, error.to_string()))
}

fn written(what: &impl Serialize) -> Result<Vec<u8>, Status> {
    serde_json::to_vec(what)
        .map_err(|error| Status::of(catalogue::CALL_MALFORMED, error.to_string()))
}

#[cfg(test)]
mod tests;
