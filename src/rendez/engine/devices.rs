//! Devices: their memory as an engine has it, made into tensors and handed over where it lies.
//!
//! Knows accelerators by their trait, and no kind of device. Arenas are made when a device is first used, and announced
//! to peers as the host's are; `devices/peers.rs` knows what peers offer of theirs. A thread of its own turns the
//! keeper, and sleeps while nothing is kept; another looks each second whether a device has failed.

mod copies;
mod keeping;
mod loans;
mod peers;
mod pinning;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::config::Config;
use super::users::Users;
use super::{Engine, Inner};
use crate::ground::device::TaskName;
use crate::ground::{Locked, Status, TensorMeta, catalogue};
use crate::memory::{
    Accelerator, ArenaConfig, ArenaId, DeviceArena, DeviceBuffer, DeviceInfo, DeviceSegment, House,
    HugePages, HugePagesReport, Keeper, Lanes, MemoryError, Pool, PoolStats, Staging, Stream,
    Tensor, TensorBytes, Times, accelerator, await_bytes, groups, release_after,
};
use keeping::{Noted, Threads};
use peers::DevicePeers;
use pinning::Pinning;

/// Arenas of devices are numbered from here on, two for each: its memory, and its times.
const FIRST_ARENA: u16 = 0x8000;
/// Chunks of each device's pinned pool: one is filled, one is emptied, and one waits.
const CHUNKS: usize = 3;

/// Whether an engine uses the devices of its machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DeviceUse {
    /// It does not look for any.
    #[default]
    Off,
    /// It uses those that there are.
    Auto,
    /// It does not start without one.
    Require,
}

/// Settings of devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSettings {
    /// Whether to use them.
    pub usage: DeviceUse,
    /// The driver's library, by name or path; `None` for the one that is installed.
    pub library: Option<String>,
    /// Bytes of a usual segment of each device's arena.
    pub segment_bytes: usize,
    /// The most bytes of each device's arena.
    pub bytes_max: u64,
    /// Pinned memory of the host for copies to and from each device: chunks, and segments of the host's arenas.
    pub pinned_bytes: usize,
}

impl Default for DeviceSettings {
    fn default() -> Self {
        Self {
            usage: DeviceUse::Off,
            library: None,
            segment_bytes: 256 << 20,
            bytes_max: 4 << 30,
            pinned_bytes: 1 << 30,
        }
    }
}

/// All of an engine's devices.
#[derive(Debug)]
pub(crate) struct Devices {
    settings: DeviceSettings,
    /// The engine that their arenas belong to.
    house: House,
    /// What they are used by, or why there are none.
    accelerator: Result<Arc<dyn Accelerator>, String>,
    keeper: Arc<Keeper>,
    pinning: Pinning,
    /// What there is for each device, by its number.
    arenas: Mutex<BTreeMap<u32, Arc<Arena>>>,
    /// The times of all arenas.
    noted: Arc<Noted>,
    peers: Arc<DevicePeers>,
    /// Which of our devices each peer of this machine can import memory of.
    seen: Mutex<BTreeMap<TaskName, u64>>,
    threads: Mutex<Option<Threads>>,
    /// Where the machine's files lie: a test lays out its own.
    root: Mutex<PathBuf>,
}

/// One device's memory.
#[derive(Debug)]
struct Arena {
    memory: DeviceArena,
    /// Made with the first buffer: who reads what peers have takes no memory of the device.
    pool: Mutex<Option<Pool<DeviceArena>>>,
    /// Marks for streams of this process, and gates for them.
    times: Arc<Times>,
    /// Locked for as long as a copy waits for its tensor: figures stand beside it.
    staging: Mutex<Option<Staging>>,
    /// Bytes of `staging`, and of those that a driver which failed did not give back.
    pinned: AtomicU64,
    /// Bytes of segments of the host's arenas that this device has pinned.
    segments: AtomicU64,
    to_host: AtomicU64,
    to_device: AtomicU64,
    between: AtomicU64,
    /// For copies from device to device that end here.
    lanes: Lanes,
}

