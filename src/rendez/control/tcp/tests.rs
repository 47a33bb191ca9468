//! Names, addresses and the sockets between them.

use super::*;

fn address(text: &str) -> Address {
    text.parse().expect("an address")
}

#[test]
fn a_name_is_resolved_and_reached() {
    for name in ["127.0.0.1:0", "[::1]:0", "localhost:0"] {
        let Ok(listener) = listen(&resolve(&address(name)).expect("resolved")) else {
            // A machine without IPv6.
            continue;
        };
        let bound = Address::of_socket(listener.local_addr().expect("bound"));
        let stream = connect(&bound, Instant::now() + Duration::from_secs(5)).expect("reached");
        tune(&stream, Duration::from_secs(10)).expect("tuned");
        assert!(stream.nodelay().expect("asked"));
        assert_eq!(sockopt::tcp_user_timeout(&stream).expect("asked"), 10_000);
        assert!(sockopt::socket_keepalive(&stream).expect("asked"));
    }
}

/// A name may mean several addresses: one that is taken is no reason to listen at the next, one that is not here is.
#[test]
fn a_taken_address_of_a_name_is_told() {
    let all = |texts: [&str; 2]| texts.map(|text| text.parse().expect("an address"));
    let first = listen(&all(["192.0.2.1:0", "127.0.0.1:0"])).expect("the second is here");
    let taken = first.local_addr().expect("bound");
    let error = listen(&[taken, SocketAddr::from(([127, 0, 0, 2], taken.port()))]);
    let error = error.expect_err("the first is taken");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

#[test]
fn what_cannot_be_reached_says_why() {
    let soon = || Instant::now() + Duration::from_secs(5);
    let listener = listen(&resolve(&address("127.0.0.1:0")).expect("resolved")).expect("bound");
    let bound = Address::of_socket(listener.local_addr().expect("bound"));
    drop(listener);
    let error = connect(&bound, soon()).expect_err("nothing listens");
    assert!(error.to_string().contains("127.0.0.1"), "{error}");
    let error = connect(&address("name.invalid:5"), soon()).expect_err("no such name");
    assert!(matches!(error, DialError::Unresolved { .. }), "{error}");
    assert!(error.to_string().contains("name.invalid"), "{error}");
    let error = connect(&Address::unique("a"), soon()).expect_err("no TCP address");
    assert!(matches!(error, DialError::NotTcp(_)), "{error}");
}

#[test]
fn loopback_is_known_in_every_spelling() {
    let is = |text: &str| is_loopback(text.parse().expect("an address"));
    assert!(is("127.0.0.1") && is("127.9.9.9") && is("::1") && is("::ffff:127.0.0.1"));
    assert!(!is("0.0.0.0") && !is("::") && !is("10.0.0.1") && !is("::ffff:10.0.0.1"));
}
