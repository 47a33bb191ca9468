//! Percentiles, rates, the open loop's correction, and a log that reads back.

use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use super::*;

#[test]
fn percentiles_of_a_known_distribution() {
    let mut recorder = Recorder::nanos();
    for time in 1..=1000 {
        recorder.record(time);
    }
    let summary = recorder.summary().unwrap();
    assert_eq!(
        (
            summary.p50,
            summary.p90,
            summary.p99,
            summary.p99_9,
            summary.max
        ),
        (500.0, 900.0, 990.0, 999.0, 1000.0)
    );
    assert_eq!(summary.times(0.5).p99, 495.0);
    assert_eq!(recorder.count(), 1000);
}

#[test]
fn nothing_recorded_has_no_percentiles() {
    assert_eq!(Recorder::nanos().summary(), None);
    assert_eq!(Recorder::nanos().rates(1.0), None);
}

#[test]
fn no_percentile_is_past_the_largest() {
    let mut recorder = Recorder::nanos();
    recorder.record(1_000_001);
    let summary = recorder.summary().unwrap();
    assert!(summary.p50 <= summary.max && summary.p99_9 <= summary.max);
}

#[test]
fn what_is_out_of_range_is_kept_at_its_end() {
    let mut recorder = Recorder::nanos();
    recorder.record(0);
    recorder.record(u64::MAX);
    assert_eq!(recorder.count(), 2);
    let max = recorder.summary().unwrap().max;
    assert!(
        max >= NANOS_MAX as f64 && max < 1.2 * NANOS_MAX as f64,
        "{max}"
    );
}

#[test]
fn picoseconds_are_shown_as_nanoseconds() {
    let mut recorder = Recorder::picos();
    recorder.record(1_500);
    assert_eq!(recorder.summary().unwrap().p50, 1.5);
    assert_eq!(
        recorder.rates(1.0).unwrap().percentiles.max.round(),
        666_666_667.0
    );
}

#[test]
fn rates_are_percentiles_of_the_rate() {
    let mut recorder = Recorder::nanos();
    for _ in 0..99 {
        recorder.record(1_000);
    }
    recorder.record(500);
    let rates = recorder.rates(64.0).unwrap().percentiles;
    assert_eq!(rates.p50, 64e6);
    assert_eq!(rates.max, 128e6, "the maximum is the fastest");
    assert!(
        rates.p50 <= rates.p90
            && rates.p90 <= rates.p99
            && rates.p99 <= rates.p99_9
            && rates.p99_9 <= rates.max
    );
}

#[test]
fn a_rate_holds_its_stalls() {
    let mut recorder = Recorder::picos();
    recorder.record_many(1_000_000, 90);
    recorder.record_many(10_000_000, 10);
    let rates = recorder.rates(64.0).unwrap();
    assert!(
        (rates.percentiles.p50 / 64e6 - 1.0).abs() < 1e-3,
        "{rates:?}"
    );
    // A hundred in 190 µs.
    assert!(
        (rates.mean / (64.0 * 100.0 / 190e-6) - 1.0).abs() < 1e-3,
        "{rates:?}"
    );
}

#[test]
fn what_was_due_and_is_not_done_is_recorded_as_it_waited() {
    // A send every millisecond for 10 ms; four were done when a stall began that ended at 1 s.
    let schedule = Schedule::new(0, 1e3);
    let (end, now) = (10_000_000, 1_000_000_000);
    assert_eq!(schedule.due_before(end), 10);
    assert_eq!(schedule.due_before(end + 1), 11);
    let mut recorder = Recorder::nanos();
    assert_eq!(recorder.record_overdue(&schedule, 4, end, now), 6);
    let found = recorder.summary().unwrap();
    assert!((found.max / 996e6 - 1.0).abs() < 1e-3, "{found:?}");
    assert!((found.p50 / 993e6 - 1.0).abs() < 1e-3, "{found:?}");
    assert_eq!(recorder.record_overdue(&schedule, 11, end, now), 0);
    // Far beyond reach: all are counted, and it takes no longer.
    let mut recorder = Recorder::nanos();
    let left = recorder.record_overdue(&Schedule::new(0, 1e9), 5, 20_000_000_000, now);
    assert_eq!((left, recorder.count()), (19_999_999_995, 19_999_999_995));
}

#[test]
fn an_open_loop_counts_what_a_stall_held_up() {
    let schedule = Schedule::new(1_000, 1e6);
    let mut recorder = Recorder::nanos();
    // One send a microsecond; the fifth stalls for 100 µs, and those behind it complete just after, one every 10 ns.
    let mut now = 0;
    for index in 0..100 {
        let begins = schedule.due_ns(index).max(now);
        now = begins + if index == 5 { 100_000 } else { 10 };
        recorder.record(schedule.latency_ns(index, now));
    }
    let summary = recorder.summary().unwrap();
    assert_eq!(schedule.due_ns(5), 6_000);
    assert!(
        summary.p50 > 40_000.0,
        "most sends waited behind the stall: {summary:?}"
    );
    assert!(summary.max >= 100_000.0);
}

#[test]
fn a_schedule_does_not_drift() {
    let schedule = Schedule::new(0, 3e6);
    assert!(
        schedule.due_ns(3_000_000_000).abs_diff(1_000_000_000_000) <= 1,
        "a thousand seconds on"
    );
}

#[test]
fn merging_adds_and_clearing_forgets() {
    let (mut left, mut right) = (Recorder::nanos(), Recorder::nanos());
    left.record(10);
    right.record(30);
    left.merge(&right);
    assert_eq!((left.count(), left.summary().unwrap().max), (2, 30.0));
    left.clear();
    assert_eq!(left.count(), 0);
}

#[test]
fn a_log_reads_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.hlog");
    let mut log = HdrLog::create(&path, "times in nanoseconds").unwrap();
    let mut recorder = Recorder::nanos();
    (1..=100).for_each(|time| recorder.record(time * 10));
    for tag in ["pingpong 4B, raw", "second"] {
        let interval = Interval {
            tag: tag.into(),
            start: SystemTime::now(),
            duration: Duration::from_secs(2),
            recorder: recorder.clone(),
        };
        log.write(&interval).unwrap();
    }
    let text = std::fs::read(&path).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&text).matches("StartTime").count(),
        1,
        "one header"
    );
    let mut tags = Vec::new();
    for entry in IntervalLogIterator::new(&text) {
        if let LogEntry::Interval(interval) = entry.unwrap() {
            tags.push(interval.tag().unwrap().as_str().to_owned());
            let bytes = base64_decode(interval.encoded_histogram());
            let histogram: Histogram<u64> = Deserializer::new()
                .deserialize(&mut bytes.as_slice())
                .unwrap();
            assert_eq!((histogram.len(), histogram.max()), (100, 1_000));
        }
    }
    assert_eq!(tags, ["pingpong_4B__raw", "second"]);
}

#[test]
fn a_log_in_no_folder_is_refused_at_once() {
    let error = HdrLog::create(Path::new("/nonexistent/run.hlog"), "").unwrap_err();
    assert_eq!(error.reason(), "FILE_UNWRITABLE");
}

fn base64_decode(text: &str) -> Vec<u8> {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut held, mut bits) = (0u32, 0);
    for symbol in text.bytes().take_while(|symbol| *symbol != b'=') {
        held = (held << 6) | ALPHABET.iter().position(|known| *known == symbol).unwrap() as u32;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    bytes
}
