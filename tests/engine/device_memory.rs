//! Tensors in a device's memory: they pass within a process by their handles, and are refused by name elsewhere.
//!
//! The device is a fake: its memory is an address that must not be read, and a count of those that let it go.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use rendez::engine::{Config, Engine};
use rendez::ground::{Code, DType, Key, MemoryKind, Shape, Status, StepId, TensorMeta, catalogue};
use rendez::memory::{DeviceEvent, DeviceMemory, DevicePtr, Readiness, Tensor, TensorBytes};
use rendez::shard::{Task, TaskContext, TaskEvent};
use rendez::trace::Path;

use crate::support::{PATIENCE, until};
const STEP: StepId = StepId(1);
const PLACE: DevicePtr = DevicePtr {
    kind: MemoryKind::Cuda,
    device: 3,
    // Not canonical: a read of it would be a fault.
    address: 0xdead_0000_0000_0000,
    size: 4096,
};

/// Memory of the fake device.
#[derive(Debug)]
struct Fake {
    place: DevicePtr,
    freed: Arc<AtomicUsize>,
    event: Option<FakeEvent>,
}

/// An event that is over when a test says so.
#[derive(Clone, Debug, Default)]
struct FakeEvent(Arc<AtomicBool>);

impl DeviceEvent for FakeEvent {
    fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn handle(&self) -> u64 {
        77
    }
}

impl DeviceMemory for Fake {
    fn place(&self) -> DevicePtr {
        self.place
    }

    fn readiness(&self) -> Readiness<'_> {
        match &self.event {
            Some(event) => Readiness::After(event),
            None => Readiness::Ready,
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::SeqCst);
    }
}

fn on_device(size: u64) -> (Tensor, Arc<AtomicUsize>) {
    let freed = Arc::new(AtomicUsize::new(0));
    let place = DevicePtr { size, ..PLACE };
    let meta = TensorMeta::new(DType::U8, Shape::row(size).unwrap()).unwrap();
    let memory = Fake {
        place,
        freed: Arc::clone(&freed),
        event: None,
    };
    (Tensor::from_device(meta, memory).unwrap(), freed)
}

fn engine(task: &str, shards: usize) -> Engine {
    let mut config = Config::new(format!("/job:{task}/task:0"));
    (config.shards, config.share_cores) = (shards, true);
    config.control = false;
    config.arena.segment_bytes = 1 << 20;
    Engine::start(config).unwrap()
}

fn key(to: &str, edge: &str) -> Key {
    Key::between("a", to, edge).unwrap()
}

#[track_caller]
fn assert_refused(status: &Status) {
    let told = (status.code(), status.reason());
    assert_eq!(
        told,
        (Code::InvalidArgument, catalogue::TENSOR_DEVICE),
        "{status}"
    );
}

#[test]
fn within_a_process_the_handle_passes_and_the_memory_is_freed_once() {
    for shards in [1, 3] {
        let engine = engine("a", shards);
        for (round, size) in [4_u64, 4096, 1 << 30].into_iter().enumerate() {
            let (tensor, freed) = on_device(size);
            let (step, key) = (engine.step(STEP), key("a", &format!("{shards}/{round}")));
            let place = DevicePtr { size, ..PLACE };
            if round % 2 == 0 {
                step.send(&key, tensor).unwrap();
            } else {
                step.send_async(&key, tensor).wait().unwrap();
            }
            let received = step.recv(&key).deadline(PATIENCE).wait().unwrap();
            assert_eq!(received.path, Path::Local);
            assert_eq!(received.tensor.bytes(), TensorBytes::Device(place));
            assert_eq!(freed.load(Ordering::SeqCst), 0);
            drop(received);
            until("the memory is freed", || freed.load(Ordering::SeqCst) == 1);
        }
    }
}

#[test]
fn to_another_task_it_is_refused_and_nothing_else_happens() {
    let (a, b) = (engine("a", 2), engine("b", 2));
    a.connect_local(&b).unwrap();
    let (step, key) = (a.step(STEP), key("b", "out"));
    for size in [4, 4096] {
        let (tensor, freed) = on_device(size);
        assert_refused(&step.send(&key, tensor).unwrap_err());
        assert_eq!(freed.load(Ordering::SeqCst), 1);
    }
    let (tensor, freed) = on_device(4096);
    let unsent = step.send_async(&key, tensor).wait().unwrap_err();
    assert_refused(unsent.status());
    let handed_back = unsent.into_tensor().expect("it comes back");
    assert!(handed_back.is_device() && freed.load(Ordering::SeqCst) == 0);
    // The step goes on, and the values of the key are those that were taken.
    step.send(&key, Tensor::scalar(7_u32)).unwrap();
    let received = b.step(STEP).recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_eq!(received.item::<u32>(), Ok(7));
}

