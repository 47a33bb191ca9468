//! Parameters, and an optimizer of those of one worker.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::rule::Rule;
use super::step::{ParameterState, Real, step};
use crate::tape::{Tape, Var};
use rendez::ground::{DType, Locked, Status, catalogue};
use rendez::memory::{Element, Tensor, TensorBuilder};

/// A leaf whose value changes by steps of optimizers. Cheap to clone: all clones are one parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    place: Arc<Place>,
    id: u64,
}

/// What all clones of a parameter share.
#[derive(Debug)]
struct Place {
    value: Mutex<Var>,
    /// Held from the look at the value until the next one is there, so that none is lost. Always taken before `value`,
    /// and after what an optimizer keeps of the parameter.
    change: Mutex<()>,
    /// Its first value lay in an arena, where peers fetch it without a copy: those after it belong there too.
    is_at_home: bool,
}

/// What is kept of one parameter, in its type.
#[derive(Clone, Debug)]
enum Kept {
    Single(ParameterState<f32>),
    Double(ParameterState<f64>),
}

/// An optimizer of parameters of one worker. Several threads may step at once, also by several optimizers: each
/// parameter is stepped by one at a time.
#[derive(Debug)]
pub struct Optimizer {
    rule: Rule,
    parameters: Vec<(Parameter, Mutex<Kept>)>,
}

impl Parameter {
    /// A parameter that begins with `value`.
    ///
    /// # Errors
    /// `AUTOGRAD_OPTIMIZER` for a type that no gradient has.
    pub fn new(tape: &Tape, value: Tensor) -> Result<Self, Status> {
        let var = tape.leaf(value);
        let id = var
            .leaf_id()
            .filter(|_| matches!(var.dtype(), DType::F32 | DType::F64));
        let id = id.ok_or_else(|| unfit(var.dtype()))?;
        Ok(Self {
            place: Arc::new(Place {
                is_at_home: var.tensor().region().is_some(),
                value: Mutex::new(var),
                change: Mutex::new(()),
            }),
            id,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Var> {
        let value = &self.place.value;
        value.locked()
    }

    /// While it is held no other thread changes the value.
    fn change(&self) -> MutexGuard<'_, ()> {
        let change = &self.place.change;
        change.locked()
    }

    /// Its value now, a leaf to compute with. What was computed of it before a step goes on with what it was then.
    #[must_use]
    pub fn var(&self) -> Var {
        self.lock().clone()
    }

    /// What its gradient is found by: the same before and after a step.
    #[must_use]
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Gives it another value.
    ///
    /// # Errors
    /// `AUTOGRAD_OPTIMIZER` for one of another type or shape.
    pub fn set(&self, value: Tensor) -> Result<(), Status> {
        let _change = self.change();
        self.replace(value)
    }

    fn replace(&self, value: Tensor) -> Result<(), Status> {
        let mut var = self.lock();
        if value.meta() != var.tensor().meta() {
            let message = format!(
                "a parameter is {:?}, and cannot become {:?}",
                var.tensor().meta(),
                value.meta()
            );
            return Err(Status::of(catalogue::AUTOGRAD_OPTIMIZER, message));
        }
        *var = var.with_value(value);
        Ok(())
    }
}

impl Optimizer {
    /// An optimizer of `parameters`, which has made no step.
    ///
    /// # Errors
    /// As [`Rule::check`]; `AUTOGRAD_OPTIMIZER` without parameters, or with the same one twice.
    pub fn new(rule: Rule, parameters: Vec<Parameter>) -> Result<Self, Status> {
        rule.check()?;
        let refuse = |what: &str| Err(Status::of(catalogue::AUTOGRAD_OPTIMIZER, what));
        let mut ids: Vec<_> = parameters.iter().map(Parameter::id).collect();
        ids.sort_unstable();
        if ids.is_empty() {
            return refuse("optimizer got an empty parameter list");
        }
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return refuse("a parameter was given to the optimizer twice");
        }
        let kept = |parameter: Parameter| {
            let kept = match parameter.var().dtype() {
                DType::F64 => Kept::Double(ParameterState::default()),
                _ => Kept::Single(ParameterState::default()),
            };
            (parameter, Mutex::new(kept))
        };
        Ok(Self {
            rule,
            parameters: parameters.into_iter().map(kept).collect(),
        })
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().map(|(parameter, _)| parameter)
    }

    /// Steps every parameter that has a gradient, by [`Parameter::id`]. Others stay as they are, as in PyTorch.
    ///
    /// # Errors
    /// `AUTOGRAD_OPTIMIZER` for a gradient of another type or shape than its parameter; then nothing was stepped.
    pub fn step(&self, gradients: &BTreeMap<u64, Tensor>) -> Result<(), Status> {
        for parameter in self.parameters() {
            let meta = parameter.var().tensor().meta();
            if let Some(gradient) = gradients.get(&parameter.id())
                && gradient.meta() != meta
            {
                let message = format!(
                    "a parameter is {meta:?}, and its gradient {:?}",
                    gradient.meta()
                );
                return Err(Status::of(catalogue::AUTOGRAD_OPTIMIZER, message));
            }
        }
        for (parameter, kept) in &self.parameters {
            if let Some(gradient) = gradients.get(&parameter.id()) {
                let mut kept = kept.locked();
                self.step_one(parameter, &mut kept, gradient)?;
            }
        }
        Ok(())
    }

    fn step_one(
        &self,
        parameter: &Parameter,
        kept: &mut Kept,
        gradient: &Tensor,
    ) -> Result<(), Status> {
        let _change = parameter.change();
        let var = parameter.var();
        let value = var.tensor();
        // Where it is full the heap has room, since a step that has begun goes on.
        let room = parameter.place.is_at_home;
        let room = room.then(|| var.tape().home().allocate(value.meta()).ok());
        let room = room.flatten();
        let next = match kept {
            Kept::Single(state) => stepped::<f32>(&self.rule, state, room, value, gradient)?,
            Kept::Double(state) => stepped::<f64>(&self.rule, state, room, value, gradient)?,
        };
        parameter.replace(next)
    }
}

/// The next value, in this room if there is any.
fn stepped<T: Real + Element>(
    rule: &Rule,
    state: &mut ParameterState<T>,
    room: Option<TensorBuilder>,
    value: &Tensor,
    gradient: &Tensor,
) -> Result<Tensor, Status> {
    let copied;
    let gradient = match gradient.as_slice::<T>() {
        Ok(gradient) => gradient,
        // Foreign memory may begin anywhere.
        Err(_) => {
            copied = gradient.to_vec::<T>()?;
            &copied
        }
    };
    let Some(mut room) = room else {
        let mut values = value.to_vec::<T>()?;
        step(rule, state, &mut values, gradient);
        return Ok(Tensor::from_vec(values, value.shape())?);
    };
    room.bytes_mut().copy_from_slice(value.host()?);
    step(rule, state, room.as_mut_slice()?, gradient);
    Ok(room.finish())
}

fn unfit(dtype: DType) -> Status {
    let message = format!("a parameter is float or double, and {dtype} was given");
    Status::of(catalogue::AUTOGRAD_OPTIMIZER, message)
}
