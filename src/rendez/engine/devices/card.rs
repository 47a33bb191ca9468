//! The same on a real card, by `scripts/gpu.sh`: not run elsewhere. What passes over the played driver is not proved
//! for another driver; these show what a card does, and say what it took, as rows of a table.

use std::time::{Duration, Instant};

use super::*;
use crate::ground::{DType, Key, Shape, StepId};

/// Tells a row of the table.
macro_rules! say {
    ($($text:tt)*) => {
        std::io::Write::write_all(&mut std::io::stdout(), format!("{}\n", format_args!($($text)*)).as_bytes()).unwrap()
    };
}

const PATIENCE: Duration = Duration::from_secs(60);
const STEP: StepId = StepId(9);

fn config(task: &str) -> Config {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    (config.shards, config.share_cores) = (1, true);
    config.arena.bytes_max = 8 << 30;
    config.devices.usage = DeviceUse::Require;
    config.devices.library = std::env::var("RENDEZ_DEVICE_LIBRARY").ok();
    config
}

/// Two engines of this process, connected as two processes of a machine are.
fn pair() -> (Engine, Engine) {
    let (a, b) = (
        Engine::start(config("a")).unwrap(),
        Engine::start(config("b")).unwrap(),
    );
    a.add_peer(b.task().clone(), b.address().unwrap().clone());
    let up = Key::between("a", "b", "up").unwrap();
    a.step(STEP).send(&up, Tensor::scalar(1_u8)).unwrap();
    b.step(STEP).recv(&up).deadline(PATIENCE).wait().unwrap();
    (a, b)
}

fn host(len: usize) -> Tensor {
    let bytes: Vec<u8> = (0..len).map(|at| (at * 3 + at / 255) as u8).collect();
    Tensor::from_vec(bytes, Shape::from([len as u64])).unwrap()
}

#[test]
#[ignore = "wants a card: scripts/gpu.sh"]
fn a_card_hands_over_in_place_in_time_and_takes_all_home() {
    let (a, b) = pair();
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    for info in ours.list() {
        say!(
            "| device {} | {} | {} bytes | words: {} |",
            info.number,
            info.name,
            info.bytes,
            info.has_words
        );
    }
    for (round, len) in [4096_usize, 1 << 20, 64 << 20].into_iter().enumerate() {
        let sent = host(len);
        let tensor = ours.to_device(&sent, 0).unwrap();
        let of = Key::between("a", "b", &format!("{round}")).unwrap();
        a.step(STEP).send(&of, tensor).unwrap();
        let got = b
            .step(STEP)
            .recv(&of)
            .deadline(PATIENCE)
            .wait()
            .unwrap()
            .tensor;
        assert!(got.is_leased() && got.is_device());
        let stream = theirs.stream(0).unwrap();
        theirs.order(&got, &stream).unwrap();
        let back = theirs.to_host(&got).unwrap();
        assert!(back.host().unwrap() == sent.host().unwrap(), "{len} bytes");
        theirs.release_after(got, &stream).unwrap();
    }
    let began = Instant::now();
    while ours.stats().iter().any(|one| one.arena.blocks > 0) {
        assert!(began.elapsed() < PATIENCE, "the memory comes home");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "wants a card: scripts/gpu.sh"]
fn a_card_prints_what_hand_overs_and_copies_take() {
    let (a, b) = pair();
    let (ours, theirs) = (a.devices().unwrap(), b.devices().unwrap());
    for len in [4096_u64, 1 << 28] {
        let meta = TensorMeta::new(DType::U8, Shape::from([len])).unwrap();
        let tensor = ours.buffer(0, meta).unwrap().into_tensor(meta).unwrap();
        let mut times: Vec<Duration> = (0..200)
            .map(|round| {
                let of = Key::between("a", "b", &format!("{len}/{round}")).unwrap();
                let began = Instant::now();
                a.step(STEP).send(&of, tensor.clone()).unwrap();
                let got = b.step(STEP).recv(&of).deadline(PATIENCE).wait().unwrap();
                let took = began.elapsed();
                assert!(got.tensor.is_leased());
                took
            })
            .collect();
        times.sort_unstable();
        say!(
            "| lease, {len} bytes, not touched | median of 200 | {:?} |",
            times[100]
        );
    }
    let sent = host(256 << 20);
    for round in 0..3 {
        let began = Instant::now();
        let tensor = ours.to_device(&sent, 0).unwrap();
        let to_device = began.elapsed();
        let began = Instant::now();
        let back = theirs.to_host(&tensor).unwrap();
        say!(
            "| 256 MiB through the pinned pool, run {round} | there {to_device:?} | back {:?} |",
            began.elapsed()
        );
        assert_eq!(back.size(), sent.size());
    }
}
