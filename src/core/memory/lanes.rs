//! Lanes: streams that copies from device to device are queued on, each its user's alone until what it queued is done.
//!
//! Knows tensors and streams; not where a copy goes to. One stream for all would have copies wait for each other: one
//! that waits for a producer, which waits for what another is to bring, would wait for ever.
#![allow(unsafe_code)]

use std::sync::Arc;

use crossbeam::queue::SegQueue;

use super::device::DeviceEvent as _;
use super::device_value::{DeviceBuffer, await_bytes};
use super::keeper::{Held, Keeper};
use super::stream::Stream;
use super::times::{Mark, Times};
use super::{Accelerator, DevicePtr, MemoryError, Tensor, TensorBytes, TensorError};

/// The lanes of one device.
#[derive(Debug)]
pub struct Lanes {
    accelerator: Arc<dyn Accelerator>,
    device: u32,
    idle: Arc<SegQueue<Arc<Stream>>>,
}

/// One lane. When it is dropped, which is when all of its work is done, the next user may have it: see
/// [`Lane::settle`].
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

    /// Queues a copy of a device's tensor, as soon as its bytes are there; the copy can be sent on at once. The source
    /// and the lane are let go when the copy is over.
    ///
    /// # Errors
    /// [`MemoryError::Tensor`] if the buffer is of another length, or the tensor the host's;
    /// [`MemoryError::OtherDevice`] if it is not of the lane's device; [`MemoryError::Lost`] if the bytes will never be
    /// there; [`MemoryError::Driver`].
    pub fn copy(
        mut self,
        source: Tensor,
        to: DeviceBuffer,
        words: &Arc<Times>,
        keeper: &Keeper,
    ) -> Result<Tensor, MemoryError> {
        let meta = source.meta();
        let from = match self.check(&source, to.place()) {
            Ok(from) => from,
            Err(error) => {
                self.settle(words, keeper);
                return Err(error);
            }
        };
        let stream = Arc::clone(&self.stream);
        let queued = await_bytes(&source, &stream, words, keeper).and_then(|()| {
            if from.size == 0 {
                return Ok(());
            }
            // SAFETY: the buffer is as long, and touched by no other work before it is made a tensor behind this
            // stream's work; the source is kept until the stream is past the copy.
            unsafe { stream.copy(to.place().address, from) }
        });
        if let Err(error) = queued {
            self.is_spoilt = true;
            return Err(error);
        }
        let made = to.into_tensor_after(meta, &stream);
        // Marked behind the copy: when that is over nothing of it is under way.
        let mark = match &made {
            Ok(_) => words.mark(&stream),
            Err(error) => Err(*error),
        };
        let held = Held::Copied(source, self);
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

    fn check(&self, source: &Tensor, to: DevicePtr) -> Result<DevicePtr, MemoryError> {
        let TensorBytes::Device(from) = source.bytes() else {
            let kind = crate::ground::MemoryKind::Host;
            return Err(MemoryError::Kind { kind });
        };
        if from.size != to.size {
            return Err(MemoryError::Tensor(TensorError::Size {
                expected: from.size,
                actual: to.size,
            }));
        }
        let device = self.stream.device();
        if to.device != device {
            let kind = to.kind;
            return Err(MemoryError::OtherDevice { kind, device });
        }
        Ok(from)
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.is_spoilt {
            self.home.push(Arc::clone(&self.stream));
        }
    }
}
