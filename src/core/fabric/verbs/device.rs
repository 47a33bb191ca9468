//! Devices: which there are, what each can do, and the port and address that queue pairs use on it.
//!
//! Knows the library's calls for that, and the order of preference among addresses; nothing of queues or memory.
//!
//! Of the addresses (GIDs) of an Ethernet port, the first available of these: RoCE v2 over an IPv4 address (it is
//! written as an IPv6 one, `::ffff:10.2.0.1`), RoCE v2 over a routable IPv6 address, RoCE v2 over a link-local one.
//! RoCE v1 must be asked for by index: it does not cross routers, and was a trap in earlier systems. On InfiniBand it
//! is index 0.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use super::error::{VerbsDeviceName, VerbsError};
use super::sys::{self, VerbsTable};

/// Entries of a port's address table that are looked at: cards have 16 to 256.
const GIDS_MAX: usize = 256;

/// Which device and port to use, and how packets are marked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PathConfig {
    /// The device's name; `None` is the first one with an active port.
    pub device: Option<String>,
    /// The port; `None` is the first active one.
    pub port: Option<u8>,
    /// The index of the address; `None` chooses as the head of this file says.
    pub gid_index: Option<u32>,
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096; `None` is the port's.
    pub mtu: Option<u32>,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The service level, 0 to 15.
    pub service_level: u8,
    /// The traffic class of routed packets: on RoCE v2 the DSCP and ECN bits.
    pub traffic_class: u8,
}

/// The way out of this machine: what a queue pair needs to know of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DevicePath {
    /// The port.
    pub port: u8,
    /// The index of the address.
    pub gid_index: u8,
    /// The address.
    pub gid: [u8; 16],
    /// The address within an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The path MTU's code: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Ethernet: packets are always routed by the address.
    pub is_ethernet: bool,
    /// The longest message, in bytes.
    pub message_max: u32,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The service level.
    pub service_level: u8,
    /// The traffic class.
    pub traffic_class: u8,
}

/// What the device can do, as far as it is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceLimits {
    /// Entries of a completion queue.
    pub completions_max: u32,
    /// Entries of a queue pair's send queue.
    pub sends_max: u32,
    /// Entries of a shared receive queue.
    pub shared_receives_max: u32,
    /// Reads and atomics under way at once, as responder.
    pub reads_in_max: u8,
    /// The same, as requester.
    pub reads_out_max: u8,
}

/// An open device. Closed with its last user.
#[derive(Debug)]
pub struct VerbsDevice {
    table: &'static VerbsTable,
    context: NonNull<sys::ibv_context>,
    name: VerbsDeviceName,
    limits: DeviceLimits,
    ports: u8,
    pkeys: u16,
}

impl VerbsDevice {
    /// The names of the machine's devices.
    ///
    /// # Errors
    /// [`VerbsError::Call`] where the kernel has no RDMA.
    pub fn names(table: &'static VerbsTable) -> Result<Vec<String>, VerbsError> {
        let list = DeviceList::new(table)?;
        Ok(list.iter().map(|(name, _)| name).collect())
    }

    /// Opens the device that `config` names, or the first one with an active port, and finds the way out of it.
    ///
    /// # Errors
    /// [`VerbsError`], of the last device that was tried.
    pub fn open(
        table: &'static VerbsTable,
        config: &PathConfig,
    ) -> Result<(Self, DevicePath), VerbsError> {
        let wanted = config.device.as_deref();
        let list = DeviceList::new(table)?;
        let mut error = VerbsError::NoDevice {
            wanted: wanted.unwrap_or("").into(),
        };
        for (name, device) in list.iter() {
            if wanted.is_some_and(|wanted| wanted != name) {
                continue;
            }
            let tried = Self::open_one(table, VerbsDeviceName(name.into()), device)
                .and_then(|device| device.path(config).map(|path| (device, path)));
            match tried {
                Ok(found) => return Ok(found),
                Err(why) => error = why,
            }
        }
        Err(error)
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &VerbsDeviceName {
        &self.name
    }

    /// What it can do.
    #[must_use]
    pub const fn limits(&self) -> DeviceLimits {
        self.limits
    }

    pub(super) const fn table(&self) -> &'static VerbsTable {
        self.table
    }

    pub(super) const fn context(&self) -> NonNull<sys::ibv_context> {
        self.context
    }

    /// The descriptor that is readable when the device has something to tell.
    pub(super) fn async_fd(&self) -> c_int {
        // SAFETY: the context is open as long as `self`, and its descriptor is written once, when it is opened.
        unsafe { (*self.context.as_ptr()).async_fd }
    }

    /// The failure of a call on this device.
    pub(super) fn failed(&self, call: &'static str, errno: i32) -> VerbsError {
        VerbsError::Call {
            call,
            errno: if mutant!("verbs_errno_lost") {
                0
            } else {
                errno
            },
            device: self.name.clone(),
        }
    }

