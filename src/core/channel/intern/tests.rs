//! Tests of interning against a model that is a plain list, newest last.

use proptest::prelude::*;

use super::{Given, Learned, Rules};
use crate::ground::limits::INTERNED_KEYS;
use crate::rendezvous::KeyId;
use crate::wire::Ticket;

proptest! {
    #[test]
    fn the_oldest_goes_first(limit in 1..6_usize, uses in prop::collection::vec(0..9_u32, 0..200)) {
        let mut given = Given::new(limit);
        let mut learned = Learned::new(Rules::ALL);
        let mut newest_last: Vec<u32> = vec![];
        for key in uses {
            let number = given.number(KeyId(key));
            prop_assert_eq!(number.is_some(), newest_last.contains(&key));
            newest_last.retain(|&other| other != key);
            if number.is_none() {
                let evicted = (newest_last.len() == limit).then(|| newest_last.remove(0));
                let number = given.give(KeyId(key));
                prop_assert_eq!(learned.learn(number, KeyId(key)), Ok(evicted.map(KeyId)));
            }
            newest_last.push(key);
            for &known in &newest_last {
                // The model is not disturbed by looking: it is looked at in its own order.
                let number = given.number(KeyId(known)).expect("it is within the bound");
                prop_assert_eq!(learned.key(number), Some(KeyId(known)));
            }
        }
        for key in 0..9 {
            prop_assert_eq!(learned.has(KeyId(key)), newest_last.contains(&key));
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
                    if known.len() == limit {
                        known.remove(0);
                    }
                    let number = given.give(KeyId(key));
                    learned.learn(number, KeyId(key)).expect("within the bound");
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
