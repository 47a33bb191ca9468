//! Text: graphs in the text format of protobuf messages (`.pbtxt`), read.
//!
//! Knows the messages by a table of their fields. What is read becomes the bytes of the binary format, so that all that
//! is checked of those is checked of text too.

use prost::encoding::encode_varint;

use self::schema::{Field, FieldKind, GRAPH, Message};
use self::words::{TextFault, Word, Words};
use crate::graph::types::Type;
use rendez::ground::{Status, catalogue};
use rendez_proto::tensorflow::DataType;

mod schema;
#[cfg(test)]
mod tests;
mod words;

/// Messages lie in each other no deeper than the binary format's reader allows.
const DEPTH_MAX: usize = 100;

/// What the name of a reference's type ends with, behind a line.
const REFERENCE: &str = "REF";

/// The sizes of a value in the binary format.
const VARINT: u32 = 0;
const EIGHT_BYTES: u32 = 1;
const COUNTED: u32 = 2;
const FOUR_BYTES: u32 = 5;

/// True if the bytes are text: no graph in the binary format is without a byte that no text has, for a node's operation
/// is announced by such a one. Blanks alone are no text: the first byte of a graph in the binary format is one.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    let is_control = |&byte: &u8| byte < b' ' && !matches!(byte, b'\n' | b'\r' | b'\t');
    let is_blank = |byte: &u8| byte.is_ascii_whitespace();
    !bytes.iter().all(is_blank) && !bytes.iter().any(is_control)
}

/// The bytes of the binary format for a graph's text, which are made as long as there are no more than `most`.
///
/// # Errors
/// `GRAPH_LIMIT` if there would be more; `GRAPH_MALFORMED` with line, column and field.
pub(super) fn to_binary(text: &[u8], most: usize) -> Result<Vec<u8>, Status> {
    let refused = |at: usize, path: &[&str], what: &str| {
        let before = &text[..at.min(text.len())];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let start = before.iter().rposition(|&byte| byte == b'\n');
        let column = before.len() - start.map_or(0, |start| start + 1) + 1;
        let place = match path {
            [] => "the graph".to_owned(),
            path => format!("field {}", path.join(".")),
        };
        let message =
            format!("the text is not a GraphDef: line {line}, column {column}, {place}: {what}");
        Status::of(catalogue::GRAPH_MALFORMED, message)
    };
    let read = match std::str::from_utf8(text) {
        Ok(read) => read,
        Err(error) => return Err(refused(error.valid_up_to(), &[], "it is not UTF-8")),
    };
    let mut reader = Reader {
        words: Words::of(read),
        next: (0, Word::End),
        path: vec![],
        most,
        is_full: false,
    };
    let mut bytes = Vec::new();
    let done = reader
        .advance()
        .and_then(|_| reader.message(&GRAPH, None, DEPTH_MAX, &mut bytes));
    match done {
        Ok(()) => Ok(bytes),
        Err(_) if reader.is_full => {
            let message = format!("the text's graph has more than {most} bytes (GRAPH_BYTES_MAX)");
            Err(Status::of(catalogue::GRAPH_LIMIT, message))
        }
        Err(fault) => Err(refused(fault.at, &reader.path, &fault.what)),
    }
}

struct Reader<'a> {
    words: Words<'a>,
    next: (usize, Word<'a>),
    /// The fields that it is in.
    path: Vec<&'static str>,
    /// Bytes that it may write, and whether there were more to write.
    most: usize,
    is_full: bool,
}

impl<'a> Reader<'a> {
    /// Refuses what would make the binary format longer than it may be.
    fn check_len(&mut self, len: usize) -> Result<(), TextFault> {
        self.is_full = len > self.most;
        if !self.is_full {
            return Ok(());
        }
        let what = "it is too large".to_owned();
        Err(TextFault {
            at: self.next.0,
            what,
        })
    }

    /// Takes the next token.
    fn advance(&mut self) -> Result<(usize, Word<'a>), TextFault> {
        let next = self.words.next()?;
        Ok(std::mem::replace(&mut self.next, next))
    }

    /// Takes the next token if it is this mark.
    fn accept(&mut self, mark: char) -> Result<bool, TextFault> {
        let is_there = self.next.1 == Word::Mark(mark);
        if is_there {
            self.advance()?;
        }
        Ok(is_there)
    }

    fn unexpected(&self, wanted: &str) -> TextFault {
        let found = match &self.next.1 {
            Word::Name(name) => format!("'{}'", super::errors::shown(name)),
            Word::Number(number) => format!("the number {}", super::errors::shown(number)),
            Word::Quoted(_) => "a quoted text".to_owned(),
            Word::Mark(mark) => format!("'{mark}'"),
            Word::End => "the end of the text".to_owned(),
        };
        TextFault {
            at: self.next.0,
            what: format!("expected {wanted}, found {found}"),
        }
    }

