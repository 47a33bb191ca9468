//! Push files: the files that a push hands over, found and checked before anything is sent.
//!
//! Knows files; nothing of tasks. A file of weights goes as its header and its tensors, in the order in which they lie
//! in it; an index of a model as it is. So the files that come about are the same, byte for byte.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rendez::memory::Tensor;
use serde::Deserialize;

use super::bounded::read_bounded;
use super::error::CliError;
use super::weights::Weights;

/// How files of weights end.
const WEIGHTS: &str = ".safetensors";

/// How the index of a model ends that lies in several files.
pub(super) const INDEX: &str = ".safetensors.index.json";

/// Files of one exchange.
pub(super) const FILES_MAX: usize = 4096;

/// What [`is_of_model`] asks of a name, for messages.
pub(super) const MODEL_NAMES: &str =
    "names must end in .safetensors or .safetensors.index.json and begin with no dot";

/// Bytes of an index at most: it names every tensor once, as headers do.
const INDEX_BYTES_MAX: u64 = super::weights::HEADER_BYTES_MAX;

/// The files of a push, in the order in which they go.
#[derive(Debug)]
pub(super) struct PushFiles {
    pub(super) push_files: Vec<PushFile>,
    /// They go into a folder, each under its name.
    pub(super) is_folder: bool,
    name: String,
}

/// One file.
#[derive(Debug)]
pub(super) struct PushFile {
    /// Its name, without a folder.
    pub(super) name: String,
    pub(super) content: Content,
    /// What of it was read once for all who take it.
    pub(super) kept: OnceCell<Kept>,
}

/// The tensors of a file, and the SHA-256 of its bytes in hexadecimal digits.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) tensors: Vec<Tensor>,
    pub(super) sum: String,
}

/// What is in it.
#[derive(Debug)]
pub(super) enum Content {
    Weights(Weights),
    Index(Vec<u8>),
}

/// What is read of an index.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl PushFile {
    fn new(name: String, content: Content) -> Self {
        Self {
            name,
            content,
            kept: OnceCell::new(),
        }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> u64 {
        match &self.content {
            Content::Weights(weights) => weights.file_bytes(),
            Content::Index(text) => text.len() as u64,
        }
    }

    /// Tensors in it.
    pub(super) fn tensors(&self) -> usize {
        match &self.content {
            Content::Weights(weights) => weights.entries().len(),
            Content::Index(_) => 0,
        }
    }
}

impl PushFiles {
    /// The files at these paths: files of weights, indices with all that they name, and folders with all such files in
    /// them. Without any path the small file that the program carries.
    pub(super) fn of(paths: &[PathBuf]) -> Result<Self, CliError> {
        let Some(first) = paths.first() else {
            let weights = Weights::built_in()?;
            let name = weights.name().to_owned();
            let file = name.split(' ').next().unwrap_or_default();
            let file = file.rsplit('/').next().unwrap_or_default().to_owned();
            let content = Content::Weights(weights);
            return Ok(Self {
                push_files: vec![PushFile::new(file, content)],
                is_folder: false,
                name,
            });
        };
        let is_index = first.to_string_lossy().ends_with(INDEX);
        let is_folder = paths.len() > 1 || is_index || first.is_dir();
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() {
                files.extend(in_folder(path)?);
            } else {
                files.push(path.clone());
            }
        }
        check_count(files.len())?;
        let mut push_files = Vec::new();
        let mut places = BTreeSet::new();
        let mut indices = Vec::new();
        for path in files {
            if !places.insert(place_of(&path)) {
                continue;
            }
            if !path.to_string_lossy().ends_with(INDEX) {
                push_files.push((path.clone(), weights(&path)?));
                continue;
            }
            let (push_file, shards) = index(&path)?;
            check_count(shards.len())?;
            let folder = path.parent().unwrap_or_else(|| Path::new(""));
            for shard in &shards {
                let path = folder.join(shard);
                if places.insert(place_of(&path)) {
                    push_files.push((path.clone(), weights(&path)?));
                }
            }
            indices.push((path, push_file));
        }
        for (path, push_file) in &indices {
            if let Content::Index(text) = &push_file.content {
                judge(path, text, &push_files)?;
            }
        }
        let mut seen = BTreeSet::new();
        // A reader that finds the index finds what it names: it goes last.
        push_files.extend(indices);
        check_count(push_files.len())?;
        for (path, push_file) in &push_files {
            if is_folder && !is_of_model(&push_file.name) {
                let path = path.display();
                let message = format!("'{path}' cannot go into a folder: {MODEL_NAMES}; rename it");
                return Err(CliError::failure("FILE_UNREADABLE", message));
            }
            if !seen.insert(push_file.name.clone()) {
                let message = format!(
                    "two files are called '{}' ('{}' is one): they go into one folder; push them one by one",
                    push_file.name,
                    path.display()
                );
                return Err(CliError::usage("USAGE", message));
            }
        }
        let name = match paths {
            [one] => one.display().to_string(),
            _ => format!("{} files", push_files.len()),
        };
        let push_files = push_files
            .into_iter()
            .map(|(_, push_file)| push_file)
            .collect();
        Ok(Self {
            push_files,
            is_folder,
            name,
        })
    }

    /// What it is called.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.push_files.iter().map(PushFile::bytes).sum()
    }

    /// Tensors of all files.
    pub(super) fn tensors(&self) -> usize {
        self.push_files.iter().map(PushFile::tensors).sum()
    }
}

