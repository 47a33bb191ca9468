//! Keys: the original's rules for the text, the published hash, and what handles share.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;
use crate::ground::Code;

const A: &str = "/job:a/replica:0/task:0/device:CPU:0";
const B: &str = "/job:b/replica:0/task:0/device:CPU:0";

fn device(text: &str) -> DeviceName {
    DeviceName::parse(text).unwrap()
}

#[test]
fn text_form() {
    let source = device("/job:mnist/replica:1/task:2/cpu:0");
    let destination = device("/job:mnist/replica:1/task:2/device:GPU:0");
    let key = Key::new(
        &source,
        Incarnation(7890),
        &destination,
        "var0",
        FrameIter::default(),
    )
    .unwrap();
    let text = "/job:mnist/replica:1/task:2/device:CPU:0;0000000000001ed2;\
                /job:mnist/replica:1/task:2/device:GPU:0;var0;0:0";
    assert_eq!(key.text(), text);
    assert_eq!(key.to_string(), text);
    assert_eq!(format!("{key:?}"), format!("Key({text})"));

    let parsed: Key = text.parse().unwrap();
    assert_eq!(parsed, key);
    assert_eq!(parsed.source(), &source);
    assert_eq!(
        parsed.source_text(),
        "/job:mnist/replica:1/task:2/device:CPU:0"
    );
    assert_eq!(
        parsed.source_task().to_string(),
        "/job:mnist/replica:1/task:2"
    );
    assert_eq!(parsed.source_incarnation(), Incarnation(7890));
    assert_eq!(parsed.destination(), &destination);
    assert_eq!(
        parsed.destination_text(),
        "/job:mnist/replica:1/task:2/device:GPU:0"
    );
    assert_eq!(parsed.destination_task(), parsed.source_task());
    assert_eq!(parsed.edge(), "var0");
    assert_eq!(parsed.frame_iter(), FrameIter::default());
}

#[test]
fn malformed_texts_say_so() {
    use KeyFault::{Destination, Edge, Fields, FrameIter, Incarnation, Source};
    let good = format!("{A};1;{B};x;0:0");
    for (text, expected) in [
        (String::new(), Fields),
        (format!("{A};1;{B}"), Fields),
        (format!("{A};1;{B};x"), Fields),
        (format!("{good};"), Fields),
        (format!("{good}{good}"), Fields),
        (format!("{good};{good}"), Fields),
        (format!("/job:a/task:0/cpu:0;1;{B};x;0:0"), Source),
        (format!("a;1;{B};x;0:0"), Source),
        (format!("{A};;{B};x;0:0"), Incarnation),
        (format!("{A};g;{B};x;0:0"), Incarnation),
        (format!("{A};0x1;{B};x;0:0"), Incarnation),
        (format!("{A};+1;{B};x;0:0"), Incarnation),
        (format!("{A};00000000000000001;{B};x;0:0"), Incarnation),
        (format!("{A};1;/job:b;x;0:0"), Destination),
        (format!("{A};1;{B};;0:0"), Edge),
        (
            format!("{A};1;{B};{};0:0", "e".repeat(EDGE_NAME_BYTES_MAX + 1)),
            Edge,
        ),
        (format!("{A};1;{B};x;"), FrameIter),
        (format!("{A};1;{B};x;0"), FrameIter),
        (format!("{A};1;{B};x;0:"), FrameIter),
        (format!("{A};1;{B};x;0:0:0"), FrameIter),
        (format!("{A};1;{B};x;-1:0"), FrameIter),
        (format!("{A};1;{B};x;+1:0"), FrameIter),
        (format!("{A};1;{B};x;0:18446744073709551616"), FrameIter),
        (format!("{A};1;{B};x;while:0"), FrameIter),
    ] {
        let error = Key::parse(&text).unwrap_err();
        assert_eq!(
            error,
            KeyError::Malformed {
                text: text.as_str().into(),
                fault: expected
            }
        );
        let status = Status::from(error);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.reason(), "KEY_MALFORMED");
        assert_eq!(status.message(), format!("Invalid  rendezvous key: {text}"));
        assert!(!status.is_derived());
    }
}

