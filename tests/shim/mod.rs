//! libibverbs played in memory: two devices on one wire, for tests of whatever is built on it.
//!
//! Everything is one test's: objects, the wire between the devices, and the faults that it asks for. A test begins with
//! `reset`, in the thread that opens the devices; a user of an object of theirs, on whatever thread, is in the same
//! world. Requests are carried out when anybody polls a completion queue, a few at a time, in the order of their queue
//! pair. What no
//! correct caller does (an overrun queue, memory that is not registered, a queue destroyed under its users) is not
//! forgiven: it ends the test, or fails as on a device.
#![allow(unsafe_code)]
#![allow(dead_code)] // Each test uses its part.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rendez::fabric::verbs::sys::*;

/// What a device calls itself.
const NAMES: [&std::ffi::CStr; 2] = [c"shim0", c"shim1"];
/// Bytes that may be sent inline.
const INLINE_MAX: u32 = 256;

static DEVICES: [u8; 2] = [0, 1];

/// The worlds of all tests of this process, by number.
static WORLDS: Mutex<Vec<Arc<World>>> = Mutex::new(Vec::new());

thread_local! {
    /// The world that this thread is in.
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The library in one test.
#[derive(Default)]
struct World(Mutex<Shim>);

// SAFETY: not automatic because of the pointers in requests and events. They are addresses that are only looked at
// under the lock, of memory that the test's own threads answer for as they would before a real device.
unsafe impl std::marker::Send for Shim {}

impl World {
    fn borrow_mut(&self) -> MutexGuard<'_, Shim> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn borrow(&self) -> MutexGuard<'_, Shim> {
        self.borrow_mut()
    }
}

/// The device that is asked, in the world of this thread.
struct Here;

const SHIM: Here = Here;

impl Here {
    fn with<T>(&self, look: impl FnOnce(&World) -> T) -> T {
        let number = number();
        let world = {
            let worlds = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(&worlds[number])
        };
        look(&world)
    }
}

/// The number of this thread's world; a new one if it is in none.
fn number() -> usize {
    CURRENT.get().unwrap_or_else(|| {
        reset();
        CURRENT.get().unwrap_or_default()
    })
}

/// This thread is in the world of the context's devices.
fn enter(context: *mut ibv_context) {
    // SAFETY: a context of ours that is open.
    CURRENT.set(Some(unsafe { (*context).cmd_fd as usize } >> 1));
}

#[derive(Default)]
struct Shim {
    memory: Vec<Option<Memory>>,
    completions: Vec<Option<Completions>>,
    receives: Vec<Option<Receives>>,
    pairs: Vec<Option<Pair>>,
    channels: BTreeMap<usize, c_int>,
    events: [VecDeque<ibv_async_event>; 2],
    /// Who waits for a device's events.
    listeners: Vec<(usize, c_int)>,
    fault: Option<Fault>,
    /// A call that always fails.
    barred: Option<(&'static str, c_int)>,
    /// The most that queue pairs may ask to send inline; those that ask for more are refused.
    inline_most: Option<u32>,
    /// What devices can do, where it is less than usual.
    limits: BTreeMap<&'static str, c_int>,
    /// How many objects stand on each object.
    users: BTreeMap<usize, usize>,
    is_cut: bool,
    is_silent: bool,
    /// Numbers of queue pairs that are gone are given out again.
    reuses_numbers: bool,
    /// Events that were got and not acknowledged, by what they are about.
    unacknowledged: Vec<usize>,
    /// The device whose requests are not carried out yet.
    late: Option<usize>,
    /// Carried out so far, by kind.
    done: u64,
    seen: BTreeMap<&'static str, u64>,
    told: BTreeMap<&'static str, u64>,
    live: i64,
}

struct Fault {
    what: What,
    after: u64,
}

enum What {
    Call(&'static str, c_int),
    Completion(c_uint),
    Receive(c_uint),
}

struct Memory {
    address: u64,
    len: u64,
    access: c_uint,
    domain: usize,
}

struct Receives {
    queue: VecDeque<(u64, ibv_sge)>,
    depth: usize,
    domain: usize,
}

struct Completions {
    queue: VecDeque<(ibv_wc, usize, u32)>,
    depth: usize,
    is_armed: bool,
    channel: usize,
    pending: u32,
    /// Events that were got and not acknowledged.
    unacknowledged: u32,
}

struct Pair {
    at: usize,
    device: usize,
    number: u32,
    peer: u32,
    state: c_uint,
    queue: usize,
    receive: usize,
    domain: usize,
    access: c_uint,
    capacity: u32,
    inline: u32,
    sends: VecDeque<Send>,
    /// Entries of the send queue in use, and how many of them the next completion frees.
    used: u32,
    untold: u32,
}

struct Send {
    request: ibv_send_wr,
    piece: ibv_sge,
    /// A copy, without the heap: others count what is asked of it.
    inline: Option<[u8; INLINE_MAX as usize]>,
}

/// The table of its functions.
pub(crate) fn table() -> &'static VerbsTable {
    static TABLE: VerbsTable = VerbsTable {
        fork_init,
        get_device_list,
        free_device_list,
        get_device_name,
        open_device,
        close_device,
        query_device,
        query_port,
        query_gid_table,
        get_async_event,
        ack_async_event,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_srq,
        destroy_srq,
        create_qp,
        modify_qp,
        destroy_qp,
        is_fork_initialized: None,
        forks: std::sync::Once::new(),
    };
    &TABLE
}

/// Begins anew: no objects, no faults.
pub(crate) fn reset() {
    let mut worlds = WORLDS.lock().unwrap_or_else(PoisonError::into_inner);
    worlds.push(Arc::default());
    CURRENT.set(Some(worlds.len() - 1));
}

/// From now on the call of this name fails with `errno`, once, after it succeeded `after` times.
pub(crate) fn fail_call(call: &'static str, errno: c_int, after: u64) {
    let what = What::Call(call, errno);
    SHIM.with(|shim| shim.borrow_mut().fault = Some(Fault { what, after }));
}

/// From now on the call of this name fails with `errno`, every time.
pub(crate) fn fail_calls(call: &'static str, errno: c_int) {
    SHIM.with(|shim| shim.borrow_mut().barred = Some((call, errno)));
}

/// From now on a queue pair that asks for more bytes inline is refused, as some providers do: without an error number.
pub(crate) fn take_inline_at_most(bytes: u32) {
    SHIM.with(|shim| shim.borrow_mut().inline_most = Some(bytes));
}

/// From now on devices can do no more than so many of that, as `ibv_query_device(3)` names it.
pub(crate) fn limit(what: &'static str, most: c_int) {
    SHIM.with(|shim| shim.borrow_mut().limits.insert(what, most));
}

/// The request carried out after `after` others ends with `status`.
pub(crate) fn fail_completion(status: c_uint, after: u64) {
    let what = What::Completion(status);
    SHIM.with(|shim| shim.borrow_mut().fault = Some(Fault { what, after }));
}

/// The next receive of a message or write completes with `status`, after so many that did well.
pub(crate) fn fail_receive(status: c_uint, after: u64) {
    let what = What::Receive(status);
    SHIM.with(|shim| shim.borrow_mut().fault = Some(Fault { what, after }));
}

/// True as long as a fault that was asked for has not come.
pub(crate) fn is_fault_pending() -> bool {
    SHIM.with(|shim| shim.borrow().fault.is_some())
}

/// Cuts the wire: what is sent ends with "retries exceeded".
pub(crate) fn cut() {
    SHIM.with(|shim| shim.borrow_mut().is_cut = true);
}

/// What a device sends is slow: nothing of it is carried out until this is called with `None`.
pub(crate) fn delay(device: Option<usize>) {
    SHIM.with(|shim| shim.borrow_mut().late = device);
}

/// From now on no device tells that a last entry was used, as Soft-RoCE never does.
pub(crate) fn silence() {
    SHIM.with(|shim| shim.borrow_mut().is_silent = true);
}

/// From now on a new queue pair gets the lowest number that is free, as on a card.
pub(crate) fn reuse_numbers() {
    SHIM.with(|shim| shim.borrow_mut().reuses_numbers = true);
}

/// Tells of an event without an element of its own.
pub(crate) fn event(device: usize, event_type: c_uint) {
    let event = ibv_async_event {
        // As a pointer, so that all of it is written: the queue pairs among the events are looked for by address.
        element: ibv_async_element {
            qp: ptr::without_provenance_mut(1),
        },
        event_type,
    };
    SHIM.with(|shim| shim.borrow_mut().tell(device, event));
}

/// Tells every queue pair of a device of an event.
pub(crate) fn event_of_pairs(device: usize, event_type: c_uint) {
    event_of_latest(device, usize::MAX, event_type);
}

/// The same for those of them that were made last, so many.
pub(crate) fn event_of_latest(device: usize, count: usize, event_type: c_uint) {
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        let pairs = shim.pairs.iter().flatten();
        let of_it = pairs.filter(|pair| pair.device == device);
        let all: Vec<usize> = of_it.map(|pair| pair.at).collect();
        for &at in &all[all.len().saturating_sub(count)..] {
            let qp = ptr::with_exposed_provenance_mut(at);
            let element = ibv_async_element { qp };
            shim.tell(
                device,
                ibv_async_event {
                    element,
                    event_type,
                },
            );
        }
    });
}

