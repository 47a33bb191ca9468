//! The settings of a control plane, in one value, and what can be wrong with them or with its start.
//!
//! Knows the limits; reads no file and no environment.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::io::Errno;

use crate::ground::limits::{
    BODY_MAX_MAX, FEATURE_NAME_MAX, FEATURES_MAX, FRAME_WINDOW_MAX, LINE_WINDOW_MAX,
    SEGMENT_BYTES_MAX, SEGMENTS_PER_TASK_MAX, SHARDS_MAX, TASK_NAME_MAX,
};
use crate::ground::{Code, Incarnation, Status, TaskName, catalogue};

use super::address::Address;
use super::names::Resolve;
use super::peer::{PeerLimits, PollPolicy};
use super::runtime::RuntimeKind;
use super::secret::Secret;
use super::tcp::{self, is_loopback};
use super::tls::Tls;
use super::transport::PathWish;

/// The settings of one task's control plane.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// This task's name: 1 to 127 printable ASCII bytes without blanks.
    pub task: String,
    /// This life of it; not zero.
    pub incarnation: Incarnation,
    /// Where to listen on this machine, a Unix address; `None` makes an abstract name up.
    pub listen: Option<Address>,
    /// Where to listen for other machines, a TCP address; `None` for nowhere. Port zero is any that is free.
    pub tcp_listen: Option<Address>,
    /// What the tasks of the cluster share and prove to each other, if anything.
    pub secret: Option<Secret>,
    /// A peer without the secret is let in if the kernel says that it is our own user's process of this machine: for
    /// secrets that only some of its processes were given. At Unix sockets that is always so.
    pub waives_secret: bool,
    /// What makes conversations over TCP private and both ends certain, if anything.
    pub tls: Option<Tls>,
    /// Allows a TCP address that other machines can reach although neither a secret nor TLS keeps strangers out.
    pub insecure: bool,
    /// The path that all connections are to take, whichever side dials; each dial may narrow it.
    pub path_wish: PathWish,
    /// The task's shards, at least one.
    pub shards: u16,
    /// How they wait.
    pub poll_policy: PollPolicy,
    /// How long after a call the control thread looks for what comes next before it sleeps.
    pub lookout: Duration,
    /// The numbers told to peers.
    pub limits: PeerLimits,
    /// Names of optional abilities, told to peers.
    pub features: Vec<String>,
    /// Time for a greeting, from the connection to the last descriptor. Of many at once each has more, up to five times
    /// as much: they share the cores.
    pub greet_deadline: Duration,
    /// Time for the first attempt to reach an address over TCP, before anything is said; it doubles with each further
    /// one, up to half a second.
    pub reach_min: Duration,
    /// First pause between two attempts to connect; it doubles up to `backoff_max`, each time with jitter.
    pub backoff_min: Duration,
    /// Longest pause between two attempts to connect.
    pub backoff_max: Duration,
    /// How often a peer over TCP is asked whether it runs.
    pub ping_every: Duration,
    /// How long a peer over TCP may be silent until its task is let in over another connection.
    pub doubtful_after: Duration,
    /// How long a peer over TCP may leave questions unanswered until its connection counts as lost.
    pub lost_after: Duration,
    /// How long after the end of a connection its process may take to be proved gone, before the loss is told without
    /// proof.
    pub proof_grace: Duration,
    /// The runtime to use; `None` lets the probe choose.
    pub force_runtime: Option<RuntimeKind>,
    /// The boot to name in hellos instead of this one's: two machines on one, for tests.
    #[doc(hidden)]
    pub boot: Option<String>,
    /// How names are looked up: a name server that is late, for tests.
    #[doc(hidden)]
    pub resolve: Resolve,
}

