//! The header beside what it is made of, and what C may do wrong.
// One call after the other under one contract, which stands above them.
#![allow(unsafe_code, clippy::multiple_unsafe_ops_per_block)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::Path;
use std::ptr::{self, null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use rendez::{Config, Engine, Key, StepId, Tensor};

use crate::api::{API_VERSION, Api, FOREVER, rendez_get_api};
use crate::logs::Heard;
use crate::receive::Told;
use crate::tensor::RANK_MAX;
use crate::{CEngine, CKey, CStatus, CTensor, Meta, Value};

#[test]
fn the_header_is_what_the_sources_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let bindings = cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder.join("status.rs"))
        .with_src(folder.join("engine.rs"))
        .with_src(folder.join("key.rs"))
        .with_src(folder.join("tensor.rs"))
        .with_src(folder.join("receive.rs"))
        .with_src(folder.join("api.rs"))
        .generate()
        .unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let (made, place) = (String::from_utf8(made).unwrap(), folder.join("rendez.h"));
    if std::env::var_os("UPDATE_HEADER").is_some() {
        std::fs::write(&place, &made).unwrap();
    }
    assert!(
        std::fs::read_to_string(place).unwrap_or_default() == made,
        "src/capi/rendez.h is stale: write it anew with `UPDATE_HEADER=1 cargo test -p rendez-capi`"
    );
}

unsafe extern "C" fn hear(context: *mut c_void, level: u32, line: *const c_char, size: usize) {
    // SAFETY: the test passes a sender that is never freed.
    let heard = unsafe { &*context.cast::<Sender<(u32, String)>>() };
    // SAFETY: the library's text, which ends with a zero.
    let line = unsafe { CStr::from_ptr(line) };
    assert_eq!(line.count_bytes(), size);
    let _ = heard.send((level, line.to_str().unwrap().to_owned()));
}

/// A setting that an engine alone does not take is told of, and no line of a lower level.
#[test]
fn c_hears_what_is_logged() {
    let (sender, heard) = mpsc::channel::<(u32, String)>();
    let context = Box::into_raw(Box::new(sender)).cast::<c_void>();
    for (level, hook, refused) in [
        (0, Some(hear as Heard), "C_ARGUMENT"),
        (6, Some(hear), "C_ARGUMENT"),
        (2, None, "C_ARGUMENT"),
        (2, Some(hear), ""),
        (2, Some(hear), "C_ARGUMENT"),
    ] {
        // SAFETY: a hook and its context, which last until the process ends.
        let status = unsafe { (api().log_to)(level, hook, context) };
        assert_eq!(reason(status), refused);
    }
    let mut engine = null_mut();
    let settings = c"protocol = \"tcp\"\nshards = 1\nshare_cores = true\n".as_ptr();
    // SAFETY: a text, and room for a handle.
    let status = unsafe { (api().engine_start)(settings, &raw mut engine) };
    assert_eq!(reason(status), "");
    // SAFETY: a handle of this library, used for the last time.
    unsafe { (api().engine_free)(engine) };
    let lines: Vec<(u32, String)> = heard.try_iter().collect();
    assert!(
        lines
            .iter()
            .any(|(level, line)| *level == 2 && line.contains("`protocol`")),
        "{lines:?}"
    );
    assert!(lines.iter().all(|(level, _)| *level <= 2), "{lines:?}");
}

/// Settings that name no task have the task of the configuration page.
#[test]
fn an_engine_needs_no_settings() {
    let (api, mut engine) = (api(), null_mut());
    let settings = c"shards = 1\nshare_cores = true\n".as_ptr();
    // SAFETY: a text, and room for a handle.
    let status = unsafe { (api.engine_start)(settings, &raw mut engine) };
    assert_eq!(reason(status), "");
    // SAFETY: a handle of this library, and the name of its task.
    let task = unsafe { CStr::from_ptr((api.engine_task)(engine)) };
    assert_eq!(task, c"/job:local/replica:0/task:0");
    // SAFETY: a handle of this library, used for the last time.
    unsafe { (api.engine_free)(engine) };
}

