//! Streams, events, copies, and words written and awaited: in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_uint, c_void};
use std::slice;

use crate::Outcome;
use crate::calls::{State, call, lock, put};
use crate::code::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::devices::{alien_context_of, context_of};

/// Handles up to this one are of no stream that was made: each context has its own of them.
const DEFAULTS: usize = 2;
/// Where a context's own streams stand among all.
const OWN: usize = 0x100;
/// Streams and events that are made have greater handles.
const FIRST: usize = 0x5000;

/// One piece of work.
enum Work {
    ToDevice {
        to: u64,
        from: usize,
        len: usize,
    },
    ToHost {
        to: usize,
        from: u64,
        len: usize,
    },
    /// The source is memory of that device.
    OnDevice {
        to: u64,
        from: u64,
        len: usize,
        source: usize,
    },
    Write {
        at: u64,
        value: u64,
    },
    Wait {
        at: u64,
        value: u64,
    },
    Record {
        event: usize,
        ticket: u64,
    },
    Await {
        event: usize,
        ticket: u64,
    },
}

struct Stream {
    device: usize,
    /// Its context is no device's primary one.
    is_alien: bool,
    work: VecDeque<Work>,
    /// Work is done only as far as it is told.
    is_held: bool,
    /// How many pieces it was told to do all the same.
    allowed: u64,
    /// It was destroyed, and does what was queued.
    has_ended: bool,
}

#[derive(Default)]
struct Event {
    recorded: u64,
    done: u64,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Streams {
    all: BTreeMap<usize, Stream>,
    events: BTreeMap<usize, Event>,
    next: usize,
    /// Streams that are made from now on are held.
    pub(crate) holds_new: bool,
}

impl Streams {
    /// Streams that were made by the driver's call, and events.
    pub(crate) fn held(&self) -> [usize; 2] {
        let made = self.all.iter();
        let made =
            made.filter(|(name, stream)| **name >= FIRST && !stream.is_alien && !stream.has_ended);
        [made.count(), self.events.len()]
    }

    pub(crate) fn hold(&mut self, stream: usize, is_held: bool) -> bool {
        let found = self.all.get_mut(&stream);
        if let Some(stream) = found {
            stream.is_held = is_held;
            return true;
        }
        false
    }

    pub(crate) fn allow(&mut self, stream: usize, count: u64) -> bool {
        let found = self.all.get_mut(&stream);
        if let Some(stream) = found {
            stream.allowed += count;
            return true;
        }
        false
    }

    pub(crate) fn pending(&self, stream: usize) -> usize {
        self.all.get(&stream).map_or(0, |stream| stream.work.len())
    }

    fn at(&mut self, stream: usize) -> Result<&mut Stream, u32> {
        self.all.get_mut(&stream).ok_or(INVALID_HANDLE)
    }