/// Sends a device's tensor on the shard's thread, and then one of the host's.
struct Sender {
    keys: [Key; 2],
    say: mpsc::Sender<Result<(), Status>>,
}

impl Task for Sender {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if let TaskEvent::Started = event {
            for key in &self.keys {
                let key = context.prepare(key).unwrap();
                self.say
                    .send(context.send(STEP, key, on_device(64).0))
                    .unwrap();
            }
            context.finish();
        }
    }
}

#[test]
fn in_shard_tasks_are_refused_as_well() {
    let (a, b) = (engine("a", 1), engine("b", 1));
    a.connect_local(&b).unwrap();
    let (say, said) = mpsc::channel();
    let keys = [key("b", "out"), key("a", "here")];
    let sender = Sender {
        keys: keys.clone(),
        say,
    };
    a.spawn(0, Box::new(sender)).unwrap();
    let outcome = || said.recv_timeout(PATIENCE).unwrap();
    assert_refused(&outcome().unwrap_err());
    outcome().unwrap();
    let step = a.step(STEP);
    let here = step.recv(&keys[1]).deadline(PATIENCE).wait().unwrap();
    assert!(here.tensor.is_device());
}

/// A device still writes what is passed on; who received it sees when that is over.
#[test]
fn a_value_passes_before_it_is_ready_and_says_so() {
    let engine = engine("a", 2);
    let (step, key) = (engine.step(STEP), key("a", "early"));
    let event = FakeEvent::default();
    let memory = Fake {
        place: PLACE,
        freed: Arc::default(),
        event: Some(event.clone()),
    };
    let meta = TensorMeta::new(DType::F32, Shape::from([1024])).unwrap();
    step.send(&key, Tensor::from_device(meta, memory).unwrap())
        .unwrap();
    let received = step.recv(&key).deadline(PATIENCE).wait().unwrap();
    let readiness = received.tensor.readiness();
    assert!(matches!(readiness, Readiness::After(event) if event.handle() == 77));
    assert!(!readiness.is_ready());
    event.0.store(true, Ordering::Release);
    assert!(readiness.is_ready());
    // Of others that is no question.
    let bytes = vec![1_u8; 4096];
    let heap = Tensor::from_slice(&bytes, Shape::from([4096])).unwrap();
    for tensor in [Tensor::scalar(1_u8), heap, on_device(64).0] {
        assert!(matches!(tensor.readiness(), Readiness::Ready));
    }
}

#[test]
fn who_reads_it_is_told() {
    let engine = engine("a", 1);
    let (tensor, _) = on_device(8);
    let (step, key) = (engine.step(STEP), key("a", "read"));
    step.send(&key, tensor).unwrap();
    let received = step.recv(&key).deadline(PATIENCE).wait().unwrap();
    assert_refused(&received.as_slice::<u8>().unwrap_err());
    assert_refused(&received.to_vec::<u8>().unwrap_err());
    let refusal = Status::from(received.tensor.host().unwrap_err());
    assert_refused(&refusal);
    assert!(
        refusal.message().contains("CUDA device 3"),
        "it names the device: {refusal}"
    );
    // Metadata may change: it is not read for that.
    let reshaped = received.tensor.reshaped(Shape::from([2, 4])).unwrap();
    assert_eq!(reshaped.bytes(), received.tensor.bytes());
    let bits = TensorMeta::new(DType::U64, Shape::SCALAR).unwrap();
    assert_eq!(received.tensor.recast(bits).unwrap().size(), 8);
    // But to say that every byte is a truth value, it would have to be.
    let truths = TensorMeta::new(DType::Bool, Shape::from([8])).unwrap();
    assert_refused(&received.tensor.recast(truths).unwrap_err().into());
}

#[test]
fn memory_of_another_length_and_strings_are_none() {
    let memory = || Fake {
        place: PLACE,
        freed: Arc::default(),
        event: None,
    };
    let short = TensorMeta::new(DType::U8, Shape::from([4095])).unwrap();
    let status = Status::from(Tensor::from_device(short, memory()).unwrap_err());
    assert_eq!(status.reason(), catalogue::TENSOR_SHAPE);
    let strings = TensorMeta::new(DType::String, Shape::from([4])).unwrap();
    let status = Status::from(Tensor::from_device(strings, memory()).unwrap_err());
    assert_eq!(status.reason(), catalogue::TENSOR_DTYPE);
}