/// The size that version 1 has had since its first release, and where each of its functions lies: it only ever grows.
#[test]
fn the_table_only_grows() {
    let api = api();
    assert_eq!((api.version, api.size), (1, size_of::<Api>() as u32));
    assert!(size_of::<Api>() >= 8 + 30 * size_of::<usize>());
    assert_eq!(std::mem::offset_of!(Api, status_code), 8);
    assert_eq!(std::mem::offset_of!(Api, engine_start), 8 + 4 * 8);
    assert_eq!(std::mem::offset_of!(Api, key_between), 8 + 12 * 8);
    assert_eq!(std::mem::offset_of!(Api, tensor_new), 8 + 15 * 8);
    assert_eq!(std::mem::offset_of!(Api, send), 8 + 21 * 8);
    assert_eq!(std::mem::offset_of!(Api, step_deadline), 8 + 29 * 8);
    assert_eq!(std::mem::offset_of!(Api, mapping_free), 8 + 33 * 8);
    assert_eq!(std::mem::offset_of!(Api, tensor_copy_device), 8 + 35 * 8);
    assert_eq!(std::mem::offset_of!(Api, tensor_free_after), 8 + 40 * 8);
    assert_eq!(std::mem::offset_of!(Api, recv_into_value), 8 + 41 * 8);
    assert_eq!(std::mem::offset_of!(Api, log_to), 8 + 42 * 8);
    assert_eq!(std::mem::offset_of!(Api, engine_progress), 8 + 43 * 8);
    assert_eq!(size_of::<Meta>(), 72);
    assert_eq!(size_of::<Value>(), 16);
    assert!(rendez_get_api(API_VERSION + 1).is_null());
}

pub(crate) fn api() -> &'static Api {
    // SAFETY: a static of this library.
    unsafe { rendez_get_api(API_VERSION).as_ref() }.unwrap()
}

/// The reason of a status, which is freed.
pub(crate) fn reason(status: *mut CStatus) -> String {
    let api = api();
    if status.is_null() {
        return String::new();
    }
    // SAFETY: the library gave it just now.
    let reason = unsafe { CStr::from_ptr((api.status_reason)(status)) };
    let reason = reason.to_str().unwrap().to_owned();
    // SAFETY: as above, and this is its last use.
    unsafe { (api.status_free)(status) };
    reason
}

fn started() -> *mut CEngine {
    let mut engine = null_mut();
    let settings = c"task = \"/job:a/task:0\"\nshards = 1\nshare_cores = true\n";
    // SAFETY: a text, and room for a handle.
    let status = unsafe { (api().engine_start)(settings.as_ptr(), &raw mut engine) };
    assert_eq!(reason(status), "");
    engine
}

fn key(edge: &CStr) -> *mut CKey {
    let mut key = null_mut();
    // SAFETY: texts, and room for a handle.
    let status =
        unsafe { (api().key_between)(c"a".as_ptr(), c"a".as_ptr(), edge.as_ptr(), &raw mut key) };
    assert_eq!(reason(status), "");
    key
}

const fn meta(dtype: u32, len: u64) -> Meta {
    let mut dims = [0; RANK_MAX];
    dims[0] = len;
    Meta {
        dtype,
        rank: 1,
        dims,
    }
}

