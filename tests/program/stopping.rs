//! A server that is asked to end before it serves: its peers may be a minute in coming, and it ends at once.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::ports::free_ports;

/// How long the server would wait for its peers. A service manager kills what has not ended in half of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a server has done once it hears signals.
enum Sign {
    /// A line with this in it stands on its standard output.
    Says(&'static str),
    /// It listens at this port.
    Listens(u16),
    /// It dials this root, which is absent from then on.
    Dials(TcpListener),
}

/// Starts a server, waits for a sign of it, asks it to end, and says how it ended.
fn stopped(arguments: &[&str], sign: Sign) -> (Option<i32>, String) {
    let patience = format!("{}s", PATIENCE.as_secs());
    let mut child = Command::new(env!("CARGO_BIN_EXE_rendez"))
        .args(["serve", "--shards=1", "--share-cores=true", "--patience"])
        .arg(&patience)
        .args(arguments)
        .env_clear()
        .env("RENDEZ_LOG", "info")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let began = Instant::now();
    match sign {
        Sign::Says(text) => {
            let said = BufReader::new(child.stdout.as_mut().expect("piped"));
            let found = said
                .lines()
                .any(|line| line.is_ok_and(|line| line.contains(text)));
            assert!(found, "it never said {text}");
        }
        Sign::Listens(port) => {
            while TcpStream::connect(("127.0.0.1", port)).is_err() {
                assert!(began.elapsed() < PATIENCE / 2, "it never listened");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Sign::Dials(root) => {
            root.set_nonblocking(true).expect("a listener");
            while root.accept().is_err() {
                assert!(began.elapsed() < PATIENCE / 2, "it never dialled");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    let mut errors = String::new();
    let mut stderr = child.stderr.take().expect("piped");
    stderr.read_to_string(&mut errors).expect("a text");
    let status = child.wait().expect("it ends");
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    (status.code(), errors)
}

#[test]
fn a_server_that_waits_for_the_others_to_join_ends_when_it_is_asked_to() {
    let [port] = free_ports();
    let root = format!("127.0.0.1:{port}");
    let arguments = ["--root", &root, "--rank", "0", "--world-size", "2"];
    let (code, said) = stopped(&arguments, Sign::Listens(port));
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("error[INTERRUPTED]"), "{said}");
}

#[test]
fn a_server_that_dials_an_absent_root_ends_when_it_is_asked_to() {
    let root = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = root.local_addr().expect("bound").to_string();
    let arguments = ["--root", &address, "--rank", "1", "--world-size", "2"];
    let (code, said) = stopped(&arguments, Sign::Dials(root));
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("error[INTERRUPTED]"), "{said}");
}

#[test]
fn a_server_that_checks_ends_when_it_is_asked_to() {
    let [own, absent] = free_ports();
    let cluster = format!("a=127.0.0.1:{own};b=127.0.0.1:{absent}");
    let arguments = [
        "--check",
        "--drain-timeout=50s",
        "--cluster",
        &cluster,
        "--job",
        "a",
        "--task",
        "0",
    ];
    let (code, said) = stopped(&arguments, Sign::Says("of 2 tasks"));
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("error[INTERRUPTED]"), "{said}");
}

#[test]
fn a_server_whose_output_has_no_reader_any_more_records_and_serves_on() {
    let [port] = free_ports();
    let cluster = format!("a=127.0.0.1:{port}");
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Command::new(env!("CARGO_BIN_EXE_rendez"))
        .args(["serve", "--shards=1", "--share-cores=true", "--job=a"])
        .args(["--task=0", "--cluster", &cluster, "--recorder-dir"])
        .arg(folder.path())
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().expect("piped"));
    said.read_line(&mut line).expect("a text");
    assert!(line.contains("of 1 tasks"), "{line}");
    drop(said);
    let pid = rustix::process::Pid::from_child(&child);
    let mut errors = BufReader::new(child.stderr.take().expect("piped")).lines();
    for _ in 0..2 {
        // The second is answered by a process that outlived the first.
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("it lives");
        let recorded = errors.any(|line| line.is_ok_and(|line| line.contains("recorded: ")));
        assert!(recorded, "it ended: {:?}", child.try_wait());
    }
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

/// More patience would not help.
#[test]
fn a_check_with_a_task_that_checks_nothing_says_what_that_may_be() {
    let [one, other] = free_ports();
    let cluster = format!("a=127.0.0.1:{one};b=127.0.0.1:{other}");
    let serve = |job: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
        command
            .args(["serve", "--shards=1", "--share-cores=true", "--task=0"])
            .args(["--job", job, "--cluster", &cluster])
            .args(more)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let mut server = serve("a", &[]).spawn().expect("it starts");
    let mut line = String::new();
    let mut said = BufReader::new(server.stdout.as_mut().expect("piped"));
    said.read_line(&mut line).expect("it serves");
    let once = ["--check", "--once", "--patience=5s", "--drain-timeout=0s"];
    let checked = serve("b", &once).output().expect("it runs");
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    server.wait().expect("it ends");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(said.contains("error[DEADLINE]: "), "{said}");
    assert!(said.contains("started with `--check` too"), "{said}");
    assert!(!said.contains("in time; raise"), "{said}");
}
