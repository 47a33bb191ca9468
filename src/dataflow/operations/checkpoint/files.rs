//! Files of tensors in the safetensors format: a header of names, types, shapes and places, and the bytes.
//!
//! A file appears whole (see [`rendez::files`]). What is read is a claim: no place
//! outside of the file is believed, and a tensor is read straight into the memory that was made for it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::kernel::files::Place;
use rendez::files::Output;
use rendez::ground::limits::CHECKPOINT_HEADER_BYTES_MAX;
use rendez::ground::{DType, Shape, Status, TensorMeta, catalogue};
use rendez::memory::Tensor;

/// Bytes before the header: its length.
const LENGTH: u64 = 8;
/// The key of the header that is no tensor.
const METADATA: &str = "__metadata__";

/// The file of a prefix.
pub(super) fn path(prefix: &str) -> PathBuf {
    PathBuf::from(format!("{prefix}.safetensors"))
}

/// What the header says of a tensor.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    /// First byte and last but one, behind the header.
    data_offsets: [u64; 2],
}

/// The names of types.
const DTYPES: &[(DType, &str)] = &[
    (DType::Bool, "BOOL"),
    (DType::U8, "U8"),
    (DType::I8, "I8"),
    (DType::U16, "U16"),
    (DType::I16, "I16"),
    (DType::U32, "U32"),
    (DType::I32, "I32"),
    (DType::U64, "U64"),
    (DType::I64, "I64"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::F32, "F32"),
    (DType::F64, "F64"),
    (DType::C64, "C64"),
];

/// Writes `tensors` to the file at `place`, which then holds them and nothing else.
///
/// # Errors
/// `KERNEL_INPUT` for a type that the format has not or a name that comes twice; `FILE_UNWRITABLE`.
pub(super) fn write(place: &Place, tensors: &[(&str, &Tensor)]) -> Result<(), Status> {
    let refuse = |what: String| Status::of(catalogue::KERNEL_INPUT, what);
    let mut header = BTreeMap::new();
    let mut end = 0u64;
    for (name, tensor) in tensors {
        let known = DTYPES.iter().find(|row| row.0 == tensor.dtype());
        let Some((_, dtype)) = known else {
            return Err(refuse(format!(
                "'{name}' is of type {}, which a checkpoint cannot hold",
                tensor.dtype()
            )));
        };
        let begin = end;
        end += tensor.size() as u64;
        let entry = Entry {
            dtype: (*dtype).to_owned(),
            shape: tensor.shape().dims().collect(),
            data_offsets: [begin, end],
        };
        if *name == METADATA || header.insert(*name, entry).is_some() {
            return Err(refuse(format!(
                "'{name}' cannot be saved, or is to be saved twice"
            )));
        }
    }
    let unwritable = |error: io::Error| {
        let message = format!("{} could not be written: {error}", place.path().display());
        Status::of(catalogue::FILE_UNWRITABLE, message)
    };
    let mut header = serde_json::to_vec(&header).map_err(|error| unwritable(error.into()))?;
    // Tensors begin where their elements may be read in place.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > CHECKPOINT_HEADER_BYTES_MAX {
        return Err(refuse(format!(
            "the names of the tensors take more than {CHECKPOINT_HEADER_BYTES_MAX} bytes (CHECKPOINT_HEADER_BYTES_MAX)"
        )));
    }
    let within = place.make_folder().map_err(unwritable)?;
    let output = within.output().map_err(unwritable)?;
    fill(output, &header, tensors).map_err(unwritable)
}

fn fill(output: Output, header: &[u8], tensors: &[(&str, &Tensor)]) -> io::Result<()> {
    let mut file = BufWriter::new(output);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header)?;
    for (_, tensor) in tensors {
        file.write_all(tensor.host().map_err(io::Error::other)?)?;
    }
    let output = file.into_inner();
    output.map_err(io::IntoInnerError::into_error)?.finish()
}

/// A file that was opened, and what its header says.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, (TensorMeta, u64)>,
}

impl Checkpoint {
    /// Opens the file at `place`.
    ///
    /// # Errors
    /// `FILE_UNREADABLE`; `SAFETENSORS_MALFORMED` for a header that is none, or speaks of what is not in the file.
    pub(super) fn open(place: &Place) -> Result<Self, Status> {
        let path = place.path();
        let unreadable = |error: io::Error| {
            let message = format!(
                "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {}: {error}",
                path.display()
            );
            Status::of(catalogue::FILE_UNREADABLE, message)
        };
        let malformed = |what: &str| {
            let message = format!("{} is no checkpoint: {what}", path.display());
            Status::of(catalogue::SAFETENSORS_MALFORMED, message)
        };
        let file = place.open().map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; LENGTH as usize];
        if size < LENGTH {
            return Err(malformed("it has no header"));
        }
        file.read_exact_at(&mut length, 0).map_err(unreadable)?;
        let length = u64::from_le_bytes(length);
        if length > CHECKPOINT_HEADER_BYTES_MAX as u64 || length > size - LENGTH {
            return Err(malformed(&format!(
                "a header of {length} bytes is claimed in {size}"
            )));
        }
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, LENGTH)
            .map_err(unreadable)?;
        let entries: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(&header).map_err(|error| malformed(&error.to_string()))?;
        let start = LENGTH + length;
        let mut tensors = BTreeMap::new();
        for (name, entry) in entries {
            if name == METADATA {
                continue;
            }
            let entry: Entry = serde_json::from_value(entry)
                .map_err(|error| malformed(&format!("'{}': {error}", shown(&name))))?;
            let meta = placed(&entry, size - start).ok_or_else(|| {
                malformed(&format!(
                    "'{}' has no type, shape or place that it may have",
                    shown(&name)
                ))
            })?;
            tensors.insert(name, (meta, start + entry.data_offsets[0]));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            tensors,
        })
    }

    /// Its name, to tell.
    pub(super) fn path(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// What a tensor is.
    pub(super) fn meta(&self, name: &str) -> Option<TensorMeta> {
        self.tensors.get(name).map(|(meta, _)| *meta)
    }

    /// All tensors, by name.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&str, TensorMeta)> {
        self.tensors
            .iter()
            .map(|(name, (meta, _))| (name.as_str(), *meta))
    }

    /// Reads a tensor's bytes into `out`, which are as many as it has.
    ///
    /// # Errors
    /// `SAFETENSORS_MALFORMED` if the file has changed since it was opened.
    pub(super) fn read(&self, name: &str, out: &mut [u8]) -> Result<(), Status> {
        let place = self.tensors.get(name).map_or(u64::MAX, |(_, place)| *place);
        self.file.read_exact_at(out, place).map_err(|error| {
            let message = format!(
                "'{}' of {} could not be read: {error}",
                shown(name),
                self.path()
            );
            Status::of(catalogue::SAFETENSORS_MALFORMED, message)
        })
    }
}

/// The type and shape of an entry whose bytes are as many as they take, and within `size`.
fn placed(entry: &Entry, size: u64) -> Option<TensorMeta> {
    let dtype = DTYPES.iter().find(|row| row.1 == entry.dtype)?.0;
    let meta = TensorMeta::new(dtype, Shape::new(&entry.shape).ok()?).ok()?;
    let [begin, end] = entry.data_offsets;
    (end <= size && end.checked_sub(begin) == meta.size()).then_some(meta)
}

/// What a refusal repeats of a name.
fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(200)]
}