/// What fails says why, as it does in other languages, and gives no handle.
#[test]
fn what_fails_gives_its_own_reason_and_no_handle() {
    let api = api();
    let stale = std::ptr::dangling_mut();
    let mut key: *mut CKey = stale;
    // SAFETY: a text, and room for a handle.
    let status = unsafe { (api.key_parse)(c"a;b;c".as_ptr(), &raw mut key) };
    assert_eq!(
        (reason(status).as_str(), key),
        ("KEY_MALFORMED", null_mut())
    );
    key = stale;
    let names = (c"/job:".as_ptr(), c"b".as_ptr(), c"x".as_ptr());
    // SAFETY: as above.
    let status = unsafe { (api.key_between)(names.0, names.1, names.2, &raw mut key) };
    assert_eq!(
        (reason(status).as_str(), key),
        ("KEY_MALFORMED", null_mut())
    );
    let mut engine: *mut CEngine = std::ptr::dangling_mut();
    // SAFETY: as above.
    let status = unsafe { (api.engine_start)(c"shards = true".as_ptr(), &raw mut engine) };
    assert_ne!(reason(status), "");
    assert!(engine.is_null());
    let engine = started();
    // SAFETY: a running engine, and texts.
    let status = unsafe { (api.engine_add_peer)(engine, c"/job:".as_ptr(), c"unix:@x".as_ptr()) };
    assert_eq!(reason(status), "DEVICE_MALFORMED");
    let (meta, mut data) = (meta(99, 1), std::ptr::dangling_mut());
    let mut tensor: *mut CTensor = std::ptr::dangling_mut();
    // SAFETY: a running engine, and room for what it gives.
    let status =
        unsafe { (api.tensor_new)(engine, &raw const meta, &raw mut tensor, &raw mut data) };
    assert_eq!(reason(status), "C_ARGUMENT");
    assert!(tensor.is_null() && data.is_null());
    // SAFETY: a handle of this library, used for the last time.
    unsafe { (api.engine_free)(engine) };
}

fn driven(task: &str) -> *mut CEngine {
    let settings = format!(
        "task = \"/job:{task}/task:0\"\nshards = 1\nshare_cores = true\ndrive = \"caller\"\n"
    );
    let (settings, mut engine) = (CString::new(settings).unwrap(), null_mut());
    // SAFETY: a text, and room for a handle.
    let status = unsafe { (api().engine_start)(settings.as_ptr(), &raw mut engine) };
    assert_eq!(reason(status), "");
    engine
}

/// A value leaves an engine without threads while its owner does nothing but tell it to go on.
#[test]
fn an_engine_is_driven_by_its_caller() {
    let (api, from, to) = (api(), driven("from"), driven("to"));
    let mut key: *mut CKey = null_mut();
    // SAFETY: texts, and room for a handle.
    let status = unsafe {
        (api.key_between)(
            c"from".as_ptr(),
            c"to".as_ptr(),
            c"x".as_ptr(),
            &raw mut key,
        )
    };
    assert_eq!(reason(status), "");
    let (meta, mut tensor, mut data) = (meta(3, 4), null_mut(), null_mut());
    // SAFETY: running engines, and room for what they give; the address lives as long as its engine.
    let statuses = unsafe {
        let address = (api.engine_address)(to);
        [
            (api.engine_add_peer)(from, c"/job:to/task:0".as_ptr(), address),
            (api.tensor_new)(from, &raw const meta, &raw mut tensor, &raw mut data),
            (api.send)(from, 1, key, tensor, 0),
        ]
    };
    assert_eq!(statuses.map(reason), [""; 3]);
    let (to_place, key_place) = (to.expose_provenance(), key.expose_provenance());
    let waits = std::thread::spawn(move || {
        let (to, key) = (
            std::ptr::with_exposed_provenance(to_place),
            std::ptr::with_exposed_provenance(key_place),
        );
        let mut value = Value::NONE;
        // SAFETY: handles that outlive the thread, and room for a value.
        let status = unsafe { (api.recv)(to, 1, key, 30_000_000_000, &raw mut value) };
        // SAFETY: a handle of this library or null, used for the last time.
        unsafe { (api.tensor_free)(value.tensor) };
        reason(status)
    });
    while !waits.is_finished() {
        // SAFETY: a running engine.
        unsafe { (api.engine_progress)(from) };
    }
    assert_eq!(waits.join().unwrap(), "");
    // SAFETY: null is refused.
    assert!(!unsafe { (api.engine_progress)(null()) });
    // SAFETY: handles of this library, used for the last time.
    unsafe {
        (api.key_free)(key);
        (api.engine_free)(from);
        (api.engine_free)(to);
    }
}

