//! Machines laid out in a directory, and what the doctor says of them.

use std::path::Path;

use super::*;

/// A machine that wants for nothing, with these files.
fn host(root: &Path, files: &[(&str, &str)]) -> Host {
    for (path, text) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    Host {
        root: root.into(),
        affinity: vec![2, 3],
        memlock_bytes: None,
        may_lock: false,
        address_bytes: None,
        threads: None,
        has_proc: true,
        descriptors: (Some(8192), None),
        memfd_refusal: None,
        ring_refusal: None,
        verbs_refusal: None,
        devices: Ok(vec!["NVIDIA H100 00112233445566778899aabbccddeeff".into()]),
        tls_refusal: None,
    }
}

const GOOD: &[(&str, &str)] = &[
    (
        "proc/meminfo",
        "MemAvailable: 33554432 kB\nHugePages_Total: 8\nHugePages_Free: 8\n",
    ),
    ("proc/cpuinfo", "flags : fpu constant_tsc nonstop_tsc\n"),
    ("proc/loadavg", "0.50 0.1 0.1 1/100 7\n"),
    ("proc/self/cgroup", "0::/a/b\n"),
    ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
    ("sys/fs/cgroup/a/b/cpuset.cpus.effective", "2-7\n"),
    ("sys/fs/cgroup/a/memory.max", "max\n"),
    ("sys/devices/system/cpu/online", "0-7\n"),
    ("sys/devices/system/cpu/isolated", "2-7\n"),
    ("sys/devices/system/cpu/nohz_full", "2-7\n"),
    (
        "sys/devices/system/cpu/cpu2/topology/thread_siblings_list",
        "2\n",
    ),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "performance\n",
    ),
    (
        "sys/devices/system/clocksource/clocksource0/current_clocksource",
        "tsc\n",
    ),
    ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n"),
    (
        "sys/class/infiniband/mlx5_0/ports/1/rate",
        "400 Gb/sec (4X NDR)\n",
    ),
    ("dev/infiniband/uverbs0", ""),
    (
        "proc/driver/nvidia/gpus/0000:01:00.0/information",
        "Model: \t NVIDIA H100\n",
    ),
    ("sys/class/net/eth0/operstate", "up\n"),
    ("sys/class/net/eth0/mtu", "9000\n"),
    ("sys/class/net/lo/operstate", "unknown\n"),
    ("sys/class/net/lo/mtu", "65536\n"),
];

#[track_caller]
fn state_of<'a>(findings: &'a [Finding], name: &str) -> (State, &'a str) {
    let finding = findings.iter().find(|finding| finding.name == name);
    let finding = finding.expect("it is looked at");
    (finding.state, finding.found.as_str())
}

#[test]
fn a_machine_that_wants_for_nothing_is_good() {
    let directory = tempfile::tempdir().unwrap();
    let findings = look(&host(directory.path(), GOOD));
    for finding in &findings {
        assert_eq!(finding.state, State::Good, "{finding:?}");
        assert!(finding.mend.is_none() && finding.cost.is_none());
    }
    assert_eq!(state_of(&findings, "gpu").1, "NVIDIA H100");
    assert_eq!(
        state_of(&findings, "rdma").1,
        "mlx5_0/1 ACTIVE 400 Gb/sec (4X NDR)"
    );
}

#[test]
fn a_machine_that_tells_nothing_is_no_trouble() {
    let directory = tempfile::tempdir().unwrap();
    let findings = look(&host(directory.path(), &[]));
    assert!(
        findings
            .iter()
            .all(|finding| finding.state != State::Broken),
        "{findings:?}"
    );
    for finding in findings
        .iter()
        .filter(|finding| finding.state == State::Poor)
    {
        assert!(
            finding.mend.is_some() && finding.cost.is_some(),
            "{finding:?}"
        );
    }
}

