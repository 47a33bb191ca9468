//! Functions that other workers may call, by name.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use rendez::ground::catalogue;
use rendez::ground::spelling::distance;

use crate::error::Error;
use crate::message::{Fault, FaultKind};
use crate::payload::{digest, digest_of};
use crate::signature::Signature;
use crate::value::{Args, Function, Packer, Unpacker, Value, ValueError};

/// The names of functions of the house begin so: they are no one's to call.
pub(crate) const HOUSE: &str = "rendez.";

/// How many functions the answer to a call of an unknown one names.
const NEAR_MAX: usize = 8;

/// What a function's result is: a value, or an error.
pub trait FunctionOutcome {
    /// The value.
    type Value;
    /// The value, or how the failure is told to the caller.
    ///
    /// # Errors
    /// The failure.
    fn outcome(self) -> Result<Self::Value, Fault>;
}

impl<T: Value> FunctionOutcome for T {
    type Value = T;

    fn outcome(self) -> Result<T, Fault> {
        Ok(self)
    }
}

impl<T: Value, E: Into<Box<dyn std::error::Error + Send + Sync>>> FunctionOutcome for Result<T, E> {
    type Value = T;

    fn outcome(self) -> Result<T, Fault> {
        self.map_err(failed)
    }
}

/// How a function's failure is told to the caller.
pub(crate) fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
    fault_of(error.into().as_ref())
}

fn fault_of(error: &(dyn std::error::Error + 'static)) -> Fault {
    let mut fault = Fault::new(FaultKind::Error, error.to_string());
    if let Some(error) = error.downcast_ref::<Error>() {
        fault.causes = error.causes().to_vec();
        fault.backtrace = error.backtrace().unwrap_or_default().to_owned();
    }
    let mut cause = error.source();
    while let Some(error) = cause
        && fault.causes.len() < crate::codec::CAUSES_MAX
    {
        fault.causes.push(error.to_string());
        cause = error.source();
    }
    if fault.backtrace.is_empty() {
        let trace = std::backtrace::Backtrace::capture();
        if trace.status() == std::backtrace::BacktraceStatus::Captured {
            fault.backtrace = trace.to_string();
        }
    }
    fault
}

/// A value that a worker keeps for others, under a reference.
pub(crate) trait Kept: Any + Send + Sync {
    /// Writes it as a result, if it can travel.
    fn put(&self, to: &mut Packer) -> Result<u32, ValueError>;
    /// As what it is.
    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    /// What that is.
    fn type_name(&self) -> &str;
}

/// One that can travel.
pub(crate) struct Travels<T>(pub(crate) Arc<T>);
/// One that stays.
pub(crate) struct Stays<T>(pub(crate) Arc<T>);

impl<T: Value + Sync> Kept for Travels<T> {
    fn put(&self, to: &mut Packer) -> Result<u32, ValueError> {
        self.0.put(to)?;
        Ok(types_of::<T>())
    }

    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.0) as Arc<dyn Any + Send + Sync>
    }

    fn type_name(&self) -> &str {
        std::any::type_name::<T>()
    }
}

impl<T: Any + Send + Sync> Kept for Stays<T> {
    fn put(&self, _: &mut Packer) -> Result<u32, ValueError> {
        let name = self.type_name();
        Err(ValueError::new(format!(
            "a {name} cannot travel: call functions with the reference to it instead"
        )))
    }

    fn any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.0) as Arc<dyn Any + Send + Sync>
    }

    fn type_name(&self) -> &str {
        std::any::type_name::<T>()
    }
}

/// The digest of a result's type.
pub(crate) fn types_of<T: Value>() -> u32 {
    digest_of::<T>(T::name)
}

/// What becomes of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// It travels to the caller.
    Travel,
    /// It stays here under a reference.
    Keep,
}

/// The end of a function.
pub(crate) enum Ended {
    /// Its result, packed, with the digest of its type.
    Packed(u32, Packer),
    /// Its result, kept.
    Kept(Arc<dyn Kept>),
}

pub(crate) type Work = Result<Ended, Fault>;
pub(crate) type Later = Pin<Box<dyn Future<Output = Work> + Send>>;
pub(crate) type Run = dyn Fn(Unpacker, Wish, &dyn Fn(Stage)) -> Work + Send + Sync;
pub(crate) type Begin = dyn Fn(Unpacker, Wish, Hook) -> Result<Later, Fault> + Send + Sync;

/// Who is told how far a call is.
pub(crate) type Hook = Arc<dyn Fn(Stage) + Send + Sync>;

/// How far a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Its arguments are read.
    Read,
    /// Its result is about to be written.
    Writes,
}

