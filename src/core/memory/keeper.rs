//! The keeper: holds memory until the streams that use it are past it.
//!
//! The rule for freeing: nothing goes home before both sides' streams are past it. A block whose writer's work is still
//! queued, and a tensor that a stream still reads, are kept here when their last other handle goes. A block that is
//! kept is not at home, and a lease that is kept is not released, so neither owner can use the memory again.
//!
//! It also opens gates: a stream of ours that is to wait for a peer's work waits for a word of ours, which is opened
//! here when the peer's word says so, or when the peer's life is known to be over, or taken to be, or its device has
//! failed. So no stream waits for a process or a device that is gone. The word stays until the stream is past it.
//!
//! What a device that has failed was to be past is kept for ever, and counted: the driver ends no work of its own.
//!
//! [`Keeper::turn`] looks at all that is kept. It makes no call of a driver: each look is a load or two.
//!
//! When the thread that turns it ends ([`Keeper::end`]), what is not over stays here, and so does what comes later:
//! each [`Keeper::sweep`] looks at it again, by whatever comes next and by the engine's end. A gate would have a stream
//! wait for a sweep that may not come: it is opened. What is not over when the keeper itself goes is kept until the
//! process ends, and so is what holds the keeper and was not over at the last sweep.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam::queue::SegQueue;

use super::device::{DeviceEvent as _, DeviceMemory};
use super::{DeviceBlock, Lane, Pinned, Readiness, Tensor, times::Mark};
use crate::ground::Nanos;

/// What is kept, and by whom it is looked at.
pub struct Keeper {
    arriving: SegQueue<Kept>,
    /// How much is kept or about to arrive, and [`ENDED`].
    count: AtomicUsize,
    quarantined: AtomicU64,
    /// Of what is kept, as the thread that turns it saw it last: its bytes, and when the oldest came.
    bytes: AtomicU64,
    oldest: AtomicU64,
    is_closed: AtomicBool,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// In the count: no thread turns the keeper any more.
const ENDED: usize = 1 << (usize::BITS - 1);

#[derive(Debug)]
enum Kept {
    /// Memory, until a stream has come to a mark.
    Until(Mark, Held),
    /// A stream waits for the first mark, which waits for the tensor; the second says that the stream is past it.
    Gate(Mark, Option<Mark>, Tensor),
}

/// Memory that is kept, for its drop.
#[derive(Debug)]
pub(super) enum Held {
    Block(DeviceBlock),
    Tensor(Tensor),
    /// What a copy reads, the memory of the host's that it lies in, and the lane that it is queued on.
    Copied(
        Tensor,
        #[allow(dead_code)] Option<Arc<Pinned>>,
        #[allow(dead_code)] Lane,
    ),
    /// A lane, for its next user.
    Lane(#[allow(dead_code)] Lane),
    /// Another library's memory, which work of its own still writes.
    Loan(Box<dyn DeviceMemory>),
    /// Nothing but the words of a gate that is open, which the mark itself keeps.
    Words,
}

impl Held {
    fn bytes(&self) -> u64 {
        match self {
            Self::Block(block) => block.place().size,
            Self::Tensor(tensor) | Self::Copied(tensor, ..) => tensor.size() as u64,
            Self::Lane(_) | Self::Words => 0,
            Self::Loan(memory) => memory.place().size,
        }
    }
}

/// What one thread of a keeper looks at, turn by turn.
#[derive(Debug, Default)]
pub struct Watch {
    /// Each with the time that it came.
    kept: Vec<(Nanos, Kept)>,
}

impl Keeper {
    /// One that keeps nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            arriving: SegQueue::new(),
            count: AtomicUsize::new(0),
            quarantined: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            oldest: AtomicU64::new(Nanos::NEVER.0),
            is_closed: AtomicBool::new(false),
            wake: OnceLock::new(),
        }
    }

