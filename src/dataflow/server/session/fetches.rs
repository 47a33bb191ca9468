//! Fetches: what a client asks for, where one output may be asked for several times.
//!
//! Knows the spellings of an output. A master is asked for each output once, as TensorFlow's is.

use std::collections::BTreeMap;

use crate::graph::parse_input;
use rendez::memory::Tensor;

/// What is fetched.
#[derive(Debug)]
pub(super) struct Fetches<'a> {
    /// Each output once, as it was first spelled.
    pub(super) distinct: Vec<&'a str>,
    /// For each that was asked for, its place among those; empty if nothing was asked for twice.
    pub(super) places: Vec<usize>,
}

impl<'a> Fetches<'a> {
    /// `x`, `x:0` and `x:00` are one output. What is no output's name is its own, and refused by the master.
    pub(super) fn of(asked: &[&'a str]) -> Self {
        let mut distinct = vec![];
        let mut known = BTreeMap::new();
        let places = asked.iter().map(|&text| {
            let output = parse_input(text).unwrap_or((text, None));
            *known.entry(output).or_insert_with(|| {
                distinct.push(text);
                distinct.len() - 1
            })
        });
        let mut places: Vec<usize> = places.collect();
        if distinct.len() == places.len() {
            places.clear();
        }
        Self { distinct, places }
    }

    /// What was fetched, as it was asked for.
    pub(super) fn spread(&self, fetched: Vec<Tensor>) -> Vec<Tensor> {
        spread(&self.places, fetched)
    }
}

/// `fetched` in the order of `places`; all of it as it is if that is empty.
pub(super) fn spread(places: &[usize], fetched: Vec<Tensor>) -> Vec<Tensor> {
    if places.is_empty() {
        return fetched;
    }
    let tensor = |&place: &usize| fetched.get(place).cloned();
    places.iter().filter_map(tensor).collect()
}
