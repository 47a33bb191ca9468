//! The structs shared with libibverbs lie in memory as rdma-core's headers have them.
//!
//! Sizes, alignments and offsets were printed by a C compiler from the headers of rdma-core 44. Where `verbs-linked` is
//! on, rdma-sys's own, which bindgen made on this machine, are held against ours as well.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(feature = "verbs-linked")]
use rendez::fabric::verbs::sys::rdma_sys;
use rendez::fabric::verbs::{VerbsDevice, sys};

use crate::shim;

/// One struct: size (or `_` where only its first fields are known) and alignment, then fields with their offsets.
/// Behind the bar stand fields whose names bindgen changes.
macro_rules! layouts {
    ($($name:ident: $size:tt $align:literal; $($field:ident $offset:literal),* |
        $($other:ident $other_offset:literal),*;)*) => {
        #[test]
        fn as_the_headers_have_it() {
            $(
                layouts!(@size sys, $name, $size);
                assert_eq!(align_of::<sys::$name>(), $align, stringify!($name));
                $(assert_eq!(
                    offset_of!(sys::$name, $field), $offset, stringify!($name.$field)
                );)*
                $(assert_eq!(
                    offset_of!(sys::$name, $other), $other_offset, stringify!($name.$other)
                );)*
            )*
        }

        #[cfg(feature = "verbs-linked")]
        #[test]
        fn as_rdma_sys_has_it() {
            $(
                layouts!(@size rdma_sys, $name, $size);
                assert_eq!(align_of::<rdma_sys::$name>(), $align, stringify!($name));
                $(assert_eq!(
                    offset_of!(rdma_sys::$name, $field),
                    offset_of!(sys::$name, $field),
                    stringify!($name.$field)
                );)*
            )*
        }
    };
    (@size $krate:ident, $name:ident, _) => {};
    (@size $krate:ident, $name:ident, $size:literal) => {
        assert_eq!(size_of::<$krate::$name>(), $size, stringify!($name));
    };
}

layouts! {
    ibv_context: _ 8; device 0, ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272 |;
    ibv_context_ops: 256 8; poll_cq 88, req_notify_cq 96, post_srq_recv 160, post_send 200 |;
    ibv_pd: 16 8; context 0, handle 8 |;
    ibv_mr: 48 8; context 0, pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40 |;
    ibv_comp_channel: 16 8; context 0, fd 8, refcnt 12 |;
    ibv_cq: _ 8; context 0, channel 8, cq_context 16, handle 24, cqe 28 |;
    ibv_srq: _ 8; context 0, srq_context 8, pd 16, handle 24 |;
    ibv_qp: _ 8; context 0, qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48,
        qp_num 52, state 56, qp_type 60 |;
    ibv_device_attr: 232 8; fw_ver 0, node_guid 64, sys_image_guid 72, max_mr_size 80, page_size_cap 88,
        vendor_id 96, vendor_part_id 100, hw_ver 104, max_qp 108, max_qp_wr 112, device_cap_flags 116, max_sge 120,
        max_cqe 132, max_qp_rd_atom 144, max_qp_init_rd_atom 156, atomic_cap 164, max_srq 212, max_srq_wr 216,
        max_srq_sge 220, max_pkeys 224, local_ca_ack_delay 226, phys_port_cnt 227 |;
    ibv_port_attr: 52 4; state 0, max_mtu 4, active_mtu 8, gid_tbl_len 12, max_msg_sz 20, pkey_tbl_len 32, lid 34,
        sm_lid 36, link_layer 46, flags 47 |;
    ibv_gid: 16 8; raw 0 |;
    ibv_gid_entry: 32 8; gid 0, gid_index 16, port_num 20, gid_type 24, ndev_ifindex 28 |;
    ibv_async_event: 16 8; element 0, event_type 8 |;
    ibv_qp_cap: 20 4; max_send_wr 0, max_recv_wr 4, max_send_sge 8, max_recv_sge 12, max_inline_data 16 |;
    ibv_qp_init_attr: 64 8; qp_context 0, send_cq 8, recv_cq 16, srq 24, cap 32, qp_type 52, sq_sig_all 56 |;
    ibv_global_route: 24 8; dgid 0, flow_label 16, sgid_index 20, hop_limit 21, traffic_class 22 |;
    ibv_ah_attr: 32 8; grh 0, dlid 24, sl 26, src_path_bits 27, static_rate 28, is_global 29, port_num 30 |;
    ibv_qp_attr: 144 8; qp_state 0, cur_qp_state 4, path_mtu 8, path_mig_state 12, qkey 16, rq_psn 20, sq_psn 24,
        dest_qp_num 28, qp_access_flags 32, cap 36, ah_attr 56, alt_ah_attr 88, pkey_index 120, alt_pkey_index 122,
        en_sqd_async_notify 124, sq_draining 125, max_rd_atomic 126, max_dest_rd_atomic 127, min_rnr_timer 128,
        port_num 129, timeout 130, retry_cnt 131, rnr_retry 132, alt_port_num 133, alt_timeout 134, rate_limit 136 |;
    ibv_srq_attr: 12 4; max_wr 0, max_sge 4, srq_limit 8 |;
    ibv_srq_init_attr: 24 8; srq_context 0, attr 8 |;
    ibv_sge: 16 8; addr 0, length 8, lkey 12 |;
    ibv_recv_wr: 32 8; wr_id 0, next 8, sg_list 16, num_sge 24 |;
    ibv_send_wr: 128 8; wr_id 0, next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32 | imm_data 36, rdma 40;
    ibv_wc: 48 8; wr_id 0, status 8, opcode 12, vendor_err 16, byte_len 20, qp_num 28, src_qp 32, wc_flags 36,
        pkey_index 40, slid 42, sl 44, dlid_path_bits 45 | imm_data 24;
}

#[test]
fn a_machine_with_or_without_the_library_gets_an_answer() {
    match sys::table() {
        // A library with every function of the table: whether there is a device behind it is another question.
        Ok(_) => {}
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert_eq!(
        sys::SYMBOLS.len() + 2,
        size_of::<sys::VerbsTable>() / size_of::<usize>(),
        "a symbol for each function, and the two words about forks"
    );
}

/// Many libraries take registered memory from children wherever they are asked to: they are where they have to be.
#[test]
fn forks_are_prepared_for_unless_the_kernel_sees_to_them() {
    static PREPARED: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn fork_init() -> c_int {
        PREPARED.fetch_add(1, Ordering::Relaxed);
        0
    }
    unsafe extern "C" fn disabled() -> c_uint {
        0
    }
    unsafe extern "C" fn unneeded() -> c_uint {
        sys::IBV_FORK_UNNEEDED
    }

    shim::reset();
    let answers: [(Option<sys::IsForkInitialized>, bool); 3] = [
        (Some(unneeded), false),
        (Some(disabled), true),
        (None, true),
    ];
    for (answer, is_prepared) in answers {
        let table = Box::leak(Box::new(sys::VerbsTable {
            fork_init,
            is_fork_initialized: answer,
            forks: Once::new(),
            ..*shim::table()
        }));
        PREPARED.store(0, Ordering::Relaxed);
        VerbsDevice::names(table).unwrap();
        assert_eq!(PREPARED.load(Ordering::Relaxed) != 0, is_prepared);
    }
}