#[test]
fn a_container_is_told_what_holds_it_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut poor = host(directory.path(), GOOD);
    for (path, text) in [
        ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
        ("sys/fs/cgroup/a/b/cpuset.cpus.effective", "2,5\n"),
        ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
        ("sys/class/net/eth0/mtu", "1450\n"),
        ("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n"),
        (
            "sys/devices/system/cpu/cpu2/topology/thread_siblings_list",
            "2,6\n",
        ),
        (
            "sys/devices/system/clocksource/clocksource0/current_clocksource",
            "hpet\n",
        ),
        ("proc/cpuinfo", "flags : fpu\n"),
        (
            "proc/meminfo",
            "MemAvailable: 33554432 kB\nHugePages_Free: 0\n",
        ),
        ("proc/self/status", "Name: x\nSeccomp:\t2\n"),
    ] {
        std::fs::write(directory.path().join(path), text).unwrap();
    }
    poor.memlock_bytes = Some(64 << 10);
    poor.descriptors = (Some(1024), Some(4096));
    poor.ring_refusal = Some("Operation not permitted (os error 1)".into());
    poor.tls_refusal = Some("TCP of this kernel has no TLS".into());
    let findings = look(&poor);
    for (name, part) in [
        ("tls", "no TLS"),
        ("memlock", "64KiB"),
        ("huge pages", "0 of 0"),
        ("memory", "1GiB for 3 arenas"),
        ("sharing", "1 of 2"),
        ("processor time", "1.50 cores"),
        ("cpuset", "1 of the mask"),
        ("open files", "1024 now, 4096 at most"),
        ("io_uring", "(os error 1); a seccomp filter"),
        ("clock source", "hpet"),
        ("rdma", "DOWN"),
        ("mtu", "eth0 1450"),
    ] {
        let (state, found) = state_of(&findings, name);
        assert_eq!(state, State::Poor, "{name}");
        assert!(found.contains(part), "{part} in {found}");
    }
    std::fs::create_dir_all(directory.path().join("proc/sys/kernel")).unwrap();
    std::fs::write(
        directory.path().join("proc/sys/kernel/io_uring_disabled"),
        "2\n",
    )
    .unwrap();
    assert!(
        kernel::io_uring(&poor)
            .found
            .contains("io_uring_disabled is 2")
    );
    // What the control plane's own probe says of the limit goes before guesses.
    poor.ring_refusal = Some("RLIMIT_MEMLOCK is 64 KiB".into());
    let found = kernel::io_uring(&poor);
    assert_eq!(
        (found.state, found.mend.as_deref()),
        (State::Poor, Some("see memlock"))
    );
    // More cores than shards: each shard has an arena, and the threads of the program one.
    poor.affinity = (0..128).collect();
    assert!(memory::bytes(&poor).found.contains("for 65 arenas"));
}

#[test]
fn limits_of_the_process_are_seen_where_no_group_sets_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut poor = host(directory.path(), GOOD);
    poor.address_bytes = Some(1_000_000_000);
    poor.threads = Some(20);
    let findings = look(&poor);
    let (state, found) = state_of(&findings, "memory");
    assert!(
        state == State::Poor && found.contains("for 3 arenas"),
        "{found}"
    );
    let (state, found) = state_of(&findings, "processes");
    assert_eq!((state, found), (State::Poor, "20 threads at most, for 36"));
    // The group's limit counts what is there already.
    poor.threads = Some(100);
    for (file, text) in [("pids.max", "1000\n"), ("pids.current", "990\n")] {
        std::fs::write(directory.path().join("sys/fs/cgroup/a").join(file), text).unwrap();
    }
    assert!(limits::processes(&poor).found.starts_with("10 threads"));
    std::fs::write(directory.path().join("sys/fs/cgroup/a/pids.max"), "max\n").unwrap();
    assert_eq!(limits::processes(&poor).state, State::Good);
    poor.has_proc = false;
    let found = limits::processes(&poor);
    assert!(found.state == State::Poor && found.found.contains("/proc is not mounted"));
}

