//! The hello: stating our identity, and judging the one that a peer states.
//!
//! Pure: knows messages, settings and what the kernel said of the peer; no socket, no clock.

use std::net::SocketAddr;

use crate::ground::{Code, Incarnation, Status, TaskName, catalogue};
use crate::users::UserNumbers;
use rendez_proto as proto;

use super::config::{ControlConfig, check_features, check_numbers, check_task};
use super::credentials::Credentials;
use super::owner::Owner;
use super::peer::{PeerHello, PeerLimits, PollPolicy};
use super::refusal::{Refusal, clip};

/// The version of everything spoken after the hello. A peer of another one is refused.
pub const PROTOCOL_VERSION: u32 = 10;

/// The ability that every task has: it takes calls.
const ABILITY: u64 = 1;

/// Transports that a hello may lack: as many as have a bit among its abilities.
const TRANSPORTS_MAX: usize = 64;

/// Why a task that does not know its boot takes no peer for one of its own machine.
pub(crate) const NO_BOOT: &str = "this task cannot read /proc/sys/kernel/random/boot_id, which tells whether a peer is \
     on the same machine: mount /proc";

/// What is known of a peer beside its own words.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Evidence<'a> {
    /// The kernel tells of it; and whether it proved the cluster secret.
    Socket {
        credentials: &'a Credentials,
        has_proved: bool,
    },
    /// Nothing but what its handshake proved.
    Network,
}

/// What is known of ourselves beyond the settings.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Our effective user.
    pub(crate) users: UserNumbers,
    /// The boot we run in; empty if it cannot be read.
    pub(crate) machine: String,
}

impl Identity {
    /// Reads it from the system, except a `boot` that is given.
    pub(crate) fn read(boot: Option<&str>) -> Self {
        let own = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let machine = boot.map_or_else(own, str::to_owned);
        Self {
            users: UserNumbers::read(),
            machine: machine.trim().to_owned(),
        }
    }
}

/// Our hello, to `dialled` or as an answer.
pub(crate) fn our_hello(
    config: &ControlConfig,
    identity: &Identity,
    dialled: &str,
) -> proto::Hello {
    let policy = match config.poll_policy {
        PollPolicy::Adaptive => proto::PollPolicy::Adaptive,
        PollPolicy::Busy => proto::PollPolicy::Busy,
        PollPolicy::Park => proto::PollPolicy::Park,
    };
    proto::Hello {
        protocol_version: PROTOCOL_VERSION,
        task: config.task.clone(),
        dialled: dialled.to_owned(),
        incarnation: config.incarnation.0,
        shards: config.shards.into(),
        poll_policy: policy.into(),
        limits: Some(proto::Limits {
            frame_window: config.limits.frame_window,
            line_window: config.limits.line_window,
            body_max: config.limits.body_max,
            segment_bytes: config.limits.segment_bytes,
            segments_max: config.limits.segments_max,
        }),
        features: config.features.clone(),
        user_id: identity.users.own(),
        machine: identity.machine.clone(),
        path: proto::PathWish::Auto.into(),
        abilities: ABILITY,
        no_shm: String::new(),
        lacks: Vec::new(),
    }
}

/// Judges a peer's hello: the version first, since with another one nothing after it can be trusted to mean the same.
/// Gives the checked hello and whether the peer is of our read domain.
pub(crate) fn judge(
    hello: &proto::Hello,
    config: &ControlConfig,
    identity: &Identity,
    evidence: Evidence<'_>,
) -> Result<(PeerHello, bool), Refusal> {
    if hello.protocol_version != PROTOCOL_VERSION {
        let message = format!(
            "task {} speaks protocol version {PROTOCOL_VERSION}, the peer {:?} version {}; \
             run the same release on both sides",
            config.task,
            clip(&hello.task),
            hello.protocol_version
        );
        return Err(Refusal::fatal(
            Code::FailedPrecondition,
            "PEER_VERSION",
            message,
        ));
    }
    check_task(&hello.task)?;
    if hello.task == config.task {
        let message = format!(
            "both sides are called {}: a task does not dial itself",
            config.task
        );
        return Err(Refusal::fatal(Code::InvalidArgument, "PEER_SELF", message));
    }
    let read_domain = match evidence {
        Evidence::Network => false,
        Evidence::Socket {
            credentials,
            has_proved,
        } => judge_user(hello, config, identity, credentials, has_proved)?,
    };
    let peer = check_hello(hello, evidence)?;
    Ok((peer, read_domain))
}

/// Whether a dialler meant this task, `own`.
pub(crate) fn meant_for(hello: &proto::Hello, own: &str) -> Result<(), Refusal> {
    if hello.dialled == own {
        return Ok(());
    }
    let message = format!("{DIALLED}{:?}{THIS_IS}{own}", clip(&hello.dialled));
    Err(Refusal::fatal(
        Code::NotFound,
        catalogue::PEER_UNKNOWN,
        message,
    ))
}

/// What stands before the name that was dialled.
const DIALLED: &str = "dialled ";

/// What stands before the name of a task that was dialled by another name.
const THIS_IS: &str = ", but this is ";

/// The name of the task that was dialled by another one, and said so.
pub fn named_in(status: &Status) -> Option<TaskName> {
    let is_told = status.reason() == catalogue::PEER_UNKNOWN;
    let (_, name) = status.message().rsplit_once(THIS_IS).filter(|_| is_told)?;
    TaskName::parse(name).ok()
}

