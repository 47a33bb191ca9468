//! Remote references, as programs hold them.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::packed::Packed;
use super::shared::{Command, Mode, QUEUED_MAX, Shared};
use super::{Agent, Pending};
use crate::error::Error;
use crate::functions::{Kept, Stays, Travels};
use crate::id::{ForkId, RRefId, WorkerId};
use crate::message::{Reference, Target};
use crate::payload::digest_of;
use crate::value::{Args, Packer, Value};
use rendez::ground::Locked;

/// A share of a reference that this program holds; the last clone dropped ends it.
#[derive(Clone)]
pub(crate) struct Handle(pub(crate) Arc<Held>);

/// What the clones of a handle share.
pub(crate) struct Held {
    pub(crate) shared: Weak<Shared>,
    pub(crate) rref: RRefId,
    pub(crate) owner: WorkerId,
    /// `None` at the owner.
    pub(crate) fork: Option<ForkId>,
    /// Why the value cannot be made, if that is known.
    pub(crate) failed: OnceLock<Error>,
    /// Whether the owner has confirmed that it knows this share.
    pub(crate) is_confirmed: OnceLock<()>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.fork {
            Some(fork) => write!(f, "UserRRef(RRefId={}, ForkId={fork})", self.0.rref),
            None => write!(f, "OwnerRRef({})", self.0.rref),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.push(match self.fork {
                Some(fork) => Command::DropUser(fork),
                None => Command::DropOwned(self.rref),
            });
        }
    }
}

impl Shared {
    /// Asks for a value to be made at `owner`, and left there.
    pub(crate) fn create(
        self: &Arc<Self>,
        owner: WorkerId,
        function: &str,
        packed: Packed,
        timeout: Duration,
    ) -> Handle {
        let (rref, fork) = (self.fresh(), self.fresh());
        if self.is_held_up() && !self.is_closed.load(Ordering::Acquire) {
            return self.refused(rref, owner, fork);
        }
        let is_own = owner == self.me;
        let handle = self.handle(rref, owner, (!is_own).then_some(fork));
        if is_own {
            self.push(Command::CreateOwned {
                rref,
                is_made: false,
            });
        }
        let target = Target::Remote {
            function: function.into(),
            rref,
            fork,
        };
        let pending: Pending<()> = self.start(owner, target, packed, timeout, Mode::Remote);
        let held = Arc::downgrade(&handle.0);
        pending.watch(move |outcome| {
            if let Some(held) = held.upgrade() {
                match outcome {
                    Ok(()) => drop(held.is_confirmed.set(())),
                    Err(error) => drop(held.failed.set(error)),
                }
            }
        });
        handle
    }

    /// A reference to what is not made, for the desk is held up: it is not told of it, neither now nor at its end.
    fn refused(&self, rref: RRefId, owner: WorkerId, fork: ForkId) -> Handle {
        self.figures.refused();
        let error = Error::local(crate::error::held_up(QUEUED_MAX)).at(&self.name_of(owner));
        Handle(Arc::new(Held {
            shared: Weak::new(),
            rref,
            owner,
            fork: (owner != self.me).then_some(fork),
            failed: OnceLock::from(error),
            is_confirmed: OnceLock::new(),
        }))
    }

    /// Keeps a value of this worker's own.
    pub(crate) fn keep(self: &Arc<Self>, value: Arc<dyn Kept>) -> Handle {
        let rref = self.fresh();
        let mut values = self.values.locked();
        values.insert(rref, Ok(value));
        drop(values);
        self.push(Command::CreateOwned {
            rref,
            is_made: true,
        });
        self.handle(rref, self.me, None)
    }

    pub(crate) fn handle(
        self: &Arc<Self>,
        rref: RRefId,
        owner: WorkerId,
        fork: Option<ForkId>,
    ) -> Handle {
        Handle(Arc::new(Held {
            shared: Arc::downgrade(self),
            rref,
            owner,
            fork,
            failed: OnceLock::new(),
            is_confirmed: OnceLock::new(),
        }))
    }

