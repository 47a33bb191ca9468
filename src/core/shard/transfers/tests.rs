//! What is to be done next for an offer, without a shard.

use super::*;
use crate::ground::{DType, FrameIter, Shape, StepId};
use crate::rendezvous::KeyId;
use crate::wire::Point;

const NOW: Nanos = Nanos(1_000);

const fn link(number: u32) -> LinkId {
    LinkId::from_number(number)
}

fn ticket(index: u32) -> Ticket {
    Ticket {
        index,
        generation: 3,
    }
}

fn meta(bytes: u64) -> TensorMeta {
    TensorMeta::new(DType::U8, Shape::new(&[bytes]).unwrap()).unwrap()
}

fn accepted(index: u32, bytes: u64) -> Accepted {
    Accepted {
        ticket: ticket(index),
        meta: meta(bytes),
        size: bytes,
        is_dead: false,
        lines: 2,
    }
}

fn slot(key: u32) -> Slot {
    Slot {
        step: StepId(1),
        key: KeyId(key),
        at: FrameIter::default(),
    }
}

fn incoming(of: u32, index: u32, bytes: u64) -> Incoming {
    Incoming {
        link: link(of),
        slot: slot(index),
        ordinal: 0,
        offer: accepted(index, bytes),
        region: None,
        lent: None,
        is_wanted: false,
        trace: 0,
    }
}

const LENT: ReturnedLease = ReturnedLease {
    offer: Ticket {
        index: 9,
        generation: 9,
    },
    region: Region {
        arena: 1,
        segment: 0,
        generation: 0,
        offset: 0,
        len: 8,
        kind: crate::ground::MemoryKind::Host,
        owns_pages: false,
    },
};

/// A budget of 1024: half for offers, and an eighth of all for a link's share.
fn transfers() -> Transfers {
    Transfers::new(Some(1024))
}

fn wanted(transfers: &mut Transfers, incoming: Incoming) -> TransferId {
    let id = transfers.begin(incoming).unwrap();
    assert_eq!(transfers.want(id), Next::Open);
    id
}

fn demand(id: Option<TransferId>, bytes: u64) -> Demand {
    let point = Point {
        step: StepId(1),
        at: FrameIter::default(),
    };
    let tag = id.map_or(u64::MAX, TransferId::token);
    let mut demand = Demand::new(tag, KeyId(0), point, 0);
    demand.offer = id.map(|_| accepted(1, bytes));
    demand.meta = Some(meta(bytes));
    demand
}

/// What is opened now, all of it; the rooms come home when `is_home`.
fn opened(transfers: &mut Transfers, is_home: bool, bare: &[(Ticket, Demand)]) -> Vec<String> {
    let mut passed = 0;
    let mut all = Vec::new();
    let bare_at = |_, of| {
        bare.iter()
            .find(|(at, _)| *at == of)
            .map(|&(_, demand)| demand)
    };
    let mut rooms = Vec::new();
    while let Some(opening) = transfers.next_opening(&mut passed, bare_at) {
        all.push(match opening {
            Opening::Offer(_, incoming, room) => {
                passed = 0;
                rooms.push(room);
                format!("offer {}", incoming.offer.ticket.index)
            }
            Opening::Again(landing) => {
                rooms.push(landing.room);
                format!("again {}", landing.ticket.index)
            }
            Opening::Bare(_, ticket) => format!("bare {}", ticket.index),
        });
    }
    for (index, room) in rooms.into_iter().enumerate() {
        let landing = crate::fabric::Landing {
            index: index as u32,
            generation: 0,
        };
        let qp = crate::fabric::QpId(all.len() as u32);
        match is_home {
            true => transfers.come_home(room),
            false => transfers.opened(
                LandingPlace {
                    port: 0,
                    qp,
                    landing,
                },
                room,
            ),
        }
    }
    all
}

