//! A backward pass from the value of a reference, at its owner.

use std::time::Duration;

use super::status_of;
use crate::autograd::{ContextId, Mode, Options};
use crate::tape::{Tape, Var};
use crate::worker::Worker;
use rendez::ground::Status;
use rendez_rpc::{Context, Error, Functions, RRef};

const BACKWARD: &str = "autograd.backward";

/// The function by which others begin a pass here.
pub(super) fn register(functions: Functions, worker: &Worker<Tape>) -> Functions {
    let worker = worker.clone();
    let begin = move |root: RRef<Var>, context: u64, is_fast: bool, retain: bool| {
        let root = root.local_value()?;
        let mode = if is_fast { Mode::Fast } else { Mode::Smart };
        let options = Options { mode, retain };
        let context = ContextId::from_wire(context);
        // Its caller does not wait longer, and the pass is then given up. Without a limit there is none.
        let left = Context::current().and_then(|call| call.time_left());
        let left = left.map_or(Duration::ZERO, |left| left.max(Duration::from_nanos(1)));
        worker
            .backward_within(context, std::slice::from_ref(&*root), options, left)
            .map_err(Error::local)
    };
    functions.add(BACKWARD, begin)
}

/// Runs a backward pass through `context` from the value of `root`, which may live at any worker, and waits for its end
/// at all workers. The value stays where it is. When the time of a call of its worker is over the pass is given up.
///
/// # Errors
/// As [`Worker::backward`], at the owner of `root`.
pub fn backward(root: &RRef<Var>, context: ContextId, options: Options) -> Result<(), Status> {
    let arguments = (
        context.to_wire(),
        options.mode == Mode::Fast,
        options.retain,
    );
    root.rpc_sync(BACKWARD, arguments)
        .map_err(|error| status_of(&error))
}
