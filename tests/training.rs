//! `rendez train` from outside: a training whose worker is killed, kept and resumed, each task a process of its own.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn rendez(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
    command
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null());
    command.output().expect("the command starts")
}

/// The objects that a command printed, which ended well.
fn objects(output: &Output) -> Vec<Value> {
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{out}\n{err}");
    out.lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// The last object that is not of an edge, and the edges.
fn end(said: &[Value]) -> (&Value, Vec<&Value>) {
    let end = said
        .iter()
        .find(|object| object.get("mode").is_some())
        .expect("an end");
    (
        end,
        said.iter()
            .filter(|object| object.get("edge").is_some())
            .collect(),
    )
}

#[test]
fn digits_are_learnt_by_workers_that_die_and_come_back_and_training_goes_on_where_it_ended() {
    let place = tempfile::tempdir().expect("a folder");
    let place = place.path();
    let first = [
        "train",
        "digits",
        "--json",
        "--epochs",
        "20",
        "--kill-worker-at",
        "300ms",
        "--checkpoint",
        "kept",
    ];
    let said = objects(&rendez(place, &first));
    let killed = said
        .iter()
        .position(|object| object["killed"] == 1)
        .expect("a worker was killed");
    let back = said
        .iter()
        .position(|object| object["back"] == 1)
        .expect("it came back");
    assert!(killed < back, "{said:?}");
    let (ended, edges) = end(&said);
    let made = ended["steps"].as_u64().expect("steps");
    assert!(made >= 899, "{ended}");
    assert!(ended["accuracy"].as_f64() > Some(0.95), "{ended}");
    assert!(
        ended["worker_steps"]
            .as_array()
            .expect("steps of each")
            .iter()
            .all(|steps| steps.as_u64() > Some(0)),
        "{ended}"
    );
    // Each worker reads four variables and gives four gradients.
    for worker in ["worker:0", "worker:1"] {
        let of = |end: &str| {
            edges
                .iter()
                .filter(|edge| edge[end] == worker && edge["count"].as_u64() > Some(1))
                .count()
        };
        // A shard may forget a name or two: their places are few.
        assert!(of("to") >= 2 && of("from") >= 2, "{edges:?}");
    }

    // In the other way to train, and over two servers.
    let steps = (made + 200).to_string();
    let more = [
        "train",
        "digits",
        "--json",
        "--sync",
        "--ps",
        "2",
        "--steps",
        &steps,
        "--checkpoint",
        "kept",
        "--resume",
    ];
    let said = objects(&rendez(place, &more));
    let (ended, _) = end(&said);
    assert_eq!(ended["resumed_at"].as_u64(), Some(made), "{ended}");
    assert_eq!(ended["steps"].as_u64(), Some(made + 200), "{ended}");
    assert_eq!(ended["worker_steps"], serde_json::json!([200, 200]));
    assert!(ended["accuracy"].as_f64() > Some(0.96), "{ended}");
    let kept: Vec<_> = std::fs::read_dir(place.join("kept"))
        .expect("the folder")
        .collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
}

/// A short training with a setting; returns the edges that it had.
fn learn(place: &Path, setting: [&str; 2]) -> Vec<Value> {
    let mut arguments = vec!["train", "digits", "--json", "--steps", "40"];
    arguments.extend(setting);
    let said = objects(&rendez(place, &arguments));
    let (_, edges) = end(&said);
    assert!(!edges.is_empty(), "{said:?}");
    edges.into_iter().cloned().collect()
}

#[test]
fn digits_are_learnt_under_a_secret_of_ones_own() {
    let place = tempfile::tempdir().expect("a folder");
    let place = place.path();
    let made = rendez(place, &["secret", "new", "own.secret"]);
    assert!(made.status.success(), "{made:?}");
    learn(place, ["--cluster-secret-file", "own.secret"]);
}

#[test]
fn a_file_of_settings_counts_for_all_tasks() {
    let place = tempfile::tempdir().expect("a folder");
    let place = place.path();
    // Metrics are answered for at a port of each task; this address is this test's own.
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let text = format!("lease = false\nmetrics = \"127.77.{high}.{low}:9464\"\n");
    std::fs::write(place.join("train.toml"), text).expect("written");
    let edges = learn(place, ["--config", "train.toml"]);
    let is_leased = |edge: &Value| edge["way"] == "shm_lease";
    assert!(!edges.iter().any(is_leased), "{edges:?}");
}
