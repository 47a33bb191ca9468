//! Variables: tensors that outlive a step, by name, in containers.
//!
//! A variable's content is a whole tensor, replaced and never written to: whoever read it keeps what it read, and what
//! computes a new content from the old holds the lock meanwhile, so that no update is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::ground::{Status, catalogue};
use crate::memory::Tensor;

/// A tensor that outlives a step.
#[derive(Debug)]
pub struct Variable {
    name: String,
    content: Mutex<Option<Tensor>>,
}

/// The variables of one task.
#[derive(Debug, Default)]
pub struct Variables(Mutex<BTreeMap<(String, String), Arc<Variable>>>);

impl Variable {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether anything was assigned to it.
    #[must_use]
    pub fn is_initialized(&self) -> bool {
        self.lock().is_some()
    }

    /// Its content at this moment.
    ///
    /// # Errors
    /// `FailedPrecondition` if it has none yet.
    pub fn read(&self) -> Result<Tensor, Status> {
        self.lock().clone().ok_or_else(|| self.empty())
    }

    /// Replaces its content.
    pub fn assign(&self, content: Tensor) {
        *self.lock() = Some(content);
    }

    /// Replaces its content by what `next` makes of it; nobody else can assign meanwhile. Gives the new content.
    ///
    /// # Errors
    /// `FailedPrecondition` if it has none yet; what `next` says, and the content is as it was.
    pub fn update(
        &self,
        next: impl FnOnce(&Tensor) -> Result<Tensor, Status>,
    ) -> Result<Tensor, Status> {
        let mut content = self.lock();
        let old = content.as_ref().ok_or_else(|| self.empty())?;
        let new = next(old)?;
        *content = Some(new.clone());
        Ok(new)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Tensor>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn empty(&self) -> Status {
        let message = format!(
            "Attempting to use uninitialized value {}: run what initialises it first",
            self.name
        );
        Status::of(catalogue::VARIABLE_EMPTY, message)
    }
}

impl Variables {
    /// The variable of that name; a new one without content if there is none.
    #[must_use]
    pub fn find(&self, container: &str, name: &str) -> Arc<Variable> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = all.entry((container.to_owned(), name.to_owned()));
        let variable = place.or_insert_with(|| {
            Arc::new(Variable {
                name: name.to_owned(),
                content: Mutex::default(),
            })
        });
        Arc::clone(variable)
    }

    /// Forgets the variables of these containers; of all if none is named. Who holds one keeps it.
    pub fn clear(&self, containers: &[String]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(container, _), _| {
            !containers.is_empty() && !containers.iter().any(|named| named == container)
        });
    }
}
