//! Errands come back, and there are only so many.

use std::sync::mpsc;

use futures_lite::future::block_on;

use super::*;

#[test]
fn an_errand_brings_its_outcome() {
    let errands = Errands::default();
    let mut outcome = errands.begin(|| 6 * 7).expect("begun");
    assert_eq!(block_on(outcome.receive()), 42);
}

#[test]
fn errands_that_hang_are_counted() {
    let errands = Errands::default();
    let (release, gate) = mpsc::channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let mut hanging: Vec<_> = (0..ERRANDS_MAX)
        .map(|_| {
            let gate = Arc::clone(&gate);
            let work = move || gate.lock().expect("no panic").recv().is_err();
            errands.begin(work).expect("begun")
        })
        .collect();
    assert!(matches!(errands.begin(|| ()), Err(ErrandError::Busy)));
    drop(release);
    for outcome in &mut hanging {
        block_on(outcome.receive());
    }
    assert!(errands.begin(|| ()).is_ok());
}

/// Peers that dial us and never end what they began keep us from no dial of ours.
#[test]
fn errands_for_callers_leave_half_for_ours() {
    let errands = Errands::default();
    let (release, gate) = mpsc::channel::<()>();
    let gate = Arc::new(std::sync::Mutex::new(gate));
    let work = || {
        let gate = Arc::clone(&gate);
        move || gate.lock().expect("no panic").recv().is_err()
    };
    let mut hanging = Vec::new();
    while let Ok(outcome) = errands.begin_for_caller(work()) {
        hanging.push(outcome);
    }
    assert_eq!(hanging.len(), ERRANDS_MAX / 2);
    let status = errands.begin_for_caller(|| ()).expect_err("too many");
    assert!(
        status.to_string().contains("half of the limit ERRANDS_MAX"),
        "{status}"
    );
    while let Ok(outcome) = errands.begin(work()) {
        hanging.push(outcome);
    }
    assert_eq!(hanging.len(), ERRANDS_MAX);
    drop(release);
    for outcome in &mut hanging {
        block_on(outcome.receive());
    }
    assert!(errands.begin_for_caller(|| ()).is_ok());
}
