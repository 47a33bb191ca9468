//! A file of weights (safetensors): which tensors it holds, where their bytes lie, and how to read them.
//!
//! Knows nothing of engines or arenas: bytes are read straight into whatever memory the caller brings, so that a large
//! file is never in memory twice. The file is not mapped, because one that shrinks under a mapping is a fault
//! (`SIGBUS`), and one that shrinks under a read is only an error.
//!
//! ```text
//! | header length n: u64 LE | n bytes of JSON: name → dtype, shape, data_offsets | data, without holes or overlaps |
//! ```
//!
//! A file is an allegation. The header's length is checked against the file's before anything is allocated, the
//! `safetensors` crate checks that the offsets are in order, without a hole, and agree with dtype and shape; what is
//! left to check is that they end where the file does.
//!
//! Data types that rendez has no name for (8-, 6- and 4-bit floats) are carried as bytes: nothing here computes with
//! them. Such an entry says so in [`Entry::note`]; 8-bit ones keep their shape, narrower ones become a row of bytes.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::tensor::{Dtype as FileDType, Metadata, TensorInfo};

use super::error::CliError;
use rendez::ground::shape::ShapeError;
use rendez::ground::{DType, Shape, TensorMeta};
use rendez_dataflow::kernel::names::NamesOnce;

/// Bytes of the header's own length.
const LENGTH_BYTES: u64 = 8;

/// The longest header that is read: the format's own bound. A tensor takes about 100 bytes of it.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// The file that `demo` hands over when it is given none. `tests/data/README.md` tells where it comes from.
const DEFAULT_FILE: &[u8] = include_bytes!("../../tests/data/licence-model.safetensors");

/// What [`DEFAULT_FILE`] is called where a path would stand.
const DEFAULT_NAME: &str = "tests/data/licence-model.safetensors (built in)";

/// Why a file gives no tensors.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file cannot be opened or read, or is no file.
    #[error("cannot read '{file}': {what}; {remedy}")]
    Unreadable {
        /// The path as it was given.
        file: String,
        /// What the system said.
        what: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The bytes are not a safetensors file.
    #[error(
        "'{file}' is not a whole safetensors file: {at}: {what}; get it again and compare its checksum"
    )]
    Malformed {
        /// The path as it was given.
        file: String,
        /// Where in the file.
        at: String,
        /// What is wrong there.
        what: String,
    },
    /// A tensor that the format allows and rendez has no room for.
    #[error(
        "tensor '{tensor}' of '{file}' has a shape that rendez cannot hold: {what}; reshape it and save the file again"
    )]
    ShapeUnsupported {
        /// The path as it was given.
        file: String,
        /// The tensor's name.
        tensor: String,
        /// Which bound it breaks.
        what: ShapeError,
    },
}

impl WeightsError {
    /// The catalogue's code.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "FILE_UNREADABLE",
            Self::Malformed { .. } => "SAFETENSORS_MALFORMED",
            Self::ShapeUnsupported { .. } => "SHAPE_UNSUPPORTED",
        }
    }
}

impl From<WeightsError> for CliError {
    fn from(error: WeightsError) -> Self {
        Self::failure(error.reason(), error.to_string())
    }
}

/// One tensor of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name, free of control characters: they are escaped, for a name ends on terminals.
    pub name: String,
    /// Data type and shape as rendez carries them.
    pub meta: TensorMeta,
    /// Where its bytes start, counted from the start of the file.
    pub offset: u64,
    /// How many bytes it has: exactly what `meta` says.
    pub len: u64,
    /// The file's own data type, where it is carried as bytes.
    pub note: Option<&'static str>,
}

