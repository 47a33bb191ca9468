//! The counters of a shard and of devices, as all readers see them: the metrics page, its reference, and `rendez stat`.
//!
//! A table each, from which every page that shows a counter reads it. Knows nothing of formats.

use crate::ground::Unpoisoned;
use crate::mail::ShardStats;
use crate::trace::recorder::CLASSES;
use rendez_proto::services::{ShardStat, StageStat, StatReply};

use super::Engine;
use super::devices::{DeviceStats, Devices};
use super::recording::StageTimes;
use super::services::Room;

/// A counter or a gauge of each shard, or of something else that has figures.
#[derive(Debug)]
pub struct Metric<S = ShardStats> {
    /// Its family, as Prometheus knows it, without the ending of counters.
    pub family: &'static str,
    /// True if it only grows.
    pub is_counter: bool,
    /// What tells it from others of its family.
    pub label: Option<(&'static str, &'static str)>,
    /// What it means.
    pub help: &'static str,
    /// What its number is multiplied by to be in base units: a billionth for nanoseconds.
    pub unit: f64,
    /// Its number.
    pub read: fn(&S) -> u64,
}

/// A table's name and what it reads, then rows of `kind family {label = value} unit field, help;`.
macro_rules! metrics {
    (
        $(#[$doc:meta])* $vis:vis $table:ident of $of:ty:
        $($kind:ident $family:literal $({$label:ident = $value:literal})? $unit:literal $read:expr, $help:literal;)*
    ) => {
        $(#[$doc])*
        $vis const $table: &[Metric<$of>] = &[$(
            Metric {
                family: $family,
                is_counter: stringify!($kind).as_bytes()[0] == b'c',
                label: metrics!(@label $($label $value)?),
                help: $help,
                unit: $unit,
                read: $read,
            },
        )*];
    };
    (@label) => { None };
    (@label $label:ident $value:literal) => { Some((stringify!($label), $value)) };
}

metrics! {
    /// All of a shard, those of a family together.
    pub SHARD_METRICS of ShardStats:
    counter "rendez_delivered" 1.0 |stats| stats.delivered, "Values handed over to receivers of this task.";
    counter "rendez_returned" 1.0 |stats| stats.returned,
        "Of those handed over, values that were not read: they went back to their keys, and are handed over again.";
    counter "rendez_dropped" 1.0 |stats| stats.dropped, "Values dropped: their step had ended, or they came twice.";
    counter "rendez_copied" {memory = "foreign"} 1.0 |stats| stats.copied_foreign,
        "Values copied into the arena for a peer to read, by whose memory they were in: `foreign`, not the engine's; \
         `leased`, a peer's, which could not go back as it was.";
    counter "rendez_copied" {memory = "leased"} 1.0 |stats| stats.copied_leased, "";
    counter "rendez_sent_back" 1.0 |stats| stats.sent_back,
        "Leases sent back to the peer that owns the memory: nothing was copied.";
    counter "rendez_frames" {direction = "sent"} 1.0 |stats| stats.frames_sent, "Frames to and from peers.";
    counter "rendez_frames" {direction = "received"} 1.0 |stats| stats.frames_received, "";
    counter "rendez_no_credit" 1.0 |stats| stats.no_credit,
        "Values that had to wait because a link had no credit left.";
    gauge "rendez_credit_lines" 1.0 |stats| stats.credit_lines,
        "Lines of 64 bytes that may be sent unrequested now, over all links.";
    counter "rendez_stale_refusals" 1.0 |stats| stats.stale, "References to another generation that were refused.";
    counter "rendez_violations" 1.0 |stats| stats.violations, "Connections closed because the peer broke the protocol.";
    counter "rendez_recalls" 1.0 |stats| stats.recalls, "Recalls of leases received from peers.";
    counter "rendez_deadlines_missed" {stage = "here"} 1.0 |stats| stats.missed_here,
        "Receives whose deadline passed, by what was missing: `here`, this task had not sent it; `unconnected`, the \
         peer was not connected; `unsent`, nothing had come from it; `fetching`, the bytes of its offer were on their \
         way.";
    counter "rendez_deadlines_missed" {stage = "unconnected"} 1.0 |stats| stats.missed_unconnected, "";
    counter "rendez_deadlines_missed" {stage = "unsent"} 1.0 |stats| stats.missed_unsent, "";
    counter "rendez_deadlines_missed" {stage = "fetching"} 1.0 |stats| stats.missed_fetching, "";
    gauge "rendez_parked_values" 1.0 |stats| stats.parked, "Values parked now.";
    gauge "rendez_parked_bytes" 1.0 |stats| stats.parked_bytes, "Bytes parked now.";
    gauge "rendez_lent_bytes" 1.0 |stats| stats.offered_bytes,
        "Bytes on offer to peers or leased by them, which are kept here until the peers let go.";
    gauge "rendez_leases" 1.0 |stats| stats.leases, "Leases of peers' memory held now.";
    gauge "rendez_landing_bytes" 1.0 |stats| stats.landing_bytes, "Bytes of landings open now.";
    gauge "rendez_waiting_receives" 1.0 |stats| stats.waiting, "Receives that wait now.";
    gauge "rendez_waiting_sends" 1.0 |stats| stats.waiting_sends, "Sends that wait for room now.";
    gauge "rendez_owed" 1.0 |stats| stats.owed, "Requests, offers, writes and frames that links still owe.";
    gauge "rendez_peers_up" 1.0 |stats| stats.peers_up, "Peers that are up.";
    counter "rendez_verbs_requests" 1.0 |stats| stats.verbs.requests,
        "Work requests posted to RDMA devices: messages, and pieces of writes.";
    counter "rendez_verbs_signalled" 1.0 |stats| stats.verbs.signalled,
        "Work requests whose completion was asked for.";
    counter "rendez_verbs_doorbells" 1.0 |stats| stats.verbs.doorbells, "Calls that posted work requests.";
    counter "rendez_verbs_completions" 1.0 |stats| stats.verbs.completions, "Completions polled, of both kinds.";
    counter "rendez_verbs_refills" 1.0 |stats| stats.verbs.refills, "Calls that posted receive entries.";
    gauge "rendez_verbs_quarantined_queue_pairs" 1.0 |stats| stats.verbs.quarantined,
        "Queue pairs that could not be destroyed: what they may touch is kept until they can.";
    counter "rendez_verbs_undrained_queue_pairs" 1.0 |stats| stats.verbs.undrained,
        "Queue pairs destroyed before the device was known to be done with them: receive entries may be lost.";
    counter "rendez_poll_turns" {state = "busy"} 1.0 |stats| stats.turns.saturating_sub(stats.idle_turns),
        "Turns of the poll loop, by whether they did something.";
    counter "rendez_poll_turns" {state = "idle"} 1.0 |stats| stats.idle_turns, "";
    counter "rendez_driven" 1.0 |stats| stats.driven,
        "Times that a thread which sent or waited turned the shard itself, as `drive` allows.";
    counter "rendez_poll_seconds" {state = "busy"} 1e-9 |stats| stats.busy_ns,
        "Time of the shard's thread, by what it did.";
    counter "rendez_poll_seconds" {state = "idle"} 1e-9 |stats| stats.idle_ns, "";
    counter "rendez_poll_seconds" {state = "asleep"} 1e-9 |stats| stats.slept_ns, "";
    gauge "rendez_longest_turn_seconds" 1e-9 |stats| stats.longest_turn_ns,
        "The longest turn that did something, since the start.";
}

/// How full an arena of the host is.
#[derive(Clone, Copy, Debug)]
pub struct ArenaStats {
    used: u64,
    mapped: u64,
    limit: u64,
}

impl ArenaStats {
    /// That of a shard, of `limit` bytes at most.
    pub(super) const fn of_shard(stats: &ShardStats, limit: u64) -> Self {
        Self {
            used: stats.arena_in_use,
            mapped: stats.arena_mapped,
            limit,
        }
    }

    /// That of application threads.
    pub(super) fn of_application(engine: &Engine) -> Self {
        let pool = engine.inner.pool.lock();
        let mut pool = pool.unpoisoned();
        // What was dropped comes home when the next tensor is made, and there may be none for long.
        pool.reclaim();
        let stats = pool.stats();
        Self {
            used: stats.in_use_bytes,
            mapped: stats.mapped_bytes,
            limit: stats.limit_bytes,
        }
    }
}

metrics! {
    /// All of an arena of the host: of each shard's, and of that of application threads.
    pub ARENA_METRICS of ArenaStats:
    gauge "rendez_arena_used_bytes" 1.0 |stats| stats.used,
        "Bytes in use of the shard's arena; with `shard=\"application\"`, of the one for application threads, where \
         `Engine::tensor` takes memory.";
    gauge "rendez_registered_bytes" 1.0 |stats| stats.mapped,
        "Bytes of that arena that are mapped, and registered where a device needs that.";
    gauge "rendez_arena_headroom_bytes" 1.0 |stats| stats.limit.saturating_sub(stats.used),
        "What is free of that arena, up to `arena_bytes`: what it may still grow by, which is `arena_bytes` less \
         `rendez_registered_bytes`, and what is free in between, maybe in pieces too small for a large tensor.";
}

metrics! {
    /// All of a device.
    pub DEVICE_METRICS of DeviceStats:
    gauge "rendez_device_used_bytes" 1.0 |stats| stats.arena.in_use_bytes,
        "Bytes of the device's arena in use: of tensors here, of what peers lease, and of what streams may still use.";
    gauge "rendez_device_mapped_bytes" 1.0 |stats| stats.arena.mapped_bytes,
        "Bytes of the device's memory that the arena has taken.";
    gauge "rendez_device_headroom_bytes" 1.0 |stats| stats.arena.limit_bytes.saturating_sub(stats.arena.in_use_bytes),
        "What is free of the device's arena, up to `device_bytes`: what it may still grow by, which is `device_bytes` \
         less `rendez_device_mapped_bytes`, and what is free in between, maybe in pieces.";
    gauge "rendez_device_pinned_bytes" {use = "copies"} 1.0 |stats| stats.pinned_bytes,
        "Pinned memory of the host: `copies`, chunks for copies to and from the device, and segments of the \
         host's arenas that it pinned; `marks`, words that tell the times of its work.";
    gauge "rendez_device_pinned_bytes" {use = "marks"} 1.0 |stats| stats.marks_bytes, "";
    gauge "rendez_device_pinned_headroom_bytes" 1.0
        |stats| stats.pinned_limit_bytes.saturating_sub(stats.pinned_bytes),
        "What may still be pinned for copies, up to `device_pinned_bytes`: all of it until the first copy.";
    counter "rendez_device_copied_bytes" {way = "to_host"} 1.0 |stats| stats.to_host_bytes,
        "Bytes copied, by way: `to_host` and `to_device`; `between`, to the device from one, \
         itself or another, by the copy engine.";
    counter "rendez_device_copied_bytes" {way = "to_device"} 1.0 |stats| stats.to_device_bytes, "";
    counter "rendez_device_copied_bytes" {way = "between"} 1.0 |stats| stats.between_bytes, "";
}

metrics! {
    /// All of a task's devices together.
    pub(super) DEVICES_METRICS of Devices:
    gauge "rendez_devices_kept" 1.0 |devices| devices.keeper().count() as u64,
        "What is kept until streams no longer use it: blocks and leases, and waits of streams for peers. \
         It does not fall while a stream stalls.";
    gauge "rendez_devices_kept_bytes" 1.0 |devices| devices.keeper().bytes(), "Bytes of that, on devices.";
    gauge "rendez_devices_quarantined" 1.0 |devices| devices.keeper().quarantined(),
        "Device memory that is never released: the driver failed, and a stream may still use it.";
    gauge "rendez_devices_unreleased" 1.0 |devices| devices.unreleased(),
        "Device memory, and pinned host memory, that the driver did not take back: kept until the process ends.";
}

/// The counter's flat name: the family without its first word, and its label's value.
#[must_use]
pub fn flat_name<S>(metric: &Metric<S>) -> String {
    let family = metric.family.trim_start_matches("rendez_");
    // Its number is not multiplied by its unit there.
    let family = if metric.unit < 1.0 {
        family.replace("_seconds", "_ns")
    } else {
        family.to_owned()
    };
    match metric.label {
        None => family,
        Some((_, value)) => format!("{family}_{value}"),
    }
}

/// What `rendez stat` is told: of shards from the one with number `from` on, as many as an answer has room for.
pub(super) fn stat(engine: &Engine, from: u32) -> StatReply {
    let stats = engine.stats();
    let limit = engine.inner.config.arena.bytes_max;
    let shards = stats.iter().skip(from as usize).map(|stats| ShardStat {
        shard: u32::from(stats.index),
        counters: read_all(SHARD_METRICS, stats)
            .chain(read_all(ARENA_METRICS, &ArenaStats::of_shard(stats, limit)))
            .collect(),
    });
    let mut reply = StatReply {
        shards: Vec::new(),
        stages: if from == 0 {
            all_stages(engine)
        } else {
            Vec::new()
        },
        sampling: u32::try_from(engine.inner.config.stage_sampling).unwrap_or(u32::MAX),
        up_ns: engine
            .inner
            .clock
            .stamp()
            .0
            .saturating_sub(engine.inner.began.0),
        shard_count: u32::try_from(stats.len()).unwrap_or(u32::MAX),
        application: read_all(ARENA_METRICS, &ArenaStats::of_application(engine)).collect(),
    };
    reply.shards = Room::beside(&reply).take(shards);
    reply
}

/// A table's numbers by their flat names.
fn read_all<S>(table: &[Metric<S>], stats: &S) -> impl Iterator<Item = (String, u64)> {
    let read = |metric: &Metric<S>| (flat_name(metric), (metric.read)(stats));
    table.iter().map(read)
}

/// Those of hand-overs, and behind them those of libraries above the engine.
fn all_stages(engine: &Engine) -> Vec<StageStat> {
    let mut stages = stage_stats(engine, engine.stages());
    stages.extend(engine.reported_stages());
    stages
}

/// Stages as `rendez stat` is told them: over all shards.
#[must_use]
pub fn stage_stats(engine: &Engine, all: Vec<StageTimes>) -> Vec<StageStat> {
    let stat = |times: &StageTimes| StageStat {
        error_ns: engine.error_of(times.stage, times.way).as_nanos() as u64,
        ..stage_stat(times)
    };
    merged(all).iter().map(stat).collect()
}

/// The same over all shards.
#[must_use]
pub fn merged(all: Vec<StageTimes>) -> Vec<StageTimes> {
    let mut found: Vec<StageTimes> = Vec::new();
    for one in all {
        let same = |known: &&mut StageTimes| {
            (known.stage, known.way, known.class) == (one.stage, one.way, one.class)
        };
        match found.iter_mut().find(same) {
            Some(known) => {
                known.sum_ns += one.sum_ns;
                known.times.extend(&one.times);
                known.times.sort_unstable();
            }
            None => found.push(one),
        }
    }
    found.sort_by_key(|times| (times.way, times.class, times.stage));
    found
}

fn stage_stat(times: &StageTimes) -> StageStat {
    StageStat {
        way: times.way.name().into(),
        size_class: CLASSES.get(times.class).copied().unwrap_or("").into(),
        ..stat_of(times.stage.name(), times.sum_ns, &times.times)
    }
}

/// A stage whose times, in order, are these, each with how often it was recorded.
#[must_use]
pub fn stat_of(stage: &str, sum_ns: u64, times: &[(u64, u64)]) -> StageStat {
    StageStat {
        stage: stage.into(),
        count: times.iter().map(|(_, count)| count).sum(),
        sum_ns,
        p50_ns: quantile_of(times, 0.5),
        p99_ns: quantile_of(times, 0.99),
        max_ns: times.last().map_or(0, |(time, _)| *time),
        ..StageStat::default()
    }
}

/// The time that so many of all are at most.
#[must_use]
pub fn at(times: &StageTimes, quantile: f64) -> u64 {
    quantile_of(&times.times, quantile)
}

fn quantile_of(times: &[(u64, u64)], quantile: f64) -> u64 {
    let all: u64 = times.iter().map(|(_, count)| count).sum();
    let wanted = (quantile * all as f64).ceil() as u64;
    let mut seen = 0;
    for (time, count) in times {
        seen += count;
        if seen >= wanted {
            return *time;
        }
    }
    0
}
