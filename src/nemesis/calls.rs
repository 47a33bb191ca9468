//! Calls: a task under test as a worker of a group of all tasks, which calls functions of the others and is called.
//!
//! Knows the public face of remote calls; judges nothing. For each other task there is a thread that calls it in every
//! way that there is; `calls/sharing.rs` has what is done with references, `calls/training.rs` the trainer.

mod sharing;
mod training;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::history::remote::{Answer, Remote, number};
use super::history::{Event, Log, now_ns};
use super::scope::mixed;
use rendez::cluster::ClusterSpec;
use rendez::engine::Engine;
use rendez::ground::{DType, Shape};
use rendez::memory::Tensor;
use rendez_autograd::remote::Joining;
use rendez_autograd::tape::Tape;
use rendez_autograd::worker::Worker;
use rendez_rpc::{Agent, Context, Error, Functions, Options, Pending};
use sharing::Shares;
use training::Trainer;

/// How long a call may take that does not say otherwise: longer than any delay of a machine that is whole.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the others may take to be there, before the worker tries to join again.
const JOINING: Duration = Duration::from_secs(5);
/// How long what is left may take to go, once all actors have ended, and how long the group may take to leave.
const LEAVING: Duration = Duration::from_secs(4);
/// Calls of one batch.
const BATCH: u64 = 8;
/// Functions that only look whether their caller has given them up look so often.
const LOOK: Duration = Duration::from_millis(2);

/// What actors and functions of one life share.
pub(super) struct Journal {
    me: u32,
    life: u32,
    log: Arc<Log>,
    next: AtomicU64,
    shares: Shares,
}

/// Of one other task.
struct Caller<'a> {
    agent: &'a Agent,
    journal: &'a Journal,
    to: u32,
    dice: u64,
}

/// Which life of which task.
#[derive(Clone)]
pub(super) struct Me {
    pub(super) task: u32,
    pub(super) life: u32,
    pub(super) log: Arc<Log>,
}

/// Runs until it is over, and says what is left then.
pub(super) fn run(engine: &Engine, cluster: &ClusterSpec, me: Me, is_over: &AtomicBool) {
    let journal = Arc::new(Journal {
        me: me.task,
        life: me.life,
        log: me.log,
        next: AtomicU64::new(0),
        shares: Shares::default(),
    });
    let tasks = cluster.tasks().count() as u32;
    let Some((agent, worker)) = join(engine, cluster, &journal, is_over) else {
        return;
    };
    journal.note(Remote::Joined);
    std::thread::scope(|scope| {
        let (agent, journal, worker) = (&agent, &*journal, &worker);
        for to in (0..tasks).filter(|to| *to != journal.me) {
            scope.spawn(move || Caller::new(agent, journal, to).run(tasks, is_over));
        }
        scope.spawn(move || journal.shares.tend(journal, is_over));
        scope.spawn(move || Trainer::new(agent, journal, worker, tasks).run(is_over));
    });
    journal.rest(&agent, &worker);
    let answer = match agent.shutdown(LEAVING) {
        Ok(()) => Answer::Right,
        Err(error) => Answer::Failed(error.reason().to_owned()),
    };
    journal.note(Remote::Parted { answer });
}

/// The name of a task's worker.
fn name(task: u32) -> String {
    format!("worker-{task}")
}

/// Becomes a worker of the group, however often that fails.
fn join(
    engine: &Engine,
    cluster: &ClusterSpec,
    journal: &Arc<Journal>,
    is_over: &AtomicBool,
) -> Option<(Agent, Worker<Tape>)> {
    while !is_over.load(Ordering::Acquire) {
        let joining = Joining::new(engine);
        let functions = journal.functions();
        let functions = training::functions(functions, joining.tape());
        let mut options = joining.options(Options::of_cluster(cluster).functions(functions));
        options = options.timeout(PATIENCE);
        options.init_timeout = JOINING;
        let joined = Agent::init(engine, &name(journal.me), options);
        let attached = joined.and_then(|agent| {
            let worker = joining.attach(&agent)?;
            Ok((agent, worker))
        });
        match attached {
            Ok(joined) => return Some(joined),
            Err(error) => {
                let reason = error.reason().to_owned();
                eprintln!("not joined: {error}");
                journal.note(Remote::Unjoined { reason });
            }
        }
    }
    None
}

/// What a call with that number gives.
fn answer_of(id: u64) -> u64 {
    mixed(id ^ 0x616e_7377_6572)
}

/// Words that only that call carries.
fn words_of(id: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |at| mixed(id.wrapping_add(at)))
}

fn is_filled(tensor: &Tensor, id: u64) -> bool {
    let words = tensor.as_slice::<u64>().unwrap_or_default();
    !words.is_empty() && words.iter().copied().eq(words_of(id, words.len() as u64))
}

/// A tensor in the engine's memory, or if that is full elsewhere.
fn filled(engine: &Engine, id: u64, count: u64) -> Result<Tensor, Error> {
    if let Ok(mut builder) = engine.tensor(DType::U64, &[count])
        && let Ok(words) = builder.as_mut_slice::<u64>()
    {
        for (word, value) in words.iter_mut().zip(words_of(id, count)) {
            *word = value;
        }
        return Ok(builder.finish());
    }
    let words = words_of(id, count).collect();
    let tensor = Tensor::from_vec(words, Shape::from([count]));
    tensor.map_err(|error| Error::local(error.into()))
}