#[test]
fn an_offer_is_opened_once_it_is_wanted() {
    let mut transfers = transfers();
    let id = transfers.begin(incoming(0, 1, 100)).unwrap();
    assert!(
        opened(&mut transfers, true, &[]).is_empty(),
        "it is not wanted"
    );
    assert!(transfers.pick(|it| it.is_wanted).is_empty());
    assert_eq!(transfers.want(id), Next::Open);
    assert_eq!(transfers.want(id), Next::Nothing, "it waits already");
    assert_eq!(transfers.pick(|it| it.is_wanted), [id]);
    assert_eq!((transfers.len(), transfers.waiting()), (1, 1));
    assert_eq!(opened(&mut transfers, true, &[]), ["offer 1"]);
    assert_eq!((transfers.len(), transfers.waiting()), (1, 0));
    assert!(transfers.end(id).is_some());
    assert_eq!(transfers.want(id), Next::Nothing, "it is gone");
    assert_eq!(TransferId::from_token(id.token()), id);
}

#[test]
fn what_can_be_read_in_place_is_not_fetched() {
    let mut transfers = transfers();
    let region = Some(LENT.region);
    let id = transfers
        .begin(Incoming {
            region,
            ..incoming(0, 1, 8)
        })
        .unwrap();
    assert_eq!(transfers.want(id), Next::Nothing, "its segment comes");
    assert_eq!(transfers.pick(|it| it.region.is_some()), [id]);
    assert_eq!(
        transfers.forgo_lease(id),
        Next::Open,
        "it was wanted meanwhile"
    );
    let other = transfers
        .begin(Incoming {
            region,
            ..incoming(0, 2, 8)
        })
        .unwrap();
    assert_eq!(
        transfers.forgo_lease(other),
        Next::Nothing,
        "it is not wanted"
    );
    assert_eq!(transfers.want(other), Next::Open);
    assert_eq!(opened(&mut transfers, true, &[]), ["offer 1", "offer 2"]);
}

#[test]
fn bytes_of_ours_are_taken_back_or_asked_for() {
    let mut transfers = transfers();
    let lent = Some(LENT);
    let id = transfers
        .begin(Incoming {
            lent,
            ..incoming(0, 1, 8)
        })
        .unwrap();
    assert_eq!(transfers.want(id), Next::TakeBack(LENT));
    assert_eq!(transfers.forgo_lent(id), Next::Open);
    assert_eq!(transfers.want(id), Next::Nothing);
    assert_eq!(opened(&mut transfers, true, &[]), ["offer 1"]);
}

#[test]
fn an_offer_made_again_goes_on_where_it_may_lie_now() {
    let mut transfers = transfers();
    let heard = |region, lent| OfferHeard {
        key: KeyId(1),
        point: demand(None, 8).point,
        ordinal: 0,
        offer: Accepted {
            ticket: ticket(50),
            meta: meta(8),
            size: 8,
            is_dead: false,
            lines: 7,
        },
        region,
        lent,
        stamp: 0,
    };
    let former = accepted(1, 8);
    let id = wanted(&mut transfers, incoming(0, 1, 8));
    let next = transfers.offered_again(link(0), id, &former, &heard(Some(LENT.region), None));
    assert_eq!(next, Next::Lease);
    let now = transfers.at(id).unwrap().offer;
    assert_eq!((now.ticket, now.lines), (ticket(50), 2));
    // The demand of the former offer may be answered once more; no receiver waits for it.
    let next = transfers.offered_again(link(0), id, &former, &heard(None, None));
    let again = Accepted {
        ticket: ticket(50),
        lines: 0,
        ..former
    };
    assert_eq!(next, Next::Decline(link(0), again));
    assert_eq!(
        transfers.offered_again(link(0), id, &now, &heard(None, Some(LENT))),
        Next::TakeBack(LENT)
    );
    assert_eq!(
        transfers.offered_again(link(0), id, &now, &heard(None, None)),
        Next::Open
    );
}

#[test]
fn links_take_turns_and_none_goes_beyond_its_share() {
    let mut transfers = transfers();
    for (of, index) in [(0, 1), (0, 2), (0, 3), (1, 11), (1, 12)] {
        wanted(&mut transfers, incoming(of, index, 100));
    }
    assert_eq!(opened(&mut transfers, false, &[]), ["offer 1", "offer 11"]);
    assert_eq!((transfers.waiting(), transfers.landing_bytes()), (3, 200));
    transfers.end_epoch(link(0));
    assert_eq!(transfers.len(), 2, "its offers are gone");
    assert!(
        opened(&mut transfers, false, &[]).is_empty(),
        "and its landing counts until it is quiet"
    );
    assert_eq!(transfers.landing_bytes(), 200);
}

