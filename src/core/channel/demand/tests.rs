//! Every state of a demand and every event: what follows, and which state comes next.

use super::{Accepted, Answer, Cancelled, Demand, Demands, Landing, State};
use crate::ground::{DType, FrameIter, Shape, StepId, TensorMeta};
use crate::rendezvous::KeyId;
use crate::wire::{Point, Ticket};

const POINT: Point = Point {
    step: StepId(1),
    at: FrameIter { frame: 0, iter: 0 },
};

fn meta() -> TensorMeta {
    let shape = Shape::new(&[9]).expect("a shape");
    TensorMeta::new(DType::U8, shape).expect("small")
}

fn accepted() -> Accepted {
    Accepted {
        ticket: Ticket::default(),
        meta: meta(),
        size: 9,
        is_dead: false,
        lines: 1,
    }
}

const fn asked(landing: Landing, is_again: bool) -> State {
    State::Asked { landing, is_again }
}

const fn cancelled(is_open: bool, is_again: bool) -> State {
    State::Cancelled { is_open, is_again }
}

const fn new(wants_landing: bool) -> State {
    State::New(wants_landing)
}

/// Every state there is.
fn states() -> Vec<State> {
    let mut all = vec![new(false), new(true), State::Answered];
    for is_again in [false, true] {
        for landing in [Landing::None, Landing::Open, Landing::Home] {
            all.push(asked(landing, is_again));
        }
        all.extend([false, true].map(|is_open| cancelled(is_open, is_again)));
    }
    all
}

/// A table with one demand in that state, and its ticket.
fn with(state: State) -> (Demands, Ticket) {
    let mut requests = Demands::new(1);
    let mut demand = Demand::new(7, KeyId(3), POINT, 0);
    demand.offer = Some(accepted());
    demand.state = state;
    let ticket = requests.insert(demand).expect("a place");
    (requests, ticket)
}

fn state_of(requests: &Demands, ticket: Ticket) -> Option<State> {
    requests.at(ticket).map(|demand| demand.state)
}

#[test]
fn asking_is_for_demands_that_stand_and_have_no_open_landing() {
    for state in states() {
        for has_landing in [false, true] {
            let (mut requests, ticket) = with(state);
            let landing = if has_landing {
                Landing::Open
            } else {
                Landing::None
            };
            let next = match state {
                State::New(_) => Some(asked(landing, false)),
                State::Asked {
                    landing: Landing::None | Landing::Home,
                    ..
                } => Some(asked(landing, true)),
                _ => None,
            };
            let goes = requests.ask(ticket, has_landing).is_some();
            assert_eq!(goes, next.is_some(), "{state:?}");
            let stays = next.unwrap_or(state);
            assert_eq!(state_of(&requests, ticket), Some(stays), "{state:?}");
        }
    }
}

#[test]
fn cancelling_is_told_once_and_only_to_a_peer_that_has_heard() {
    for state in states() {
        let (mut requests, ticket) = with(state);
        let (outcome, next) = match state {
            State::New(_) => (Cancelled::Unheard(Some(accepted())), None),
            State::Asked { landing, is_again } => {
                let is_open = landing == Landing::Open;
                (Cancelled::Tell, Some(cancelled(is_open, is_again)))
            }
            over => (Cancelled::Not, Some(over)),
        };
        assert_eq!(requests.cancel(ticket), outcome, "{state:?}");
        assert_eq!(state_of(&requests, ticket), next, "{state:?}");
        if next.is_some() {
            assert_eq!(requests.cancel(ticket), Cancelled::Not, "{state:?}: twice");
        }
    }
}

#[test]
fn an_answer_ends_a_demand_once_and_an_open_landing_keeps_it() {
    for state in states() {
        for waits in [true, false] {
            let (mut requests, ticket) = with(state);
            let (is_again, is_open) = match state {
                State::New(_) => (Some(false), false),
                State::Asked { landing, is_again } => (Some(is_again), landing == Landing::Open),
                State::Cancelled { is_open, is_again } => (Some(is_again), is_open),
                State::Answered => (None, true),
            };
            match (requests.answer(ticket, waits), is_again) {
                (Answer::Late, None) => {}
                (Answer::Ends { demand, is_again }, Some(expected)) => {
                    assert_eq!(is_again, expected, "{state:?}");
                    assert_eq!((demand.tag, demand.has_landing()), (7, is_open));
                }
                (other, _) => panic!("{state:?}: {other:?}"),
            }
            let stays = is_open && (waits || is_again.is_none());
            let next = stays.then_some(State::Answered);
            assert_eq!(state_of(&requests, ticket), next, "{state:?}");
            let again = requests.answer(ticket, waits);
            let late = if stays { Answer::Late } else { Answer::Stale };
            assert_eq!(again, late, "{state:?}: twice");
        }
    }
}

#[test]
fn a_landing_that_comes_home_is_wanted_anew_or_is_the_end() {
    for state in states() {
        let (mut requests, ticket) = with(state);
        let next = match state {
            State::Asked {
                landing: Landing::Open,
                is_again,
            } => Some(asked(Landing::Home, is_again)),
            State::Cancelled { is_again, .. } => Some(cancelled(false, is_again)),
            State::Answered => None,
            other => Some(other),
        };
        assert_eq!(requests.quiet(ticket), next.is_some(), "{state:?}");
        assert_eq!(state_of(&requests, ticket), next, "{state:?}");
    }
    assert!(!Demands::new(1).quiet(Ticket::default()));
}

#[test]
fn the_end_of_a_connection_brings_every_landing_home_and_no_other_change() {
    for state in states() {
        let (mut requests, ticket) = with(state);
        let (mut other, same) = with(state);
        requests.end_connection();
        other.quiet(same);
        assert_eq!(state_of(&requests, ticket), state_of(&other, same));
        let has_landing = requests.at(ticket).is_some_and(Demand::has_landing);
        assert!(!has_landing, "{state:?}");
    }
}

#[test]
fn what_is_asked_of_a_demand_follows_from_its_state() {
    for state in states() {
        let (requests, ticket) = with(state);
        let demand = requests.at(ticket).expect("it is there");
        let is_new = matches!(state, State::New(_));
        assert_eq!(demand.is_asked(), !is_new);
        let is_bare = state == new(true)
            || matches!(
                state,
                State::Asked {
                    landing: Landing::Home,
                    ..
                }
            );
        assert_eq!(demand.is_bare(), is_bare, "{state:?}");
        assert!(!is_bare || demand.may_ask(), "{state:?}");
        let exclusive = [demand.is_over(), demand.may_ask()];
        let is_open_and_stands = matches!(
            state,
            State::Asked {
                landing: Landing::Open,
                ..
            }
        );
        assert_eq!(exclusive == [false, false], is_open_and_stands, "{state:?}");
        assert_ne!(exclusive, [true, true], "{state:?}");
    }
    let demand = Demand::new(7, KeyId(3), POINT, 0);
    assert_eq!(demand.state, new(false));
    assert_eq!(demand.landing_for(meta()).state, new(true));
    assert_eq!(demand.landing_for(meta()).meta, Some(meta()));
}
