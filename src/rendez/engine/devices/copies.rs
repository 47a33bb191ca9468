//! Copies from device to device: on streams of their own, and when one is made before a value
//! leaves.
//!
//! Knows accelerators by their trait. A peer that cannot import a value's memory may see another of our devices, or the
//! same one: then a copy in our arena is lent to it, and nothing goes through the host.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::EngineDevices;
use super::loans::check;
use crate::engine::users::Users;
use crate::engine::{Engine, Inner};
use crate::ground::{Key, Locked, Status, catalogue, faults};
use crate::mail::Received;
use crate::memory::{DeviceBuffer, DevicePtr, Lane, Stream, Tensor, TensorBytes};

impl EngineDevices {
    /// A stream of a device to copy by: other libraries order their work before it.
    ///
    /// # Errors
    /// `DEVICE_ORDINAL`; `DEVICE_UNSUPPORTED`; what the driver says.
    pub fn lane(&self, device: u32) -> Result<Lane, Status> {
        Ok(self.all().arena(&self.inner, device)?.lanes.take()?)
    }

    /// Lets what a lane does next wait for all that is queued on `stream` now.
    ///
    /// # Errors
    /// What the driver says.
    pub fn follow(&self, lane: &mut Lane, stream: &Stream) -> Result<(), Status> {
        let arena = self.all().arena(&self.inner, lane.stream().device())?;
        Ok(lane.follow(stream, &arena.times)?)
    }

    /// Memory for a copy of a tensor, which is what it says it is.
    fn room_for(
        &self,
        tensor: &Tensor,
        place: DevicePtr,
        device: u32,
    ) -> Result<DeviceBuffer, Status> {
        if tensor.house().is_none() && !tensor.is_leased() {
            check(self.all().accelerator()?.as_ref(), place)?;
        }
        self.buffer(device, tensor.meta())
    }

    /// A copy of a device's tensor in the memory of the lane's device, which peers read in place. The host does not
    /// wait; the tensor, of whatever library, is kept until the copy is over. If it is a peer's, not there yet, and the
    /// peer dies before it is, then the copy holds anything: [`EngineDevices::order`] tells so of the tensor.
    ///
    /// # Errors
    /// As [`EngineDevices::buffer`]; `DEVICE_POINTER` if the tensor's bytes are no memory of a device, `REGION_OUTSIDE`
    /// if they are more than its allocation has, `DEVICE_OTHER` if they are another device's than the tensor says;
    /// `DEVICE_LOST` if they will never be there; `TENSOR_DEVICE` for one of the host's; what the driver says.
    pub fn copy(&self, tensor: &Tensor, lane: Lane) -> Result<Tensor, Status> {
        let TensorBytes::Device(place) = tensor.bytes() else {
            let message = "it lies in host memory, and should be copied from device memory";
            return Err(Status::of(catalogue::TENSOR_DEVICE, message));
        };
        let all = self.all();
        let device = lane.stream().device();
        let arena = all.arena(&self.inner, device)?;
        let buffer = match self.room_for(tensor, place, device) {
            Ok(buffer) => buffer,
            Err(status) => {
                self.settle(lane);
                return Err(status);
            }
        };
        let copied = lane.copy(tensor.clone(), buffer, &arena.times, &all.keeper);
        let is_far = place.device != device;
        match copied.map_err(Status::from) {
            Err(status) if is_far && status.reason() == catalogue::DEVICE_UNSUPPORTED => {
                // Each device has a way to the host.
                self.copy_of_host(&self.to_host(tensor)?, device)
            }
            copied => {
                let done = if copied.is_ok() { place.size } else { 0 };
                arena.between.fetch_add(done, Ordering::Relaxed);
                copied
            }
        }
    }
}

impl Engine {
    /// Copies a received value's bytes to the beginning of `room`, and tells how many they are: as
    /// [`Received::copy_into`], and bytes of a device by way of the engine's memory, when they are there.
    ///
    /// # Errors
    /// `RECV_ROOM` if `room` is too short; what [`EngineDevices::to_host`] names, and on the thread of a shard, which
    /// cannot wait for a device, `TENSOR_DEVICE`.
    pub fn copy_into(&self, received: &Received, room: &mut [u8]) -> Result<usize, Status> {
        self.inner.copy_into(received, room)
    }
}

impl Inner {
    /// As [`Engine::copy_into`].
    pub(in crate::engine) fn copy_into(
        self: &Arc<Self>,
        received: &Received,
        room: &mut [u8],
    ) -> Result<usize, Status> {
        let TensorBytes::Device(place) = received.tensor.bytes() else {
            return received.copy_into(room);
        };
        if crate::drive::is_shard_thread() {
            return received.copy_into(room);
        }
        let (len, has) = (place.size as usize, room.len());
        let room = room.get_mut(..len);
        let room = room.ok_or_else(|| faults::room_short(len, has))?;
        let here = self.wiring.devices().to_host(self, &received.tensor)?;
        room.copy_from_slice(here.host()?);
        Ok(len)
    }

    /// A device's tensor that is not read in place where it goes, as one that can go there: a copy on a device that the
    /// receiver sees, or one in the host's memory.
    pub(in crate::engine) fn staged(
        self: &Arc<Self>,
        key: &Key,
        tensor: &Tensor,
        why: Status,
    ) -> Result<Tensor, Status> {
        let devices = self.wiring.devices();
        if devices.accelerator.is_err() {
            return Err(why);
        }
        if crate::drive::is_shard_thread() {
            // The copy waits for the device.
            return Err(faults::device_value(None, tensor));
        }
        if let Some(device) = self.lendable(key, tensor) {
            let all = EngineDevices {
                inner: Users::none(Arc::clone(self)),
            };
            // A copy says when it is over, and not whether a peer died that was to write what it is of.
            let is_there = match tensor.is_leased() {
                true => devices.wait_for(self, tensor),
                false => Ok(()),
            };
            let lane = is_there.and_then(|()| all.lane(device));
            match lane.and_then(|lane| all.copy(tensor, lane)) {
                Ok(copied) => return Ok(copied),
                Err(status) => {
                    tracing::debug!(%status, "a value for a peer of this machine goes by way of the host");
                }
            }
        }
        devices.to_host(self, tensor)
    }

    /// The device on which a copy of a tensor could be read in place by the key's receiver; none if the tensor is such
    /// a copy, or there is no such device.
    fn lendable(&self, key: &Key, tensor: &Tensor) -> Option<u32> {
        let TensorBytes::Device(place) = tensor.bytes() else {
            return None;
        };
        let seen = *self
            .wiring
            .devices()
            .seen
            .locked()
            .get(key.destination_task())?;
        let is_seen = place.device < u64::BITS && seen >> place.device & 1 == 1;
        if is_seen {
            let is_ours = tensor.house() == Some(self.wiring.devices().house);
            return (!is_ours).then_some(place.device);
        }
        (seen != 0).then(|| seen.trailing_zeros())
    }
}
