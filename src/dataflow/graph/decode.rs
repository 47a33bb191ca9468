//! Decoding: a graph's message from untrusted bytes.
//!
//! Two bytes of a message can ask for hundreds: an empty node, an empty tensor in a list. So what the message will take
//! is counted over its bytes first, by the shape of the messages and without making any, and refused if it is too much.
//! Only then it is made. Text becomes such bytes first, of which no more are made than a graph may have. The reader of
//! the format itself bounds how deep messages lie in each other.

use std::mem::size_of;

use prost::Message;

use super::text;
use rendez::ground::limits::{GRAPH_BYTES_MAX, GRAPH_MEMORY_MAX, GRAPH_NODES_MAX};
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::attr_value::ListValue;
use rendez_proto::tensorflow::tensor_shape_proto::Dim;
use rendez_proto::tensorflow::{
    AttrValue, FunctionDef, FunctionDefLibrary, GraphDef, NameAttrList, NodeDef, OpDef,
    TensorProto, TensorShapeProto, VersionDef,
};

#[cfg(test)]
mod tests;

/// Messages lie in each other no deeper than the format's reader allows.
const DEPTH_MAX: usize = 100;
/// What a map takes for its first entry: a leaf with room for eleven.
const LEAF: usize = 11 * (size_of::<String>() + size_of::<AttrValue>());

/// Reads a graph's message, in the binary format or as text (`.pbtxt`): what has no control characters is text.
///
/// # Errors
/// `GRAPH_LIMIT` if it is, or would become, larger than a graph may be; `GRAPH_MALFORMED` if it is none, for text with
/// line, column and field.
pub fn decode(bytes: &[u8]) -> Result<GraphDef, Status> {
    Counted::decode(bytes).map(|counted| counted.def)
}

/// A graph's message, and what it leaves of what a graph may take.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) def: GraphDef,
    pub(crate) left: Room,
}

impl Counted {
    /// Reads a graph's message, as [`decode`] does.
    ///
    /// # Errors
    /// As [`decode`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Status> {
        check_size(bytes.len())?;
        if text::is_text(bytes) {
            let binary = text::to_binary(bytes, GRAPH_BYTES_MAX)?;
            return Self::decode_binary(&binary);
        }
        Self::decode_binary(bytes)
    }

    fn decode_binary(bytes: &[u8]) -> Result<Self, Status> {
        let mut left = Room::of_size(bytes.len())?;
        count(bytes, What::Graph, DEPTH_MAX, &mut left)?;
        let def = GraphDef::decode(bytes).map_err(|error| {
            let message = format!("the bytes are not a GraphDef: {error}");
            Status::of(catalogue::GRAPH_MALFORMED, message)
        })?;
        Ok(Self { def, left })
    }

    /// Counts a graph that this process has made.
    ///
    /// # Errors
    /// `GRAPH_LIMIT` if it is larger than a graph may be.
    pub(crate) fn new(def: GraphDef) -> Result<Self, Status> {
        let mut left = Room::of_size(def.encoded_len())?;
        left.take_graph(&def)?;
        Ok(Self { def, left })
    }
}

fn check_size(bytes: usize) -> Result<(), Status> {
    if bytes <= GRAPH_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the graph has {bytes} bytes, over {GRAPH_BYTES_MAX} (GRAPH_BYTES_MAX)");
    Err(Status::of(catalogue::GRAPH_LIMIT, message))
}

/// What bytes are.
#[derive(Clone, Copy)]
enum What {
    Graph,
    Node,
    Entry,
    Attr,
    List,
    Func,
    Shape,
    Dim,
    Tensor,
    Versions,
    Library,
    Function,
    Signature,
    /// Bytes that are kept as they are, whatever they are; each of them takes so many.
    Plain(usize),
}

/// What field `number` of a message is, and what one of them takes beside its own bytes.
fn field(of: What, number: u64) -> (What, usize) {
    let text = (What::Plain(1), size_of::<String>());
    match (of, number) {
        (What::Graph, 1) => (What::Node, size_of::<NodeDef>() + LEAF),
        (What::Graph, 2) => (What::Library, size_of::<FunctionDefLibrary>()),
        (What::Graph, 4) => (What::Versions, size_of::<VersionDef>()),
        (What::Library, 1) => (What::Function, size_of::<FunctionDef>()),
        (What::Function, 1) => (What::Signature, size_of::<OpDef>()),
        (What::Node, 5) | (What::Func, 2) => (What::Entry, size_of::<(String, AttrValue)>()),
        (What::Entry, 2) => (What::Attr, 0),
        (What::Attr, 1) => (What::List, size_of::<ListValue>()),
        (What::Attr | What::List, 7) => (What::Shape, size_of::<TensorShapeProto>()),
        (What::Attr | What::List, 8) => (What::Tensor, size_of::<TensorProto>()),
        (What::Attr, 10) | (What::List, 9) => (What::Func, size_of::<NameAttrList>() + LEAF),
        (What::Shape, 2) => (What::Dim, size_of::<Dim>()),
        (What::Tensor, 2) => (What::Shape, 0),
        // Numbers of a fixed size, and truths: no byte becomes more than one.
        (What::List, 4 | 5) | (What::Tensor, 5 | 6 | 9 | 11 | 12) => (What::Plain(1), 8),
        // Packed numbers: one byte may become eight.
        (What::List, 3 | 6) | (What::Versions, 3) => (What::Plain(8), 8),
        (What::Tensor, 7 | 10 | 13 | 16 | 17) => (What::Plain(8), 8),
        _ => text,
    }
}

