//! Several processes: proofs of exit, pauses, other users, and a machine that refuses rings.
//!
//! A child is this very test binary, asked to run the one test [`child`] in the role named by its environment.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rendez::control::{Address, PeerGone, RuntimeKind, probe};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process};
use rustix::thread::CapabilitySet;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::support::{Answers, BOTH, Event, PATIENCE, Task, config, start, start_with};
use super::tcp::secret;

const ROLE: &str = "RENDEZ_TEST_ROLE";
/// The number of `io_uring_setup`, the same on every machine that has it.
const IO_URING_SETUP: i64 = 425;
const ADDRESS: &str = "RENDEZ_TEST_ADDRESS";

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let address = || {
        std::env::var(ADDRESS)
            .expect("an address")
            .parse::<Address>()
            .expect("an address")
    };
    match role.as_str() {
        "peer" => peer(address(), None),
        "kindred-peer" => peer(address(), Some("one")),
        "false-peer" => peer(address(), Some("two")),
        "stranger" => stranger(address()),
        "no-ring" => no_ring(),
        "no-memory" => no_memory(),
        "leaks" => super::leaks::run(),
        other => panic!("no role {other}"),
    }
}

/// Connects as task `b`, says so, and lives until its standard input ends.
fn peer(address: Address, known: Option<&str>) {
    let mut config = config("b", u64::from(std::process::id()), RuntimeKind::Poll);
    config.secret = known.map(secret);
    let b = start(config);
    b.control.dial("a", address, PATIENCE).expect("taken");
    match b.next() {
        Event::Up(up) => say(&format!(
            "up with {} segments",
            up.descriptors.segments.len()
        )),
        Event::DialFailed(_, status) => say(&format!("refused {}", status.reason())),
        other => panic!("{other:?}"),
    }
    wait_for_end();
}

/// Connects by hand, hangs up when told, and lives on.
fn stranger(address: Address) {
    let raw = super::refusals::connected_to(&address, 7);
    say("up");
    let mut byte = [0];
    std::io::stdin()
        .read_exact(&mut byte)
        .expect("told to hang up");
    drop(raw);
    wait_for_end();
}

fn say(line: &str) {
    // The harness has left its own line open.
    let mut output = std::io::stdout();
    output
        .write_all(format!("\n@{line}\n").as_bytes())
        .and_then(|()| output.flush())
        .expect("said");
}

fn wait_for_end() {
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).expect("the end");
}

