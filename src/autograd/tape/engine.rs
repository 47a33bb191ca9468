//! The tape as the local engine of distributed autograd.

use std::sync::MutexGuard;

use super::task::{Side, Task, Tasks, check_roots, sum};
use super::var::{Edge, Kind, Tape, Var};
use crate::autograd::{
    ContextId, Envelope, Input, LocalEngine, MessageId, PassId, Port, Ran, Start,
};
use rendez::ground::{Locked, Status, catalogue};
use rendez::memory::Tensor;

impl Tape {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        self.inner.tasks.locked()
    }

    /// How many messages and passes it keeps something of.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        let tasks = self.tasks();
        (tasks.sends.len(), tasks.passes.len())
    }

    /// Puts a task back, unless its pass was discarded meanwhile.
    fn put_back(&self, pass: PassId, task: Task) {
        if let Some(held) = self.tasks().passes.get_mut(&pass) {
            *held = Some(task);
        }
    }
}

impl LocalEngine for Tape {
    type Value = Var;
    type Gradient = Tensor;

    fn requires_gradient(&self, value: &Var) -> bool {
        value.requires_gradient()
    }

    fn value(&self, value: &Var) -> Tensor {
        value.tensor.clone()
    }

    fn record_send(&self, envelope: &Envelope, values: &[Var]) {
        let name = (envelope.context, envelope.message);
        self.tasks().sends.insert(name, values.into());
    }

    fn forget_send(&self, envelope: &Envelope) {
        let name = (envelope.context, envelope.message);
        let values = self.tasks().sends.remove(&name);
        // Dropped when others may use the tape again: a history may be long.
        drop(values);
    }

    fn record_receive(&self, envelope: &Envelope, tensors: Vec<Tensor>) -> Vec<Var> {
        let len = u16::try_from(envelope.requires.len()).unwrap_or(u16::MAX);
        let function = self.function(
            Kind::Received {
                message: envelope.message,
                len,
            },
            vec![],
        );
        let wants = envelope
            .requires
            .iter()
            .copied()
            .chain(std::iter::repeat(false));
        let each = (0u16..)
            .zip(tensors)
            .zip(wants)
            .map(|((slot, tensor), wants)| {
                let function = wants.then(|| function.clone());
                self.var(tensor, function.map(|function| Edge { function, slot }))
            });
        each.collect()
    }

    fn constants(&self, tensors: Vec<Tensor>) -> Vec<Var> {
        tensors
            .into_iter()
            .map(|tensor| self.constant(tensor))
            .collect()
    }

    fn check_roots(&self, roots: &[Var]) -> Result<(), Status> {
        check_roots(roots)
    }

    fn begin(&self, pass: PassId, roots: Vec<Var>) {
        self.tasks().passes.insert(pass, Some(Task::of(roots)));
    }

    fn mark(&self, pass: PassId, starts: &[Start]) -> Result<Vec<Port>, Status> {
        let mut tasks = self.tasks();
        let Tasks { sends, passes } = &mut *tasks;
        let held = passes.entry(pass).or_insert_with(|| Some(Task::default()));
        let task = held.as_mut().ok_or_else(busy)?;
        let mut edges = vec![];
        for start in starts {
            let (side, value) = match start {
                Start::Root(index) => (Side::Root(*index), task.roots.get(*index as usize)),
                Start::Send(port) if task.starts.insert(*port) => {
                    let values = sends
                        .get(&(pass.context, port.message))
                        .ok_or_else(|| unknown(port.message))?;
                    (Side::Send(*port), values.get(usize::from(port.index)))
                }
                Start::Send(_) => continue,
            };
            edges.extend(value.and_then(|value| Some((side, value.edge.clone()?))));
        }
        let mut task = held.take().ok_or_else(busy)?;
        // A history may be long, and others use the tape meanwhile: a shard's thread among them.
        drop(tasks);
        let found = task.mark(edges);
        self.put_back(pass, task);
        found
    }

