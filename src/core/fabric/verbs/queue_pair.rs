//! A reliable connected queue pair: made, connected, posted to, put into error, destroyed.
//!
//! Knows the states of a queue pair and what each change must say (`man 3 ibv_modify_qp`, table of required
//! attributes); not what is posted, nor how the two ends came to know each other.
#![allow(unsafe_code)]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::chain::{CHAIN_MAX, Chain, ChainRequest};
use super::completion::CompletionQueue;
use super::device::{check, last_errno};
use super::domain::{Domain, Signal};
use super::error::VerbsError;
use super::shared_receive::SharedReceive;
use super::sys;
use crate::sync::Ordering;

/// Reads and atomics under way at once: nothing here reads, and a queue pair must allow for one.
const READS: u8 = 1;

/// Bytes to send inline that are asked for, one after the other, where a device refuses more: a provider may take 101
/// or 48, and cannot be asked how many.
const INLINE_LESS: [u32; 4] = [192, 96, 48, 0];

/// How a queue pair waits for its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RetryPolicy {
    /// How long an answer may take: 4.096 µs × 2 to this power. 14 is 67 ms; 0 would wait for ever.
    pub timeout: u8,
    /// How often a packet is sent again: 0 to 7. Soft-RoCE given 7 never gives up on a dead wire.
    pub retry_count: u8,
    /// How often a receiver that has no entry is tried again: 0 to 6. The grants rule out that it has none, so this
    /// only covers an entry that is being posted.
    pub receiver_retry_count: u8,
    /// How long to wait before that: a code of `ibv_modify_qp(3)`; 12 is 0.64 ms.
    pub receiver_timer: u8,
}

/// 67 ms and six repeats: a dead peer is known in half a second to four, by the device's own rounding.
impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            timeout: 14,
            retry_count: 6,
            receiver_retry_count: 6,
            receiver_timer: 12,
        }
    }
}

/// One end of a queue pair, as the other end is told. From a peer it is a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpEndpoint {
    /// The queue pair's number, 24 bits.
    pub number: u32,
    /// The number of the first packet that it sends, 24 bits, random.
    pub first_packet: u32,
    /// Its address within an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// Its global address.
    pub gid: [u8; 16],
    /// The code of its path MTU.
    pub mtu: u8,
    /// Receive entries that it grants.
    pub window: u16,
    /// The longest body of a frame that it takes.
    pub body_max: u32,
}

/// One request to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkRequest {
    /// Comes back in its completion.
    pub id: u64,
    /// What it does.
    pub what: WorkKind,
    /// Where the bytes are; nothing of them is read if `len` is 0.
    pub address: u64,
    /// How many.
    pub len: u32,
    /// The key of their registration.
    pub lkey: u32,
    /// Tell of its completion also if it succeeds.
    pub is_signalled: bool,
    /// Take the bytes at once, so that they are free when the post returns.
    pub is_inline: bool,
}

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkKind {
    /// Sends a message.
    Send,
    /// Writes to the peer's memory, unnoticed.
    Write {
        /// Where.
        remote: u64,
        /// The key of its registration there.
        rkey: u32,
    },
    /// Writes, and tells the peer.
    WriteWithImmediate {
        /// Where.
        remote: u64,
        /// The key of its registration there.
        rkey: u32,
        /// What it is told.
        immediate: u32,
    },
}

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    qp: NonNull<sys::ibv_qp>,
    number: u32,
    inline_max: u32,
    /// Requests that the next doorbell posts.
    staged: Chain<sys::ibv_send_wr>,
    /// What the device's events say of it; also known to the library, by its address.
    signal: Arc<Signal>,
    is_destroyed: bool,
    domain: Arc<Domain>,
}

