//! The recorder: buckets, events, and what is no recording.

use std::sync::atomic::AtomicBool;

use super::*;

fn head() -> Head {
    Head {
        task: "/job:a/replica:0/task:0".into(),
        incarnation: 7,
        shard: 3,
        pid: 42,
        sampling: 64,
        clock_ns: 9,
        scale: Scale {
            ticks: 5,
            nanos: 6,
            rate: 1 << 32,
        },
        boot: 9,
    }
}

fn recorder(ring_bytes: usize) -> Recorder {
    let words = Words::anonymous(words_for(ring_bytes)).expect("memory");
    Recorder::new(words, ring_bytes, &head())
}

fn bytes_of(recorder: &Recorder) -> Vec<u8> {
    recorder
        .copy()
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

fn event(step: u64) -> Event {
    Event {
        what: What::Took,
        at: 100 + step,
        way: Way::ShmLease,
        class: 2,
        step,
        key: 0xfeed,
        frame_iter: (1, 2),
        ordinal: 3,
        a: 4,
        b: 5,
        c: u32::MAX,
    }
}

#[test]
fn a_bucket_is_within_one_part_in_128_of_every_time_in_it() {
    let mut last = 0;
    for nanos in
        (0..1 << 12).chain((12..36).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 77]))
    {
        let bucket = bucket_of(nanos);
        assert!(bucket >= last && bucket < BUCKETS, "{nanos}");
        last = bucket;
        assert!(
            time_of(bucket).abs_diff(nanos) * 128 <= nanos.max(1),
            "{nanos}: {}",
            time_of(bucket)
        );
    }
    assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
}

#[test]
fn every_cell_is_its_own() {
    let mut seen = std::collections::BTreeSet::new();
    for &stage in Stage::ALL {
        for &way in Way::ALL {
            for class in 0..CLASSES.len() {
                assert!(seen.insert(cell_of(stage, way, class)));
            }
        }
    }
    assert_eq!((seen.len(), seen.last()), (CELLS, Some(&(CELLS - 1))));
    assert_eq!(
        [0, 64, 65, 1024, 1 << 20, u64::MAX].map(class_of),
        [0, 0, 1, 1, 3, 4]
    );
}

#[test]
fn what_is_recorded_is_read_back() {
    let recorder = recorder(1 << 12);
    let cell = cell_of(Stage::Wire, Way::TcpCopy, 4);
    assert_eq!(recorder.cell(cell), None);
    recorder.record(cell, 100);
    recorder.record(cell, 100);
    recorder.record(cell, 5);
    assert_eq!(recorder.cell(cell), Some((205, vec![(5, 1), (100, 2)])));
    recorder.name(0xfeed, "a;b;gradient");
    for step in 0..70 {
        recorder.event(step, &event(step));
    }
    let recording = Recording::of(&bytes_of(&recorder)).expect("it is one");
    assert_eq!(recording.head, head());
    let steps: Vec<u64> = recording.events().iter().map(|event| event.step).collect();
    assert_eq!(
        steps,
        (6..70).collect::<Vec<u64>>(),
        "the ring keeps the last 64"
    );
    assert_eq!(recording.events()[63], event(69));
    assert_eq!(recording.name_of(0xfeed).as_deref(), Some("a;b;gradient"));
    assert_eq!(recording.name_of(0xbeef), None);
}

#[test]
fn without_a_ring_events_are_forgotten() {
    let recorder = recorder(0);
    recorder.event(0, &event(0));
    let recording = Recording::of(&bytes_of(&recorder)).expect("it is one");
    assert!(recording.events().is_empty());
}

/// An event all of whose fields follow from its number.
fn told_by(number: u64) -> Event {
    let few = number as u32;
    Event {
        at: number,
        class: (number % 5) as u8,
        step: !number,
        key: number << 7,
        frame_iter: (few, !few),
        ordinal: few << 3,
        a: few ^ 1,
        b: few ^ 2,
        c: few ^ 3,
        ..event(0)
    }
}

