//! Devices, their contexts and attributes.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::time::Duration;

use crate::calls::{call, lock, put};
use crate::code::{INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE};

/// A primary context is its device's number and this; one of an application's own, its device's number and the other.
const CONTEXT: usize = 0x1000;
const ALIEN: usize = 0x2000;
const BYTES: usize = 8 << 30;

/// The visible devices.
pub(crate) struct Devices {
    pub(crate) all: Vec<Device>,
    without: Vec<String>,
}

/// One of them.
pub(crate) struct Device {
    /// Every byte of its UUID.
    pub(crate) seed: u8,
    /// How often its primary context is retained.
    pub(crate) retained: u32,
}

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl Devices {
    pub(crate) fn from_environment() -> Self {
        let names = std::env::var("PLAYED_CUDA_DEVICES").unwrap_or_else(|_| "01,02".into());
        let seeds = names
            .split(',')
            .filter_map(|name| u8::from_str_radix(name.trim(), 16).ok());
        let without = std::env::var("PLAYED_CUDA_WITHOUT").unwrap_or_default();
        Self {
            all: seeds.map(|seed| Device { seed, retained: 0 }).collect(),
            without: without.split(',').map(str::to_owned).collect(),
        }
    }

    /// True unless the devices cannot do this.
    pub(crate) fn can(&self, what: &str) -> bool {
        !self.without.iter().any(|name| name == what)
    }

    /// Takes an ability away, or gives it back.
    pub(crate) fn set(&mut self, what: &str, can: bool) {
        self.without.retain(|name| name != what);
        if !can {
            self.without.push(what.to_owned());
        }
    }

    pub(crate) fn at(&mut self, device: c_int) -> Result<&mut Device, u32> {
        let index = usize::try_from(device).map_err(|_| INVALID_DEVICE)?;
        self.all.get_mut(index).ok_or(INVALID_DEVICE)
    }

    /// The device of a context that is alive.
    pub(crate) fn of_context(&self, context: usize) -> Result<usize, u32> {
        if let Some(device) = context.checked_sub(ALIEN) {
            return self.all.get(device).map(|_| device).ok_or(INVALID_CONTEXT);
        }
        let device = context.checked_sub(CONTEXT).ok_or(INVALID_CONTEXT)?;
        match self.all.get(device) {
            Some(device) if device.retained > 0 => {}
            _ => return Err(INVALID_CONTEXT),
        }
        Ok(device)
    }

    /// The device of this thread's current context.
    pub(crate) fn current(&self) -> Result<usize, u32> {
        let context = CURRENT.with_borrow(|stack| stack.last().copied());
        self.of_context(context.ok_or(INVALID_CONTEXT)?)
    }
}

pub(crate) const fn context_of(device: usize) -> usize {
    CONTEXT + device
}

/// A context of the device's that is not its primary one, and lives for ever.
pub(crate) const fn alien_context_of(device: usize) -> usize {
    ALIEN + device
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> u32 {
    call("cuInit", |state| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if !state.is_up {
            state.is_up = true;
            // The devices go on by themselves, as words that the host writes let them.
            std::thread::spawn(|| {
                loop {
                    std::thread::sleep(Duration::from_micros(200));
                    crate::streams::pump(&mut lock());
                }
            });
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    call("cuDeviceGetCount", |state| {
        // SAFETY: as above.
        unsafe { put(count, state.devices.all.len() as c_int) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    call("cuDeviceGet", |state| {
        state.devices.at(ordinal)?;
        // SAFETY: as above.
        unsafe { put(device, ordinal) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> u32 {
    call("cuDeviceGetUuid_v2", |state| {
        let seed = state.devices.at(device)?.seed;
        // SAFETY: as above.
        unsafe { put(uuid, [seed; 16]) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> u32 {
    call("cuDeviceGetName", |state| {
        let text = format!("Played {:02x}\0", state.devices.at(device)?.seed);
        if name.is_null() || (len as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's array has `len` elements, and the text is no longer.
        unsafe { name.copy_from_nonoverlapping(text.as_ptr().cast(), text.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> u32 {
    call("cuDeviceTotalMem_v2", |state| {
        state.devices.at(device)?;
        // SAFETY: as above.
        unsafe { put(bytes, BYTES) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, what: c_int, device: c_int) -> u32 {
    call("cuDeviceGetAttribute", |state| {
        state.devices.at(device)?;
        let can = match what {
            122 => state.devices.can("words"),
            102 => state.devices.can("vmm"),
            103 => state.devices.can("descriptors"),
            99 => true,
            _ => false,
        };
        // SAFETY: as above.
        unsafe { put(value, c_int::from(can)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, reader: c_int, owner: c_int) -> u32 {
    call("cuDeviceCanAccessPeer", |state| {
        state.devices.at(reader)?;
        state.devices.at(owner)?;
        let reaches = reader != owner && state.devices.can("peers");
        // SAFETY: as above.
        unsafe { put(can, c_int::from(reaches)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> u32 {
    call("cuDevicePrimaryCtxRetain", |state| {
        state.devices.at(device)?.retained += 1;
        let handle = std::ptr::without_provenance_mut(context_of(device as usize));
        // SAFETY: as above.
        unsafe { put(context, handle) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    call("cuDevicePrimaryCtxRelease_v2", |state| {
        let device = state.devices.at(device)?;
        device.retained = device.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: *mut c_void) -> u32 {
    call("cuCtxPushCurrent_v2", |state| {
        state.devices.of_context(context.addr())?;
        CURRENT.with_borrow_mut(|stack| stack.push(context.addr()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut *mut c_void) -> u32 {
    call("cuCtxPopCurrent_v2", |_| {
        let top = CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        if !context.is_null() {
            // SAFETY: not null, so valid for a write, as every caller vouches.
            unsafe { context.write(std::ptr::without_provenance_mut(top)) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(device: *mut c_int) -> u32 {
    call("cuCtxGetDevice", |state| {
        let current = state.devices.current()?;
        // SAFETY: as above.
        unsafe { put(device, current as c_int) }
    })
}
