//! Meetings over Unix sockets: from a fresh connection with its lane to one that counts, on either side.
//!
//! Knows sockets, lanes and the kernel's word on their other end; what is said stands in the greeting.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::ground::{Status, catalogue};

use super::address::Address;
use super::config::{GREETING_GROWTH_MAX, greeting_time};
use super::credentials::Credentials;
use super::descriptors::lane_refusal;
use super::dial::unreachable;
use super::exchange::Seals;
use super::greeting::GreetingTerms as Greets;
use super::handshake::{self, Terms};
use super::hello::{self, Evidence};
use super::lane::{Lane, Then};
use super::plane::{ClaimKind, Established, Met, Plane};
use super::refusal::{Refusal, protocol_refusal};
use super::runtime::Stream;
use super::side::{Greeted, Greeting, Means, Ours, Own, no_stream};
use super::transport::PathWish;
use super::watch::Arrived;

/// Why no proof is taken over a connection whose lane was not surely made by who dialled.
const HIDDEN: &str = "no common cluster secret: another process stands between the two, or namespaces hide both the \
     dialling process and its user from this task";

/// What a connection consists of before it is greeted.
struct Fresh {
    socket: UnixStream,
    lane: Lane,
    then: Then,
    credentials: Credentials,
    deadline: Instant,
}

impl Plane {
    /// Greets a peer that dialled us, and converses.
    pub(super) async fn welcome(self: Rc<Self>, arrived: Arrived) {
        let Arrived {
            socket,
            lane,
            then,
            credentials,
            deadline,
            permit,
        } = arrived;
        let fresh = Fresh {
            socket,
            lane,
            then,
            credentials,
            deadline,
        };
        let greeted = self.greet(fresh, None).await;
        drop(permit);
        match greeted {
            Ok(established) => self.converse(established).await,
            // The dialler was told, if possible; on our side no caller waits for it.
            Err(refusal) if refusal.is_busy() => {
                tracing::debug!(task = %self.config.task, refusal = %refusal.status, "a connection was put off")
            }
            Err(refusal) if hello::is_question(&refusal) => {
                tracing::debug!(task = %self.config.task, refusal = %refusal.status, "an observer was told who is here")
            }
            Err(refusal) => {
                let reason = refusal.status.reason();
                if let Some(more) = self.complaints.add(reason, Instant::now()) {
                    let refusal = &refusal.status;
                    tracing::info!(task = %self.config.task, reason, more, %refusal, "a connection was refused")
                }
            }
        }
    }

    /// One attempt to connect to a Unix address and be greeted there.
    pub(super) async fn attempt_near(
        self: &Rc<Self>,
        task: &str,
        address: &Address,
        deadline: Instant,
    ) -> Result<Established, Refusal> {
        if self.registry.borrow().is_up(task) {
            return Err(Refusal::later("PEER_BUSY", "connected from the other side"));
        }
        let unreachable = |error: io::Error| match Errno::from_io_error(&error) {
            // It is this side that has none left, which says nothing of the address.
            Some(Errno::MFILE | Errno::NFILE) => no_stream(error),
            _ => unreachable(&format_args!("{address}: {error}"), error.kind()),
        };
        let socket = address
            .connect()
            .map_err(|errno| unreachable(errno.into()))?;
        let credentials = Credentials::of(socket.as_fd()).map_err(unreachable)?;
        self.registry.borrow_mut().begin_dial(task)?;
        let claim = self.claim(task, ClaimKind::Dial);
        let then = match self.config.secret {
            Some(_) => Then::Handshake,
            None => Then::Greeting,
        };
        let lane = Lane::open(socket.as_fd(), then).map_err(|error| {
            let refusal = lane_refusal(task, &error);
            // Whatever befell a connection this young may be over by the next.
            Refusal {
                retry: true,
                ..refusal
            }
        })?;
        let fresh = Fresh {
            socket,
            lane,
            then,
            credentials,
            deadline: deadline.min(Instant::now() + self.greeting_time()),
        };
        let outcome = self.greet(fresh, Some(task)).await;
        drop(claim);
        outcome
    }

    /// How long a greeting of ours may take, with all that are dialled at once.
    pub(super) fn greeting_time(&self) -> Duration {
        let others = self.dials.borrow().len().saturating_sub(1);
        greeting_time(self.config.greet_deadline, others)
    }

