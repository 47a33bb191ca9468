//! Transports, as the control plane knows them: what each is called and numbered, and how two tasks agree on one.
//!
//! Two of them are the control plane's own affair: shared memory, whose descriptors it passes, and TCP, whose data
//! connections it opens. Any other [offers](Offers) ends: one for each channel, opaque here, told to the peer,
//! connected to the peer's, and proved in both directions before the connection counts.

use std::any::Any;
use std::fmt;
use std::time::Instant;

use crate::ground::Status;

use super::peer::PeerHello;

/// A transport by name: the path to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Path {
    number: u32,
    name: &'static str,
    title: &'static str,
    reasons: [&'static str; 2],
}

/// The transports that have a name in the API. They are spelled as variants: of an open set.
#[allow(non_upper_case_globals)]
impl Path {
    /// Memory that both map: proved to be one machine by descriptors that came through.
    pub const Shm: Self = Self::new(1, "shm", "shared memory", ["shm_unavailable"; 2]);
    /// One TCP connection for each channel.
    pub const Tcp: Self = Self::new(2, "tcp", "TCP", ["tcp_unavailable"; 2]);
    /// One RDMA queue pair for each channel: proved by a word in each direction before it was taken.
    pub const Verbs: Self = Self::new(
        3,
        "verbs",
        "RDMA",
        ["rdma_unavailable_here", "rdma_unavailable_there"],
    );
}

impl Path {
    /// A transport. `number` stands for it on the wire and is never given to another: from 4 to 63, below that are
    /// those above. `name` is its word in settings and reports, `title` its name in sentences, and `reasons` label a
    /// fallback from it: unavailable here, and unavailable at the peer.
    ///
    /// # Panics
    /// For a number out of range; constants are evaluated by the compiler.
    #[must_use]
    pub const fn new(
        number: u32,
        name: &'static str,
        title: &'static str,
        reasons: [&'static str; 2],
    ) -> Self {
        assert!(number > 0 && number < 64);
        Self {
            number,
            name,
            title,
            reasons,
        }
    }

    /// In a word, as settings have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// As sentences have it.
    #[must_use]
    pub const fn title(self) -> &'static str {
        self.title
    }

    /// The label of a fallback from it: unavailable here, or unavailable at the peer.
    #[must_use]
    pub const fn reason(self, is_here: bool) -> &'static str {
        match is_here {
            true => self.reasons[0],
            false => self.reasons[1],
        }
    }

    /// Over a network: nothing proves a peer's end, and what is lost is made again.
    #[must_use]
    pub const fn is_far(self) -> bool {
        self.number != Self::Shm.number
    }

    /// Its number on the wire.
    pub(crate) const fn number(self) -> u32 {
        self.number
    }

    /// Its bit among a hello's abilities; 0 for the two that every task has.
    pub(crate) const fn ability(self) -> u64 {
        match self.number {
            0..=2 => 0,
            number => 1 << (number - 2),
        }
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The path that peers must be reached by, or the best there is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PathWish(Option<Path>);

/// Spelled as variants: of an open set.
#[allow(non_upper_case_globals)]
impl PathWish {
    /// The best there is: shared memory if available, else the best transport that both have, else TCP.
    pub const Auto: Self = Self(None);
    /// The same, as the setting `require` has it.
    pub const None: Self = Self::Auto;
    /// Shared memory or nothing.
    pub const Shm: Self = Self::only(Path::Shm);
    /// TCP or nothing.
    pub const Tcp: Self = Self::only(Path::Tcp);
    /// RDMA or nothing.
    pub const Verbs: Self = Self::only(Path::Verbs);
}

impl PathWish {
    /// This path or nothing.
    #[must_use]
    pub const fn only(path: Path) -> Self {
        Self(Some(path))
    }

    /// The path that is demanded, if any is.
    #[must_use]
    pub const fn demanded(self) -> Option<Path> {
        self.0
    }

    /// On the wire.
    pub(crate) fn number(self) -> u32 {
        self.0.map_or(0, Path::number)
    }
}

impl fmt::Debug for PathWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or("none", Path::name))
    }
}

/// Why a task lacks a transport.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lack {
    /// For people.
    pub why: String,
    /// It should work here and does not: another transport is a fallback then.
    pub is_fault: bool,
}

/// A transport whose ends are told to the peer in the greeting.
pub trait Offers: Send + Sync + fmt::Debug {
    /// Its name and number.
    fn path(&self) -> Path;

    /// Why it is unavailable here, if it is. Asked at each greeting, and must not block.
    fn lack(&self) -> Option<Lack>;

    /// Makes this side's ends with `peer`, as many as there are data channels and in their order. Not called from the
    /// control thread: it may block until `deadline`.
    ///
    /// # Errors
    /// A status refuses the path.
    fn open(
        &self,
        peer: &PeerHello,
        is_dialler: bool,
        deadline: Instant,
    ) -> Result<Box<dyn Ends>, Status>;
}

/// This side's ends of the channels with one peer, in the making. Dropped, they end. All but the first two may block.
pub trait Ends: Any + Send + fmt::Debug {
    /// What the peer is told, by channel, as the transport encodes it.
    fn told(&self) -> Vec<Vec<u8>>;

    /// On which devices and ports they are: for people.
    fn device(&self) -> &str;

    /// Tells each end of its peer. What a peer says is a claim, of which only the number of ends has been checked.
    ///
    /// # Errors
    /// A status refuses the path.
    fn connect(&mut self, peer: &[Vec<u8>], deadline: Instant) -> Result<(), Status>;

    /// Proves each channel in both directions, once both sides' ends are connected.
    ///
    /// # Errors
    /// A status refuses the path.
    fn prove(&mut self, deadline: Instant) -> Result<(), Status>;

    /// As its own type, for the code that made it.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}
