//! Streams: queues of a device's work, ours or another library's.
//!
//! Knows no tensor. Work is queued here only in the words and copies of `times.rs` and `staging.rs`; kernels are the
//! application's own, queued by its own library on the same stream.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::{Accelerator, DevicePtr, MemoryError};

/// A stream of a device.
#[derive(Debug)]
pub struct Stream {
    accelerator: Arc<dyn Accelerator>,
    device: u32,
    raw: u64,
    is_ours: bool,
}

impl Stream {
    /// A new one, which is ended with its drop; its work is done all the same.
    ///
    /// # Errors
    /// [`MemoryError::Driver`]; [`MemoryError::Ordinal`] if there is no such device.
    pub fn new(accelerator: &Arc<dyn Accelerator>, device: u32) -> Result<Self, MemoryError> {
        let raw = accelerator.make_stream(device)?;
        Ok(Self {
            accelerator: Arc::clone(accelerator),
            device,
            raw,
            is_ours: true,
        })
    }

    /// Another library's, by its driver's handle: a `CUstream`, say.
    ///
    /// # Safety
    /// The driver knows the stream for as long as this lives.
    ///
    /// # Errors
    /// [`MemoryError::Context`] if it is of a context that is no device's primary one, or a handle that means a stream
    /// of each device; [`MemoryError::Driver`].
    pub unsafe fn borrowed(
        accelerator: &Arc<dyn Accelerator>,
        raw: u64,
    ) -> Result<Self, MemoryError> {
        // SAFETY: the driver knows the stream, as the caller vouches.
        let device = unsafe { accelerator.device_of(raw) }?;
        let kind = accelerator.kind();
        let device = device.ok_or(MemoryError::Context { kind })?;
        Ok(Self::of(accelerator, device, raw))
    }

    /// The same, of a device that its user names: a handle that means a stream of each device is that one's.
    ///
    /// # Safety
    /// As [`Stream::borrowed`].
    ///
    /// # Errors
    /// [`MemoryError::OtherDevice`] if it is of another one; [`MemoryError::Ordinal`] if there is no such device; as
    /// [`Stream::borrowed`].
    pub unsafe fn borrowed_on(
        accelerator: &Arc<dyn Accelerator>,
        device: u32,
        raw: u64,
    ) -> Result<Self, MemoryError> {
        let (kind, count) = (accelerator.kind(), accelerator.devices().len() as u32);
        if device >= count {
            return Err(MemoryError::Ordinal {
                kind,
                device,
                count,
            });
        }
        // SAFETY: the driver knows the stream, as the caller vouches.
        let found = unsafe { accelerator.device_of(raw) }?;
        if found.is_some_and(|found| found != device) {
            return Err(MemoryError::OtherDevice { kind, device });
        }
        Ok(Self::of(accelerator, device, raw))
    }

    fn of(accelerator: &Arc<dyn Accelerator>, device: u32, raw: u64) -> Self {
        Self {
            accelerator: Arc::clone(accelerator),
            device,
            raw,
            is_ours: false,
        }
    }

    /// Asks the driver whether a device still works: a call that makes a stream tells of work that failed before, and
    /// leaves nothing queued.
    ///
    /// # Errors
    /// [`MemoryError::Driver`].
    pub fn ask(accelerator: &Arc<dyn Accelerator>, device: u32) -> Result<(), MemoryError> {
        Self::new(accelerator, device).map(drop)
    }

    /// Asks the driver of a device, as [`Stream::ask`] does.
    pub(super) fn ask_of(&self, device: u32) -> Result<(), MemoryError> {
        Self::ask(&self.accelerator, device)
    }

    /// Its driver.
    pub(super) fn accelerator(&self) -> &dyn Accelerator {
        self.accelerator.as_ref()
    }

    /// Its device.
    #[must_use]
    pub const fn device(&self) -> u32 {
        self.device
    }

    /// The stream as its driver names it, to queue other work on it.
    #[must_use]
    pub const fn handle(&self) -> u64 {
        self.raw
    }

    /// Waits until all that is queued is done.
    ///
    /// # Errors
    /// [`MemoryError::Driver`].
    pub fn synchronize(&self) -> Result<(), MemoryError> {
        // SAFETY: the driver knows the stream for as long as `self` lives.
        unsafe { self.accelerator.synchronize(self.device, self.raw) }
    }

    /// Queues a write of a word, which `Times` keeps pinned until it is done.
    pub(super) fn write_word(&self, at: u64, value: u64) -> Result<(), MemoryError> {
        let (device, stream) = (self.device, self.raw);
        // SAFETY: the driver knows the stream; `Times` asks this for a word of its own, aligned and pinned, and keeps
        // it until the mark is over.
        unsafe { self.accelerator.write_word(device, stream, at, value) }
    }

    /// Lets what is queued next wait for a word, which `Times` keeps pinned.
    pub(super) fn await_word(&self, at: u64, value: u64) -> Result<(), MemoryError> {
        let (device, stream) = (self.device, self.raw);
        // SAFETY: as above.
        unsafe { self.accelerator.await_word(device, stream, at, value) }
    }

    /// Queues a copy to pinned memory.
    ///
    /// # Safety
    /// As [`Accelerator::to_host`].
    pub(super) unsafe fn to_host(
        &self,
        to: *mut u8,
        from: u64,
        len: usize,
    ) -> Result<(), MemoryError> {
        // SAFETY: the driver knows the stream; the rest as the caller vouches.
        unsafe { (self.accelerator).to_host(self.device, self.raw, to, from, len) }
    }

    /// Queues a copy from pinned memory.
    ///
    /// # Safety
    /// As [`Accelerator::to_device`].
    pub(super) unsafe fn to_device(
        &self,
        to: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), MemoryError> {
        // SAFETY: the driver knows the stream; the rest as the caller vouches.
        unsafe { (self.accelerator).to_device(self.device, self.raw, to, from, len) }
    }
}

impl Stream {
    /// Queues a copy from memory of a device.
    ///
    /// # Safety
    /// As [`Accelerator::copy`].
    pub(super) unsafe fn copy(&self, to: u64, from: DevicePtr) -> Result<(), MemoryError> {
        // SAFETY: the driver knows the stream; the rest as the caller vouches.
        unsafe { (self.accelerator).copy(self.device, self.raw, to, from) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_ours {
            // SAFETY: it came from `make_stream`, is ended once, and nothing else names it.
            unsafe { self.accelerator.end_stream(self.device, self.raw) };
        }
    }
}
