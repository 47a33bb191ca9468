//! Link timers: the links that want to be called at a time, in the order of those times.
//!
//! A link stands here once, with a time that is not later than the one it wants now, unless it wants to be called at
//! once, and then it is called without this. That time moves on whenever the link says what it owed, and is asked for
//! only when the link is the first here. So it may move at no cost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use super::ids::LinkId;
use crate::ground::Nanos;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LinkTimers(BinaryHeap<Reverse<(Nanos, LinkId)>>);

impl LinkTimers {
    /// A link that does not stand here wants to be called then, or later.
    pub(super) fn note(&mut self, link: LinkId, at: Nanos) {
        self.0.push(Reverse((at, link)));
    }

    /// The link that wants to be called first, and when. `wanted` says what a link wants now; one that wants nothing
    /// does not stand here any more.
    pub(super) fn first(
        &mut self,
        mut wanted: impl FnMut(LinkId) -> Nanos,
    ) -> Option<(Nanos, LinkId)> {
        while let Some(mut first) = self.0.peek_mut() {
            let Reverse((noted, link)) = *first;
            let at = wanted(link);
            if at == noted {
                return Some((at, link));
            }
            if at == Nanos::NEVER {
                PeekMut::pop(first);
            } else {
                *first = Reverse((at, link));
            }
        }
        None
    }

    /// The first is called, and does not stand here any more.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }
}

#[cfg(test)]
mod tests;
