//! Services: what every engine answers its peers over the control plane, beside handing tensors over.
//!
//! What is answered; the right to call was settled when the caller was greeted. Methods and messages are those of
//! `proto/services.proto`, two apart whose payloads are bytes.

use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;
use prost::Message;

use super::{Engine, Inner};
use crate::control::{Incoming, Services, read_answer};
use crate::ground::device::TaskName;
use crate::ground::limits::{CALL_PAYLOAD_MAX, DUMPS_MAX};
use crate::ground::{Code, Incarnation, Locked, Status, catalogue};
use crate::mail::PendingWhat;
use rendez_proto::Method;
use rendez_proto::methods::engine_service::{GetClock, GetConnected, GetDump, GetPending, GetStat};
use rendez_proto::services::{
    ClockReply, Connected, ConnectedReply, DumpReply, DumpRequest, PendingItem, PendingReply,
};

/// Gives back what it was given.
pub const ECHO: u32 = 1;
/// Takes an `OfferedRequest`, gives what the offer of that name gives; without a name `OfferedNames`.
pub const OFFERED: u32 = 7;

/// Numbers up to this are of services that every engine has, or will have: an engine that is started with others
/// there is refused.
pub const OWN_MAX: u32 = 15;

/// How often a probe looks whether all are connected.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long a probe waits at most: a task that is there is connected by then, and while it waits it has one of the few
/// threads that all services share.
#[cfg(not(test))]
const PROBE_MAX: Duration = Duration::from_secs(5);
/// Tests see what else ends a probe.
#[cfg(test)]
const PROBE_MAX: Duration = Duration::from_secs(3600);

impl Engine {
    /// True if there is a control plane, by which other tasks can be called.
    #[must_use]
    pub fn can_call(&self) -> bool {
        self.inner.control.get().is_some()
    }

    /// Calls a service of another task, over whatever connection there is or will be by the deadline. See
    /// [`services`](super::services) for those that every engine has.
    ///
    /// # Errors
    /// The service's status; `DeadlineExceeded` if no answer or no connection came in time; `FailedPrecondition`
    /// without a control plane.
    pub fn call(
        &self,
        task: &TaskName,
        method: u32,
        payload: &[u8],
        deadline: Duration,
    ) -> Result<Vec<u8>, Status> {
        super::recv::may_wait()?;
        let control = self.inner.control.get().ok_or_else(|| {
            let message = "this engine has no control plane";
            Status::new(
                Code::FailedPrecondition,
                catalogue::CONTROL_STOPPED,
                message,
            )
        })?;
        let span = tracing::debug_span!("call", %task, method);
        let _entered = span.enter();
        control.call(&task.to_string(), method, payload, deadline)
    }

    /// As [`Engine::call`], of a method whose messages are known.
    ///
    /// # Errors
    /// Also `CALL_MALFORMED` if the answer is no message of it.
    #[doc(hidden)]
    pub fn ask<M: Method>(
        &self,
        task: &TaskName,
        request: &M::Request,
        deadline: Duration,
    ) -> Result<M::Answer, Status> {
        let answer = self.call(task, M::NUMBER, &request.encode_to_vec(), deadline)?;
        read_answer(task, &answer)
    }
}

