//! The table of settings: key, kind, what it means and which part takes it. Names of variables and flags follow from
//! the key, defaults from [`Config::new`], and the reference page from all of it.
//!
//! Knows no file and no environment.

use toml::Value;

use super::Config;
use super::codec::{
    Choice, Cluster, Codec, Cores, Count, FilePath, Itself, MaybeCount, Peers, Size, Switch, Text,
    Time,
};
use super::ranges::Range;

/// One setting.
pub struct Setting {
    /// Its name in a file.
    pub key: &'static str,
    /// Which part takes it.
    pub taker: Taker,
    /// What it means.
    pub meaning: &'static str,
    variable: &'static str,
    flag: &'static str,
    expects: fn() -> String,
    read: fn(&mut Config, &Value) -> Result<(), String>,
    show: fn(&Config) -> String,
}

/// Which part takes a setting. An engine alone logs a warning of those that it does not take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Taker {
    /// Every engine.
    Engine,
    /// The resolvers of the cluster: an engine alone is in none.
    Cluster,
    /// A server: an engine alone does without.
    Server,
}

impl Taker {
    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Cluster => "cluster",
            Self::Server => "server",
        }
    }
}

impl Setting {
    /// The setting of this key.
    #[must_use]
    pub fn find(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// The environment variable: `RENDEZ_` and the key in capitals.
    #[must_use]
    pub const fn variable(&self) -> &'static str {
        self.variable
    }

    /// The flag, without its dashes: the key with hyphens.
    #[must_use]
    pub const fn flag(&self) -> &'static str {
        self.flag
    }

    /// What a value should be.
    #[must_use]
    pub fn expects(&self) -> String {
        let kind = (self.expects)();
        match Range::find(self.key) {
            Some(range) => format!("{kind}, {range}"),
            None => kind,
        }
    }

    /// The value as a file would have it; empty where there is none.
    #[must_use]
    pub fn show(&self, config: &Config) -> String {
        (self.show)(config)
    }

    /// Reads a value. The error is complete except for its place.
    pub(super) fn read(&self, config: &mut Config, value: &Value) -> Result<(), String> {
        (self.read)(config, value).map_err(|why| {
            let why = if why.is_empty() {
                why
            } else {
                format!(" ({why})")
            };
            format!("it should be {}{why}", self.expects())
        })?;
        match Range::find(self.key).and_then(|range| range.complaint(config)) {
            Some(why) => Err(why),
            None => Ok(()),
        }
    }
}

shown! { Setting { key } }

/// Rows of `key: Kind field, Taker, meaning;`.
macro_rules! settings {
    ($($key:ident: $kind:ident $($field:ident).+, $taker:ident, $meaning:literal;)*) => {
        /// Every setting, in the order of the reference page.
        pub const SETTINGS: &[Setting] = &[$(
            Setting {
                key: stringify!($key),
                taker: Taker::$taker,
                variable: {
                    const KEY: &str = stringify!($key);
                    const NAME: [u8; KEY.len() + 7] = variable(KEY);
                    text(&NAME)
                },
                flag: {
                    const KEY: &str = stringify!($key);
                    const NAME: [u8; KEY.len()] = flag(KEY);
                    text(&NAME)
                },
                meaning: $meaning,
                expects: || expects::<_, $kind>(|config| &config.$($field).+),
                read: |config, value| $kind::read(&mut config.$($field).+, value),
                show: |config| $kind::show(&config.$($field).+),
            },
        )*];
    };
}

