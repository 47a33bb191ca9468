//! Refusals on the wire, and texts cut to their bounds.

use proptest::prelude::*;

use super::*;

#[test]
fn refusals_cross_the_wire() {
    let refusal = Refusal::later("PEER_BUSY", "soon");
    let back = Refusal::from_wire("b", &refusal.to_wire());
    assert_eq!(
        (back.status.code(), back.status.reason(), back.retry),
        (Code::Unavailable, "PEER_BUSY", true)
    );
    assert_eq!(back.status.message(), "task b says: soon");
    for code in [0, 17, 256, u32::MAX] {
        let status = status_from_wire("b", code, "MADE_UP", "x");
        assert_eq!(
            (status.code(), status.reason()),
            (Code::Unknown, "PEER_REFUSED")
        );
    }
}

proptest! {
    #[test]
    fn cut_texts_are_beginnings_within_the_bound(text in "\\PC{0,1200}") {
        let cut = clip(&text);
        prop_assert!(cut.len() <= CONTROL_TEXT_MAX && text.starts_with(&cut));
        prop_assert!(cut.len() == text.len() || cut.len() + 4 > CONTROL_TEXT_MAX);
    }
}