    /// Handles of references that have come: all of them are confirmed.
    pub(crate) fn handles(self: &Arc<Self>, references: &[Reference]) -> Vec<Handle> {
        let handle = |reference: &Reference| {
            let fork = (reference.owner != self.me).then_some(reference.fork);
            let handle = self.handle(reference.rref, reference.owner, fork);
            let _ = handle.0.is_confirmed.set(());
            handle
        };
        references.iter().map(handle).collect()
    }
}

/// A reference to a value of type `T` that lives at its *owner*: this worker or another.
///
/// It can be an argument and a result of calls. The owner keeps the value as long as anybody has a reference. Cheap to
/// clone.
pub struct RRef<T> {
    handle: Handle,
    value: PhantomData<fn() -> T>,
}

impl<T> Clone for RRef<T> {
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            value: PhantomData,
        }
    }
}

/// `OwnerRRef(…)` at the owner, `UserRRef(RRefId=…, ForkId=…)` elsewhere.
impl<T> fmt::Debug for RRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.handle, f)
    }
}

impl<T: Any + Send + Sync> RRef<T> {
    pub(crate) const fn of(handle: Handle) -> Self {
        Self {
            handle,
            value: PhantomData,
        }
    }

    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A reference to a value of this worker, of any type. It cannot travel itself; see [`RRef::new`].
    #[must_use]
    pub fn to_object(agent: &Agent, value: T) -> Self {
        Self::of(agent.shared().keep(Arc::new(Stays(Arc::new(value)))))
    }

    /// The worker where the value lives.
    #[must_use]
    pub fn owner(&self) -> WorkerId {
        self.handle.0.owner
    }

    /// The name of the worker where the value lives.
    ///
    /// # Errors
    /// The agent is shut down.
    pub fn owner_name(&self) -> Result<String, Error> {
        let shared = self.shared()?;
        Ok(shared.name_of(self.handle.0.owner))
    }

    /// True if the value lives at this worker.
    #[must_use]
    pub fn is_owner(&self) -> bool {
        self.handle.0.fork.is_none()
    }

    /// True if the owner has confirmed that it knows this reference.
    #[must_use]
    pub fn confirmed_by_owner(&self) -> bool {
        self.is_owner() || self.handle.0.is_confirmed.get().is_some()
    }

    /// The identity of the reference, the same at all workers.
    #[must_use]
    pub fn id(&self) -> RRefId {
        self.handle.0.rref
    }

    pub(super) fn shared(&self) -> Result<Arc<Shared>, Error> {
        let shared = self.handle.0.shared.upgrade();
        shared.ok_or_else(|| {
            let failed = self.usable().err();
            failed.unwrap_or_else(|| Error::local(crate::error::shut_down()))
        })
    }

    /// Calls a function at the owner, with this reference as its first argument, and waits for the result. No round
    /// trip is made but the call's.
    ///
    /// # Errors
    /// As [`Agent::rpc_sync`].
    pub fn rpc_sync<R: Value>(&self, function: &str, args: impl Args) -> Result<R, Error> {
        let shared = self.shared()?;
        let (owner, target, payload) = self.packed(&shared, function, args)?;
        shared.call(owner, target, payload, shared.options.timeout)
    }

    /// The same, and does not wait.
    ///
    /// # Errors
    /// As [`Agent::rpc_async`].
    pub fn rpc_async<R: Value>(
        &self,
        function: &str,
        args: impl Args,
    ) -> Result<Pending<R>, Error> {
        let shared = self.shared()?;
        let (owner, target, payload) = self.packed(&shared, function, args)?;
        let timeout = shared.options.timeout;
        Ok(shared.start(owner, target, payload, timeout, Mode::Async))
    }

    fn packed(
        &self,
        shared: &Shared,
        function: &str,
        args: impl Args,
    ) -> Result<(WorkerId, Target, Packed), Error> {
        self.usable()?;
        let owner = self.handle.0.owner;
        let payload = shared.pack(owner, function, &First(self, args))?;
        Ok((owner, Target::Function(function.into()), payload))
    }

