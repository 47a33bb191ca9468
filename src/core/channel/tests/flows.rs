//! The flows of values: push, offer, request, write, cancel, failure, release, abort.

use super::*;
use crate::channel::{NoPush, WriteEnd};
use crate::ground::{Code, Status, limits};
use crate::wire::message::StatusText;

const STATUS: StatusText<'_> = StatusText {
    code: Code::Aborted,
    is_derived: false,
    message: "why",
};

fn status() -> Status {
    Status::new(Code::Aborted, "STEP_ABORTED", "why")
}

// ── Small values ────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_tiny_value_lies_in_its_frame_and_is_not_kept() {
    let mut channel = up();
    channel
        .push(KEY, point(1), 5, &mut Some(value(8)), None)
        .expect("credit");
    let sent = out(&mut channel);
    assert!(sent[1].frame.body_is_inline());
    let Message::Push(push) = sent[1].message() else {
        panic!("a push");
    };
    assert_eq!((push.data, push.subject.ordinal), (&value(8).bytes[..], 5));
}

#[test]
fn a_small_value_lies_beside_its_frame_with_the_request_it_answers() {
    for request in [None, Some(ticket(7, 3))] {
        let mut channel = up();
        channel
            .push(KEY, point(1), 5, &mut Some(value(100)), request)
            .expect("credit");
        let sent = out(&mut channel);
        let Message::Push(push) = sent[1].message() else {
            panic!("a push");
        };
        assert_eq!((push.data, push.request), (&value(100).bytes[..], request));
        assert_eq!(push.meta, value(100).meta());
    }
}

#[test]
fn a_value_the_host_cannot_read_is_offered_however_short_it_is() {
    let mut channel = up();
    channel
        .push(KEY, point(1), 0, &mut Some(value(8)), None)
        .expect("credit");
    out(&mut channel);
    let device = || Value {
        is_host: false,
        ..value(8)
    };
    channel
        .push(KEY, point(1), 1, &mut Some(device()), None)
        .expect("credit");
    let sent = out(&mut channel);
    let Message::Offer(offer) = sent[0].message() else {
        panic!("an offer");
    };
    assert_eq!((offer.size, offer.region), (8, None));
}

#[test]
fn the_longest_inline_value_is_pushed_and_the_next_is_offered() {
    // Its one dimension takes eight of the 128 bytes.
    for (len, kind) in [(120, Kind::Push), (121, Kind::Offer)] {
        let mut channel = up();
        channel
            .push(KEY, point(1), 0, &mut Some(value(len)), None)
            .expect("credit");
        assert_eq!(
            kinds(&out(&mut channel)),
            [Kind::Intern, kind],
            "{len} bytes"
        );
    }
}

#[test]
fn a_push_that_answers_a_demand_ends_it() {
    let mut channel = up_knowing_key();
    let request = asked(&mut channel, None);
    let answer = push_of(8, 0, Some(request));
    let push = hear_push(&mut channel, &answer).expect("a push");
    assert_eq!(push.demand, Some(request));
    assert!(channel.demand_at(request).is_none());
    // Duplicate and future: the value is still a value, the demand is not there.
    let again = hear_push(&mut channel, &answer);
    assert!(again.is_ok_and(|push| push.demand.is_none()));
    assert_eq!(channel.counters().stale, 1);
}

// ── Large values ────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn an_offer_names_its_region_only_within_a_read_domain() {
    for (read_domain, is_named) in [(true, true), (false, false)] {
        let mut channel = up_with(ChannelSettings {
            read_domain,
            ..settings(OURS)
        });
        channel
            .push(KEY, point(1), 0, &mut Some(readable(999)), None)
            .expect("credit");
        let sent = out(&mut channel);
        let Message::Offer(offer) = sent[1].message() else {
            panic!("an offer");
        };
        assert_eq!(offer.region.is_some(), is_named);
        assert_eq!(offer.size, 999);
    }
}

#[test]
fn an_accepted_offer_is_written_once() {
    let mut channel = up_knowing_key();
    let offer = offered(&mut channel, value(999));
    let request = request_of(ticket(4, 2), Some(offer), Some(landing(999)));
    let Ok(Heard::Write {
        request: at,
        value: given,
        landing: to,
        ..
    }) = hear(&mut channel, &request)
    else {
        panic!("the value is to be written");
    };
    assert_eq!((at, given, to), (ticket(4, 2), value(999), landing(999)));
    // Past: the same request again finds the offer gone.
    assert!(matches!(hear(&mut channel, &request), Ok(Heard::Stale(at)) if at == ticket(4, 2)));
    assert_eq!(channel.counters().stale, 1);
}

