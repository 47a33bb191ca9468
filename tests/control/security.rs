//! Who may come in over TCP, and what those hear who may not.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rendez::control::{Control, ControlConfig, Path, PathWish, PeerGone, RuntimeKind, Tls};
use rendez::ground::{Code, Status};

use super::relay::Relay;
use super::support::{BOTH, PATIENCE, Task, config};
use super::tcp::{address, assert_joined, dial, open, secret, start};

fn with_secret(task: &str, incarnation: u64, kind: RuntimeKind, text: &str) -> ControlConfig {
    let mut config = open(task, incarnation, kind);
    config.secret = Some(secret(text));
    config
}

/// A stranger's connection.
fn knock(task: &Task) -> TcpStream {
    let stream = TcpStream::connect(address(task).to_string()).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// All that is said until the end.
pub(crate) fn hear_all(mut stream: impl Read) -> Vec<u8> {
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("expected the end, got {error}"),
    }
    heard
}

fn refused(from: &Task) -> (Code, &'static str) {
    let status: Status = from.dial_failed();
    (status.code(), status.reason())
}

#[test]
fn another_secret_or_none_is_refused() {
    for kind in BOTH {
        let a = start(with_secret("a", 1, kind, "one"));
        let other = start(with_secret("b", 2, kind, "two"));
        let none = start(open("c", 3, kind));
        for (from, to, name, reason) in [
            (&other, &a, "a", "SECRET_WRONG"),
            (&none, &a, "a", "SECRET_MISSING"),
            (&a, &none, "c", "SECRET_MISSING"),
        ] {
            dial(from, to, name, PathWish::Auto);
            assert_eq!(refused(from), (Code::PermissionDenied, reason));
        }
        let b = start(with_secret("b", 4, kind, "one"));
        dial(&b, &a, "a", PathWish::Tcp);
        assert_joined(b.up(), a.up());
    }
}

#[test]
fn an_outsider_learns_no_name() {
    let name = "a-name-that-nobody-may-know";
    let a = start(with_secret(name, 1, RuntimeKind::Poll, "one"));
    let mut outsider = knock(&a);
    outsider.write_all(b"rendezC\x01").expect("sent");
    outsider
        .write_all(&[&[1u8, 0, 0, 0, 0, 0, 0, 0][..], &[5; 32]].concat())
        .expect("sent");
    outsider.write_all(&[6; 32]).expect("sent");
    let heard = hear_all(&outsider);
    // The verdict, a nonce, and that the proof was wrong.
    assert_eq!(heard.len(), 8 + 40 + 40);
    assert!(heard.starts_with(b"rendezW\x01") && heard.ends_with(&[0; 40]));
    let shown = String::from_utf8_lossy(&heard);
    assert!(!shown.contains("nobody"), "{shown}");
}

/// The handshake binds all that follows: what was recorded opens nothing, and a changed byte ends the greeting.
#[test]
fn a_recording_opens_nothing_and_no_byte_can_be_changed() {
    let b = start(with_secret("b", 2, RuntimeKind::Poll, "one"));
    let relay = Relay::to(&address(&b));
    let a = start(with_secret("a", 1, RuntimeKind::Poll, "one"));
    a.control
        .dial_by("b", relay.address.clone(), PathWish::Tcp, PATIENCE)
        .expect("taken");
    let at_b = b.up();
    assert_joined(a.up(), at_b);
    a.stop();
    let _ = b.gone();
    let recorded = relay.habits.recorded.lock().expect("no panic").clone();
    // Opening, challenge, proof, and the hello with its seal.
    assert!(recorded.len() > 8 + 40 + 32 + 40);
    let mut replay = knock(&b);
    replay.write_all(&recorded).expect("sent");
    let heard = hear_all(&replay);
    assert_eq!(heard.len(), 8 + 40 + 40, "no hello is answered");
    assert!(b.events.try_recv().is_err());
    let a = start(with_secret("a", 3, RuntimeKind::Poll, "one"));
    for byte in [50, 100, 130] {
        let relay = Relay::to(&address(&b));
        relay.habits.changed_byte.store(byte, Ordering::SeqCst);
        a.control
            .dial_by("b", relay.address, PathWish::Tcp, Duration::from_secs(1))
            .expect("taken");
        if byte < 80 {
            assert_eq!(a.dial_failed().reason(), "SECRET_WRONG");
        } else {
            // Only the first connection is meddled with: the next try may pass.
            assert_eq!((a.up().task, b.up().task), ("b".into(), "a".into()));
            a.control
                .hang_up(rendez::control::PeerId(u32::MAX), "nobody")
                .expect("taken");
            break;
        }
    }
}

#[test]
fn a_port_that_strangers_can_reach_needs_a_reason() {
    let handler = start(open("h", 9, RuntimeKind::Poll)).handler;
    for host in ["0.0.0.0:0", "[::]:0"] {
        let mut bare = config("a", 1, RuntimeKind::Poll);
        bare.tcp_listen = Some(host.parse().expect("an address"));
        match Control::start(bare.clone(), handler.clone()) {
            Err(error) => {
                let status = error.status();
                assert_eq!(
                    (status.code(), status.reason()),
                    (Code::PermissionDenied, "CONTROL_EXPOSED")
                );
                assert!(status.message().contains("insecure"), "{status}");
            }
            Ok(_) => panic!("{host} was opened to all"),
        }
        if host.starts_with('[') {
            continue;
        }
        let mut kept = bare.clone();
        kept.secret = Some(secret("one"));
        let started = Control::start(kept, handler.clone()).expect("a secret keeps strangers out");
        let port = started.tcp_address().expect("it listens").to_string();
        assert!(
            port.starts_with("0.0.0.0:") && !port.ends_with(":0"),
            "{port}"
        );
        bare.insecure = true;
        drop(Control::start(bare, handler.clone()).expect("allowed in as many words"));
    }
}