    /// Calls a function at the owner, with this reference as its first argument, and leaves the result there.
    ///
    /// # Errors
    /// As [`Agent::remote`].
    pub fn remote<R>(&self, function: &str, args: impl Args) -> Result<RRef<R>, Error>
    where
        R: Any + Send + Sync,
    {
        let shared = self.shared()?;
        self.usable()?;
        let owner = self.handle.0.owner;
        let payload = shared.pack(owner, function, &First(self, args))?;
        Ok(RRef::of(shared.create(
            owner,
            function,
            payload,
            shared.options.timeout,
        )))
    }

    /// Asks for a copy of the value.
    pub(super) fn fetch<R>(&self, timeout: Duration, mode: Mode) -> Result<Pending<R>, Error> {
        let shared = self.shared()?;
        self.usable()?;
        let Held { rref, owner, .. } = *self.handle.0;
        let mut payload = shared.pack::<()>(owner, "", &())?;
        // The share stays until the answer is there.
        let shares = payload.shares.get_or_insert_default();
        shares.keeps.push(self.handle.clone());
        Ok(shared.start(owner, Target::Fetch(rref), payload, timeout, mode))
    }

    fn usable(&self) -> Result<(), Error> {
        self.handle
            .0
            .failed
            .get()
            .map_or(Ok(()), |error| Err(error.clone()))
    }
}

impl<T: Value + Sync> RRef<T> {
    /// A reference to a value of this worker.
    #[must_use]
    pub fn new(agent: &Agent, value: T) -> Self {
        Self::of(agent.shared().keep(Arc::new(Travels(Arc::new(value)))))
    }

    /// Waits for a copy of the value.
    ///
    /// # Errors
    /// The function that was to make it failed; the owner is gone; the time of [`Options::timeout`] is over.
    ///
    /// [`Options::timeout`]: crate::Options::timeout
    pub fn to_here(&self) -> Result<T, Error> {
        let timeout = self.shared()?.options.timeout;
        self.fetch(timeout, Mode::Sync)?.wait()
    }

    /// The same, for at most `timeout`; zero waits for ever.
    ///
    /// # Errors
    /// As [`RRef::to_here`].
    pub fn to_here_within(&self, timeout: Duration) -> Result<T, Error> {
        self.fetch(timeout, Mode::Sync)?.wait()
    }

    /// Asks for a copy of the value, and does not wait.
    ///
    /// # Errors
    /// As [`RRef::to_here`], as far as it is known at once.
    pub fn to_here_async(&self) -> Result<Pending<T>, Error> {
        let timeout = self.shared()?.options.timeout;
        self.fetch(timeout, Mode::Async)
    }
}

/// A reference, and what follows it.
struct First<'a, T, A>(&'a RRef<T>, A);

/// Arguments by reference: what is needed to pack them.
pub(crate) trait Pack {
    /// The digest of the names of their types.
    fn types(&self) -> u32;
    fn put(&self, to: &mut Packer) -> Result<(), crate::value::ValueError>;
}

/// A list of arguments, which is not the tuple that it looks like: that has another name.
struct Listed<A>(std::marker::PhantomData<A>);

impl<A: Args> Pack for A {
    fn types(&self) -> u32 {
        digest_of::<Listed<A>>(A::names)
    }

    fn put(&self, to: &mut Packer) -> Result<(), crate::value::ValueError> {
        Args::put(self, to)
    }
}

impl<T: Any + Send + Sync, A: Args> Pack for First<'_, T, A> {
    fn types(&self) -> u32 {
        digest_of::<First<'static, T, A>>(|names| {
            <RRef<T> as Value>::name(names);
            names.push(',');
            A::names(names);
        })
    }

    fn put(&self, to: &mut Packer) -> Result<(), crate::value::ValueError> {
        self.0.put(to)?;
        self.1.put(to)
    }
}
