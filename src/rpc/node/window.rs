//! A map of calls by their numbers. Numbers ascend, most calls end in the order in which they began, and few are under
//! way at once: so those of the newest numbers stand in a row, and only what is left behind is looked up in a tree.

use std::collections::{BTreeMap, VecDeque};

use crate::id::CallId;

/// Numbers that stand in the row at most; more than that, and those left behind move into the tree.
const ROW_MAX: usize = 1024;
/// Numbers that may be skipped in the row: a peer chooses the numbers of its calls.
const GAP_MAX: u64 = 64;
/// The row ends here, before there is no next number.
const ROW_END: u64 = u64::MAX - 1;

/// See the module.
#[derive(Debug)]
pub(super) struct Window<V> {
    /// The number of the first place of the row, which is not empty, if there is one.
    first: u64,
    row: VecDeque<Option<V>>,
    others: BTreeMap<CallId, V>,
    len: usize,
}

impl<V> Default for Window<V> {
    fn default() -> Self {
        Self {
            first: 0,
            row: VecDeque::new(),
            others: BTreeMap::new(),
            len: 0,
        }
    }
}

impl<V> Window<V> {
    /// How many there are.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn place(&self, id: CallId) -> Option<usize> {
        let place = usize::try_from(id.0.checked_sub(self.first)?).ok()?;
        self.row.get(place)?.as_ref().map(|_| place)
    }

    pub(super) fn at(&self, id: CallId) -> Option<&V> {
        match self.place(id) {
            Some(place) => self.row[place].as_ref(),
            None if self.others.is_empty() => None,
            None => self.others.get(&id),
        }
    }

    pub(super) fn at_mut(&mut self, id: CallId) -> Option<&mut V> {
        match self.place(id) {
            Some(place) => self.row[place].as_mut(),
            None if self.others.is_empty() => None,
            None => self.others.get_mut(&id),
        }
    }

    /// Puts one in; the one of that number that was there comes back.
    pub(super) fn insert(&mut self, id: CallId, value: V) -> Option<V> {
        if let Some(there) = self.at_mut(id) {
            return Some(std::mem::replace(there, value));
        }
        self.len += 1;
        if self.row.is_empty() {
            self.first = id.0;
        }
        let end = self.first.saturating_add(self.row.len() as u64);
        if id.0 < self.first || id.0 >= ROW_END || id.0 > end.saturating_add(GAP_MAX) {
            self.others.insert(id, value);
        } else if id.0 < end {
            self.row[(id.0 - self.first) as usize] = Some(value);
        } else {
            (end..id.0).for_each(|_| self.row.push_back(None));
            self.row.push_back(Some(value));
            self.shorten();
        }
        None
    }

    /// What was left behind moves into the tree.
    fn shorten(&mut self) {
        while self.row.len() > ROW_MAX {
            if let Some(Some(value)) = self.row.pop_front() {
                self.others.insert(CallId(self.first), value);
            }
            self.first += 1;
            self.trim();
        }
    }

    /// The row begins with one that is there.
    fn trim(&mut self) {
        while let Some(None) = self.row.front() {
            self.row.pop_front();
            self.first += 1;
        }
    }

    pub(super) fn remove(&mut self, id: CallId) -> Option<V> {
        let removed = match self.place(id) {
            Some(place) => self.row[place].take(),
            None if self.others.is_empty() => None,
            None => self.others.remove(&id),
        };
        if removed.is_some() {
            self.len -= 1;
            self.trim();
        }
        removed
    }

    /// The lowest number.
    pub(super) fn first(&self) -> Option<CallId> {
        let other = self.others.keys().next().copied();
        let row = (!self.row.is_empty()).then_some(CallId(self.first));
        other.into_iter().chain(row).min()
    }

    /// All of them: those left behind first, each part in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (CallId, &V)> {
        let others = self.others.iter().map(|(&id, value)| (id, value));
        let row = numbered(self.first, self.row.iter());
        others.chain(row.filter_map(|(id, value)| Some((CallId(id), value.as_ref()?))))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let row = self.row.iter_mut().filter_map(Option::as_mut);
        self.others.values_mut().chain(row)
    }

    /// Takes all, in the order of their numbers.
    pub(super) fn take_all(&mut self) -> Vec<(CallId, V)> {
        let Self {
            first, row, others, ..
        } = std::mem::take(self);
        let row = numbered(first, row);
        let row = row.filter_map(|(id, value)| Some((CallId(id), value?)));
        let mut all: Vec<_> = others.into_iter().chain(row).collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }
}

/// Those of a row, with their numbers. The last number of all has none after it.
fn numbered<T>(first: u64, row: impl IntoIterator<Item = T>) -> impl Iterator<Item = (u64, T)> {
    let rows = row.into_iter().enumerate();
    rows.map(move |(at, value)| (first.wrapping_add(at as u64), value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Act {
        Insert(u64),
        Remove(u64),
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let near = 0..200_u64;
        let far = prop_oneof![Just(u64::MAX), Just(u64::MAX - 1), 0..5000_u64];
        let id = prop_oneof![8 => near, 1 => far];
        let act = (id, any::<bool>()).prop_map(|(id, inserts)| match inserts {
            true => Act::Insert(id),
            false => Act::Remove(id),
        });
        prop::collection::vec(act, 0..400)
    }

    fn same(window: &Window<u64>, model: &BTreeMap<CallId, u64>) {
        assert_eq!(window.len(), model.len());
        assert_eq!(window.is_empty(), model.is_empty());
        assert_eq!(window.first(), model.keys().next().copied());
        let mut all: Vec<_> = window.iter().map(|(id, &value)| (id, value)).collect();
        all.sort();
        assert!(
            all.iter()
                .copied()
                .eq(model.iter().map(|(&id, &value)| (id, value)))
        );
        assert!(
            model
                .iter()
                .all(|(&id, value)| window.at(id) == Some(value))
        );
    }

    proptest! {
        #[test]
        fn it_is_a_map(acts in acts()) {
            let (mut window, mut model) = (Window::default(), BTreeMap::new());
            for (value, act) in (0..).zip(acts) {
                match act {
                    Act::Insert(id) => {
                        prop_assert_eq!(window.insert(CallId(id), value), model.insert(CallId(id), value));
                    }
                    Act::Remove(id) => {
                        prop_assert_eq!(window.remove(CallId(id)), model.remove(&CallId(id)));
                    }
                }
                same(&window, &model);
            }
            prop_assert!(window.take_all().into_iter().eq(model));
        }
    }

    #[test]
    fn one_that_is_left_behind_holds_no_row() {
        let mut window = Window::default();
        window.insert(CallId(1), 1);
        for id in 2..100_000 {
            window.insert(CallId(id), id);
            if id > 2 {
                window.remove(CallId(id - 1));
            }
        }
        assert!(window.row.len() <= ROW_MAX && window.others.len() <= 1);
        assert_eq!((window.len(), window.first()), (2, Some(CallId(1))));
    }
}
