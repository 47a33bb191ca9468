//! Tensors of devices, both ways: memory of a GPU that another library lends, and what of ours is lent to one.
//!
//! ```text
//!   taken    a library's work ─▶ our lane follows it ─▶ a copy in our arena, or the memory itself (`copy=False`)
//!   lent     the bytes are there ─▶ the consumer's stream goes on … its view goes ─▶ the stream is past it ─▶ home
//! ```
//!
//! Streams travel as the protocols have it: the handles of the driver, of which 1 is the default stream and 2 that of
//! each thread. A consumer's stream must live as long as its view.
#![allow(unsafe_code)]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use rendez::engine::EngineDevices;
use rendez::ground::{Unpoisoned, catalogue};
use rendez::memory::{Lane, Stream, TensorBytes};
use rendez::{
    DeviceMemory, DevicePtr, Engine, MemoryKind, Path, Readiness, Status, Tensor, TensorMeta,
};

use super::convert::{Taking, tensor_of};
use super::cuda_array::{self, CudaArray};
use super::device_id::DeviceId;
use super::dlpack::{self, Device, Lending};
use super::ending;
use super::errands;
use super::errors::{Failure, Outcome, argument};
use super::writable::handed_over;

/// The default stream, which meets all streams that do not opt out; and that of each thread.
pub(crate) const DEFAULT: u64 = 1;
pub(crate) const OF_THREAD: u64 = 2;
/// Between two looks at the bytes after a while, and at Python's signals.
const PAUSE: Duration = Duration::from_micros(20);
const SLICE: Duration = Duration::from_millis(50);

/// An object that lends memory of a device, not yet asked for it.
pub(crate) enum Offer<'py> {
    /// By DLPack.
    Dlpack(Bound<'py, PyAny>, Device),
    /// By `__cuda_array_interface__`, which says this.
    Array(Bound<'py, PyAny>, Bound<'py, PyAny>),
}

impl Offer<'_> {
    /// Why it is not taken where only memory of the processor's is.
    pub(crate) fn refusal(&self) -> Failure {
        let at = match self {
            Self::Dlpack(_, device) => format!("DLPack's {}:{}", device.kind, device.index),
            Self::Array(..) => "a CUDA array".to_owned(),
        };
        argument(format!(
            "the tensor lies in the memory of a device ({at}): copy it to the processor's first"
        ))
    }
}

/// The tensor of what an object offers.
pub(crate) fn take(
    engine: &Engine,
    py: Python<'_>,
    offer: Offer<'_>,
    taking: &Taking,
) -> PyResult<Tensor> {
    let devices = match (&offer, engine.devices()) {
        (Offer::Dlpack(_, device), _) if device.memory_kind().is_none() => {
            return Err(offer.refusal().into());
        }
        (_, Err(status)) if status.reason() == catalogue::DEVICE_MISSING => {
            let message = format!(
                "the value lies on a device, and {}: pass devices=\"auto\" to the engine, or copy the value to the \
                 processor's memory first",
                status.message()
            );
            return Err(Failure(Status::of(catalogue::DEVICE_MISSING, message)).into());
        }
        (_, devices) => devices.map_err(Failure::from)?,
    };
    let kind = devices.accelerator().map_err(Failure::from)?.kind();
    let mut lent = match offer {
        Offer::Dlpack(_, device) if device.memory_kind() != Some(kind) => {
            return Err(offer.refusal().into());
        }
        Offer::Dlpack(object, device) => Lent::by_dlpack(&devices, &object, device, kind)?,
        Offer::Array(object, interface) => Lent::by_interface(&devices, object, &interface)?,
    };
    if taking.copy == Some(false) {
        let foreign = Foreign::of(lent.place, lent.keep, taking.on_release());
        let tensor = match &lent.writer {
            Some(stream) => devices.lend(lent.meta, foreign, stream),
            None => devices.lend(lent.meta, foreign, lent.lane.lane()?.stream()),
        };
        return Ok(tensor.map_err(Failure::from)?);
    }
    if let Some(stream) = &lent.writer {
        let followed = devices.follow(lent.lane.lane()?, stream);
        followed.map_err(Failure::from)?;
    }
    let foreign = Foreign::of(lent.place, lent.keep, None);
    let source = Tensor::from_device(lent.meta, foreign).map_err(Failure::from)?;
    let copied = lent.lane.copy(&source)?;
    // Its owner may write again when this returns.
    wait(py, &copied)?;
    Ok(copied)
}

