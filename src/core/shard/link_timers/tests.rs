//! Link timers: order, and times that moved.

use super::*;

const fn link(number: u32) -> LinkId {
    LinkId::from_number(number)
}

#[test]
fn a_time_that_moved_is_asked_for_when_its_link_is_the_first() {
    let mut timers = LinkTimers::default();
    for (number, at) in [(0, 30), (1, 10), (2, 20), (3, 40)] {
        timers.note(link(number), Nanos(at));
    }
    // The first wants nothing any more, and the second wants to be called later.
    let mut asked = Vec::new();
    let first = timers.first(|of| {
        asked.push(of.number());
        [Nanos(30), Nanos::NEVER, Nanos(35), Nanos(40)][of.number() as usize]
    });
    assert_eq!(first, Some((Nanos(30), link(0))));
    assert_eq!(asked, [1, 2, 0]);
    timers.pop();
    let mut order = Vec::new();
    while let Some((at, of)) = timers.first(|of| Nanos(if of == link(2) { 35 } else { 40 })) {
        order.push((at.0, of.number()));
        timers.pop();
    }
    assert_eq!(order, [(35, 2), (40, 3)]);
}
