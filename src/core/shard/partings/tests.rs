//! Which peer is done with which step, as far as it is remembered.

use super::*;

const fn link(number: u32) -> LinkId {
    LinkId::from_number(number)
}

#[test]
fn what_parted_is_known_until_its_step_or_its_link_goes() {
    let mut partings = Partings::new(8);
    assert!(!partings.has(StepId(0), link(0)));
    for (step, number) in [(7, 0), (7, 1), (9, 0), (7, 0)] {
        partings.mark(StepId(step), link(number));
    }
    assert!(partings.has(StepId(7), link(0)) && partings.has(StepId(7), link(1)));
    assert!(partings.has(StepId(9), link(0)) && !partings.has(StepId(9), link(1)));
    assert!(!partings.has(StepId(8), link(0)) && !partings.has(StepId(10), link(0)));
    partings.forget(StepId(9));
    assert!(!partings.has(StepId(9), link(0)) && partings.has(StepId(7), link(0)));
    partings.forget_link(link(0));
    assert!(!partings.has(StepId(7), link(0)) && partings.has(StepId(7), link(1)));
    partings.forget(StepId(7));
    assert_eq!(partings.youngest, StepId(0));
}

#[test]
fn the_oldest_is_forgotten_first_and_no_more_are_kept_than_may_be() {
    let mut partings = Partings::new(3);
    for step in 1..=1_000 {
        partings.mark(StepId(step), link(0));
        if step % 3 == 0 {
            partings.forget(StepId(step));
        }
        assert!(partings.order.len() <= 6 && partings.known.len() <= 3);
    }
    assert!(partings.has(StepId(1_000), link(0)) && partings.has(StepId(998), link(0)));
    assert!(!partings.has(StepId(996), link(0)));
}

/// A step that goes on for long, beside others that many peers part from before they end here.
#[test]
fn what_went_with_its_step_takes_no_room_from_others() {
    let mut partings = Partings::new(8);
    partings.mark(StepId(1), link(0));
    for step in 2..=1_000 {
        for number in 0..7 {
            partings.mark(StepId(step), link(number));
        }
        partings.forget(StepId(step));
        assert!(partings.has(StepId(1), link(0)), "after step {step}");
        assert!(partings.order.len() <= 16);
    }
}
