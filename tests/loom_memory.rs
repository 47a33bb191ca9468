//! The return list and the counted handles of `src/memory`, under loom: every interleaving of the very source.
//!
//! `returns.rs` and `home.rs` import their atomics from `crate::sync`; here that is loom. What is checked: a node whose
//! last handle is dropped comes home exactly once, with everything its holders did before; if the owner leaves first,
//! the estate is freed exactly once, after the last handle, whoever that is.
#![allow(unsafe_code)]

mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
}

#[allow(dead_code)]
#[path = "../src/memory/home.rs"]
mod home;
#[allow(dead_code)]
#[path = "../src/memory/returns.rs"]
mod returns;

use std::ptr::{self, NonNull};

use home::{Handle, Home, Node, Owner};
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
    Owner::new(build).expect("built")
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
        assert_eq!(
            freed.load(Ordering::Relaxed),
            1,
            "freed once, by whoever was last"
        );
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