unsafe extern "C" fn count(context: *mut c_void) {
    // SAFETY: the test passes a counter that outlives the tensor.
    unsafe { *context.cast::<u32>() += 1 };
}

#[test]
fn what_c_writes_is_aligned_however_short_it_is() {
    let (api, engine, mut made) = (api(), started(), Vec::new());
    for len in (0..=32).flat_map(|len| [len; 3]) {
        let (meta, mut tensor, mut data) = (meta(3, len), null_mut(), null_mut());
        // SAFETY: a running engine, and room for what it gives.
        let status =
            unsafe { (api.tensor_new)(engine, &raw const meta, &raw mut tensor, &raw mut data) };
        assert_eq!(reason(status), "");
        assert_eq!(data.addr() % 64, 0, "of {len} bytes");
        // SAFETY: the tensor has so many bytes, and is not sent yet.
        unsafe { data.cast::<u8>().write_bytes(len as u8, len as usize) };
        made.push((tensor, len));
    }
    for (tensor, len) in made {
        // SAFETY: a handle of this library, used for the last time.
        let tensor = unsafe { CTensor::take(tensor) }.unwrap();
        assert_eq!(tensor.host().unwrap(), vec![len as u8; len as usize]);
    }
    // SAFETY: a handle of this library, used for the last time.
    unsafe { (api.engine_free)(engine) };
}

/// Lent memory is given back once: when the tensor is gone, and at once when it is refused.
#[test]
fn lent_memory_comes_back_once() {
    let (api, engine, key) = (api(), started(), key(c"x"));
    let (bytes, mut released) = ([7_u8; 4096], 0_u32);
    let context = (&raw mut released).cast::<c_void>();
    let mut tensor: *mut CTensor = null_mut();
    for (meta, size) in [
        (meta(3, 4095), 4096),
        (meta(99, 4096), 4096),
        (meta(16, 1), 8),
    ] {
        // SAFETY: memory, a hook, its context and room for a handle, all of which outlive the call.
        let status = unsafe {
            (api.tensor_lend)(
                &raw const meta,
                bytes.as_ptr().cast(),
                size,
                Some(count),
                context,
                &raw mut tensor,
            )
        };
        assert_ne!(reason(status), "");
        assert_eq!(std::mem::take(&mut released), 1);
        assert!(tensor.is_null());
    }
    let meta = meta(3, 4096);
    // SAFETY: as above.
    let status = unsafe {
        (api.tensor_lend)(
            &raw const meta,
            bytes.as_ptr().cast(),
            bytes.len(),
            Some(count),
            context,
            &raw mut tensor,
        )
    };
    assert_eq!((reason(status), released), (String::new(), 0));
    // SAFETY: handles of this library; the tensor is not used again.
    let status = unsafe { (api.send)(engine, 1, key, tensor, 0) };
    assert_eq!(reason(status), "");
    let mut value = Value::NONE;
    // SAFETY: handles of this library, and room for a value.
    let status = unsafe { (api.recv)(engine, 1, key, FOREVER, &raw mut value) };
    assert_eq!(
        (reason(status), value.path, released),
        (String::new(), 0, 0)
    );
    let (mut data, mut size) = (null(), 0);
    // SAFETY: a handle of this library, and room for what it gives.
    let status = unsafe { (api.tensor_data)(value.tensor, &raw mut data, &raw mut size) };
    assert_eq!(
        (reason(status), data, size),
        (String::new(), bytes.as_ptr().cast(), 4096)
    );
    // SAFETY: handles of this library, for the last time.
    unsafe {
        (api.tensor_free)(value.tensor);
        (api.key_free)(key);
        (api.engine_free)(engine);
    }
    assert_eq!(released, 1);
}

