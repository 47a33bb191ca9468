//! How a queue pair of a port is set up: made, told of its peer, proved, adopted. No unsafe.
//!
//! Knows the order of these steps; what is exchanged with the peer between them is the caller's business.

use std::sync::Arc;

use super::VerbsPort;
use crate::fabric::QpId;
use crate::fabric::verbs::error::VerbsError;
use crate::fabric::verbs::link::VerbsLink;
use crate::fabric::verbs::proof::Proof;
use crate::fabric::verbs::queue_pair::{QpEndpoint, QueuePair};
use crate::ground::limits::{BODY_MAX, VERBS_SENDS, VERBS_WINDOW_MIN};

impl VerbsPort {
    /// Makes one end of a queue pair, and says what the other end must be told. `first_packet` is a random number of 24
    /// bits. With [`VerbsPort::connect`] the only calls that allocate.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn open(&mut self, first_packet: u32) -> Result<(QpId, QpEndpoint), VerbsError> {
        let index = self.place()?;
        let at = usize::from(index);
        let id = self.id(index);
        let path = *self.domain.path();
        let qp = QueuePair::new(
            &self.domain,
            &self.completions,
            &self.receive,
            VERBS_SENDS,
            self.config.inline_bytes,
        )?;
        let number = qp.number();
        let first_packet = first_packet & 0x00ff_ffff;
        let tag = u64::from(self.places[at].generation & 0x7fff) << 48 | u64::from(index) << 32;
        let message_max = path.message_max as usize;
        self.places[at].link = Some(Box::new(VerbsLink::new(
            qp,
            id,
            tag,
            message_max,
            self.config.window,
        )));
        self.places[at].first_packet = first_packet;
        self.places[at].fault = None;
        let before = self.numbers.partition_point(|known| known.0 < number);
        self.numbers.insert(before, (number, index));
        self.free.retain(|&free| free != index);
        let endpoint = QpEndpoint {
            number,
            first_packet,
            lid: path.lid,
            gid: path.gid,
            mtu: path.mtu,
            window: self.config.window,
            body_max: BODY_MAX as u32,
        };
        Ok((id, endpoint))
    }

    /// Tells an end of its peer. From here on it carries frames and writes.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`] for what cannot be, [`VerbsError::Call`]; the queue pair is then to be closed.
    pub fn connect(&mut self, qp: QpId, peer: &QpEndpoint) -> Result<(), VerbsError> {
        self.joined(qp, peer)?.begin(peer);
        Ok(())
    }

    /// Tells an end of its peer, and holds back what follows until the way is proved and [`VerbsPort::adopt`] says that
    /// frames are taken. With [`VerbsPort::say_check`] on both sides the proof comes about.
    ///
    /// # Errors
    /// As for [`VerbsPort::connect`].
    pub fn prove(&mut self, qp: QpId, peer: &QpEndpoint) -> Result<Arc<Proof>, VerbsError> {
        let proof = Arc::new(Proof::default());
        let link = self.joined(qp, peer)?;
        link.begin_proving(peer, Arc::clone(&proof));
        Ok(proof)
    }

    /// Says the word that proves the way. The peer must have been told of this end before: a word that comes to a queue
    /// pair without a peer is sent again only after its timeout.
    pub fn say_check(&mut self, qp: QpId) {
        let index = (qp.0 & 0xffff) as u16;
        if let Some(link) = self.made(qp) {
            link.say_check();
            self.activate(index);
        }
    }

    /// This queue pair's frames are taken from here on; false if its way is not proved.
    pub fn adopt(&mut self, qp: QpId) -> bool {
        let Some(link) = self.made(qp) else {
            return false;
        };
        let number = link.number();
        let is_adopted = link.adopt();
        if is_adopted {
            self.look_again(number);
        }
        is_adopted
    }

    /// Connects a queue pair to its peer, whose claims are judged.
    fn joined(&mut self, qp: QpId, peer: &QpEndpoint) -> Result<&mut VerbsLink, VerbsError> {
        let rules = [
            (
                peer.window >= VERBS_WINDOW_MIN && peer.window < 1 << 15,
                "window",
                u64::from(peer.window),
                "32 to 32767",
            ),
            (
                // A frame that is too long for the peer would wait for ever, and all others behind it.
                peer.body_max as usize >= BODY_MAX,
                "longest body",
                peer.body_max.into(),
                "4096 or more",
            ),
        ];
        for (holds, field, value, rule) in rules {
            if !holds {
                return Err(VerbsError::Endpoint { field, value, rule });
            }
        }
        let patience = self.config.patience;
        let index = (qp.0 & 0xffff) as u16;
        let place = self.places.get_mut(usize::from(index));
        let place = place.filter(|place| u32::from(place.generation) == qp.0 >> 16);
        let known = place.and_then(|place| Some((place.first_packet, place.link.as_mut()?)));
        let Some((first_packet, link)) =
            known.filter(|(_, link)| !link.is_ending() && !link.is_open())
        else {
            return Err(VerbsError::Endpoint {
                field: "queue pair",
                value: qp.0.into(),
                rule: "one that waits for its peer",
            });
        };
        link.qp_mut().connect(peer, first_packet, patience)?;
        Ok(link)
    }

    /// The link that `qp` names, in whatever state.
    fn made(&mut self, qp: QpId) -> Option<&mut VerbsLink> {
        let place = self.places.get_mut((qp.0 & 0xffff) as usize)?;
        let is_it = u32::from(place.generation) == qp.0 >> 16;
        place.link.as_deref_mut().filter(|_| is_it)
    }
}
