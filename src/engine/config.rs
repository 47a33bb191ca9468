//! The settings of an engine: one value, filled by code, a TOML file and the environment, in that order of birth
//! and the reverse order of force.
//!
//! It reads files and environment when asked to, and touches nothing else.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::channel::Rules;
use crate::control::{Address, RuntimeKind};
use crate::ground::{Code, Status, catalogue, limits};
use crate::memory::{ArenaConfig, HugePages};
use crate::shard::Settings;
use crate::shard::run::PollPolicy;

/// The settings of an engine.
#[derive(Clone, Debug)]
pub struct Config {
    /// This task, as `/job:worker/task:0`.
    pub task: String,
    /// Where to be dialled; `None` makes up an abstract socket name.
    pub listen: Option<Address>,
    /// Where other tasks listen, by task name.
    pub peers: BTreeMap<String, Address>,
    /// Shards; zero for one on each core of the affinity mask.
    pub shards: usize,
    /// The cores to use; empty for those of the affinity mask, in order.
    pub cores: Vec<usize>,
    /// Let shards share a core: they yield it. Without it more shards than cores are refused.
    pub share_cores: bool,
    /// How shards wait for work.
    pub poll: PollPolicy,
    /// Start a control plane: without one only `connect_local` connects.
    pub control: bool,
    /// Which control runtime to use; `None` for what the machine allows.
    pub runtime: Option<RuntimeKind>,
    /// How long a peer that a key names may take to be there. What waits for it then fails with `CONNECT_DEADLINE`,
    /// but for receives with a deadline of their own: they wait until that, and the peer is dialled again.
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
    /// Rules of the protocol: all of them, outside simulations.
    pub rules: Rules,
}

