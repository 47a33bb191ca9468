//! Control: how the tasks of a cluster find, judge and watch each other, and hand each other memory and doorbells.
//!
//! Floor 5. Knows ground and proto. It may not know what travels later: arenas, links and doorbells are descriptors,
//! numbers and texts here, and no message of this room is ever in the path of a tensor. Its two threads are
//! asynchronous within; nothing asynchronous leaves: [`Control`] takes calls from any thread, [`Handler`] is called
//! from the control thread. Which peers may connect, and what each setting keeps out, stands in the [threat
//! model](crate::threat_model).
//!
//! ```text
//!            Control (any thread)          Handler (the engine)
//!               │ mailbox                       ▲
//!   ┌───────────▼───────────────────────────────┴────────────┐
//!   │ control thread (glommio, or poll: threads, runtime)    │
//!   │   plane: what is begun, counted and buried             │
//!   │   dial, names, meet…: from an address to a greeting    │──── stream: envelopes (frame, hello, secret, tls)
//!   │   greeting (pure), side, exchange: hellos, transports  │──── lane: descriptors; or TCP: data connections
//!   │   conversation, calls, answers: what is said after     │
//!   │   lookout: no sleep between a call and what follows it │
//!   │   registry: which peers are up, whose dial wins        │──── errands: threads for what blocks; services
//!   └───────────▲───────────────────────────────┬────────────┘
//!               │ arrivals, exits               │ follow
//!   ┌───────────┴───────────────────────────────▼────────────┐
//!   │ watch thread: one poll over listeners, newcomers,      │
//!   │ process handles                                        │
//!   └────────────────────────────────────────────────────────┘
//! ```
//!
//! What a peer's end proves: a process handle that turns readable proves that nothing of it runs
//! ([`PeerGone::ProcessExited`]); the end of a connection proves nothing ([`PeerGone::ConnectionLost`]), so the
//! process is followed further; silence proves even less, and on one machine it means nothing. Over TCP there is no
//! handle, so a long silence ends the connection: as [`PeerGone::ConnectionLost`], which still proves nothing. A task
//! that wants the peer back dials again; if the same life answers, it is the same peer over other connections.

mod address;
mod admit;
mod ancillary;
mod answers;
mod call;
mod calls;
mod complaints;
mod config;
mod conversation;
mod credentials;
mod data;
mod departed;
mod descriptors;
mod dial;
mod errand;
mod exchange;
mod frame;
#[doc(hidden)]
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
mod gate;
mod greeting;
mod handshake;
mod hello;
pub mod here;
mod lane;
mod lookout;
mod mailbox;
mod meet;
mod meet_data;
mod meet_tcp;
mod names;
mod newcomers;
mod outbox;
mod owner;
mod peer;
mod plane;
mod preamble;
mod refusal;
mod registry;
mod rivals;
mod runtime;
mod secret;
mod service;
mod side;
mod signal;
mod tcp;
mod threads;
mod tickets;
mod tls;
mod transport;
mod watch;

pub use address::{Address, AddressError};
pub use call::{PendingCall, read_answer};
pub(crate) use config::check_exposure;
pub use config::{ControlConfig, ControlError};
pub(crate) use hello::OBSERVER_JOB;
pub use hello::{PROTOCOL_VERSION, named_in};
pub(crate) use owner::Owner;
pub use peer::{
    DataSocket, Descriptors, DoorbellOffer, Handler, LinkOffer, LocalOffer, PeerGone, PeerHello,
    PeerId, PeerLimits, PeerUp, PollPolicy, SegmentOffer,
};
pub use runtime::{RuntimeKind, RuntimeReport, probe};
pub use secret::Secret;
pub use service::{Incoming, Services};
pub(crate) use tcp::is_loopback;
pub(crate) use tls::Part;
pub use tls::Tls;
pub use transport::{Ends, Lack, Offers, Path, PathWish};

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::fabric::listeners::ParentOnly;
use crate::ground::limits::{CALL_PAYLOAD_MAX, CONTROL_COMMANDS_MAX};
use crate::ground::{Code, Locked, Status, catalogue};

