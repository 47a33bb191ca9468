//! Users of one machine who prove one secret to each other over Unix sockets, and one who stands between two of them.
//!
//! A thread of its own user plays another user, which needs root. Who has not hears that nothing is shown.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;

use rendez::control::{Address, ControlConfig, Path, RuntimeKind};
use rendez::ground::Code;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::Uid;

use super::raw::{connect, lane_pair, send};
use super::skipped::skipped;
use super::support::{BOTH, PATIENCE, Task, config, start};
use super::tcp::secret;

/// Users whom no machine knows.
const OTHER: u32 = 61_001;
const THIRD: u32 = 61_002;

/// Runs `work` in a thread that is `user`; nothing where there are no other users to be.
fn as_user<T: Send + 'static>(
    user: u32,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<JoinHandle<T>> {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can be other users");
        return None;
    }
    Some(std::thread::spawn(move || {
        let user = Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
        work()
    }))
}

fn with_secret(task: &str, incarnation: u64, kind: RuntimeKind) -> ControlConfig {
    let mut config = config(task, incarnation, kind);
    config.secret = Some(secret("one"));
    config
}

/// A task of another user.
fn others(task: &'static str, incarnation: u64) -> Option<Task> {
    let made = as_user(OTHER, move || {
        start(with_secret(task, incarnation, RuntimeKind::Poll))
    })?;
    Some(made.join().expect("no panic"))
}

fn listen(name: &str) -> UnixListener {
    let name = SocketAddr::from_abstract_name(name).expect("a name");
    UnixListener::bind_addr(&name).expect("a free name")
}

/// Passes on what dials `listener`, with its lane or an `own` one, to `target`, and every byte after it in both
/// directions.
fn relay(listener: &UnixListener, target: &Address, own: bool) {
    loop {
        let (near, _) = listener.accept().expect("accepted");
        let far = connect(target);
        far.set_read_timeout(None).expect("no timeout");
        let (preamble, lane) = preamble(&near);
        let (_ours, made) = lane_pair();
        let lane = if own { made } else { lane };
        send(&far, &preamble, &[lane.as_fd()]);
        let (near_in, far_in) = (near.try_clone(), far.try_clone());
        let (near_in, far_in) = (near_in.expect("a clone"), far_in.expect("a clone"));
        std::thread::spawn(move || carry(near_in, far));
        std::thread::spawn(move || carry(far_in, near));
    }
}

fn preamble(stream: &UnixStream) -> ([u8; 8], OwnedFd) {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let heard = rustix::net::recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    );
    assert_eq!(heard.expect("heard").bytes, bytes.len());
    let lane = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    (bytes, lane.expect("a lane"))
}

fn carry(mut from: UnixStream, mut to: UnixStream) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

#[test]
fn two_users_of_one_secret_meet() {
    for kind in BOTH {
        let Some(b) = others("b", 2) else { return };
        let a = start(with_secret("a", 1, kind));
        a.dial(&b, "b");
        let (at_a, at_b) = (a.up(), b.up());
        assert_eq!((at_a.path, at_b.path), (Path::Shm, Path::Shm));
        assert!(at_a.read_domain && at_b.read_domain);
        a.stop();
        let _ = b.gone();
        let a = start(with_secret("a", 3, kind));
        b.dial(&a, "a");
        assert_eq!((a.up().path, b.up().path), (Path::Shm, Path::Shm));
    }
}

/// An abstract name belongs to the first that listens at it. A third user there passes on all that it hears: it would
/// be taken for one that knows the secret, and hold a lane that descriptors come through.
#[test]
fn a_third_user_in_between_is_found() {
    for kind in BOTH {
        let a = start(with_secret("a", 1, kind));
        let ours = start(with_secret("b", 2, RuntimeKind::Poll));
        let Some(others) = others("c", 3) else { return };
        let tasks = [(&ours, "b"), (&others, "c")];
        let cases = tasks
            .into_iter()
            .flat_map(|task| [(task, false), (task, true)]);
        for ((task, name), own) in cases {
            let process = std::process::id();
            let between = format!("rendez-third-user-{process}-{kind:?}-{name}-{own}");
            let (listens, is_up) = std::sync::mpsc::channel();
            let (target, at) = (task.control.address().clone(), between.clone());
            as_user(THIRD, move || {
                let listener = listen(&at);
                listens.send(()).expect("awaited");
                relay(&listener, &target, own);
            });
            is_up.recv_timeout(PATIENCE).expect("it listens");
            let patience = Duration::from_secs(5);
            a.control
                .dial(name, Address::Abstract(between), patience)
                .expect("taken");
            let status = a.dial_failed();
            assert_eq!(
                (status.code(), status.reason()),
                (Code::PermissionDenied, "SECRET_WRONG")
            );
            assert!(task.events.try_recv().is_err());
        }
    }
}
