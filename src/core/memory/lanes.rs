//! Lanes: streams that copies from and to devices are queued on, each its user's alone until what it queued is done.
//!
//! Knows tensors and streams; not where a copy goes to. One stream for all would have copies wait for each other: one
//! that waits for a producer, which waits for what another is to bring, would wait for ever.
#![allow(unsafe_code)]

use std::sync::Arc;

use crossbeam::queue::SegQueue;

use super::builder::TensorBuilder;
use super::device::DeviceEvent as _;
use super::device_value::{DeviceBuffer, await_bytes, check_bytes};
use super::keeper::{Held, Keeper};
use super::stream::Stream;
use super::times::{Mark, Times};
use super::{Accelerator, DevicePtr, MemoryError, Pinned, Tensor, TensorBytes, TensorError};
use crate::ground::{MemoryKind, limits};

/// The lanes of one device.
#[derive(Debug)]
pub struct Lanes {
    accelerator: Arc<dyn Accelerator>,
    device: u32,
    idle: Arc<SegQueue<Arc<Stream>>>,
}

/// One lane. When it is dropped, which is when all of its work is done, the next user may have it (see
/// [`Lane::settle`]), or it ends if enough are idle.
#[derive(Debug)]
pub struct Lane {
    stream: Arc<Stream>,
    /// It is not known what is still queued there: it is used no more.
    is_spoilt: bool,
    /// What it waits for of another library's stream: the word is in use until the lane is past it.
    after: Vec<Mark>,
    home: Arc<SegQueue<Arc<Stream>>>,
}

impl Lanes {
    /// Of a device.
    #[must_use]
    pub fn new(accelerator: &Arc<dyn Accelerator>, device: u32) -> Self {
        Self {
            accelerator: Arc::clone(accelerator),
            device,
            idle: Arc::default(),
        }
    }

    /// An idle lane, or a new one.
    ///
    /// # Errors
    /// As [`Stream::new`].
    pub fn take(&self) -> Result<Lane, MemoryError> {
        let stream = match self.idle.pop() {
            Some(stream) => stream,
            None => Arc::new(Stream::new(&self.accelerator, self.device)?),
        };
        Ok(Lane {
            stream,
            is_spoilt: false,
            after: Vec::new(),
            home: Arc::clone(&self.idle),
        })
    }
}

impl Lane {
    /// Its stream, for other libraries to order their work before what is queued here.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Lets what is queued here next wait for all that is queued on `stream` now.
    ///
    /// # Errors
    /// [`MemoryError::Driver`] if the driver can neither mark the stream nor wait for it.
    pub fn follow(&mut self, stream: &Stream, words: &Arc<Times>) -> Result<(), MemoryError> {
        let Some(mark) = words.mark(stream)? else {
            return Ok(());
        };
        if mark.hold_back(&self.stream).is_err() {
            return stream.synchronize();
        }
        self.after.push(mark);
        Ok(())
    }

    /// Gives it to the next user when all that is queued on it is done.
    pub fn settle(mut self, words: &Arc<Times>, keeper: &Keeper) {
        match words.mark(&self.stream) {
            Ok(Some(mark)) if !mark.is_over() => keeper.keep(mark, Held::Lane(self)),
            Ok(_) => {}
            Err(_) => self.is_spoilt = true,
        }
    }

    /// Waits until a device's tensor is there, on this lane, so that the driver is asked too: it hears of a device that
    /// is gone.
    ///
    /// # Errors
    /// [`MemoryError::Lost`] if the bytes will never be there; [`MemoryError::Driver`].
    pub fn wait_for(
        mut self,
        tensor: &Tensor,
        words: &Arc<Times>,
        keeper: &Keeper,
    ) -> Result<(), MemoryError> {
        let there = await_bytes(tensor, &self.stream, words, keeper)
            .and_then(|()| self.wait(words))
            .inspect_err(|_| self.is_spoilt = true);
        there.and_then(|()| check_bytes(tensor, keeper))
    }

