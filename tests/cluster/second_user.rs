//! A second user of the same machine tries everything that a cluster listens with, and is refused; the first is served.
//!
//! Processes of other users need root, which the tests of every change have. Who has not hears why nothing is shown.

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::skipped::skipped;
use crate::support::{Ended, PATIENCE, Process, free_ports, text};

/// Users whom no machine knows: whose tasks run, and who has no business there.
const OWNER: u32 = 61_001;
const STRANGER: u32 = 61_002;
/// The number that the kernel shows for users that have none.
const NOBODY: u32 = 65_534;

/// A folder for all users, with the command in it: the build's own folder may be closed to others.
struct Machine {
    folder: TempDir,
}

impl Machine {
    /// Nothing where there are no other users to be.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("only root can run processes of other users");
            return None;
        }
        if Command::new("setpriv").arg("--version").output().is_err() {
            skipped("there is no setpriv (util-linux)");
            return None;
        }
        let folder = tempfile::tempdir_in("/tmp").expect("a folder");
        let open = Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), open.clone()).expect("opened");
        let command = folder.path().join("rendez");
        fs::copy(env!("CARGO_BIN_EXE_rendez"), &command).expect("copied");
        fs::set_permissions(&command, open).expect("opened");
        let machine = Self { folder };
        for user in [OWNER, STRANGER] {
            let home = machine.home(user);
            fs::create_dir(&home).expect("a folder");
            chown(&home, Some(user), Some(user)).expect("given away");
        }
        Some(machine)
    }

    fn home(&self, user: u32) -> PathBuf {
        self.folder.path().join(user.to_string())
    }

    /// Any program, as `user` and in no group of ours.
    fn program(&self, user: u32, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={user}"))
            .arg(format!("--regid={user}"))
            .args(["--clear-groups", "--"])
            .arg(program)
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("RENDEZ_SHARDS", "1")
            .env("RENDEZ_SHARE_CORES", "true")
            .env("RENDEZ_ARENA_SEGMENT_BYTES", "4MiB")
            .current_dir(self.home(user));
        command
    }

    fn start(&self, user: u32, arguments: &[&str]) -> Process {
        let rendez = self.folder.path().join("rendez");
        Process::start(self.program(user, &rendez, arguments))
    }

    fn run(&self, user: u32, arguments: &[&str]) -> Ended {
        self.start(user, arguments).finish()
    }

    /// A file that all users may read.
    fn file(&self, name: &str, bytes: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("opened");
        path
    }
}

/// Two tasks of the owner that serve on loopback without a secret, and one port each for metrics: the second at an
/// address of IPv4 that is written as one of IPv6.
struct Cluster {
    spec: String,
    ports: [u16; 2],
    metrics: [u16; 2],
    tasks: [Process; 2],
}

impl Cluster {
    fn new(machine: &Machine) -> Self {
        let [a, b, plain, mapped] = free_ports();
        let spec = format!("alpha=127.0.0.1:{a};beta=127.0.0.1:{b}");
        let serve = |job: &str, more: &[&str]| {
            let mut arguments = vec!["serve", "--cluster", &*spec, "--job", job, "--task", "0"];
            arguments.extend(["--failure-detection", "10s", "--recorder-dir", "."]);
            arguments.extend(more);
            let task = machine.start(OWNER, &arguments);
            task.await_said("of 2 tasks");
            task
        };
        let tasks = [
            serve("alpha", &["--metrics", &format!("127.0.0.1:{plain}")]),
            serve(
                "beta",
                &["--metrics", &format!("[::ffff:127.0.0.1]:{mapped}")],
            ),
        ];
        Self {
            spec,
            ports: [a, b],
            metrics: [plain, mapped],
            tasks,
        }
    }
}

/// What a raw connection hears that says `said`.
fn hear(port: u16, said: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.write_all(said).expect("said");
    let mut heard = Vec::new();
    // Closed with something unread is closed all the same.
    let _ = stream.read_to_end(&mut heard);
    heard
}