/// The services of an engine.
pub(super) fn of(engine: Weak<Inner>) -> Services {
    let alive = move || {
        let inner: Option<Arc<Inner>> = engine.upgrade();
        let gone = || Status::of(catalogue::SHUTDOWN, "Shutdown");
        inner.map(Engine::within).ok_or_else(gone)
    };
    let (connected, pending) = (alive.clone(), alive.clone());
    let (clock, stat, dump, offered) = (alive.clone(), alive.clone(), alive.clone(), alive);
    let dumps = Mutex::new(Dumps::default());
    Services::new()
        .at_once(ECHO, |call| Ok(call.payload.clone()))
        .serve::<GetConnected>(move |call, asked| {
            let patience = Duration::from_millis(asked.probe_ms).min(PROBE_MAX);
            probe(&connected, call, patience)?;
            Ok(who_is_connected(&connected()?, &asked.after))
        })
        .serve::<GetClock>(move |_, _| {
            let clock = &clock()?.inner.clock;
            let (ticks, rate) = (clock.ticks(), clock.scale().rate);
            let boot_id = super::recording::boot_id();
            Ok(ClockReply {
                ticks,
                rate,
                boot_id,
                unix_ns: super::recording::unix_ns(),
            })
        })
        .serve::<GetStat>(move |_, asked| Ok(super::counters::stat(&stat()?, asked.from)))
        .on(OFFERED, move |call| {
            // The engine may end while an offer takes its time.
            let offers = offered()?.inner.wiring.offers.clone();
            offers.answer(call)
        })
        .serve::<GetDump>(move |call, asked| {
            let engine = dump()?;
            // Others take pieces of theirs meanwhile.
            let fresh = (asked.from == 0).then(|| recording(&engine, asked.shard));
            let mut dumps = dumps.locked();
            dumps.piece(&engine, call, &asked, fresh)
        })
        .serve::<GetPending>(move |_, _| Ok(what_waits(&pending()?)))
}

/// The recordings that are being given away, the latest begun last.
#[derive(Debug, Default)]
struct Dumps(Vec<Dump>);

/// A recording, packed, that one asker takes piece by piece.
#[derive(Debug)]
struct Dump {
    asker: (String, Incarnation),
    shard: u32,
    packed: Vec<u8>,
}

/// Bytes of a piece: what a control message has room for.
const PIECE: usize = 32 << 10;

impl Dumps {
    /// A piece of the recording that this asker takes, which is `fresh` if it begins.
    fn piece(
        &mut self,
        engine: &Engine,
        call: &Incoming,
        asked: &DumpRequest,
        fresh: Option<Vec<u8>>,
    ) -> Result<DumpReply, Status> {
        let asker = (call.task.clone(), call.incarnation);
        if let Some(packed) = fresh {
            self.0.retain(|dump| dump.asker != asker);
            if self.0.len() >= DUMPS_MAX {
                self.0.remove(0);
            }
            self.0.push(Dump {
                asker: asker.clone(),
                shard: asked.shard,
                packed,
            });
        }
        // What was recorded since would not fit to what the asker has.
        let is_its = |dump: &Dump| dump.asker == asker && dump.shard == asked.shard;
        let at = self.0.iter().position(is_its).ok_or_else(|| {
            let message = format!(
                "the rest of a recording is no longer kept: more than {DUMPS_MAX} tasks asked at once; ask again"
            );
            Status::of(catalogue::CALL_BUSY, message)
        })?;
        let packed = &self.0[at].packed;
        let total = packed.len();
        let from = usize::try_from(asked.from).unwrap_or(usize::MAX).min(total);
        let end = (from + PIECE).min(total);
        let reply = DumpReply {
            shards: engine.shards() as u32,
            piece: packed[from..end].to_vec(),
            total: total as u64,
        };
        if end == total {
            self.0.remove(at);
        }
        Ok(reply)
    }
}

/// What `shard` has recorded, packed; nothing of a shard that is none.
fn recording(engine: &Engine, shard: u32) -> Vec<u8> {
    let mut recorders = engine.inner.recorders();
    let asked_for = recorders.find(|(index, _)| u32::from(*index) == shard);
    asked_for.map_or_else(Vec::new, |(_, recorder)| pack(&recorder.copy()))
}