#[test]
fn a_request_for_an_offer_of_another_generation_gets_no_bytes() {
    let mut channel = up_knowing_key();
    let offer = offered(&mut channel, value(999));
    let future = ticket(offer.index, offer.generation + 1);
    let request = request_of(ticket(4, 2), Some(future), Some(landing(999)));
    assert!(matches!(hear(&mut channel, &request), Ok(Heard::Stale(_))));
    let beyond = request_of(ticket(4, 2), Some(ticket(4000, 0)), Some(landing(999)));
    assert!(matches!(hear(&mut channel, &beyond), Ok(Heard::Stale(_))));
}

#[test]
fn a_write_that_failed_puts_the_value_on_offer_again() {
    for (end, kinds_due) in [
        (WriteEnd::Done, vec![]),
        (WriteEnd::Failed, vec![Kind::Offer]),
    ] {
        let mut channel = up_knowing_key();
        let offer = offered(&mut channel, value(999));
        let request = request_of(ticket(4, 2), Some(offer), Some(landing(999)));
        let Ok(Heard::Write {
            request,
            key,
            point,
            ordinal,
            value,
            ..
        }) = hear(&mut channel, &request)
        else {
            panic!("the value is to be written");
        };
        out(&mut channel);
        let write = channel
            .begin_write(request, key, point, ordinal, false)
            .expect("a place");
        channel.wrote(write, end, value);
        let sent = out(&mut channel);
        assert_eq!(kinds(&sent), kinds_due);
        if let Some(Message::Offer(offer)) = sent.first().map(Sent::message) {
            assert_eq!(
                offer.request,
                Some(ticket(4, 2)),
                "it answers the same request"
            );
        }
        assert_eq!(channel.load()[2], 0);
    }
}

#[test]
fn values_released_one_after_the_other_go_in_one_frame() {
    let (mut ours, mut theirs) = (up(), up());
    let offers: Vec<_> = (0..6).map(|_| offered(&mut ours, readable(999))).collect();
    for (at, &offer) in offers.iter().enumerate() {
        if at == 5 {
            // What is said in between stays where it is.
            theirs.finish(StepId(9));
        }
        theirs.release(offer);
    }
    let sent = out(&mut theirs);
    assert_eq!(kinds(&sent), [Kind::Release, Kind::Finish, Kind::Release]);
    let heard = sent.iter().map(|frame| match hear(&mut ours, frame) {
        Ok(Heard::Released(count)) => count,
        Ok(Heard::Finish(_)) => 0,
        other => panic!("{other:?}"),
    });
    assert_eq!(heard.collect::<Vec<_>>(), [5, 0, 1]);
    assert_eq!(ours.load()[1], 0);
    // One that is told a second time lets go of nothing, and what stands beside it is heard.
    let left = offered(&mut ours, readable(999));
    let both = left.packed().to_le_bytes();
    let again = Sent::of(&Message::Release(offers[0], &both)).crediting(0, 0);
    assert!(matches!(hear(&mut ours, &again), Ok(Heard::Released(1))));
    assert_eq!(ours.counters().stale, 1);
}

/// A release that has been posted is added to no more.
#[test]
fn what_is_released_later_goes_in_a_frame_of_its_own() {
    let (mut ours, mut theirs) = (up(), up());
    let offers = [0; 2].map(|_| offered(&mut ours, readable(999)));
    for offer in offers {
        theirs.release(offer);
        let sent = out(&mut theirs);
        assert_eq!(kinds(&sent), [Kind::Release]);
        assert!(matches!(hear(&mut ours, &sent[0]), Ok(Heard::Released(1))));
    }
}

#[test]
fn a_release_gives_the_value_back_once() {
    let mut channel = up();
    let offer = offered(&mut channel, readable(999));
    let release = Sent::of(&Message::Release(offer, &[]));
    assert!(matches!(
        hear(&mut channel, &release),
        Ok(Heard::Released(1))
    ));
    assert!(matches!(hear(&mut channel, &release), Ok(Heard::Nothing)));
    assert_eq!(channel.counters().stale, 1);
}

