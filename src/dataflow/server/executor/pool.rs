//! Pool: threads beside the shards that call costly kernels.
//!
//! It knows a call and where its outcome goes. The threads end when the last handle that can give them work is dropped.

use std::sync::Arc;

use crossbeam::channel::{self, Receiver, Sender};

use super::inbox::{Inbox, Order, RunState};
use super::plan::Plan;
use crate::kernel::Value;
use crate::kernel::{Call, Home, Waiting};
use rendez::ground::{Status, StepId, catalogue, faults};
use rendez::sync::Ordering;

/// Threads that executors share. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Pool(Sender<Job>);

/// A call of a kernel.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) home: Arc<Home>,
    pub(super) plan: Arc<Plan>,
    pub(super) node: u32,
    pub(super) inputs: Vec<Value>,
    pub(super) step: StepId,
    /// Where the outcome goes: a shard's task, a run of it, and what the run knows the call by.
    pub(super) inbox: Arc<Inbox>,
    pub(super) run: u32,
    pub(super) ticket: u32,
    pub(super) state: Arc<RunState>,
}

impl Pool {
    /// Starts the threads: one for each core this process may use. There are never more calls than runs have ready
    /// nodes, so the queue needs no bound of its own.
    ///
    /// # Errors
    /// `SYSTEM_CALL` if a thread cannot be started.
    pub(crate) fn start() -> Result<Self, Status> {
        let (sender, receiver) = channel::unbounded();
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        for index in 0..count {
            let receiver = receiver.clone();
            std::thread::Builder::new()
                .name(format!("rendez-compute-{index}"))
                .spawn(move || work(&receiver))
                .map_err(|error| {
                    let message = format!("a thread for kernels cannot be started: {error}");
                    Status::of(catalogue::SYSTEM_CALL, message)
                })?;
        }
        Ok(Self(sender))
    }

    /// Has a kernel called. Gives the call back if the threads have ended.
    pub(super) fn call(&self, job: Job) -> Result<(), Job> {
        self.0.send(job).map_err(channel::SendError::into_inner)
    }
}

fn work(jobs: &Receiver<Job>) {
    while let Ok(job) = jobs.recv() {
        let outcome = call(&job);
        let Job {
            inbox,
            run,
            ticket,
            inputs,
            ..
        } = job;
        // What is held no more is let go before the run goes on.
        drop(inputs);
        inbox.push(Order::Computed {
            run,
            ticket,
            outcome,
        });
    }
}

fn call(job: &Job) -> Result<Vec<Value>, Status> {
    if job.state.is_over.load(Ordering::Acquire) {
        return Err(faults::cancelled().derived());
    }
    let node = &job.plan.nodes[job.node as usize];
    let mut outputs = Vec::with_capacity(node.outputs as usize);
    node.compute(&mut Call {
        inputs: &job.inputs,
        outputs: &mut outputs,
        home: &job.home,
        step: job.step,
        waiting: Waiting::May,
    })?;
    Ok(outputs)
}
