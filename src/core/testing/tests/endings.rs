//! How a shard ends, or does not: what was taken still leaves, what comes is refused, and what panics beside it.

use std::sync::Arc;
use std::task::{Wake, Waker};

use super::posting::{Pair, STEP};
use crate::ground::{Key, Nanos};
use crate::mail::mailbox::Command;
use crate::mail::wait::WaitCell;
use crate::shard::Settings;

struct Trap;

impl Wake for Trap {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics");
    }
}

/// Wakers are their futures', which have their outcome all the same.
#[test]
fn a_waker_that_panics_is_not_taken_for_the_shard() {
    let mut pair = Pair::new(Settings::default());
    let key = Key::between("a", "a", "x").unwrap();
    let cell = Arc::new(WaitCell::default());
    assert!(cell.poll(&Waker::from(Arc::new(Trap))).is_pending());
    let command = Command::Recv {
        key: key.clone(),
        step: STEP,
        deadline: Nanos::NEVER,
        cell: Arc::clone(&cell),
        stops: None,
    };
    assert!(pair.solos[0].mailbox().command(command).is_ok());
    pair.settle();
    pair.send(0, &key, 8);
    pair.settle();
    assert!(cell.take().is_some_and(|outcome| outcome.is_ok()));
}