const GRAPH: &str = r#"
node { name: "x" op: "Const"
  attr { key: "dtype" value { type: DT_FLOAT } }
  attr { key: "value" value { tensor { dtype: DT_FLOAT tensor_shape {} float_val: 4711.5 } } } }
"#;

#[test]
fn a_second_user_is_refused_by_all_that_listens() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let cluster = Cluster::new(&machine);
    let spec = &*cluster.spec;
    let graph = machine.file("graph.pbtxt", GRAPH);
    let on = format!("127.0.0.1:{}", cluster.ports[0]);
    let visits: [&[&str]; 5] = [
        &[
            "ping",
            "--count",
            "1",
            "--patience",
            "5s",
            "--cluster",
            spec,
        ],
        &["stat", "--patience", "5s", "--cluster", spec],
        &["pending", "--patience", "5s", "--cluster", spec],
        &["explain", "--patience", "5s", "--cluster", spec],
        &["run", text(&graph), "--fetch", "x", "--on", &on],
    ];
    for visit in visits {
        machine.run(OWNER, visit).well();
    }
    for visit in visits {
        let ended = machine.run(STRANGER, visit);
        assert_ne!(ended.code, Some(0), "{visit:?}: {}", ended.said);
        assert!(!ended.said.contains("4711.5"), "{visit:?}: {}", ended.said);
    }
    // A task of that cluster, or one who hands over to it and takes from it.
    let free = free_ports::<1>()[0];
    let joined = format!("{spec};c=127.0.0.1:{free}");
    let member = [
        "--cluster",
        &*joined,
        "--task",
        "/job:c/task:0",
        "--patience",
        "5s",
    ];
    for task in [
        &["serve", "--check", "--once"][..],
        &["push", "--to", "/job:alpha/task:0"],
        &["pull", "--from", "/job:alpha/task:0"],
    ] {
        let ended = machine.run(STRANGER, &[task, &member].concat());
        ended.refused(17, "PEER_OTHER_USER", &["only from its own user"]);
    }
    // By hand, without our own dialler's manners. This process is root, and root is no more welcome.
    for port in cluster.ports {
        assert_eq!(hear(port, b"rendezC\x01"), b"rendezO\x01");
        let data = [&b"rendezD\x01"[..], &[0; 72]].concat();
        assert_eq!(hear(port, &data), b"rendezO\x01");
    }
    for port in cluster.metrics {
        let fetch = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /metrics HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3"
        );
        for (user, status, page) in [(OWNER, "200 OK", true), (STRANGER, "403 Forbidden", false)] {
            let bash = machine.program(user, Path::new("bash"), &["-c", &fetch]);
            let ended = Process::start(bash).finish();
            let said = &ended.said;
            assert!(said.contains(status), "{said}");
            assert_eq!(said.contains("rendez_build_info"), page, "{said}");
        }
    }
    // The Unix sockets, by the names that the kernel shows all users.
    let all = fs::read_to_string("/proc/net/unix").expect("names");
    let names = all.lines().filter_map(|line| line.split_once(" @rendez/"));
    let names: Vec<&str> = names
        .map(|(_, name)| name)
        .filter(|name| name.starts_with("/job:alpha/") || name.starts_with("/job:beta/"))
        .collect();
    assert!(names.len() >= 2, "{all}");
    for name in names {
        let near = format!("unix:@rendez/{name}");
        let run = [
            "run",
            text(&graph),
            "--fetch",
            "x",
            "--patience",
            "5s",
            "--on",
            &near,
        ];
        machine.run(OWNER, &run).well();
        let ended = machine.run(STRANGER, &run);
        assert_ne!(ended.code, Some(0), "{}", ended.said);
        assert!(!ended.said.contains("4711.5"), "{}", ended.said);
    }
    // Both are as they were, and have told who knocked.
    machine.run(OWNER, visits[0]).well();
    for task in cluster.tasks {
        let said = task.stop().well().said;
        assert!(said.contains("PEER_OTHER_USER"), "{said}");
        assert!(
            said.contains(&format!("belongs to user {STRANGER}")),
            "{said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// Who took a task's port before it is not talked to: nothing is said to another user's listener but what for.
#[test]
fn a_second_user_that_took_the_port_hears_nothing() {
    let Some(machine) = Machine::new() else {
        return;
    };
    // This process is root, and another user than the owner.
    let squatter = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = squatter.local_addr().expect("bound").port();
    let [own] = free_ports();
    let spec = format!("a=127.0.0.1:{own};b=127.0.0.1:{taken}");
    let task = machine.start(
        OWNER,
        &[
            "push",
            "--to",
            "/job:b/task:0",
            "--cluster",
            &spec,
            "--task",
            "/job:a/task:0",
            "--patience",
            "20s",
        ],
    );
    let (mut stream, _) = squatter.accept().expect("it dials");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    let mut opening = [0; 8];
    stream.read_exact(&mut opening).expect("an opening");
    assert_eq!(&opening, b"rendezC\x01");
    stream.write_all(b"rendezW\x01").expect("welcomed");
    let mut more = Vec::new();
    let _ = stream.read_to_end(&mut more);
    assert_eq!(more, [0; 0], "not a byte for another user");
    task.finish().refused(
        17,
        "PEER_OTHER_USER",
        &["belongs to user 0", "cluster secret"],
    );
}

/// The README's way: one command for the cluster, and questions from another terminal of the same user. The tasks have
/// a secret, which lies in no file, no argument and no variable.
#[test]
fn a_cluster_of_one_command_is_its_users_alone() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let [a, b] = free_ports();
    let file = machine.file(
        "cluster.toml",
        &format!("shards = 1\nshare_cores = true\n[cluster]\na = [\"127.0.0.1:{a}\"]\nb = [\"127.0.0.1:{b}\"]\n"),
    );
    let up = machine.start(OWNER, &["up", text(&file)]);
    for task in ["/job:a/", "/job:b/"] {
        up.await_said(&format!("{task}replica:0/task:0 of 2 tasks"));
    }
    let ask = [
        "ping",
        "--count",
        "1",
        "--patience",
        "5s",
        "--config",
        text(&file),
    ];
    for require in [&[][..], &["--require", "tcp"]] {
        machine.run(OWNER, &[&ask[..], require].concat()).well();
        let ended = machine.run(STRANGER, &[&ask[..], require].concat());
        assert_ne!(ended.code, Some(0), "{}", ended.said);
    }
    // Not even with a secret of one's own.
    let home = machine.home(STRANGER).join("secret");
    machine.run(STRANGER, &["secret", "new", "secret"]).well();
    assert_eq!(
        fs::metadata(&home).expect("made").permissions().mode() & 0o777,
        0o600
    );
    let ended = machine.run(
        STRANGER,
        &[&ask[..], &["--cluster-secret-file", "secret"]].concat(),
    );
    assert_ne!(ended.code, Some(0), "{}", ended.said);
    let said = up.stop().said;
    assert!(!said.contains("neither a cluster secret nor TLS"), "{said}");
    assert!(said.contains("SECRET_WRONG"), "{said}");
}

/// `program`, which runs as `user`, in a user namespace where that user alone has a number.
fn within(machine: &Machine, user: u32, number: u32, arguments: &[&str]) -> Process {
    let rendez = machine.folder.path().join("rendez");
    let map = format!("--map-user={number}");
    let all = [&["--user", &map, "--", text(&rendez)], arguments].concat();
    Process::start(machine.program(user, Path::new("unshare"), &all))
}

fn has_namespaces(machine: &Machine) -> bool {
    let arguments = ["--user", "--map-user=65534", "true"];
    let made = machine
        .program(OWNER, Path::new("unshare"), &arguments)
        .status();
    let has = made.is_ok_and(|status| status.success());
    if !has {
        skipped("users may not make user namespaces here");
    }
    has
}

/// Where only one user has a number, the kernel shows all others as 65534. That may be the very number that it has.
#[test]
fn a_second_user_without_a_number_is_no_namesake() {
    let Some(machine) = Machine::new() else {
        return;
    };
    if !has_namespaces(&machine) {
        return;
    }
    let near = format!("unix:@rendez-test-nameless-{}", std::process::id());
    for listen in [&["--listen", &*near][..], &[]] {
        let [port] = free_ports();
        let far = format!("127.0.0.1:{port}");
        let spec = format!("a={far}");
        let serve = ["serve", "--cluster", &*spec, "--job", "a", "--task", "0"];
        let task = within(&machine, OWNER, NOBODY, &[&serve[..], listen].concat());
        task.await_said("of 1 tasks");
        let at = listen.last().copied().unwrap_or(&far);
        for user in [OWNER, STRANGER] {
            let ask = ["ping", "--count", "1", "--patience", "5s", at];
            let ended = within(&machine, user, NOBODY, &ask).finish();
            ended.refused(17, "PEER_OTHER_USER", &[]);
        }
        let said = task.stop().said;
        assert!(said.contains("every user that has none in it"), "{said}");
    }
    // Nor are settings of such a user obeyed.
    let found = machine.home(OWNER).join("rendez.toml");
    fs::write(&found, "shards = 1\n").expect("written");
    chown(&found, Some(STRANGER), None).expect("given away");
    let ended = within(&machine, OWNER, NOBODY, &["config", "show"]).finish();
    assert!(
        ended.said.contains("may belong to another user"),
        "{}",
        ended.said
    );
    assert_ne!(ended.code, Some(0), "{}", ended.said);
}

/// A secret proves the same however the namespaces of its users number them.
#[test]
fn a_secret_is_one_in_every_user_namespace() {
    let Some(machine) = Machine::new() else {
        return;
    };
    if !has_namespaces(&machine) {
        return;
    }
    let secret = "--cluster-secret-file=secret";
    for user in [OWNER, STRANGER] {
        let home = machine.home(user).join("secret");
        fs::write(&home, "one secret of two users").expect("written");
        fs::set_permissions(&home, Permissions::from_mode(0o600)).expect("closed");
        chown(&home, Some(user), Some(user)).expect("given away");
    }
    let near = |number| format!("unix:@rendez-test-numbers-{number}-{}", std::process::id());
    for number in [None, Some(0), Some(NOBODY)] {
        let near = near(number.unwrap_or(1));
        let start = |user, number, arguments: &[&str]| match number {
            Some(number) => within(&machine, user, number, arguments),
            None => machine.start(user, arguments),
        };
        let [port] = free_ports();
        let spec = format!("a=127.0.0.1:{port}");
        let serve = [
            "serve",
            "--cluster",
            &*spec,
            "--job",
            "a",
            "--task",
            "0",
            "--listen",
            &near,
            secret,
        ];
        let task = start(OWNER, number, &serve);
        task.await_said("of 1 tasks");
        let ask = ["ping", "--count", "1", "--patience", "5s", &*near, secret];
        for user in [OWNER, STRANGER] {
            for other in [None, Some(0), Some(NOBODY)] {
                start(user, other, &ask).finish().well();
            }
        }
        task.stop().well();
    }
}

/// Who listens with nothing to prove says who gets in, once.
#[test]
fn a_task_without_a_secret_says_who_gets_in() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let [port] = free_ports();
    let spec = format!("a=127.0.0.1:{port}");
    let serve = ["serve", "--cluster", &*spec, "--job", "a", "--task", "0"];
    let warning = "every process of the same user on this machine can take and send tensors";
    machine.run(OWNER, &["secret", "new", "secret"]).well();
    for (more, count) in [(&[][..], 1), (&["--cluster-secret-file", "secret"], 0)] {
        let task = machine.start(OWNER, &[&serve[..], more].concat());
        task.await_said("of 1 tasks");
        let said = task.stop().well().said;
        assert_eq!(said.matches(warning).count(), count, "{said}");
    }
}