/// An opened file of weights.
#[derive(Debug)]
pub struct Weights {
    name: String,
    source: Source,
    header: Vec<u8>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
enum Source {
    Memory(Cow<'static, [u8]>),
    File(File),
}

impl Weights {
    /// Opens `path` and reads its header.
    ///
    /// # Errors
    /// [`WeightsError`]: `FILE_UNREADABLE`, `SAFETENSORS_MALFORMED` or `SHAPE_UNSUPPORTED`.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let name = path.display().to_string();
        let unreadable = |error: io::Error| unreadable(&name, &error);
        // A named pipe would block the open until it has a writer: look before opening.
        let found = std::fs::metadata(path).map_err(unreadable)?;
        if !found.is_file() {
            let what = if found.is_dir() {
                "it is a directory"
            } else {
                "it is not a regular file"
            };
            return Err(WeightsError::Unreadable {
                file: name,
                what: what.into(),
                remedy: "name a .safetensors file",
            });
        }
        let file = File::open(path).map_err(unreadable)?;
        let len = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; LENGTH_BYTES as usize];
        let start = length.len().min(usize::try_from(len).unwrap_or(usize::MAX));
        file.read_exact_at(&mut length[..start], 0)
            .map_err(unreadable)?;
        let header_len = header_len(&length[..start], len).map_err(|fault| fault.of(&name))?;
        let mut header = vec![0; header_len];
        file.read_exact_at(&mut header, LENGTH_BYTES)
            .map_err(unreadable)?;
        let entries = parse_header(&header, len).map_err(|fault| fault.of(&name))?;
        Ok(Self {
            name,
            source: Source::File(file),
            header,
            entries,
        })
    }

    /// A file that lies in memory, called `name` in errors.
    ///
    /// # Errors
    /// As [`Weights::open`], without `FILE_UNREADABLE`.
    pub fn from_memory(
        name: &str,
        bytes: impl Into<Cow<'static, [u8]>>,
    ) -> Result<Self, WeightsError> {
        let bytes = bytes.into();
        let (header, entries) = parts(&bytes).map_err(|fault| fault.of(name))?;
        Ok(Self {
            name: name.to_owned(),
            header: header.to_vec(),
            source: Source::Memory(bytes),
            entries,
        })
    }

    /// The small real file that the program carries with it.
    ///
    /// # Errors
    /// None, unless the program itself is damaged.
    pub fn built_in() -> Result<Self, WeightsError> {
        Self::from_memory(DEFAULT_NAME, DEFAULT_FILE)
    }

    /// The tensors, in the order in which their bytes lie in the file.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The header as it stands in the file, with all that is said there of the whole (`__metadata__`). Before it stands
    /// its length in 8 bytes, behind it the tensors in order, and nothing else.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        LENGTH_BYTES + self.header.len() as u64 + self.total_bytes()
    }

    /// What the file is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The bytes of all tensors together.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.len).sum()
    }

    /// Fills `into` with the bytes of `entry`, which is one of this file's.
    ///
    /// # Errors
    /// `FILE_UNREADABLE` if the file has shrunk or the disk fails.
    ///
    /// # Panics
    /// If `into` is not as long as the entry: the caller made it from the entry's metadata.
    pub fn read_into(&self, entry: &Entry, into: &mut [u8]) -> Result<(), WeightsError> {
        assert_eq!(
            into.len() as u64,
            entry.len,
            "the buffer is not the tensor's"
        );
        match &self.source {
            Source::File(file) => file
                .read_exact_at(into, entry.offset)
                .map_err(|error| unreadable(&self.name, &error)),
            Source::Memory(bytes) => {
                let start = entry.offset as usize;
                into.copy_from_slice(&bytes[start..start + into.len()]);
                Ok(())
            }
        }
    }

    /// Refuses truth values of an entry that are neither zero nor one.
    pub(super) fn check_truths(&self, entry: &Entry, bytes: &[u8]) -> Result<(), CliError> {
        if entry.meta.dtype != DType::Bool {
            return Ok(());
        }
        let Some(at) = bytes.iter().position(|byte| *byte > 1) else {
            return Ok(());
        };
        let message = format!(
            "'{}' cannot be sent: byte {at} of tensor '{}' is {}, and a BOOL is 0 or 1; save it again, or as U8",
            self.name, entry.name, bytes[at]
        );
        Err(CliError::failure("SAFETENSORS_MALFORMED", message))
    }
}

/// What is wrong with some bytes, and where; the file's name is added by the code that knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Not a safetensors file.
    Malformed {
        /// Where.
        at: String,
        /// What.
        what: String,
    },
    /// A shape that is not held.
    Shape {
        /// The tensor's name.
        tensor: String,
        /// Which bound it breaks.
        what: ShapeError,
    },
}

