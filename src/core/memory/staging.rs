//! Staging: bytes of a device on their way through the host, in chunks of pinned memory.
//!
//! Knows no peer. While the host copies one chunk, the device fills or empties the next ones:
//!
//! ```text
//!   device ──▶ chunk 2      chunk 1 ──▶ host        `to_host`, and the other way round `to_device`
//! ```
#![allow(unsafe_code)]

use std::sync::Arc;

use super::device_value::{DeviceBuffer, await_bytes, check_bytes};
use super::keeper::{Held, Keeper};
use super::pinned::Pinned;
use super::stream::Stream;
use super::times::{Mark, Times};
use super::{Accelerator, DevicePtr, MemoryError, Tensor, TensorBytes, TensorError};

/// The chunks of one device, and the stream that their copies are queued on. One thread uses it at a time.
#[derive(Debug)]
pub struct Staging {
    stream: Stream,
    marks: Arc<Times>,
    chunks: Vec<Chunk>,
    chunk_bytes: usize,
    /// The driver failed with copies under way: nothing is known of the chunks.
    is_broken: bool,
}

#[derive(Debug)]
struct Chunk {
    pinned: Pinned,
    /// The copy that was queued last, if it may not be over.
    mark: Option<Mark>,
}

impl Staging {
    /// `count` chunks of `chunk_bytes` each, less what is no whole page of arenas; whose copies are marked in `marks`.
    ///
    /// # Errors
    /// [`MemoryError::Driver`], also where the user may not pin so much; [`MemoryError::System`].
    pub fn new(
        accelerator: &Arc<dyn Accelerator>,
        device: u32,
        marks: &Arc<Times>,
        count: usize,
        chunk_bytes: usize,
    ) -> Result<Self, MemoryError> {
        let page = super::pages::PAGE_BYTES;
        let chunk_bytes = (chunk_bytes / page * page).max(page);
        let make = |index| {
            let pinned = Pinned::new(accelerator, device, index as u16, chunk_bytes, chunk_bytes)?;
            Ok(Chunk { pinned, mark: None })
        };
        let chunks: Result<Vec<_>, MemoryError> = (0..count.max(1)).map(make).collect();
        Ok(Self {
            chunks: chunks?,
            stream: Stream::new(accelerator, device)?,
            marks: Arc::clone(marks),
            chunk_bytes,
            is_broken: false,
        })
    }

    /// Bytes of its pinned memory.
    #[must_use]
    pub const fn pinned_bytes(&self) -> usize {
        self.chunks.len() * self.chunk_bytes
    }