/// A value of Python's in the memory of a device that is named, or of the processor.
pub(crate) fn moved(
    engine: &Engine,
    value: &Bound<'_, PyAny>,
    device: &str,
) -> PyResult<super::tensor::Tensor> {
    let py = value.py();
    let wanted = match device {
        "cpu" => None,
        _ => Some(DeviceId::parse(device)?),
    };
    let tensor = tensor_of(engine, value, &Taking::default())?;
    let at = tensor.is_device().then(|| DeviceId::of(place(&tensor)));
    if at == wanted {
        return Ok(super::tensor::Tensor::new(tensor, Path::Local, false).of(|| engine.clone()));
    }
    let moved = handed_over(value, tensor, |tensor| -> PyResult<Tensor> {
        let devices = engine.devices().map_err(Failure::from)?;
        let Some(wanted) = wanted else {
            return OnDevice { tensor, devices }.to_host(py);
        };
        let number = wanted.number_in(&devices)?;
        Ok(ending::detach(py, || devices.to_device(&tensor, number)).map_err(Failure::from)?)
    })?;
    Ok(super::tensor::Tensor::new(moved, Path::Copy, false).of(|| engine.clone()))
}

/// Where a device's tensor lies.
fn place(tensor: &Tensor) -> DevicePtr {
    match tensor.bytes() {
        TensorBytes::Device(place) => place,
        TensorBytes::Host(_) => DevicePtr::default(),
    }
}

/// True once nothing more will become of a tensor's bytes: they are there, or what was to write them is gone.
fn is_settled(tensor: &Tensor) -> bool {
    match tensor.readiness() {
        Readiness::Ready => true,
        Readiness::After(event) => event.is_over() || event.is_lost(),
    }
}

/// Waits until a tensor's bytes are there, or never will be, without the interpreter's lock; signals are heard
/// meanwhile. What reads the bytes is told if they are lost.
fn wait(py: Python<'_>, tensor: &Tensor) -> PyResult<()> {
    loop {
        let is_there = ending::detach(py, || {
            let until = Instant::now() + SLICE;
            let mut looks = 0_u32;
            while !is_settled(tensor) {
                if Instant::now() >= until {
                    return false;
                }
                looks += 1;
                if looks < 1 << 10 {
                    std::thread::yield_now();
                } else {
                    std::thread::sleep(PAUSE);
                }
            }
            true
        });
        if is_there {
            return Ok(());
        }
        errands::run(py);
        py.check_signals()?;
    }
}

/// What was lent.
struct Lent {
    meta: TensorMeta,
    place: DevicePtr,
    keep: Kept,
    /// A lane of ours; behind the work that writes the memory, unless a stream is named for that.
    lane: Ours,
    writer: Option<Stream>,
}

/// A lane of ours. What is not used up goes to its next user when the work that it waits for is done.
struct Ours {
    devices: EngineDevices,
    /// `None` once it is used.
    lane: Option<Lane>,
}

impl Ours {
    fn take(devices: &EngineDevices, device: u32) -> Outcome<Self> {
        Ok(Self {
            lane: Some(devices.lane(device)?),
            devices: devices.clone(),
        })
    }

    fn lane(&mut self) -> Outcome<&mut Lane> {
        self.lane.as_mut().ok_or_else(super::convert::freed)
    }

    /// A copy of a tensor, behind what the lane waits for.
    fn copy(mut self, source: &Tensor) -> Outcome<Tensor> {
        let lane = self.lane.take().ok_or_else(super::convert::freed)?;
        Ok(self.devices.copy(source, lane)?)
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.devices.settle(lane);
        }
    }
}

