//! Ends: this side's queue pairs with one peer, from their making in the shards' threads to the links that use them.
//!
//! Knows ports, proofs and the order of channels; not what the control plane says meanwhile. All of it except
//! [`over_verbs`] may block, and is called from errands.

use std::any::Any;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prost::Message;
use rendez_proto as proto;

use super::{Rdma, Shared, status_of};
use crate::control::{Ends, Lack, Offers, Path, PeerHello, PeerUp};
use crate::engine::Inner;
use crate::engine::links::{Links, gone, ordered_pairs};
use crate::engine::transports::{NO_PORT, Taking, port_of};
use crate::fabric::shm::Side;
use crate::fabric::verbs::{Proof, QpEndpoint, VerbsError, VerbsPort};
use crate::fabric::{Port, QpId};
use crate::ground::limits::RDMA_ENDS_MAX;
use crate::ground::{Status, catalogue};
use crate::shard::{Call, Mailbox};

/// Between two looks at the proofs.
const LOOK_EVERY: Duration = Duration::from_micros(300);

/// A queue pair of a shard's port; closed with this, unless it was taken.
#[derive(Debug)]
struct Held {
    mailbox: Arc<Mailbox>,
    qp: QpId,
    is_taken: bool,
}

/// This side's ends with one peer, in the order of channels.
#[derive(Debug)]
struct QueuePairs {
    shared: Arc<Shared>,
    held: Vec<Held>,
    /// Our shard of each, and the peer's.
    pairs: Vec<(usize, usize)>,
    ends: Vec<QpEndpoint>,
    proofs: Vec<Arc<Proof>>,
    device: String,
}

impl Held {
    /// The caller answers for it from here on.
    fn take(mut self) -> QpId {
        self.is_taken = true;
        self.qp
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let qp = self.qp;
        if !self.is_taken {
            let work = move |port: &mut VerbsPort| port.close(qp);
            self.mailbox.call(on_port(work));
        }
    }
}

/// Something done with a shard's port of RDMA, if it has one.
fn on_port(work: impl FnOnce(&mut VerbsPort) + Send + 'static) -> Call {
    Call::Ports(Box::new(move |ports| {
        if let Some((_, port)) = port_of!(ports, Verbs) {
            work(port);
        }
    }))
}

impl Offers for Rdma {
    fn path(&self) -> Path {
        Path::Verbs
    }

    fn lack(&self) -> Option<Lack> {
        self.no()
    }

    fn open(
        &self,
        peer: &PeerHello,
        is_dialler: bool,
        deadline: Instant,
    ) -> Result<Box<dyn Ends>, Status> {
        let engine = self.shared.engine.get().and_then(Weak::upgrade);
        let engine = engine.ok_or_else(gone)?;
        if let Some(no) = self.no() {
            return Err(Status::of(catalogue::PATH_REFUSED, no.why));
        }
        let side = match is_dialler {
            true => Side::Maker,
            false => Side::Opener,
        };
        let shards = engine.mailboxes.len();
        let pairs: Vec<_> = ordered_pairs(shards, usize::from(peer.shards), side).collect();
        if pairs.len() > RDMA_ENDS_MAX {
            let message = format!(
                "{} queue pairs with {}; the limit RDMA_ENDS_MAX is {RDMA_ENDS_MAX}",
                pairs.len(),
                peer.task
            );
            return Err(Status::of(catalogue::VERBS_LIMIT, message));
        }
        let mut asked = Vec::with_capacity(pairs.len());
        for (ours, _) in &pairs {
            asked.push(open(&engine.mailboxes[*ours])?);
        }
        let mut made = QueuePairs {
            shared: Arc::clone(&self.shared),
            held: Vec::with_capacity(pairs.len()),
            pairs,
            ends: Vec::new(),
            proofs: Vec::new(),
            device: self.shared.names(),
        };
        for answer in asked {
            let (held, end) = hear(&answer, deadline)?.map_err(|error| status_of(&error))?;
            made.held.push(held);
            made.ends.push(end);
        }
        Ok(Box::new(made))
    }
}

impl Shared {
    /// The devices and ports that shards use, for people.
    fn names(&self) -> String {
        let name = |index: usize| {
            let domain = &self.domains[index];
            format!("{} port {}", domain.device().name(), domain.path().port)
        };
        let used = (0..self.domains.len()).filter(|index| self.of_shard.contains(index));
        let names: Vec<String> = used.map(name).collect();
        names.join(", ")
    }
}

type Answer<T> = Receiver<Result<T, VerbsError>>;

/// Has a shard make a queue pair. If the caller is no longer there to get it, it is dropped, which closes it.
fn open(mailbox: &Arc<Mailbox>) -> Result<Answer<(Held, QpEndpoint)>, Status> {
    let first_packet = getrandom::u32()
        .map_err(|_| Status::of(catalogue::SYSTEM_CALL, "the system gives no random numbers"))?;
    let (tell, answer) = sync_channel(1);
    let own = Arc::clone(mailbox);
    mailbox.call(on_port(move |port| {
        let opened = port.open(first_packet).map(|(qp, end)| {
            let held = Held {
                mailbox: own,
                qp,
                is_taken: false,
            };
            (held, end)
        });
        let _ = tell.send(opened);
    }));
    Ok(answer)
}

fn hear<T>(answer: &Answer<T>, deadline: Instant) -> Result<Result<T, VerbsError>, Status> {
    let left = deadline.saturating_duration_since(Instant::now());
    answer.recv_timeout(left).map_err(|_| {
        Status::of(
            catalogue::PATH_REFUSED,
            "a shard did not provide a queue pair in time",
        )
    })
}

