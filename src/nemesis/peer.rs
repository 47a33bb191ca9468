//! Peer: one life of a task under test. It hands values to every other task and takes theirs, and writes down both.
//!
//! Knows a server and the public engine; judges nothing. For every other task there are a thread that sends, one for
//! each kind of value that receives, and one that waits for what never comes; between neighbours in the order of tasks
//! there is one that sends all it may, and one that does not receive it for a while. One thread only sleeps, and notes
//! how late it wakes.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use super::PeerArgs;
use super::devices::Devices;
use super::history::{Claim, Event, Lane, Log, now_ns};
use super::scope::{
    FLOOD_LEFT_NS, FLOOD_NS, FLOOD_SENT_NS, FLOOD_SLOT, FLOOD_TAKEN_NS, Kind, Lull, SLOT_NS, Scope,
    WATCH_SLOT, mixed,
};
use super::value::{self, Label};
use rendez::engine::Engine;
use rendez::ground::{Code, DType, Key, Locked, Status, StepId, TaskName, catalogue};
use rendez::memory::Tensor;
use rendez::trace::Path;
use rendez_cli::error::CliError;
use rendez_cli::serve;
use rustix::io::Errno;

/// How long a receive waits: longer than any delay of a machine that is whole.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a receive waits in the first slot of two lives.
const FIRST_PATIENCE: Duration = Duration::from_millis(250);
/// How long one waits for what never comes: longer than the loss of a peer may go untold.
const WATCH_PATIENCE: Duration = Duration::from_secs(4);
/// Slots after which a step is over: all its receives have ended by then.
pub(super) const SLOTS_KEPT: u64 = 16;
const _: () = assert!(SLOTS_KEPT * SLOT_NS > 3_500_000_000);

/// How long the last value of a flood may take.
const FLOOD_PATIENCE: Duration = Duration::from_millis(500);
/// How long the thread sleeps that notes how late it wakes, and what counts as late.
const BEAT_NS: u64 = 5_000_000;
/// How often a task looks whether another has begun a new life.
const RENEW_EVERY: Duration = Duration::from_millis(20);
/// What counts as a clock that was moved.
const JUMP_S: i64 = 2;

/// What all threads share.
struct Shared {
    engine: Engine,
    devices: Devices,
    me: u32,
    life: u32,
    lives: PathBuf,
    log: Arc<Log>,
    is_over: AtomicBool,
}

/// Another task, as this one deals with it.
struct Other {
    index: u32,
    name: TaskName,
    /// Steps that were used with it and have not been finished.
    used: Mutex<BTreeSet<(u64, StepId)>>,
    /// Its life, as it was last known.
    life: Mutex<u32>,
}

/// How long peers may take to come, and to come back: as the settings have it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs until it is told to end.
///
/// # Errors
/// What is wrong with the settings or the files.
pub(super) fn run(args: &PeerArgs) -> Result<(), CliError> {
    let signals = serve::signals()?;
    let log = Log::create(&args.history).map_err(|error| {
        let message = format!("cannot make {}: {error}", args.history.display());
        CliError::failure("FILE_UNWRITABLE", message)
    })?;
    let (server, _) = serve::start(&args.settings, CONNECT_TIMEOUT)?;
    let engine = server.engine()?;
    let devices = Devices::new(&engine)?;
    let mut me = 0;
    let mut others = Vec::new();
    let tasks: Vec<_> = server.cluster().tasks().map(|(name, _)| name).collect();
    for (index, (name, _)) in server.cluster().tasks().enumerate() {
        if name == *server.task() {
            me = index as u32;
            continue;
        }
        others.push(Other {
            index: index as u32,
            name,
            used: Mutex::default(),
            life: Mutex::new(0),
        });
    }
    log.add(&Event::Begin {
        task: me,
        life: args.life,
        pid: std::process::id(),
        incarnation: engine.incarnation().0,
    });
    let shared = Shared {
        engine,
        devices,
        me,
        life: args.life,
        lives: args.lives.clone(),
        log: Arc::new(log),
        is_over: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let count = others.len() as u32 + 1;
        let beating = &shared;
        scope.spawn(move || beating.beat());
        scope.spawn(move || beating.devices.turn(|| beating.is_over()));
        scope.spawn(move || beating.rest());
        for other in &others {
            let shared = &shared;
            if other.index == (me + 1) % count {
                scope.spawn(move || shared.flood(other));
            }
            if me == (other.index + 1) % count {
                scope.spawn(move || shared.drain(other));
            }
            scope.spawn(move || shared.renew(other));
            scope.spawn(move || shared.send_to(other));
            scope.spawn(move || shared.watch(other));
            for kind in Kind::SENT {
                scope.spawn(move || shared.receive_from(other, kind));
            }
        }
        let (running, tasks) = (&shared, &tasks);
        let run = || super::graphs::run(&server, tasks, &running.log, &running.is_over);
        let graphs = scope.spawn(run);
        let me = super::calls::Me {
            task: me,
            life: args.life,
            log: Arc::clone(&running.log),
        };
        let (cluster, is_over) = (server.cluster(), &running.is_over);
        let calls = scope.spawn(move || super::calls::run(&running.engine, &cluster, me, is_over));
        // A sender of signals that is gone is an end too.
        let _ = signals.recv();
        shared.is_over.store(true, Ordering::Release);
        // First what runs on all tasks, as long as they are there.
        let _ = graphs.join();
        let _ = calls.join();
        // Waiting threads hear of it, so that all threads end.
        server.stop(Some(Duration::from_millis(500)));
    });
    shared.log.add(&Event::End);
    Ok(())
}