/// Who receives into memory of its own can be told that no value will come.
#[test]
fn a_dead_value_is_told_from_others() {
    let mut config = Config::new("/job:a/task:0");
    (config.shards, config.share_cores, config.control) = (1, true, false);
    let engine = Engine::start(config).unwrap();
    let (step, sent) = (engine.step(StepId(1)), Key::between("a", "a", "x").unwrap());
    step.send_dead(&sent, Tensor::scalar(3_u8)).unwrap();
    step.send(&sent, Tensor::scalar(4_u8)).unwrap();
    let (handle, key) = (Box::into_raw(Box::new(CEngine::of(engine))), key(c"x"));
    // In a room that is too short as well: then it stays.
    for (byte, dead, len) in [(3, true, 0), (3, true, 8), (4, false, 0), (4, false, 8)] {
        let (mut room, mut meta, mut size, mut is_dead) = ([0_u8; 8], meta(1, 1), 0, !dead);
        // SAFETY: handles of this library, and room for the value and for what is said of it.
        let status = unsafe {
            (api().recv_into_value)(
                handle,
                1,
                key,
                FOREVER,
                room.as_mut_ptr().cast(),
                len,
                &raw mut meta,
                &raw mut size,
                &raw mut is_dead,
            )
        };
        let (outcome, first) = [("RECV_ROOM", 0), ("", byte)][usize::from(len > 0)];
        assert_eq!((&*reason(status), room[0]), (outcome, first));
        assert_eq!((size, is_dead, meta.dtype, meta.rank), (1, dead, 3, 0));
    }
    // SAFETY: handles of this library, for the last time.
    unsafe {
        (api().key_free)(key);
        (api().engine_free)(handle);
    }
}

/// An engine tells which life it is, and a key that names another is refused.
#[test]
fn a_key_can_name_a_life() {
    let (api, engine) = (api(), started());
    // SAFETY: a handle of this library, and none.
    let (life, none) = unsafe {
        (
            (api.engine_incarnation)(engine),
            (api.engine_incarnation)(null()),
        )
    };
    assert_eq!(none, 0);
    assert_ne!(life, 0);
    for (named, refused) in [(life, ""), (life ^ 1, "PEER_RESTARTED")] {
        let device = "/job:a/replica:0/task:0/device:CPU:0";
        let text = format!("{device};{named:x};{device};x;0:0");
        let (text, mut key, bytes) = (CString::new(text).unwrap(), null_mut(), [0u8; 4]);
        let (meta, mut tensor) = (meta(3, 4), null_mut());
        // SAFETY: texts, bytes that outlive the tensor, handles of this library, and room for what it gives.
        let statuses = unsafe {
            [
                (api.key_parse)(text.as_ptr(), &raw mut key),
                (api.tensor_lend)(
                    &raw const meta,
                    bytes.as_ptr().cast(),
                    4,
                    None,
                    null_mut(),
                    &raw mut tensor,
                ),
                (api.send)(engine, 1, key, tensor, 0),
            ]
        };
        assert_eq!(statuses.map(reason), ["", "", refused].map(String::from));
        let mut value = Value::NONE;
        if refused.is_empty() {
            // SAFETY: handles of this library, and room for a value.
            let status = unsafe { (api.recv)(engine, 1, key, FOREVER, &raw mut value) };
            assert_eq!(reason(status), "");
        }
        // SAFETY: handles of this library, for the last time.
        unsafe {
            (api.tensor_free)(value.tensor);
            (api.key_free)(key);
        }
    }
    // SAFETY: a handle of this library, for the last time.
    unsafe { (api.engine_free)(engine) };
}

// SAFETY: the declarations are those of POSIX.
unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(child: i32, status: *mut i32, options: i32) -> i32;
    fn kill(child: i32, signal: i32) -> i32;
    fn _exit(code: i32) -> !;
}

unsafe extern "C" fn told(_: *mut c_void, status: *mut CStatus, _: Value) {
    // SAFETY: it is this callback's from here on.
    unsafe { (api().status_free)(status) };
}

