//! Addresses, host lists and the text form of a specification.

use super::*;

#[test]
fn addresses_read_as_they_are_written() {
    for text in [
        "a:0",
        "host-1.example.org:65535",
        "10.0.0.1:80",
        "[::1]:2222",
        "[fe80::1%eth0]:1",
        "a_b:1",
    ] {
        let address: HostPort = text.parse().unwrap();
        assert_eq!(address.to_string(), text);
    }
    for text in [
        "",
        ":",
        "a",
        "a:",
        ":1",
        "a:b",
        "a:-1",
        "a:+1",
        "a:65536",
        "a:1:2",
        "::1:2",
        "[::1]",
        "[::1]2",
        "[a]:1",
        "[]:1",
        "a b:1",
        "a:1 ",
        "grpc://a:1",
        "-a:1",
        "ä:1",
        "[::1%]:1",
    ] {
        let status = text.parse::<HostPort>().unwrap_err();
        let message = format!("Could not interpret \"{text}\" as a host-port pair.");
        assert_eq!(
            (status.reason(), status.message()),
            ("CLUSTER_ADDRESS", message.as_str())
        );
    }
    assert_eq!(HostPort::new("::1", 1).unwrap().to_string(), "[::1]:1");
    let shown = "\n".repeat(500).parse::<HostPort>().unwrap_err();
    assert!(shown.message().len() < 400 && !shown.message().contains('\n'));
}

#[test]
fn specifications_read_as_they_are_written() {
    for text in [
        "",
        "a=",
        "a=x:1",
        "a=x:1,y:2;b=z:3",
        "a=5@x:1,y:1,9@[::1]:1",
    ] {
        assert_eq!(ClusterSpec::parse(text).unwrap().to_string(), text);
    }
    let spec = ClusterSpec::parse(" b = y:1 , x:1 ;; a = 1@z:1 ;").unwrap();
    assert_eq!(spec.to_string(), "a=1@z:1;b=y:1,x:1");
    assert!(ClusterSpec::new().is_empty() && ClusterSpec::parse("a=").unwrap().is_empty());
    for text in [
        "x:1",
        "=x:1",
        "1a=x:1",
        "a=x@y:1",
        "a=1@x:1,1@y:1",
        "a=-1@x:1",
    ] {
        assert_eq!(
            ClusterSpec::parse(text).unwrap_err().reason(),
            "CLUSTER_SPEC",
            "{text}"
        );
    }
    let twice = ClusterSpec::parse("a=x:1;a=y:1").unwrap_err();
    assert_eq!(
        twice.message(),
        "Duplicate job ID in cluster specification: a"
    );
    assert_eq!(
        serde_json::to_string(&ClusterSpec::parse("a=x:1,7@y:1").unwrap()).unwrap(),
        r#"{"a":{"0":"x:1","7":"y:1"}}"#
    );
}

#[test]
fn host_lists_expand_as_slurm_does() {
    for (text, hosts) in [
        ("cn1", vec!["cn1"]),
        ("a,b", vec!["a", "b"]),
        (
            "node[01-04,7],login",
            vec!["node01", "node02", "node03", "node04", "node7", "login"],
        ),
        ("n[8-10]", vec!["n8", "n9", "n10"]),
        (
            "n[098-101]-ib",
            vec!["n098-ib", "n099-ib", "n100-ib", "n101-ib"],
        ),
        ("r[0-1]n[1,3]", vec!["r0n1", "r0n3", "r1n1", "r1n3"]),
        ("[1-2]x", vec!["1x", "2x"]),
        ("n[5,5]", vec!["n5", "n5"]),
        (
            "nid[20240101001-20240101002]",
            vec!["nid20240101001", "nid20240101002"],
        ),
        (
            "n[18446744073709551614-18446744073709551615]",
            vec!["n18446744073709551614", "n18446744073709551615"],
        ),
    ] {
        assert_eq!(host_list::expand(text).unwrap(), hosts, "{text}");
    }
    assert_eq!(host_list::expand("n[1-4096]").unwrap().len(), 4096);
    assert_eq!(host_list::counts("2(x3),1").unwrap(), [2, 2, 2, 1]);
    assert_eq!(host_list::counts("64(x2)").unwrap(), [64, 64]);
    // As often as never is no list.
    assert!(host_list::counts("2(x0)").is_err());
}