/// How often a call was made, or a request carried out (`"SEND"`, `"WRITE"`, `"WRITE_WITH_IMM"`).
pub(crate) fn seen(what: &str) -> u64 {
    SHIM.with(|shim| shim.borrow().seen.get(what).copied().unwrap_or(0))
}

/// What a queue pair was last told of something: `"mtu"`, `"sl"` and the like.
pub(crate) fn told(what: &str) -> Option<u64> {
    SHIM.with(|shim| shim.borrow().told.get(what).copied())
}

/// Objects that were made and not given back.
pub(crate) fn live() -> i64 {
    SHIM.with(|shim| shim.borrow().live)
}

/// Counts a call, and says with which number it is to fail.
fn call(name: &'static str) -> Option<c_int> {
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        *shim.seen.entry(name).or_default() += 1;
        if let Some((_, errno)) = shim.barred.filter(|(barred, _)| *barred == name) {
            set_errno(errno);
            return Some(errno);
        }
        let fault = shim.fault.as_mut()?;
        let What::Call(wanted, errno) = fault.what else {
            return None;
        };
        if wanted != name {
            return None;
        }
        if fault.after > 0 {
            fault.after -= 1;
            return None;
        }
        shim.fault = None;
        set_errno(errno);
        Some(errno)
    })
}

fn set_errno(errno: c_int) {
    // SAFETY: it has no conditions.
    let number = unsafe { libc::__errno_location() };
    // SAFETY: the address is that of this thread's own number.
    unsafe { *number = errno };
}

