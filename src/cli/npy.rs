//! Arrays in files (`.npy`, NumPy's format, versions 1 to 3): read into tensors, and written from them.
//!
//! Knows files and tensors, nothing of graphs.
//!
//! ```text
//! | \x93NUMPY | major, minor | header's length: u16 or u32 LE | header | data |
//!     header: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//! ```
//!
//! A file is an allegation: its header is read by a parser of just this dictionary, and the data must be exactly as
//! long as type and shape say. Refused with a reason: big-endian numbers, pickled objects, records.
//! Fixed-width strings (`S`, `U`) become tensors of strings; NumPy cannot tell their trailing zeros from padding.

use std::io::Write;
use std::path::Path;

use super::error::CliError;
use rendez::files::Output;
use rendez::ground::{DType, Shape, TensorMeta};
use rendez::memory::Tensor;

#[cfg(test)]
mod tests;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The longest header that is read. NumPy itself trusts none over 10 000 bytes.
const HEADER_BYTES_MAX: usize = 1 << 16;

/// Reads the array in the file at `path`.
///
/// # Errors
/// `FILE_UNREADABLE`; `NPY_MALFORMED` if it is no such file or one of a kind that is not read, and which.
pub fn read(path: &Path) -> Result<Tensor, CliError> {
    let name = path.display();
    let unreadable = |what: &dyn std::fmt::Display| CliError::unreadable(path, what);
    // A named pipe would block us until it has a writer.
    let found = std::fs::metadata(path).map_err(|error| unreadable(&error))?;
    if !found.is_file() {
        return Err(unreadable(&"it is no regular file; name a .npy file"));
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(&error))?;
    parse(bytes).map_err(|what| {
        let message = format!("'{name}' gives no tensor: {what}; write it with numpy.save");
        CliError::failure("NPY_MALFORMED", message)
    })
}

/// Writes `tensor` into the output that was opened at `path`: whole, or not at all.
///
/// # Errors
/// `FILE_UNWRITABLE`, also for a type that the format has not, or strings that end in a zero.
pub fn write(path: &Path, mut output: Output, tensor: &Tensor) -> Result<(), CliError> {
    let bytes = format(tensor).map_err(|what| CliError::unwritable(path, &what))?;
    let written = output.write_all(&bytes);
    written
        .and_then(|()| output.finish())
        .map_err(|error| CliError::unwritable(path, &error))
}

/// The tensor in the bytes of a file.
///
/// # Errors
/// What is wrong with them.
pub fn parse(mut bytes: Vec<u8>) -> Result<Tensor, String> {
    let body = bytes
        .strip_prefix(MAGIC)
        .ok_or("it does not begin as an .npy file does")?;
    let (version, rest) = body.split_at_checked(2).ok_or("it ends in its head")?;
    let width = match version {
        [1, _] => 2,
        [2 | 3, _] => 4,
        other => {
            return Err(format!(
                "it has version {other:?} of the format; 1 to 3 are read"
            ));
        }
    };
    let (len, rest) = rest.split_at_checked(width).ok_or("it ends in its head")?;
    let len = len
        .iter()
        .rev()
        .fold(0usize, |len, &byte| len << 8 | usize::from(byte));
    if len > HEADER_BYTES_MAX {
        return Err(format!(
            "its header claims {len} bytes, and the limit is {HEADER_BYTES_MAX}"
        ));
    }
    let (header, data) = rest.split_at_checked(len).ok_or("it ends in its header")?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not UTF-8")?;
    let header = Header::parse(header)?;
    let shape = Shape::new(&header.dims).map_err(|error| error.to_string())?;
    let elements = shape.elements();
    let (kind, width) = element(&header.descr)?;
    let wanted = elements.checked_mul(width);
    if wanted != Some(data.len() as u64) {
        let data = data.len();
        return Err(format!(
            "its shape and type ask for another number of bytes than the {data} of its data"
        ));
    }
    let start = bytes.len() - data.len();
    if header.is_fortran {
        let rows = in_rows(data, &header.dims, usize::try_from(width).unwrap_or(0));
        bytes.splice(start.., rows);
    }
    match kind {
        Element::Plain(dtype) => {
            let meta = TensorMeta::new(dtype, shape).map_err(|error| error.to_string())?;
            bytes.drain(..start);
            // So the data begins where the allocator put the whole: there it is aligned for its elements.
            Tensor::from_bytes(meta, bytes.into()).map_err(|error| error.to_string())
        }
        Element::Bytes | Element::Wide => {
            let width = usize::try_from(width).unwrap_or(usize::MAX);
            let items = strings(
                &bytes[start..],
                width,
                elements,
                matches!(kind, Element::Wide),
            )?;
            Tensor::from_strings(&items, shape).map_err(|error| error.to_string())
        }
    }
}

