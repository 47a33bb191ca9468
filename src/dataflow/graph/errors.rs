//! Errors: refusals that name the node.
//!
//! Texts that the original's users match are kept as they are.

use rendez::ground::Status;

/// A refusal of `node`, in the original's layout: what is wrong, then the node in double braces.
pub(super) fn at_node(reason: &'static str, node: &str, op: &str, what: &str) -> Status {
    Status::of(reason, format!("{what}; {{{{node {node}}}}} = {op}"))
}

/// What a refusal repeats of a text that came from outside.
pub(super) fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(200)]
}