/// The words that are not zero, each run after its place and its length, and all of it by zlib: most are.
fn pack(words: &[u64]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut put = |word: u64| plain.extend(word.to_le_bytes());
    let mut at = 0;
    put(words.len() as u64);
    for run in words.chunk_by(|one, next| (*one == 0) == (*next == 0)) {
        if run.first().is_some_and(|word| *word != 0) {
            put(at);
            put(run.len() as u64);
            run.iter().for_each(|word| put(*word));
        }
        at += run.len() as u64;
    }
    miniz_oxide::deflate::compress_to_vec_zlib(&plain, 1)
}

/// What a task has packed of its memory; `None` for what it has not. At most `most` words.
#[must_use]
pub fn unpack(packed: &[u8], most: usize) -> Option<Vec<u64>> {
    // Places and lengths at most treble what there is to say.
    let bytes = decompress_to_vec_zlib_with_limit(packed, most.saturating_mul(24)).ok()?;
    let (eights, _) = bytes.as_chunks::<8>();
    let mut said = eights.iter().map(|eight| u64::from_le_bytes(*eight));
    let count = usize::try_from(said.next()?)
        .ok()
        .filter(|count| *count <= most)?;
    let mut words = vec![0; count];
    while let Some(at) = said.next() {
        let (at, len) = (
            usize::try_from(at).ok()?,
            usize::try_from(said.next()?).ok()?,
        );
        let run = words.get_mut(at..at.checked_add(len)?)?;
        for word in run {
            *word = said.next()?;
        }
    }
    Some(words)
}

/// What an answer still has room for.
#[derive(Debug)]
pub(super) struct Room(usize);

impl Room {
    /// What `reply`, whose list is still empty, leaves.
    pub(super) fn beside(reply: &impl Message) -> Self {
        Self(CALL_PAYLOAD_MAX.saturating_sub(reply.encoded_len()))
    }

    /// True if an item of a list that takes `len` bytes fits as well, which takes its room. An item that does not fit
    /// takes all that is left, so that none after it is told before it.
    fn has(&mut self, len: usize) -> bool {
        // The field's number and the length come before each.
        let rest = self
            .0
            .checked_sub(1 + prost::length_delimiter_len(len) + len);
        self.0 = rest.unwrap_or(0);
        rest.is_some()
    }

    /// As many items as fit.
    pub(super) fn take<M: Message>(mut self, items: impl Iterator<Item = M>) -> Vec<M> {
        items
            .take_while(|item| self.has(item.encoded_len()))
            .collect()
    }
}

/// The known tasks that are not connected. A list that all tasks share names this one too.
fn absent(engine: &Engine) -> Vec<TaskName> {
    let connected = engine.connected();
    let mut known = engine.inner.wiring.addressed();
    let is_absent = |task: &TaskName| !connected.iter().any(|peer| peer.task == *task);
    known.retain(|task| task != engine.task() && is_absent(task));
    known
}

/// Connects to all known tasks, and waits for them as long as `patience` lets and someone waits for the answer. It has
/// no engine between two looks, so that it keeps none running.
fn probe(
    alive: &impl Fn() -> Result<Engine, Status>,
    call: &Incoming,
    patience: Duration,
) -> Result<(), Status> {
    let until = Instant::now() + patience;
    let is_awaited = || !call.is_given_up() && until > Instant::now();
    let mut is_first = true;
    while is_awaited() {
        let engine = alive()?;
        engine.inner.is_up()?;
        let absent = absent(&engine);
        if absent.is_empty() {
            break;
        }
        if std::mem::take(&mut is_first) {
            absent.iter().for_each(|task| engine.connect(task));
        }
        drop(engine);
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Of tasks whose names come after `after`, as many as an answer has room for.
fn who_is_connected(engine: &Engine, after: &str) -> ConnectedReply {
    let fallbacks = engine.fallbacks();
    let fallbacks_to = |task: &TaskName| {
        let fallback = fallbacks.iter().find(|fallback| fallback.task == *task);
        fallback.map_or(0, |fallback| fallback.count)
    };
    let connected = engine.connected().into_iter();
    let connected = connected
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
            protection: peer.protection.into(),
        });
    let absent = absent(engine).into_iter().map(|task| task.to_string());
    let mut reply = ConnectedReply {
        shards: engine.shards() as u32,
        inline_max: engine.inner.config.inline_max as u64,
        driver: engine.driver().name().into(),
        ..ConnectedReply::default()
    };
    fit_tasks(&mut reply, connected.collect(), absent.collect(), after);
    reply
}