impl Shared {
    /// Sends a step's values, spread over its slot; aborts some; finishes old ones.
    fn send_to(&self, other: &Other) {
        let mut last = 0;
        let mut noted = None;
        while let Some(slot) = self.next_slot(&mut last, SLOT_NS) {
            // The other may have sent in a slot that passed while this task started, or did not get to run.
            for missed in noted.unwrap_or_else(|| slot.saturating_sub(SLOTS_KEPT))..slot {
                drop(self.use_step(other, &self.scope(other, missed)));
            }
            noted = Some(slot + 1);
            let scope = self.scope(other, slot);
            let step = self.use_step(other, &scope);
            let mut turns: Vec<(Kind, u32)> = Kind::SENT
                .into_iter()
                .filter(|kind| kind.is_due(slot))
                .flat_map(|kind| (0..kind.count()).map(move |ordinal| (kind, ordinal)))
                .collect();
            // Values of one kind stay in order; which kind comes when changes.
            turns.sort_by_key(|(kind, ordinal)| {
                let width = 1_000_000 / u64::from(kind.count());
                u64::from(*ordinal) * width + mixed(slot ^ *kind as u64) % width
            });
            let count = turns.len() as u64;
            let abort_at = mixed(scope.step().0 ^ 1) % count;
            for (turn, (kind, ordinal)) in turns.into_iter().enumerate() {
                if self.is_over() {
                    return;
                }
                let is_mine = self.me == scope.tasks.0;
                if is_mine && scope.is_to_be_aborted() && turn as u64 == abort_at {
                    let step = scope.step();
                    self.log.add(&Event::Aborted { step: step.0 });
                    self.engine.step(step).abort(Status::new(
                        Code::Aborted,
                        catalogue::STEP_ABORTED,
                        "on purpose",
                    ));
                }
                self.send(other, &scope, kind, ordinal);
                // Most of the slot: what is left of it is for late values.
                std::thread::sleep(Duration::from_nanos(SLOT_NS * 3 / 4 / count));
            }
            drop(step);
            other.finish_before(&self.engine, slot.saturating_sub(SLOTS_KEPT));
        }
    }

    /// True if the engine took it.
    fn send(&self, other: &Other, scope: &Scope, kind: Kind, ordinal: u32) -> bool {
        let lane = Lane {
            step: scope.step().0,
            other: other.index,
            kind,
        };
        let label = Label {
            step: lane.step,
            from: self.me,
            to: other.index,
            kind,
            ordinal,
        };
        let words = kind.words(mixed(lane.step ^ (u64::from(ordinal) << 32)));
        let sent = Key::between(
            &self.engine.task().to_string(),
            &other.name.to_string(),
            kind.name(),
        )
        .map_err(Status::from)
        .and_then(|key| {
            let mut builder = self.engine.tensor(DType::U64, &[words])?;
            let sum = value::fill(builder.bytes_mut(), &label);
            self.log.add(&Event::Sent { lane, ordinal, sum });
            let mut value = builder.finish();
            if kind == Kind::Device {
                value = self.devices.of_host(&value, sum)?;
            }
            let step = self.engine.step(scope.step());
            step.send(&key, value)
        });
        if let Err(status) = sent {
            let reason = status.reason().to_owned();
            self.log.add(&Event::Refused {
                lane,
                ordinal,
                reason,
            });
            return false;
        }
        true
    }

