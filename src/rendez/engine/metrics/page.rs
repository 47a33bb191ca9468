//! The page of metrics, in Prometheus' text and in OpenMetrics, and its reference.
//!
//! Both formats are lines; what differs is where counters get their ending, and the last line. The crate
//! `prometheus-client` writes OpenMetrics alone, and wants to own the counters.

use std::fmt::Write;
use std::sync::Weak;

use super::Pages;
use crate::control::{Control, Path};
use crate::engine::counters::{
    ARENA_METRICS, ArenaStats, DEVICE_METRICS, DEVICES_METRICS, Metric, SHARD_METRICS,
};
use crate::engine::recording::StageTimes;
use crate::engine::reporters::{Family, Kind, Number, Sample};
use crate::engine::wiring::Connections;
use crate::engine::{Engine, Inner};
use crate::ground::TaskName;
use crate::mail::ShardStats;
use crate::trace::recorder::{CLASSES, Stage};

/// Upper bounds of the histogram's buckets, in nanoseconds: 100 ns to 10 s.
const BOUNDS: [u64; 25] = {
    let mut bounds = [0; 25];
    let (mut at, mut decade) = (0, 100);
    while at < 25 {
        bounds[at] = decade * [10, 25, 50][at % 3] / 10;
        if at % 3 == 2 {
            decade *= 10;
        }
        at += 1;
    }
    bounds
};

/// The page of a running engine.
#[derive(Debug)]
pub(crate) struct Page(pub(crate) Weak<Inner>);

impl Page {
    fn engine(&self) -> Option<Engine> {
        self.0.upgrade().map(Engine::within)
    }
}

impl Pages for Page {
    fn metrics(&self, is_open: bool) -> Option<String> {
        let engine = self.engine()?;
        let mut text = Text {
            text: String::with_capacity(64 << 10),
            is_open,
        };
        let stats = engine.stats();
        engine_page(&engine, &stats, &mut text);
        let shards = stats
            .iter()
            .map(|one| (format!("shard=\"{}\"", one.index), one));
        text.table(SHARD_METRICS, shards.collect());
        let arenas = arenas(&engine, &stats);
        let arenas = arenas.iter().map(|(labels, one)| (labels.clone(), one));
        text.table(ARENA_METRICS, arenas.collect());
        let devices = engine.inner.wiring.devices();
        if devices.accelerator().is_ok() {
            let stats = devices.stats();
            let each = stats
                .iter()
                .map(|one| (format!("device=\"{}\"", one.device), one));
            text.table(DEVICE_METRICS, each.collect());
            text.table(DEVICES_METRICS, vec![(String::new(), devices)]);
        }
        text.stages(&engine.stages());
        text.reported(&engine.samples());
        if is_open {
            text.text.push_str("# EOF\n");
        }
        Some(text.text)
    }

    fn is_healthy(&self) -> bool {
        self.engine()
            .is_some_and(|engine| engine.stats().len() == engine.shards())
    }

    fn missing(&self) -> Vec<String> {
        let Some(engine) = self.engine() else {
            return vec!["the task has ended".into()];
        };
        let connected = engine.connected();
        let known = engine.inner.wiring.addressed();
        let is_absent = |task: &_| !connected.iter().any(|peer| peer.task == *task);
        let is_other = |task: &_| *task != engine.inner.task;
        known
            .into_iter()
            .filter(is_absent)
            .filter(is_other)
            .map(|task| task.to_string())
            .collect()
    }
}

