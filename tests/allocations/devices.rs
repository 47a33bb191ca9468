//! After warm-up a device's tensor that is handed over touches the heap no more: counted over the played driver.
//!
//! One thread drives both engines, so that all that a hand-over does is done on it, and counted.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_lite::future::{block_on, poll_once};
use rendez::drive::Driver;
use rendez::engine::{Config, DeviceUse, Engine};
use rendez::ground::{Key, Shape, StepId};
use rendez::mail::Received;
use rendez::memory::Tensor;

use crate::counting::calls;

const PATIENCE: Duration = Duration::from_secs(20);
const STEP: StepId = StepId(1);
const HOPS: u32 = 100;

fn config(task: &str) -> Config {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    (config.shards, config.share_cores) = (1, true);
    config.drive = Driver::Caller;
    config.arena.segment_bytes = 4 << 20;
    config.devices.usage = DeviceUse::Require;
    config.devices.library = Some(rendez_played_cuda::path());
    config.devices.segment_bytes = 4 << 20;
    config.devices.bytes_max = 32 << 20;
    config
}

/// Two engines that one thread drives, and the keys from each to the other.
struct Pair {
    engines: [Engine; 2],
    keys: [Key; 2],
}

impl Pair {
    fn new(is_near: bool) -> Self {
        let engines = ["a", "b"].map(|task| {
            let mut config = config(task);
            config.control = !is_near;
            Engine::start(config).expect("an engine")
        });
        let [a, b] = &engines;
        match is_near {
            true => a.connect_local(b).expect("two engines"),
            false => a.add_peer(b.task().clone(), b.address().expect("it listens").clone()),
        }
        let keys = [("a", "b"), ("b", "a")].map(|(from, to)| Key::between(from, to, "x"));
        Self {
            engines,
            keys: keys.map(|key| key.expect("a key")),
        }
    }

    /// What `tensor` is for the other side when `from` has sent it.
    fn hop(&self, from: usize, tensor: Tensor) -> Received {
        let key = &self.keys[from];
        self.engines[from]
            .step(STEP)
            .send(key, tensor)
            .expect("sent");
        let mut received = pin!(self.engines[1 - from].step(STEP).recv(key));
        let began = Instant::now();
        loop {
            if let Some(received) = block_on(poll_once(received.as_mut())) {
                return received.expect("a value");
            }
            self.engines[from].progress();
            assert!(began.elapsed() < PATIENCE, "no value came");
        }
    }
}

#[test]
fn a_tensor_of_a_device_is_handed_over_without_the_heap() {
    for is_near in [true, false] {
        let pair = Pair::new(is_near);
        let tensors = pair.engines.each_ref().map(|engine| {
            let devices = engine.devices().expect("the played device");
            let bytes = Tensor::from_vec(vec![7_u8; 4096], Shape::from([4096])).expect("a tensor");
            devices.to_device(&bytes, 0).expect("room on the device")
        });
        // The first ones tell of memory and keys; who does not know the memory yet has a copy.
        let began = Instant::now();
        let is_leased = |side: usize| pair.hop(side, tensors[side].clone()).tensor.is_leased();
        while !(is_leased(0) && is_leased(1)) {
            assert!(began.elapsed() < PATIENCE, "the memory is never known");
        }
        let mut all_leased = true;
        let mut play = || {
            for _ in 0..HOPS {
                for (side, tensor) in tensors.iter().enumerate() {
                    let received = pair.hop(side, tensor.clone());
                    all_leased &= received.tensor.is_device() && received.tensor.is_leased();
                }
            }
        };
        play();
        assert_eq!(calls(&mut play), 0, "near: {is_near}");
        assert!(all_leased, "near: {is_near}");
    }
}
