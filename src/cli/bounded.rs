//! Files that are read whole, up to a bound: they may grow meanwhile, and a device or a pipe has no length to ask for.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::CliError;

/// What is in the file at `path`; `None` if it has more than `most` bytes.
///
/// # Errors
/// `FILE_UNREADABLE`.
pub(super) fn read_bounded(path: &Path, most: u64) -> Result<Option<Vec<u8>>, CliError> {
    let unreadable = |error: std::io::Error| CliError::unreadable(path, &error);
    let file = File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}
