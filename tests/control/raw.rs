//! A peer by hand: it can say what no control plane would.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use prost::Message;
use rendez::control::{Address, PROTOCOL_VERSION};
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::support::PATIENCE;

pub(crate) const PREAMBLE: &[u8] = b"rendez\0\x01";

/// A connection, and our end of its lane.
#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) lane: OwnedFd,
}

impl Raw {
    /// Connects with a proper preamble.
    pub(crate) fn connect(address: &Address) -> Self {
        let stream = connect(address);
        let (ours, theirs) = lane_pair();
        send(&stream, PREAMBLE, &[theirs.as_fd()]);
        Self { stream, lane: ours }
    }

    pub(crate) fn say(&mut self, id: u64, reply: bool, body: Body) {
        let bytes = Envelope {
            id,
            reply,
            body: Some(body),
        }
        .encode_to_vec();
        let len = u32::try_from(bytes.len()).expect("short");
        // The other side may have hung up already: what it said before tells why.
        let _ = self
            .stream
            .write_all(&[&len.to_le_bytes()[..], &bytes].concat());
    }

    /// The next message, or `None` at the end.
    pub(crate) fn hear(&mut self) -> Option<Envelope> {
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(Envelope::decode(bytes.as_slice()).expect("a message"))
    }

    /// Says a hello and hears the answer.
    pub(crate) fn greet(&mut self, hello: proto::Hello) -> proto::hello_reply::Outcome {
        self.say(1, false, Body::Hello(hello));
        match self.hear().and_then(|envelope| envelope.body) {
            Some(Body::HelloReply(reply)) => reply.outcome.expect("an outcome"),
            other => panic!("expected an answer to the hello, got {other:?}"),
        }
    }

    /// Puts descriptors into the lane under a batch's number.
    pub(crate) fn pass(&self, batch: u32, descriptors: &[OwnedFd]) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        send(&self.lane, &batch.to_le_bytes(), &descriptors);
    }

    /// True if the other side has closed the connection without another word.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.hear().is_none()
    }
}

/// A hello that is accepted.
pub(crate) fn hello(task: &str, dialled: &str, incarnation: u64) -> proto::Hello {
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
    proto::Hello {
        protocol_version: PROTOCOL_VERSION,
        task: task.into(),
        dialled: dialled.into(),
        incarnation,
        shards: 2,
        poll_policy: proto::PollPolicy::Busy.into(),
        limits: Some(proto::Limits {
            frame_window: 1024,
            line_window: 4096,
            body_max: 1 << 14,
            segment_bytes: 64 << 20,
            segments_max: 4,
        }),
        features: vec!["x".into()],
        user_id: 0,
        machine: machine.trim().into(),
        path: proto::PathWish::Auto.into(),
        abilities: 0,
        no_shm: String::new(),
        lacks: Vec::new(),
    }
}

pub(crate) fn connect(address: &Address) -> UnixStream {
    let Address::Abstract(name) = address else {
        panic!("an abstract address")
    };
    let name = SocketAddr::from_abstract_name(name).expect("a name");
    let stream = UnixStream::connect_addr(&name).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

pub(crate) fn lane_pair() -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .expect("a pair")
}

pub(crate) fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[rustix::fd::BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .expect("sent");
}
