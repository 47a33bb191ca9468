//! The return list, the counted handles and the leases of `src/core/memory`, under loom: every interleaving of the very
//! source.
//!
//! `returns.rs`, `home.rs` and `lease.rs` import their atomics from `crate::sync`; here that is loom. What is checked:
//! a node whose last handle is dropped comes home exactly once, with everything its holders did before; if the owner
//! leaves first, the estate is freed exactly once, after the last handle, whatever it is. A lease is told ended once,
//! under the token it was given last, also when a recall crosses its last drop; its mapping outlives its last reader,
//! also when the peer was proved dead and the table left.
//!
//! Each of these was weakened, and a model failed:
//!
//! | weakened | what fails, among others |
//! |---|---|
//! | Release of the push to `ReturnList` | `a_node_given_out_again_…`, `a_mapping_outlives_its_reader_…` |
//! | Acquire of `take_all` | `a_node_given_out_again_…` |
//! | Release or Acquire of the count in `Handle::drop` | `clones_and_a_leaving_owner_…`, `a_mapping_outlives_…` |
//! | Release and Acquire of `settle` | `the_owner_may_leave_first_…`, `a_mapping_outlives_…` |
//! | `reclaim` keeps the mapping | `a_lease_dropped_on_two_threads_…`, `a_recall_that_crosses_…` |
//! | `retag` leaves the token | `a_recall_that_crosses_…` |
//!
//! Not seen to fail: the Release of `close` and the Acquire of `was_closed`. They keep a count of `settle` behind the
//! owner's own store to `orphans`, and loom has every read-modify-write see the latest store.
#![allow(unsafe_code)]

mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

mod ground {
    pub(crate) use rendez::ground::{Region, TensorMeta};
}

#[allow(dead_code)]
#[path = "../src/core/memory/home.rs"]
mod home;
#[allow(dead_code, unreachable_pub)]
#[path = "../src/core/memory/lease.rs"]
mod lease;
#[allow(dead_code)]
#[path = "../src/core/memory/returns.rs"]
mod returns;

use std::ptr::{self, NonNull};

use home::{Handle, Home, Node, Owner};
use lease::{Lease, LeaseToken, Leases};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;
use returns::Linked;
use sync::{AtomicPtr, AtomicU32, Ordering};

/// A node with memory that loom watches: reads by holders and the owner's write race unless the hand-over orders them.
struct Cell {
    handles: AtomicU32,
    link: AtomicPtr<Self>,
    home: NonNull<Home<Self>>,
    value: UnsafeCell<u64>,
}

// SAFETY: `link` gives that field, and nothing else touches it.
unsafe impl Linked for Cell {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

// SAFETY: both give their fields; the cells lie in the estate of their home's owner.
unsafe impl Node for Cell {
    type Estate = Estate;
    fn handles(&self) -> &AtomicU32 {
        &self.handles
    }
    fn home(&self) -> NonNull<Home<Self>> {
        self.home
    }
}

// SAFETY: `home` is only passed on; `value` is what loom watches for races.
unsafe impl Send for Cell {}
// SAFETY: as above.
unsafe impl Sync for Cell {}

impl Cell {
    fn read(&self) -> u64 {
        // SAFETY: loom fails the test if a write is concurrent.
        self.value.with(|value| unsafe { *value })
    }