/// Where and how a function is carried out.
#[derive(Clone)]
pub(crate) enum FunctionBody {
    /// On a thread of the pool.
    Pool(Arc<Run>),
    /// In the shard's own thread.
    Shard(Arc<Run>),
    /// As a future.
    Async(Arc<Begin>),
}

/// A function that can be called.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) body: FunctionBody,
    /// The digest of its arguments' types.
    pub(crate) types: u32,
    pub(crate) signature: Arc<str>,
}

/// The functions of a worker, by name.
///
/// ```
/// use rendez_rpc::Functions;
///
/// fn shout(text: String, times: u32) -> String {
///     text.to_uppercase().repeat(times as usize)
/// }
///
/// fn ratio(a: f64, b: f64) -> Result<f64, String> {
///     if b == 0.0 { Err("division by zero".into()) } else { Ok(a / b) }
/// }
///
/// let functions = Functions::new()
///     .add("shout", shout)
///     .add("ratio", ratio)
///     .add_in_shard("add", |a: u32, b: u32| a.wrapping_add(b));
/// assert_eq!(functions.signature("ratio"), Some("ratio(f64,f64,) -> f64"));
/// ```
#[derive(Clone, Default)]
pub struct Functions {
    entries: BTreeMap<Box<str>, Entry>,
}

impl Functions {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A function that is carried out by a thread of the pool, and may take its time. It may wait for calls of its own:
    /// meanwhile another thread takes its place.
    #[must_use]
    pub fn add<A, F>(self, name: &str, function: F) -> Self
    where
        A: Args,
        F: Function<A>,
        F::Output: FunctionOutcome<Value: Value + Sync>,
    {
        let body = FunctionBody::Pool(run::<A, F>(function));
        self.with::<A, <F::Output as FunctionOutcome>::Value>(name, body)
    }

    /// A function that is carried out inside the shard, between two polls: the shortest way. It must return soon, and
    /// cannot wait for calls of its own. It runs in whichever thread turns the shard: the shard's own, or one that
    /// waits for a call. So it may take no lock that a thread holds while it waits for a call.
    #[must_use]
    pub fn add_in_shard<A, F>(self, name: &str, function: F) -> Self
    where
        A: Args,
        F: Function<A>,
        F::Output: FunctionOutcome<Value: Value + Sync>,
    {
        let body = FunctionBody::Shard(run::<A, F>(function));
        self.with::<A, <F::Output as FunctionOutcome>::Value>(name, body)
    }

    /// A function that returns a future: the answer is sent when it is ready, and no thread is held until then.
    #[must_use]
    pub fn add_async<A, F, R>(self, name: &str, function: F) -> Self
    where
        A: Args,
        F: Function<A>,
        F::Output: Future<Output = R> + Send + 'static,
        R: FunctionOutcome<Value: Value + Sync> + 'static,
    {
        let begin = move |from: Unpacker, wish: Wish, hook: Hook| {
            let args = take::<A>(from, &*hook)?;
            let future = function.apply(args);
            let later: Later = Box::pin(async move {
                let value = future.await.outcome()?;
                give(value, wish, &*hook)
            });
            Ok(later)
        };
        self.with::<A, R::Value>(name, FunctionBody::Async(Arc::new(begin)))
    }