/// What a device's memory is used for, as counts and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// The device.
    pub device: u32,
    /// Its arena.
    pub arena: PoolStats,
    /// Pinned memory of the host for its copies.
    pub pinned_bytes: u64,
    /// The most of that.
    pub pinned_limit_bytes: u64,
    /// Pinned memory of the host that tells the times of its work: 32 KiB, and as much for each segment of its arena.
    pub marks_bytes: u64,
    /// Bytes copied from it to the host.
    pub to_host_bytes: u64,
    /// Bytes copied to it from the host.
    pub to_device_bytes: u64,
    /// Bytes copied to it from a device, this one or another, by the copy engine.
    pub between_bytes: u64,
}

impl Devices {
    /// Looks for devices, as the settings have it.
    pub(super) fn open(config: &Config, house: House) -> Result<Self, Status> {
        let settings = config.devices.clone();
        let accelerator = match settings.usage {
            DeviceUse::Off => Err("`devices` is off".to_owned()),
            DeviceUse::Auto | DeviceUse::Require => accelerator::open(settings.library.as_deref()),
        };
        if let (DeviceUse::Require, Err(why)) = (settings.usage, &accelerator) {
            return Err(missing(why));
        }
        if let (DeviceUse::Auto, Err(why)) = (settings.usage, &accelerator) {
            tracing::info!(why, "device memory is not used");
        }
        Ok(Self {
            settings,
            house,
            accelerator,
            keeper: Arc::new(Keeper::new()),
            pinning: Pinning::default(),
            arenas: Mutex::default(),
            noted: Arc::default(),
            peers: Arc::default(),
            seen: Mutex::default(),
            threads: Mutex::default(),
            root: Mutex::new("/".into()),
        })
    }

    pub(super) fn accelerator(&self) -> Result<&Arc<dyn Accelerator>, Status> {
        self.accelerator.as_ref().map_err(|why| missing(why))
    }

    /// What holds memory until streams are past it.
    pub(super) fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// What the driver did not take back.
    pub(super) fn unreleased(&self) -> u64 {
        self.accelerator.as_ref().map_or(0, |all| all.unreleased())
    }

    /// What is used of each device that was used.
    pub(super) fn stats(&self) -> Vec<DeviceStats> {
        let arenas = self.arenas.locked();
        let stats = arenas.iter().map(|(device, arena)| {
            let mut pool = arena.pool.locked();
            let (mut used, mut marks) = (self.unused(), arena.times.pinned_bytes() as u64);
            if let Some(pool) = &mut *pool {
                pool.reclaim();
                used = pool.stats();
                let times = pool.segments().iter().map(|one| one.times());
                marks += times.map(|times| times.pinned_bytes() as u64).sum::<u64>();
            }
            let of = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
            DeviceStats {
                device: *device,
                arena: used,
                pinned_bytes: of(&arena.pinned) + of(&arena.segments),
                pinned_limit_bytes: self.settings.pinned_bytes as u64,
                marks_bytes: marks,
                to_host_bytes: of(&arena.to_host),
                to_device_bytes: of(&arena.to_device),
                between_bytes: of(&arena.between),
            }
        });
        stats.collect()
    }

    /// The account of an arena that was not made.
    const fn unused(&self) -> PoolStats {
        PoolStats {
            blocks: 0,
            in_use_bytes: 0,
            peak_bytes: 0,
            free_bytes: 0,
            mapped_bytes: 0,
            limit_bytes: self.settings.bytes_max,
            segments: 0,
            refused: 0,
            huge_pages: HugePagesReport::Off,
        }
    }

    /// What there is for a device, made if this is its first use.
    fn arena(&self, inner: &Inner, device: u32) -> Result<Arc<Arena>, Status> {
        let accelerator = self.accelerator()?;
        let mut arenas = self.arenas.locked();
        if let Some(arena) = arenas.get(&device) {
            return Ok(Arc::clone(arena));
        }
        let memory = DeviceArena::new(accelerator, device)?;
        let times = Arc::new(Times::new(accelerator, device, 0, 0)?);
        self.begin_keeping(&inner.clock)?;
        self.note_times(device, &times);
        let arena = Arc::new(Arena {
            memory,
            pool: Mutex::new(None),
            times,
            staging: Mutex::new(None),
            pinned: AtomicU64::new(0),
            segments: AtomicU64::new(0),
            to_host: AtomicU64::new(0),
            to_device: AtomicU64::new(0),
            between: AtomicU64::new(0),
            lanes: Lanes::new(accelerator, device),
        });
        arenas.insert(device, Arc::clone(&arena));
        Ok(arena)
    }