fn made() {
    SHIM.with(|shim| shim.borrow_mut().live += 1);
}

fn gone() {
    SHIM.with(|shim| shim.borrow_mut().live -= 1);
}

/// Made, and it stands on that object, which cannot go before it.
fn made_on<T>(base: *mut T) {
    made();
    SHIM.with(|shim| *shim.borrow_mut().users.entry(base.addr()).or_default() += 1);
}

fn gone_from<T>(base: *mut T) {
    gone();
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        let users = shim.users.get_mut(&base.addr()).expect("it stood on it");
        *users -= 1;
    });
}

fn is_busy<T>(base: *mut T) -> bool {
    SHIM.with(|shim| {
        shim.borrow()
            .users
            .get(&base.addr())
            .is_some_and(|users| *users > 0)
    })
}

/// The most that devices can do of it.
fn limit_of(what: &'static str) -> c_int {
    let usual = match what {
        "max_cqe" => 1 << 22,
        "max_qp_wr" => 1 << 14,
        _ => 1 << 15,
    };
    SHIM.with(|shim| shim.borrow().limits.get(what).copied().unwrap_or(usual))
}

/// True, with the error of a device, if so many are more than it can do.
fn is_beyond(what: &'static str, count: u32) -> bool {
    let is_beyond = count > limit_of(what).cast_unsigned();
    if is_beyond {
        set_errno(libc::EINVAL);
    }
    is_beyond
}

fn keep<T>(list: &mut Vec<Option<T>>, item: T) -> u32 {
    list.push(Some(item));
    list.len() as u32 - 1
}

fn eventfd() -> c_int {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    rustix::event::eventfd(0, flags)
        .expect("eventfd")
        .into_raw_fd()
}

fn close(fd: c_int) {
    // SAFETY: made by `eventfd` above and closed once, with the object it belongs to.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    if call("ibv_get_device_list").is_some() {
        return ptr::null_mut();
    }
    let list: Box<[*mut ibv_device; 3]> = Box::new([
        (&raw const DEVICES[0]).cast_mut().cast(),
        (&raw const DEVICES[1]).cast_mut().cast(),
        ptr::null_mut(),
    ]);
    // SAFETY: the caller gave room for the count.
    unsafe { *count = 2 };
    made();
    Box::into_raw(list).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    gone();
    // SAFETY: it came from `get_device_list`.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 3]>()) });
}

fn device_of(device: *mut ibv_device) -> usize {
    usize::from(ptr::addr_eq(device, &raw const DEVICES[1]))
}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    NAMES[device_of(device)].as_ptr()
}

/// `ibv_fork_init` was called, once and before any device was opened.
static KEEPS_MEMORY: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn fork_init() -> c_int {
    KEEPS_MEMORY.fetch_add(1, Ordering::Relaxed);
    0
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    if call("ibv_open_device").is_some() {
        return ptr::null_mut();
    }
    if KEEPS_MEMORY.load(Ordering::Relaxed) != 1 {
        // As a fork would find it: no device of such a process can be trusted.
        set_errno(libc::EPERM);
        return ptr::null_mut();
    }
    made();
    let async_fd = eventfd();
    SHIM.with(|shim| {
        shim.borrow_mut()
            .listeners
            .push((device_of(device), async_fd))
    });
    Box::into_raw(Box::new(ibv_context {
        device,
        ops: ibv_context_ops {
            before_poll_cq: [ptr::null(); 11],
            poll_cq: Some(poll_cq),
            req_notify_cq: Some(req_notify_cq),
            before_post_srq_recv: [ptr::null(); 7],
            post_srq_recv: Some(post_srq_recv),
            before_post_send: [ptr::null(); 4],
            post_send: Some(post_send),
            after_post_send: [ptr::null(); 6],
        },
        // The device, and the world it is in.
        cmd_fd: (device_of(device) | number() << 1) as c_int,
        async_fd,
        num_comp_vectors: 1,
    }))
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    enter(context);
    if is_busy(context) {
        return libc::EBUSY;
    }
    gone();
    // SAFETY: it came from `open_device`, and is closed once.
    let context = unsafe { Box::from_raw(context) };
    SHIM.with(|shim| {
        shim.borrow_mut()
            .listeners
            .retain(|(_, fd)| *fd != context.async_fd)
    });
    close(context.async_fd);
    0
}

fn which(context: *mut ibv_context) -> usize {
    // SAFETY: a context of ours that is open.
    unsafe { (*context).cmd_fd as usize & 1 }
}

unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    enter(context);
    if let Some(errno) = call("ibv_query_device") {
        return errno;
    }
    // SAFETY: the caller gave room for it.
    let attr = unsafe { &mut *attr };
    attr.max_cqe = limit_of("max_cqe");
    attr.max_qp_wr = limit_of("max_qp_wr");
    attr.max_srq_wr = limit_of("max_srq_wr");
    attr.max_qp_rd_atom = 16;
    attr.max_qp_init_rd_atom = 16;
    attr.max_pkeys = 4;
    attr.phys_port_cnt = 1;
    0
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    enter(context);
    if let Some(errno) = call("ibv_query_port") {
        return errno;
    }
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller gave room for it.
    let attr = unsafe { &mut *attr };
    attr.state = IBV_PORT_ACTIVE;
    attr.active_mtu = 3;
    attr.max_msg_sz = 1 << 31;
    attr.link_layer = IBV_LINK_LAYER_ETHERNET;
    0
}

