//! Admission: may a hello be greeted, and does a greeted connection count?
//!
//! Knows the registry and the conversations that stand; not what is said in a greeting.

use std::rc::Rc;

use crate::ground::catalogue;

use super::peer::{PeerHello, PeerId};
use super::plane::{Claim, ClaimKind, Plane};
use super::refusal::Refusal;

impl Plane {
    /// May a hello be greeted?
    pub(super) fn admit(self: &Rc<Self>, hello: &PeerHello) -> Result<Claim, Refusal> {
        self.stays()?;
        // First: one of another run of the job is no second life of a task of this one.
        self.handler.judge(hello)?;
        let is_ending = |peer: PeerId| {
            // One that counts but has no conversation is just beginning or just over: asked again, the answer is
            // clear.
            self.peers.borrow().get(&peer).is_none_or(|conversation| {
                conversation.is_ending()
                    || conversation.is_doubtful(&self.config)
                    || !conversation.outlives(hello.incarnation)
            })
        };
        let begun =
            (self.registry.borrow_mut()).begin_accept(&hello.task, hello.incarnation, is_ending);
        begun.map_err(|refusal| self.tell_where(&hello.task, refusal))?;
        Ok(self.claim(&hello.task, ClaimKind::Accept))
    }

    /// Who is refused because its name is taken is told where the other runs, so that it can be found.
    fn tell_where(&self, task: &str, refusal: Refusal) -> Refusal {
        let status = &refusal.status;
        if status.reason() != catalogue::PEER_DUPLICATE_NAME {
            return refusal;
        }
        let peer = self.registry.borrow().peer(task);
        let conversation = peer.and_then(|peer| self.peers.borrow().get(&peer).cloned());
        let Some(conversation) = conversation else {
            return refusal;
        };
        let message = format!(
            "{}: the other is {}",
            status.message(),
            conversation.whereabouts()
        );
        Refusal::fatal(status.code(), catalogue::PEER_DUPLICATE_NAME, message)
    }

    /// Does a greeted connection count?
    pub(super) fn count(
        self: &Rc<Self>,
        peer: PeerId,
        hello: &PeerHello,
        is_dialler: bool,
    ) -> Result<Claim, Refusal> {
        // The dialler counts first.
        if is_dialler {
            self.stays()?;
        }
        self.registry
            .borrow_mut()
            .up(&hello.task, peer, hello.incarnation, is_dialler)?;
        Ok(self.claim(&hello.task, ClaimKind::Up(peer)))
    }
}
