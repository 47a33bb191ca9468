//! Free pages: which runs of an arena's pages are free, and the run to give out next.
//!
//! Knows numbers only: a page is an index, and nothing here touches memory. No unsafe.
//!
//! Two-level segregated fit (Masmano, Ripoll, Crespo, Real: "TLSF: a new dynamic memory allocator for real-time
//! systems", ECRTS 2004), over pages instead of bytes and with its tags in a table of its own instead of in the
//! memory it manages, because that memory is shared with other processes. Taking a run and giving it back cost a few
//! dozen instructions however many runs there are; a run is split to the page, so the tail goes straight back.
//!
//! ```text
//!   page:   0    1    2    3    4    5    6    7
//!          wall [  used 2 ][   free 3     ] used 1   wall        a run's first and last entry hold its length,
//!                          ▲ head       ▲ tail                   so both neighbours can be found and merged with
//! ```
//!
//! Each segment's pages stand between two walls (entries that are never free), so that runs of two segments never
//! merge although all of them share one table.

/// Bytes of one page of an arena: what the large blocks are rounded to. Four pages of the machine: a buffer a little
/// over 64 KiB loses at most a fifth to rounding, and a 64 MiB segment needs a table of only 4096 entries.
pub(crate) const PAGE_BYTES: usize = 16 << 10;

/// A place in a table: a page's number, a wall, or [`NONE`].
pub(crate) type PageIndex = u32;

/// No page.
pub(crate) const NONE: PageIndex = u32::MAX;

/// Second-level lists per power of two. Runs of fewer than this many pages have a list for each length.
const STEPS: u32 = 8;
const STEPS_LOG2: u32 = STEPS.trailing_zeros();
/// Runs that are looked at for the longest: who asks has been refused, and others may be next.
const LOOKED_AT: u32 = 64;
/// First-level rows: lengths below `STEPS`, then one row for each further power of two a `u32` can hold.
const ROWS: usize = (32 - STEPS_LOG2) as usize + 1;

/// One entry of the table. Only a run's first and last entries mean anything.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Pages of the run this is the first or last entry of.
    count: u32,
    /// Neighbours in the free list; first entries of free runs only.
    prev: PageIndex,
    next: PageIndex,
    free: bool,
}

/// The free runs of all of an arena's segments.
#[derive(Debug)]
pub(crate) struct Pages {
    table: Vec<Entry>,
    heads: [[PageIndex; STEPS as usize]; ROWS],
    /// Which rows have a list that is not empty, and which lists of each row are not.
    rows: u32,
    lists: [u8; ROWS],
    free: u64,
}

impl Pages {
    /// A table of no pages.
    pub(crate) const fn new() -> Self {
        Self {
            table: Vec::new(),
            heads: [[NONE; STEPS as usize]; ROWS],
            rows: 0,
            lists: [0; ROWS],
            free: 0,
        }
    }

    /// Adds a segment of `count` pages, all free, and tells the index of its first; `None` if the table is full.
    pub(crate) fn add(&mut self, count: u32) -> Option<PageIndex> {
        // A first wall once, then one wall behind each segment.
        let walls = if self.table.is_empty() { 2 } else { 1 };
        let end = u32::try_from(self.table.len())
            .ok()?
            .checked_add(count)?
            .checked_add(walls)?;
        if end == NONE || count == 0 {
            return None;
        }
        let first = end - 1 - count;
        self.table.resize(end as usize, Entry::default());
        self.insert(first, count);
        self.free += u64::from(count);
        Some(first)
    }

    /// Takes a run of exactly `count` pages.
    pub(crate) fn take(&mut self, count: u32) -> Option<PageIndex> {
        debug_assert!(count > 0, "a run has a page");
        let first = self.find(count)?;
        let found = self.table[first as usize].count;
        self.unlink(first);
        if found > count {
            self.insert(first + count, found - count);
        }
        self.mark(first, count, false);
        self.free -= u64::from(count);
        Some(first)
    }

    /// Keeps `count` pages of the run that starts at `first`, from the one `skip` pages on, gives back those around
    /// them, and tells the first of those that are kept.
    pub(crate) fn cut(&mut self, first: PageIndex, skip: u32, count: u32) -> PageIndex {
        let total = self.table[first as usize].count;
        debug_assert!(count > 0 && skip + count <= total, "within the run");
        let kept = first + skip;
        // All are marked before one is given back: `give` looks at its neighbours.
        self.mark(kept, count, false);
        let behind = total - skip - count;
        if behind > 0 {
            self.mark(kept + count, behind, false);
            self.give(kept + count);
        }
        if skip > 0 {
            self.mark(first, skip, false);
            self.give(first);
        }
        kept
    }

