//! Dials: the way to one task, retried until the task answers or the time is over.
//!
//! Knows addresses, refusals and wishes; what is said once there is a connection stands elsewhere.
//!
//! Another task that answers is no reason to give up: a name may still lead to where its task was before, and a former
//! run of the job may not have ended. Neither is let in; the dial only goes on until its time is over, and then ends by
//! what was answered.
//!
//! A dial of a TCP address whose task turns out to be on this machine is sent elsewhere, to the task's Unix address:
//! reaching it there is the proof, and gives shared memory. A machine's name proves nothing, nor does its boot: two
//! containers share one and cannot reach each other's memory. So a dial that fails there falls back to TCP.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::ground::limits::ERRANDS_MAX;
use crate::ground::{Code, Incarnation, Status, catalogue};

use super::address::Address;
use super::hello::{self, is_observer};
use super::names::Lookup;
use super::plane::{Established, Plane};
use super::refusal::Refusal;
use super::transport::PathWish;

/// The longest time for an attempt to reach an address: a way that is mended is tried again within this.
const REACH_MAX: Duration = Duration::from_millis(500);

/// When a dial that finds no way is told of: a network that is just coming up, or a packet that was lost, is none.
const SAY_AFTER: Duration = Duration::from_secs(5);

/// So many greetings over a Unix socket that took too long count as a way that does not work.
const NEAR_LATE_MAX: u32 = 3;

/// And so many that one side had no descriptors for, which are made again much sooner.
const NEAR_SHORT_MAX: u32 = 8;

/// Lost peers are looked for while fewer dials than this are under way.
const SOUGHT_MAX: usize = ERRANDS_MAX / 4;

/// Where one task was said to listen last, and until when it is dialled.
#[derive(Clone, Debug)]
pub(crate) struct Dialled {
    pub(crate) address: Address,
    pub(crate) wish: PathWish,
    pub(crate) until: Instant,
    /// It is one of many that look for a lost peer: that another answers is no news.
    pub(crate) is_sought: bool,
}

/// The way to one task, as far as it is known.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) address: Address,
    pub(super) wish: PathWish,
    /// The look-up of its name, if one was still under way at the end of the last attempt.
    pub(super) lookup: Option<Rc<Lookup>>,
    /// The attempt is one where the last connection stood, to this life of the task, as it is not known what the name
    /// means now.
    pub(super) stood: Option<Incarnation>,
    /// The peer's Unix address, once it has named it, until that has failed.
    near: Option<Address>,
    /// How many greetings there took too long.
    near_late: u32,
    /// And how many one side was short of descriptors for.
    near_short: u32,
    /// Why there is no shared memory, once that is known.
    pub(super) no_shm: Option<String>,
}

/// What one attempt came to.
pub(super) enum Attempt {
    Established(Established),
    /// The peer may be on this machine, at this address.
    Near(Address),
}

impl Route {
    pub(super) fn new(to: &Dialled) -> Self {
        Self {
            address: to.address.clone(),
            wish: to.wish,
            lookup: None,
            stood: None,
            near: None,
            near_late: 0,
            near_short: 0,
            no_shm: None,
        }
    }

    /// True if this refusal only says that one side was slow, or short of descriptors, and not too often yet: no reason
    /// to fall back to TCP for a task whose socket is there.
    fn may_pass(&mut self, refusal: &Refusal) -> bool {
        let (count, max) = match refusal.is_late() {
            true => (&mut self.near_late, NEAR_LATE_MAX),
            false if refusal.is_short() => (&mut self.near_short, NEAR_SHORT_MAX),
            false => return false,
        };
        *count += 1;
        *count < max
    }

    /// A greeting over TCP came to nothing. Where the last connection stood another may listen now, whose no is not the
    /// task's: the name, once it is known, says where to ask.
    pub(super) fn refused(&self, refusal: Refusal) -> Refusal {
        Refusal {
            retry: refusal.retry || self.stood.is_some(),
            ..refusal
        }
    }

