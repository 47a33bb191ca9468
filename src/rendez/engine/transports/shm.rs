//! Shared memory as a transport: a ring each way for each channel, in memory that both sides map.

use std::sync::Arc;

use super::{NO_PORT, Registered, Taking, Transport, Wired, port_of};
use crate::channel::Rule;
use crate::control::{DoorbellOffer, Path, PeerUp, PollPolicy};
use crate::engine::Inner;
use crate::engine::links::{Links, gone, import, link_config, link_status, ordered_pairs, pairs};
use crate::fabric::doorbell::PeerWake;
use crate::fabric::shm::{LinkMapping, Side};
use crate::fabric::{AnyPort, Caps, QUEUE_PAIRS_MAX, ShmPort};
use crate::ground::{Code, Status, catalogue, limits};

/// Its line in the list.
pub(super) const REGISTERED: Registered = Registered {
    path: Path::Shm,
    open: |_, _| Ok(Arc::new(Shm)),
};

/// Shared memory of an engine.
#[derive(Debug)]
struct Shm;

impl Transport for Shm {
    fn path(&self) -> Path {
        Path::Shm
    }

    fn make_port(&self, _: usize) -> Result<Option<AnyPort>, Status> {
        Ok(Some(AnyPort::Shm(ShmPort::new())))
    }

    fn links(
        &self,
        engine: &Arc<Inner>,
        up: PeerUp,
        made: Option<LinkMapping>,
    ) -> Result<Wired, Status> {
        let shards = engine.mailboxes.len();
        let taking = Taking::of(engine, &up);
        let (mut link, side) = match made {
            Some(link) if up.dialler => (link, Side::Maker),
            // The link that came with it is our own: the peer has the other side of it.
            None if up.dialler => return Err(gone()),
            _ => {
                let config = link_config(pairs(shards, usize::from(up.hello.shards)).count());
                let link = up.descriptors.link.ok_or_else(gone)?.fd;
                let opened = LinkMapping::open(link, config);
                (
                    opened.map_err(|error| link_status(&up.task, &error))?,
                    Side::Opener,
                )
            }
        };
        let may_sleep = up.hello.poll_policy != PollPolicy::Busy;
        let wakes = wakes(
            &up.task,
            up.descriptors.doorbells,
            usize::from(up.hello.shards),
            may_sleep,
        )?;
        let must_be_sealed = engine.config.rules.on(Rule::Sealed);
        let mut segments = Vec::new();
        if up.read_domain {
            for offer in up.descriptors.segments {
                segments.push(import(offer, must_be_sealed, engine.wiring.devices())?);
            }
        }
        let caps = Caps {
            body_max: limits::BODY_MAX,
            one_sided: false,
            read_domain: up.read_domain,
        };
        let mut links: Links = engine.mailboxes.iter().map(|_| Vec::new()).collect();
        for (channel, (ours, theirs)) in
            ordered_pairs(shards, usize::from(up.hello.shards), side).enumerate()
        {
            let endpoint = link.endpoint(channel as u32, side).ok_or_else(gone)?;
            let wake = wakes[theirs].clone();
            let attach = taking.by(move |ports| {
                let (at, port) = port_of!(ports, Shm).ok_or(NO_PORT)?;
                let full =
                    |_| format!("the port is full; the limit QUEUE_PAIRS_MAX is {QUEUE_PAIRS_MAX}");
                Ok((at, port.attach(endpoint, wake, caps).map_err(full)?))
            });
            links[ours].push((theirs as u16, attach));
        }
        Ok((segments, links))
    }
}

/// The doorbells of `task` by shard: page and eventfd follow each other.
fn wakes(
    task: &str,
    offers: Vec<DoorbellOffer>,
    shards: usize,
    may_sleep: bool,
) -> Result<Vec<PeerWake>, Status> {
    if !may_sleep {
        return Ok(vec![PeerWake::NEVER_SLEEPS; shards]);
    }
    let refused = |message| {
        Status::new(
            Code::FailedPrecondition,
            catalogue::PEER_REFUSED,
            format!("task {task}: {message}"),
        )
    };
    let count = offers.len();
    let mut wakes = vec![None; shards];
    let mut offers = offers.into_iter();
    while let (Some(page), Some(event)) = (offers.next(), offers.next()) {
        let wake = wakes
            .get_mut(usize::from(page.shard))
            .filter(|wake| page.shard == event.shard && wake.is_none())
            .ok_or_else(|| {
                refused("its doorbells are not one pair of descriptors for each shard".into())
            })?;
        let opened = PeerWake::open(&page.fd, event.fd).map_err(|error| {
            Status::new(
                Code::FailedPrecondition,
                catalogue::DESCRIPTOR_UNSEALED,
                error.to_string(),
            )
        })?;
        *wake = Some(opened);
    }
    let all: Option<Vec<_>> = wakes.into_iter().collect();
    all.ok_or_else(|| {
        refused(format!(
            "{count} descriptors of doorbells came for {shards} shards that may sleep; each needs two"
        ))
    })
}

#[cfg(test)]
mod tests;
