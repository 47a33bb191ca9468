//! Which rows may be compared, and what is said of those that may not.

use clap::Parser;

use super::super::super::args::{Cli, Command};
use super::super::super::histogram::{Rates, Summary};
use super::*;

fn args_of(options: &[&str]) -> BenchArgs {
    let options = ["rendez", "bench", "--size", "4"].iter().chain(options);
    let Command::Bench(args) = Cli::try_parse_from(options).unwrap().command else {
        panic!("not a bench")
    };
    args
}

/// A row of these options, with this median.
fn row(args: &BenchArgs, p50: f64) -> Row {
    let [p90, p99, p99_9, max] = [p50; 4];
    Row {
        pattern: args.pattern.name(),
        transport: args.transport().name(),
        bytes: 4,
        half_rtt_ns: Some(Summary {
            p50,
            p90,
            p99,
            p99_9,
            max,
        }),
        options: options_of(args),
        ..Row::default()
    }
}

/// Rows as they come back from a file.
fn former(rows: &[Row]) -> Vec<Former> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let lines: Vec<String> = rows.iter().map(Row::json).collect();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    rows_of(file.path()).unwrap()
}

#[test]
fn rows_of_other_options_are_refused_by_name() {
    let thread = "--from (shard before, thread now), --poll (busy before, adaptive now)";
    let local = ["--transport", "local"];
    let cases: [(&[&str], &[&str], &str); 8] = [
        (&[], &["--from", "thread"], thread),
        (&[], &["--poll", "park"], "--poll (busy before, park now)"),
        (
            &["--rate", "1k"],
            &["--rate", "2.5k"],
            "--rate (1000 before, 2500 now)",
        ),
        (&["--rate", "1k"], &[], "--rate (1000 before, none now)"),
        (&["--touch"], &[], "--touch (on before, off now)"),
        (&[], &["--check"], "--check (off before, on now)"),
        (
            &local,
            &["--transport", "local", "--parked", "9"],
            "--parked (none before, 9 now)",
        ),
        (
            &["--connect", "there:1"],
            &["--transport", "tcp"],
            "--connect (on before, off now)",
        ),
    ];
    for (before, now, what) in cases {
        let (before, now) = (args_of(before), args_of(now));
        let error = check(&former(&[row(&before, 100.0)]), &now).unwrap_err();
        assert_eq!(error.reason(), "BENCH_ROWS_MALFORMED");
        assert!(
            error.to_string().contains(&format!(": {what}; ")),
            "{error}"
        );
        check(&former(&[row(&now, 100.0)]), &now).unwrap();
        // Of several rows that of the same options is taken.
        let both = former(&[row(&before, 1.0), row(&now, 100.0)]);
        check(&both, &now).unwrap();
        let mut terminal = Terminal::into_writer(Box::new(std::io::sink()), None);
        judge(&both, &[row(&now, 101.0)], 5.0, false, &mut terminal).unwrap();
    }
}

#[test]
fn what_is_at_its_default_is_not_written() {
    let defaults = args_of(&["--from", "shard", "--poll", "busy"]);
    let text = row(&defaults, 100.0).json();
    assert!(!text.contains("options"), "{text}");
    let threads = args_of(&["--from", "thread", "--poll", "adaptive", "--check"]);
    let text = row(&threads, 100.0).json();
    let written = r#""options":{"from":"thread","check":true}"#;
    assert!(text.contains(written), "{text}");
}

#[test]
fn a_rate_comes_back_from_a_file_as_itself() {
    for rate in ["1.1k", "0.3", "33.333333333333336", "1e9"] {
        let args = args_of(&["oneway", "--rate", rate]);
        check(&former(&[row(&args, 100.0)]), &args).unwrap();
    }
}

#[test]
fn a_size_that_is_not_there_is_refused_by_name() {
    let args = args_of(&[]);
    let other = Row {
        bytes: 8,
        ..row(&args, 100.0)
    };
    let error = check(&former(&[other]), &args).unwrap_err();
    assert_eq!(error.reason(), "BENCH_ROWS_MALFORMED");
    let what = "there is no row of pingpong shm 4B to compare with";
    assert!(error.to_string().contains(what), "{error}");
}

/// What `judge` says of a stream that had `before` and has `now`: a time one way, and a rate.
fn judged(args: &BenchArgs, before: (f64, f64), now: (f64, f64)) -> Result<(), CliError> {
    let stream = |(one_way, mean): (f64, f64)| {
        let row = row(args, one_way);
        let percentiles = row.half_rtt_ns.unwrap();
        Row {
            half_rtt_ns: None,
            one_way_ns: Some(percentiles),
            rate_per_s: Some(Rates { mean, percentiles }),
            ..row
        }
    };
    let mut terminal = Terminal::into_writer(Box::new(std::io::sink()), None);
    let former = former(&[stream(before)]);
    judge(&former, &[stream(now)], 5.0, false, &mut terminal)
}

#[test]
fn a_share_is_told_as_it_was_given() {
    let args = args_of(&["--compare", "former", "--max-regress", "7%"]);
    let former = former(&[row(&args, 100.0)]);
    let mut terminal = Terminal::into_writer(Box::new(std::io::sink()), None);
    let now = [row(&args, 200.0)];
    let error = judge(&former, &now, args.max_regress, false, &mut terminal).unwrap_err();
    assert!(
        error.message().starts_with("worse by more than 7 %: "),
        "{error}"
    );
}

#[test]
fn a_stream_is_judged_by_its_rate_unless_it_was_given_one() {
    let closed = args_of(&["oneway"]);
    judged(&closed, (100.0, 1e6), (200.0, 1e6)).unwrap();
    let error = judged(&closed, (100.0, 1e6), (100.0, 0.9e6)).unwrap_err();
    assert_eq!(error.reason(), "BENCH_REGRESSED");
    let open = args_of(&["oneway", "--rate", "1k"]);
    judged(&open, (100.0, 1e6), (100.0, 0.9e6)).unwrap();
    let error = judged(&open, (100.0, 1e6), (200.0, 1e6)).unwrap_err();
    assert_eq!(error.reason(), "BENCH_REGRESSED");
}