    /// Reads fields until `close`, or the end where that is `None`.
    fn message(
        &mut self,
        of: &'static Message,
        close: Option<char>,
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), TextFault> {
        let mut seen = 0u32;
        loop {
            match (&self.next.1, close) {
                (Word::End, None) => return Ok(()),
                (Word::Mark(mark), Some(close)) if *mark == close => {
                    self.advance()?;
                    return Ok(());
                }
                _ => {}
            }
            let Word::Name(name) = self.next.1 else {
                let close = close.map_or_else(String::new, |close| format!(" or '{close}'"));
                return Err(self.unexpected(&format!("the name of a field{close}")));
            };
            let at = self.next.0;
            let refused = |what: String| Err(TextFault { at, what });
            let Some(field) = of.named(name) else {
                let known: Vec<_> = of.fields.iter().map(|field| field.name).collect();
                let name = super::errors::shown(name);
                return refused(format!(
                    "no field '{name}' here; there are {}",
                    known.join(", ")
                ));
            };
            let bit = 1 << field.number;
            if of.is_choice && seen != 0 {
                return refused(format!(
                    "field '{name}' where another value was given already"
                ));
            }
            if !field.is_repeated && seen & bit != 0 {
                return refused(format!("field '{name}' is given a second time"));
            }
            seen |= bit;
            self.advance()?;
            self.path.push(field.name);
            self.field(field, depth, out)?;
            self.path.pop();
            if !self.accept(',')? {
                self.accept(';')?;
            }
        }
    }

    /// Reads what follows a field's name.
    fn field(
        &mut self,
        field: &'static Field,
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), TextFault> {
        let has_colon = self.accept(':')?;
        let opens = matches!(self.next.1, Word::Mark('{' | '<'));
        if matches!(field.kind, FieldKind::Skipped) {
            return if has_colon || opens {
                self.skip(depth)
            } else {
                Err(self.unexpected("':' or '{'"))
            };
        }
        let is_message = matches!(field.kind, FieldKind::Message(_));
        let may_open = is_message && matches!(self.next.1, Word::Mark('{' | '<' | '['));
        if !(has_colon || may_open) {
            return Err(self.unexpected(if is_message { "'{'" } else { "':'" }));
        }
        if !field.is_repeated || !self.accept('[')? {
            return self.value(field, depth, out);
        }
        if self.accept(']')? {
            return Ok(());
        }
        loop {
            self.value(field, depth, out)?;
            if self.accept(']')? {
                return Ok(());
            }
            if !self.accept(',')? {
                return Err(self.unexpected("',' or ']'"));
            }
        }
    }

    /// Reads one value of a field.
    fn value(
        &mut self,
        field: &'static Field,
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), TextFault> {
        let at = self.next.0;
        let number = field.number;
        match field.kind {
            FieldKind::Message(of) => {
                let depth = self.deeper(depth)?;
                let close = self.opened()?;
                let start = out.len();
                self.message(of, Some(close), depth, out)?;
                put_count_before(number, start, out);
            }
            FieldKind::Bytes(is_text) => {
                let bytes = self.quoted()?;
                if is_text && std::str::from_utf8(&bytes).is_err() {
                    let what = "it is not UTF-8".to_owned();
                    return Err(TextFault { at, what });
                }
                self.check_len(out.len() + bytes.len())?;
                let start = out.len();
                out.extend_from_slice(&bytes);
                put_count_before(number, start, out);
            }
            FieldKind::Int(bits) => {
                let limit = 1i128 << (bits - 1);
                let value = self.integer(-limit..limit)?;
                put_varint(number, value as u64, out);
            }
            FieldKind::Uint(bits) => {
                let value = self.integer(0..1i128 << bits)?;
                put_varint(number, value as u64, out);
            }
            FieldKind::Bool => {
                let truth = match self.next.1 {
                    Word::Name("true" | "True" | "t") | Word::Number("1") => true,
                    Word::Name("false" | "False" | "f") | Word::Number("0") => false,
                    _ => return Err(self.unexpected("true or false")),
                };
                self.advance()?;
                put_varint(number, u64::from(truth), out);
            }
            FieldKind::Float => {
                let value: f32 = self.float()?;
                put_tag(number, FOUR_BYTES, out);
                out.extend_from_slice(&value.to_le_bytes());
            }
            FieldKind::Double => {
                let value: f64 = self.float()?;
                put_tag(number, EIGHT_BYTES, out);
                out.extend_from_slice(&value.to_le_bytes());
            }
            FieldKind::Type => {
                let value = match self.next.1 {
                    Word::Name(name) => {
                        let value = data_type(name);
                        let value = value.ok_or_else(|| self.unexpected("a type, as DT_FLOAT"))?;
                        self.advance()?;
                        i128::from(value)
                    }
                    _ => self.integer(-(1 << 31)..1 << 31)?,
                };
                put_varint(number, value as u64, out);
            }
            // Never asked for: readers of fields skip them.
            FieldKind::Skipped => self.skip(depth)?,
        }
        self.check_len(out.len())
    }