    /// Waits until all that is queued here is done.
    fn wait(&self, words: &Arc<Times>) -> Result<(), MemoryError> {
        match words.mark(&self.stream)? {
            Some(mark) => mark.wait(&self.stream),
            None => Ok(()),
        }
    }

    /// Queues a copy of a device's tensor, as soon as its bytes are there; the copy can be sent on at once. The source
    /// and the lane are let go when the copy is over. A source whose bytes are not there yet may be lost then, and the
    /// copy holds anything: [`Lane::wait_for`] comes first where that must not pass for a value.
    ///
    /// # Errors
    /// [`MemoryError::Tensor`] if the buffer is of another length, or the tensor the host's;
    /// [`MemoryError::OtherDevice`] if it is not of the lane's device; [`MemoryError::Lost`] if the bytes will never be
    /// there; [`MemoryError::Driver`].
    pub fn copy(
        self,
        source: Tensor,
        to: DeviceBuffer,
        words: &Arc<Times>,
        keeper: &Keeper,
    ) -> Result<Tensor, MemoryError> {
        let from = match self.check(&source, to.place()) {
            Ok(from) => from,
            Err(error) => {
                self.settle(words, keeper);
                return Err(error);
            }
        };
        let queued = await_bytes(&source, &self.stream, words, keeper).and_then(|()| {
            if from.size == 0 {
                return Ok(());
            }
            // SAFETY: the buffer is as long, and touched by no other work before it is made a tensor behind this
            // stream's work; the source is kept until the stream is past the copy.
            unsafe { self.stream.copy(to.place().address, from) }
        });
        self.finish(queued, source, None, to, words, keeper)
    }

    /// Queues a copy of a tensor of the host's, which lies in memory that devices reach. As [`Lane::copy`] otherwise.
    ///
    /// # Errors
    /// As [`Lane::copy`], but [`MemoryError::Kind`] for a device's tensor; [`MemoryError::Outside`] if its bytes do not
    /// lie in `pinned`.
    pub fn to_device(
        self,
        source: Tensor,
        pinned: Arc<Pinned>,
        to: DeviceBuffer,
        words: &Arc<Times>,
        keeper: &Keeper,
    ) -> Result<Tensor, MemoryError> {
        let checked = match source.bytes() {
            TensorBytes::Host(bytes) => Self::check_host(bytes, &pinned)
                .and_then(|()| self.check_room(bytes.len() as u64, to.place()))
                .map(|()| bytes.as_ptr()),
            TensorBytes::Device(place) => Err(MemoryError::Kind { kind: place.kind }),
        };
        let from = match checked {
            Ok(from) => from,
            Err(error) => {
                self.settle(words, keeper);
                return Err(error);
            }
        };
        let place = to.place();
        // SAFETY: the buffer is as long, and touched by no other work before it is made a tensor behind this stream's
        // work; the source's bytes are registered and never written, and both are kept until the stream is past it.
        let queued = unsafe {
            self.stream
                .to_device(place.address, from, place.size as usize)
        };
        self.finish(queued, source, Some(pinned), to, words, keeper)
    }

    /// Copies a device's tensor into room that lies in memory which devices reach, when the tensor's bytes are there.
    /// Returns when it is done.
    ///
    /// # Errors
    /// As [`Lane::copy`]; [`MemoryError::Outside`] if the room does not lie in `pinned`. If the driver failed with the
    /// copy under way, the room is kept until the process ends.
    pub fn to_host(
        mut self,
        source: &Tensor,
        pinned: &Arc<Pinned>,
        mut out: TensorBuilder,
        words: &Arc<Times>,
        keeper: &Keeper,
    ) -> Result<Tensor, MemoryError> {
        let bytes = out.bytes_mut();
        let (to, len) = (bytes.as_mut_ptr(), bytes.len() as u64);
        let checked = Self::check_host(bytes, pinned).and_then(|()| self.check_source(source, len));
        let from = match checked {
            Ok(from) => from,
            Err(error) => {
                self.settle(words, keeper);
                return Err(error);
            }
        };
        let queued = await_bytes(source, &self.stream, words, keeper).and_then(|()| {
            // SAFETY: the source is kept by the caller until the copy is over; the room is registered, as long, and
            // touched by no code before that.
            unsafe { self.stream.to_host(to, from.address, len as usize) }
        });
        if let Err(error) = queued {
            self.is_spoilt = true;
            return Err(error);
        }
        match self.wait(words) {
            Ok(()) => check_bytes(source, keeper).map(|()| out.finish()),
            Err(error) => {
                // The device may still read the one and write the other.
                self.is_spoilt = true;
                keeper.quarantine(Held::Tensor(source.clone()));
                self.keep(pinned);
                std::mem::forget(out);
                Err(error)
            }
        }
    }

