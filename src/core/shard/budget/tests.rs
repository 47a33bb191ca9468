//! The budget against a plain sum, and by hand.

use proptest::prelude::*;

use super::*;

const fn link(number: u32) -> LinkId {
    LinkId::from_number(number)
}

fn place(qp: u32, index: u32) -> LandingPlace {
    let landing = Landing {
        index,
        generation: 0,
    };
    LandingPlace {
        port: 0,
        qp: QpId(qp),
        landing,
    }
}

/// What the test knows of a room that is out.
struct Out {
    link: LinkId,
    bytes: u64,
    purpose: Purpose,
    is_ended: bool,
    held: Held,
}

enum Held {
    Here(LandingRoom),
    Open(LandingPlace),
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Take(u32, u64, Purpose),
    Open(usize),
    Home(usize),
    EndLink(u32),
}

fn moves() -> impl Strategy<Value = Move> {
    let purpose = prop::sample::select(vec![Purpose::Ahead, Purpose::Offer, Purpose::Again]);
    prop_oneof![
        4 => (0..3_u32, 0..300_u64, purpose).prop_map(|(link, bytes, purpose)| Move::Take(link, bytes, purpose)),
        2 => any::<usize>().prop_map(Move::Open),
        3 => any::<usize>().prop_map(Move::Home),
        1 => (0..3_u32).prop_map(Move::EndLink),
    ]
}

/// Bytes of all, of those ahead, and of a link's offers.
fn sums(out: &[Out], of: LinkId) -> (u64, u64, u64) {
    let sum = |is_it: &dyn Fn(&&Out) -> bool| out.iter().filter(is_it).map(|out| out.bytes).sum();
    (
        sum(&|_| true),
        sum(&|out| out.purpose == Purpose::Ahead && !out.is_ended),
        sum(&|out| out.purpose != Purpose::Ahead && out.link == of && !out.is_ended),
    )
}

proptest! {
    /// A budget of 1024: half for each kind, and an eighth for a link's share.
    #[test]
    fn takes_and_returns_sum_up(moves in prop::collection::vec(moves(), 0..200)) {
        let mut budget = LandingBudget::new(Some(1024));
        let mut out = Vec::<Out>::new();
        for (turn, next) in moves.into_iter().enumerate() {
            match next {
                Move::Take(number, bytes, purpose) => {
                    let (all, ahead, of_link) = sums(&out, link(number));
                    let fetched = all - ahead;
                    let fits = match purpose {
                        Purpose::Ahead => ahead + bytes <= 512 && all + bytes <= 1024,
                        _ => fetched == 0 || fetched + bytes <= 512,
                    };
                    let has_share = purpose != Purpose::Offer || of_link == 0 || of_link + bytes <= 128;
                    match budget.take(link(number), bytes, purpose) {
                        Ok(room) => {
                            prop_assert!(fits && has_share);
                            prop_assert_eq!(room.bytes(), bytes);
                            let held = Held::Here(room);
                            out.push(Out { link: link(number), bytes, purpose, is_ended: false, held });
                        }
                        Err(Short::Budget) => prop_assert!(!fits),
                        Err(Short::Share) => prop_assert!(fits && !has_share),
                    }
                }
                Move::Open(at) if !out.is_empty() => {
                    let at = at % out.len();
                    // Two queue pairs use the same few indices.
                    let place = place(turn as u32, turn as u32 % 4);
                    match std::mem::replace(&mut out[at].held, Held::Open(place)) {
                        Held::Here(room) => budget.keep(place, room),
                        open @ Held::Open(_) => out[at].held = open,
                    }
                }
                Move::Home(at) if !out.is_empty() => {
                    let at = at % out.len();
                    match out.swap_remove(at).held {
                        Held::Here(room) => budget.come_home(room),
                        Held::Open(place) => {
                            budget.quiet(place);
                            // It has been quiet already, and counts once.
                            budget.quiet(place);
                        }
                    }
                }
                Move::EndLink(number) => {
                    budget.end_link(link(number));
                    for out in &mut out {
                        out.is_ended |= out.link == link(number) && matches!(out.held, Held::Open(_));
                    }
                }
                Move::Open(_) | Move::Home(_) => {}
            }
            prop_assert_eq!(budget.bytes(), sums(&out, link(0)).0);
        }
        for out in out {
            match out.held {
                Held::Here(room) => budget.come_home(room),
                Held::Open(place) => budget.quiet(place),
            }
        }
        prop_assert_eq!((budget.bytes(), budget.ahead), (0, 0));
        prop_assert!(budget.fetched.iter().all(|&bytes| bytes == 0));
    }
}

/// Of a string tensor a peer may say any length. It is taken when nothing else is fetched, so that it can be refused
/// by the arena; beside a landing ahead of its value the sum once overflowed.
#[test]
fn a_claim_of_any_size_has_a_sum() {
    let mut budget = LandingBudget::new(Some(1024));
    let ahead = budget.take(link(0), 100, Purpose::Ahead).unwrap();
    let huge = budget.take(link(1), u64::MAX, Purpose::Offer).unwrap();
    assert_eq!(huge.bytes(), u64::MAX, "the arena is asked for all of it");
    let other = budget.take(link(1), u64::MAX, Purpose::Again);
    assert_eq!(other.unwrap_err(), Short::Budget);
    budget.come_home(huge);
    assert_eq!(budget.bytes(), 100);
    budget.come_home(ahead);
    assert_eq!(budget.bytes(), 0);
}

#[test]
fn without_a_bound_everything_fits() {
    let mut budget = LandingBudget::new(None);
    let rooms = [(); 3].map(|()| budget.take(link(0), u64::MAX, Purpose::Ahead).unwrap());
    for room in rooms {
        budget.come_home(room);
    }
    assert_eq!(budget.bytes(), 0);
}

#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "room that did not come home")]
fn room_that_is_dropped_is_noticed() {
    let mut budget = LandingBudget::new(Some(1024));
    drop(budget.take(link(0), 1, Purpose::Offer));
}

#[test]
fn what_is_open_goes_with_the_budget() {
    let mut budget = LandingBudget::new(Some(1024));
    let room = budget.take(link(0), 1, Purpose::Offer).unwrap();
    budget.keep(place(0, 7), room);
    drop(budget);
}