    /// A stream of a context that an application made for itself.
    pub(crate) fn make_alien(&mut self) -> usize {
        let number = self.number();
        let made = Stream {
            is_alien: true,
            ..Stream::new(0, false)
        };
        self.all.insert(number, made);
        number
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        FIRST + self.next * 16
    }
}

impl Stream {
    const fn new(device: usize, is_held: bool) -> Self {
        Self {
            device,
            is_alien: false,
            work: VecDeque::new(),
            is_held,
            allowed: 0,
            has_ended: false,
        }
    }
}

/// Where a stream stands among all: of the default ones, each device has its own, `0x100` on, and `0x110` on for those
/// of a thread, of which all threads share one.
fn named(state: &mut State, stream: *mut c_void) -> Result<usize, u32> {
    if stream.addr() > DEFAULTS {
        return Ok(stream.addr());
    }
    let device = state.devices.current()?;
    let name = OWN + device + if stream.addr() == DEFAULTS { 0x10 } else { 0 };
    state
        .streams
        .all
        .entry(name)
        .or_insert_with(|| Stream::new(device, false));
    Ok(name)
}

fn found(state: &mut State, stream: *mut c_void) -> Result<&mut Stream, u32> {
    let name = named(state, stream)?;
    state.streams.at(name)
}

/// Streams do what they can.
pub(crate) fn pump(state: &mut State) {
    if state.broken.is_some() {
        return;
    }
    let names: Vec<usize> = state.streams.all.keys().copied().collect();
    let mut goes_on = true;
    while goes_on {
        goes_on = false;
        for &name in &names {
            while step(state, name) {
                goes_on = true;
            }
        }
    }
    let all = &mut state.streams.all;
    all.retain(|_, stream| !stream.has_ended || !stream.work.is_empty());
}

/// Does the first piece of a stream's work, if it may and can.
fn step(state: &mut State, name: usize) -> bool {
    let Some(stream) = state.streams.all.get(&name) else {
        return false;
    };
    let (device, may_go) = (stream.device, !stream.is_held || stream.allowed > 0);
    let Some(work) = stream.work.front().filter(|_| may_go) else {
        return false;
    };
    let is_due = match *work {
        Work::Wait { at, value } => state.memory.word(at).is_none_or(|word| word >= value),
        Work::Await { event, ticket } => {
            let event = state.streams.events.get(&event);
            event.is_none_or(|event| event.done >= ticket)
        }
        _ => true,
    };
    if !is_due {
        return false;
    }
    let Some(stream) = state.streams.all.get_mut(&name) else {
        return false;
    };
    if stream.is_held {
        stream.allowed -= 1;
    }
    let Some(work) = stream.work.pop_front() else {
        return false;
    };
    if let Err(what) = perform(state, device, &work) {
        state.violations.push(what);
    }
    true
}

fn perform(state: &mut State, device: usize, work: &Work) -> Result<(), String> {
    let memory = &state.memory;
    let may = |at: u64, len: usize, writes: bool| {
        let verb = if writes { "writes" } else { "reads" };
        let is_right = memory.may(device, at, len, writes);
        is_right.then_some(()).ok_or_else(|| {
            format!("device {device} {verb} {len} bytes at {at:#x}, which it may not, or no more")
        })
    };
    let done = match *work {
        Work::ToDevice { to, from, len } => {
            may(to, len, true)?;
            // SAFETY: the caller of the copy vouched that its memory stays as it is until the copy is over.
            let bytes = unsafe {
                slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(from), len)
            };
            memory.write(to, bytes)
        }
        Work::ToHost { to, from, len } => {
            may(from, len, false)?;
            // SAFETY: as above, and no other code touches it meanwhile.
            let bytes = unsafe {
                slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(to), len)
            };
            memory.read(from, bytes)
        }
        Work::OnDevice {
            to,
            from,
            len,
            source,
        } => {
            may(to, len, true)?;
            if !memory.may(source, from, len, false) {
                return Err(format!(
                    "a copy reads {len} bytes at {from:#x}, which are no memory of device {source}"
                ));
            }
            let mut bytes = vec![0; len];
            memory
                .read(from, &mut bytes)
                .and_then(|()| memory.write(to, &bytes))
        }
        Work::Write { at, value } => {
            may(at, 8, true)?;
            memory.put_word(at, value)
        }
        Work::Wait { at, .. } => return may(at, 8, false),
        Work::Record { event, ticket } => {
            if let Some(event) = state.streams.events.get_mut(&event) {
                event.done = event.done.max(ticket);
            }
            Ok(())
        }
        Work::Await { .. } => Ok(()),
    };
    done.map_err(|code| format!("work failed with {code}"))
}

