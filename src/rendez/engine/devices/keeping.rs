//! The thread that turns the keeper, from the first use of a device until the engine ends.
//!
//! While something is kept it also gives up the lives of peers that are away for too long, so that gates open. While a
//! stream is waited for it asks the driver, each second, whether the device still works: what a device that has failed
//! was to write is never there, and no word tells so to those who wait for it, here and in other processes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::peers::DevicePeers;
use super::{Arena, Arenas, Devices, lock};
use crate::ground::{Status, catalogue};
use crate::memory::{Keeper, Stream, Watch};
use crate::trace::clock::Clock;

/// Turns of the keeper without a pause, after something was let go.
const EAGER: u32 = 1 << 10;
/// The longest pause of the keeper while something is kept.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// How often the keeper still looks when the engine ends, with that pause between.
const LAST_LOOKS: u32 = 200;
/// How often drivers are asked.
const ASK: Duration = Duration::from_secs(1);

impl Devices {
    /// The thread that turns the keeper.
    pub(super) fn begin_keeping(&self, clock: &Clock) -> Result<(), Status> {
        let mut thread = lock(&self.thread);
        if thread.is_some() {
            return Ok(());
        }
        let (keeper, clock) = (Arc::clone(&self.keeper), clock.clone());
        let (peers, arenas) = (Arc::clone(&self.peers), Arc::clone(&self.arenas));
        let begun = std::thread::Builder::new()
            .name("rendez-devices".into())
            .spawn(move || keep(&keeper, &peers, &arenas, &clock));
        let begun = begun.map_err(|error| {
            let message = format!("a thread for devices: {error}");
            Status::of(catalogue::SYSTEM_LIMIT, message)
        })?;
        let waker = begun.thread().clone();
        self.keeper.set_wake(move || waker.unpark());
        *thread = Some(begun);
        Ok(())
    }

    /// Ends the thread, when what is kept is let go or was given time for it.
    pub(in crate::engine) fn stop(&self) {
        self.keeper.close();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Arena {
    /// Tells all who wait for this device's work if the device has failed.
    fn ask(&self) {
        let of_segments: Vec<_> = match &*lock(&self.pool) {
            Some(pool) => pool
                .segments()
                .iter()
                .map(|one| Arc::clone(one.times()))
                .collect(),
            None => Vec::new(),
        };
        let all = || of_segments.iter().chain([&self.times]);
        if all().all(|times| !times.is_waited_for()) {
            return;
        }
        if let Err(error) = Stream::ask(self.memory.accelerator(), self.memory.device())
            && error.is_of_lost_device()
        {
            tracing::error!(%error, "a device has failed: what it had not written never will be");
            all().for_each(|times| times.lose());
        }
    }
}

/// Turns the keeper until the engine ends.
fn keep(keeper: &Keeper, peers: &DevicePeers, arenas: &Arenas, clock: &Clock) {
    let mut watch = Watch::default();
    let mut asked = Instant::now();
    let mut idle = 0_u32;
    let mut looks = 0;
    loop {
        let now = clock.stamp();
        peers.give_up(now);
        if asked.elapsed() >= ASK {
            let all: Vec<_> = lock(arenas).values().map(Arc::clone).collect();
            all.iter().for_each(|arena| arena.ask());
            asked = Instant::now();
        }
        let done = keeper.turn(&mut watch, now);
        let is_last = keeper.is_closed();
        if is_last && keeper.end(&mut watch, looks >= LAST_LOOKS) {
            return;
        }
        if keeper.count() == 0 {
            idle = 0;
            std::thread::park_timeout(ASK);
        } else if done > 0 || idle < EAGER {
            idle = if done > 0 { 0 } else { idle + 1 };
            std::thread::yield_now();
        } else {
            // A park ends at once when something arrives.
            std::thread::park_timeout(
                PAUSE_MAX.min(Duration::from_micros(50) * (idle - EAGER + 1)),
            );
            idle = idle.saturating_add(1).min(EAGER + 100);
            looks += u32::from(is_last);
        }
    }
}