    fn open_one(
        table: &'static VerbsTable,
        name: VerbsDeviceName,
        device: NonNull<sys::ibv_device>,
    ) -> Result<Self, VerbsError> {
        // SAFETY: `ibv_open_device(3)`: `device` is of a list that is not freed yet.
        let context = unsafe { (table.open_device)(device.as_ptr()) };
        let Some(context) = NonNull::new(context) else {
            return Err(VerbsError::Call {
                call: "ibv_open_device",
                errno: last_errno(),
                device: name,
            });
        };
        let mut open = Self {
            table,
            context,
            name,
            limits: DeviceLimits {
                completions_max: 0,
                sends_max: 0,
                shared_receives_max: 0,
                reads_in_max: 0,
                reads_out_max: 0,
            },
            ports: 0,
            pkeys: 0,
        };
        open.ask()?;
        Ok(open)
    }

    /// Asks what it can do.
    fn ask(&mut self) -> Result<(), VerbsError> {
        let mut attr = std::mem::MaybeUninit::<sys::ibv_device_attr>::zeroed();
        // SAFETY: `ibv_query_device(3)`: the context is open, and there is room for the answer.
        let errno = unsafe { (self.table.query_device)(self.context.as_ptr(), attr.as_mut_ptr()) };
        if errno != 0 {
            return Err(self.failed("ibv_query_device", errno));
        }
        // SAFETY: it is plain numbers, all of them zeroed above.
        let attr = unsafe { attr.assume_init() };
        let count = |number: c_int| u32::try_from(number).unwrap_or(0);
        let few = |number: c_int| u8::try_from(number.clamp(0, 255)).unwrap_or(0);
        self.limits = DeviceLimits {
            completions_max: count(attr.max_cqe),
            sends_max: count(attr.max_qp_wr),
            shared_receives_max: count(attr.max_srq_wr),
            reads_in_max: few(attr.max_qp_rd_atom),
            reads_out_max: few(attr.max_qp_init_rd_atom),
        };
        self.ports = attr.phys_port_cnt;
        self.pkeys = attr.max_pkeys;
        Ok(())
    }

    /// The way out that `config` asks for.
    fn path(&self, config: &PathConfig) -> Result<DevicePath, VerbsError> {
        check(
            config.service_level <= 15,
            "service_level",
            config.service_level.into(),
            "0 to 15",
        )?;
        check(
            config.pkey_index == 0 || config.pkey_index < self.pkeys,
            "pkey_index",
            config.pkey_index.into(),
            "an index of the device's table of partition keys",
        )?;
        let (port, attr) = self.active_port(config.port)?;
        let mtu = self.mtu(config.mtu, attr.active_mtu)?;
        let is_ethernet = attr.link_layer == sys::IBV_LINK_LAYER_ETHERNET;
        let gids = self.gids()?;
        let of_port = || gids.iter().filter(|gid| gid.port_num == u32::from(port));
        let found = match config.gid_index {
            Some(index) => of_port().find(|gid| gid.gid_index == index),
            None if is_ethernet => of_port()
                .filter(|gid| rank(gid) < NEVER)
                .min_by_key(|gid| (rank(gid), gid.gid_index)),
            None => of_port().min_by_key(|gid| gid.gid_index),
        };
        let found = found.and_then(|gid| Some((u8::try_from(gid.gid_index).ok()?, gid.gid.raw)));
        let (gid_index, gid) = found.ok_or_else(|| VerbsError::NoGid {
            device: self.name.clone(),
            port,
            wanted: config.gid_index,
        })?;
        Ok(DevicePath {
            port,
            gid_index,
            gid,
            lid: attr.lid,
            mtu,
            is_ethernet,
            message_max: attr.max_msg_sz,
            pkey_index: config.pkey_index,
            service_level: config.service_level,
            traffic_class: config.traffic_class,
        })
    }

    fn active_port(&self, wanted: Option<u8>) -> Result<(u8, sys::ibv_port_attr), VerbsError> {
        let ports = wanted.map_or(1..=self.ports, |port| port..=port);
        for port in ports {
            let mut attr = sys::ibv_port_attr::default();
            // SAFETY: `ibv_query_port(3)`: the context is open, and there is room for the answer.
            let errno =
                unsafe { (self.table.query_port)(self.context.as_ptr(), port, &raw mut attr) };
            if errno != 0 {
                return Err(self.failed("ibv_query_port", errno));
            }
            if attr.state == sys::IBV_PORT_ACTIVE {
                return Ok((port, attr));
            }
        }
        Err(VerbsError::NoPort {
            device: self.name.clone(),
            wanted,
        })
    }

    /// The code of the path MTU: what was asked for, if the port can do it.
    fn mtu(&self, wanted: Option<u32>, active: u32) -> Result<u8, VerbsError> {
        let active = u8::try_from(active).unwrap_or(0).min(5);
        let Some(bytes) = wanted else {
            return Ok(active.max(1));
        };
        let code = (1..=active).find(|code| 128 << code == bytes);
        code.ok_or_else(|| VerbsError::Setting {
            setting: "mtu",
            value: bytes.into(),
            rule: "256, 512, 1024, 2048 or 4096, and no more than the port's active MTU",
        })
    }

