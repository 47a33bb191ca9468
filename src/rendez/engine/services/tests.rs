//! Answers to peers that have more to tell than an answer has room for, and recordings for several askers at once.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak, mpsc};
use std::time::{Duration, Instant};

use prost::Message;
use rendez_proto::Method as _;
use rendez_proto::methods::engine_service::{GetConnected, GetPending, GetStat};
use rendez_proto::services::{
    Connected, ConnectedReply, ConnectedRequest, DumpRequest, PendingRequest, ShardStat, StatReply,
    StatRequest,
};

use super::{Dumps, OWN_MAX, Room, fit_tasks, pack, probe, recording, unpack};
use crate::control::{Incoming, PendingCall, Services};
use crate::engine::tests::{PATIENCE, Way, config, pair};
use crate::engine::{Engine, Inner};
use crate::ground::device::TaskName;
use crate::ground::limits::{CALL_PAYLOAD_MAX, DUMPS_MAX, SERVICE_THREADS};
use crate::ground::{Incarnation, Key, Status, StepId, catalogue, faults};
use crate::memory::Tensor;
use crate::shard::{Task, TaskContext, TaskEvent};

/// More than an answer has room for.
const KEYS: usize = 1000;

/// Waits for values that never come.
struct Waiting;

impl Task for Waiting {
    fn handle(&mut self, event: TaskEvent, context: &mut TaskContext<'_>) {
        if matches!(event, TaskEvent::Started) {
            for edge in 0..KEYS {
                let key = Key::between("a", "a", &format!("edge{edge}")).unwrap();
                let key = context.prepare(&key).unwrap();
                context.recv(StepId(1), key, 0);
            }
        }
    }
}

#[test]
fn of_more_than_an_answer_has_room_for_the_oldest_are_told_and_the_rest_counted() {
    let (a, b) = pair(Way::Shm);
    a.reach(b.task(), PATIENCE).unwrap();
    a.spawn(0, Box::new(Waiting)).unwrap();
    while a.stats().iter().map(|stats| stats.waiting).sum::<u64>() < KEYS as u64 {
        std::thread::yield_now();
    }
    let reply = b.ask::<GetPending>(a.task(), &PendingRequest {}, PATIENCE);
    let reply = reply.unwrap();
    assert!(reply.encoded_len() <= CALL_PAYLOAD_MAX);
    let (more, told) = reply.items.split_last().unwrap();
    assert!(told.iter().all(|item| item.is_waiting && item.count == 1));
    assert!(told.is_sorted_by(|one, next| one.age_ns >= next.age_ns));
    assert_eq!(more.what, "more");
    assert_eq!(told.len() + more.count as usize, KEYS);
    // As many as there is room for.
    let least = told.iter().map(Message::encoded_len).max().unwrap();
    assert!(reply.encoded_len() + 2 * least > CALL_PAYLOAD_MAX);
    a.shutdown(Duration::ZERO);
}

#[test]
fn counters_are_told_from_the_shard_on_that_is_asked_for() {
    let (a, b) = pair(Way::Shm);
    a.reach(b.task(), PATIENCE).unwrap();
    for (from, there) in [
        (0, vec![0, 1]),
        (1, vec![1]),
        (2, vec![]),
        (u32::MAX, vec![]),
    ] {
        let reply = b.ask::<GetStat>(a.task(), &StatRequest { from }, PATIENCE);
        let reply = reply.unwrap();
        let told: Vec<_> = reply.shards.iter().map(|shard| shard.shard).collect();
        assert_eq!((told, reply.shard_count), (there, 2));
    }
    a.shutdown(Duration::ZERO);
}

#[test]
fn an_answer_takes_as_many_of_the_first_as_it_has_room_for() {
    let counters = (0..60).map(|at| (format!("a_counter_of_shards_{at}"), u64::MAX));
    let counters: BTreeMap<_, _> = counters.collect();
    let shard = |shard| ShardStat {
        shard,
        counters: counters.clone(),
    };
    let mut reply = StatReply {
        up_ns: u64::MAX,
        ..StatReply::default()
    };
    reply.shards = Room::beside(&reply).take((0..1000).map(shard));
    let most = CALL_PAYLOAD_MAX;
    assert!(reply.encoded_len() <= most && reply.encoded_len() + shard(0).encoded_len() > most);
    assert!((0..).zip(&reply.shards).all(|(at, told)| told.shard == at));
}