#[test]
fn the_echo_of_a_refused_text_is_bounded() {
    let absurd = "é".repeat(1 << 20);
    let error = Key::parse(&absurd).unwrap_err();
    assert!(matches!(
        &error,
        KeyError::Malformed {
            fault: KeyFault::TooLong,
            ..
        }
    ));
    let message = error.to_string();
    assert!(message.starts_with("Invalid  rendezvous key: éé"));
    assert!(message.ends_with("… (2097152 bytes)"));
    assert!(message.len() < KEY_TEXT_BYTES_MAX + 64);
    let edge = Key::between("a", "b", &absurd).unwrap_err().to_string();
    assert!(edge.len() < 2 * EDGE_NAME_BYTES_MAX, "{}", edge.len());
}

#[test]
fn the_widest_key_fits_its_bound() {
    let end = |job: &str| {
        let (job, kind) = (job.repeat(128), "K".repeat(64));
        device(&format!(
            "/job:{job}/replica:4294967295/task:4294967295/device:{kind}:4294967295"
        ))
    };
    let edge = "e".repeat(EDGE_NAME_BYTES_MAX);
    let last = FrameIter {
        frame: u64::MAX,
        iter: u64::MAX,
    };
    let key = Key::new(&end("a"), Incarnation(u64::MAX), &end("b"), &edge, last).unwrap();
    assert!(key.text().len() <= KEY_TEXT_BYTES_MAX);
    assert_eq!(Key::parse(&key.text()).unwrap(), key);
    assert_eq!(key.edge(), edge);
}

#[test]
fn other_spellings_are_the_same_key() {
    let key = Key::between("a", "b", "x").unwrap();
    let spelled = format!("/cpu:0/task:0/replica:00/job:a;0;{B};x;000:0");
    assert_eq!(Key::parse(&spelled).unwrap(), key);
    assert_eq!(Key::parse(&spelled).unwrap().hash(), key.hash());
    let upper = Key::parse(&format!("{A};00000000DEADBEEF;{B};x;0:0")).unwrap();
    assert_eq!(
        upper,
        Key::parse(&format!("{A};deadbeef;{B};x;0:0")).unwrap()
    );
    assert_eq!(upper.source_incarnation(), Incarnation(0xdead_beef));
}

#[test]
fn between_names() {
    let key = Key::between("a", "b", "x").unwrap();
    assert_eq!(key.text(), format!("{A};0000000000000000;{B};x;0:0"));
    assert!(key.source_incarnation().is_current());
    for (source, destination) in [
        (A, B),
        ("/job:a", "/job:b/cpu:0"),
        ("/job:a/task:0", "b"),
        ("/job:a/device:CPU", "/job:b/device:*:0"),
    ] {
        assert_eq!(
            Key::between(source, destination, "x").unwrap(),
            key,
            "{source} {destination}"
        );
    }
    let other = Key::between("/job:a/task:3", "/job:b/gpu:1", "x").unwrap();
    assert_eq!(other.source_text(), "/job:a/replica:0/task:3/device:CPU:0");
    assert_eq!(
        other.destination_text(),
        "/job:b/replica:0/task:0/device:GPU:1"
    );

    for (source, destination) in [
        ("", "b"),
        ("a", ""),
        ("a b", "b"),
        ("/task:0", "b"),
        ("/", "b"),
        ("a", "CPU:0"),
    ] {
        let error = Key::between(source, destination, "x").unwrap_err();
        assert!(
            matches!(error, KeyError::Source(_) | KeyError::Destination(_)),
            "{source} {destination}"
        );
        assert_eq!(Status::from(error).reason(), catalogue::KEY_MALFORMED);
    }
    for edge in ["", ";", "a;b"] {
        assert_eq!(
            Key::between("a", "b", edge),
            Err(KeyError::Edge(edge.into()))
        );
    }
    let partial = Key::new(
        &device("/job:a"),
        Incarnation(1),
        &device(B),
        "x",
        FrameIter::default(),
    );
    assert!(matches!(partial, Err(KeyError::Source(_))));
}

