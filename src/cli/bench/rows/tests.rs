//! Rows of what was found.

use clap::Parser;

use super::*;
use crate::args::{BenchArgs, Cli, Command};

fn case_of(options: &[&str]) -> Case {
    let parsed = Cli::try_parse_from(["rendez", "bench"].iter().chain(options)).unwrap();
    let Command::Bench(args) = parsed.command else {
        panic!("not a bench")
    };
    let args: BenchArgs = args;
    super::super::case(&args, 4)
}

fn notes_of(options: &[&str], count: u64) -> Vec<String> {
    let measured = Measured {
        count,
        notes: vec!["first".into()],
        ..Measured::default()
    };
    let mut notes = row(&case_of(options), measured, None).notes;
    assert_eq!(notes.remove(0), "first");
    notes
}

#[test]
fn a_rate_that_was_not_reached_is_told() {
    let second = ["oneway", "--duration", "1s", "--rate"];
    let at = |rate, count| notes_of(&[&second[..], &[rate]].concat(), count);
    let note = "the rate was not reached at 4B: 5.00M/s of 100M/s that were asked for";
    assert_eq!(at("100M", 5_000_000), [note]);
    assert_eq!(at("1k", 900).len(), 1);
    assert!(at("1k", 1000).is_empty());
    assert!(at("1k", 960).is_empty());
    // One may have been due at the very end.
    assert!(at("5", 4).is_empty());
    assert_eq!(at("5", 3).len(), 1);
    let two_seconds = ["--rate", "1k", "--duration", "2s"];
    assert_eq!(notes_of(&two_seconds, 1000).len(), 1);
    assert!(notes_of(&["--duration", "1s"], 1).is_empty());
}

#[test]
fn sends_that_were_due_and_are_not_done_are_told() {
    let case = case_of(&["oneway", "--rate", "1k", "--duration", "4s"]);
    let notes = |overdue| {
        let measured = Measured {
            count: 4_000 - overdue,
            overdue,
            ..Measured::default()
        };
        row(&case, measured, None).notes
    };
    assert!(notes(4).is_empty());
    let note = "152 of 4000 sends that were due at 4B were not done when the time was over: \
                what they had waited until then is among the times";
    assert_eq!(notes(152), [note]);
}

#[test]
fn stages_are_held_against_the_whole_of_the_same_hand_overs() {
    let stat = |stage: Stage, way: &str, count, mean: u64| StageStat {
        stage: stage.name().into(),
        way: way.into(),
        size_class: "64B".into(),
        count,
        sum_ns: count * mean,
        ..StageStat::default()
    };
    // What this side sent and received, and the other: of the whole each has what it received.
    let both = [
        stat(Stage::Matched, "shm_inline", 30, 10),
        stat(Stage::Wire, "shm_inline", 10, 100),
        stat(Stage::Whole, "shm_inline", 10, 130),
        stat(Stage::Matched, "shm_inline", 10, 50),
        stat(Stage::Wire, "shm_inline", 30, 60),
        stat(Stage::Whole, "shm_inline", 30, 80),
        stat(Stage::Whole, "shm_lease", 1, 7_000),
        stat(Stage::Landed, "shm_lease", 1, 7_000),
    ];
    let followed = Followed::of(&both, 30).expect("there is a whole");
    assert_eq!((followed.sum_ns, followed.whole_ns), (20.0 + 70.0, 92.5));
    assert_eq!(Followed::of(&both[..2], 1), None, "neither knows the whole");
    let mut recorder = Recorder::nanos();
    recorder.record(185);
    let measured = Measured {
        round_trips: Some(recorder),
        both_sides: both.to_vec(),
        clock_error: Some(std::time::Duration::from_nanos(77)),
        ..Measured::default()
    };
    let row = row(&case_of(&[]), measured, None);
    assert!((row.stage_sum_over_mean.unwrap() - 90.0 / 92.5).abs() < 1e-9);
    assert!((row.timed_over_all.unwrap() - 1.0).abs() < 1e-9);
    assert!(row.json().contains("\"clock_error_ns\":77"));
}

#[test]
fn a_few_stray_hand_overs_say_nothing_of_all() {
    let stat = |stage: Stage, count| StageStat {
        stage: stage.name().into(),
        way: "tcp_inline".into(),
        size_class: "64KiB".into(),
        count,
        sum_ns: 1_000 * count,
        ..StageStat::default()
    };
    let ratios = |transport: &str, followed| {
        let mut round_trips = Recorder::nanos();
        round_trips.record_many(2_000, 6_400);
        let measured = Measured {
            count: 6_400,
            round_trips: Some(round_trips),
            both_sides: vec![stat(Stage::Wire, followed), stat(Stage::Whole, followed)],
            ..Measured::default()
        };
        let row = row(&case_of(&["--transport", transport]), measured, None);
        assert_eq!(
            row.stage_sum_over_mean.is_some(),
            row.timed_over_all.is_some()
        );
        row.timed_over_all.is_some()
    };
    assert!(!ratios("tcp", 1) && !ratios("tcp", 3_000));
    assert!(ratios("tcp", 6_400));
    // One in 64 of each way is timed.
    assert!(!ratios("shm", 1));
    assert!(ratios("shm", 99));
}
