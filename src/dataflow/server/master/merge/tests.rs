//! Partial runs that end, in either order.

use std::sync::Arc;

use super::*;
use crate::server::wait::Waiter;
use rendez::ground::catalogue;

fn status(message: &str) -> Status {
    Status::of(catalogue::STEP_ABORTED, message)
}

/// What is heard when these two come, in this order or the other.
fn merged(
    executors: Result<(), Status>,
    part: Result<(), Status>,
    executors_first: bool,
) -> Result<(), Status> {
    let merge = Merge::default();
    let step = StepId(7 << 40);
    assert!(merge.find_or_create(step));
    assert!(!merge.find_or_create(step));
    let (tell, heard) = Waiter::pair();
    let ended: Ended = Box::new(tell);
    if executors_first {
        merge.executors_done(step, executors);
        assert_eq!(merge.len(), 1, "one of the two is not enough");
        merge.part_done(step, ended, part);
    } else {
        merge.part_done(step, ended, part);
        assert_eq!(merge.len(), 1, "one of the two is not enough");
        merge.executors_done(step, executors);
    }
    assert_eq!(merge.len(), 0, "it is forgotten when it has ended");
    heard
        .wait(Some(std::time::Instant::now()))
        .expect("it was told")
}

#[test]
fn an_executors_failure_counts_more_than_a_parts_and_both_more_than_success() {
    for first in [true, false] {
        assert_eq!(merged(Ok(()), Ok(()), first), Ok(()));
        let (executor, part) = (status("executor"), status("part"));
        assert_eq!(merged(Ok(()), Err(part.clone()), first), Err(part.clone()));
        assert_eq!(
            merged(Err(executor.clone()), Ok(()), first),
            Err(executor.clone())
        );
        assert_eq!(
            merged(Err(executor.clone()), Err(part), first),
            Err(executor)
        );
    }
}

#[test]
fn steps_that_agree_in_their_low_half_are_two() {
    let merge = Merge::default();
    let (low, high) = (StepId(5), StepId(5 | 1 << 33));
    assert!(merge.find_or_create(low));
    assert!(merge.find_or_create(high));
    let (tell, heard) = Waiter::pair();
    merge.executors_done(high, Err(status("the other")));
    merge.part_done(low, Box::new(tell), Ok(()));
    merge.executors_done(low, Ok(()));
    assert_eq!(heard.wait(None), Some(Ok(())));
    assert_eq!(merge.len(), 1);
}

#[test]
fn an_end_is_told_once_however_many_race() {
    for _ in 0..200 {
        let merge = Arc::new(Merge::default());
        let step = StepId(1);
        merge.find_or_create(step);
        let count = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let other = Arc::clone(&merge);
        let thread = std::thread::spawn(move || other.executors_done(step, Ok(())));
        let counted = Arc::clone(&count);
        let ended: Ended = Box::new(move |_| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        merge.part_done(step, ended, Ok(()));
        thread.join().unwrap();
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}

#[test]
fn a_step_that_is_not_known_hears_its_own_outcome() {
    let merge = Merge::default();
    merge.executors_done(StepId(3), Ok(()));
    let (tell, heard) = Waiter::pair();
    merge.part_done(StepId(3), Box::new(tell), Err(status("late")));
    assert_eq!(heard.wait(None), Some(Err(status("late"))));
    assert_eq!(merge.len(), 0);
}
