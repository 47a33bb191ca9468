//! What is wrong with what a task is told: it says so, for a reason that stays, and ends.

use std::net::TcpListener;
use std::time::Instant;

use super::support::{Place, Process, free_ports, text};

/// A command line, the exit code, the reason, and what the message must name.
type Case<'a> = (&'a [&'a str], i32, &'a str, &'a [&'a str]);

/// A launcher's variables, the reason, and what the message must name.
type Launched<'a> = (Vec<(&'a str, &'a str)>, &'a str, &'a [&'a str]);

const OF_B: [&str; 5] = ["serve", "--job", "b", "--task", "0"];

/// Long before the task's time is over.
#[test]
fn a_task_that_no_way_leads_to_is_told_of_while_it_is_waited_for() {
    let place = Place::new();
    let [port] = free_ports();
    // No name server knows a name below `invalid`.
    let cluster = format!("a=127.0.0.1:{port};b=name.invalid:1");
    let waiting = place.start(&[
        "serve",
        "--check",
        "--cluster",
        &cluster,
        "--job",
        "a",
        "--task",
        "0",
    ]);
    waiting.await_said("a task cannot be reached yet");
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let place = Place::new();
    let readable = place.file("readable", "not to be guessed by anybody");
    let short = place.secret("short");
    std::fs::write(&short, "short").expect("written");
    let twice = place.file("twice.toml", "shards = = 1\n");
    let unknown = place.file("unknown.toml", "shrads = 1\n");
    let address = place.file("address.toml", "[cluster]\nb = [\"127.0.0.1\"]\n");
    let [port] = free_ports();
    let cluster = format!("b=127.0.0.1:{port}");
    let cases: [Case; 12] = [
        (
            &["--cluster-secret-file", text(&readable)],
            78,
            "SECRET_UNFIT",
            &["others may read", "chmod 600"],
        ),
        (
            &["--cluster-secret-file", text(&short)],
            78,
            "SECRET_UNFIT",
            &["16 to 4096 bytes", "rendez secret new"],
        ),
        (
            &["--cluster-secret-file", "none"],
            78,
            "SECRET_UNFIT",
            &["cannot read none"],
        ),
        (
            &["--config", text(&twice)],
            78,
            "CONFIG",
            &["twice.toml", "line 1"],
        ),
        (
            &["--config", text(&unknown)],
            78,
            "CONFIG",
            &["unknown.toml:1", "`shrads`", "did you mean `shards`"],
        ),
        (
            &["--config", text(&address)],
            78,
            "CONFIG",
            &["address.toml:1", "host-port pair"],
        ),
        (
            &["--cluster", "b=127.0.0.1"],
            2,
            "USAGE",
            &["--cluster", "host-port pair"],
        ),
        (
            &["--cluster", "c=127.0.0.1:1"],
            78,
            "CLUSTER_TASK_UNDEFINED",
            &["Job \"b\""],
        ),
        (
            &["--cluster", &cluster, "--protocol", "pigeon"],
            78,
            "PROTOCOL_UNKNOWN",
            &["\"pigeon\"", "auto, shm, tcp, verbs, grpc"],
        ),
        (
            &["--cluster", &cluster, "--protocol", "grpc+mpi"],
            78,
            "PROTOCOL_REFUSED",
            &["mpirun"],
        ),
        (
            &[
                "--cluster",
                &cluster,
                "--protocol",
                "shm",
                "--require",
                "tcp",
            ],
            78,
            "CONFIG",
            &["contradict"],
        ),
        (
            &["--cluster", &cluster, "--listen", "0.0.0.0:0"],
            78,
            "CONTROL_EXPOSED",
            &["cluster secret", "`insecure`"],
        ),
    ];
    for (more, code, reason, texts) in cases {
        let mut arguments = OF_B.to_vec();
        if !more
            .iter()
            .any(|argument| ["--cluster", "--config"].contains(argument))
        {
            arguments.extend(["--cluster", &cluster]);
        }
        arguments.extend(more);
        place.run(&arguments).refused(code, reason, texts);
    }
    place.await_nobody();
}

/// What is missing is named: the library, the kernel's modules, or the device.
#[test]
fn a_demand_for_rdma_is_refused_where_there_is_none() {
    if std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
    {
        return;
    }
    let place = Place::new();
    let [port] = free_ports();
    let cluster = format!("b=127.0.0.1:{port}");
    for demand in [["--require", "verbs"], ["--protocol", "grpc+verbs"]] {
        let mut arguments = OF_B.to_vec();
        arguments.extend(["--cluster", &cluster]);
        arguments.extend(demand);
        let refused = place.run(&arguments);
        let reason = ["VERBS_MISSING", "VERBS_CALL", "PATH_REFUSED"]
            .into_iter()
            .find(|reason| refused.said.contains(reason));
        let reason = reason.unwrap_or_else(|| panic!("{}", refused.said));
        refused.refused(1, reason, &["verbs"]);
    }
}

