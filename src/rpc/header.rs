//! The header of a leg: bytes of observers that ride along, and that tell them if they do not leave.

use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use smallvec::SmallVec;
use smol_str::SmolStr;

use crate::id::WorkerId;
use crate::observer::{Leg, Observer};

/// See the module. Dropped before it has left, it tells all observers so; a clone tells nothing.
pub struct Header(State);

enum State {
    /// Of a leg that has come, or a copy.
    Plain(Vec<u8>),
    Leaving(Box<Leaving>),
}

/// Of a leg that has not left this worker.
struct Leaving {
    bytes: Vec<u8>,
    /// Who is told; empty once it has left.
    observers: SmallVec<[Arc<dyn Observer>; 1]>,
    is_reply: bool,
    me: WorkerId,
    peer: WorkerId,
    function: SmolStr,
}

impl Header {
    /// Of a leg that is about to leave.
    pub(crate) fn leaving(bytes: Vec<u8>, leg: Leg<'_>, observers: &[Arc<dyn Observer>]) -> Self {
        Self(State::Leaving(Box::new(Leaving {
            bytes,
            observers: observers.iter().cloned().collect(),
            is_reply: leg.is_reply,
            me: leg.me,
            peer: leg.peer,
            function: leg.function.into(),
        })))
    }

    /// Its leg may reach the other side from now on.
    pub(crate) fn leaves(&mut self) {
        if let State::Leaving(leaving) = &mut self.0 {
            leaving.observers.clear();
        }
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if mutant!("rpc_unsent_untold") {
            return;
        }
        let leg = Leg {
            is_reply: self.is_reply,
            me: self.me,
            peer: self.peer,
            function: &self.function,
        };
        // Where it is dropped others are served as well: a panic of an observer ends nothing here.
        for observer in &self.observers {
            if catch_unwind(AssertUnwindSafe(|| observer.unsent(leg, &self.bytes))).is_err() {
                tracing::warn!(
                    function = leg.function,
                    "an observer of remote calls panicked"
                );
            }
        }
    }
}

impl From<Vec<u8>> for Header {
    fn from(bytes: Vec<u8>) -> Self {
        Self(State::Plain(bytes))
    }
}

impl From<Header> for Arc<[u8]> {
    fn from(header: Header) -> Self {
        (*header).into()
    }
}

impl Clone for Header {
    fn clone(&self) -> Self {
        self.to_vec().into()
    }
}

impl Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            State::Plain(bytes) => bytes,
            State::Leaving(leaving) => &leaving.bytes,
        }
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Header").field(&&**self).finish()
    }
}
