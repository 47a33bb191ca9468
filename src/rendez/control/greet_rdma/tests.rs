//! What a peer may say of its ends, and what follows from what two hellos say.

use std::time::Duration;

use super::*;
use crate::control::peer::{LinkOffer, LocalOffer, NoRdma, PeerGone, PeerId, PeerUp, SegmentOffer};
use crate::control::{PeerLimits, PollPolicy};
use crate::ground::Incarnation;

struct Task(Option<NoRdma>);

impl Handler for Task {
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
        Ok(1)
    }
    fn no_rdma(&self) -> Option<NoRdma> {
        self.0.clone()
    }
    fn peer_up(&self, _: PeerUp) {}
    fn segment_added(&self, _: PeerId, _: SegmentOffer) {}
    fn peer_gone(&self, _: PeerId, _: PeerGone, _: Instant) {}
    fn dial_failed(&self, _: &str, _: Status, _: Status) {}
}

fn end() -> proto::RdmaEnd {
    proto::RdmaEnd {
        queue_pair: 17,
        first_packet: 0x00ff_ffff,
        lid: 0xffff,
        gid: vec![9; 16],
        mtu: 5,
        window: 128,
        body_max: 4096,
    }
}

#[test]
fn ends_go_out_as_they_came_in() {
    let ends = from_wire(&[end(), end()], 2).unwrap();
    assert_eq!(to_wire(&ends), [end(), end()]);
}

#[test]
fn an_end_that_cannot_be_is_refused_whole() {
    assert_eq!(from_wire(&[end()], 2), None, "too few");
    assert_eq!(from_wire(&[end(), end(), end()], 2), None, "too many");
    let flood = vec![end(); RDMA_ENDS_MAX + 1];
    assert_eq!(
        from_wire(&flood, flood.len() as u32),
        None,
        "beyond the limit"
    );
    let broken: [fn(&mut proto::RdmaEnd); 5] = [
        |end| end.lid = 0x1_0000,
        |end| end.gid = vec![9; 15],
        |end| end.gid = Vec::new(),
        |end| end.mtu = 256,
        |end| end.window = 0x1_0000,
    ];
    for breaks in broken {
        let mut bad = end();
        breaks(&mut bad);
        assert_eq!(from_wire(&[end(), bad], 2), None);
    }
}

/// Why nothing is tried, and whether something stands idle for it.
#[test]
fn who_lacks_it_is_named_before_anything_is_tried() {
    let hello = |abilities, no_rdma: &str| PeerHello {
        task: "b".into(),
        incarnation: Incarnation(1),
        shards: 1,
        poll_policy: PollPolicy::Busy,
        limits: PeerLimits::default(),
        features: Vec::new(),
        abilities,
        no_rdma: no_rdma.into(),
        no_shm: String::new(),
        user: None,
        process: None,
    };
    let none = |is_fault| {
        Some(NoRdma {
            why: "no card".into(),
            is_fault,
        })
    };
    let errands = Errands::default();
    let unable = |own: Option<NoRdma>, wish, peer: &PeerHello| {
        let handler: Arc<dyn Handler> = Arc::new(Task(own));
        let means = Means {
            handler: &handler,
            errands: &errands,
            wish,
            deadline: Instant::now() + Duration::from_secs(1),
        };
        means.unable(peer).map(|no| (no.why, no.fell_back))
    };
    let (with, without) = (hello(RDMA_ABILITY, ""), hello(0, "no library"));
    for wish in [PathWish::Auto, PathWish::Verbs] {
        assert_eq!(unable(None, wish, &with), None);
        let own = unable(none(false), wish, &with).unwrap();
        assert_eq!(own, ("no RDMA here: no card".into(), false));
        assert!(
            unable(none(true), wish, &with).unwrap().1,
            "a card of no use"
        );
        let theirs = unable(None, wish, &without).unwrap();
        assert_eq!(theirs, ("no RDMA there: no library".into(), true));
        assert!(
            unable(None, wish, &hello(0, ""))
                .unwrap()
                .0
                .contains("release")
        );
    }
    let demanded = unable(None, PathWish::Tcp, &with).unwrap();
    assert_eq!(demanded, ("TCP is demanded here".into(), false));
}
