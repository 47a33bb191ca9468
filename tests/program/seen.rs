//! What users see of a running task: metrics by HTTP, times by stage, and what a missed deadline leaves behind.
//!
//! `KEEP=folder cargo test --test program missed` leaves the recordings there, for `rendez dump`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rendez::cluster::HostPort;
use rendez::engine::{Config, Engine, Require};
use rendez::ground::{Code, Key, Shape, StepId};
use rendez::memory::Tensor;
use rendez::trace::recorder::{Recording, Stage, Way, What};

const LONG: Duration = Duration::from_secs(20);

fn config(task: &str) -> Config {
    let mut config = Config::new(task);
    (config.shards, config.share_cores) = (1, true);
    config.poll = rendez::drive::PollPolicy::Park;
    // All of them, also where the sender turns its shard itself.
    config.stage_sampling = 1;
    config
}

/// Two tasks of which the first knows the second.
fn pair(first: Config, second: Config) -> (Engine, Engine) {
    let (first, second) = (
        Engine::start(first).expect("it starts"),
        Engine::start(second).expect("it starts"),
    );
    // Where it listens by TCP, that is how it is reached.
    let address = second.tcp_address().or_else(|| second.address());
    first.add_peer(second.task().clone(), address.expect("it listens").clone());
    (first, second)
}