settings! {
    // ── The engine ──────────────────────────────────────────────────────────────────────────────────────────────
    task: Text task, Engine, "This task, as `/job:worker/task:0`.";
    listen: Itself listen, Engine,
        "Where to listen: `host:port`, `unix:@name` or `unix:/absolute/path`. Without it a Unix name is chosen at \
         start, and only tasks of this machine can dial it.";
    peers: Peers peers, Engine,
        "Where other tasks listen, by task name. This task's own may be among them, so that all can share one list.";
    shards: Count shards, Engine, "How many shards; 0 means one for each core of the affinity mask, at most 64.";
    cores: Cores cores, Engine, "The cores to use; an empty list means those of the affinity mask, in order.";
    share_cores: Switch share_cores, Engine,
        "Let shards share a core: they yield it to each other. Without it more shards than cores are refused.";
    poll: Choice poll, Engine,
        "How shards wait for work: spin a while and then sleep, spin for ever, or sleep at once. After a call the \
         control thread waits in the same way, but sleeps after 0.1 ms at the latest.";
    spin: Time spin, Engine,
        "How long a shard with `poll = \"adaptive\"` spins without work before it sleeps; after a call the control \
         thread does so too, for 0.1 ms at most.";
    drive: Choice drive, Engine,
        "Who turns a shard. `adaptive`: any thread that sends or waits, else its own; `thread`: its own; `caller`: \
         callers alone, without a thread. A shard that has in-shard tasks is turned by its own thread, if it has one, \
         and so is one with `poll = \"busy\"`; if it has none, a caller that waits spins.";
    runtime: Choice runtime, Engine, "What drives the control plane; `auto` takes glommio where the machine allows it.";
    huge_pages: Choice arena.huge_pages, Engine, "Whether arenas use reserved huge pages.";
    arena_segment_bytes: Size arena.segment_bytes, Engine,
        "Memory is taken in segments of this size, and after 64 in longer ones; the last takes what is left, at least \
         half of `arena_bytes`.";
    arena_bytes: Size arena.bytes_max, Engine,
        "The most for each arena: there is one for each shard, and one for application threads. What an arena has once \
         used stays in it until the engine ends.";
    lease: Switch lease, Engine, "Read large values of processes of the same user in place.";
    inline_max: Size inline_max, Engine,
        "Values of up to this many bytes, with their dimensions, travel in a frame.";
    mailbox: Count mailbox, Engine, "How many commands of application threads may wait for a shard.";
    parked_bytes: Size parked_bytes, Engine,
        "How many bytes of unreceived values each shard may keep, including those that peers read in place.";
    parked_bytes_per_step: Size parked_bytes_per_step, Engine, "The same, for the values of one step.";
    landing_bytes: Size landing_bytes, Engine,
        "How much memory each shard may open for values that are on their way to it by copy.";
    stage_sampling: Count stage_sampling, Engine,
        "One value in this many is timed through its stages where hand-overs are fastest; those of sockets, and those \
         that went through a mailbox to their shard, all are, unless a receive had requested them. With 0 none is, and \
         no events are kept.";
    recorder_bytes: Size recorder_bytes, Engine,
        "Size of each shard's ring of events. Its histograms and names take at most 5.3 MiB more, of which only the \
         pages that are written to cost memory.";
    recorder_dir: FilePath recorder_dir, Engine,
        "A folder, best in memory, for recorders that outlive a crash; it is made, for its owner alone, if it is not \
         there. Without it they can be read only while the task lives.";
    metrics: Itself metrics, Engine,
        "Where this task answers `GET /metrics`, `/healthz` and `/readyz`: `127.0.0.1:9464`, say. Without it nowhere.";
    metrics_any_user: Switch metrics_any_user, Engine,
        "Let every user of this machine read the metrics. Without it a loopback address answers only this task's user \
         and root; any other address answers all.";
    metrics_peers: Switch metrics_peers, Engine, "Metrics have series for each peer.";
    connect_timeout: Time connect_timeout, Engine, "How long a peer that a key names may take until it is reached.";
    // ── The cluster ─────────────────────────────────────────────────────────────────────────────────────────────
    cluster: Cluster cluster, Cluster, "The cluster: jobs, each a list of addresses or a table from numbers to them.";
    root: Itself root, Cluster, "Where rank 0 listens, for clusters whose tasks find one another at a root.";
    rank: MaybeCount rank, Cluster, "This task's rank, with `root`.";
    world_size: MaybeCount world_size, Cluster,
        "How many ranks there are, with `root` or where a launcher does not say.";
    port: Count port, Cluster, "Where tasks listen if their launcher names no port; the first port of each machine.";
    subdomain: Text subdomain, Cluster, "The subdomain of a Kubernetes job's pods: the name of its headless service.";
    // ── The server ──────────────────────────────────────────────────────────────────────────────────────────────
    protocol: Text protocol, Server,
        "How tasks speak: `auto`, `shm`, `tcp` or `verbs`; `grpc` and variants are mapped, or refused with the reason.";
    require: Choice require, Engine, "The path by which peers must be reached; any other path is refused.";
    cluster_secret_file: FilePath cluster_secret_file, Engine,
        "The file with the cluster's secret, readable by its owner alone.";
    cluster_secret_fd: MaybeCount cluster_secret_fd, Engine,
        "The number of an inherited descriptor that has the secret, where no file is named: `rendez up` sets it for \
         its tasks. Processes of the same user on this machine are let in without such a secret.";
    files_root: FilePath files_root, Engine,
        "The folder below which graphs may read and write files (`SaveV2`, `RestoreV2`, `MergeV2Checkpoints`); without \
         it these are refused. `rendez run` without `--on` and `rendez train` take `--files`, or the working folder.";
    tls_cert: FilePath tls_cert, Engine, "This task's certificate, PEM.";
    tls_key: FilePath tls_key, Engine, "The certificate's key, PEM.";
    tls_ca: FilePath tls_ca, Engine, "The authority that the certificates of peers must come from, PEM.";
    tls_kernel: Switch tls_kernel, Engine,
        "Let the kernel encrypt and decrypt data connections under TLS, where it can (its module `tls`): large \
         tensors are then copied once less each way. `rendez explain` says who does it.";
    insecure: Switch insecure, Engine, "Allow an address beyond this machine without a secret and without TLS.";
    failure_detection: Time failure_detection, Engine,
        "Bounds how long receives wait for a lost peer. Over TCP, a peer that has not answered for 5/8 of this time is \
         reconnected; after 5/4 it is given up; receives that wait for it fail within 1.5 times this time. The death \
         of a process that is reached by shared memory is noticed at once.";
    drain_timeout: Time drain_timeout, Engine,
        "How long a stop waits for what is on its way. A Rust or C program passes it when it stops its engine.";
    tcp_user_timeout: Time tcp_user_timeout, Engine,
        "How long a data connection may make no progress before it is given up and made again: its bytes are not \
         acknowledged, or its receiver stands still and its buffers are full.";
    // ── RDMA ────────────────────────────────────────────────────────────────────────────────────────────────────
    verbs: Switch verbs.enabled, Engine, "Use RDMA between machines where both have it.";
    verbs_in_clear: Switch verbs.in_clear, Engine,
        "Use RDMA even if TLS is set: RDMA carries tensors unencrypted. Without this they go by TCP, under TLS.";
    verbs_device: Text verbs.device, Engine,
        "The RDMA devices to use, separated by commas; if none is named, all with an active port. A shard uses the \
         one that is nearest to its core. `RDMA_DEVICE` is read too.";
    verbs_port: MaybeCount verbs.port, Engine,
        "The device's port; if unset, the first active one. `RDMA_DEVICE_PORT` is read too.";
    verbs_gid_index: MaybeCount verbs.gid_index, Engine,
        "The index of the port's address; if unset, RoCE v2 over IPv4 where available. `RDMA_GID_INDEX` is read \
         too.";
    verbs_mtu: MaybeCount verbs.mtu, Engine,
        "The path MTU in bytes, 256, 512, 1024, 2048 or 4096; unset, it is the port's. The smaller of the two is used. \
         `RDMA_QP_MTU` and `RDMA_MTU` are read too.";
    verbs_pkey_index: Count verbs.pkey_index, Engine,
        "The index of the partition key. `RDMA_QP_PKEY_INDEX` and `RDMA_PKEY` are read too.";
    verbs_service_level: Count verbs.service_level, Engine,
        "The service level. `RDMA_QP_SL` and `RDMA_SL` are read too.";
    verbs_traffic_class: Count verbs.traffic_class, Engine,
        "The traffic class: on RoCE v2 the DSCP and ECN bits. `RDMA_TRAFFIC_CLASS` is read too.";
    verbs_depth: Count verbs.depth, Engine,
        "Receive entries that a queue pair grants its peer: that many messages may be under way. \
         `RDMA_QP_QUEUE_DEPTH` and `RDMA_QUEUE_DEPTH` are read too; values above 128 there count as 128.";
    verbs_queue_pairs: Count verbs.queue_pairs, Engine,
        "Queue pairs of each shard: one for each shard of a peer that it shares keys with. It sizes the shard's \
         queues.";
    verbs_inline_bytes: Count verbs.inline_bytes, Engine,
        "Messages of up to this many bytes are posted inline; the device may allow more or fewer.";
    verbs_timeout: Count verbs.timeout, Engine,
        "How long a packet's acknowledgement may take: 4.096 µs × 2 to this power; 14 is 67 ms. `RDMA_QP_TIMEOUT` and \
         `RDMA_TIMEOUT` are read too.";
    verbs_retry_count: Count verbs.retry_count, Engine,
        "How often a packet is sent again before its queue pair is given up; with 7, Soft-RoCE never gives up. \
         `RDMA_QP_RETRY_COUNT` and `RDMA_RETRY_CNT` are read too.";
    // ── Devices ─────────────────────────────────────────────────────────────────────────────────────────────────
    devices: Choice devices.usage, Engine,
        "Whether tensors can lie in the memory of this machine's devices: `auto` uses those present, `require` \
         does not start without one. The driver is loaded only if this is not `off`.";
    device_library: Text devices.library, Engine,
        "The driver's library, by name or path, if it is not the installed one. It is loaded into this process.";
    device_segment_bytes: Size devices.segment_bytes, Engine,
        "Memory of a device is taken in segments of this size; the last takes all that is left, at least half of \
         `device_bytes`, if the device has so much.";
    device_bytes: Size devices.bytes_max, Engine, "The most that is taken of each device's memory.";
    device_pinned_bytes: Size devices.pinned_bytes, Engine,
        "The most pinned memory of the host for copies to and from each device: up to 12 MiB of chunks, taken \
         with the first that needs them; and with the rest, segments of the host's arenas, each pinned with the \
         first copy of 1 MiB or more from or to it. The device copies what lies in one directly.";
}

/// Lets the field's type say which `Codec` of the kind is meant.
fn expects<T, Kind: Codec<T>>(_field: fn(&Config) -> &T) -> String {
    Kind::expects()
}

/// `RENDEZ_` and the key in capitals, when the table is compiled.
const fn variable<const N: usize>(key: &str) -> [u8; N] {
    let mut name = [0; N];
    let (prefix, key) = (b"RENDEZ_", key.as_bytes());
    let mut at = 0;
    while at < N {
        name[at] = if at < prefix.len() {
            prefix[at]
        } else {
            key[at - prefix.len()].to_ascii_uppercase()
        };
        at += 1;
    }
    name
}

/// The key with hyphens, when the table is compiled.
const fn flag<const N: usize>(key: &str) -> [u8; N] {
    let mut name = [0; N];
    let mut at = 0;
    while at < N {
        name[at] = match key.as_bytes()[at] {
            b'_' => b'-',
            other => other,
        };
        at += 1;
    }
    name
}

const fn text(name: &[u8]) -> &str {
    match std::str::from_utf8(name) {
        Ok(text) => text,
        Err(_) => panic!("keys are words"),
    }
}
