//! Transports: what carries tensors to peers. This is where one is registered.
//!
//! Each stands in a file or folder of its own, and knows its ports and how links are attached to them; the control
//! plane agrees with the peer on one (`control/transport.rs`), wiring connects by it, and settings, metrics and
//! explanations name them in the order of this list. Everything here is cold.
//!
//! To add one: a folder with its [`Transport`] and a line in [`REGISTERED`] (`toy.rs` is an example). If its port is of
//! a new kind: that port in `fabric/` with its arms of `AnyPort` and of `shard/carriers.rs`, and an instance in
//! `tests/conformance`.

mod rdma;
mod shm;
mod tcp;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;

use std::fmt;
use std::sync::{Arc, Weak};

use super::Inner;
use super::config::Config;
use super::links::Links;
use crate::control::{Offers, Path, PathWish, PeerId, PeerUp};
use crate::fabric::shm::LinkMapping;
use crate::fabric::{AnyPort, LoopbackPort, QpId};
use crate::ground::Status;
use crate::mail::call::{Attach, PeerSegment};
use crate::memory::Segment;

/// A transport of one engine.
pub(crate) trait Transport: Send + Sync + fmt::Debug {
    /// Its name and number.
    fn path(&self) -> Path;

    /// What the control plane offers peers of it: nothing for shared memory and TCP, which the control plane passes
    /// and opens itself.
    fn offers(self: Arc<Self>) -> Option<Arc<dyn Offers>> {
        None
    }

    /// The port of a shard, made in its thread; none where the transport is unavailable.
    ///
    /// # Errors
    /// Why there is none, where the engine cannot do without.
    fn make_port(&self, shard: usize) -> Result<Option<AnyPort>, Status>;

    /// The links with a peer that is connected by it, and what of the peer's memory is mapped. `made` is the shared
    /// memory that was made for the peer, if we dialled it by that path.
    ///
    /// # Errors
    /// Why the peer cannot be wired.
    fn links(
        &self,
        engine: &Arc<Inner>,
        up: PeerUp,
        made: Option<LinkMapping>,
    ) -> Result<Wired, Status>;

    /// The engine runs, and these are its segments.
    ///
    /// # Errors
    /// Why it is unavailable, where it is required.
    fn begin(&self, _engine: &Arc<Inner>, _segments: &[Arc<Segment>]) -> Result<(), Status> {
        Ok(())
    }

    /// An arena grew. The caller may be a shard.
    fn segment_added(&self, _segment: &Arc<Segment>) {}

    /// The engine ends.
    fn stop(&self) {}
}

/// The peer's memory that is mapped, and the links with it.
pub(super) type Wired = (Vec<PeerSegment>, Links);

/// What comes of looking for a transport; an error where it is required.
type Found = Result<Arc<dyn Transport>, Status>;

/// One line of the list.
pub(crate) struct Registered {
    path: Path,
    /// Looks for it, for shards on these cores.
    open: fn(&Config, &[usize]) -> Found,
}

/// Every transport, the best first.
const REGISTERED: &[Registered] = &[
    shm::REGISTERED,
    rdma::REGISTERED,
    #[cfg(test)]
    toy::REGISTERED,
    tcp::REGISTERED,
];

/// Their names, the best first.
#[must_use]
pub fn transports() -> Vec<Path> {
    REGISTERED.iter().map(|line| line.path).collect()
}

/// What the setting `require` may be: `none`, or one of them.
pub(super) const REQUIRES: [(&str, PathWish); REGISTERED.len() + 1] = {
    let mut words = [("none", PathWish::Auto); REGISTERED.len() + 1];
    let mut at = 0;
    while at < REGISTERED.len() {
        let path = REGISTERED[at].path;
        words[at + 1] = (path.name(), PathWish::only(path));
        at += 1;
    }
    words
};

/// The transports of one engine, the best first.
#[derive(Clone, Debug)]
pub(crate) struct Transports(Arc<[Arc<dyn Transport>]>);

impl Transports {
    /// Looks for all of them, for shards that run on `cores`.
    ///
    /// # Errors
    /// Why one that is required is unavailable.
    pub(super) fn open(config: &Config, cores: &[usize]) -> Result<Self, Status> {
        let all = REGISTERED.iter().map(|line| (line.open)(config, cores));
        Ok(Self(all.collect::<Result<_, _>>()?))
    }

    /// The ports of a shard: those of transports, and loopback's.
    pub(super) fn make_ports(&self, shard: usize) -> Result<Vec<AnyPort>, Status> {
        let mut ports = vec![AnyPort::Loopback(LoopbackPort::new())];
        for transport in self.0.iter() {
            ports.extend(transport.make_port(shard)?);
        }
        // Shared memory is what a shard looks at first.
        if ports.len() > 1 {
            ports.swap(0, 1);
        }
        Ok(ports)
    }

    /// The one that a peer is connected by.
    pub(super) fn of(&self, path: Path) -> Option<&Arc<dyn Transport>> {
        self.0.iter().find(|transport| transport.path() == path)
    }

    /// Those that are offered to peers.
    pub(super) fn offers(&self) -> Vec<Arc<dyn Offers>> {
        let all = self.0.iter().cloned();
        all.filter_map(|transport| transport.offers()).collect()
    }

    pub(super) fn begin(
        &self,
        engine: &Arc<Inner>,
        segments: &[Arc<Segment>],
    ) -> Result<(), Status> {
        let mut all = self.0.iter();
        all.try_for_each(|transport| transport.begin(engine, segments))
    }

    pub(super) fn segment_added(&self, segment: &Arc<Segment>) {
        self.0
            .iter()
            .for_each(|transport| transport.segment_added(segment));
    }

    pub(super) fn stop(&self) {
        self.0.iter().for_each(|transport| transport.stop());
    }
}

/// How shards take the links with one peer.
#[derive(Clone)]
pub(super) struct Taking {
    engine: Weak<Inner>,
    peer: PeerId,
    task: String,
}

impl Taking {
    pub(super) fn of(engine: &Arc<Inner>, up: &PeerUp) -> Self {
        Self {
            engine: Arc::downgrade(engine),
            peer: up.peer,
            task: up.task.clone(),
        }
    }

    /// A link that `take` makes, or says why it cannot: then no link will tell of its end, and the connection ends.
    pub(super) fn by(
        &self,
        take: impl FnOnce(&mut [AnyPort]) -> Result<(usize, QpId), String> + Send + 'static,
    ) -> Attach {
        let taking = self.clone();
        Box::new(move |ports| take(ports).map_err(|why| taking.lost_early(&why)).ok())
    }

    fn lost_early(&self, why: &str) {
        tracing::warn!(task = %self.task, why, "a shard cannot accept a link to a peer: the connection ends");
        if let Some(engine) = self.engine.upgrade() {
            engine.wiring.hang_up_soon(&engine, self.peer, why);
        }
    }
}

/// Why a link is not taken by a port that is not there.
pub(super) const NO_PORT: &str = "the shard has no port for this transport";

/// The first of a shard's ports that is of a kind, and where it stands.
macro_rules! port_of {
    ($ports:expr, $kind:ident) => {
        $ports
            .iter_mut()
            .enumerate()
            .find_map(|(at, port)| match port {
                $crate::fabric::AnyPort::$kind(port) => Some((at, port)),
                _ => None,
            })
    };
}
pub(super) use port_of;
