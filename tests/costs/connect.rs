//! What it costs to connect: from the wish to reach a peer to the last of the data connections, two shards each, by
//! TCP on loopback, with a secret and with TLS.
//!
//! `cargo test --release --test costs -- --ignored --nocapture connect`. Ignored: a time belongs to a quiet machine.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rendez::engine::{Config, Engine, Require};

const ROUNDS: usize = 15;
const PATIENCE: Duration = Duration::from_secs(10);

fn engine(task: &str, settle: &dyn Fn(&mut Config)) -> Engine {
    let mut config = Config::new(task);
    (config.shards, config.share_cores) = (2, true);
    config.arena.segment_bytes = 4 << 20;
    config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    config.require = Require::Tcp;
    settle(&mut config);
    Engine::start(config).expect("it starts")
}

/// Every shard of both has the peer.
fn is_joined(engines: [&Engine; 2]) -> bool {
    let has_peer = |engine: &Engine| engine.stats().iter().all(|shard| shard.peers_up == 1);
    engines.iter().all(|engine| !engine.connected().is_empty()) && engines.into_iter().all(has_peer)
}

fn median(settle: &dyn Fn(&mut Config)) -> Duration {
    let once = || {
        let (a, b) = (
            engine("/job:a/task:0", settle),
            engine("/job:b/task:0", settle),
        );
        a.add_peer(
            b.task().clone(),
            b.tcp_address().expect("it listens").clone(),
        );
        let began = Instant::now();
        a.connect(b.task());
        while !is_joined([&a, &b]) {
            assert!(began.elapsed() < PATIENCE, "never connected");
            std::thread::yield_now();
        }
        began.elapsed()
    };
    let mut times: Vec<Duration> = (0..ROUNDS).map(|_| once()).collect();
    times.sort_unstable();
    times[ROUNDS / 2]
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("written");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("mine");
}

#[test]
#[ignore = "a measurement: needs --release and a quiet machine"]
#[allow(clippy::print_stdout)]
fn secret_and_tls_connect_in_time() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    write(&at("secret"), &"s".repeat(64));
    let key = || KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, key()).expect("signed");
    let own = key();
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let named = CertificateParams::new(names).expect("names");
    let certificate = named.signed_by(&own, &authority).expect("signed");
    write(&at("cert"), &certificate.pem());
    write(&at("key"), &own.serialize_pem());
    write(&at("ca"), &authority.pem());

    let with_secret = |config: &mut Config| config.cluster_secret_file = Some(at("secret"));
    let with_tls = |config: &mut Config| {
        config.cluster_secret_file = Some(at("secret"));
        config.tls_cert = Some(at("cert"));
        config.tls_key = Some(at("key"));
        config.tls_ca = Some(at("ca"));
    };
    let (secret, tls) = (median(&with_secret), median(&with_tls));
    println!(
        "connect, 2 shards each, median of {ROUNDS}: secret {secret:.1?}, secret and TLS {tls:.1?}"
    );
    assert!(secret < Duration::from_millis(50), "{secret:?}");
    assert!(tls < Duration::from_millis(150), "{tls:?}");
}
