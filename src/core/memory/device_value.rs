//! Values of a device: memory to be filled by queued work, the tensors made of it, and how streams are ordered with
//! them.
//!
//! Knows marks and the keeper; not where a tensor goes. The rule for freeing has its two ends here: a block whose mark
//! is not over does not go home ([`DeviceValue`]'s drop), and a tensor that a stream still reads is not let go
//! ([`release_after`]).

use std::sync::Arc;

use super::device::{DeviceEvent as _, DeviceMemory, DevicePtr, Readiness};
use super::keeper::{Held, Keeper};
use super::stream::Stream;
use super::times::{Mark, Times};
use super::{DeviceArena, DeviceBlock, House, MemoryError, Pool, Tensor, TensorBytes};
use crate::ground::{Region, TensorMeta};

/// Memory of a device for one tensor, to be written by the device's work.
///
/// It goes home when it is dropped: no work that touches it may be queued then. Made a tensor, it goes home with the
/// tensor's last handle, and not before the work that was queued when it was made.
#[derive(Debug)]
pub struct DeviceBuffer {
    block: DeviceBlock,
    times: Arc<Times>,
    keeper: Arc<Keeper>,
}

impl Pool<DeviceArena> {
    /// Memory for `len` bytes.
    ///
    /// # Errors
    /// [`MemoryError::Full`] if there is no room now, [`MemoryError::Unfit`] if there never is;
    /// [`MemoryError::Driver`] if the arena had to grow and could not.
    pub fn device_buffer(
        &mut self,
        len: usize,
        keeper: &Arc<Keeper>,
    ) -> Result<DeviceBuffer, MemoryError> {
        let block = self.device_block(len)?;
        let segment = usize::from(block.region().segment);
        let times = Arc::clone(self.segments()[segment].times());
        Ok(DeviceBuffer {
            block,
            times,
            keeper: Arc::clone(keeper),
        })
    }
}

impl DeviceBuffer {
    /// Where it lies.
    #[must_use]
    pub fn place(&self) -> DevicePtr {
        self.block.place()
    }

    /// A tensor of it. All work that writes it is done.
    ///
    /// # Errors
    /// [`MemoryError::Tensor`] if it is not as long as `meta` takes.
    pub fn into_tensor(self, meta: TensorMeta) -> Result<Tensor, MemoryError> {
        self.finish(meta, None)
    }

    /// A tensor of it, whose bytes are there when `stream` has done what is queued on it now. The host does not wait:
    /// the tensor can be sent at once, and its receivers see when its bytes are there.
    ///
    /// # Errors
    /// [`MemoryError::OtherDevice`] if the stream is of another device: nothing happened. [`MemoryError::Driver`] if
    /// the driver can neither mark the stream nor wait for it: the memory is kept for ever then, for the work may still
    /// write it. [`MemoryError::Tensor`] as with [`DeviceBuffer::into_tensor`].
    pub fn into_tensor_after(
        self,
        meta: TensorMeta,
        stream: &Stream,
    ) -> Result<Tensor, MemoryError> {
        let place = self.place();
        if stream.device() != place.device {
            return Err(MemoryError::OtherDevice {
                kind: place.kind,
                device: place.device,
            });
        }
        match self.times.mark(stream) {
            Ok(mark) => self.finish(meta, mark),
            Err(error) => {
                self.keeper.quarantine(Held::Block(self.block));
                Err(error)
            }
        }
    }

    fn finish(self, meta: TensorMeta, mark: Option<Mark>) -> Result<Tensor, MemoryError> {
        self.times.stamp(self.block.region().offset, mark.as_ref());
        let value = DeviceValue {
            place: self.block.place(),
            region: self.block.region(),
            block: Some(self.block),
            mark,
            keeper: self.keeper,
        };
        Ok(Tensor::from_device(meta, value)?)
    }
}

/// A block with what is known of its writer's work.
#[derive(Debug)]
struct DeviceValue {
    place: DevicePtr,
    region: Region,
    /// `None` only in the drop.
    block: Option<DeviceBlock>,
    mark: Option<Mark>,
    keeper: Arc<Keeper>,
}

impl DeviceMemory for DeviceValue {
    fn place(&self) -> DevicePtr {
        self.place
    }

    fn readiness(&self) -> Readiness<'_> {
        match &self.mark {
            Some(mark) => Readiness::After(mark),
            None => Readiness::Ready,
        }
    }

    fn region(&self) -> Option<Region> {
        Some(self.region)
    }

    fn house(&self) -> Option<House> {
        self.block.as_ref().and_then(DeviceMemory::house)
    }
}

impl Drop for DeviceValue {
    fn drop(&mut self) {
        let (block, mark) = (self.block.take(), self.mark.take());
        if let (Some(block), Some(mark)) = (block, mark)
            && !mark.is_over()
            && !mutant!("device_blocks_freed_before_their_streams")
        {
            self.keeper.keep(mark, Held::Block(block));
        }
    }
}

