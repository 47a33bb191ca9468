//! Tests of interning against a model that is a plain list with a hand.

use proptest::prelude::*;

use super::{Given, Learned, Rules};
use crate::ground::limits::INTERNED_KEYS;
use crate::rendezvous::KeyId;
use crate::wire::Ticket;

/// Keys by their numbers' indexes, each with whether it was used since the hand came by; and the hand.
struct Model {
    keys: Vec<(u32, bool)>,
    hand: usize,
    limit: usize,
}

impl Model {
    fn use_key(&mut self, key: u32) -> bool {
        let known = self.keys.iter_mut().find(|(other, _)| *other == key);
        known.is_some_and(|(_, is_used)| {
            *is_used = true;
            true
        })
    }

    /// The key whose number another one gets.
    fn give(&mut self, key: u32) -> Option<u32> {
        if self.keys.len() < self.limit {
            self.keys.push((key, false));
            return None;
        }
        while self.keys[self.hand].1 {
            self.keys[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.limit;
        }
        let (former, _) = std::mem::replace(&mut self.keys[self.hand], (key, false));
        self.hand = (self.hand + 1) % self.limit;
        Some(former)
    }
}

proptest! {
    #[test]
    fn who_was_used_since_the_hand_came_by_is_passed_over(
        limit in 1..6_usize,
        uses in prop::collection::vec(0..9_u32, 0..200),
    ) {
        let mut given = Given::new(limit);
        let mut learned = Learned::new(Rules::ALL);
        let mut model = Model { keys: vec![], hand: 0, limit };
        for key in uses {
            let number = given.number(KeyId(key));
            prop_assert_eq!(number.is_some(), model.use_key(key));
            if number.is_none() {
                let number = given.give(KeyId(key));
                let former = model.give(key);
                prop_assert_eq!(learned.learn(number, KeyId(key)), Ok(former.map(KeyId)));
            }
            for (at, &(known, _)) in model.keys.iter().enumerate() {
                let number = Ticket::unpack(given.by_key[known as usize].packed);
                prop_assert_eq!(number.index as usize, at);
                prop_assert_eq!(learned.key(number), Some(KeyId(known)));
            }
        }
        for key in 0..9 {
            let is_known = model.keys.iter().any(|&(other, _)| other == key);
            prop_assert_eq!(learned.has(KeyId(key)), is_known);
        }
    }

    #[test]
    fn numbers_that_were_taken_back_are_given_first(
        limit in 1..6_usize,
        uses in prop::collection::vec((0..9_u32, prop::bool::ANY), 0..200),
    ) {
        let mut given = Given::new(limit);
        let mut learned = Learned::new(Rules::ALL);
        let mut known: Vec<u32> = vec![];
        let mut most = 0;
        for (key, comes) in uses {
            known.retain(|&other| other != key);
            if comes {
                if given.number(KeyId(key)).is_none() {
                    let is_full = known.len() == limit;
                    let number = given.give(KeyId(key));
                    let former = learned.learn(number, KeyId(key)).expect("within the bound");
                    prop_assert_eq!(former.is_some(), is_full);
                    known.retain(|&other| former != Some(KeyId(other)));
                }
                known.push(key);
                most = most.max(known.len());
            } else if let Some(number) = given.take_back(KeyId(key)) {
                learned.unlearn(number);
            }
            prop_assert!(given.slots.len() <= most);
            for key in 0..9 {
                prop_assert_eq!(learned.has(KeyId(key)), known.contains(&key));
            }
            for &key in &known {
                let number = given.number(KeyId(key)).expect("it is known");
                prop_assert_eq!(learned.key(number), Some(KeyId(key)));
            }
        }
    }
}

#[test]
fn a_number_of_an_earlier_key_means_nothing() {
    let mut given = Given::new(1);
    let mut learned = Learned::new(Rules::ALL);
    let old = given.give(KeyId(0));
    learned.learn(old, KeyId(0)).expect("within the bound");
    let new = given.give(KeyId(1));
    learned.learn(new, KeyId(1)).expect("within the bound");
    assert_eq!((new.index, new.generation), (old.index, old.generation + 1));
    assert_eq!((learned.key(old), learned.key(new)), (None, Some(KeyId(1))));
}

#[test]
fn generations_wrap_within_a_ticket() {
    let mut given = Given::new(1);
    for key in 0..(1 << Ticket::GENERATION_BITS) + 2 {
        let number = given.give(KeyId(key));
        assert_eq!(Ticket::unpack(number.packed()), number);
        assert_eq!(given.number(KeyId(key)), Some(number));
    }
}

#[test]
fn a_cleared_table_knows_nothing() {
    let mut given = Given::new(3);
    let mut learned = Learned::new(Rules::ALL);
    let number = given.give(KeyId(5));
    learned.learn(number, KeyId(5)).expect("within the bound");
    given.clear();
    learned.clear();
    assert_eq!((given.number(KeyId(5)), learned.key(number)), (None, None));
    assert!(!learned.has(KeyId(5)));
    assert_eq!(given.give(KeyId(6)), number, "numbers start anew");
}

#[test]
fn a_peer_cannot_make_the_table_grow_beyond_its_bound() {
    let mut learned = Learned::new(Rules::ALL);
    let beyond = Ticket {
        index: INTERNED_KEYS as u32,
        generation: 0,
    };
    assert_eq!(learned.learn(beyond, KeyId(0)), Err(()));
    assert_eq!(learned.key(beyond), None);
}