/// A link-local address, RoCE v1 of IPv4, and RoCE v2 of it, as cards have them.
unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    _: u32,
    size: usize,
) -> isize {
    enter(context);
    if let Some(errno) = call("_ibv_query_gid_table") {
        return -(errno as isize);
    }
    assert!(room >= 3 && size == size_of::<ibv_gid_entry>());
    let mut local = ibv_gid::default();
    local.raw[..2].copy_from_slice(&[0xfe, 0x80]);
    local.raw[15] = which(context) as u8 + 1;
    let mut mapped = ibv_gid::default();
    mapped.raw[10..].copy_from_slice(&[0xff, 0xff, 10, 2, 0, which(context) as u8 + 1]);
    let all = [
        (local, IBV_GID_TYPE_ROCE_V2),
        (mapped, IBV_GID_TYPE_ROCE_V1),
        (mapped, IBV_GID_TYPE_ROCE_V2),
    ];
    for (index, (gid, gid_type)) in all.into_iter().enumerate() {
        let entry = ibv_gid_entry {
            gid,
            gid_index: index as u32,
            port_num: 1,
            gid_type,
            ndev_ifindex: 0,
        };
        // SAFETY: the caller gave room for `room` entries.
        unsafe { entries.wrapping_add(index).write(entry) };
    }
    3
}

unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    enter(context);
    let next = SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        let next = shim.events[which(context)].pop_front()?;
        // SAFETY: all events were made with a pointer, or a small number as one.
        shim.unacknowledged.push(unsafe { next.element.qp }.addr());
        Some(next)
    });
    let Some(next) = next else {
        // SAFETY: a context of ours that is open.
        let fd = unsafe { (*context).async_fd };
        // SAFETY: its descriptor is open as long as it is.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let _ = rustix::io::read(fd, &mut [0; 8]);
        set_errno(libc::EAGAIN);
        return -1;
    };
    // SAFETY: the caller gave room for it.
    unsafe { event.write(next) };
    0
}

unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the caller's event, which was got by this thread.
    let element = unsafe { (*event).element };
    // SAFETY: as when it was got.
    let about = unsafe { element.qp }.addr();
    SHIM.with(|shim| {
        let list = &mut shim.borrow_mut().unacknowledged;
        let at = list.iter().position(|known| *known == about);
        list.swap_remove(at.expect("an event is acknowledged once"));
    });
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    enter(context);
    if call("ibv_alloc_pd").is_some() {
        return ptr::null_mut();
    }
    made_on(context);
    Box::into_raw(Box::new(ibv_pd { context, handle: 0 }))
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: an object of ours that is live.
    let context = unsafe { (*pd).context };
    enter(context);
    if is_busy(pd) {
        return libc::EBUSY;
    }
    gone_from(context);
    // SAFETY: it came from `alloc_pd`, and is freed once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*pd).context });
    if call("ibv_reg_mr_iova2").is_some() {
        return ptr::null_mut();
    }
    assert_eq!(addr.expose_provenance() as u64, iova);
    if access & IBV_ACCESS_REMOTE_WRITE != 0 && access & IBV_ACCESS_LOCAL_WRITE == 0 {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    let memory = Memory {
        address: iova,
        len: length as u64,
        access,
        domain: pd.addr(),
    };
    let handle = SHIM.with(|shim| keep(&mut shim.borrow_mut().memory, memory));
    made_on(pd);
    // SAFETY: a live domain of ours.
    let context = unsafe { (*pd).context };
    Box::into_raw(Box::new(ibv_mr {
        context,
        pd,
        addr,
        length,
        handle,
        lkey: handle + 1000,
        rkey: handle + 5000,
    }))
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*mr).context });
    // SAFETY: it came from `reg_mr`, and is given back once.
    let mr = unsafe { Box::from_raw(mr) };
    gone_from(mr.pd);
    SHIM.with(|shim| shim.borrow_mut().memory[mr.handle as usize] = None);
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    enter(context);
    if call("ibv_create_comp_channel").is_some() {
        return ptr::null_mut();
    }
    made_on(context);
    let fd = eventfd();
    let channel = ibv_comp_channel {
        context,
        fd,
        refcnt: 0,
    };
    let channel = Box::into_raw(Box::new(channel));
    SHIM.with(|shim| shim.borrow_mut().channels.insert(channel.addr(), fd));
    channel
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: an object of ours that is live.
    let context = unsafe { (*channel).context };
    enter(context);
    if is_busy(channel) {
        return libc::EBUSY;
    }
    gone_from(context);
    SHIM.with(|shim| shim.borrow_mut().channels.remove(&channel.addr()));
    // SAFETY: it came from `create_comp_channel`, and is destroyed once.
    let channel = unsafe { Box::from_raw(channel) };
    close(channel.fd);
    0
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    enter(context);
    if call("ibv_create_cq").is_some() || is_beyond("max_cqe", entries.cast_unsigned()) {
        return ptr::null_mut();
    }
    made_on(channel);
    let queue = Completions {
        queue: VecDeque::new(),
        depth: entries as usize,
        is_armed: false,
        channel: channel.addr(),
        pending: 0,
        unacknowledged: 0,
    };
    let handle = SHIM.with(|shim| keep(&mut shim.borrow_mut().completions, queue));
    Box::into_raw(Box::new(ibv_cq {
        context,
        channel,
        cq_context,
        handle,
        cqe: entries,
    }))
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*cq).context });
    // SAFETY: it came from `create_cq`, and is destroyed once.
    let cq = unsafe { Box::from_raw(cq) };
    gone_from(cq.channel);
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        let users = shim
            .pairs
            .iter()
            .flatten()
            .filter(|pair| pair.queue == cq.handle as usize);
        assert_eq!(
            users.count(),
            0,
            "a completion queue outlives its queue pairs"
        );
        let queue = shim.completions[cq.handle as usize].take();
        let events = queue.map(|queue| queue.unacknowledged);
        // A device would wait for them for ever.
        assert_eq!(
            events,
            Some(0),
            "events of a queue are acknowledged before it goes"
        );
    });
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    _: *mut *mut ibv_cq,
    _: *mut *mut c_void,
) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*channel).context });
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        let queue = shim
            .completions
            .iter_mut()
            .flatten()
            .find(|queue| queue.channel == channel.addr() && queue.pending > 0);
        let Some(queue) = queue else {
            set_errno(libc::EAGAIN);
            return -1;
        };
        queue.pending -= 1;
        queue.unacknowledged += 1;
        // SAFETY: the channel's descriptor is open as long as the channel.
        let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(shim.channels[&channel.addr()]) };
        let _ = rustix::io::read(fd, &mut [0; 8]);
        0
    })
}

unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*cq).context });
    // SAFETY: as its context.
    let index = unsafe { (*cq).handle as usize };
    SHIM.with(|shim| {
        let queue = &mut shim.borrow_mut().completions[index];
        let queue = queue.as_mut().expect("a live completion queue");
        let left = queue.unacknowledged.checked_sub(count);
        queue.unacknowledged = left.expect("an event is acknowledged once");
    });
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*pd).context });
    if call("ibv_create_srq").is_some() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's attributes.
    let ibv_srq_init_attr { srq_context, attr } = unsafe { *attr };
    if is_beyond("max_srq_wr", attr.max_wr) {
        return ptr::null_mut();
    }
    made_on(pd);
    let receives = Receives {
        queue: VecDeque::new(),
        depth: attr.max_wr as usize,
        domain: pd.addr(),
    };
    let handle = SHIM.with(|shim| keep(&mut shim.borrow_mut().receives, receives));
    // SAFETY: a live domain of ours.
    let context = unsafe { (*pd).context };
    Box::into_raw(Box::new(ibv_srq {
        context,
        srq_context,
        pd,
        handle,
    }))
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*srq).context });
    // SAFETY: it came from `create_srq`, and is destroyed once.
    let srq = unsafe { Box::from_raw(srq) };
    gone_from(srq.pd);
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        let users = shim
            .pairs
            .iter()
            .flatten()
            .filter(|pair| pair.receive == srq.handle as usize);
        assert_eq!(users.count(), 0, "a receive queue outlives its queue pairs");
        shim.receives[srq.handle as usize] = None;
    });
    0
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*pd).context });
    if call("ibv_create_qp").is_some() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's attributes, which are answered in place.
    let attr = unsafe { &mut *attr };
    let inline = attr.cap.max_inline_data;
    let most = SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        shim.told.insert("inline", inline.into());
        shim.inline_most
    });
    if most.is_some_and(|most| inline > most) || is_beyond("max_qp_wr", attr.cap.max_send_wr) {
        return ptr::null_mut();
    }
    made_on(pd);
    attr.cap.max_inline_data = most.unwrap_or(INLINE_MAX);
    // SAFETY: a live domain of ours.
    let context = unsafe { (*pd).context };
    let qp = Box::into_raw(Box::new(ibv_qp {
        context,
        qp_context: attr.qp_context,
        pd,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        handle: 0,
        qp_num: 0,
        state: 0,
        qp_type: attr.qp_type,
    }));
    // SAFETY: queues of ours that are live.
    let queue = unsafe { (*attr.send_cq).handle };
    // SAFETY: as the completion queue.
    let receive = unsafe { (*attr.srq).handle };
    let (handle, number) = SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        let live = shim.pairs.iter().flatten();
        let taken: Vec<u32> = live.map(|pair| pair.number).collect();
        let first = match shim.reuses_numbers {
            true => 100,
            false => shim.pairs.len() as u32 + 100,
        };
        let number = (first..)
            .find(|number| !taken.contains(number))
            .expect("a number");
        let pair = Pair {
            at: qp.expose_provenance(),
            device: which(context),
            number,
            peer: 0,
            state: 0,
            queue: queue as usize,
            receive: receive as usize,
            domain: pd.addr(),
            access: 0,
            capacity: attr.cap.max_send_wr,
            inline: attr.cap.max_inline_data,
            sends: VecDeque::new(),
            used: 0,
            untold: 0,
        };
        (keep(&mut shim.pairs, pair), number)
    });
    // SAFETY: made just now, and only here so far.
    let made = unsafe { &mut *qp };
    (made.handle, made.qp_num) = (handle, number);
    qp
}

