//! Statuses as C sees them, and how a function of ours ends: well, with a status, or with a panic that becomes one.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rendez::Status;
use rendez::ground::catalogue;

/// Why something failed: one of the sixteen codes of gRPC, a reason that never changes, and a message for people.
#[derive(Debug)]
pub struct CStatus {
    code: u32,
    reason: CString,
    message: CString,
}

/// No bound of time.
pub const FOREVER: u64 = u64::MAX;

/// A text for C. A zero within it, which only a peer's text can have, is replaced.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text)
        .unwrap_or_else(|_| CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default())
}

impl From<&Status> for CStatus {
    fn from(status: &Status) -> Self {
        Self {
            code: status.code() as u32,
            reason: c_text(status.reason()),
            message: c_text(status.message()),
        }
    }
}

/// A status for C to free.
pub(crate) fn give(status: &Status) -> *mut CStatus {
    Box::into_raw(Box::new(CStatus::from(status)))
}

/// Does what C asked for. What goes wrong comes back as a status, a panic too.
pub(crate) fn answer(what: impl FnOnce() -> Result<(), Status>) -> *mut CStatus {
    match catch_unwind(AssertUnwindSafe(what)) {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(status)) => give(&status),
        Err(_) => give(&Status::of(
            catalogue::C_PANICKED,
            "the library panicked; the panic and its place stand on standard error",
        )),
    }
}

/// As [`answer`], for what cannot fail: a panic was told by the panic hook.
pub(crate) fn quietly(what: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(what));
}

/// What C passed names nothing.
pub(crate) fn argument(message: impl Into<std::sync::Arc<str>>) -> Status {
    Status::of(catalogue::C_ARGUMENT, message)
}

/// What a pointer of C's points to.
///
/// # Safety
/// It is null, or points to a `T` that nothing changes or frees before the call ends.
pub(crate) unsafe fn read<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Status> {
    // SAFETY: the caller's contract is this function's.
    unsafe { pointer.as_ref() }.ok_or_else(|| argument(format!("`{name}` is NULL")))
}

/// The same, to be written.
///
/// # Safety
/// It is null, or points to a `T` that nothing else reads, changes or frees before the call ends.
pub(crate) unsafe fn write<'a, T>(pointer: *mut T, name: &str) -> Result<&'a mut T, Status> {
    // SAFETY: the caller's contract is this function's.
    unsafe { pointer.as_mut() }.ok_or_else(|| argument(format!("`{name}` is NULL")))
}

/// Puts what C is given where it wants it, which may hold anything until now.
///
/// # Safety
/// `place` is null, or points to room for a `T` that nothing else uses before the call ends.
pub(crate) unsafe fn put<T>(place: *mut T, value: T, name: &str) -> Result<(), Status> {
    if place.is_null() {
        return Err(argument(format!("`{name}` is NULL")));
    }
    // SAFETY: not null, and by the caller's contract room for a `T`; what it held is not read.
    unsafe { place.write(value) };
    Ok(())
}

/// Does what C asked for, and puts a handle of what was made where C wants it: NULL if that went wrong.
///
/// # Safety
/// As [`put`].
pub(crate) unsafe fn answer_new<T>(
    place: *mut *mut T,
    name: &str,
    make: impl FnOnce() -> Result<T, Status>,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the caller's contract is that of `put`.
        unsafe { put(place, std::ptr::null_mut(), name) }?;
        let made = Box::new(make()?);
        // SAFETY: as above.
        unsafe { put(place, Box::into_raw(made), name) }
    })
}

/// A text of C's.
///
/// # Safety
/// It is null, or points to bytes that end with a zero and that nothing changes or frees before the call ends.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a str, Status> {
    if pointer.is_null() {
        return Err(argument(format!("`{name}` is NULL")));
    }
    // SAFETY: not null, and by the caller's contract a text that ends with a zero and stays.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|error| argument(format!("`{name}` is not UTF-8: {error}")))
}

/// Frees a handle that C was given.
///
/// # Safety
/// It is null, or came from `Box::into_raw` here and is not used again.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if handle.is_null() {
        return;
    }
    // SAFETY: not null, and by the caller's contract from `Box::into_raw`, and the last use of it.
    let owned = unsafe { Box::from_raw(handle) };
    quietly(move || drop(owned));
}

/// How long C wants to wait; `None` for ever.
pub(crate) fn patience(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != FOREVER).then(|| Duration::from_nanos(nanoseconds))
}

pub(crate) unsafe extern "C" fn status_code(status: *const CStatus) -> u32 {
    // SAFETY: the header's contract is that of `read`.
    unsafe { read(status, "status") }.map_or(0, |status| status.code)
}

pub(crate) unsafe extern "C" fn status_reason(status: *const CStatus) -> *const c_char {
    // SAFETY: the header's contract is that of `read`.
    unsafe { read(status, "status") }.map_or(c"".as_ptr(), |status| status.reason.as_ptr())
}

pub(crate) unsafe extern "C" fn status_message(status: *const CStatus) -> *const c_char {
    // SAFETY: the header's contract is that of `read`.
    unsafe { read(status, "status") }.map_or(c"".as_ptr(), |status| status.message.as_ptr())
}

pub(crate) unsafe extern "C" fn status_free(status: *mut CStatus) {
    // SAFETY: the header's contract is that of `free`: it came from `give`.
    unsafe { free(status) }
}
