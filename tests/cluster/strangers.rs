//! Those who knock at a task and do not belong: they get nothing, the log says why, and no one else notices.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::support::{PATIENCE, Place, Process, free_ports, text};

/// Two tasks that serve with a secret and are connected.
struct Cluster {
    place: Place,
    secret: PathBuf,
    spec: String,
    port: u16,
    a: Process,
    b: Process,
}

impl Cluster {
    fn new() -> Self {
        let place = Place::new();
        let secret = place.secret("secret");
        let [port, other] = free_ports();
        let spec = format!("a=127.0.0.1:{port};b=127.0.0.1:{other}");
        let serve = |job: &str| {
            let mut arguments = vec!["serve", "--cluster", &*spec, "--job", job, "--task", "0"];
            arguments.extend(["--cluster-secret-file", text(&secret)]);
            // A greeting has as long as a loss: time for a busy machine to meet all strangers of a test at once.
            arguments.extend(["--failure-detection", "10s"]);
            let task = place.start(&arguments);
            task.await_said("of 2 tasks");
            task
        };
        let (a, b) = (serve("a"), serve("b"));
        let cluster = Self {
            a,
            b,
            place,
            secret,
            spec,
            port,
        };
        cluster.is_unharmed();
        cluster
    }

    /// Both tasks answer those who belong, and have each other.
    fn is_unharmed(&self) {
        let secret = text(&self.secret);
        let ask = [
            "--json",
            "--cluster",
            &*self.spec,
            "--cluster-secret-file",
            secret,
        ];
        let mut explain = vec!["explain"];
        explain.extend(ask);
        let explained = self.place.run(&explain).well().objects();
        assert_eq!(explained.len(), 2, "{explained:?}");
        let mut ping = vec!["ping", "--count", "1"];
        ping.extend(ask);
        assert_eq!(self.place.run(&ping).well().objects().len(), 2);
    }

    /// A caller that checks, as one of this cluster: how does it end?
    fn knock(&self, cluster: &str, task: &str, more: &[&str]) -> super::support::Ended {
        let mut arguments = vec![
            "serve",
            "--cluster",
            cluster,
            "--task",
            task,
            "--listen",
            "127.0.0.1:0",
        ];
        arguments.extend(["--check", "--once", "--patience", "3s"]);
        arguments.extend(more);
        self.place.run(&arguments)
    }

    /// Both end well, having said nothing of a panic.
    fn stop(self) -> String {
        let (a, b) = (self.a.stop().well(), self.b.stop().well());
        self.place.await_nobody();
        for said in [&a.said, &b.said] {
            assert!(!said.contains("panicked"), "{said}");
        }
        a.said
    }

    fn dial(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream
    }
}

#[test]
fn who_lacks_the_secret_gets_nothing() {
    let cluster = Cluster::new();
    let guess = cluster.place.secret("guess");
    for (more, code, reason, texts) in [
        (
            &["--cluster-secret-file", text(&guess)][..],
            14,
            "SECRET_WRONG",
            &["no common cluster secret", "did not take our proof"][..],
        ),
        (
            &[],
            13,
            "SECRET_MISSING",
            &["the peer has one, this task has none"],
        ),
    ] {
        let ended = cluster.knock(&cluster.spec, "/job:c/task:0", more);
        // It is not even told that there is no such task.
        ended.refused(78, "CLUSTER_TASK_UNDEFINED", &["c"]);
        let spec = format!("{};c=127.0.0.1:1", cluster.spec);
        let ended = cluster.knock(&spec, "/job:c/task:0", more);
        ended.refused(code, reason, texts);
        assert!(ended.handed_over().is_empty(), "{}", ended.said);
        cluster.is_unharmed();
    }
    let log = cluster.stop();
    assert!(
        log.contains("a connection was refused") && log.contains("SECRET_WRONG"),
        "{log}"
    );
}

