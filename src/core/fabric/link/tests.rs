//! What an opener refuses, and what both sides see.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use super::super::ring::RingMemory;
use super::*;

const CONFIG: LinkConfig = LinkConfig {
    slots: 8,
    payload_bytes: 4096,
    channels: 3,
};

fn memfd(len: u64, seals: SealFlags) -> OwnedFd {
    let memory =
        memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&memory, len).expect("ftruncate");
    fcntl_add_seals(&memory, seals).expect("seals");
    memory
}

fn dup(link: &LinkMapping) -> OwnedFd {
    link.fd().try_clone_to_owned().expect("dup")
}

#[test]
fn both_sides_see_each_channel_crossed() {
    let mut made = LinkMapping::create(CONFIG).expect("memfd");
    let mut opened = LinkMapping::open(dup(&made), CONFIG).expect("just made");
    for channel in 0..3 {
        let maker = made.endpoint(channel, Side::Maker).expect("first use");
        let opener = opened.endpoint(channel, Side::Opener).expect("first use");
        maker.tx.publish(1, u64::from(channel) + 10);
        opener.tx.publish(1, u64::from(channel) + 20);
        assert_eq!(opener.rx.peek(1), u64::from(channel) + 10);
        assert_eq!(maker.rx.peek(1), u64::from(channel) + 20);
        assert!(
            made.endpoint(channel, Side::Maker).is_none(),
            "given out once"
        );
    }
    assert!(made.endpoint(3, Side::Maker).is_none(), "no such channel");
}

#[test]
fn an_endpoint_outlives_its_link() {
    let mut made = LinkMapping::create(CONFIG).expect("memfd");
    let maker = made.endpoint(0, Side::Maker).expect("first use");
    drop(made);
    maker.tx.publish(0, 1);
    assert_eq!(maker.tx.peek(0), 1);
}

/// The file is not mapped: no huge page needs to be free for it.
#[test]
fn huge_pages_are_refused() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let memory = match memfd_create("test", flags) {
        Err(errno) => return eprintln!("skipped: no huge pages here: {errno}"),
        Ok(memory) => memory,
    };
    ftruncate(&memory, 1 << 30).expect("ftruncate");
    fcntl_add_seals(&memory, SEALS).expect("seals");
    let error = LinkMapping::open(memory, CONFIG).expect_err("huge");
    assert_eq!(
        (error, error.reason()),
        (LinkError::HugePages, "DESCRIPTOR_UNSEALED")
    );
}

#[test]
fn a_descriptor_that_could_shrink_is_refused() {
    let len = CONFIG.len() as u64;
    for seals in [
        SealFlags::empty(),
        SealFlags::SHRINK,
        SealFlags::SHRINK | SealFlags::GROW,
    ] {
        let error = LinkMapping::open(memfd(len, seals), CONFIG).expect_err("unsealed");
        assert_eq!(
            (error, error.reason()),
            (LinkError::Unsealed, "DESCRIPTOR_UNSEALED")
        );
    }
    let file = OwnedFd::from(std::fs::File::open("/dev/null").expect("there is always one"));
    assert_eq!(
        LinkMapping::open(file, CONFIG).err(),
        Some(LinkError::Unsealed),
        "no memfd at all"
    );
}

#[test]
fn a_short_descriptor_is_refused() {
    let error =
        LinkMapping::open(memfd(CONFIG.len() as u64 - 1, SEALS), CONFIG).expect_err("short");
    assert_eq!(
        (error, error.reason()),
        (LinkError::Short, "DESCRIPTOR_SHORT")
    );
}

#[test]
fn another_header_is_refused() {
    let error = LinkMapping::open(memfd(CONFIG.len() as u64, SEALS), CONFIG).expect_err("zeroes");
    assert_eq!((error, error.reason()), (LinkError::Header, "RING_CORRUPT"));
    let made = LinkMapping::create(LinkConfig {
        slots: 16,
        ..CONFIG
    })
    .expect("memfd");
    assert_eq!(
        LinkMapping::open(dup(&made), CONFIG).err(),
        Some(LinkError::Header),
        "other measures"
    );
    for word in 0..5 {
        let made = LinkMapping::create(CONFIG).expect("memfd");
        made.backing.word(word * 8).fetch_xor(1, Ordering::Relaxed);
        assert_eq!(
            LinkMapping::open(dup(&made), CONFIG).err(),
            Some(LinkError::Header),
            "word {word}"
        );
    }
}

#[test]
fn measures_out_of_bounds_are_refused() {
    for config in [
        LinkConfig {
            channels: 0,
            ..CONFIG
        },
        LinkConfig {
            channels: CHANNELS_MAX + 1,
            ..CONFIG
        },
        LinkConfig { slots: 9, ..CONFIG },
    ] {
        assert_eq!(LinkMapping::create(config).err(), Some(LinkError::Config));
    }
}
