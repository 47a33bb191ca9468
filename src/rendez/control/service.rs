//! Services: functions that peers may call by number, and the threads that carry the calls out, other than brief ones.
//!
//! Knows functions and outcomes; not the caller, beyond a name, nor how the answer gets back. Bounded: so many threads,
//! so many calls waiting for one. A function may block; it is told of its deadline and of a cancel. The calls of one
//! task never have all threads, and a thread that is free takes one of the task that has fewest, unless another has
//! waited long.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use prost::Message;

use crate::ground::limits::{CALL_PAYLOAD_MAX, SERVICE_QUEUE_MAX, SERVICE_THREADS};
use crate::ground::{Incarnation, Locked, Status, Unpoisoned, catalogue};
use rendez_proto::Method;

/// Bytes of a call that is carried out on the control thread: to copy so many takes less time than to wake a thread.
const BRIEF_BYTES: usize = 4 << 10;
/// Threads that the calls of one task may have: all but one, for those of others.
const THREADS_PER_TASK_MAX: usize = SERVICE_THREADS - 1;
/// How long a call waits behind those of tasks that have fewer threads: however many such there are, it has its turn.
const BEHIND_MAX: Duration = Duration::from_secs(1);

const _: () = assert!(THREADS_PER_TASK_MAX > 0);

/// What a service gives.
pub(crate) type Outcome = Result<Vec<u8>, Status>;
type Function = dyn Fn(&Incoming) -> Outcome + Send + Sync;

/// The services of a task, by number.
#[derive(Clone, Default)]
pub struct Services(BTreeMap<u32, Service>);

#[derive(Clone)]
struct Service {
    function: Arc<Function>,
    /// Carried out on the control thread itself.
    is_brief: bool,
}

/// A call, as the service sees it.
#[derive(Debug)]
pub struct Incoming {
    /// The caller's task.
    pub task: String,
    /// The caller's life.
    pub incarnation: Incarnation,
    /// The service's number.
    pub method: u32,
    /// Ties together what belongs together, over tasks; zero for nothing.
    pub trace: u64,
    /// When the caller will wait no longer.
    pub deadline: Instant,
    /// What the caller sent.
    pub payload: Vec<u8>,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Incoming {
    /// A call of no method, as a task would hear it: for a service that is asked within its own process.
    #[must_use]
    pub fn within(
        task: String,
        incarnation: Incarnation,
        payload: Vec<u8>,
        patience: Duration,
    ) -> Self {
        Self {
            task,
            incarnation,
            method: 0,
            trace: 0,
            deadline: super::until(patience),
            payload,
            cancelled: Arc::default(),
        }
    }
}

/// A call to be carried out.
pub(crate) struct CallJob {
    pub(crate) incoming: Incoming,
    pub(crate) done: Box<dyn FnOnce(Outcome) + Send>,
}

/// The threads that carry calls out. They end when this is dropped, each after the call it is at.
pub(crate) struct Pool {
    services: Services,
    /// None without a service, and without a thread then.
    queue: Option<Arc<Queue>>,
}

/// A call that waits for a thread.
struct WaitingCall {
    function: Arc<Function>,
    job: CallJob,
    since: Instant,
}

/// Calls that wait for a thread.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

#[derive(Default)]
struct Waiting {
    /// In the order they came.
    jobs: VecDeque<WaitingCall>,
    /// How many threads are at calls of each task.
    at_work: BTreeMap<String, usize>,
    is_over: bool,
}

impl Services {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Has `function` called for `method`. A number given twice is the later function's.
    #[must_use]
    pub fn on(
        self,
        method: u32,
        function: impl Fn(&Incoming) -> Result<Vec<u8>, Status> + Send + Sync + 'static,
    ) -> Self {
        self.insert(method, function, false)
    }

    /// Has `function` called on the control thread itself, which all peers wait for meanwhile: for what takes less time
    /// than to wake another thread, and never blocks.
    #[must_use]
    pub(crate) fn at_once(
        self,
        method: u32,
        function: impl Fn(&Incoming) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        self.insert(method, function, true)
    }

    fn insert(
        mut self,
        method: u32,
        function: impl Fn(&Incoming) -> Outcome + Send + Sync + 'static,
        is_brief: bool,
    ) -> Self {
        let function = Arc::new(function);
        self.0.insert(method, Service { function, is_brief });
        self
    }

    /// Has `function` called for a method whose messages are known. What is no message of it is refused with
    /// `CALL_MALFORMED`.
    #[doc(hidden)]
    #[must_use]
    pub fn serve<M: Method>(
        self,
        function: impl Fn(&Incoming, M::Request) -> Result<M::Answer, Status> + Send + Sync + 'static,
    ) -> Self {
        self.on(M::NUMBER, move |call| {
            let request = M::Request::decode(&*call.payload).map_err(|error| {
                let message = format!("{} cannot read what it was sent: {error}", M::NAME);
                Status::of(catalogue::CALL_MALFORMED, message)
            })?;
            Ok(function(call, request)?.encode_to_vec())
        })
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.keys().copied()
    }

