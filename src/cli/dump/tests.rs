//! Timelines of recordings, and what is no recording.

use super::*;
use rendez::memory::Words;
use rendez::trace::clock::Scale;
use rendez::trace::recorder::{Head, Recorder, Way, words_for};

/// A recording of a shard whose counter began at `ticks`, of the machine's boot `boot`.
fn recorded(task: &str, ticks: u64, boot: u64, events: &[Event]) -> Vec<u8> {
    recorded_at(task, ticks, 1 << 32, boot, events)
}

/// The same, of a process that measured the counter's rate to be `rate`.
fn recorded_at(task: &str, ticks: u64, rate: u64, boot: u64, events: &[Event]) -> Vec<u8> {
    let key = "/job:a;0000000000000001;/job:b;gradient;0:0";
    recorded_of(task, key, ticks, rate, boot, events)
}

/// The same, with another name of the key.
fn recorded_of(
    task: &str,
    key: &str,
    ticks: u64,
    rate: u64,
    boot: u64,
    events: &[Event],
) -> Vec<u8> {
    let head = Head {
        task: task.into(),
        incarnation: 1,
        shard: 0,
        pid: 1,
        sampling: 1,
        clock_ns: 0,
        scale: Scale {
            ticks,
            nanos: 0,
            rate,
        },
        boot,
    };
    let recorder = Recorder::new(
        Words::anonymous(words_for(4096)).expect("memory"),
        4096,
        &head,
    );
    recorder.name(7, key);
    for (number, event) in events.iter().enumerate() {
        recorder.event(number as u64, event);
    }
    recorder
        .copy()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

fn event(what: What, at: u64, step: u64, [a, b, c]: [u32; 3]) -> Event {
    Event {
        what,
        at,
        way: Way::ShmInline,
        class: 0,
        step,
        key: 7,
        frame_iter: (0, 0),
        ordinal: 0,
        a,
        b,
        c,
    }
}

fn pair(boots: [u64; 2]) -> Vec<Recording> {
    let sent = event(What::Sent, 10_000, 5, [100, 20, 30]);
    // Its counter began 4000 ticks later: the same moment is 4000 earlier there.
    let took = event(What::Took, 6_400, 5, [50, 50, 300]);
    let missed = [
        event(What::Waits, 7_000, 6, [0, 1, 0]),
        event(What::Missed, 9_000, 6, [0; 3]),
    ];
    let one = recorded("/job:a", 1_000, boots[0], &[sent]);
    let other = recorded("/job:b", 5_000, boots[1], &[took, missed[0], missed[1]]);
    [one, other]
        .iter()
        .map(|bytes| recording(bytes, "x").expect("it is one"))
        .collect()
}

/// A counter of 2.5 GHz, and three processes that were wrong about its rate, each by itself.
#[test]
fn a_day_later_events_of_one_machine_are_where_they_were() {
    const RATE: u64 = (1 << 32) / 5 * 2;
    const DAY: u64 = 86_400 * 2_500_000_000;
    let off = |millionths: i64| {
        let rate = i128::from(RATE) * (1_000_000 + i128::from(millionths)) / 1_000_000;
        u64::try_from(rate).expect("it fits")
    };
    // They began at different moments, and something happened at one: a day, an hour and a millisecond later.
    for moment in [2_500_000, DAY / 24, DAY] {
        let all: Vec<_> = [(1_000, 0), (7_777_777, 47), (900_000_000, -47)]
            .into_iter()
            .map(|(origin, millionths)| {
                let rate = off(millionths);
                let now = 1_000_000_000 + moment;
                let at = (u128::from(now - origin) * u128::from(rate)) >> 32;
                let happened = event(What::Sent, at as u64, 1, [0; 3]);
                let bytes = recorded_at("/job:a", origin, rate, 9, &[happened]);
                recording(&bytes, "x").expect("it is one")
            })
            .collect();
        let times: Vec<u64> = aligned(&all).iter().map(|(_, event)| event.at).collect();
        // Each time was rounded to a nanosecond when it was recorded, and is once more here.
        assert!(
            times.iter().all(|at| at.abs_diff(times[0]) <= 2),
            "{moment}: {times:?}"
        );
        let clocks = timeline::Aligned::of(&all);
        assert!(clocks.iter().all(|clock| clock.error().is_none()));
    }
}

fn aligned(all: &[Recording]) -> Vec<(usize, Event)> {
    let mut found = Vec::new();
    let clocks = timeline::Aligned::of(all);
    for ((at, recording), clock) in all.iter().enumerate().zip(clocks) {
        found.extend(recording.events().into_iter().map(|event| {
            (
                at,
                Event {
                    at: clock.nanos(event.at),
                    ..event
                },
            )
        }));
    }
    found
}

#[test]
fn recordings_of_one_boot_share_their_time() {
    let all = pair([9, 9]);
    let events = aligned(&all);
    assert_eq!(events[1].1.at, 10_400);
    let text = timeline::render(&all, &timeline::Aligned::of(&all), &events);
    let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let events = value["traceEvents"].as_array().expect("a list");
    let slice = |name: &str| {
        let found = events
            .iter()
            .find(|event| event["name"] == name)
            .expect(name);
        (
            found["ts"].as_f64().expect("a time"),
            found["dur"].as_f64().unwrap_or(0.0),
        )
    };
    // The first event began at 9850: queued 100, matched 20, posted 30.
    assert_eq!(slice("queued"), (0.0, 0.1));
    assert_eq!(slice("posted"), (0.12, 0.03));
    assert_eq!(slice("wire"), (0.15, 0.3));
    assert_eq!(slice("woken"), (0.5, 0.05));
    assert_eq!(slice("waits in vain"), (1.15, 2.0));
    assert!(
        text.contains("gradient") && text.contains("\"ph\":\"s\"") && text.contains("\"ph\":\"f\"")
    );
}

/// Viewers leave out a slice that begins within another of its track and ends after it.
#[test]
fn values_that_overlap_have_tracks_of_their_own() {
    let mut events = Vec::new();
    for at in 0_u64..8 {
        let began = 10_000 + at * 100;
        events.push(event(What::Waits, began, at, [0, 1, 0]));
        events.push(event(What::Sent, began + 1_000, at, [700, 20, 30]));
        events.push(event(What::Took, began + 2_000, at, [500, 50, 1_200]));
    }
    events.sort_by_key(|event| event.at);
    let all = [0, 1].map(|shard| {
        let mut recording = recording(&recorded("/job:a", 1, 9, &events), "x").expect("it is one");
        recording.head.shard = shard;
        recording
    });
    let text = timeline::render(&all, &timeline::Aligned::of(&all), &aligned(&all));
    let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let shown = value["traceEvents"].as_array().expect("a list");
    let mut tracks = std::collections::BTreeMap::<_, Vec<(u64, u64)>>::new();
    for slice in shown.iter().filter(|event| event["ph"] == "X") {
        let nanos = |what: &str| (slice[what].as_f64().expect("a time") * 1e3).round() as u64;
        let from = nanos("ts");
        let track = slice["tid"].as_u64().expect("a track");
        tracks
            .entry(track)
            .or_default()
            .push((from, from + nanos("dur")));
    }
    let slices: usize = tracks.values().map(Vec::len).sum();
    assert_eq!(slices, 2 * 8 * 7);
    for (track, slices) in &tracks {
        for (from, until) in slices {
            let is_cut = |(other, end): &(u64, u64)| other < from && from < end && end < until;
            assert!(!slices.iter().any(is_cut), "{track}: {slices:?}");
        }
        let is_named =
            |event: &&serde_json::Value| event["name"] == "thread_name" && event["tid"] == *track;
        let names: Vec<_> = shown.iter().filter(is_named).collect();
        assert_eq!(names.len(), 1, "{track}");
    }
    // An arrow leaves from, and comes to, a track that has a slice there.
    for flow in shown.iter().filter(|event| event["cat"] == "value") {
        let at = (flow["ts"].as_f64().expect("a time") * 1e3).round() as u64;
        let slices = &tracks[&flow["tid"].as_u64().expect("a track")];
        assert!(
            slices
                .iter()
                .any(|(from, until)| (from..=until).contains(&&at)),
            "{flow}"
        );
    }
}

#[test]
fn recordings_of_two_machines_are_aligned_by_their_values() {
    let events = aligned(&pair([9, 8]));
    assert_eq!(
        events[1].1.at, 10_000,
        "the only pair is taken to have taken no time"
    );
    let all = pair([9, 8]);
    let clocks = timeline::Aligned::of(&all);
    assert_eq!(clocks[0].error(), None, "it is the first's own time");
    let error = clocks[1].error();
    assert!(error.is_some_and(|text| text.contains("unknown")));
    assert!(timeline::render(&all, &clocks, &events).contains("process_labels"));
}

#[test]
fn two_machines_that_talk_both_ways_are_aligned_within_what_the_quickest_took() {
    // The other's clock is 5000 behind; there it takes 300, and back 500.
    let one = recorded(
        "/job:a",
        1,
        9,
        &[
            event(What::Sent, 10_000, 5, [0; 3]),
            event(What::Took, 12_500, 6, [0; 3]),
        ],
    );
    let other = recorded(
        "/job:b",
        1,
        8,
        &[
            event(What::Took, 5_300, 5, [0; 3]),
            event(What::Sent, 7_000, 6, [0; 3]),
        ],
    );
    let all = [one, other].map(|bytes| recording(&bytes, "x").expect("it is one"));
    let clock = timeline::Aligned::of(&all)[1];
    assert_eq!(clock.error_ns, Some(400), "half of what both took together");
    assert_eq!(clock.nanos(5_300), 10_400, "100 off");
    let label = clock.error().expect("it is another's");
    assert!(label.starts_with("± 400"), "{label}");
}

/// Two machines that talked both ways within 800 ns, at the beginning and a day later, when their clocks were
/// 94 millionths of it further apart.
#[test]
fn a_day_later_events_of_two_machines_are_within_the_stated_error() {
    const DAY: u64 = 86_400_000_000_000;
    const APART: u64 = DAY / 1_000_000 * 94;
    let one = [
        event(What::Sent, 10_000, 5, [0; 3]),
        event(What::Took, DAY + 10_500, 6, [0; 3]),
    ];
    for is_quicker in [true, false] {
        let later = |at: u64| if is_quicker { at + APART } else { at - APART };
        let other = [
            event(What::Took, 10_300, 5, [0; 3]),
            event(What::Sent, later(DAY + 10_000), 6, [0; 3]),
        ];
        let all = [
            recorded("/job:a", 1, 9, &one),
            recorded("/job:b", 1, 8, &other),
        ]
        .map(|bytes| recording(&bytes, "x").expect("it is one"));
        let clock = timeline::Aligned::of(&all)[1];
        let error = clock.error_ns.expect("they talked both ways");
        // When each happened by the first's clock, and where it is shown.
        for (event, at) in other.iter().zip([10_300, DAY + 10_000]) {
            let off = clock.nanos(event.at).abs_diff(at);
            assert!(off <= error, "{off} off, said to be within {error}");
        }
    }
}

/// Of the other machine only one task talked to the first; the times of its neighbour stay with that one's.
#[test]
fn recordings_of_one_boot_stay_together() {
    let sent = event(What::Sent, 10_000, 5, [0; 3]);
    let took = event(What::Took, 6_000, 5, [0; 3]);
    let alone = event(What::Missed, 5_500, 6, [0; 3]);
    let all = [
        recorded("/job:a", 1, 9, &[sent]),
        recorded("/job:b", 1, 8, &[took]),
        // Its counter began 1000 ticks later.
        recorded("/job:c", 1_001, 8, &[alone]),
    ];
    let all = all.map(|bytes| recording(&bytes, "x").expect("it is one"));
    let times: Vec<u64> = aligned(&all).iter().map(|(_, event)| event.at).collect();
    assert_eq!(times, [10_000, 10_000, 10_500]);
}

#[test]
fn lives_of_one_task_have_tracks_of_their_own() {
    let of_life = |incarnation: u64, task: &str| {
        let mut bytes = recorded(task, 1, 9, &[event(What::Missed, 1, 1, [0; 3])]);
        bytes[4 * 8..5 * 8].copy_from_slice(&incarnation.to_le_bytes());
        recording(&bytes, "x").expect("it is one")
    };
    let all = [
        of_life(1, "/job:a"),
        of_life(2, "/job:a"),
        of_life(3, "/job:b"),
    ];
    let text = timeline::render(&all, &timeline::Aligned::of(&all), &aligned(&all));
    let value: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let events = value["traceEvents"].as_array().expect("a list");
    let names = events
        .iter()
        .filter(|event| event["name"] == "process_name");
    let names: Vec<_> = names
        .map(|event| (event["pid"].as_u64(), event["args"]["name"].as_str()))
        .collect();
    let expected = [
        (Some(1), Some("/job:a life 0000000000000001")),
        (Some(2), Some("/job:a life 0000000000000002")),
        (Some(3), Some("/job:b")),
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_step_that_is_traced_shows_its_trace() {
    let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let trace: rendez::ground::Traceparent = text.parse().expect("it is one");
    let traced = Event::traced(9_000, 5, &trace);
    let sent = event(What::Sent, 10_000, 5, [1, 2, 3]);
    let other = event(What::Sent, 11_000, 6, [1, 2, 3]);
    let bytes = recorded("/job:a", 1, 9, &[traced, sent, other]);
    let all = [recording(&bytes, "x").expect("it is one")];
    let events = all[0].events();
    assert_eq!(events[0].traceparent(), Some(trace));
    assert_eq!(events[1].traceparent(), None);
    assert_eq!(took(&events[0]), text);
    let rendered = timeline::render(&all, &timeline::Aligned::of(&all), &aligned(&all));
    let value: serde_json::Value = serde_json::from_str(&rendered).expect("it is JSON");
    for event in value["traceEvents"].as_array().expect("a list") {
        let args = &event["args"];
        if event["ph"] == "X" || event["ph"] == "i" {
            let expected = if args["step"] == 5 {
                text.into()
            } else {
                serde_json::Value::Null
            };
            assert_eq!(args["traceparent"], expected, "{event}");
        }
    }
}

#[test]
fn what_a_recording_says_reaches_no_terminal_as_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    let sent = event(What::Sent, 1, 1, [0; 3]);
    let mut words = vec!["rendez".into(), "dump".into()];
    for boot in [1, 2] {
        let path = folder.path().join(format!("{boot}.rdz"));
        let task = "/job:a\x1b[2J\nb";
        let bytes = recorded_of(task, ";;;edge\x1b[2J\rx", 1, 1 << 32, boot, &[sent]);
        std::fs::write(&path, bytes).expect("written");
        words.push(path.into_os_string());
    }
    let said = folder.path().join("said");
    let file = std::fs::File::create(&said).expect("writable");
    let mut terminal = Terminal::into_writer(Box::new(file), None);
    assert_eq!(crate::run(words, &mut terminal, &mut Vec::new()), 0);
    let text = std::fs::read_to_string(said).expect("a text");
    for part in [
        "edge\\u{1b}[2J\\rx",
        "/job:a\\u{1b}[2J\\nb",
        "another clock",
    ] {
        assert!(text.contains(part), "{part}: {text:?}");
    }
    assert!(!text.contains(['\x1b', '\r']), "{text:?}");
}

#[test]
fn nothing_is_said_to_be_recorded_only_where_nothing_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.rdz");
    let bytes = recorded("/job:a", 1, 1, &[event(What::Sent, 9_000, 1, [0; 3])]);
    std::fs::write(&path, bytes).expect("written");
    for (option, number, wanted) in [
        ("--last", "0", ""),
        ("--step", "9", "nothing is recorded of step 9\n"),
    ] {
        let said = folder.path().join("said");
        let file = std::fs::File::create(&said).expect("writable");
        let mut terminal = Terminal::into_writer(Box::new(file), None);
        let words = ["rendez", "dump", option, number].map(std::ffi::OsString::from);
        let words = words.into_iter().chain([path.clone().into_os_string()]);
        assert_eq!(crate::run(words, &mut terminal, &mut Vec::new()), 0);
        let said = std::fs::read_to_string(said).expect("a text");
        assert_eq!(said, wanted, "{option}");
    }
}

#[test]
fn numbers_that_no_counter_comes_to_end_nothing() {
    for rate in [0, 1, u64::MAX] {
        let late = [What::Sent, What::Took].map(|what| event(what, u64::MAX, 1, [u32::MAX; 3]));
        let early = [event(What::Sent, 0, 1, [u32::MAX; 3])];
        let of = |task: &str, ticks, boot, events: &[Event]| {
            let bytes = recorded_at(task, ticks, rate, boot, events);
            recording(&bytes, "x").expect("a recording")
        };
        let all = [
            of("/job:a", 0, 1, &late),
            of("/job:b", u64::MAX / 2, 1, &early),
            of("/job:c", 1 << 63, 2, &late),
        ];
        assert_eq!(aligned(&all).len(), 5);
    }
}

/// The exit code of `dump --json` of these files, and what it lists.
fn listed(files: &[(&str, Vec<u8>)]) -> (u8, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut arguments = vec!["rendez".into(), "dump".into(), "--json".into()];
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("is written");
        arguments.push(path.into_os_string());
    }
    let listed = folder.path().join("listed");
    let out = std::fs::File::create(&listed).expect("a file");
    let mut terminal = Terminal::into_writer(Box::new(out), None);
    let code = crate::run(arguments, &mut terminal, &mut std::io::stderr());
    (code, std::fs::read_to_string(listed).expect("a list"))
}