impl Fault {
    fn malformed(at: impl Into<String>, what: impl Into<String>) -> Self {
        Self::Malformed {
            at: at.into(),
            what: what.into(),
        }
    }

    pub(super) fn of(self, file: &str) -> WeightsError {
        let file = file.to_owned();
        match self {
            Self::Malformed { at, what } => WeightsError::Malformed { file, at, what },
            Self::Shape { tensor, what } => WeightsError::ShapeUnsupported { file, tensor, what },
        }
    }
}

/// The tensors of a whole safetensors file in memory. Pure; no bytes make it panic.
///
/// # Errors
/// [`Fault`] says what is wrong and where.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>, Fault> {
    parts(bytes).map(|(_, entries)| entries)
}

/// The header of a whole file in memory, and its tensors.
fn parts(bytes: &[u8]) -> Result<(&[u8], Vec<Entry>), Fault> {
    let len = bytes.len() as u64;
    let header_len = header_len(&bytes[..bytes.len().min(LENGTH_BYTES as usize)], len)?;
    let header = &bytes[LENGTH_BYTES as usize..][..header_len];
    Ok((header, parse_header(header, len)?))
}

/// The tensors that the header of a file of `file_len` bytes promises.
///
/// # Errors
/// As [`parse`].
pub(super) fn of_header(header: &[u8], file_len: u64) -> Result<Vec<Entry>, Fault> {
    let length = header_len(&(header.len() as u64).to_le_bytes(), file_len)?;
    parse_header(&header[..length], file_len)
}

/// The header's length, from the first bytes of a file of `file_len` bytes. It fits the file when this returns.
fn header_len(start: &[u8], file_len: u64) -> Result<usize, Fault> {
    let Ok(length) = <[u8; LENGTH_BYTES as usize]>::try_from(start) else {
        let what = if start.is_empty() {
            "the file is empty".into()
        } else {
            format!("it is only {file_len} bytes")
        };
        return Err(Fault::malformed("the header's length (bytes 0 to 7)", what));
    };
    let claimed = u64::from_le_bytes(length);
    let room = file_len.saturating_sub(LENGTH_BYTES);
    if claimed > HEADER_BYTES_MAX {
        let what =
            format!("it claims {claimed} bytes of header, and the limit is {HEADER_BYTES_MAX}");
        return Err(Fault::malformed("the header's length (bytes 0 to 7)", what));
    }
    if claimed > room {
        let what = format!("it claims {claimed} bytes of header, and only {room} follow");
        return Err(Fault::malformed("the header's length (bytes 0 to 7)", what));
    }
    usize::try_from(claimed)
        .map_err(|_| Fault::malformed("the header's length", "it is past this machine's memory"))
}

fn parse_header(header: &[u8], file_len: u64) -> Result<Vec<Entry>, Fault> {
    let end_of_header = LENGTH_BYTES + header.len() as u64;
    let place = || {
        format!(
            "the header (bytes 8 to {})",
            end_of_header.saturating_sub(1)
        )
    };
    let metadata: Metadata = serde_json::from_slice(header)
        .map_err(|error| Fault::malformed(place(), printable(&error.to_string())))?;
    // The library takes the last of two entries of one name.
    serde_json::from_slice::<NamesOnce>(header)
        .map_err(|error| Fault::malformed(place(), printable(&error.to_string())))?;
    let data_len = file_len - end_of_header;
    let mut tensors: Vec<_> = metadata.tensors().into_iter().collect();
    // Those without bytes share an offset: by name they lie in one order, in every process.
    tensors.sort_by(|(name, info), (other, others)| {
        (info.data_offsets, name).cmp(&(others.data_offsets, other))
    });
    let mut claimed = 0;
    let mut entries = Vec::new();
    for (name, info) in tensors {
        let entry = entry(&name, info, end_of_header)?;
        claimed = entry.offset + entry.len - end_of_header;
        entries.push(entry);
    }
    if claimed != data_len {
        let what =
            format!("the header describes {claimed} bytes of data, and the file has {data_len}");
        return Err(Fault::malformed(
            format!("the data (from byte {end_of_header})"),
            what,
        ));
    }
    Ok(entries)
}

