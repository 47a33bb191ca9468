//! Checkpoints: variables saved to files and restored, and the names of such files.
//!
//! A checkpoint is one safetensors file for each prefix; it is there whole or not at all. Strings have no place in that
//! format, and slices of variables none here.

use super::row::{Row, row};
use crate::graph::infer::{nothing, scalar, unknown};
use crate::graph::{attr, types};
use crate::kernel::Call;
use crate::kernel::call::{Done, Fault, check_string_bytes};
use crate::kernel::files::FilePlace;
use crate::kernel::make::{Cost, made};
use rendez::ground::{DType, Shape, Status, catalogue};
use rendez::memory::Tensor;

mod files;
#[cfg(test)]
mod tests;

pub use files::write_checkpoint;

/// Picoseconds for each byte of text, with the entry of eight that each string has.
const TEXT: usize = 1000;
/// The operation that makes one checkpoint of several.
const MERGE: &str = "MergeV2Checkpoints";

pub(super) const ROWS: &[Row] = &[
    row(
        "SaveV2",
        "prefix: string, tensor_names: string, shape_and_slices: string, tensors: dtypes ->",
        "dtypes: list(type) >= 1",
        nothing,
    )
    .stateful()
    .kernel(|_| made(Cost::Heavy, save)),
    row(
        "RestoreV2",
        "prefix: string, tensor_names: string, shape_and_slices: string -> tensors: dtypes",
        "dtypes: list(type) >= 1",
        unknown,
    )
    .stateful()
    .kernel(|node| {
        let ports = node.out_ports().iter();
        let dtypes: Vec<_> = ports.map(|port| types::dtype(port.what.base())).collect();
        made(Cost::Heavy, move |call| restore(call, &dtypes))
    }),
    row(
        "ShardedFilename",
        "basename: string, shard: int32, num_shards: int32 -> filename: string",
        "",
        scalar,
    )
    .kernel(|_| {
        made(Cost::PerByte(TEXT), |call| {
            let (shard, shards) = (call.integer(1)?, call.integer(2)?);
            let mut name = string(call, 0)?;
            name.extend_from_slice(format!("-{shard:05}-of-{shards:05}").as_bytes());
            call.output_strings(Shape::SCALAR, &[name])
        })
    }),
    row(
        MERGE,
        "checkpoint_prefixes: string, destination_prefix: string ->",
        "delete_old_dirs: bool = true; allow_missing_files: bool = false",
        nothing,
    )
    .stateful()
    .kernel(|node| {
        let delete = attr::bool(&node.attrs, "delete_old_dirs").unwrap_or(true);
        let allow = attr::bool(&node.attrs, "allow_missing_files").unwrap_or(false);
        made(Cost::Heavy, move |call| merge(call, delete, allow))
    }),
    row(
        "StringJoin",
        "inputs: N * string -> output: string",
        "N: int >= 0; separator: string = ''",
        unknown,
    )
    .kernel(|node| {
        let separator = attr::bytes(&node.attrs, "separator")
            .unwrap_or_default()
            .to_owned();
        made(join_cost(), move |call| join(call, &separator))
    }),
];

/// The one string of input `index`.
fn string(call: &Call<'_>, index: usize) -> Result<Vec<u8>, Fault> {
    let strings = strings(&call.tensor(index)?)?;
    match <[Vec<u8>; 1]>::try_from(strings) {
        Ok([string]) => Ok(string),
        Err(strings) => Err(format!(
            "input {index} must be one string, and has {}",
            strings.len()
        )
        .into()),
    }
}

fn strings(tensor: &Tensor) -> Result<Vec<Vec<u8>>, Fault> {
    Ok(tensor.strings()?.iter().map(<[u8]>::to_vec).collect())
}

/// The strings of input `index`, as text.
fn names(call: &Call<'_>, index: usize) -> Result<Vec<String>, Fault> {
    let texts = strings(&call.tensor(index)?)?
        .into_iter()
        .map(String::from_utf8);
    let texts: Result<_, _> = texts.collect();
    texts.map_err(|_| format!("input {index} has a name that is not UTF-8").into())
}

/// The prefix and the names of the tensors, as many as are wanted.
fn head(call: &Call<'_>, wanted: usize) -> Result<(String, Vec<String>), Fault> {
    let prefix = String::from_utf8(string(call, 0)?).map_err(|_| "the prefix is not UTF-8")?;
    let (names, slices) = (names(call, 1)?, strings(&call.tensor(2)?)?);
    for (what, len) in [
        ("tensor_names", names.len()),
        ("shape_and_slices", slices.len()),
    ] {
        if len != wanted {
            return Err(format!(
                "Got {wanted} tensors but {len} {what}: there must be one for each"
            )
            .into());
        }
    }
    if let Some(at) = slices.iter().position(|slice| !slice.is_empty()) {
        let slice = String::from_utf8_lossy(&slices[at]);
        return Err(format!(
            "'{}' is to be the slice '{slice}': only whole tensors are saved",
            names[at]
        )
        .into());
    }
    Ok((prefix, names))
}

fn save(call: &mut Call<'_>) -> Done {
    let first = 3;
    let (prefix, names) = head(call, call.inputs.len().saturating_sub(first))?;
    let tensors = (first..call.inputs.len()).map(|index| call.tensor(index));
    let tensors = tensors.collect::<Result<Vec<_>, Fault>>()?;
    let entries: Vec<_> = names.iter().map(String::as_str).zip(&tensors).collect();
    Ok(files::write(&place(call, "SaveV2", &prefix)?, &entries)?)
}