/// A task that was asked leaves a copy beside its recorder, which goes on.
#[test]
fn what_two_copies_of_a_recording_have_is_listed_once() {
    // Two events may be alike, and are two.
    let events = [5, 5, 6].map(|step| event(What::Sent, 9_000, step, [0, 20, 30]));
    let (code, listed) = listed(&[
        ("a.rdz", recorded("/job:a", 1, 1, &events)),
        ("a-asked.rdz", recorded("/job:a", 1, 1, &events[..2])),
        ("b.rdz", recorded("/job:b", 1, 1, &events[..1])),
    ]);
    let count = |task: &str| listed.lines().filter(|line| line.contains(task)).count();
    assert_eq!(
        (code, count("/job:a\""), count("/job:b\"")),
        (0, 3, 1),
        "{listed}"
    );
}

/// As beside those of an earlier version, and what a crash left half made.
#[test]
fn a_file_that_cannot_be_read_hides_no_other() {
    let events = [event(What::Sent, 9_000, 5, [0, 20, 30])];
    let whole = recorded("/job:a", 1, 1, &events);
    let mut other = whole.clone();
    other[8] += 1;
    let zeros = vec![0; whole.len()];
    // Of one there is nothing to list.
    assert_eq!(listed(&[("1.rdz", other.clone())]), (1, String::new()));
    let (code, listed) = listed(&[("0.rdz", zeros), ("1.rdz", other), ("2.rdz", whole)]);
    assert_eq!(code, 1, "{listed}");
    for part in ["RECORDING_MALFORMED", "RECORDING_VERSION", "\"step\":5"] {
        assert!(listed.contains(part), "{part} in {listed}");
    }
}

