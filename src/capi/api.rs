//! The table of functions, and the one symbol that gives it.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};

use super::device;
use super::engine::{self, CEngine};
use super::key::{self, CKey};
use super::logs;
use super::receive::{self, CReceive};
use super::status::{self, CStatus};
use super::tensor::{self, CMapping, CTensor, Meta, Value};

/// The version of the table: one that is not compatible has another.
pub const API_VERSION: u32 = 1;

pub use super::status::FOREVER;

/// What the library can do. New functions come at the end only.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Api {
    /// The version of this table: RENDEZ_API_VERSION.
    pub version: u32,
    /// Bytes of this table. What lies beyond is not there: the library is older than the header.
    pub size: u32,

    /// The code, as gRPC numbers it; 0 for NULL.
    pub status_code: unsafe extern "C" fn(status: *const CStatus) -> u32,
    /// The reason: a name that never changes, as DEADLINE. It lives as long as the status.
    pub status_reason: unsafe extern "C" fn(status: *const CStatus) -> *const c_char,
    /// What happened, where, and what to do, for people. It lives as long as the status.
    pub status_message: unsafe extern "C" fn(status: *const CStatus) -> *const c_char,
    /// Frees a status.
    pub status_free: unsafe extern "C" fn(status: *mut CStatus),

    /// Starts an engine. `settings` is a TOML text with the keys of the configuration page, or NULL for what the
    /// configuration file and the environment say.
    pub engine_start:
        unsafe extern "C" fn(settings: *const c_char, engine: *mut *mut CEngine) -> *mut CStatus,
    /// The name of its task, as "/job:worker/replica:0/task:0". It lives as long as the engine.
    pub engine_task: unsafe extern "C" fn(engine: *const CEngine) -> *const c_char,
    /// Where tasks of this machine reach it, or NULL. It lives as long as the engine.
    pub engine_address: unsafe extern "C" fn(engine: *const CEngine) -> *const c_char,
    /// Where tasks of other machines reach it, or NULL. It lives as long as the engine.
    pub engine_tcp_address: unsafe extern "C" fn(engine: *const CEngine) -> *const c_char,
    /// Says where a task is found. It is dialled when a key first names it.
    pub engine_add_peer: unsafe extern "C" fn(
        engine: *const CEngine,
        task: *const c_char,
        address: *const c_char,
    ) -> *mut CStatus,
    /// Calls `take` once with the metrics, as Prometheus reads them, before it returns.
    pub engine_metrics: unsafe extern "C" fn(
        engine: *const CEngine,
        take: Option<unsafe extern "C" fn(context: *mut c_void, text: *const c_char, size: usize)>,
        context: *mut c_void,
    ) -> *mut CStatus,
    /// Ends the task: what is under way has so long to arrive, and what waits then fails. Sends, receives and new
    /// tensors fail from here on.
    pub engine_shutdown:
        unsafe extern "C" fn(engine: *const CEngine, patience_ns: u64) -> *mut CStatus,
    /// Frees an engine, and ends it if nothing else has. Receives that wait for a callback are cancelled, and have
    /// been called when this returns, unless a callback calls this. Those that are called meanwhile may use the engine.
    pub engine_free: unsafe extern "C" fn(engine: *mut CEngine),

    /// A key: "worker" to "server" is short for CPU 0 of task 0 of both jobs.
    pub key_between: unsafe extern "C" fn(
        source: *const c_char,
        destination: *const c_char,
        edge: *const c_char,
        key: *mut *mut CKey,
    ) -> *mut CStatus,
    /// A key of its full text: source;incarnation;destination;edge;frame:iteration.
    pub key_parse: unsafe extern "C" fn(text: *const c_char, key: *mut *mut CKey) -> *mut CStatus,
    /// Frees a key.
    pub key_free: unsafe extern "C" fn(key: *mut CKey),

    /// A tensor in the engine's memory, which a peer of this machine can read in place. `data` has the bytes that
    /// `meta` takes, aligned to 64. It may be written until the tensor is sent, freed, or given to a function from
    /// which on it is not written, as `tensor_clone`: `data` may be gone then.
    pub tensor_new: unsafe extern "C" fn(
        engine: *const CEngine,
        meta: *const Meta,
        tensor: *mut *mut CTensor,
        data: *mut *mut c_void,
    ) -> *mut CStatus,
    /// A tensor over memory of the caller's, which is read in place; 16 bytes or fewer are copied instead, and
    /// released before this returns. `release` is called once, on any thread, when nothing reads the memory any more;
    /// also if this fails. Until then it must not be changed. `release` may be NULL. It must not wait for another
    /// thread, nor free the engine, nor lock what a thread holds that calls the library: it may run where the engine
    /// moves values, and within calls as `send`, `recv` and `tensor_free`.
    pub tensor_lend: unsafe extern "C" fn(
        meta: *const Meta,
        data: *const c_void,
        size: usize,
        release: Option<unsafe extern "C" fn(context: *mut c_void)>,
        context: *mut c_void,
        tensor: *mut *mut CTensor,
    ) -> *mut CStatus,
    /// Another handle of the same memory. Do not write to the tensor from here on, even if this fails.
    pub tensor_clone:
        unsafe extern "C" fn(tensor: *mut CTensor, clone: *mut *mut CTensor) -> *mut CStatus,
    /// Its type and shape.
    pub tensor_meta: unsafe extern "C" fn(tensor: *const CTensor, meta: *mut Meta) -> *mut CStatus,
    /// Its bytes, to be read only. They live as long as the tensor. Those of strings begin with where each one ends: a
    /// number of 8 bytes, little-endian, counted from the first byte behind all these numbers. There the strings lie,
    /// one behind the other.
    pub tensor_data: unsafe extern "C" fn(
        tensor: *const CTensor,
        data: *mut *const c_void,
        size: *mut usize,
    ) -> *mut CStatus,
    /// Frees a tensor. The memory of one that was read in place goes back to its sender.
    pub tensor_free: unsafe extern "C" fn(tensor: *mut CTensor),

    /// Sends a value by a key of this task's, and never waits for its receiver. The tensor is gone then, even if this
    /// fails: clone it to keep it. `patience_ns` is how long it waits for room if there is none; 0 to fail at once.
    pub send: unsafe extern "C" fn(
        engine: *const CEngine,
        step: u64,
        key: *const CKey,
        tensor: *mut CTensor,
        patience_ns: u64,
    ) -> *mut CStatus,
    /// Waits for the next value of a key to this task.
    pub recv: unsafe extern "C" fn(
        engine: *const CEngine,
        step: u64,
        key: *const CKey,
        patience_ns: u64,
        value: *mut Value,
    ) -> *mut CStatus,
    /// The same, and copies it to `room`, from a device too. If that is too short this fails (RECV_ROOM), and the value
    /// stays: `meta` and `size` say what it is, and how many bytes it takes. It does not tell a value that says that
    /// none will come from others: `recv_into_value` does.
    pub recv_into: unsafe extern "C" fn(
        engine: *const CEngine,
        step: u64,
        key: *const CKey,
        patience_ns: u64,
        room: *mut c_void,
        room_size: usize,
        meta: *mut Meta,
        size: *mut usize,
    ) -> *mut CStatus,
    /// Begins a receive, and calls `told` once with its outcome, on a thread of the library: the caller's to free are
    /// either the status or the tensor of the value. Callbacks of an engine run one after the other; one that waits
    /// holds up the others. If this fails `told` is not called. `receive`, which may be NULL, is a handle to cancel it.
    /// That thread also turns an engine with the setting `drive = "caller"` while receives wait for their callbacks.
    pub recv_async: unsafe extern "C" fn(
        engine: *const CEngine,
        step: u64,
        key: *const CKey,
        patience_ns: u64,
        told: Option<unsafe extern "C" fn(context: *mut c_void, status: *mut CStatus, value: Value)>,
        context: *mut c_void,
        receive: *mut *mut CReceive,
    ) -> *mut CStatus,
    /// Cancels a receive: `told` is called with CANCELLED, unless a value came first. The value of a cancelled receive
    /// is the next one's.
    pub receive_cancel: unsafe extern "C" fn(receive: *const CReceive),
    /// Frees the handle of a receive, which goes on.
    pub receive_free: unsafe extern "C" fn(receive: *mut CReceive),

    /// Ends a step with an error: all that waits in it, on every task, fails with this code and message. The code is
    /// one of gRPC's, 1 to 16.
    pub step_abort: unsafe extern "C" fn(
        engine: *const CEngine,
        step: u64,
        code: u32,
        message: *const c_char,
    ) -> *mut CStatus,
    /// Ends a step: what it holds on this task is dropped.
    pub step_finish: unsafe extern "C" fn(engine: *const CEngine, step: u64) -> *mut CStatus,
    /// Has a step end with DEADLINE_EXCEEDED unless it has ended within this time.
    pub step_deadline:
        unsafe extern "C" fn(engine: *const CEngine, step: u64, patience_ns: u64) -> *mut CStatus,

    /// Starts an engine as `engine_start` with NULL, and lets `settings`, a TOML text, override what the configuration
    /// file and the environment say.
    pub engine_start_over:
        unsafe extern "C" fn(settings: *const c_char, engine: *mut *mut CEngine) -> *mut CStatus,
    /// As `tensor_new`, and the bytes own whole pages: receivers that read them in place can `tensor_map` them.
    pub tensor_new_paged: unsafe extern "C" fn(
        engine: *const CEngine,
        meta: *const Meta,
        tensor: *mut *mut CTensor,
        data: *mut *mut c_void,
    ) -> *mut CStatus,
    /// Maps a tensor's bytes so that they may be written to: neither its sender nor another reader sees that. It keeps
    /// the tensor, whose handle is freed apart. TENSOR_PAGES if the bytes do not own whole pages, or were copied here.
    /// The tensor is not written from here on, also if this fails.
    pub tensor_map: unsafe extern "C" fn(
        tensor: *mut CTensor,
        mapping: *mut *mut CMapping,
        data: *mut *mut c_void,
        size: *mut usize,
    ) -> *mut CStatus,
    /// Ends a mapping: its bytes are gone.
    pub mapping_free: unsafe extern "C" fn(mapping: *mut CMapping),
    /// Which life of its task the engine is: another each time it is started. A receive whose key names it (see
    /// `key_parse`, in hexadecimal) ends when this life does, also if it begins later. 0 without an engine.
    pub engine_incarnation: unsafe extern "C" fn(engine: *const CEngine) -> u64,
    /// A copy of memory of a device, in the engine's memory there, which peers of this machine that see the device read
    /// in place. `device` is its number and `stream` a CUstream of it, NULL for the default one: the copy comes behind
    /// what it has queued, and what is queued there from now on behind the copy, so that the memory may be written
    /// again. Nothing waits: the tensor can be sent at once. The engine's setting `devices` must not be off.
    pub tensor_copy_device: unsafe extern "C" fn(
        engine: *const CEngine,
        meta: *const Meta,
        device: u32,
        address: u64,
        stream: *mut c_void,
        tensor: *mut *mut CTensor,
    ) -> *mut CStatus,
    /// Where a tensor's bytes lie, and how many there are: the number of a device and an address there, or -1 and an
    /// address of this process. One that is being written stays so, and its `data` is the address.
    pub tensor_place: unsafe extern "C" fn(
        tensor: *mut CTensor,
        device: *mut i32,
        address: *mut u64,
        size: *mut usize,
    ) -> *mut CStatus,
    /// A copy in the engine's memory of a device; another handle of the tensor if it lies there. The copy may be under
    /// way when this returns. The tensor is not written from here on, also if this fails.
    pub tensor_to_device: unsafe extern "C" fn(
        engine: *const CEngine,
        tensor: *mut CTensor,
        device: u32,
        copy: *mut *mut CTensor,
    ) -> *mut CStatus,
    /// A copy that this process reads, when the tensor's bytes are there; another handle of the tensor if it lies in
    /// the host's memory. The tensor is not written from here on, also if this fails.
    pub tensor_to_host: unsafe extern "C" fn(
        engine: *const CEngine,
        tensor: *mut CTensor,
        copy: *mut *mut CTensor,
    ) -> *mut CStatus,
    /// Lets what a stream queues from now on wait until a tensor's bytes are there. The bytes are read only, and the
    /// tensor is not written from here on, also if this fails.
    pub tensor_order: unsafe extern "C" fn(
        engine: *const CEngine,
        tensor: *mut CTensor,
        device: u32,
        stream: *mut c_void,
    ) -> *mut CStatus,
    /// Frees a tensor of a device when a stream has done what it has queued, which may read the tensor. The handle is
    /// gone, even if this fails: the memory is then never freed.
    pub tensor_free_after: unsafe extern "C" fn(
        engine: *const CEngine,
        tensor: *mut CTensor,
        device: u32,
        stream: *mut c_void,
    ) -> *mut CStatus,
    /// As `recv_into`; `is_dead` says whether the sender announced that no value will come, also if `room` is too
    /// short.
    pub recv_into_value: unsafe extern "C" fn(
        engine: *const CEngine,
        step: u64,
        key: *const CKey,
        patience_ns: u64,
        room: *mut c_void,
        room_size: usize,
        meta: *mut Meta,
        size: *mut usize,
        is_dead: *mut bool,
    ) -> *mut CStatus,
    /// Calls `heard` with each line that the library logs from here on, until the process ends: what is odd in
    /// settings, say, or which peer came and went. `level` is 1 for errors alone, 2 for warnings too, and so on to 5.
    /// `heard` is called on any thread, also within calls of the library, and by several at the same time: it must not
    /// call the library, nor wait for another thread. This can be done once: it fails if the process has a logger
    /// already.
    pub log_to: unsafe extern "C" fn(
        level: u32,
        heard: Option<
            unsafe extern "C" fn(
                context: *mut c_void,
                level: u32,
                line: *const c_char,
                size: usize,
            ),
        >,
        context: *mut c_void,
    ) -> *mut CStatus,
    /// Does one round of the engine's work that no other thread does at the moment, and does not wait. Gives whether
    /// there was any. With the setting `drive = "caller"`, a thread that neither sends nor waits calls it now and then.
    pub engine_progress: unsafe extern "C" fn(engine: *const CEngine) -> bool,
}

