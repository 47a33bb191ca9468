//! A ring: a queue of plain entries that loses any number of them at its front at the cost of one.
//!
//! Knows nothing of what its entries are.

/// The queue. It doubles when it is full.
#[derive(Debug)]
pub(super) struct Ring<T> {
    /// A power of two of places; those in use begin at `head`.
    places: Vec<T>,
    head: usize,
    len: usize,
}

impl<T: Copy> Ring<T> {
    /// An empty queue with room for so many, of which each place holds `blank` until it is used.
    pub(super) fn new(room: usize, blank: T) -> Self {
        Self {
            places: vec![blank; room.next_power_of_two()],
            head: 0,
            len: 0,
        }
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn push(&mut self, entry: T) {
        if self.len == self.places.len() {
            self.grow();
        }
        let place = self.place(self.len);
        self.places[place] = entry;
        self.len += 1;
    }

    /// Puts an entry before the one at a position.
    pub(super) fn insert(&mut self, at: usize, entry: T) {
        self.push(entry);
        for later in (at + 1..self.len).rev() {
            let (to, from) = (self.place(later), self.place(later - 1));
            self.places[to] = self.places[from];
        }
        let place = self.place(at);
        self.places[place] = entry;
    }

    #[inline]
    pub(super) fn at_mut(&mut self, at: usize) -> Option<&mut T> {
        if at >= self.len {
            return None;
        }
        let place = self.place(at);
        self.places.get_mut(place)
    }

    /// The first `count`, or all if there are fewer.
    pub(super) fn first(&self, count: usize) -> impl Iterator<Item = &T> {
        (0..count.min(self.len)).map(|at| &self.places[self.place(at)])
    }

    /// Drops the first `count`, or all if there are fewer.
    #[inline]
    pub(super) fn drop_first(&mut self, count: usize) {
        let count = count.min(self.len);
        self.head = self.place(count);
        self.len -= count;
    }

    #[inline]
    const fn place(&self, at: usize) -> usize {
        // The places are a power of two: what is beyond the last comes round.
        (self.head + at) & (self.places.len() - 1)
    }

    #[cold]
    fn grow(&mut self) {
        let count = self.places.len();
        self.places.rotate_left(self.head);
        self.head = 0;
        self.places.extend_from_within(0..count);
    }
}

#[cfg(test)]
mod tests;
