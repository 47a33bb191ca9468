//! Training: a model whose weights live at another task, trained by this one with distributed autograd.
//!
//! When anything fails the trainer goes on with a new model at the next task, from the weights that it last saw: what
//! is lost is a step at most, and none is done twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::history::remote::Remote;
use super::super::lesson::{self, RATE, ROWS, WEIGHTS};
use super::{Agent, Context, Error, Functions, Journal, name, no_call};
use rendez::ground::{Shape, Status};
use rendez::memory::Tensor;
use rendez_autograd::optim::{Parameter, Rule, Sgd};
use rendez_autograd::remote::DistributedOptimizer;
use rendez_autograd::tape::{Tape, Var};
use rendez_autograd::worker::Worker;
use rendez_rpc::RRef;

/// Between two steps, and between two models.
const PAUSE: Duration = Duration::from_millis(20);

/// The trainer of a task.
pub(super) struct Trainer<'a> {
    agent: &'a Agent,
    journal: &'a Journal,
    worker: &'a Worker<Tape>,
    tasks: u32,
    weights: Vec<f32>,
    step: u64,
}

/// The functions of those that have a model.
pub(super) fn functions(functions: Functions, tape: &Tape) -> Functions {
    let tape = tape.clone();
    let new = move |weights: Vec<f32>| -> Result<RRef<Parameter>, Error> {
        let agent = Context::current().ok_or_else(no_call)?.agent();
        let weights = tensor(weights, [WEIGHTS as u64, 1])?;
        let parameter = Parameter::new(&tape, weights)?;
        Ok(RRef::to_object(&agent, parameter))
    };
    let guess = |weights: RRef<Parameter>, inputs: Var| -> Result<Var, Error> {
        let weights = weights.local_value()?;
        Ok(inputs.matmul(&weights.var())?)
    };
    let weights = |weights: RRef<Parameter>| -> Result<Vec<f32>, Error> {
        let tensor = weights.local_value()?.var().tensor().clone();
        Ok(tensor.to_vec::<f32>().map_err(Status::from)?)
    };
    functions
        .add("model.new", new)
        .add("model.guess", guess)
        .add("model.weights", weights)
}

fn tensor(values: Vec<f32>, dims: [u64; 2]) -> Result<Tensor, Status> {
    Ok(Tensor::from_vec(values, Shape::from(dims))?)
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|weight| weight.to_bits()).collect()
}

impl<'a> Trainer<'a> {
    pub(super) fn new(
        agent: &'a Agent,
        journal: &'a Journal,
        worker: &'a Worker<Tape>,
        tasks: u32,
    ) -> Self {
        Self {
            agent,
            journal,
            worker,
            tasks,
            weights: lesson::ignorance().to_vec(),
            step: 0,
        }
    }

    pub(super) fn run(mut self, is_over: &AtomicBool) {
        let mut at = self.journal.me;
        while !is_over.load(Ordering::Acquire) {
            at = (at + 1) % self.tasks;
            let model = self.journal.number();
            self.journal.note(Remote::Model {
                model,
                at,
                weights: bits(&self.weights),
            });
            if let Err(error) = self.train(model, at, is_over) {
                let reason = error.reason().to_owned();
                self.journal.note(Remote::Gave { model, reason });
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Trains a model at that task until something fails.
    fn train(&mut self, model: u64, at: u32, is_over: &AtomicBool) -> Result<(), Error> {
        let begin = (self.weights.clone(),);
        let weights: RRef<Parameter> = self.agent.rpc_sync(&name(at), "model.new", begin)?;
        let rule = Rule::Sgd(Sgd {
            lr: RATE,
            ..Sgd::default()
        });
        let all = std::slice::from_ref(&weights);
        let optimizer = DistributedOptimizer::new(self.agent, rule, all)?;
        while !is_over.load(Ordering::Acquire) {
            let loss = self.learn(&weights, &optimizer)?;
            self.weights = weights.rpc_sync("model.weights", ())?;
            self.journal.note(Remote::Learnt {
                model,
                step: self.step,
                loss: loss.to_bits(),
                weights: bits(&self.weights),
            });
            self.step += 1;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// One step, in a context of its own. Returns the loss before it.
    fn learn(
        &self,
        weights: &RRef<Parameter>,
        optimizer: &DistributedOptimizer,
    ) -> Result<f32, Error> {
        let batch = lesson::batch(self.step);
        let tape = self.worker.engine();
        let scope = self.worker.scope()?;
        let inputs = tape.constant(tensor(batch.inputs, [ROWS as u64, WEIGHTS as u64])?);
        let targets = tape.constant(tensor(batch.targets, [ROWS as u64, 1])?);
        let guess: Var = weights.rpc_sync("model.guess", (inputs,))?;
        let loss = guess.sub(&targets)?.square()?.average()?;
        let number = loss.tensor().item::<f32>().map_err(Status::from)?;
        scope.backward(&[loss])?;
        optimizer.step(scope.id())?;
        Ok(number)
    }
}