fn index_of(qp: *mut ibv_qp) -> usize {
    // SAFETY: a queue pair of ours that is live.
    unsafe { (*qp).handle as usize }
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*qp).context });
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let name = match attr.qp_state {
        IBV_QPS_INIT => "modify INIT",
        IBV_QPS_RTR => "modify RTR",
        IBV_QPS_RTS => "modify RTS",
        _ => "modify ERR",
    };
    if let Some(errno) = call(name) {
        return errno;
    }
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        let index = index_of(qp);
        let pair = shim.pairs[index].as_mut().expect("a live queue pair");
        // The transitions, and what each must say: the table of `ibv_modify_qp(3)` for RC.
        let (from, wanted) = match attr.qp_state {
            IBV_QPS_INIT => (
                0,
                IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
            ),
            IBV_QPS_RTR => (
                IBV_QPS_INIT,
                IBV_QP_STATE
                    | IBV_QP_AV
                    | IBV_QP_PATH_MTU
                    | IBV_QP_DEST_QPN
                    | IBV_QP_RQ_PSN
                    | IBV_QP_MAX_DEST_RD_ATOMIC
                    | IBV_QP_MIN_RNR_TIMER,
            ),
            IBV_QPS_RTS => (
                IBV_QPS_RTR,
                IBV_QP_STATE
                    | IBV_QP_SQ_PSN
                    | IBV_QP_MAX_QP_RD_ATOMIC
                    | IBV_QP_RETRY_CNT
                    | IBV_QP_RNR_RETRY
                    | IBV_QP_TIMEOUT,
            ),
            _ => (pair.state, IBV_QP_STATE),
        };
        if pair.state != from || mask != wanted {
            return libc::EINVAL;
        }
        pair.state = attr.qp_state;
        let told: &[(&'static str, u64)] = match attr.qp_state {
            IBV_QPS_INIT => &[
                ("pkey", attr.pkey_index.into()),
                ("port", attr.port_num.into()),
            ],
            IBV_QPS_RTR => &[
                ("mtu", attr.path_mtu.into()),
                ("sl", attr.ah_attr.sl.into()),
                ("class", attr.ah_attr.grh.traffic_class.into()),
                ("gid", attr.ah_attr.grh.sgid_index.into()),
            ],
            IBV_QPS_RTS => &[
                ("timeout", attr.timeout.into()),
                ("retry", attr.retry_cnt.into()),
            ],
            _ => &[],
        };
        shim.told.extend(told.iter().copied());
        let pair = shim.pairs[index].as_mut().expect("a live queue pair");
        match attr.qp_state {
            IBV_QPS_RTR => {
                assert_eq!(attr.ah_attr.is_global, 1, "Ethernet routes by the address");
                pair.peer = attr.dest_qp_num;
            }
            IBV_QPS_INIT => pair.access = attr.qp_access_flags,
            IBV_QPS_ERR => shim.flush(index),
            _ => {}
        }
        0
    })
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*qp).context });
    if let Some(errno) = call("ibv_destroy_qp") {
        return errno;
    }
    // As the manual says: it returns when every event about it is acknowledged.
    while SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        // SAFETY: as when they were got.
        let about = |event: &ibv_async_event| unsafe { event.element.qp }.addr() == qp.addr();
        shim.events
            .iter_mut()
            .for_each(|events| events.retain(|event| !about(event)));
        shim.unacknowledged.contains(&qp.addr())
    }) {
        std::thread::yield_now();
    }
    let index = index_of(qp);
    // SAFETY: it came from `create_qp`, and is destroyed once.
    let qp = unsafe { Box::from_raw(qp) };
    gone_from(qp.pd);
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        if let Some(pair) = shim.pairs[index].take() {
            // SAFETY: events of this kind have a queue pair; those with a port have a small number in its place.
            shim.events[pair.device].retain(|event| unsafe { event.element.qp }.addr() != pair.at);
        }
    });
    0
}

unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    request: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*srq).context });
    if let Some(errno) = call("ibv_post_srq_recv") {
        // SAFETY: the caller gave room for it.
        unsafe { *bad = request };
        return errno;
    }
    // SAFETY: a receive queue of ours that is live.
    let index = unsafe { (*srq).handle as usize };
    let mut next = request;
    while !next.is_null() {
        // SAFETY: the caller's chain.
        let request = unsafe { *next };
        assert_eq!(request.num_sge, 1);
        // SAFETY: the request says that there is one.
        let piece = unsafe { *request.sg_list };
        let is_taken = SHIM.with(|shim| {
            let shim = &mut *shim.borrow_mut();
            let receives = shim.receives[index].as_ref();
            let domain = receives.expect("a live receive queue").domain;
            let (at, len) = (piece.addr, piece.length.into());
            let access = shim.access(at, len, piece.lkey.wrapping_sub(1000), domain);
            assert!(
                access.is_some_and(|access| access & IBV_ACCESS_LOCAL_WRITE != 0),
                "a receive entry is registered, to be written to"
            );
            let receives = shim.receives[index].as_mut();
            let receives = receives.expect("a live receive queue");
            let has_room = receives.queue.len() < receives.depth;
            if has_room {
                receives.queue.push_back((request.wr_id, piece));
            }
            has_room
        });
        if !is_taken {
            // SAFETY: the caller gave room for it.
            unsafe { *bad = next };
            return libc::ENOMEM;
        }
        next = request.next;
    }
    0
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    request: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*qp).context });
    let mut next = request;
    let (state, inline_max) = SHIM.with(|shim| {
        let pairs = &shim.borrow().pairs;
        let pair = pairs[index_of(qp)].as_ref().expect("a live queue pair");
        (pair.state, pair.inline)
    });
    if !matches!(state, IBV_QPS_RTS | IBV_QPS_ERR) {
        // SAFETY: the caller gave room for it.
        unsafe { *bad = next };
        return libc::EINVAL;
    }
    if let Some(errno) = call("ibv_post_send") {
        // SAFETY: the caller gave room for it.
        unsafe { *bad = next };
        return errno;
    }
    while !next.is_null() {
        // SAFETY: the caller's chain.
        let request = unsafe { *next };
        let piece = if request.num_sge == 1 {
            // SAFETY: the request says that there is one.
            unsafe { *request.sg_list }
        } else {
            ibv_sge::default()
        };
        let is_inline = request.send_flags & IBV_SEND_INLINE != 0;
        let inline = is_inline.then(|| {
            assert!(piece.length <= inline_max, "too long to be inline here");
            let from = ptr::with_exposed_provenance::<u8>(piece.addr as usize);
            // SAFETY: the caller's promise for what is inline: readable until this returns.
            let bytes = unsafe { std::slice::from_raw_parts(from, piece.length as usize) };
            let mut copy = [0; INLINE_MAX as usize];
            copy[..bytes.len()].copy_from_slice(bytes);
            copy
        });
        let is_taken = SHIM.with(|shim| {
            let shim = &mut *shim.borrow_mut();
            let index = index_of(qp);
            let pair = shim.pairs[index].as_mut().expect("a live queue pair");
            if pair.used >= pair.capacity {
                return false;
            }
            pair.used += 1;
            pair.sends.push_back(Send {
                request,
                piece,
                inline,
            });
            if pair.state == IBV_QPS_ERR {
                shim.flush(index);
            }
            true
        });
        if !is_taken {
            // SAFETY: the caller gave room for it.
            unsafe { *bad = next };
            return libc::ENOMEM;
        }
        next = request.next;
    }
    0
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*cq).context });
    if let Some(errno) = call("ibv_poll_cq") {
        return -errno;
    }
    // SAFETY: a completion queue of ours that is live.
    let index = unsafe { (*cq).handle as usize };
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        shim.work(7);
        let mut count = 0;
        while count < room {
            let queue = shim.completions[index]
                .as_mut()
                .expect("a live completion queue");
            let Some((completion, pair, frees)) = queue.queue.pop_front() else {
                break;
            };
            if let Some(pair) = &mut shim.pairs[pair] {
                pair.used -= frees;
            }
            // SAFETY: the caller gave room for `room` entries.
            unsafe { out.wrapping_add(count as usize).write(completion) };
            count += 1;
        }
        count
    })
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    // SAFETY: an object of ours that is live.
    enter(unsafe { (*cq).context });
    if let Some(errno) = call("ibv_req_notify_cq") {
        return errno;
    }
    // SAFETY: a completion queue of ours that is live.
    let index = unsafe { (*cq).handle as usize };
    SHIM.with(|shim| {
        let shim = &mut *shim.borrow_mut();
        // A device goes on by itself, also when all threads sleep.
        shim.work(usize::MAX);
        shim.completions[index]
            .as_mut()
            .expect("a live completion queue")
            .is_armed = true;
    });
    0
}

impl Shim {
    /// Carries out up to `count` requests of each queue pair.
    fn work(&mut self, count: usize) {
        for index in 0..self.pairs.len() {
            for _ in 0..count {
                let Some(pair) = &mut self.pairs[index] else {
                    break;
                };
                if pair.state != IBV_QPS_RTS || self.late == Some(pair.device) {
                    break;
                }
                let Some(send) = pair.sends.pop_front() else {
                    break;
                };
                let status = match self.fault.as_mut() {
                    Some(Fault {
                        what: What::Completion(status),
                        after: 0,
                    }) => {
                        let status = *status;
                        self.fault = None;
                        status
                    }
                    fault => {
                        if let Some(Fault {
                            what: What::Completion(_),
                            after,
                        }) = fault
                        {
                            *after -= 1;
                        }
                        self.carry_out(index, &send)
                    }
                };
                self.done += 1;
                self.told(index, &send.request, status);
                if status != IBV_WC_SUCCESS {
                    if let Some(pair) = &mut self.pairs[index] {
                        pair.state = IBV_QPS_ERR;
                    }
                    self.flush(index);
                }
            }
        }
    }

    /// The status that this receive fails with, if it is its turn.
    fn failed_receive(&mut self) -> Option<c_uint> {
        let Some(Fault {
            what: What::Receive(status),
            after,
        }) = &mut self.fault
        else {
            return None;
        };
        let status = *status;
        if *after > 0 {
            *after -= 1;
            return None;
        }
        self.fault = None;
        Some(status)
    }

