//! Work: how a function is carried out, wherever that is, so that a panic in it is an error at its caller alone.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use rendez::ground::Nanos;

use super::context::Context;
use super::figures::{QUEUED, RUN};
use super::shared::{Command, Done, Shared};
use crate::functions::{Begin, Ended, FunctionBody, Kept, Run, Stage, Wish};
use crate::header::Header;
use crate::id::{CallId, RRefId};
use crate::message::{Fault, FaultKind};
use crate::payload::Payload;
use crate::value::{Packer, Unpacker, ValueError};

/// A call that is to be carried out.
pub(crate) struct Work {
    pub(crate) context: Context,
    pub(crate) id: CallId,
    /// Where its result is kept; else it travels.
    pub(crate) rref: Option<RRefId>,
    pub(crate) payload: Payload,
    pub(crate) handles: Vec<super::rref::Handle>,
    /// When it could begin.
    pub(crate) since: Nanos,
    /// When it began, if that is to be known.
    pub(crate) began: Option<Nanos>,
}

type Ran = Result<Ended, Fault>;

impl Work {
    const fn wish(&self) -> Wish {
        match self.rref {
            Some(_) => Wish::Keep,
            None => Wish::Travel,
        }
    }

    fn done(&self, result: Ran, header: Option<Header>) -> Done {
        let context = &self.context;
        let recording = context.recording.as_ref().zip(self.began);
        let is_error = result.is_err();
        Done {
            spans: recording.map(|(one, began)| one.end(&context.function, began, is_error)),
            from: context.caller,
            id: self.id,
            rref: self.rref,
            result,
            header,
        }
    }

    /// Carries it out in this thread, in which it may not wait. It begins when it could. The agent comes back.
    pub(crate) fn run_in_shard(mut self, run: &Run) -> (Done, Arc<Shared>) {
        let since = self.since;
        self.began = Some(since);
        let recording = self.context.recording.iter();
        recording.for_each(|one| one.queued((since, since)));
        let ran = super::context::in_shard(|| guarded(|| self.run_now(run)));
        let figures = &self.context.shared.figures;
        if figures.is_timed() {
            let over = self.context.shared.engine.clock().stamp();
            figures.stage_at_desk(QUEUED, since, since);
            figures.stage_at_desk(RUN, since, over);
        }
        let done = self.done(ran.0, ran.1);
        (done, self.context.shared)
    }

    /// Carries it out in a thread of the pool, and tells the desk. A function that returns a future begins here.
    pub(crate) fn run_in_pool(mut self, body: &FunctionBody) {
        if !self.context.gate.as_ref().is_none_or(|gate| gate.begin()) {
            let fault = Fault::new(
                FaultKind::Cancelled,
                "its caller gave it up before it began",
            );
            let done = self.done(Err(fault), None);
            return self.context.shared.push(Command::Done(Box::new(done)));
        }
        let run = match body {
            FunctionBody::Async(begin) => return self.begin(&**begin),
            FunctionBody::Pool(run) | FunctionBody::Shard(run) => &**run,
        };
        let (result, header) = guarded(|| {
            self.begins();
            let ended = self.run_now(run);
            self.ends();
            ended
        });
        let done = self.done(result, header);
        self.context.shared.push(Command::Done(Box::new(done)));
    }

    fn run_now(&mut self, run: &Run) -> (Ran, Option<Header>) {
        let (unpacker, wish) = (self.unpacker(), self.wish());
        let context = &self.context;
        context.within(|| {
            let run = || run(unpacker, wish, &|stage| look(context, stage));
            settle(context, catch_unwind(AssertUnwindSafe(run)))
        })
    }

    /// It begins now: how long it was queued is known, if that is asked for.
    fn begins(&mut self) {
        let (shared, recording) = (&self.context.shared, &self.context.recording);
        if shared.figures.is_timed() || recording.is_some() {
            let now = shared.engine.clock().stamp();
            shared.figures.stage(QUEUED, self.since, now);
            recording
                .iter()
                .for_each(|one| one.queued((self.since, now)));
            self.began = Some(now);
        }
    }

    /// It has ended.
    fn ends(&self) {
        let shared = &self.context.shared;
        if let (Some(began), true) = (self.began, shared.figures.is_timed()) {
            shared
                .figures
                .stage(RUN, began, shared.engine.clock().stamp());
        }
    }

    fn unpacker(&mut self) -> Unpacker {
        let payload = &mut self.payload;
        let context = &self.context;
        let (leg, header) = (context.leg(false), context.header.as_deref());
        let observers = &context.shared.options.observers;
        observers
            .iter()
            .for_each(|one| one.receiving(leg, header, &payload.tensors));
        payload.unpacker(std::mem::take(&mut self.handles))
    }

