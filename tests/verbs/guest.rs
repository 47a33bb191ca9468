//! Engines of several processes over real RDMA devices, on a wire that loses, delays, reorders and corrupts, and dies.
//!
//! Ignored but in a guest with two devices: `scripts/soft-roce.sh` boots one, as root, with `ip` and `tc`. The control
//! plane goes over the loopback and is not disturbed. `RENDEZ_VERBS_DEVICES` names the two devices.
#![allow(unsafe_code)]
#![allow(clippy::print_stdout)] // What was seen, for the note; and where the other process listens, for this one.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rendez::control::Path;
use rendez::engine::{Config, Engine, Require};
use rendez::fabric::verbs::{
    Access, CompletionQueue, Domain, PathConfig, QpEndpoint, QueuePair, ReceiveEntry, RetryPolicy,
    SharedReceive, WorkKind, WorkRequest, sys,
};
use rendez::ground::{DType, Key, Shape, StepId, TaskName, catalogue};
use rendez::memory::{ArenaConfig, ArenaId, HugePages, Pool, Segment, Tensor};

const PATIENCE: Duration = Duration::from_secs(60);
const NEAR: &str = "/job:near/task:0";
const STEP: StepId = StepId(1);
/// Values that are under way at once.
const WINDOW: usize = 64;
/// Set for the other process: which task it is.
const FAR_TASK: &str = "RENDEZ_TEST_FAR";

fn devices() -> (String, String) {
    let names = std::env::var("RENDEZ_VERBS_DEVICES").expect("RENDEZ_VERBS_DEVICES=one,other");
    let (one, other) = names.split_once(',').expect("two names");
    (one.to_owned(), other.to_owned())
}

fn config(task: &str, device: String) -> Config {
    // What the engines say of themselves, beside what the tests say.
    let _ = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(std::io::stderr)
        .try_init();
    let mut config = Config::new(task);
    config.shards = 1;
    config.share_cores = true;
    config.arena.segment_bytes = 16 << 20;
    config.arena.huge_pages = HugePages::Off;
    config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    // Two machines on one: else they would share memory.
    config.boot = Some(task.to_owned());
    config.verbs.device = Some(device);
    // Emulation is slow: no peer is lost for a second of silence.
    config.failure_detection = Duration::from_secs(4);
    config.connect_timeout = PATIENCE;
    config
}

fn far_name(number: usize) -> String {
    format!("far{number}")
}

/// A task in a process of its own, which sends back what it receives.
struct Far {
    child: Child,
    name: String,
    sent: usize,
    back: usize,
}