#[test]
fn of_more_tasks_than_an_answer_has_room_for_each_is_told_once_and_in_order() {
    let name = |task: usize| format!("/job:worker/replica:0/task:{task:04}");
    let connected = |task| Connected {
        task: name(task),
        why: "x".repeat(200),
        ..Connected::default()
    };
    // Every third is absent; the network gives both in no order.
    let (absent, present): (Vec<_>, Vec<_>) = (0..1000)
        .rev()
        .partition(|task: &usize| task.is_multiple_of(3));
    let mut told = vec![];
    let mut after = String::new();
    loop {
        let mut reply = ConnectedReply::default();
        let there = present.iter().map(|task| connected(*task)).collect();
        let absent = absent.iter().map(|task| name(*task)).collect();
        fit_tasks(&mut reply, there, absent, &after);
        assert!(reply.encoded_len() <= CALL_PAYLOAD_MAX);
        let mut part: Vec<_> = reply.connected.into_iter().map(|peer| peer.task).collect();
        part.extend(reply.absent);
        part.sort();
        after = part.last().unwrap().clone();
        told.extend(part);
        if !reply.more {
            break;
        }
    }
    assert_eq!(told, (0..1000).map(name).collect::<Vec<_>>());
}

/// Takes a recording piece by piece.
struct Asker {
    call: Incoming,
    packed: Vec<u8>,
}

impl Asker {
    fn new(number: u64) -> Self {
        let call = Incoming::within(
            "/job:asker/task:0".into(),
            Incarnation(number),
            vec![],
            PATIENCE,
        );
        Self {
            call,
            packed: Vec::new(),
        }
    }

    /// Takes the next piece. True if it was the last.
    fn take(&mut self, dumps: &mut Dumps, engine: &Engine) -> Result<bool, Status> {
        let from = self.packed.len() as u64;
        let fresh = (from == 0).then(|| recording(engine, 0));
        let asked = DumpRequest { shard: 0, from };
        let reply = dumps.piece(engine, &self.call, &asked, fresh)?;
        self.packed.extend(reply.piece);
        Ok(self.packed.len() as u64 >= reply.total)
    }
}

/// Records something that does not pack well.
fn record(engine: &Engine, step: u64) {
    let key = Key::between("a", "a", &format!("edge{step}")).unwrap();
    let step = engine.step(StepId(step));
    step.send(&key, Tensor::scalar(1u8)).unwrap();
    step.recv(&key).deadline(PATIENCE).wait().unwrap();
}

#[test]
fn words_are_unpacked_as_they_were_and_no_more_than_asked_for() {
    let words = [0, 7, u64::MAX, 0, 0, 1, 2, 0];
    let packed = pack(&words);
    assert_eq!(unpack(&packed, words.len()).as_deref(), Some(&words[..]));
    assert_eq!(unpack(&packed, words.len() - 1), None);
    assert_eq!(unpack(&packed[..packed.len() - 1], words.len()), None);
    // A little that says much is not unpacked to its end: what it says of itself comes first, and is a lie.
    let mut bytes = vec![0; 1 << 20];
    bytes[..8].copy_from_slice(&8u64.to_le_bytes());
    let swollen = miniz_oxide::deflate::compress_to_vec_zlib(&bytes, 1);
    assert_eq!(unpack(&swollen, words.len()), None);
}

#[test]
fn each_of_several_askers_gets_one_recording() {
    let mut config = config("/job:a/task:0");
    (config.shards, config.control, config.stage_sampling) = (1, false, 1);
    let engine = Engine::start(config).unwrap();
    (0..3000).for_each(|step| record(&engine, step));
    let mut dumps = Dumps::default();
    let mut askers: Vec<_> = (0..DUMPS_MAX as u64).map(Asker::new).collect();
    let mut is_last = vec![];
    for (asker, step) in askers.iter_mut().zip(9000..) {
        is_last.push(asker.take(&mut dumps, &engine).unwrap());
        record(&engine, step);
    }
    assert!(
        is_last.iter().all(|is_last| !is_last),
        "there is more of each"
    );
    for asker in &mut askers {
        while !asker.take(&mut dumps, &engine).unwrap() {}
        assert!(unpack(&asker.packed, 1 << 24).is_some());
    }
    assert!(dumps.0.is_empty(), "what was taken is kept no longer");
    // One too many: who began first is told so.
    let mut askers: Vec<_> = (0..=DUMPS_MAX as u64).map(Asker::new).collect();
    for asker in &mut askers {
        assert!(!asker.take(&mut dumps, &engine).unwrap());
    }
    let status = askers[0].take(&mut dumps, &engine).unwrap_err();
    assert_eq!(status.reason(), catalogue::CALL_BUSY);
    askers[1].take(&mut dumps, &engine).unwrap();
    engine.shutdown(PATIENCE);
}

