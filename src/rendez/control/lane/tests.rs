//! Promises about descriptors, kept and broken, over real sockets.
#![allow(unsafe_code)]

// The tests of `files` have it too, of which control may know nothing.
#[allow(clippy::duplicate_mod)]
#[path = "../../../../tests/skipped/mod.rs"]
mod skipped;

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::*;

/// Two ends of one lane.
fn pair() -> (Lane, Lane) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let lane = Lane::open(ours.as_fd(), Then::Greeting).expect("opened");
    (
        lane,
        Lane::take(theirs.as_fd())
            .expect("no error")
            .expect("there")
            .0,
    )
}

fn eventfds(count: usize) -> Vec<OwnedFd> {
    (0..count)
        .map(|_| {
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("an eventfd")
        })
        .collect()
}

fn borrow(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}

#[test]
fn batches_arrive_in_order_and_whole() {
    let (mut one, mut other) = pair();
    for (batch, count) in (1..).zip([0, 1, DESCRIPTORS_PER_BATCH, 3]) {
        let sent = eventfds(count);
        assert_eq!(one.send(&borrow(&sent)).expect("sent"), batch);
        let received = other.receive(batch, count).expect("received");
        assert_eq!(received.len(), count);
        for (index, (ours, theirs)) in (1u64..).zip(sent.iter().zip(&received)) {
            rustix::io::write(theirs, &index.to_ne_bytes()).expect("rung");
            let mut bytes = [0; 8];
            rustix::io::read(ours, &mut bytes).expect("heard");
            assert_eq!(
                u64::from_ne_bytes(bytes),
                index,
                "the same eventfd, in the same place"
            );
        }
    }
    assert_eq!(
        other.send(&[]).expect("sent"),
        1,
        "each direction counts for itself"
    );
    one.receive(1, 0).expect("received");
}

#[test]
fn received_descriptors_are_closed_on_exec() {
    let (mut one, mut other) = pair();
    one.send(&borrow(&eventfds(1))).expect("sent");
    let received = other.receive(1, 1).expect("received");
    assert!(
        rustix::io::fcntl_getfd(&received[0])
            .expect("flags")
            .contains(rustix::io::FdFlags::CLOEXEC)
    );
}

#[test]
fn broken_promises_are_told_apart() {
    let (mut one, mut other) = pair();
    assert!(matches!(other.receive(1, 0), Err(LaneError::Missing(1))));
    one.send(&borrow(&eventfds(2))).expect("sent");
    assert!(matches!(
        other.receive(1, 1),
        Err(LaneError::Miscounted { named: 1, found: 2 })
    ));
    let (mut one, mut other) = pair();
    one.send(&[]).expect("sent");
    assert!(matches!(
        other.receive(2, 0),
        Err(LaneError::Misnumbered { named: 2, found: 1 })
    ));
    let (one, mut other) = pair();
    send(one.socket.as_fd(), &2u32.to_le_bytes(), &[]).expect("sent");
    assert!(
        matches!(other.receive(2, 0), Err(LaneError::Misnumbered { .. })),
        "a batch was left out"
    );
    let (mut one, _other) = pair();
    let many = eventfds(DESCRIPTORS_PER_BATCH + 1);
    assert!(matches!(one.send(&borrow(&many)), Err(LaneError::CutOff)));
    let (one, mut other) = pair();
    send(one.socket.as_fd(), &1u32.to_le_bytes(), &borrow(&many)).expect("sent");
    assert!(matches!(
        other.receive(1, DESCRIPTORS_PER_BATCH + 1),
        Err(LaneError::CutOff)
    ));
    let (one, mut other) = pair();
    drop(one);
    assert!(other.receive(1, 0).is_err());
}

#[test]
fn the_window_fits_the_lane() {
    let (mut one, _other) = pair();
    let full = eventfds(DESCRIPTORS_PER_BATCH);
    for _ in 0..crate::ground::limits::DESCRIPTOR_WINDOW {
        one.send(&borrow(&full)).expect("room for a whole window");
    }
    let refused = (0..100_000).find_map(|_| one.send(&[]).err());
    assert!(matches!(refused, Some(LaneError::Full)), "{refused:?}");
}

#[test]
fn only_a_preamble_with_a_lane_makes_a_lane() {
    let take = |bytes: &[u8], descriptors: &[OwnedFd]| {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        send(ours.as_fd(), bytes, &borrow(descriptors)).expect("sent");
        Lane::take(theirs.as_fd())
    };
    assert!(matches!(take(b"HELLO!!!", &[]), Err(LaneError::NotRendez)));
    assert!(matches!(take(b"rendez\0", &[]), Err(LaneError::NotRendez)));
    assert!(matches!(
        take(&PREAMBLE, &[]),
        Err(LaneError::Miscounted { named: 1, found: 0 })
    ));
    assert!(matches!(
        take(&PREAMBLE, &eventfds(1)),
        Err(LaneError::NotALane)
    ));
    assert!(matches!(
        take(&PREAMBLE, &eventfds(2)),
        Err(LaneError::Miscounted { named: 1, found: 2 })
    ));
    let (stream, _other) = UnixStream::pair().expect("a pair");
    assert!(matches!(
        take(&PREAMBLE, &[stream.into()]),
        Err(LaneError::NotALane)
    ));
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    assert!(
        matches!(Lane::take(theirs.as_fd()), Ok(None)),
        "nothing yet is no error"
    );
    drop(ours);
    assert!(matches!(
        Lane::take(theirs.as_fd()),
        Err(LaneError::NotRendez)
    ));
}

/// Since Linux 6.5.
const SO_PASSPIDFD: libc::c_int = 76;
/// More than all other tests have open at once.
const BATCHES: u32 = 300;

/// The handles of this very process that are open in it.
fn own_handles() -> usize {
    let is_own = |info: String| {
        info.lines().any(|line| {
            let pid = line.strip_prefix("Pid:").map(str::trim);
            pid == Some(&std::process::id().to_string())
        })
    };
    let infos = std::fs::read_dir("/proc/self/fdinfo").expect("a folder");
    let infos = infos.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
    infos.filter(|info| is_own(info.clone())).count()
}

#[test]
fn a_handle_that_comes_with_a_batch_does_not_stay_open() {
    let (mut maker, mut other) = pair();
    let on: libc::c_int = 1;
    // SAFETY: the lane is open, and `on` is an `int` of the size that is said.
    let set = unsafe {
        libc::setsockopt(
            other.socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSPIDFD,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if set != 0 {
        skipped::skipped("this kernel sends no handles of processes");
        return;
    }
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).expect("made");
    for batch in 1..=BATCHES {
        assert_eq!(maker.send(&[event.as_fd()]).expect("sent"), batch);
        assert_eq!(other.receive(batch, 1).expect("received").len(), 1);
    }
    assert!(own_handles() < BATCHES as usize / 2, "{}", own_handles());
}
