//! Golden bytes of the conversation: every kind of envelope, behind its length.

use futures_lite::future::block_on;
use futures_lite::io::Cursor;
use rendez_proto::descriptor::Kind;
use rendez_proto::envelope::Body;
use rendez_proto::hello_reply::Outcome;
use rendez_proto::*;

use super::super::*;
use crate::control::PROTOCOL_VERSION;

#[path = "../../../../../tests/golden/mod.rs"]
mod golden;

/// No two fields alike, and none that is left out for being zero.
fn hello() -> Hello {
    Hello {
        protocol_version: 9,
        task: "/job:a/replica:0/task:0".into(),
        dialled: "/job:b/replica:0/task:1".into(),
        incarnation: 0x0102_0304_0506_0708,
        shards: 2,
        poll_policy: PollPolicy::Park.into(),
        limits: Some(Limits {
            frame_window: 256,
            line_window: 16_384,
            body_max: 4096,
            segment_bytes: 1 << 33,
            segments_max: 64,
        }),
        features: vec!["one".into(), "another".into()],
        user_id: 1000,
        machine: "boot".into(),
        path: PathWish::Tcp.into(),
        abilities: 3,
        no_shm: "no memory".into(),
        lacks: vec![Lack {
            transport: 3,
            why: "no device".into(),
        }],
    }
}

fn arena() -> ArenaDescriptor {
    ArenaDescriptor {
        arena: 1,
        segment: 2,
        len: 1 << 21,
        kind: 3,
        device: vec![4; 16],
    }
}

fn descriptors() -> Descriptors {
    let kinds = [
        Kind::Arena(arena()),
        Kind::Link(LinkDescriptor {
            len: 4096,
            numbers: vec![5, 600],
        }),
        Kind::Doorbell(DoorbellDescriptor { shard: 1 }),
    ];
    let entries = kinds.map(|kind| Descriptor { kind: Some(kind) });
    Descriptors {
        batch: 7,
        entries: entries.into(),
        last: true,
    }
}

fn end() -> RdmaEnd {
    RdmaEnd {
        queue_pair: 0x0a_0b0c,
        first_packet: 0x0d_0e0f,
        lid: 5,
        gid: vec![6; 16],
        mtu: 3,
        window: 128,
        body_max: 8192,
    }
}

fn replies() -> [(&'static str, Body); 3] {
    let refusal = Refusal {
        code: 7,
        reason: "SECRET_WRONG".into(),
        message: "another secret".into(),
        retry: true,
    };
    let reply = |outcome| {
        Body::HelloReply(HelloReply {
            outcome: Some(outcome),
        })
    };
    [
        ("accepted", reply(Outcome::Accepted(hello()))),
        ("refused", reply(Outcome::Refused(refusal))),
        ("elsewhere", reply(Outcome::Elsewhere("unix:@a".into()))),
    ]
}

fn calls() -> [(&'static str, Body); 4] {
    let call = Call {
        version: 1,
        method: 300,
        request: 0x1112_1314_1516_1718,
        deadline_ms: 1500,
        trace: 0x2122_2324_2526_2728,
        payload: b"asked".into(),
    };
    let reply = CallReply {
        code: 3,
        reason: "CALL_BUSY".into(),
        message: "not now".into(),
        payload: b"given".into(),
    };
    let done = CallDone {
        requests: vec![1, 2],
    };
    [
        ("call", Body::Call(call)),
        ("call_reply", Body::CallReply(reply)),
        ("call_cancel", Body::CallCancel(CallCancel { request: 9 })),
        ("call_done", Body::CallDone(done)),
    ]
}

fn ways() -> [(&'static str, Body); 8] {
    let no = || "no device".to_owned();
    let open = DataOpen {
        channels: 4,
        no_better: no(),
    };
    let opened = DataOpenReply {
        ticket: vec![8; 16],
        expires_ms: 1 << 41,
    };
    let offer = Offer {
        ends: vec![end().encode_to_vec()],
        device: "mlx5_0".into(),
        transport: 4,
    };
    let offered = OfferReply {
        ends: vec![b"an end".into()],
        device: "mlx5_1".into(),
        no: no(),
    };
    [
        ("data_open", Body::DataOpen(open)),
        ("data_open_reply", Body::DataOpenReply(opened)),
        ("data_ready", Body::DataReady(DataReady {})),
        ("offer", Body::Offer(offer)),
        ("offer_reply", Body::OfferReply(offered)),
        ("prove", Body::Prove(Prove {})),
        ("prove_reply", Body::ProveReply(ProveReply { no: no() })),
        ("offer_done", Body::OfferDone(OfferDone { no: no() })),
    ]
}

fn others() -> [(&'static str, Body); 8] {
    let added = SegmentAdded {
        batch: 8,
        arena: Some(arena()),
    };
    let bye = Bye {
        reason: "it ends".into(),
    };
    let error = Error {
        code: 13,
        reason: "PEER_PROTOCOL".into(),
        message: "not understood".into(),
        retry: true,
    };
    [
        ("hello", Body::Hello(hello())),
        ("descriptors", Body::Descriptors(descriptors())),
        ("ack", Body::Ack(Ack {})),
        ("segment_added", Body::SegmentAdded(added)),
        ("ping", Body::Ping(Ping {})),
        ("pong", Body::Pong(Pong {})),
        ("bye", Body::Bye(bye)),
        ("error", Body::Error(error)),
    ]
}

#[test]
fn every_envelope_has_the_bytes_it_always_had() {
    let bodies = others().into_iter().chain(replies()).chain(ways());
    let messages: Vec<_> = bodies
        .chain(calls())
        .map(|(name, body)| {
            let envelope = Envelope {
                id: 300,
                reply: true,
                body: Some(body),
            };
            let bytes = encode(&envelope).expect("short enough");
            let read = block_on(read(&mut Cursor::new(&bytes), None)).expect("as written");
            assert_eq!(read, envelope, "{name}");
            (name, bytes)
        })
        .collect();
    // The field of the body follows the number and the flag: its own number is in the upper bits of one byte or two.
    let fields: Vec<_> = messages
        .iter()
        .map(|(_, bytes)| match bytes[9] {
            low @ 0x80.. => (u32::from(low & 0x7f) | u32::from(bytes[10]) << 7) >> 3,
            low => u32::from(low) >> 3,
        })
        .collect();
    for field in 1..64 {
        let mut empty = Vec::new();
        prost::encoding::encode_key(
            field,
            prost::encoding::WireType::LengthDelimited,
            &mut empty,
        );
        empty.push(0);
        let is_body = Envelope::decode(&empty[..]).is_ok_and(|envelope| envelope.body.is_some());
        assert_eq!(
            fields.contains(&field),
            is_body,
            "field {field} has no golden bytes"
        );
    }
    golden::hold(&format!("control_v{PROTOCOL_VERSION}"), &messages);
}
