//! Writes a graph's message as text: from the bytes of its binary form, by the table of fields.
//!
//! Knows nothing of what the fields mean.

use std::fmt::Write as _;

use prost::Message as _;
use prost::encoding::decode_varint;

use super::super::schema::{FieldKind, GRAPH, Message};
use super::super::{COUNTED, EIGHT_BYTES, FOUR_BYTES, REFERENCE, VARINT};
use crate::graph::types::Type;
use rendez_proto::tensorflow::GraphDef;

/// The graph in the text format of protobuf messages, as TensorFlow writes it. Of functions only the names.
pub(super) fn write(def: &GraphDef) -> String {
    let mut out = String::new();
    // Bytes that were just encoded are whole: there is nothing to refuse.
    let _ = fields(&def.encode_to_vec(), &GRAPH, 0, &mut out);
    out
}

fn fields(mut bytes: &[u8], of: &Message, depth: usize, out: &mut String) -> Option<()> {
    while !bytes.is_empty() {
        let tag = decode_varint(&mut bytes).ok()?;
        let size = (tag & 7) as u32;
        let (mut value, rest) = match size {
            VARINT => {
                let mut rest = bytes;
                decode_varint(&mut rest).ok()?;
                bytes.split_at_checked(bytes.len() - rest.len())?
            }
            EIGHT_BYTES => bytes.split_at_checked(8)?,
            FOUR_BYTES => bytes.split_at_checked(4)?,
            COUNTED => {
                let len = decode_varint(&mut bytes).ok()?;
                bytes.split_at_checked(usize::try_from(len).ok()?)?
            }
            _ => return None,
        };
        bytes = rest;
        let mut known = of.fields.iter();
        let Some(field) = known.find(|field| u64::from(field.number) == tag >> 3) else {
            continue;
        };
        match field.kind {
            FieldKind::Skipped => {}
            FieldKind::Message(inner) => {
                line(depth, out, format_args!("{} {{", field.name));
                fields(value, inner, depth + 1, out)?;
                line(depth, out, format_args!("}}"));
            }
            FieldKind::Bytes(_) => line(
                depth,
                out,
                format_args!("{}: {}", field.name, Quoted(value)),
            ),
            // Numbers: one, or many behind each other.
            kind => {
                while !value.is_empty() {
                    let number = number(kind, &mut value)?;
                    line(depth, out, format_args!("{}: {number}", field.name));
                }
            }
        }
    }
    Some(())
}

fn line(depth: usize, out: &mut String, text: std::fmt::Arguments<'_>) {
    // A string takes whatever is written.
    let _ = writeln!(out, "{:width$}{text}", "", width = 2 * depth);
}

fn number(kind: FieldKind, bytes: &mut &[u8]) -> Option<String> {
    Some(match kind {
        FieldKind::Float => {
            let (first, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            float(
                f64::from(f32::from_le_bytes(*first)),
                f32::from_le_bytes(*first),
            )
        }
        FieldKind::Double => {
            let (first, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            let value = f64::from_le_bytes(*first);
            float(value, value)
        }
        kind => {
            let value = decode_varint(bytes).ok()?;
            match kind {
                FieldKind::Bool => (value != 0).to_string(),
                FieldKind::Int(_) => (value as i64).to_string(),
                FieldKind::Type => {
                    let known = i32::try_from(value as i64).ok().and_then(Type::from_wire);
                    known.map_or_else(
                        || (value as i64).to_string(),
                        |known| {
                            let base = known.base().as_str_name();
                            if known.is_ref() {
                                format!("{base}_{REFERENCE}")
                            } else {
                                base.to_owned()
                            }
                        },
                    )
                }
                _ => value.to_string(),
            }
        }
    })
}

/// The shortest decimals that read back the same.
fn float(value: f64, shown: impl std::fmt::Debug) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    format!("{shown:?}")
}

/// Bytes in quotes, as the original writes them: what is not printable ASCII in octal.
struct Quoted<'a>(&'a [u8]);

impl std::fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        for &byte in self.0 {
            match byte {
                b'\n' => f.write_str("\\n")?,
                b'\r' => f.write_str("\\r")?,
                b'\t' => f.write_str("\\t")?,
                b'"' | b'\'' | b'\\' => write!(f, "\\{}", char::from(byte))?,
                b' '..=b'~' => f.write_char(char::from(byte))?,
                other => write!(f, "\\{other:03o}")?,
            }
        }
        f.write_char('"')
    }
}