impl ControlConfig {
    /// The usual settings for `task` in the life `incarnation` with `shards` shards.
    pub fn new(task: impl Into<String>, incarnation: Incarnation, shards: u16) -> Self {
        Self {
            task: task.into(),
            incarnation,
            listen: None,
            tcp_listen: None,
            secret: None,
            waives_secret: false,
            tls: None,
            insecure: false,
            path_wish: PathWish::default(),
            shards,
            poll_policy: PollPolicy::default(),
            lookout: Duration::from_micros(50),
            limits: PeerLimits::default(),
            features: Vec::new(),
            greet_deadline: Duration::from_secs(5),
            reach_min: Duration::from_millis(250),
            backoff_min: Duration::from_millis(2),
            backoff_max: Duration::from_millis(250),
            ping_every: Duration::from_secs(1),
            doubtful_after: Duration::from_secs(3),
            lost_after: Duration::from_secs(10),
            proof_grace: Duration::from_millis(100),
            force_runtime: None,
            boot: None,
            resolve: tcp::resolve_host,
        }
    }

    /// Checks every number against its limit.
    pub(crate) fn check(&self) -> Result<(), Status> {
        check_task(&self.task)?;
        check_numbers(self.incarnation.0, u32::from(self.shards), &self.limits)?;
        check_features(&self.features)?;
        if self.lost_after < 2 * self.ping_every {
            let message = format!(
                "lost_after is {:?}, less than two of ping_every, {:?}: every peer would be lost",
                self.lost_after, self.ping_every
            );
            return Err(Status::new(
                Code::InvalidArgument,
                catalogue::CONFIG,
                message,
            ));
        }
        let wrong = |name: &str, address: &Address, right: &str| {
            let message = format!("{name} is {address}, which is not a {right} address");
            Err(Status::new(
                Code::InvalidArgument,
                catalogue::CONTROL_ADDRESS,
                message,
            ))
        };
        match (&self.listen, &self.tcp_listen) {
            (Some(address), _) if address.is_tcp() => wrong("listen", address, "Unix"),
            (_, Some(address)) if !address.is_tcp() => wrong("tcp_listen", address, "TCP"),
            _ => Ok(()),
        }
    }

    /// Who may connect without proof to a task that listens at `bound`; `None` if a secret or TLS is required.
    pub(super) fn openness(&self, bound: SocketAddr) -> Option<&'static str> {
        let is_kept = self.secret.is_some() || self.tls.is_some();
        (!is_kept).then_some(match is_loopback(bound.ip()) {
            true => OPEN_TO_USER,
            false => OPEN_TO_ALL,
        })
    }

    /// Refuses to be reached by strangers at `bound` with nothing to keep them out.
    pub(crate) fn check_exposure(&self, bound: SocketAddr) -> Result<(), ControlError> {
        let is_kept = self.secret.is_some() || self.tls.is_some() || self.insecure;
        check_exposure(bound, is_kept)
    }
}

/// Refuses to be reached by strangers at `bound`, unless something keeps them out.
pub(crate) fn check_exposure(bound: SocketAddr, is_kept: bool) -> Result<(), ControlError> {
    match is_kept || is_loopback(bound.ip()) {
        true => Ok(()),
        false => Err(ControlError::Exposed {
            address: Address::of_socket(bound),
        }),
    }
}

/// Who can connect if no proof is asked and the address cannot be reached from beyond this machine. The log, the README
/// and the threat model say it in these words.
pub(super) const OPEN_TO_USER: &str = "every process of the same user on this machine";

/// The same, where other machines can.
pub(super) const OPEN_TO_ALL: &str = "anyone who reaches the address from another machine, and every process of the \
     same user on this one";

/// What they can do then.
pub(super) const OPEN_FOR: &str =
    "can take and send tensors, run graphs, and read and write files below `files_root`";

/// Greetings at once among which one gets along in its time: each further so many give all of them that time again.
const GREETINGS_AT_ONCE: usize = 8;

/// How many times its time a greeting may get.
pub(super) const GREETING_GROWTH_MAX: u32 = 5;

