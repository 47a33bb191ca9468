//! Demands between two channels without a shard: one asks, with landings and without, and takes back; the other answers
//! in every way there is; and the connection breaks at any time.
//!
//! What must hold: a demand hears of one end, unless the peer never heard of it; and at rest none is left.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::channel::WriteEnd;
use crate::ground::{Code, Status};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Takes a place, for a landing or not.
    Demand(bool),
    /// Asks the n-th of those that may be asked.
    Ask(usize),
    Cancel(usize),
    /// Answers the n-th request that waits.
    Serve(usize, How),
    /// Each side posts, as far as the fabric has room, and each hears so many frames.
    Talk(usize, usize),
    /// So many writes arrive.
    Land(usize),
    Break,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Push,
    Offer,
    Fail,
    Write,
}

fn any_step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![
        Just(How::Push),
        Just(How::Offer),
        Just(How::Fail),
        Just(How::Write)
    ];
    prop_oneof![
        4 => any::<bool>().prop_map(Step::Demand),
        4 => (0..9_usize).prop_map(Step::Ask),
        2 => (0..9_usize).prop_map(Step::Cancel),
        3 => (0..9_usize, how).prop_map(|(at, how)| Step::Serve(at, how)),
        6 => (0..9_usize, 0..9_usize).prop_map(|(room, count)| Step::Talk(room, count)),
        2 => (0..4_usize).prop_map(Step::Land),
        1 => Just(Step::Break),
    ]
}

/// The asking side is 0.
struct Pair {
    channels: [Channel<Value>; 2],
    wire: [VecDeque<Sent>; 2],
    /// Live demands by their packed tickets: whether each has heard of its end.
    demands: BTreeMap<u32, bool>,
    /// Requests that wait at the other side, each with whether its landing is of this connection.
    waiting: Vec<(Ticket, bool)>,
    /// Writes under way: their tickets at the writer, and the demands they serve.
    writes: VecDeque<(Ticket, Ticket)>,
    ends: usize,
    now: Nanos,
}

impl Pair {
    fn new() -> Self {
        let mut channels = [OURS, THEIRS].map(|incarnation| Channel::new(settings(incarnation)));
        channels.iter_mut().for_each(Channel::connected);
        Self {
            channels,
            wire: [VecDeque::new(), VecDeque::new()],
            demands: BTreeMap::new(),
            waiting: vec![],
            writes: VecDeque::new(),
            ends: 0,
            now: NOW,
        }
    }

    fn step(&mut self, step: Step) {
        self.now = self.now + 100;
        match step {
            Step::Demand(wants_landing) => {
                let demand = Demand::new(77, KEY, point(1), 0);
                let landing_for = demand.landing_for(bytes_meta(999));
                let demand = if wants_landing { landing_for } else { demand };
                if let Ok(ticket) = self.channels[0].demand(demand) {
                    assert!(self.demands.insert(ticket.packed(), false).is_none());
                }
            }
            Step::Ask(at) => self.ask(at),
            Step::Cancel(at) => {
                let Some(ticket) = self.nth(at, |_| true) else {
                    return;
                };
                self.channels[0].cancel(ticket);
                self.forget_gone(ticket);
            }
            Step::Serve(at, how) if at < self.waiting.len() => self.serve(at, how),
            Step::Serve(..) => {}
            Step::Talk(room, count) => self.talk(room, count),
            Step::Land(count) => self.land(count),
            Step::Break => self.tear(),
        }
        for ticket in self.demands.keys() {
            let demand = self.channels[0].demand_at(Ticket::unpack(*ticket));
            assert!(demand.is_some(), "a live demand has a place");
        }
        assert_eq!(self.channels[0].load()[0], self.demands.len());
    }

    fn nth(&self, at: usize, pred: impl Fn(&Demand) -> bool) -> Option<Ticket> {
        let tickets = self.channels[0].demands(pred);
        tickets.get(at % tickets.len().max(1)).copied()
    }

    /// A demand that wants a landing is asked with one; and only while a connection is up, as the shard does.
    fn ask(&mut self, at: usize) {
        let Some(ticket) = self.nth(at, Demand::may_ask) else {
            return;
        };
        let demand = self.channels[0].demand_at(ticket).expect("it was found");
        let (is_new, is_bare) = (!demand.is_asked(), demand.is_bare());
        if is_bare && self.channels[0].is_up() {
            self.channels[0].ask(ticket, 0, Some(landing(999)));
        } else if is_new && !is_bare {
            self.channels[0].ask(ticket, 0, None);
        }
    }

    fn serve(&mut self, at: usize, how: How) {
        let (request, has_landing) = self.waiting.swap_remove(at);
        let channel = &mut self.channels[1];
        channel.unpark_request(request);
        let answer = |channel: &mut Channel<Value>, len| {
            let pushed = channel.push(KEY, point(1), 0, &mut Some(value(len)), Some(request));
            pushed.expect("it was asked for");
        };
        match how {
            How::Write if has_landing && channel.is_up() => {
                let write = channel.begin_write(request, KEY, point(1), 0, false);
                self.writes.push_back((write.expect("a place"), request));
            }
            How::Push => answer(channel, 8),
            How::Offer | How::Write => answer(channel, 999),
            How::Fail => {
                channel.fail_request(request, &Status::new(Code::Internal, "LANDING", "why"));
            }
        }
    }

    fn talk(&mut self, room: usize, count: usize) {
        for side in 0..2 {
            let sent = out_to(&mut self.channels[side], self.now, room);
            self.wire[side].extend(sent);
        }
        for side in 0..2 {
            let count = count.min(self.wire[side].len());
            let heard: Vec<_> = self.wire[side].drain(..count).collect();
            for sent in heard {
                self.hear(side, &sent);
            }
        }
    }