    /// Says how the thread that turns it is woken. Once.
    pub fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }

    /// It will not be turned for long any more: from now on streams are waited for by the host.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// True once it is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// True if no thread turns it any more: gates that were closed then are open, whatever waited at them.
    pub(super) fn has_ended(&self) -> bool {
        self.count.load(Ordering::SeqCst) & ENDED != 0
    }

    /// How much is kept: blocks, tensors and gates.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire) & !ENDED
    }

    /// The bytes of what is kept, gates apart.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// When the oldest of what is kept came; [`Nanos::NEVER`] if there is none.
    #[must_use]
    pub fn oldest(&self) -> Nanos {
        Nanos(self.oldest.load(Ordering::Relaxed))
    }

    /// What is kept for ever, for nothing is known of the streams that use it.
    #[must_use]
    pub fn quarantined(&self) -> u64 {
        self.quarantined.load(Ordering::Relaxed)
    }

    /// Keeps memory until a mark is over.
    pub(super) fn keep(&self, mark: Mark, held: Held) {
        self.put(Kept::Until(mark, held));
    }

    /// Opens a gate when a tensor's bytes are there, or will never be, and keeps its word until the stream has `passed`
    /// it. False if no thread will look: it is open then.
    pub(super) fn watch(&self, gate: Mark, passed: Option<Mark>, tensor: Tensor) -> bool {
        self.put(Kept::Gate(gate, passed, tensor))
    }

    /// Keeps a tensor for ever: no stream can be asked when it is read no more. One of the host's is read by none.
    pub fn keep_for_ever(&self, tensor: Tensor) {
        if tensor.is_device() {
            self.quarantine(Held::Tensor(tensor));
        }
    }

    /// Keeps memory for ever: the driver failed, and a stream may still use it.
    pub(super) fn quarantine(&self, held: Held) {
        self.quarantined.fetch_add(1, Ordering::Relaxed);
        std::mem::forget(held);
    }

    /// False if no thread turns it any more.
    fn put(&self, kept: Kept) -> bool {
        // Raised first: a thread that is not to leave anything does not end now.
        self.count.fetch_add(1, Ordering::SeqCst);
        self.arriving.push(kept);
        // SeqCst, as in `end`: that finds what was pushed, or its end is seen here.
        if self.has_ended() {
            self.sweep();
            return false;
        }
        if let Some(wake) = self.wake.get() {
            wake();
        }
        true
    }

    /// Looks at everything that is kept, opens gates and lets go what is over; how much that was.
    pub fn turn(&self, watch: &mut Watch, now: Nanos) -> usize {
        while let Some(kept) = self.arriving.pop() {
            watch.kept.push((now, kept));
        }
        let (mut done, mut gone, mut at) = (0, 0, 0);
        let (mut bytes, mut oldest) = (0, Nanos::NEVER);
        while let Some((since, kept)) = watch.kept.get(at) {
            if kept.is_over() {
                let (since, kept) = watch.kept.swap_remove(at);
                done += 1;
                match kept.let_go(self) {
                    Some(left) => watch.kept.push((since, left)),
                    None => gone += 1,
                }
            } else {
                bytes += kept.bytes();
                oldest = oldest.min(*since);
                at += 1;
            }
        }
        // Relaxed: the count, which follows, publishes them.
        self.bytes.store(bytes, Ordering::Relaxed);
        self.oldest.store(oldest.0, Ordering::Relaxed);
        self.count.fetch_sub(gone, Ordering::AcqRel);
        done
    }

    /// The thread that turns it is about to end: false if it has to go on, since something is kept, and it need not
    /// leave that. What is left is looked at by [`Keeper::sweep`] from here on.
    pub fn end(&self, watch: &mut Watch, may_leave: bool) -> bool {
        if may_leave {
            self.count.fetch_or(ENDED, Ordering::SeqCst);
        } else {
            let ended = self
                .count
                .compare_exchange(0, ENDED, Ordering::SeqCst, Ordering::SeqCst);
            if ended.is_err_and(|count| count & ENDED == 0) {
                return false;
            }
        }
        for (_, kept) in watch.kept.drain(..) {
            self.arriving.push(kept);
        }
        self.sweep();
        true
    }

    /// Once no thread turns it any more: lets go what is over, and opens gates.
    pub fn sweep(&self) {
        if !self.has_ended() {
            return;
        }
        // Each once: what is not over goes back.
        for _ in 0..self.arriving.len() {
            match self.arriving.pop() {
                Some(kept @ Kept::Until(..)) if !kept.is_over() => self.arriving.push(kept),
                Some(kept) => match kept.let_go(self) {
                    Some(left) => self.arriving.push(left),
                    None => {
                        self.count.fetch_sub(1, Ordering::AcqRel);
                    }
                },
                None => return,
            }
        }
    }
}

impl Kept {
    fn bytes(&self) -> u64 {
        match self {
            Self::Until(_, held) => held.bytes(),
            Self::Gate(..) => 0,
        }
    }

    /// It is over, or a gate that is to be opened. What is left of it is to be kept further. A drop that panics, of
    /// another library's memory, ends nothing else: the thread that turns the keeper goes on.
    fn let_go(self, keeper: &Keeper) -> Option<Self> {
        let (held, passed) = match self {
            Self::Until(mark, held) if !mark.is_over() => {
                // Its slot is lost with it, and the words stay for what the device may still write.
                std::mem::forget(mark);
                keeper.quarantine(held);
                return None;
            }
            Self::Until(mark, held) => ((mark, held), None),
            Self::Gate(gate, passed, tensor) => {
                gate.open();
                ((gate, Held::Tensor(tensor)), passed)
            }
        };
        // The panic was told by its hook.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
        let passed = passed.filter(|passed| !passed.is_over());
        passed.map(|passed| Self::Until(passed, Held::Words))
    }

    /// None looks at it any more: streams may still use memory whose mark is not over, which stays until the process
    /// ends; and what waits for a gate waits no longer.
    fn leave(self) {
        match self {
            Self::Until(ref mark, _) if mark.is_over() => {}
            Self::Until(..) => std::mem::forget(self),
            Self::Gate(gate, passed, _) => {
                gate.open();
                if passed.as_ref().is_some_and(|passed| !passed.is_over()) {
                    std::mem::forget(passed);
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Until(mark, _) => mark.is_over() || mark.is_lost(),
            Self::Gate(_, _, tensor) => match tensor.readiness() {
                Readiness::Ready => true,
                Readiness::After(event) => event.is_over() || event.is_lost(),
            },
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        while let Some(kept) = self.arriving.pop() {
            kept.leave();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for (_, kept) in self.kept.drain(..) {
            kept.leave();
        }
    }
}

impl Default for Keeper {
    fn default() -> Self {
        Self::new()
    }
}

shown! { Keeper { count() } }
