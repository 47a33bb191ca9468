//! Ringing, by hand and from another mapping. That no wake is lost is shown with threads in the conformance tests.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::*;

fn opened(bell: &Doorbell) -> Result<PeerWake, DoorbellError> {
    let (memory, event) = bell.fds();
    let memory = memory.try_clone_to_owned().expect("dup");
    PeerWake::open(&memory, event.try_clone_to_owned().expect("dup"))
}

#[test]
fn only_an_armed_owner_is_rung() {
    let bell = Doorbell::new().expect("doorbell");
    for wake in [bell.wake(), opened(&bell).expect("sealed")] {
        assert!(wake.may_sleep());
        wake.ring();
        assert_eq!(
            bell.wait(Some(Nanos(0))),
            Ok(false),
            "awake: no system call was made"
        );
        bell.arm();
        wake.ring();
        wake.ring();
        assert_eq!(bell.wait(None), Ok(true));
        bell.disarm();
        assert_eq!(
            bell.wait(Some(Nanos(0))),
            Ok(false),
            "disarm forgets the rings"
        );
    }
    bell.arm();
    PeerWake::NEVER_SLEEPS.ring();
    bell.ring();
    assert_eq!(bell.wait(None), Ok(true), "our own ring");
}

#[test]
fn a_full_counter_does_not_block_the_poster() {
    let bell = Doorbell::new().expect("doorbell");
    let (_, event) = bell.fds();
    rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).expect("fills the counter");
    bell.arm();
    opened(&bell).expect("sealed").ring();
    assert_eq!(bell.wait(None), Ok(true));
}

#[test]
fn a_page_that_could_shrink_is_refused() {
    let bell = Doorbell::new().expect("doorbell");
    let event = || bell.fds().1.try_clone_to_owned().expect("dup");
    let memory =
        memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&memory, PAGE as u64).expect("ftruncate");
    assert_eq!(
        PeerWake::open(&memory, event()).err(),
        Some(DoorbellError::Unsealed)
    );
    let memory =
        memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    fcntl_add_seals(&memory, SealFlags::SHRINK).expect("seal");
    assert_eq!(
        PeerWake::open(&memory, event()).err(),
        Some(DoorbellError::Short)
    );
}

/// The file is not mapped: no huge page needs to be free for it.
#[test]
fn a_huge_page_is_refused() {
    let bell = Doorbell::new().expect("doorbell");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let memory = match memfd_create("test", flags) {
        Err(errno) => return eprintln!("skipped: no huge pages here: {errno}"),
        Ok(memory) => memory,
    };
    ftruncate(&memory, 1 << 30).expect("ftruncate");
    fcntl_add_seals(&memory, SealFlags::SHRINK).expect("seal");
    let event = bell.fds().1.try_clone_to_owned().expect("dup");
    let error = PeerWake::open(&memory, event).err();
    assert_eq!(error, Some(DoorbellError::HugePages));
}

#[test]
fn a_peer_cannot_map_the_page_writable() {
    let bell = Doorbell::new().expect("doorbell");
    let memory = bell.fds().0.try_clone_to_owned().expect("dup");
    assert!(Page::map(&memory, ProtFlags::READ | ProtFlags::WRITE).is_err());
}

/// A peer takes the flag of the owner's eventfd away: the owner, which was not rung, does not wait for a ring.
#[test]
fn disarm_does_not_wait_whatever_a_peer_does_to_the_flag() {
    let bell = Doorbell::new().expect("doorbell");
    let peers = bell.fds().1.try_clone_to_owned().expect("dup");
    rustix::io::ioctl_fionbio(&peers, false).expect("the flag is shared");
    let mut count = [0; 8];
    let buffer = &mut [IoSliceMut::new(&mut count)];
    if preadv2(&peers, buffer, u64::MAX, ReadWriteFlags::NOWAIT) != Err(Errno::AGAIN) {
        return eprintln!("skipped: this kernel cannot read an eventfd without waiting");
    }
    let bell = Arc::new(bell);
    let (told, done) = std::sync::mpsc::channel();
    let owner = std::thread::spawn({
        let bell = Arc::clone(&bell);
        move || {
            bell.disarm();
            told.send(()).expect("the test waits");
        }
    });
    let is_done = done
        .recv_timeout(std::time::Duration::from_secs(60))
        .is_ok();
    // It lets an owner go that waits.
    rustix::io::write(&peers, &1_u64.to_ne_bytes()).expect("a ring");
    owner.join().expect("no panic");
    assert!(is_done, "it waited for a ring");
    bell.arm();
    bell.ring();
    assert_eq!(bell.wait(None), Ok(true));
    bell.disarm();
    assert_eq!(bell.wait(Some(Nanos(0))), Ok(false), "forgotten");
}

#[test]
fn what_is_no_eventfd_is_refused() {
    let bell = Doorbell::new().expect("doorbell");
    let memory = bell.fds().0.try_clone_to_owned().expect("dup");
    let (_reader, writer) = rustix::pipe::pipe().expect("pipe");
    let error = PeerWake::open(&memory, writer).err();
    assert_eq!(error, Some(DoorbellError::NoEvent));
}