/// The job of observers. No task is called so: a dialler that names one asks which task is here.
pub(crate) const OBSERVER_JOB: &str = "observer";

/// True of the name of one.
pub(crate) fn is_observer(task: &str) -> bool {
    TaskName::parse(task).is_ok_and(|task| task.job() == OBSERVER_JOB)
}

/// True if a dialler only asked which task is here, and was told.
pub(crate) fn is_question(refusal: &Refusal) -> bool {
    let asked = refusal.status.message().strip_prefix(DIALLED);
    let asked = asked.and_then(|asked| asked.split_once(THIS_IS));
    refusal.status.reason() == catalogue::PEER_UNKNOWN
        && asked.is_some_and(|(asked, _)| is_observer(asked.trim_matches('"')))
}

/// Whether the peer's user may connect, and whether it shares our read domain.
fn judge_user(
    hello: &proto::Hello,
    config: &ControlConfig,
    identity: &Identity,
    credentials: &Credentials,
    has_proved: bool,
) -> Result<bool, Refusal> {
    let (users, other) = (identity.users, credentials.user);
    if users.is_own(other) || has_proved {
        // One user or one secret, and a Unix socket: one machine. A hello that names another boot was relayed, and
        // shares no memory.
        return Ok(hello.machine == identity.machine);
    }
    let message = format!(
        "task {} runs as user {}, the peer {} as user {other}{}; \
         only the same user, or one that knows the same cluster secret, may connect",
        config.task,
        users.own(),
        hello.task,
        why_nameless(users, other)
    );
    Err(Refusal::fatal(
        Code::PermissionDenied,
        catalogue::PEER_OTHER_USER,
        message,
    ))
}

/// Whether the owner of the other end of a TCP connection, at `peer`, may connect where nothing is proved: the same
/// rule as for the user at the other end of a Unix socket. An owner that the kernel does not name is refused too.
/// Another machine is judged by what else is set.
pub(crate) fn judge_owner(
    owner: Owner,
    peer: SocketAddr,
    config: &ControlConfig,
    identity: &Identity,
) -> Result<(), Refusal> {
    let whose = match owner {
        Owner::Elsewhere => return Ok(()),
        Owner::User(user) if identity.users.is_own(user) => return Ok(()),
        Owner::User(user) => {
            format!(
                "belongs to user {user}{}",
                why_nameless(identity.users, user)
            )
        }
        Owner::Unknown => {
            "is on this machine, but the kernel does not say which user owns it".into()
        }
    };
    let message = format!(
        "the connection's other end, {peer}, {whose}, and task {} runs as user {}: without a cluster secret or TLS \
         only the same user may connect within a machine",
        config.task,
        identity.users.own()
    );
    Err(Refusal::fatal(
        Code::PermissionDenied,
        catalogue::PEER_OTHER_USER,
        message,
    ))
}

/// What the number of `user` does not say, if it is the one of all that have none here.
fn why_nameless(users: UserNumbers, user: u32) -> &'static str {
    match users.is_nameless(user) {
        true => {
            ", the number by which this user namespace shows every user that has none in it, so that \
             it does not say which"
        }
        false => "",
    }
}

fn check_hello(hello: &proto::Hello, evidence: Evidence<'_>) -> Result<PeerHello, Refusal> {
    let poll_policy = match proto::PollPolicy::try_from(hello.poll_policy) {
        Ok(proto::PollPolicy::Adaptive) => PollPolicy::Adaptive,
        Ok(proto::PollPolicy::Busy) => PollPolicy::Busy,
        Ok(proto::PollPolicy::Park) => PollPolicy::Park,
        Ok(proto::PollPolicy::Unspecified) | Err(_) => {
            let message = format!("the hello of {} names no poll policy we know", hello.task);
            return Err(Refusal::fatal(
                Code::InvalidArgument,
                "PEER_PROTOCOL",
                message,
            ));
        }
    };
    let Some(limits) = &hello.limits else {
        let message = format!("the hello of {} names no limits", hello.task);
        return Err(Refusal::fatal(
            Code::InvalidArgument,
            "PEER_PROTOCOL",
            message,
        ));
    };
    let limits = PeerLimits {
        frame_window: limits.frame_window,
        line_window: limits.line_window,
        body_max: limits.body_max,
        segment_bytes: limits.segment_bytes,
        segments_max: limits.segments_max,
    };
    check_numbers(hello.incarnation, hello.shards, &limits)?;
    check_features(&hello.features)?;
    let credentials = match evidence {
        Evidence::Socket { credentials, .. } => Some(credentials),
        Evidence::Network => None,
    };
    Ok(PeerHello {
        task: hello.task.clone(),
        incarnation: Incarnation(hello.incarnation),
        shards: u16::try_from(hello.shards).unwrap_or(u16::MAX),
        poll_policy,
        limits,
        features: hello.features.clone(),
        abilities: hello.abilities,
        lacks: hello
            .lacks
            .iter()
            .take(TRANSPORTS_MAX)
            .map(|lack| (lack.transport, clip(&lack.why)))
            .collect(),
        no_shm: clip(&hello.no_shm),
        user: credentials.map(|credentials| credentials.user),
        process: credentials.and_then(|credentials| credentials.process),
    })
}

#[cfg(test)]
mod tests;
