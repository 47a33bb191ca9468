//! Tests of the driver as an accelerator, over a played one: memory, time, copies, bad input; and every call failing.
#![allow(unsafe_code)]

mod copies;
mod faults;
mod pinned;
mod time;
mod world;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rendez_played_cuda::{Held, Played, path};

use super::super::{
    Accelerator, Arena as _, ArenaConfig, ArenaId, ArenaSegment as _, DeviceArena, DeviceBuffer,
    Export, House, HugePages, Keeper, Lanes, LeaseToken, Leases, MappedSegment, MemoryError, Pool,
    Staging, Stream, Tensor, TensorBytes, Times, Watch, accelerator,
};
use super::*;
use crate::ground::pattern::pattern;
use crate::ground::{DType, MemoryKind, Nanos, Region, Shape, Status, TensorMeta, catalogue};

const ARENA: ArenaId = ArenaId(0x8000);
const CONFIG: ArenaConfig = ArenaConfig {
    segment_bytes: 4 << 20,
    bytes_max: 16 << 20,
    huge_pages: HugePages::Off,
};

/// The driver, alone: the played library has one state in a process.
struct Alone {
    played: Played,
    held: Held,
    violations: u64,
    _turn: MutexGuard<'static, ()>,
}

fn alone() -> Alone {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let played = Played::load();
    played.heal();
    played.hold_new(false);
    played.limit(0);
    for what in ["words", "descriptors", "vmm", "readonly", "peers", "copies"] {
        played.can(what, true);
    }
    Alone {
        held: played.held(),
        violations: played.violations(),
        played,
        _turn: turn,
    }
}

impl Alone {
    fn open(&self) -> Arc<dyn Accelerator> {
        accelerator::open(Some(&path())).expect("a driver")
    }

    /// Holds a stream's work up until what is returned is dropped, also where the test fails.
    fn hold(&self, stream: usize) -> HeldUp<'_> {
        assert!(self.played.hold(stream, true));
        HeldUp {
            played: &self.played,
            stream,
        }
    }

    /// All that was taken since it was made is given back, and no work met memory that was gone.
    #[track_caller]
    fn assert_clean(&self) {
        assert_eq!(self.played.held(), self.held);
        assert_eq!(self.played.violations(), self.violations);
    }
}

struct HeldUp<'a> {
    played: &'a Played,
    stream: usize,
}

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        let _known = self.played.hold(self.stream, false);
    }
}

fn meta(len: usize) -> TensorMeta {
    TensorMeta::new(DType::U8, Shape::from([len as u64])).expect("a size")
}

/// One process's side: an arena of device 0, its keeper, and a copier.
struct Side {
    staging: Staging,
    pool: Pool<DeviceArena>,
    keeper: Arc<Keeper>,
    watch: Watch,
    lanes: Lanes,
    accelerator: Arc<dyn Accelerator>,
}

impl Side {
    fn new(accelerator: Arc<dyn Accelerator>) -> Result<Self, MemoryError> {
        let arena = DeviceArena::new(&accelerator, 0)?;
        let pool = Pool::over(House::new(), arena, ARENA, CONFIG)?;
        let staging = Staging::new(&accelerator, 0, &times(&pool), 2, 1 << 16)?;
        Ok(Self {
            staging,
            pool,
            keeper: Arc::new(Keeper::new()),
            watch: Watch::default(),
            lanes: Lanes::new(&accelerator, 0),
            accelerator,
        })
    }

    fn buffer(&mut self, len: usize) -> Result<DeviceBuffer, MemoryError> {
        self.pool.device_buffer(len, &self.keeper)
    }

    /// A tensor of a copy of `bytes`, perhaps not there yet.
    fn tensor(&mut self, bytes: &[u8]) -> Result<Tensor, MemoryError> {
        let buffer = self.buffer(bytes.len())?;
        self.staging.to_device(bytes, &buffer)?;
        buffer.into_tensor_after(meta(bytes.len()), self.staging.stream())
    }

    fn read(&mut self, tensor: &Tensor) -> Result<Vec<u8>, MemoryError> {
        let mut out = vec![0; tensor.size()];
        self.staging.to_host(tensor, &mut out, &self.keeper)?;
        Ok(out)
    }

    fn turn(&mut self) -> usize {
        self.keeper.turn(&mut self.watch, Nanos::ZERO)
    }
}

fn times(pool: &Pool<DeviceArena>) -> Arc<Times> {
    Arc::clone(pool.segments()[0].times())
}

/// A peer's view of a pool's first segment: the memory, and its times.
fn imported(
    accelerator: &Arc<dyn Accelerator>,
    pool: &Pool<DeviceArena>,
) -> Result<(Arc<MappedSegment>, Arc<MappedSegment>), MemoryError> {
    let segment = &pool.segments()[0];
    let memory = DeviceArena::new(accelerator, 0)?.import(segment.export())?;
    let Export { fd, len, .. } = segment.times().segment().export();
    let times = MappedSegment::open(fd, len)?;
    Ok((Arc::new(MappedSegment::on_device(memory)), Arc::new(times)))
}