impl Ends for QueuePairs {
    fn told(&self) -> Vec<Vec<u8>> {
        self.ends.iter().map(to_wire).collect()
    }

    fn device(&self) -> &str {
        &self.device
    }

    fn connect(&mut self, peer: &[Vec<u8>], deadline: Instant) -> Result<(), Status> {
        let cannot_be = || {
            Status::of(
                catalogue::PATH_REFUSED,
                "the peer's description of its queue pairs is invalid",
            )
        };
        let ends: Option<Vec<QpEndpoint>> = peer.iter().map(|end| from_wire(end)).collect();
        let ends = ends.filter(|ends| ends.len() == self.held.len());
        let mut asked = Vec::with_capacity(self.held.len());
        for (held, end) in self.held.iter().zip(ends.ok_or_else(cannot_be)?) {
            let (tell, answer) = sync_channel(1);
            let qp = held.qp;
            held.mailbox.call(on_port(move |port| {
                let _ = tell.send(port.prove(qp, &end));
            }));
            asked.push(answer);
        }
        for answer in asked {
            let proof = hear(&answer, deadline)?.map_err(|error| status_of(&error))?;
            self.proofs.push(proof);
        }
        Ok(())
    }

    fn prove(&mut self, deadline: Instant) -> Result<(), Status> {
        for held in &self.held {
            let qp = held.qp;
            held.mailbox.call(on_port(move |port| port.say_check(qp)));
        }
        loop {
            if self.proofs.iter().all(|proof| proof.is_good()) {
                return Ok(());
            }
            let failed = self.proofs.iter().position(|proof| proof.has_failed());
            let is_late = Instant::now() >= deadline;
            let unproved = self.proofs.iter().position(|proof| !proof.is_good());
            if let Some(channel) = failed.or_else(|| unproved.filter(|_| is_late)) {
                return Err(self.unproved(channel));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl QueuePairs {
    /// Why the way of a channel is not good.
    fn unproved(&self, channel: usize) -> Status {
        let held = &self.held[channel];
        let (qp, (tell, fault)) = (held.qp, sync_channel(1));
        held.mailbox.call(on_port(move |port| {
            let _ = tell.send(port.fault(qp).map(ToString::to_string));
        }));
        let fault = fault.recv_timeout(Duration::from_millis(50));
        let fault = fault.ok().flatten();
        let fault = fault.map_or_else(String::new, |fault| format!(": {fault}"));
        let message = format!(
            "the queue pair of channel {channel} on {} does not come through: {}{fault}",
            self.shared.names(),
            self.proofs[channel].missing(),
        );
        Status::of(catalogue::PATH_REFUSED, message)
    }
}

/// An end as the peer is told.
fn to_wire(end: &QpEndpoint) -> Vec<u8> {
    proto::RdmaEnd {
        queue_pair: end.number,
        first_packet: end.first_packet,
        lid: end.lid.into(),
        gid: end.gid.to_vec(),
        mtu: end.mtu.into(),
        window: end.window.into(),
        body_max: end.body_max,
    }
    .encode_to_vec()
}

/// A peer's end; nothing if a number in it cannot be.
fn from_wire(bytes: &[u8]) -> Option<QpEndpoint> {
    let end = proto::RdmaEnd::decode(bytes).ok()?;
    Some(QpEndpoint {
        number: end.queue_pair,
        first_packet: end.first_packet,
        lid: u16::try_from(end.lid).ok()?,
        gid: end.gid.as_slice().try_into().ok()?,
        mtu: u8::try_from(end.mtu).ok()?,
        window: u16::try_from(end.window).ok()?,
        body_max: end.body_max,
    })
}

/// A proved queue pair for each channel.
pub(super) fn links(engine: &Arc<Inner>, up: PeerUp) -> Result<Links, Status> {
    let taking = Taking::of(engine, &up);
    let ends = up.descriptors.ends.ok_or_else(gone)?.into_any();
    let mut ends = ends.downcast::<QueuePairs>().map_err(|_| gone())?;
    let mut links: Links = engine.mailboxes.iter().map(|_| Vec::new()).collect();
    let held = std::mem::take(&mut ends.held);
    for ((ours, theirs), held) in ends.pairs.iter().zip(held) {
        let attach = taking.by(move |ports| {
            let qp = held.take();
            let (at, port) = port_of!(ports, Verbs).ok_or(NO_PORT)?;
            let is_up = port.adopt(qp);
            Ok(is_up
                .then_some((at, qp))
                .ok_or("its queue pair went down before it was taken")?)
        });
        links[*ours].push((*theirs as u16, attach));
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end() -> proto::RdmaEnd {
        proto::RdmaEnd {
            queue_pair: 17,
            first_packet: 0x00ff_ffff,
            lid: 0xffff,
            gid: vec![9; 16],
            mtu: 5,
            window: 128,
            body_max: 4096,
        }
    }

    #[test]
    fn an_end_goes_out_as_it_came_in() {
        let bytes = end().encode_to_vec();
        assert_eq!(to_wire(&from_wire(&bytes).expect("an end")), bytes);
    }

    #[test]
    fn an_end_that_cannot_be_is_refused() {
        let broken: [fn(&mut proto::RdmaEnd); 5] = [
            |end| end.lid = 0x1_0000,
            |end| end.gid = vec![9; 15],
            |end| end.gid = Vec::new(),
            |end| end.mtu = 256,
            |end| end.window = 0x1_0000,
        ];
        for breaks in broken {
            let mut bad = end();
            breaks(&mut bad);
            assert!(from_wire(&bad.encode_to_vec()).is_none(), "{bad:?}");
        }
        assert!(from_wire(&[0xff; 7]).is_none(), "no message at all");
    }
}
