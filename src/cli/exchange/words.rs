//! Words of an exchange: what comes, what came of it, and why one side gave up.
//!
//! Knows what may be said; not when, nor how it travels. What a peer says is a claim until it was judged here.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::CliError;
use crate::push_files::{FILES_MAX, INDEX, is_plain};
use rendez::ground::{Code, Status, TaskName, catalogue};

/// What comes, as its source says.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Manifest {
    /// What the source calls all of it.
    pub(crate) name: String,
    /// The files go into a folder, each under its name.
    pub(crate) is_folder: bool,
    pub(crate) files: Vec<Described>,
}

/// A file of a manifest.
#[derive(Serialize, Deserialize, Debug)]
pub(crate) struct Described {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// It is a file of weights, and not an index.
    pub(super) is_weights: bool,
}

/// The destination's last word.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Report {
    pub(super) sums: Vec<String>,
    pub(super) is_written: bool,
    pub(super) failed: Option<Failed>,
}

/// Why one side gave up.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Failed {
    pub(super) code: u8,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Failed {
    pub(super) fn of(error: &CliError) -> Self {
        Self {
            code: error.code() as u8,
            reason: error.reason().to_owned(),
            message: error.message().to_owned(),
        }
    }

    /// As it came. A reason that we do not know is `PEER_STATUS`.
    pub(super) fn status(&self, of: &TaskName) -> Status {
        let code = Code::from_wire(self.code);
        let entry = catalogue::find(&self.reason);
        let reason = entry.map_or(catalogue::PEER_STATUS, |entry| entry.reason);
        let message: String = self.message.chars().filter(|c| !c.is_control()).collect();
        Status::new(code, reason, format!("{of} gave up: {message}"))
    }
}

/// That what `task` sent is none of what it may send.
pub(super) fn malformed(task: &TaskName, what: &dyn std::fmt::Display) -> Status {
    let message = format!("what {task} sent is no file: {what}");
    Status::new(
        Code::InvalidArgument,
        catalogue::SAFETENSORS_MALFORMED,
        message,
    )
}

/// What a manifest may say.
pub(super) fn judge(manifest: &Manifest, from: &TaskName) -> Result<(), Status> {
    let files = &manifest.files;
    if !(1..=FILES_MAX).contains(&files.len()) || (!manifest.is_folder && files.len() > 1) {
        let what = format!("{} files at once", files.len());
        return Err(malformed(from, &what));
    }
    let mut names = BTreeSet::new();
    let mut bytes = 0_u64;
    for file in files {
        if !is_plain(&file.name) || !names.insert(&file.name) {
            let what = format!("a file called '{}'", file.name.escape_debug());
            return Err(malformed(from, &what));
        }
        // Its bytes are written as they come: it is no file that something else reads.
        if !file.is_weights && !file.name.ends_with(INDEX) {
            let what = format!("an index called '{}'", file.name);
            return Err(malformed(from, &what));
        }
        let sum = bytes.checked_add(file.bytes);
        bytes = sum.ok_or_else(|| malformed(from, &"more bytes than there can be"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_index_of_a_model_is_taken_as_it_comes() {
        let judged = |name: &str, is_weights: bool| {
            let file = Described {
                name: name.into(),
                bytes: 1,
                is_weights,
            };
            let manifest = Manifest {
                name: "it".into(),
                is_folder: true,
                files: vec![file],
            };
            let from = TaskName::parse("/job:a/task:0").expect("a name");
            judge(&manifest, &from)
        };
        assert_eq!(judged("model.safetensors", true), Ok(()));
        assert_eq!(judged("model.safetensors.index.json", false), Ok(()));
        for name in [".bashrc", "rendez.toml", "Makefile"] {
            assert!(judged(name, false).is_err(), "{name}");
        }
    }
}
