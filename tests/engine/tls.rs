//! Engines whose data connections are under TLS: every byte right, also when the connections are cut on the way, and
//! both sides say what protects them.
//!
//! The kernel keeps the records where it can, else the process. `RENDEZ_TEST_KERNEL_TLS=1` makes a kernel that cannot a
//! failure: `scripts/soft-roce.sh` sets it in its guest.

use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rendez::control::Address;
use rendez::engine::{Config, Engine};
use rendez::fabric::kernel_tls;
use rendez::ground::{DType, Key, StepId};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
const STEP: StepId = StepId(1);
const IN_KERNEL: &str = "encrypted: TLS 1.3 in the kernel";
const IN_PROCESS: &str = "encrypted: TLS 1.3 in the process";

/// A certificate, its key and the authority that signed it, each in a file.
struct Files {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(authority, key()).expect("signed")
}

impl Files {
    fn new() -> Self {
        let files = Self {
            folder: tempfile::tempdir().expect("a folder"),
            authority: authority(),
        };
        files.renew(|_| {});
        files
    }

    /// Others in their place, of another authority.
    fn renew_all(&mut self) {
        self.authority = authority();
        self.renew(|_| {});
    }

    /// Another key and certificate, and whatever `change` makes of it.
    fn renew(&self, change: impl FnOnce(&mut CertificateParams)) {
        let own = key();
        let mut named = CertificateParams::new(vec!["task".to_owned()]).expect("a name");
        change(&mut named);
        let certificate = named.signed_by(&own, &self.authority).expect("signed");
        self.write("cert", &certificate.pem());
        self.write("key", &own.serialize_pem());
        self.write("ca", &self.authority.pem());
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("ours");
    }

    fn at(&self, name: &str) -> Option<std::path::PathBuf> {
        Some(self.folder.path().join(name))
    }

    fn config(&self, task: &str, tls_kernel: bool) -> Config {
        let mut config = Config::new(task);
        config.shards = 1;
        config.share_cores = true;
        config.arena.segment_bytes = 16 << 20;
        config.listen = Some("127.0.0.1:0".parse().expect("an address"));
        // Two machines on one: else they would share memory.
        config.boot = Some(task.to_owned());
        config.connect_timeout = PATIENCE;
        // A slow machine takes its time over a handshake, and a peer that was given up would be no test of cuts.
        config.failure_detection = PATIENCE;
        config.tls_cert = self.at("cert");
        config.tls_key = self.at("key");
        config.tls_ca = self.at("ca");
        config.tls_kernel = tls_kernel;
        config
    }
}

/// Carries connections to an address, and breaks all that there are at once.
struct Relay {
    address: Address,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(target: &Address) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound").to_string();
        let open = Arc::new(Mutex::new(Vec::new()));
        let (target, shared) = (target.to_string(), Arc::clone(&open));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { return };
                let Ok(far) = TcpStream::connect(&target) else {
                    continue;
                };
                let clone = |stream: &TcpStream| stream.try_clone().expect("a clone");
                shared.lock().expect("no panic").push(clone(&near));
                shared.lock().expect("no panic").push(clone(&far));
                for (mut from, mut to) in [(clone(&near), clone(&far)), (far, near)] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                        let _ = from.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self {
            address: address.parse().expect("an address"),
            open,
        }
    }

    /// How many connections were broken.
    fn cut(&self) -> usize {
        let open: Vec<_> = self.open.lock().expect("no panic").drain(..).collect();
        for stream in &open {
            let _ = stream.shutdown(Shutdown::Both);
        }
        open.len()
    }
}

/// Two engines, the first of which reaches the second through the relay; and what protects what they send.
fn pair(files: &Files, tls_kernel: [bool; 2]) -> ([Engine; 2], Relay) {
    let start = |task, in_kernel| Engine::start(files.config(task, in_kernel)).expect("starts");
    let a = start("/job:a/task:0", tls_kernel[0]);
    let b = start("/job:b/task:0", tls_kernel[1]);
    let relay = Relay::to(b.tcp_address().expect("listens"));
    a.add_peer(b.task().clone(), relay.address.clone());
    ([a, b], relay)
}

