//! Copies of what is not registered, on their way to a peer.
//!
//! Knows slots and which are free; not what becomes of the copies.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::domain::Domain;
use super::error::VerbsError;
use super::slots::Slots;
use crate::ground::limits::{VERBS_STAGE_BYTES, VERBS_STAGES};

/// Slots for copies.
#[derive(Debug)]
pub(super) struct StagingSlots {
    pub(super) slots: Slots,
    pub(super) free: Vec<u16>,
    /// Bytes that may still be copied in this poll: a copy holds the loop up.
    budget: usize,
}

impl StagingSlots {
    pub(super) fn new(domain: &Arc<Domain>) -> Result<Self, VerbsError> {
        Ok(Self {
            slots: Slots::new(domain, VERBS_STAGE_BYTES, VERBS_STAGES)?,
            free: (0..VERBS_STAGES as u16).rev().collect(),
            budget: 0,
        })
    }

    /// The device may still work on the slots: they are never given back.
    pub(super) fn leave(&self) {
        self.slots.leave();
    }

    pub(super) const fn begin_poll(&mut self) {
        self.budget = VERBS_STAGE_BYTES;
    }

    /// A slot with a copy of `bytes`; `None` if there is none now.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Option<u16> {
        if bytes.len() > self.budget {
            return None;
        }
        let slot = self.free.pop()?;
        self.budget -= bytes.len();
        // SAFETY: the slot was free: the request that named it last is complete.
        let to = unsafe { self.slots.bytes_mut(slot.into()) };
        to[..bytes.len()].copy_from_slice(bytes);
        Some(slot)
    }
}
