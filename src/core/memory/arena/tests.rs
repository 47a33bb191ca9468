//! Tests of `arena.rs`: a pool over a fake device's memory, which no code here could read, and over the host's by
//! another arena than the usual one.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::MemfdFlags;

use super::super::{
    ArenaConfig, DeviceMemory, DevicePtr, HugePages, Memfd, Pool, Segment, Tensor, TensorBytes,
};
use super::*;
use crate::ground::{DType, Shape, TensorMeta};

/// Its segments stand at addresses that are not canonical: any access by the host is a fault.
const ADDRESS: usize = 0xdead_0000_0000_0000;
const CONFIG: ArenaConfig = ArenaConfig {
    segment_bytes: 1 << 20,
    bytes_max: 3 << 20,
    huge_pages: HugePages::Off,
};

/// A driver that allocates, exports, imports and counts.
#[derive(Debug)]
struct Device {
    number: u32,
    freed: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct DeviceSegment {
    number: u32,
    base: usize,
    size: usize,
    fd: Arc<OwnedFd>,
    freed: Arc<AtomicUsize>,
}

impl Drop for DeviceSegment {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

/// What a peer has of a segment: its descriptor's length is what the driver says.
#[derive(Debug, PartialEq, Eq)]
struct Imported(u64);

impl Arena for Device {
    type Segment = DeviceSegment;
    type Import = Imported;

    fn allocate(&mut self, index: u16, len: usize, _: u64) -> Result<DeviceSegment, MemoryError> {
        let fd = rustix::fs::memfd_create(c"device", MemfdFlags::CLOEXEC).expect("a descriptor");
        rustix::fs::ftruncate(&fd, len as u64).expect("resized");
        Ok(DeviceSegment {
            number: self.number,
            base: ADDRESS + (usize::from(index) << 32),
            size: len,
            fd: Arc::new(fd),
            freed: Arc::clone(&self.freed),
        })
    }

    fn import(&self, export: Export) -> Result<Imported, MemoryError> {
        if export.kind != MemoryKind::Cuda {
            return Err(MemoryError::Kind { kind: export.kind });
        }
        let stat = rustix::fs::fstat(&export.fd).map_err(|e| MemoryError::system("fstat", e))?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size < export.len {
            let claimed = export.len;
            return Err(MemoryError::Short { claimed, size });
        }
        Ok(Imported(export.len))
    }
}

// SAFETY: only the pool names these addresses, and no byte there is ever touched.
unsafe impl ArenaSegment for DeviceSegment {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Cuda
    }

    fn device(&self) -> u32 {
        self.number
    }

    fn base(&self) -> *mut u8 {
        ptr::without_provenance_mut(self.base)
    }

    fn size(&self) -> usize {
        self.size
    }

