//! Memory of devices that other libraries lend, in time: tensors of it before its bytes are there.
//!
//! Such a tensor is read in place within this process. No peer can import it: what leaves is a copy, as `copies.rs` has
//! it.

use super::EngineDevices;
use crate::ground::{Status, TensorMeta};
use crate::memory::{
    Accelerator, DeviceBuffer, DeviceMemory, DevicePtr, Lane, MemoryError, Stream, Tensor,
    lend_after,
};

impl EngineDevices {
    /// A tensor of memory that another library lends, whose bytes are there when `stream` has done what is queued on it
    /// now: the library's own stream, or one that it has let wait for its work. The host does not wait. The owner has
    /// its memory back when the last handle is gone and the stream is past that work.
    ///
    /// # Errors
    /// `DEVICE_POINTER` if it is no memory of a device, `REGION_OUTSIDE` if it is more than its allocation has,
    /// `DEVICE_OTHER` if it or the stream is another device's; `TENSOR_SHAPE` if it is not as long as `meta` takes;
    /// `DEVICE_ORDINAL`; what the driver says.
    pub fn lend(
        &self,
        meta: TensorMeta,
        memory: impl DeviceMemory + 'static,
        stream: &Stream,
    ) -> Result<Tensor, Status> {
        let all = self.all();
        check(all.accelerator()?.as_ref(), memory.place())?;
        let arena = all.arena(&self.inner, stream.device())?;
        Ok(lend_after(meta, memory, stream, &arena.times, &all.keeper)?)
    }
    /// A tensor of memory that is written by work which a lane follows; its bytes are there when the lane is past that.
    ///
    /// # Errors
    /// `DEVICE_OTHER` if the lane is another device's; `TENSOR_SHAPE` if the memory is not as long as `meta` takes;
    /// what the driver says: the memory is kept for ever then.
    pub fn finish(
        &self,
        buffer: DeviceBuffer,
        meta: TensorMeta,
        lane: Lane,
    ) -> Result<Tensor, Status> {
        let made = buffer.into_tensor_after(meta, lane.stream());
        self.settle(lane);
        Ok(made?)
    }

    /// Gives a lane to its next user when all that is queued on it is done: other libraries' work that it waits for.
    pub fn settle(&self, lane: Lane) {
        let all = self.all();
        if let Ok(arena) = all.arena(&self.inner, lane.stream().device()) {
            lane.settle(&arena.times, &all.keeper);
        }
    }
}

/// Whether another library's memory is what it is said to be.
pub(super) fn check(accelerator: &dyn Accelerator, place: DevicePtr) -> Result<(), MemoryError> {
    if place.size == 0 {
        return Ok(());
    }
    let extent = accelerator.extent(place.address)?;
    if extent.device != place.device {
        let (kind, device) = (place.kind, place.device);
        return Err(MemoryError::OtherDevice { kind, device });
    }
    let (offset, segment_len) = (place.address - extent.address, extent.len as u64);
    if offset
        .checked_add(place.size)
        .is_none_or(|end| end > segment_len)
    {
        return Err(MemoryError::Outside {
            offset,
            len: place.size,
            segment_len,
        });
    }
    Ok(())
}
