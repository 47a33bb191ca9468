//! Errands that wait for room.

use std::sync::mpsc;
use std::time::Duration;

use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn what_finds_no_room_is_done_when_there_is_some() {
    let errands = Arc::<Errands>::default();
    let (begin, begun) = mpsc::channel();
    let (tell, told) = mpsc::channel::<usize>();
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock().unwrap();
    let many = 2 * ERRANDS_OF_SESSIONS_MAX + 1;
    for number in 0..many {
        let (gate, begin, tell) = (Arc::clone(&gate), begin.clone(), tell.clone());
        errands.go(move |room| {
            room.unwrap();
            begin.send(()).unwrap();
            drop(gate.lock().unwrap());
            tell.send(number).unwrap();
        });
    }
    for _ in 0..ERRANDS_OF_SESSIONS_MAX {
        begun.recv_timeout(PATIENCE).unwrap();
    }
    assert!(begun.try_recv().is_err(), "the others wait");
    let full = errands.place().map(drop).unwrap_err();
    assert_eq!(full.reason(), catalogue::SESSION_LIMIT, "{full}");
    drop(closed);
    let mut done: Vec<_> = (0..many)
        .map(|_| told.recv_timeout(PATIENCE).unwrap())
        .collect();
    done.sort_unstable();
    assert!(done.into_iter().eq(0..many));
}

#[test]
fn no_more_wait_than_may() {
    let errands = Arc::<Errands>::default();
    let places: Result<Vec<_>, _> = (0..ERRANDS_OF_SESSIONS_MAX)
        .map(|_| errands.place())
        .collect();
    let (tell, told) = mpsc::channel();
    for _ in 0..=SESSIONS_MAX {
        let tell = tell.clone();
        errands.go(move |room| tell.send(room).unwrap());
    }
    let full = told.try_recv().unwrap().unwrap_err();
    assert_eq!(full.reason(), catalogue::SESSION_LIMIT, "{full}");
    assert!(told.try_recv().is_err(), "the others wait");
    drop(places);
    for _ in 0..SESSIONS_MAX {
        told.recv_timeout(PATIENCE).unwrap().unwrap();
    }
}
