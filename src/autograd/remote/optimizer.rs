//! An optimizer of parameters that live at several workers.
//!
//! At each worker that has some of them an [`Optimizer`] is made; a step runs all of them side by side, each with the
//! gradients that the context has at its worker. Nothing but a parameter itself is locked.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::status_of;
use crate::autograd::ContextId;
use crate::optim::{Optimizer, Parameter, Rule};
use crate::tape::Tape;
use crate::worker::Worker;
use rendez::ground::{Status, catalogue};
use rendez_rpc::{
    Agent, Context, Error, Functions, Packer, Pending, RRef, Unpacker, Value, ValueError,
};

const NEW: &str = "autograd.optimizer.new";
const STEP: &str = "autograd.optimizer.step";

/// An optimizer of parameters at several workers.
#[derive(Debug)]
pub struct DistributedOptimizer {
    parts: Vec<RRef<Optimizer>>,
}

impl Value for Rule {
    fn name(to: &mut String) {
        to.push_str("autograd::Rule");
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        to.plain(self)
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        from.plain()
    }
}

/// The functions by which others make and step optimizers here.
pub(super) fn register(functions: Functions, worker: &Worker<Tape>) -> Functions {
    let worker = worker.clone();
    let new = |rule: Rule, parameters: Vec<RRef<Parameter>>| -> Result<RRef<Optimizer>, Error> {
        let outside = || Status::of(catalogue::AUTOGRAD_OPTIMIZER, "it is made in a call");
        let context = Context::current().ok_or_else(outside)?;
        let optimizer = made(rule, &parameters)?;
        Ok(RRef::to_object(&context.agent(), optimizer))
    };
    let step = move |part: RRef<Optimizer>, context: u64| -> Result<(), Error> {
        let optimizer = part.local_value()?;
        let gradients = worker.gradients(ContextId::from_wire(context));
        let stepped = gradients.and_then(|gradients| optimizer.step(&gradients));
        stepped.map_err(Error::local)
    };
    functions.add(NEW, new).add(STEP, step)
}

fn made(rule: Rule, parameters: &[RRef<Parameter>]) -> Result<Optimizer, Status> {
    let here = |parameter: &RRef<Parameter>| {
        let value: Result<Arc<Parameter>, Error> = parameter.local_value();
        value
            .map(|value| Parameter::clone(&value))
            .map_err(|error| status_of(&error))
    };
    let parameters = parameters.iter().map(here).collect::<Result<_, _>>()?;
    Optimizer::new(rule, parameters)
}

impl DistributedOptimizer {
    /// An optimizer of `parameters`, made at their owners.
    ///
    /// # Errors
    /// As [`Optimizer::new`], at any of them, after `Error creating optimizer.`
    pub fn new(agent: &Agent, rule: Rule, parameters: &[RRef<Parameter>]) -> Result<Self, Status> {
        rule.check()?;
        if parameters.is_empty() {
            let message = "optimizer got an empty parameter list";
            return Err(Status::of(catalogue::AUTOGRAD_OPTIMIZER, message));
        }
        let failed = |error: &Error| with_text("Error creating optimizer.", &status_of(error));
        let mut by_owner: BTreeMap<String, Vec<RRef<Parameter>>> = BTreeMap::new();
        for parameter in parameters {
            let owner = parameter.owner_name().map_err(|error| failed(&error))?;
            by_owner.entry(owner).or_default().push(parameter.clone());
        }
        let make = |(owner, parameters): (String, Vec<RRef<Parameter>>)| {
            agent.rpc_async(&owner, NEW, (rule, parameters))
        };
        let made = by_owner.into_iter().map(make).collect();
        let parts = all_done(made, "Error creating optimizer.")?;
        Ok(Self { parts })
    }

    /// Steps all parameters along the gradients of `context`, at all owners at once.
    ///
    /// # Errors
    /// After `Error running optimizer.`, what the first of them says that failed; the others have stepped all the same.
    pub fn step(&self, context: ContextId) -> Result<(), Status> {
        let context = context.to_wire();
        let steps = self
            .parts
            .iter()
            .map(|part| part.rpc_async::<()>(STEP, (context,)))
            .collect();
        all_done::<()>(steps, "Error running optimizer.").map(drop)
    }
}

/// Waits for all, and gives their results, or the first failure.
fn all_done<R: Value>(calls: Vec<Result<Pending<R>, Error>>, text: &str) -> Result<Vec<R>, Status> {
    let ends: Vec<Result<R, Error>> = calls
        .into_iter()
        .map(|call| call.and_then(Pending::wait))
        .collect();
    let results = ends.into_iter().collect::<Result<_, _>>();
    results.map_err(|error| with_text(text, &status_of(&error)))
}

fn with_text(text: &str, error: &Status) -> Status {
    Status::new(
        error.code(),
        error.reason(),
        format!("{text} {}", error.message()),
    )
}