    fn carry_out(&mut self, index: usize, send: &Send) -> c_uint {
        let request = &send.request;
        let pair = self.pairs[index].as_ref().expect("a live queue pair");
        let peer = self.pairs.iter().position(|other| {
            other
                .as_ref()
                .is_some_and(|other| other.number == pair.peer)
        });
        let len = send.piece.length;
        let from = match &send.inline {
            Some(bytes) => bytes.as_ptr(),
            None if request.num_sge == 0 => ptr::dangling(),
            None => {
                let key = send.piece.lkey.wrapping_sub(1000);
                let access = self.access(send.piece.addr, len.into(), key, pair.domain);
                if access.is_none() {
                    return IBV_WC_LOC_PROT_ERR;
                }
                ptr::with_exposed_provenance::<u8>(send.piece.addr as usize)
            }
        };
        let Some(peer) = peer.filter(|_| !self.is_cut) else {
            return IBV_WC_RETRY_EXC_ERR;
        };
        let other = self.pairs[peer].as_ref().expect("found above");
        if !matches!(other.state, IBV_QPS_RTR | IBV_QPS_RTS) {
            return IBV_WC_RETRY_EXC_ERR;
        }
        let (queue, receive, number) = (other.queue, other.receive, other.number);
        let (kind, takes_entry) = match request.opcode {
            IBV_WR_SEND => ("SEND", true),
            IBV_WR_RDMA_WRITE => ("WRITE", false),
            _ => ("WRITE_WITH_IMM", true),
        };
        *self.seen.entry(kind).or_default() += 1;
        let mut to = request.rdma.remote_addr;
        if request.opcode != IBV_WR_SEND && len > 0 {
            let key = request.rdma.rkey.wrapping_sub(5000);
            let access = self.access(to, len.into(), key, other.domain);
            if access.unwrap_or(0) & other.access & IBV_ACCESS_REMOTE_WRITE == 0 {
                return IBV_WC_REM_ACCESS_ERR;
            }
        }
        if takes_entry {
            let entries = self.receives[receive]
                .as_mut()
                .expect("a live receive queue");
            let Some((id, piece)) = entries.queue.pop_front() else {
                return IBV_WC_RNR_RETRY_EXC_ERR;
            };
            let is_send = request.opcode == IBV_WR_SEND;
            if is_send {
                if len > piece.length {
                    return IBV_WC_REM_INV_REQ_ERR;
                }
                to = piece.addr;
            }
            let failed = self.failed_receive();
            let completion = ibv_wc {
                wr_id: id,
                status: failed.unwrap_or(IBV_WC_SUCCESS),
                opcode: if failed.is_some() {
                    // Not valid in an error: something that would lead astray.
                    IBV_WC_SEND
                } else if is_send {
                    IBV_WC_RECV
                } else {
                    IBV_WC_RECV_RDMA_WITH_IMM
                },
                byte_len: len,
                imm_data: request.imm_data,
                qp_num: number,
                ..Default::default()
            };
            self.complete(queue, completion, peer, 0);
            if failed.is_some() {
                if let Some(pair) = &mut self.pairs[peer] {
                    pair.state = IBV_QPS_ERR;
                }
                self.flush(peer);
                return IBV_WC_REM_OP_ERR;
            }
        }
        if len > 0 {
            let to = ptr::with_exposed_provenance_mut::<u8>(to as usize);
            // SAFETY: both ranges are registered memory that was checked above, or an inline copy of ours; they
            // belong to
            // two ports, of which neither runs while this does.
            unsafe { ptr::copy(from, to, len as usize) };
        }
        IBV_WC_SUCCESS
    }

    fn told(&mut self, index: usize, request: &ibv_send_wr, status: c_uint) {
        let Some(pair) = &mut self.pairs[index] else {
            return;
        };
        pair.untold += 1;
        if request.send_flags & IBV_SEND_SIGNALED == 0 && status == IBV_WC_SUCCESS {
            return;
        }
        let frees = std::mem::take(&mut pair.untold);
        let completion = ibv_wc {
            wr_id: request.wr_id,
            status,
            // Not valid in an error: something that would lead astray.
            opcode: if status == IBV_WC_SUCCESS {
                IBV_WC_SEND
            } else {
                IBV_WC_RECV
            },
            qp_num: pair.number,
            vendor_err: 0x51,
            ..Default::default()
        };
        let queue = pair.queue;
        self.complete(queue, completion, index, frees);
    }

    fn complete(&mut self, queue: usize, completion: ibv_wc, pair: usize, frees: u32) {
        let queue = self.completions[queue]
            .as_mut()
            .expect("a live completion queue");
        assert!(
            queue.queue.len() < queue.depth,
            "the completion queue overflows"
        );
        queue.queue.push_back((completion, pair, frees));
        if std::mem::take(&mut queue.is_armed) {
            queue.pending += 1;
            // SAFETY: the channel's descriptor is open as long as the channel.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(self.channels[&queue.channel]) };
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// A queue pair in error: everything posted comes back, and then the device says that the last entry was used.
    fn flush(&mut self, index: usize) {
        while let Some(send) = self.pairs[index]
            .as_mut()
            .and_then(|pair| pair.sends.pop_front())
        {
            self.told(index, &send.request, IBV_WC_WR_FLUSH_ERR);
        }
        let Some(pair) = self.pairs[index].as_ref().filter(|_| !self.is_silent) else {
            return;
        };
        let qp = ptr::with_exposed_provenance_mut(pair.at);
        let event = ibv_async_event {
            element: ibv_async_element { qp },
            event_type: IBV_EVENT_QP_LAST_WQE_REACHED,
        };
        self.tell(pair.device, event);
    }

    /// An event, and the descriptors of those who wait for one.
    fn tell(&mut self, device: usize, event: ibv_async_event) {
        self.events[device].push_back(event);
        for (_, fd) in self.listeners.iter().filter(|(of, _)| *of == device) {
            // SAFETY: a context's descriptor is open as long as the context, which takes it off the list.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(*fd) };
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }

    /// What may be done to that memory by who is of that domain.
    fn access(&self, address: u64, len: u64, key: u32, domain: usize) -> Option<c_uint> {
        let memory = self.memory.get(key as usize).and_then(Option::as_ref);
        let memory = memory.filter(|memory| {
            memory.domain == domain
                && address >= memory.address
                && address + len <= memory.address + memory.len
        });
        memory.map(|memory| memory.access)
    }
}
