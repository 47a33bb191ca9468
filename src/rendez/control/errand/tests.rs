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