    /// Refuses, where the last connection stood, another life than that one's: it may be a task of another job that has
    /// the address by now.
    pub(super) fn judge_life(&self, task: &str, life: Incarnation) -> Result<(), Refusal> {
        match self.stood {
            Some(stood) if stood != life => {
                let message = format!(
                    "another incarnation of {task} is at its last address, and {} is still being looked up",
                    self.address
                );
                Err(Refusal::later(catalogue::PEER_BUSY, message))
            }
            _ => Ok(()),
        }
    }

    /// What our hello demands: where the Unix address did not do, not to be sent there again.
    pub(super) fn asks(&self) -> PathWish {
        match (self.wish, &self.no_shm) {
            (PathWish::Auto, Some(_)) => PathWish::Tcp,
            (wish, _) => wish,
        }
    }

    /// Why the way is TCP for a task that runs in the boot `machine`.
    pub(super) fn why_tcp(&self, machine: &str) -> String {
        match (&self.no_shm, self.wish.demanded()) {
            (Some(why), _) => why.clone(),
            (None, Some(path)) if path.is_far() => format!("{} is demanded", path.title()),
            (None, _) if machine.is_empty() => hello::NO_BOOT.into(),
            (None, _) => "the peer runs on another machine, or demands TCP".into(),
        }
    }
}

impl Plane {
    /// Connects to `task`, again and again until its time is over, and converses. An attempt that gets no answer at
    /// all is not given the whole time: a packet that was lost is sent again by the system only after a second.
    pub(super) async fn dial(self: Rc<Self>, task: String, mut route: Route) {
        let mut pause = self.config.backoff_min;
        let mut reach = self.config.reach_min;
        let mut before: Option<Refusal> = None;
        // Who asks for an observer wants to know whether the task is there, not to wait for it.
        let is_expected = ![&self.config.task, &task]
            .into_iter()
            .any(|task| is_observer(task));
        let mut is_said = self
            .dials
            .borrow()
            .get(&task)
            .is_some_and(|to| to.is_sought);
        let begun = Instant::now();
        let mut is_warned = false;
        let (status, last) = loop {
            let (deadline, _) = self.heed(&task, &mut route);
            let refusal = match self.attempt(&task, &mut route, reach, deadline).await {
                Ok(established) => {
                    self.dials.borrow_mut().remove(&task);
                    return self.converse(established).await;
                }
                Err(refusal) => refusal,
            };
            if self.stands(&task) {
                self.dials.borrow_mut().remove(&task);
                return;
            }
            let (deadline, is_elsewhere) = self.heed(&task, &mut route);
            let may_go = is_expected && refusal.is_of_another();
            if may_go && !is_said {
                is_said = true;
                let (own, refusal) = (&self.config.task, &refusal.status);
                tracing::info!(task = %own, peer = %task, address = %route.address, %refusal, "a task other than the \
                    one that is dialled answers: dialling goes on");
            }
            let is_final = !refusal.retry && !is_elsewhere && !may_go;
            if is_final && !self.registry.borrow().is_accepting(&task) {
                break (refusal.status.clone(), refusal.status);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The last attempt may have had no time for more than to be late; the one before says why.
                let refusal = before.unwrap_or(refusal);
                if is_expected && refusal.is_of_another() {
                    // The task itself has had its time.
                    break (refusal.status.clone(), refusal.status);
                }
                let message = format!(
                    "no connection to task {task} at {} by the deadline; {}",
                    route.address,
                    refusal.status.message()
                );
                let status = Status::new(Code::Unavailable, catalogue::CONNECT_DEADLINE, message);
                break (status, refusal.status);
            }
            self.handler.dial_goes_on(&task, &refusal.status);
            let finds_no_way = refusal.status.reason() == catalogue::CONNECT_DEADLINE;
            if is_expected && finds_no_way && !is_warned && begun.elapsed() >= SAY_AFTER {
                is_warned = true;
                let (own, refusal) = (&self.config.task, &refusal.status);
                tracing::warn!(task = %own, peer = %task, address = %route.address, %refusal, "a task cannot be \
                    reached yet: dialling goes on");
            }
            self.runtime.sleep(self.jitter(pause).min(left)).await;
            pause = (pause * 2).min(self.config.backoff_max);
            reach = (reach * 2).min(REACH_MAX);
            before = Some(refusal);
        };
        self.dials.borrow_mut().remove(&task);
        self.handler.dial_failed(&task, status, last);
    }