    /// Finishes the steps of a life that is over, as a task that hears of its end would: no thread waits in them any
    /// more.
    fn renew(&self, other: &Other) {
        let mut before = 0;
        while !self.is_over() {
            std::thread::sleep(RENEW_EVERY);
            let life = self.life_of(other);
            if life != std::mem::replace(&mut before, life) {
                other.finish_if(&self.engine, |step| {
                    Scope::of(step.0).life_of(other.index) != life
                });
                // It may have sent in slots of which this task used the steps of its former life: what is not taken
                // there would stay until those steps are unclaimed.
                let now = now_ns() / SLOT_NS;
                for slot in now.saturating_sub(SLOTS_KEPT)..=now {
                    drop(self.use_step(other, &self.scope(other, slot)));
                }
            }
        }
    }

    /// Sends as much as is taken, and more, to one that does not receive it yet.
    fn flood(&self, other: &Other) {
        let mut last = now_ns() / FLOOD_NS;
        let mut before = None;
        while let Some(slot) = self.next_slot(&mut last, FLOOD_NS) {
            let scope = self.begin_flood(other, slot, &mut before);
            let _step = self.engine.step(scope.step());
            let mut ordinal = 0;
            while !self.is_over() && now_ns() < slot * FLOOD_NS + FLOOD_SENT_NS {
                if !self.send(other, &scope, Kind::Flood, ordinal) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                ordinal += 1;
            }
        }
    }

    /// Takes, late, what was sent so.
    fn drain(&self, other: &Other) {
        let mut last = now_ns() / FLOOD_NS;
        let mut before = None;
        while let Some(slot) = self.next_slot(&mut last, FLOOD_NS) {
            let scope = self.begin_flood(other, slot, &mut before);
            let _step = self.engine.step(scope.step());
            let wait = (slot * FLOOD_NS + FLOOD_TAKEN_NS).saturating_sub(now_ns());
            std::thread::sleep(Duration::from_nanos(wait));
            let mut nth = 0;
            // Its sender finishes it with the next one.
            while now_ns() < slot * FLOOD_NS + FLOOD_LEFT_NS
                && self.receive(other, &scope, Kind::Flood, nth, FLOOD_PATIENCE)
            {
                nth += 1;
            }
        }
    }

    /// The scope of a flood; the one before it is over.
    fn begin_flood(&self, other: &Other, slot: u64, before: &mut Option<Scope>) -> Scope {
        let scope = self.scope(other, FLOOD_SLOT + slot);
        if let Some(over) = before.replace(scope) {
            self.engine.step(over.step()).finish();
        }
        scope
    }

    /// Sleeps, and notes how late it wakes, and whether the clock of the day was moved meanwhile.
    fn beat(&self) {
        let day = || {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.map_or(0, |now| now.as_secs() as i64)
        };
        let mut offset_s = day() - (now_ns() / 1_000_000_000) as i64;
        while !self.is_over() {
            let began_ns = now_ns();
            std::thread::sleep(Duration::from_nanos(BEAT_NS));
            let for_ns = (now_ns() - began_ns).saturating_sub(BEAT_NS);
            if for_ns > BEAT_NS {
                self.log.add(&Event::Late { for_ns });
            }
            let now_s = day() - (now_ns() / 1_000_000_000) as i64;
            if (now_s - offset_s).abs() >= JUMP_S {
                let by_s = now_s - offset_s;
                self.log.add(&Event::Jumped { by_s });
                offset_s = now_s;
            }
        }
    }

    /// Says what is kept for receivers, how often a peer was taken for one that breaks the protocol, and what devices
    /// hold when nothing has been sent for long that lies there.
    fn rest(&self) {
        let mut last = 0;
        while let Some(slot) = self.next_slot(&mut last, SLOT_NS) {
            let shards = self.engine.stats();
            self.log.add(&Event::Kept {
                parked: shards.iter().map(|shard| shard.parked_bytes).sum(),
                offered: shards.iter().map(|shard| shard.offered_bytes).sum(),
                violations: shards.iter().map(|shard| shard.violations).sum(),
            });
            if Lull::is_rest(slot) {
                self.log.add(&Event::Devices(self.devices.held()));
            }
        }
    }

    /// Receives one kind of a step's values, one after the other.
    fn receive_from(&self, other: &Other, kind: Kind) {
        let mut last = 0;
        let mut before = None;
        while let Some(slot) = self.next_slot(&mut last, SLOT_NS) {
            let scope = self.scope(other, slot);
            // In their first slot two lives may not have known of each other yet.
            let is_first = before.replace(scope.lives) != Some(scope.lives);
            if !kind.is_due(slot) {
                continue;
            }
            let step = self.use_step(other, &scope);
            let patience = if is_first { FIRST_PATIENCE } else { PATIENCE };
            for nth in 0..kind.count() {
                let is_here = self.receive(other, &scope, kind, nth, patience);
                if is_first && !is_here {
                    break;
                }
            }
            drop(step);
        }
    }

