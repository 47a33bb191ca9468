//! Calls that the desk serves: functions are carried out, or given to the pool, and what they come to is answered.

use std::sync::Arc;

use rendez::ground::{Locked, Nanos, catalogue};

use super::{Desk, Running};
use crate::agent::context::{Context, Gate, in_shard};
use crate::agent::packed::{Packed, Shares};
use crate::agent::shared::{Command, Done};
use crate::agent::work::{Work, give, put};
use crate::functions::{Ended, FunctionBody};
use crate::header::Header;
use crate::id::{CallId, RRefId, WorkerId};
use crate::message::{Fault, FaultKind, Outcome, Reference, Target};
use crate::payload::Payload;
use crate::spans::ServedSpan;
use crate::value::Packer;

impl Desk {
    /// A function has ended.
    pub(super) fn done(&mut self, done: Done, now: Nanos) {
        let Done {
            from,
            id,
            rref,
            result,
            header,
            spans,
        } = done;
        self.send_home(spans, now);
        if !self.running.is_empty() {
            self.running.remove(&(from, id));
        }
        if let Some(rref) = rref {
            let (value, outcome) = match result {
                Ok(Ended::Kept(value)) => (Ok(value), empty()),
                Ok(Ended::Packed(..)) => {
                    let fault = Fault::new(FaultKind::Error, "its result was not kept");
                    (Err(fault.clone()), Outcome::Fault(fault))
                }
                Err(fault) => (Err(fault.clone()), Outcome::Fault(fault)),
            };
            self.shared.values.locked().insert(rref, value);
            if !self.node.finish(now, from, id, outcome) {
                // Another may have been given a share of it.
                self.node.value_made(rref);
            }
            return;
        }
        let outcome = match result {
            Ok(Ended::Packed(types, packer)) => {
                return self.reply(from, id, types, header, packer, now);
            }
            Ok(Ended::Kept(_)) => empty(),
            Err(fault) => Outcome::Fault(fault),
        };
        self.node.finish(now, from, id, outcome);
    }

    pub(super) fn reply(
        &mut self,
        from: WorkerId,
        id: CallId,
        types: u32,
        header: Option<Header>,
        packer: Packer,
        now: Nanos,
    ) {
        let Packed { payload, shares } = match self.shared.packed(types, header, packer) {
            Ok(packed) => packed,
            Err(error) => {
                let fault = Fault::new(
                    FaultKind::Error,
                    format!("its result cannot travel: {error}"),
                );
                self.node.finish(now, from, id, Outcome::Fault(fault));
                return;
            }
        };
        let mut shares = shares.map_or_else(Shares::default, |shares| *shares);
        let outcome = Outcome::Value {
            payload,
            references: std::mem::take(&mut shares.references),
        };
        self.node.finish(now, from, id, outcome);
        // Counted now: the handles may go.
        drop(shares);
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one output")]
    pub(super) fn serve(
        &mut self,
        from: WorkerId,
        id: CallId,
        target: Target,
        mut payload: Payload,
        references: &[Reference],
        deadline: Nanos,
    ) {
        let now = self.now;
        let handles = self.shared.handles(references);
        let (function, rref) = match target {
            Target::Function(function) => (function, None),
            Target::Remote { function, rref, .. } => (function, Some(rref)),
            Target::Fetch(rref) => {
                return self.fetch(from, id, rref, payload.header.take(), deadline, now);
            }
        };
        let done = |result| Done {
            from,
            id,
            rref,
            result,
            header: None,
            spans: None,
        };
        if let Some(why) = &payload.lacking {
            let kind = match why.reason() {
                catalogue::RPC_CANCELLED => FaultKind::Cancelled,
                _ => FaultKind::Arguments,
            };
            let fault = Fault::new(kind, why.message());
            return self.done(done(Err(fault)), now);
        }
        let Some(entry) = self.shared.functions.find(&function) else {
            let others = self.shared.functions.instead_of(&function);
            let message = format!("there is no function '{function}'; {others}");
            return self.done(done(Err(Fault::new(FaultKind::Function, message))), now);
        };
        if entry.types != payload.types {
            let message = format!(
                "it was called with other types than its signature has: {}",
                entry.signature
            );
            return self.done(done(Err(Fault::new(FaultKind::Arguments, message))), now);
        }
        // What runs at once cannot be stopped.
        let gate = (!matches!(entry.body, FunctionBody::Shard(_))).then(Arc::<Gate>::default);
        let trace = payload.trace.take();
        let shared = self.lent.take();
        let work = Work {
            context: Context {
                recording: trace.map(|trace| ServedSpan::new(&self.shared, from, &trace)),
                shared: shared.unwrap_or_else(|| Arc::clone(&self.shared)),
                caller: from,
                function,
                gate,
                header: payload.header.take().map(Into::into),
                deadline,
            },
            id,
            rref,
            payload,
            handles,
            since: now,
            began: None,
        };
        if let FunctionBody::Shard(run) = &entry.body {
            let (ended, shared) = work.run_in_shard(&**run);
            self.lent = Some(shared);
            return self.done(ended, now);
        }
        let body = entry.body.clone();
        if let Some(gate) = &work.context.gate {
            let running = Running {
                gate: Arc::clone(gate),
                function: work.context.function.clone(),
                began: now,
            };
            self.running.insert((from, id), running);
        }
        let job = move || work.run_in_pool(&body);
        if !self.shared.pool.offer(Box::new(job)) {
            self.done(done(Err(threadless())), now);
        }
    }

    /// A worker wants the value of a reference. With observers it is given as a function gives its result; with a
    /// header of theirs on a thread of the pool, for they may keep the value's history.
    pub(super) fn fetch(
        &mut self,
        from: WorkerId,
        id: CallId,
        rref: RRefId,
        header: Option<Header>,
        deadline: Nanos,
        now: Nanos,
    ) {
        let values = self.shared.values.locked();
        let value = values.get(&rref).cloned();
        drop(values);
        let none = || {
            let message = format!("there is no value of {rref}");
            Err(Fault::new(FaultKind::Reference, message))
        };
        let value = value.unwrap_or_else(none);
        let done = move |(result, header)| Done {
            from,
            id,
            rref: None,
            result,
            header,
            spans: None,
        };
        if self.shared.options.observers.is_empty() {
            let packed = in_shard(|| put(value));
            return self.done(done((packed, None)), now);
        }
        let context = Context {
            shared: Arc::clone(&self.shared),
            caller: from,
            function: "".into(),
            gate: None,
            header: header.map(Into::into),
            deadline,
            recording: None,
        };
        if context.header.is_none() {
            let given = in_shard(|| give(&context, value));
            return self.done(done(given), now);
        }
        let job = move || {
            let given = give(&context, value);
            context.shared.push(Command::Done(Box::new(done(given))));
        };
        if !self.shared.pool.offer(Box::new(job)) {
            self.done(done((Err(threadless()), None)), now);
        }
    }
}

/// What a call comes to for which there is no thread.
fn threadless() -> Fault {
    Fault::new(
        FaultKind::Busy,
        "the system gives no thread to carry it out",
    )
}

fn empty() -> Outcome<Payload> {
    Outcome::Value {
        payload: Payload::default(),
        references: Vec::new(),
    }
}
