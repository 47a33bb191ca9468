//! Steps as application threads see them, and the status each has ended with.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::Inner;
use super::drive::Reach;
use super::recv::{Recv, may_wait};
use super::send::SendAsync;
use super::users::Users;
use crate::drive::Drive;
use crate::ground::{Key, Locked, Nanos, Status, StepId, Traceparent, catalogue, faults, limits};
use crate::mail::mailbox::{Command, bytes_of};
use crate::mail::wait::WaitCell;
use crate::mail::{Received, forks};
use crate::memory::Tensor;
use crate::shard::{Call, Mailbox};

/// How a step ended, if it did. The first status wins.
#[derive(Debug, Default)]
pub(crate) struct StepState {
    ended: OnceLock<Status>,
}

/// The steps that handles were made of, and those that ended lately.
///
/// The state of a step stays when its last handle goes, so that who makes a handle for each value pays no heap for it;
/// it goes at the step's end, or when many stand here. A step that has ended stands here as long as its tombstones in
/// the shards: as many are remembered. Then its number may be used again, by new handles alone. Looked at only when a
/// handle is made, so that a send costs nothing for it.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Those that have not ended.
    live: BTreeMap<StepId, Arc<StepState>>,
    ended: BTreeMap<StepId, Epitaph>,
    /// The ended ones, oldest first.
    order: VecDeque<StepId>,
}

/// How a step ended.
#[derive(Debug)]
enum Epitaph {
    /// By its clean-up here: by far the most do, and their status follows from their number.
    Finished,
    /// With this status.
    With(Status),
}

impl Epitaph {
    fn status(&self, id: StepId) -> Status {
        match self {
            Self::Finished => faults::step_finished(id),
            Self::With(status) => status.clone(),
        }
    }
}

impl Steps {
    #[cfg(test)]
    pub(super) fn held(&self) -> impl Sized + '_ {
        self.known.locked()
    }

    fn state(&self, id: StepId) -> Arc<StepState> {
        let mut known = self.known.locked();
        if let Some(state) = known.live.get(&id) {
            return state.clone();
        }
        let state = Arc::new(StepState::default());
        if let Some(epitaph) = known.ended.get(&id)
            && !mutant!("fresh_handle_unaware")
        {
            let _ = state.ended.set(epitaph.status(id));
            return state;
        }
        if known.live.len() >= limits::STEP_HANDLES {
            known.live.retain(|_, state| Arc::strong_count(state) > 1);
        }
        known.live.insert(id, state.clone());
        state
    }

    /// A step ended with `status`: its handles learn that, later ones too. False if it had ended before: then it stays
    /// as it is.
    pub(crate) fn end(&self, id: StepId, status: &Status) -> bool {
        self.bury(id, Epitaph::With(status.clone()))
    }

    /// A step is cleaned up here: as [`Steps::end`].
    fn finish(&self, id: StepId) -> bool {
        self.bury(id, Epitaph::Finished)
    }

    fn bury(&self, id: StepId, epitaph: Epitaph) -> bool {
        let mut known = self.known.locked();
        if known.ended.contains_key(&id) {
            return false;
        }
        if let Some(state) = known.live.remove(&id) {
            let _ = state.ended.set(epitaph.status(id));
        }
        if known.order.len() >= limits::TOMBSTONES as usize
            && let Some(oldest) = known.order.pop_front()
        {
            known.ended.remove(&oldest);
        }
        known.order.push_back(id);
        known.ended.insert(id, epitaph);
        true
    }
}

/// One step of one engine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Step {
    engine: Arc<Users>,
    id: StepId,
    state: Arc<StepState>,
}

impl Step {
    pub(super) fn new(engine: Arc<Users>, id: StepId) -> Self {
        // In a child of `fork` the list may be locked for ever.
        let state = match forks::is_child() {
            true => Arc::default(),
            false => engine.steps.state(id),
        };
        Self { engine, id, state }
    }

    /// The step's number.
    #[must_use]
    pub const fn id(&self) -> StepId {
        self.id
    }

    /// Says which trace of its caller's the step belongs to, in this task: the recorders keep it, so that dumps and
    /// timelines of the step show it. Call it once, when the step begins; other tasks are told by the code that
    /// tells them of the step, as sessions do. Values do not carry it.
    ///
    /// ```
    /// # use rendez::engine::{Config, Engine};
    /// # let mut config = Config::new("/job:a/task:0");
    /// # (config.shards, config.share_cores, config.control) = (1, true, false);
    /// # let engine = Engine::start(config)?;
    /// let step = engine.step(rendez::ground::StepId(7));
    /// step.traced("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?);
    /// # Ok::<(), rendez::ground::Status>(())
    /// ```
    pub fn traced(&self, trace: Traceparent) {
        self.engine.trace_step(self.id, trace);
    }

