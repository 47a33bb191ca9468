//! Each kind of value: what is read, what is refused and with which code, and how values are shown.

use proptest::prelude::*;

use super::*;

#[test]
fn sizes_read_as_written() {
    for (text, size) in [
        ("4", 4),
        ("64KiB", 65_536),
        ("1g", 1 << 30),
        ("1.5MiB", 1_572_864),
        ("2kB", 2_000),
        ("8 b", 8),
    ] {
        assert_eq!(bytes(text), Ok(size), "{text}");
    }
}

#[test]
fn bad_sizes_are_refused_with_their_code() {
    for text in ["", "x", "KiB", "4 q", "1.0001", "-4", "1..5k", "4KiBs"] {
        assert_eq!(
            bytes(text).unwrap_err().reason(),
            "SIZE_MALFORMED",
            "{text}"
        );
    }
    let long = "9".repeat(40);
    for text in [
        "0",
        "65GiB",
        "1t",
        "9999999999999999999",
        &long,
        &format!("{long}t"),
    ] {
        assert_eq!(
            bytes(text).unwrap_err().reason(),
            "SIZE_OUT_OF_RANGE",
            "{text}"
        );
    }
    assert!(
        bytes("4 q")
            .unwrap_err()
            .to_string()
            .contains("'q' is no unit")
    );
}

#[test]
fn ranges_and_lists_expand() {
    assert_eq!(sizes("4,64,1KiB").unwrap().0, [4, 64, 1024]);
    assert_eq!(sizes("8:512:x4").unwrap().0, [8, 32, 128, 512]);
    assert_eq!(
        sizes("8:100:x4").unwrap().0,
        [8, 32, 100],
        "the last size is always measured"
    );
    assert_eq!(sizes("4, 64:64:2").unwrap().0, [4, 64]);
}

#[test]
fn bad_ranges_are_refused() {
    for text in [
        "64:8:x2",
        "8:64:x1",
        "8:64:x0",
        "8:64:",
        "8:64",
        "1:2:3:4",
        "1:64g:x2,1:64g:x2",
    ] {
        assert_eq!(sizes(text).unwrap_err().reason(), "SIZE_RANGE", "{text}");
    }
    assert_eq!(sizes("4,,8").unwrap_err().reason(), "SIZE_MALFORMED");
}

#[test]
fn durations_need_a_unit() {
    assert_eq!(duration("50ms"), Ok(Duration::from_millis(50)));
    assert_eq!(duration("1.1ms"), Ok(Duration::from_nanos(1_100_000)));
    assert_eq!(duration("2 s"), Ok(Duration::from_secs(2)));
    assert_eq!(duration("0s"), Ok(Duration::ZERO));
    assert_eq!(duration("0000000000000000000000002s"), duration("2s"));
    let long = "9".repeat(40);
    for text in [
        "25h",
        "18446744073709551616ns",
        &format!("{long}h"),
        &format!("{long}.5s"),
    ] {
        let refused = duration(text).unwrap_err();
        assert_eq!(refused.reason(), "DURATION_OUT_OF_RANGE", "{text}");
    }
    for text in ["5", "", "ms", "5 fortnights", "0.5ns", "9.9.9s", ".5s"] {
        assert_eq!(
            duration(text).unwrap_err().reason(),
            "DURATION_MALFORMED",
            "{text}"
        );
    }
    assert_eq!(
        duration("25h").unwrap_err().reason(),
        "DURATION_OUT_OF_RANGE"
    );
    assert_eq!(
        positive_duration("0ms").unwrap_err().reason(),
        "DURATION_OUT_OF_RANGE"
    );
}

#[test]
fn rates_read_as_written() {
    for (text, found) in [
        ("1e6", 1e6),
        ("100k", 1e5),
        ("2.5M", 2.5e6),
        ("250000", 250_000.0),
        ("10k/s", 1e4),
    ] {
        assert_eq!(rate(text), Ok(found), "{text}");
    }
    for text in ["", "k", "inf", "nan", "-1", "1e", "fast"] {
        assert_eq!(rate(text).unwrap_err().reason(), "RATE_MALFORMED", "{text}");
    }
    for text in ["0", "1e10", "1e400"] {
        assert_eq!(
            rate(text).unwrap_err().reason(),
            "RATE_OUT_OF_RANGE",
            "{text}"
        );
    }
}

#[test]
fn values_are_shown_with_three_digits() {
    assert_eq!(show_bytes(4), "4B");
    assert_eq!(show_bytes(65_536), "64KiB");
    assert_eq!(show_bytes(1_239_748), "1.18MiB");
    assert_eq!(show_nanos(45.5), "45.5ns");
    assert_eq!(show_nanos(999.9), "1.00µs");
    assert_eq!(show_nanos(344_000.0), "344µs");
    assert_eq!(show_rate(14_800_000.0), "14.8M/s");
    assert_eq!(show_bandwidth(12.34e9), "12.3GB/s");
    assert_eq!(show_bandwidth(1e6), "0.0010GB/s");
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,24}") {
        let _ = (bytes(&text), sizes(&text), duration(&text), rate(&text));
    }

    #[test]
    fn number_shaped_text_does_not_panic(text in "[0-9.xkKmMgGiBbsuµnh:,e+-]{0,40}") {
        let _ = (bytes(&text), sizes(&text), duration(&text), rate(&text));
    }

    #[test]
    fn whole_bytes_survive_the_round_trip(size in 1..=SIZE_BYTES_MAX) {
        prop_assert_eq!(bytes(&format!("{size}")), Ok(size));
    }
}

#[test]
fn what_is_shown_exactly_reads_back() {
    for bytes in [0, 1, 1064, 1 << 10, (1 << 20) + 1, 64 << 20, 1 << 59] {
        assert_eq!(any_bytes(&exact_bytes(bytes)), Ok(bytes));
    }
    assert_eq!(exact_bytes(64 << 20), "64MiB");
    assert_eq!(
        any_bytes("17179869184TiB").unwrap_err().reason(),
        "SIZE_OUT_OF_RANGE"
    );
    for nanos in [0, 1, 1_500, 300_000_000, 10_000_000_000, 1_500_000_000] {
        let found = Duration::from_nanos(nanos);
        assert_eq!(duration(&exact_duration(found)), Ok(found));
    }
    assert_eq!(exact_duration(Duration::from_millis(1500)), "1500ms");
}