    /// The peer of `from` hears a frame of it.
    fn hear(&mut self, from: usize, sent: &Sent) {
        let to = &mut self.channels[1 - from];
        let ended = match sent.kind() {
            Kind::Push => hear_push(to, sent).expect("both are honest").demand,
            Kind::Offer => {
                let (offer, answered) = hear_offer(to, sent).expect("both are honest");
                to.release(offer.offer.ticket);
                answered.map(|(ticket, _)| ticket)
            }
            _ => return self.hear_other(from, sent),
        };
        if let Some(ticket) = ended {
            self.ended(ticket);
        }
    }

    fn hear_other(&mut self, from: usize, sent: &Sent) {
        let to = &mut self.channels[1 - from];
        let heard = to.handle_frame(self.now, &sent.frame, &sent.tail, &sent.body);
        match heard.expect("both are honest") {
            Heard::Nothing | Heard::Up { .. } | Heard::Released(_) => {}
            Heard::Intern { number, .. } => {
                to.interned(number, KEY).expect("within the bound");
            }
            Heard::Request(heard) => {
                let waits = self.waiting.iter().position(|&(of, _)| of == heard.request);
                assert_eq!(waits.is_some(), to.parked_tag(heard.request).is_some());
                if let Some(at) = waits {
                    self.waiting.swap_remove(at);
                }
                to.park_request(heard.request, 1);
                self.waiting.push((heard.request, heard.landing.is_some()));
            }
            Heard::Cancel { request, tag } => {
                let before = self.waiting.len();
                self.waiting.retain(|&(of, _)| of != request);
                assert_eq!(tag.is_some(), self.waiting.len() < before);
                to.answer_cancel(request);
            }
            Heard::Ended { ticket, demand, .. } => {
                let is_here = self.channels[0].demand_at(ticket).is_some();
                assert_eq!(
                    demand.has_landing(),
                    is_here,
                    "it waits for its landing alone"
                );
                self.ended(ticket);
            }
            other => panic!("unexpected: {other:?}"),
        }
    }

    /// A demand has its end. An open landing is closed: it comes home unless a write is on its way there.
    fn ended(&mut self, ticket: Ticket) {
        let was_over = self.demands.insert(ticket.packed(), true);
        assert_eq!(was_over, Some(false), "{ticket:?} ends once");
        self.ends += 1;
        if !self.writes.iter().any(|&(_, of)| of == ticket) {
            assert!(!self.channels[0].quiet(ticket), "that was its end");
        }
        self.forget_gone(ticket);
    }

    fn forget_gone(&mut self, ticket: Ticket) {
        if self.channels[0].demand_at(ticket).is_none() {
            self.demands.remove(&ticket.packed());
        }
    }

    fn land(&mut self, count: usize) {
        for _ in 0..count {
            let Some((write, request)) = self.writes.pop_front() else {
                return;
            };
            let demand = self.channels[0].demand_at(request);
            if !demand.is_some_and(Demand::has_landing) {
                // It was closed before the peer heard that its first answer had come.
                self.channels[1].wrote(write, WriteEnd::Failed, value(999));
                continue;
            }
            assert!(self.channels[0].landed(request).is_some());
            self.channels[1].wrote(write, WriteEnd::Done, value(999));
            let was_over = self.demands.remove(&request.packed());
            self.ends += usize::from(was_over == Some(false));
        }
    }

    fn tear(&mut self) {
        for (write, _) in std::mem::take(&mut self.writes) {
            self.channels[1].wrote(write, WriteEnd::Failed, value(999));
        }
        for (_, has_landing) in &mut self.waiting {
            *has_landing = false;
        }
        for side in 0..2 {
            self.wire[side].clear();
            self.channels[side].disconnected();
            self.channels[side].connected();
        }
        let gone: Vec<_> = self.demands.keys().copied().collect();
        for ticket in gone {
            self.forget_gone(Ticket::unpack(ticket));
        }
        assert!(self.channels[0].demands(Demand::has_landing).is_empty());
    }

    /// Everything is asked and answered, with time enough for every delayed acknowledgement.
    fn settle(&mut self) {
        for round in 0..200 {
            self.now = self.now + 2000;
            for at in 0..16 {
                self.ask(at);
            }
            while !self.waiting.is_empty() {
                let how = [How::Push, How::Offer, How::Fail, How::Write][round % 4];
                self.serve(0, how);
            }
            self.land(usize::MAX);
            self.talk(usize::MAX, usize::MAX);
        }
        let load = self.channels.each_ref().map(Channel::load);
        assert_eq!(load, [[0; 4]; 2], "{:?}", self.demands);
        assert!(self.demands.is_empty());
    }
}

proptest! {
    #[test]
    fn every_demand_ends_once_and_none_is_left(steps in prop::collection::vec(any_step(), 0..200)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.step(step);
        }
        pair.settle();
    }
}

/// A break after every few frames, with all kinds of demands and answers under way.
#[test]
fn demands_get_through_a_connection_that_breaks_all_the_time() {
    let mut pair = Pair::new();
    for round in 0..2000_usize {
        pair.step(Step::Demand(round % 3 != 0));
        pair.step(Step::Ask(round));
        pair.step(Step::Talk(3, 4));
        let how = [How::Write, How::Push, How::Offer, How::Fail][round / 3 % 4];
        pair.step(Step::Serve(round % 3, how));
        pair.step(Step::Land(1));
        if round % 7 == 0 {
            pair.step(Step::Cancel(round));
        }
        if round % 11 == 10 {
            pair.step(Step::Break);
        }
    }
    pair.settle();
    assert!(pair.ends > 500, "only {} demands ended", pair.ends);
}
