//! Texts of addresses, and a lock that others hold; sockets are tried in `tests/control`.

use proptest::prelude::*;

use super::*;

#[test]
fn texts_and_addresses_are_the_same_thing() {
    for text in [
        "unix:@a",
        "unix:@job:worker/task:0",
        "unix:/run/rendez/a.sock",
        "unix:/a",
        "localhost:0",
        "10.0.0.1:65535",
        "[::1]:80",
        "[fe80::1%eth0]:80",
        "worker-0.job.svc.cluster.local:2222",
    ] {
        assert_eq!(
            text.parse::<Address>().expect("an address").to_string(),
            text
        );
    }
}

#[test]
fn what_is_no_address_is_refused() {
    let long = format!("unix:@{}", "x".repeat(107));
    for text in [
        "",
        "a",
        "unix:",
        "unix:@",
        "unix:a",
        "unix:a/b",
        "unix:/",
        "unix:/a/",
        "tcp:1.2.3.4:5",
        ":5",
        "a:",
        "a:b",
        "a:65536",
        "a:05",
        "a:+5",
        "a b:5",
        "a/b:5",
        "::1:5",
        "[::1]",
        "[::1]:",
        "[a]:5",
        "[1.2.3.4]:5",
        "unix:@a\0b",
        &long,
    ] {
        let error = text.parse::<Address>().expect_err(text);
        assert!(error.to_string().contains("unix:@name"), "{error}");
    }
    let longest = format!("unix:@{}", "x".repeat(106));
    assert!(longest.parse::<Address>().expect("fits").listen().is_ok());
}

#[test]
fn made_up_names_fit_and_differ() {
    let name = "x".repeat(500);
    let (one, other) = (Address::unique(&name), Address::unique(&name));
    assert_ne!(one, other);
    assert!(
        one.to_string()
            .parse::<Address>()
            .is_ok_and(|parsed| parsed == one)
    );
}

proptest! {
    #[test]
    fn any_text_is_an_address_or_an_error(text in "(unix:)?[@/]?.*") {
        if let Ok(address) = text.parse::<Address>() {
            prop_assert_eq!(address.to_string(), text);
        }
    }
}

#[test]
fn a_bound_address_keeps_the_name_of_its_link() {
    let bound = |address: &str, socket: &str| {
        let address: Address = address.parse().unwrap();
        address.bound_at(socket.parse().unwrap()).to_string()
    };
    assert_eq!(
        bound("[fe80::1%eth0]:0", "[fe80::1%3]:5"),
        "[fe80::1%eth0]:5"
    );
    assert_eq!(bound("name:0", "10.0.0.1:5"), "10.0.0.1:5");
}

/// A lock of a directory that others may read is anybody's.
#[test]
fn a_directory_that_another_keeps_locked_is_an_error_and_not_a_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let lock = std::fs::File::open(folder.path()).expect("it is there");
    lock.lock().expect("it is not locked yet");
    let address = Address::Path(folder.path().join("socket"));
    assert!(matches!(address.listen(), Err(ListenError::Locked)));
    drop(lock);
    assert!(address.listen().is_ok());
}
