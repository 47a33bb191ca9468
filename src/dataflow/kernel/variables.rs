//! Variables: tensors that outlive a step, by name, in containers. Knows no node.
//!
//! A variable's content is a whole tensor, replaced and never written to: a reader keeps what it read. A writer that
//! computes the new content from the old holds the variable meanwhile, so that no update is lost; readers do not wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

use rendez::ground::{Locked, Shape, Status, catalogue};
use rendez::memory::Tensor;

#[cfg(test)]
mod tests;

/// The container of what names none.
const DEFAULT_CONTAINER: &str = "localhost";

/// A tensor that outlives a step.
#[derive(Debug)]
pub struct Variable {
    container: String,
    name: String,
    declared: OnceLock<Shape>,
    /// Held by the thread that replaces the content.
    turn: Mutex<()>,
    /// Held for as long as a handle is copied.
    content: Mutex<Option<Tensor>>,
    bytes: AtomicUsize,
    is_forgotten: AtomicBool,
}

/// The variables of one task.
#[derive(Debug, Default)]
pub struct Variables(Mutex<BTreeMap<(String, String), Arc<Variable>>>);

/// A variable that only its holder can assign to.
#[derive(Debug)]
pub struct Held<'a> {
    variable: &'a Variable,
    _turn: MutexGuard<'a, ()>,
}

impl Variable {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The container it is in.
    #[must_use]
    pub fn container(&self) -> &str {
        &self.container
    }

    /// Whether anything was assigned to it.
    #[must_use]
    pub fn is_initialized(&self) -> bool {
        self.content.locked().is_some()
    }

    /// The shape that its content is to have, if declared.
    #[must_use]
    pub fn declared(&self) -> Option<Shape> {
        self.declared.get().copied()
    }

    /// Says which shape its content is to have; only the first word counts.
    pub fn declare(&self, shape: Shape) {
        let _ = self.declared.set(shape);
    }

    /// Bytes of its content, of a moment ago.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// True if its name leads to it no more.
    #[must_use]
    pub fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Acquire)
    }

    /// Its content at this moment.
    ///
    /// # Errors
    /// `FailedPrecondition` if it has none yet.
    pub fn read(&self) -> Result<Tensor, Status> {
        self.content.locked().clone().ok_or_else(|| self.empty())
    }

    /// Replaces its content.
    pub fn assign(&self, content: Tensor) {
        self.hold().replace(content);
    }

    /// Replaces its content by what `next` makes of it; no other thread can assign meanwhile. Gives the new content.
    ///
    /// # Errors
    /// `FailedPrecondition` if it has none yet; what `next` says, and the content is as it was.
    pub fn update(
        &self,
        next: impl FnOnce(&Tensor) -> Result<Tensor, Status>,
    ) -> Result<Tensor, Status> {
        let held = self.hold();
        let new = next(&self.read()?)?;
        held.replace(new.clone());
        Ok(new)
    }

    /// Waits until no other thread assigns to it, and keeps others from it.
    #[must_use]
    pub fn hold(&self) -> Held<'_> {
        Held {
            variable: self,
            _turn: self.turn.locked(),
        }
    }

    /// The same if no other thread assigns to it now.
    #[must_use]
    pub fn try_hold(&self) -> Option<Held<'_>> {
        let turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(Held {
            variable: self,
            _turn: turn,
        })
    }

    fn empty(&self) -> Status {
        let message = format!(
            "Attempting to use uninitialized value {}: run what initialises it first",
            self.name
        );
        Status::of(catalogue::VARIABLE_EMPTY, message)
    }
}

impl Held<'_> {
    /// Replaces its content.
    pub fn replace(&self, content: Tensor) {
        let bytes = content.size();
        self.variable.bytes.store(bytes, Ordering::Relaxed);
        // The old content is dropped after the lock: it may be the last handle of much memory.
        let old = self.variable.content.locked().replace(content);
        drop(old);
    }
}

/// Holds all of `variables` as `hold` does, in an order that all callers follow; `None` if one is named twice.
///
/// # Errors
/// What `hold` says. None is held then.
pub fn hold_all<'a, E>(
    variables: &[&'a Arc<Variable>],
    mut hold: impl FnMut(&'a Variable) -> Result<Held<'a>, E>,
) -> Result<Option<Vec<Held<'a>>>, E> {
    let mut order: Vec<_> = variables.iter().enumerate().collect();
    order.sort_by_key(|(_, variable)| Arc::as_ptr(variable));
    if order
        .windows(2)
        .any(|pair| Arc::ptr_eq(pair[0].1, pair[1].1))
    {
        return Ok(None);
    }
    let mut held = Vec::with_capacity(order.len());
    for (place, variable) in order {
        held.push((place, hold(variable)?));
    }
    held.sort_by_key(|(place, _)| *place);
    Ok(Some(held.into_iter().map(|(_, held)| held).collect()))
}

impl Variables {
    /// The variable of that name; a new one without content if there is none. An empty container is the default one.
    #[must_use]
    pub fn find(&self, container: &str, name: &str) -> Arc<Variable> {
        let container = container_name(container);
        let mut all = self.0.locked();
        let place = all.entry((container.to_owned(), name.to_owned()));
        let variable = place.or_insert_with(|| {
            Arc::new(Variable {
                container: container.to_owned(),
                name: name.to_owned(),
                declared: OnceLock::new(),
                turn: Mutex::default(),
                content: Mutex::default(),
                bytes: AtomicUsize::new(0),
                is_forgotten: AtomicBool::new(false),
            })
        });
        Arc::clone(variable)
    }

    /// Forgets `variable`, unless another has taken its name; holders keep it. True if it was there.
    pub fn forget(&self, variable: &Arc<Variable>) -> bool {
        let mut all = self.0.locked();
        let key = (variable.container.clone(), variable.name.clone());
        let known = all
            .get(&key)
            .is_some_and(|found| Arc::ptr_eq(found, variable));
        if known {
            variable.is_forgotten.store(true, Ordering::Release);
            all.remove(&key);
        }
        known
    }

    /// Forgets the variables of these containers; of all if none is named. Holders of one keep it.
    pub fn clear(&self, containers: &[String]) {
        // Dropped when others may look for theirs again: they may hold much.
        let mut gone = vec![];
        self.0.locked().retain(|(container, _), variable| {
            let mut named = containers.iter().map(|named| container_name(named));
            let stays = !containers.is_empty() && !named.any(|named| named == container);
            if !stays {
                variable.is_forgotten.store(true, Ordering::Release);
                gone.push(Arc::clone(variable));
            }
            stays
        });
    }
}

fn container_name(container: &str) -> &str {
    match container {
        "" => DEFAULT_CONTAINER,
        named => named,
    }
}