    fn export(&self) -> Export {
        Export {
            kind: MemoryKind::Cuda,
            fd: Arc::clone(&self.fd),
            len: self.size as u64,
        }
    }
}

fn meta(len: usize) -> TensorMeta {
    TensorMeta::new(DType::U8, Shape::from([len as u64])).expect("a size")
}

fn device() -> (Pool<Device>, Arc<AtomicUsize>) {
    let freed = Arc::new(AtomicUsize::new(0));
    let arena = Device {
        number: 5,
        freed: Arc::clone(&freed),
    };
    (
        Pool::over(House::new(), arena, ArenaId(7), CONFIG).expect("a pool"),
        freed,
    )
}

#[test]
fn a_pool_gives_out_a_devices_memory_and_has_it_back() {
    let (mut pool, freed) = device();
    let lens = [1, 64, 5000, 65_536, 100_000, 900_000, 700_000];
    let blocks = lens.map(|len| pool.device_block(len).expect("room"));
    assert!(pool.segments().len() > 1, "the arena grew");
    let mut places: Vec<DevicePtr> = Vec::new();
    for (block, len) in blocks.iter().zip(lens) {
        let (place, region) = (block.place(), block.region());
        assert_eq!(
            (place.kind, place.device, place.size),
            (MemoryKind::Cuda, 5, len as u64)
        );
        // The region names the same bytes as the address does.
        let segment = &pool.segments()[usize::from(region.segment)];
        assert_eq!(place.address, segment.base as u64 + region.offset);
        assert!(region.offset + region.len <= segment.size as u64);
        assert!(place.address % 64 == 0 && !region.owns_pages);
        assert_eq!(region.kind, MemoryKind::Cuda);
        for other in &places {
            let ends = |place: &DevicePtr| place.address + place.size;
            assert!(place.address >= ends(other) || other.address >= ends(&place));
        }
        places.push(place);
    }
    // As tensors they come home with the last clone, from any thread, unread.
    let tensors: Vec<_> = blocks
        .into_iter()
        .zip(lens)
        .map(|(block, len)| Tensor::from_device(meta(len), block).expect("as long"))
        .collect();
    for (tensor, place) in tensors.iter().zip(&places) {
        assert_eq!(tensor.bytes(), TensorBytes::Device(*place));
        assert_eq!(tensor.map_private().map(drop), Err(MemoryError::Unpaged));
    }
    let clones = tensors.clone();
    drop(tensors);
    assert_eq!(pool.reclaim(), 0);
    thread::spawn(move || drop(clones)).join().expect("dropped");
    assert_eq!((pool.reclaim(), pool.stats().in_use_bytes), (7, 0));
    // Segments outlive the pool by their blocks alone.
    let last = pool.device_block(100).expect("room");
    let segments = pool.segments().len();
    drop(pool);
    assert_eq!(freed.load(Ordering::Relaxed), 0);
    drop(last);
    assert_eq!(freed.load(Ordering::Relaxed), segments);
}

#[test]
fn each_kind_imports_its_own_and_refuses_the_other() {
    let (pool, _) = device();
    let arena = Device {
        number: 0,
        freed: Arc::default(),
    };
    let export = pool.segments()[0].export();
    assert_eq!(arena.import(export.clone()), Ok(Imported(1 << 20)));
    let longer = Export {
        len: (1 << 20) + 1,
        ..export.clone()
    };
    assert_eq!(
        arena.import(longer),
        Err(MemoryError::Short {
            claimed: (1 << 20) + 1,
            size: 1 << 20
        })
    );
    assert_eq!(
        Memfd::default().import(export).map(drop),
        Err(MemoryError::Kind {
            kind: MemoryKind::Cuda
        })
    );
    let host = Pool::new(ArenaId(0), CONFIG).expect("a pool");
    let export = host.segments()[0].export();
    assert_eq!(
        arena.import(export.clone()),
        Err(MemoryError::Kind {
            kind: MemoryKind::Host
        })
    );
    let mapped = Memfd::default().import(export).expect("mapped");
    assert_eq!(mapped.len(), 1 << 20);
}

/// The host's memory, by an arena that shows no file.
#[derive(Debug)]
struct Plain(Memfd);

#[derive(Debug)]
struct PlainSegment(Segment);

impl Arena for Plain {
    type Segment = PlainSegment;
    type Import = ();

    fn allocate(&mut self, index: u16, len: usize, max: u64) -> Result<PlainSegment, MemoryError> {
        self.0.allocate(index, len, max).map(PlainSegment)
    }

    fn import(&self, export: Export) -> Result<(), MemoryError> {
        Err(MemoryError::Kind { kind: export.kind })
    }
}

// SAFETY: it is the segment's own.
unsafe impl ArenaSegment for PlainSegment {
    fn kind(&self) -> MemoryKind {
        self.0.kind()
    }

    fn base(&self) -> *mut u8 {
        self.0.base()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn export(&self) -> Export {
        self.0.export()
    }
}

// SAFETY: as above.
unsafe impl HostSegment for PlainSegment {}

#[test]
fn memory_without_a_file_is_written_and_read_but_has_no_pages_to_map() {
    let mut pool =
        Pool::over(House::new(), Plain(Memfd::default()), ArenaId(1), CONFIG).expect("a pool");
    let tensor = pool.tensor_from(meta(5000), &[8; 5000]).expect("room");
    assert_eq!(tensor.host().expect("of the host"), [8; 5000]);
    let in_use = pool.stats().in_use_bytes;
    assert_eq!(
        pool.paged_builder(meta(5000)).map(drop),
        Err(MemoryError::Unpaged)
    );
    assert_eq!(pool.stats().in_use_bytes, in_use);
    drop(pool);
    assert_eq!(tensor.host().expect("of the host"), [8; 5000]);
}
