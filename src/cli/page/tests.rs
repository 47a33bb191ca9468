//! Pages of logs, and what is no log.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};

use super::super::histogram::{HdrLog, Interval, Recorder};
use super::*;

/// A log of an interval for each of the tags.
fn log_in(folder: &Path, name: &str, tags: &[&str]) -> PathBuf {
    let path = folder.join(name);
    let mut log = HdrLog::create(&path, "times").expect("writable");
    log.describe("machine", "a <b> & \"c\"");
    let mut recorder = Recorder::nanos();
    (1..=1000).for_each(|time| recorder.record(time * 10));
    for tag in tags {
        let interval = Interval {
            tag: (*tag).into(),
            start: SystemTime::now(),
            duration: Duration::from_secs(1),
            recorder: recorder.clone(),
        };
        log.write(&interval).expect("written");
    }
    path
}

/// A tag twice, and a stage of it.
const RUN: &[&str] = &[
    "pingpong-shm-4",
    "pingpong-shm-4",
    "pingpong-shm-4/shm_inline/wire",
];

#[test]
fn sections_stand_in_the_order_of_sizes() {
    let folder = tempfile::tempdir().expect("a folder");
    let tags = [
        "raw-memcpy-64",
        "pingpong-shm-1024",
        "pingpong-shm-16777216",
        "pingpong-shm-64",
        "warm",
    ];
    let path = log_in(folder.path(), "run.hlog", &tags);
    let html = folder.path().join("page.html");
    make(&[path], &html).expect("made");
    let page = std::fs::read_to_string(html).expect("readable");
    let at: Vec<usize> = [
        "warm",
        "pingpong-shm-64",
        "raw-memcpy-64",
        "pingpong-shm-1024",
        "pingpong-shm-16777216",
    ]
    .iter()
    .map(|tag| page.find(&format!("<h2>{tag}</h2>")).expect("a section"))
    .collect();
    assert!(at.is_sorted(), "{at:?}");
}

/// What is recorded in picoseconds is not told by pattern and transport: `oneway` has either.
#[test]
fn times_are_those_that_were_recorded_whatever_their_unit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.hlog");
    let mut log = HdrLog::create(&path, "times").expect("writable");
    let (mut nanos, mut picos) = (Recorder::nanos(), Recorder::picos());
    nanos.record(70);
    picos.record(70_000);
    for (tag, recorder) in [
        ("oneway-tcp-4", &nanos),
        ("oneway-tcp-2", &picos),
        ("rate-shm-16", &picos),
        ("raw-memcpy-64", &picos),
    ] {
        let interval = Interval {
            tag: tag.into(),
            start: SystemTime::now(),
            duration: Duration::from_secs(1),
            recorder: recorder.clone(),
        };
        log.write(&interval).expect("written");
    }
    let log = Log::read(&path).expect("it is one");
    assert_eq!(log.series.len(), 4);
    for (tag, series) in &log.series {
        let times = [series.mean(), series.at(0.5), series.over_time(1)[0].1];
        assert!(
            times.iter().all(|time| (time - 70.0).abs() < 0.1),
            "{tag}: {times:?}"
        );
    }
}

/// Each tag of the widest range at the highest precision has fifty megabytes of counters, in a line of hundred bytes.
#[test]
fn a_log_whose_tags_take_too_much_memory_is_refused() {
    let widest = hdrhistogram::Histogram::<u64>::new_with_bounds(1, u64::MAX / 2, 5);
    let widest = widest.expect("the bounds are valid");
    let mut log = Vec::new();
    let mut serializer = hdrhistogram::serialization::V2DeflateSerializer::new();
    let mut writer = IntervalLogWriterBuilder::new()
        .begin_log_with(&mut log, &mut serializer)
        .expect("a vector takes it");
    for tag in 0..16 {
        let tag = tag.to_string();
        let second = Duration::from_secs(1);
        writer
            .write_histogram(&widest, second, second, Tag::new(&tag))
            .expect("a vector takes it");
    }
    let refused = Log::of(&log, String::new()).expect_err("it takes too much");
    assert!(refused.contains("half a gigabyte"), "{refused}");
}

/// A line with a histogram of these counters, whose head claims that they are so many bytes.
fn line_of(claimed: u32, counters: &[u8], is_compressed: bool) -> String {
    let mut plain = Vec::from(0x1c84_9313_u32.to_be_bytes());
    plain.extend(claimed.to_be_bytes());
    // No offset, five digits.
    plain.extend([0, 0, 0, 0, 0, 0, 0, 5]);
    for word in [1, u64::MAX / 2, 1_f64.to_bits()] {
        plain.extend(word.to_be_bytes());
    }
    plain.extend(counters);
    let mut packed = plain.clone();
    if is_compressed {
        let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(&plain).expect("a vector takes it");
        let body = packer.finish().expect("a vector takes it");
        packed = Vec::from(0x1c84_9314_u32.to_be_bytes());
        packed.extend((body.len() as u32).to_be_bytes());
        packed.extend(body);
    }
    let text = base64::engine::general_purpose::STANDARD.encode(packed);
    format!("0.000,1.000,1.0,{text}\n")
}

