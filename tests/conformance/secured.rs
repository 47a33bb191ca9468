//! TLS sessions whose handshakes were done in memory: what a socket brings that its control plane has secured.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use rendez::fabric::{
    Arrival, Caps, DownReason, Port, Protection, Secured, TcpConfig, TcpPort, kernel_tls,
};
use rendez::ground::Nanos;
use rendez::ground::limits::TLS_RECEIVE_BYTES;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use crate::world::frame;

static CONFIGS: LazyLock<(Arc<ClientConfig>, Arc<ServerConfig>)> = LazyLock::new(|| {
    let key = KeyPair::generate().expect("a key");
    let parameters = CertificateParams::new(vec!["task".to_owned()]).expect("a name");
    let certificate = parameters.self_signed(&key).expect("signed");
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let only = [&rustls::version::TLS13];
    let mut client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&only)
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&only)
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .expect("they fit");
    server.send_tls13_tickets = 0;
    server.enable_secret_extraction = true;
    client.enable_secret_extraction = true;
    (Arc::new(client), Arc::new(server))
});

/// Both ends of one session.
pub(crate) fn connections() -> [Connection; 2] {
    let (client, server) = &*CONFIGS;
    let name = ServerName::try_from("task").expect("a name");
    let client = ClientConnection::new(Arc::clone(client), name).expect("a client");
    let server = ServerConnection::new(Arc::clone(server)).expect("a server");
    shaken(client, server)
}

/// Both after their handshake. What the server says behind it is still to be sent.
fn shaken(client: ClientConnection, server: ServerConnection) -> [Connection; 2] {
    let mut ends = [Connection::Client(client), Connection::Server(server)];
    while ends.iter().any(|end| end.is_handshaking()) {
        for from in 0..2 {
            if ends.iter().all(|end| !end.is_handshaking()) {
                break;
            }
            let mut flight = Vec::new();
            while ends[from].wants_write() {
                ends[from].write_tls(&mut flight).expect("memory");
            }
            let mut flight = flight.as_slice();
            while !flight.is_empty() {
                ends[1 - from].read_tls(&mut flight).expect("memory");
                ends[1 - from].process_new_packets().expect("a handshake");
            }
        }
    }
    ends
}

/// What a socket has whose records the kernel keeps: fails where it cannot.
pub(crate) fn in_kernel(session: Connection, socket: &OwnedFd) -> Secured {
    kernel_tls().expect("TLS in the kernel");
    let secured = Secured::in_kernel(session, socket).expect("keys are taken");
    assert_eq!(secured.protection(), Protection::Kernel);
    secured
}

/// The same, for ports.
pub(crate) fn sessions() -> [Secured; 2] {
    connections().map(Secured::new)
}

/// The same, each side with new keys that the other has not heard of yet, and asked for its own.
pub(crate) fn rekeyed() -> [Secured; 2] {
    connections().map(|mut end| {
        let renewed = match &mut end {
            Connection::Client(end) => end.refresh_traffic_keys(),
            Connection::Server(end) => end.refresh_traffic_keys(),
        };
        renewed.expect("TLS 1.3");
        Secured::new(end)
    })
}

/// A port, and the bare socket and session at its other end.
fn bare() -> (TcpPort, TcpStream, Connection) {
    let [near, far] = super::connected(Ipv4Addr::LOCALHOST.into());
    let [session, bare] = connections();
    (port_of(near, session), TcpStream::from(far), bare)
}

/// A port with one connection.
fn port_of(near: OwnedFd, session: Connection) -> TcpPort {
    let caps = Caps {
        body_max: usize::MAX,
        one_sided: false,
        read_domain: false,
    };
    let mut port = TcpPort::new(TcpConfig::default()).expect("epoll");
    port.attach_secured(near, Some(Secured::new(session)), caps)
        .expect("connected");
    port
}

