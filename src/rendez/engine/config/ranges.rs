//! What numbers the settings may have: one table, which files, variables and flags are read against, which an engine
//! looks at before it starts, and which the reference page is made of.
//!
//! Knows the limits; rules between settings stand in [`Config::check`].

use std::fmt;
use std::time::Duration;

use super::table::Setting;
use super::{Config, invalid};
use crate::ground::limits::{
    ARENA_BYTES_MAX, ARENA_SEGMENT_BYTES_MAX, BODY_MAX, BYTES_MIN, CLUSTER_TASKS_MAX,
    DEVICE_PINNED_BYTES_MIN, FAILURE_DETECTION_MIN_MS, INLINE_LEAST, MAILBOX_MAX,
    RECORDER_BYTES_MAX, SHARDS, VERBS_INLINE_BYTES_MAX, VERBS_QUEUE_PAIRS_MAX, VERBS_WINDOW,
    VERBS_WINDOW_MIN,
};
use crate::ground::{Status, units};

/// What a setting's value may be, both ends included.
pub(super) struct Range {
    key: &'static str,
    least: u64,
    most: u64,
    unit: Unit,
    /// The value, in the range's unit; more than any range where it does not fit, `None` where there is none.
    value: fn(&Config) -> Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Count,
    Bytes,
    /// Of nanoseconds.
    Time,
}

const fn range(
    key: &'static str,
    least: u64,
    most: u64,
    unit: Unit,
    value: fn(&Config) -> Option<u64>,
) -> Range {
    Range {
        key,
        least,
        most,
        unit,
        value,
    }
}

/// The longest duration, and the shortest that is none.
const DAY: u64 = units::DURATION_MAX.as_nanos() as u64;
const MILLI: u64 = 1_000_000;

use Unit::{Bytes, Count, Time};

/// Every setting that is a number, bytes or a duration.
const RANGES: &[Range] = &[
    range("shards", 0, SHARDS as u64, Count, |c| count(c.shards)),
    range(
        "arena_segment_bytes",
        BYTES_MIN,
        ARENA_SEGMENT_BYTES_MAX,
        Bytes,
        |c| count(c.arena.segment_bytes),
    ),
    range(
        "device_segment_bytes",
        BYTES_MIN,
        ARENA_SEGMENT_BYTES_MAX,
        Bytes,
        |c| count(c.devices.segment_bytes),
    ),
    range("device_bytes", BYTES_MIN, ARENA_BYTES_MAX, Bytes, |c| {
        Some(c.devices.bytes_max)
    }),
    range(
        "device_pinned_bytes",
        DEVICE_PINNED_BYTES_MIN,
        ARENA_SEGMENT_BYTES_MAX,
        Bytes,
        |c| count(c.devices.pinned_bytes),
    ),
    range("arena_bytes", BYTES_MIN, ARENA_BYTES_MAX, Bytes, |c| {
        Some(c.arena.bytes_max)
    }),
    range(
        "inline_max",
        INLINE_LEAST as u64,
        BODY_MAX as u64,
        Bytes,
        |c| count(c.inline_max),
    ),
    range("mailbox", 2, MAILBOX_MAX as u64, Count, |c| {
        count(c.mailbox)
    }),
    range("parked_bytes", 0, ARENA_BYTES_MAX, Bytes, |c| {
        Some(c.parked_bytes)
    }),
    range("parked_bytes_per_step", 0, ARENA_BYTES_MAX, Bytes, |c| {
        Some(c.parked_bytes_per_step)
    }),
    range("landing_bytes", 0, ARENA_BYTES_MAX, Bytes, |c| {
        Some(c.landing_bytes)
    }),
    range("stage_sampling", 0, u32::MAX as u64, Count, |c| {
        count(c.stage_sampling)
    }),
    range("recorder_bytes", 0, RECORDER_BYTES_MAX as u64, Bytes, |c| {
        Some(c.recorder_bytes)
    }),
    range("spin", 0, DAY, Time, |c| time(c.spin)),
    range("connect_timeout", MILLI, DAY, Time, |c| {
        time(c.connect_timeout)
    }),
    range("rank", 0, CLUSTER_TASKS_MAX as u64 - 1, Count, |c| {
        c.rank.map(u64::from)
    }),
    range("cluster_secret_fd", 3, i32::MAX as u64, Count, |c| {
        c.cluster_secret_fd.map(u64::from)
    }),
    range("world_size", 1, CLUSTER_TASKS_MAX as u64, Count, |c| {
        c.world_size.map(u64::from)
    }),
    range("port", 1, u16::MAX as u64, Count, |c| Some(c.port.into())),
    range(
        "failure_detection",
        FAILURE_DETECTION_MIN_MS * MILLI,
        DAY,
        Time,
        |c| time(c.failure_detection),
    ),
    range("drain_timeout", 0, DAY, Time, |c| time(c.drain_timeout)),
    range("tcp_user_timeout", MILLI, DAY, Time, |c| {
        time(c.tcp_user_timeout)
    }),
    range("verbs_port", 1, 255, Count, |c| c.verbs.port.map(u64::from)),
    range("verbs_gid_index", 0, 255, Count, |c| {
        c.verbs.gid_index.map(u64::from)
    }),
    range("verbs_mtu", 256, 4096, Count, |c| {
        c.verbs.mtu.map(u64::from)
    }),
    range("verbs_pkey_index", 0, u16::MAX as u64, Count, |c| {
        Some(c.verbs.pkey_index.into())
    }),
    range("verbs_service_level", 0, 15, Count, |c| {
        Some(c.verbs.service_level.into())
    }),
    range("verbs_traffic_class", 0, 255, Count, |c| {
        Some(c.verbs.traffic_class.into())
    }),
    range(
        "verbs_depth",
        VERBS_WINDOW_MIN as u64,
        VERBS_WINDOW as u64,
        Count,
        |c| Some(c.verbs.depth.into()),
    ),
    range(
        "verbs_queue_pairs",
        1,
        VERBS_QUEUE_PAIRS_MAX as u64,
        Count,
        |c| Some(c.verbs.queue_pairs.into()),
    ),
    range(
        "verbs_inline_bytes",
        0,
        VERBS_INLINE_BYTES_MAX as u64,
        Count,
        |c| Some(c.verbs.inline_bytes.into()),
    ),
    range("verbs_timeout", 1, 31, Count, |c| {
        Some(c.verbs.timeout.into())
    }),
    range("verbs_retry_count", 0, 7, Count, |c| {
        Some(c.verbs.retry_count.into())
    }),
];

