//! Steps as application threads see them, and the status each has ended with.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::Inner;
use super::recv::{Recv, block_on_cell};
use crate::ground::{Code, Key, Status, StepId, catalogue, limits};
use crate::memory::Tensor;
use crate::shard::call::Call;
use crate::shard::faults;
use crate::shard::mailbox::{Command, Mailbox};
use crate::shard::wait::WaitCell;

/// How a step ended, if it did. The first status wins.
#[derive(Debug, Default)]
pub(crate) struct StepState {
    ended: OnceLock<Status>,
}

/// The steps whose handles are alive, and those that ended lately.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    live: Mutex<BTreeMap<StepId, Weak<StepState>>>,
}

impl Steps {
    fn state(&self, id: StepId) -> Arc<StepState> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = live.get(&id).and_then(Weak::upgrade) {
            return state;
        }
        if live.len() >= limits::STEP_HANDLES {
            live.retain(|_, state| state.strong_count() > 0);
        }
        let state = Arc::new(StepState::default());
        live.insert(id, Arc::downgrade(&state));
        state
    }

    /// A step ended: those who hold its handle learn it. Returns the status that won.
    pub(crate) fn end(&self, id: StepId, status: &Status) {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = live.get(&id).and_then(Weak::upgrade) {
            let _ = state.ended.set(status.clone());
        }
    }
}

/// One step of one engine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Step {
    engine: Arc<Inner>,
    id: StepId,
    state: Arc<StepState>,
}

impl Step {
    pub(super) fn new(engine: Arc<Inner>, id: StepId) -> Self {
        let state = engine.steps.state(id);
        Self { engine, id, state }
    }

    /// The step's number.
    #[must_use]
    pub const fn id(&self) -> StepId {
        self.id
    }

    /// Hands a value over. Never waits for a receiver.
    ///
    /// # Errors
    /// The status the step ended with; `InvalidArgument` for a key whose source is not this task;
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

    fn send_value(&self, key: &Key, tensor: Tensor, is_dead: bool) -> Result<(), Status> {
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
        let mailbox =
            &self.engine.mailboxes[key.shard_of(self.engine.mailboxes.len() as u32) as usize];
        let size = tensor.bytes().len() as u64;
        if !mailbox.wants_answer(size, self.engine.parked_bytes) {
            let command = Command::Send {
                key: key.clone(),
                step: self.id,
                tensor,
                is_dead,
                answer: None,
            };
            return mailbox
                .command(command)
                .map_err(|_| self.engine.refusal(mailbox));
        }
        // The shard holds so much that it may refuse: its answer is worth a few microseconds.
        let answer = Arc::new(WaitCell::default());
        let command = Command::Send {
            key: key.clone(),
            step: self.id,
            tensor,
            is_dead,
            answer: Some(Arc::clone(&answer)),
        };
        mailbox
            .command(command)
            .map_err(|_| self.engine.refusal(mailbox))?;
        block_on_cell(&answer, None).unwrap_or_else(|| Err(faults::shutdown()))
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

    /// Ends the step with `status`: everything that waits in it hears so, everything parked in it goes, and so it is
    /// at every peer that has anything pending. The first status wins.
    pub fn abort(&self, status: Status) {
        if self.state.ended.set(status.clone()).is_ok() {
            self.engine.abort(self.id, &status);
        }
    }

    /// The step is done here: its clean-up. What comes late is answered with `Aborted: Cleanup`.
    pub fn finish(&self) {
        let status = Status::new(
            Code::Aborted,
            catalogue::STEP_FINISHED,
            format!("Cleanup {}", self.id),
        );
        let _ = self.state.ended.set(status);
        for mailbox in &self.engine.mailboxes {
            mailbox.call(Call::Finish { step: self.id });
        }
    }
}

impl Inner {
    /// Why a mailbox took nothing.
    pub(crate) fn refusal(&self, mailbox: &Mailbox) -> Status {
        if mailbox.is_closed() {
            faults::shutdown()
        } else {
            faults::mailbox_full(self.config.mailbox)
        }
    }

    /// The step's home shard fixes the first status and tells the others.
    pub(crate) fn abort(&self, step: StepId, status: &Status) {
        let home = (step.0 % self.mailboxes.len() as u64) as usize;
        self.mailboxes[home].call(Call::Abort {
            step,
            status: status.clone(),
        });
    }
}