    fn deeper(&self, depth: usize) -> Result<usize, TextFault> {
        depth.checked_sub(1).ok_or_else(|| TextFault {
            at: self.next.0,
            what: format!("messages lie in each other deeper than {DEPTH_MAX}"),
        })
    }

    /// Takes what opens a message. Gives what closes it.
    fn opened(&mut self) -> Result<char, TextFault> {
        if self.accept('{')? {
            return Ok('}');
        }
        if self.accept('<')? {
            return Ok('>');
        }
        Err(self.unexpected("'{'"))
    }

    /// One quoted text, or several behind each other.
    fn quoted(&mut self) -> Result<Vec<u8>, TextFault> {
        if !matches!(self.next.1, Word::Quoted(_)) {
            return Err(self.unexpected("a text in quotes"));
        }
        let mut all = Vec::new();
        while let Word::Quoted(bytes) = &mut self.next.1 {
            all.append(bytes);
            self.advance()?;
        }
        Ok(all)
    }

    fn integer(&mut self, allowed: std::ops::Range<i128>) -> Result<i128, TextFault> {
        let at = self.next.0;
        let is_negative = self.accept('-')?;
        let Word::Number(digits) = self.next.1 else {
            return Err(self.unexpected("a whole number"));
        };
        let (radix, part) = match digits.as_bytes() {
            [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
            [b'0', _, ..] => (8, &digits[1..]),
            _ => (10, digits),
        };
        let value = i128::from_str_radix(part, radix).ok();
        let value = value.map(|value| if is_negative { -value } else { value });
        let Some(value) = value.filter(|value| allowed.contains(value)) else {
            let sign = if is_negative { "-" } else { "" };
            let shown = super::errors::shown(digits);
            let what = format!(
                "{sign}{shown} is not a whole number from {} to {}",
                allowed.start,
                allowed.end - 1
            );
            return Err(TextFault { at, what });
        };
        self.advance()?;
        Ok(value)
    }

    fn float<T: std::str::FromStr + std::ops::Neg<Output = T>>(&mut self) -> Result<T, TextFault> {
        let is_negative = self.accept('-')?;
        let text = match self.next.1 {
            // Not hexadecimal: that has an x, which no float has.
            Word::Number(text) => text.trim_end_matches(['f', 'F']),
            Word::Name(name)
                if ["inf", "infinity", "nan"].contains(&name.to_ascii_lowercase().as_str()) =>
            {
                name
            }
            _ => return Err(self.unexpected("a number")),
        };
        let value: T = text.parse().map_err(|_| self.unexpected("a number"))?;
        self.advance()?;
        Ok(if is_negative { -value } else { value })
    }

    /// Takes any value, also a message or a list of them.
    fn skip(&mut self, depth: usize) -> Result<(), TextFault> {
        match &self.next.1 {
            Word::Mark('{' | '<') => {
                let depth = self.deeper(depth)?;
                let close = self.opened()?;
                while !self.accept(close)? {
                    let Word::Name(_) = self.next.1 else {
                        return Err(self.unexpected(&format!("the name of a field or '{close}'")));
                    };
                    self.advance()?;
                    if !self.accept(':')? && !matches!(self.next.1, Word::Mark('{' | '<')) {
                        return Err(self.unexpected("':' or '{'"));
                    }
                    self.skip(depth)?;
                    if !self.accept(',')? {
                        self.accept(';')?;
                    }
                }
                Ok(())
            }
            Word::Mark('[') => {
                let depth = self.deeper(depth)?;
                self.advance()?;
                while !self.accept(']')? {
                    self.skip(depth)?;
                    self.accept(',')?;
                }
                Ok(())
            }
            Word::Quoted(_) => self.quoted().map(drop),
            Word::Name(_) | Word::Number(_) => self.advance().map(drop),
            Word::Mark('-') => {
                self.advance()?;
                match self.next.1 {
                    Word::Name(_) | Word::Number(_) => self.advance().map(drop),
                    _ => Err(self.unexpected("a number")),
                }
            }
            _ => Err(self.unexpected("a value")),
        }
    }
}

/// The wire number of a type's name: `DT_FLOAT`, `DT_FLOAT_REF`.
fn data_type(name: &str) -> Option<i32> {
    if let Some(base) = DataType::from_str_name(name) {
        return Some(base as i32);
    }
    let base = DataType::from_str_name(name.strip_suffix(REFERENCE)?.strip_suffix('_')?)?;
    Some(Type::reference(base).to_wire())
}

fn put_tag(number: u32, size: u32, out: &mut Vec<u8>) {
    encode_varint(u64::from(number << 3 | size), out);
}

fn put_varint(number: u32, value: u64, out: &mut Vec<u8>) {
    put_tag(number, VARINT, out);
    encode_varint(value, out);
}

/// Puts what a counted field begins with before its bytes, which are those from `start` on.
fn put_count_before(number: u32, start: usize, out: &mut Vec<u8>) {
    let len = out.len() - start;
    put_tag(number, COUNTED, out);
    encode_varint(len as u64, out);
    out[start..].rotate_left(len);
}