    /// Waits for what never comes.
    fn watch(&self, other: &Other) {
        let mut before = None;
        let mut nth = 0;
        while !self.is_over() {
            let scope = self.scope(other, WATCH_SLOT);
            if before.is_some_and(|before| before != scope) {
                let over: Option<Scope> = before;
                if let Some(over) = over {
                    self.engine.step(over.step()).finish();
                }
                nth = 0;
            }
            before = Some(scope);
            self.receive(other, &scope, Kind::Watch, nth, WATCH_PATIENCE);
            nth += 1;
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// True if a value came.
    fn receive(
        &self,
        other: &Other,
        scope: &Scope,
        kind: Kind,
        nth: u32,
        patience: Duration,
    ) -> bool {
        if self.is_over() {
            return false;
        }
        let lane = Lane {
            step: scope.step().0,
            other: other.index,
            kind,
        };
        let patience_ns = super::nanos(patience);
        self.log.add(&Event::Asked {
            lane,
            nth,
            patience_ns,
        });
        let received = Key::between(
            &other.name.to_string(),
            &self.engine.task().to_string(),
            kind.name(),
        )
        .map_err(Status::from)
        .and_then(|key| {
            let step = self.engine.step(scope.step());
            step.recv(&key).deadline(patience).wait()
        })
        .and_then(|received| {
            let way = match received.tensor.is_device() {
                true => "device",
                false => way(received.path),
            };
            let dice = mixed(lane.step ^ u64::from(nth));
            Ok((self.devices.to_host(received.tensor, dice)?, way))
        });
        let event = match received {
            Ok((tensor, way)) => Event::Got {
                lane,
                nth,
                claim: self.claim(&lane, &tensor),
                way: way.to_owned(),
            },
            Err(status) => Event::Failed {
                lane,
                nth,
                reason: status.reason().to_owned(),
            },
        };
        self.log.add(&event);
        matches!(event, Event::Got { .. })
    }

    /// What a value says of itself, compared with what it came under.
    fn claim(&self, lane: &Lane, tensor: &Tensor) -> Claim {
        let read = tensor.host().ok().and_then(value::read);
        let Some((label, sum)) = read else {
            return Claim {
                is_right: false,
                ordinal: 0,
                sum: 0,
            };
        };
        let is_right = (label.step, label.from, label.to, label.kind)
            == (lane.step, lane.other, self.me, lane.kind);
        Claim {
            is_right,
            ordinal: label.ordinal,
            sum,
        }
    }

    /// Waits for the next slot of that length, or takes the present one if it is late; `None` if all is over.
    fn next_slot(&self, last: &mut u64, slot_ns: u64) -> Option<u64> {
        let now = now_ns();
        let slot = (now / slot_ns).max(*last + 1);
        *last = slot;
        let wait = (slot * slot_ns).saturating_sub(now);
        std::thread::sleep(Duration::from_nanos(wait));
        (!self.is_over()).then_some(slot)
    }

    fn scope(&self, other: &Other, slot: u64) -> Scope {
        Scope::new(
            (self.me, self.life),
            (other.index, self.life_of(other)),
            slot,
        )
    }

    fn life_of(&self, other: &Other) -> u32 {
        let mut life = other.life.locked();
        // A file that cannot be opened, as when there are no descriptors, changes nothing.
        let text = std::fs::read_to_string(&self.lives).unwrap_or_else(|error| {
            if error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
                self.log.add(&Event::Short);
            }
            String::new()
        });
        let mut lives = text.split_whitespace();
        if let Some(Ok(now)) = lives.nth(other.index as usize).map(str::parse) {
            *life = now;
        }
        *life
    }

    /// Holds the step's handle while it is used, and notes that it must be finished.
    fn use_step(&self, other: &Other, scope: &Scope) -> rendez::engine::Step {
        let step = scope.step();
        let mut used = other.used.locked();
        used.insert((scope.slot, step));
        drop(used);
        self.engine.step(step)
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Other {
    fn finish_before(&self, engine: &Engine, slot: u64) {
        self.finish_if(engine, |step| Scope::of(step.0).slot < slot);
    }

    fn finish_if(&self, engine: &Engine, is_over: impl Fn(StepId) -> bool) {
        let mut used = self.used.locked();
        used.retain(|(_, step)| {
            let is_over = is_over(*step);
            if is_over {
                engine.step(*step).finish();
            }
            !is_over
        });
    }
}

const fn way(path: Path) -> &'static str {
    match path {
        Path::Local => "local",
        Path::Inline => "inline",
        Path::Lease => "lease",
        Path::Copy => "copy",
    }
}