/// Two tasks, and calls of the second that have all threads it may have of the first's services: they wait for a task
/// that never comes.
fn probed() -> (Engine, Engine, Vec<PendingCall>) {
    let (a, b) = pair(Way::Shm);
    a.reach(b.task(), PATIENCE).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let nowhere = format!("unix:{}", folder.path().join("nowhere").display());
    let absent = TaskName::parse("/job:absent/task:0").unwrap();
    a.add_peer(absent, nowhere.parse().unwrap());
    let asked = ConnectedRequest {
        probe_ms: u64::MAX,
        after: String::new(),
    };
    let begin = |_| {
        let (task, asked) = (a.task().to_string(), asked.encode_to_vec());
        let control = b.inner.control.get().unwrap();
        control.begin_call(&task, GetConnected::NUMBER, &asked, 0, 360 * PATIENCE)
    };
    let calls: Result<Vec<_>, _> = (0..SERVICE_THREADS).map(begin).collect();
    (a, b, calls.unwrap())
}

/// True if a service of `a` answers within that time.
fn serves(a: &TaskName, b: &Engine, patience: Duration) -> bool {
    let asked = StatRequest { from: 0 };
    b.ask::<GetStat>(a, &asked, patience).is_ok()
}

#[test]
fn a_probe_that_was_given_up_leaves_its_thread_to_others() {
    let (a, b, calls) = probed();
    let began = Instant::now();
    while serves(a.task(), &b, Duration::from_millis(20)) {
        assert!(began.elapsed() < PATIENCE, "no probe waits");
    }
    drop(calls);
    assert!(serves(a.task(), &b, PATIENCE));
    a.shutdown(Duration::ZERO);
}

#[test]
fn a_probe_keeps_no_engine_running() {
    let (a, b, calls) = probed();
    let task = a.task().clone();
    let inner: Weak<Inner> = Arc::downgrade(&a.inner);
    let began = Instant::now();
    while serves(&task, &b, Duration::from_millis(20)) {
        assert!(began.elapsed() < PATIENCE, "no probe waits");
    }
    drop(a);
    while inner.strong_count() > 0 {
        assert!(began.elapsed() < 3 * PATIENCE, "it runs on");
        std::thread::yield_now();
    }
    drop(calls);
    b.shutdown(Duration::ZERO);
}

#[test]
fn a_probe_ends_when_it_is_given_up_or_its_engine_is_gone() {
    for is_given_up in [true, false] {
        let mut config = config("/job:a/task:0");
        config.control = false;
        let engine = Engine::start(config).unwrap();
        let absent = TaskName::parse("/job:absent/task:0").unwrap();
        engine.add_peer(absent, "unix:/nowhere".parse().unwrap());
        let call = Incoming::within(
            "/job:b/task:0".into(),
            Incarnation(1),
            vec![],
            PATIENCE * 360,
        );
        let cancelled = Arc::clone(&call.cancelled);
        let inner: Weak<Inner> = Arc::downgrade(&engine.inner);
        let (told, looks) = mpsc::channel();
        let probing = std::thread::spawn(move || {
            let alive = || {
                let _ = told.send(());
                let inner = inner.upgrade().ok_or_else(faults::shutdown)?;
                Ok(Engine::within(inner))
            };
            probe(&alive, &call, PATIENCE * 360)
        });
        (0..3).for_each(|_| looks.recv_timeout(PATIENCE).unwrap());
        match is_given_up {
            true => cancelled.store(true, Ordering::Relaxed),
            false => drop(engine),
        }
        // There are no more looks once it has ended.
        while let Ok(()) = looks.recv_timeout(PATIENCE) {}
        let outcome = probing.join().unwrap();
        let reason = outcome.map_err(|status| status.reason());
        match is_given_up {
            true => assert_eq!(reason, Ok(())),
            false => assert_eq!(reason, Err(catalogue::SHUTDOWN)),
        }
    }
}

/// The engine's own would answer in its place, and nothing would tell the program so.
#[test]
fn a_service_with_a_number_of_the_engine_is_refused() {
    let start = |number| {
        let services = Services::new().on(number, |_| Ok(vec![]));
        Engine::start_with(config("/job:numbers/task:0"), services)
    };
    for number in [1, OWN_MAX] {
        let error = start(number).expect_err("it is the engine's");
        assert_eq!(error.reason(), catalogue::CONFIG, "{error}");
        assert!(
            error.message().contains(&format!("service {number}")),
            "{error}"
        );
    }
    start(OWN_MAX + 1).expect("it is free");
}