fn queue(state: &mut State, stream: *mut c_void, work: Work) -> Outcome {
    found(state, stream)?.work.push_back(work);
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut c_void, _: c_uint) -> u32 {
    call("cuStreamCreate", |state| {
        let device = state.devices.current()?;
        let number = state.streams.number();
        let made = Stream::new(device, state.streams.holds_new);
        state.streams.all.insert(number, made);
        // SAFETY: valid for a write, as every caller of the driver vouches.
        unsafe { put(stream, std::ptr::without_provenance_mut(number)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: *mut c_void) -> u32 {
    let begun = call("cuStreamDestroy_v2", |state| {
        // What is queued is done all the same, as the driver has it.
        let stream = state.streams.at(stream.addr())?;
        (stream.is_held, stream.allowed) = (false, 0);
        Ok(())
    });
    if begun != 0 {
        return begun;
    }
    let name = stream.addr();
    let mut state = lock();
    crate::streams::pump(&mut state);
    let Some(mut stream) = state.streams.all.remove(&name) else {
        return INVALID_HANDLE;
    };
    if !stream.work.is_empty() {
        stream.has_ended = true;
        // No handle: numbers are sixteen apart.
        state.streams.all.insert(name + 1, stream);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> u32 {
    let mut name = 0;
    let begun = call("cuStreamSynchronize", |state| {
        name = named(state, stream)?;
        state.streams.at(name).map(drop)
    });
    if begun != 0 {
        return begun;
    }
    loop {
        {
            let mut state = lock();
            pump(&mut state);
            if let Some(code) = state.broken {
                return code;
            }
            match state.streams.at(name) {
                Ok(stream) if stream.work.is_empty() => return 0,
                Ok(_) => {}
                Err(code) => return code,
            }
        }
        std::thread::yield_now();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCtx(stream: *mut c_void, context: *mut *mut c_void) -> u32 {
    call("cuStreamGetCtx", |state| {
        let stream = found(state, stream)?;
        let of = if stream.is_alien {
            alien_context_of(stream.device)
        } else {
            context_of(stream.device)
        };
        let handle = std::ptr::without_provenance_mut(of);
        // SAFETY: as above.
        unsafe { put(context, handle) }
    })
}

/// Whether a stream's device may touch an address now.
fn check(state: &mut State, stream: *mut c_void, at: u64, len: usize, writes: bool) -> Outcome {
    let device = found(state, stream)?.device;
    let may = state.memory.may(device, at, len, writes);
    may.then_some(()).ok_or(INVALID_VALUE)
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue64_v2(stream: *mut c_void, at: u64, value: u64, _: c_uint) -> u32 {
    call("cuStreamWriteValue64_v2", |state| {
        state.devices.current()?;
        if !state.devices.can("words") {
            return Err(NOT_SUPPORTED);
        }
        check(state, stream, at, 8, true)?;
        queue(state, stream, Work::Write { at, value })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue64_v2(stream: *mut c_void, at: u64, value: u64, _: c_uint) -> u32 {
    call("cuStreamWaitValue64_v2", |state| {
        state.devices.current()?;
        if !state.devices.can("words") {
            return Err(NOT_SUPPORTED);
        }
        check(state, stream, at, 8, false)?;
        queue(state, stream, Work::Wait { at, value })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut c_void, _: c_uint) -> u32 {
    call("cuEventCreate", |state| {
        state.devices.current()?;
        let number = state.streams.number();
        state.streams.events.insert(number, Event::default());
        // SAFETY: as above.
        unsafe { put(event, std::ptr::without_provenance_mut(number)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> u32 {
    call("cuEventRecord", |state| {
        found(state, stream)?;
        let name = event.addr();
        let event = state.streams.events.get_mut(&name).ok_or(INVALID_HANDLE)?;
        event.recorded += 1;
        let ticket = event.recorded;
        queue(
            state,
            stream,
            Work::Record {
                event: name,
                ticket,
            },
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _: c_uint) -> u32 {
    call("cuStreamWaitEvent", |state| {
        let name = event.addr();
        let ticket = state
            .streams
            .events
            .get(&name)
            .ok_or(INVALID_HANDLE)?
            .recorded;
        queue(
            state,
            stream,
            Work::Await {
                event: name,
                ticket,
            },
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    len: usize,
    stream: *mut c_void,
) -> u32 {
    call("cuMemcpyHtoDAsync_v2", |state| {
        state.devices.current()?;
        check(state, stream, to, len, true)?;
        let from = from.expose_provenance();
        queue(state, stream, Work::ToDevice { to, from, len })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    len: usize,
    stream: *mut c_void,
) -> u32 {
    call("cuMemcpyDtoHAsync_v2", |state| {
        state.devices.current()?;
        check(state, stream, from, len, false)?;
        let to = to.expose_provenance();
        queue(state, stream, Work::ToHost { to, from, len })
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: *mut c_void) -> u32 {
    call("cuMemcpyDtoDAsync_v2", |state| {
        state.devices.current()?;
        check(state, stream, to, len, true)?;
        check(state, stream, from, len, false)?;
        let source = found(state, stream)?.device;
        queue(
            state,
            stream,
            Work::OnDevice {
                to,
                from,
                len,
                source,
            },
        )
    })
}

/// Between two devices, also where neither reaches the other's memory: a driver goes by way of the host then.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyPeerAsync(
    to: u64,
    to_context: *mut c_void,
    from: u64,
    from_context: *mut c_void,
    len: usize,
    stream: *mut c_void,
) -> u32 {
    call("cuMemcpyPeerAsync", |state| {
        if !state.devices.can("copies") {
            return Err(NOT_SUPPORTED);
        }
        let target = state.devices.of_context(to_context.addr())?;
        let source = state.devices.of_context(from_context.addr())?;
        if found(state, stream)?.device != target {
            return Err(INVALID_CONTEXT);
        }
        check(state, stream, to, len, true)?;
        if !state.memory.may(source, from, len, false) {
            return Err(INVALID_VALUE);
        }
        queue(
            state,
            stream,
            Work::OnDevice {
                to,
                from,
                len,
                source,
            },
        )
    })
}
