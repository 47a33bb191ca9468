//! Golden bytes of messages, one file for each: `# name`, and lines of sixteen bytes.
//!
//! If this fails, two builds that greet each other as of one version would not understand each other. What to do then
//! says the head of `tests/wire/frames.rs`; `GOLDEN=write` makes the files that are missing, and overwrites none.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn text_of(name: &str, bytes: &[u8]) -> String {
    let mut text = format!("# {name}\n");
    for line in bytes.chunks(16) {
        let line: Vec<_> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = writeln!(text, "{}", line.join(" "));
    }
    text
}

/// The folder of `tests/golden`, from the folder of any package of the workspace.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|above| above.join("tests/golden"))
        .find(|golden| golden.is_dir())
        .expect("the golden files are in the workspace")
        .join(name)
}

/// Panics unless the files of `tests/golden/FOLDER` are these messages, byte for byte, and no others.
pub(crate) fn hold(name: &str, messages: &[(&str, Vec<u8>)]) {
    let folder = folder(name);
    let is_writing = std::env::var("GOLDEN").as_deref() == Ok("write");
    if is_writing {
        fs::create_dir_all(&folder).expect("a folder");
    }
    let mut wrong = String::new();
    for (name, bytes) in messages {
        let path = folder.join(format!("{name}.hex"));
        let now = text_of(name, bytes);
        if is_writing && !path.exists() {
            fs::write(&path, &now).expect("written");
        }
        match fs::read_to_string(&path) {
            Ok(was) if was == now => {}
            Ok(was) => {
                let _ = writeln!(wrong, "{}: was\n{was}now\n{now}", path.display());
            }
            Err(error) => {
                let _ = writeln!(wrong, "{}: {error}", path.display());
            }
        }
    }
    for entry in fs::read_dir(&folder).expect("the folder of this version") {
        let file = entry.expect("a file").path();
        let stem = file.file_stem().and_then(|stem| stem.to_str());
        if !messages.iter().any(|(name, _)| Some(*name) == stem) {
            let _ = writeln!(wrong, "{}: the golden file of nothing", file.display());
        }
    }
    assert!(
        wrong.is_empty(),
        "messages have other bytes than before; the head of tests/wire/frames.rs says what to do\n{wrong}"
    );
}