#[test]
fn an_open_address_is_taken_when_it_is_said_in_so_many_words() {
    let place = Place::new();
    let [port] = free_ports();
    let cluster = format!("b=127.0.0.1:{port}");
    let secret = place.secret("secret");
    for way in [
        &["--insecure"][..],
        &["--cluster-secret-file", text(&secret)],
    ] {
        let mut arguments = OF_B.to_vec();
        arguments.extend(["--cluster", &cluster, "--listen", "0.0.0.0:0"]);
        arguments.extend(way);
        let task = place.start(&arguments);
        task.await_said("rendez://0.0.0.0:");
        task.stop().well();
    }
}

#[test]
fn launchers_that_say_what_cannot_be_are_refused_by_the_variable() {
    let slurm = |nodes: &'static str, counts: &'static str| {
        vec![
            ("SLURM_JOB_ID", "1"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_NODELIST", nodes),
            ("SLURM_TASKS_PER_NODE", counts),
        ]
    };
    let torchrun = |rank: &'static str, size: &'static str| {
        let master = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
        [("RANK", rank), ("WORLD_SIZE", size)]
            .into_iter()
            .chain(master)
            .collect()
    };
    let tf_config = |text: &'static str| vec![("TF_CONFIG", text)];
    let undefined = r#"{"cluster":{"worker":["a:1"]},"task":{"type":"worker","index":7}}"#;
    let cases: [Launched; 9] = [
        (
            tf_config("{\"cluster\""),
            "TF_CONFIG_MALFORMED",
            &["line 1 column 10", "it looks like"],
        ),
        (tf_config("[]"), "TF_CONFIG_MALFORMED", &["it looks like"]),
        (
            tf_config(undefined),
            "CLUSTER_TASK_UNDEFINED",
            &["Task 7", "\"worker\""],
        ),
        (
            slurm("cn[9-", "2"),
            "HOST_LIST_MALFORMED",
            &["a bracket is not closed", "node[01-04,7]"],
        ),
        (slurm("cn[1-2]", "1(x"), "HOST_LIST_MALFORMED", &["2(x3)"]),
        (
            slurm("cn[1-2]", "1"),
            "LAUNCHER_ENVIRONMENT",
            &["SLURM_TASKS_PER_NODE"],
        ),
        (
            torchrun("3", "2"),
            "LAUNCHER_ENVIRONMENT",
            &["RANK=3", "WORLD_SIZE=2"],
        ),
        (torchrun("one", "2"), "LAUNCHER_ENVIRONMENT", &["RANK="]),
        (
            vec![("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")],
            "CLUSTER_ROOT_UNKNOWN",
            &["RENDEZ_ROOT"],
        ),
    ];
    let place = Place::new();
    for (environment, reason, texts) in cases {
        let mut command = place.command(&["serve"]);
        command.envs(environment);
        Process::start(command).finish().refused(78, reason, texts);
    }
    place.run(&["serve"]).refused(
        78,
        "CLUSTER_UNRESOLVED",
        &["nothing says what the cluster is", "torchrun"],
    );
}

#[test]
fn a_port_in_use_is_told_with_its_number() {
    let place = Place::new();
    let other = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = other.local_addr().expect("its number").to_string();
    let cluster = format!("b={address}");
    let mut arguments = OF_B.to_vec();
    arguments.extend(["--cluster", &cluster]);
    place.run(&arguments).refused(
        1,
        "PEER_DUPLICATE_NAME",
        &[&address, "listens on it already"],
    );
    // Those that were there are unharmed.
    std::net::TcpStream::connect(&address).expect("it still listens");
}

#[test]
fn a_host_that_is_not_there_is_named_with_what_befell() {
    let place = Place::new();
    let [ours, theirs] = free_ports();
    for (host, text, code, reason) in [
        (
            format!("127.0.0.1:{theirs}"),
            "refused",
            10,
            "CONNECTION_REFUSED",
        ),
        (
            format!("no-such-host.invalid:{theirs}"),
            "no-such-host.invalid",
            12,
            "CONNECT_DEADLINE",
        ),
    ] {
        let cluster = format!("a={host};b=127.0.0.1:{ours}");
        let began = Instant::now();
        let mut arguments = OF_B.to_vec();
        arguments.extend([
            "--cluster",
            &cluster,
            "--check",
            "--once",
            "--patience",
            "1s",
        ]);
        let ended = place.run(&arguments);
        ended.refused(code, reason, &["/job:a/replica:0/task:0", &host, text]);
        assert!(began.elapsed().as_secs() < 20, "{}", ended.said);
        // The caller hears as much, and where.
        let asked = place.run(&[
            "ping",
            "--cluster",
            &cluster,
            "/job:a/task:0",
            "--patience",
            "1s",
        ]);
        let told = "/job:a/replica:0/task:0 cannot be asked";
        asked.refused(code, reason, &[told, text]);
    }
}