impl Journal {
    fn note(&self, what: Remote) {
        self.log.add(&Event::Remote(what));
    }

    /// The number of the next call or value.
    fn number(&self) -> u64 {
        let nth = self.next.fetch_add(1, Ordering::Relaxed);
        number((self.me, self.life), nth)
    }

    /// A call is about to be made.
    fn begins(&self, to: u32, function: &str, patience: Duration, needs: Duration) -> u64 {
        let id = self.number();
        self.note(Remote::Call {
            id,
            to,
            function: function.to_owned(),
            patience_ns: super::nanos(patience),
            needs_ns: super::nanos(needs),
        });
        id
    }

    /// It has ended.
    fn told(&self, id: u64, outcome: &Result<bool, Error>) {
        let answer = match outcome {
            Ok(true) => Answer::Right,
            Ok(false) => Answer::Wrong,
            Err(error) => Answer::Failed(error.reason().to_owned()),
        };
        self.note(Remote::Told { id, answer });
    }

    /// A call that `make` makes and waits for; `is_right` knows its result.
    fn call<R>(
        &self,
        to: u32,
        function: &str,
        make: impl FnOnce(u64) -> Result<R, Error>,
        is_right: impl FnOnce(u64, R) -> bool,
    ) -> Result<(), Error> {
        let id = self.begins(to, function, PATIENCE, Duration::ZERO);
        let outcome = make(id).map(|result| is_right(id, result));
        self.told(id, &outcome);
        outcome.map(drop)
    }

    fn functions(self: &Arc<Self>) -> Functions {
        let with = || Arc::clone(self);
        let (echo, shard, slow) = (with(), with(), with());
        let (sum, back, nest) = (with(), with(), with());
        let functions = Functions::new()
            .add("echo", move |id: u64| echo.ran(id))
            .add_in_shard("shard", move |id: u64| shard.ran(id))
            .add("slow", move |id: u64, for_ms: u64| slow.sleeps(id, for_ms))
            .add("sum", move |id: u64, tensor: Tensor| {
                let answer = sum.ran(id);
                if is_filled(&tensor, id) { answer } else { 0 }
            })
            .add(
                "back",
                move |id: u64, count: u64| -> Result<Tensor, Error> {
                    back.ran(id);
                    let context = Context::current().ok_or_else(no_call)?;
                    filled(context.agent().engine(), id, count)
                },
            )
            .add("nest", move |id: u64, on: u32| -> Result<u64, Error> {
                let answer = nest.ran(id);
                let agent = Context::current().ok_or_else(no_call)?.agent();
                let call = |id| agent.rpc_sync::<u64>(&name(on), "echo", (id,));
                nest.call(on, "echo", call, |id, answer| answer == answer_of(id))?;
                Ok(answer)
            });
        sharing::functions(functions, self)
    }

    /// A call is carried out here. Returns what it gives.
    fn ran(&self, id: u64) -> u64 {
        self.note(Remote::Ran { id });
        answer_of(id)
    }

    /// Sleeps as long as it is not given up.
    fn sleeps(&self, id: u64, for_ms: u64) -> u64 {
        let answer = self.ran(id);
        let until = Instant::now() + Duration::from_millis(for_ms);
        let is_given_up = || Context::current().is_some_and(|call| call.is_cancelled());
        while Instant::now() < until && !is_given_up() {
            std::thread::sleep(LOOK);
        }
        answer
    }

    /// All actors have ended: what is left of what they did goes in a while.
    fn rest(&self, agent: &Agent, worker: &Worker<Tape>) {
        let left = || {
            let references = agent.references().map_or(u64::MAX, |all| all.len() as u64);
            let figures = agent.debug_info();
            let calls = ["agent.client_active_calls", "agent.server_active_calls"];
            let calls = calls.iter().filter_map(|name| figures.get(name)).sum();
            let (messages, passes) = worker.engine().kept();
            let contexts = worker.load().contexts + messages + passes;
            [references, calls, contexts as u64]
        };
        let until = Instant::now() + LEAVING;
        while left() != [0; 3] && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let [references, calls, contexts] = left();
        if references + calls + contexts > 0 {
            eprintln!("left: {:?} {:?}", agent.references(), agent.debug_info());
        }
        self.note(Remote::Rest {
            references,
            calls,
            contexts,
        });
    }
}

fn no_call() -> Error {
    Error::local(rendez::ground::Status::of(
        rendez::ground::catalogue::RPC_FUNCTION,
        "a function is carried out, and no call",
    ))
}

impl<'a> Caller<'a> {
    fn new(agent: &'a Agent, journal: &'a Journal, to: u32) -> Self {
        let dice = mixed(now_ns() ^ u64::from(to));
        Self {
            agent,
            journal,
            to,
            dice,
        }
    }

    fn throw(&mut self) -> u64 {
        self.dice = mixed(self.dice);
        self.dice
    }