    fn gids(&self) -> Result<Vec<sys::ibv_gid_entry>, VerbsError> {
        let mut entries = vec![sys::ibv_gid_entry::default(); GIDS_MAX];
        // SAFETY: `ibv_query_gid_table(3)`: the context is open, there is room for as many entries as is said, each of
        // the size that is said, and no flags are defined.
        let count = unsafe {
            (self.table.query_gid_table)(
                self.context.as_ptr(),
                entries.as_mut_ptr(),
                GIDS_MAX,
                0,
                size_of::<sys::ibv_gid_entry>(),
            )
        };
        match usize::try_from(count) {
            Ok(count) => {
                entries.truncate(count);
                Ok(entries)
            }
            Err(_) => Err(self.failed("ibv_query_gid_table", (-count) as i32)),
        }
    }
}

impl Drop for VerbsDevice {
    fn drop(&mut self) {
        // SAFETY: `ibv_close_device(3)`: opened in `open_one` and closed once. All that was made on it held it.
        let _ = unsafe { (self.table.close_device)(self.context.as_ptr()) };
    }
}

// SAFETY: not automatic because of `context`. libibverbs lets any thread use an open context.
unsafe impl Send for VerbsDevice {}

// SAFETY: as above: every call on a context may be made from several threads at once.
unsafe impl Sync for VerbsDevice {}

/// Refuses a setting.
pub(super) const fn check(
    holds: bool,
    setting: &'static str,
    value: u64,
    rule: &'static str,
) -> Result<(), VerbsError> {
    if holds {
        return Ok(());
    }
    Err(VerbsError::Setting {
        setting,
        value,
        rule,
    })
}

/// Not to be chosen unasked.
const NEVER: u8 = 3;

/// The place of an address in the order of preference.
fn rank(gid: &sys::ibv_gid_entry) -> u8 {
    let raw = gid.gid.raw;
    if gid.gid_type != sys::IBV_GID_TYPE_ROCE_V2 {
        NEVER
    } else if raw[..10] == [0; 10] && raw[10..12] == [0xff; 2] {
        0
    } else if raw[0] == 0xfe && raw[1] & 0xc0 == 0x80 {
        2
    } else {
        1
    }
}

/// The error number that the last call of this thread left.
pub(super) fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// The library's list of devices, freed with this.
struct DeviceList {
    table: &'static VerbsTable,
    list: NonNull<*mut sys::ibv_device>,
    len: usize,
}

impl DeviceList {
    fn new(table: &'static VerbsTable) -> Result<Self, VerbsError> {
        prepare_for_forks(table);
        let mut count = 0;
        // SAFETY: `ibv_get_device_list(3)`: there is room for the count.
        let list = unsafe { (table.get_device_list)(&raw mut count) };
        let list = NonNull::new(list).ok_or_else(|| VerbsError::Call {
            call: "ibv_get_device_list",
            errno: last_errno(),
            device: VerbsDeviceName("this machine".into()),
        })?;
        Ok(Self {
            table,
            list,
            len: usize::try_from(count).unwrap_or(0),
        })
    }

    fn iter(&self) -> impl Iterator<Item = (String, NonNull<sys::ibv_device>)> {
        (0..self.len).filter_map(|index| {
            // SAFETY: the list has `len` entries, and lives as long as `self`.
            let device = NonNull::new(unsafe { self.list.as_ptr().wrapping_add(index).read() })?;
            // SAFETY: `ibv_get_device_name(3)`: the device is of a list that is not freed yet.
            let name =
                NonNull::new(unsafe { (self.table.get_device_name)(device.as_ptr()) }.cast_mut())?;
            // SAFETY: the library ends its names with a zero, and keeps them as long as the list.
            let name = unsafe { CStr::from_ptr(name.as_ptr()) };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: `ibv_free_device_list(3)`: the list came from the library and is freed once; an open device no longer
        // needs it.
        unsafe { (self.table.free_device_list)(self.list.as_ptr()) };
    }
}

/// Before the first device is opened, and once: memory that a device works on stays this process's own when it forks.
/// Kernels before 5.12 would else give queues and doorbells to the child, and the parent's next write of them would go
/// to a copy that the device does not see: its queue pairs would stand still. Later ones give the child copies. A
/// library that knows so is left alone: many would take all registered memory from the child nonetheless.
fn prepare_for_forks(table: &'static VerbsTable) {
    table.forks.call_once(|| {
        // SAFETY: `ibv_is_fork_initialized(3)`: it takes nothing, and may be called at any time.
        let known = (table.is_fork_initialized).map(|ask| unsafe { ask() });
        if known != Some(sys::IBV_FORK_UNNEEDED) {
            // A library that refuses does so for good, and only a process that forks would notice.
            // SAFETY: `ibv_fork_init(3)`: it takes nothing, and may be called at any time; too late it does nothing.
            let _ = unsafe { (table.fork_init)() };
        }
    });
}
