//! Decoding: what asks for too much, and what is no message.

use super::*;
use crate::graph::attr::IntoAttr;

fn reason(bytes: &[u8]) -> &'static str {
    decode(bytes).expect_err("refused").reason()
}

/// A field of bytes.
fn field(number: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut len = body.len();
    while len >= 0x80 {
        bytes.push(len as u8 | 0x80);
        len >>= 7;
    }
    bytes.push(len as u8);
    bytes.extend(body);
    bytes
}

#[test]
fn two_bytes_that_ask_for_hundreds_are_counted() {
    // Empty nodes, and empty tensors in a list: each two bytes long.
    let nodes = field(1, &[]).repeat(5 << 20);
    assert_eq!(reason(&nodes), "GRAPH_LIMIT");
    let tensors = field(8, &[]).repeat(20 << 20);
    let attr = field(5, &[field(1, b"a"), field(2, &field(1, &tensors))].concat());
    assert_eq!(reason(&field(1, &attr)), "GRAPH_LIMIT");
    let few = field(1, &[]).repeat(100);
    assert_eq!(decode(&few).expect("a few empty nodes").node.len(), 100);
}

#[test]
fn fixed_numbers_and_truths_take_no_more_than_their_bytes() {
    let taken = |of: What, number: u8, body: &[u8]| {
        let mut room = Room {
            encoded: 0,
            bytes: GRAPH_MEMORY_MAX,
            nodes: 0,
        };
        let fits = count(&field(number, body), of, 1, &mut room);
        assert!(fits.is_ok(), "{number}");
        GRAPH_MEMORY_MAX - room.bytes
    };
    let body = [1; 8000];
    for number in [5, 6, 9, 11, 12] {
        assert_eq!(taken(What::Tensor, number, &body), 8008, "tensor: {number}");
    }
    for number in [4, 5] {
        assert_eq!(taken(What::List, number, &body), 8008, "list: {number}");
    }
    // A byte may be a whole number there.
    for number in [7, 10, 13] {
        assert_eq!(taken(What::Tensor, number, &body), 64_008, "{number}");
    }
}

#[test]
fn depth_is_bounded() {
    // A function's attribute that is a function whose attribute is …
    let mut attr = vec![];
    for _ in 0..10_000 {
        attr = field(10, &field(2, &field(2, &attr)));
        if attr.len() > 100_000 {
            break;
        }
    }
    let entry = field(5, &field(2, &attr));
    assert_eq!(reason(&field(1, &entry)), "GRAPH_MALFORMED");
}

#[test]
fn what_is_cut_short_is_no_message() {
    let node = NodeDef {
        name: "x".to_owned(),
        attr: [("a".to_owned(), vec![1i64, 2, 3].into_attr())].into(),
        ..NodeDef::default()
    };
    let def = GraphDef {
        node: vec![node],
        ..GraphDef::default()
    };
    let bytes = def.encode_to_vec();
    assert_eq!(decode(&bytes).expect("whole"), def);
    for len in 1..bytes.len() {
        assert_eq!(reason(&bytes[..len]), "GRAPH_MALFORMED", "{len}");
    }
    assert_eq!(reason(&[0x0b]), "GRAPH_MALFORMED", "a group");
    assert_eq!(
        reason(&[0xff; 11]),
        "GRAPH_MALFORMED",
        "a number without end"
    );
}

#[test]
fn fields_that_are_not_known_are_skipped() {
    let mut bytes = field(9, b"debug information");
    bytes.extend([
        7 << 3,
        0xff,
        0x01,
        8 << 3 | 1,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        6 << 3 | 5,
        1,
        2,
        3,
        4,
    ]);
    assert_eq!(decode(&bytes).expect("unknown fields"), GraphDef::default());
}

#[test]
fn a_function_is_read_as_far_as_its_name() {
    // A name, a description behind it, a body, and the signature again: messages that come twice are one.
    let signature = [field(1, b"f"), field(6, b"what it does")].concat();
    let named = field(1, &signature);
    let body = field(3, b"\xff is no node, and is not read");
    let library = field(1, &[named.clone(), body, named].concat());
    let def = decode(&field(2, &library)).expect("a graph with a function");
    let signature = Some(OpDef {
        name: "f".to_owned(),
    });
    let function = vec![FunctionDef { signature }];
    assert_eq!(def.library, Some(FunctionDefLibrary { function }));
    assert_eq!(reason(&field(2, &field(1, &[0xff; 9]))), "GRAPH_MALFORMED");
    let not_utf8 = field(1, &field(1, &field(1, &[0xff])));
    assert_eq!(reason(&field(2, &not_utf8)), "GRAPH_MALFORMED");
    let cut = field(1, &[1 << 3 | 2, 200]);
    assert_eq!(reason(&field(2, &cut)), "GRAPH_MALFORMED");
}

#[test]
fn halves_that_are_fine_apart_are_too_large_together() {
    let half = Room {
        encoded: ROOM.encoded / 2,
        bytes: ROOM.bytes / 2,
        nodes: ROOM.nodes / 2,
    };
    let none = Room {
        encoded: 0,
        bytes: 0,
        nodes: 0,
    };
    assert_eq!(half.beside(half).expect("all that there is"), none);
    assert_eq!(half.beside(ROOM).expect("nothing more"), half);
    for (larger, what) in [
        (
            Room {
                encoded: half.encoded - 1,
                ..half
            },
            "GRAPH_BYTES_MAX",
        ),
        (
            Room {
                bytes: half.bytes - 1,
                ..half
            },
            "GRAPH_MEMORY_MAX",
        ),
        (
            Room {
                nodes: half.nodes - 1,
                ..half
            },
            "GRAPH_NODES_MAX",
        ),
    ] {
        let status = half.beside(larger).expect_err(what);
        assert_eq!(status.reason(), "GRAPH_LIMIT");
        assert!(status.message().contains(what), "{status}");
    }
}

#[test]
fn a_graph_that_is_made_already_is_counted_as_its_bytes_are() {
    let func = NameAttrList {
        name: "f".to_owned(),
        attr: [("deep".to_owned(), vec![1i64, 2].into_attr())].into(),
    };
    let value = rendez_proto::tensorflow::attr_value::Value::Func(Box::new(func));
    let node = |name: &str| NodeDef {
        name: name.to_owned(),
        attr: [
            ("a".to_owned(), vec![1i64, 2, 300].into_attr()),
            (
                "f".to_owned(),
                AttrValue {
                    value: Some(value.clone()),
                },
            ),
        ]
        .into(),
        ..NodeDef::default()
    };
    let signature = Some(OpDef {
        name: "f".to_owned(),
    });
    let def = GraphDef {
        node: vec![node("x"), node("longer")],
        library: Some(FunctionDefLibrary {
            function: vec![FunctionDef { signature }],
        }),
        versions: Some(VersionDef::default()),
        ..GraphDef::default()
    };
    let of_bytes = Counted::decode(&def.encode_to_vec()).expect("counted").left;
    assert_eq!(Counted::new(def).expect("counted").left, of_bytes);
}