fn lease(
    leases: &mut Leases,
    (memory, times): &(Arc<MappedSegment>, Arc<MappedSegment>),
    of: &Tensor,
    token: LeaseToken,
) -> Result<Tensor, MemoryError> {
    let region = of.region().expect("it lies in an arena");
    leases.make_on_device(
        Arc::clone(memory),
        Arc::clone(times),
        region,
        of.meta(),
        token,
    )
}

#[test]
fn devices_have_identities_and_none_is_named_beyond_them() {
    let alone = alone();
    let accelerator = alone.open();
    let uuids: Vec<_> = accelerator
        .devices()
        .iter()
        .map(|one| one.uuid.0[0])
        .collect();
    assert_eq!(uuids, [1, 2]);
    let first = &accelerator.devices()[0];
    assert!(first.exports && first.has_words && first.name == "Played 01");
    assert_eq!(accelerator.find(first.uuid), Some(first));
    assert_eq!(first.uuid.to_string(), "01".repeat(16));
    let error = DeviceArena::new(&accelerator, 2).unwrap_err();
    assert_eq!(Status::from(error).reason(), catalogue::DEVICE_ORDINAL);
    assert!(Stream::new(&accelerator, 7).is_err());
    drop(accelerator);
    alone.assert_clean();
}

#[test]
fn a_library_that_is_not_there_or_is_another_is_told() {
    let told = |name: &str| open(Some(name)).unwrap_err();
    let missing = told("/nowhere/libcuda.so.1");
    assert!(
        missing.contains("/nowhere/libcuda.so.1 cannot be loaded"),
        "{missing}"
    );
    let other = told("libc.so.6");
    let why = "libc.so.6 lacks cuInit: it is older than CUDA 11.7";
    assert_eq!(other, why);
    // What is told of all drivers has what is told of this one.
    let of_all = accelerator::open(Some("libc.so.6")).unwrap_err();
    assert!(of_all.contains(why), "{of_all}");
}

#[test]
fn a_peer_reads_what_was_exported_and_all_comes_home() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let mut leases = Leases::new(4);
    let view = imported(&side.accelerator, &side.pool).unwrap();
    for (token, len) in [17, 4096, 65_536, 200_001].into_iter().enumerate() {
        let sent = pattern(token, len);
        let tensor = side.tensor(&sent).unwrap();
        assert!(tensor.is_device() && tensor.readiness().is_ready());
        let leased = lease(&mut leases, &view, &tensor, token as LeaseToken).unwrap();
        let (TensorBytes::Device(here), TensorBytes::Device(there)) =
            (tensor.bytes(), leased.bytes())
        else {
            panic!("both lie on the device");
        };
        assert_ne!(
            here.address, there.address,
            "each side has a mapping of its own"
        );
        assert_eq!((here.device, here.size), (there.device, there.size));
        assert!(leased.is_leased() && leased.host().is_err());
        assert_eq!(side.read(&leased).unwrap(), sent);
        drop(leased);
        let mut ended = Vec::new();
        leases.reclaim(|token| ended.push(token));
        assert_eq!(ended, [token as LeaseToken]);
        drop(tensor);
        assert_eq!(side.pool.reclaim(), 1);
    }
    drop((view, leases, side));
    alone.assert_clean();
}

#[test]
fn tensors_outlive_their_pool_and_its_memory_goes_with_the_last() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let tensor = side.tensor(&pattern(1, 1000)).unwrap();
    drop(side);
    assert_ne!(alone.played.held(), alone.held);
    drop(tensor);
    alone.assert_clean();
}

#[test]
fn the_arena_grows_to_its_bound_and_the_device_to_its_own() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let mut kept: Vec<_> = (0..4).map(|_| side.buffer(4 << 20).unwrap()).collect();
    let full = side.buffer(4 << 20).unwrap_err();
    assert_eq!(Status::from(full).reason(), catalogue::ARENA_FULL);
    let stats = side.pool.stats();
    assert_eq!(
        (stats.mapped_bytes, stats.limit_bytes, stats.segments),
        (16 << 20, 16 << 20, 3)
    );
    kept.pop();
    kept.push(side.buffer(4 << 20).unwrap());
    drop((kept, side));
    alone.assert_clean();
    // A device that has no room for the long segment, the last, has some for a usual one.
    alone.played.limit(4 << 20);
    let mut side = Side::new(alone.open()).unwrap();
    let kept: Vec<_> = (0..4).map(|_| side.buffer(4 << 20).unwrap()).collect();
    assert_eq!(side.pool.stats().segments, 4);
    drop((kept, side));
    alone.assert_clean();
    // Or for a shorter one. No arena is made where the device is full.
    alone.played.limit(2 << 20);
    let mut side = Side::new(alone.open()).unwrap();
    drop(side.buffer(4096).unwrap());
    assert_eq!(side.pool.stats().mapped_bytes, 2 << 20);
    drop(side);
    alone.played.limit(1);
    let error = Side::new(alone.open()).err().unwrap();
    assert_eq!(Status::from(error).reason(), catalogue::DEVICE_FULL);
    alone.assert_clean();
}

