//! Checkpoints: the variables of a training in a file (safetensors), written whole or not at all, and read back.
//!
//! Knows names, types and shapes of the variables, not what they are for.

use std::path::{Path, PathBuf};

use crate::error::CliError;
use crate::weights::Weights;
use rendez::files::Output;
use rendez::ground::{DType, TensorMeta};
use rendez::memory::Tensor;
use rendez_dataflow::operations::write_checkpoint;

#[cfg(test)]
mod tests;

/// The file in the folder of a training.
const FILE: &str = "digits.safetensors";

/// Writes the variables into `folder`, which is made if it is not there. Gives the file's path.
///
/// # Errors
/// `FILE_UNWRITABLE`; the checkpoint before is then as it was.
pub(super) fn write(folder: &Path, variables: &[(String, Tensor)]) -> Result<PathBuf, CliError> {
    let path = folder.join(FILE);
    let failed = |what: &std::io::Error| {
        let message = format!("cannot write the checkpoint {}: {what}", path.display());
        CliError::failure("FILE_UNWRITABLE", message)
    };
    let tensors = variables
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor));
    let tensors: Vec<_> = tensors.collect();
    write_checkpoint(open(folder)?, &tensors).map_err(|error| failed(&error))?;
    Ok(path)
}

/// Opens what a checkpoint in `folder` is written to, and makes the folder if it is not there. What is dropped again
/// has shown that one can be written.
///
/// # Errors
/// `FILE_UNWRITABLE`.
pub(super) fn open(folder: &Path) -> Result<Output, CliError> {
    let path = folder.join(FILE);
    let opened = std::fs::create_dir_all(folder).and_then(|()| Output::open(&path));
    opened.map_err(|error| {
        let what = match folder.exists() && !folder.is_dir() {
            true => format!("'{}' is no folder", folder.display()),
            false => error.to_string(),
        };
        let message = format!("cannot write the checkpoint {}: {what}", path.display());
        CliError::failure("FILE_UNWRITABLE", message)
    })
}

/// Reads the variables of these names, types and shapes from `folder`.
///
/// # Errors
/// `FILE_UNREADABLE`, `SAFETENSORS_MALFORMED`; `CHECKPOINT_UNFIT` if it is a checkpoint of something else.
pub(super) fn read(
    folder: &Path,
    variables: &[(String, DType, Vec<u64>)],
) -> Result<Vec<(String, Tensor)>, CliError> {
    let weights = Weights::open(&folder.join(FILE))?;
    let unfit = |what: String| {
        let message = format!(
            "{} is no checkpoint of this network: {what}",
            weights.name()
        );
        CliError::failure("CHECKPOINT_UNFIT", message)
    };
    let mut read = Vec::new();
    for (name, dtype, dims) in variables {
        let shape = super::digits::shape(dims)?;
        let meta = TensorMeta {
            dtype: *dtype,
            shape,
        };
        let entry = weights.entries().iter().find(|entry| entry.name == *name);
        let entry = entry.ok_or_else(|| unfit(format!("it has no '{name}'")))?;
        if entry.meta != meta {
            let (found, wanted) = (entry.meta, meta);
            let what = format!(
                "'{name}' is {} {}, and {} {} is wanted",
                found.dtype, found.shape, wanted.dtype, wanted.shape
            );
            return Err(unfit(what));
        }
        // As long as the type and shape that are wanted say: `Weights` checked it.
        let mut bytes = vec![0; entry.len as usize];
        weights.read_into(entry, &mut bytes)?;
        let tensor = Tensor::from_bytes(meta, bytes.into());
        let tensor = tensor.map_err(|error| unfit(error.to_string()))?;
        read.push((name.clone(), tensor));
    }
    Ok(read)
}
