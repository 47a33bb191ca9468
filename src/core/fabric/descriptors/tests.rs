//! What is an eventfd, with `/proc` and without.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::pipe;

use super::*;

#[test]
fn an_eventfd_is_told_from_what_could_hold_a_writer_up() {
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("eventfd");
    assert_eq!(
        (is_eventfd(&event), has_no_type(&event)),
        (Ok(true), Ok(true))
    );
    let (reader, writer) = pipe().expect("pipe");
    let (unix, stream, flags) = (
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
    );
    let (one, other) = socketpair(unix, stream, flags, None).expect("sockets");
    let file = memfd_create("anon_inode:[eventfd]", MemfdFlags::CLOEXEC).expect("memfd");
    let others: [OwnedFd; 5] = [reader, writer, one, other, file];
    for other in &others {
        assert_eq!(
            (is_eventfd(other), has_no_type(other)),
            (Ok(false), Ok(false))
        );
    }
}
