//! Pages of logs that are long.

use std::process::Command;
use std::time::{Duration, SystemTime};

use rendez_cli::histogram::{HdrLog, Interval, Recorder};

/// Whole histograms of all these intervals would take six hundred megabytes.
#[test]
fn a_log_of_many_intervals_needs_little_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.hlog");
    let mut log = HdrLog::create(&path, "times").expect("writable");
    let mut recorder = Recorder::nanos();
    recorder.record(200);
    let interval = Interval {
        tag: "pingpong-shm-64".into(),
        start: SystemTime::now(),
        duration: Duration::from_secs(1),
        recorder,
    };
    for _ in 0..3000 {
        log.write(&interval).expect("written");
    }
    let html = folder.path().join("run.html");
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 400000 && exec \"$@\"", "sh"])
        .args([env!("CARGO_BIN_EXE_rendez"), "report"])
        .arg(&path)
        .arg("--html")
        .arg(&html)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let page = std::fs::read_to_string(html).expect("a page");
    assert!(page.contains("<td data-of=\"count\">3000</td>"));
}