#[test]
fn an_offer_that_is_heard_holds_one_line_and_names_the_demand_it_answers() {
    let mut channel = up_knowing_key();
    let offer = offer_of(999, ticket(6, 1), None);
    let (heard, answered) = hear_offer(&mut channel, &offer).expect("an offer");
    assert_eq!(
        (
            heard.offer.lines,
            heard.offer.size,
            heard.offer.ticket,
            heard.key
        ),
        (1, 999, ticket(6, 1), KEY)
    );
    assert!(answered.is_none());
    let request = asked(&mut channel, None);
    let answer = offer_of(999, ticket(7, 1), Some(request));
    let (heard, answered) = hear_offer(&mut channel, &answer).expect("an offer");
    assert_eq!(
        (heard.offer.lines, answered.map(|(at, _)| at)),
        (0, Some(request))
    );
}

#[test]
fn what_a_lost_peer_may_read_is_kept_until_it_says_or_is_proved_otherwise() {
    let mut channel = up();
    let copied = offered(&mut channel, value(999));
    let tickets = [(); 3].map(|()| offered(&mut channel, readable(999)));
    channel.lose();
    assert_eq!((channel.load()[1], channel.is_at_rest()), (3, true));
    greet(&mut channel, hello_of_theirs());
    let sent = out(&mut channel);
    assert_eq!(
        sent.iter().map(Sent::message).collect::<Vec<_>>(),
        tickets.map(Message::Recall)
    );
    for (ticket, is_there) in [(tickets[0], true), (copied, false)] {
        let release = Sent::of(&Message::Release(ticket, &[]));
        let heard = hear(&mut channel, &release).expect("a release");
        assert_eq!(matches!(heard, Heard::Released(_)), is_there);
    }
    // Another life of the peer has nothing to say about it; the proof that the first is over has.
    channel.lose();
    let other = Hello {
        incarnation: Incarnation(99),
        ..hello_of_theirs()
    };
    greet(&mut channel, other);
    assert_eq!(kinds(&out(&mut channel)), []);
    channel.exited(Incarnation(99));
    assert_eq!(channel.load()[1], 2);
    channel.exited(THEIRS);
    assert_eq!(channel.load()[1], 0);
}

#[test]
fn a_recall_is_heard() {
    let recall = Sent::of(&Message::Recall(ticket(2, 2)));
    assert!(matches!(hear(&mut up(), &recall), Ok(Heard::Recall(offer)) if offer == ticket(2, 2)));
}

