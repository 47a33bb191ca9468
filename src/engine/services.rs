//! Services: what every engine answers its peers over the control plane, beside handing tensors over.
//!
//! Numbers and payloads; who may call was settled when the caller was greeted. Messages are those of
//! `proto/services.proto`.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prost::Message;

use super::{Engine, Inner};
use crate::control::Services;
use crate::ground::device::TaskName;
use crate::ground::{Status, catalogue};
use crate::proto::services::{
    Connected, ConnectedReply, ConnectedRequest, PendingItem, PendingReply,
};
use crate::shard::PendingWhat;

/// Gives back what it was given.
pub const ECHO: u32 = 1;
/// Takes a `ConnectedRequest`, gives a `ConnectedReply`.
pub const CONNECTED: u32 = 2;
/// Takes a `PendingRequest`, gives a `PendingReply`.
pub const PENDING: u32 = 3;

/// How often a probe looks whether all are connected.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The services of an engine.
pub(super) fn of(engine: Weak<Inner>) -> Services {
    let alive = move || {
        let inner: Option<Arc<Inner>> = engine.upgrade();
        let gone = || Status::of(catalogue::SHUTDOWN, "Shutdown");
        inner.map(|inner| Engine { inner }).ok_or_else(gone)
    };
    let (connected, pending) = (alive.clone(), alive);
    Services::new()
        .on(ECHO, |call| Ok(call.payload.clone()))
        .on(CONNECTED, move |call| {
            let asked = ConnectedRequest::decode(&*call.payload).map_err(|error| {
                let message = format!("not a ConnectedRequest: {error}");
                Status::of(catalogue::CALL_MALFORMED, message)
            })?;
            let engine = connected()?;
            let until = Instant::now() + Duration::from_millis(asked.probe_ms);
            Ok(who_is_connected(&engine, until.min(call.deadline)).encode_to_vec())
        })
        .on(
            PENDING,
            move |_| Ok(what_waits(&pending()?).encode_to_vec()),
        )
}

fn who_is_connected(engine: &Engine, until: Instant) -> ConnectedReply {
    let known = engine.inner.wiring.addressed();
    let absent = |engine: &Engine| -> Vec<TaskName> {
        let connected = engine.connected();
        let is_absent =
            |task: &&TaskName| !connected.iter().any(|connected| connected.task == **task);
        known.iter().filter(is_absent).cloned().collect()
    };
    if until > Instant::now() {
        absent(engine).iter().for_each(|task| engine.connect(task));
    }
    while until > Instant::now() && !absent(engine).is_empty() {
        std::thread::sleep(LOOK_EVERY);
    }
    let fallbacks = engine.fallbacks();
    let fallbacks_to = |task: &TaskName| {
        let fallback = fallbacks.iter().find(|fallback| fallback.task == *task);
        fallback.map_or(0, |fallback| fallback.count)
    };
    let mut connected: Vec<_> = engine
        .connected()
        .into_iter()
        .filter(|peer| peer.task.job() != super::OBSERVER_JOB)
        .map(|peer| Connected {
            task: peer.task.to_string(),
            incarnation: peer.incarnation.0,
            shards: peer.shards.into(),
            path: peer.path.name().into(),
            why: peer.why,
            read_domain: peer.read_domain,
            fell_back: peer.fell_back,
            fallbacks: fallbacks_to(&peer.task),
        })
        .collect();
    connected.sort_by(|one, other| one.task.cmp(&other.task));
    let absent = absent(engine);
    ConnectedReply {
        shards: engine.shards() as u32,
        inline_max: engine.inner.config.inline_max as u64,
        connected,
        absent: absent.iter().map(ToString::to_string).collect(),
    }
}

fn what_waits(engine: &Engine) -> PendingReply {
    let connected = engine.connected();
    let items = engine.pending().into_iter().map(|item| {
        let other = match item.what {
            PendingWhat::Receive => item.key.source_task(),
            PendingWhat::Value | PendingWhat::Send => item.key.destination_task(),
        };
        PendingItem {
            step: item.step.0,
            key: item.key.to_string(),
            is_waiting: item.what == PendingWhat::Receive,
            is_send: item.what == PendingWhat::Send,
            age_ns: item.age_ns,
            bytes: item.bytes,
            count: item.count,
            on: other.to_string(),
            is_connected: other == engine.task()
                || connected.iter().any(|connected| connected.task == *other),
        }
    });
    PendingReply {
        items: items.collect(),
    }
}