#[test]
fn a_port_in_use_is_told() {
    let a = start(open("a", 1, RuntimeKind::Poll));
    let mut second = config("b", 2, RuntimeKind::Poll);
    second.tcp_listen = Some(address(&a));
    let status = Control::start(second, a.handler.clone())
        .expect_err("taken")
        .status();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert!(
        status.message().contains(&address(&a).to_string()),
        "{status}"
    );
    let mut wrong = config("b", 2, RuntimeKind::Poll);
    wrong.tcp_listen = Some("name.invalid:0".parse().expect("an address"));
    let status = Control::start(wrong, a.handler.clone())
        .expect_err("no name")
        .status();
    assert_eq!(status.reason(), "CONTROL_ADDRESS");
    let mut elsewhere = with_secret("b", 2, RuntimeKind::Poll, "0123456789abcdef");
    // Of a net that is kept for documents.
    elsewhere.tcp_listen = Some("198.51.100.1:0".parse().expect("an address"));
    let status = Control::start(elsewhere, a.handler.clone())
        .expect_err("no address of this host")
        .status();
    assert_eq!(status.reason(), "CONTROL_ADDRESS");
    let said = status.message();
    assert!(
        said.contains("198.51.100.1") && said.contains("another host"),
        "{status}"
    );
}

/// An authority, and what it signs.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::<String>::new()).expect("no names");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(parameters, key).expect("signed"))
    }

    pub(crate) fn tls(&self, trusted: &Self) -> Tls {
        let parameters = CertificateParams::new(vec!["task".to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.0).expect("signed");
        Tls::from_pem(
            certificate.pem().as_bytes(),
            key.serialize_pem().as_bytes(),
            trusted.0.pem().as_bytes(),
            true,
        )
        .expect("usable")
    }

    /// What a server shows that this authority has signed: for one that is played by hand.
    pub(crate) fn server(&self) -> rustls::ServerConfig {
        let parameters = CertificateParams::new(vec!["task".to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.0).expect("signed");
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .expect("they fit")
    }
}

pub(crate) fn with_tls(task: &str, incarnation: u64, kind: RuntimeKind, tls: Tls) -> ControlConfig {
    let mut config = open(task, incarnation, kind);
    config.tls = Some(tls);
    config
}

#[test]
fn tls_joins_those_of_one_authority() {
    let authority = Authority::new();
    for left in BOTH {
        for with_secret in [false, true] {
            let made = |task, incarnation, kind| {
                let mut config = with_tls(task, incarnation, kind, authority.tls(&authority));
                config.secret = with_secret.then(|| secret("one"));
                start(config)
            };
            let (a, b) = (made("a", 1, left), made("b", 2, RuntimeKind::Poll));
            dial(&a, &b, "b", PathWish::Tcp);
            let (at_a, at_b) = (a.up(), b.up());
            assert_joined(at_a, at_b);
            a.stop();
            assert!(matches!(b.gone().1, PeerGone::Said { .. }));
            // And by way of TLS to shared memory.
            let a = made("a", 3, left);
            dial(&a, &b, "b", PathWish::Auto);
            assert_eq!((a.up().path, b.up().path), (Path::Shm, Path::Shm));
        }
    }
}

#[test]
fn tls_refuses_the_others() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    for kind in BOTH {
        let a = start(with_tls("a", 1, kind, ours.tls(&ours)));
        // One whom we do not trust, one who does not trust us, one without.
        let stranger = start(with_tls("b", 2, kind, theirs.tls(&ours)));
        let wary = start(with_tls("c", 3, kind, ours.tls(&theirs)));
        let bare = start(open("d", 4, kind));
        for from in [&stranger, &wary, &bare] {
            from.control
                .dial_by("a", address(&a), PathWish::Tcp, Duration::from_millis(500))
                .expect("taken");
            let status = from.dial_failed();
            assert!(
                status.reason() == "TLS_REFUSED" || status.message().contains("handshake"),
                "{status}"
            );
        }
        dial(&a, &bare, "d", PathWish::Tcp);
        assert_eq!(refused(&a), (Code::PermissionDenied, "TLS_REFUSED"));
        assert!(a.events.try_recv().is_err());
    }
}

#[test]
fn tls_needs_texts_that_fit() {
    let ours = Authority::new();
    let pem = ours.0.pem();
    let status = Tls::from_pem(b"", b"", pem.as_bytes(), true).expect_err("nothing");
    assert!(status.message().contains("certificate"), "{status}");
    let status =
        Tls::from_pem(pem.as_bytes(), b"no key", pem.as_bytes(), true).expect_err("no key");
    assert!(status.message().contains("private key"), "{status}");
}
