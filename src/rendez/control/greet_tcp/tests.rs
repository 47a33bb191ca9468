//! Which way two hellos choose.

use super::*;
use crate::control::config::ControlConfig;
use crate::control::hello::Identity;
use crate::control::peer::{
    Handler, LinkOffer, LocalOffer, PeerGone, PeerId, PeerUp, SegmentOffer,
};
use crate::ground::Status;

struct Nothing;

impl Handler for Nothing {
    fn local(&self, _: &PeerHello) -> Result<LocalOffer, Status> {
        Ok(LocalOffer::default())
    }
    fn make_link(&self, _: &PeerHello) -> Result<LinkOffer, Status> {
        Err(Status::of(catalogue::PEER_REFUSED, "no link in this test"))
    }
    fn accept_link(&self, _: &PeerHello, _: &LinkOffer) -> Result<(), Status> {
        Ok(())
    }
    fn data_channels(&self, _: &PeerHello) -> Result<u32, Status> {
        Ok(DATA_CHANNELS_MAX + 1)
    }
    fn peer_up(&self, _: PeerUp) {}
    fn segment_added(&self, _: PeerId, _: SegmentOffer) {}
    fn peer_gone(&self, _: PeerId, _: PeerGone, _: std::time::Instant) {}
    fn dial_failed(&self, _: &str, _: Status, _: Status) {}
}

/// Elsewhere, here, or refused.
fn chosen(theirs: proto::PathWish, ours: PathWish, is_near: bool) -> Option<bool> {
    let mut config = ControlConfig::new("a", Incarnation(1), 1);
    config.path_wish = ours;
    let identity = |machine: &str| Identity {
        user: 1,
        machine: machine.into(),
    };
    let (here, there) = (
        identity("boot"),
        identity(if is_near { "boot" } else { "other" }),
    );
    let local = Local {
        config: &config,
        identity: &here,
        handler: &Nothing,
        path: proto::PathWish::Auto,
        no_shm: "",
    };
    let other = ControlConfig::new("b", Incarnation(2), 1);
    let mut hello = hello::our_hello(&other, &there, "a");
    hello.path = theirs.into();
    let refused = |refusal: Refusal| {
        assert_eq!(refusal.status.reason(), catalogue::PATH_REFUSED);
        assert!(!refusal.retry);
    };
    choose(&hello, local).map_err(refused).ok()
}

#[test]
fn wishes_and_boots_choose_the_way() {
    use proto::PathWish as Theirs;
    let table = [
        (Theirs::Auto, PathWish::Auto, Some(true), Some(false)),
        (Theirs::Auto, PathWish::Shm, Some(true), None),
        (Theirs::Auto, PathWish::Tcp, Some(false), Some(false)),
        (Theirs::Shm, PathWish::Auto, Some(true), None),
        (Theirs::Shm, PathWish::Shm, Some(true), None),
        (Theirs::Shm, PathWish::Tcp, None, None),
        (Theirs::Tcp, PathWish::Auto, Some(false), Some(false)),
        (Theirs::Tcp, PathWish::Shm, None, None),
        (Theirs::Tcp, PathWish::Tcp, Some(false), Some(false)),
        (Theirs::Auto, PathWish::Verbs, Some(false), Some(false)),
        (Theirs::Rdma, PathWish::Auto, Some(false), Some(false)),
        (Theirs::Rdma, PathWish::Verbs, Some(false), Some(false)),
        (Theirs::Rdma, PathWish::Tcp, None, None),
        (Theirs::Rdma, PathWish::Shm, None, None),
        (Theirs::Shm, PathWish::Verbs, None, None),
        (Theirs::Tcp, PathWish::Verbs, None, None),
    ];
    for (theirs, ours, near, far) in table {
        assert_eq!(chosen(theirs, ours, true), near, "{theirs:?} {ours:?} near");
        assert_eq!(chosen(theirs, ours, false), far, "{theirs:?} {ours:?} far");
    }
}
