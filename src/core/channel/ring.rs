//! A ring: a queue of plain entries, each with a sequence number, that drops any number at its front at the cost of
//! one.
//!
//! Knows nothing of what its entries mean.

/// The queue. It doubles when it is full.
#[derive(Debug)]
pub(super) struct Ring<T> {
    /// A power of two of places; an entry lies in the place of its sequence number's low bits.
    places: Vec<T>,
    first: u64,
    end: u64,
    /// How many entries were moved.
    #[cfg(test)]
    pub(super) moves: std::cell::Cell<u64>,
}

impl<T: Copy> Ring<T> {
    /// An empty queue with room for so many, of which each place holds `blank` until it is used.
    pub(super) fn new(room: usize, blank: T) -> Self {
        Self {
            places: vec![blank; room.next_power_of_two()],
            first: 0,
            end: 0,
            #[cfg(test)]
            moves: std::cell::Cell::default(),
        }
    }

    /// The number of the first entry: how many have been dropped.
    #[inline]
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next entry gets.
    #[inline]
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        (self.end - self.first) as usize
    }

    #[inline(always)]
    pub(super) fn push(&mut self, entry: &T) -> &mut T {
        if self.len() == self.places.len() {
            self.grow();
        }
        let place = self.place(self.end);
        self.end += 1;
        let place = &mut self.places[place];
        *place = *entry;
        place
    }

    /// Makes places for so many more at the end; what stands there has no meaning.
    pub(super) fn extend(&mut self, count: usize) {
        while self.len() + count > self.places.len() {
            self.grow();
        }
        self.end += count as u64;
    }

    /// Drops so many at the end.
    pub(super) const fn shorten(&mut self, count: usize) {
        self.end -= count as u64;
        debug_assert!(self.first <= self.end, "more than there are");
    }

    /// Puts an entry in the place of another.
    pub(super) fn copy(&mut self, from: u64, to: u64) {
        #[cfg(test)]
        self.moves.set(self.moves.get() + 1);
        let (from, to) = (self.place(from), self.place(to));
        self.places[to] = self.places[from];
    }

    #[inline]
    pub(super) fn at(&self, at: u64) -> Option<&T> {
        if at.wrapping_sub(self.first) >= self.end - self.first {
            return None;
        }
        self.places.get(self.place(at))
    }

    pub(super) fn at_mut(&mut self, at: u64) -> Option<&mut T> {
        self.at(at)?;
        let place = self.place(at);
        self.places.get_mut(place)
    }

    /// All, or the first `count` if there are more.
    pub(super) fn first_of(&self, count: usize) -> impl Iterator<Item = &T> {
        let end = self.end.min(self.first.saturating_add(count as u64));
        (self.first..end).map(|at| &self.places[self.place(at)])
    }

    /// Drops the first `count`, which are there.
    #[inline]
    pub(super) const fn drop_first(&mut self, count: usize) {
        self.first += count as u64;
        debug_assert!(self.first <= self.end, "more than there are");
    }

    /// Drops all, at the end instead of the front: the next entry has the number that the first one had.
    pub(super) const fn truncate(&mut self) {
        self.end = self.first;
    }

    /// Empties it; numbers begin at zero again.
    pub(super) const fn clear(&mut self) {
        (self.first, self.end) = (0, 0);
    }

    #[inline]
    const fn place(&self, at: u64) -> usize {
        // The places are a power of two: what is beyond the last comes round.
        at as usize & (self.places.len() - 1)
    }

    #[cold]
    fn grow(&mut self) {
        let count = self.places.len();
        // An entry's place by one more bit is the same one, or that of its copy.
        self.places.extend_from_within(0..count);
    }
}

#[cfg(test)]
mod tests;