impl QueuePair {
    /// A queue pair whose completions come in `completions` and whose messages go into entries of `receive`: in the
    /// state INIT, in which it may be told of its peer.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] beyond what the device can do; [`VerbsError::Call`].
    pub fn new(
        domain: &Arc<Domain>,
        completions: &CompletionQueue,
        receive: &SharedReceive,
        sends: u32,
        inline_max: u32,
    ) -> Result<Self, VerbsError> {
        let device = domain.device();
        let limit = device.limits().sends_max;
        if sends > limit {
            return Err(VerbsError::Limit {
                device: device.name().clone(),
                what: "entries of a queue pair's send queue",
                limit: limit.into(),
            });
        }
        let signal = Arc::new(Signal::default());
        let mut wanted = sys::ibv_qp_init_attr {
            qp_context: Arc::as_ptr(&signal).cast_mut().cast(),
            send_cq: completions.as_ptr(),
            recv_cq: completions.as_ptr(),
            srq: receive.as_ptr(),
            cap: sys::ibv_qp_cap {
                max_send_wr: sends,
                max_recv_wr: 0,
                max_send_sge: 1,
                max_recv_sge: 0,
                max_inline_data: inline_max,
            },
            qp_type: sys::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        let mut create = |inline| {
            wanted.cap.max_inline_data = inline;
            // SAFETY: `ibv_create_qp(3)`: domain, both queues and the attributes are live, and the last are written in
            // the call. The context is only ever read as the `Signal` that it is, which `self` keeps until it is
            // destroyed.
            let qp = unsafe { (domain.table().create_qp)(domain.pd().as_ptr(), &raw mut wanted) };
            NonNull::new(qp).ok_or_else(|| device.failed("ibv_create_qp", last_errno()))
        };
        let less = INLINE_LESS.into_iter().filter(|&less| less < inline_max);
        // Not only for one error number: a provider may set none.
        let qp = create(inline_max)
            .or_else(|error| less.map(&mut create).find_map(Result::ok).ok_or(error))?;
        // SAFETY: made just now; its number is never written after.
        let number = unsafe { (*qp.as_ptr()).qp_num };
        let mut made = Self {
            qp,
            number,
            // The device says what it really gives, which is at least what was asked for.
            inline_max: wanted.cap.max_inline_data,
            staged: Chain::new(),
            signal,
            is_destroyed: false,
            domain: Arc::clone(domain),
        };
        made.initialise()?;
        Ok(made)
    }

    /// Its number on this device.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Bytes that can be posted inline.
    #[must_use]
    pub const fn inline_max(&self) -> u32 {
        self.inline_max
    }

    /// True once the device said that no receive entry will be taken by it any more.
    pub(super) fn has_used_last_entry(&self) -> bool {
        self.signal.last_entry.load(Ordering::Relaxed) != 0
    }

    /// True once the device put it into its error state by itself.
    pub(super) fn is_broken(&self) -> bool {
        self.signal.is_broken.load(Ordering::Relaxed) != 0
    }

    /// Connects it to `peer`: from here on both directions work. `first_packet` is what the peer was told.
    ///
    /// # Errors
    /// [`VerbsError::Endpoint`] for a claim that cannot be; [`VerbsError::Setting`]; [`VerbsError::Call`]. The queue
    /// pair is of no use then.
    pub fn connect(
        &mut self,
        peer: &QpEndpoint,
        first_packet: u32,
        patience: RetryPolicy,
    ) -> Result<(), VerbsError> {
        self.check(peer)?;
        check(
            (1..=31).contains(&patience.timeout),
            "timeout",
            patience.timeout.into(),
            "1 to 31",
        )?;
        check(
            patience.retry_count <= 7,
            "retry_count",
            patience.retry_count.into(),
            "0 to 7",
        )?;
        let receiver = patience.receiver_retry_count;
        check(
            receiver <= 6,
            "receiver_retry_count",
            receiver.into(),
            "0 to 6",
        )?;
        let timer = patience.receiver_timer;
        check(
            (1..=31).contains(&timer),
            "receiver_timer",
            timer.into(),
            "1 to 31",
        )?;
        self.ready_to_receive(peer, patience)?;
        self.ready_to_send(first_packet, patience)
    }

    /// Requests that wait for the doorbell.
    #[inline]
    #[must_use]
    pub const fn staged(&self) -> usize {
        self.staged.len()
    }

    /// True if no request can be staged before those that wait are posted.
    #[inline]
    pub(super) const fn must_post(&self) -> bool {
        self.staged() == CHAIN_MAX
    }

    /// Forgets the requests that wait for the doorbell.
    pub(super) const fn unstage(&mut self) {
        self.staged.clear();
    }

    /// Puts a request behind those that wait for the doorbell.
    ///
    /// # Panics
    /// With 32 waiting already.
    ///
    /// # Safety
    /// What it names is memory of a live registration of the same domain that is not written to until the request
    /// completes or the queue pair is destroyed; if it is inline, until [`QueuePair::post`] or
    /// `unstage` returns.
    #[inline]
    pub unsafe fn stage(&mut self, request: &WorkRequest) {
        let (entry, piece) = self.staged.add();
        *piece = sys::ibv_sge {
            addr: request.address,
            length: request.len,
            lkey: request.lkey,
        };
        request.write(entry);
    }

    /// Posts the requests that wait, with one doorbell.
    ///
    /// # Errors
    /// How many were posted, and the error number: the queue pair is to be given up.
    #[inline]
    pub fn post(&mut self) -> Result<(), (usize, i32)> {
        let qp = self.qp.as_ptr();
        // SAFETY: `ibv_post_send(3)`: the queue pair is live, and the chain ends with a null and lives in `self`; the
        // library copies it in the call. For the memory those answer who staged it.
        self.staged
            .post(|first, bad| unsafe { sys::ibv_post_send(qp, first, bad) })
    }

    /// Puts it into the state ERR: nothing more is sent or received by it, and all that was posted comes back flushed.
    ///
    /// # Errors
    /// [`VerbsError::Call`]; only its destruction is left then.
    pub fn fail(&mut self) -> Result<(), VerbsError> {
        // ibv_modify_qp(3): any state to ERR needs the state alone.
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_ERR,
            ..Default::default()
        };
        self.modify(&mut attr, sys::IBV_QP_STATE, "ibv_modify_qp(ERR)")
    }