#[test]
fn a_large_value_keeps_its_turn_until_there_is_budget() {
    let mut transfers = transfers();
    for (of, index, bytes) in [(0, 1, 100), (1, 2, 450), (2, 3, 10)] {
        wanted(&mut transfers, incoming(of, index, bytes));
    }
    assert_eq!(
        opened(&mut transfers, true, &[]),
        ["offer 1"],
        "the small one may not overtake it"
    );
    assert_eq!(opened(&mut transfers, true, &[]), ["offer 2", "offer 3"]);
}

#[test]
fn a_link_that_takes_no_demand_lets_the_next_one_go_first() {
    let mut transfers = transfers();
    let first = wanted(&mut transfers, incoming(0, 1, 8));
    wanted(&mut transfers, incoming(1, 2, 8));
    let mut passed = 0;
    let Some(Opening::Offer(id, _, room)) = transfers.next_opening(&mut passed, |_, _| None) else {
        panic!("it is opened");
    };
    assert_eq!(id, first);
    transfers.pass(link(0), id, room);
    assert_eq!(transfers.landing_bytes(), 0);
    assert_eq!(opened(&mut transfers, true, &[]), ["offer 2", "offer 1"]);
}

#[test]
fn demands_that_lost_their_landing_come_first() {
    let mut transfers = transfers();
    let id = wanted(&mut transfers, incoming(0, 1, 8));
    let bare = [
        (ticket(1), demand(None, 400)),
        (ticket(2), demand(Some(id), 500)),
        (ticket(3), demand(None, 400)),
        (ticket(4), demand(Some(id), 100)),
    ];
    // One was answered meanwhile.
    transfers.renew(link(0), [1, 7, 2, 3, 4].map(ticket).to_vec());
    assert_eq!(transfers.waiting(), 6);
    assert_eq!(
        opened(&mut transfers, true, &bare),
        ["again 1", "again 2", "bare 3"]
    );
    assert_eq!(opened(&mut transfers, true, &bare), ["again 4", "offer 1"]);
    transfers.renew(link(0), vec![ticket(1)]);
    transfers.renew(link(1), vec![ticket(2)]);
    transfers.renew(link(0), Vec::new());
    assert_eq!(
        opened(&mut transfers, true, &bare),
        ["again 2"],
        "those of link 0 are answered"
    );
}

#[test]
fn without_memory_a_demand_waits_if_something_is_in_the_way() {
    let mut transfers = transfers();
    let why = MemoryError::Unfit { asked: 8, limit: 4 };
    let id = wanted(&mut transfers, incoming(0, 1, 8));
    assert_eq!(opened(&mut transfers, true, &[]), ["offer 1"]);
    let ahead = demand(None, 8);
    let mut of_offer = demand(Some(id), 8);
    assert_eq!(
        transfers.no_memory(link(0), ticket(1), &ahead, why),
        Unopened::Bare
    );
    assert_eq!(
        transfers.no_memory(link(0), ticket(1), &of_offer, why),
        Unopened::Unfit(why)
    );
    let room = transfers.room_ahead(link(0), 100).unwrap();
    assert_eq!(
        transfers.no_memory(link(0), ticket(1), &of_offer, why),
        Unopened::Requeued
    );
    assert!(of_offer.ask(true) && of_offer.quiet());
    assert_eq!(
        transfers.no_memory(link(0), ticket(1), &of_offer, why),
        Unopened::Later
    );
    transfers.come_home(room);
    assert_eq!(
        opened(&mut transfers, true, &[(ticket(1), of_offer)]),
        ["again 1", "offer 1"]
    );
}

