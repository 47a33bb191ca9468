//! Keys as C sees them: made once of texts, and then named by a handle.
#![allow(unsafe_code)]

use std::ffi::c_char;

use rendez::Key;

use super::status::{CStatus, answer, argument, free, put_new, text};

/// What a value is sent and received by.
#[derive(Debug)]
pub struct CKey(pub(crate) Key);

pub(crate) unsafe extern "C" fn key_between(
    source: *const c_char,
    destination: *const c_char,
    edge: *const c_char,
    key: *mut *mut CKey,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `text`.
        let source = unsafe { text(source, "source") }?;
        // SAFETY: as above.
        let destination = unsafe { text(destination, "destination") }?;
        // SAFETY: as above.
        let edge = unsafe { text(edge, "edge") }?;
        let made = Key::between(source, destination, edge);
        let made = made.map_err(|error| argument(error.to_string()))?;
        // SAFETY: the header's contract is that of `put_new`.
        unsafe { put_new(key, CKey(made), "key") }
    })
}

pub(crate) unsafe extern "C" fn key_parse(
    full: *const c_char,
    key: *mut *mut CKey,
) -> *mut CStatus {
    answer(|| {
        // SAFETY: the header's contract is that of `text`.
        let full = unsafe { text(full, "text") }?;
        let made = Key::parse(full).map_err(|error| argument(error.to_string()))?;
        // SAFETY: the header's contract is that of `put_new`.
        unsafe { put_new(key, CKey(made), "key") }
    })
}

pub(crate) unsafe extern "C" fn key_free(key: *mut CKey) {
    // SAFETY: the header's contract is that of `free`: it came from `put_new`.
    unsafe { free(key) }
}