/// Families that are the whole task's: name, is it a counter, labels, meaning.
const TASK_FAMILIES: [(&str, bool, &str, &str); 15] = [
    (
        "rendez_build_info",
        false,
        "version, task, incarnation",
        "Always 1; the labels say which build and which incarnation this is.",
    ),
    (
        "rendez_up_seconds",
        false,
        "",
        "How long this task has been running.",
    ),
    (
        "rendez_stage_sampling_ratio",
        false,
        "",
        "The share of values that are timed where hand-overs are fastest; those of sockets, and those that went \
         through a mailbox, are all timed, unless a receive had requested them.",
    ),
    (
        "rendez_parked_headroom_bytes",
        false,
        "shard",
        "What the shard may still park: `parked_bytes` less what it holds.",
    ),
    (
        "rendez_traceparents_refused",
        true,
        "",
        "Malformed traceparents from peers: their steps ran without one.",
    ),
    (
        "rendez_tls_not_after_timestamp_seconds",
        false,
        "",
        "When the certificate in use expires, in seconds since 1970; absent without TLS.",
    ),
    (
        "rendez_peer_connected",
        false,
        "peer, path",
        "1 for each peer that is connected, with the path to it; 0 without a path for one that is missing: a \
         key named it, or its connection ended without its goodbye while its address was known or it is of the \
         cluster, and it has not been connected since. A pair that has nothing to hand over has no series. Observers \
         are not peers.",
    ),
    (
        "rendez_observers_connected",
        false,
        "",
        "Observers that are connected now; `rendez stat` is one while it asks.",
    ),
    (
        "rendez_peer_clock_offset_seconds",
        false,
        "peer",
        "How far the clock of a peer over a network was ahead of ours when they were last compared.",
    ),
    (
        "rendez_peer_clock_error_seconds",
        false,
        "peer",
        "By how much that offset, and times between the two (`wire`, the whole), may be off: half of the quickest \
         question's round trip, and what counters may have drifted apart since. Zero for peers that share this task's \
         counter.",
    ),
    (
        "rendez_fallbacks",
        true,
        "peer, from, to, reason",
        "Connections over a worse path than their machine should offer: `shm_unavailable`, the two are on \
         one machine and do not share memory; `rdma_unavailable_here`, this task's device cannot be used; \
         `rdma_unavailable_there`, the peer's cannot, or there is no way between the two. `rendez explain` says more. \
         Observers do not count.",
    ),
    (
        "rendez_connections_lost",
        true,
        "peer",
        "Connections to the peer that ended without its goodbye. Observers do not count.",
    ),
    (
        "rendez_connections_remade",
        true,
        "peer",
        "Connections to a peer that had been connected before in the same incarnation.",
    ),
    (
        "rendez_dials_failed",
        true,
        "reason",
        "Dials that were given up, by the reason why their last attempt failed: with patience for an address where no \
         task answers, or another task or run, or one whose certificate is not valid now; at once if the refusal is \
         final. Dials that look for lost peers count too; observers do not.",
    ),
    (
        "rendez_refused",
        true,
        "reason",
        "Refused attempts of peers to connect to this task, and refused data connections, by reason: strangers that \
         try to get in are counted here. A peer that keeps dialling counts each time, not one that is put off because \
         the two dial each other.",
    ),
];

const STAGE_FAMILY: &str = "rendez_stage_seconds";
const STAGE_HELP: &str = "Time of a stage of a hand-over: `queued`, until the shard took it; `matched`, until its \
    way was clear; `posted`, until its frame went to the fabric; `wire`, until that arrived; `landed`, until the \
    whole value met its receiver; `woken`, until the receiver had it. Of values that are timed, less what reading \
    the clock costs.";

const WHOLE_FAMILY: &str = "rendez_handover_seconds";
const WHOLE_HELP: &str = "Time of a whole hand-over, from the call of its sender until the receiver had it, at the \
    receiver; measured at both ends, not summed. Of values that are timed and whose sender's clock is known, less what \
    reading the clock costs.";

fn help_of(family: &str) -> (&'static str, bool) {
    let found = TASK_FAMILIES.iter().find(|(name, ..)| *name == family);
    found.map_or(("", false), |(_, is_counter, _, help)| (help, *is_counter))
}