/// The elements of an array in Fortran order, whose first index changes fastest, row by row; each has so many bytes.
fn in_rows(data: &[u8], dims: &[u64], width: usize) -> Vec<u8> {
    // Each dimension's size, and how far apart its elements lie; the last first.
    let mut axes = Vec::with_capacity(dims.len());
    let mut stride = width;
    for &dim in dims {
        axes.insert(0, (dim, stride));
        stride = stride.saturating_mul(dim as usize);
    }
    let mut index = vec![0; axes.len()];
    let mut rows = Vec::with_capacity(data.len());
    let mut at = 0;
    while rows.len() < data.len() {
        rows.extend_from_slice(&data[at..at + width]);
        for (index, &(dim, stride)) in index.iter_mut().zip(&axes) {
            *index += 1;
            at += stride;
            if *index < dim {
                break;
            }
            at -= stride * dim as usize;
            *index = 0;
        }
    }
    rows
}

/// How a file's elements are carried.
#[derive(Clone, Copy)]
enum Element {
    Plain(DType),
    /// Strings of bytes, padded with zeros.
    Bytes,
    /// Strings of characters of four bytes, padded with zeros.
    Wide,
}

const TYPES: &[(&str, DType)] = &[
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("b1", DType::Bool),
    ("c8", DType::C64),
    ("c16", DType::C128),
];

/// What a type's text says, and how many bytes an element has.
fn element(descr: &str) -> Result<(Element, u64), String> {
    let shown: String = descr.chars().take(40).collect();
    let other =
        || format!("elements of type '{shown}' are not read: save booleans, numbers or strings");
    let mut chars = descr.chars();
    let order = chars.next().ok_or_else(other)?;
    let name = chars.as_str();
    let is_single = matches!(name, "i1" | "u1" | "b1") || name.starts_with('S');
    match order {
        '<' => {}
        '|' | '=' if is_single => {}
        '>' if is_single => {}
        '>' => {
            return Err(format!(
                "its elements '{shown}' are big-endian: save them with .astype('<{name}')"
            ));
        }
        _ => return Err(other()),
    }
    if let Some((_, dtype)) = TYPES.iter().find(|row| row.0 == name) {
        let size = dtype.size().ok_or_else(other)?;
        return Ok((Element::Plain(*dtype), size as u64));
    }
    let kind = match name.get(..1) {
        Some("S") => (Element::Bytes, 1),
        Some("U") => (Element::Wide, 4),
        _ => return Err(other()),
    };
    let count = name.get(1..).and_then(|count| count.parse::<u32>().ok());
    let count = count.ok_or_else(other)?;
    Ok((kind.0, u64::from(count) * kind.1))
}

fn strings(
    data: &[u8],
    width: usize,
    elements: u64,
    is_wide: bool,
) -> Result<Vec<Vec<u8>>, String> {
    // Strings without a byte: there are as many as the shape says, and nothing bounds that but this.
    if width == 0 {
        const EMPTY_MAX: u64 = 1 << 20;
        if elements > EMPTY_MAX {
            return Err(format!(
                "it claims {elements} strings without a byte, and the limit is {EMPTY_MAX}"
            ));
        }
        return Ok((0..elements).map(|_| vec![]).collect());
    }
    let item = |item: &[u8]| {
        if !is_wide {
            let len = item
                .iter()
                .rposition(|&byte| byte != 0)
                .map_or(0, |last| last + 1);
            return Ok(item[..len].to_vec());
        }
        let (units, _) = item.as_chunks::<4>();
        let numbers: Vec<u32> = units.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let len = numbers
            .iter()
            .rposition(|&number| number != 0)
            .map_or(0, |last| last + 1);
        let text: Option<String> = numbers[..len]
            .iter()
            .map(|&number| char::from_u32(number))
            .collect();
        text.map(String::into_bytes)
            .ok_or_else(|| "a string of it is not Unicode".to_owned())
    };
    data.chunks_exact(width).map(item).collect()
}

/// What a header says.
struct Header {
    descr: String,
    is_fortran: bool,
    dims: Vec<u64>,
}

