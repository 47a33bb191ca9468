//! What a poll moves on: completions to their links, links to their end.
//!
//! Knows all queue pairs of a port; how each handles its completions is the link's business.
#![allow(unsafe_code)]

use super::{COMPLETIONS_PER_POLL, RECEIVE, VerbsPort};
use crate::fabric::verbs::error::{CompletionStatus, VerbsError};
use crate::fabric::verbs::link::Tools;
use crate::fabric::verbs::{RECEIVE_SLOTS, sys};
use crate::fabric::{Arrival, DownReason};
use crate::ground::limits::{VERBS_SLOT_BYTES, VERBS_WINDOW};

impl VerbsPort {
    pub(super) fn flush_active(&mut self) {
        for at in (0..self.active.len()).rev() {
            let index = self.active[at];
            let (mut has_failed, mut has_work) = (false, false);
            if let Some((link, slots, mut tools)) = self.at(index) {
                has_work = link.flush(slots, &mut tools);
                has_failed = link.has_failed();
                link.is_active = has_work;
            }
            if !has_work {
                self.active.swap_remove(at);
            }
            if has_failed && !mutant!("verbs_refused_post_ignored") {
                self.go_down(index, DownReason::Reset, None);
            }
        }
    }

    pub(super) fn go_down(&mut self, index: u16, reason: DownReason, fault: Option<VerbsError>) {
        if let Some(link) = &mut self.places[usize::from(index)].link {
            link.go_down(reason, fault);
            if !self.ending.contains(&index) {
                self.ending.push(index);
            }
        }
    }

    /// Takes what is in the completion queue, when all that was taken before was looked at.
    #[inline]
    pub(super) fn take_completions(&mut self) {
        self.inbox_at = 0;
        self.inbox_len = self.completions.poll(&mut self.inbox).unwrap_or_else(|_| {
            self.is_broken = true;
            0
        });
    }

    /// Looks at completions until something else must be done; true if there are no more.
    pub(super) fn look<S: FnMut(Arrival<'_>)>(
        &mut self,
        left: &mut usize,
        done: &mut usize,
        sink: &mut S,
    ) -> bool {
        for _ in 0..COMPLETIONS_PER_POLL {
            if *left == 0 {
                return false;
            }
            if let Some(completion) = self.again.pop_front() {
                *done += 1;
                if self.received(&completion, sink) {
                    *left -= 1;
                }
                continue;
            }
            if self.inbox_at == self.inbox_len {
                self.take_completions();
                if self.inbox_len == 0 {
                    return true;
                }
            }
            let completion = self.inbox[self.inbox_at];
            self.inbox_at += 1;
            *done += 1;
            self.stats.completions += 1;
            if completion.wr_id & RECEIVE == 0 {
                self.completed(&completion);
            } else if self.received(&completion, sink) {
                *left -= 1;
            }
        }
        false
    }

    /// A completion of something that was sent.
    #[inline]
    pub(super) fn completed(&mut self, completion: &sys::ibv_wc) {
        let index = (completion.wr_id >> 32) as u16;
        let generation = (completion.wr_id >> 48) as u16;
        let is_known = self
            .places
            .get(usize::from(index))
            .is_some_and(|place| place.generation & 0x7fff == generation);
        if !is_known {
            return;
        }
        let status = CompletionStatus(completion.status);
        let mut has_work = false;
        if let Some((link, _, mut tools)) = self.at(index) {
            let is_success = status == CompletionStatus::SUCCESS;
            link.completed(completion.wr_id as u32, is_success, &mut tools);
            has_work = link.has_work();
        }
        if status != CompletionStatus::SUCCESS && !mutant!("verbs_send_errors_ignored") {
            self.failed(index, completion);
        } else if has_work {
            self.activate(index);
        }
    }

