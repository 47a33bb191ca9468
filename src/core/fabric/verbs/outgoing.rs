//! Writes of one queue pair to its peer, and the grants by which it may make them. No unsafe.
//!
//! Knows what was posted, how much of it went, and what the peer granted; not queues or memory. A region in a write is
//! its poster's claim, by way of the peer's request: a write begins only where a grant of the peer's covers it.
//!
//! ```text
//!  posted ──▶ asked ──▶ going ──▶ gone ──▶ Done          grant known: at once going
//!                │         └─ the peer closes ─▶ ended ─▶ Refused, when its last piece is complete
//!                └─ no such landing, or not that range: ended
//! ```

use std::collections::VecDeque;

use super::message::Grant;
use crate::fabric::{LANDINGS_MAX, Landing, Outcome, WRITES_MAX, Write};

/// A place among the writes.
pub(super) type WriteIndex = u16;

/// Writes to the peer.
#[derive(Debug)]
pub(super) struct Outgoing {
    places: Vec<Option<Place>>,
    free: Vec<WriteIndex>,
    /// Writes that have pieces to post, in turn.
    pub(super) going: VecDeque<WriteIndex>,
    /// What the peer granted, by index.
    grants: Vec<Option<Known>>,
}

#[derive(Debug)]
struct Place {
    write: Write,
    state: State,
    /// Where the source is registered, if it is.
    lkey: Option<u32>,
    /// Bytes posted.
    sent: usize,
    /// Pieces that are not complete.
    flying: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Asked,
    Going { remote: u64, rkey: u32 },
    Gone,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    grant: Grant,
    taken: bool,
}

/// What became of a write that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Posted {
    /// It goes, or is over already.
    Settled,
    /// The peer is to be asked for its landing.
    Ask,
}

/// The piece of a write that is next.
#[derive(Clone, Copy, Debug)]
pub(super) struct WritePiece {
    pub(super) remote: u64,
    pub(super) rkey: u32,
    /// Where the source is registered; else it must be copied.
    pub(super) lkey: Option<u32>,
    /// Bytes before it.
    pub(super) start: usize,
    /// Bytes of the whole.
    pub(super) total: usize,
    pub(super) landing: Landing,
    /// Pieces before it that are not complete.
    pub(super) flying: u32,
}

