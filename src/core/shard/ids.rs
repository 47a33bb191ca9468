//! Ids: the numbers of a shard's links, peers and in-shard tasks, and the rows that they number.
//!
//! Each is a type of its own, so that none is taken for another, and a row is found by its own id alone.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// What numbers the rows of one kind.
pub(crate) trait Id: Copy {
    fn of_row(row: usize) -> Self;
    fn row(self) -> usize;
}

/// A link: the channel to one shard of a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LinkId(u32);

/// No link: the value is local, or has not been given to one.
pub(crate) const NO_LINK: LinkId = LinkId(u32::MAX);

/// A task we share keys with, as this shard knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PeerId(u32);

/// An in-shard task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TaskId(u32);

macro_rules! id {
    ($name:ident) => {
        impl Id for $name {
            #[inline]
            fn of_row(row: usize) -> Self {
                Self(row as u32)
            }

            #[inline]
            fn row(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(LinkId);
id!(PeerId);
id!(TaskId);

/// Those that travel in words with other parts.
macro_rules! word {
    ($name:ident) => {
        impl $name {
            /// As [`Self::number`] said it.
            pub(crate) const fn from_number(number: u32) -> Self {
                Self(number)
            }

            pub(crate) const fn number(self) -> u32 {
                self.0
            }
        }
    };
}

word!(LinkId);
word!(TaskId);

/// Rows that are added and stay, each under its id.
#[derive(Debug)]
pub(crate) struct Rows<I, T> {
    rows: Vec<T>,
    ids: PhantomData<I>,
}

impl<I, T> Default for Rows<I, T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            ids: PhantomData,
        }
    }
}

impl<I: Id, T> Rows<I, T> {
    /// Adds a row.
    pub(crate) fn push(&mut self, row: T) -> I {
        self.rows.push(row);
        I::of_row(self.rows.len() - 1)
    }

    #[inline]
    pub(crate) fn at(&self, id: I) -> Option<&T> {
        self.rows.get(id.row())
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, id: I) -> Option<&mut T> {
        self.rows.get_mut(id.row())
    }

    pub(crate) const fn len(&self) -> usize {
        self.rows.len()
    }

    /// The first row that is so.
    pub(crate) fn position(&self, is_it: impl FnMut(&T) -> bool) -> Option<I> {
        self.rows.iter().position(is_it).map(I::of_row)
    }

    /// Every id there is now; it holds no borrow.
    pub(crate) fn ids(&self) -> impl Iterator<Item = I> + use<I, T> {
        (0..self.rows.len()).map(I::of_row)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.rows.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.rows.iter_mut()
    }
}

impl<I: Id, T> Index<I> for Rows<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, id: I) -> &T {
        &self.rows[id.row()]
    }
}

impl<I: Id, T> IndexMut<I> for Rows<I, T> {
    #[inline]
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.rows[id.row()]
    }
}

impl<'a, I, T> IntoIterator for &'a Rows<I, T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}

impl<'a, I, T> IntoIterator for &'a mut Rows<I, T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter_mut()
    }
}