    /// What greetings need of this task.
    pub(super) fn own(&self) -> Own<'_> {
        Own {
            config: &self.config,
            identity: &self.identity,
            handler: &self.handler,
            errands: &self.errands,
            near: &self.local,
        }
    }

    /// What a greeting's machine needs to know.
    pub(super) fn greets(&self, wish: PathWish, is_near: bool) -> Greets<'_> {
        Greets {
            own: &self.config.task,
            machine: &self.identity.machine,
            wish,
            is_near,
        }
    }

    /// Greets over a fresh connection, as dialler if there is a task that was dialled. Once it counts, the handler
    /// knows.
    async fn greet(
        self: &Rc<Self>,
        fresh: Fresh,
        dialled: Option<&str>,
    ) -> Result<Established, Refusal> {
        let Fresh {
            socket,
            mut lane,
            then,
            credentials,
            deadline,
        } = fresh;
        let mut reader = self.adopt(&socket).map_err(no_stream)?;
        let writer = self.adopt(&socket).map_err(no_stream)?;
        let peer = self.number();
        let announced = self.announced.get();
        let is_admitted = Cell::new(false);
        let whole = async {
            let has_proved = self
                .shake_hands(&mut reader, &lane, then, &credentials, dialled.is_some())
                .await?;
            let greeting = Greeting {
                is_dialler: dialled.is_some(),
                evidence: Evidence::Socket {
                    credentials: &credentials,
                    has_proved,
                },
                asks: PathWish::Auto,
                no_shm: "",
                deadline,
                admit: Box::new(|hello| self.admit(hello).inspect(|_| is_admitted.set(true))),
                count: Box::new(|hello| self.count(peer, hello, dialled.is_some())),
            };
            let ours = Ours::new(self.own(), greeting, Means::Lane(&mut lane));
            // A dial that demands a path over the network does not come here.
            let wish = dialled.map_or(self.config.path_wish, |_| PathWish::Auto);
            let terms = self.greets(wish, true);
            // The kernel keeps all others out of a Unix socket.
            let mut seals = Seals::default();
            ours.greet(terms, dialled, &mut reader, &mut seals).await
        };
        let outcome = self.in_time(deadline, &is_admitted, whole).await;
        let Greeted::Here(here) = outcome.unwrap_or_else(late)? else {
            let what = "sent elsewhere from a Unix socket";
            return Err(protocol_refusal(dialled.unwrap_or_default(), what));
        };
        let (agreed, gained) = *here;
        Ok(self.establish(Met {
            peer,
            agreed,
            gained,
            is_dialler: dialled.is_some(),
            socket: OwnedFd::from(socket),
            lane: Some(lane),
            seals: Seals::default(),
            reader: Box::new(reader),
            writer: Box::new(writer),
            credentials: Some(credentials),
            announced,
        }))
    }

    /// What a greeting comes to, if it ends in time. The dialler counts first, so its time is what ends the greeting of
    /// a peer that is admitted: if we gave up in between, it would be left connected to no peer, and lose what it
    /// sends.
    async fn in_time<T>(
        &self,
        deadline: Instant,
        is_admitted: &Cell<bool>,
        whole: impl Future<Output = T>,
    ) -> Option<T> {
        let mut whole = pin!(whole);
        let time = deadline.saturating_duration_since(Instant::now());
        let outcome = self.runtime.within(time, whole.as_mut()).await;
        if outcome.is_some() || !is_admitted.get() {
            return outcome;
        }
        let time = self.config.greet_deadline * GREETING_GROWTH_MAX;
        self.runtime.within(time, whole).await
    }

    /// True if both sides proved the secret. Without it, what the kernel says of both must do.
    async fn shake_hands(
        &self,
        stream: &mut Stream,
        lane: &Lane,
        then: Then,
        credentials: &Credentials,
        is_dialler: bool,
    ) -> Result<bool, Refusal> {
        let is_of_dialler = is_dialler
            || then == Then::Greeting
            || lane
                .maker()
                .is_ok_and(|maker| maker.is_of(credentials, self.identity.users));
        let terms = Terms {
            secret: self.config.secret.as_ref(),
            binding: handshake::bind_lane(lane.mark(), is_of_dialler),
            may_go_without: true,
            waives: false,
        };
        let told = |refusal: Refusal| match is_of_dialler
            || refusal.status.reason() != catalogue::SECRET_WRONG
        {
            true => refusal,
            false => Refusal {
                status: Status::of(catalogue::SECRET_WRONG, HIDDEN),
                ..refusal
            },
        };
        let session = match (then, is_dialler) {
            (Then::Greeting, _) => None,
            (Then::Handshake, true) => handshake::dial(stream, terms).await?,
            (Then::Handshake, false) => {
                let accepted = handshake::accept(stream, terms, |nonce| self.is_new(nonce));
                accepted.await.map_err(told)?
            }
        };
        Ok(session.is_some())
    }

    fn adopt(&self, socket: &UnixStream) -> io::Result<Stream> {
        self.runtime.adopt(socket.try_clone()?)
    }
}

/// A greeting that took too long.
pub(super) fn late<T>() -> Result<T, Refusal> {
    Err(Refusal::later(
        catalogue::GREETING_LATE,
        "the greeting was not over by its deadline",
    ))
}
