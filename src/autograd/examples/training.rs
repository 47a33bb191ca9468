//! The training of a model whose parts are in this process or at other workers: the same steps, and so the same losses.

use super::STEPS;
use super::digits::Digits;
use super::group::Group;
use super::parts::Part;
use rendez::ground::Status;
use rendez_autograd::optim::{Optimizer, Parameter, Rule};
use rendez_autograd::remote::DistributedOptimizer;
use rendez_autograd::tape::{Tape, Var};
use rendez_rpc::{Agent, Error, Pending, RRef};

/// The worker that has the data and the loss.
pub(crate) const TRAINER: &str = "trainer";

/// A model, and how it is trained.
pub(crate) struct Example {
    pub(crate) name: &'static str,
    pub(crate) rule: Rule,
    /// Of each part the worker that it lives at, its kind, and the seed of its weights.
    pub(crate) parts: &'static [(&'static str, &'static str, u64)],
    /// The loss of a batch.
    pub(crate) loss: fn(&Tape, &Digits, usize, &[Stage]) -> Result<Var, Error>,
}

/// A part of a model, wherever it is.
pub(crate) enum Stage {
    Here(Part),
    There(RRef<Part>),
}

/// What a stage makes of its input, which may be under way.
pub(crate) enum Coming {
    Here(Var),
    There(Pending<Var>),
}

impl Stage {
    /// Begins to compute, and does not wait if the part is elsewhere.
    pub(crate) fn begin(&self, x: &Var) -> Result<Coming, Error> {
        match self {
            Self::Here(part) => Ok(Coming::Here(part.forward(x)?)),
            Self::There(part) => {
                let call = part.rpc_async("part.forward", (x.clone(),))?;
                Ok(Coming::There(call))
            }
        }
    }

    /// What it makes of `x`.
    pub(crate) fn forward(&self, x: &Var) -> Result<Var, Error> {
        self.begin(x)?.wait()
    }
}

impl Coming {
    pub(crate) fn wait(self) -> Result<Var, Error> {
        match self {
            Self::Here(var) => Ok(var),
            Self::There(call) => call.wait(),
        }
    }
}

/// A part at another worker, and its parameters.
fn remote(
    agent: &Agent,
    at: &str,
    kind: &str,
    seed: u64,
) -> Result<(Stage, Vec<RRef<Parameter>>), Error> {
    let part: RRef<Part> = agent.remote(at, "part.new", (kind.to_owned(), seed))?;
    let parameters = part.rpc_sync("part.parameters", ())?;
    Ok((Stage::There(part), parameters))
}

/// A part of the trainer's own, and its parameters, which the optimizer refers to as to those elsewhere.
fn own(agent: &Agent, tape: &Tape, kind: &str, seed: u64) -> (Stage, Vec<RRef<Parameter>>) {
    let part = Part::new(tape, kind, seed);
    let parameters = part.parameters().into_iter();
    let parameters = parameters.map(|parameter| RRef::to_object(agent, parameter));
    let parameters = parameters.collect();
    (Stage::Here(part), parameters)
}

fn number(loss: &Var) -> Result<f32, Status> {
    Ok(loss.tensor().item::<f32>()?)
}

impl Example {
    /// The losses of a training over three processes.
    fn apart(&self, digits: &Digits) -> Result<Vec<f32>, Error> {
        let group = Group::start(self.name);
        let (agent, worker) = group.trainer();
        let (mut stages, mut parameters) = (vec![], vec![]);
        for (at, kind, seed) in self.parts {
            let (stage, its) = match *at {
                TRAINER => own(agent, worker.engine(), kind, *seed),
                _ => remote(agent, at, kind, *seed)?,
            };
            stages.push(stage);
            parameters.extend(its);
        }
        let optimizer = DistributedOptimizer::new(agent, self.rule, &parameters)?;
        let mut losses = vec![];
        for step in 0..STEPS {
            // All calls of a step belong to its context, and its gradients are there.
            let scope = worker.scope()?;
            let loss = (self.loss)(worker.engine(), digits, step, &stages)?;
            losses.push(number(&loss)?);
            scope.backward(&[loss])?;
            optimizer.step(scope.id())?;
        }
        group.check_empty();
        drop((optimizer, parameters, stages));
        group.stop();
        Ok(losses)
    }

    /// The losses of the same training in this process.
    fn together(&self, digits: &Digits) -> Result<Vec<f32>, Error> {
        let tape = Tape::new()?;
        let parts = self.parts.iter();
        let parts: Vec<Part> = parts
            .map(|(_, kind, seed)| Part::new(&tape, kind, *seed))
            .collect();
        let parameters = parts.iter().flat_map(Part::parameters).collect();
        let optimizer = Optimizer::new(self.rule, parameters)?;
        let stages: Vec<Stage> = parts.into_iter().map(Stage::Here).collect();
        let mut losses = vec![];
        for step in 0..STEPS {
            let loss = (self.loss)(&tape, digits, step, &stages)?;
            losses.push(number(&loss)?);
            optimizer.step(&tape.backward(&loss)?)?;
        }
        Ok(losses)
    }

    /// Trains both ways, and asserts that both lost as much at each step, and that something was learnt.
    pub(crate) fn check(&self) {
        let digits = Digits::load();
        let apart = self.apart(&digits).expect("a training over processes");
        let together = self.together(&digits).expect("a training in one process");
        assert_eq!((apart.len(), together.len()), (STEPS, STEPS));
        for (step, (one, two)) in apart.iter().zip(&together).enumerate() {
            assert!(
                (one - two).abs() <= 1e-5,
                "step {step}: {one} apart, and {two} together"
            );
        }
        let mean = |losses: &[f32]| losses.iter().sum::<f32>() / losses.len() as f32;
        let (first, last) = (mean(&apart[..5]), mean(&apart[STEPS - 5..]));
        assert!(
            last < 0.8 * first,
            "nothing was learnt: {first} at first, {last} at last"
        );
    }
}