    /// False once the driver has failed with copies under way: another is to be made.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        !self.is_broken
    }

    /// Its stream.
    #[must_use]
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Copies a tensor of its device to the host, when its bytes are there. Returns when they are in `out`.
    ///
    /// # Errors
    /// [`MemoryError::Tensor`] if the tensor is of another device or `out` not as long; [`MemoryError::Driver`];
    /// [`MemoryError::Lost`] if the tensor's bytes will never be there.
    pub fn to_host(
        &mut self,
        tensor: &Tensor,
        out: &mut [u8],
        keeper: &Keeper,
    ) -> Result<(), MemoryError> {
        let place = self.place_of(tensor)?;
        if out.len() as u64 != place.size {
            return Err(MemoryError::Tensor(TensorError::Size {
                expected: place.size,
                actual: out.len() as u64,
            }));
        }
        await_bytes(tensor, &self.stream, &self.marks, keeper)?;
        let done = self.read_all(place, out);
        if done.is_err() {
            self.settle();
            if self.is_broken {
                // The device may still read it.
                keeper.quarantine(Held::Tensor(tensor.clone()));
            }
        }
        done.and_then(|()| check_bytes(tensor, keeper))
    }

    /// Queues copies of all of `bytes` to memory of its device. The copies may be under way when it returns: the tensor
    /// is made by [`DeviceBuffer::into_tensor_after`] with [`Staging::stream`].
    ///
    /// # Errors
    /// [`MemoryError::Tensor`] if the memory is of another length; [`MemoryError::OtherDevice`] if it is of another
    /// device; [`MemoryError::Driver`]: then the memory holds anything, and unless [`Staging::is_usable`] copies may be
    /// under way: it is let go behind them, as the tensor is.
    pub fn to_device(&mut self, bytes: &[u8], to: &DeviceBuffer) -> Result<(), MemoryError> {
        let place = to.place();
        if bytes.len() as u64 != place.size {
            return Err(MemoryError::Tensor(TensorError::Size {
                expected: place.size,
                actual: bytes.len() as u64,
            }));
        }
        self.check_device(place)?;
        let done = self.write_all(bytes, place);
        if done.is_err() {
            self.settle();
        }
        done
    }

    fn place_of(&self, tensor: &Tensor) -> Result<DevicePtr, MemoryError> {
        match tensor.bytes() {
            TensorBytes::Device(place) => self.check_device(place).map(|()| place),
            TensorBytes::Host(_) => Err(MemoryError::Kind {
                kind: crate::ground::MemoryKind::Host,
            }),
        }
    }

    fn check_device(&self, place: DevicePtr) -> Result<(), MemoryError> {
        if self.is_broken {
            return Err(MemoryError::Broken { kind: place.kind });
        }
        if place.device == self.stream.device() {
            return Ok(());
        }
        Err(MemoryError::OtherDevice {
            kind: place.kind,
            device: place.device,
        })
    }

    fn read_all(&mut self, place: DevicePtr, out: &mut [u8]) -> Result<(), MemoryError> {
        let (step, count) = (self.chunk_bytes, self.chunks.len());
        let parts = out.len().div_ceil(step);
        for turn in 0..parts + count {
            // First the part that this chunk was filled with a round ago, then the next one.
            if let Some(part) = turn.checked_sub(count).filter(|part| *part < parts) {
                let at = part * step;
                let end = out.len().min(at + step);
                self.await_chunk(part % count)?;
                // SAFETY: the copy into the chunk is over, and none other is queued.
                unsafe { self.chunks[part % count].pinned.read(0, &mut out[at..end]) };
            }
            if turn < parts {
                let at = turn * step;
                let len = step.min(out.len() - at);
                self.await_chunk(turn % count)?;
                let chunk = &self.chunks[turn % count].pinned;
                // SAFETY: the place lies in what the tensor keeps until the copy is over; the chunk is registered, and
                // touched by no code before its mark is over.
                unsafe {
                    self.stream
                        .to_host(chunk.base(), place.address + at as u64, len)
                }?;
                self.mark_chunk(turn % count)?;
            }
        }
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8], place: DevicePtr) -> Result<(), MemoryError> {
        let count = self.chunks.len();
        for (turn, part) in bytes.chunks(self.chunk_bytes).enumerate() {
            let at = turn % count;
            self.await_chunk(at)?;
            let chunk = &self.chunks[at].pinned;
            // SAFETY: the chunk's last copy is over, and none other is queued.
            unsafe { chunk.write(0, part) };
            let to = place.address + (turn * self.chunk_bytes) as u64;
            // SAFETY: the place lies in a buffer that is made a tensor behind this stream's work, or settled; the chunk
            // is registered, and not touched before its mark is over.
            unsafe { self.stream.to_device(to, chunk.base(), part.len()) }?;
            self.mark_chunk(at)?;
        }
        Ok(())
    }

    fn mark_chunk(&mut self, at: usize) -> Result<(), MemoryError> {
        self.chunks[at].mark = self.marks.mark(&self.stream)?;
        Ok(())
    }

    fn await_chunk(&mut self, at: usize) -> Result<(), MemoryError> {
        let Some(mark) = &self.chunks[at].mark else {
            return Ok(());
        };
        mark.wait(&self.stream)?;
        self.chunks[at].mark = None;
        Ok(())
    }

    /// After a failure: no copy is under way any more, or the chunks are used no more.
    fn settle(&mut self) {
        if self.stream.synchronize().is_ok() {
            for chunk in &mut self.chunks {
                chunk.mark = None;
            }
        } else {
            self.is_broken = true;
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.is_broken || self.stream.synchronize().is_err() {
            // A device may still write there: the memory stays until the process ends, and is counted.
            self.stream.accelerator().keep(self.chunks.len() as u64);
            std::mem::forget(std::mem::take(&mut self.chunks));
        }
    }
}
