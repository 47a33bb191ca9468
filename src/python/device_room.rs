//! Room on a device for a value that other libraries write: it is sent where it lies, behind the work of all who wrote.
//!
//! Every view of it names the stream that writes. When a view goes, a lane of ours follows that stream; the value is
//! made a tensor behind the lane, and memory that is not sent goes home behind it too.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rendez::engine::EngineDevices;
use rendez::ground::{Locked, catalogue};
use rendez::memory::{DeviceBuffer, Lane, Stream};
use rendez::{DevicePtr, Status, Tensor, TensorMeta};

use super::device::{Asked, DEFAULT, OF_THREAD, check_place, stream_of};
use super::device_id::DeviceId;
use super::dlpack::{Device, Lending};
use super::errors::Outcome;

/// Memory of a device, not yet a tensor.
pub(crate) struct DeviceRoom {
    /// `None` only in the drop, or in `finish`.
    buffer: Option<DeviceBuffer>,
    meta: TensorMeta,
    writers: Arc<Writers>,
}

/// The streams that write a room.
pub(crate) struct Writers {
    devices: EngineDevices,
    place: DevicePtr,
    /// Behind all whose views are gone; `None` if that is not known of one of them.
    lane: Mutex<Option<Lane>>,
}

impl DeviceRoom {
    pub(crate) fn new(
        devices: EngineDevices,
        device: u32,
        meta: TensorMeta,
    ) -> Result<Self, Status> {
        let buffer = devices.buffer(device, meta)?;
        let lane = devices.lane(device)?;
        let writers = Writers {
            place: buffer.place(),
            devices,
            lane: Mutex::new(Some(lane)),
        };
        Ok(Self {
            buffer: Some(buffer),
            meta,
            writers: Arc::new(writers),
        })
    }

    pub(crate) const fn meta(&self) -> TensorMeta {
        self.meta
    }

    pub(crate) const fn writers(&self) -> &Arc<Writers> {
        &self.writers
    }

    /// The tensor, there when all have written it.
    pub(crate) fn finish(mut self) -> Result<Tensor, Status> {
        self.take()
    }

    fn take(&mut self) -> Result<Tensor, Status> {
        let lost = || {
            let message = "the stream of one who wrote the tensor could not be followed: its memory is kept for ever";
            Status::of(catalogue::DEVICE_LOST, message)
        };
        let buffer = self.buffer.take().ok_or_else(lost)?;
        match self.writers.lane.locked().take() {
            Some(lane) => self.writers.devices.finish(buffer, self.meta, lane),
            None => {
                // Work that is not known may still write there.
                std::mem::forget(buffer);
                Err(lost())
            }
        }
    }
}

impl Drop for DeviceRoom {
    fn drop(&mut self) {
        if self.buffer.is_some() {
            // As a tensor, it goes home when it is written.
            let _unsent = self.take();
        }
    }
}

impl Writers {
    pub(crate) const fn place(&self) -> DevicePtr {
        self.place
    }

    pub(crate) const fn devices(&self) -> &EngineDevices {
        &self.devices
    }

    fn stream(&self, handle: u64) -> Outcome<Stream> {
        let accelerator = self.devices.accelerator()?;
        // SAFETY: a consumer of DLPack names a stream that the driver knows, and keeps it as long as its view.
        Ok(unsafe { Stream::borrowed_on(&accelerator, self.place.device, handle) }?)
    }

    /// What a view keeps whose work is on the stream of that handle.
    fn view(self: &Arc<Self>, handle: u64, keep: impl Send + 'static) -> Outcome<Box<dyn Send>> {
        let mut stream = self.stream(handle)?;
        if handle == OF_THREAD {
            // In the thread of the drop that may be another stream; the default stream meets them all.
            stream = self.stream(DEFAULT)?;
        }
        Ok(Box::new(View {
            stream,
            writers: Arc::clone(self),
            _keep: keep,
        }))
    }
}

struct View<K> {
    stream: Stream,
    writers: Arc<Writers>,
    /// Goes last: what holds it holds the room.
    _keep: K,
}

/// The capsule of a consumer that writes the room, which `keep` keeps.
pub(crate) fn lend<'py>(
    py: Python<'py>,
    writers: &Arc<Writers>,
    meta: TensorMeta,
    keep: impl Send + 'static,
    asked: &Asked<'_, 'py>,
) -> PyResult<Bound<'py, PyCapsule>> {
    let place = writers.place();
    let device = Device::of(Some(DeviceId::of(place)));
    check_place(device, asked.device)?;
    if asked.copy == Some(true) {
        return Err(PyBufferError::new_err(
            "what is written to a copy is not sent: take the tensor itself",
        ));
    }
    // Nothing is there to wait for: the work that used the memory before is done.
    let (handle, _) = stream_of(asked.stream)?;
    let lending = Lending {
        meta,
        device,
        data: std::ptr::without_provenance(place.address as usize),
        keep: writers.view(handle, keep)?,
        is_read_only: false,
        is_copied: false,
    };
    lending.capsule(py, asked.max_version)
}

impl<K> Drop for View<K> {
    fn drop(&mut self) {
        let mut lane = self.writers.lane.locked();
        let Some(ours) = lane.as_mut() else { return };
        if let Err(status) = self.writers.devices.follow(ours, &self.stream) {
            tracing::warn!(%status, "cannot make later work wait for a stream that wrote a tensor");
            *lane = None;
        }
    }
}
