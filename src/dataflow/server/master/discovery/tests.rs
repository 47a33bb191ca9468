//! Many workers at once: in order, and none keeps the others waiting.

use std::sync::{Condvar, Mutex};

use super::*;

#[test]
fn one_that_takes_long_keeps_no_other_waiting() {
    let count = 3 * AT_ONCE;
    let (done, came) = (Mutex::new(0), Condvar::new());
    let outcomes = each((0..count).collect(), |number| {
        let mut done = done.lock().unwrap();
        if number == 0 {
            let long = Duration::from_secs(30);
            let rest = came.wait_timeout_while(done, long, |done| *done < count - 1);
            assert!(!rest.unwrap().1.timed_out(), "the others wait for it");
        } else {
            *done += 1;
            came.notify_all();
        }
        Ok(number)
    });
    let outcomes: Result<Vec<_>, Status> = outcomes.into_iter().collect();
    assert_eq!(outcomes, Ok((0..count).collect()));
}