fn engine_page(engine: &Engine, stats: &[ShardStats], text: &mut Text) {
    let inner = &engine.inner;
    let config = &inner.config;
    let mut one = |family: &str, lines: Vec<(String, f64)>| {
        let (help, is_counter) = help_of(family);
        text.family(family, is_counter, help);
        for (labels, value) in lines {
            text.sample(family, is_counter, &labels, value);
        }
    };
    let build = format!(
        "version=\"{}\",task=\"{}\",incarnation=\"{}\"",
        env!("CARGO_PKG_VERSION"),
        escaped(&inner.task.to_string()),
        inner.incarnation
    );
    one("rendez_build_info", vec![(build, 1.0)]);
    let up = inner.clock.stamp().0.saturating_sub(inner.began.0);
    one("rendez_up_seconds", vec![(String::new(), up as f64 / 1e9)]);
    let ratio = if config.stage_sampling == 0 {
        0.0
    } else {
        1.0 / config.stage_sampling as f64
    };
    one("rendez_stage_sampling_ratio", vec![(String::new(), ratio)]);
    let of_shards = |room: &dyn Fn(&ShardStats) -> u64| -> Vec<(String, f64)> {
        let lines = stats
            .iter()
            .map(|stats| (format!("shard=\"{}\"", stats.index), room(stats) as f64));
        lines.collect()
    };
    let parked = |stats: &ShardStats| {
        config
            .parked_bytes
            .saturating_sub(stats.parked_bytes + stats.offered_bytes)
    };
    one("rendez_parked_headroom_bytes", of_shards(&parked));
    let refused = engine.refused_traceparents() as f64;
    one(
        "rendez_traceparents_refused",
        vec![(String::new(), refused)],
    );
    let ends = inner.control.get().and_then(Control::certificate_ends);
    let ends = ends.map(|ends| (String::new(), ends as f64));
    one(
        "rendez_tls_not_after_timestamp_seconds",
        ends.into_iter().collect(),
    );
    let connected = engine.connected();
    let is_observer = |task: &TaskName| task.job() == crate::engine::OBSERVER_JOB;
    let observers = connected.iter().filter(|peer| is_observer(&peer.task));
    let observers = observers.count() as f64;
    one(
        "rendez_observers_connected",
        vec![(String::new(), observers)],
    );
    let counts = inner.wiring.counts();
    if config.metrics_peers {
        let of_peer = |task: &TaskName| format!("peer=\"{}\"", escaped(&task.to_string()));
        let mut peers = Vec::new();
        for peer in connected.iter().filter(|peer| !is_observer(&peer.task)) {
            let labels = format!("{},path=\"{}\"", of_peer(&peer.task), name_of(peer.path));
            peers.push((labels, 1.0));
        }
        let missing = inner.wiring.missing(&inner.task, &config.known);
        peers.extend(missing.iter().map(|task| (of_peer(task), 0.0)));
        one("rendez_peer_connected", peers);
        let clocks = engine.compared_clocks();
        let offsets = clocks
            .iter()
            .filter_map(|(task, clock)| Some((of_peer(task), clock.offset_ns? as f64 / 1e9)));
        one("rendez_peer_clock_offset_seconds", offsets.collect());
        let errors = clocks.iter();
        let errors = errors.map(|(task, clock)| (of_peer(task), clock.error.as_secs_f64()));
        one("rendez_peer_clock_error_seconds", errors.collect());
        let fallbacks = inner.wiring.each_fallback().into_iter().map(|fallback| {
            let labels = format!(
                "peer=\"{}\",from=\"{}\",to=\"{}\",reason=\"{}\"",
                escaped(&fallback.task.to_string()),
                name_of(fallback.from),
                name_of(fallback.to),
                fallback.reason
            );
            (labels, fallback.count as f64)
        });
        one("rendez_fallbacks", fallbacks.collect());
        let of_each = |count: &dyn Fn(&Connections) -> u64| -> Vec<(String, f64)> {
            let of_each = counts.peers.iter();
            let lines = of_each.map(|(task, all)| (of_peer(task), count(all) as f64));
            lines.collect()
        };
        one("rendez_connections_lost", of_each(&|all| all.lost));
        one("rendez_connections_remade", of_each(&|all| all.remade));
    }
    for (family, by_reason) in [
        ("rendez_dials_failed", counts.dials_failed),
        ("rendez_refused", counts.refused),
    ] {
        let lines = by_reason.into_iter();
        let lines = lines.map(|(reason, count)| (format!("reason=\"{reason}\""), count as f64));
        one(family, lines.collect());
    }
}

/// The arenas of the host, each with its label.
fn arenas(engine: &Engine, stats: &[ShardStats]) -> Vec<(String, ArenaStats)> {
    let limit = engine.inner.config.arena.bytes_max;
    let shards = stats.iter().map(|one| {
        let label = format!("shard=\"{}\"", one.index);
        (label, ArenaStats::of_shard(one, limit))
    });
    let application = ArenaStats::of_application(engine);
    let application = ("shard=\"application\"".to_owned(), application);
    shards.chain([application]).collect()
}