impl Lent {
    fn by_dlpack(
        devices: &EngineDevices,
        object: &Bound<'_, PyAny>,
        device: Device,
        kind: MemoryKind,
    ) -> PyResult<Self> {
        let number = u32::try_from(device.index)
            .map_err(|_| argument(format!("there is no device {}", device.index)))?;
        let mut lane = Ours::take(devices, number)?;
        // The producer lets our stream wait for its work.
        let taken = dlpack::take(object, Some(lane.lane()?.stream().handle()))?;
        if taken.device.memory_kind() != Some(kind) || taken.device.index != device.index {
            let (kind, index) = (taken.device.kind, taken.device.index);
            return Err(argument(format!(
                "the object says that it lies on device {}, and lends memory of DLPack's {kind}:{index}",
                device.index
            ))
            .into());
        }
        Ok(Self {
            place: place_of(kind, number, taken.data as u64, taken.meta)?,
            meta: taken.meta,
            keep: Box::new(taken.keep),
            lane,
            writer: None,
        })
    }

    fn by_interface(
        devices: &EngineDevices,
        object: Bound<'_, PyAny>,
        interface: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let array = CudaArray::of(interface)?;
        let accelerator = devices.accelerator().map_err(Failure::from)?;
        let mut place = place_of(accelerator.kind(), 0, array.address, array.meta)?;
        if place.size > 0 {
            let extent = accelerator.extent(array.address).map_err(Failure::from)?;
            place.device = extent.device;
        }
        let writer = array.stream.map(|handle| {
            // SAFETY: `take` keeps the object that names the stream longer, and by the protocol the stream lives as
            // long as that.
            unsafe { Stream::borrowed_on(&accelerator, place.device, handle) }
        });
        Ok(Self {
            meta: array.meta,
            place,
            keep: Box::new(object.unbind()),
            lane: Ours::take(devices, place.device)?,
            writer: writer.transpose().map_err(Failure::from)?,
        })
    }
}

fn place_of(kind: MemoryKind, device: u32, address: u64, meta: TensorMeta) -> Outcome<DevicePtr> {
    let size = meta
        .size()
        .ok_or_else(|| argument("the value is longer than memory can be"))?;
    Ok(DevicePtr {
        kind,
        device,
        address,
        size,
    })
}

/// What keeps another library's memory.
type Kept = Box<dyn Send>;

/// What is called when the memory is read no more.
type Hook = Option<Py<PyAny>>;

/// Another library's memory, given back when the interpreter's lock is there.
struct Foreign {
    place: DevicePtr,
    kept: Mutex<Option<(Kept, Hook)>>,
}

impl Foreign {
    fn of(place: DevicePtr, kept: Kept, hook: Hook) -> Self {
        Self {
            place,
            kept: Mutex::new(Some((kept, hook))),
        }
    }
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Foreign").field(&self.place).finish()
    }
}

impl DeviceMemory for Foreign {
    fn place(&self) -> DevicePtr {
        self.place
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let kept = self.kept.get_mut().unpoisoned();
        if let Some((kept, hook)) = kept.take() {
            let Some(hook) = hook else {
                return errands::leave(move |_| drop(kept));
            };
            errands::tell(move |py| {
                drop(kept);
                errands::call_of(py, &hook)
            });
        }
    }
}

/// A tensor of a device's, as its consumers get it.
pub(crate) struct OnDevice {
    pub(crate) tensor: Tensor,
    pub(crate) devices: EngineDevices,
}

/// What a consumer of DLPack asks for.
pub(crate) struct Asked<'a, 'py> {
    pub(crate) stream: Option<&'a Bound<'py, PyAny>>,
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

impl OnDevice {
    /// A copy in the processor's memory.
    pub(crate) fn to_host(&self, py: Python<'_>) -> PyResult<Tensor> {
        wait(py, &self.tensor)?;
        let copied = ending::detach(py, || self.devices.to_host(&self.tensor));
        Ok(copied.map_err(Failure::from)?)
    }