/// What a graph may take.
const ROOM: Room = Room {
    encoded: GRAPH_BYTES_MAX,
    bytes: GRAPH_MEMORY_MAX,
    nodes: GRAPH_NODES_MAX,
};

/// What a graph may still take: of bytes as a message, of memory, and of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    encoded: usize,
    bytes: usize,
    nodes: usize,
}

/// Why bytes are not decoded.
enum Refused {
    Malformed,
    Bytes,
    Nodes,
}

/// Takes from `room` what the bytes will need.
fn count(mut bytes: &[u8], of: What, depth: usize, room: &mut Room) -> Result<(), Refused> {
    let depth = depth.checked_sub(1).ok_or(Refused::Malformed)?;
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let inner = room.take_field(of, tag >> 3)?;
        let len = match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).map_err(|_| Refused::Malformed)?,
            5 => 4,
            // Groups, which no message of a graph has.
            _ => return Err(Refused::Malformed),
        };
        let (body, rest) = bytes.split_at_checked(len).ok_or(Refused::Malformed)?;
        bytes = rest;
        match inner {
            What::Plain(times) => room.take(len.saturating_mul(times))?,
            inner if tag & 7 == 2 => count(body, inner, depth, room)?,
            // A number where a message should be: the format's reader says so.
            _ => {}
        }
    }
    Ok(())
}

impl Room {
    /// What a message of so many bytes leaves, before it is looked at.
    fn of_size(encoded: usize) -> Result<Self, Status> {
        check_size(encoded)?;
        Ok(Self {
            encoded: ROOM.encoded - encoded,
            ..ROOM
        })
    }

    /// What two graphs leave together, each of which leaves so much.
    ///
    /// # Errors
    /// `GRAPH_LIMIT` if both are too large together.
    pub(crate) fn beside(self, other: Self) -> Result<Self, Status> {
        let taken = ROOM.encoded - other.encoded;
        check_size((ROOM.encoded - self.encoded).saturating_add(taken))?;
        let bytes = self.bytes.checked_sub(ROOM.bytes - other.bytes);
        let nodes = self.nodes.checked_sub(ROOM.nodes - other.nodes);
        Ok(Self {
            encoded: self.encoded - taken,
            bytes: bytes.ok_or(Refused::Bytes)?,
            nodes: nodes.ok_or(Refused::Nodes)?,
        })
    }

    /// Takes what a graph needs that is made already. Only one node of it at a time becomes bytes.
    fn take_graph(&mut self, def: &GraphDef) -> Result<(), Refused> {
        for node in &def.node {
            let of = self.take_field(What::Graph, 1)?;
            count(&node.encode_to_vec(), of, DEPTH_MAX - 1, self)?;
        }
        let rest = GraphDef {
            node: vec![],
            library: def.library.clone(),
            versions: def.versions.clone(),
            ..*def
        };
        count(&rest.encode_to_vec(), What::Graph, DEPTH_MAX, self)
    }

    /// Takes what a field needs beside its bytes. Gives what it is.
    fn take_field(&mut self, of: What, number: u64) -> Result<What, Refused> {
        let (inner, cost) = field(of, number);
        self.take(cost)?;
        if matches!(inner, What::Node) {
            self.nodes = self.nodes.checked_sub(1).ok_or(Refused::Nodes)?;
        }
        Ok(inner)
    }

    fn take(&mut self, bytes: usize) -> Result<(), Refused> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Refused::Bytes)?;
        Ok(())
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Malformed => {
                Self::of(catalogue::GRAPH_MALFORMED, "the bytes are not a GraphDef")
            }
            Refused::Bytes => {
                let message = format!(
                    "the graph would take more than {GRAPH_MEMORY_MAX} bytes of memory (GRAPH_MEMORY_MAX)"
                );
                Self::of(catalogue::GRAPH_LIMIT, message)
            }
            Refused::Nodes => {
                let message =
                    format!("the graph has more than {GRAPH_NODES_MAX} nodes (GRAPH_NODES_MAX)");
                Self::of(catalogue::GRAPH_LIMIT, message)
            }
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Refused> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Refused::Malformed)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Refused::Malformed)
}
