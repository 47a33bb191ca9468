//! Users: who keeps an engine running.
//!
//! Its threads hold what is inside as well, for a moment or for a call; it ends without asking them, on the thread that
//! drops the last handle of a user's.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::{Engine, Inner};

/// What the handles of users share: clones of the engine, its steps, receives and devices. The engine stops with the
/// last of them.
pub(crate) struct Users {
    inner: Arc<Inner>,
    /// False for a handle of the engine's own.
    are_counted: bool,
}

impl Users {
    /// Those of an engine that has just begun.
    pub(super) fn of(inner: Arc<Inner>) -> Arc<Self> {
        let are_counted = true;
        Arc::new(Self { inner, are_counted })
    }

    /// A stand-in for them, for code inside: it keeps nothing running, and stops nothing.
    pub(super) fn none(inner: Arc<Inner>) -> Arc<Self> {
        let are_counted = false;
        Arc::new(Self { inner, are_counted })
    }
}

impl Engine {
    /// A handle for code inside, by which it does what users do. It is given to no user.
    pub(crate) fn within(inner: Arc<Inner>) -> Self {
        let inner = Users::none(inner);
        Self { inner }
    }
}

impl Deref for Users {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Drop for Users {
    fn drop(&mut self) {
        if self.are_counted {
            self.inner.lose_users();
        }
    }
}