    /// The arena of a device, with its first segment.
    fn pool(&self, memory: &DeviceArena, device: u32) -> Result<Pool<DeviceArena>, Status> {
        let number = FIRST_ARENA + 2 * u16::try_from(device).unwrap_or(u16::MAX / 4);
        let config = ArenaConfig {
            segment_bytes: self.settings.segment_bytes,
            bytes_max: self.settings.bytes_max,
            huge_pages: HugePages::Off,
        };
        let (memory, id) = (memory.clone(), ArenaId(number));
        Ok(Pool::over(self.house, memory, id, config)?)
    }

    /// Does something with the pinned pool of a device.
    fn staged<T>(
        &self,
        arena: &Arena,
        device: u32,
        copy: impl FnOnce(&mut Staging, &Keeper) -> Result<T, MemoryError>,
    ) -> Result<T, Status> {
        let mut staging = arena.staging.locked();
        if staging.as_ref().is_some_and(|staging| !staging.is_usable()) {
            *staging = None;
        }
        let staging = match &mut *staging {
            Some(staging) => staging,
            none => {
                let bytes = self.chunks_bytes();
                self.check_room(device, bytes as u64)?;
                let (all, times) = (self.accelerator()?, &arena.times);
                let made = Staging::new(all, device, times, CHUNKS, bytes / CHUNKS)?;
                let pinned = made.pinned_bytes() as u64;
                arena.pinned.fetch_add(pinned, Ordering::Relaxed);
                none.insert(made)
            }
        };
        Ok(copy(staging, &self.keeper)?)
    }

    /// Refuses a pinned pool that the control group has no room for: the kernel would end the process in its place. The
    /// limit of locked memory is kept by who pins, the driver, and its refusal is `DEVICE_FULL` too.
    fn check_room(&self, device: u32, wanted: u64) -> Result<(), Status> {
        let room = groups::room(&self.root.locked());
        let Some(groups::GroupRoom { left, limit, file }) = room.filter(|room| room.left < wanted)
        else {
            return Ok(());
        };
        let message = format!(
            "copies of device {device} need {wanted} bytes of pinned memory (device_pinned_bytes), but {} leaves \
             {left} of {limit}",
            file.display()
        );
        Err(Status::of(catalogue::DEVICE_FULL, message))
    }

    /// Waits until a device's tensor is there, and holds up no other meanwhile.
    fn wait_for(&self, inner: &Inner, tensor: &Tensor) -> Result<(), Status> {
        let TensorBytes::Device(place) = tensor.bytes() else {
            return Ok(());
        };
        if tensor.readiness().is_ready() {
            return Ok(());
        }
        let arena = self.arena(inner, place.device)?;
        Ok((arena.lanes.take()?).wait_for(tensor, &arena.times, &self.keeper)?)
    }

    /// A device's tensor in memory of the engine's.
    pub(super) fn to_host(&self, inner: &Arc<Inner>, tensor: &Tensor) -> Result<Tensor, Status> {
        let TensorBytes::Device(place) = tensor.bytes() else {
            return Ok(tensor.clone());
        };
        let meta = tensor.meta();
        let dims: Vec<u64> = meta.shape.dims().collect();
        let mut builder = inner.builder(meta.dtype, &dims, Pool::builder)?;
        let out = builder.bytes_mut();
        let arena = self.arena(inner, place.device)?;
        let copied = match self.pinned(inner, &arena, place.device, out, inner.clock.stamp()) {
            Some(pinned) => {
                let lane = arena.lanes.take()?;
                lane.to_host(tensor, &pinned, builder, &arena.times, &self.keeper)?
            }
            None => {
                // Before the chunks are taken, which others wait for.
                self.wait_for(inner, tensor)?;
                self.staged(&arena, place.device, |staging, keeper| {
                    staging.to_host(tensor, out, keeper)
                })?;
                builder.finish()
            }
        };
        arena.to_host.fetch_add(place.size, Ordering::Relaxed);
        Ok(copied)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // What is kept may itself hold the keeper: it would not be looked at again.
        self.keeper.sweep();
    }
}