/// Who waits until a tensor's bytes are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ordered {
    /// Nothing: they are there.
    Ready,
    /// The stream: what is queued on it from now on.
    Stream,
    /// The caller has to, on the host: the driver cannot let a stream wait, or did not.
    Host,
}

/// Looks without a pause, by a host that waits.
const EAGER: u32 = 1 << 10;
/// Looks between two questions to the driver: some tenth of a second.
const ASK: u32 = 1 << 11;

/// Lets what is queued next on `stream` wait until a tensor's bytes are there, by whatever work. `gates` are times of
/// this process for the stream's device.
///
/// # Errors
/// [`MemoryError::Driver`] if the stream's device has failed.
pub fn order_after(
    tensor: &Tensor,
    stream: &Stream,
    gates: &Arc<Times>,
    keeper: &Keeper,
) -> Result<Ordered, MemoryError> {
    if tensor.readiness().is_ready() {
        return Ok(Ordered::Ready);
    }
    let gate = if keeper.is_closed() {
        None
    } else {
        gates.gate()
    };
    let Some((gate, passed)) = gate else {
        return Ok(Ordered::Host);
    };
    if let Err(error) = gate.hold_back(stream) {
        gate.open();
        passed.open();
        if error.is_of_lost_device() {
            return Err(error);
        }
        return Ok(Ordered::Host);
    }
    let passed = passed.put_behind(stream);
    // The keeper's thread may have ended since it was asked.
    if keeper.watch(gate, passed, tensor.clone()) {
        Ok(Ordered::Stream)
    } else {
        Ok(Ordered::Host)
    }
}

/// The stream waits for a tensor's bytes, or the host does.
///
/// # Errors
/// [`MemoryError::Lost`] if they will never be there, as far as that is known now; [`MemoryError::Driver`] if a device
/// has failed that the tensor lies on, or the stream is of.
pub fn await_bytes(
    tensor: &Tensor,
    stream: &Stream,
    gates: &Arc<Times>,
    keeper: &Keeper,
) -> Result<(), MemoryError> {
    let ordered = order_after(tensor, stream, gates, keeper)?;
    let mut looks = 0_u32;
    while ordered == Ordered::Host && !tensor.readiness().is_ready() && !is_lost(tensor) {
        looks = looks.wrapping_add(1);
        if looks < EAGER {
            std::thread::yield_now();
            continue;
        }
        std::thread::sleep(std::time::Duration::from_micros(20));
        // A word that is not written tells nothing of a device that is gone: the driver does.
        if looks.is_multiple_of(ASK)
            && let TensorBytes::Device(place) = tensor.bytes()
        {
            match stream.ask_of(place.device) {
                Err(error) if error.is_of_lost_device() => return Err(error),
                _ => {}
            }
        }
    }
    lost_if(is_lost(tensor))
}

/// True if the tensor's bytes are not there, and never will be: the device or the process that was to write them is
/// gone.
fn is_lost(tensor: &Tensor) -> bool {
    match tensor.readiness() {
        Readiness::Ready => false,
        Readiness::After(event) => !event.is_over() && event.is_lost(),
    }
}

/// Whether what was read behind [`await_bytes`] is what was written. A stream that waits goes on when the peer whose
/// work it waits for is gone, and when `keeper` has ended, so a reader asks again when its copy is over.
///
/// # Errors
/// [`MemoryError::Lost`] if the bytes were never there.
pub(super) fn check_bytes(tensor: &Tensor, keeper: &Keeper) -> Result<(), MemoryError> {
    let is_unknown = keeper.has_ended() && !mutant!("device_gates_of_ended_keepers_trusted");
    lost_if(is_lost(tensor) || is_unknown && !tensor.readiness().is_ready())
}

fn lost_if(is_lost: bool) -> Result<(), MemoryError> {
    if is_lost && !mutant!("device_bytes_unchecked") {
        return Err(MemoryError::Lost);
    }
    Ok(())
}

/// Lets a tensor go when `stream` has done what is queued on it now: what reads the tensor there may be queued still.
///
/// # Errors
/// [`MemoryError::Driver`] if the driver can neither mark the stream nor wait for it: the tensor is kept for ever then.
pub fn release_after(
    tensor: Tensor,
    stream: &Stream,
    gates: &Arc<Times>,
    keeper: &Keeper,
) -> Result<(), MemoryError> {
    let marked = if keeper.is_closed() {
        stream.synchronize().map(|()| None)
    } else {
        gates.mark(stream)
    };
    match marked {
        Ok(Some(mark)) if !mutant!("device_leases_released_before_streams") => {
            keeper.keep(mark, Held::Tensor(tensor));
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(error) => {
            keeper.quarantine(Held::Tensor(tensor));
            Err(error)
        }
    }
}