fn restore(call: &mut Call<'_>, dtypes: &[Option<DType>]) -> Done {
    let (prefix, names) = head(call, dtypes.len())?;
    let checkpoint = files::Checkpoint::open(&place(call, "RestoreV2", &prefix)?)?;
    for (name, dtype) in names.iter().zip(dtypes) {
        let Some(meta) = checkpoint.meta(name) else {
            let message = format!("Key {name} not found in checkpoint {}", checkpoint.path());
            return Err(Status::of(catalogue::CHECKPOINT_KEY, message).into());
        };
        if let Some(dtype) = dtype.filter(|&dtype| dtype != meta.dtype) {
            return Err(format!(
                "tensor_name = {name}; expected dtype {} does not equal original dtype {}",
                types::name(types::data_type(dtype)),
                types::name(types::data_type(meta.dtype))
            )
            .into());
        }
        let mut room = call.home.allocate(meta)?;
        checkpoint.read(name, room.bytes_mut())?;
        call.push(room.finish());
    }
    Ok(())
}

/// Where the file of a prefix lies, if kernels may touch it.
fn place(call: &Call<'_>, op: &str, prefix: &str) -> Result<FilePlace, Fault> {
    Ok(call.home.files.place(op, &files::path(prefix))?)
}

/// Puts the files of several prefixes into one.
fn merge(call: &mut Call<'_>, delete: bool, allow_missing: bool) -> Done {
    let sources = names(call, 0)?;
    let target = String::from_utf8(string(call, 1)?).map_err(|_| "the prefix is not UTF-8")?;
    let mut parts = vec![];
    for source in &sources {
        let place = place(call, MERGE, source)?;
        match files::Checkpoint::open(&place) {
            Ok(part) => parts.push((place, part)),
            // What is there and cannot be read is not missing.
            Err(_) if allow_missing && place.is_missing() => {}
            Err(status) => return Err(status.into()),
        }
    }
    if parts.is_empty() {
        return Err("there are no checkpoints to merge".into());
    }
    let mut tensors: Vec<(&str, Tensor)> = vec![];
    for (_, part) in &parts {
        for (name, meta) in part.entries() {
            let mut room = call.home.allocate(meta)?;
            part.read(name, room.bytes_mut())?;
            tensors.push((name, room.finish()));
        }
    }
    let entries: Vec<_> = tensors
        .iter()
        .map(|(name, tensor)| (*name, tensor))
        .collect();
    let whole = place(call, MERGE, &target)?;
    files::write(&whole, &entries)?;
    if delete {
        let written = whole.identity().ok();
        for (source, part) in &parts {
            // What was written may be a source too, by that name or another; and another file may have come to lie
            // where a source was read.
            let read = part.identity().ok();
            if read.is_some() && read == source.identity().ok() && read != written {
                // What cannot be removed costs room on the disk and nothing else; nor can its folder, unless empty.
                let _ = source.remove();
            }
        }
    }
    Ok(())
}

fn join_cost() -> Cost {
    Cost::Picoseconds(Box::new(|inputs| {
        let tensors = inputs.iter().filter_map(|input| input.tensor().ok());
        let tensors: Vec<_> = tensors.collect();
        let elements = |tensor: &Tensor| tensor.shape().elements() as usize;
        let rows = tensors.iter().map(elements).max().unwrap_or(0);
        let bytes = tensors.iter().fold(0usize, |all, tensor| {
            let times = if elements(tensor) == 1 { rows } else { 1 };
            all.saturating_add(tensor.size().saturating_mul(times))
        });
        bytes.saturating_mul(TEXT)
    }))
}

/// Strings joined element by element; those of one element go with all.
fn join(call: &mut Call<'_>, separator: &[u8]) -> Done {
    let inputs = (0..call.inputs.len()).map(|index| call.tensor(index));
    let inputs = inputs.collect::<Result<Vec<_>, Fault>>()?;
    let mut shape = Shape::SCALAR;
    for (index, input) in inputs.iter().enumerate() {
        if input.shape().rank() == 0 {
            continue;
        }
        if shape.rank() != 0 && shape != input.shape() {
            return Err(format!(
                "Input shapes do not match: {shape} vs. {} of input {index}",
                input.shape()
            )
            .into());
        }
        shape = input.shape();
    }
    // Each is looked at once: a peer may change what it lends.
    let columns = inputs
        .iter()
        .map(|input| Ok(input.strings()?.iter().collect()));
    let columns = columns.collect::<Result<Vec<_>, Fault>>()?;
    let rows = usize::try_from(shape.elements()).unwrap_or(0);
    let joined = joined(&columns, rows, separator)?;
    call.output_strings(shape, &joined)
}

/// The rows of `columns`, each joined; a column of one goes with all.
fn joined(columns: &[Vec<&[u8]>], rows: usize, separator: &[u8]) -> Result<Vec<Vec<u8>>, Fault> {
    // What many inputs make together is bounded before any of it is copied.
    let separators = separator
        .len()
        .saturating_mul(columns.len().saturating_sub(1));
    let fixed = rows.saturating_mul(separators.saturating_add(8));
    let bytes = columns.iter().fold(fixed, |all, column| {
        let times = if column.len() == 1 { rows } else { 1 };
        let once: usize = column.iter().map(|cell| cell.len()).sum();
        all.saturating_add(once.saturating_mul(times))
    });
    check_string_bytes(bytes)?;
    let mut joined = Vec::with_capacity(rows);
    for row in 0..rows {
        let cells = columns.iter().map(|column| match &column[..] {
            [cell] => Ok(*cell),
            cells => cells
                .get(row)
                .copied()
                .ok_or("strings changed while they were read"),
        });
        joined.push(cells.collect::<Result<Vec<_>, _>>()?.join(separator));
    }
    Ok(joined)
}
