//! What is malformed is refused by its own error, in bounded time and memory.

use super::*;

#[test]
fn a_malformed_tf_config_says_where() {
    let worker =
        |task: &str| format!(r#"{{"cluster": {{"worker": ["a:1", "b:1"]}}, "task": {task}}}"#);
    for (text, reason, part) in [
        ("{".into(), "TF_CONFIG_MALFORMED", "line 1"),
        ("[]".into(), "TF_CONFIG_MALFORMED", "cluster"),
        ("7".into(), "TF_CONFIG_MALFORMED", "invalid type"),
        (r#"{"cluster": []}"#.into(), "TF_CONFIG_MALFORMED", "object"),
        (
            r#"{"cluster": {"worker": [1]}}"#.into(),
            "TF_CONFIG_MALFORMED",
            "a job is a list",
        ),
        (
            r#"{"cluster": {"worker": "a:1"}}"#.into(),
            "TF_CONFIG_MALFORMED",
            "a job is a list",
        ),
        (
            r#"{"cluster": {"w": ["a:1"]}, "cluster": {}}"#.into(),
            "TF_CONFIG_MALFORMED",
            "duplicate",
        ),
        (
            worker(r#"{"type": "worker", "index": -1}"#),
            "TF_CONFIG_MALFORMED",
            "from 0 on",
        ),
        (
            worker(r#"{"type": "worker", "index": "x"}"#),
            "CLUSTER_SPEC",
            "'x'",
        ),
        (
            worker(r#"{"type": "worker", "index": 2}"#),
            "CLUSTER_TASK_UNDEFINED",
            "Task 2 was not defined in job \"worker\"",
        ),
        (
            worker(r#"{"type": "ps", "index": 0}"#),
            "CLUSTER_TASK_UNDEFINED",
            "Job \"ps\" was not defined in cluster",
        ),
        (worker("{}"), "CLUSTER_SPEC", "2 tasks"),
        (
            r#"{"cluster": {"worker": ["a"]}}"#.into(),
            "CLUSTER_ADDRESS",
            "Could not interpret \"a\" as a host-port pair.",
        ),
        (
            r#"{"cluster": {"w": ["a:1"], "w": ["b:1"]}}"#.into(),
            "CLUSTER_DUPLICATE_JOB",
            "Duplicate job ID in cluster specification: w",
        ),
        (
            r#"{"cluster": {"a b": ["a:1"]}}"#.into(),
            "CLUSTER_SPEC",
            "'a b'",
        ),
        (
            r#"{"cluster": {"w": {"0": "a:1", "00": "b:1"}}}"#.into(),
            "CLUSTER_SPEC",
            "Duplicate task 0",
        ),
        (
            r#"{"cluster": {"ps": ["a:0", "a:0", "c:1"], "w": ["a:1", "b:2", "b:2"]}}"#.into(),
            "CLUSTER_SPEC",
            "task 2 of job 'w' cannot listen at b:2: task 1 of job 'w' listens there",
        ),
        (
            r#"{"cluster": {"ps": ["a:1"], "w": ["c:1", "a:1"]}}"#.into(),
            "CLUSTER_SPEC",
            "task 1 of job 'w' cannot listen at a:1: task 0 of job 'ps' listens there",
        ),
        (
            format!(r#"{{"cluster": {{"w": ["{}:1"]}}}}"#, "a".repeat(300)),
            "CLUSTER_ADDRESS",
            "… (302 bytes)",
        ),
        (
            format!(r#"{{"cluster": {{"w": {}"#, "[".repeat(100_000)),
            "TF_CONFIG_MALFORMED",
            "recursion",
        ),
    ] {
        let text: String = text;
        refused(&surroundings(&[("TF_CONFIG", &text)]), reason, part);
    }
}

#[test]
fn a_cluster_is_bounded() {
    let tasks: Vec<String> = (0..=crate::ground::limits::CLUSTER_TASKS_MAX)
        .map(|n| format!("h{n}:1"))
        .collect();
    let text = format!("worker={}", tasks.join(","));
    refused(
        &surroundings(&[("RENDEZ_CLUSTER", &text)]),
        "CLUSTER_SPEC",
        "4096",
    );
    let text = format!("a={};b=x:1,y:1", tasks[2..].join(","));
    refused(
        &surroundings(&[("RENDEZ_CLUSTER", &text)]),
        "CLUSTER_SPEC",
        "4096",
    );
    let long = "x".repeat(crate::ground::limits::CLUSTER_TEXT_BYTES_MAX + 1);
    refused(
        &surroundings(&[("RENDEZ_CLUSTER", &long)]),
        "CLUSTER_SPEC",
        "bytes",
    );
    refused(
        &surroundings(&[("TF_CONFIG", &long)]),
        "CLUSTER_SPEC",
        "bytes",
    );
    refused(&with_file(&long), "CLUSTER_SPEC", "bytes");
}

#[test]
fn a_malformed_file_says_where() {
    for (text, reason, part) in [
        ("[cluster", "CLUSTER_FILE_MALFORMED", "here.toml"),
        ("cluster = 7", "CLUSTER_FILE_MALFORMED", "integer"),
        ("[cluster]\nps = 7", "CLUSTER_SPEC", "a integer where tasks"),
        ("[cluster]\nps = [7]", "CLUSTER_SPEC", "'ps'"),
        ("[cluster]\nps = [\"a\"]", "CLUSTER_ADDRESS", "here.toml"),
        ("[cluster]\nps = { x = \"a:1\" }", "CLUSTER_SPEC", "'x'"),
        (
            "[cluster]\nps = [\"a:1\"]\nps = [\"b:1\"]",
            "CLUSTER_FILE_MALFORMED",
            "duplicate",
        ),
        (
            "[cluster]\nps = [\"a:1\", \"b:1\"]",
            "CLUSTER_SPEC",
            "RENDEZ_TASK",
        ),
        (
            "task = \"x\"\n[cluster]\nps = [\"a:1\"]",
            "DEVICE_MALFORMED",
            "here.toml",
        ),
    ] {
        refused(&with_file(text), reason, part);
    }
    refused(
        &with_file("shards = 1"),
        "CLUSTER_UNRESOLVED",
        "neither a [cluster]",
    );
}

#[test]
fn ranks_that_make_no_sense_are_refused() {
    let torchrun = |rank: &str, size: &str, host: &str, port: &str| {
        surroundings(&[
            ("RANK", rank),
            ("WORLD_SIZE", size),
            ("MASTER_ADDR", host),
            ("MASTER_PORT", port),
        ])
    };
    for (surroundings, part) in [
        (torchrun("4", "4", "a", "1"), "RANK=4"),
        (torchrun("-1", "4", "a", "1"), "RANK=-1"),
        (torchrun("0", "four", "a", "1"), "WORLD_SIZE=four"),
        (torchrun("0", "0", "a", "1"), "RANK=0"),
        (
            torchrun("0", "4294967295", "a", "1"),
            "WORLD_SIZE=4294967295",
        ),
        (
            torchrun("0", "99999999999", "a", "1"),
            "WORLD_SIZE=99999999999",
        ),
        (torchrun("0", "2", "a b", "1"), "MASTER_ADDR=a b"),
        (torchrun("0", "2", "a", "0"), "MASTER_PORT=0"),
        (torchrun("0", "2", "a", "70000"), "MASTER_PORT=70000"),
    ] {
        refused(&surroundings, "LAUNCHER_ENVIRONMENT", part);
    }
    refused(
        &torchrun("0", "2", "a", ""),
        "CLUSTER_UNRESOLVED",
        "MASTER_PORT not set",
    );
}

#[test]
fn host_lists_that_mean_too_much_cost_nothing() {
    let slurm = |nodes: &str, counts: &str| {
        surroundings(&[
            ("SLURM_JOB_ID", "1"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_NODELIST", nodes),
            ("SLURM_TASKS_PER_NODE", counts),
        ])
    };
    assert!(resolve(&slurm("a[1-2]", "1(x2)")).is_ok());
    for (nodes, counts, reason) in [
        ("a[0-4294967295]", "1(x2)", "HOST_LIST_TOO_LONG"),
        ("[0-18446744073709551615]", "1(x2)", "HOST_LIST_TOO_LONG"),
        ("a[0-18446744073709551614,7]", "1(x2)", "HOST_LIST_TOO_LONG"),
        ("a[0-18446744073709551616]", "1(x2)", "HOST_LIST_MALFORMED"),
        (
            "a[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]",
            "1",
            "HOST_LIST_TOO_LONG",
        ),
        ("a[0-9999],b", "1", "HOST_LIST_TOO_LONG"),
        ("a[1-2]", "1(x4294967295)", "HOST_LIST_TOO_LONG"),
        ("a[1-2", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a]1", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a[[1]]", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a[2-1]", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a[]", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a[1-]", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a[+1]", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a,,b", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a b", "1(x2)", "HOST_LIST_MALFORMED"),
        ("[1-2]-a/b", "1(x2)", "HOST_LIST_MALFORMED"),
        ("a[1-2]", "1(x", "HOST_LIST_MALFORMED"),
        ("a[1-2]", "two", "HOST_LIST_MALFORMED"),
        ("a[1-2]", "1", "LAUNCHER_ENVIRONMENT"),
        ("a[1-2]", "2(x2)", "LAUNCHER_ENVIRONMENT"),
    ] {
        refused(&slurm(nodes, counts), reason, "");
    }
    let wide = format!("a[{}1-2]", "0".repeat(70_000));
    refused(&slurm(&wide, "1(x2)"), "HOST_LIST_MALFORMED", "too long");
    refused(
        &slurm(&"[1]".repeat(50_000), "1"),
        "HOST_LIST_MALFORMED",
        "too long",
    );
}

#[test]
fn pods_that_make_no_sense_are_refused() {
    let set = |index: &str, pod: &str, size: &str| {
        surroundings(&[
            ("JOBSET_NAME", "s"),
            ("REPLICATED_JOB_NAME", "j"),
            ("REPLICATED_JOB_REPLICAS", "2"),
            ("JOB_INDEX", index),
            ("JOB_COMPLETION_INDEX", pod),
            ("RENDEZ_WORLD_SIZE", size),
        ])
    };
    assert!(resolve(&set("1", "1", "4")).is_ok());
    for (surroundings, part) in [
        (set("2", "1", "4"), "JOB_INDEX=2"),
        (set("1", "2", "4"), "JOB_COMPLETION_INDEX=2"),
        (set("1", "1", "5"), "RENDEZ_WORLD_SIZE=5"),
        (set("1", "0", "0"), "JOB_COMPLETION_INDEX=0"),
    ] {
        refused(&surroundings, "LAUNCHER_ENVIRONMENT", part);
    }
    refused(
        &set("1", "1", ""),
        "CLUSTER_ROOT_UNKNOWN",
        "RENDEZ_WORLD_SIZE",
    );
    refused(
        &surroundings(&[("JOB_COMPLETION_INDEX", "0")]),
        "CLUSTER_UNRESOLVED",
        "RENDEZ_SUBDOMAIN",
    );
    let leader = |address: &str, index: &str| {
        surroundings(&[
            ("LWS_LEADER_ADDRESS", address),
            ("LWS_GROUP_SIZE", "2"),
            ("LWS_WORKER_INDEX", index),
        ])
    };
    refused(
        &leader("a", "0"),
        "LAUNCHER_ENVIRONMENT",
        "LWS_LEADER_ADDRESS=a",
    );
    refused(
        &leader("a.b", "2"),
        "LAUNCHER_ENVIRONMENT",
        "LWS_WORKER_INDEX=2",
    );
    refused(&leader("a .b", "0"), "CLUSTER_ADDRESS", "host-port");
}

/// Pieces of what the parsers read, so that random texts get past their first character.
const PIECES: &str =
    r#"(cluster|task|worker|ps|a:1|\[::1\]:2|node|[0-9]{1,5}|\(x|[\[\]{}"',:;=@()#.\n -]|.){0,24}"#;

proptest::proptest! {
    #[test]
    fn no_text_does_harm(text in PIECES) {
        for (name, beside) in [
            ("TF_CONFIG", ""),
            ("RENDEZ_CLUSTER", ""),
            ("RENDEZ_TASK", ""),
            ("SLURM_JOB_NODELIST", include_str!("../../../../tests/data/launchers/slurm.env")),
            ("SLURM_STEP_TASKS_PER_NODE", include_str!("../../../../tests/data/launchers/slurm.env")),
            ("MASTER_ADDR", include_str!("../../../../tests/data/launchers/torchrun.env")),
            ("LWS_LEADER_ADDRESS", include_str!("../../../../tests/data/launchers/leader_worker_set.env")),
            ("JOBSET_NAME", include_str!("../../../../tests/data/launchers/jobset.env")),
        ] {
            let mut given = of_sample(beside);
            given.environment.insert(name.into(), text.clone());
            let _ = resolve(&given);
        }
        let _ = resolve(&with_file(&text));
        let _ = resolve(&with_file(&format!("[cluster]\n{text}")));
        let _ = host_list::counts(&text);
        if let Ok(hosts) = host_list::expand(&text) {
            proptest::prop_assert!(hosts.len() <= crate::ground::limits::CLUSTER_TASKS_MAX);
        }
        if let Ok(spec) = ClusterSpec::parse(&text) {
            proptest::prop_assert_eq!(ClusterSpec::parse(&spec.to_string()), Ok(spec));
        }
        if let Ok(address) = text.parse::<HostPort>() {
            proptest::prop_assert_eq!(address.to_string().parse::<HostPort>(), Ok(address));
        }
    }
}
