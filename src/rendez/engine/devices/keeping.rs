//! The thread that turns the keeper, from the first use of a device until the engine ends.
//!
//! While something is kept it also gives up the lives of peers that are away for too long, so that gates open.

use std::sync::Arc;
use std::time::Duration;

use super::peers::DevicePeers;
use super::{Devices, lock};
use crate::ground::{Status, catalogue};
use crate::memory::{Keeper, Watch};
use crate::trace::clock::Clock;

/// Turns of the keeper without a pause, after something was let go.
const EAGER: u32 = 1 << 10;
/// The longest pause of the keeper while something is kept.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// How often the keeper still looks when the engine ends, with that pause between.
const LAST_LOOKS: u32 = 200;

impl Devices {
    /// The thread that turns the keeper.
    pub(super) fn begin_keeping(&self, clock: &Clock) -> Result<(), Status> {
        let mut thread = lock(&self.thread);
        if thread.is_some() {
            return Ok(());
        }
        let (keeper, clock) = (Arc::clone(&self.keeper), clock.clone());
        let peers = Arc::clone(&self.peers);
        let begun = std::thread::Builder::new()
            .name("rendez-devices".into())
            .spawn(move || keep(&keeper, &peers, &clock));
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

/// Turns the keeper until the engine ends.
fn keep(keeper: &Keeper, peers: &DevicePeers, clock: &Clock) {
    let mut watch = Watch::default();
    let mut idle = 0_u32;
    let mut looks = 0;
    loop {
        let now = clock.stamp();
        peers.give_up(now);
        let done = keeper.turn(&mut watch, now);
        let is_last = keeper.is_closed();
        if is_last && keeper.end(&mut watch, looks >= LAST_LOOKS) {
            return;
        }
        if keeper.count() == 0 {
            idle = 0;
            std::thread::park();
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