use self::address::ListenError;
use self::calls::{Asked, Calls};
use self::dial::Dialled;
use self::mailbox::{Refused, Sender};
use self::plane::{Command, Plane};
use self::service::Pool;
use self::threads::Working;
use self::watch::Watch;

/// How long a control plane that is dropped without a [`Control::stop`] takes for its goodbyes.
const DROP_DEADLINE: Duration = Duration::from_millis(200);

/// As good as for ever.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// When `patience` from now is over; in a year if that is beyond the clock: nothing lasts as long.
pub(crate) fn until(patience: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(patience).unwrap_or(now + YEAR)
}

/// The control plane of one task.
pub struct Control {
    task: String,
    address: Address,
    tcp_address: Option<Address>,
    runtime: RuntimeReport,
    path_wish: PathWish,
    lookout: Duration,
    tls: Option<Tls>,
    commands: Sender<Command>,
    requests: AtomicU64,
    working: Mutex<Option<Working>>,
}

impl Control {
    /// Listens, and starts the two threads. `handler` may be called before this returns.
    ///
    /// # Errors
    /// [`ControlError::AddressTaken`] if a live process has the address; a setting beyond its limit; the system's
    /// refusals.
    pub fn start(
        mut config: ControlConfig,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, ControlError> {
        config.check().map_err(ControlError::Config)?;
        let task = config.task.clone();
        let (path_wish, lookout, tls) = (config.path_wish, config.lookout, config.tls.clone());
        let address = config
            .listen
            .get_or_insert_with(|| Address::unique(&task))
            .clone();
        let listening = address.listen().map_err(|error| match error {
            ListenError::Taken => ControlError::AddressTaken {
                address: address.clone(),
                task: task.clone(),
            },
            ListenError::System { call, errno } if config::is_shortage(&errno) => {
                ControlError::System { call, error: errno }
            }
            error => ControlError::Address {
                address: address.clone(),
                why: error.to_string(),
            },
        })?;
        let tcp = config.tcp_listen.as_ref();
        let tcp = tcp
            .map(|address| listen_tcp(&config, address))
            .transpose()?;
        let (tcp, tcp_address) = tcp.unzip();
        let (commands, receiver) = mailbox::mailbox();
        let pool = Pool::start(handler.services()).map_err(|error| ControlError::System {
            call: "start the threads of services",
            error,
        })?;
        let served = commands.clone();
        let sights = commands.clone();
        // The watch bounds what it tells: by its permits, and by the peers it was told to follow.
        let tell = move |sight| sights.send(Command::Sight(sight)).is_ok();
        let watch = Watch::start(listening, tcp, config.greet_deadline, tell).map_err(|error| {
            ControlError::System {
                call: "start the watch thread",
                error,
            }
        })?;
        let wanted = probe(config.force_runtime);
        let local = address.clone();
        let main = move |runtime| {
            let calls = Calls::new(pool, served, lookout);
            Plane::new(config, handler, watch, local, calls, runtime).run(receiver)
        };
        let (runtime, working) =
            threads::start(wanted, main).map_err(|error| ControlError::System {
                call: "start the control thread",
                error,
            })?;
        let tcp = tcp_address.as_ref().map(ToString::to_string);
        tracing::info!(task, %address, tcp, %runtime, "the control plane listens");
        Ok(Self {
            task,
            address,
            tcp_address,
            runtime,
            path_wish,
            lookout,
            tls,
            commands,
            requests: AtomicU64::new(1),
            working: Mutex::new(Some(working)),
        })
    }

    /// When the certificate in use ends, in seconds since 1970; nothing without TLS.
    pub(crate) fn certificate_ends(&self) -> Option<u64> {
        self.tls.as_ref().and_then(Tls::ends)
    }

    /// Connects to `task`, which listens at `address` or will by and by, and gives up at `deadline`. The outcome is
    /// [`Handler::peer_up`], by whichever side's dial, or [`Handler::dial_failed`]. Nothing happens if `task` is
    /// connected, unless that connection is about to end. A dial of `task` that is under way goes on at `address`,
    /// until the later of both deadlines.
    ///
    /// The way is the one that [`ControlConfig::path_wish`] says. A lost connection is not dialled again by itself: the
    /// caller does, also from within [`Handler::peer_gone`].
    ///
    /// # Errors
    /// `InvalidArgument` for our own name or none that is one; `ResourceExhausted` if too many commands wait;
    /// `FailedPrecondition` after [`Control::stop`].
    pub fn dial(&self, task: &str, address: Address, deadline: Duration) -> Result<(), Status> {
        self.dial_by(task, address, self.path_wish, deadline)
    }

    /// The same, by the way that `wish` says.
    ///
    /// # Errors
    /// As for [`Control::dial`].
    pub fn dial_by(
        &self,
        task: &str,
        address: Address,
        wish: PathWish,
        deadline: Duration,
    ) -> Result<(), Status> {
        config::check_task(task)?;
        if task == self.task {
            let message = format!("{task} is this task itself: its keys never leave the process");
            return Err(Status::new(Code::InvalidArgument, "PEER_SELF", message));
        }
        let until = until(deadline);
        self.command(Command::Dial {
            task: task.to_owned(),
            to: Dialled {
                address,
                wish,
                until,
                is_sought: false,
            },
        })
    }

    /// As [`Control::dial`], after `pause`, of which chance takes up to a half, or as often as it takes until few dials
    /// are under way, and for as long as `patience` lets. Nothing happens if `task` is connected or dialled by then, or
    /// waits for another such dial already.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no task's name; else as for [`Control::dial`].
    pub(crate) fn dial_later(
        &self,
        task: &str,
        address: Address,
        pause: Duration,
        patience: Duration,
    ) -> Result<(), Status> {
        config::check_task(task)?;
        self.command(Command::DialLater {
            task: task.to_owned(),
            address,
            pause,
            patience,
        })
    }

    /// Ends a connection as if it were lost: both handlers hear of [`PeerGone::ConnectionLost`], this one with `why`.
    /// For one that is of no use, as its data connections are broken: with a new dial the same lives meet again, over
    /// fresh ones. Nothing happens if it is over already.
    ///
    /// It ends after a pause: if the next one is no better, it is not made again and again without end at once. A
    /// goodbye of the peer that is under way comes before. It is taken however many commands wait: nothing would ask
    /// for it again.
    ///
    /// # Errors
    /// `FailedPrecondition` after [`Control::stop`].
    pub fn hang_up(&self, peer: PeerId, why: &str) -> Result<(), Status> {
        let why = why.to_owned();
        // Bounded by the links there are.
        self.commands
            .send(Command::HangUp { peer, why })
            .map_err(refusal_of)
    }

    /// Calls service `method` of `task` with `payload`, and gives the call to be waited for. It waits for a connection
    /// if there is none, and makes none; over connections that come and go to the same life of the task it is carried
    /// out once. `trace` ties together what belongs together.
    ///
    /// # Errors
    /// `ResourceExhausted` if the payload is longer than [`CALL_PAYLOAD_MAX`], or too many commands wait;
    /// `FailedPrecondition` after [`Control::stop`].
    pub fn begin_call(
        &self,
        task: &str,
        method: u32,
        payload: &[u8],
        trace: u64,
        deadline: Duration,
    ) -> Result<PendingCall, Status> {
        if payload.len() > CALL_PAYLOAD_MAX {
            let message = format!(
                "the call has {} bytes, the limit CALL_PAYLOAD_MAX is {CALL_PAYLOAD_MAX}",
                payload.len()
            );
            return Err(Status::of(catalogue::CALL_TOO_LONG, message));
        }
        let deadline = until(deadline);
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let (outcome, receiver) = mpsc::sync_channel(1);
        let asked = Asked {
            task: task.to_owned(),
            method,
            trace,
            payload: payload.to_vec(),
            deadline,
            outcome,
        };
        self.command(Command::Call { request, asked })?;
        Ok(PendingCall {
            request,
            deadline,
            outcome: receiver,
            commands: self.commands.clone(),
            is_over: false,
            lookout: self.lookout,
        })
    }

    /// The same, and waits for the answer. Not for the handler's thread, which brings it.
    ///
    /// # Errors
    /// As for [`Control::begin_call`] and [`PendingCall::wait`].
    pub fn call(
        &self,
        task: &str,
        method: u32,
        payload: &[u8],
        deadline: Duration,
    ) -> Result<Vec<u8>, Status> {
        self.begin_call(task, method, payload, 0, deadline)?.wait()
    }

    /// Tells all peers of our read domain of a new segment; one of the host's memory is a sealed file. Those being
    /// greeted hear of it too, once, whether or not [`Handler::local`] has named it to them. It is taken however many
    /// commands wait: a peer that is offered what lies in it waits for this news.
    ///
    /// # Errors
    /// `FailedPrecondition` after [`Control::stop`].
    pub fn announce(&self, segment: SegmentOffer) -> Result<(), Status> {
        // Bounded by the segments there are.
        self.commands
            .send(Command::Announce(segment))
            .map_err(refusal_of)
    }

    /// Says goodbye to all peers, for `reason`, as long as `deadline` lets, closes everything and waits for both
    /// threads to be done with it. The handler is not told of the connections that end by this. From the handler it
    /// only begins the end.
    pub fn stop(&self, reason: &str, deadline: Duration) {
        let deadline = until(deadline);
        // Refused only if it has stopped already.
        let _ = self.commands.send(Command::Stop {
            reason: reason.to_owned(),
            deadline,
        });
        let working = self.working.locked().take();
        // The last owner of this may be the handler, which the control thread itself lets go: it ends by itself then.
        if let Some(working) = working {
            working.wait();
        }
    }

    /// Where this task listens on its machine.
    #[must_use]
    pub const fn address(&self) -> &Address {
        &self.address
    }

    /// Where this task listens for other machines, with the port it got; `None` if it does not.
    #[must_use]
    pub const fn tcp_address(&self) -> Option<&Address> {
        self.tcp_address.as_ref()
    }

    /// What the control plane runs on, and why.
    #[must_use]
    pub const fn runtime(&self) -> &RuntimeReport {
        &self.runtime
    }

    fn command(&self, command: Command) -> Result<(), Status> {
        self.commands.try_send(command).map_err(refusal_of)
    }
}

fn refusal_of(refused: Refused) -> Status {
    match refused {
        Refused::Full => Status::new(
            Code::ResourceExhausted,
            "CONTROL_BUSY",
            format!("{CONTROL_COMMANDS_MAX} commands wait, the limit CONTROL_COMMANDS_MAX"),
        ),
        Refused::Closed => Status::new(
            Code::FailedPrecondition,
            "CONTROL_STOPPED",
            "the control plane has stopped",
        ),
    }
}

/// Listens at a TCP address, unless strangers could reach it and nothing kept them out.
fn listen_tcp(
    config: &ControlConfig,
    address: &Address,
) -> Result<(ParentOnly<TcpListener>, Address), ControlError> {
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => ControlError::AddressTaken {
            address: address.clone(),
            task: config.task.clone(),
        },
        std::io::ErrorKind::AddrNotAvailable => ControlError::Address {
            address: address.clone(),
            why: format!(
                "{error}: this host has no such address, or not yet; is the task started on another host than the \
                 cluster says?"
            ),
        },
        _ if config::is_shortage(&error) => ControlError::System {
            call: "listen for TCP",
            error,
        },
        _ => ControlError::Address {
            address: address.clone(),
            why: error.to_string(),
        },
    };
    let addresses = tcp::resolve(address).map_err(|error| ControlError::Address {
        address: address.clone(),
        why: error.to_string(),
    })?;
    for address in &addresses {
        config.check_exposure(*address)?;
    }
    let listener = ParentOnly::new(tcp::listen(&addresses).map_err(failed)?);
    let bound = listener.local_addr().map_err(failed)?;
    if let Some(who) = config.openness(bound) {
        tracing::warn!(
            task = config.task,
            address = %bound,
            "there is neither a cluster secret nor TLS: {who} {}",
            config::OPEN_FOR
        );
    }
    Ok((listener, address.bound_at(bound)))
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop("the task ends", DROP_DEADLINE);
    }
}

shown! { Control { task, address, runtime } }
