//! Files of tensors in the safetensors format: a header of names, types, shapes and places, and the bytes.
//!
//! A file appears whole (see [`rendez::files`]). What is read is a claim: no place
//! outside of the file is believed, and a tensor is read straight into the memory that was made for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::kernel::files::FilePlace;
use crate::kernel::names::NamesOnce;
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

/// The types that both know.
const DTYPES: &[(DType, Dtype)] = &[
    (DType::Bool, Dtype::BOOL),
    (DType::U8, Dtype::U8),
    (DType::I8, Dtype::I8),
    (DType::U16, Dtype::U16),
    (DType::I16, Dtype::I16),
    (DType::U32, Dtype::U32),
    (DType::I32, Dtype::I32),
    (DType::U64, Dtype::U64),
    (DType::I64, Dtype::I64),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::C64, Dtype::C64),
];

/// Writes `tensors` to the file at `place`, which then holds them and nothing else.
///
/// # Errors
/// `KERNEL_INPUT` for a type that the format has not or a name that comes twice; `FILE_UNWRITABLE`.
pub(super) fn write(place: &FilePlace, tensors: &[(&str, &Tensor)]) -> Result<(), Status> {
    let header = header(tensors)?;
    let unwritable = |error: io::Error| {
        let message = format!("{} could not be written: {error}", place.path().display());
        Status::of(catalogue::FILE_UNWRITABLE, message)
    };
    let within = place.make_folder().map_err(unwritable)?;
    let output = within.output().map_err(unwritable)?;
    fill(output, &header, tensors).map_err(unwritable)
}

/// Writes a checkpoint of `tensors`, as `SaveV2` does, to what a program has opened.
///
/// # Errors
/// A type that the format has not, or a name that comes twice; what the system says.
pub fn write_checkpoint(output: Output, tensors: &[(&str, &Tensor)]) -> io::Result<()> {
    let header = header(tensors).map_err(io::Error::other)?;
    fill(output, &header, tensors)
}

/// What tensors are, and where they lie behind this.
fn header(tensors: &[(&str, &Tensor)]) -> Result<Vec<u8>, Status> {
    let refuse = |what: String| Status::of(catalogue::KERNEL_INPUT, what);
    let (mut names, mut infos) = (BTreeSet::from([METADATA]), vec![]);
    let mut end = 0;
    for (name, tensor) in tensors {
        let known = DTYPES.iter().find(|row| row.0 == tensor.dtype());
        let Some((_, dtype)) = known else {
            return Err(refuse(format!(
                "'{name}' is of type {}, which a checkpoint cannot hold",
                tensor.dtype()
            )));
        };
        if !names.insert(*name) {
            return Err(refuse(format!(
                "'{name}' cannot be saved, or is to be saved twice"
            )));
        }
        let begin = end;
        end += tensor.size();
        let info = TensorInfo {
            dtype: *dtype,
            shape: tensor.shape().dims().map(|dim| dim as usize).collect(),
            data_offsets: (begin, end),
        };
        infos.push(((*name).to_owned(), info));
    }
    let header = Metadata::new(None, infos).map_err(|error| refuse(error.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|error| refuse(error.to_string()))?;
    // Tensors begin where their elements may be read in place.
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() > CHECKPOINT_HEADER_BYTES_MAX {
        return Err(refuse(format!(
            "the names of the tensors take more than {CHECKPOINT_HEADER_BYTES_MAX} bytes (CHECKPOINT_HEADER_BYTES_MAX)"
        )));
    }
    Ok(header)
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
    /// Which file it is, as [`FilePlace::identity`] says it.
    pub(super) fn identity(&self) -> io::Result<(u64, u64)> {
        let found = self.file.metadata()?;
        Ok((found.dev(), found.ino()))
    }

    /// Opens the file at `place`.
    ///
    /// # Errors
    /// `FILE_UNREADABLE`; `SAFETENSORS_MALFORMED` for a header that is none, or speaks of what is not in the file.
    pub(super) fn open(place: &FilePlace) -> Result<Self, Status> {
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
        let NamesOnce =
            serde_json::from_slice(&header).map_err(|error| malformed(&error.to_string()))?;
        // It says of each tensor whether its place, type and shape fit, and that no two share a byte.
        let header: Metadata =
            serde_json::from_slice(&header).map_err(|error| malformed(&error.to_string()))?;
        let (start, there) = (LENGTH + length, size - LENGTH - length);
        if header.data_len() as u64 != there {
            return Err(malformed(&format!(
                "its tensors take {} bytes, and {there} are there",
                header.data_len()
            )));
        }
        let mut tensors = BTreeMap::new();
        for (name, info) in header.tensors() {
            let meta = meta_of(info).ok_or_else(|| {
                malformed(&format!(
                    "'{}' has a type or a shape that no tensor has here",
                    shown(&name)
                ))
            })?;
            tensors.insert(name, (meta, start + info.data_offsets.0 as u64));
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

/// The type and shape of a tensor, if there are such here.
fn meta_of(info: &TensorInfo) -> Option<TensorMeta> {
    let dtype = DTYPES.iter().find(|row| row.1 == info.dtype)?.0;
    let dims: Vec<_> = info.shape.iter().map(|&dim| dim as u64).collect();
    TensorMeta::new(dtype, Shape::new(&dims).ok()?).ok()
}

/// What a refusal repeats of a name.
fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(200)]
}
