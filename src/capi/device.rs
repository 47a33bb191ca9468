//! Tensors in the memory of devices, as C sees them: copied there behind the work of a stream, ordered before that of
//! another, and freed behind it.
#![allow(unsafe_code)]

use std::ffi::c_void;

use rendez::engine::EngineDevices;
use rendez::memory::{Lane, Stream, TensorBytes};
use rendez::{DeviceMemory, DevicePtr, Status, Tensor};

use super::engine::CEngine;
use super::status::{CStatus, answer, answer_new, argument, put, read, write};
use super::tensor::{CTensor, Meta, finished};

/// Memory of C's on a device, read by a copy that the owner's stream is ordered around.
#[derive(Debug)]
struct Source(DevicePtr);

impl DeviceMemory for Source {
    fn place(&self) -> DevicePtr {
        self.0
    }
}

/// A lane of the engine's that goes to its next user whatever comes of the work.
struct Taken<'a> {
    devices: &'a EngineDevices,
    /// `None` once it is used.
    lane: Option<Lane>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.devices.settle(lane);
        }
    }
}

/// A stream of C's.
///
/// # Safety
/// The driver knows it for as long as what is returned lives.
unsafe fn borrowed(
    devices: &EngineDevices,
    device: u32,
    stream: *mut c_void,
) -> Result<Stream, Status> {
    let accelerator = devices.accelerator()?;
    // SAFETY: the driver knows the stream, as the caller vouches.
    Ok(unsafe { Stream::borrowed_on(&accelerator, device, stream.addr() as u64) }?)
}

pub(crate) unsafe extern "C" fn tensor_copy_device(
    engine: *const CEngine,
    meta: *const Meta,
    device: u32,
    address: u64,
    stream: *mut c_void,
    tensor: *mut *mut CTensor,
) -> *mut CStatus {
    let make = || {
        // SAFETY: the header's contract is that of `read`.
        let devices = unsafe { read(engine, "engine") }?.engine().devices()?;
        // SAFETY: as above.
        let meta = unsafe { read(meta, "meta") }?.tensor_meta()?;
        let size = meta.size().ok_or_else(|| {
            argument(format!(
                "{} of {} are longer than memory can be",
                meta.shape, meta.dtype
            ))
        })?;
        // SAFETY: the header says that the driver knows the stream until this returns.
        let stream = unsafe { borrowed(&devices, device, stream) }?;
        let source = Source(DevicePtr {
            kind: devices.accelerator()?.kind(),
            device,
            address,
            size,
        });
        let source = Tensor::from_device(meta, source)?;
        let mut taken = Taken {
            devices: &devices,
            lane: Some(devices.lane(device)?),
        };
        if let Some(lane) = taken.lane.as_mut() {
            devices.follow(lane, &stream)?;
        }
        let lane = taken.lane.take();
        let lane = lane.ok_or_else(|| argument("the lane was being used"))?;
        let copied = devices.copy(&source, lane)?;
        // What the stream does next may write to the memory.
        devices.order(&copied, &stream)?;
        Ok(CTensor::Done(copied))
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(tensor, "tensor", make) }
}

/// The number of a device, or -1; an address; and how many bytes. One that is being written stays so: its bytes may lie
/// in the handle, and would move.
///
/// # Safety
/// As [`finished`].
unsafe fn place_of(tensor: *mut CTensor) -> Result<(i32, u64, usize), Status> {
    let here = |bytes: &[u8]| (-1, bytes.as_ptr().addr() as u64, bytes.len());
    // SAFETY: by the caller's contract nothing frees it, and what is done is changed by no function.
    let is_done = matches!(unsafe { read(tensor, "tensor") }?, CTensor::Done(_));
    // SAFETY: it is still written, so by the caller's contract this call alone uses it.
    if !is_done && let Some(bytes) = unsafe { write(tensor, "tensor") }?.writable() {
        return Ok(here(bytes));
    }
    // SAFETY: the caller's contract is that of `finished`.
    Ok(match unsafe { finished(tensor) }?.bytes() {
        TensorBytes::Host(bytes) => here(bytes),
        TensorBytes::Device(place) => (
            i32::try_from(place.device).unwrap_or(i32::MAX),
            place.address,
            place.size as usize,
        ),
    })
}

pub(crate) unsafe extern "C" fn tensor_place(
    tensor: *mut CTensor,
    device: *mut i32,
    address: *mut u64,
    size: *mut usize,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `place_of`.
        let (number, start, len) = unsafe { place_of(tensor) }?;
        // SAFETY: the header's contract is that of `put`.
        unsafe { put(device, number, "device") }?;
        // SAFETY: as above.
        unsafe { put(address, start, "address") }?;
        // SAFETY: as above.
        unsafe { put(size, len, "size") }
    })
}

pub(crate) unsafe extern "C" fn tensor_to_device(
    engine: *const CEngine,
    tensor: *mut CTensor,
    device: u32,
    copy: *mut *mut CTensor,
) -> *mut CStatus {
    let make = || {
        // SAFETY: the header's contract is that of `read`.
        let devices = unsafe { read(engine, "engine") }?.engine().devices()?;
        // SAFETY: the header's contract is that of `finished`.
        let tensor = unsafe { finished(tensor) }?;
        let made = devices.to_device(tensor, device)?;
        Ok(CTensor::Done(made))
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(copy, "copy", make) }
}

pub(crate) unsafe extern "C" fn tensor_to_host(
    engine: *const CEngine,
    tensor: *mut CTensor,
    copy: *mut *mut CTensor,
) -> *mut CStatus {
    let make = || {
        // SAFETY: the header's contract is that of `read`.
        let engine = unsafe { read(engine, "engine") }?.engine();
        // SAFETY: the header's contract is that of `finished`.
        let tensor = unsafe { finished(tensor) }?;
        let made = match tensor.is_device() {
            true => engine.devices()?.to_host(tensor)?,
            false => tensor.clone(),
        };
        Ok(CTensor::Done(made))
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(copy, "copy", make) }
}

pub(crate) unsafe extern "C" fn tensor_order(
    engine: *const CEngine,
    tensor: *mut CTensor,
    device: u32,
    stream: *mut c_void,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `read`.
        let devices = unsafe { read(engine, "engine") }?.engine().devices()?;
        // SAFETY: the header's contract is that of `finished`.
        let tensor = unsafe { finished(tensor) }?;
        // SAFETY: the header says that the driver knows the stream until this returns.
        let stream = unsafe { borrowed(&devices, device, stream) }?;
        devices.order(tensor, &stream)
    })
}

pub(crate) unsafe extern "C" fn tensor_free_after(
    engine: *const CEngine,
    tensor: *mut CTensor,
    device: u32,
    stream: *mut c_void,
) -> *mut CStatus {
    answer(|| {
        // The handle is gone whatever comes of it, so it is taken first.
        // SAFETY: the header's contract is that of `take`.
        let tensor = unsafe { CTensor::take(tensor) }?;
        let released = || {
            // SAFETY: the header's contract is that of `read`.
            let devices = unsafe { read(engine, "engine") }?.engine().devices()?;
            // SAFETY: the header says that the driver knows the stream until this returns.
            let stream = unsafe { borrowed(&devices, device, stream) }?;
            Ok((devices, stream))
        };
        match released() {
            Ok((devices, stream)) => devices.release_after(tensor, &stream),
            Err(status) => {
                if tensor.is_device() {
                    // Work that is not known may still read it.
                    std::mem::forget(tensor);
                }
                Err(status)
            }
        }
    })
}

#[cfg(test)]
mod tests;