#[test]
fn a_fabric_that_refuses_is_tried_again_for_a_while() {
    let mut transfers = transfers();
    let id = wanted(&mut transfers, incoming(0, 1, 8));
    let (ahead, of_offer) = (demand(None, 8), demand(Some(id), 8));
    let patience = 3 * limits::OPEN_AGAIN_NS;
    let refuse = |transfers: &mut Transfers, demand, now| {
        transfers.refused(link(0), ticket(1), demand, now, patience)
    };
    assert_eq!(refuse(&mut transfers, &ahead, NOW), Unopened::Bare);
    assert!(!transfers.is_barred(NOW));
    assert_eq!(refuse(&mut transfers, &of_offer, NOW), Unopened::Later);
    let soon = NOW + limits::OPEN_AGAIN_NS;
    assert!(transfers.is_barred(NOW) && !transfers.is_barred(soon));
    assert_eq!(transfers.next_try(), soon);
    assert!(!transfers.try_again(NOW));
    assert!(transfers.try_again(soon));
    assert_eq!(transfers.next_try(), soon + limits::OPEN_AGAIN_NS);
    assert_eq!(
        refuse(&mut transfers, &of_offer, NOW + patience),
        Unopened::Refused
    );
    // Others have waited for as long: none of them gets that time once more.
    let late = NOW + patience + limits::OPEN_AGAIN_NS;
    assert_eq!(transfers.next_try(), late);
    assert_eq!(refuse(&mut transfers, &of_offer, late), Unopened::Refused);
    // With nothing left to open it is not tried again.
    transfers.end(id);
    assert!(opened(&mut transfers, true, &[]).is_empty());
    assert!(!transfers.try_again(late + limits::OPEN_AGAIN_NS));
    assert_eq!(transfers.next_try(), Nanos::NEVER);
    // Nor once one was opened.
    assert_eq!(refuse(&mut transfers, &of_offer, NOW), Unopened::Later);
    assert_eq!(
        opened(&mut transfers, false, &[(ticket(1), of_offer)]),
        ["again 1"]
    );
    assert_eq!(transfers.next_try(), Nanos::NEVER);
}

/// A landing that comes home late names the transfer it was for, and others have had that number since.
#[test]
fn a_number_that_went_round_is_of_another_offer() {
    let mut transfers = Transfers::new(None);
    let first = transfers.begin(incoming(0, 0, 8)).unwrap();
    assert!(transfers.is_of(first, link(0), &accepted(0, 8)));
    transfers.end(first).unwrap();
    let mut again = || {
        let id = transfers.begin(incoming(0, 1, 8)).unwrap();
        let is_same = id == first;
        if !is_same {
            transfers.end(id).unwrap();
        }
        is_same
    };
    // A slot that has been through its generations is used behind the others, of which there are some hundred.
    assert!((0..1 << (Ticket::GENERATION_BITS + 10)).any(|_| again()));
    assert!(transfers.is_of(first, link(0), &accepted(1, 8)));
    assert!(!transfers.is_of(first, link(0), &accepted(0, 8)));
    assert!(!transfers.is_of(first, link(1), &accepted(1, 8)));
}

#[test]
fn offers_are_counted_by_their_link() {
    let mut transfers = Transfers::new(None);
    let counts = |transfers: &Transfers| [0, 1, 2].map(|of| transfers.of_link(link(of)));
    assert_eq!(counts(&transfers), [0, 0, 0]);
    let first = transfers.begin(incoming(2, 0, 8)).unwrap();
    transfers.begin(incoming(2, 1, 8)).unwrap();
    transfers.begin(incoming(0, 2, 8)).unwrap();
    assert_eq!(counts(&transfers), [1, 0, 2]);
    transfers.end(first).unwrap();
    assert!(transfers.end(first).is_none());
    assert_eq!(counts(&transfers), [1, 0, 1]);
    transfers.end_epoch(link(2));
    assert_eq!(counts(&transfers), [1, 0, 0]);
}

impl Transfers {
    /// Offers of another step in every place that is left.
    pub(crate) fn fill(&mut self) -> Vec<TransferId> {
        let of_step = Slot {
            step: StepId(9),
            ..slot(0)
        };
        let other = Incoming {
            slot: of_step,
            ..incoming(0, 0, 8)
        };
        std::iter::from_fn(|| self.begin(other)).collect()
    }
}