    /// A completion of something that was received. True if the sink was given something.
    #[inline]
    pub(super) fn received<S: FnMut(Arrival<'_>)>(
        &mut self,
        completion: &sys::ibv_wc,
        sink: &mut S,
    ) -> bool {
        let (slab, slot) = slot_of(completion);
        if slab >= self.slabs.len() || slot >= RECEIVE_SLOTS {
            return false;
        }
        let known = self
            .numbers
            .binary_search_by_key(&completion.qp_num, |known| known.0);
        let mut was_given = false;
        if let Ok(at) = known {
            let index = self.numbers[at].1;
            match self.heard(index, completion, sink) {
                Heard::Nothing => {}
                Heard::Given => was_given = true,
                Heard::Waits => {
                    self.waits(index, completion);
                    return false;
                }
            }
        }
        self.add_entry(slab, slot);
        was_given
    }

    /// Keeps what came for a queue pair that is not adopted yet. A peer that sends more than it was granted is dropped.
    #[cold]
    fn waits(&mut self, index: u16, completion: &sys::ibv_wc) {
        self.waiting.push(*completion);
        let of_it = |waiting: &&sys::ibv_wc| waiting.qp_num == completion.qp_num;
        if self.waiting.iter().filter(of_it).count() > usize::from(VERBS_WINDOW) {
            self.go_down(index, DownReason::Corrupt, None);
        }
    }

    /// What waited for the queue pair of this number, which is adopted now, is handled.
    #[cold]
    pub(super) fn look_again(&mut self, number: u32) {
        let Self { waiting, again, .. } = self;
        waiting.retain(|completion| {
            let is_of_it = completion.qp_num == number;
            if is_of_it {
                again.push_back(*completion);
            }
            !is_of_it
        });
    }

