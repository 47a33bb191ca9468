//! The threads of devices, from the first use of one until the engine ends.
//!
//! One turns the keeper. While something is kept it also gives up the lives of peers that are away for too long, so
//! that gates open. A call of the driver may wait for a stream that waits at such a gate: this thread makes none, and
//! takes no lock that another holds over one.
//!
//! The other asks the driver, each second while a stream is waited for, whether the device still works: what a device
//! that has failed was to write is never there, and no word tells so to those who wait for it, here and in other
//! processes. The driver may let it wait for as long as it likes: then nothing is known of the device either.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Devices;
use super::peers::DevicePeers;
use crate::ground::{Locked, Status, catalogue};
use crate::memory::{Accelerator, Keeper, Stream, Times, Watch};
use crate::trace::clock::Clock;

/// Turns of the keeper without a pause, after something was let go.
const EAGER: u32 = 1 << 10;
/// The longest pause of the keeper while something is kept.
const PAUSE_MAX: Duration = Duration::from_millis(1);
/// How often the keeper still looks when the engine ends, with that pause between.
const LAST_LOOKS: u32 = 200;
/// How often drivers are asked.
const ASK: Duration = Duration::from_secs(1);
/// How long the engine's end waits for a driver that is being asked.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// The times of each device that was used: locked for no longer than it takes to read or note them.
pub(super) type Noted = Mutex<BTreeMap<u32, Vec<Arc<Times>>>>;

/// The two of them.
#[derive(Debug)]
pub(super) struct Threads {
    keeping: JoinHandle<()>,
    asking: JoinHandle<()>,
}

impl Devices {
    /// The threads that turn the keeper and ask the driver.
    pub(super) fn begin_keeping(&self, clock: &Clock) -> Result<(), Status> {
        let mut threads = self.threads.locked();
        if threads.is_some() {
            return Ok(());
        }
        let (keeper, noted) = (Arc::clone(&self.keeper), Arc::clone(&self.noted));
        let accelerator = Arc::clone(self.accelerator()?);
        let asking = begin("rendez-ask", move || ask(&keeper, &accelerator, &noted))?;
        let (keeper, clock) = (Arc::clone(&self.keeper), clock.clone());
        let peers = Arc::clone(&self.peers);
        let keeping = begin("rendez-devices", move || keep(&keeper, &peers, &clock))?;
        let waker = keeping.thread().clone();
        self.keeper.set_wake(move || waker.unpark());
        *threads = Some(Threads { keeping, asking });
        Ok(())
    }

    /// Notes times, for those who wait to hear of a device that has failed.
    pub(super) fn note_times(&self, device: u32, times: &Arc<Times>) {
        let mut noted = self.noted.locked();
        noted.entry(device).or_default().push(Arc::clone(times));
    }

    /// Ends the threads, when what is kept is let go or was given time for it. One that hangs in the driver is left.
    pub(in crate::engine) fn stop(&self) {
        self.keeper.close();
        let Some(Threads { keeping, asking }) = self.threads.locked().take() else {
            return;
        };
        keeping.thread().unpark();
        asking.thread().unpark();
        if keeping.thread().id() != std::thread::current().id() {
            let _ = keeping.join();
        }
        let began = Instant::now();
        while !asking.is_finished() {
            if began.elapsed() > LAST_ANSWER {
                tracing::warn!("the device driver does not answer: this task stops waiting for it");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn begin(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Status> {
    let begun = std::thread::Builder::new().name(name.into()).spawn(run);
    begun.map_err(|error| {
        let message = format!("no thread for devices: {error}");
        Status::of(catalogue::SYSTEM_LIMIT, message)
    })
}

/// Asks the driver until the engine ends, and tells all who wait for the work of a device that has failed.
fn ask(keeper: &Keeper, accelerator: &Arc<dyn Accelerator>, noted: &Noted) {
    while !keeper.is_closed() {
        let all = noted.locked().clone();
        for (device, times) in all {
            if times.iter().any(|times| times.is_lost()) || has_failed(accelerator, device, &times)
            {
                // Also those that came since it failed.
                times.iter().for_each(|times| times.lose());
            }
        }
        std::thread::park_timeout(ASK);
    }
}

/// Whether a device whose streams are waited for has failed.
fn has_failed(accelerator: &Arc<dyn Accelerator>, device: u32, times: &[Arc<Times>]) -> bool {
    if times.iter().all(|times| !times.is_waited_for()) {
        return false;
    }
    match Stream::ask(accelerator, device) {
        Err(error) if error.is_of_lost_device() => {
            tracing::error!(%error, "a device has failed: what it had not written is lost");
            true
        }
        _ => false,
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
