//! The functions that the header defines in place: each asks the provider through its context's table.
//!
//! Knows the detour and nothing else. A provider leaves no entry empty; a missing one reads as "not supported".
#![allow(unsafe_code)]

use std::ffi::c_int;

use super::types::*;

/// What a provider without the function would say: `EOPNOTSUPP`.
const NOT_SUPPORTED: c_int = 95;

/// `ibv_poll_cq`.
///
/// # Safety
/// As `ibv_poll_cq(3)`: `cq` is live, and `wc` has room for `count` entries.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: `cq` is live, for which the caller answers.
    let context = unsafe { (*cq).context };
    // SAFETY: an object's context is open as long as the object lives.
    let poll = unsafe { (*context).ops.poll_cq };
    let Some(poll) = poll else {
        return -NOT_SUPPORTED;
    };
    // SAFETY: the caller's promises are the callee's.
    unsafe { poll(cq, count, wc) }
}

/// `ibv_req_notify_cq`.
///
/// # Safety
/// As `ibv_req_notify_cq(3)`: `cq` is live.
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `cq` is live, for which the caller answers.
    let context = unsafe { (*cq).context };
    // SAFETY: an object's context is open as long as the object lives.
    let request = unsafe { (*context).ops.req_notify_cq };
    let Some(request) = request else {
        return NOT_SUPPORTED;
    };
    // SAFETY: the caller's promises are the callee's.
    unsafe { request(cq, solicited_only) }
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// As `ibv_post_srq_recv(3)`: `srq` is live, the chain from `wr` ends, and what its entries name is registered memory
/// that no other code touches until they complete.
#[inline]
pub unsafe fn ibv_post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `srq` is live, for which the caller answers.
    let context = unsafe { (*srq).context };
    // SAFETY: an object's context is open as long as the object lives.
    let post = unsafe { (*context).ops.post_srq_recv };
    let Some(post) = post else {
        return NOT_SUPPORTED;
    };
    // SAFETY: the caller's promises are the callee's.
    unsafe { post(srq, wr, bad) }
}

/// `ibv_post_send`.
///
/// # Safety
/// As `ibv_post_send(3)`: `qp` is live, the chain from `wr` ends, and what its entries name is readable until they
/// complete; what is posted inline, until this returns.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` is live, for which the caller answers.
    let context = unsafe { (*qp).context };
    // SAFETY: an object's context is open as long as the object lives.
    let post = unsafe { (*context).ops.post_send };
    let Some(post) = post else {
        return NOT_SUPPORTED;
    };
    // SAFETY: the caller's promises are the callee's.
    unsafe { post(qp, wr, bad) }
}