    /// Both these and `others`; a number that both have is these ones'.
    #[must_use]
    pub fn and(mut self, mut others: Self) -> Self {
        others.0.append(&mut self.0);
        others
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Incoming {
    /// True if the caller has given the call up, or waits no longer: the answer will not be read.
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || Instant::now() >= self.deadline
    }
}

impl Pool {
    /// Starts the threads, if there is any service.
    pub(crate) fn start(services: Services) -> std::io::Result<Self> {
        if services.0.is_empty() {
            return Ok(Self {
                services,
                queue: None,
            });
        }
        // If a thread cannot be begun, those that were end with it.
        let pool = Self {
            services,
            queue: Some(Arc::default()),
        };
        for index in 0..SERVICE_THREADS {
            let Some(queue) = pool.queue.clone() else {
                continue;
            };
            std::thread::Builder::new()
                .name(format!("rendez-serve-{index}"))
                .spawn(move || queue.work())?;
        }
        Ok(pool)
    }

    /// Carries a call out, if it is one for the control thread: brief, and not of so many bytes that to copy them takes
    /// long.
    pub(crate) fn at_once(&self, incoming: &Incoming) -> Option<Outcome> {
        let service = self.services.0.get(&incoming.method)?;
        let is_brief = service.is_brief && incoming.payload.len() <= BRIEF_BYTES;
        is_brief.then(|| carry_out(&*service.function, incoming))
    }

    /// Has a call carried out.
    ///
    /// # Errors
    /// There is no such service, or as many calls wait as may. `done` is dropped then.
    pub(crate) fn begin(&self, job: CallJob) -> Result<(), Status> {
        let method = job.incoming.method;
        let (Some(service), Some(queue)) = (self.services.0.get(&method), &self.queue) else {
            let message = format!("this task has no service {method}");
            return Err(Status::of(catalogue::CALL_UNKNOWN, message));
        };
        let mut waiting = queue.waiting.locked();
        if waiting.jobs.len() >= SERVICE_QUEUE_MAX {
            let message = format!("{SERVICE_QUEUE_MAX} calls wait, the limit SERVICE_QUEUE_MAX");
            return Err(Status::of(catalogue::CALL_BUSY, message));
        }
        waiting.jobs.push_back(WaitingCall {
            function: Arc::clone(&service.function),
            job,
            since: Instant::now(),
        });
        queue.more.notify_one();
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            let mut waiting = queue.waiting.locked();
            waiting.is_over = true;
            let left = std::mem::take(&mut waiting.jobs);
            queue.more.notify_all();
            drop(waiting);
            drop(left);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pool").field(&self.services).finish()
    }
}

impl Queue {
    /// Carries calls out until the end.
    fn work(&self) {
        while let Some(WaitingCall { function, job, .. }) = self.take() {
            let CallJob { incoming, done } = job;
            let outcome = carry_out(&*function, &incoming);
            self.waiting.locked().let_go(&incoming.task);
            done(outcome);
        }
    }

    /// Waits for a call; nothing at the end.
    fn take(&self) -> Option<WaitingCall> {
        let mut waiting = self.waiting.locked();
        while !waiting.is_over {
            if let Some(job) = waiting.take() {
                return Some(job);
            }
            waiting = self.more.wait(waiting).unpoisoned();
        }
        None
    }
}

impl Waiting {
    /// The next call, which has a thread from now on: the first that may have one if it has waited long, else the first
    /// of the task that has fewest threads.
    fn take(&mut self) -> Option<WaitingCall> {
        let mut fewest = THREADS_PER_TASK_MAX;
        let mut next = None;
        for (at, call) in self.jobs.iter().enumerate() {
            let threads = self.at_work.get(&call.job.incoming.task).copied();
            let threads = threads.unwrap_or_default();
            if threads >= fewest {
                continue;
            }
            let is_first = next.is_none();
            (fewest, next) = (threads, Some(at));
            if fewest == 0 || is_first && call.since.elapsed() >= BEHIND_MAX {
                break;
            }
        }
        let job = self.jobs.remove(next?)?;
        let task = job.job.incoming.task.clone();
        *self.at_work.entry(task).or_default() += 1;
        Some(job)
    }

    /// A call of `task` has its thread no longer.
    fn let_go(&mut self, task: &str) {
        if let Some(threads) = self.at_work.get_mut(task) {
            *threads -= 1;
            if *threads == 0 {
                self.at_work.remove(task);
            }
        }
    }
}

fn carry_out(function: &Function, incoming: &Incoming) -> Outcome {
    if incoming.cancelled.load(Ordering::Relaxed) {
        return Err(Status::of(
            catalogue::CALL_CANCELLED,
            "given up before it began",
        ));
    }
    if Instant::now() >= incoming.deadline {
        return Err(Status::of(
            catalogue::CALL_DEADLINE,
            "its deadline passed before it began",
        ));
    }
    let span = tracing::debug_span!(
        "serve",
        method = incoming.method,
        caller = incoming.task,
        trace = incoming.trace
    );
    let _entered = span.enter();
    // A service is the application's: its breakdown is the caller's to hear of, and no other call's business.
    let outcome = catch_unwind(AssertUnwindSafe(|| function(incoming))).unwrap_or_else(|_| {
        let message = format!("service {} panicked", incoming.method);
        tracing::error!(
            method = incoming.method,
            task = incoming.task,
            "a service panicked"
        );
        Err(Status::of(catalogue::SERVICE_FAILED, message))
    });
    match outcome {
        Ok(payload) if payload.len() > CALL_PAYLOAD_MAX => {
            let message = format!(
                "the answer has {} bytes, the limit CALL_PAYLOAD_MAX is {CALL_PAYLOAD_MAX}",
                payload.len()
            );
            Err(Status::of(catalogue::CALL_TOO_LONG, message))
        }
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests;
