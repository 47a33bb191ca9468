//! Values at their owners: they are there, or are waited for until they are.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use rendez::ground::{Locked, catalogue};

use super::Pending;
use super::rref::{Pack, RRef};
use super::shared::{Mode, Shared};
use crate::error::Error;
use crate::functions::Kept;
use crate::message::Target;
use crate::value::Packer;

/// A value of this worker that may not be there yet: see [`RRef::local_value_async`].
#[must_use = "who drops it does not wait for the value any more"]
pub struct PendingLocal<T> {
    reference: RRef<T>,
    shared: Arc<Shared>,
    /// It ends when the value is there. `None` if it was there.
    told: Option<Pending<()>>,
}

impl<T> std::fmt::Debug for PendingLocal<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingLocal({:?})", self.reference)
    }
}

impl<T: Any + Send + Sync> PendingLocal<T> {
    /// Blocks this thread until the value is there.
    ///
    /// # Errors
    /// As [`RRef::local_value`].
    pub fn wait(mut self) -> Result<Arc<T>, Error> {
        let told = self.told.take().map(Pending::wait);
        self.end(told)
    }

    /// Blocks this thread for at most `patience`.
    ///
    /// # Errors
    /// Itself, if the time is over; else as [`RRef::local_value`].
    pub fn wait_for(mut self, patience: Duration) -> Result<Result<Arc<T>, Error>, Self> {
        let told = match self.told.take().map(|told| told.wait_for(patience)) {
            Some(Err(told)) => {
                self.told = Some(told);
                return Err(self);
            }
            told => told.and_then(Result::ok),
        };
        Ok(self.end(told))
    }

    /// The value, or why it is not there.
    fn end(self, told: Option<Result<(), Error>>) -> Result<Arc<T>, Error> {
        let gone = || {
            let message = format!("there is no value of {} here", self.reference.id());
            Error::of(catalogue::RPC_REFERENCE, message)
        };
        let value = self.reference.look(&self.shared);
        value.unwrap_or_else(|| Err(told.and_then(Result::err).unwrap_or_else(gone)))
    }
}

impl<T: Any + Send + Sync> RRef<T> {
    /// The value, at its owner. Waits until it is there.
    ///
    /// # Errors
    /// This worker is not the owner; the function that was to make it failed; it is of another type; the time of
    /// [`Options::timeout`] is over.
    ///
    /// [`Options::timeout`]: crate::Options::timeout
    pub fn local_value(&self) -> Result<Arc<T>, Error> {
        let shared = self.owned()?;
        match self.look(&shared) {
            Some(value) => value,
            None => {
                let timeout = shared.options.timeout;
                self.expect(shared, timeout, Mode::Sync)?.wait()
            }
        }
    }

    /// The same, for at most `timeout`, and does not wait. Zero is no limit.
    ///
    /// # Errors
    /// As [`RRef::local_value`], as far as it is known at once.
    pub fn local_value_async(&self, timeout: Duration) -> Result<PendingLocal<T>, Error> {
        let shared = self.owned()?;
        match self.look(&shared) {
            Some(_) => Ok(self.pending(shared, None)),
            None => self.expect(shared, timeout, Mode::Async),
        }
    }

    fn owned(&self) -> Result<Arc<Shared>, Error> {
        let (shared, owner) = (self.shared()?, self.owner());
        if owner != shared.me {
            let message = format!(
                "Cannot call localValue() on a non-owner reference. Call it on '{}', and not on '{}'.",
                shared.name_of(owner),
                shared.name_of(shared.me)
            );
            return Err(Error::of(catalogue::RPC_REFERENCE, message));
        }
        Ok(shared)
    }

    /// The value, if it is there, or why it could not be made.
    fn look(&self, shared: &Shared) -> Option<Result<Arc<T>, Error>> {
        let values = shared.values.locked();
        let value = values.get(&self.id()).cloned()?;
        drop(values);
        let value = value.map_err(|fault| Error::remote(fault, &shared.name, shared.me));
        Some(value.and_then(|value| self.typed(value)))
    }

    fn typed(&self, value: Arc<dyn Kept>) -> Result<Arc<T>, Error> {
        let other = || {
            let wanted = std::any::type_name::<T>();
            let (id, there) = (self.id(), value.type_name());
            let message = format!("the value of {id} is {there}, and no {wanted}");
            Error::of(catalogue::RPC_REFERENCE, message)
        };
        Arc::clone(&value).any().downcast().map_err(|_| other())
    }

    /// Asks for the value as others ask for it: it is told when it is there; what it is does not matter.
    fn expect(
        &self,
        shared: Arc<Shared>,
        timeout: Duration,
        mode: Mode,
    ) -> Result<PendingLocal<T>, Error> {
        // Its answer is not read, so nothing of it is to be recorded: observers do not see it.
        let payload = shared.packed(().types(), None, Packer::default())?;
        let told = shared.start(shared.me, Target::Fetch(self.id()), payload, timeout, mode);
        Ok(self.pending(shared, Some(told)))
    }

    fn pending(&self, shared: Arc<Shared>, told: Option<Pending<()>>) -> PendingLocal<T> {
        PendingLocal {
            reference: self.clone(),
            shared,
            told,
        }
    }
}