/// The table of the module's documentation; computed apart from this code.
#[test]
fn published_hashes() {
    let mnist = "/job:mnist/replica:1/task:2/device:";
    for (source, destination, edge, hash) in [
        (A, B, "x", 0xbad9_9482_2302_284e_u64),
        (
            &format!("{mnist}CPU:0"),
            &format!("{mnist}GPU:0"),
            "var0",
            0x3080_ac1e_4202_4cbf,
        ),
        (B, A, "x", 0x1325_61e7_0bb5_8cf6),
    ] {
        let key = Key::between(source, destination, edge).unwrap();
        assert_eq!(key.hash(), hash);
        assert_eq!(
            key.with_source_incarnation(Incarnation(9)).hash(),
            hash,
            "a restart moves no key"
        );
        assert_eq!(
            key.at(FrameIter { frame: 1, iter: 2 }).hash(),
            hash,
            "a loop moves no key"
        );
        for shards in [1, 2, 3, 7, u32::MAX] {
            assert_eq!(u64::from(key.shard_of(shards)), hash % u64::from(shards));
        }
        assert_eq!(key.shard_of(0), 0);
    }
}

#[test]
fn a_number_gives_a_key_to_the_first_shard() {
    for (shards, numbers) in [(1, 1), (2, 64), (840, 16 * 840)] {
        let key = Key::between("a", "b", "edge/").unwrap();
        let owned = key.owned_by_first(shards, numbers).unwrap();
        assert_eq!(owned.shard_of(shards), 0);
        let number: u32 = owned.edge().strip_prefix("edge/").unwrap().parse().unwrap();
        for smaller in 0..number {
            let other = Key::between("a", "b", &format!("edge/{smaller}")).unwrap();
            assert_ne!(other.shard_of(shards), 0, "{smaller}");
        }
        assert_eq!(key.owned_by_first(shards, number), None);
    }
    let long = "e".repeat(EDGE_NAME_BYTES_MAX);
    let long = Key::between("a", "b", &long).unwrap();
    assert_eq!(long.owned_by_first(1, 1), None);
}

#[test]
fn hashes_spread_over_shards() {
    for shards in [2u32, 3, 4, 8, 64] {
        let mut counts = vec![0u32; shards as usize];
        let count = 1000 * shards;
        for index in 0..count {
            counts[Key::between("a", "b", &index.to_string())
                .unwrap()
                .shard_of(shards) as usize] += 1;
        }
        // Even as a binomial spread allows: 1000 ± 6 standard deviations of about 32.
        assert!(
            counts.iter().all(|&count| (800..1200).contains(&count)),
            "{shards}: {counts:?}"
        );
    }
}

#[test]
fn a_loop_shares_the_route() {
    let key = Key::between("a", "b", "x").unwrap();
    let next = key.at(FrameIter { frame: 3, iter: 4 });
    assert!(Arc::ptr_eq(&key.route, &next.route));
    assert_ne!(key, next);
    assert_eq!(next.text(), format!("{A};0000000000000000;{B};x;3:4"));
    assert_eq!(Key::parse(&next.text()).unwrap(), next);
    assert_eq!(next.at(FrameIter::default()), key);
    assert!(size_of::<Key>() <= 24, "a handle and two numbers");
}

#[test]
fn every_field_counts() {
    let key = Key::between("a", "b", "x").unwrap();
    let others = [
        key.clone(),
        Key::between("c", "b", "x").unwrap(),
        Key::between("a", "c", "x").unwrap(),
        Key::between("a", "b", "y").unwrap(),
        key.with_source_incarnation(Incarnation(1)),
        key.at(FrameIter { frame: 1, iter: 0 }),
        key.at(FrameIter { frame: 0, iter: 1 }),
    ];
    let distinct: HashSet<Key> = others.iter().cloned().collect();
    assert_eq!(distinct.len(), others.len());
    assert!(distinct.contains(&Key::parse(&key.text()).unwrap()));
    assert_eq!(
        key.with_source_incarnation(Incarnation(1))
            .source_incarnation(),
        Incarnation(1)
    );
    assert_eq!(key.with_source_incarnation(Incarnation(0)), key);
}

