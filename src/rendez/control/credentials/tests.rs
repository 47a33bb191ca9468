//! What the kernel says of us when we are our own peer.

use std::os::unix::net::UnixStream;

use super::*;

#[test]
fn our_own_peer_is_us() {
    let (one, other) = UnixStream::pair().expect("a pair");
    let peer = Credentials::of(one.as_fd()).expect("credentials");
    assert_eq!(peer.user, rustix::process::geteuid().as_raw());
    assert_eq!(peer.process, i32::try_from(std::process::id()).ok());
    let pidfd = peer.pidfd.expect("a handle of a living process");
    assert!(!is_ready(pidfd.as_fd(), PollFlags::IN), "we live");
    assert!(
        rustix::io::fcntl_getfd(&pidfd)
            .expect("flags")
            .contains(rustix::io::FdFlags::CLOEXEC)
    );
    drop(other);
}

#[test]
fn a_handle_by_number_needs_a_standing_connection() {
    let (one, other) = UnixStream::pair().expect("a pair");
    let us = i32::try_from(std::process::id()).expect("small");
    assert!(open_by_number(one.as_fd(), us).is_some());
    drop(other);
    assert!(
        open_by_number(one.as_fd(), us).is_none(),
        "who hung up may have had this number before us"
    );
}

#[test]
fn what_is_no_socket_has_no_peer() {
    let file = std::fs::File::open("/dev/null").expect("opened");
    assert!(Credentials::of(file.as_fd()).is_err());
}

#[test]
fn two_peers_are_one_process_where_that_is_sure() {
    let users = UserNumbers::within(1000, 65_534);
    let (_one, other) = UnixStream::pair().expect("a pair");
    let living = || Credentials::of(other.as_fd()).expect("credentials").pidfd;
    let of = |user, process, pidfd| Credentials {
        user,
        process,
        pidfd,
    };
    let is = |one: (u32, Option<i32>), another: Credentials| {
        of(one.0, one.1, None).is_of(&another, users)
    };
    assert!(is((1000, Some(7)), of(1000, Some(7), None)));
    assert!(!is((1000, Some(7)), of(1000, Some(8), None)));
    assert!(!is((1000, Some(7)), of(1001, Some(7), None)));
    assert!(is((1000, None), of(1000, None, None)));
    assert!(!is((65_534, None), of(65_534, None, living())));
    assert!(is((65_534, Some(7)), of(65_534, Some(7), living())));
    // Its number may be another's by now.
    assert!(!is((65_534, Some(7)), of(65_534, Some(7), None)));
}