struct Process {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, address: Option<&Address>) -> Self {
        Self::from_command(Self::command(role, address))
    }

    fn command(role: &str, address: Option<&Address>) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("our binary"));
        command
            .args([
                "--exact",
                "children::child",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(ROLE, role);
        if let Some(address) = address {
            command.env(ADDRESS, address.to_string());
        }
        command
    }

    fn from_command(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self {
            child,
            input,
            output,
        }
    }

    /// The next line it said to us.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.output.read_line(&mut line).expect("a line"),
                0,
                "the child is gone"
            );
            if let Some(said) = line.trim_end().strip_prefix('@') {
                return said.to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("signalled");
    }

    fn finish(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Only a failing test leaves one alive.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn patient(kind: RuntimeKind) -> Task {
    let mut config = config("a", 1, kind);
    // The proof of exit comes a moment after the end of the connection; a busy machine may stretch the moment.
    config.proof_grace = PATIENCE;
    start(config)
}

#[test]
fn a_killed_process_is_proved_gone() {
    for kind in BOTH {
        let a = patient(kind);
        let process = Process::start("peer", Some(a.control.address()));
        let up = a.up();
        assert!(up.exit_provable && up.read_domain);
        assert_eq!(up.hello.process, i32::try_from(process.child.id()).ok());
        process.signal(Signal::KILL);
        assert_eq!(a.gone().1, PeerGone::ProcessExited);
    }
}

#[test]
fn a_stopped_process_is_not_gone() {
    for kind in BOTH {
        let a = patient(kind);
        let mut process = Process::start("peer", Some(a.control.address()));
        a.up();
        assert_eq!(process.hear(), "up with 0 segments");
        process.signal(Signal::STOP);
        let nothing = a.events.recv_timeout(Duration::from_millis(200));
        assert!(nothing.is_err(), "{nothing:?}");
        process.signal(Signal::CONT);
        process.finish();
        // It says goodbye, and is followed to its exit.
        assert!(matches!(a.gone().1, PeerGone::Said { .. }));
        assert_eq!(a.gone().1, PeerGone::ProcessExited);
    }
}

#[test]
fn a_lost_connection_proves_nothing_until_the_process_has_exited() {
    for kind in BOTH {
        let mut config = config("a", 1, kind);
        config.proof_grace = Duration::from_millis(1);
        let a = start(config);
        let mut process = Process::start("stranger", Some(a.control.address()));
        let up = a.up();
        assert_eq!(process.hear(), "up");
        process
            .input
            .as_mut()
            .expect("its input")
            .write_all(b"x")
            .expect("told");
        let (peer, gone) = a.gone();
        assert!(
            peer == up.peer && matches!(gone, PeerGone::ConnectionLost(_)),
            "{gone:?}"
        );
        process.signal(Signal::KILL);
        assert_eq!(a.gone(), (up.peer, PeerGone::ProcessExited));
    }
}

#[test]
fn another_user_is_refused_unless_it_knows_the_secret() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    use std::os::unix::process::CommandExt;
    let another = |a: &Task, role| {
        let mut command = Process::command(role, Some(a.control.address()));
        command.uid(65_534).gid(65_534);
        Process::from_command(command)
    };
    let a = start(config("a", 1, RuntimeKind::Glommio));
    let mut refused = another(&a, "peer");
    assert_eq!(refused.hear(), "refused PEER_OTHER_USER");
    refused.finish();
    // A common secret makes a read domain of two users; another one is worse than none.
    let mut kindred = config("a", 3, RuntimeKind::Glommio);
    kindred.secret = Some(secret("one"));
    let a = start_with(
        kindred,
        Answers {
            segments: 3,
            ..Answers::default()
        },
    );
    for (role, reason) in [("false-peer", "SECRET_WRONG"), ("peer", "PEER_OTHER_USER")] {
        let mut refused = another(&a, role);
        assert_eq!(refused.hear(), format!("refused {reason}"));
        refused.finish();
    }
    let mut process = another(&a, "kindred-peer");
    let up = a.up();
    assert!(up.read_domain);
    assert_eq!(up.hello.user, Some(65_534));
    assert_eq!(process.hear(), "up with 3 segments");
    process.finish();
}

#[test]
fn a_machine_without_rings_runs_on_poll_and_says_why() {
    for (role, reason) in [
        ("no-ring", "io_uring_setup is refused"),
        ("no-memory", "RLIMIT_MEMLOCK is 64 KiB"),
    ] {
        let mut process = Process::start(role, None);
        let said = process.hear();
        assert!(
            said.starts_with("Poll: ") && said.contains(reason),
            "{said}"
        );
        process.finish();
    }
}

/// Where a container's filter refuses rings and gives 64 KiB of lockable memory, two tasks meet all the same.
fn no_ring() {
    limit_memory();
    let filter = SeccompFilter::new(
        BTreeMap::from([(IO_URING_SETUP, vec![])]),
        SeccompAction::Allow,
        SeccompAction::Errno(1),
        TargetArch::try_from(std::env::consts::ARCH).expect("a known machine"),
    );
    let program = BpfProgram::try_from(filter.expect("a filter")).expect("a program");
    seccompiler::apply_filter_all_threads(&program).expect("applied");
    meet();
}

fn no_memory() {
    limit_memory();
    let mut sets = rustix::thread::capabilities(None).expect("capabilities");
    for set in [
        &mut sets.effective,
        &mut sets.permitted,
        &mut sets.inheritable,
    ] {
        set.remove(CapabilitySet::IPC_LOCK);
    }
    rustix::thread::set_capabilities(None, sets).expect("dropped");
    meet();
}

fn limit_memory() {
    let limit = Rlimit {
        current: Some(64 << 10),
        maximum: Some(64 << 10),
    };
    rustix::process::setrlimit(Resource::Memlock, limit).expect("limited");
}

fn meet() {
    let report = probe(None);
    let task = |name, incarnation| {
        let mut config = config(name, incarnation, RuntimeKind::Poll);
        config.force_runtime = None;
        start(config)
    };
    let (a, b) = (task("a", 1), task("b", 2));
    assert_eq!(a.control.runtime(), &report);
    a.dial(&b, "b");
    assert_eq!((a.up().task, b.up().task), ("b".into(), "a".into()));
    say(&report.to_string());
    wait_for_end();
}