fn hand_over(a: &Engine, b: &Engine, number: usize, len: usize) {
    let [from, to] = [a, b].map(|engine| engine.task().to_string());
    let key = Key::between(&from, &to, &format!("v{number}")).expect("a key");
    let mut builder = a.tensor(DType::U8, &[len as u64]).expect("room");
    for (at, byte) in builder.bytes_mut().iter_mut().enumerate() {
        *byte = (at * 31 + number) as u8;
    }
    let tensor = builder.finish();
    let want = tensor.host().unwrap().to_vec();
    a.step(STEP).send(&key, tensor).expect("taken");
    let got = b.step(STEP).recv(&key).deadline(PATIENCE).wait();
    assert!(
        got.expect("comes").tensor.host().unwrap() == want,
        "value {number}"
    );
}

fn protection(engine: &Engine) -> &'static str {
    let late = Instant::now() + PATIENCE;
    loop {
        if let Some(way) = engine.connected().first() {
            return way.protection;
        }
        assert!(Instant::now() < late, "never connected");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What is expected of this kernel where it is asked to keep the records.
fn in_kernel() -> &'static str {
    match kernel_tls() {
        Ok(()) => IN_KERNEL,
        Err(missing) => {
            let is_wanted = std::env::var_os("RENDEZ_TEST_KERNEL_TLS").is_some();
            assert!(!is_wanted, "no TLS in the kernel: {missing}");
            eprintln!("no TLS in the kernel ({missing}): the process keeps the records");
            IN_PROCESS
        }
    }
}

fn survives_cuts(tls_kernel: [bool; 2]) {
    let files = Files::new();
    let ([a, b], relay) = pair(&files, tls_kernel);
    let expected = tls_kernel.map(|is_asked| if is_asked { in_kernel() } else { IN_PROCESS });
    let sizes = [1, 100, 1064, 1065, 4096, 70_000, 3_000_000, 16 << 20];
    let mut cuts = 0;
    for (number, len) in sizes.into_iter().cycle().take(3 * sizes.len()).enumerate() {
        let (a, b) = if number % 2 == 0 { (&a, &b) } else { (&b, &a) };
        hand_over(a, b, number, len);
        // Cut between values and in the middle of the next; never behind the last, for a task that ends while nothing
        // connects it cannot say so, and the other waits for it as long as it may.
        if number % 6 == 2 {
            cuts += relay.cut();
        }
    }
    assert!(cuts > 0, "nothing was cut");
    assert_eq!([&a, &b].map(protection), expected);
    for engine in [a, b] {
        engine.shutdown(PATIENCE);
    }
}

#[test]
fn values_survive_cuts_under_tls() {
    survives_cuts([true, true]);
}

#[test]
fn the_kernel_is_left_alone_where_it_is_not_wanted() {
    survives_cuts([false, false]);
}

/// Each side keeps its records as it likes: they are the same on the wire.
#[test]
fn the_two_sides_need_not_agree_on_who_keeps_records() {
    survives_cuts([true, false]);
    survives_cuts([false, true]);
}

/// A task that was started before the certificates were made anew meets one that was started since; and files that do
/// not fit change nothing.
#[test]
fn certificates_are_read_again_when_their_files_have_changed() {
    let mut files = Files::new();
    let ([a, b], relay) = pair(&files, [true, true]);
    hand_over(&a, &b, 0, 100);
    files.renew_all();
    let c = Engine::start(files.config("/job:c/task:0", true)).expect("starts");
    a.add_peer(c.task().clone(), c.tcp_address().expect("listens").clone());
    hand_over(&a, &c, 1, 100);
    c.add_peer(b.task().clone(), b.tcp_address().expect("listens").clone());
    hand_over(&c, &b, 2, 100);
    files.write("key", "no key");
    assert!(relay.cut() > 0);
    hand_over(&a, &b, 3, 100);
    for engine in [a, b, c] {
        engine.shutdown(PATIENCE);
    }
}

/// Each of the two sides judges, and neither gives up: whichever sees it first.
#[test]
fn a_certificate_that_has_expired_is_waited_for() {
    let files = Files::new();
    files.renew(|certificate| certificate.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let ([a, b], relay) = pair(&files, [true, true]);
    a.connect(b.task());
    let late = Instant::now() + PATIENCE;
    // The third attempt is made only if two refusals were not final.
    while relay.open.lock().expect("no panic").len() < 6 {
        assert!(Instant::now() < late, "never tried again");
        std::thread::sleep(Duration::from_millis(1));
    }
    files.renew(|_| {});
    hand_over(&a, &b, 0, 100);
    for engine in [a, b] {
        engine.shutdown(PATIENCE);
    }
}