    /// The tensor of a copy that was queued, or was not; what it reads, and the lane, are kept until it is over.
    fn finish(
        mut self,
        queued: Result<(), MemoryError>,
        source: Tensor,
        pinned: Option<Arc<Pinned>>,
        to: DeviceBuffer,
        words: &Arc<Times>,
        keeper: &Keeper,
    ) -> Result<Tensor, MemoryError> {
        if let Err(error) = queued {
            self.is_spoilt = true;
            return Err(error);
        }
        let stream = Arc::clone(&self.stream);
        let made = to.into_tensor_after(source.meta(), &stream);
        // Marked behind the copy: when that is over nothing of it is under way.
        let mark = match &made {
            Ok(_) => words.mark(&stream),
            Err(error) => Err(*error),
        };
        if let (Err(_), Some(pinned)) = (&mark, &pinned) {
            self.keep(pinned);
        }
        let held = Held::Copied(source, pinned, self);
        match mark {
            Ok(Some(mark)) if !mutant!("device_sources_released_before_copies") => {
                keeper.keep(mark, held);
            }
            Ok(_) => drop(held),
            Err(error) => {
                keeper.quarantine(held);
                return Err(error);
            }
        }
        made
    }

    /// Keeps memory of the host's until the process ends: a device may still touch it.
    fn keep(&self, pinned: &Arc<Pinned>) {
        self.stream.accelerator().keep(1);
        std::mem::forget(Arc::clone(pinned));
    }

    fn check(&self, source: &Tensor, to: DevicePtr) -> Result<DevicePtr, MemoryError> {
        let from = Self::place_of(source)?;
        self.check_room(from.size, to)?;
        Ok(from)
    }

    /// What `to_host` reads: a tensor of the lane's device.
    fn check_source(&self, source: &Tensor, len: u64) -> Result<DevicePtr, MemoryError> {
        let from = Self::place_of(source)?;
        let there = DevicePtr { size: len, ..from };
        self.check_room(from.size, there).map(|()| from)
    }

    fn check_host(bytes: &[u8], pinned: &Pinned) -> Result<(), MemoryError> {
        if pinned.covers(bytes) {
            return Ok(());
        }
        let base = pinned.base().addr();
        Err(MemoryError::Outside {
            offset: bytes.as_ptr().addr().wrapping_sub(base) as u64,
            len: bytes.len() as u64,
            segment_len: pinned.len() as u64,
        })
    }

    fn place_of(tensor: &Tensor) -> Result<DevicePtr, MemoryError> {
        match tensor.bytes() {
            TensorBytes::Device(place) => Ok(place),
            TensorBytes::Host(_) => Err(MemoryError::Kind {
                kind: MemoryKind::Host,
            }),
        }
    }

    /// Whether so many bytes have room there, on the lane's device.
    fn check_room(&self, size: u64, to: DevicePtr) -> Result<(), MemoryError> {
        if size != to.size {
            return Err(MemoryError::Tensor(TensorError::Size {
                expected: size,
                actual: to.size,
            }));
        }
        let device = self.stream.device();
        if to.device != device {
            let kind = to.kind;
            return Err(MemoryError::OtherDevice { kind, device });
        }
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Two that look at once may keep one more.
        if !self.is_spoilt && self.home.len() < limits::DEVICE_LANES_IDLE {
            self.home.push(Arc::clone(&self.stream));
        }
    }
}
