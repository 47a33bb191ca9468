//! Loans: another library's memory of a device, with the work that still writes it.
//!
//! Knows marks and the keeper, as `device_value.rs` does for memory of our own. The owner has its memory back when the
//! last handle is gone and the stream is past the work, so that no mark is given up before its word is written.

use std::sync::Arc;

use super::device::{DeviceEvent as _, DeviceMemory, DevicePtr, Readiness};
use super::keeper::{Held, Keeper};
use super::stream::Stream;
use super::times::{Mark, Times};
use super::{MemoryError, Tensor};
use crate::ground::TensorMeta;

/// A tensor of memory that another library lends, whose bytes are there when `stream` has done what is queued on it
/// now. `times` are of this process, for the stream's device.
///
/// # Errors
/// [`MemoryError::OtherDevice`] if the stream is of another device; [`MemoryError::Tensor`] if the memory is not as
/// long as `meta` takes; [`MemoryError::Driver`] if the driver can neither mark the stream nor wait for it. The owner
/// has its memory back in each case: nothing of ours has touched it.
pub fn lend_after(
    meta: TensorMeta,
    memory: impl DeviceMemory + 'static,
    stream: &Stream,
    times: &Arc<Times>,
    keeper: &Arc<Keeper>,
) -> Result<Tensor, MemoryError> {
    let place = memory.place();
    if stream.device() != place.device {
        let (kind, device) = (place.kind, place.device);
        return Err(MemoryError::OtherDevice { kind, device });
    }
    let mark = times.mark(stream)?;
    let loan = Loan {
        place,
        memory: Some(Box::new(memory)),
        mark,
        keeper: Arc::clone(keeper),
    };
    Ok(Tensor::from_device(meta, loan)?)
}

#[derive(Debug)]
struct Loan {
    place: DevicePtr,
    /// `None` only in the drop.
    memory: Option<Box<dyn DeviceMemory>>,
    mark: Option<Mark>,
    keeper: Arc<Keeper>,
}

impl DeviceMemory for Loan {
    fn place(&self) -> DevicePtr {
        self.place
    }

    fn readiness(&self) -> Readiness<'_> {
        match &self.mark {
            Some(mark) => Readiness::After(mark),
            None => Readiness::Ready,
        }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let (memory, mark) = (self.memory.take(), self.mark.take());
        if let (Some(memory), Some(mark)) = (memory, mark)
            && !mark.is_over()
        {
            self.keeper.keep(mark, Held::Loan(memory));
        }
    }
}