#[test]
fn an_interval_that_unpacks_to_more_than_a_histogram_is_refused_by_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.hlog");
    let zeros = vec![0; 65 << 20];
    let good = line_of(3, &[2, 2, 2], true);
    for (line, what) in [
        (
            line_of(u32::MAX, &[2, 2, 2], true),
            "claims 4294967295 bytes",
        ),
        (
            line_of(u32::MAX, &[2, 2, 2], false),
            "claims 4294967295 bytes",
        ),
        (line_of(65 << 20, &zeros, true), "claims 68157440 bytes"),
        (line_of(1 << 20, &[2, 2, 2], true), "holds no histogram"),
        ("0.000,1.000,1.0,HISTEwAA\n".into(), "holds no histogram"),
        ("0.000,1.000,1.0,HISTFAAA\n".into(), "cut off"),
        ("what is this\n".into(), "neither an interval nor a comment"),
    ] {
        std::fs::write(&path, format!("#a comment\n{good}{line}{good}")).expect("written");
        let refused =
            make(std::slice::from_ref(&path), &folder.path().join("x.html")).expect_err("too much");
        assert_eq!(refused.reason(), "HDR_LOG_MALFORMED");
        let text = refused.message();
        let place = format!("'{}' is no interval log: line 3: ", path.display());
        assert!(text.starts_with(&place), "{text}");
        assert!(text.contains(what), "{text}");
    }
    std::fs::write(&path, good).expect("written");
    assert_eq!(Log::read(&path).expect("it is one").series[""].count(), 3);
}

/// No number is as long as that of a run of 2^63 counters.
#[test]
fn a_run_of_more_counters_than_can_be_is_refused() {
    for is_compressed in [false, true] {
        let line = line_of(9, &[0xff; 9], is_compressed);
        let refused = Log::of(line.as_bytes(), String::new()).map(drop);
        let refused = refused.expect_err("too many");
        assert!(refused.contains("line 1: "), "{refused}");
    }
}

/// Their sums would overflow.
#[test]
fn counters_that_were_never_counted_are_refused() {
    let most = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
    let line = line_of(36, &most.repeat(4), true);
    let refused = Log::of(line.as_bytes(), String::new()).map(drop);
    let refused = refused.expect_err("too many");
    assert!(refused.contains("line 1: "), "{refused}");
    assert!(refused.contains("values"), "{refused}");
}

#[test]
fn two_logs_become_one_page_that_needs_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let logs = [
        log_in(folder.path(), "a.hlog", RUN),
        log_in(folder.path(), "b.hlog", RUN),
    ];
    let html = folder.path().join("page.html");
    make(&logs, &html).expect("made");
    let page = std::fs::read_to_string(html).expect("readable");
    for part in [
        "<h2>a.hlog</h2>",
        "a &lt;b&gt; &amp; &quot;c&quot;",
        "99.9%",
        "wire",
        "+0 %",
        "color-scheme",
        "@media print",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for part in ["<script", "http:", "https:", "url(", "NaN", "inf"] {
        assert!(!page.contains(part), "{part}");
    }
    assert!(
        page.contains("<td data-of=\"count\">2000</td>"),
        "the intervals of a tag are one distribution"
    );
}

#[test]
fn what_is_no_log_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = std::fs::read(log_in(folder.path(), "a.hlog", RUN)).expect("readable");
    let refused = |bytes: &[u8]| {
        let path = folder.path().join("other.hlog");
        std::fs::write(&path, bytes).expect("written");
        make(&[path], &folder.path().join("x.html"))
            .expect_err("it is none")
            .reason()
    };
    assert_eq!(refused(b""), "HDR_LOG_MALFORMED");
    assert_eq!(
        refused(b"{\"pattern\": \"pingpong\"}\n"),
        "HDR_LOG_MALFORMED"
    );
    assert_eq!(refused(b"\xff\xfe\x00binary"), "HDR_LOG_MALFORMED");
    assert_eq!(refused(&whole[..whole.len() - 40]), "HDR_LOG_MALFORMED");
    let missing =
        make(&[folder.path().join("none")], Path::new("/tmp/x")).expect_err("it is not there");
    assert_eq!(missing.reason(), "FILE_UNREADABLE");
    // However it is hurt, it is read or refused.
    for at in (0..whole.len()).step_by(7) {
        let mut hurt = whole.clone();
        hurt[at] ^= 0x15;
        let _ = Log::of(&hurt, String::new());
    }
}
