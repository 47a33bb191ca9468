//! Eager tensors as arguments and results of calls.
//!
//! A tensor is written with its place among the tensors of the call, and noted in this thread: so what rides along
//! knows its history. What is read has the history that was made when the call came.

use std::cell::RefCell;

use crate::tape::Var;
use rendez::ground::Status;
use rendez_rpc::{Packer, Unpacker, Value, ValueError};

thread_local! {
    /// Of the leg that this thread writes: eager tensors by their places.
    static LEAVING: RefCell<Vec<(usize, Var)>> = const { RefCell::new(vec![]) };
    /// Why the leg that this thread writes cannot be recorded.
    static REFUSED: RefCell<Option<Status>> = const { RefCell::new(None) };
    /// Of the leg that it reads: all tensors, or why they have no history that they should have.
    static COMING: RefCell<Option<Result<Vec<Var>, Status>>> = const { RefCell::new(None) };
}

/// A leg is about to be written, and cannot bring eager tensors if it is `refused`.
pub(super) fn begin_leaving(refused: Option<Status>) {
    LEAVING.with_borrow_mut(Vec::clear);
    REFUSED.set(refused);
}

/// What was written of it.
pub(super) fn left() -> Vec<(usize, Var)> {
    LEAVING.take()
}

/// A leg has come with these tensors; none when it was read.
pub(super) fn coming(vars: Option<Result<Vec<Var>, Status>>) {
    COMING.set(vars);
}

impl Value for Var {
    fn name(to: &mut String) {
        to.push_str("Var");
    }

    fn put(&self, to: &mut Packer) -> Result<(), ValueError> {
        if let Some(status) = REFUSED.with_borrow(Option::clone) {
            return Err(ValueError::of(&status));
        }
        let place = to.tensor(self.tensor().clone())?;
        to.plain(&(place as u64))?;
        LEAVING.with_borrow_mut(|leaving| leaving.push((place, self.clone())));
        Ok(())
    }

    fn take(from: &mut Unpacker) -> Result<Self, ValueError> {
        from.tensor()?;
        let place: u64 = from.plain()?;
        let find = |vars: &Option<Result<Vec<Self>, Status>>| {
            let vars = vars
                .as_ref()
                .ok_or_else(|| ValueError::new("this worker takes no part in autograd"))?;
            let vars = vars.as_ref().map_err(ValueError::of)?;
            let var = usize::try_from(place)
                .ok()
                .and_then(|place| vars.get(place))
                .cloned();
            var.ok_or_else(|| ValueError::new("an eager tensor has a place where there is none"))
        };
        COMING.with_borrow(find)
    }
}