    /// Hands a value over. Never waits for a receiver.
    ///
    /// # Errors
    /// The status the step ended with, whether it ended here or a peer told it, as [`Step::abort`] says;
    /// `InvalidArgument` for a key whose source is not this task, and for a value in a device's memory that the
    /// receiver cannot read there, if this engine has no driver to copy it with (`TENSOR_DEVICE`);
    /// `ResourceExhausted` naming the bound that is reached.
    pub fn send(&self, key: &Key, tensor: Tensor) -> Result<(), Status> {
        self.send_value(key, tensor, false)
    }

    /// Hands a dead value over: the receiver learns that nothing will come.
    ///
    /// # Errors
    /// As [`Step::send`].
    pub fn send_dead(&self, key: &Key, tensor: Tensor) -> Result<(), Status> {
        self.send_value(key, tensor, true)
    }

    /// Hands a value over, and waits for room where [`Step::send`] is refused at a bound: the mailbox, the parked bytes
    /// and values of the shard, and the parked bytes of the step. A future of any runtime; or call
    /// [`SendAsync::wait`]. Its place among the values of its key is taken when it begins: when it is started, first
    /// polled, or waited for. Values of one key go in that order; a [`Step::send`] of the same key is refused with
    /// `SEND_BEHIND` as long as one waits, and so is any that would take the room that others wait for. They go in the
    /// order in which they came, however long they are.
    ///
    /// What fails hands the tensor back, in [`Unsent`](super::Unsent). A value that is longer than the bound itself is
    /// refused at once.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rendez::engine::{Config, Engine};
    /// use rendez::ground::{Key, Shape, StepId};
    /// use rendez::memory::Tensor;
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # config.shards = 1;
    /// # config.share_cores = true;
    /// # config.control = false;
    /// config.parked_bytes = 4096;
    /// config.parked_bytes_per_step = 4096;
    /// let engine = Engine::start(config)?;
    /// let key = Key::between("a", "a", "stream")?;
    /// let step = engine.step(StepId(1));
    /// let consumer = std::thread::spawn({
    ///     let (step, key) = (step.clone(), key.clone());
    ///     move || (0..100).map(|_| step.recv(&key).wait().unwrap().tensor.host().unwrap()[0]).collect::<Vec<u8>>()
    /// });
    /// for count in 0..100_u8 {
    ///     // A hundred values of a kilobyte go through room for four.
    ///     let tensor = Tensor::from_vec(vec![count; 1024], Shape::row(1024).unwrap())?;
    ///     step.send_async(&key, tensor).deadline(Duration::from_secs(10)).wait()?;
    /// }
    /// assert_eq!(consumer.join().unwrap(), (0..100).collect::<Vec<u8>>());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send_async(&self, key: &Key, tensor: Tensor) -> SendAsync {
        SendAsync::new(self.clone(), key.clone(), tensor, false)
    }

    /// Hands a dead value over as [`Step::send_async`] does a living one.
    pub fn send_dead_async(&self, key: &Key, tensor: Tensor) -> SendAsync {
        SendAsync::new(self.clone(), key.clone(), tensor, true)
    }

    /// Ends the step with `DeadlineExceeded` if it has not ended within `patience`, counted from now: as
    /// [`Step::abort`] does, so at every task that has anything pending in it. Of several deadlines the earliest
    /// counts;
    /// that of a receive or of a waiting send stays valid beside it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rendez::engine::{Config, Engine};
    /// use rendez::ground::{Code, Key, StepId};
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # config.shards = 1;
    /// # config.share_cores = true;
    /// # config.control = false;
    /// let engine = Engine::start(config)?;
    /// let step = engine.step_within(StepId(1), Duration::from_millis(20))?;
    /// let never = step.recv(&Key::between("a", "a", "never")?);
    /// assert_eq!(never.wait().unwrap_err().code(), Code::DeadlineExceeded);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The status the step ended with; `ResourceExhausted` when too many steps are alive.
    pub fn deadline(&self, patience: Duration) -> Result<(), Status> {
        may_wait()?;
        if let Some(status) = self.state.ended.get() {
            return Err(status.clone());
        }
        let answer = Arc::new(WaitCell::default());
        let home = self.engine.reach_home(self.id);
        home.call(Call::Deadline {
            step: self.id,
            deadline: self.engine.clock.deadline(patience),
            answer: Arc::clone(&answer),
        });
        if home.mailbox.is_closed() {
            // A call after the end is not taken; one before it was answered when the mailbox closed.
            return answer.take().unwrap_or_else(|| Err(home.mailbox.end()));
        }
        home.wait(&answer, None)
            .unwrap_or_else(|| Err(faults::shutdown()))
    }

    /// How it has ended, if it has.
    #[doc(hidden)] // For Python.
    #[must_use]
    pub fn ended(&self) -> Option<Status> {
        self.state.ended.get().cloned()
    }

    pub(super) fn engine(&self) -> &Inner {
        &self.engine
    }

    /// Whether that value of that key may be sent here at all.
    pub(super) fn may_send(&self, key: &Key, tensor: &Tensor) -> Result<(), Status> {
        if forks::is_child() {
            return Err(faults::forked());
        }
        if let Some(status) = self.state.ended.get() {
            return Err(status.clone());
        }
        if *key.source_task() != self.engine.task {
            return Err(faults::foreign_source(key, &self.engine.task));
        }
        let wanted = key.source_incarnation();
        if !wanted.is_current() && wanted != self.engine.incarnation {
            return Err(faults::own_incarnation(wanted, self.engine.incarnation));
        }
        let leaves = tensor.is_device() && *key.destination_task() != self.engine.task;
        if leaves && self.engine.wiring.devices().accelerator().is_err() {
            return Err(faults::device_value(Some(key), tensor));
        }
        Ok(())
    }

    /// A device's tensor to another task: as it is where it can be read in place, else by way of the host. The shard
    /// says which, before the value has its place among those of its key.
    fn send_from_device(&self, key: &Key, tensor: Tensor, is_dead: bool) -> Result<(), Status> {
        let why = match self.send_as_it_is(key, tensor.clone(), is_dead, true) {
            Err(why) if why.reason() == catalogue::TENSOR_DEVICE => why,
            sent => return sent,
        };
        let staged = self.staged(key, &tensor, why)?;
        drop(tensor);
        self.send_value(key, staged, is_dead)
    }

    /// As [`Inner::staged`].
    pub(super) fn staged(&self, key: &Key, tensor: &Tensor, why: Status) -> Result<Tensor, Status> {
        self.engine.staged(key, tensor, why)
    }

    fn send_value(&self, key: &Key, tensor: Tensor, is_dead: bool) -> Result<(), Status> {
        self.may_send(key, &tensor)?;
        if tensor.is_device() && *key.destination_task() != self.engine.task {
            return self.send_from_device(key, tensor, is_dead);
        }
        self.send_as_it_is(key, tensor, is_dead, false)
    }

    /// A value that may be sent; `is_asked` has the shard say whether it takes it, however much room there is.
    #[inline]
    fn send_as_it_is(
        &self,
        key: &Key,
        tensor: Tensor,
        is_dead: bool,
        is_asked: bool,
    ) -> Result<(), Status> {
        let shard = self.engine.reach(key);
        let mailbox = shard.mailbox;
        let pressure = mailbox.pressure();
        if pressure.has_overflow() {
            // Sends that wait for a place in the mailbox came first.
            return Err(self.engine.refusal(mailbox));
        }
        if let Some(mut turn) = shard.drive.and_then(Drive::enter_soon) {
            return turn.send(key, self.id, tensor, is_dead);
        }
        let size = bytes_of(&tensor);
        let is_light = mailbox.weigh(size, self.engine.parked_bytes);
        if is_light && pressure.is_none() && !is_asked {
            let command = Command::Send {
                key: key.clone(),
                step: self.id,
                tensor,
                is_dead,
                answer: None,
                queued_at: self.engine.stamp_of_send(),
            };
            return self.put_in(shard, command, size);
        }
        // The shard may refuse: its answer is worth a few microseconds.
        if let Err(status) = may_wait() {
            mailbox.unweigh(size);
            return Err(status);
        }
        let answer = Arc::new(WaitCell::default());
        let command = Command::Send {
            key: key.clone(),
            step: self.id,
            tensor,
            is_dead,
            answer: Some(Arc::clone(&answer)),
            queued_at: self.engine.stamp_of_send(),
        };
        self.put_in(shard, command, size)?;
        shard
            .wait(&answer, None)
            .unwrap_or_else(|| Err(faults::shutdown()))
    }

    #[inline]
    fn put_in(&self, shard: Reach<'_>, command: Command, size: u64) -> Result<(), Status> {
        let put = shard.mailbox.command(command);
        shard.look_again();
        put.map_err(|_| {
            shard.mailbox.unweigh(size);
            self.engine.refusal(shard.mailbox)
        })
    }

    /// Waits for a value: await it, or call [`Recv::wait`]. Dropping it cancels the receive.
    pub fn recv(&self, key: &Key) -> Recv {
        Recv::new(
            Arc::clone(&self.engine),
            self.id,
            key.clone(),
            self.state.ended.get().cloned(),
        )
    }

    /// Receives, and blocks this thread for at most `patience`, counted from now: [`Step::recv`] with a
    /// [deadline](Recv::deadline), waited for.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use rendez::engine::{Config, Engine};
    /// use rendez::ground::{Code, Key, StepId};
    /// use rendez::memory::Tensor;
    ///
    /// # let mut config = Config::new("/job:a/task:0");
    /// # (config.shards, config.share_cores, config.control) = (1, true, false);
    /// let engine = Engine::start(config)?;
    /// let step = engine.step(StepId(1));
    /// let key = Key::between("a", "a", "loss")?;
    /// let nothing = step.recv_timeout(&key, Duration::from_millis(10)).unwrap_err();
    /// assert_eq!(nothing.code(), Code::DeadlineExceeded);
    ///
    /// step.send(&key, Tensor::scalar(0.5_f32))?;
    /// assert_eq!(step.recv_timeout(&key, Duration::from_secs(10))?.item::<f32>()?, 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Recv::wait`].
    pub fn recv_timeout(&self, key: &Key, patience: Duration) -> Result<Received, Status> {
        self.recv(key).deadline(patience).wait()
    }

    /// Ends the step with `status`: everything that waits in it is told, everything parked in it is dropped, here and
    /// at every peer that has anything pending. The first status wins.
    ///
    /// Once this has returned, [`Step::send`], [`Step::send_async`] and [`Step::recv`] return the status that won, by
    /// this handle, another, or one that is made later: for as long as this task remembers the step, which is until
    /// 65 536 others have ended. A call that began before may go either way.
    pub fn abort(&self, status: Status) {
        if forks::is_child() {
            return;
        }
        if self.engine.steps.end(self.id, &status) {
            self.engine.abort(self.id, &status);
            self.engine.reach_home(self.id).look_again();
        }
    }

    /// Ends and cleans up the step here. All that still waits here in it, and what comes late by any handle, is
    /// answered with `STEP_FINISHED`, for as long as after [`Step::abort`].
    ///
    /// Peers that are connected are told, and others when they are, of the last 256 ends. What was sent in the step and
    /// had left for a peer is not taken back: it lies there, or on offer, until the peer receives it or ends its own
    /// part. What still waited here, for a receive of this task, for a connection or for credit, goes. The step goes on
    /// at the peer, for other tasks may have a part in it; but what waits there for a value of this task, and whatever
    /// begins to wait for one, ends with `STEP_FINISHED` once all that had left has been received. What the peer
    /// still sends to this task is dropped.
    pub fn finish(&self) {
        if forks::is_child() {
            return;
        }
        self.engine.steps.finish(self.id);
        for shard in self.engine.reach_all() {
            shard.call(Call::Finish { step: self.id });
        }
    }
}

impl Inner {
    /// Why a mailbox took nothing.
    pub(crate) fn refusal(&self, mailbox: &Mailbox) -> Status {
        if forks::is_child() {
            faults::forked()
        } else if mailbox.is_closed() {
            mailbox.end()
        } else {
            faults::mailbox_full(self.config.mailbox)
        }
    }

    /// When an application thread calls, if its values are timed.
    #[inline]
    pub(super) fn stamp_of_send(&self) -> Nanos {
        if crate::trace::stages::ON && self.config.stage_sampling > 0 {
            self.clock.stamp()
        } else {
            Nanos::ZERO
        }
    }

    /// The step's home shard fixes the first status and tells the others.
    pub(crate) fn abort(&self, step: StepId, status: &Status) {
        self.reach_home(step).mailbox.call(Call::Abort {
            step,
            status: status.clone(),
        });
    }
}

#[cfg(test)]
mod tests;