/// Refuses more files than the other end takes.
fn check_count(files: usize) -> Result<(), CliError> {
    if files <= FILES_MAX {
        return Ok(());
    }
    let message =
        format!("{files} files are more than one push takes, {FILES_MAX}; push them in several");
    Err(CliError::usage("USAGE", message))
}

/// The files of weights and the indices of a folder, by name. Whatever else lies there stays there.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, CliError> {
    let unreadable = |what: &dyn std::fmt::Display| {
        let message = format!("cannot read the folder '{}': {what}", folder.display());
        CliError::failure("FILE_UNREADABLE", message)
    };
    let entries = std::fs::read_dir(folder).map_err(|error| unreadable(&error))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| unreadable(&error))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_of_model(&name) {
            found.push(path);
        }
    }
    if found.is_empty() {
        return Err(unreadable(&"no file in it ends in .safetensors"));
    }
    found.sort();
    Ok(found)
}

fn weights(path: &Path) -> Result<PushFile, CliError> {
    let content = Content::Weights(Weights::open(path)?);
    let name = name_of(path)?;
    Ok(PushFile::new(name, content))
}

/// Where a file lies, however its folder is spelt. Two links to one file are two files: each has its name.
fn place_of(path: &Path) -> PathBuf {
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    folder.join(path.file_name().unwrap_or_default())
}

/// The name of a file, which its receiver must be able to write down.
fn name_of(path: &Path) -> Result<String, CliError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.filter(|name| is_plain(name)).ok_or_else(|| {
        let message = format!(
            "'{}' has no name that can be sent: UTF-8 without slash, backslash and control characters, at most 255 \
             bytes; rename it",
            path.display()
        );
        CliError::failure("FILE_UNREADABLE", message)
    })?;
    Ok(name.to_owned())
}

/// True for the name of a file in a folder, and of nothing beyond that folder.
pub(super) fn is_plain(name: &str) -> bool {
    let is_odd = |c: char| c == '/' || c == '\\' || c.is_control();
    !(name.is_empty() || name == "." || name == ".." || name.len() > 255 || name.contains(is_odd))
}

/// True for a name that is taken into a folder: of no file that something else reads, whatever its bytes are.
pub(super) fn is_of_model(name: &str) -> bool {
    !name.starts_with('.') && (name.ends_with(WEIGHTS) || name.ends_with(INDEX))
}

/// An index, and the files that it names.
fn index(path: &Path) -> Result<(PushFile, BTreeSet<String>), CliError> {
    let unreadable = |what: &dyn std::fmt::Display| {
        CliError::unreadable(path, &format!("{what}; check the path"))
    };
    let found = std::fs::metadata(path).map_err(|error| unreadable(&error))?;
    if !found.is_file() {
        return Err(unreadable(&"it is not a regular file"));
    }
    let text = read_bounded(path, INDEX_BYTES_MAX)?.ok_or_else(|| {
        let what = format!("it has {} bytes, over {INDEX_BYTES_MAX}", found.len());
        malformed(path, &what)
    })?;
    let parsed: Index =
        serde_json::from_slice(&text).map_err(|error| malformed(path, &error.to_string()))?;
    let shards: BTreeSet<String> = parsed.weight_map.into_values().collect();
    if let Some(shard) = shards.iter().find(|shard| !is_plain(shard)) {
        let what = format!(
            "it names '{}', which is no file of its own folder",
            shard.escape_debug()
        );
        return Err(malformed(path, &what));
    }
    let name = name_of(path)?;
    let content = Content::Index(text);
    Ok((PushFile::new(name, content), shards))
}

/// Every tensor that an index names lies in the file that it says.
fn judge(path: &Path, text: &[u8], push_files: &[(PathBuf, PushFile)]) -> Result<(), CliError> {
    let parsed: Index =
        serde_json::from_slice(text).map_err(|error| malformed(path, &error.to_string()))?;
    let mut held: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, push_file) in push_files {
        if let Content::Weights(weights) = &push_file.content {
            let names = weights.entries().iter().map(|entry| entry.name.as_str());
            held.entry(&push_file.name).or_default().extend(names);
        }
    }
    for (tensor, shard) in &parsed.weight_map {
        let tensor = super::weights::printable(tensor);
        if !held
            .get(shard.as_str())
            .is_some_and(|names| names.contains(tensor.as_str()))
        {
            let what = format!("it says that '{tensor}' lies in '{shard}', and it does not");
            return Err(malformed(path, &what));
        }
    }
    Ok(())
}

fn malformed(path: &Path, what: &str) -> CliError {
    let message = format!(
        "'{}' is no index of a model in several files: {what}; get it again, with all its files",
        path.display()
    );
    CliError::failure("MODEL_INDEX_MALFORMED", message)
}

#[cfg(test)]
mod tests;
