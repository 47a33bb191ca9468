//! Real connections within this machine, asked about by both ways.

use std::cell::Cell;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

thread_local! {
    /// How often this thread has looked at the tables.
    pub(super) static TABLE_LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// Both ends of a connection: the dialler's, and the acceptor's.
fn pair(listen: &str, dial: Option<IpAddr>) -> Option<(TcpStream, TcpStream)> {
    // A machine may lack IPv6.
    let listener = TcpListener::bind(listen).ok()?;
    let mut to = listener.local_addr().expect("bound");
    if let Some(ip) = dial {
        to.set_ip(ip);
    }
    let dialled = TcpStream::connect(to).expect("it listens");
    let (accepted, _) = listener.accept().expect("a peer dialled");
    Some((dialled, accepted))
}

fn owner(socket: &TcpStream) -> Owner {
    Owner::of(socket).expect("there is room to ask")
}

fn both_ways(socket: &TcpStream) -> [io::Result<Option<u32>>; 2] {
    let local = canonical(socket.local_addr().expect("connected"));
    let peer = canonical(socket.peer_addr().expect("connected"));
    [by_diag(peer, local), by_table(peer, local)]
}

#[test]
fn both_ends_are_ours_in_every_spelling() {
    let own = rustix::process::geteuid().as_raw();
    let mapped = "::ffff:127.0.0.1".parse().ok();
    for (listen, dial) in [
        ("127.0.0.1:0", None),
        ("127.0.0.1:0", mapped),
        ("127.1.2.3:0", None),
        ("[::1]:0", None),
        ("[::]:0", "127.0.0.1".parse().ok()),
        ("[::]:0", mapped),
        ("[::]:0", "::1".parse().ok()),
    ] {
        let Some((dialled, accepted)) = pair(listen, dial) else {
            continue;
        };
        for socket in [&dialled, &accepted] {
            assert_eq!(owner(socket), Owner::User(own), "{listen} {dial:?}");
            let [diag, table] = both_ways(socket);
            assert_eq!(table.expect("a table"), Some(own), "{listen} {dial:?}");
            // A sandbox may forbid to ask; then the table is what is left.
            if let Ok(user) = diag {
                assert_eq!(user, Some(own), "{listen} {dial:?}");
            }
        }
    }
}

/// The kernel names root for a socket without a holder: a task of root's must not take that for its own user.
#[test]
fn a_closed_end_belongs_to_nobody() {
    let (dialled, accepted) = pair("127.0.0.1:0", None).expect("loopback");
    let [diag, _] = both_ways(&accepted);
    drop(dialled);
    let before = TABLE_LOOKS.get();
    assert_eq!(owner(&accepted), Owner::Unknown);
    // The tables are as long as this machine has sockets: they are read only where the kernel cannot be asked.
    let can_ask = diag.is_ok_and(|user| user.is_some());
    assert_eq!(TABLE_LOOKS.get() == before, can_ask);
    for user in both_ways(&accepted).into_iter().flatten() {
        assert_eq!(user, None);
    }
}

/// What room is shared by: an end of this machine is our own user's, or one of the others'.
#[test]
fn ends_of_other_users_are_told_apart_by_every_loopback_address() {
    let own = rustix::process::geteuid().as_raw();
    for listen in ["127.0.0.1:0", "127.1.2.3:0", "[::1]:0"] {
        let Some((dialled, accepted)) = pair(listen, None) else {
            continue;
        };
        let (peer, local) = (
            accepted.peer_addr().expect("one"),
            accepted.local_addr().expect("one"),
        );
        // Where the kernel cannot be asked, all are others alike.
        let can_ask = by_diag(peer, local).is_ok();
        assert_eq!(
            is_of_another(&accepted, UserNumbers::named(own)),
            !can_ask,
            "{listen}"
        );
        assert!(
            is_of_another(&accepted, UserNumbers::named(own + 1)),
            "{listen}"
        );
        drop(dialled);
        assert!(
            is_of_another(&accepted, UserNumbers::named(own)),
            "{listen}: it has no holder"
        );
    }
}

/// From an address of the loopback another user may dial any address of this machine.
#[test]
fn an_end_that_is_dialled_from_the_loopback_is_of_this_machine() {
    use rustix::net::{bind, connect, socket};
    let own = rustix::process::geteuid().as_raw();
    let routed = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        // An address for documentation: nothing is sent.
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    });
    // A machine may have no other address than the loopback's.
    let Ok(here) = routed else { return };
    let Ok(listener) = TcpListener::bind((here.ip(), 0)) else {
        return;
    };
    let dialled = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    let from: SocketAddr = "127.0.0.2:0".parse().expect("one");
    bind(&dialled, &from).expect("of the loopback");
    connect(&dialled, &listener.local_addr().expect("bound")).expect("it listens");
    let (accepted, peer) = listener.accept().expect("dialled");
    assert!(peer.ip().is_loopback());
    let can_ask = by_diag(peer, accepted.local_addr().expect("one")).is_ok();
    assert_eq!(is_of_another(&accepted, UserNumbers::named(own)), !can_ask);
    assert!(is_of_another(&accepted, UserNumbers::named(own + 1)));
    drop(dialled);
    assert!(
        is_of_another(&accepted, UserNumbers::named(own)),
        "it has no holder"
    );
}

