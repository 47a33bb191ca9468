//! Shelf: where what was pulled is written, one file or a folder of files.
//!
//! Knows outputs and manifests, nothing of how pieces come. Files appear when all of them are whole: the index of a
//! model last.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::error::CliError;
use super::exchange::{Manifest, Sink, Taken};
use super::push_files::{INDEX, MODEL_NAMES, is_of_model};
use rendez::files::Output;
use rendez::trace::Path as Way;

/// A tensor that was taken: what is told of it.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) tensor: String,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: u64,
    pub(super) path: &'static str,
    pub(super) time_ns: u64,
}

/// Where it goes, and what came.
pub(super) struct Shelf<'a> {
    place: Place,
    outputs: Vec<(PathBuf, Output)>,
    /// Dropped after what is written into it.
    made: Option<Made>,
    progress: &'a mut dyn FnMut(u64, u64),
    /// What the source calls it.
    pub(super) name: String,
    /// The files and their bytes.
    pub(super) files: Vec<(String, u64)>,
    pub(super) tensors: Vec<Told>,
    taken: u64,
    total: u64,
}

/// What `--out` names, as it was found before anything came.
#[derive(Debug)]
enum Place {
    Nowhere,
    File(PathBuf, Output),
    Folder(PathBuf),
}

impl<'a> Shelf<'a> {
    /// Opens what is at `out`. `progress` hears of bytes: how many came, and of how many.
    ///
    /// # Errors
    /// `FILE_UNWRITABLE`: no task was asked for anything yet.
    pub(super) fn open(
        out: Option<&Path>,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Result<Self, CliError> {
        let mut made = None;
        let place = match out {
            None => Place::Nowhere,
            Some(out) if is_folder(out) => {
                made = make(out)?;
                // Shows whether files can be made there.
                drop(open(&out.join(".rendez-probe"))?);
                Place::Folder(out.to_owned())
            }
            Some(out) => Place::File(out.to_owned(), open(out)?),
        };
        Ok(Self {
            place,
            outputs: Vec::new(),
            made,
            progress,
            name: String::new(),
            files: Vec::new(),
            tensors: Vec::new(),
            taken: 0,
            total: 0,
        })
    }

    /// True if it is written through to the process's own output.
    pub(super) fn is_standard_output(&self) -> bool {
        matches!(&self.place, Place::File(_, output) if output.is_same(io::stdout()))
    }
}

impl Sink for Shelf<'_> {
    fn begin(&mut self, manifest: &Manifest) -> Result<(), CliError> {
        self.name.clone_from(&manifest.name);
        let files = manifest.files.iter();
        self.files = files.map(|file| (file.name.clone(), file.bytes)).collect();
        self.total = self.files.iter().map(|(_, bytes)| bytes).sum();
        let folder = match std::mem::replace(&mut self.place, Place::Nowhere) {
            Place::Nowhere => return Ok(()),
            Place::File(path, output) if !manifest.is_folder => {
                self.outputs.push((path, output));
                return Ok(());
            }
            Place::File(path, output) => {
                drop(output);
                if std::fs::symlink_metadata(&path).is_ok() {
                    let count = self.files.len();
                    let what = format!(
                        "{count} files come, and it is no folder; name one, or what is not there yet"
                    );
                    return Err(CliError::unwritable(&path, &what));
                }
                self.made = make(&path)?;
                path
            }
            Place::Folder(path) => path,
        };
        for (name, _) in &self.files {
            let path = folder.join(name);
            if !is_of_model(name) {
                let what = format!(
                    "in a folder {MODEL_NAMES}; give `--out` the path of a file to call it otherwise"
                );
                return Err(CliError::unwritable(&path, &what));
            }
            let output = open(&path)?;
            self.outputs.push((path, output));
        }
        Ok(())
    }

    fn write(&mut self, file: usize, bytes: &[u8]) -> Result<(), CliError> {
        if let Some((path, output)) = self.outputs.get_mut(file) {
            output
                .write_all(bytes)
                .map_err(|error| CliError::unwritable(path, &error))?;
        }
        self.taken += bytes.len() as u64;
        (self.progress)(self.taken, self.total);
        Ok(())
    }

    fn took(&mut self, taken: &Taken<'_>) -> Result<(), CliError> {
        let tensor = &taken.received.tensor;
        self.tensors.push(Told {
            tensor: taken.entry.name.clone(),
            dtype: tensor.meta().dtype.name(),
            shape: tensor.meta().shape.dims().collect(),
            bytes: tensor.size() as u64,
            path: match taken.received.path {
                Way::Local => "local",
                Way::Inline => "inline",
                Way::Lease => "lease",
                Way::Copy => "copy",
            },
            time_ns: u64::try_from(taken.took.as_nanos()).unwrap_or(u64::MAX),
        });
        Ok(())
    }

    fn finish(&mut self) -> Result<bool, CliError> {
        let is_kept = !self.outputs.is_empty();
        // None appears unless all can: what may fail after this is a rename.
        for (path, output) in &mut self.outputs {
            output
                .prepare()
                .map_err(|error| CliError::unwritable(path, &error))?;
        }
        // A reader that finds the index finds what it names, in whatever order the source says its files.
        let is_index = |(path, _): &(PathBuf, _)| path.to_string_lossy().ends_with(INDEX);
        self.outputs.sort_by_key(is_index);
        for (path, output) in self.outputs.drain(..) {
            output
                .finish()
                .map_err(|error| CliError::unwritable(&path, &error))?;
        }
        Ok(is_kept)
    }
}

fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// A folder that was made here: it goes again if nothing came into it.
#[derive(Debug)]
struct Made(PathBuf);

impl Drop for Made {
    fn drop(&mut self) {
        // One that holds anything stays.
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn make(folder: &Path) -> Result<Option<Made>, CliError> {
    match std::fs::create_dir(folder) {
        Ok(()) => Ok(Some(Made(folder.to_owned()))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(CliError::unwritable(folder, &error)),
    }
}

fn open(path: &Path) -> Result<Output, CliError> {
    Output::open(path).map_err(|error| CliError::unwritable(path, &error))
}

#[cfg(test)]
mod tests {
    use std::mem::MaybeUninit;

    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_folder_that_was_made_for_nothing_goes_again() {
        let directory = tempfile::tempdir().expect("a folder");
        let [new, old] = ["new/", "old/"].map(|name| directory.path().join(name));
        std::fs::create_dir(&old).expect("made");
        for out in [&new, &old] {
            let mut progress = |_, _| ();
            drop(Shelf::open(Some(out), &mut progress).expect("opened"));
        }
        assert!(!new.exists() && old.exists());
    }

    const NAMES: [&str; 3] = ["1.safetensors", "2.safetensors", "3.safetensors.index.json"];

    /// A shelf that holds a model, whole, of which nothing has appeared. Its source says the index first.
    fn filled<'a>(out: &'a Path, progress: &'a mut dyn FnMut(u64, u64)) -> Shelf<'a> {
        let described = [NAMES[2], NAMES[0], NAMES[1]].map(|name| {
            let is_weights = !name.ends_with("json");
            json!({ "name": name, "bytes": 3, "is_weights": is_weights })
        });
        let manifest = json!({ "name": "model", "is_folder": true, "files": described });
        let manifest: Manifest = serde_json::from_value(manifest).expect("a manifest");
        let mut shelf = Shelf::open(Some(out), progress).expect("opened");
        shelf.begin(&manifest).expect("there is room");
        for (file, bytes) in ["all", "one", "two"].iter().enumerate() {
            shelf.write(file, bytes.as_bytes()).expect("written");
        }
        shelf
    }

    #[test]
    fn files_appear_in_turn_each_whole_and_the_index_last() {
        let directory = tempfile::tempdir().expect("a folder");
        let out = directory.path().join("out/");
        let mut progress = |_, _| ();
        let mut shelf = filled(&out, &mut progress);
        let watch = inotify::init(CreateFlags::NONBLOCK).expect("a watch");
        // Each appears by a rename, or by a link to what had no name.
        let seen = WatchFlags::MOVED_TO | WatchFlags::CREATE;
        inotify::add_watch(&watch, &out, seen).expect("watched");
        assert!(shelf.finish().expect("they appear"));
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(watch, &mut room);
        let mut appeared = vec![];
        while let Ok(event) = events.next() {
            let name = event.file_name().expect("a name").to_string_lossy();
            appeared.extend(NAMES.into_iter().filter(|known| *known == name));
        }
        assert_eq!(appeared, NAMES);
        for (name, bytes) in NAMES.iter().zip(["one", "two", "all"]) {
            let there = std::fs::read_to_string(out.join(name)).expect("it is there");
            assert_eq!(there, bytes, "{name}");
        }
    }

    #[test]
    fn none_of_several_files_appears_unless_all_can() {
        let directory = tempfile::tempdir().expect("a folder");
        let out = directory.path().join("out/");
        let mut progress = |_, _| ();
        let mut shelf = filled(&out, &mut progress);
        let count = || std::fs::read_dir(&out).expect("a folder").count();
        assert_eq!(count(), 0, "nothing appears before all is whole");
        // The second cannot.
        std::fs::create_dir(out.join(NAMES[1])).expect("made");
        let error = shelf.finish().expect_err("something is in its way");
        drop(shelf);
        assert_eq!(error.reason(), "FILE_UNWRITABLE", "{error}");
        assert_eq!(count(), 1, "only what was in the way is there");
    }

    /// Whatever the source calls it.
    #[test]
    fn only_files_of_a_model_come_into_a_folder() {
        let directory = tempfile::tempdir().expect("a folder");
        let out = directory.path();
        for name in [".bashrc", "rendez.toml", "Makefile", ".x.safetensors"] {
            std::fs::write(out.join(name), "old").expect("written");
            for is_folder in [false, true] {
                let described = json!({ "name": name, "bytes": 3, "is_weights": true });
                let manifest =
                    json!({ "name": "it", "is_folder": is_folder, "files": [described] });
                let manifest: Manifest = serde_json::from_value(manifest).expect("a manifest");
                let mut progress = |_, _| ();
                let mut shelf = Shelf::open(Some(out), &mut progress).expect("opened");
                let error = shelf.begin(&manifest).expect_err("it is no such file");
                assert_eq!(error.reason(), "FILE_UNWRITABLE", "{error}");
                // Under a name of the one who takes it, it may come.
                let mut progress = |_, _| ();
                let one = out.join("one");
                let mut shelf = Shelf::open(Some(&one), &mut progress).expect("opened");
                assert_eq!(shelf.begin(&manifest).is_ok(), !is_folder);
            }
        }
    }
}
