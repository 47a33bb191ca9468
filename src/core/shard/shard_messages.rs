//! Shard messages: what a neighbour in the same process asks of this shard, as its own tasks would.
//!
//! It decides nothing of its own: each message is a send, a receive or an end made elsewhere.

use super::core::Core;
use super::ids::NO_LINK;
use super::posting::Outlet;
use super::value::{Value, Waiter};
use crate::ground::{Status, faults};
use crate::mail::call::{MessageKey, ShardMessage};
use crate::rendezvous::{KeyId, Slot};
use crate::wire::Ticket;

impl Core {
    /// A note from a neighbour.
    pub(crate) fn handle_shard_message(&mut self, from: u16, note: ShardMessage) {
        match note {
            ShardMessage::Send {
                key,
                step,
                at,
                tensor,
                is_dead,
            } => {
                let id = match self.known_key(from, key) {
                    Ok(id) => id,
                    Err(status) => return self.lost(step, &status),
                };
                let slot = Slot { step, key: id, at };
                // A neighbour's send was accepted where it was made; a step that ended meanwhile drops it.
                if self.is_pressed() {
                    return match self.send_unheard(slot, tensor, is_dead) {
                        NO_LINK => {}
                        link => self.links.touch(link),
                    };
                }
                let way = self.way(id);
                let mut value = Some(Value::local(tensor, is_dead));
                match way.and_then(|way| self.send(way, slot, &mut value, &mut Outlet::default())) {
                    Ok(NO_LINK) => {}
                    Ok(link) => self.links.touch(link),
                    Err(status) => self.lost(step, &status),
                }
            }
            ShardMessage::Recv {
                key,
                step,
                at,
                wait,
                deadline,
                expected,
            } => {
                let noted = self.known_key(from, key);
                let noted = noted.and_then(|id| match self.stranger_fault(id, expected) {
                    Some(status) => Err(status),
                    None => Ok((id, self.way(id)?)),
                });
                let (id, way) = match noted {
                    Ok(noted) => noted,
                    Err(status) => {
                        let outcome = Err(status);
                        return self
                            .neighbour_queues
                            .push(from, ShardMessage::Deliver { wait, outcome });
                    }
                };
                let Some(ticket) = self.waits.add_neighbour(from, wait, expected) else {
                    let status = faults::waiters_exhausted(self.settings.waiters);
                    return self.neighbour_queues.push(
                        from,
                        ShardMessage::Deliver {
                            wait,
                            outcome: Err(status),
                        },
                    );
                };
                let slot = Slot { step, key: id, at };
                let placed = self.recv(None, way, slot, Waiter::Wait(ticket), deadline);
                if let Some(placed) = placed {
                    self.waits.set_place(ticket, placed);
                }
            }
            ShardMessage::Cancel { wait } => {
                if let Some(id) = self.waits.remove_neighbour(from, wait) {
                    self.unlink(id);
                }
            }
            ShardMessage::Deliver { wait, outcome } => {
                // A value for a task that has ended meanwhile goes back to the table it is from.
                if let Some(unread) = self.bring(Waiter::Wait(Ticket::unpack(wait)), outcome) {
                    self.neighbour_queues
                        .push(from, ShardMessage::Unread(unread));
                }
            }
            ShardMessage::Unread(unread) => self.unread(unread),
            ShardMessage::Interned { theirs, mine } => {
                if let Some(entry) = self.keys.at_mut(mine) {
                    entry.asked = entry.asked.saturating_sub(1);
                    entry.told += u32::from(theirs.is_some());
                    entry.owner_id = entry.owner_id.or(theirs);
                }
            }
            ShardMessage::Forget { key, told } => {
                if let Some(entry) = self.keys.at_mut(key) {
                    entry.pins = entry.pins.saturating_sub(told);
                }
            }
            ShardMessage::Abort { step, status } => {
                self.abort(step, &status);
            }
            ShardMessage::Drained => self.neighbour_queues.hear_drained(),
        }
    }

    pub(super) fn known_key(&mut self, from: u16, key: MessageKey) -> Result<KeyId, Status> {
        match key {
            MessageKey::Id(id) => Ok(id),
            MessageKey::Key(key, theirs) => {
                let met = self.intern(&key);
                if let Some(entry) = met.as_ref().ok().and_then(|&id| self.keys.at_mut(id)) {
                    entry.pins += 1;
                }
                self.neighbour_queues.push(
                    from,
                    ShardMessage::Interned {
                        theirs: met.as_ref().ok().copied(),
                        mine: theirs,
                    },
                );
                met
            }
        }
    }
}