/// Puts tasks whose names come after `after` into `reply`, in order of name, as many as it has room for.
fn fit_tasks(
    reply: &mut ConnectedReply,
    connected: Vec<Connected>,
    absent: Vec<String>,
    after: &str,
) {
    // True until all are told: what says so takes room too.
    reply.more = true;
    let mut room = Room::beside(reply);
    let connected = connected.into_iter().map(Ok);
    let mut tasks: Vec<_> = connected.chain(absent.into_iter().map(Err)).collect();
    let name = |task: &Result<Connected, String>| match task {
        Ok(connected) => connected.task.clone(),
        Err(absent) => absent.clone(),
    };
    tasks.retain(|task| name(task).as_str() > after);
    tasks.sort_by_cached_key(name);
    for task in tasks {
        let len = match &task {
            Ok(connected) => connected.encoded_len(),
            Err(absent) => absent.len(),
        };
        if !room.has(len) {
            return;
        }
        match task {
            Ok(connected) => reply.connected.push(connected),
            Err(absent) => reply.absent.push(absent),
        }
    }
    reply.more = false;
}

pub(super) fn what_waits(engine: &Engine) -> PendingReply {
    let connected = engine.connected();
    let is_connected =
        |task: &TaskName| task == engine.task() || connected.iter().any(|peer| peer.task == *task);
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
            is_connected: is_connected(other),
            what: String::new(),
        }
    });
    let above = engine.outstanding().into_iter().map(|one| PendingItem {
        what: one.what,
        key: one.name,
        age_ns: one.age_ns,
        count: one.count,
        is_connected: is_connected(&one.on),
        on: one.on.to_string(),
        ..PendingItem::default()
    });
    let keeper = engine.inner.wiring.devices().keeper();
    let count = u32::try_from(keeper.count()).unwrap_or(u32::MAX);
    let now = engine.inner.clock.stamp();
    let kept = (count > 0).then(|| PendingItem {
        what: "device memory".into(),
        key: "kept until streams no longer use it".into(),
        age_ns: now.0.saturating_sub(keeper.oldest().0),
        bytes: keeper.bytes(),
        count,
        on: engine.task().to_string(),
        is_connected: true,
        ..PendingItem::default()
    });
    let mut items: Vec<PendingItem> = items.chain(above).chain(kept).collect();
    items.sort_by_key(|item| std::cmp::Reverse(item.age_ns));
    fit(&mut items);
    PendingReply { items }
}

/// Leaves as many as an answer has room for, the oldest, and says in a last one how many more there are.
fn fit(items: &mut Vec<PendingItem>) {
    let mut more = PendingItem {
        what: "more".into(),
        key: "left out for lack of room".into(),
        age_ns: u64::MAX,
        count: u32::MAX,
        is_connected: true,
        ..PendingItem::default()
    };
    let fitting = |mut room: Room, items: &[PendingItem]| {
        let has_room = |item: &&PendingItem| room.has(item.encoded_len());
        items.iter().take_while(has_room).count()
    };
    if fitting(Room::beside(&PendingReply::default()), items) == items.len() {
        return;
    }
    let with_more = PendingReply {
        items: vec![more.clone()],
    };
    let rest = items.split_off(fitting(Room::beside(&with_more), items));
    more.age_ns = rest.first().map_or(0, |oldest| oldest.age_ns);
    more.count = rest
        .iter()
        .fold(0, |sum: u32, item| sum.saturating_add(item.count));
    items.push(more);
}

#[cfg(test)]
mod tests;