    /// Destroys it: after that the device touches no memory for it any more, which nothing else proves.
    ///
    /// # Errors
    /// [`VerbsError::Call`]: it is still there, and so is what it may touch.
    pub fn destroy(&mut self) -> Result<(), VerbsError> {
        if self.is_destroyed {
            return Ok(());
        }
        // SAFETY: `ibv_destroy_qp(3)`: made in `new`, and destroyed once: `is_destroyed` says so after, and nothing is
        // posted to it then, as its link is over. It returns when every event about it was acknowledged, so `signal` is
        // not reached through it afterwards.
        let errno = unsafe { (self.domain.table().destroy_qp)(self.qp.as_ptr()) };
        if errno != 0 {
            return Err(self.domain.device().failed("ibv_destroy_qp", errno));
        }
        self.is_destroyed = true;
        Ok(())
    }

    /// The failure of a post.
    pub(super) fn failed_post(&self, errno: i32) -> VerbsError {
        self.domain.device().failed("ibv_post_send", errno)
    }

    /// RESET to INIT. `ibv_modify_qp(3)` asks an RC queue pair for: PKEY_INDEX, PORT, ACCESS_FLAGS.
    fn initialise(&mut self) -> Result<(), VerbsError> {
        let path = *self.domain.path();
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            pkey_index: path.pkey_index,
            port_num: path.port,
            qp_access_flags: sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE,
            ..Default::default()
        };
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_PKEY_INDEX
            | sys::IBV_QP_PORT
            | sys::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, mask, "ibv_modify_qp(INIT)")
    }

    /// INIT to RTR. `ibv_modify_qp(3)` asks an RC queue pair for: AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC,
    /// MIN_RNR_TIMER.
    fn ready_to_receive(
        &mut self,
        peer: &QpEndpoint,
        patience: RetryPolicy,
    ) -> Result<(), VerbsError> {
        let path = *self.domain.path();
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: u32::from(path.mtu.min(peer.mtu)),
            dest_qp_num: peer.number,
            rq_psn: peer.first_packet,
            max_dest_rd_atomic: READS.min(self.domain.device().limits().reads_in_max),
            min_rnr_timer: patience.receiver_timer,
            ah_attr: sys::ibv_ah_attr {
                grh: sys::ibv_global_route {
                    dgid: sys::ibv_gid { raw: peer.gid },
                    flow_label: 0,
                    sgid_index: path.gid_index,
                    // As far as packets can go: routers of a data centre take a few off.
                    hop_limit: 255,
                    traffic_class: path.traffic_class,
                },
                dlid: peer.lid,
                sl: path.service_level,
                src_path_bits: 0,
                static_rate: 0,
                is_global: u8::from(path.is_ethernet || path.gid[..8] != peer.gid[..8]),
                port_num: path.port,
            },
            ..Default::default()
        };
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask, "ibv_modify_qp(RTR)")
    }

    /// RTR to RTS. `ibv_modify_qp(3)` asks an RC queue pair for: SQ_PSN, MAX_QP_RD_ATOMIC, RETRY_CNT, RNR_RETRY,
    /// TIMEOUT.
    fn ready_to_send(
        &mut self,
        first_packet: u32,
        patience: RetryPolicy,
    ) -> Result<(), VerbsError> {
        let mut attr = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            sq_psn: first_packet,
            max_rd_atomic: READS.min(self.domain.device().limits().reads_out_max),
            retry_cnt: patience.retry_count,
            rnr_retry: patience.receiver_retry_count,
            timeout: patience.timeout,
            ..Default::default()
        };
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_TIMEOUT;
        self.modify(&mut attr, mask, "ibv_modify_qp(RTS)")
    }

    fn modify(
        &mut self,
        attr: &mut sys::ibv_qp_attr,
        mask: i32,
        call: &'static str,
    ) -> Result<(), VerbsError> {
        // SAFETY: `ibv_modify_qp(3)`: the queue pair is live, and the attributes are read in the call.
        let errno =
            unsafe { (self.domain.table().modify_qp)(self.qp.as_ptr(), &raw mut *attr, mask) };
        match errno {
            0 => Ok(()),
            // Older providers answer -1 and leave the number in its usual place.
            -1 => Err(self.domain.device().failed(call, last_errno())),
            errno => Err(self.domain.device().failed(call, errno)),
        }
    }

    /// Refuses what cannot be a queue pair's end, before the device is asked.
    fn check(&self, peer: &QpEndpoint) -> Result<(), VerbsError> {
        let path = self.domain.path();
        let rules = [
            (
                peer.number < 1 << 24,
                "queue pair number",
                u64::from(peer.number),
                "24 bits",
            ),
            (
                peer.first_packet < 1 << 24,
                "first packet number",
                peer.first_packet.into(),
                "24 bits",
            ),
            (
                (1..=5).contains(&peer.mtu),
                "MTU code",
                peer.mtu.into(),
                "1 to 5",
            ),
            (
                path.is_ethernet || peer.lid != 0,
                "LID",
                peer.lid.into(),
                "not 0 on InfiniBand",
            ),
            (
                !path.is_ethernet || peer.gid != [0; 16],
                "GID",
                0,
                "not all zeros on Ethernet",
            ),
        ];
        for (holds, field, value, rule) in rules {
            if !holds && !mutant!("verbs_claims_unchecked") {
                return Err(VerbsError::Endpoint { field, value, rule });
            }
        }
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if self.destroy().is_err() {
            // The library may still look at it by way of the queue pair.
            std::mem::forget(Arc::clone(&self.signal));
        }
    }
}

