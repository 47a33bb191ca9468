//! Tests of places and lists against a deque.

use std::collections::VecDeque;

use super::{List, RecordSlab};
use crate::ground::rng::Rng;

#[test]
fn a_list_does_what_a_deque_does() {
    let mut rng = Rng::new(1);
    let mut slab = RecordSlab::with_capacity(4).unwrap();
    let mut lists = [List::EMPTY; 2];
    let mut models: [VecDeque<(u32, u64)>; 2] = Default::default();
    for number in 0..20_000 {
        let which = rng.below(2) as usize;
        let (list, model) = (&mut lists[which], &mut models[which]);
        let position = rng.below(model.len() as u64 + 1) as usize;
        if rng.below(20) < 10 - model.len().min(9) as u64 {
            let at = slab.put(number);
            slab.insert(list, model.get(position).map(|(at, _)| *at), at);
            model.insert(position, (at, number));
        } else if let Some((at, _)) = model.remove(position) {
            slab.remove(list, at);
        }
        let all: VecDeque<_> = slab.each(*list).map(|(at, entry)| (at, *entry)).collect();
        assert_eq!((&all, list.len() as usize), (&*model, model.len()));
        assert_eq!(slab.get(list.head()), model.front().map(|(_, entry)| entry));
    }
    let places = slab.numbers();
    assert!(places.len() < 40, "places are used again: {places:?}");
}

#[test]
fn the_place_freed_last_is_used_first() {
    let mut slab = RecordSlab::new();
    let [a, b, c] = ["a", "b", "c"].map(|entry| slab.put(entry));
    slab.free(a);
    slab.free(c);
    slab.free(b);
    assert_eq!(["d", "e", "f"].map(|entry| slab.put(entry)), [b, c, a]);
    assert_eq!((slab[b], slab[a]), ("d", "f"));
}