/// An end that is shut down for writing still listens, and still has an owner.
#[test]
fn a_half_closed_end_keeps_its_owner() {
    let own = rustix::process::geteuid().as_raw();
    let (dialled, accepted) = pair("127.0.0.1:0", None).expect("loopback");
    dialled.shutdown(std::net::Shutdown::Write).expect("shut");
    assert_eq!(owner(&accepted), Owner::User(own));
    assert_eq!(owner(&dialled), Owner::User(own));
}

/// A connection that is not accepted yet has no owner on that side, and the listener beside it is not one.
#[test]
fn a_listener_is_no_end() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let to = listener.local_addr().expect("bound");
    let dialled = TcpStream::connect(to).expect("it listens");
    assert_eq!(owner(&dialled), Owner::Unknown);
    let nobody = SocketAddr::new(to.ip(), 1);
    assert!(!matches!(by_diag(to, nobody), Ok(Some(_))));
    assert_eq!(by_table(to, nobody).expect("a table"), None);
}

#[test]
fn another_machine_is_elsewhere() {
    // Addresses for documentation: no machine has them.
    let [local, peer] = ["192.0.2.1:5", "198.51.100.7:6"].map(|text| text.parse().expect("one"));
    assert_eq!(of_pair(local, peer).expect("asked"), Owner::Elsewhere);
    assert_eq!(
        of_pair(local, SocketAddr::new(local.ip(), 6)).expect("asked"),
        Owner::Unknown
    );
}

#[test]
fn rows_are_read_as_the_kernel_writes_them() {
    let line = "   3: 0100007F:1F90 0200007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0";
    let (ours, theirs) = match cfg!(target_endian = "little") {
        true => ("127.0.0.1:8080", "127.0.0.2:50000"),
        false => ("1.0.0.127:8080", "2.0.0.127:50000"),
    };
    let row = Row {
        source: ours.parse().expect("an address"),
        destination: theirs.parse().expect("an address"),
        state: ESTABLISHED,
        user: 1000,
        inode: 4711,
    };
    assert_eq!(Row::read(line), Some(row));
    for line in [
        "",
        "  sl  local_address rem_address",
        "1: 01:02 03:04 01 0 0 0 0 0 0",
    ] {
        assert_eq!(Row::read(line), None, "{line}");
    }
}

/// Only the system's word that no card here has an address makes its process one of another machine.
#[test]
fn what_cannot_be_asked_is_not_taken_to_be_elsewhere() {
    // A link's address without its link: the system takes it for no address at all.
    let [local, peer] = ["[fe80::1]:5", "[fe80::2]:6"].map(|text| text.parse().expect("one"));
    assert_eq!(of_pair(local, peer).expect("asked"), Owner::Unknown);
}

/// Set for the child of the test that needs one.
const CHILD: &str = "RENDEZ_TEST_NO_DESCRIPTORS";

/// Without a descriptor to ask with, our own user's end is not taken for another's.
#[test]
fn who_cannot_be_asked_about_for_now_is_no_other_user() {
    if std::env::var_os(CHILD).is_none() {
        let name = "who_cannot_be_asked_about_for_now_is_no_other_user";
        let child = Command::new(std::env::current_exe().expect("our binary"))
            .args(["--exact", &format!("control::owner::tests::{name}")])
            .env(CHILD, "1")
            .output()
            .expect("a child");
        assert!(child.status.success(), "{child:?}");
        return;
    }
    let (dialled, accepted) = pair("127.0.0.1:0", None).expect("loopback");
    let next = accepted.try_clone().expect("room").as_raw_fd();
    let limit = getrlimit(Resource::Nofile);
    let none_left = Rlimit {
        current: u64::try_from(next).ok(),
        ..limit
    };
    setrlimit(Resource::Nofile, none_left).expect("lowered");
    let asked = [&dialled, &accepted].map(Owner::of);
    let elsewhere = is_of_this_machine("198.51.100.7:6".parse().expect("one"));
    setrlimit(Resource::Nofile, limit).expect("raised again");
    for asked in asked {
        assert!(is_shortage(&asked.expect_err("no descriptor is left")));
    }
    assert!(elsewhere.is_err());
    let own = rustix::process::geteuid().as_raw();
    assert_eq!(owner(&accepted), Owner::User(own));
}
