//! The command from outside: exit codes, where errors go, their reasons, and the raw reference between two processes.

use std::process::{Command, Output, Stdio};

use crate::command;
use serde_json::Value;

/// The command in a directory without a configuration, and in no environment but this.
fn rendez_in(environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = command(directory.path(), environment, arguments);
    command.output().expect("the command starts")
}

fn rendez(arguments: &[&str]) -> Output {
    rendez_in(&[], arguments)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn usage_errors_exit_2_with_a_reason_on_stderr() {
    for (arguments, reason) in [
        (vec![], "USAGE"),
        (vec!["fly"], "USAGE"),
        (vec!["bench", "--nope"], "USAGE"),
        (vec!["bench", "sideways"], "USAGE"),
        (vec!["bench", "--size", "4 parsecs"], "SIZE_MALFORMED"),
        (vec!["bench", "--size", "64:8:x2"], "SIZE_RANGE"),
        (vec!["bench", "--size", "0"], "SIZE_OUT_OF_RANGE"),
        (vec!["bench", "--duration", "5"], "DURATION_MALFORMED"),
        (vec!["bench", "--duration", "0s"], "DURATION_OUT_OF_RANGE"),
        (vec!["bench", "--rate", "fast"], "RATE_MALFORMED"),
        (vec!["bench", "rate", "--rate", "1k"], "OPTION_CONFLICT"),
        (vec!["bench", "--parked", "10"], "OPTION_CONFLICT"),
        (vec!["bench", "--from", "thread", "rate"], "OPTION_CONFLICT"),
        (
            vec!["bench", "--from", "thread", "--touch"],
            "OPTION_CONFLICT",
        ),
        (vec!["bench", "--baseline-only", "--rate", "1k"], "USAGE"),
        (vec!["bench", "--baseline-only", "--baseline"], "USAGE"),
        (vec!["bench", "--baseline-only", "--touch"], "USAGE"),
        (vec!["bench", "--baseline-only", "--poll", "park"], "USAGE"),
    ] {
        let output = rendez(&arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(
            text.starts_with(&format!("error[{reason}]: ")),
            "{arguments:?}: {text}"
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert_eq!(
            text.matches(reason).count(),
            1,
            "the reason stands once: {text}"
        );
        assert!(
            !text.contains("-peer"),
            "what is hidden stays hidden: {text}"
        );
    }
}

#[test]
fn with_log_json_all_of_standard_error_is_json() {
    let missing = ["dump", "/nowhere/at.rdz"];
    let unresolved = ["ping", "/job:a/task:0"];
    for (arguments, code, reason) in [
        (&["fly"][..], 2, "USAGE"),
        (&["bench", "--size", "4 parsecs"], 2, "SIZE_MALFORMED"),
        (&["bench", "--nope"], 2, "USAGE"),
        (&missing, 1, "FILE_UNREADABLE"),
        (&unresolved, 78, "CLUSTER_UNRESOLVED"),
    ] {
        for log in [&["--log", "json"][..], &["--log=json"]] {
            let output = rendez_in(&[("RENDEZ_LOG", "debug")], &[log, arguments].concat());
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
            let lines: Vec<Value> = text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}")))
                .collect();
            let last = lines.last().expect("an error");
            assert_eq!(last["level"], "ERROR", "{last}");
            assert_eq!(last["reason"], reason, "{last}");
            assert_eq!(last["exit"], code, "{last}");
            assert!(
                last["message"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty())
            );
        }
    }
}

#[test]
fn a_filter_of_logs_that_is_none_is_ignored_and_says_so() {
    for (filter, is_told) in [
        ("rendez=loudly", true),
        ("rendez=debug", false),
        ("", false),
    ] {
        let output = rendez_in(&[("RENDEZ_LOG", filter)], &["ping", "/job:a/task:0"]);
        let text = stderr(&output);
        assert_eq!(
            text.contains("RENDEZ_LOG is ignored"),
            is_told,
            "{filter}: {text}"
        );
    }
}

#[test]
fn config_show_is_a_configuration_and_says_where_values_come_from() {
    let shown = rendez_in(
        &[("RENDEZ_SHARDS", "2")],
        &["config", "show", "--poll", "park"],
    );
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let mut config = rendez::engine::Config::new("/job:a/task:0");
    config
        .apply_toml(&stdout(&shown), "shown")
        .expect("it is a configuration");
    assert_eq!(config.shards, 2);

    let arguments = [
        "config",
        "show",
        "--json",
        "--poll",
        "park",
        "--insecure",
        "--drain-timeout",
        "1s",
    ];
    let json = rendez_in(&[("RENDEZ_SHARDS", "2"), ("RENDEZ_SHART", "2")], &arguments);
    let report: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let of = |key: &str| {
        let settings = report["settings"].as_array().expect("settings");
        let found = settings.iter().find(|setting| setting["key"] == key);
        found.expect("the setting").clone()
    };
    assert_eq!(
        (&of("shards")["value"], &of("shards")["origin"]),
        (&2.into(), &"RENDEZ_SHARDS".into())
    );
    assert_eq!(
        (&of("poll")["value"], &of("poll")["origin"]),
        (&"park".into(), &"--poll".into())
    );
    assert_eq!(
        (&of("insecure")["value"], &of("protocol")["taker"]),
        (&true.into(), &"server".into())
    );
    assert_eq!(of("lease")["origin"], "default");
    assert!(
        report["warnings"][0]
            .as_str()
            .expect("a warning")
            .contains("RENDEZ_SHART")
    );

    let wrong = rendez_in(&[("RENDEZ_SHARDS", "many")], &["config", "show"]);
    assert_eq!(wrong.status.code(), Some(78));
    assert!(
        stderr(&wrong).starts_with("error[CONFIG]: ")
            && stderr(&wrong).contains("RENDEZ_SHARDS=many")
    );
    for arguments in [
        ["--shards", "many"],
        ["--config", "/nowhere"],
        ["--task", "3"],
    ] {
        let wrong = rendez_in(&[], &[&["config", "show"][..], &arguments].concat());
        assert_ne!(wrong.status.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn cluster_show_names_who_said_so() {
    let config = r#"{"cluster": {"ps": ["ps0:2222"], "worker": ["w0:2222", "w1:2222"]},
                     "task": {"type": "worker", "index": 1}}"#;
    let shown = rendez_in(&[("TF_CONFIG", config)], &["cluster", "show"]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    let text = stdout(&shown);
    for part in [
        "/job:ps/replica:0/task:0",
        "w1:2222   this task",
        "TF_CONFIG",
        "configuration file: there is none",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }

    let torchrun = [
        ("RANK", "1"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "run"),
    ];
    let json = rendez_in(&torchrun, &["cluster", "show", "--json"]);
    let report: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        (&report["source"], &report["address"]),
        (&"torchrun".into(), &Value::Null)
    );
    let rooted = &report["membership"]["rooted"];
    assert_eq!(
        (&rooted["root"], &rooted["size"]),
        (&"a:29501".into(), &4.into())
    );
    assert_eq!(report["epoch"]["run"], "run");
    assert_eq!(report["passed_over"].as_array().map(Vec::len), Some(3));

    let text = "ps=a:1;worker=b:1,c:1";
    let arguments = [
        "cluster",
        "show",
        "--cluster",
        text,
        "--job",
        "worker",
        "--task",
        "1",
    ];
    assert!(stdout(&rendez_in(&torchrun, &arguments)).contains("c:1      this task"));

    for (arguments, code, reason) in [
        (&["cluster", "show"][..], 78, "CLUSTER_UNRESOLVED"),
        (
            &["cluster", "show", "--cluster", text, "--task", "1"],
            2,
            "USAGE",
        ),
        (&["cluster", "show", "--cluster", "worker"], 2, "USAGE"),
        (
            &[
                "cluster",
                "show",
                "--cluster",
                text,
                "--task",
                "/job:worker/task:7",
            ],
            78,
            "CLUSTER_TASK_UNDEFINED",
        ),
    ] {
        let failed = rendez_in(&[], arguments);
        assert_eq!(failed.status.code(), Some(code), "{arguments:?}");
        assert!(
            stderr(&failed).starts_with(&format!("error[{reason}]")),
            "{}",
            stderr(&failed)
        );
    }
    // An environment does not mend itself either.
    for (variables, reason) in [
        (&[("TF_CONFIG", "{")][..], "TF_CONFIG_MALFORMED"),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "many"),
                ("MASTER_ADDR", "a"),
                ("MASTER_PORT", "29500"),
            ],
            "LAUNCHER_ENVIRONMENT",
        ),
    ] {
        let failed = rendez_in(variables, &["cluster", "show"]);
        assert_eq!(failed.status.code(), Some(78), "{}", stderr(&failed));
        assert!(stderr(&failed).starts_with(&format!("error[{reason}]")));
    }
}

#[test]
fn the_doctor_finds_this_machine_able() {
    let output = rendez_in(&[], &["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["able"], true);
    for finding in report["findings"].as_array().expect("findings") {
        assert!(
            finding["found"].is_string() && finding["wanted"].is_string(),
            "{finding}"
        );
        assert_eq!(
            finding["mend"].is_string(),
            finding["cost"].is_string(),
            "{finding}"
        );
    }
    assert!(stdout(&rendez_in(&[], &["doctor"])).contains("clock source"));
}

#[test]
fn help_and_version_are_results() {
    for arguments in [&["--help"][..], &["bench", "--help"], &["demo", "--help"]] {
        let output = rendez(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(
            stdout(&output).contains("Examples:") && output.stderr.is_empty(),
            "{arguments:?}"
        );
        assert!(
            !stdout(&output).contains("baseline-peer"),
            "what is hidden stays hidden"
        );
    }
    let version = rendez(&["--version"]);
    assert!(stdout(&version).starts_with(concat!("rendez ", env!("CARGO_PKG_VERSION"))));
    assert_eq!(version.status.code(), Some(0));
}

#[test]
fn bad_files_exit_1_with_a_reason_that_names_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hostile.safetensors");
    std::fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    for (file, reason) in [
        (path.to_str().unwrap(), "SAFETENSORS_MALFORMED"),
        ("/nonexistent/file", "FILE_UNREADABLE"),
        (directory.path().to_str().unwrap(), "FILE_UNREADABLE"),
    ] {
        let output = rendez(&["demo", file]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.starts_with(&format!("error[{reason}]: ")) && text.contains(file),
            "{text}"
        );
    }
}

#[test]
fn an_unwritable_log_is_refused_before_anything_is_measured() {
    let output = rendez(&[
        "bench",
        "--baseline-only",
        "--hdr-log",
        "/nonexistent/run.hlog",
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).starts_with("error[FILE_UNWRITABLE]: "),
        "{}",
        stderr(&output)
    );
    assert!(!stdout(&output).contains('{'));
}

#[test]
fn the_raw_reference_runs_between_two_processes() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("raw.hlog");
    let output = rendez(&[
        "bench",
        "--baseline-only",
        "--size",
        "4,1000",
        "--duration",
        "50ms",
        "--json",
        "--hdr-log",
        log.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows: Vec<Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let found: Vec<(&str, u64)> = rows
        .iter()
        .map(|row| {
            (
                row["pattern"].as_str().unwrap(),
                row["bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("pingpong", 64),
            ("write_signal_read", 4),
            ("memcpy", 4),
            ("pingpong", 4),
            ("oneway", 4),
            ("write_signal_read", 1000),
            ("memcpy", 1000),
            ("pingpong", 1000),
            ("oneway", 1000)
        ]
    );
    for row in &rows {
        assert!(row["count"].as_u64().unwrap() > 0, "{row}");
        assert!(
            row["machine"]["cpu"].is_string()
                && row["transport"].as_str().unwrap().starts_with("raw"),
            "{row}"
        );
    }
    let tcp: Vec<_> = rows
        .iter()
        .filter(|row| row["transport"] == "raw_tcp")
        .collect();
    assert_eq!(tcp.len(), 4);
    assert!(tcp[0]["half_rtt_ns"]["p50"].is_number() && tcp[1]["bytes_per_s"]["mean"].is_number());
    let (half, whole) = (&rows[0]["half_rtt_ns"]["p50"], &rows[0]["rtt_ns"]["p50"]);
    assert_eq!(half.as_f64().unwrap() * 2.0, whole.as_f64().unwrap());
    assert!(
        std::fs::read_to_string(log)
            .unwrap()
            .contains("Tag=raw_tcp-oneway-1000,")
    );
}

fn rows(output: &Output) -> Vec<Value> {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    let rows = stdout(output);
    let rows = rows.lines().map(serde_json::from_str);
    rows.collect::<Result<_, _>>().expect("JSON")
}

/// Options that make a measurement short.
const SHORT: [&str; 5] = ["--duration", "20ms", "--warmup", "5ms", "--json"];

#[test]
fn bench_goes_by_tcp_beside_a_bare_socket() {
    for (pattern, options) in [
        ("pingpong", &["--check"][..]),
        ("pingpong", &["--touch"]),
        ("pingpong", &["--rate", "1k", "--touch", "--check"]),
        ("pingpong", &["--from", "thread"]),
        ("oneway", &["--check"]),
        ("oneway", &["--touch"]),
        ("rate", &["--touch", "--check"]),
        ("rate", &["--baseline"]),
    ] {
        let case = [
            "bench",
            pattern,
            "--transport",
            "tcp",
            "--size",
            "64,200KiB",
        ];
        let output = rendez(&[&case, &SHORT[..], options].concat());
        // The two sides have a secret of their own, so that there is nothing to warn of.
        assert_eq!(String::from_utf8_lossy(&output.stderr).find("secret"), None);
        for row in rows(&output) {
            assert_eq!(row["transport"], "tcp", "{row}");
            assert!(row["count"].as_u64().unwrap() > 0, "{row}");
            assert!(
                row["allocations_per_op"].is_number() || pattern != "pingpong",
                "{row}"
            );
            if options == ["--baseline"] {
                assert_eq!(row["baseline"]["transport"], "raw_tcp", "{row}");
                assert!(
                    row["baseline"]["stream"]["bytes_per_s"]["mean"].is_number(),
                    "{row}"
                );
            }
        }
    }
}

#[test]
fn a_slow_stream_is_measured_as_long_as_it_was_asked_for() {
    for transport in ["shm", "tcp", "loopback"] {
        let case = ["bench", "oneway", "--rate", "100", "--size", "64"];
        let times = ["--duration", "200ms", "--warmup", "50ms", "--json"];
        let output = rendez(&[&case[..], &times, &["--transport", transport]].concat());
        let row = &rows(&output)[0];
        let count = row["count"].as_u64().unwrap();
        assert!((5..=40).contains(&count), "{row}");
        assert!(row["rate_per_s"]["mean"].is_number(), "{row}");
        assert!(row["allocations_per_op"].is_number(), "{row}");
    }
}

/// The far side of measurements between hosts, interrupted when the test is over.
struct FarSide {
    child: std::process::Child,
    address: String,
}

impl FarSide {
    fn start(options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
        command
            .args(["bench", "--listen", "127.0.0.1:0"])
            .args(options);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let mut said = std::io::BufReader::new(child.stdout.as_mut().expect("piped"));
        std::io::BufRead::read_line(&mut said, &mut line).expect("it says where");
        let address = line.trim_start_matches("waits at ").split(';').next();
        let address = address.expect("an address").to_owned();
        Self { child, address }
    }
}

impl Drop for FarSide {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it lives");
        let status = self.child.wait().expect("it ends");
        if !std::thread::panicking() {
            assert!(status.success(), "{status}");
        }
    }
}

#[test]
fn one_far_side_serves_one_near_side_after_another() {
    let far = FarSide::start(&["--poll", "adaptive"]);
    for pattern in ["pingpong", "oneway", "rate"] {
        let case = [
            "bench",
            pattern,
            "--connect",
            &far.address,
            "--size",
            "64,200KiB",
        ];
        for row in rows(&rendez(&[&case, &SHORT[..]].concat())) {
            assert_eq!(
                (&row["transport"], &row["pattern"]),
                (&"tcp".into(), &pattern.into())
            );
            assert!(row["count"].as_u64().unwrap() > 0, "{row}");
        }
    }
    let output = rendez(&["bench", "--connect", &far.address, "--duration", "5h"]);
    assert!(
        stderr(&output).starts_with("error[BENCH_FAR_REFUSED]: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_far_side_with_a_secret_serves_nobody_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let secret = |name: &str, byte: char| {
        let path = directory.path().join(name);
        std::fs::write(&path, byte.to_string().repeat(64)).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (ours, theirs) = (secret("ours", 'a'), secret("theirs", 'b'));
    let far = FarSide::start(&["--cluster-secret-file", &ours, "--poll", "adaptive"]);
    let case = ["bench", "--connect", &far.address, "--size", "64"];
    let with =
        |secret: &str| rendez(&[&case, &SHORT[..], &["--cluster-secret-file", secret]].concat());
    assert_eq!(with(&theirs).status.code(), Some(14));
    assert_eq!(rows(&with(&ours)).len(), 1);
}

/// Takes as long as a far side may take to start, and no processor time.
#[test]
fn a_far_side_that_is_not_there_is_unavailable() {
    let none = ["bench", "--connect", "127.0.0.1:1", "--insecure"];
    let refused = rendez(&[&none, &SHORT[..]].concat());
    assert_eq!(refused.status.code(), Some(10), "{}", stderr(&refused));
}

#[test]
fn a_far_side_beyond_this_machine_wants_proof_or_consent() {
    let output = rendez_in(&[], &["bench", "--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(78));
    let text = stderr(&output);
    assert!(text.contains("insecure"), "{text}");
}

/// Whatever is wrong with it, it is told once, and by what was given.
#[test]
fn input_that_cannot_be_is_one_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a text").to_owned()
    };
    let (empty, there) = (file("empty", ""), folder.path().to_str().expect("a text"));
    let (bare, jobless) = (file("a", "[cluster]\n"), file("b", "[cluster]\na = []\n"));
    for (arguments, reason, what) in [
        (
            vec!["run", &empty, "--fetch", "x"],
            "GRAPH_MALFORMED",
            "it has no nodes",
        ),
        (
            vec!["up", &bare, "--", "true"],
            "CLUSTER_UNRESOLVED",
            "names no task",
        ),
        (vec!["up", &jobless], "CLUSTER_UNRESOLVED", "names no task"),
        (
            vec!["bench", "--size", "64GiB"],
            "ARENA_UNFIT",
            "68719476736 bytes",
        ),
        (
            vec!["bench", "--hdr-log", there],
            "FILE_UNWRITABLE",
            "directory; name a file\n",
        ),
        (
            vec!["train", "digits", "--checkpoint", &empty],
            "FILE_UNWRITABLE",
            "is no folder",
        ),
        (
            vec!["bench", "--compare", "/dev/zero"],
            "BENCH_ROWS_MALFORMED",
            "is longer than",
        ),
    ] {
        let output = rendez(&arguments);
        let text = stderr(&output);
        let code = if reason == "CLUSTER_UNRESOLVED" {
            78
        } else {
            1
        };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(
            text.starts_with(&format!("error[{reason}]: ")),
            "{arguments:?}: {text}"
        );
        assert!(text.contains(what), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
    }
}

#[test]
fn the_hidden_side_refuses_to_run_alone() {
    let output = rendez(&["baseline-peer", "--core", "0", "--parent", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error["), "{}", stderr(&output));
}

#[test]
fn an_interrupt_leaves_what_was_measured() {
    use std::io::{BufRead, BufReader, Read};
    let mut child = Command::new(env!("CARGO_BIN_EXE_rendez"))
        .args([
            "bench",
            "--transport",
            "local",
            "--size",
            "8,16,32",
            "--json",
        ])
        .args(["--duration", "2s", "--warmup", "0s"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut first = String::new();
    output.read_line(&mut first).expect("a row");
    let row: Value = serde_json::from_str(&first).expect("a row");
    assert_eq!(row["bytes"], 8, "{first}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("read");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    assert!(
        stderr(&ended).contains("error[INTERRUPTED]: "),
        "{}",
        stderr(&ended)
    );
    assert!(
        rest.lines().count() <= 1,
        "no further size is begun: {rest}"
    );
}

/// A command that is killed when the test is over.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Killed {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
        command.args(arguments).stdin(Stdio::null());
        let started = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Self(started.expect("it starts"))
    }

    /// Interrupts it, waits for its end, and gives what it wrote to standard output.
    fn interrupted(&mut self) -> String {
        use std::io::Read;
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
        until("it ends", || self.0.try_wait().expect("a child").is_some());
        assert_eq!(self.0.wait().expect("it ended").code(), Some(130));
        let mut output = String::new();
        let pipe = self.0.stdout.as_mut().expect("a pipe");
        pipe.read_to_string(&mut output).expect("read");
        output
    }
}

/// What processor time a process has had, in ticks of a hundredth of a second.
fn busy_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    fields
        .split_whitespace()
        .nth(11)
        .expect("utime")
        .parse()
        .expect("a number")
}

#[test]
fn an_interrupt_ends_what_is_measured_at_once() {
    let ways: [&[&str]; 5] = [
        &["--transport", "local"],
        &["--transport", "loopback", "--from", "thread"],
        &["rate", "--transport", "loopback"],
        &["pingpong", "--rate", "1"],
        &["oneway"],
    ];
    for way in ways {
        let measure = [
            "bench",
            "--size",
            "8",
            "--duration",
            "600s",
            "--warmup",
            "0s",
            "--json",
        ];
        let mut bench = Killed::start(&[&measure, way].concat());
        let pid = bench.0.id();
        // Its shard spins: much longer than all that comes before.
        until("it measures", || busy_ticks(pid) > 25);
        let output = bench.interrupted();
        // Two processes may meet late.
        if way.contains(&"local") {
            let row: Value = serde_json::from_str(&output).expect("one row");
            let note = row["notes"][0].as_str().expect("a note");
            assert!(note.starts_with("interrupted at 8B after "), "{row}");
            assert!(row["count"].as_u64() > Some(0), "{row}");
        }
        let mut rows = output.lines().map(serde_json::from_str::<Value>);
        assert!(
            rows.all(|row| row.expect("a row")["count"].as_u64() > Some(0)),
            "{output}"
        );
    }
}

#[test]
fn a_far_side_that_refuses_is_not_taken_for_one_that_is_not_there() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("bound").to_string();
    drop(free);
    let _far = Killed::start(&["bench", "--listen", &address, "--insecure"]);
    until("it listens", || {
        std::net::TcpStream::connect(&address).is_ok()
    });
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef".repeat(4)).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&secret, mode).expect("ours");
    let secret = secret.display().to_string();
    let near = rendez_in(
        &[("RENDEZ_CLUSTER_SECRET_FILE", &secret)],
        &["bench", "--connect", &address],
    );
    let said = stderr(&near);
    assert!(said.contains("error[SECRET_MISSING]: "), "{said}");
    assert!(!said.contains("`rendez bench --listen"), "{said}");
}

#[test]
fn who_measures_with_a_far_side_that_is_not_there_is_told_at_once_and_may_interrupt() {
    use std::io::{BufRead, BufReader};
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = nobody.local_addr().expect("bound").to_string();
    drop(nobody);
    let mut bench = Killed::start(&["bench", "--connect", &address, "--insecure", "--json"]);
    let mut errors = BufReader::new(bench.0.stderr.take().expect("a pipe")).lines();
    let what = format!("start `rendez bench --listen` at {address}");
    let told = errors.any(|line| line.expect("text").contains(&what));
    assert!(told, "it never said what it waits for");
    assert_eq!(bench.interrupted(), "");
}

#[test]
fn help_that_cannot_be_written_says_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux");
    let output = command
        .arg("--help")
        .stdout(full)
        .stderr(Stdio::piped())
        .output();
    let output = output.expect("it runs");
    assert!(
        stderr(&output).contains("error[OUTPUT_UNWRITABLE]: "),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_variable_that_no_setting_has_is_told_of_by_every_command_that_takes_settings() {
    for command in [&["cluster", "show"][..], &["ping", "--patience=1ms"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_rendez"))
            .args(command)
            .args(["--cluster", "a=127.0.0.1:1"])
            .env("RENDEZ_SHRADS", "2")
            .output()
            .expect("it runs");
        let said = stderr(&output);
        assert_eq!(
            said.matches("RENDEZ_SHRADS").count(),
            1,
            "{command:?}: {said}"
        );
        assert!(said.contains("RENDEZ_SHARDS"), "{command:?}: {said}");
    }
}

#[test]
fn a_truth_that_is_neither_zero_nor_one_is_no_fault_of_the_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mask.safetensors");
    let header = br#"{"x":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}"#;
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(&path, [&length[..], header, &[1, 2]].concat()).expect("written");
    let output = rendez(&["demo", path.to_str().expect("text")]);
    let said = stderr(&output);
    assert!(said.contains("error[SAFETENSORS_MALFORMED]: "), "{said}");
    assert!(said.contains("byte 1 of tensor 'x' is 2"), "{said}");
}

#[test]
fn an_interrupt_before_the_first_figure_leaves_the_page_that_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html");
    std::fs::write(&page, "old").expect("written");
    let child = Command::new(env!("CARGO_BIN_EXE_rendez"))
        .args(["bench", "--transport", "local", "--size", "8"])
        .args(["--baseline", "--duration", "2s", "--html"])
        .arg(&page)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    // From then on it measures the reference, and looks for an interrupt before the size itself.
    until("it listens", || catches_interrupts(child.id()));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(130), "{}", stderr(&ended));
    assert!(
        stderr(&ended).contains("error[INTERRUPTED]: "),
        "{}",
        stderr(&ended)
    );
    assert_eq!(std::fs::read_to_string(&page).expect("it is there"), "old");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
    let mut child = command
        .arg("--help")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// Who starts it may have no wish to know how children end; it has.
#[test]
fn ends_are_seen_whatever_it_inherits() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cluster.toml");
    std::fs::write(&file, "cluster = \"a=127.0.0.1:1\"\n").expect("written");
    let ignoring = ["60", "env", "--ignore-signal=CHLD"];
    let output = Command::new("timeout")
        .args(ignoring)
        .args([env!("CARGO_BIN_EXE_rendez"), "up"])
        .arg(&file)
        .args(["--", "/bin/sh", "-c", "exit 3"])
        .output()
        .expect("it starts");
    let said = stderr(&output);
    assert!(
        said.contains("exit status: 3"),
        "{:?}: {said}",
        output.status
    );
}

/// The processes whose parent is `pid`, that are not merely waiting to be collected.
fn children(pid: u32) -> Vec<u32> {
    let is_child = |candidate: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{candidate}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        fields.get(1) == Some(&pid.to_string().as_str()) && fields[0] != "Z"
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(is_child)
        .collect()
}

/// Whether a process has a handler for interrupts.
fn catches_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = u64::from_str_radix(caught.expect("a line").trim(), 16).expect("a number");
    caught & (1 << (rustix::process::Signal::INT.as_raw() - 1)) != 0
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn nothing_spins_on_after_either_side_is_killed() {
    let start = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
        command.args([
            "bench",
            "--baseline-only",
            "--size",
            "4",
            "--duration",
            "60s",
        ]);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let is_gone = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_none_or(|rest| rest.trim().is_empty() || rest.trim().starts_with('Z'))
    };

    let mut near = start();
    until("the other side starts", || !children(near.id()).is_empty());
    let far = children(near.id())[0];
    near.kill().unwrap();
    near.wait().unwrap();
    until("the other side ends with its parent", || is_gone(far));

    let near = start();
    until("the other side starts", || !children(near.id()).is_empty());
    let far = rustix::process::Pid::from_raw(children(near.id())[0] as i32).unwrap();
    rustix::process::kill_process(far, rustix::process::Signal::KILL).unwrap();
    let output = near.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("error[BASELINE_PEER_DIED]: "),
        "{}",
        stderr(&output)
    );
}