unsafe extern "C" fn pass(context: *mut c_void, status: *mut CStatus, _: Value) {
    // SAFETY: the test passes a sender that outlives the receive.
    let told = unsafe { &*context.cast::<Sender<String>>() };
    told.send(reason(status)).unwrap();
}

/// No thread turns such an engine while its caller waits for a callback, but that of the callbacks.
#[test]
fn a_receive_is_told_of_without_threads_of_the_engine() {
    let (api, mut engine, key) = (api(), null_mut(), key(c"x"));
    let settings =
        c"task = \"/job:a/task:0\"\nshards = 2\nshare_cores = true\ndrive = \"caller\"\n";
    // SAFETY: a text, and room for a handle.
    let status = unsafe { (api.engine_start)(settings.as_ptr(), &raw mut engine) };
    assert_eq!(reason(status), "");
    let (sender, told) = mpsc::channel::<String>();
    let context = (&raw const sender).cast_mut().cast::<c_void>();
    let mut receive = null_mut();
    for (patience, handle) in [(20_000_000, null_mut()), (FOREVER, &raw mut receive)] {
        // SAFETY: handles of this library, and a callback whose context outlives the engine.
        let status =
            unsafe { (api.recv_async)(engine, 1, key, patience, Some(pass), context, handle) };
        assert_eq!(reason(status), "");
    }
    let within = Duration::from_secs(20);
    assert_eq!(told.recv_timeout(within).as_deref(), Ok("DEADLINE"));
    // SAFETY: handles of this library; those that are freed are not used again.
    unsafe {
        (api.receive_cancel)(receive);
        assert_eq!(told.recv_timeout(within).as_deref(), Ok("RECV_CANCELLED"));
        (api.receive_free)(receive);
        let status = (api.recv_async)(engine, 1, key, FOREVER, Some(pass), context, null_mut());
        assert_eq!(reason(status), "");
        (api.engine_free)(engine);
        (api.key_free)(key);
    }
    assert_eq!(told.try_recv().as_deref(), Ok("RECV_CANCELLED"));
}

/// What a callback uses that begins receives.
struct Again {
    engine: *mut CEngine,
    key: *mut CKey,
    told: AtomicU32,
}

impl Again {
    /// Begins a receive that is told to [`begin_again`]. The engine is valid until all callbacks have been called.
    fn begin(&self) -> *mut CStatus {
        let (told, context) = (Some(begin_again as Told), ptr::from_ref(self));
        let context = context.cast_mut().cast();
        // SAFETY: handles of this library, and a callback whose context outlives the engine.
        unsafe { (api().recv_async)(self.engine, 1, self.key, FOREVER, told, context, null_mut()) }
    }
}

unsafe extern "C" fn begin_again(context: *mut c_void, status: *mut CStatus, _: Value) {
    // SAFETY: the test passes one that outlives the engine; the status is this callback's from here on.
    let again = unsafe {
        (api().status_free)(status);
        &*context.cast::<Again>()
    };
    if again.told.fetch_add(1, Ordering::Relaxed) < 100 {
        let begun = again.begin();
        // SAFETY: the status is this callback's.
        unsafe { (api().status_free)(begun) };
    }
}

/// They may use the engine until the last of them has returned.
#[test]
fn callbacks_begin_receives_while_the_engine_is_freed() {
    let again = Again {
        engine: started(),
        key: key(c"x"),
        told: AtomicU32::new(0),
    };
    for _ in 0..8 {
        assert_eq!(reason(again.begin()), "");
    }
    // SAFETY: handles of this library, for the last time.
    unsafe {
        (api().engine_free)(again.engine);
        (api().key_free)(again.key);
    }
    assert!(again.told.load(Ordering::Relaxed) >= 8);
}