impl Header {
    /// Reads the dictionary: three keys in any order, each once.
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("its header is not the dictionary of an array: {what}");
        let mut rest = take(text, "{").ok_or_else(|| wrong("no '{'"))?;
        let (mut descr, mut order, mut dims) = (None, None, None);
        while take(rest, "}").is_none() {
            let (key, after) = quoted(rest).ok_or_else(|| wrong("no key in quotes"))?;
            let after = take(after, ":").ok_or_else(|| wrong("no ':' behind a key"))?;
            let is_again = match key {
                "descr" if after.trim_start().starts_with('[') => {
                    return Err("its elements are records: save one array for each field".into());
                }
                "descr" => {
                    let (value, after) =
                        quoted(after).ok_or_else(|| wrong("no text for 'descr'"))?;
                    rest = after;
                    descr.replace(value.to_owned()).is_some()
                }
                "fortran_order" => {
                    let value = take(after, "True").map(|after| (true, after));
                    let value = value.or_else(|| take(after, "False").map(|after| (false, after)));
                    let (value, after) =
                        value.ok_or_else(|| wrong("'fortran_order' is no truth value"))?;
                    rest = after;
                    order.replace(value).is_some()
                }
                "shape" => {
                    let (value, after) =
                        tuple(after).ok_or_else(|| wrong("'shape' is no tuple of sizes"))?;
                    rest = after;
                    dims.replace(value).is_some()
                }
                _ => return Err(wrong("it has a key that arrays have not")),
            };
            if is_again {
                return Err(wrong("a key comes twice"));
            }
            match take(rest, ",") {
                Some(after) => rest = after,
                None if take(rest, "}").is_some() => {}
                None => return Err(wrong("no ',' between keys")),
            }
        }
        let ends = take(rest, "}").is_some_and(|after| after.trim().is_empty());
        match (descr, order, dims) {
            (Some(descr), Some(is_fortran), Some(dims)) if ends => Ok(Self {
                descr,
                is_fortran,
                dims,
            }),
            _ if !ends => Err(wrong("something follows it")),
            _ => Err(wrong("'descr', 'fortran_order' or 'shape' is missing")),
        }
    }
}

/// What follows `word`, blanks before it skipped.
fn take<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    text.trim_start().strip_prefix(word)
}

fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// `()`, `(3,)`, `(3, 4)`: sizes and what follows.
fn tuple(text: &str) -> Option<(Vec<u64>, &str)> {
    let (inside, after) = take(text, "(")?.split_once(')')?;
    let inside = inside.trim();
    let inside = inside.strip_suffix(',').unwrap_or(inside);
    if inside.is_empty() {
        return Some((vec![], after));
    }
    let size = |size: &str| {
        let size = size.trim();
        // Python 2 wrote long numbers with an L.
        let digits = size.strip_suffix('L').unwrap_or(size);
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| is_plain)
    };
    let sizes: Option<Vec<u64>> = inside.split(',').map(size).collect();
    Some((sizes?, after))
}

/// The bytes of a file with `tensor`.
///
/// # Errors
/// Why there is none.
pub fn format(tensor: &Tensor) -> Result<Vec<u8>, String> {
    let dtype = tensor.dtype();
    let mut padded = None;
    let descr = match TYPES.iter().find(|row| row.1 == dtype) {
        Some((name, _)) => {
            let order = if dtype.size() == Some(1) { '|' } else { '<' };
            format!("{order}{name}")
        }
        None if dtype == DType::String => {
            let strings = tensor.strings().map_err(|error| error.to_string())?;
            let width = strings.iter().map(<[u8]>::len).max().unwrap_or(0);
            let mut bytes = Vec::new();
            for item in strings.iter() {
                if item.last() == Some(&0) {
                    return Err(
                        "a string ends in a zero, which the format cannot tell from padding".into(),
                    );
                }
                bytes.extend_from_slice(item);
                bytes.resize(bytes.len() + width - item.len(), 0);
            }
            padded = Some(bytes);
            format!("|S{width}")
        }
        None => {
            return Err(format!(
                "the format has no type {dtype}: cast it to another first"
            ));
        }
    };
    let shape = tensor.shape();
    let dims: Vec<String> = shape.dims().map(|dim| format!("{dim},")).collect();
    let mut header = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}), }}",
        dims.join(" ")
    );
    // The data begins at a multiple of 64 bytes; the header ends with a newline.
    let head = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(head.next_multiple_of(64) - head));
    header.push('\n');
    let len = u16::try_from(header.len()).map_err(|_| "its shape has too many dimensions")?;
    let mut bytes = [MAGIC, &[1, 0], &len.to_le_bytes(), header.as_bytes()].concat();
    match &padded {
        Some(padded) => bytes.extend_from_slice(padded),
        None => bytes.extend_from_slice(tensor.host().map_err(|error| error.to_string())?),
    }
    Ok(bytes)
}