#[test]
fn a_network_of_its_own_is_seen_and_one_that_cannot_be_compared_is_unknown() {
    let directory = tempfile::tempdir().unwrap();
    let host = host(directory.path(), GOOD);
    let place = |process: &str, kind: &str, number: u32| {
        let directory = directory.path().join("proc").join(process).join("ns");
        std::fs::create_dir_all(&directory).unwrap();
        let link = format!("{kind}:[{number}]");
        std::os::unix::fs::symlink(link, directory.join(kind)).unwrap();
    };
    let found = || limits::namespaces(&host);
    assert_eq!(found().found, "unknown: ipc, user, pid, net");
    for (kind, number) in [
        ("ipc", 4026531839),
        ("user", 4026531837),
        ("pid", 4026531836),
    ] {
        place("self", kind, number);
    }
    place("self", "net", 4026532000);
    assert_eq!(
        (found().state, found().found.as_str()),
        (State::Good, "unknown: net")
    );
    place("1", "net", 4026531840);
    assert_eq!(
        (found().state, found().found.as_str()),
        (State::Poor, "own net")
    );
}

#[test]
fn older_control_groups_are_read_too() {
    let directory = tempfile::tempdir().unwrap();
    let files = [
        (
            "proc/self/cgroup",
            "3:cpu,cpuacct:/box\n4:memory:/box\n0::/\n",
        ),
        ("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n"),
        (
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us",
            "100000\n",
        ),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "50000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
        (
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes",
            "1048576\n",
        ),
    ];
    let host = host(directory.path(), &files);
    assert_eq!(limits::cpu_time(&host).found, "0.50 cores' worth");
    assert!(memory::bytes(&host).found.starts_with("1MiB"));
}

#[test]
fn only_what_makes_it_unable_fails() {
    let directory = tempfile::tempdir().unwrap();
    let mut broken = host(directory.path(), GOOD);
    assert!(report(&look(&broken), false, &mut sink()).is_ok());
    broken.memfd_refusal = Some("Function not implemented".into());
    broken.affinity.clear();
    let error = report(&look(&broken), true, &mut sink()).unwrap_err();
    assert_eq!((error.reason(), error.exit()), ("DOCTOR_UNABLE", 1));
    assert!(
        error.message().contains("shared memory, affinity"),
        "{error}"
    );
}

#[test]
fn this_machine_is_looked_at() {
    let findings = look(&Host::read());
    assert_eq!(findings.len(), CHECKS.len());
    assert!(report(&findings, true, &mut sink()).is_ok(), "{findings:?}");
}

fn sink() -> Terminal {
    Terminal::into_writer(Box::new(std::io::sink()), None)
}