/// In a child of `fork` the thread of the callbacks is not there: freeing the engine waits for nothing.
#[test]
fn an_engine_with_callbacks_is_freed_in_a_forked_child() {
    const ALONE: &str = "RENDEZ_TEST_FORKS";
    if std::env::var_os(ALONE).is_none() {
        // In a process of its own: threads of other tests may hold any lock when it is copied.
        let name = "tests::an_engine_with_callbacks_is_freed_in_a_forked_child";
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let done = alone.args(["--exact", name]).env(ALONE, "1").output();
        let done = done.unwrap();
        assert!(done.status.success(), "{done:?}");
        return;
    }
    let (api, engine, key) = (api(), started(), key(c"x"));
    // SAFETY: handles of this library, and a callback that lasts.
    let status =
        unsafe { (api.recv_async)(engine, 1, key, FOREVER, Some(told), null_mut(), null_mut()) };
    assert_eq!(reason(status), "");
    // SAFETY: the child frees the engine, and ends.
    let child = unsafe { fork() };
    if child == 0 {
        // SAFETY: ends the child.
        std::panic::set_hook(Box::new(|_| unsafe { _exit(3) }));
        // What does nothing here says so.
        // SAFETY: a handle of this library, and texts.
        let refused = unsafe {
            [
                (api.step_finish)(engine, 1),
                (api.step_abort)(engine, 1, 13, c"over".as_ptr()),
                (api.engine_add_peer)(engine, c"/job:b/task:0".as_ptr(), c"unix:@b".as_ptr()),
            ]
        };
        assert_eq!(refused.map(reason), ["ENGINE_FORKED"; 3]);
        // SAFETY: a handle of this library, for the last time.
        unsafe { (api.engine_free)(engine) };
        // SAFETY: ends the child.
        unsafe { _exit(0) };
    }
    let (mut status, mut ended, began) = (-1, 0, std::time::Instant::now());
    while ended == 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        if began.elapsed() > std::time::Duration::from_secs(30) {
            // SAFETY: the child of this test, which hangs.
            unsafe { kill(child, 9) };
        }
        // SAFETY: room for a status.
        ended = unsafe { waitpid(child, &raw mut status, 1) };
    }
    assert_eq!((ended, status), (child, 0));
    // SAFETY: handles of this library, for the last time.
    unsafe {
        (api.key_free)(key);
        (api.engine_free)(engine);
    }
}

/// What is written to a mapping stays with its holder: the tensor keeps its bytes.
#[test]
fn a_mapping_is_its_holders_alone() {
    let (api, mut engine) = (api(), null_mut());
    let settings = c"task = \"/job:a/task:0\"\nshards = 1\nshare_cores = true\n";
    // SAFETY: a text, and room for a handle.
    let status = unsafe { (api.engine_start_over)(settings.as_ptr(), &raw mut engine) };
    assert_eq!(reason(status), "");
    let (meta, mut data, mut tensor) = (meta(3, 5000), null_mut(), null_mut());
    // SAFETY: handles of this library, and room for what it gives.
    let status =
        unsafe { (api.tensor_new_paged)(engine, &raw const meta, &raw mut tensor, &raw mut data) };
    assert_eq!(reason(status), "");
    // SAFETY: the tensor has so many bytes, and is not sent yet.
    unsafe { data.cast::<u8>().write_bytes(3, 5000) };
    let (mut mapping, mut mine, mut size) = (null_mut(), null_mut(), 0);
    // SAFETY: a handle of this library, and room for what it gives.
    let status =
        unsafe { (api.tensor_map)(tensor, &raw mut mapping, &raw mut mine, &raw mut size) };
    assert_eq!((reason(status), size), (String::new(), 5000));
    // SAFETY: the mapping has so many bytes, and is this test's alone.
    unsafe { mine.cast::<u8>().write_bytes(7, size) };
    let (mut kept, mut len) = (null(), 0);
    // SAFETY: a handle of this library, and room for what it gives.
    let status = unsafe { (api.tensor_data)(tensor, &raw mut kept, &raw mut len) };
    assert_eq!((reason(status), len), (String::new(), 5000));
    // SAFETY: the tensor lives, and has so many bytes.
    assert_eq!(unsafe { kept.cast::<u8>().add(4999).read() }, 3);
    // SAFETY: handles of this library, for the last time.
    unsafe {
        (api.mapping_free)(mapping);
        (api.tensor_free)(tensor);
        (api.engine_free)(engine);
    }
}

