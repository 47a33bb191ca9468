//! Tests of `accelerator.rs`: drivers are tried in turn, and each that refuses is heard.

use super::*;

#[test]
fn where_no_driver_is_each_says_why() {
    let drivers: [OpenDriver; 2] = [
        |_| Err("no libone.so".into()),
        |library| Err(format!("{library:?} is not two")),
    ];
    assert_eq!(
        first_with_devices(&drivers, Some("lib.so")).unwrap_err(),
        "no libone.so; Some(\"lib.so\") is not two"
    );
}