#[test]
fn a_task_with_a_secret_meets_none_that_has_no_secret() {
    let cluster = Cluster::new();
    let [port] = free_ports();
    let open = format!("open=127.0.0.1:{port};c=127.0.0.1:1");
    let arguments = ["serve", "--cluster", &open, "--job", "open", "--task", "0"];
    let task = cluster.place.start(&arguments);
    task.await_said("of 2 tasks");
    let secret = ["--cluster-secret-file", text(&cluster.secret)];
    let ended = cluster.knock(&open, "/job:c/task:0", &secret);
    ended.refused(13, "SECRET_MISSING", &["no common cluster secret"]);
    task.stop().well();
    cluster.is_unharmed();
    cluster.stop();
}

#[test]
fn who_is_not_of_the_cluster_is_told_so() {
    let cluster = Cluster::new();
    let spec = format!("{};c=127.0.0.1:1", cluster.spec);
    let ended = cluster.knock(
        &spec,
        "/job:c/task:0",
        &["--cluster-secret-file", text(&cluster.secret)],
    );
    let text = "/job:c/replica:0/task:0 is not a task of this cluster";
    ended.refused(16, "PEER_NOT_OF_CLUSTER", &[text]);
    cluster.is_unharmed();
    let log = cluster.stop();
    assert!(log.contains(text), "{log}");
}

#[test]
fn a_name_that_is_taken_is_not_given_twice() {
    let cluster = Cluster::new();
    let ended = cluster.knock(
        &cluster.spec,
        "/job:b/task:0",
        &["--cluster-secret-file", text(&cluster.secret)],
    );
    ended.refused(
        1,
        "PEER_DUPLICATE_NAME",
        &["/job:b/replica:0/task:0 is connected", "alive"],
    );
    cluster.is_unharmed();
    cluster.stop();
}

#[test]
fn garbage_and_silence_cost_their_own_connection() {
    let cluster = Cluster::new();
    // Part of an opening, and never the whole: it is hung up on in its time, and not before.
    let mut slow = cluster.dial();
    let mut opening = b"rendezC".iter();
    let began = Instant::now();
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
        &[0; 4096],
        &[0xff; 4096],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-OpenSSH_9.9\r\n",
    ] {
        let mut stranger = cluster.dial();
        // It may be hung up on before all is sent.
        let _ = stranger.write_all(garbage);
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{garbage:?} was answered {answer:?}");
        cluster.is_unharmed();
    }
    // A byte now and then does not make the time longer.
    slow.set_read_timeout(Some(Duration::from_millis(400)))
        .expect("set");
    let is_kept = |read: std::io::Result<usize>| {
        let kind = read.map_err(|error| error.kind());
        matches!(kind, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut))
    };
    while is_kept(slow.read(&mut [0])) {
        if let Some(byte) = opening.next() {
            let _ = slow.write_all(&[*byte]);
        }
        assert!(began.elapsed() < PATIENCE, "a slow sender is kept for ever");
    }
    // Of its five seconds.
    assert!(began.elapsed() >= Duration::from_secs(4));
    cluster.is_unharmed();
    cluster.stop();
}

#[test]
fn a_flood_fills_its_own_share_and_nobody_elses() {
    const FLOOD: usize = 300;
    let cluster = Cluster::new();
    // All of loopback is this machine, so they come from another address of it than all others.
    let open = || -> rustix::io::Result<OwnedFd> {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 0))?;
        connect(
            &socket,
            &SocketAddrV4::new(Ipv4Addr::LOCALHOST, cluster.port),
        )?;
        Ok(socket)
    };
    let flood: Vec<_> = (0..FLOOD).map(|_| open()).collect();
    assert!(flood.iter().filter(|one| one.is_ok()).count() > FLOOD / 2);
    // While all of them stand.
    cluster.is_unharmed();
    drop(flood);
    let log = cluster.stop();
    let told = log.matches("connections that say nothing").count();
    assert_eq!(told, 1, "{log}");
}