/// How long a greeting may take beside `others`. A time that fits one greeting ends all of a cluster that starts at
/// once on few cores: each takes the cores from the others, is given up, and begins again.
pub(super) fn greeting_time(alone: Duration, others: usize) -> Duration {
    let more = u32::try_from(others / GREETINGS_AT_ONCE).unwrap_or(u32::MAX);
    alone * more.saturating_add(1).min(GREETING_GROWTH_MAX)
}

/// What may hold an address that cannot be listened at.
const fn taken_by(address: &Address) -> &'static str {
    match address {
        Address::Tcp { .. } => {
            "a running process listens on it already, maybe of another job on this machine (where the launcher names \
             no port, give each job a `port`, RENDEZ_PORT), or an outgoing connection was given its port \
             (net.ipv4.ip_local_port_range says which ports those get)"
        }
        _ => "a running process listens on it already",
    }
}

/// Why there is no control plane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// A setting makes no sense.
    #[error("{0}")]
    Config(Status),
    /// A live process listens at the address: another process has this task's place. A port may also have been given
    /// to a connection that goes out.
    #[error("{address} is taken: {}; is task {task} running twice?", taken_by(.address))]
    AddressTaken {
        /// The address.
        address: Address,
        /// Our task.
        task: String,
    },
    /// The address can be reached by other machines, and nothing keeps strangers out.
    #[error(
        "{address} can be reached from other machines, and there is neither a cluster secret nor TLS: set one, \
         listen on a loopback address, or set `insecure` if the network itself keeps strangers out"
    )]
    Exposed {
        /// The address.
        address: Address,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {address}: {why}")]
    Address {
        /// The address.
        address: Address,
        /// What the system said.
        why: String,
    },
    /// The system refused something else.
    #[error("{call}: {error}")]
    System {
        /// The call.
        call: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
}

impl ControlError {
    /// The same as a status.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Config(status) => status.clone(),
            Self::AddressTaken { .. } => {
                Status::new(Code::AlreadyExists, "PEER_DUPLICATE_NAME", self.to_string())
            }
            Self::Exposed { .. } => Status::new(
                Code::PermissionDenied,
                catalogue::CONTROL_EXPOSED,
                self.to_string(),
            ),
            Self::Address { .. } => {
                Status::new(Code::InvalidArgument, "CONTROL_ADDRESS", self.to_string())
            }
            Self::System { error, .. } if is_shortage(error) => Status::of(
                catalogue::SYSTEM_LIMIT,
                format!("{self}; raise `ulimit -n`, `-u` or `-v`"),
            ),
            Self::System { .. } => Status::new(Code::Internal, "CONTROL_SYSTEM", self.to_string()),
        }
    }
}

/// True if the process or the machine has no more of what was asked for: descriptors, threads or memory.
pub(crate) fn is_shortage(error: &std::io::Error) -> bool {
    let short = [Errno::AGAIN, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| short.contains(&errno))
}

/// Checks a task's name. Here names are compared as texts, so one that can be spelled in several ways is good in full
/// alone: by another spelling a process would come under the name of a task that is connected.
pub(crate) fn check_task(task: &str) -> Result<(), Status> {
    if (1..=TASK_NAME_MAX).contains(&task.len()) && task.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return match TaskName::parse(task) {
            Ok(name) if name.to_string() != task => {
                let message = format!("write the task's name in full, as {name}, not as {task}");
                Err(Status::new(Code::InvalidArgument, "PEER_REFUSED", message))
            }
            _ => Ok(()),
        };
    }
    let shown: String = task.chars().take(TASK_NAME_MAX).collect();
    let message = format!(
        "a task's name is 1 to {TASK_NAME_MAX} printable ASCII characters without blanks, not {shown:?}"
    );
    Err(Status::new(Code::InvalidArgument, "PEER_REFUSED", message))
}