    fn is_light(&self, pass: PassId, starts: &[Start]) -> bool {
        let tasks = self.tasks();
        let task = tasks.passes.get(&pass);
        if starts.is_empty() {
            return task.and_then(Option::as_ref).is_some_and(Task::is_light);
        }
        let edge_of = |start: &Start| match start {
            Start::Root(_) => None,
            Start::Send(port) => {
                let values = tasks.sends.get(&(pass.context, port.message))?;
                values.get(usize::from(port.index))?.edge.clone()
            }
        };
        let edges: Vec<_> = starts.iter().filter_map(edge_of).collect();
        match task {
            Some(Some(task)) => task.is_light_with(&edges),
            Some(None) => false,
            None => Task::default().is_light_with(&edges),
        }
    }

    fn run(&self, pass: PassId, inputs: Vec<Input<Tensor>>) -> Result<Ran<Tensor>, Status> {
        let mut tasks = self.tasks();
        let held = tasks.passes.get_mut(&pass).and_then(Option::take);
        let Some(mut task) = held else {
            return Err(busy());
        };
        let values_of = |input: &Input<Tensor>| match input {
            Input::Root(_) => None,
            Input::Send { message, .. } => tasks.sends.get(&(pass.context, *message)).cloned(),
        };
        let values: Vec<_> = inputs.iter().map(values_of).collect();
        drop(tasks);
        for (input, values) in inputs.into_iter().zip(values) {
            match input {
                Input::Root(index) => task.take_root(self, index)?,
                Input::Send { message, gradients } => {
                    let values = values.ok_or_else(|| unknown(message))?;
                    task.take_in(self, message, &values, gradients)?;
                }
            }
        }
        let ran = task.run(self)?;
        self.put_back(pass, task);
        Ok(ran)
    }

    fn finish(&self, pass: PassId, retain: bool) {
        let mut tasks = self.tasks();
        let Some(task) = tasks.passes.remove(&pass).flatten() else {
            return;
        };
        let starts = task.starts.iter().filter(|_| !retain);
        let sends: Vec<_> = starts
            .map(|port| tasks.sends.remove(&(pass.context, port.message)))
            .collect();
        // Dropped when others may use the tape again: a history may be long.
        drop(tasks);
        drop(sends);
        if !retain {
            task.use_up();
        }
    }

    fn discard(&self, pass: PassId) {
        let task = self.tasks().passes.remove(&pass);
        // Dropped when others may use the tape again: a history may be long.
        drop(task);
    }

    fn forget(&self, context: ContextId) {
        let mut tasks = self.tasks();
        let sends: Vec<_> = tasks.sends_of(context).map(|(name, _)| *name).collect();
        let passes: Vec<_> = tasks.passes_of(context).map(|(pass, _)| *pass).collect();
        // Dropped when others may use the tape again: a history may be long.
        let sends: Vec<_> = sends.iter().map(|name| tasks.sends.remove(name)).collect();
        let passes: Vec<_> = passes
            .iter()
            .map(|pass| tasks.passes.remove(pass))
            .collect();
        drop(tasks);
        drop((sends, passes));
    }

    fn forgets_lightly(&self, context: ContextId) -> bool {
        let tasks = self.tasks();
        let mut task = Task::default();
        let mut edges = vec![];
        for value in tasks
            .sends_of(context)
            .flat_map(|(_, values)| values.iter())
        {
            if !task.weighs(&value.tensor) {
                return false;
            }
            edges.extend(value.edge.clone());
        }
        // A pass that has not ended holds what only its end lets go of.
        tasks.passes_of(context).next().is_none() && task.is_light_with(&edges)
    }

    fn sum(&self, parts: Vec<Tensor>) -> Result<Tensor, Status> {
        let none = || Status::of(catalogue::AUTOGRAD_OPERATION, "there is nothing to add");
        sum(self, parts)?.ok_or_else(none)
    }
}

fn unknown(message: MessageId) -> Status {
    let text = format!("Could not find send function for autograd message id: {message}");
    Status::of(catalogue::AUTOGRAD_FUNCTION_UNKNOWN, text)
}

fn busy() -> Status {
    let text = "a backward pass was discarded, or is run by another thread";
    Status::of(catalogue::AUTOGRAD_FUNCTION_UNKNOWN, text)
}
