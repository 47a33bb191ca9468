//! The registry: which task is connected, being greeted or being dialled, and which of two connections between the
//! same two tasks stays.
//!
//! Pure: knows names and numbers; no socket, no clock.
//!
//! Both sides may dial at once. **The dial of the smaller name wins**: a hello that arrives while our own dial is
//! being greeted is refused for now if our name is the smaller one, and accepted otherwise; our own dial is then
//! refused by the other side, by the same rule. Only a dial *being greeted* refuses: one that still seeks its address
//! gives way, so that a wrong address on one side cannot keep the other side out. Each side has at most one
//! connection up with a task and at most one acceptance in progress, and asks again just before a connection counts
//! as up; so exactly one comes to be.

use std::collections::BTreeMap;

use crate::ground::limits::PEERS_MAX;
use crate::ground::{Code, Incarnation};

use super::peer::PeerId;
use super::refusal::Refusal;

/// What is going on with each task.
#[derive(Debug)]
pub(crate) struct Registry {
    own: String,
    slots: BTreeMap<String, Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    up: Option<Up>,
    is_accepting: bool,
    is_dial_greeting: bool,
}

#[derive(Clone, Copy, Debug)]
struct Up {
    peer: PeerId,
    incarnation: Incarnation,
}

impl Registry {
    /// No peer is connected to the task `own`.
    pub(crate) fn new(own: &str) -> Self {
        Self {
            own: own.to_owned(),
            slots: BTreeMap::new(),
        }
    }

    /// A hello of `task` arrived: may it be greeted? If so, [`Self::end_accept`] must follow.
    /// `is_ending` says of a connected peer whether its end has begun.
    pub(crate) fn begin_accept(
        &mut self,
        task: &str,
        incarnation: Incarnation,
        is_ending: impl FnOnce(PeerId) -> bool,
    ) -> Result<(), Refusal> {
        let own_wins = self.own.as_str() < task;
        self.has_room(task)?;
        let slot = self.slots.entry(task.to_owned()).or_default();
        if let Some(up) = slot.up {
            return Err(match up.incarnation == incarnation || is_ending(up.peer) {
                true => Refusal::later(
                    "PEER_BUSY",
                    format!("{task} is connected already, or its last connection is ending"),
                ),
                false => Refusal::fatal(
                    Code::AlreadyExists,
                    "PEER_DUPLICATE_NAME",
                    format!(
                        "{task} is connected in its incarnation {}, which is alive; \
                         another process of that name, incarnation {incarnation}, cannot be",
                        up.incarnation
                    ),
                ),
            });
        }
        if slot.is_accepting {
            return Err(Refusal::later(
                "PEER_BUSY",
                format!("another connection of {task} is being greeted"),
            ));
        }
        if slot.is_dial_greeting && own_wins {
            return Err(Refusal::later(
                "PEER_BUSY",
                "both sides dial; the dial of the smaller name wins",
            ));
        }
        slot.is_accepting = true;
        Ok(())
    }

    /// The greeting of an accepted hello is over, one way or the other.
    pub(crate) fn end_accept(&mut self, task: &str) {
        self.change(task, |slot| slot.is_accepting = false);
    }

    /// Our dial of `task` is connected: may it say hello? If so, [`Self::end_dial`] must follow.
    pub(crate) fn begin_dial(&mut self, task: &str) -> Result<(), Refusal> {
        self.has_room(task)?;
        let slot = self.slots.entry(task.to_owned()).or_default();
        if slot.up.is_some() || slot.is_accepting || slot.is_dial_greeting {
            return Err(Refusal::later(
                "PEER_BUSY",
                format!("a connection of {task} is being greeted here"),
            ));
        }
        slot.is_dial_greeting = true;
        Ok(())
    }

    /// The greeting of our dial is over, one way or the other.
    pub(crate) fn end_dial(&mut self, task: &str) {
        self.change(task, |slot| slot.is_dial_greeting = false);
    }

    /// A greeting succeeded: does the connection count? A dial gives way to an acceptance in progress.
    pub(crate) fn up(
        &mut self,
        task: &str,
        peer: PeerId,
        incarnation: Incarnation,
        is_dialler: bool,
    ) -> Result<(), Refusal> {
        let slot = self.slots.entry(task.to_owned()).or_default();
        if slot.up.is_some() || (is_dialler && slot.is_accepting) {
            return Err(Refusal::later(
                "PEER_BUSY",
                format!("another connection of {task} came first"),
            ));
        }
        slot.up = Some(Up { peer, incarnation });
        Ok(())
    }

    /// The connection `peer` of `task` is over.
    pub(crate) fn down(&mut self, task: &str, peer: PeerId) {
        self.change(task, |slot| {
            if slot.up.is_some_and(|up| up.peer == peer) {
                slot.up = None;
            }
        });
    }

    /// True if `task` is connected.
    pub(crate) fn is_up(&self, task: &str) -> bool {
        self.peer(task).is_some()
    }

    /// The connection of `task`, if it is connected.
    pub(crate) fn peer(&self, task: &str) -> Option<PeerId> {
        self.slots.get(task)?.up.map(|up| up.peer)
    }

    /// True if a hello of `task` is being greeted.
    pub(crate) fn is_accepting(&self, task: &str) -> bool {
        self.slots.get(task).is_some_and(|slot| slot.is_accepting)
    }

    /// True while a task is being greeted that dialled us, or one is up that does not converse yet.
    pub(crate) fn is_meeting(&self, converses: impl Fn(PeerId) -> bool) -> bool {
        let converses = |slot: &Slot| slot.up.is_none_or(|up| converses(up.peer));
        self.slots
            .values()
            .any(|slot| slot.is_accepting || !converses(slot))
    }

    fn has_room(&self, task: &str) -> Result<(), Refusal> {
        if self.slots.len() < PEERS_MAX || self.slots.contains_key(task) {
            return Ok(());
        }
        Err(Refusal::later(
            "PEER_BUSY",
            format!(
                "task {} has {PEERS_MAX} peers, the limit PEERS_MAX",
                self.own
            ),
        ))
    }

    fn change(&mut self, task: &str, change: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.slots.get_mut(task) {
            change(slot);
            if slot.up.is_none() && !slot.is_accepting && !slot.is_dial_greeting {
                self.slots.remove(task);
            }
        }
    }
}

#[cfg(test)]
mod tests;