    fn write(&self, to: u64) {
        // SAFETY: loom fails the test if any other access is concurrent.
        self.value.with_mut(|value| unsafe { *value = to });
    }
}

struct Estate {
    cells: NonNull<[Cell]>,
    freed: Arc<AtomicUsize>,
}

// SAFETY: it owns the cells as a box would.
unsafe impl Send for Estate {}

impl Drop for Estate {
    fn drop(&mut self) {
        self.freed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: from `Box::leak` in `owner`, dropped once; loom sees the cells' memory written here.
        let cells = unsafe { Box::from_raw(self.cells.as_ptr()) };
        cells.iter().for_each(|cell| cell.write(0));
    }
}

fn owner(count: usize, freed: &Arc<AtomicUsize>) -> Owner<Cell> {
    let build = |home| {
        let cell = |_| Cell {
            handles: AtomicU32::new(0),
            link: AtomicPtr::new(ptr::null_mut()),
            home,
            value: UnsafeCell::new(0),
        };
        let cells: Box<[Cell]> = (0..count).map(cell).collect();
        Ok::<_, ()>(Estate {
            cells: NonNull::from(Box::leak(cells)),
            freed: freed.clone(),
        })
    };
    Owner::new(0, build).expect("built")
}

fn give_out(owner: &mut Owner<Cell>, index: usize) -> Handle<Cell> {
    // SAFETY: the estate's cells live as long as the owner.
    let cells = unsafe { owner.estate().cells.as_ref() };
    // SAFETY: the callers give each cell out only while it is at home.
    unsafe { owner.give_out(NonNull::from(&cells[index])) }
}

#[test]
fn two_nodes_dropped_elsewhere_come_home_once_each() {
    loom::model(|| {
        let freed = Arc::new(AtomicUsize::new(0));
        let mut owner = owner(2, &freed);
        let threads = [0, 1].map(|index| {
            let handle = give_out(&mut owner, index);
            handle.node().write(index as u64 + 7);
            thread::spawn(move || {
                assert_eq!(handle.node().read(), index as u64 + 7);
                drop(handle);
            })
        });
        let mut taken = 0;
        for _ in 0..2 {
            taken += take_home(&mut owner);
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("joined"));
        taken += take_home(&mut owner);
        assert_eq!((taken, owner.out()), (2, 0));
        drop(owner);
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn clones_dropped_on_two_threads_send_one_node_home_after_all_reads() {
    loom::model(|| {
        let freed = Arc::new(AtomicUsize::new(0));
        let mut owner = owner(1, &freed);
        let first = give_out(&mut owner, 0);
        first.node().write(9);
        let second = first.clone();
        let threads = [first, second].map(|handle| {
            thread::spawn(move || {
                assert_eq!(handle.node().read(), 9);
                drop(handle);
            })
        });
        // What comes home is written to at once: a race with a reader if it came too early.
        let mut taken = take_home(&mut owner);
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("joined"));
        taken += take_home(&mut owner);
        assert_eq!(taken, 1);
    });
}

#[test]
fn a_node_given_out_again_while_another_comes_home_is_not_lost() {
    loom::model(|| {
        let freed = Arc::new(AtomicUsize::new(0));
        let mut owner = owner(2, &freed);
        let (first, second) = (give_out(&mut owner, 0), give_out(&mut owner, 1));
        drop(first);
        let other = thread::spawn(move || drop(second));
        // Takes cell 0, perhaps cell 1 too, and sends cell 0 out and home again meanwhile: the head is what it was.
        let mut taken = take_home(&mut owner);
        drop(give_out(&mut owner, 0));
        taken += take_home(&mut owner);
        other.join().expect("joined");
        taken += take_home(&mut owner);
        assert_eq!((taken, owner.out()), (3, 0));
    });
}

#[test]
fn the_owner_may_leave_first_and_the_estate_goes_with_the_last_handle() {
    loom::model(|| {
        let freed = Arc::new(AtomicUsize::new(0));
        let mut owner = owner(2, &freed);
        let threads = [0, 1].map(|index| {
            let handle = give_out(&mut owner, index);
            handle.node().write(5);
            let freed = freed.clone();
            thread::spawn(move || {
                assert_eq!(handle.node().read(), 5);
                assert_eq!(
                    freed.load(Ordering::Relaxed),
                    0,
                    "freed while a handle is out"
                );
                drop(handle);
            })
        });
        drop(owner);
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("joined"));
        assert_eq!(freed.load(Ordering::Relaxed), 1, "freed once, by the last");
    });
}

#[test]
fn clones_and_a_leaving_owner_free_the_estate_once() {
    loom::model(|| {
        let freed = Arc::new(AtomicUsize::new(0));
        let mut owner = owner(1, &freed);
        let first = give_out(&mut owner, 0);
        let second = first.clone();
        let thread = thread::spawn(move || drop(second));
        let leaving = thread::spawn(move || drop(owner));
        assert_eq!(first.node().read(), 0);
        drop(first);
        thread.join().expect("joined");
        leaving.join().expect("joined");
        assert_eq!(freed.load(Ordering::Relaxed), 1);
    });
}

fn take_home(owner: &mut Owner<Cell>) -> usize {
    let mut count = 0;
    for node in owner.take_all() {
        // SAFETY: the node lies in the owner's estate, and is at home now.
        unsafe { node.as_ref() }.write(0);
        owner.took_home();
        count += 1;
    }
    count
}

// What `lease.rs` names beside its atomics, as little as it needs.

/// A peer's segment: a read by a holder and the end of the mapping race unless the hand-over orders them.
#[derive(Debug)]
#[repr(C)]
struct MappedSegment {
    /// At the front, so that a tensor's address is its segment's.
    bytes: [u8; 8],
    pages: UnsafeCell<u64>,
    unmapped: Arc<AtomicUsize>,
}

impl MappedSegment {
    fn slice(&self, _: ground::Region) -> Result<&[u8], MemoryError> {
        Ok(&self.bytes)
    }
}

impl Drop for MappedSegment {
    fn drop(&mut self) {
        self.unmapped.fetch_add(1, Ordering::Relaxed);
        // SAFETY: loom fails the test if any other access is concurrent.
        self.pages.with_mut(|pages| unsafe { *pages = 0 });
    }
}

// SAFETY: `pages` is what loom watches for races.
unsafe impl Send for MappedSegment {}
// SAFETY: as above.
unsafe impl Sync for MappedSegment {}

#[derive(Debug)]
#[allow(dead_code)]
enum MemoryError {
    LeasesOut { capacity: u32 },
}

mod tensor {
    pub(crate) fn check_len(
        _: super::ground::TensorMeta,
        _: usize,
    ) -> Result<(), super::MemoryError> {
        Ok(())
    }
}

#[derive(Clone, Debug)]
struct Tensor {
    segment: *const MappedSegment,
    lease: Handle<Lease>,
}

// SAFETY: the segment lives as long as the lease is out.
unsafe impl Send for Tensor {}

impl Tensor {
    fn of_lease(_: ground::TensorMeta, bytes: &[u8], lease: Handle<Lease>) -> Self {
        Self {
            segment: bytes.as_ptr().cast(),
            lease,
        }
    }

    fn lease(&self) -> Option<&Lease> {
        Some(self.lease.node())
    }

    fn read(&self) -> u64 {
        // SAFETY: the lease keeps its segment, and the bytes stand at its front.
        let pages = unsafe { &(*self.segment).pages };
        // SAFETY: loom fails the test if a write is concurrent.
        pages.with(|pages| unsafe { *pages })
    }
}

fn segment() -> (Arc<MappedSegment>, Arc<AtomicUsize>) {
    let unmapped = Arc::new(AtomicUsize::new(0));
    let segment = MappedSegment {
        bytes: [0; 8],
        pages: UnsafeCell::new(9),
        unmapped: unmapped.clone(),
    };
    (Arc::new(segment), unmapped)
}

fn take_lease(leases: &mut Leases, segment: Arc<MappedSegment>, token: LeaseToken) -> Tensor {
    let meta = ground::TensorMeta::new(
        rendez::ground::DType::U8,
        rendez::ground::Shape::new(&[8]).expect("a shape"),
    );
    leases
        .make(
            segment,
            ground::Region::default(),
            meta.expect("it fits"),
            token,
        )
        .expect("an entry")
}

#[test]
fn a_lease_dropped_on_two_threads_ends_once_and_then_lets_go() {
    loom::model(|| {
        let (segment, unmapped) = segment();
        let mut leases = Leases::new(1);
        let first = take_lease(&mut leases, segment, 5);
        let threads = [first.clone(), first].map(|tensor| {
            thread::spawn(move || {
                assert_eq!(tensor.read(), 9);
                drop(tensor);
            })
        });
        let mut tokens = Vec::new();
        leases.reclaim(|token| tokens.push(token));
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("joined"));
        leases.reclaim(|token| tokens.push(token));
        assert_eq!((tokens, leases.out()), (vec![5], 0));
        assert_eq!(unmapped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_recall_that_crosses_the_last_drop_is_answered_once() {
    loom::model(|| {
        let (segment, unmapped) = segment();
        let mut leases = Leases::new(1);
        let tensor = take_lease(&mut leases, segment, 5);
        let reader = thread::spawn(move || {
            assert_eq!(tensor.read(), 9);
            drop(tensor);
        });
        let mut tokens = Vec::new();
        leases.reclaim(|token| tokens.push(token));
        // The peer asks in its new epoch: what is out is released under that, and what is not is answered at once.
        let is_out = leases.retag(|token| token == 5, 6);
        assert_eq!(is_out, tokens.is_empty(), "out, or told before");
        reader.join().expect("joined");
        leases.reclaim(|token| tokens.push(token));
        assert_eq!(tokens, [if is_out { 6 } else { 5 }]);
        assert_eq!(unmapped.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn an_entry_used_again_tells_each_token_once() {
    loom::model(|| {
        let ((one, _), (other, unmapped)) = (segment(), segment());
        let mut leases = Leases::new(1);
        let tensor = take_lease(&mut leases, one, 5);
        let reader = thread::spawn(move || drop(tensor));
        let mut tokens = Vec::new();
        leases.reclaim(|token| tokens.push(token));
        if !tokens.is_empty() {
            let tensor = take_lease(&mut leases, other, 6);
            assert!(!leases.retag(|token| token == 5, 7), "it ended");
            assert_eq!(tensor.read(), 9);
        } else {
            drop(other);
            tokens.push(6);
        }
        reader.join().expect("joined");
        leases.reclaim(|token| tokens.push(token));
        tokens.sort_unstable();
        assert_eq!(tokens, [5, 6]);
        assert_eq!(unmapped.load(Ordering::Relaxed), 1);
    });
}

/// The owner's own handle of the mapping goes with the peer that was proved dead, and the whole table with its shard;
/// a reader that still reads, reads.
#[test]
fn a_mapping_outlives_its_reader_and_goes_once() {
    loom::model(|| {
        let (segment, unmapped) = segment();
        let mut leases = Leases::new(1);
        let first = take_lease(&mut leases, segment.clone(), 5);
        let readers = [first.clone(), first].map(|tensor| {
            thread::spawn(move || {
                assert_eq!(tensor.read(), 9);
                drop(tensor);
            })
        });
        drop(segment);
        drop(leases);
        readers
            .into_iter()
            .for_each(|thread| thread.join().expect("joined"));
        assert_eq!(unmapped.load(Ordering::Relaxed), 1);
    });
}