fn missing(why: &str) -> Status {
    Status::of(
        catalogue::DEVICE_MISSING,
        format!("there is no device memory: {why}"),
    )
}

/// The devices of an engine: see [`Engine::devices`].
#[derive(Clone, Debug)]
pub struct EngineDevices {
    inner: Arc<Users>,
}

impl Engine {
    /// The devices of this machine, whose memory tensors can lie in: a peer of this machine that sees the same device
    /// gets such a tensor where it lies, any other gets a copy by way of the host.
    ///
    /// # Errors
    /// `DEVICE_MISSING` if the setting `devices` is off, or there is no driver or no device; `SHUTDOWN`.
    pub fn devices(&self) -> Result<EngineDevices, Status> {
        self.inner.is_up()?;
        self.inner.wiring.devices().accelerator()?;
        let inner = Arc::clone(&self.inner);
        Ok(EngineDevices { inner })
    }
}

impl EngineDevices {
    fn all(&self) -> &Devices {
        self.inner.wiring.devices()
    }

    /// The driver of the devices: for streams of other libraries ([`Stream::borrowed`]), and pointers
    /// ([`Accelerator::extent`]).
    ///
    /// # Errors
    /// None that [`Engine::devices`] has not told.
    pub fn accelerator(&self) -> Result<Arc<dyn Accelerator>, Status> {
        self.all().accelerator().cloned()
    }

    /// Each device, by its number.
    #[must_use]
    pub fn list(&self) -> Vec<DeviceInfo> {
        let accelerator = self.all().accelerator();
        accelerator.map_or_else(|_| Vec::new(), |all| all.devices().to_vec())
    }

    /// A new stream of a device.
    ///
    /// # Errors
    /// `DEVICE_ORDINAL` if there is no such device; what the driver says.
    pub fn stream(&self, device: u32) -> Result<Stream, Status> {
        Ok(Stream::new(self.all().accelerator()?, device)?)
    }

    /// Memory of a device for a tensor of `meta`, to be written by work of the application's.
    ///
    /// # Errors
    /// `DEVICE_ORDINAL`; `DEVICE_UNSUPPORTED` if the device's memory cannot be shown to other processes; `ARENA_FULL`,
    /// `ARENA_UNFIT` and `DEVICE_FULL`; what the driver says.
    pub fn buffer(&self, device: u32, meta: TensorMeta) -> Result<DeviceBuffer, Status> {
        let arena = self.all().arena(&self.inner, device)?;
        let elements = meta.shape.elements();
        let size = meta
            .dtype
            .size()
            .and_then(|size| elements.checked_mul(size as u64));
        let size = size
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(|| {
                let message = format!("{} of {} have no size", meta.shape, meta.dtype);
                Status::of(catalogue::TENSOR_SHAPE, message)
            })?;
        let mut pool = arena.pool.locked();
        let known = pool.as_ref().map_or(0, |pool| pool.segments().len());
        let pool_of = match &mut *pool {
            Some(pool) => pool,
            none => none.insert(self.all().pool(&arena.memory, device)?),
        };
        let buffer = pool_of.device_buffer(size, &self.all().keeper);
        let (number, added) = (pool_of.id().0, pool_of.segments()[known..].to_vec());
        drop(pool);
        for segment in added {
            self.all().note_times(device, segment.times());
            self.inner.wiring.device_segment_added(number, segment);
        }
        Ok(buffer?)
    }

    /// Lets what is queued next on `stream` wait until a tensor's bytes are there. The host waits only where the driver
    /// cannot let the stream wait.
    ///
    /// # Errors
    /// `DEVICE_LOST` if the bytes will never be there, as far as that is known now; `DEVICE_ORDINAL`; what the driver
    /// says.
    pub fn order(&self, tensor: &Tensor, stream: &Stream) -> Result<(), Status> {
        let arena = self.all().arena(&self.inner, stream.device())?;
        let keeper = &self.all().keeper;
        Ok(await_bytes(tensor, stream, &arena.times, keeper)?)
    }