fn entry(name: &str, info: &TensorInfo, data_start: u64) -> Result<Entry, Fault> {
    let name = printable(name);
    let fault = |what: &str| Fault::malformed(format!("tensor '{name}'"), what);
    let (start, end) = info.data_offsets;
    let len = end
        .checked_sub(start)
        .ok_or_else(|| fault("its bytes end before they start"))? as u64;
    let offset = data_start
        .checked_add(start as u64)
        .filter(|offset| offset.checked_add(len).is_some());
    let offset = offset.ok_or_else(|| fault("its offsets overflow"))?;
    let (dtype, note) = carried_as(info.dtype);
    let shaped = |dims: &[u64]| {
        let meta = Shape::new(dims).and_then(|shape| TensorMeta::new(dtype, shape));
        meta.map_err(|what| Fault::Shape {
            tensor: name.clone(),
            what,
        })
    };
    let meta = if info.dtype.bitsize() < 8 {
        shaped(&[len])?
    } else {
        shaped(&info.shape.iter().map(|dim| *dim as u64).collect::<Vec<_>>())?
    };
    if meta.size() != Some(len) {
        return Err(fault(&format!(
            "it has {len} bytes, and {} {} needs another number",
            meta.dtype, meta.shape
        )));
    }
    Ok(Entry {
        name,
        meta,
        offset,
        len,
        note,
    })
}

/// The data types that files and rendez both have.
const SHARED: [(FileDType, DType); 14] = [
    (FileDType::BOOL, DType::Bool),
    (FileDType::U8, DType::U8),
    (FileDType::I8, DType::I8),
    (FileDType::I16, DType::I16),
    (FileDType::U16, DType::U16),
    (FileDType::F16, DType::F16),
    (FileDType::BF16, DType::BF16),
    (FileDType::I32, DType::I32),
    (FileDType::U32, DType::U32),
    (FileDType::F32, DType::F32),
    (FileDType::C64, DType::C64),
    (FileDType::F64, DType::F64),
    (FileDType::I64, DType::I64),
    (FileDType::U64, DType::U64),
];

/// How a file's data type is carried, and what to say where that is not by its own name.
fn carried_as(dtype: FileDType) -> (DType, Option<&'static str>) {
    if let Some((_, carried)) = SHARED.iter().find(|(of_file, _)| *of_file == dtype) {
        return (*carried, None);
    }
    let note = match dtype {
        FileDType::F8_E5M2 => "f8_e5m2 as bytes",
        FileDType::F8_E4M3 => "f8_e4m3 as bytes",
        FileDType::F8_E8M0 => "f8_e8m0 as bytes",
        FileDType::F6_E2M3 => "f6_e2m3 as bytes",
        FileDType::F6_E3M2 => "f6_e3m2 as bytes",
        FileDType::F4 => "f4 as bytes",
        // The crate's list may grow. Its own check has tied the length to its shape and width.
        _ => "unnamed type as bytes",
    };
    (DType::U8, Some(note))
}

/// Text of a file, safe for a terminal.
pub(super) fn printable(text: &str) -> String {
    if text.chars().any(char::is_control) {
        text.escape_debug().to_string()
    } else {
        text.to_owned()
    }
}

/// The same of a text of several lines.
pub(super) fn printable_lines(text: &str) -> String {
    let parts = text.split_inclusive(['\n', '\t']);
    let safe = |part: &str| match part.strip_suffix(['\n', '\t']) {
        Some(start) => printable(start) + &part[start.len()..],
        None => printable(part),
    };
    parts.map(safe).collect()
}

fn unreadable(file: &str, error: &io::Error) -> WeightsError {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => "check the path",
        io::ErrorKind::PermissionDenied => "check its permissions",
        io::ErrorKind::UnexpectedEof => {
            "it shrank while it was read: wait until its writer is done"
        }
        _ => "check the disk it lies on",
    };
    WeightsError::Unreadable {
        file: file.to_owned(),
        what: error.to_string(),
        remedy,
    }
}

#[cfg(test)]
mod tests;