#[test]
fn what_is_missing_for_rdma_is_named_with_its_package() {
    let directory = tempfile::tempdir().unwrap();
    let mut bare = host(directory.path(), &[]);
    bare.verbs_refusal = Some("libibverbs.so.1 cannot be loaded: no such file".into());
    let finding = devices::rdma(&bare);
    assert_eq!(finding.state, State::None);
    assert!(finding.found.contains("libibverbs.so.1 cannot be loaded"));
    let mend = finding.mend.unwrap();
    assert!(
        mend.contains("libibverbs1, ibverbs-providers, rdma-core"),
        "{mend}"
    );

    // A card, and no library: it stands idle.
    let directory = tempfile::tempdir().unwrap();
    let port = "sys/class/infiniband/rxe0/ports/1";
    let files: Vec<(String, &str)> = [
        ("state", "4: ACTIVE"),
        ("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001"),
        ("gid_attrs/types/0", "RoCE v2"),
        ("gids/1", "0000:0000:0000:0000:0000:ffff:0a02:0001"),
        ("gid_attrs/types/1", "IB/RoCE v1"),
        ("gids/2", "0000:0000:0000:0000:0000:ffff:0a02:0001"),
        ("gid_attrs/types/2", "RoCE v2"),
        ("gids/3", "0000:0000:0000:0000:0000:0000:0000:0000"),
    ]
    .map(|(file, text)| (format!("{port}/{file}"), text))
    .into();
    let mut files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (path.as_str(), *text))
        .collect();
    files.push(("dev/infiniband/uverbs0", ""));
    files.push(("etc/libibverbs.d/rxe.driver", ""));
    let mut card = host(directory.path(), &files);
    let finding = devices::rdma(&card);
    assert_eq!(finding.state, State::Good, "{finding:?}");
    assert_eq!(
        finding.found,
        "rxe0/1 ACTIVE GID 0 RoCE v2 fe80::1 GID 2 RoCE v2 10.2.0.1"
    );
    card.verbs_refusal = Some("libibverbs.so.1 cannot be loaded: no such file".into());
    let finding = devices::rdma(&card);
    assert_eq!(finding.state, State::Poor);
    let mend = finding.mend.unwrap();
    assert!(
        mend.contains("libibverbs1, rdma-core") && !mend.contains("providers"),
        "{mend}"
    );
}

/// Every number in an advice that names cores is a core this process may use.
#[test]
fn only_cores_that_may_be_used_are_advised() {
    let siblings =
        |core: usize| format!("sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    for (affinity, pairs, isolated, sharing) in [
        // One core, alone or with a thread that is not in the mask.
        (vec![0], vec![(0, "0\n")], None, None),
        (vec![1], vec![(1, "1,3\n")], None, Some("`cores` to 1,")),
        // Two threads of one core: the system needs that core.
        (
            vec![0, 1],
            vec![(0, "0-1\n"), (1, "0-1\n")],
            None,
            Some("`cores` to 0,"),
        ),
        (
            vec![0, 1],
            vec![(0, "0\n"), (1, "1\n")],
            Some(("1", "1")),
            None,
        ),
        (
            vec![0, 1, 2, 3, 6],
            vec![
                (0, "0,2\n"),
                (1, "1,3\n"),
                (2, "0,2\n"),
                (3, "1,3\n"),
                (6, "6\n"),
            ],
            Some(("1,3,6", "1,6")),
            Some("`cores` to 0-1,6,"),
        ),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let files: Vec<(String, &str)> = pairs
            .iter()
            .map(|(core, text)| (siblings(*core), *text))
            .collect();
        let files: Vec<(&str, &str)> = files
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        let mut host = host(directory.path(), &files);
        host.affinity = affinity.clone();
        let isolation = cores::isolation(&host).mend.expect("none is isolated");
        match isolated {
            Some((list, chosen)) => assert_eq!(
                isolation,
                format!(
                    "boot with isolcpus=managed_irq,domain,{list} nohz_full={list}, and set `cores` to {chosen}"
                )
            ),
            None => assert!(
                !isolation.bytes().any(|byte| byte.is_ascii_digit()),
                "{affinity:?}: {isolation}"
            ),
        }
        let found = cores::siblings(&host);
        let advised = found
            .mend
            .as_deref()
            .is_some_and(|mend| mend.contains("`cores`"));
        assert_eq!(advised, sharing.is_some(), "{found:?}");
        if let Some(part) = sharing {
            assert!(
                found
                    .mend
                    .as_deref()
                    .is_some_and(|mend| mend.contains(part)),
                "{found:?}"
            );
        }
    }
}

#[test]
fn findings_fit_a_terminal_and_say_the_same_there() {
    let root = tempfile::tempdir().unwrap();
    let findings = look(&host(root.path(), &[]));
    assert!(findings.iter().any(|finding| finding.state != State::Good));
    for finding in findings {
        let text = lines(&finding, Some(80));
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let words = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(words(&text), words(&lines(&finding, None)));
    }
}
