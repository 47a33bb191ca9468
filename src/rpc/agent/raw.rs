//! Functions and calls whose types only their signatures say: for programs that know them when they run, as those of
//! other languages, and the command `rendez call`.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::rref::RRef;
use super::shared::Mode;
use super::{Agent, Pending};
use crate::error::Error;
use crate::functions::{Ended, FunctionBody, Functions, Hook, Kept, Later, Stage, Wish, failed};
use crate::message::{Fault, Target};
use crate::payload::digest;
use crate::signature::Signature;
use crate::value::{Packer, Unpacker, ValueError};

/// A result that stays, as its function has packed it.
struct Raw {
    types: u32,
    packed: Packer,
}

impl Kept for Raw {
    fn put(&self, to: &mut Packer) -> Result<u32, ValueError> {
        to.append(&self.packed)?;
        Ok(self.types)
    }

    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn type_name(&self) -> &str {
        "the result of a function by signature"
    }
}

impl Functions {
    /// A function that reads its arguments and writes its result by itself, as its signature says; it is carried out by
    /// a thread of the pool.
    ///
    /// ```
    /// use rendez_rpc::{Functions, Packer, Signature, Unpacker, ValueError};
    ///
    /// let signature = Signature::parse("twice(u64,) -> u64").unwrap();
    /// let twice = |mut arguments: Unpacker| -> Result<Packer, ValueError> {
    ///     let number: u64 = arguments.plain()?;
    ///     let mut result = Packer::default();
    ///     result.plain(&(2 * number))?;
    ///     Ok(result)
    /// };
    /// let functions = Functions::new().add_raw(&signature, twice);
    /// assert_eq!(functions.signature("twice"), Some("twice(u64,) -> u64"));
    /// ```
    #[must_use]
    pub fn add_raw<E>(
        self,
        signature: &Signature,
        function: impl Fn(Unpacker) -> Result<Packer, E> + Send + Sync + 'static,
    ) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let types = digest(signature.result_text());
        let run = move |from: Unpacker, wish: Wish, hook: &dyn Fn(Stage)| {
            hook(Stage::Read);
            give(types, function(from), wish, hook)
        };
        self.with_signature(signature, FunctionBody::Pool(Arc::new(run)))
    }

    /// As [`Functions::add_raw`], of a function that returns a future: no thread is held until it is ready.
    #[must_use]
    pub fn add_raw_async<E, R>(
        self,
        signature: &Signature,
        function: impl Fn(Unpacker) -> R + Send + Sync + 'static,
    ) -> Self
    where
        R: Future<Output = Result<Packer, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let types = digest(signature.result_text());
        let begin = move |from: Unpacker, wish: Wish, hook: Hook| {
            hook(Stage::Read);
            let future = function(from);
            let later: Later = Box::pin(async move { give(types, future.await, wish, &*hook) });
            Ok(later)
        };
        self.with_signature(signature, FunctionBody::Async(Arc::new(begin)))
    }
}

fn give<E>(
    types: u32,
    packed: Result<Packer, E>,
    wish: Wish,
    hook: &dyn Fn(Stage),
) -> Result<Ended, Fault>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let packed = packed.map_err(failed)?;
    if wish == Wish::Keep {
        return Ok(Ended::Kept(Arc::new(Raw { types, packed })));
    }
    hook(Stage::Writes);
    Ok(Ended::Packed(types, packed))
}

/// A call by signature that is under way: as [`Pending`], and its result is to be read as the signature says.
#[derive(Debug)]
#[must_use = "a call that is dropped is cancelled"]
pub struct PendingRaw {
    pending: Pending<()>,
    types: u32,
}

impl PendingRaw {
    /// As [`Pending::wait`].
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait(mut self) -> Result<Unpacker, Error> {
        self.pending.look(None)?;
        self.pending.raw(self.types)
    }

    /// As [`Pending::wait_for`].
    ///
    /// # Errors
    /// As [`Pending::wait_for`].
    pub fn wait_for(mut self, patience: Duration) -> Result<Result<Unpacker, Error>, Self> {
        match self.pending.look(Some(patience)) {
            Ok(true) => Ok(self.pending.raw(self.types)),
            Ok(false) => Err(self),
            Err(error) => Ok(Err(error)),
        }
    }
}

impl Future for PendingRaw {
    type Output = Result<Unpacker, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let types = self.types;
        self.pending.poll_raw(types, context)
    }
}

impl<T: Any + Send + Sync> RRef<T> {
    /// Asks for a copy of the value, which a function of this signature has made, for at most `timeout`.
    ///
    /// # Errors
    /// As [`RRef::to_here`].
    pub fn fetch_by_signature(
        &self,
        signature: &Signature,
        timeout: Duration,
    ) -> Result<PendingRaw, Error> {
        Ok(PendingRaw {
            pending: self.fetch(timeout, Mode::Async)?,
            types: digest(signature.result_text()),
        })
    }
}

impl Agent {
    /// Calls a function whose types are known from its signature only: `arguments` are written as those say, and so the
    /// result is to be read.
    ///
    /// # Errors
    /// As [`Agent::rpc_sync`].
    pub fn call_by_signature(
        &self,
        to: &str,
        signature: &Signature,
        arguments: Packer,
        timeout: Duration,
    ) -> Result<Unpacker, Error> {
        self.start_by_signature(to, signature, arguments, timeout)?
            .wait()
    }

    /// Calls a function as [`Agent::call_by_signature`] does, and leaves its result there.
    ///
    /// # Errors
    /// As [`Agent::remote`].
    pub fn remote_by_signature<T: Any + Send + Sync>(
        &self,
        to: &str,
        signature: &Signature,
        arguments: Packer,
        timeout: Duration,
    ) -> Result<RRef<T>, Error> {
        let shared = self.shared();
        let to = shared.find(to)?;
        let packed = shared.packed(digest(signature.arguments_text()), None, arguments)?;
        Ok(RRef::of(shared.create(
            to,
            signature.name(),
            packed,
            timeout,
        )))
    }

    /// As [`Agent::call_by_signature`], and does not wait.
    ///
    /// # Errors
    /// As [`Agent::rpc_async`].
    pub fn start_by_signature(
        &self,
        to: &str,
        signature: &Signature,
        arguments: Packer,
        timeout: Duration,
    ) -> Result<PendingRaw, Error> {
        let shared = self.shared();
        let to = shared.find(to)?;
        let packed = shared.packed(digest(signature.arguments_text()), None, arguments)?;
        let target = Target::Function(signature.name().into());
        Ok(PendingRaw {
            pending: shared.start(to, target, packed, timeout, Mode::Async),
            types: digest(signature.result_text()),
        })
    }
}
