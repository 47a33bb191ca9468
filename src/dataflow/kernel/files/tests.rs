//! Paths that lie below the folder, and all the ways out of it.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;

use super::*;

/// A folder that may be touched, and beside it one that may not, with a file in it.
struct World {
    _folder: tempfile::TempDir,
    root: PathBuf,
    outside: PathBuf,
    files: Files,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [root, outside] = ["root", "outside"].map(|name| folder.path().join(name));
        for path in [&root, &outside] {
            std::fs::create_dir(path).expect("made");
        }
        std::fs::write(outside.join("secret"), "secret").expect("written");
        Self {
            files: Files::below(&root),
            _folder: folder,
            root,
            outside,
        }
    }

    fn put(&self, path: impl AsRef<Path>, text: &str) -> Result<(), String> {
        let place = self.files.place("SaveV2", path.as_ref());
        let place = place.map_err(|status| status.reason().to_owned())?;
        let within = place.make_folder().map_err(|error| error.to_string())?;
        let put = within.output().and_then(|mut output| {
            output.write_all(text.as_bytes())?;
            output.finish()
        });
        put.map_err(|error| error.to_string())
    }

    fn read(&self, path: impl AsRef<Path>) -> Result<String, String> {
        let place = self.files.place("RestoreV2", path.as_ref());
        let place = place.map_err(|status| status.reason().to_owned())?;
        let mut text = String::new();
        let file = place.open().map_err(|error| error.to_string());
        file?
            .read_to_string(&mut text)
            .map_err(|error| error.to_string())?;
        Ok(text)
    }
}

#[test]
fn without_a_folder_nothing_is_touched() {
    let status = Files::none()
        .place("SaveV2", Path::new("x"))
        .expect_err("refused");
    assert_eq!(status.reason(), catalogue::FILES_REFUSED);
    for text in [
        "SaveV2",
        "'x'",
        "files_root is not set",
        "RENDEZ_FILES_ROOT",
    ] {
        assert!(status.message().contains(text), "{status}");
    }
}

#[test]
fn what_lies_below_is_written_and_read_by_either_name() {
    let world = World::new();
    world.put("a/b/c", "one").expect("put");
    assert_eq!(world.read(world.root.join("a/b/c")).as_deref(), Ok("one"));
    world
        .put(world.root.join("a/b/c"), "two")
        .expect("put again");
    assert_eq!(world.read("a/b/../b/c").as_deref(), Ok("two"));
    // A link that stays below is as good as what it leads to, and so is one that leads to the folder.
    symlink("a/b", world.root.join("near")).expect("linked");
    assert_eq!(world.read("near/c").as_deref(), Ok("two"));
    let other = world.outside.join("root");
    symlink(&world.root, &other).expect("linked");
    let by_link = Files::below(&other);
    for path in [other.join("a/b/c"), world.root.join("a/b/c")] {
        assert!(
            by_link
                .place("RestoreV2", &path)
                .expect("below")
                .open()
                .is_ok()
        );
    }
    let place = world.files.place("MergeV2Checkpoints", Path::new("a/b/c"));
    place.expect("below").remove().expect("removed");
    assert!(!world.root.join("a/b").exists() && world.root.join("a").exists());
}

#[test]
fn no_path_leads_out() {
    let world = World::new();
    let secret = world.outside.join("secret");
    symlink(&secret, world.root.join("absolute")).expect("linked");
    symlink("../outside", world.root.join("relative")).expect("linked");
    symlink("/proc/self/root", world.root.join("proc")).expect("linked");
    symlink("/proc/self/fd/0", world.root.join("magic")).expect("linked");
    std::fs::create_dir(world.root.join("in")).expect("made");
    let mut ways: Vec<PathBuf> = [
        "../outside/secret",
        "in/../../outside/secret",
        "absolute",
        "relative/secret",
        "relative/new",
        "proc/etc/passwd",
        "magic",
        "/etc/passwd",
        "/proc/self/environ",
        "/",
        "..",
    ]
    .map(PathBuf::from)
    .to_vec();
    ways.push(secret.clone());
    ways.push(world.root.join("../outside/secret"));
    // A name that only begins as the folder's does.
    ways.push(PathBuf::from(format!("{}-not", world.root.display())));
    for way in ways {
        let refused = Err("FILES_REFUSED".to_owned());
        assert_eq!(world.put(&way, "mine"), refused, "{way:?}");
        assert_eq!(world.read(&way), refused.map(|()| String::new()), "{way:?}");
    }
    assert_eq!(
        std::fs::read_to_string(&secret).expect("unharmed"),
        "secret"
    );
    assert!(!world.outside.join("new").exists());
}

/// `/proc` itself may be below the folder: its links, which lead to whatever a process has open, are not followed.
#[test]
fn magic_links_lead_nowhere() {
    let file = File::open("/dev/null").expect("there");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let status = Files::below("/")
        .place("RestoreV2", Path::new(&path))
        .expect_err("a magic link");
    assert_eq!(status.reason(), catalogue::FILES_REFUSED);
}

#[test]
fn only_regular_files_are_read_and_replaced() {
    let world = World::new();
    let pipe = world.root.join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a pipe");
    symlink("plain", world.root.join("link")).expect("linked");
    world.put("plain", "kept").expect("put");
    assert!(
        world
            .read("pipe")
            .expect_err("no file")
            .contains("no regular file")
    );
    for name in ["pipe", "link"] {
        assert!(
            world
                .put(name, "x")
                .expect_err("no file")
                .contains("no regular file")
        );
    }
    assert_eq!(world.read("plain").as_deref(), Ok("kept"));
}
