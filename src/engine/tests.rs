//! Engines end to end, in one process: over loopback, and over shared memory as two processes would.

use std::time::Duration;

use super::{Config, Engine};
use crate::ground::{Code, DType, Key, Status, StepId};
use crate::memory::Tensor;

const PATIENCE: Duration = Duration::from_secs(10);

fn config(task: &str) -> Config {
    let mut config = Config::new(task);
    config.shards = 2;
    config.share_cores = true;
    config.arena.segment_bytes = 4 << 20;
    config
}

/// Two engines that are connected: by loopback, or through control and shared memory.
fn pair(is_shm: bool) -> (Engine, Engine) {
    if is_shm {
        let a = Engine::start(config("/job:a/task:0")).unwrap();
        let b = Engine::start(config("/job:b/task:0")).unwrap();
        a.add_peer(b.task().clone(), b.address().unwrap().clone());
        (a, b)
    } else {
        let mut one = config("/job:a/task:0");
        let mut other = config("/job:b/task:0");
        one.control = false;
        other.control = false;
        let (a, b) = (Engine::start(one).unwrap(), Engine::start(other).unwrap());
        a.connect_local(&b).unwrap();
        (a, b)
    }
}

fn hands_over(is_shm: bool) {
    let (a, b) = pair(is_shm);
    let (out, back) = (a.step(StepId(7)), b.step(StepId(7)));
    for (round, len) in [1usize, 4, 5, 100, 1000, 1100, 70_000, 3_000_000]
        .into_iter()
        .enumerate()
    {
        let key = Key::between("a", "b", &format!("edge{round}")).unwrap();
        let mut builder = a.tensor(DType::U8, &[len as u64]).unwrap();
        for (at, byte) in builder.bytes_mut().iter_mut().enumerate() {
            *byte = (at * 31 + round) as u8;
        }
        let tensor = builder.finish();
        let want = tensor.bytes().to_vec();
        if round % 2 == 0 {
            out.send(&key, tensor).unwrap();
            let got = back.recv(&key).deadline(PATIENCE).wait().unwrap();
            assert_eq!(got.tensor.bytes(), want);
        } else {
            let waiting = std::thread::spawn({
                let (back, key) = (back.clone(), key.clone());
                move || back.recv(&key).deadline(PATIENCE).wait().unwrap()
            });
            out.send(&key, tensor).unwrap();
            assert_eq!(waiting.join().unwrap().tensor.bytes(), want);
        }
    }
    a.shutdown(PATIENCE);
    b.shutdown(PATIENCE);
}

#[test]
fn loopback_hands_over() {
    hands_over(false);
}

#[test]
fn shared_memory_hands_over() {
    hands_over(true);
}

#[test]
fn a_local_key_needs_no_peer() {
    let engine = Engine::start(config("/job:a/task:0")).unwrap();
    let key = Key::between("a", "a", "x").unwrap();
    let step = engine.step(StepId(1));
    step.send(&key, Tensor::scalar(7u32)).unwrap();
    let got = step.recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!(got.tensor.as_slice::<u32>().unwrap(), [7]);
}

#[test]
fn an_abort_reaches_the_peer() {
    let (a, b) = pair(true);
    let key = Key::between("a", "b", "never").unwrap();
    let waiting = std::thread::spawn({
        let (step, key) = (b.step(StepId(3)), key.clone());
        move || step.recv(&key).deadline(PATIENCE).wait()
    });
    let other = Key::between("a", "b", "once").unwrap();
    a.step(StepId(3)).send(&other, Tensor::scalar(1u8)).unwrap();
    b.step(StepId(3))
        .recv(&other)
        .deadline(PATIENCE)
        .wait()
        .unwrap();
    a.step(StepId(3))
        .abort(Status::new(Code::Internal, "TEST", "it broke"));
    let status = waiting.join().unwrap().unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::Internal, "it broke")
    );
}
