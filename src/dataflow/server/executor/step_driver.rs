//! Step driver: the executor's task of one shard. It carries orders out and runs parts, between two polls of the shard.
//!
//! It knows the shard by its context alone. A run that hears from a key goes on at once, for a few nodes; what is left
//! then waits for its turn, so that neither runs nor peers wait for one that has much to do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Shared;
use super::inbox::{Done, Inbox, Order, RunState};
use super::plan::Plan;
use super::pool::{Job, Pool};
use super::run::{Outcome, Outside, PlanRun};
use crate::kernel::{Home, Value};
use rendez::ground::limits::SPARE_RUN_BYTES;
use rendez::ground::{FrameIter, Status, StepId, faults};
use rendez::memory::Tensor;
use rendez::shard::{PreparedKey, Task, TaskContext, TaskEvent};
use rendez::sync::Ordering;

/// Nodes that a run may run before it is another's turn: a few microseconds of trivial ones.
const QUANTUM: u32 = 32;
/// How long runs may hold the shard in one turn while peers wait.
const TURN_NS: u64 = 20_000;
/// Orders carried out in one turn.
const ORDERS_PER_TURN: usize = 64;
/// States of ended runs kept for each plan, if they are small.
const SPARE_RUNS: usize = 64;

/// See the module.
pub(super) struct StepDriver {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    pool: Pool,
    runs: Vec<Option<Live>>,
    free: Vec<u32>,
    plans: BTreeMap<u64, Known>,
    /// Runs that have nodes left to run.
    runnable: VecDeque<u32>,
    /// It will be called in the next turn.
    is_called: bool,
    /// There may be orders.
    has_orders: bool,
    is_closing: bool,
    is_stopping: bool,
}

/// A run under way.
struct Live {
    run: Box<PlanRun>,
    plan: Arc<Plan>,
    step: StepId,
    state: Arc<RunState>,
    done: Done,
    is_runnable: bool,
    /// Its step was told that it fails.
    is_aborted: bool,
}

/// What is kept for a plan.
struct Known {
    keys: Vec<Option<PreparedKey>>,
    #[expect(
        clippy::vec_box,
        reason = "a state goes to a run and comes back as it is, in its box"
    )]
    spare: Vec<Box<PlanRun>>,
}

/// How a run reaches the shard.
struct Reach<'a, 'b> {
    context: &'a mut TaskContext<'b>,
    plan: &'a Arc<Plan>,
    keys: &'a mut [Option<PreparedKey>],
    home: &'a Arc<Home>,
    pool: &'a Pool,
    inbox: &'a Arc<Inbox>,
    state: &'a Arc<RunState>,
    step: StepId,
    run: u32,
}

impl StepDriver {
    pub(super) const fn new(shared: Arc<Shared>, inbox: Arc<Inbox>, pool: Pool) -> Self {
        Self {
            shared,
            inbox,
            pool,
            runs: Vec::new(),
            free: Vec::new(),
            plans: BTreeMap::new(),
            runnable: VecDeque::new(),
            is_called: false,
            has_orders: false,
            is_closing: false,
            is_stopping: false,
        }
    }

    /// Carries out some orders.
    fn take_orders(&mut self, context: &mut TaskContext<'_>) {
        self.has_orders = true;
        for _ in 0..ORDERS_PER_TURN {
            match self.inbox.next() {
                Some(order) => self.carry_out(context, order),
                None => {
                    self.has_orders = false;
                    return;
                }
            }
        }
    }

    fn carry_out(&mut self, context: &mut TaskContext<'_>, order: Order) {
        match order {
            Order::Begin {
                plan,
                step,
                args,
                state,
                done,
            } => {
                let mut run = self.state_for(&plan);
                run.begin(&plan, step, args);
                let run = self.admit(Live {
                    run,
                    plan,
                    step,
                    state,
                    done,
                    is_runnable: false,
                    is_aborted: false,
                });
                let is_stopping = self.is_stopping;
                self.work_on(context, run, |run, _, _| {
                    if is_stopping {
                        run.fail(faults::shutdown());
                    }
                });
            }
            Order::Cancel { state, status } => {
                let run = state.run.load(Ordering::Relaxed);
                // The number may be another run's by now.
                if let Some(Some(live)) = self.runs.get(run as usize)
                    && Arc::ptr_eq(&live.state, &state)
                {
                    self.work_on(context, run, |run, _, _| run.fail(status));
                }
            }
            Order::Computed {
                run,
                ticket,
                outcome,
            } => self.work_on(context, run, |run, plan, reach| {
                run.computed(plan, reach, ticket, outcome);
            }),
            Order::Forget { plan } => {
                if let Some(known) = self.plans.remove(&plan) {
                    known.release(context);
                }
            }
            Order::Close => self.is_closing = true,
        }
    }

    /// Lets a run do `act`, and then go on for a while.
    fn work_on(
        &mut self,
        context: &mut TaskContext<'_>,
        number: u32,
        act: impl FnOnce(&mut PlanRun, &Plan, &mut Reach<'_, '_>),
    ) {
        let Some(mut live) = self.runs.get_mut(number as usize).and_then(Option::take) else {
            return;
        };
        let Some(known) = self.plans.get_mut(&live.plan.id) else {
            return;
        };
        let mut reach = Reach {
            context,
            plan: &live.plan,
            keys: &mut known.keys,
            home: &self.shared.home,
            pool: &self.pool,
            inbox: &self.inbox,
            state: &live.state,
            step: live.step,
            run: number,
        };
        act(&mut live.run, &live.plan, &mut reach);
        let is_ready = live
            .run
            .turn(&live.plan, &self.shared.home, &mut reach, QUANTUM);
        if let Some(status) = live.run.failure()
            && !live.is_aborted
        {
            live.is_aborted = true;
            live.state.is_over.store(true, Ordering::Release);
            // What it still waits for ends by that, and so does the rest of the step, here and elsewhere.
            if !mutant!("failed_runs_wait_on") {
                context.abort(live.step, &status.clone().derived());
            }
        }
        if let Some(outcome) = live.run.outcome(&live.plan) {
            return self.end(number, live, outcome);
        }
        if is_ready && !live.is_runnable {
            live.is_runnable = true;
            self.runnable.push_back(number);
        }
        self.runs[number as usize] = Some(live);
    }

