//! Which refusals at a Unix address send a dial back to TCP.

use super::*;

fn route() -> Route {
    Route::new(&Dialled {
        address: "127.0.0.1:5".parse().expect("an address"),
        wish: PathWish::Auto,
        until: Instant::now(),
        is_sought: false,
    })
}

#[test]
fn what_may_pass_is_tried_again_there_for_a_while() {
    let later = |reason| Refusal::later(reason, "a moment");
    let short = Refusal::from(Status::of(catalogue::SYSTEM_LIMIT, "no descriptor is left"));
    for (refusal, times) in [
        (later(catalogue::GREETING_LATE), NEAR_LATE_MAX),
        (later("PEER_LOST"), NEAR_LATE_MAX),
        // A peer says so of the descriptors that did not come through, and this side of its own.
        (later("PEER_REFUSED"), NEAR_SHORT_MAX),
        (short, NEAR_SHORT_MAX),
        // That no process listens there is no matter of time.
        (later(catalogue::CONNECTION_REFUSED), 1),
        (
            Refusal::fatal(Code::PermissionDenied, "PEER_REFUSED", "never"),
            1,
        ),
    ] {
        let mut route = route();
        let passed = (1..).take_while(|_| route.may_pass(&refusal)).count();
        assert_eq!(passed as u32 + 1, times, "{refusal:?}");
    }
}

#[test]
fn a_task_that_does_not_know_its_boot_says_so() {
    assert!(route().why_tcp("boot").contains("another machine"));
    assert_eq!(route().why_tcp(""), hello::NO_BOOT);
}