    /// Dials `task` after a pause, of which chance takes up to a half, and as soon as few dials are under way: each may
    /// hold an errand while a host gives no answer, and those that keys wait for come first. One dial of a task at a
    /// time is put off, and it goes nowhere if another is under way by then, or the task was connected meanwhile.
    pub(super) fn put_off(
        self: &Rc<Self>,
        task: String,
        address: Address,
        pause: Duration,
        patience: Duration,
    ) {
        if self.put_off.borrow_mut().insert(task.clone()) {
            let plane = Rc::clone(self);
            self.spawn(async move {
                loop {
                    plane.runtime.sleep(plane.jitter(pause)).await;
                    if plane.dials.borrow().len() < SOUGHT_MAX {
                        break;
                    }
                }
                let is_due = plane.put_off.borrow_mut().remove(&task);
                if is_due && !plane.dials.borrow().contains_key(&task) {
                    let to = Dialled {
                        address,
                        wish: plane.config.path_wish,
                        until: Instant::now() + patience,
                        is_sought: true,
                    };
                    plane.handle_dial(task, to);
                }
            });
        }
    }

    /// When a dial gives up, and whether it leads elsewhere from now on: a later request for the same task may move
    /// both.
    fn heed(&self, task: &str, route: &mut Route) -> (Instant, bool) {
        let dials = self.dials.borrow();
        let Some(to) = dials.get(task) else {
            return (Instant::now(), false);
        };
        let is_elsewhere = (&to.address, to.wish) != (&route.address, route.wish);
        if is_elsewhere {
            *route = Route::new(to);
        }
        (to.until, is_elsewhere)
    }

    /// One attempt to connect and be greeted, wherever the route leads.
    async fn attempt(
        self: &Rc<Self>,
        task: &str,
        route: &mut Route,
        reach: Duration,
        deadline: Instant,
    ) -> Result<Established, Refusal> {
        if !route.address.is_tcp() {
            if let Some(path) = route.wish.demanded().filter(|path| path.is_far()) {
                let message = format!(
                    "{} is demanded to {task}, but {} is no TCP address",
                    path.title(),
                    route.address
                );
                return Err(refused(message));
            }
            return self.attempt_near(task, &route.address, deadline).await;
        }
        // What failed last time may do now: the peer may be another life of its task, elsewhere.
        route.no_shm = None;
        loop {
            if let Some(near) = route.near.take() {
                match self.attempt_near(task, &near, deadline).await {
                    Err(refusal) if refusal.is_busy() || route.may_pass(&refusal) => {
                        route.near = Some(near);
                        return Err(refusal);
                    }
                    Err(refusal) => {
                        let why = format!(
                            "{task} cannot be greeted at {near}, so descriptors do not get through: {}",
                            refusal.status.message()
                        );
                        if route.wish == PathWish::Shm {
                            return Err(refused(format!("shared memory is demanded; {why}")));
                        }
                        route.no_shm = Some(why);
                    }
                    established => return established,
                }
            }
            match self.attempt_tcp(task, route, reach, deadline).await? {
                Attempt::Established(established) => return Ok(established),
                Attempt::Near(near) => route.near = Some(near),
            }
        }
    }
}

/// An address that could not be connected to, for now.
pub(super) fn unreachable(error: &dyn std::fmt::Display, kind: io::ErrorKind) -> Refusal {
    let reason = match kind {
        // Of a Unix address whose owner is gone nothing may be left.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => catalogue::CONNECTION_REFUSED,
        // The queue of its listener is full: its process does not accept.
        io::ErrorKind::WouldBlock => catalogue::GREETING_LATE,
        _ => catalogue::CONNECT_DEADLINE,
    };
    Refusal::later(reason, format!("the last attempt: {error}"))
}

fn refused(message: String) -> Refusal {
    Refusal::fatal(Code::FailedPrecondition, catalogue::PATH_REFUSED, message)
}

#[cfg(test)]
mod tests;