    /// What waited for the queue pair of this number, which is gone, only gives its entries back: another may get the
    /// number.
    #[cold]
    fn let_go(&mut self, number: u32) {
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at) {
            if waiting.qp_num == number {
                let (slab, slot) = slot_of(waiting);
                self.waiting.remove(at);
                self.add_entry(slab, slot);
            } else {
                at += 1;
            }
        }
    }

    /// A peer's message or write.
    #[inline]
    fn heard<S: FnMut(Arrival<'_>)>(
        &mut self,
        index: u16,
        completion: &sys::ibv_wc,
        sink: &mut S,
    ) -> Heard {
        let Self {
            places,
            slabs,
            given,
            active,
            ..
        } = self;
        if completion.status != sys::IBV_WC_SUCCESS {
            if !mutant!("verbs_receive_errors_ignored") {
                self.failed(index, completion);
            }
            return Heard::Nothing;
        }
        let Some(link) = places[usize::from(index)].link.as_mut() else {
            return Heard::Nothing;
        };
        if link.is_waiting() {
            return Heard::Waits;
        }
        let result = if completion.opcode == sys::IBV_WC_RECV_RDMA_WITH_IMM {
            link.written(u32::from_be(completion.imm_data), completion.byte_len, sink)
        } else {
            let (slab, slot) = slot_of(completion);
            let len = (completion.byte_len as usize).min(VERBS_SLOT_BYTES);
            // SAFETY: the slot's completion was polled just now, so the device has done with it; it is posted again
            // only after this.
            let bytes = unsafe { slabs[slab].bytes(slot, len) };
            link.heard(bytes, given, sink)
        };
        match result {
            Ok(was_given) => {
                // Credit may be due, and what waited for credit may go.
                if link.has_work() && !std::mem::replace(&mut link.is_active, true) {
                    active.push(index);
                }
                if was_given {
                    Heard::Given
                } else {
                    Heard::Nothing
                }
            }
            Err(reason) => {
                self.go_down(index, reason, None);
                Heard::Nothing
            }
        }
    }

    /// An operation ended with an error: its queue pair goes down, and nothing else.
    #[cold]
    pub(super) fn failed(&mut self, index: u16, completion: &sys::ibv_wc) {
        let status = CompletionStatus(completion.status);
        let reason = match completion.status {
            _ if mutant!("verbs_reasons_lost") => DownReason::Reset,
            sys::IBV_WC_RETRY_EXC_ERR | sys::IBV_WC_RESP_TIMEOUT_ERR => DownReason::TimedOut,
            sys::IBV_WC_REM_ACCESS_ERR | sys::IBV_WC_REM_INV_REQ_ERR | sys::IBV_WC_REM_OP_ERR => {
                DownReason::Corrupt
            }
            _ => DownReason::Reset,
        };
        let fault = VerbsError::Completion {
            device: self.domain.device().name().clone(),
            queue_pair: completion.qp_num,
            status,
            vendor: completion.vendor_err,
        };
        if mutant!("verbs_error_ends_all") {
            self.all_down();
        }
        self.go_down(index, reason, Some(fault));
    }

    /// Moves queue pairs that are leaving or down towards their end. `is_empty`: no completion was left. Others may
    /// keep the queue from ever being so; as it is in order, a whole queue of later ones proves the same.
    pub(super) fn end(&mut self, is_empty: bool) {
        if self.ending.is_empty() {
            return;
        }
        self.domain.look_unwatched();
        let count = self.stats.completions;
        for at in (0..self.ending.len()).rev() {
            let index = self.ending[at];
            let now = self.now;
            let Some(link) = &mut self.places[usize::from(index)].link else {
                self.ending.swap_remove(at);
                continue;
            };
            if link.has_left(now) {
                link.go_down(DownReason::Closed, None);
            }
            if !link.is_drained(now) {
                continue;
            }
            // Completions were looked at before this was known: only a later look says that those of before are gone.
            let Some(drained_at) = link.drained_at else {
                link.drained_at = Some(count);
                continue;
            };
            let has_come =
                count - drained_at >= self.completions_max && !mutant!("verbs_busy_pairs_kept");
            if is_empty || has_come {
                self.stats.undrained += u64::from(!link.has_used_last_entry());
                self.ending.swap_remove(at);
                self.forget(index);
            }
        }
    }

    /// Destroys a quiet queue pair; its place is free under a new generation.
    pub(super) fn forget(&mut self, index: u16) {
        let Self {
            places,
            stage,
            stats,
            given,
            ..
        } = self;
        let place = &mut places[usize::from(index)];
        let Some(mut link) = place.link.take() else {
            return;
        };
        let number = link.number();
        let destroyed = link.destroy();
        place.fault = link.fault().cloned().or_else(|| destroyed.clone().err());
        place.generation = place.generation.wrapping_add(1);
        let mut tools = Tools {
            stage,
            stats,
            given,
        };
        if destroyed.is_ok() || mutant!("verbs_quarantine_unkept") {
            link.finish(&mut tools);
            self.free.push(index);
        } else {
            link.end_unproved(&mut tools);
            self.keep(index, link);
        }
        self.numbers.retain(|known| known.0 != number);
        self.let_go(number);
        self.active.retain(|&active| active != index);
    }

    /// The queues themselves failed, or the device: every queue pair goes down.
    #[cold]
    pub(super) fn all_down(&mut self) {
        let fault = VerbsError::Fatal {
            device: self.domain.device().name().clone(),
        };
        for index in 0..self.places.len() as u16 {
            self.go_down(index, DownReason::Reset, Some(fault.clone()));
        }
    }

    pub(super) fn give<S: FnMut(Arrival<'_>)>(
        &mut self,
        left: &mut usize,
        done: &mut usize,
        sink: &mut S,
    ) {
        while *left > 0
            && let Some(given) = self.given.pop_front()
        {
            *left -= 1;
            *done += 1;
            given.give(sink);
        }
    }
}

/// What a message or a write of a peer's came to.
enum Heard {
    Nothing,
    /// The sink was given something.
    Given,
    /// Its queue pair is not adopted yet.
    Waits,
}

/// The slab and the slot that a receive entry is of.
#[inline]
const fn slot_of(completion: &sys::ibv_wc) -> (usize, usize) {
    let slab = (completion.wr_id >> 32 & 0xffff) as usize;
    (slab, (completion.wr_id & 0xffff) as usize)
}
