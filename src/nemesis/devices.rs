//! Devices: values that lie on devices of a played driver. Some are sent before their bytes are there, and some are let
//! go behind a stream that stalls.
//!
//! Knows an engine's devices, and the library that plays them; no step and no key.

use std::sync::Mutex;
use std::time::Duration;

use rendez::engine::{Engine, EngineDevices};
use rendez::ground::{Locked, Status};
use rendez::memory::{Stream, Tensor, TensorBytes};
use rendez_played_cuda::Played;

use super::history::now_ns;
use super::scope::mixed;

/// How often stalled streams are looked at.
const TURN: Duration = Duration::from_millis(2);
/// The longest that a stream stalls: less than a receive waits.
const STALL_NS: u64 = 60_000_000;

/// A task's devices, and what stalls there.
pub(super) struct Devices {
    devices: EngineDevices,
    played: Played,
    /// `None` when all is over: nothing stalls any more.
    stalled: Mutex<Option<Vec<Stalled>>>,
}

/// A stream that does nothing up to some time.
struct Stalled {
    until_ns: u64,
    stream: usize,
    /// Its end would do what is queued.
    _kept: Option<Stream>,
}

/// What a task has of devices at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    /// Blocks that are not at home.
    pub(super) blocks: u64,
    /// What is kept until a stream is past it.
    pub(super) kept: u64,
    /// What is kept for ever.
    pub(super) quarantined: u64,
    /// How often work met memory that it might not touch, or that was gone.
    pub(super) violations: u64,
}

impl Devices {
    /// All of an engine's, each with its arena: peers hear of them when they come.
    ///
    /// # Errors
    /// As [`Engine::devices`].
    pub(super) fn new(engine: &Engine) -> Result<Self, Status> {
        let devices = engine.devices()?;
        for info in devices.list() {
            drop(devices.to_device(&Tensor::scalar(0_u64), info.number)?);
        }
        Ok(Self {
            devices,
            played: Played::load(),
            stalled: Mutex::new(Some(Vec::new())),
        })
    }

    /// A copy of a value on a device: there, or, of every third, brought later by a copy from another device.
    pub(super) fn of_host(&self, value: &Tensor, dice: u64) -> Result<Tensor, Status> {
        let count = self.devices.list().len() as u64;
        let device = (mixed(dice) % count) as u32;
        if !dice.is_multiple_of(3) {
            return self.devices.to_device(value, device);
        }
        let there = self.devices.to_device(value, (device + 1) % count as u32)?;
        let lane = self.devices.lane(device)?;
        self.stall(lane.stream().handle(), dice, None);
        self.devices.copy(&there, lane)
    }

    /// The host's copy of a value that came. One of a device is let go, every other time, by a stream that stalls.
    pub(super) fn to_host(&self, value: Tensor, dice: u64) -> Result<Tensor, Status> {
        let TensorBytes::Device(place) = value.bytes() else {
            return Ok(value);
        };
        let read = self.devices.to_host(&value)?;
        if dice.is_multiple_of(2) {
            let stream = self.devices.stream(place.device)?;
            let raw = stream.handle();
            self.played.hold(raw as usize, true);
            let released = self.devices.release_after(value, &stream);
            self.stall(raw, dice, Some(stream));
            released?;
        }
        Ok(read)
    }

    fn stall(&self, stream: u64, dice: u64, kept: Option<Stream>) {
        let stalled = Stalled {
            until_ns: now_ns() + mixed(dice ^ 7) % STALL_NS,
            stream: stream as usize,
            _kept: kept,
        };
        let mut all = self.stalled.locked();
        self.played.hold(stalled.stream, all.is_some());
        if let Some(all) = &mut *all {
            all.push(stalled);
        }
    }

    /// Lets streams go on that have stalled long enough; in the end all of them.
    pub(super) fn turn(&self, is_over: impl Fn() -> bool) {
        loop {
            let is_last = is_over();
            let now = now_ns();
            let mut all = self.stalled.locked();
            if let Some(all) = &mut *all {
                all.retain(|one| {
                    let stays = !is_last && one.until_ns > now;
                    if !stays {
                        self.played.hold(one.stream, false);
                    }
                    stays
                });
            }
            if is_last {
                *all = None;
                return;
            }
            drop(all);
            std::thread::sleep(TURN);
        }
    }

    /// What is held now.
    pub(super) fn held(&self) -> Held {
        let stats = self.devices.stats();
        let (kept, quarantined) = self.devices.kept();
        Held {
            blocks: stats.iter().map(|one| one.arena.blocks).sum(),
            kept: kept as u64,
            quarantined,
            violations: self.played.violations(),
        }
    }
}
