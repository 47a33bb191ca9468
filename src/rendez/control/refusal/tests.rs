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

/// A stranger's words write no title, no second line of a log, and nothing over what stands there.
#[test]
fn texts_from_the_wire_control_no_terminal() {
    let status = status_from_wire("b", 3, "X", "\x1b]0;me\x07\nroot: all is well\u{9b}2J");
    let spelled = r"task b says: \u{1b}]0;me\u{7}\nroot: all is well\u{9b}2J";
    assert_eq!(status.message(), spelled);
    assert_eq!(clip(spelled), spelled, "once");
    assert_eq!(clip_lines("one\n\ttwo\u{7}"), "one\n\ttwo\\u{7}");
    let long = clip(&"\n".repeat(CONTROL_TEXT_MAX));
    assert_eq!(long.len(), CONTROL_TEXT_MAX);
}

proptest! {
    #[test]
    fn cut_texts_are_beginnings_within_the_bound(text in "\\PC{0,1200}") {
        let cut = clip(&text);
        prop_assert!(cut.len() <= CONTROL_TEXT_MAX && text.starts_with(&cut));
        prop_assert!(cut.len() == text.len() || cut.len() + 4 > CONTROL_TEXT_MAX);
    }
}

#[test]
fn a_lack_of_descriptors_is_told_with_what_to_do() {
    use super::super::lane::LaneError;
    use super::super::side::no_stream;
    use crate::fabric::link::LinkError;
    use rustix::io::Errno;
    let told = |errno: Errno| no_stream(errno.into()).status.message().to_owned();
    assert!(told(Errno::MFILE).contains("`ulimit -n`"));
    assert!(!told(Errno::CONNRESET).contains("`ulimit -n`"));
    let call = "socketpair";
    let lane = |errno| LaneError::System { call, errno }.to_string();
    assert!(lane(Errno::MFILE).contains("`ulimit -n`"));
    assert!(!lane(Errno::CONNRESET).contains("`ulimit -n`"));
    let link = |errno| LinkError::Os(call, errno).to_string();
    assert!(link(Errno::MFILE).contains("`ulimit -n`"));
    assert!(!link(Errno::CONNRESET).contains("`ulimit -n`"));
}