fn get(engine: &Engine, path: &str) -> String {
    let mut socket =
        TcpStream::connect(engine.metrics_address().expect("it serves them")).expect("it listens");
    write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("it reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("it answers");
    text
}

#[test]
fn hand_overs_show_in_metrics_and_stages() {
    let mut config_of_b = config("/job:b/task:0");
    config_of_b.metrics = Some(HostPort::new("127.0.0.1", 0).expect("an address"));
    let (a, b) = pair(config("/job:a/task:0"), config_of_b);
    let key = Key::between("a", "b", "x").expect("a key");
    for step in 1..=50 {
        a.step(StepId(step))
            .send(&key, Tensor::scalar(7_u32))
            .expect("room");
        b.step(StepId(step))
            .recv(&key)
            .deadline(LONG)
            .wait()
            .expect("it comes");
    }
    let page = get(&b, "/metrics");
    assert!(
        page.contains("rendez_delivered_total{shard=\"0\"} 50\n"),
        "{page}"
    );
    assert!(
        page.contains("rendez_peer_connected{peer=\"/job:a/replica:0/task:0\",path=\"shm\"} 1\n"),
        "{page}"
    );
    assert!(get(&b, "/healthz").ends_with("ok\n") && get(&b, "/readyz").ends_with("ok\n"));
    if cfg!(feature = "stages") {
        let count = |engine: &Engine, stage: Stage| -> u64 {
            let all = engine.stages();
            all.iter()
                .filter(|times| times.stage == stage)
                .map(|times| times.count())
                .sum()
        };
        // Every value is timed, on both sides.
        assert_eq!(
            [Stage::Matched, Stage::Posted].map(|stage| count(&a, stage)),
            [50, 50]
        );
        // One that waited for the connection may be of a kind that has no place for a stamp.
        let all = [Stage::Wire, Stage::Landed, Stage::Woken].map(|stage| count(&b, stage));
        assert!(all.iter().all(|count| (49..=50).contains(count)), "{all:?}");
        let wire = "stage=\"wire\",path=\"shm_inline\",size_class=\"64B\"";
        assert!(page.contains(wire), "{page}");
    }
}

fn recordings_in(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .expect("it is there")
        .flatten()
        .map(|entry| entry.path());
    entries
        .filter(|path| path.to_string_lossy().ends_with(kind))
        .collect()
}

#[test]
#[cfg(feature = "stages")]
fn a_missed_deadline_leaves_what_led_to_it() {
    let scratch = tempfile::tempdir().expect("a folder");
    let kept = std::env::var_os("KEEP").map(PathBuf::from);
    let folder = kept.as_deref().unwrap_or_else(|| scratch.path());
    let [mut first, mut second] = ["/job:producer/task:0", "/job:consumer/task:0"].map(config);
    first.recorder_dir = Some(folder.to_owned());
    second.recorder_dir = Some(folder.to_owned());
    let (producer, consumer) = pair(first, second);
    let [fast, slow] =
        ["fast", "slow"].map(|edge| Key::between("producer", "consumer", edge).expect("a key"));
    producer
        .step(StepId(7))
        .send(&fast, Tensor::scalar(1_u64))
        .expect("room");
    consumer
        .step(StepId(7))
        .recv(&fast)
        .deadline(LONG)
        .wait()
        .expect("it comes");
    let late = consumer
        .step(StepId(7))
        .recv(&slow)
        .deadline(Duration::from_millis(500))
        .wait();
    assert_eq!(
        late.expect_err("it was not sent").code(),
        Code::DeadlineExceeded
    );
    producer
        .step(StepId(7))
        .send(&slow, Tensor::scalar(2_u64))
        .expect("room");
    let began = Instant::now();
    while recordings_in(folder, "-missed.rdz").is_empty() {
        assert!(began.elapsed() < LONG, "nothing was left");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(consumer.stats()[0].missed_unsent, 1);
    producer.dump(folder, "asked").expect("written");
    for path in recordings_in(folder, ".rdz") {
        let found = std::fs::metadata(&path).expect("it is there");
        let mode = std::os::unix::fs::PermissionsExt::mode(&found.permissions());
        assert_eq!(mode & 0o7777, 0o600, "{}", path.display());
    }
    let bytes = std::fs::read(&recordings_in(folder, "-missed.rdz")[0]).expect("readable");
    let recording = Recording::of(&bytes).expect("it is one");
    assert!(recording.head.task.contains("consumer"));
    let events = recording.events();
    let missed = events
        .iter()
        .find(|event| event.what == What::Missed)
        .expect("it is there");
    let waits = events
        .iter()
        .find(|event| event.what == What::Waits && event.key == missed.key);
    // A deadline counts from the call: what is left of it when the shard hears of it is less, except for what the
    // shard's clock lags, which it reads once a turn.
    let waits = waits.expect("it had begun");
    assert!(waits.at < missed.at);
    assert!((1..=510_000_000).contains(&waits.a), "{}", waits.a);
    assert_eq!(missed.step, 7);
    assert!(
        recording
            .name_of(missed.key)
            .expect("a name")
            .contains("slow")
    );
    drop(consumer);
    let of_consumer = |path: &&PathBuf| path.to_string_lossy().contains("consumer");
    assert_eq!(
        recordings_in(folder, ".rdz")
            .iter()
            .filter(of_consumer)
            .count(),
        2,
        "who missed a deadline leaves its recorder"
    );
}

/// A free port of this machine.
fn anywhere() -> rendez::control::Address {
    "127.0.0.1:0".parse().expect("an address")
}

/// Hands a value of each size over, so often, from the first to the second.
fn hand_over(first: &Engine, second: &Engine, key: &Key, sizes: &[usize], rounds: usize) {
    for _ in 0..rounds {
        for size in sizes {
            let shape = Shape::row(*size as u64).expect("a shape");
            let tensor = Tensor::from_vec(vec![1_u8; *size], shape).expect("a tensor");
            first.step(StepId(1)).send(key, tensor).expect("room");
            let received = second.step(StepId(1)).recv(key).deadline(LONG).wait();
            assert_eq!(received.expect("it comes").tensor.size(), *size);
        }
    }
}

/// The stages are recorded one by one at both ends, the whole by its receiver alone: that they agree is no question of
/// how fast any of it went.
#[test]
#[cfg(feature = "stages")]
fn the_stages_of_hand_overs_add_up_to_the_whole_of_them() {
    for (require, ways) in [
        (Require::Shm, [Way::ShmInline, Way::ShmLease]),
        (Require::Tcp, [Way::TcpInline, Way::TcpCopy]),
    ] {
        let [mut first, mut second] = ["/job:a/task:0", "/job:b/task:0"].map(config);
        for config in [&mut first, &mut second] {
            config.require = require;
            config.listen = (require == Require::Tcp).then(anywhere);
        }
        let (first, second) = pair(first, second);
        let key = Key::between("a", "b", "edge").expect("a key");
        let sizes = [4, 600, 300_000];
        hand_over(&first, &second, &key, &sizes, 3);
        // By a socket the counters of both are compared before anything can be told.
        let is_compared = || require == Require::Shm || !second.compared_clocks().is_empty();
        let began = Instant::now();
        while !is_compared() {
            assert!(began.elapsed() < LONG, "clocks are not compared");
            std::thread::sleep(Duration::from_millis(5));
        }
        // The shard hears of that, and of the kind of the values, with the first of them.
        hand_over(&first, &second, &key, &sizes, 3);
        let before = [&first, &second].map(Engine::stages);
        hand_over(&first, &second, &key, &sizes, 100);
        let of = |stage: Stage, way: Way| -> (u64, u64) {
            let sides = [(&first, &before[0]), (&second, &before[1])];
            let all = sides
                .iter()
                .flat_map(|(engine, before)| engine.stages_since(before));
            all.filter(|times| (times.stage, times.way) == (stage, way))
                .fold((0, 0), |(sum, count), times| {
                    (sum + times.sum_ns, count + times.count())
                })
        };
        for (way, count) in ways.into_iter().zip([200, 100]) {
            // The sender writes down what it knows when the value has gone. A value that was asked for before it was
            // there answers its request, and is not timed.
            let timed = || [Stage::Posted, Stage::Whole].map(|stage| of(stage, way).1);
            let agree = |[posted, whole]: [u64; 2]| posted == whole && whole > count / 2;
            let began = Instant::now();
            while !agree(timed()) && began.elapsed() < LONG {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(agree(timed()), "{way:?}: {:?} of {count}", timed());
            let stages = Stage::ALL
                .iter()
                .copied()
                .filter(|stage| *stage != Stage::Whole);
            let sum: u64 = stages.map(|stage| of(stage, way).0).sum();
            let (whole, _) = of(Stage::Whole, way);
            let off = sum.abs_diff(whole) as f64 / whole as f64;
            assert!(off < 0.01, "{way:?}: {sum} of {whole}");
        }
    }
}

#[test]
#[cfg(feature = "stages")]
fn the_clock_of_a_peer_that_may_be_elsewhere_shows_with_its_error() {
    let [mut first, mut second] = ["/job:a/task:0", "/job:b/task:0"].map(config);
    for config in [&mut first, &mut second] {
        (config.require, config.listen) = (Require::Tcp, Some(anywhere()));
    }
    second.metrics = Some(HostPort::new("127.0.0.1", 0).expect("an address"));
    let (first, second) = pair(first, second);
    let key = Key::between("a", "b", "edge").expect("a key");
    hand_over(&first, &second, &key, &[4], 1);
    let began = Instant::now();
    while second.compared_clocks().is_empty() {
        assert!(began.elapsed() < LONG, "clocks are not compared");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (task, clock) = second.compared_clocks().remove(0);
    // Both are of this boot: one counter, one time of day.
    assert_eq!(
        (&task, clock.offset_ns, clock.error),
        (first.task(), Some(0), Duration::ZERO)
    );
    let page = get(&second, "/metrics");
    for family in ["offset", "error"] {
        let line = format!("rendez_peer_clock_{family}_seconds{{peer=\"{task}\"}} 0\n");
        assert!(page.contains(&line), "{line}{page}");
    }
    assert_eq!(second.error_of(Stage::Wire, Way::TcpInline), Duration::ZERO);
    // Who has gone is compared no more.
    drop(first);
    let began = Instant::now();
    while !second.compared_clocks().is_empty() {
        assert!(began.elapsed() < LONG, "it is gone");
        std::thread::sleep(Duration::from_millis(5));
    }
}