// ── Requests ────────────────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_request_says_what_it_wants_and_where() {
    let mut channel = up();
    let plain = asked(&mut channel, None);
    let landed = asked(&mut channel, Some(landing(999)));
    let sent = out(&mut channel);
    assert_eq!(kinds(&sent), [Kind::Intern, Kind::Request, Kind::Request]);
    let requests: Vec<_> = sent[1..]
        .iter()
        .map(|sent| match sent.message() {
            Message::Request(request) => (request.request, request.landing),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(requests, [(plain, None), (landed, Some(landing(999)))]);
}

#[test]
fn more_demands_than_places_come_back() {
    let mut channel = up();
    for _ in 0..16 {
        asked(&mut channel, None);
    }
    let demand = Demand::new(78, KEY, point(1), 0);
    assert_eq!(channel.demand(demand), Err(demand));
}

#[test]
fn a_request_that_is_heard_can_be_parked_and_found() {
    let mut channel = up_knowing_key();
    let request = request_of(ticket(4, 2), None, Some(landing(10)));
    let Ok(Heard::Request(heard)) = hear(&mut channel, &request) else {
        panic!("a request");
    };
    assert_eq!(
        (heard.request, heard.key, heard.landing),
        (ticket(4, 2), KEY, Some(landing(10)))
    );
    channel.park_request(ticket(4, 2), 55);
    assert_eq!(
        channel.unpark_request(ticket(4, 1)),
        None,
        "another generation"
    );
    assert_eq!(channel.unpark_request(ticket(4, 2)), Some(55));
    assert_eq!(channel.unpark_request(ticket(4, 2)), None, "only once");
}

#[test]
fn requests_that_make_no_sense_are_violations() {
    let mut channel = up_knowing_key();
    let bound = limits::PARKED_REQUESTS as u32;
    let beyond = request_of(ticket(bound, 0), None, None);
    assert!(matches!(
        hear(&mut channel, &beyond),
        Err(Violation::Requests)
    ));
    let landless = request_of(ticket(0, 0), Some(ticket(0, 0)), None);
    assert!(matches!(
        hear(&mut channel, &landless),
        Err(Violation::Requests)
    ));
}

/// A peer gives a number anew when the request that had it has its end, and not before.
#[test]
fn two_requests_of_one_number_are_a_violation() {
    let mut channel = up_knowing_key();
    let [first, second] = [1, 2].map(|generation| request_of(ticket(4, generation), None, None));
    assert!(matches!(hear(&mut channel, &first), Ok(Heard::Request(_))));
    channel.park_request(ticket(4, 1), 55);
    let again = hear(&mut channel, &first);
    assert!(
        matches!(again, Ok(Heard::Request(_))),
        "on a further connection"
    );
    assert!(matches!(
        hear(&mut channel, &second),
        Err(Violation::Requests)
    ));
    assert_eq!(channel.unpark_request(ticket(4, 1)), Some(55));
    assert!(matches!(hear(&mut channel, &second), Ok(Heard::Request(_))));
}

// ── The ends of a demand ────────────────────────────────────────────────────────────────────────────────────────

#[test]
fn a_cancel_finds_where_the_request_waited() {
    let mut channel = up_knowing_key();
    channel.park_request(ticket(4, 2), 55);
    let cancel = Sent::of(&Message::Cancel(ticket(4, 2)));
    assert!(matches!(
        hear(&mut channel, &cancel),
        Ok(Heard::Cancel { tag: Some(55), .. })
    ));
    assert!(matches!(
        hear(&mut channel, &cancel),
        Ok(Heard::Cancel { tag: None, .. })
    ));
    // Rule 3: it is answered though nothing waited.
    channel.answer_cancel(ticket(4, 2));
    let sent = out(&mut channel);
    assert_eq!(sent[0].message(), Message::Cancelled(ticket(4, 2)));
}

#[test]
fn a_cancel_is_answered_by_the_write_that_is_on_its_way() {
    let mut channel = up();
    let write = channel
        .begin_write(ticket(4, 2), KEY, point(1), 0, false)
        .expect("a place");
    channel.answer_cancel(ticket(4, 2));
    assert!(out(&mut channel).is_empty(), "the write is the answer");
    channel.wrote(write, WriteEnd::Done, value(999));
    channel.answer_cancel(ticket(4, 2));
    assert_eq!(kinds(&out(&mut channel)), [Kind::Cancelled]);
}

#[test]
fn a_demand_is_taken_back_once() {
    let mut channel = up();
    let request = asked(&mut channel, None);
    channel.cancel(request);
    channel.cancel(request);
    assert_eq!(
        kinds(&out(&mut channel)),
        [Kind::Intern, Kind::Request, Kind::Cancel]
    );
    let cancelled = Sent::of(&Message::Cancelled(request));
    let Ok(Heard::Ended {
        demand,
        status: None,
        ..
    }) = hear(&mut channel, &cancelled)
    else {
        panic!("the demand ended");
    };
    assert_eq!(demand.tag, 77);
    assert!(channel.demand_at(request).is_none());
    assert!(matches!(hear(&mut channel, &cancelled), Ok(Heard::Nothing)));
    out(&mut channel);
    channel.cancel(request);
    assert!(
        out(&mut channel).is_empty(),
        "there is nothing to take back"
    );
}

#[test]
fn a_failure_ends_a_demand_with_its_status() {
    let mut channel = up();
    let request = asked(&mut channel, None);
    let failed = Sent::of(&Message::Failed(request, STATUS));
    assert!(matches!(
        hear(&mut channel, &failed),
        Ok(Heard::Ended { status: Some(status), .. }) if status == STATUS
    ));
    assert!(channel.demand_at(request).is_none());
}

#[test]
fn a_demand_with_a_landing_stays_until_the_landing_is_home() {
    let mut channel = up();
    let request = asked(&mut channel, Some(landing(999)));
    let failed = Sent::of(&Message::Failed(request, STATUS));
    assert!(
        matches!(hear(&mut channel, &failed), Ok(Heard::Ended { demand, .. }) if demand.has_landing())
    );
    assert!(
        channel.demand_at(request).is_some(),
        "something may still write there"
    );
    assert!(!channel.quiet(request), "it wants no other landing");
    assert!(channel.demand_at(request).is_none());
}

/// A cancel of ours crosses the answer it wanted to forestall. The shard closes the landing at the end it hears,
/// so it must hear one.
#[test]
fn crossing_answers_end_a_demand_once() {
    let mut channel = up_knowing_key();
    let request = asked(&mut channel, Some(landing(999)));
    channel.cancel(request);
    let failed = Sent::of(&Message::Failed(request, STATUS));
    let cancelled = Sent::of(&Message::Cancelled(request));
    assert!(matches!(
        hear(&mut channel, &failed),
        Ok(Heard::Ended { .. })
    ));
    assert!(matches!(hear(&mut channel, &cancelled), Ok(Heard::Nothing)));
    let push = push_of(8, 0, Some(request));
    assert!(hear_push(&mut channel, &push).is_ok_and(|push| push.demand.is_none()));
    assert!(!channel.quiet(request));
    assert!(channel.is_at_rest() || channel.load()[0] == 0);
}

#[test]
fn a_landing_that_was_written_ends_its_demand() {
    let mut channel = up();
    let request = asked(&mut channel, Some(landing(999)));
    assert_eq!(channel.landed(request).map(|demand| demand.tag), Some(77));
    assert_eq!(channel.landed(request), None, "once");
    assert_eq!(channel.counters().stale, 1);
}

#[test]
fn a_landing_that_came_home_empty_leaves_the_demand_standing() {
    let mut channel = up();
    let request = asked(&mut channel, Some(landing(999)));
    assert!(channel.quiet(request), "it wants another");
    let demand = channel.demand_at(request).expect("it stands");
    assert!(demand.is_bare() && !demand.has_landing());
    assert!(channel.settle(request).is_some());
    assert!(!channel.quiet(request));
}

// ── Ends of steps and of the peer ───────────────────────────────────────────────────────────────────────────────

#[test]
fn an_abort_is_told_and_drops_offers_nobody_can_be_reading() {
    let mut channel = up();
    let plain = offered(&mut channel, value(999));
    let leased = offered(&mut channel, readable(999));
    channel
        .push(KEY, point(2), 0, &mut Some(value(999)), None)
        .expect("credit");
    out(&mut channel);
    channel.abort(StepId(1), &status());
    let sent = out(&mut channel);
    assert_eq!(sent[0].message(), Message::Abort(StepId(1), STATUS));
    assert_eq!(channel.load()[1], 2, "the lease and the other step's");
    let release = |offer| Sent::of(&Message::Release(offer, &[]));
    assert!(matches!(
        hear(&mut channel, &release(plain)),
        Ok(Heard::Nothing)
    ));
    assert!(matches!(
        hear(&mut channel, &release(leased)),
        Ok(Heard::Released(_))
    ));
}

#[test]
fn an_abort_is_heard() {
    let mut channel = up();
    let abort = Sent::of(&Message::Abort(StepId(9), STATUS));
    assert!(matches!(
        hear(&mut channel, &abort),
        Ok(Heard::Abort { step: StepId(9), status }) if status == STATUS
    ));
}

#[test]
fn nothing_is_told_to_a_peer_that_was_never_met() {
    let mut channel = Channel::<Value>::new(settings(OURS));
    channel.abort(StepId(1), &status());
    assert!(channel.is_at_rest());
}

#[test]
fn a_lost_peer_leaves_nothing_behind() {
    let mut channel = up_knowing_key();
    offered(&mut channel, value(999));
    asked(&mut channel, Some(landing(9)));
    channel
        .begin_write(ticket(1, 1), KEY, point(1), 0, false)
        .expect("a place");
    channel.park_request(ticket(4, 2), 55);
    channel.lose();
    assert!(channel.is_at_rest() && !channel.is_up());
    assert_eq!(channel.session.peer(), None);
    assert_eq!(channel.unpark_request(ticket(4, 2)), None);
    assert!((0..16).all(|key| !channel.is_busy_with(KeyId(key)) && !channel.is_called(KeyId(key))));
    let refused = channel.push(KEY, point(1), 0, &mut Some(value(8)), None);
    assert!(matches!(refused, Err(NoPush::NotUp)));
    let ours = greet(&mut channel, hello_of_theirs());
    assert_eq!(
        (ours.epoch, ours.expected, ours.consumed),
        (2, Incarnation::CURRENT, 0)
    );
}