impl Config {
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
            rules: Rules::ALL,
        }
    }

    /// The settings of the first file there is of `RENDEZ_CONFIG_FILE`, `./rendez.toml`,
    /// `~/.config/rendez/config.toml` and `/etc/rendez/config.toml`, with `RENDEZ_*` variables over them.
    ///
    /// # Errors
    /// `InvalidArgument` names the file or variable, the key, and what would be right.
    pub fn load() -> Result<Self, Status> {
        let named = std::env::var_os("RENDEZ_CONFIG_FILE").map(PathBuf::from);
        let home = std::env::var_os("HOME")
            .map(|home| Path::new(&home).join(".config/rendez/config.toml"));
        let usual = [
            Some("rendez.toml".into()),
            home,
            Some("/etc/rendez/config.toml".into()),
        ];
        let found = named.or_else(|| usual.into_iter().flatten().find(|path| path.is_file()));
        let mut config = Self::new("/job:local/task:0");
        if let Some(path) = found {
            let text = std::fs::read_to_string(&path)
                .map_err(|error| invalid(format!("cannot read {}: {error}", path.display())))?;
            config.apply_toml(&text, &path.display().to_string())?;
        }
        config.apply_env(|name| std::env::var(name).ok())?;
        Ok(config)
    }

    /// Lets a TOML text override.
    ///
    /// # Errors
    /// `InvalidArgument` names `origin` and what is wrong; unknown keys are errors.
    pub fn apply_toml(&mut self, text: &str, origin: &str) -> Result<(), Status> {
        let file: File =
            toml::from_str(text).map_err(|error| invalid(format!("{origin}: {error}")))?;
        let address = |text: &str| -> Result<Address, Status> {
            text.parse()
                .map_err(|error| invalid(format!("{origin}: {error}")))
        };
        if let Some(task) = file.task {
            self.task = task;
        }
        if let Some(listen) = file.listen {
            self.listen = Some(address(&listen)?);
        }
        for (task, at) in file.peers {
            self.peers.insert(task, address(&at)?);
        }
        set(&mut self.shards, file.shards);
        set(&mut self.cores, file.cores);
        set(&mut self.share_cores, file.share_cores);
        set(&mut self.poll, file.poll);
        set(&mut self.lease, file.lease);
        set(&mut self.mailbox, file.mailbox);
        set(&mut self.inline_max, file.inline_max);
        set(&mut self.parked_bytes, file.parked_bytes);
        set(&mut self.parked_bytes_per_step, file.parked_bytes_per_step);
        set(&mut self.landing_bytes, file.landing_bytes);
        set(&mut self.arena.segment_bytes, file.arena_segment_bytes);
        set(&mut self.arena.bytes_max, file.arena_bytes);
        if let Some(ms) = file.connect_timeout_ms {
            self.connect_timeout = Duration::from_millis(ms);
        }
        if let Some(pages) = file.huge_pages {
            self.arena.huge_pages =
                huge_pages(&pages).map_err(|error| invalid(format!("{origin}: {error}")))?;
        }
        Ok(())
    }

    /// Lets `RENDEZ_TASK`, `RENDEZ_LISTEN`, `RENDEZ_SHARDS`, `RENDEZ_POLL` and `RENDEZ_HUGE_PAGES` override.
    ///
    /// # Errors
    /// `InvalidArgument` names the variable.
    pub fn apply_env(&mut self, variable: impl Fn(&str) -> Option<String>) -> Result<(), Status> {
        let wrong =
            |name: &str, value: &str, right: &str| invalid(format!("{name}={value}: {right}"));
        if let Some(task) = variable("RENDEZ_TASK") {
            self.task = task;
        }
        if let Some(listen) = variable("RENDEZ_LISTEN") {
            let address = listen
                .parse()
                .map_err(|error| invalid(format!("RENDEZ_LISTEN={listen}: {error}")))?;
            self.listen = Some(address);
        }
        if let Some(shards) = variable("RENDEZ_SHARDS") {
            self.shards = shards
                .parse()
                .map_err(|_| wrong("RENDEZ_SHARDS", &shards, "a number; 0 is one for each core"))?;
        }
        if let Some(poll) = variable("RENDEZ_POLL") {
            self.poll = match poll.as_str() {
                "adaptive" => PollPolicy::Adaptive,
                "busy" => PollPolicy::Busy,
                "park" => PollPolicy::Park,
                _ => return Err(wrong("RENDEZ_POLL", &poll, "adaptive, busy or park")),
            };
        }
        if let Some(pages) = variable("RENDEZ_HUGE_PAGES") {
            self.arena.huge_pages =
                huge_pages(&pages).map_err(|error| wrong("RENDEZ_HUGE_PAGES", &pages, &error))?;
        }
        Ok(())
    }

    /// What each shard is told.
    pub(crate) fn shard_settings(&self, shards: usize) -> Settings {
        let table = crate::rendezvous::Limits {
            parked_bytes: self.parked_bytes,
            parked_bytes_per_step: self.parked_bytes_per_step,
            hash_seed: draw().unwrap_or(0),
            ..crate::rendezvous::Limits::default()
        };
        Settings {
            shards: shards as u16,
            table,
            inline_max: self.inline_max,
            lease: self.lease,
            landing_bytes: self.landing_bytes,
            connect_timeout_ns: u64::try_from(self.connect_timeout.as_nanos()).unwrap_or(u64::MAX),
            rules: self.rules,
            ..Settings::default()
        }
    }

    /// Checks what can be checked without the machine.
    pub(crate) fn check(&self) -> Result<(), Status> {
        if self.shards > limits::SHARDS {
            return Err(invalid(format!(
                "shards = {}: at most {}",
                self.shards,
                limits::SHARDS
            )));
        }
        if self.inline_max < 64 || self.inline_max > limits::BODY_MAX {
            return Err(invalid(format!(
                "inline_max = {}: 64 to {}",
                self.inline_max,
                limits::BODY_MAX
            )));
        }
        if self.mailbox < 2 {
            return Err(invalid(format!("mailbox = {}: at least 2", self.mailbox)));
        }
        Ok(())
    }
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

fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

fn huge_pages(text: &str) -> Result<HugePages, String> {
    match text {
        "auto" => Ok(HugePages::Auto),
        "off" => Ok(HugePages::Off),
        "require" => Ok(HugePages::Require),
        other => Err(format!("huge_pages is auto, off or require, not {other}")),
    }
}

pub(crate) fn invalid(message: impl Into<std::sync::Arc<str>>) -> Status {
    Status::new(Code::InvalidArgument, catalogue::CONFIG, message)
}

/// The keys of a file.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct File {
    task: Option<String>,
    listen: Option<String>,
    peers: BTreeMap<String, String>,
    shards: Option<usize>,
    cores: Option<Vec<usize>>,
    share_cores: Option<bool>,
    poll: Option<PollPolicy>,
    lease: Option<bool>,
    mailbox: Option<usize>,
    inline_max: Option<usize>,
    parked_bytes: Option<u64>,
    parked_bytes_per_step: Option<u64>,
    landing_bytes: Option<u64>,
    arena_segment_bytes: Option<usize>,
    arena_bytes: Option<u64>,
    huge_pages: Option<String>,
    connect_timeout_ms: Option<u64>,
}