impl Outgoing {
    pub(super) fn new() -> Self {
        Self {
            places: (0..WRITES_MAX).map(|_| None).collect(),
            free: (0..WRITES_MAX as WriteIndex).rev().collect(),
            going: VecDeque::with_capacity(WRITES_MAX),
            grants: Vec::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes a write for which there is room. One that is over at once is in `ended`.
    pub(super) fn post(
        &mut self,
        write: Write,
        lkey: Option<u32>,
        ended: &mut VecDeque<WriteIndex>,
    ) -> Posted {
        let index = self.free.pop().expect("the caller saw that there is room");
        let landing = write.landing;
        self.places[usize::from(index)] = Some(Place {
            write,
            state: State::Asked,
            lkey,
            sent: 0,
            flying: 0,
        });
        if landing.index >= LANDINGS_MAX {
            self.end(index, ended);
        } else if self.is_known(landing) {
            self.settle(index, ended);
        } else {
            return Posted::Ask;
        }
        Posted::Settled
    }

    /// The peer opened a landing: writes that wait for it begin, or end where it is not theirs.
    pub(super) fn granted(&mut self, grant: Grant, ended: &mut VecDeque<WriteIndex>) {
        let index = grant.landing.index as usize;
        if grant.landing.index >= LANDINGS_MAX {
            return;
        }
        if self.grants.len() <= index {
            self.grants.resize(index + 1, None);
        }
        self.grants[index] = Some(Known {
            grant,
            taken: false,
        });
        for waiting in self.asked(grant.landing) {
            self.settle(waiting, ended);
        }
    }

    /// The peer has no such landing.
    pub(super) fn denied(&mut self, landing: Landing, ended: &mut VecDeque<WriteIndex>) {
        for waiting in self.asked(landing) {
            self.end(waiting, ended);
        }
    }

    /// The peer closed a landing: nothing more of ours goes there.
    pub(super) fn closed(&mut self, landing: Landing, ended: &mut VecDeque<WriteIndex>) {
        let known = self.grants.get_mut(landing.index as usize);
        if let Some(known) =
            known.filter(|known| known.is_some_and(|it| it.grant.landing == landing))
        {
            *known = None;
        }
        for index in 0..self.places.len() {
            let is_ours = self.places[index].as_ref().is_some_and(|place| {
                place.write.landing == landing && matches!(place.state, State::Going { .. })
            });
            if is_ours {
                self.going.retain(|&going| usize::from(going) != index);
                self.end(index as WriteIndex, ended);
            }
        }
    }

    /// The next piece of a write that goes.
    pub(super) fn piece(&self, index: WriteIndex) -> Option<WritePiece> {
        let place = self.places[usize::from(index)].as_ref()?;
        let State::Going { remote, rkey } = place.state else {
            return None;
        };
        Some(WritePiece {
            remote: remote + place.sent as u64,
            rkey,
            lkey: place.lkey,
            start: place.sent,
            total: place.write.source.size(),
            landing: place.write.landing,
            flying: place.flying,
        })
    }

    /// The source of a write.
    pub(super) fn source(&self, index: WriteIndex) -> &[u8] {
        self.places[usize::from(index)]
            .as_ref()
            .and_then(|place| place.write.source.host().ok())
            .unwrap_or_default()
    }

    /// A piece of `len` bytes was posted; with the last one the landing is used up.
    pub(super) fn sent(&mut self, index: WriteIndex, len: usize, is_last: bool) {
        let Some(place) = self.places[usize::from(index)].as_mut() else {
            return;
        };
        place.sent += len;
        place.flying += 1;
        if is_last {
            place.state = State::Gone;
            let landing = place.write.landing;
            if let Some(known) = self.grants.get_mut(landing.index as usize) {
                *known = None;
            }
        }
    }

    /// A piece is complete; with the last one the write is over.
    pub(super) fn completed(&mut self, index: WriteIndex, ended: &mut VecDeque<WriteIndex>) {
        let Some(place) = self.places[usize::from(index)].as_mut() else {
            return;
        };
        place.flying -= 1;
        if place.flying == 0 && matches!(place.state, State::Gone | State::Ended) {
            ended.push_back(index);
        }
    }

    /// Gives back a write that is over.
    pub(super) fn take(&mut self, index: WriteIndex) -> Option<(Write, Outcome)> {
        let place = self.places[usize::from(index)].take()?;
        self.free.push(index);
        let outcome = match place.state {
            State::Gone => Outcome::Done,
            _ => Outcome::Refused,
        };
        Some((place.write, outcome))
    }

    /// Every write, once nothing of ours is under way any more.
    pub(super) fn writes(&self) -> impl Iterator<Item = &Write> {
        self.places.iter().flatten().map(|place| &place.write)
    }

    /// All of them, taken.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Write> {
        self.going.clear();
        self.places
            .iter_mut()
            .filter_map(|place| place.take().map(|place| place.write))
    }

    fn is_known(&self, landing: Landing) -> bool {
        let known = self.grants.get(landing.index as usize).copied().flatten();
        known.is_some_and(|known| known.grant.landing == landing)
    }

    /// Writes that wait for this landing. There are few, and this is the rare way.
    fn asked(&self, landing: Landing) -> impl Iterator<Item = WriteIndex> + use<> {
        let mut found = 0u64;
        for (index, place) in self.places.iter().enumerate() {
            let waits = place
                .as_ref()
                .is_some_and(|place| place.state == State::Asked && place.write.landing == landing);
            found |= u64::from(waits) << index;
        }
        (0..WRITES_MAX as WriteIndex).filter(move |index| found >> index & 1 == 1)
    }

    /// A write whose landing is known: it begins, or is refused.
    fn settle(&mut self, index: WriteIndex, ended: &mut VecDeque<WriteIndex>) {
        let Some(place) = self.places[usize::from(index)].as_mut() else {
            return;
        };
        let known = self.grants.get_mut(place.write.landing.index as usize);
        let Some(known) = known.and_then(Option::as_mut) else {
            return;
        };
        let len = place.write.source.size() as u64;
        match known.grant.locate(&place.write.region, len) {
            Some(remote) if !known.taken => {
                known.taken = true;
                place.state = State::Going {
                    remote,
                    rkey: known.grant.rkey,
                };
                self.going.push_back(index);
            }
            _ => self.end(index, ended),
        }
    }

    fn end(&mut self, index: WriteIndex, ended: &mut VecDeque<WriteIndex>) {
        if let Some(place) = self.places[usize::from(index)].as_mut() {
            place.state = State::Ended;
            if place.flying == 0 {
                ended.push_back(index);
            }
        }
    }
}

const _: () = assert!(WRITES_MAX <= 64, "a set of writes is one word");