    fn run(mut self, tasks: u32, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            let dice = self.throw();
            // Failures are in the history.
            let _ = match dice % 9 {
                0 => self.sync("echo"),
                1 => self.sync("shard"),
                2 => self.batch(),
                3 => self.slow(),
                4 => self.cancel(),
                5 => self.tensors(),
                6 => self.nest(tasks),
                7 => self.number(),
                _ => self.share(tasks),
            };
            std::thread::sleep(Duration::from_millis(5 + dice / 16 % 20));
        }
    }

    fn sync(&self, function: &str) -> Result<(), Error> {
        let call = |id| self.agent.rpc_sync::<u64>(&name(self.to), function, (id,));
        let is_right = |id, answer| answer == answer_of(id);
        self.journal.call(self.to, function, call, is_right)
    }

    /// Several at once, the end of each as it comes.
    fn batch(&mut self) -> Result<(), Error> {
        let (sender, ends) = mpsc::channel();
        let mut begun = 0;
        for at in 0..BATCH {
            let function = if at % 2 == 0 { "echo" } else { "shard" };
            let patience = match self.throw() % 4 {
                0 => Duration::from_millis(30),
                _ => PATIENCE,
            };
            let (to, none) = (name(self.to), Duration::ZERO);
            let id = self.journal.begins(self.to, function, patience, none);
            let call = self.agent.rpc_async_within(&to, function, (id,), patience);
            let call: Pending<u64> = match call {
                Ok(call) => call,
                Err(error) => {
                    self.journal.told(id, &Err(error));
                    continue;
                }
            };
            begun += 1;
            let (log, sender) = (Arc::clone(&self.journal.log), sender.clone());
            call.then(move |outcome| {
                let answer = match outcome {
                    Ok(answer) if answer == answer_of(id) => Answer::Right,
                    Ok(_) => Answer::Wrong,
                    Err(error) => Answer::Failed(error.reason().to_owned()),
                };
                log.add(&Event::Remote(Remote::Told { id, answer }));
                let _ = sender.send(());
            });
        }
        for _ in 0..begun {
            // One that never ends is for the judge.
            let _ = ends.recv_timeout(2 * PATIENCE);
        }
        Ok(())
    }

    /// One that is under way for a while, and at times longer than it may be.
    fn slow(&mut self) -> Result<(), Error> {
        let needs = Duration::from_millis(50 + self.throw() % 1200);
        let patience = Duration::from_millis(100 + self.throw() % 1900);
        let id = self.journal.begins(self.to, "slow", patience, needs);
        let args = (id, needs.as_millis() as u64);
        let call = self
            .agent
            .rpc_async_within::<u64>(&name(self.to), "slow", args, patience);
        let outcome = call.and_then(Pending::wait);
        let outcome = outcome.map(|answer| answer == answer_of(id));
        self.journal.told(id, &outcome);
        outcome.map(drop)
    }

    /// One that is not wanted any more.
    fn cancel(&mut self) -> Result<(), Error> {
        let needs = Duration::from_secs(1);
        let id = self.journal.begins(self.to, "slow", PATIENCE, needs);
        let args = (id, needs.as_millis() as u64);
        let call = self.agent.rpc_async::<u64>(&name(self.to), "slow", args);
        let outcome = call.and_then(|call| {
            std::thread::sleep(Duration::from_millis(self.throw() % 40));
            self.journal.note(Remote::Cancel { id });
            call.cancel();
            call.wait()
        });
        let outcome = outcome.map(|answer| answer == answer_of(id));
        self.journal.told(id, &outcome);
        outcome.map(drop)
    }

    /// One with a tensor there, one with a tensor back; small and large ones.
    fn tensors(&mut self) -> Result<(), Error> {
        let count = [8, 500, 20_000][self.throw() as usize % 3];
        let to = name(self.to);
        let there = |id| {
            let tensor = filled(self.agent.engine(), id, count)?;
            self.agent.rpc_sync::<u64>(&to, "sum", (id, tensor))
        };
        let is_right = |id, answer| answer == answer_of(id);
        self.journal.call(self.to, "sum", there, is_right)?;
        let back = |id| self.agent.rpc_sync::<Tensor>(&to, "back", (id, count));
        let is_right =
            |id, tensor: Tensor| tensor.size() as u64 == 8 * count && is_filled(&tensor, id);
        self.journal.call(self.to, "back", back, is_right)
    }

    /// One that calls on.
    fn nest(&mut self, tasks: u32) -> Result<(), Error> {
        let on = self.throw() as u32 % tasks;
        let call = |id| self.agent.rpc_sync::<u64>(&name(self.to), "nest", (id, on));
        let is_right = |id, answer| answer == answer_of(id);
        self.journal.call(self.to, "nest", call, is_right)
    }

    /// A value that stays there until it is fetched.
    fn number(&self) -> Result<(), Error> {
        let make = |id| {
            let to = name(self.to);
            let value = self.agent.remote::<u64>(&to, "echo", (id,))?;
            value.to_here()
        };
        let is_right = |id, answer| answer == answer_of(id);
        self.journal.call(self.to, "number", make, is_right)
    }
}
