//! What TLS does for data connections: who listens learns nothing, who changes a byte changes no value, and who comes
//! in clear is not let in.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rendez::control::{Address, PathWish, PeerUp, RuntimeKind};
use rendez::fabric::{
    Arrival, Caps, DownReason, Port, Protection, QpId, TcpConfig, TcpPort, kernel_tls,
};
use rendez::ground::Nanos;
use rendez::ground::limits::NEWCOMERS_PER_SOURCE_MAX;
use rendez::wire::Frame;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use super::relay::Relay;
use super::security::{Authority, hear_all, with_tls};
use super::support::{BOTH, PATIENCE, Task};
use super::tcp::{address, assert_joined, dial, open, start};

const PLAIN: &[u8] = b"/job:a;/job:b;weights: a tensor that no one else may read, and its key";

/// The first data connection of a pair, as a shard has it.
struct End {
    port: TcpPort,
    qp: QpId,
}

impl End {
    fn new(up: Box<PeerUp>, protection: Protection) -> Self {
        assert_eq!(up.protection, protection);
        let caps = Caps {
            body_max: usize::MAX,
            one_sided: false,
            read_domain: false,
        };
        let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
        let mut sockets = up.descriptors.sockets.into_iter();
        let socket = sockets.next().expect("three channels");
        let qp = port.attach_secured(socket.fd, socket.secured, caps);
        let qp = qp.expect("a connected socket");
        Self { port, qp }
    }

    fn send(&mut self) {
        let mut frame = Frame::default();
        frame.words[0] = 1 << 32;
        frame.words[1] = (PLAIN.len() as u64) << 32;
        self.port
            .post_send(self.qp, &frame, [PLAIN, &[]])
            .expect("room");
        self.port.flush();
    }

    /// Polls until something comes: a body, or the end.
    fn next(&mut self) -> Result<Vec<u8>, DownReason> {
        let mut came = None;
        let late = std::time::Instant::now() + PATIENCE;
        while came.is_none() {
            self.port.poll(Nanos(0), 1, &mut |arrival| {
                came = Some(match arrival {
                    Arrival::Frame { body, .. } => Ok(body.to_vec()),
                    Arrival::Down { reason, .. } => Err(reason),
                    other => panic!("{other:?}"),
                });
            });
            assert!(std::time::Instant::now() < late, "nothing comes");
        }
        came.expect("just looked")
    }
}

/// Two tasks and the relay between them; the one that dials is first.
fn met(tls: Option<&Authority>, kind: RuntimeKind) -> (Relay, [Task; 2], [End; 2]) {
    let made = |task, incarnation, kind| match tls {
        Some(authority) => start(with_tls(task, incarnation, kind, authority.tls(authority))),
        None => start(open(task, incarnation, kind)),
    };
    let (a, b) = (made("a", 1, kind), made("b", 2, RuntimeKind::Poll));
    let relay = Relay::to(&address(&b));
    a.control
        .dial_by("b", relay.address.clone(), PathWish::Tcp, PATIENCE)
        .expect("taken");
    let protection = match tls {
        Some(_) if kernel_tls().is_ok() => Protection::Kernel,
        Some(_) => Protection::Process,
        None => Protection::Clear,
    };
    let ends = [&a, &b].map(|task| End::new(task.up(), protection));
    (relay, [a, b], ends)
}

fn was_seen(relay: &Relay) -> bool {
    let recorded = relay.habits.recorded_data.lock().expect("no panic");
    recorded.windows(PLAIN.len()).any(|bytes| bytes == PLAIN)
}

/// Without TLS the relay sees what is sent: so the second half can fail.
#[test]
fn no_listener_reads_a_tensor_or_its_key() {
    let authority = Authority::new();
    for kind in BOTH {
        for tls in [None, Some(&authority)] {
            let (relay, _tasks, [mut near, mut far]) = met(tls, kind);
            near.send();
            assert_eq!(far.next(), Ok(PLAIN.to_vec()));
            far.send();
            assert_eq!(near.next(), Ok(PLAIN.to_vec()));
            assert_eq!(was_seen(&relay), tls.is_none());
        }
    }
}

#[test]
fn a_changed_byte_ends_the_connection_and_changes_no_value() {
    let authority = Authority::new();
    let (relay, _tasks, [mut near, mut far]) = met(Some(&authority), RuntimeKind::Poll);
    near.send();
    assert_eq!(far.next(), Ok(PLAIN.to_vec()));
    relay.habits.spoils_data.store(true, Ordering::SeqCst);
    near.send();
    assert_eq!(far.next(), Err(DownReason::Reset));
}

/// Whatever its ticket says, a data connection in clear is not let in where TLS is set, nor one under TLS elsewhere.
#[test]
fn nobody_takes_tls_from_a_data_connection() {
    let authority = Authority::new();
    for kind in BOTH {
        let sealed = start(with_tls("a", 1, kind, authority.tls(&authority)));
        let clear = start(open("b", 2, kind));
        let said = |task: &Task, bytes: &[u8]| {
            let mut stream = TcpStream::connect(address(task).to_string()).expect("connected");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.write_all(bytes).expect("sent");
            hear_all(&stream)
        };
        let ticket = [&b"rendezD\x01"[..], &[3; 72]].concat();
        assert_eq!(said(&sealed, &ticket), b"rendezT\x01");
        assert_eq!(said(&clear, &ticket), b"rendezU\x01");
        assert_eq!(said(&clear, b"rendezE\x01"), b"rendezP\x01");
        // In clear behind the promise of TLS: an alert, and the end.
        let lied = [&b"rendezE\x01"[..], &ticket].concat();
        assert!(!said(&sealed, &lied).starts_with(b"rendez"));
    }
}

/// Connections from `from` that promise TLS and say no more.
fn promise(task: &Task, from: [u8; 4]) -> impl Iterator<Item = TcpStream> {
    let Address::Tcp { port, .. } = address(task) else {
        panic!("no TCP address")
    };
    (0..NEWCOMERS_PER_SOURCE_MAX).map(move |_| {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&socket, &SocketAddr::from((from, 0))).expect("bound");
        connect(&socket, &SocketAddr::from(([127, 0, 0, 1], port))).expect("connected");
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(b"rendezE\x01").expect("sent");
        stream
    })
}

/// When all places of newcomers were taken by connections that keep their ticket to themselves, and these are closed,
/// a task comes in.
#[test]
fn silent_data_connections_keep_no_place_for_ever() {
    let authority = Authority::new();
    for kind in BOTH {
        let mut config = with_tls("a", 1, kind, authority.tls(&authority));
        config.greet_deadline = Duration::from_secs(2);
        let a = start(config);
        let silent: Vec<_> = [[127, 0, 0, 1], [127, 0, 0, 2]]
            .into_iter()
            .flat_map(|from| promise(&a, from))
            .collect();
        for stream in &silent {
            hear_all(stream);
        }
        let b = start(with_tls(
            "b",
            2,
            RuntimeKind::Poll,
            authority.tls(&authority),
        ));
        dial(&b, &a, "a", PathWish::Tcp);
        assert_joined(b.up(), a.up());
    }
}
