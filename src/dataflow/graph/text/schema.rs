//! Schema: names, numbers and kinds of the fields of a graph's messages, as the text format needs them.
//!
//! Knows no text and no bytes.

use FieldKind::{Bool, Bytes, Double, Float, Int, Message as Of, Skipped, Type, Uint};

/// A message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) fields: &'static [Field],
    /// True if at most one of the fields can be set.
    pub(super) is_choice: bool,
}

/// A field of a message.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) number: u32,
    pub(super) kind: FieldKind,
    pub(super) is_repeated: bool,
}

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldKind {
    Message(&'static Message),
    /// Text or bytes: the format writes both in quotes. True if it must be UTF-8.
    Bytes(bool),
    /// A signed number of so many bits.
    Int(u32),
    /// An unsigned number of so many bits.
    Uint(u32),
    Bool,
    Float,
    Double,
    /// A `DataType`.
    Type,
    /// What TensorFlow writes and is not read here.
    Skipped,
}

impl Message {
    pub(super) fn named(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

const fn one(name: &'static str, number: u32, kind: FieldKind) -> Field {
    Field {
        name,
        number,
        kind,
        is_repeated: false,
    }
}

const fn many(name: &'static str, number: u32, kind: FieldKind) -> Field {
    Field {
        name,
        number,
        kind,
        is_repeated: true,
    }
}

const fn message(fields: &'static [Field]) -> Message {
    Message {
        fields,
        is_choice: false,
    }
}

const TEXT: FieldKind = Bytes(true);
const BYTES: FieldKind = Bytes(false);

/// A graph.
pub(super) static GRAPH: Message = message(&[
    many("node", 1, Of(&NODE)),
    one("library", 2, Of(&LIBRARY)),
    one("version", 3, Int(32)),
    one("versions", 4, Of(&VERSIONS)),
    one("debug_info", 5, Skipped),
]);

static NODE: Message = message(&[
    one("name", 1, TEXT),
    one("op", 2, TEXT),
    many("input", 3, TEXT),
    one("device", 4, TEXT),
    many("attr", 5, Of(&ENTRY)),
    one("experimental_debug_info", 6, Skipped),
    one("experimental_type", 7, Skipped),
]);

static ENTRY: Message = message(&[one("key", 1, TEXT), one("value", 2, Of(&ATTR))]);

static ATTR: Message = Message {
    fields: &[
        one("list", 1, Of(&LIST)),
        one("s", 2, BYTES),
        one("i", 3, Int(64)),
        one("f", 4, Float),
        one("b", 5, Bool),
        one("type", 6, Type),
        one("shape", 7, Of(&SHAPE)),
        one("tensor", 8, Of(&TENSOR)),
        one("placeholder", 9, TEXT),
        one("func", 10, Of(&FUNC)),
    ],
    is_choice: true,
};

static LIST: Message = message(&[
    many("s", 2, BYTES),
    many("i", 3, Int(64)),
    many("f", 4, Float),
    many("b", 5, Bool),
    many("type", 6, Type),
    many("shape", 7, Of(&SHAPE)),
    many("tensor", 8, Of(&TENSOR)),
    many("func", 9, Of(&FUNC)),
]);

static FUNC: Message = message(&[one("name", 1, TEXT), many("attr", 2, Of(&ENTRY))]);

static SHAPE: Message = message(&[many("dim", 2, Of(&DIM)), one("unknown_rank", 3, Bool)]);

static DIM: Message = message(&[one("size", 1, Int(64)), one("name", 2, TEXT)]);

static TENSOR: Message = message(&[
    one("dtype", 1, Type),
    one("tensor_shape", 2, Of(&SHAPE)),
    one("version_number", 3, Int(32)),
    one("tensor_content", 4, BYTES),
    many("float_val", 5, Float),
    many("double_val", 6, Double),
    many("int_val", 7, Int(32)),
    many("string_val", 8, BYTES),
    many("scomplex_val", 9, Float),
    many("int64_val", 10, Int(64)),
    many("bool_val", 11, Bool),
    many("dcomplex_val", 12, Double),
    many("half_val", 13, Int(32)),
    many("resource_handle_val", 14, Skipped),
    many("variant_val", 15, Skipped),
    many("uint32_val", 16, Uint(32)),
    many("uint64_val", 17, Uint(64)),
]);

static VERSIONS: Message = message(&[
    one("producer", 1, Int(32)),
    one("min_consumer", 2, Int(32)),
    many("bad_consumers", 3, Int(32)),
]);

/// Of functions only the names are read, so that they can be refused by name.
static LIBRARY: Message = message(&[
    many("function", 1, Of(&FUNCTION)),
    many("gradient", 2, Skipped),
    many("registered_gradients", 3, Skipped),
]);

static FUNCTION: Message = message(&[
    one("signature", 1, Of(&SIGNATURE)),
    many("node_def", 3, Skipped),
    many("ret", 4, Skipped),
    many("attr", 5, Skipped),
    many("control_ret", 6, Skipped),
    many("arg_attr", 7, Skipped),
    many("resource_arg_unique_id", 8, Skipped),
]);

static SIGNATURE: Message = message(&[
    one("name", 1, TEXT),
    many("input_arg", 2, Skipped),
    many("output_arg", 3, Skipped),
    many("attr", 4, Skipped),
    one("summary", 5, Skipped),
    one("description", 6, Skipped),
    one("deprecation", 8, Skipped),
    one("is_aggregate", 16, Skipped),
    one("is_stateful", 17, Skipped),
    one("is_commutative", 18, Skipped),
    one("allows_uninitialized_input", 19, Skipped),
    many("control_output", 20, Skipped),
    one("is_distributed_communication", 21, Skipped),
]);
