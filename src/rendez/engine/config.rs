//! The settings of an engine: one value, filled by code, a TOML file, the environment and flags, of which a later one
//! overrides an earlier one.
//!
//! What settings there are stands in one table, `config/table.rs`: from it come keys, variables, flags and the
//! reference page. Files and environment are read when asked to, by `config/sources.rs`; nothing else is touched.

mod codec;
mod layers;
mod page;
mod ranges;
mod sources;
mod spellings;
mod table;
mod verbs;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use crate::channel::Rules;
use crate::cluster::{ClusterSpec, HostPort};
use crate::control::{Address, RuntimeKind};
use crate::drive::{Driver, PollPolicy};
use crate::engine::{DeviceSettings, DeviceUse};
use crate::ground::{Code, Status, TaskName, catalogue, limits};
use crate::memory::{ArenaConfig, HugePages};
use crate::shard::Settings;

pub use layers::{Origin, Origins};
pub use page::reference_page;
pub use sources::{Loaded, Sources};
pub use table::{SETTINGS, Setting, Taker};
pub use verbs::VerbsSettings;

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// This task, as `/job:worker/task:0`.
    pub task: String,
    /// Where to be dialled; `None` makes up an abstract socket name.
    pub listen: Option<Address>,
    /// Where other tasks listen, by task name. This task's own may be among them, as in a list that all share.
    pub peers: BTreeMap<String, Address>,
    /// Shards; zero for one on each core of the affinity mask.
    pub shards: usize,
    /// The cores to use; empty for those of the affinity mask, in order.
    pub cores: Vec<usize>,
    /// Let shards share a core: they yield it. Without it more shards than cores are refused.
    pub share_cores: bool,
    /// How shards wait for work.
    pub poll: PollPolicy,
    /// With [`PollPolicy::Adaptive`]: how long a shard finds nothing to do before it sleeps. Longer costs processor
    /// time; shorter costs what waking it takes, some tens of microseconds, more often.
    pub spin: Duration,
    /// Which threads turn the shards.
    pub drive: Driver,
    /// Start a control plane: without one only `connect_local` connects.
    pub control: bool,
    /// Which control runtime to use; `None` for what the machine allows.
    pub runtime: Option<RuntimeKind>,
    /// How long a peer that a key names may take to connect. What waits for it then fails with `CONNECT_DEADLINE`,
    /// except receives with a deadline of their own: they wait until that, and the peer is dialled again. What was sent
    /// to it is dropped, which the log says.
    pub connect_timeout: Duration,
    /// Each shard's arena, and the one of application threads.
    pub arena: ArenaConfig,
    /// Commands that may wait for a shard.
    pub mailbox: usize,
    /// Bytes of unreceived values each shard parks.
    pub parked_bytes: u64,
    /// Of them, those of one step.
    pub parked_bytes_per_step: u64,
    /// Values up to this many bytes with their dimensions travel in a frame.
    pub inline_max: usize,
    /// Read large values of processes of the same user in place.
    pub lease: bool,
    /// Bytes of landings open at once on each shard.
    pub landing_bytes: u64,
    /// One value in so many is timed on the fastest ways; zero times none.
    pub stage_sampling: usize,
    /// Bytes of each shard's ring of last events.
    pub recorder_bytes: u64,
    /// Where recorders lie that outlive a crash.
    pub recorder_dir: Option<PathBuf>,
    /// Where metrics are served; `None` for nowhere.
    pub metrics: Option<HostPort>,
    /// Every user of this machine may read the metrics, over loopback addresses too.
    pub metrics_any_user: bool,
    /// Metrics have series for each peer.
    pub metrics_peers: bool,
    /// Rules of the protocol: all of them, outside simulations.
    pub rules: Rules,
    /// Meet none but `peers`, those `known`, and observers.
    pub closed: bool,
    /// Peers whose address is not known (yet).
    pub known: BTreeSet<String>,
    /// Which life of its job this task belongs to: it meets none of another.
    pub epoch: Option<String>,
    /// The cluster, if it is given here; see [`cluster`](crate::cluster) for other sources.
    pub cluster: Option<ClusterSpec>,
    /// Where rank 0 listens, for clusters whose tasks find one another at a root. An engine alone takes neither this
    /// nor what else says which cluster there is.
    pub root: Option<HostPort>,
    /// This task's rank, with `root`.
    pub rank: Option<u32>,
    /// How many ranks there are.
    pub world_size: Option<u32>,
    /// Where tasks listen whose launcher names no port.
    pub port: u16,
    /// The subdomain of a Kubernetes job's pods.
    pub subdomain: Option<String>,
    /// How tasks speak, as `auto`, `tcp` or `grpc+verbs`. Taken by the server alone.
    pub protocol: String,
    /// The path that peers must be reached by.
    pub require: Require,
    /// The file with the cluster's secret.
    pub cluster_secret_file: Option<PathBuf>,
    /// The descriptor that has the cluster's secret, inherited; `cluster_secret_file` goes before it.
    pub cluster_secret_fd: Option<u32>,
    /// The folder below which graphs may touch files; `None` lets them touch none.
    pub files_root: Option<PathBuf>,
    /// This task's certificate.
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key.
    pub tls_key: Option<PathBuf>,
    /// The authority of peers' certificates.
    pub tls_ca: Option<PathBuf>,
    /// The kernel keeps the TLS records of data connections, where it can.
    pub tls_kernel: bool,
    /// Allow an address beyond this machine without a secret and without TLS.
    pub insecure: bool,
    /// How long a peer may be silent before it counts as lost.
    pub failure_detection: Duration,
    /// How long a stop waits for what is on its way.
    pub drain_timeout: Duration,
    /// How long a data connection may take nothing more before it is given up and made again: its bytes are not
    /// acknowledged, or its receiver stands still and its buffers are full.
    pub tcp_user_timeout: Duration,
    /// RDMA.
    pub verbs: VerbsSettings,
    /// Devices whose memory tensors can lie in.
    pub devices: DeviceSettings,
    /// The boot to name in greetings instead of this one's: two machines on one, for tests.
    #[doc(hidden)]
    pub boot: Option<String>,
    /// Where the values come from, as far as they were loaded.
    pub origins: Origins,
}