fn name_of(path: Path) -> String {
    format!("{path:?}").to_lowercase()
}

/// A label's value as the formats want it.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

struct Text {
    text: String,
    is_open: bool,
}

impl Text {
    fn family(&mut self, family: &str, is_counter: bool, help: &str) {
        let kind = if is_counter { "counter" } else { "gauge" };
        self.head(
            family,
            if is_counter && !self.is_open {
                "_total"
            } else {
                ""
            },
            kind,
            help,
        );
    }

    /// In OpenMetrics a family's name has no ending and its samples have; in Prometheus' text both have.
    fn head(&mut self, family: &str, ending: &str, kind: &str, help: &str) {
        // Writing into a text cannot fail.
        let _ = writeln!(
            self.text,
            "# HELP {family}{ending} {}",
            help.replace('\\', "\\\\").replace('\n', " ")
        );
        let _ = writeln!(self.text, "# TYPE {family}{ending} {kind}");
        for unit in ["seconds", "bytes", "ratio"] {
            if self.is_open && family.ends_with(&format!("_{unit}")) {
                let _ = writeln!(self.text, "# UNIT {family} {unit}");
            }
        }
    }

    fn sample(&mut self, family: &str, is_counter: bool, labels: &str, value: f64) {
        let ending = if is_counter { "_total" } else { "" };
        let (open, close) = if labels.is_empty() {
            ("", "")
        } else {
            ("{", "}")
        };
        let _ = writeln!(self.text, "{family}{ending}{open}{labels}{close} {value}");
    }

    /// A table's metrics, of all that have them, each with its labels.
    fn table<S>(&mut self, metrics: &[Metric<S>], all: Vec<(String, &S)>) {
        let mut last = "";
        for metric in metrics {
            if metric.family != last {
                self.family(metric.family, metric.is_counter, metric.help);
                last = metric.family;
            }
            for (labels, stats) in &all {
                let label = metric
                    .label
                    .map_or_else(String::new, |(name, value)| format!(",{name}=\"{value}\""));
                let labels = format!("{labels}{label}");
                let value = (metric.read)(stats) as f64 * metric.unit;
                self.sample(metric.family, metric.is_counter, &labels, value);
            }
        }
    }

    fn stages(&mut self, all: &[StageTimes]) {
        let is_whole = |times: &&StageTimes| times.stage == Stage::Whole;
        self.head(STAGE_FAMILY, "", "histogram", STAGE_HELP);
        for times in all.iter().filter(|times| !is_whole(times)) {
            self.histogram(
                STAGE_FAMILY,
                &format!("stage=\"{}\",", times.stage.name()),
                times,
            );
        }
        // A family of its own: a sum over stages must not include the whole.
        self.head(WHOLE_FAMILY, "", "histogram", WHOLE_HELP);
        for times in all.iter().filter(is_whole) {
            self.histogram(WHOLE_FAMILY, "", times);
        }
    }

    fn histogram(&mut self, family: &str, stage: &str, times: &StageTimes) {
        let labels = format!(
            "shard=\"{}\",{stage}path=\"{}\",size_class=\"{}\"",
            times.shard,
            times.way.name(),
            CLASSES.get(times.class).copied().unwrap_or("")
        );
        self.buckets(family, &labels, times.sum_ns, &times.times);
    }