impl Range {
    /// The range of the setting of this key, if it has one.
    pub(super) fn find(key: &str) -> Option<&'static Self> {
        RANGES.iter().find(|range| range.key == key)
    }

    /// What is wrong with the setting's value, if anything is.
    pub(super) fn complaint(&self, config: &Config) -> Option<String> {
        let value = (self.value)(config)?;
        let is_in = (self.least..=self.most).contains(&value);
        (!is_in).then(|| format!("it should be {self}"))
    }
}

/// `2 to 64`, `4KiB to 1GiB`, `50ms to 24h`
impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |value: u64| match self.unit {
            Unit::Count => value.to_string(),
            Unit::Bytes => units::exact_bytes(value),
            Unit::Time => units::exact_duration(Duration::from_nanos(value)),
        };
        write!(f, "{} to {}", end(self.least), end(self.most))
    }
}

/// Looks at all of them.
pub(super) fn check(config: &Config) -> Result<(), Status> {
    for range in RANGES {
        let Some(setting) = Setting::find(range.key) else {
            continue;
        };
        if let Some(why) = range.complaint(config) {
            let default = setting.show(&Config::default());
            let default = match default.as_str() {
                "" => "leave it out".to_owned(),
                default => format!("leave it out, which is {default}"),
            };
            let value = setting.show(config);
            return Err(invalid(format!(
                "{} = {value}: {why}; set it so, or {default}",
                range.key
            )));
        }
    }
    Ok(())
}

fn count(value: usize) -> Option<u64> {
    Some(u64::try_from(value).unwrap_or(u64::MAX))
}

fn time(value: Duration) -> Option<u64> {
    Some(super::nanos(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::SETTINGS;

    #[test]
    fn every_number_has_a_range_and_every_range_its_setting() {
        let is_number = |setting: &&Setting| {
            ["a number", "bytes", "a duration"]
                .iter()
                .any(|kind| setting.expects().starts_with(kind))
        };
        let mut numbers: Vec<_> = SETTINGS.iter().filter(is_number).map(|s| s.key).collect();
        let mut ranges: Vec<_> = RANGES.iter().map(|range| range.key).collect();
        numbers.sort_unstable();
        ranges.sort_unstable();
        assert_eq!(numbers, ranges);
        assert!(RANGES.iter().all(|range| range.least < range.most));
        check(&Config::default()).expect("defaults are in their ranges");
    }
}
