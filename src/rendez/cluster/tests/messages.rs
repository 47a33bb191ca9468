//! TensorFlow's messages, in its own bytes.

use prost::Message;

use super::*;
use rendez_proto::tensorflow::{ClusterDef, JobDef, ServerDef};

/// `job { name: "ps" tasks { key: 0 value: "a:1" } tasks { key: 7 value: "b:2" } }` as its field numbers have it; a
/// key of 0 may stand or be left out.
const CLUSTER: &[u8] = b"\x0a\x16\x0a\x02ps\x12\x07\x08\x00\x12\x03a:1\x12\x07\x08\x07\x12\x03b:2";

#[test]
fn a_cluster_reads_its_bytes() {
    let def = ClusterDef::decode(CLUSTER).unwrap();
    let spec = ClusterSpec::try_from(&def).unwrap();
    assert_eq!(spec.to_string(), "ps=a:1,7@b:2");
}

#[test]
fn a_server_reads_its_bytes_and_skips_what_it_does_not_know() {
    let mut bytes = vec![0x0a, CLUSTER.len() as u8];
    bytes.extend(CLUSTER);
    bytes.extend(b"\x12\x02ps\x18\x07"); // job_name: 2, task_index: 3
    bytes.extend(b"\x22\x02\x08\x01"); // default_session_config: 4
    bytes.extend(b"\x2a\x04grpc\x30\x00"); // protocol: 5, port: 6
    bytes.extend(b"\x3a\x0f\x0a\x0d\x0a\x02ps\x12\x07\x08\x07\x12\x03\x0a\x01/"); // cluster_device_filters: 7
    bytes.extend(b"\x40\x00"); // replica: 8
    bytes.extend(b"\x9a\x06\x03new"); // a field of another release
    let def = ServerDef::decode(bytes.as_slice()).unwrap();
    let server = Server::try_from(&def).unwrap();
    assert_eq!(server.task.to_string(), "/job:ps/replica:0/task:7");
    assert_eq!((server.port, server.protocol.as_str()), (2, "grpc"));
    let filters = server.device_filters.unwrap();
    assert_eq!(filters.jobs[0].tasks[&7].device_filters, ["/"]);
}

#[test]
fn what_makes_no_sense_is_refused_in_the_originals_words() {
    let job = |name: &str, tasks: &[(i32, &str)]| JobDef {
        name: name.into(),
        tasks: tasks
            .iter()
            .map(|&(index, at)| (index, at.into()))
            .collect(),
    };
    let twice = ClusterDef {
        job: vec![job("a", &[]), job("a", &[])],
    };
    let status = ClusterSpec::try_from(&twice).unwrap_err();
    assert_eq!(
        status.message(),
        "Duplicate job ID in cluster specification: a"
    );
    for (tasks, part) in [
        (&[(-1, "a:1")][..], "negative"),
        (&[(0, "a")], "\"a\" as a host-port pair."),
    ] {
        let status = ClusterSpec::try_from(&ClusterDef {
            job: vec![job("a", tasks)],
        })
        .unwrap_err();
        assert!(status.message().contains(part), "{status}");
    }

    let server = |change: fn(&mut ServerDef)| {
        let mut def = ServerDef {
            cluster: Some(ClusterDef {
                job: vec![job("a", &[(0, "h:1")])],
            }),
            job_name: "a".into(),
            ..ServerDef::default()
        };
        change(&mut def);
        Server::try_from(&def)
    };
    assert_eq!(
        server(|def| def.port = 9).unwrap().port,
        9,
        "the explicit port wins"
    );
    for (change, part) in [
        (
            (|def| def.task_index = 1) as fn(&mut ServerDef),
            "Task 1 was not defined in job \"a\"",
        ),
        (
            |def| def.job_name = "b".into(),
            "Job \"b\" was not defined in cluster",
        ),
        (|def| def.cluster = None, "was not defined in cluster"),
        (
            |def| def.port = 70_000,
            "Could not parse port for local server from \"70000\".",
        ),
        (|def| def.replica = 1, "port of its own"),
        (|def| def.replica = -1, "negative"),
        (|def| def.task_index = -1, "negative"),
    ] {
        let status = server(change).unwrap_err();
        assert!(status.message().contains(part), "{part} in {status}");
    }
}
