//! Calls and results that are packed: what travels of them, and what is held meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use rendez::ground::catalogue;

use super::context::may_call;
use super::rref::{Handle, Pack};
use super::shared::Shared;
use crate::error::Error;
use crate::header::Header;
use crate::id::WorkerId;
use crate::message::{Reference, Standing};
use crate::observer::Leg;
use crate::payload::{Parts, Payload};
use crate::value::{Packer, ValueError};

/// A call that is packed.
pub(crate) struct Packed {
    pub(crate) payload: Payload,
    /// `None` if it has no references: most have none.
    pub(crate) shares: Option<Box<Shares>>,
}

/// The references of a call that is packed.
#[derive(Default)]
pub(crate) struct Shares {
    pub(crate) references: Vec<Reference>,
    /// Handles of them, that hold them until the desk has counted them.
    pub(crate) carried: Vec<Handle>,
    /// Handles that stay until the call has ended.
    pub(crate) keeps: Vec<Handle>,
}

impl Shared {
    /// Packs the arguments of a call.
    pub(crate) fn pack<A: Pack>(
        &self,
        to: WorkerId,
        function: &str,
        args: &A,
    ) -> Result<Packed, Error> {
        may_call()?;
        let leg = Leg {
            is_reply: false,
            me: self.me,
            peer: to,
            function,
        };
        self.options
            .observers
            .iter()
            .for_each(|observer| observer.sending(leg));
        let mut packer = Packer::default();
        let written = catch_unwind(AssertUnwindSafe(|| args.put(&mut packer)));
        let written = written.unwrap_or_else(|panic| {
            self.unwritten(leg);
            resume_unwind(panic)
        });
        let header = written.and_then(|()| self.header(leg, &packer));
        let header = header.map_err(|error| {
            self.unwritten(leg);
            let message = format!("the arguments of '{function}' cannot travel: {error}");
            Error::of(error.reason(), message)
        })?;
        let types = args.types();
        self.packed(types, header, packer)
    }

    /// Tells observers that a leg does not go.
    pub(crate) fn unwritten(&self, leg: Leg<'_>) {
        let observers = &self.options.observers;
        observers
            .iter()
            .for_each(|observer| observer.unwritten(leg));
    }

    /// What observers want to ride along.
    pub(crate) fn header(
        &self,
        leg: Leg<'_>,
        packer: &Packer,
    ) -> Result<Option<Header>, ValueError> {
        let observers = &self.options.observers;
        let mut header = None;
        for observer in observers {
            // Dropped by an observer that refuses, it tells those before that it does not leave.
            let Some(bytes) = observer.sent(leg, &packer.tensors)? else {
                continue;
            };
            if header.is_some() {
                let message = "two observers have a header for it, and it carries one";
                return Err(ValueError::new(message));
            }
            header = Some(Header::leaving(bytes, leg, observers));
        }
        Ok(header)
    }

    pub(crate) fn packed(
        &self,
        types: u32,
        header: Option<Header>,
        packer: Packer,
    ) -> Result<Packed, Error> {
        let is_foreign = |handle: &&Handle| !std::ptr::eq(handle.0.shared.as_ptr(), self);
        if let Some(handle) = packer.handles.iter().find(is_foreign) {
            let message =
                format!("{handle:?} belongs to another agent, or to one that is shut down");
            return Err(Error::of(catalogue::RPC_REFERENCE, message));
        }
        let reference = |handle: &Handle| Reference {
            rref: handle.0.rref,
            owner: handle.0.owner,
            fork: self.fresh(),
            parent: handle.0.fork.unwrap_or(handle.0.rref),
            standing: Standing::Known,
        };
        let shares = (!packer.handles.is_empty()).then(|| {
            Box::new(Shares {
                references: packer.handles.iter().map(reference).collect(),
                carried: packer.handles,
                keeps: Vec::new(),
            })
        });
        let payload = Payload::from(Parts {
            types,
            header,
            plain: packer.plain,
            tensors: packer.tensors,
            ..Parts::default()
        });
        Ok(Packed { payload, shares })
    }
}
