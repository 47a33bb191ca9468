//! The catalogue is a table: one row a reason, and none that says nothing.

use std::collections::BTreeSet;

use super::*;

#[test]
fn reasons_are_unique_and_in_capitals() {
    let names: BTreeSet<&str> = ALL.iter().map(|entry| entry.reason).collect();
    assert_eq!(names.len(), ALL.len());
    for entry in ALL {
        assert!(
            entry
                .reason
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte == b'_'),
            "{entry:?}"
        );
        assert!(
            entry.meaning.ends_with('.') && entry.remedy.ends_with('.'),
            "{entry:?}"
        );
        assert_ne!(entry.code, Code::Ok, "{entry:?}");
        assert_eq!(find(entry.reason), Some(entry));
    }
    assert_eq!(find("key_malformed"), None);
}

#[test]
fn every_table_is_in_it_whole_and_in_order() {
    assert_eq!(TABLES.concat(), ALL);
    assert!(TABLES.iter().all(|table| !table.is_empty()));
}

/// Programs match on these: a change here is a change of the wire format.
#[test]
fn codes_that_conformance_asks_for() {
    for (reason, code) in [
        (KEY_MALFORMED, Code::InvalidArgument),
        (DEVICE_FOREIGN_SOURCE, Code::InvalidArgument),
        (DEVICE_FOREIGN_DESTINATION, Code::InvalidArgument),
        (STEP_FINISHED, Code::Aborted),
        (RECV_CANCELLED, Code::Cancelled),
        (DEADLINE, Code::DeadlineExceeded),
        (SHUTDOWN, Code::Aborted),
    ] {
        assert_eq!(find(reason).map(|entry| entry.code), Some(code), "{reason}");
    }
}
