//! Keys as C sees them: made once of texts, and then named by a handle.
#![allow(unsafe_code)]

use std::ffi::c_char;

use rendez::Key;

use super::status::{CStatus, answer_new, free, text};

/// What a value is sent and received by.
#[derive(Debug)]
pub struct CKey(pub(crate) Key);

pub(crate) unsafe extern "C" fn key_between(
    source: *const c_char,
    destination: *const c_char,
    edge: *const c_char,
    key: *mut *mut CKey,
) -> *mut CStatus {
    let make = || {
        // SAFETY: the header's contract is that of `text`.
        let source = unsafe { text(source, "source") }?;
        // SAFETY: as above.
        let destination = unsafe { text(destination, "destination") }?;
        // SAFETY: as above.
        let edge = unsafe { text(edge, "edge") }?;
        Ok(CKey(Key::between(source, destination, edge)?))
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(key, "key", make) }
}

pub(crate) unsafe extern "C" fn key_parse(
    full: *const c_char,
    key: *mut *mut CKey,
) -> *mut CStatus {
    let make = || {
        // SAFETY: the header's contract is that of `text`.
        let full = unsafe { text(full, "text") }?;
        Ok(CKey(Key::parse(full)?))
    };
    // SAFETY: the header's contract is that of `answer_new`.
    unsafe { answer_new(key, "key", make) }
}

pub(crate) unsafe extern "C" fn key_free(key: *mut CKey) {
    // SAFETY: the header's contract is that of `free`: it came from `answer_new`.
    unsafe { free(key) }
}