// SAFETY: not automatic because of the pointer: `qp` may be used by any thread.
unsafe impl Send for QueuePair {}

impl WorkRequest {
    /// Writes it where the library reads it. Of where a send goes nothing is read.
    #[inline]
    const fn write(&self, to: &mut sys::ibv_send_wr) {
        to.opcode = match self.what {
            WorkKind::Send => sys::IBV_WR_SEND,
            WorkKind::Write { .. } => sys::IBV_WR_RDMA_WRITE,
            WorkKind::WriteWithImmediate { .. } => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
        };
        if let WorkKind::Write { remote, rkey }
        | WorkKind::WriteWithImmediate { remote, rkey, .. } = self.what
        {
            to.rdma.remote_addr = remote;
            to.rdma.rkey = rkey;
        }
        if let WorkKind::WriteWithImmediate { immediate, .. } = self.what {
            to.imm_data = immediate.to_be();
        }
        to.wr_id = self.id;
        to.num_sge = (self.len != 0) as i32;
        to.send_flags = (self.is_signalled as u32 * sys::IBV_SEND_SIGNALED)
            | (self.is_inline as u32 * sys::IBV_SEND_INLINE);
    }
}

impl ChainRequest for sys::ibv_send_wr {
    fn empty(piece: *mut sys::ibv_sge) -> Self {
        Self {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: piece,
            num_sge: 0,
            opcode: sys::IBV_WR_SEND,
            send_flags: 0,
            imm_data: 0,
            rdma: sys::ibv_send_wr_rdma::default(),
            rest: [0; 7],
        }
    }

    #[inline]
    fn next(&mut self) -> &mut *mut Self {
        &mut self.next
    }
}