/// Null pointers and numbers that name nothing are errors of their own, and nothing else happens.
#[test]
fn what_names_nothing_is_refused() {
    let (api, engine, key) = (api(), started(), key(c"x"));
    let (mut tensor, mut data): (*mut CTensor, _) = (null_mut(), null_mut());
    let mut value = Value::NONE;
    let (mut got, mut size) = (meta(3, 0), 0);
    let good = meta(12, 4);
    let (deep, odd) = (Meta { rank: 9, ..good }, Meta { dtype: 17, ..good });
    // SAFETY: each pointer is null or what the header says.
    let statuses = unsafe {
        [
            (api.engine_start)(c"task = 1".as_ptr(), null_mut()),
            (api.engine_add_peer)(null(), c"a".as_ptr(), c"b".as_ptr()),
            (api.engine_add_peer)(engine, c"what?".as_ptr(), c"unix:@b".as_ptr()),
            (api.engine_metrics)(engine, None, null_mut()),
            (api.key_between)(c"a".as_ptr(), c"a".as_ptr(), null(), null_mut()),
            (api.key_between)(c"a".as_ptr(), c"a".as_ptr(), c"x".as_ptr(), null_mut()),
            (api.key_parse)(c"no key".as_ptr(), null_mut()),
            (api.key_parse)(c"\xff".as_ptr(), null_mut()),
            (api.tensor_new)(engine, &raw const deep, &raw mut tensor, &raw mut data),
            (api.tensor_new)(engine, &raw const odd, &raw mut tensor, &raw mut data),
            (api.tensor_new)(engine, &raw const good, null_mut(), &raw mut data),
            (api.tensor_new)(engine, &raw const good, &raw mut tensor, null_mut()),
            (api.tensor_clone)(null_mut(), &raw mut tensor),
            (api.tensor_meta)(null(), &raw mut got),
            (api.tensor_data)(null(), null_mut(), &raw mut size),
            (api.send)(engine, 1, key, null_mut(), 0),
            (api.recv)(engine, 1, null(), 0, &raw mut value),
            (api.recv)(engine, 1, key, 0, null_mut()),
            (api.recv_into)(
                engine,
                1,
                key,
                0,
                null_mut(),
                8,
                &raw mut got,
                &raw mut size,
            ),
            (api.recv_async)(engine, 1, key, 0, None, null_mut(), null_mut()),
            (api.step_abort)(engine, 1, 10, null()),
            (api.step_abort)(engine, 1, 0, c"no error".as_ptr()),
            (api.step_abort)(engine, 1, 17, c"no code".as_ptr()),
            (api.step_abort)(engine, 1, 256 + 10, c"no code".as_ptr()),
            (api.step_deadline)(engine, 1, FOREVER),
        ]
    };
    for (at, status) in statuses.into_iter().enumerate() {
        let reason = reason(status);
        assert!(
            ["C_ARGUMENT", "CONFIG", "DEVICE_MALFORMED", "KEY_MALFORMED"].contains(&&*reason),
            "{at}: {reason}"
        );
    }
    assert!(tensor.is_null() && value.tensor.is_null());
    // SAFETY: null may be freed and asked.
    unsafe {
        (api.status_free)(null_mut());
        (api.tensor_free)(null_mut());
        (api.receive_free)(null_mut());
        (api.receive_cancel)(null());
        assert_eq!((api.status_code)(null()), 0);
        assert!((api.engine_task)(null()).is_null());
    }
    // SAFETY: handles of this library, for the last time.
    unsafe {
        (api.key_free)(key);
        (api.engine_free)(engine);
    }
}

#[test]
fn a_panic_is_a_status() {
    let status = crate::status::answer(|| panic!("of a test"));
    assert_eq!(reason(status), "C_PANICKED");
}