impl Drop for Far {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Far {
    fn start(near: &Engine, number: usize) -> Self {
        let name = far_name(number);
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "--nocapture", "guest::the_far_side"])
            .env(FAR_TASK, &name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut lines = said.lines();
        let address = loop {
            let line = lines.next().expect("an address").expect("a line");
            if let Some((_, address)) = line.split_once("far listens at ") {
                break address.trim().parse().expect("an address");
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        let task = TaskName::parse(&format!("/job:{name}/task:0")).expect("a name");
        near.add_peer(task, address);
        Self {
            child,
            name,
            sent: 0,
            back: 0,
        }
    }

    fn there(&self, number: usize) -> Key {
        Key::between("near", &self.name, &format!("v{number}")).expect("a key")
    }

    fn home(&self, number: usize) -> Key {
        Key::between(&self.name, "near", &format!("v{number}")).expect("a key")
    }

    /// Sends `count` values there and checks every byte of what comes back.
    fn exchange(&mut self, near: &Engine, count: usize, size: impl Fn(usize) -> usize) {
        let step = near.step(STEP);
        let until = self.sent + count;
        while self.back < until {
            while self.sent < until && self.sent - self.back < WINDOW {
                let value = value(near, self.sent, size(self.sent));
                step.send(&self.there(self.sent), value).expect("taken");
                self.sent += 1;
            }
            let got = step.recv(&self.home(self.back)).deadline(PATIENCE).wait();
            let got = got.unwrap_or_else(|status| {
                let shard = near.stats();
                panic!(
                    "value {} of {}: {status}; {:?}; {shard:?}",
                    self.back,
                    self.sent,
                    near.connected()
                )
            });
            let want = value(near, self.back, size(self.back));
            assert!(
                got.tensor.bytes() == want.bytes(),
                "value {} is right",
                self.back
            );
            self.back += 1;
            if self.back.is_multiple_of(1000) {
                println!("{} values are back", self.back);
            }
        }
    }
}

/// Bytes that tell the value's number and every place in it.
fn value(engine: &Engine, number: usize, len: usize) -> Tensor {
    let mut builder = engine.tensor(DType::U8, &[len as u64]).expect("room");
    for (at, byte) in builder.bytes_mut().iter_mut().enumerate() {
        *byte = (number.wrapping_mul(131) ^ at.wrapping_mul(7) ^ (at >> 8)) as u8;
    }
    builder.finish()
}

fn sizes(number: usize) -> usize {
    match number % 20 {
        0 => 20_000 + number % 997,
        1..5 => 1_500 + number % 100,
        _ => 1 + number % 500,
    }
}

fn run(program: &str, arguments: &str) {
    let status = Command::new(program)
        .args(arguments.split_whitespace())
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "{program} {arguments}"
    );
}

/// Disturbs both directions of the wire, until dropped: by netem, and by turning a byte over in one packet of a
/// hundred. That byte lies behind the first header, in the data of most packets and in the check sum of the shortest,
/// and the receiver drops each of them. Netem's own `corrupt` takes any byte; a packet of an operation that is none
/// makes the rxe of Debian's kernel 6.1.172 read beyond its end, which ends the guest.
struct Netem;

impl Netem {
    fn new(how: &str) -> Self {
        for end in ["va", "vb"] {
            run(
                "tc",
                &format!("qdisc add dev {end} root netem limit 10000 {how}"),
            );
            run("tc", &format!("qdisc add dev {end} clsact"));
            run(
                "tc",
                &format!(
                    "filter add dev {end} egress matchall action pass random netrand pipe 100 \
                     action pedit munge offset 44 u8 invert pipe"
                ),
            );
        }
        Self
    }
}

impl Netem {
    /// Packets with a byte turned over so far.
    fn corrupted(&self) -> u64 {
        let of_end = |end| {
            let shown = Command::new("tc")
                .args(["-s", "filter", "show", "dev", end, "egress"])
                .output()
                .expect("tc");
            let shown = String::from_utf8(shown.stdout).expect("text");
            // The first count after the name of the action: `Sent 5400 bytes 54 pkt`.
            let (_, of_action) = shown.split_once("pedit").expect("the action");
            let (_, sent) = of_action.split_once("Sent ").expect("its count");
            let packets = sent.split_whitespace().nth(2).expect("packets");
            packets.parse::<u64>().expect("a number")
        };
        of_end("va") + of_end("vb")
    }
}

impl Drop for Netem {
    fn drop(&mut self) {
        for end in ["va", "vb"] {
            run("tc", &format!("qdisc del dev {end} clsact"));
            run("tc", &format!("qdisc del dev {end} root"));
        }
    }
}

fn path_to(near: &Engine, far: &Far) -> Option<Path> {
    let connected = near.connected();
    let of = connected.iter().find(|peer| peer.task.job() == far.name);
    of.map(|peer| peer.path)
}

/// Not a test: what the other processes run. It ends when its standard input does.
#[test]
#[ignore = "the other process of the tests of this file"]
fn the_far_side() {
    let Ok(name) = std::env::var(FAR_TASK) else {
        return;
    };
    let engine =
        Engine::start(config(&format!("/job:{name}/task:0"), devices().1)).expect("an engine");
    println!(
        "far listens at {}",
        engine.tcp_address().expect("it listens")
    );
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let step = engine.step(STEP);
    for number in 0.. {
        let key = Key::between("near", &name, &format!("v{number}")).expect("a key");
        let Ok(got) = step.recv(&key).deadline(10 * PATIENCE).wait() else {
            return;
        };
        let back = Key::between(&name, "near", &format!("v{number}")).expect("a key");
        let shape = Shape::new(&[got.tensor.size() as u64]).expect("one dimension");
        let value = Tensor::from_vec(got.tensor.host().unwrap().to_vec(), shape).expect("as long");
        if step.send(&back, value).is_err() {
            return;
        }
    }
}

#[test]
#[ignore = "needs two RDMA devices: scripts/soft-roce.sh"]
fn guest_1_two_processes_hand_over_by_rdma() {
    let mut demanded = config(NEAR, devices().0);
    demanded.require = Require::Verbs;
    let near = Engine::start(demanded).expect("an engine");
    let mut far = Far::start(&near, 0);
    far.exchange(&near, 300, sizes);
    far.exchange(&near, 4, |_| 3_000_000);
    assert_eq!(path_to(&near, &far), Some(Path::Verbs));
    assert!(near.fallbacks().is_empty());
    println!("{}", near.connected()[0].why);
    near.shutdown(PATIENCE);
}

#[test]
#[ignore = "needs two RDMA devices: scripts/soft-roce.sh"]
fn guest_2_ten_thousand_tensors_survive_a_bad_wire() {
    let near = Engine::start(config(NEAR, devices().0)).expect("an engine");
    let mut far = Far::start(&near, 0);
    far.exchange(&near, 10, sizes);
    let began = Instant::now();
    let bad = Netem::new("delay 1ms loss 1% reorder 1%");
    far.exchange(&near, 10_000, sizes);
    let corrupted = bad.corrupted();
    drop(bad);
    println!(
        "10000 tensors in {:?}, {corrupted} packets were corrupt",
        began.elapsed()
    );
    assert!(corrupted > 0, "no packet was corrupt");
    assert_eq!(
        path_to(&near, &far),
        Some(Path::Verbs),
        "{:?}",
        near.fallbacks()
    );
    near.shutdown(PATIENCE);
}

#[test]
#[ignore = "needs two RDMA devices: scripts/soft-roce.sh"]
fn guest_3_a_killed_peer_is_lost_and_no_other() {
    let near = Engine::start(config(NEAR, devices().0)).expect("an engine");
    let (mut one, mut other) = (Far::start(&near, 1), Far::start(&near, 2));
    one.exchange(&near, 50, sizes);
    other.exchange(&near, 50, sizes);
    // In a step of its own, which ends with what is lost.
    let never = near.step(StepId(2)).recv(&one.home(100_000));
    one.child.kill().expect("killed");
    let began = Instant::now();
    let status = never
        .deadline(PATIENCE)
        .wait()
        .expect_err("its sender is dead");
    assert_eq!(status.reason(), catalogue::PEER_LOST, "{status}");
    println!("lost after {:?}", began.elapsed());
    drop(one);
    other.exchange(&near, 200, sizes);
    assert_eq!(path_to(&near, &other), Some(Path::Verbs));
    near.shutdown(Duration::from_millis(100));
}

/// The last, as it leaves the wire dead.
#[test]
#[ignore = "needs two RDMA devices: scripts/soft-roce.sh"]
fn guest_9_a_dead_wire_means_tcp_and_nothing_is_lost() {
    let near = Engine::start(config(NEAR, devices().0)).expect("an engine");
    let mut far = Far::start(&near, 0);
    far.exchange(&near, 50, sizes);
    assert_eq!(path_to(&near, &far), Some(Path::Verbs));
    // Without the neighbour's address known, the device would wait for it and not give up.
    let address = |end: &str| {
        std::fs::read_to_string(format!("/sys/class/net/{end}/address")).expect("an address")
    };
    run(
        "ip",
        &format!(
            "neigh replace 10.2.0.2 lladdr {} dev va nud permanent",
            address("vb").trim()
        ),
    );
    run("ip", "link set vb down");
    let began = Instant::now();
    far.exchange(&near, 200, sizes);
    println!(
        "over TCP after {:?}: {:?}",
        began.elapsed(),
        near.fallbacks()
    );
    assert_eq!(path_to(&near, &far), Some(Path::Tcp));
    let fallbacks = near.fallbacks();
    assert_eq!(
        (fallbacks[0].from, fallbacks[0].to),
        (Path::Verbs, Path::Tcp)
    );
    near.shutdown(PATIENCE);
}

/// One end of a queue pair without any policy above it.
struct Bare {
    qp: QueuePair,
    completions: CompletionQueue,
    receive: SharedReceive,
    segment: Arc<Segment>,
    registered: rendez::fabric::verbs::Registration,
}

impl Bare {
    fn new(device: &str) -> (Self, QpEndpoint) {
        let path = PathConfig {
            device: Some(device.into()),
            ..PathConfig::default()
        };
        let domain = Domain::open(sys::table().expect("libibverbs"), &path).expect("a device");
        let completions = CompletionQueue::new(&domain, 64).expect("a queue");
        let receive = SharedReceive::new(&domain, 32).expect("a queue");
        let qp = QueuePair::new(&domain, &completions, &receive, 16, 0).expect("a queue pair");
        let config = ArenaConfig {
            segment_bytes: 4 << 20,
            bytes_max: 4 << 20,
            huge_pages: HugePages::Off,
        };
        let pool = Pool::new(ArenaId(1), config).expect("memory");
        let segment = Arc::clone(&pool.segments()[0]);
        let registered = domain
            .register(&segment, Access::Peers)
            .expect("registered");
        let path = *domain.path();
        let end = QpEndpoint {
            number: qp.number(),
            first_packet: 77,
            lid: path.lid,
            gid: path.gid,
            mtu: path.mtu,
            window: 32,
            body_max: 4096,
        };
        let bare = Self {
            qp,
            completions,
            receive,
            segment,
            registered,
        };
        (bare, end)
    }