    /// Begins a function that returns a future.
    fn begin(mut self, begin: &Begin) {
        self.begins();
        let wish = self.wish();
        let context = self.context.clone();
        let begun = catch_unwind(AssertUnwindSafe(|| {
            let unpacker = self.unpacker();
            let hook_context = context.clone();
            let hook: crate::functions::Hook = Arc::new(move |stage| look(&hook_context, stage));
            context.within(|| begin(unpacker, wish, hook))
        }));
        let begun = begun.unwrap_or_else(|panic| Err(panicked(&*panic)));
        let mut later = match begun {
            Ok(later) => later,
            Err(fault) => {
                let (result, header) = guarded(|| settle(&context, Ok(Err(fault))));
                let done = self.done(result, header);
                return context.shared.push(Command::Done(Box::new(done)));
            }
        };
        context.shared.async_calls.fetch_add(1, Ordering::Relaxed);
        let mut is_first = true;
        let future = std::future::poll_fn(move |to_wake| {
            let context = &self.context;
            if let Some(gate) = &context.gate {
                gate.watch(to_wake.waker());
            }
            // What has run by now, as a function that returns what is ready, is not thrown away.
            if !std::mem::take(&mut is_first) && context.is_cancelled() {
                let fault = Fault::new(FaultKind::Cancelled, "its caller gave it up");
                context
                    .shared
                    .push(Command::Done(Box::new(self.done(Err(fault), None))));
                return Poll::Ready(());
            }
            let poll = || {
                context.within(|| {
                    let poll = || Pin::as_mut(&mut later).poll(to_wake);
                    match catch_unwind(AssertUnwindSafe(poll)) {
                        Ok(Poll::Pending) => None,
                        Ok(Poll::Ready(run)) => Some(settle(context, Ok(run))),
                        Err(panic) => Some(settle(context, Err(panic))),
                    }
                })
            };
            let polled = catch_unwind(AssertUnwindSafe(poll));
            let polled = polled.unwrap_or_else(|panic| Some((Err(panicked(&*panic)), None)));
            match polled {
                None => {
                    // It may have been given up before it was watched.
                    if context.is_cancelled() {
                        to_wake.waker().wake_by_ref();
                    }
                    Poll::Pending
                }
                Some((result, header)) => {
                    self.ends();
                    context
                        .shared
                        .push(Command::Done(Box::new(self.done(result, header))));
                    Poll::Ready(())
                }
            }
        });
        let shared = Arc::clone(&context.shared);
        let counted = async move {
            future.await;
            shared.async_calls.fetch_sub(1, Ordering::Relaxed);
        };
        let pool = Arc::clone(&context.shared.pool);
        let schedule = move |runnable: async_task::Runnable| {
            pool.push(Box::new(move || {
                runnable.run();
            }))
        };
        let (runnable, task) = async_task::spawn(counted, schedule);
        task.detach();
        runnable.run();
    }
}

/// Gives the value of a reference to who asks for it.
pub(crate) fn give(
    context: &Context,
    value: Result<Arc<dyn Kept>, Fault>,
) -> (Ran, Option<Header>) {
    guarded(|| {
        let (leg, header) = (context.leg(false), context.header.as_deref());
        let observers = &context.shared.options.observers;
        observers
            .iter()
            .for_each(|one| one.receiving(leg, header, &[]));
        observers.iter().for_each(|one| one.received(leg));
        context.within(|| {
            look(context, Stage::Writes);
            settle(context, Ok(put(value)))
        })
    })
}

/// What a run comes to; the panic of an observer is the call's.
fn guarded(run: impl FnOnce() -> (Ran, Option<Header>)) -> (Ran, Option<Header>) {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| (Err(panicked(&*panic)), None))
}

/// Writes the value of a reference, if it can travel.
pub(crate) fn put(value: Result<Arc<dyn Kept>, Fault>) -> Ran {
    let (value, mut packer) = (value?, Packer::default());
    let put = catch_unwind(AssertUnwindSafe(|| value.put(&mut packer)))
        .unwrap_or_else(|panic| Err(ValueError::new(panicked(&*panic).message)));
    match put {
        Ok(types) => Ok(Ended::Packed(types, packer)),
        Err(error) => Err(Fault::new(FaultKind::Reference, error.to_string())),
    }
}

/// What observers are told of between arguments and result.
fn look(context: &Context, stage: Stage) {
    let observers = &context.shared.options.observers;
    match stage {
        Stage::Read => observers
            .iter()
            .for_each(|one| one.received(context.leg(false))),
        Stage::Writes => observers
            .iter()
            .for_each(|one| one.sending(context.leg(true))),
    }
}

/// What a run came to, and what observers add to it.
fn settle(context: &Context, run: std::thread::Result<Ran>) -> (Ran, Option<Header>) {
    let run = run.unwrap_or_else(|panic| Err(panicked(&*panic)));
    let header = match &run {
        Ok(Ended::Packed(_, packer)) => context.shared.header(context.leg(true), packer),
        _ => Ok(None),
    };
    if run.is_err() || header.is_err() {
        context.shared.unwritten(context.leg(true));
    }
    match header {
        Ok(header) => (run, header),
        Err(error) => {
            let message = format!("its result cannot travel: {error}");
            (Err(Fault::new(FaultKind::Error, message)), None)
        }
    }
}

/// What a panic says.
pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Fault {
    let text = super::panics::text_of(panic);
    let (at, backtrace) = match super::panics::take() {
        Some(place) => (format!(" at {}", place.at), place.backtrace),
        None => Default::default(),
    };
    Fault {
        backtrace,
        ..Fault::new(
            FaultKind::Panic,
            format!("the function panicked{at}: {text}"),
        )
    }
}