/// How many frames come before the connection is down, and why it is.
fn until_down(port: &mut TcpPort) -> (usize, DownReason) {
    let (mut frames, mut down) = (0, None);
    let late = Instant::now() + Duration::from_secs(60);
    while down.is_none() {
        assert!(Instant::now() < late, "never down");
        port.poll(Nanos(0), 16, &mut |arrival| match arrival {
            Arrival::Frame { .. } => frames += 1,
            Arrival::Down { reason, .. } => down = Some(reason),
            other => panic!("{other:?}"),
        });
    }
    (frames, down.expect("just looked"))
}

/// Records of two frames, one behind the other.
fn records(bare: &mut Connection) -> Vec<u8> {
    let mut sealed = Vec::new();
    for number in 0..2 {
        bare.writer()
            .write_all(&frame(1, number, 0).to_bytes())
            .expect("room");
        while bare.wants_write() {
            bare.write_tls(&mut sealed).expect("memory");
        }
    }
    sealed
}

#[test]
fn an_end_of_tls_without_a_goodbye_is_a_reset() {
    let (mut port, mut far, mut bare) = bare();
    let mut sealed = records(&mut bare);
    bare.send_close_notify();
    bare.write_tls(&mut sealed).expect("memory");
    far.write_all(&sealed).expect("room");
    assert_eq!(until_down(&mut port), (2, DownReason::Reset));
}

#[test]
fn a_changed_repeated_or_missing_record_ends_the_connection() {
    let spoil: [fn(&mut Vec<u8>); 4] = [
        |sealed| *sealed.last_mut().expect("records") ^= 1,
        |sealed| {
            let half = sealed.len() / 2;
            sealed.copy_within(..half, half);
        },
        |sealed| {
            let half = sealed.len() / 2;
            sealed.drain(..half);
        },
        |sealed| {
            let half = sealed.len() / 2;
            sealed[half] = 0x99;
        },
    ];
    for (case, spoil) in spoil.into_iter().enumerate() {
        let (mut port, mut far, mut bare) = bare();
        let mut sealed = records(&mut bare);
        spoil(&mut sealed);
        far.write_all(&sealed).expect("room");
        let whole = usize::from(case != 2);
        assert_eq!(until_down(&mut port), (whole, DownReason::Reset), "{case}");
    }
}

#[test]
fn bytes_in_clear_end_the_connection() {
    let (mut port, mut far, _) = bare();
    far.write_all(&frame(1, 0, 0).to_bytes()).expect("room");
    assert_eq!(until_down(&mut port), (0, DownReason::Reset));
}

/// Tickets are records without data, and a server may send any number of them. All of them lie in the socket before the
/// port looks, and behind them the end.
#[test]
fn a_peer_that_sends_records_without_data_goes_down() {
    for (tickets, is_too_much) in [(300, false), (3_000, true)] {
        let (client, server) = &*CONFIGS;
        let mut server = ServerConfig::clone(server);
        server.send_tls13_tickets = tickets;
        // Five bytes more than a ticket has: a record each, since none may begin in one and end in the next for ever.
        server.max_fragment_size = Some(86);
        let name = ServerName::try_from("task").expect("a name");
        let client = ClientConnection::new(Arc::clone(client), name).expect("a client");
        let server = ServerConnection::new(Arc::new(server)).expect("a server");
        let [session, mut bare] = shaken(client, server);
        let mut sealed = Vec::new();
        while bare.wants_write() {
            bare.write_tls(&mut sealed).expect("memory");
        }
        assert_eq!(sealed.len() > TLS_RECEIVE_BYTES, is_too_much);
        sealed.truncate(2 * TLS_RECEIVE_BYTES);
        if !is_too_much {
            sealed.extend(records(&mut bare));
        }
        let (near, mut far) = UnixStream::pair().expect("a pair");
        rustix::net::sockopt::set_socket_send_buffer_size(&far, 4 * TLS_RECEIVE_BYTES)
            .expect("a size");
        far.set_nonblocking(true).expect("an option");
        far.write_all(&sealed)
            .expect("all of it lies in the socket");
        drop(far);
        let expected = match is_too_much {
            false => (2, DownReason::Reset),
            true => (0, DownReason::Corrupt),
        };
        let mut port = port_of(near.into(), session);
        assert_eq!(until_down(&mut port), expected, "{tickets}");
    }
}