#[test]
fn a_recorder_that_was_removed_is_one_still() {
    for target in [
        "/run/rendez/rendez-job-a-1-2-0.rdz",
        "/run/rendez/rendez-job-a-1-2-0.rdz (deleted)",
        "/memfd:rendez-recorder (deleted)",
    ] {
        assert!(is_recorder(target), "{target}");
    }
    assert!(!is_recorder("/tmp/log (deleted)") && !is_recorder("socket:[7]"));
}

#[test]
fn what_is_no_recording_says_why() {
    let whole = recorded("/job:a", 1, 1, &[]);
    let reason = |bytes: &[u8]| recording(bytes, "x").expect_err("it is none").reason();
    assert_eq!(reason(b"no"), "RECORDING_MALFORMED");
    assert_eq!(reason(&whole[..whole.len() / 2]), "RECORDING_MALFORMED");
    let mut other = whole;
    other[8] += 1;
    assert_eq!(reason(&other), "RECORDING_VERSION");
    assert_eq!(
        recorders_of(u32::MAX).expect_err("nobody").reason(),
        "FILE_UNREADABLE"
    );
}

#[test]
fn a_recording_that_cannot_be_read_hides_no_other() {
    let whole = recorded("/job:a", 1, 1, &[]);
    let mut other = whole.clone();
    other[8] += 1;
    let (readable, others) = sorted("a", &[(0, other), (1, whole)]);
    let reasons: Vec<_> = others.iter().map(Status::reason).collect();
    assert_eq!((readable.len(), reasons), (1, vec!["RECORDING_VERSION"]));
    assert!(others[0].message().contains("a shard 0"), "{}", others[0]);
}

#[test]
fn a_task_has_no_more_shards_than_there_can_be() {
    let mut asked = 0;
    let found = all_shards(|_| {
        asked += 1;
        Ok((Vec::new(), u32::MAX))
    });
    assert_eq!((found, asked), (Ok(vec![]), u32::from(SHARDS_MAX)));
}