#[test]
fn what_a_driver_cannot_do_is_said_and_done_another_way_if_there_is_one() {
    let alone = alone();
    for what in ["vmm", "descriptors"] {
        alone.played.can(what, false);
        let error = Side::new(alone.open()).err().unwrap();
        assert_eq!(Status::from(error).reason(), catalogue::DEVICE_UNSUPPORTED);
        alone.played.can(what, true);
    }
    // Without words the host waits for streams.
    alone.played.can("words", false);
    let mut side = Side::new(alone.open()).unwrap();
    let sent = pattern(5, 300_000);
    let tensor = side.tensor(&sent).unwrap();
    assert!(tensor.readiness().is_ready());
    assert_eq!(side.read(&tensor).unwrap(), sent);
    assert_eq!(alone.played.count(Some("cuStreamWriteValue64_v2")), {
        let before = alone.played.count(Some("cuStreamWriteValue64_v2"));
        drop((tensor, side));
        before
    });
    // A peer never writes: a driver that maps no memory for reading only maps none.
    alone.played.can("words", true);
    let side = Side::new(alone.open()).unwrap();
    alone.played.can("readonly", false);
    let error = imported(&side.accelerator, &side.pool).unwrap_err();
    assert_eq!(Status::from(error).reason(), catalogue::DEVICE_UNSUPPORTED);
    drop(side);
    alone.assert_clean();
}

#[test]
fn claims_of_a_peer_are_checked() {
    let alone = alone();
    let accelerator = alone.open();
    let mut side = Side::new(Arc::clone(&accelerator)).unwrap();
    let arena = |device| DeviceArena::new(&accelerator, device).unwrap();
    let export = side.pool.segments()[0].export();
    let reason = |error: MemoryError| Status::from(error).reason().to_owned();
    // Longer than it is, of another device, of another kind, and no device's memory at all.
    let long = Export {
        len: 1 << 30,
        ..export.clone()
    };
    assert_eq!(
        reason(arena(0).import(long).unwrap_err()),
        catalogue::DEVICE_ARGUMENT
    );
    let other = arena(1).import(export.clone()).unwrap_err();
    assert_eq!(reason(other), catalogue::DEVICE_OTHER);
    let host = Export {
        kind: MemoryKind::Host,
        ..export.clone()
    };
    assert_eq!(
        reason(arena(0).import(host).unwrap_err()),
        catalogue::DESCRIPTOR_KIND
    );
    let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let file = Export {
        fd: Arc::new(file),
        ..export
    };
    assert_eq!(
        reason(arena(0).import(file).unwrap_err()),
        catalogue::DEVICE_ARGUMENT
    );
    // A region beyond its segment, and one that overflows.
    let tensor = side.tensor(&pattern(1, 64)).unwrap();
    let (memory, times) = imported(&accelerator, &side.pool).unwrap();
    let mut leases = Leases::new(1);
    let region = tensor.region().unwrap();
    assert_eq!(region.kind, MemoryKind::Cuda);
    for offset in [(4 << 20) - 63, u64::MAX - 8] {
        let region = Region { offset, ..region };
        let made = leases.make_on_device(
            Arc::clone(&memory),
            Arc::clone(&times),
            region,
            tensor.meta(),
            1,
        );
        assert!(matches!(made, Err(MemoryError::Outside { .. })), "{made:?}");
    }
    // No host reads a device's mapping, and no tensor of the host lies there.
    assert!(memory.slice(region).is_err());
    let made = leases.make(Arc::clone(&memory), region, tensor.meta(), 1);
    assert_eq!(reason(made.unwrap_err()), catalogue::DESCRIPTOR_KIND);
    // What could not be imported leases nothing.
    let refused = Arc::new(MappedSegment::refused(MemoryError::Lost));
    let made = leases.make_on_device(refused, times, region, tensor.meta(), 1);
    assert_eq!(made.unwrap_err(), MemoryError::Lost);
    assert_eq!(leases.out(), 0);
    drop((memory, tensor, side, leases, accelerator));
    alone.assert_clean();
}