/// Checks the numbers of a hello, ours or a peer's.
pub(crate) fn check_numbers(
    incarnation: u64,
    shards: u32,
    limits: &PeerLimits,
) -> Result<(), Status> {
    if incarnation == 0 {
        return Err(Status::new(
            Code::InvalidArgument,
            "PEER_REFUSED",
            "an incarnation is never zero",
        ));
    }
    let bounds = [
        ("shards", u64::from(shards), 1, u64::from(SHARDS_MAX)),
        (
            "frame_window",
            limits.frame_window.into(),
            2,
            FRAME_WINDOW_MAX.into(),
        ),
        (
            "line_window",
            limits.line_window.into(),
            2,
            LINE_WINDOW_MAX.into(),
        ),
        ("body_max", limits.body_max.into(), 0, BODY_MAX_MAX.into()),
        (
            "segment_bytes",
            limits.segment_bytes,
            4096,
            SEGMENT_BYTES_MAX,
        ),
        (
            "segments_max",
            limits.segments_max.into(),
            0,
            SEGMENTS_PER_TASK_MAX.into(),
        ),
    ];
    for (name, value, least, most) in bounds {
        if !(least..=most).contains(&value) {
            let message = format!("{name} is {value}; the limits are {least} to {most}");
            return Err(Status::new(
                Code::ResourceExhausted,
                "PEER_REFUSED",
                message,
            ));
        }
    }
    for (name, window) in [
        ("frame_window", limits.frame_window),
        ("line_window", limits.line_window),
    ] {
        if !window.is_power_of_two() {
            let message = format!("{name} is {window}, which is not a power of two");
            return Err(Status::new(Code::InvalidArgument, "PEER_REFUSED", message));
        }
    }
    Ok(())
}

/// Checks the names of optional abilities.
pub(crate) fn check_features(features: &[String]) -> Result<(), Status> {
    if features.len() > FEATURES_MAX || features.iter().any(|name| name.len() > FEATURE_NAME_MAX) {
        let message = format!(
            "more than {FEATURES_MAX} features, or one with a name of more than {FEATURE_NAME_MAX} bytes"
        );
        return Err(Status::new(
            Code::ResourceExhausted,
            "PEER_REFUSED",
            message,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the log warns of, README and threat model say in the same words.
    #[test]
    fn the_warning_is_documented_in_its_own_words() {
        for (name, text) in [
            ("README.md", include_str!("../../../README.md")),
            ("THREAT_MODEL.md", include_str!("THREAT_MODEL.md")),
        ] {
            let words = text.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
            for said in [OPEN_TO_USER, OPEN_TO_ALL, OPEN_FOR] {
                assert!(words.contains(said), "{name} does not say: {said}");
            }
        }
    }

    #[test]
    fn only_where_nothing_is_proved_somebody_gets_in() {
        let at = |address: &str| address.parse().expect("an address");
        let mut config = ControlConfig::new("a", Incarnation(1), 1);
        assert_eq!(config.openness(at("127.0.0.1:5")), Some(OPEN_TO_USER));
        assert_eq!(config.openness(at("10.0.0.1:5")), Some(OPEN_TO_ALL));
        config.secret = Secret::new(b"0123456789abcdef").ok();
        assert_eq!(config.openness(at("10.0.0.1:5")), None);
    }

    /// Each segment of a peer is a descriptor and a mapping here: no hello claims more than a task may announce.
    #[test]
    fn a_hello_claims_no_more_segments_than_a_task_may_announce() {
        let check = |segments_max| {
            let limits = PeerLimits {
                segments_max,
                ..PeerLimits::default()
            };
            check_numbers(1, 1, &limits)
        };
        assert_eq!(check(SEGMENTS_PER_TASK_MAX), Ok(()));
        let status = check(SEGMENTS_PER_TASK_MAX + 1).expect_err("too many");
        assert!(
            status.message().contains("segments_max is 32769"),
            "{status}"
        );
    }

    #[test]
    fn greetings_that_share_the_cores_have_more_time() {
        let alone = Duration::from_secs(1);
        let seconds =
            [0, 7, 8, 40, usize::MAX].map(|others| greeting_time(alone, others).as_secs());
        assert_eq!(seconds, [1, 1, 2, 5, 5]);
    }
}
