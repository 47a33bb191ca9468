//! What users see of a running task: metrics by HTTP, times by stage, and what a missed deadline leaves behind.
//!
//! `KEEP=folder cargo test --test seen missed` leaves the recordings there, for `rendez dump`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rendez::cluster::HostPort;
use rendez::engine::{Config, Engine};
use rendez::ground::{Code, Key, StepId};
use rendez::memory::Tensor;
use rendez::shard::recorder::{Recording, Stage, What};

const LONG: Duration = Duration::from_secs(20);

fn config(task: &str) -> Config {
    let mut config = Config::new(task);
    (config.shards, config.share_cores) = (1, true);
    config.poll = rendez::shard::run::PollPolicy::Park;
    config
}

/// Two tasks of which the first knows the second.
fn pair(first: Config, second: Config) -> (Engine, Engine) {
    let (first, second) = (
        Engine::start(first).expect("it starts"),
        Engine::start(second).expect("it starts"),
    );
    first.add_peer(
        second.task().clone(),
        second.address().expect("it listens").clone(),
    );
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
        // Every value of an application thread is timed, on both sides.
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
        .deadline(Duration::from_millis(50))
        .wait();
    assert_eq!(
        late.expect_err("nobody has sent it").code(),
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
    // How long it lay there is not told by these two: a deadline counts from the call, and the shard heard of it later.
    assert!(waits.expect("it had begun").at < missed.at);
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
