//! Which failures of TLS may be over later, and which certificates a handshake goes by.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use futures_lite::future::{block_on, poll_once};
use rustls::server::ResolvesServerCertUsingSni;
use rustls::{AlertDescription, CertificateError, Error};

use super::*;

#[test]
fn only_a_certificate_of_the_wrong_time_may_do_later() {
    let retries = |error: Error| refused(&io::Error::new(io::ErrorKind::InvalidData, error)).retry;
    for later in [
        Error::InvalidCertificate(CertificateError::Expired),
        Error::InvalidCertificate(CertificateError::NotValidYet),
        Error::AlertReceived(AlertDescription::CertificateExpired),
    ] {
        assert!(retries(later.clone()), "{later}");
    }
    for never in [
        Error::InvalidCertificate(CertificateError::UnknownIssuer),
        Error::AlertReceived(AlertDescription::UnknownCA),
        Error::DecryptError,
    ] {
        assert!(!retries(never.clone()), "{never}");
    }
    assert!(refused(&io::ErrorKind::ConnectionReset.into()).retry);
}

#[test]
fn a_peer_s_alert_of_the_wrong_time_is_told_as_both_that_it_may_mean() {
    let told = |alert| {
        let error = Error::AlertReceived(alert);
        ended_by_peer(&io::Error::new(io::ErrorKind::InvalidData, error))
    };
    let late = told(AlertDescription::CertificateExpired);
    assert!(late.contains("has expired or is not valid yet"), "{late}");
    let foreign = told(AlertDescription::UnknownCA);
    assert!(!foreign.contains("expired"), "{foreign}");
}

/// Of no certificates: each is another than the others.
fn some() -> Tls {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls13 = [&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&tls13)
        .expect("known")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&tls13)
        .expect("known")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    let sides = Sides {
        client: Arc::new(client),
        server: Arc::new(server),
        own: Arc::new(Own {
            chain: Vec::new(),
            dialled: Arc::new(AnyNameVerifier {
                roots: Arc::new(RootCertStore::empty()),
                provider: Arc::clone(&provider),
            }),
            dialler: WebPkiClientVerifier::no_client_auth(),
        }),
    };
    Tls(Arc::new(Shared {
        current: Mutex::new(sides),
        in_kernel: false,
        renewal: None,
        looked: Mutex::default(),
        looks_since: Mutex::default(),
        errands: Errands::default(),
    }))
}

#[test]
fn a_handshake_beside_a_look_looks_too_unless_that_look_hangs() {
    let (former, new) = (some(), some());
    let is = |sides: &Sides, tls: &Tls| Arc::ptr_eq(&sides.client, &tls.0.current().client);
    let looks = AtomicUsize::new(0);
    let (begins, began) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let (ends, found) = (Mutex::new(ends), new.clone());
    let tls = former.clone().renewed_by(move || {
        // What the first look reads is from before the change.
        if looks.fetch_add(1, Ordering::SeqCst) > 0 {
            return Some(found.clone());
        }
        begins.send(()).expect("it waits");
        let _ = ends.locked().recv();
        None
    });
    let mut first = pin!(tls.sides());
    assert!(block_on(poll_once(&mut first)).is_none());
    began.recv().expect("it looks");
    let since = tls.0.looks_since.locked().expect("it looks");
    *tls.0.looks_since.locked() = since.checked_sub(2 * LOOK_MAX);
    let beside_hanging = block_on(poll_once(tls.sides())).expect("it does not wait");
    assert!(is(&beside_hanging, &former));
    // However slow this machine is.
    *tls.0.looks_since.locked() = Some(Instant::now() + Duration::from_secs(3600));
    let mut second = pin!(tls.sides());
    assert!(block_on(poll_once(&mut second)).is_none());
    end.send(()).expect("it waits");
    assert!(is(&block_on(second), &new));
    block_on(first);
}

/// A task without new connections tells of the one that it has, and not of one that was renewed.
#[test]
fn who_asks_when_a_certificate_ends_has_a_new_one_looked_for() {
    let (tell, told) = mpsc::channel();
    let tls = some().renewed_by(move || {
        let _ = tell.send(());
        None
    });
    assert_eq!(tls.ends(), None);
    let looked = told.recv_timeout(Duration::from_secs(20));
    looked.expect("the files are looked at");
}