static API: Api = Api {
    version: API_VERSION,
    size: size_of::<Api>() as u32,
    status_code: status::status_code,
    status_reason: status::status_reason,
    status_message: status::status_message,
    status_free: status::status_free,
    engine_start: engine::engine_start,
    engine_task: engine::engine_task,
    engine_address: engine::engine_address,
    engine_tcp_address: engine::engine_tcp_address,
    engine_add_peer: engine::engine_add_peer,
    engine_metrics: engine::engine_metrics,
    engine_shutdown: engine::engine_shutdown,
    engine_free: engine::engine_free,
    key_between: key::key_between,
    key_parse: key::key_parse,
    key_free: key::key_free,
    tensor_new: tensor::tensor_new,
    tensor_lend: tensor::tensor_lend,
    tensor_clone: tensor::tensor_clone,
    tensor_meta: tensor::tensor_meta,
    tensor_data: tensor::tensor_data,
    tensor_free: tensor::tensor_free,
    send: engine::send,
    recv: receive::recv,
    recv_into: receive::recv_into,
    recv_async: receive::recv_async,
    receive_cancel: receive::receive_cancel,
    receive_free: receive::receive_free,
    step_abort: engine::step_abort,
    step_finish: engine::step_finish,
    step_deadline: engine::step_deadline,
    engine_start_over: engine::engine_start_over,
    tensor_new_paged: tensor::tensor_new_paged,
    tensor_map: tensor::tensor_map,
    mapping_free: tensor::mapping_free,
    engine_incarnation: engine::engine_incarnation,
    tensor_copy_device: device::tensor_copy_device,
    tensor_place: device::tensor_place,
    tensor_to_device: device::tensor_to_device,
    tensor_to_host: device::tensor_to_host,
    tensor_order: device::tensor_order,
    tensor_free_after: device::tensor_free_after,
    recv_into_value: receive::recv_into_value,
    log_to: logs::log_to,
    engine_progress: engine::engine_progress,
};

/// The table of that version: RENDEZ_API_VERSION. NULL if the library has none. It lives as long as the library.
// SAFETY: no other symbol of the program has this name: it begins with the name of the library.
#[unsafe(no_mangle)]
pub extern "C" fn rendez_get_api(version: u32) -> *const Api {
    if version == API_VERSION {
        &raw const API
    } else {
        std::ptr::null()
    }
}