    /// Runs in turn, until none has anything to do or their time is up.
    fn go_on(&mut self, context: &mut TaskContext<'_>) {
        let until = context
            .now()
            .after(std::time::Duration::from_nanos(TURN_NS));
        while let Some(number) = self.runnable.pop_front() {
            // The number may be another run's by now, one that does not stand in line.
            if let Some(Some(live)) = self.runs.get_mut(number as usize)
                && std::mem::take(&mut live.is_runnable)
            {
                self.work_on(context, number, |_, _, _| {});
                if context.now() >= until {
                    return;
                }
            }
        }
    }

    /// A state for a run of that plan.
    fn state_for(&mut self, plan: &Plan) -> Box<PlanRun> {
        let known = self.plans.entry(plan.id).or_insert_with(|| Known {
            keys: vec![None; plan.keys.len()],
            spare: Vec::new(),
        });
        known.spare.pop().unwrap_or_default()
    }

    fn admit(&mut self, live: Live) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() as u32 - 1
        });
        live.state.run.store(number, Ordering::Relaxed);
        self.runs[number as usize] = Some(live);
        number
    }

    fn end(&mut self, number: u32, live: Live, outcome: Outcome) {
        self.free.push(number);
        if let Some(known) = self.plans.get_mut(&live.plan.id) {
            let kept = known.spare.len();
            let is_small = (kept + 1) * live.plan.run_bytes <= SPARE_RUN_BYTES;
            if kept == 0 || (is_small && kept < SPARE_RUNS) {
                known.spare.push(live.run);
            }
        }
        live.done.tell(outcome);
    }

    /// The shard stops: what runs ends, and what comes ends at once.
    fn stop(&mut self, context: &mut TaskContext<'_>) {
        self.is_stopping = true;
        for number in 0..self.runs.len() as u32 {
            self.work_on(context, number, |run, _, _| run.fail(faults::shutdown()));
        }
    }
}

impl Task for StepDriver {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        match event {
            TaskEvent::Received { token, outcome } => {
                let outcome = outcome.map(|got| (!got.is_dead).then_some(got.tensor));
                self.work_on(context, (token >> 32) as u32, |run, plan, reach| {
                    run.received(plan, reach, token as u32, outcome);
                });
            }
            TaskEvent::Started | TaskEvent::Woken => self.take_orders(context),
            TaskEvent::Again => {
                self.is_called = false;
                if self.has_orders {
                    self.take_orders(context);
                }
                self.go_on(context);
            }
            TaskEvent::Stopping => self.stop(context),
            _ => {}
        }
        if !self.is_called && (self.has_orders || !self.runnable.is_empty()) {
            self.is_called = true;
            context.again();
        }
        if self.is_closing && !self.has_orders && self.free.len() == self.runs.len() {
            for (_, known) in std::mem::take(&mut self.plans) {
                known.release(context);
            }
            context.finish();
        }
    }
}

impl Drop for StepDriver {
    fn drop(&mut self) {
        // Runs that are left, and orders that are not carried out, tell that the task stops.
        self.inbox.close();
    }
}

impl Known {
    /// The plan's keys will not be used again on this shard.
    fn release(self, context: &mut TaskContext<'_>) {
        for key in self.keys.into_iter().flatten() {
            context.release(key);
        }
    }
}

impl Reach<'_, '_> {
    /// The number of a key on this shard.
    #[inline]
    fn key(&mut self, key: u32) -> Result<PreparedKey, Status> {
        let place = &mut self.keys[key as usize];
        match place {
            Some(prepared) => Ok(*prepared),
            None => {
                let prepared = self.context.prepare(&self.plan.keys[key as usize])?;
                Ok(*place.insert(prepared))
            }
        }
    }
}

impl Outside for Reach<'_, '_> {
    #[inline]
    fn send(&mut self, key: u32, at: FrameIter, value: Option<Tensor>) -> Result<(), Status> {
        let key = self.key(key)?.at(at);
        match value {
            Some(tensor) => self.context.send(self.step, key, tensor),
            None => self.context.send_dead(self.step, key, Tensor::scalar(0u8)),
        }
    }

    #[inline]
    fn recv(&mut self, key: u32, at: FrameIter, ticket: u32) -> Result<(), Status> {
        let key = self.key(key)?.at(at);
        let token = u64::from(self.run) << 32 | u64::from(ticket);
        self.context.recv(self.step, key, token);
        Ok(())
    }

    fn compute(&mut self, node: u32, inputs: Vec<Value>, ticket: u32) {
        let job = Job {
            home: Arc::clone(self.home),
            plan: Arc::clone(self.plan),
            node,
            inputs,
            step: self.step,
            inbox: Arc::clone(self.inbox),
            run: self.run,
            ticket,
            state: Arc::clone(self.state),
        };
        if let Err(unsent) = self.pool.call(job) {
            // The threads end after this task, and only then.
            let status = faults::shutdown();
            let Job {
                run, ticket, inbox, ..
            } = unsent;
            inbox.push(Order::Computed {
                run,
                ticket,
                outcome: Err(status),
            });
        }
    }
}