    /// A function whose result is of any type, and cannot travel: it can only be asked for with
    /// [`Agent::remote`](crate::Agent::remote), and is used by functions that take the reference to it. One that never
    /// fails returns `Ok::<_, Infallible>`.
    #[must_use]
    pub fn add_object<A, F, T, E>(self, name: &str, function: F) -> Self
    where
        A: Args,
        F: Function<A, Output = Result<T, E>>,
        T: Any + Send + Sync,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let run = move |from: Unpacker, wish: Wish, hook: &dyn Fn(Stage)| {
            let args = take::<A>(from, hook)?;
            stays(wish)?;
            keep(function.apply(args))
        };
        self.with_object::<A, T>(name, FunctionBody::Pool(Arc::new(run)))
    }

    /// As [`Functions::add_object`], of a function that returns a future: no thread is held until it is ready.
    #[must_use]
    pub fn add_object_async<A, F, T, E>(self, name: &str, function: F) -> Self
    where
        A: Args,
        F: Function<A>,
        F::Output: Future<Output = Result<T, E>> + Send + 'static,
        T: Any + Send + Sync,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let begin = move |from: Unpacker, wish: Wish, hook: Hook| {
            let args = take::<A>(from, &*hook)?;
            stays(wish)?;
            let future = function.apply(args);
            let later: Later = Box::pin(async move { keep(future.await) });
            Ok(later)
        };
        self.with_object::<A, T>(name, FunctionBody::Async(Arc::new(begin)))
    }

    fn with_object<A: Args, T: Any>(self, name: &str, body: FunctionBody) -> Self {
        let mut names = String::new();
        A::names(&mut names);
        self.insert(name, &names, std::any::type_name::<T>(), body)
    }

    /// One that reads and writes for itself.
    pub(crate) fn with_signature(self, signature: &Signature, body: FunctionBody) -> Self {
        let (name, arguments) = (signature.name(), signature.arguments_text());
        self.insert(name, arguments, signature.result_text(), body)
    }

    fn with<A: Args, R: Value>(self, name: &str, body: FunctionBody) -> Self {
        let mut names = String::new();
        A::names(&mut names);
        let result = crate::value::name_of::<R>();
        self.insert(name, &names, &result, body)
    }

    fn insert(mut self, name: &str, arguments: &str, result: &str, body: FunctionBody) -> Self {
        let entry = Entry {
            body,
            types: digest(arguments),
            signature: format!("{name}({arguments}) -> {result}").into(),
        };
        self.entries.insert(name.into(), entry);
        self
    }

    /// A function's signature, if there is one of that name.
    #[must_use]
    pub fn signature(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(|entry| &*entry.signature)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// All of them, and these: of two with one name the later.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.entries.extend(others.entries);
        self
    }

    /// What there is in place of `name`: the functions whose names are nearest to it.
    pub(crate) fn instead_of(&self, name: &str) -> String {
        let own = self.entries.iter();
        let own = own.filter(|(name, _)| !name.starts_with(HOUSE));
        let mut all: Vec<_> = own
            .map(|(known, entry)| (distance(name, known), &*entry.signature))
            .collect();
        all.sort_unstable();
        let near = all.iter().take(NEAR_MAX).map(|(_, signature)| *signature);
        let near = near.collect::<Vec<_>>().join(", ");
        match all.len().saturating_sub(NEAR_MAX) {
            0 => format!("there are: {near}"),
            more => format!("there are: {near}, and {more} more"),
        }
    }

    pub(crate) fn signatures(&self) -> Vec<String> {
        let mut all: Vec<String> = self
            .entries
            .iter()
            .filter(|(name, _)| !name.starts_with(HOUSE))
            .map(|(_, entry)| entry.signature.to_string())
            .collect();
        all.sort();
        all
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.signatures()).finish()
    }
}

fn run<A, F>(function: F) -> Arc<Run>
where
    A: Args,
    F: Function<A>,
    F::Output: FunctionOutcome<Value: Value + Sync>,
{
    Arc::new(move |from, wish, hook| {
        let args = take::<A>(from, hook)?;
        give(function.apply(args).outcome()?, wish, hook)
    })
}

/// The arguments; they are read to their end, or it is told that they cannot be.
fn take<A: Args>(mut from: Unpacker, hook: &dyn Fn(Stage)) -> Result<A, Fault> {
    let args = A::take(&mut from).and_then(|args| from.end().map(|()| args));
    hook(Stage::Read);
    args.map_err(unread)
}

/// A result that stays cannot travel.
fn stays(wish: Wish) -> Result<(), Fault> {
    match wish {
        Wish::Keep => Ok(()),
        Wish::Travel => Err(Fault::new(
            FaultKind::Arguments,
            "its result cannot travel: ask for a reference to it with `remote`",
        )),
    }
}

/// An object stays, unless it could not be made.
fn keep<T: Any + Send + Sync>(
    made: Result<T, impl Into<Box<dyn std::error::Error + Send + Sync>>>,
) -> Work {
    let object = made.map_err(failed)?;
    Ok(Ended::Kept(Arc::new(Stays(Arc::new(object)))))
}

fn unread(error: ValueError) -> Fault {
    // Arguments that are as they should be may come at a time when they cannot be taken.
    let kind = match error.reason() {
        catalogue::RPC_ARGUMENTS => FaultKind::Arguments,
        _ => FaultKind::Error,
    };
    Fault::new(kind, format!("its arguments cannot be read: {error}"))
}

fn give<T: Value + Sync>(value: T, wish: Wish, hook: &dyn Fn(Stage)) -> Work {
    if wish == Wish::Keep {
        return Ok(Ended::Kept(Arc::new(Travels(Arc::new(value)))));
    }
    hook(Stage::Writes);
    let mut packer = Packer::default();
    value.put(&mut packer).map_err(|error| {
        Fault::new(
            FaultKind::Error,
            format!("its result cannot travel: {error}"),
        )
    })?;
    Ok(Ended::Packed(types_of::<T>(), packer))
}