#[test]
fn bad_input_has_each_its_own_error() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let reason = |error: MemoryError| Status::from(error).reason().to_owned();
    // A stream of another device.
    let other = Stream::new(&side.accelerator, 1).unwrap();
    let buffer = side.buffer(64).unwrap();
    let place = buffer.place();
    let error = buffer.into_tensor_after(meta(64), &other).unwrap_err();
    assert_eq!(reason(error), catalogue::DEVICE_OTHER);
    assert_eq!(
        side.pool.reclaim(),
        1,
        "nothing happened, and its memory is free"
    );
    // Of another length.
    let buffer = side.buffer(64).unwrap();
    assert_eq!(
        reason(side.staging.to_device(&[0; 63], &buffer).unwrap_err()),
        "TENSOR_SHAPE"
    );
    let tensor = buffer.into_tensor(meta(64)).unwrap();
    let error = side
        .staging
        .to_host(&tensor, &mut [0; 65], &side.keeper)
        .unwrap_err();
    assert_eq!(reason(error), "TENSOR_SHAPE");
    // Memory of the host.
    let host = Tensor::scalar(1_u64);
    let error = side
        .staging
        .to_host(&host, &mut [0; 8], &side.keeper)
        .unwrap_err();
    assert_eq!(reason(error), catalogue::DESCRIPTOR_KIND);
    // Pointers: ours, one past a mapping, freed, and none of a device's.
    let extent = side.accelerator.extent(place.address).unwrap();
    assert_eq!((extent.device, extent.len), (0, 4 << 20));
    let local = 0_u64;
    for address in [0, (&raw const local).addr() as u64] {
        assert_eq!(
            reason(side.accelerator.extent(address).unwrap_err()),
            "DEVICE_POINTER"
        );
    }
    let accelerator = Arc::clone(&side.accelerator);
    drop((tensor, side));
    assert_eq!(
        reason(accelerator.extent(place.address).unwrap_err()),
        "DEVICE_POINTER"
    );
    // A stream that is none.
    // SAFETY: the played driver looks every stream up.
    let error = unsafe { Stream::borrowed(&accelerator, 0x77) }.unwrap_err();
    assert_eq!(reason(error), "DEVICE_ARGUMENT");
    // SAFETY: as above, and it lives until `other` is dropped.
    let borrowed = unsafe { Stream::borrowed(&accelerator, other.handle()) }.unwrap();
    assert_eq!(borrowed.device(), 1);
    // One of another device than it is said to be; one of a context of the application's own; those that each has.
    // SAFETY: as above.
    let on = |device, raw| unsafe { Stream::borrowed_on(&accelerator, device, raw) };
    assert_eq!(
        reason(on(0, other.handle()).unwrap_err()),
        catalogue::DEVICE_OTHER
    );
    assert_eq!(reason(on(2, 1).unwrap_err()), catalogue::DEVICE_ORDINAL);
    let alien = alone.played.alien_stream() as u64;
    assert_eq!(reason(on(0, alien).unwrap_err()), catalogue::DEVICE_CONTEXT);
    // The stream of the device, and that of the thread.
    for raw in [1, 2] {
        let usual = on(1, raw).unwrap();
        assert_eq!((usual.device(), usual.handle()), (1, raw));
        usual.synchronize().unwrap();
        // SAFETY: as above.
        let of_any = unsafe { Stream::borrowed(&accelerator, raw) };
        assert_eq!(reason(of_any.unwrap_err()), catalogue::DEVICE_CONTEXT);
    }
    drop((borrowed, other, accelerator));
    alone.assert_clean();
}

/// A stream as another library's.
fn borrowed(accelerator: &Arc<dyn Accelerator>, theirs: &Stream) -> Result<Stream, MemoryError> {
    // SAFETY: the played driver looks every stream up.
    unsafe { Stream::borrowed(accelerator, theirs.handle()) }
}

/// Where each process has a card of its own, none may hold a context on all of them.
#[test]
fn a_stream_makes_a_context_on_its_own_device_alone() {
    let alone = alone();
    let application = alone.open();
    let theirs = Stream::new(&application, 1).unwrap();
    let before = alone.played.held().contexts;
    let accelerator = alone.open();
    let seen = borrowed(&accelerator, &theirs).unwrap();
    assert_eq!(seen.device(), 1);
    assert_eq!(alone.played.held().contexts, before + 1);
    drop((seen, accelerator, theirs, application));
    alone.assert_clean();
}

#[test]
fn copies_of_every_length_come_through_whole() {
    let alone = alone();
    let mut side = Side::new(alone.open()).unwrap();
    let chunk = 1 << 16;
    for len in [
        1,
        63,
        chunk - 1,
        chunk,
        chunk + 1,
        2 * chunk,
        3 * chunk + 17,
        20 * chunk + 1,
    ] {
        let sent = pattern(len, len);
        let tensor = side.tensor(&sent).unwrap();
        assert!(side.read(&tensor).unwrap() == sent, "{len} bytes");
    }
    drop(side);
    alone.assert_clean();
}