    /// Gives back the run that starts at `first`, and tells how many pages it had.
    pub(crate) fn give(&mut self, first: PageIndex) -> u32 {
        let count = self.table[first as usize].count;
        debug_assert!(
            count > 0 && !self.table[first as usize].free,
            "a run is given back once"
        );
        let (mut start, mut total) = (first, count);
        let behind = self.table[(first + count) as usize];
        if behind.free {
            self.unlink(first + count);
            total += behind.count;
        }
        let before = self.table[(first - 1) as usize];
        if before.free {
            start -= before.count;
            self.unlink(start);
            total += before.count;
        }
        self.insert(start, total);
        self.free += u64::from(count);
        count
    }

    /// Free pages.
    #[cfg(test)]
    pub(crate) const fn free(&self) -> u64 {
        self.free
    }

    /// Pages of the longest free run, as far as a look at a few of the longest tells.
    pub(crate) fn longest(&self) -> u32 {
        let Some(row) = self.rows.checked_ilog2() else {
            return 0;
        };
        let step = self.lists[row as usize].ilog2();
        let mut at = self.heads[row as usize][step as usize];
        let mut longest = 0;
        for _ in 0..LOOKED_AT {
            if at == NONE {
                break;
            }
            longest = longest.max(self.table[at as usize].count);
            at = self.table[at as usize].next;
        }
        longest
    }

    /// A free run of `count` pages or more.
    fn find(&self, count: u32) -> Option<PageIndex> {
        // Any run of the next list up is long enough, whichever it is: no search.
        let (row, step) = list_of(round_up(count)?);
        let above = self.lists[row] & (!0u8).checked_shl(step as u32).unwrap_or(0);
        if above != 0 {
            return Some(self.heads[row][above.trailing_zeros() as usize]);
        }
        let rows = self.rows & (!0u32).checked_shl(row as u32 + 1).unwrap_or(0);
        if rows != 0 {
            let row = rows.trailing_zeros() as usize;
            return Some(self.heads[row][self.lists[row].trailing_zeros() as usize]);
        }
        // Before an arena is called full: its own list may hold a run that is long enough among shorter ones.
        let (row, step) = list_of(count);
        let mut at = self.heads[row][step];
        while at != NONE && self.table[at as usize].count < count {
            at = self.table[at as usize].next;
        }
        (at != NONE).then_some(at)
    }

    fn insert(&mut self, first: PageIndex, count: u32) {
        self.mark(first, count, true);
        let (row, step) = list_of(count);
        let head = self.heads[row][step];
        let entry = &mut self.table[first as usize];
        entry.prev = NONE;
        entry.next = head;
        if head != NONE {
            self.table[head as usize].prev = first;
        }
        self.heads[row][step] = first;
        self.lists[row] |= 1 << step;
        self.rows |= 1 << row;
    }

    fn unlink(&mut self, first: PageIndex) {
        let Entry {
            count, prev, next, ..
        } = self.table[first as usize];
        let (row, step) = list_of(count);
        if next != NONE {
            self.table[next as usize].prev = prev;
        }
        if prev != NONE {
            self.table[prev as usize].next = next;
            return;
        }
        self.heads[row][step] = next;
        if next == NONE {
            self.lists[row] &= !(1 << step);
            if self.lists[row] == 0 {
                self.rows &= !(1 << row);
            }
        }
    }

    /// Writes a run's length and state at both its ends.
    fn mark(&mut self, first: PageIndex, count: u32, free: bool) {
        for at in [first, first + count - 1] {
            let entry = &mut self.table[at as usize];
            entry.count = count;
            entry.free = free;
        }
    }
}

/// The list of runs of `count` pages: a row by the power of two, a list within it by the next three bits.
const fn list_of(count: u32) -> (usize, usize) {
    if count < STEPS {
        return (0, count as usize);
    }
    let log2 = count.ilog2();
    let row = (log2 - STEPS_LOG2 + 1) as usize;
    (row, ((count >> (log2 - STEPS_LOG2)) & (STEPS - 1)) as usize)
}

/// The smallest length of which the whole list, and every list above it, is at least `count` long.
const fn round_up(count: u32) -> Option<u32> {
    if count < STEPS {
        return Some(count);
    }
    count.checked_add((1 << (count.ilog2() - STEPS_LOG2)) - 1)
}

#[cfg(test)]
mod tests;
