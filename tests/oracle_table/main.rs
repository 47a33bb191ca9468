//! The matching table against a naive model: every answer, every hand-back and every count, under random operations.
//!
//! An operation is four bytes, so that a failing sequence shrinks by itself. The model keeps maps and queues, sums
//! whatever it needs anew each time, and shares no idea with the table but the words.

mod model;

use proptest::prelude::*;
use rendez::ground::{Code, FrameIter, Nanos, Status, StepId};
use rendez::rendezvous::{
    Arrived, Ended, Expired, KeyId, Origin, Pass, Pending, PendingKind, PushOutcome,
    ReceiveOutcome, Refusal, Requested, Sent, Slot, Table, WaiterId, Withdrawn,
};

use model::{Body, Item, LIMITS, Model, Step, Waiter, bytes_of, ordinal_of, rank};

/// A value that left the table for a waiter.
struct Handed {
    slot: Slot,
    /// The point it was of.
    born: u64,
    from: Origin,
    value: u64,
}

/// What became of a local value, with its ordinal.
#[derive(PartialEq, Eq, Debug)]
enum Met {
    Matched(u64, u64, u32),
    Parked(u32),
}

/// What became of a pushed one.
#[derive(PartialEq, Eq, Debug)]
enum Came {
    Matched(u64, u64, u32),
    Parked,
    Wanted(u64),
    Duplicate(Arrived<u64>),
}

/// The table and its model, driven together.
struct Pair {
    table: Table<u64, u64>,
    model: Model,
    /// Every waiter that ever was, ended or not.
    ids: Vec<WaiterId>,
    /// The last tokens offered, and where.
    offers: Vec<(Slot, u64)>,
    /// What was handed over, and may come back.
    handed: Vec<Handed>,
    fresh: u64,
}

fn sorted(mut all: Vec<String>) -> Vec<String> {
    all.sort();
    all
}

impl Pair {
    fn new() -> Self {
        Self {
            table: Table::new(LIMITS).expect("room"),
            model: Model::default(),
            ids: Vec::new(),
            offers: Vec::new(),
            handed: Vec::new(),
            fresh: 0,
        }
    }