    /// Posts one request, and says how it and an empty one behind it end.
    fn post(&mut self, what: WorkKind) -> Vec<u32> {
        let request = |id, what, len| WorkRequest {
            id,
            what,
            address: self.registered.address(),
            len,
            lkey: self.registered.lkey(),
            is_signalled: true,
            is_inline: false,
        };
        let both = [request(1, what, 64), request(2, WorkKind::Send, 0)];
        for request in &both {
            // SAFETY: the first names the registered segment, which `self` keeps and nothing writes to; the second
            // nothing.
            unsafe { self.qp.stage(request) };
        }
        self.qp.post().expect("posted");
        let mut ended = Vec::new();
        let mut out = [sys::ibv_wc::default(); 4];
        let until = Instant::now() + PATIENCE;
        while ended.len() < 2 && Instant::now() < until {
            let count = self.completions.poll(&mut out).expect("a live queue");
            ended.extend(out[..count].iter().map(|completion| completion.status));
        }
        ended
    }
}

fn bare_pair() -> [Bare; 2] {
    let (one, other) = devices();
    let ((mut near, near_end), (mut far, far_end)) = (Bare::new(&one), Bare::new(&other));
    let patience = RetryPolicy {
        receiver_retry_count: 1,
        receiver_timer: 1,
        ..RetryPolicy::default()
    };
    near.qp.connect(&far_end, 77, patience).expect("a peer");
    far.qp.connect(&near_end, 77, patience).expect("a peer");
    [near, far]
}

#[test]
#[ignore = "needs two RDMA devices: scripts/soft-roce.sh"]
fn guest_4_a_bad_key_and_a_receiver_without_entries_end_as_the_manual_says() {
    let [mut near, far] = bare_pair();
    let remote = far.registered.address();
    let ended = near.post(WorkKind::Write {
        remote,
        rkey: far.registered.rkey() ^ 0x55,
    });
    assert_eq!(
        ended,
        [sys::IBV_WC_REM_ACCESS_ERR, sys::IBV_WC_WR_FLUSH_ERR]
    );
    assert_eq!(far.segment.index(), 0, "it is still there");

    let [mut near, mut far] = bare_pair();
    let entry = ReceiveEntry {
        id: 9,
        address: far.registered.address(),
        len: 64,
        lkey: far.registered.lkey(),
    };
    // SAFETY: the entry lies in the registered segment, which nothing else touches.
    unsafe { far.receive.add(&entry) }.expect("added");
    far.receive.post().expect("posted");
    // The first takes the only entry, the second finds none.
    let ended = near.post(WorkKind::Send);
    assert_eq!(ended, [sys::IBV_WC_SUCCESS, sys::IBV_WC_RNR_RETRY_EXC_ERR]);
}