    /// Lets a tensor go when `stream` has done what is queued on it now. Code that queued work that reads the tensor
    /// gives it back by this, and not by a drop: its memory is used again only when both sides' streams are past it.
    ///
    /// # Errors
    /// What the driver says, if it can neither mark the stream nor wait for it: the tensor is kept for ever then.
    pub fn release_after(&self, tensor: Tensor, stream: &Stream) -> Result<(), Status> {
        let keeper = &self.all().keeper;
        let arena = match self.all().arena(&self.inner, stream.device()) {
            Ok(arena) => arena,
            Err(status) => {
                keeper.keep_for_ever(tensor);
                return Err(status);
            }
        };
        Ok(release_after(tensor, stream, &arena.times, keeper)?)
    }

    /// A copy in memory of the engine's, when the tensor's bytes are there. Where that memory is pinned, or may be
    /// (`device_pinned_bytes`), the device writes it; elsewhere the bytes go by way of chunks.
    ///
    /// # Errors
    /// `DEVICE_LOST` if they will never be; `ARENA_FULL`; what the driver says.
    pub fn to_host(&self, tensor: &Tensor) -> Result<Tensor, Status> {
        self.all().to_host(&self.inner, tensor)
    }

    /// A tensor in a device's memory: itself if it lies there, else a copy. From another device the copy engine takes
    /// it, over the link between the two if one reads the other's memory in place, and else as the driver has it; from
    /// the host's memory the device reads it where it lies if that is pinned, or may be (`device_pinned_bytes`: tensors
    /// in memory of the engine's), and else it goes by way of chunks. The copy may be under way when this returns: the
    /// tensor's readiness says when it is over, here and at its receivers.
    ///
    /// # Errors
    /// As [`EngineDevices::buffer`]; as [`EngineDevices::copy`] from another device.
    pub fn to_device(&self, tensor: &Tensor, device: u32) -> Result<Tensor, Status> {
        if let TensorBytes::Device(place) = tensor.bytes() {
            return match place.device == device {
                true => Ok(tensor.clone()),
                false => self.copy(tensor, self.lane(device)?),
            };
        }
        self.copy_of_host(tensor, device)
    }

    /// A copy of a tensor of the host's.
    fn copy_of_host(&self, tensor: &Tensor, device: u32) -> Result<Tensor, Status> {
        let bytes = tensor.host()?;
        let meta = tensor.meta();
        let buffer = self.buffer(device, meta)?;
        let all = self.all();
        let arena = all.arena(&self.inner, device)?;
        let copied = match all.pinned(&self.inner, &arena, device, bytes, self.inner.clock.stamp())
        {
            Some(pinned) => {
                let (lane, source) = (arena.lanes.take()?, tensor.clone());
                lane.to_device(source, pinned, buffer, &arena.times, &all.keeper)?
            }
            None => all.staged(&arena, device, |staging, _| {
                let queued = staging.to_device(bytes, &buffer);
                // Where it failed the first chunks may be on their way still: the memory goes home behind them.
                let made = buffer.into_tensor_after(meta, staging.stream());
                queued.and(made)
            })?,
        };
        let len = bytes.len() as u64;
        arena.to_device.fetch_add(len, Ordering::Relaxed);
        Ok(copied)
    }

    /// What is used of each device that was used.
    #[must_use]
    pub fn stats(&self) -> Vec<DeviceStats> {
        self.all().stats()
    }

    /// What is kept until streams are past it, and what for ever, for nothing is known of the streams that use it.
    #[must_use]
    pub fn kept(&self) -> (usize, u64) {
        let keeper = &self.all().keeper;
        keeper.sweep();
        (keeper.count(), keeper.quarantined())
    }

    /// Bytes that were copied from devices to the host, or back.
    #[cfg(test)]
    pub(super) fn staged_bytes(&self) -> u64 {
        let stats = self.all().stats();
        let staged = stats
            .iter()
            .map(|one| one.to_host_bytes + one.to_device_bytes);
        staged.sum()
    }
}

/// What peers are told of a segment of a device's.
pub(super) fn uuid_of(accelerator: &dyn Accelerator, segment: &DeviceSegment) -> [u8; 16] {
    use crate::memory::ArenaSegment as _;
    let device = segment.device() as usize;
    let info = accelerator.devices().get(device);
    info.map_or([0; 16], |info| info.uuid.0)
}

#[cfg(test)]
mod card;
#[cfg(test)]
mod tests;