    /// The capsule that a consumer takes.
    pub(crate) fn capsule<'py>(
        self,
        py: Python<'py>,
        asked: &Asked<'_, 'py>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let place = place(&self.tensor);
        let here = Device::of(Some(DeviceId::of(place)));
        if asked.device == Some(Device::PROCESSOR.pair()) && asked.copy != Some(false) {
            let host = self.to_host(py)?;
            let bytes = host.host().map_err(Failure::from)?;
            return super::tensor::copied_capsule(py, host.meta(), bytes, asked.max_version);
        }
        check_place(here, asked.device)?;
        let (handle, is_ordered) = stream_of(asked.stream)?;
        let is_copied = asked.copy == Some(true);
        let mut given = self;
        if is_copied {
            let lane = Ours::take(&given.devices, place.device)?;
            given.tensor = lane.copy(&given.tensor)?;
        }
        let (meta, address) = (given.tensor.meta(), self::place(&given.tensor).address);
        let seen = Seen::by(py, given, handle, is_ordered)?;
        let lending = Lending {
            meta,
            device: here,
            data: std::ptr::without_provenance(address as usize),
            keep: Box::new(seen),
            is_read_only: !is_copied,
            is_copied,
        };
        lending.capsule(py, asked.max_version)
    }

    /// What `__cuda_array_interface__` says of it, which is in order with the default stream; and what keeps it until
    /// that stream is past what was queued behind it.
    pub(crate) fn interface<'py>(self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Seen)> {
        let address = place(&self.tensor).address;
        let said = cuda_array::interface(py, self.tensor.meta(), address, DEFAULT)?;
        let seen = Seen::by(py, self, DEFAULT, true)?;
        Ok((said, seen))
    }
}

/// Refuses a consumer that wants another device than where it lies.
pub(crate) fn check_place(here: Device, wanted: Option<(i32, i32)>) -> PyResult<()> {
    match wanted.filter(|wanted| *wanted != here.pair()) {
        None => Ok(()),
        Some(wanted) => Err(PyBufferError::new_err(format!(
            "the tensor lies on device {}:{}, and is not lent to device {}:{}",
            here.kind, here.index, wanted.0, wanted.1
        ))),
    }
}

/// A handle of a consumer's, and whether its stream waits for the bytes.
pub(crate) fn stream_of(given: Option<&Bound<'_, PyAny>>) -> PyResult<(u64, bool)> {
    let number: i128 = match given.filter(|given| !given.is_none()) {
        None => return Ok((DEFAULT, true)),
        Some(given) => given.extract()?,
    };
    match number {
        -1 => Ok((DEFAULT, false)),
        1.. if u64::try_from(number).is_ok() => Ok((number as u64, true)),
        _ => Err(PyBufferError::new_err(format!(
            "stream={number}: 1 is the default stream, 2 that of this thread, -1 none, and any other a handle of the \
             driver"
        ))),
    }
}

/// A tensor that a consumer's stream reads: it goes home when that is past it.
pub(crate) struct Seen {
    devices: EngineDevices,
    /// `None` only in the drop.
    tensor: Option<Tensor>,
    /// What is queued there when this is dropped may still read it.
    reader: Stream,
}

impl Seen {
    /// What the stream of that handle does next is behind the work that writes the bytes, if it is to be ordered.
    fn by(
        py: Python<'_>,
        OnDevice { tensor, devices }: OnDevice,
        handle: u64,
        is_ordered: bool,
    ) -> PyResult<Self> {
        let accelerator = devices.accelerator().map_err(Failure::from)?;
        let device = place(&tensor).device;
        let stream = |handle: u64| {
            // SAFETY: the consumer names a stream that the driver knows, and by DLPack's contract keeps it as long as
            // its view; the driver keeps the default one itself.
            let stream = unsafe { Stream::borrowed_on(&accelerator, device, handle) };
            stream.map_err(Failure::from)
        };
        let mut reader = stream(handle)?;
        if is_ordered {
            let ordered = ending::detach(py, || devices.order(&tensor, &reader));
            ordered.map_err(Failure::from)?;
        }
        if handle == OF_THREAD {
            // In the thread of the drop that may be another stream; the default stream meets them all.
            reader = stream(DEFAULT)?;
        }
        Ok(Self {
            devices,
            tensor: Some(tensor),
            reader,
        })
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if let Some(tensor) = self.tensor.take()
            && let Err(status) = self.devices.release_after(tensor, &self.reader)
        {
            tracing::warn!(%status, "device memory is never released: cannot record how far its reader's stream is");
        }
    }
}