#[test]
fn an_event_that_is_copied_while_it_is_written_is_whole_or_left_out() {
    let recorder = recorder(1 << 12);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                recorder.event(number, &told_by(number));
                number += 1;
            }
        });
        let mut found = 0;
        let mut wrong = None;
        for _ in 0..100 {
            let words = recorder.copy();
            let head = head();
            for (number, event) in (Recording { words, head }).numbered_events() {
                found += 1;
                if event != told_by(number - 1) {
                    wrong = wrong.or(Some((number, event)));
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None);
        assert!(found > 0);
    });
}

#[test]
fn an_event_under_the_number_of_another_slot_is_left_out() {
    let recorder = recorder(1 << 12);
    (0..3).for_each(|number| recorder.event(number, &event(number)));
    let mut words = recorder.copy();
    words[recorder.ring_at + EVENT_WORDS + 7] += 1;
    let recording = Recording {
        words,
        head: head(),
    };
    let steps: Vec<u64> = recording.events().iter().map(|event| event.step).collect();
    assert_eq!(steps, [0, 2]);
}

#[test]
fn what_is_no_recording_is_refused_and_nothing_panics() {
    let whole = bytes_of(&recorder(1 << 12));
    let refused = |bytes: &[u8]| Recording::of(bytes).expect_err("it is none");
    assert_eq!(refused(b""), NotRecorded::Foreign);
    assert_eq!(
        refused(b"#[Histogram log format version 1.3]\n"),
        NotRecorded::Foreign
    );
    assert_eq!(refused(&whole[..whole.len() - 8]), NotRecorded::Damaged);
    assert_eq!(refused(&whole[..64]), NotRecorded::Damaged);
    assert_eq!(refused(&whole[..8]), NotRecorded::Damaged);
    let mut other = whole.clone();
    other[8] = 9;
    assert_eq!(refused(&other), NotRecorded::Version(9));
    // Whatever stands in the head and the ring, it is read without a fault.
    let mut recording = Recording::of(&whole).expect("it is one");
    let events = whole.len() - 4096..whole.len();
    for at in (0..2048).step_by(3).chain(events) {
        let hurt = 0xff << (at % 8 * 8);
        recording.words[at / 8] ^= hurt;
        if let Ok(head) = Recording::head_of(&recording.words) {
            recording.head = head;
            let _ = (recording.events(), recording.name_of(0xfeed));
        }
        recording.words[at / 8] ^= hurt;
    }
}

/// Of `count` keys, whose names are said in order, how many are known at the end.
fn known_of(count: usize) -> usize {
    use crate::ground::Key;
    let recorder = recorder(0);
    let keys: Vec<Key> = (0..count)
        .map(|edge| Key::between("worker", "ps", &format!("edge_{edge}_gradient")).expect("a key"))
        .collect();
    for key in &keys {
        recorder.name(key.hash(), &key.to_string());
    }
    let recording = Recording::of(&bytes_of(&recorder)).expect("it is one");
    let is_known = |key: &&Key| recording.name_of(key.hash()) == Some(key.to_string());
    keys.iter().filter(is_known).count()
}

#[test]
fn the_names_of_a_thousand_keys_are_kept() {
    assert_eq!(known_of(1000), 1000);
    // Of as many as there are places a few have no room near their own.
    assert!(known_of(4096) > 3500, "{}", known_of(4096));
    // Of more the last are known, and a table full of names is no reason to forget all of them.
    assert!(known_of(10_000) > 3500);
}

#[test]
fn a_name_that_is_said_again_outlives_others() {
    let recorder = recorder(0);
    recorder.name(0xfeed, "live");
    for other in 0..1000 {
        // All of the same places.
        recorder.name((other << 20) | 0xfeed, "one of many");
        if other % 10 == 0 {
            recorder.name(0xfeed, "live, still");
        }
    }
    let recording = Recording::of(&bytes_of(&recorder)).expect("it is one");
    assert_eq!(recording.name_of(0xfeed).as_deref(), Some("live, still"));
    assert_eq!(
        recording.name_of(7 << 20 | 0xfeed),
        None,
        "the oldest made room"
    );
    let long = "x".repeat(1000);
    recorder.name(1, &long);
    recorder.name(1, "short");
    recorder.name(2, &long);
    let recording = Recording::of(&bytes_of(&recorder)).expect("it is one");
    assert_eq!(recording.name_of(1).as_deref(), Some("short"));
    assert_eq!(recording.name_of(2).as_deref(), Some(&long[..240]));
    assert_eq!(recording.name_of(0), None);
}