fn any_end() -> impl Strategy<Value = DeviceName> {
    (
        "[A-Za-z][A-Za-z0-9_]{0,127}",
        any::<u32>(),
        any::<u32>(),
        "[A-Za-z][A-Za-z0-9_]{0,63}",
        any::<u32>(),
    )
        .prop_map(|(job, replica, task, kind, index)| {
            DeviceName::new(&TaskName::new(&job, replica, task).unwrap(), &kind, index).unwrap()
        })
}

#[test]
fn numbers_may_begin_with_zeros_and_names_may_be_numbers() {
    let key = |text: &str| Key::parse(&format!("{A};0000000000001ed2;{B};{text}")).unwrap();
    assert_eq!(key("x;00:01"), key("x;0:1"));
    assert!(key("x;00:01").text().ends_with(";x;0:1"));
    assert_ne!(key("x:01;0:0"), key("x:1;0:0"));
    assert_ne!(key("01;0:0"), key("1;0:0"));
}

proptest! {
    #[test]
    fn parse_undoes_emit(
        source in any_end(),
        incarnation in any::<u64>(),
        destination in any_end(),
        edge in "[^;]{1,64}",
        frame in any::<u64>(),
        iter in any::<u64>(),
    ) {
        let frame_iter = FrameIter { frame, iter };
        let key = Key::new(&source, Incarnation(incarnation), &destination, &edge, frame_iter).unwrap();
        prop_assert_eq!(key.source_text(), source.to_string());
        prop_assert_eq!(key.destination_text(), destination.to_string());
        prop_assert_eq!(key.edge(), &edge);
        let parsed = Key::parse(&key.text()).unwrap();
        prop_assert_eq!(&parsed, &key);
        prop_assert_eq!(parsed.hash(), key.hash());
        prop_assert_eq!(parsed.source(), &source);
        prop_assert_eq!(parsed.destination(), &destination);
        prop_assert_eq!(parsed.source_incarnation(), Incarnation(incarnation));
        prop_assert_eq!(parsed.frame_iter(), frame_iter);
    }

    #[test]
    fn no_text_panics(text in "([;:/é]|job:a|replica:0|task:1|cpu:0|[0-9a-g]|\\PC){0,24}") {
        if let Ok(key) = Key::parse(&text) {
            prop_assert_eq!(Key::parse(&key.text()).unwrap(), key);
        }
        let _ = Key::between(&text, &text, &text);
    }

    /// A text made from a good one by one small change: the paths close to success.
    #[test]
    fn near_misses_do_not_panic(at in 0usize..90, byte in 0u8..128) {
        let mut text = format!("{A};0000000000001ed2;{B};x;0:0").into_bytes();
        let at = at % text.len();
        text[at] = byte;
        let text = String::from_utf8(text).unwrap();
        if let Ok(key) = Key::parse(&text) {
            prop_assert_eq!(Key::parse(&key.text()).unwrap(), key);
        }
    }
}

#[test]
fn keys_of_one_route_are_told_from_others() {
    let key = Key::between("a", "b", "x").unwrap();
    let again = Key::between("/job:a/task:0", "/job:b/task:0", "x").unwrap();
    let other_turn = again.at(FrameIter { frame: 3, iter: 4 });
    let other_life = again.with_source_incarnation(Incarnation(9));
    for same in [&key.clone(), &again, &other_turn, &other_life] {
        assert!(key.is_of_route(same), "{same}");
    }
    for (source, destination, edge) in [("a", "b", "y"), ("b", "a", "x"), ("a", "c", "x")] {
        let other = Key::between(source, destination, edge).unwrap();
        assert!(!key.is_of_route(&other), "{other}");
    }
}
