//! Rows made of what a workload found, and options that contradict each other.

use clap::Parser;

use super::*;
use crate::args::{Cli, Command};

/// Answers every case with the same distribution, and keeps the cases.
#[derive(Default)]
struct Fixed(Vec<Case>);

impl Workload for Fixed {
    fn measure(&mut self, case: &Case) -> Result<Measured, CliError> {
        self.0.push(*case);
        let mut recorder = Recorder::nanos();
        (0..10).for_each(|_| recorder.record(200));
        let mut measured = Measured {
            count: 10,
            allocations: Some(5),
            ..Measured::default()
        };
        match case.pattern {
            Pattern::Pingpong => measured.round_trips = Some(recorder),
            Pattern::Oneway => {
                (measured.one_way, measured.per_operation) =
                    (Some(recorder.clone()), Some(recorder))
            }
            Pattern::Rate => measured.per_operation = Some(recorder),
        }
        Ok(measured)
    }
}

fn run_with(options: &[&str]) -> (Result<Vec<Row>, CliError>, Vec<Case>) {
    let parsed = Cli::try_parse_from(["rendez", "bench"].iter().chain(options)).unwrap();
    let Command::Bench(args) = parsed.command else {
        panic!("not a bench")
    };
    let mut workload = Fixed::default();
    let mut terminal = Terminal::into_writer(Box::new(std::io::sink()), None);
    (run(&args, &mut workload, &mut terminal), workload.0)
}

#[test]
fn each_size_is_one_case_and_one_row() {
    let (rows, cases) = run_with(&[
        "--size",
        "4,64",
        "--transport",
        "loopback",
        "--from",
        "thread",
        "--check",
    ]);
    let rows = rows.unwrap();
    assert_eq!(
        cases.iter().map(|case| case.bytes).collect::<Vec<_>>(),
        [4, 64]
    );
    assert!(
        cases
            .iter()
            .all(|case| case.transport == Transport::Loopback
                && case.from == From::Thread
                && case.check)
    );
    assert_eq!(rows[1].bytes, 64);
    assert_eq!(rows[0].half_rtt_ns.unwrap().p50, 100.0);
    assert_eq!(rows[0].rtt_ns.unwrap().p50, 200.0);
    assert_eq!(rows[0].allocations_per_op, Some(0.5));
    assert_eq!(rows[0].rate_per_s, None);
}

/// Writes into what a test can read at any time.
#[derive(Clone, Default)]
struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Keeps what was printed before each case.
struct Watching(Fixed, Shared, Vec<String>);

impl Workload for Watching {
    fn measure(&mut self, case: &Case) -> Result<Measured, CliError> {
        self.2.push(self.1.text());
        self.0.measure(case)
    }
}

#[test]
fn a_row_is_printed_before_the_next_is_measured() {
    let output = Shared::default();
    let mut watching = Watching(Fixed::default(), output.clone(), Vec::new());
    let options = ["rendez", "bench", "--size", "4,64,1KiB", "--repeat", "2"];
    let Command::Bench(args) = Cli::try_parse_from(options).unwrap().command else {
        panic!("not a bench")
    };
    let mut terminal = Terminal::into_writer(Box::new(output.clone()), None);
    let rows = run(&args, &mut watching, &mut terminal).unwrap();
    assert_eq!((rows.len(), watching.0.0.len()), (3, 6));
    assert_eq!(rows[0].repeated.map(|repeated| repeated.runs), Some(2));
    let printed = |at: usize| watching.2[at].matches("pingpong  shm").count();
    assert_eq!([0, 1, 2, 3, 4, 5].map(printed), [0, 0, 1, 1, 2, 2]);
    assert!(output.text().contains("  least"), "{}", output.text());
}

#[test]
fn rate_and_bandwidth_come_from_the_time_per_operation() {
    let (rows, _) = run_with(&["rate", "--size", "1KiB"]);
    let row = &rows.unwrap()[0];
    let rate = row.rate_per_s.unwrap();
    assert_eq!((rate.mean, rate.percentiles.p50), (5e6, 5e6));
    assert_eq!(row.bytes_per_s.unwrap().percentiles.p50, 5.12e9);
    assert_eq!(row.half_rtt_ns, None);
}

#[test]
fn an_open_loop_at_full_speed_is_a_contradiction() {
    let (rows, cases) = run_with(&["rate", "--rate", "1k"]);
    let error = rows.unwrap_err();
    assert_eq!((error.reason(), error.exit()), ("OPTION_CONFLICT", 2));
    assert!(cases.is_empty(), "nothing was measured");
}

#[test]
fn what_a_way_would_pass_over_is_refused() {
    let local = ["--transport", "local"];
    for options in [
        &["--from", "thread", "--touch"][..],
        &[&local[..], &["oneway"]].concat(),
        &[&local[..], &["--rate", "1k"]].concat(),
        &[&local[..], &["--touch"]].concat(),
        &[&local[..], &["--check"]].concat(),
        &[&local[..], &["--from", "thread"]].concat(),
    ] {
        let (rows, cases) = run_with(options);
        assert_eq!(rows.unwrap_err().reason(), "OPTION_CONFLICT", "{options:?}");
        assert!(cases.is_empty(), "{options:?}");
    }
    let (_, cases) = run_with(&["rate", "--transport", "local", "--size", "4"]);
    assert_eq!(cases.len(), 1);
}

#[test]
fn a_far_host_is_reached_by_tcp_and_nothing_else() {
    let (_, cases) = run_with(&["--connect", "there:1", "--size", "4"]);
    assert_eq!(cases[0].transport, Transport::Tcp);
    for options in [
        &["--connect", "there:1", "--transport", "shm"][..],
        &["--connect", "there:1", "--from", "thread"],
        &["--insecure"],
        &["--cluster-secret-file", "secret"],
    ] {
        let (rows, cases) = run_with(options);
        assert_eq!(rows.unwrap_err().reason(), "OPTION_CONFLICT");
        assert!(cases.is_empty());
    }
}

#[test]
fn a_log_is_written_beside_the_rows() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.hlog");
    run_with(&["--size", "4,64", "--hdr-log", path.to_str().unwrap()])
        .0
        .unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    assert!(
        text.contains("Tag=pingpong-shm-4,") && text.contains("Tag=pingpong-shm-64,"),
        "{text}"
    );
}

/// Keeps how many intervals the log at a path held before each case.
struct Logged(Fixed, std::path::PathBuf, Vec<usize>);

impl Workload for Logged {
    fn measure(&mut self, case: &Case) -> Result<Measured, CliError> {
        let text = std::fs::read_to_string(&self.1).unwrap();
        self.2.push(text.matches("Tag=pingpong-shm-4,").count());
        self.0.measure(case)
    }
}

#[test]
fn each_of_several_runs_is_in_the_log_before_the_next_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.hlog");
    let options = [
        "rendez",
        "bench",
        "--size",
        "4",
        "--repeat",
        "3",
        "--hdr-log",
    ];
    let options = options.iter().map(AsRef::as_ref).chain([path.as_os_str()]);
    let Command::Bench(args) = Cli::try_parse_from(options).unwrap().command else {
        panic!("not a bench")
    };
    let mut logged = Logged(Fixed::default(), path.clone(), Vec::new());
    let mut terminal = Terminal::into_writer(Box::new(std::io::sink()), None);
    run(&args, &mut logged, &mut terminal).unwrap();
    assert_eq!(logged.2, [0, 1, 2]);
}