    fn buckets(&mut self, family: &str, labels: &str, sum_ns: u64, times: &[(u64, u64)]) {
        let mut rest = times.iter().peekable();
        let mut count = 0;
        for bound in BOUNDS {
            while let Some((_, more)) = rest.next_if(|(time, _)| *time <= bound) {
                count += more;
            }
            let bound = bound as f64 / 1e9;
            let _ = writeln!(
                self.text,
                "{family}_bucket{{{labels},le=\"{bound:?}\"}} {count}"
            );
        }
        count += rest.map(|(_, more)| more).sum::<u64>();
        let _ = writeln!(self.text, "{family}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let sum = sum_ns as f64 / 1e9;
        let _ = writeln!(self.text, "{family}_sum{{{labels}}} {sum}");
        let _ = writeln!(self.text, "{family}_count{{{labels}}} {count}");
    }

    /// What libraries above the engine tell; samples of one family stand together.
    fn reported(&mut self, samples: &[Sample]) {
        for samples in samples.chunk_by(|one, next| one.family.name == next.family.name) {
            let family = samples[0].family;
            let is_counter = family.kind == Kind::Counter;
            match family.kind {
                Kind::Histogram => self.head(family.name, "", "histogram", family.help),
                Kind::Counter | Kind::Gauge => self.family(family.name, is_counter, family.help),
            }
            for sample in samples {
                let label =
                    |(name, value): &(&str, String)| format!("{name}=\"{}\"", escaped(value));
                let labels: Vec<String> = sample.labels.iter().map(label).collect();
                let labels = labels.join(",");
                match &sample.number {
                    Number::One(value) => self.sample(family.name, is_counter, &labels, *value),
                    Number::Times(sum_ns, times) => {
                        self.buckets(family.name, &labels, *sum_ns, times);
                    }
                }
            }
        }
    }
}

/// The rows of a page's reference for families of a library above the engine.
#[must_use]
pub fn reference_rows(families: &[Family]) -> String {
    let row = |family: &Family| {
        let ending = if family.kind == Kind::Counter {
            "_total"
        } else {
            ""
        };
        let (name, kind) = (family.name, family.kind.name());
        format!(
            "| `{name}{ending}` | {kind} | {} | {} |\n",
            family.labels, family.help
        )
    };
    let rows: String = families.iter().map(row).collect();
    format!("| metric | kind | labels | meaning |\n|---|---|---|---|\n{rows}")
}

/// The reference of all metrics, made of the tables that the page is made of.
#[must_use]
pub fn reference_page() -> String {
    let mut text = String::from(
        "<!-- Made by `rendez config metrics`; a test compares it with the code. -->\n\n# Metrics\n\n\
         With `metrics = \"127.0.0.1:9464\"` a task answers `GET /metrics` in Prometheus' text or, to a client that \
         accepts `application/openmetrics-text`, in OpenMetrics; `GET /healthz` says whether its shards answer, and \
         `GET /readyz` whether all peers with a known address are connected. At a loopback address it answers \
         its own user and root, and others only with `metrics_any_user = true`. Under `rendez up` each task has a \
         port of its own, one after another. Counters end in `_total`. Labels never hold a \
         key; `metrics_peers = false` removes the series with the label `peer`.\n\n\
         | metric | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    let mut row = |family: &str, is_counter: bool, labels: &str, help: &str| {
        let (ending, kind) = if is_counter {
            ("_total", "counter")
        } else {
            ("", "gauge")
        };
        let _ = writeln!(text, "| `{family}{ending}` | {kind} | {labels} | {help} |");
    };
    for (family, is_counter, labels, help) in TASK_FAMILIES {
        row(family, is_counter, labels, help);
    }
    table_rows(SHARD_METRICS, "shard", &mut row);
    table_rows(ARENA_METRICS, "shard", &mut row);
    table_rows(DEVICE_METRICS, "device", &mut row);
    table_rows(DEVICES_METRICS, "", &mut row);
    let _ = writeln!(
        text,
        "| `{STAGE_FAMILY}` | histogram | shard, stage, path, size_class | {STAGE_HELP} Buckets from 100 ns to 10 s. |"
    );
    let _ = writeln!(
        text,
        "| `{WHOLE_FAMILY}` | histogram | shard, path, size_class | {WHOLE_HELP} The same buckets. |"
    );
    text
}

/// The rows of a table, each family with the label that `subject` is.
fn table_rows<S>(
    metrics: &[Metric<S>],
    subject: &str,
    row: &mut impl FnMut(&str, bool, &str, &str),
) {
    let mut last = "";
    for metric in metrics {
        if metric.family != last {
            last = metric.family;
            let of_family = |other: &&Metric<S>| other.family == metric.family;
            let values: Vec<String> = metrics
                .iter()
                .filter(of_family)
                .filter_map(|other| other.label.map(|(_, value)| format!("`{value}`")))
                .collect();
            let labels = metric.label.map_or_else(
                || subject.to_owned(),
                |(name, _)| format!("{subject}, {name}: {}", values.join(", ")),
            );
            row(metric.family, metric.is_counter, &labels, metric.help);
        }
    }
}
