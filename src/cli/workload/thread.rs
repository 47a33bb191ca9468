//! Both sides as application threads: every send and receive crosses into the shard and back.
//!
//! On a machine with two cores each thread shares its shard's core, and both yield: the figure then holds the
//! scheduler's turns too, and the report says so.

use super::super::allocations;
use super::super::args::Pattern;
use super::super::bench::Measured;
use super::super::error::CliError;
use super::super::histogram::Recorder;
use super::super::interrupt::interrupted;
use super::super::machine;
use super::{Job, Keys, Timing, failed, ready_tensor};
use rendez::engine::Engine;
use rendez::memory::Tensor;

pub(super) fn measure(
    engine: &Engine,
    job: Job,
    keys: &Keys,
    core: usize,
) -> Result<Measured, CliError> {
    if job.pattern != Pattern::Pingpong || job.rate.is_some() {
        return Err(CliError::usage(
            "OPTION_CONFLICT",
            "--from thread measures the closed pattern 'pingpong' only",
        ));
    }
    let tensor = ready_tensor(engine, job.bytes)?;
    let timing = Timing::new(job);
    pin_if_narrow(core);
    let step = engine.step(keys.step);
    let mut recorder = Recorder::nanos();
    let mut began = timing.stopwatch.stamp();
    let mut last = began;
    let mut counted = None;
    loop {
        step.send(&keys.there, tensor.clone())
            .map_err(|status| failed(&status))?;
        let received = step
            .recv(&keys.back)
            .wait()
            .map_err(|status| failed(&status))?;
        let now = timing.stopwatch.stamp();
        // The far side sends a dead value where it found other bytes than were sent.
        if received.is_dead || job.check && received.tensor.bytes() != tensor.bytes() {
            return Err(failed(&super::near::wrong()));
        }
        match counted {
            None if timing.interrupts.came() => return Err(failed(&interrupted())),
            None if timing.is_over(began, now, timing.warmup) => {
                counted = Some(allocations::count());
                began = now;
            }
            None => {}
            Some(before) => {
                recorder.record(timing.stopwatch.nanos(last, now));
                if timing.is_over(began, now, timing.duration) {
                    // The far side may be gone already.
                    let _ = step.send_dead(&keys.there, Tensor::scalar(0u8));
                    let allocations =
                        allocations::is_counting().then(|| allocations::count() - before);
                    return Ok(Measured {
                        count: recorder.count(),
                        round_trips: Some(recorder),
                        allocations,
                        ..Measured::default()
                    });
                }
            }
        }
        last = timing.stopwatch.stamp();
    }
}

/// The far side: answers until a dead value, or an error, comes.
pub(super) fn serve(engine: &Engine, job: Job, keys: Keys, tensor: Tensor, core: usize) {
    let engine = engine.clone();
    std::thread::spawn(move || {
        pin_if_narrow(core);
        let step = engine.step(keys.step);
        while let Ok(received) = step.recv(&keys.there).wait() {
            if job.check && !received.is_dead && received.tensor.bytes() != tensor.bytes() {
                // The near side may be gone already.
                let _ = step.send_dead(&keys.back, Tensor::scalar(0u8));
                return;
            }
            if received.is_dead || step.send(&keys.back, tensor.clone()).is_err() {
                return;
            }
        }
    });
}

/// With few cores a thread stays with its shard, so that the other side's core is left alone.
fn pin_if_narrow(core: usize) {
    if machine::affinity().len() < 4 {
        // Unpinned it is only slower.
        let _ = machine::pin(core);
    }
}
