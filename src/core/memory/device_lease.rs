//! Leases of a device's memory: tensors over what a peer's device holds, and when their bytes are there.
//!
//! Knows a lease's entry (`lease.rs`), and the peer's times (`times.rs`). Nothing here reads a byte of the tensor.

use std::sync::Arc;

use super::device::{DeviceEvent, DevicePtr};
use super::lease::{Lease, LeaseToken, Leases};
use super::times::Stamp;
use super::{MappedSegment, MemoryError, Tensor, tensor};
use crate::ground::{Region, TensorMeta};

impl Leases {
    /// A tensor over `region` of a peer's segment of a device, whose times are told in `times`. As [`Leases::make`]
    /// otherwise.
    ///
    /// # Errors
    /// As [`Leases::make`]; why the segment could not be imported, if it was not; [`MemoryError::Unrecorded`].
    pub fn make_on_device(
        &mut self,
        mapped: Arc<MappedSegment>,
        times: Arc<MappedSegment>,
        region: Region,
        meta: TensorMeta,
        token: LeaseToken,
    ) -> Result<Tensor, MemoryError> {
        let place = mapped.place(region)?;
        let len = usize::try_from(place.size).unwrap_or(usize::MAX);
        tensor::check_len(meta, len)?;
        let stamp = Stamp::read(&times, region.offset);
        if !stamp.is_recorded() && !mutant!("device_stamps_unchecked") {
            return Err(MemoryError::Unrecorded);
        }
        let handle = self.enter(mapped, token)?;
        handle.node().put_on_device(region.offset, stamp.0, times);
        Ok(Tensor::of_device_lease(meta, len, handle))
    }
}

impl Lease {
    /// Where `len` bytes of it lie, if they lie on a device.
    pub(super) fn place(&self, len: usize) -> Option<DevicePtr> {
        let (mapped, offset, ..) = self.on_device()?;
        mapped.place_at(offset, len as u64).ok()
    }
}

impl DeviceEvent for Lease {
    fn is_over(&self) -> bool {
        let on_device = self.on_device();
        on_device.is_none_or(|(_, _, stamp, times)| Stamp(stamp).is_over(times))
    }

    fn is_lost(&self) -> bool {
        self.on_device()
            .is_some_and(|(.., times)| times.is_orphaned() || Stamp::is_lost(times))
    }

    fn handle(&self) -> u64 {
        // The event is a word that this process's devices do not reach.
        0
    }
}
