//! Offers: services of what a program starts on an engine that runs already, by name.
//!
//! Numbers of services are given out when the engine starts. One of them, [`services::OFFERED`], asks these.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use prost::Message;

use super::{Engine, services};
use crate::control::{Incoming, read_answer};
use crate::ground::{Locked, Status, TaskName, catalogue, faults};
use crate::mail::forks;
use rendez_proto::services::{OfferedNames, OfferedRequest};

type Function = dyn Fn(&Incoming, &[u8]) -> Result<Vec<u8>, Status> + Send + Sync;
type Table = BTreeMap<String, Arc<Function>>;

/// The offers of an engine.
#[derive(Clone, Default)]
pub(crate) struct EngineOffers(Arc<Mutex<Table>>);

impl std::fmt::Debug for EngineOffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}

/// Something that peers may ask for by name, until this is dropped.
#[must_use = "an offer that is dropped ends"]
pub struct Offer {
    offers: EngineOffers,
    name: String,
}

impl std::fmt::Debug for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Offer").field(&self.name).finish()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        if !forks::is_child() {
            self.offers.lock().remove(&self.name);
        }
    }
}

impl EngineOffers {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.locked()
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> impl Sized + '_ {
        self.lock()
    }

    /// Answers a call of [`services::OFFERED`].
    pub(super) fn answer(&self, call: &Incoming) -> Result<Vec<u8>, Status> {
        let asked = OfferedRequest::decode(&*call.payload).map_err(|error| {
            let message = format!("not an OfferedRequest: {error}");
            Status::of(catalogue::CALL_MALFORMED, message)
        })?;
        if asked.name.is_empty() {
            let names = self.lock().keys().cloned().collect();
            return Ok(OfferedNames { names }.encode_to_vec());
        }
        let function = self.lock().get(&asked.name).cloned();
        let function = function.ok_or_else(|| {
            let message = format!("this task offers nothing named '{}'", asked.name);
            Status::of(catalogue::CALL_UNKNOWN, message)
        })?;
        function(call, &asked.payload)
    }
}

impl Engine {
    /// Has peers' questions for `name` answered by `function`, as long as what is returned is kept. Peers ask with
    /// [`Engine::ask_offer`]; the function may block until the call's deadline.
    ///
    /// # Errors
    /// `CALL_BUSY`: something of that name is offered already.
    pub fn offer(
        &self,
        name: &str,
        function: impl Fn(&Incoming, &[u8]) -> Result<Vec<u8>, Status> + Send + Sync + 'static,
    ) -> Result<Offer, Status> {
        if forks::is_child() {
            return Err(faults::forked());
        }
        let offers = self.inner.wiring.offers.clone();
        let mut table = offers.lock();
        if table.contains_key(name) {
            let message = format!("this engine already offers something named '{name}'");
            return Err(Status::of(catalogue::CALL_BUSY, message));
        }
        table.insert(name.to_owned(), Arc::new(function));
        drop(table);
        Ok(Offer {
            offers,
            name: name.to_owned(),
        })
    }

    /// Asks `task` for what it offers under `name`.
    ///
    /// # Errors
    /// As [`Engine::call`]; `CALL_UNKNOWN` if it offers nothing of that name.
    pub fn ask_offer(
        &self,
        task: &TaskName,
        name: &str,
        payload: &[u8],
        patience: Duration,
    ) -> Result<Vec<u8>, Status> {
        let question = OfferedRequest {
            name: name.to_owned(),
            payload: payload.to_vec(),
        };
        self.call(task, services::OFFERED, &question.encode_to_vec(), patience)
    }

    /// The names of what `task` offers.
    ///
    /// # Errors
    /// As [`Engine::call`].
    pub fn offers_of(&self, task: &TaskName, patience: Duration) -> Result<Vec<String>, Status> {
        let answer = self.ask_offer(task, "", &[], patience)?;
        let names: OfferedNames = read_answer(&task.to_string(), &answer)?;
        Ok(names.names)
    }
}