    fn fresh(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    fn apply(&mut self, [kind, place, a, b]: [u8; 4]) {
        let slot = Slot {
            step: StepId(u64::from(place % 7)),
            key: KeyId(u32::from(a % 3)),
            at: FrameIter {
                frame: 0,
                iter: u64::from(place / 7 % 2),
            },
        };
        let deadline = if b % 3 == 0 {
            Nanos::NEVER
        } else {
            self.model.now + u64::from(b) * 97
        };
        match kind % 32 {
            0..=4 => self.send(slot, u64::from(b % 16)),
            5..=9 => self.recv(slot, deadline),
            10..=13 => self.arrive(slot, a, b),
            14..=15 => self.supply(b, u64::from(a % 16)),
            16 => self.withdraw(b),
            17..=18 => self.cancel(b),
            19..=21 => self.pass(slot, b),
            22..=24 => self.request(slot, u32::from(a / 3 % 8), deadline),
            25 => self.take_parked(slot, b),
            26 => self.end(slot.step, b),
            27 => assert_eq!(
                self.table.open_step(self.model.now, slot.step),
                self.model.open(slot.step)
            ),
            28 => self.fail_keys(slot.key),
            29 => self.give_back(b, u64::from(a % 16)),
            _ => self.advance(u64::from(b) * if a % 8 == 0 { 400 } else { 20 }),
        }
        self.compare();
    }

    fn send(&mut self, slot: Slot, bytes: u64) {
        let value = self.fresh();
        let now = self.model.now;
        let expected = self.expect_send(slot, value, bytes);
        // As the shard asks first for most values.
        if bytes.is_multiple_of(2)
            && let Some((waiter, from)) = self.table.claim_next(&slot)
        {
            self.hand(slot, from, value);
            return assert_eq!(
                Ok(Met::Matched(waiter, value, rank(from.ordinal()))),
                expected
            );
        }
        let got = self
            .table
            .send(now, slot, value, bytes)
            .map(|sent| match sent {
                Sent::Matched {
                    waiter,
                    value,
                    from,
                } => {
                    self.hand(slot, from, value);
                    Met::Matched(waiter, value, rank(from.ordinal()))
                }
                Sent::Parked { ordinal } => Met::Parked(rank(ordinal)),
            });
        assert_eq!(got, expected);
    }

    fn expect_send(&mut self, slot: Slot, value: u64, bytes: u64) -> Result<Met, (Refusal, u64)> {
        let refused = |refusal| (refusal, value);
        let now = self.model.now;
        let point = self.model.local(slot).map_err(refused)?;
        let ordinal = point.next;
        if point.items.is_empty() && !point.waiters.is_empty() {
            point.next += 1;
            let waiter = point.waiters.pop_front().expect("some").tag;
            return Ok(Met::Matched(waiter, value, ordinal));
        }
        self.model.may_park(slot, bytes).map_err(refused)?;
        let point = self.model.points.get_mut(&slot).expect("a point");
        point.next += 1;
        point.items.push_back(Item {
            ordinal,
            since: now,
            body: Body::Value(value, bytes),
        });
        Ok(Met::Parked(ordinal))
    }

    fn recv(&mut self, slot: Slot, deadline: Nanos) {
        let tag = self.fresh();
        let now = self.model.now;
        // As the shard does: most find nothing.
        let got = match self.table.wait(now, &slot, tag, deadline) {
            Some((id, ordinal)) => Ok(ReceiveOutcome::Waiting { id, ordinal }),
            None => self.table.recv(now, slot, tag, deadline),
        };
        let point = match self.model.local(slot) {
            Ok(point) => point,
            Err(refusal) => return assert_eq!(got, Err(refusal)),
        };
        if let (
            Some(&Item {
                body: Body::Value(value, _),
                ordinal,
                ..
            }),
            true,
        ) = (point.items.front(), point.waiters.is_empty())
        {
            point.items.pop_front();
            let Ok(ReceiveOutcome::Ready { value: had, from }) = got else {
                panic!("{got:?}, but {value} lay there");
            };
            self.hand(slot, from, value);
            return assert_eq!((had, rank(from.ordinal())), (value, ordinal));
        }
        if let Err(refusal) = self.model.may_wait(slot) {
            return assert_eq!(got, Err(refusal));
        }
        let point = self.model.points.get_mut(&slot).expect("a point");
        let position = point.waiters.len();
        let beyond = point.next + (position.saturating_sub(point.items.len())) as u32;
        let item = point.items.get_mut(position);
        let ordinal = item.as_ref().map_or(beyond, |item| item.ordinal);
        let (id, expected) = match (&got, item.map(|item| &mut item.body)) {
            (Ok(ReceiveOutcome::Fetch { id, .. }), Some(Body::Offer(token, wanted)))
                if !*wanted =>
            {
                *wanted = true;
                (
                    *id,
                    ReceiveOutcome::Fetch {
                        id: *id,
                        token: *token,
                    },
                )
            }
            (Ok(ReceiveOutcome::Behind { id }), Some(body))
                if !matches!(body, Body::Offer(_, false)) =>
            {
                (*id, ReceiveOutcome::Behind { id: *id })
            }
            (Ok(ReceiveOutcome::Waiting { id, .. }), None) => {
                let ordinal = ordinal_of(ordinal);
                (*id, ReceiveOutcome::Waiting { id: *id, ordinal })
            }
            (_, item) => panic!("{got:?}, but {item:?} stands there"),
        };
        assert_eq!(got, Ok(expected));
        point.waiters.push_back(Waiter {
            id,
            tag,
            deadline,
            since: now,
        });
        self.ids.push(id);
    }

    fn arrive(&mut self, slot: Slot, a: u8, b: u8) {
        let next = self.model.points.get(&slot).map_or(0, |point| point.next);
        let ordinal = match a / 3 % 8 {
            0 => next.saturating_sub(1 + u32::from(b) % 3),
            1 => next + u32::from(b % 3),
            _ => next,
        };
        let token = self.fresh();
        let offers = b.is_multiple_of(2);
        let item = || {
            if offers {
                Arrived::Offer(token)
            } else {
                Arrived::Value(token)
            }
        };
        let bytes = u64::from(b % 16);
        // As the shard does: most values are waited for, and never lie in the table.
        let claimed = match offers {
            true => None,
            false => self.table.claim(&slot, ordinal_of(ordinal)),
        };
        let got = match claimed {
            Some((waiter, from)) => Ok(PushOutcome::Matched {
                waiter,
                value: token,
                from,
            }),
            None => (self.table).arrive(self.model.now, slot, ordinal_of(ordinal), item(), bytes),
        };
        let expected = self.expect_arrive(slot, ordinal, offers, token, bytes);
        if offers && matches!(expected, Ok(Came::Parked | Came::Wanted(_))) {
            self.offers.push((slot, token));
        }
        let got = got.map(|arrival| match arrival {
            PushOutcome::Matched {
                waiter,
                value,
                from,
            } => {
                self.hand(slot, from, value);
                Came::Matched(waiter, value, rank(from.ordinal()))
            }
            PushOutcome::Parked => Came::Parked,
            PushOutcome::Wanted { token } => Came::Wanted(token),
            PushOutcome::Duplicate(item) => Came::Duplicate(item),
        });
        assert_eq!(got, expected.map_err(|refusal| (refusal, item())));
    }

    fn hand(&mut self, slot: Slot, from: Origin, value: u64) {
        let born = self.model.points[&slot].born;
        self.handed.push(Handed {
            slot,
            born,
            from,
            value,
        });
    }

    /// A value that was handed over was not read. It may be long ago.
    fn give_back(&mut self, b: u8, bytes: u64) {
        let Some(at) = self.handed.len().checked_sub(1 + usize::from(b % 6)) else {
            return;
        };
        let Handed {
            slot,
            born,
            from,
            value,
        } = self.handed.remove(at);
        let now = self.model.now;
        let got = self.table.give_back(now, from, value, bytes);
        let point = self.model.points.get_mut(&slot);
        let Some(point) = point.filter(|point| point.born == born) else {
            return assert_eq!(got, Err(value), "what it lay in has ended");
        };
        let ordinal = rank(from.ordinal());
        let behind = point.items.iter().take_while(|item| item.ordinal < ordinal);
        let position = behind.count();
        if position == 0
            && let Some(oldest) = point.waiters.pop_front()
        {
            let Ok(PushOutcome::Matched {
                waiter,
                value: had,
                from,
            }) = got
            else {
                panic!("{got:?}, but {} waited", oldest.tag);
            };
            self.hand(slot, from, value);
            return assert_eq!(
                (waiter, had, rank(from.ordinal())),
                (oldest.tag, value, ordinal)
            );
        }
        assert_eq!(got, Ok(PushOutcome::Parked));
        let item = Item {
            ordinal,
            since: now,
            body: Body::Value(value, bytes),
        };
        point.items.insert(position, item);
    }

    fn expect_arrive(
        &mut self,
        slot: Slot,
        ordinal: u32,
        offers: bool,
        token: u64,
        bytes: u64,
    ) -> Result<Came, Refusal> {
        let now = self.model.now;
        let point = self.model.foreign(slot)?;
        if ordinal < point.next {
            return Ok(Came::Duplicate(if offers {
                Arrived::Offer(token)
            } else {
                Arrived::Value(token)
            }));
        }
        let wanted = point.waiters.len() > point.items.len();
        if !offers && wanted && point.items.is_empty() {
            point.next = ordinal + 1;
            let oldest = point.waiters.pop_front().expect("some").tag;
            return Ok(Came::Matched(oldest, token, ordinal));
        }
        let bytes = if offers { 0 } else { bytes };
        if wanted {
            self.model.may_stand(slot, bytes)?;
        } else {
            self.model.may_park(slot, bytes)?;
        }
        let point = self.model.points.get_mut(&slot).expect("a point");
        point.next = ordinal + 1;
        let body = if offers {
            Body::Offer(token, wanted)
        } else {
            Body::Value(token, bytes)
        };
        point.items.push_back(Item {
            ordinal,
            since: now,
            body,
        });
        Ok(if offers && wanted {
            Came::Wanted(token)
        } else {
            Came::Parked
        })
    }

    /// An offer by its age, and where it stands now, if it does.
    fn offer(&self, b: u8) -> Option<(Slot, u64, Option<usize>)> {
        let &(slot, token) = self.offers.iter().rev().nth(usize::from(b % 4))?;
        let is = |item: &Item| matches!(item.body, Body::Offer(other, _) if other == token);
        let position = self
            .model
            .points
            .get(&slot)
            .and_then(|point| point.items.iter().position(is));
        Some((slot, token, position))
    }

    fn supply(&mut self, b: u8, bytes: u64) {
        let value = self.fresh();
        let Some((slot, token, position)) = self.offer(b) else {
            return;
        };
        let mut out = Vec::new();
        let got = self.table.supply(
            self.model.now,
            slot,
            token,
            value,
            bytes,
            &mut |w, v, from| out.push((w, v, from)),
        );
        for &(_, value, from) in &out {
            self.hand(slot, from, value);
        }
        let out: Vec<_> = out
            .into_iter()
            .map(|(w, v, from)| (w, v, rank(from.ordinal())))
            .collect();
        let Some(position) = position else {
            return assert_eq!((got, out), (Err(value), Vec::new()));
        };
        let now = self.model.now;
        let item = &mut self.model.points.get_mut(&slot).expect("a point").items[position];
        item.body = Body::Value(value, bytes);
        item.since = now;
        assert_eq!((got, out), (Ok(()), self.model.drain(slot)));
    }

    fn withdraw(&mut self, b: u8) {
        let Some((slot, token, position)) = self.offer(b) else {
            return;
        };
        let mut out = Vec::new();
        let mut handed = Vec::new();
        let got = self.table.withdraw(slot, token, &mut |what| {
            out.push(match what {
                Withdrawn::Matched(waiter, value, from) => {
                    handed.push((value, from));
                    format!("{waiter} has {value}, {}", rank(from.ordinal()))
                }
                other => format!("{other:?}"),
            })
        });
        for (value, from) in handed {
            self.hand(slot, from, value);
        }
        assert_eq!(got, position.is_some());
        let Some(position) = position else {
            return assert_eq!(out, Vec::<String>::new());
        };
        let point = self.model.points.get_mut(&slot).expect("a point");
        point.items.remove(position);
        let served = position < point.waiters.len();
        let mut expected: Vec<String> = self
            .model
            .drain(slot)
            .into_iter()
            .map(|(waiter, value, ordinal)| format!("{waiter} has {value}, {ordinal}"))
            .collect();
        let point = self.model.points.get_mut(&slot).expect("a point");
        let waiters = point.waiters.len();
        if served && waiters > point.items.len() {
            let next = point.next + (waiters - point.items.len() - 1) as u32;
            expected.push(format!(
                "{:?}",
                Withdrawn::<u64, u64>::Ask(ordinal_of(next))
            ));
        }
        for item in point.items.iter_mut().take(waiters) {
            if let Body::Offer(token, wanted @ false) = &mut item.body {
                *wanted = true;
                expected.push(format!("{:?}", Withdrawn::<u64, u64>::Wanted(*token)));
            }
        }
        assert_eq!(out, expected);
    }

    fn cancel(&mut self, b: u8) {
        let Some(&id) = self.ids.iter().rev().nth(usize::from(b % 16)) else {
            return;
        };
        let found = self.model.points.iter_mut().find_map(|(slot, point)| {
            let position = point.waiters.iter().position(|waiter| waiter.id == id)?;
            Some((*slot, point.waiters.remove(position).expect("there").tag))
        });
        assert_eq!(self.table.cancel(id), found);
    }

    fn pass(&mut self, slot: Slot, b: u8) {
        // As the shard asks first for most values.
        if b & 4 == 0
            && let Some(next) = self.table.clear_way(&slot)
        {
            let point = self.model.local(slot).expect("its way is clear");
            assert!(point.items.is_empty() && point.waiters.is_empty());
            assert_eq!(rank(next.get()), point.next);
            if b & 8 == 0 {
                next.give();
                point.next += 1;
                return;
            }
        }
        let value = self.fresh();
        let now = self.model.now;
        let got = self.table.pass(now, slot);
        let point = match self.model.local(slot) {
            Ok(point) => point,
            Err(refusal) => return assert_eq!(got, Err(refusal)),
        };
        let ordinal = point.next;
        point.next += 1;
        let ticket = match got.expect("taken") {
            Pass::Waiter {
                waiter,
                ordinal: given,
            } => {
                assert!(point.items.is_empty());
                let oldest = point.waiters.pop_front().expect("one waits");
                return assert_eq!((waiter, rank(given)), (oldest.tag, ordinal));
            }
            Pass::Clear(ticket) => {
                assert!(point.items.is_empty() && point.waiters.is_empty());
                if b.is_multiple_of(2) {
                    return assert_eq!(rank(ticket.ordinal()), ordinal, "pushed");
                }
                ticket
            }
            Pass::Behind(ticket) => {
                assert!(!point.items.is_empty());
                ticket
            }
        };
        assert_eq!(rank(ticket.ordinal()), ordinal);
        let bytes = u64::from(b % 16);
        let parked = self.table.park(now, ticket, value, bytes);
        let expected = self.model.may_park(slot, bytes);
        let point = self.model.points.get_mut(&slot).expect("a point");
        match expected {
            Ok(()) => point.items.push_back(Item {
                ordinal,
                since: now,
                body: Body::Value(value, bytes),
            }),
            Err(_) => point.next -= 1,
        }
        assert_eq!(
            parked,
            expected
                .map(|()| ordinal_of(ordinal))
                .map_err(|refusal| (refusal, value))
        );
    }

    fn request(&mut self, slot: Slot, ordinal: u32, deadline: Nanos) {
        let tag = self.fresh();
        let now = self.model.now;
        let got = (self.table).request(now, slot, ordinal_of(ordinal), tag, deadline);
        let point = match self.model.foreign(slot) {
            Ok(point) => point,
            Err(refusal) => return assert_eq!(got, Err(refusal)),
        };
        let front = point.items.front().copied();
        let expected = match front {
            Some(Item {
                body: Body::Offer(..),
                ..
            }) => Err(Refusal::Direction),
            Some(front) if ordinal < front.ordinal => Ok(Requested::AlreadySent),
            Some(Item {
                body: Body::Value(value, _),
                ordinal,
                ..
            }) => {
                point.items.pop_front();
                let ordinal = ordinal_of(ordinal);
                Ok(Requested::Ready { value, ordinal })
            }
            None if ordinal < point.next => Ok(Requested::AlreadySent),
            None => match (self.model.may_wait(slot), &got) {
                (Err(refusal), _) => Err(refusal),
                (Ok(()), Ok(Requested::Waiting { id })) => {
                    let waiter = Waiter {
                        id: *id,
                        tag,
                        deadline,
                        since: now,
                    };
                    self.model
                        .points
                        .get_mut(&slot)
                        .expect("a point")
                        .waiters
                        .push_back(waiter);
                    self.ids.push(*id);
                    Ok(Requested::Waiting { id: *id })
                }
                (Ok(()), _) => panic!("{got:?}, but it could wait"),
            },
        };
        assert_eq!(got, expected);
    }

    fn take_parked(&mut self, slot: Slot, b: u8) {
        let got = self.table.take_parked(slot);
        let point = self.model.points.get_mut(&slot);
        let front = point
            .as_ref()
            .and_then(|point| point.items.front().copied());
        let Some(Item {
            ordinal,
            body: Body::Value(value, bytes),
            ..
        }) = front
        else {
            return assert_eq!(got, None);
        };
        assert_eq!(got, Some((value, ordinal_of(ordinal), bytes)));
        let point = point.expect("a point");
        point.items.pop_front();
        let waits = point.items.is_empty() && !point.waiters.is_empty();
        if b.is_multiple_of(2) && !waits {
            // It could not go after all: back to the front.
            let now = self.model.now;
            assert_eq!(
                (self.table).put_back(now, slot, value, ordinal_of(ordinal), bytes),
                Ok(())
            );
            point.items.push_front(Item {
                ordinal,
                since: now,
                body: Body::Value(value, bytes),
            });
        }
    }

    fn end(&mut self, step: StepId, b: u8) {
        let mut out = Vec::new();
        let now = self.model.now;
        let mut take = |ended: Ended<u64, u64>| out.push(format!("{ended:?}"));
        let (ended, why) = if b.is_multiple_of(2) {
            let status = Status::new(Code::Aborted, "TEST", "first");
            (
                self.table.abort(now, step, &status, &mut take),
                Refusal::Aborted,
            )
        } else {
            (self.table.finish(now, step, &mut take), Refusal::Finished)
        };
        let (expected, all) = self.model.end(step, why);
        assert_eq!((ended, sorted(out)), (expected, sorted(all)));
    }

    fn fail_keys(&mut self, key: KeyId) {
        let mut out = Vec::new();
        self.table.fail_keys(|other| other == key, &mut |ended| {
            out.push(format!("{ended:?}"))
        });
        let slots: Vec<Slot> = self
            .model
            .points
            .keys()
            .filter(|slot| slot.key == key)
            .copied()
            .collect();
        let all = slots
            .into_iter()
            .flat_map(|slot| self.model.end_point(slot))
            .collect();
        assert_eq!(sorted(out), sorted(all));
    }

    fn advance(&mut self, nanos: u64) {
        self.model.now = self.model.now + nanos;
        let now = self.model.now;
        let mut out = Vec::new();
        self.table.expire(now, &mut |expired| {
            out.push(match expired {
                Expired::Waiter(slot, waiter) => format!("late {slot:?} {waiter}"),
                Expired::Unclaimed(ended) => format!("{ended:?}"),
            });
        });
        let mut expected = Vec::new();
        for (slot, point) in &mut self.model.points {
            let late = |waiter: &Waiter| waiter.deadline != Nanos::NEVER && waiter.deadline <= now;
            expected.extend(
                point
                    .waiters
                    .iter()
                    .filter(|w| late(w))
                    .map(|w| format!("late {slot:?} {}", w.tag)),
            );
            point.waiters.retain(|waiter| !late(waiter));
        }
        let mut over: Vec<(Nanos, StepId)> = Vec::new();
        for (id, step) in &self.model.steps {
            if let Step::Grace(since) = step
                && *since + LIMITS.grace_ttl_ns <= now
            {
                over.push((*since, *id));
            }
        }
        over.sort();
        // Steps of one instant may be buried in either order; the table's is the order in which it heard of them.
        over.dedup_by_key(|(since, _)| *since);
        for (_, step) in &over {
            expected.extend(self.model.end(*step, Refusal::Unclaimed).1);
        }
        assert_eq!(sorted(out), sorted(expected));
    }

    fn compare(&self) {
        let (model, stats) = (&self.model, self.table.stats());
        assert_eq!(stats.records as usize, model.points.len(), "records");
        assert_eq!(stats.values as usize, model.parked_count(), "values");
        assert_eq!(stats.waiters as usize, model.waiter_count(), "waiters");
        assert_eq!(
            stats.parked_bytes,
            model.items().map(|(_, item)| bytes_of(item)).sum::<u64>(),
            "bytes"
        );
        assert_eq!(
            stats.steps,
            model.count(|step| *step == Step::Live),
            "steps"
        );
        assert_eq!(
            stats.grace_steps,
            model.count(|step| matches!(step, Step::Grace(_))),
            "grace steps"
        );
        assert_eq!(
            stats.tombstones,
            model.count(|step| matches!(step, Step::Dead(_))),
            "tombstones"
        );
        for step in (0..7).map(StepId) {
            let reason = match model.steps.get(&step) {
                Some(Step::Dead(Refusal::Aborted)) => Some("TEST"),
                Some(Step::Dead(Refusal::Finished)) => Some("STEP_FINISHED"),
                Some(Step::Dead(_)) => Some("STEP_UNCLAIMED"),
                _ => None,
            };
            assert_eq!(
                self.table.status_of(step).map(|status| status.reason()),
                reason
            );
        }
        for key in (0..4).map(KeyId) {
            let is_used = model.points.keys().any(|slot| slot.key == key);
            assert_eq!(self.table.is_used(key), is_used, "{key:?}");
        }
        self.compare_pending();
        let earliest = self.table.poll_timeout();
        for waiter in model.points.values().flat_map(|point| &point.waiters) {
            assert!(
                waiter.deadline == Nanos::NEVER
                    || earliest.is_some_and(|time| time <= waiter.deadline)
            );
        }
    }

    fn compare_pending(&self) {
        let mut got: Vec<String> = Vec::new();
        self.table
            .pending(|pending| got.push(format!("{pending:?}")));
        self.table.waiting(|slot, id, tag, ordinal| {
            got.push(format!("{slot:?} {id:?} {tag} {}", rank(ordinal)))
        });
        let mut expected = Vec::new();
        for (&slot, point) in &self.model.points {
            if let Some(oldest) = point.waiters.front() {
                let count = point.waiters.len() as u32;
                let kind = PendingKind::Waiting;
                expected.push(format!(
                    "{:?}",
                    Pending {
                        slot,
                        kind,
                        count,
                        since: oldest.since,
                        bytes: 0
                    }
                ));
            }
            if let Some(oldest) = point.items.front() {
                let kind = match oldest.body {
                    Body::Value(..) => PendingKind::Parked,
                    Body::Offer(_, false) => PendingKind::Offered,
                    Body::Offer(_, true) => PendingKind::Fetching,
                };
                let bytes = point.items.iter().map(bytes_of).sum();
                let count = point.items.len() as u32;
                expected.push(format!(
                    "{:?}",
                    Pending {
                        slot,
                        kind,
                        count,
                        since: oldest.since,
                        bytes
                    }
                ));
            }
            let here = point.items.iter().map(|item| item.ordinal);
            for (waiter, ordinal) in point.waiters.iter().zip(here.chain(point.next..)) {
                expected.push(format!("{slot:?} {:?} {} {ordinal}", waiter.id, waiter.tag));
            }
        }
        assert_eq!(sorted(got), sorted(expected));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8 * ProptestConfig::default().cases, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// The table and the model never differ.
    #[test]
    fn the_table_does_what_the_model_does(operations in prop::collection::vec(any::<[u8; 4]>(), 1..300)) {
        let mut pair = Pair::new();
        for operation in operations {
            // Time moves a little between any two, so that no two grace steps are of one age.
            pair.model.now = pair.model.now + 1;
            pair.apply(operation);
        }
    }

    /// The same, crowded into one slot of one step: deep queues, many duplicates, offers among values.
    #[test]
    fn one_slot_does_what_the_model_does(operations in prop::collection::vec(any::<[u8; 3]>(), 1..200)) {
        let mut pair = Pair::new();
        for [kind, a, b] in operations {
            pair.model.now = pair.model.now + 1;
            let kind = if kind % 26 == 25 { 29 } else { kind % 26 };
            pair.apply([kind, 0, a / 3 * 3, b]);
        }
    }
}
