//! A shard that is turned by the threads that call it: what a send has it do.

use super::posting::{Pair, STEP};
use crate::fabric::AnyPort;
use crate::ground::{Key, Nanos};
use crate::memory::Tensor;
use crate::shard::Settings;

/// How often task `a` looked what its peers said.
fn looks(pair: &mut Pair) -> u64 {
    match &pair.solos[0].ports_mut()[0] {
        AnyPort::Loopback(port) => port.stats().polls,
        _ => unreachable!("it has none but this"),
    }
}

/// A thread that only sends hears its peers every ten microseconds, and at once where there is more to do. If it never
/// did, its sends would end with the credit that peers gave at first; a look at each send would be paid by all.
#[test]
fn a_thread_that_only_sends_hears_its_peers_now_and_then() {
    let mut pair = Pair::new(Settings::default());
    let key = Key::between("a", "b", "there").unwrap();
    let send = |pair: &mut Pair, value: u32| {
        let before = looks(pair);
        let sent = pair.solos[0].send_of_caller(STEP, &key, Tensor::scalar(value));
        sent.unwrap();
        looks(pair) - before
    };
    // The key's number goes before its first value: that is more to do.
    pair.pass(1_000_000);
    send(&mut pair, 0);
    pair.settle();
    pair.pass(1_000_000);
    assert_eq!(send(&mut pair, 1), 1);
    assert_eq!(send(&mut pair, 2), 0, "they were heard at this very moment");
    pair.pass(9_999);
    assert_eq!(send(&mut pair, 3), 0);
    pair.pass(1);
    assert_eq!(send(&mut pair, 4), 1, "ten microseconds are over");
    // Far more than may be under way at once.
    let mut heard = 0;
    for value in 5..5_000 {
        pair.pass(1_000);
        heard += send(&mut pair, value);
        let waiting = pair.solos[1].recv(STEP, &key, Nanos::NEVER);
        pair.solos[1].turn();
        assert!(
            waiting.take().is_some_and(|outcome| outcome.is_ok()),
            "{value}"
        );
    }
    assert!(heard < 1_000, "{heard}");
}
