//! Cores: each of the two processes that call has one of its own, so that no figure is of a thread that waits for a
//! core while another is idle.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Failure;

/// Those that this process was given.
static GIVEN: OnceLock<CpuSet> = OnceLock::new();

/// Which of the two processes.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Caller = 0,
    Callee = 1,
}

fn given() -> Result<&'static CpuSet, Failure> {
    if let Some(given) = GIVEN.get() {
        return Ok(given);
    }
    let mask = sched_getaffinity(None)?;
    Ok(GIVEN.get_or_init(|| mask))
}

/// This thread, and those that it will start, run on that side's core from now on; on all, if there is but one.
pub(crate) fn pin(side: Side) -> Result<(), Failure> {
    let given = given()?;
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|&core| given.is_set(core))
        .collect();
    if cores.len() > 1 {
        let mut one = CpuSet::new();
        one.set(cores[side as usize]);
        sched_setaffinity(None, &one)?;
    }
    Ok(())
}

/// Does `work` in a thread that may run wherever this process may, as what it starts may.
pub(crate) fn unpinned<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, Failure> {
    let given = given()?;
    let work = || sched_setaffinity(None, given).map(|()| work());
    let done = std::thread::scope(|scope| scope.spawn(work).join());
    Ok(done.map_err(|_| "a thread panicked")??)
}