/// The path that peers must be reached by.
pub use crate::control::PathWish as Require;

/// The usual settings of a process that is given no name: the task `/job:local/task:0`.
impl Default for Config {
    fn default() -> Self {
        Self::new("/job:local/task:0")
    }
}

impl Config {
    /// True if TLS is set, or half of it, which is refused later.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls_cert.is_some() || self.tls_key.is_some() || self.tls_ca.is_some()
    }

    /// The usual settings for a task.
    #[must_use]
    pub fn new(task: impl Into<String>) -> Self {
        let table = crate::rendezvous::Limits::default();
        Self {
            task: task.into(),
            listen: None,
            peers: BTreeMap::new(),
            shards: 0,
            cores: Vec::new(),
            share_cores: false,
            poll: PollPolicy::default(),
            // Some twenty times what it costs to end a sleep.
            spin: Duration::from_micros(500),
            drive: Driver::default(),
            control: true,
            runtime: None,
            connect_timeout: Duration::from_secs(10),
            arena: ArenaConfig::default(),
            mailbox: limits::MAILBOX,
            parked_bytes: table.parked_bytes,
            parked_bytes_per_step: table.parked_bytes_per_step,
            inline_max: limits::INLINE_MAX,
            lease: true,
            landing_bytes: limits::LANDING_BYTES,
            stage_sampling: limits::STAGE_SAMPLING as usize,
            recorder_bytes: limits::RECORDER_BYTES as u64,
            recorder_dir: None,
            metrics: None,
            metrics_any_user: false,
            metrics_peers: true,
            rules: Rules::ALL,
            closed: false,
            known: BTreeSet::new(),
            epoch: None,
            cluster: None,
            root: None,
            rank: None,
            world_size: None,
            port: limits::TASK_PORT,
            subdomain: None,
            protocol: "auto".into(),
            require: Require::None,
            cluster_secret_file: None,
            cluster_secret_fd: None,
            files_root: None,
            tls_cert: None,
            tls_key: None,
            tls_ca: None,
            tls_kernel: true,
            insecure: false,
            failure_detection: Duration::from_millis(300),
            drain_timeout: Duration::from_secs(5),
            tcp_user_timeout: Duration::from_secs(10),
            verbs: VerbsSettings::default(),
            devices: DeviceSettings::default(),
            boot: None,
            origins: Origins::default(),
        }
    }

    /// The settings of one that only asks tasks: it is none of them, may run beside the one whose settings these are,
    /// or on another machine. So it listens nowhere, knows no peers yet, serves no metrics, keeps no recorder, and
    /// leaves out what a task needs of its machine: files, cores, devices and huge pages.
    #[must_use]
    pub fn of_client(mut self) -> Self {
        (self.listen, self.metrics) = (None, None);
        self.peers.clear();
        self.known.clear();
        (self.closed, self.epoch) = (false, None);
        (self.recorder_dir, self.files_root) = (None, None);
        self.cores.clear();
        self.devices.usage = DeviceUse::Off;
        if self.arena.huge_pages == HugePages::Require {
            self.arena.huge_pages = HugePages::Auto;
        }
        self
    }

    /// How often a peer over TCP is asked whether it lives.
    pub(crate) fn ask_every(&self) -> Duration {
        self.failure_detection / 8
    }

    /// How long its last proof of life may be ago before its connection is made again: half of the time that it has, so
    /// that a way which came back in between is found.
    pub(crate) fn lost_after(&self) -> Duration {
        self.given_up_after() / 2
    }

    /// How long its last proof of life may be ago before it is given up. What is left of one and a half times
    /// `failure_detection`, the bound that is promised, is slack for a machine on which no thread gets to run.
    pub(crate) fn given_up_after(&self) -> Duration {
        self.failure_detection * 5 / 4
    }

    /// What each shard is told.
    pub(crate) fn shard_settings(&self, shards: usize) -> Settings {
        let mut table = crate::rendezvous::Limits {
            parked_bytes: self.parked_bytes,
            parked_bytes_per_step: self.parked_bytes_per_step,
            hash_seed: draw().unwrap_or(0),
            ..crate::rendezvous::Limits::default()
        };
        if TaskName::parse(&self.task).is_ok_and(|task| task.job() == super::OBSERVER_JOB) {
            // It asks, and hands little over: it reserves less of the address space.
            let places = limits::TABLE_RECORDS / 16;
            (table.records, table.values, table.waiters) = (places, places, places);
        }
        Settings {
            shards: shards as u16,
            table,
            line_window: self.line_window(),
            inline_max: self.inline_max,
            lease: self.lease,
            landing_bytes: self.landing_bytes,
            connect_timeout_ns: nanos(self.connect_timeout),
            sampling: u32::try_from(self.stage_sampling).unwrap_or(u32::MAX),
            recorder_bytes: self.recorder_bytes as usize,
            rules: self.rules,
            ..Settings::default()
        }
    }

    /// Lines of unrequested values that one peer's shard may have parked here: an eighth of the tighter bound at most,
    /// since an arrival beyond a bound ends its step.
    fn line_window(&self) -> u16 {
        let bound = self.parked_bytes.min(self.parked_bytes_per_step);
        let lines = bound / 8 / limits::FRAME_BYTES as u64;
        let lines = u16::try_from(lines).unwrap_or(u16::MAX);
        lines.clamp(limits::LINE_WINDOW_MIN, limits::LINE_WINDOW)
    }

    /// Checks what can be checked without the machine: every number against its range, names of tasks, and what must
    /// go together.
    ///
    /// # Errors
    /// `InvalidArgument` names the setting, its value, what it may be, and what to do.
    pub fn check(&self) -> Result<(), Status> {
        ranges::check(self)?;
        self.check_tasks()?;
        let mut cores = self.cores.clone();
        cores.sort_unstable();
        if let Some(twice) = cores.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(invalid(format!(
                "cores: core {} is named twice; name each once, or set `share_cores` and more `shards`",
                twice[0]
            )));
        }
        self.verbs.check()
    }

    /// That names of tasks are such: all that are not are told at once.
    fn check_tasks(&self) -> Result<(), Status> {
        let peers = self.peers.keys().map(|peer| ("peers", peer));
        let malformed = |(setting, name): (&str, &String)| {
            let error = TaskName::parse(name).err()?;
            Some(format!("{setting} = \"{name}\": {error}"))
        };
        let wrong: Vec<_> = std::iter::once(("task", &self.task))
            .chain(peers)
            .filter_map(malformed)
            .collect();
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(Status::of(catalogue::DEVICE_MALFORMED, wrong.join("; "))),
        }
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Sixty-four bits from the system, never zero.
pub(crate) fn draw() -> Option<u64> {
    loop {
        match getrandom::u64() {
            Ok(0) => {}
            Ok(bits) => return Some(bits),
            Err(_) => return None,
        }
    }
}

pub(crate) fn invalid(message: impl Into<std::sync::Arc<str>>) -> Status {
    Status::new(Code::InvalidArgument, catalogue::CONFIG, message)
}
