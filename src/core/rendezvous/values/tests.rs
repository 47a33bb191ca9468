//! Tests of the queues against deques.

use std::collections::VecDeque;

use super::{Item, Values};
use crate::ground::Nanos;
use crate::ground::rng::Rng;
use crate::rendezvous::slab::List;

/// What a model's item is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Value { bytes: u64 },
    Offer { token: u64, wanted: bool },
}

/// What it is, its ordinal, which is its value too, and since when it stands there.
type Entry = (Kind, u32, Nanos);

fn kind_of(item: &Item<u32>) -> Kind {
    match item.token() {
        None => Kind::Value {
            bytes: item.bytes(),
        },
        Some(token) => {
            assert_eq!(item.bytes(), 0);
            Kind::Offer {
                token,
                wanted: item.is_wanted(),
            }
        }
    }
}

#[test]
fn a_queue_does_what_a_deque_does() {
    let mut rng = Rng::new(5);
    let mut values = Values::new(2).unwrap();
    let mut queues = [List::EMPTY; 2];
    let mut models: [VecDeque<Entry>; 2] = Default::default();
    for ordinal in 0..20_000_u32 {
        let which = rng.below(2) as usize;
        let (queue, model) = (&mut queues[which], &mut models[which]);
        let position = rng.below(model.len() as u64 + 2) as usize;
        let place = values.each(*queue).nth(position).map(|(at, _)| at);
        let (word, now) = (rng.below(9), Nanos(u64::from(ordinal)));
        let (value, offer) = (
            Kind::Value { bytes: word },
            Kind::Offer {
                token: word,
                wanted: false,
            },
        );
        match (rng.below(6), place) {
            (0, _) => {
                values.insert(queue, place, Item::value(ordinal, word, ordinal), now);
                model.insert(position.min(model.len()), (value, ordinal, now));
            }
            (1, _) => {
                values.insert(queue, place, Item::offer(word, false, ordinal), now);
                model.insert(position.min(model.len()), (offer, ordinal, now));
            }
            (2, _) => {
                if let Some((kind, ordinal, _)) = model.pop_front() {
                    let front = queue.head();
                    values.unlink(queue, front);
                    let is_value = matches!(kind, Kind::Value { .. });
                    assert_eq!(values.take(front), is_value.then_some(ordinal));
                }
            }
            (3, Some(at)) => {
                let (kind, ordinal, _) = model.remove(position).unwrap();
                let item = values.get(at).unwrap();
                assert_eq!((kind_of(item), item.ordinal()), (kind, ordinal));
                values.unlink(queue, at);
                values.take(at);
            }
            (4, Some(at)) => {
                let expected = match &mut model[position].0 {
                    Kind::Offer {
                        token,
                        wanted: wanted @ false,
                    } => {
                        *wanted = true;
                        Some(*token)
                    }
                    _ => None,
                };
                assert_eq!(values.want(at), expected);
            }
            (_, Some(at)) if matches!(model[position].0, Kind::Offer { .. }) => {
                values.supply(at, model[position].1, word, now);
                (model[position].0, model[position].2) = (value, now);
            }
            _ => {}
        }
        let (queue, model) = (queues[which], &models[which]);
        let all: VecDeque<Entry> = values
            .each(queue)
            .map(|(at, item)| (kind_of(item), item.ordinal(), values.since(at)))
            .collect();
        assert_eq!((&all, queue.len() as usize), (model, model.len()));
        let front = values.get(queue.head()).map(Item::ordinal);
        assert_eq!(front, model.front().map(|(_, ordinal, _)| *ordinal));
    }
}
