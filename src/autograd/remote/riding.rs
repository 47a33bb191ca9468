//! What rides along with calls: in a context, the envelope.

use std::cell::RefCell;

use super::{MESSAGE, first_id, value};
use crate::autograd::{WorkerId, codec};
use crate::tape::{Tape, Var};
use crate::worker::{Entered, Worker, current_context, enter_nested};
use rendez::memory::Tensor;
use rendez_rpc::{Leg, Observer, ValueError};

thread_local! {
    /// The contexts of the functions that this thread carries out.
    static ENTERED: RefCell<Vec<Entered>> = const { RefCell::new(vec![]) };
}

pub(super) struct Riding {
    worker: Worker<Tape>,
}

impl Riding {
    pub(super) const fn new(worker: Worker<Tape>) -> Self {
        Self { worker }
    }
}

impl Observer for Riding {
    fn begun(&self, me: rendez_rpc::WorkerId) {
        self.worker.set_number(WorkerId(me.0), first_id());
    }

    fn sending(&self, leg: Leg<'_>) {
        let context = current_context().filter(|_| leg.function != MESSAGE);
        let checked = context.map_or(Ok(()), |context| {
            self.worker.check_send(context, WorkerId(leg.peer.0))
        });
        value::begin_leaving(checked.err());
    }

    fn unwritten(&self, _: Leg<'_>) {
        drop(value::left());
    }

    fn sent(&self, leg: Leg<'_>, tensors: &[Tensor]) -> Result<Option<Vec<u8>>, ValueError> {
        let leaving = value::left();
        let Some(context) = current_context().filter(|_| leg.function != MESSAGE) else {
            return Ok(None);
        };
        let has_history = !leaving.is_empty();
        let tape = self.worker.engine();
        let mut vars: Vec<Var> = tensors
            .iter()
            .map(|tensor| tape.constant(tensor.clone()))
            .collect();
        for (place, var) in leaving {
            if let Some(at) = vars.get_mut(place) {
                *at = var;
            }
        }
        let recorded = self
            .worker
            .outgoing(context, WorkerId(leg.peer.0), &vars, leg.is_reply);
        match recorded {
            Ok((envelope, _)) => Ok(envelope.map(|envelope| codec::encode_envelope(&envelope))),
            // Its receiver was lost while the values were written. Without eager tensors there is nothing to lose.
            Err(status) if has_history => Err(ValueError::of(&status)),
            Err(_) => Ok(None),
        }
    }

    fn unsent(&self, _: Leg<'_>, header: &[u8]) {
        if let Ok(envelope) = codec::decode_envelope(header) {
            self.worker.not_sent(&envelope);
        }
    }

    fn receiving(&self, leg: Leg<'_>, header: Option<&[u8]>, tensors: &[Tensor]) {
        let envelope = header.map(codec::decode_envelope).transpose();
        let from = WorkerId(leg.peer.0);
        value::coming(Some(envelope.and_then(|envelope| {
            self.worker
                .incoming(from, envelope.as_ref(), tensors.to_vec())
        })));
    }

    fn received(&self, _: Leg<'_>) {
        value::coming(None);
    }

    fn enter(&self, _: Leg<'_>, header: Option<&[u8]>) {
        let envelope = header.and_then(|header| codec::decode_envelope(header).ok());
        let entered = enter_nested(envelope.map(|envelope| envelope.context));
        ENTERED.with_borrow_mut(|all| all.push(entered));
    }

    fn leave(&self, _: Leg<'_>, _: Option<&[u8]>) {
        ENTERED.with_borrow_mut(|all| drop(all.pop()));
    }

    fn found(&self, worker: rendez_rpc::WorkerId) {
        self.worker.worker_joined(WorkerId(worker.0));
    }

    fn lost(&self, worker: rendez_rpc::WorkerId) {
        self.worker.worker_dead(WorkerId(worker.0));
    }
}
