//! What lies at a path before an output is opened there, while it is written, and after.

#[path = "../../../../tests/skipped/mod.rs"]
pub(super) mod skipped;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use super::*;

/// With and without files that have no name.
const WAYS: [bool; 2] = [false, true];

fn open(path: &Path, is_named: bool) -> io::Result<Output> {
    Output::open_how(
        path,
        How {
            is_named,
            ..How::USUAL
        },
    )
}

fn put(path: &Path, is_named: bool, text: &str) -> io::Result<()> {
    let mut output = open(path, is_named)?;
    output.write_all(text.as_bytes())?;
    output.finish()
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("a folder").map(|entry| {
        let name = entry.expect("an entry").file_name();
        name.to_string_lossy().into_owned()
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_file_is_there_when_it_is_finished_and_not_before() {
    for is_named in WAYS {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        let mut output = open(&path, is_named).expect("opened");
        output.write_all(b"half").expect("written");
        assert!(!path.exists());
        drop(output);
        assert!(names(folder.path()).is_empty(), "what was dropped is gone");
        type Finish = fn(Output) -> io::Result<()>;
        let ways: [(&str, Finish); 3] = [
            ("first", Output::finish),
            ("second, and longer", Output::finish),
            ("the third", Output::finish_unsynced),
        ];
        for (text, finish) in ways {
            let mut output = open(&path, is_named).expect("opened");
            output.write_all(text.as_bytes()).expect("written");
            let before = fs::read(&path).ok();
            assert_ne!(before.as_deref(), Some(text.as_bytes()));
            finish(output).expect("finished");
            assert_eq!(fs::read(&path).expect("it is there"), text.as_bytes());
            assert_eq!(names(folder.path()), ["a"]);
        }
        // Of two at once the later one stays.
        let (one, two) = (open(&path, is_named), open(&path, is_named));
        let (mut one, mut two) = (one.expect("opened"), two.expect("opened"));
        two.write_all(b"two").expect("written");
        one.write_all(b"one").expect("written");
        two.finish().expect("finished");
        one.finish().expect("finished");
        assert_eq!(fs::read(&path).expect("it is there"), b"one");
        assert_eq!(names(folder.path()), ["a"]);
    }
}

#[test]
fn what_is_new_takes_no_others_place() {
    for is_named in WAYS {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out");
        let new = |text: &str| {
            let mut output = open(&path, is_named).expect("opened");
            output.write_all(text.as_bytes()).expect("written");
            output
        };
        let late = new("late");
        let other = new("other");
        assert!(late.is_one_with(&other));
        assert!(!late.is_one_with(&open(&folder.path().join("b"), is_named).expect("opened")));
        new("first").finish_new().expect("nothing is there");
        let error = late.finish_new().expect_err("something is there");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        drop(other);
        assert_eq!(std::fs::read_to_string(&path).expect("there"), "first");
        assert_eq!(names(folder.path()), ["out"]);
    }
}

#[test]
fn a_file_that_is_replaced_keeps_its_mode() {
    for is_named in WAYS {
        for before in [0o600, 0o640, 0o664, 0o755] {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("a");
            fs::write(&path, "old").expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(before)).expect("set");
            put(&path, is_named, "new").expect("written");
            assert_eq!(mode(&path), before);
            assert_eq!(fs::read(&path).expect("it is there"), b"new");
        }
    }
}

#[test]
fn a_file_that_is_replaced_keeps_its_owner() {
    if !is_root() {
        skipped::skipped("only root gives files away");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a");
    fs::write(&path, "old").expect("written");
    std::os::unix::fs::chown(&path, Some(12_345), Some(54_321)).expect("given away");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).expect("set");
    put(&path, false, "new").expect("written");
    let found = fs::metadata(&path).expect("it is there");
    assert_eq!((found.uid(), found.gid()), (12_345, 54_321));
    assert_eq!(mode(&path), 0o4711);
}

#[test]
fn a_link_leads_to_what_is_written_and_stays() {
    for is_named in WAYS {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("deep");
        fs::create_dir(&deep).expect("made");
        let (target, link, second) = (
            deep.join("target"),
            folder.path().join("link"),
            deep.join("second"),
        );
        symlink("deep/second", &link).expect("made");
        symlink("target", &second).expect("made");
        // It leads to nothing, then to a file.
        for text in ["first", "second"] {
            put(&link, is_named, text).expect("written");
            assert_eq!(fs::read(&target).expect("it is there"), text.as_bytes());
            assert!(
                fs::symlink_metadata(&link)
                    .expect("it is there")
                    .is_symlink()
            );
            assert!(
                fs::symlink_metadata(&second)
                    .expect("it is there")
                    .is_symlink()
            );
            assert_eq!(names(&deep), ["second", "target"]);
        }
        // And to a device, which stays one.
        let null = folder.path().join("null");
        symlink("/dev/null", &null).expect("made");
        put(&null, is_named, "nothing").expect("written");
        assert!(
            fs::metadata("/dev/null")
                .expect("it is there")
                .file_type()
                .is_char_device()
        );
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        symlink(&other, &one).expect("made");
        symlink(&one, &other).expect("made");
        assert!(open(&one, is_named).is_err(), "they lead to each other");
    }
}

#[test]
fn devices_and_fifos_are_written_through() {
    put(Path::new("/dev/null"), false, "nothing").expect("written");
    assert!(
        fs::metadata("/dev/null")
            .expect("it is there")
            .file_type()
            .is_char_device()
    );
    let [one, other] = [(); 2].map(|()| open(Path::new("/dev/null"), false).expect("opened"));
    assert!(!one.is_one_with(&other), "it keeps nothing that is lost");
    let full = put(Path::new("/dev/full"), false, "too much").expect_err("it is full");
    assert_eq!(full.kind(), ErrorKind::StorageFull);

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("fifo");
    rustix::fs::mknodat(
        CWD,
        &path,
        FileType::Fifo,
        Mode::from_raw_mode(0o600),
        rustix::fs::makedev(0, 0),
    )
    .expect("made");
    let (told, heard) = mpsc::channel();
    let reader = {
        let path = path.clone();
        std::thread::spawn(move || told.send(fs::read(path)))
    };
    put(&path, false, "through").expect("written");
    let read = heard.recv().expect("it reads").expect("it can");
    assert_eq!(read, b"through");
    let _ = reader.join();
    assert!(
        fs::symlink_metadata(&path)
            .expect("it is there")
            .file_type()
            .is_fifo()
    );
}

#[test]
fn descriptors_are_written_at_their_end() {
    // Another process, so that its output is not this one's.
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("kept");
    fs::write(&kept, "before ").expect("written");
    let file = File::options()
        .append(true)
        .open(&kept)
        .expect("opened to add");
    let mut child = Command::new("sleep")
        .arg("60")
        .stdout(Stdio::from(file))
        .spawn()
        .expect("it starts");
    let path = PathBuf::from(format!("/proc/{}/fd/1", child.id()));
    let link = folder.path().join("link");
    symlink(&path, &link).expect("made");
    let written = put(&path, false, "one ").and_then(|()| put(&link, false, "two"));
    let _ = child.kill();
    let _ = child.wait();
    written.expect("written");
    assert_eq!(fs::read(&kept).expect("it is there"), b"before one two");
    // Our own output is the same description: what it does not let be written is refused.
    assert!(Output::open(Path::new("/dev/stdout")).is_ok());
    assert!(Output::open(Path::new("/proc/self/fd/2")).is_ok());
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for (path, wanted) in [
        (folder.path().to_owned(), ErrorKind::IsADirectory),
        (at("absent/"), ErrorKind::IsADirectory),
        (at("absent/a"), ErrorKind::NotFound),
        (PathBuf::new(), ErrorKind::NotFound),
        (PathBuf::from("/"), ErrorKind::IsADirectory),
    ] {
        let error = Output::open(&path).expect_err("refused");
        assert_eq!(error.kind(), wanted, "{}: {error}", path.display());
    }
    let _listener = UnixListener::bind(at("socket")).expect("bound");
    let error = Output::open(&at("socket")).expect_err("refused");
    assert!(error.to_string().contains("socket"), "{error}");
    if is_root() {
        eprintln!("not tried: root may write whatever the mode says");
    } else {
        fs::create_dir(at("closed")).expect("made");
        fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o555)).expect("set");
        let error = Output::open(&at("closed/a")).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        fs::write(at("fixed"), "old").expect("written");
        fs::set_permissions(at("fixed"), fs::Permissions::from_mode(0o444)).expect("set");
        let error = Output::open(&at("fixed")).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
    // Between the opening and the end something else took the place: that is left alone.
    for is_named in WAYS {
        let path = at(&format!("taken-{is_named}"));
        let output = open(&path, is_named).expect("opened");
        fs::create_dir(&path).expect("made");
        output.finish().expect_err("taken");
        assert!(path.is_dir());
    }
    let left = names(folder.path());
    assert!(!left.iter().any(|name| name.ends_with(".part")), "{left:?}");
}

#[test]
fn what_is_private_follows_nothing_and_is_for_its_owner() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, victim) = (folder.path().join("a"), folder.path().join("victim"));
    fs::write(&victim, "untouched").expect("written");
    symlink(&victim, &path).expect("made");
    Output::private(&path).expect_err("a link");
    let of_folder = || rustix::fs::open(folder.path(), OFlags::PATH, Mode::empty());
    Output::at(of_folder().expect("opened"), OsStr::new("a")).expect_err("a link");
    assert_eq!(fs::read(&victim).expect("it is there"), b"untouched");
    fs::remove_file(&path).expect("removed");
    // New, and where one of ours lay that more might read.
    for _ in 0..2 {
        let output = Output::private(&path).expect("opened");
        output.finish().expect("finished");
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("set");
    }
    // The link comes while it is written.
    fs::remove_file(&path).expect("removed");
    let output = Output::private(&path).expect("opened");
    symlink(&victim, &path).expect("made");
    output.finish().expect_err("a link");
    assert_eq!(fs::read(&victim).expect("it is there"), b"untouched");
    let mut output = Output::at(of_folder().expect("opened"), OsStr::new("b")).expect("opened");
    output.write_all(b"beneath").expect("written");
    output.finish().expect("finished");
    assert_eq!(
        fs::read(folder.path().join("b")).expect("it is there"),
        b"beneath"
    );
}

#[test]
fn another_users_file_in_a_common_folder_is_not_filled() {
    if !is_root() {
        skipped::skipped("only root gives files away");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).expect("set");
    let path = folder.path().join("planted");
    fs::write(&path, "old").expect("written");
    std::os::unix::fs::chown(&path, Some(12_345), Some(12_345)).expect("given away");
    for opened in [
        Output::open(&path),
        Output::live(&path),
        Output::private(&path),
    ] {
        let error = opened.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    assert_eq!(fs::read(&path).expect("it is there"), b"old");
}

#[test]
fn what_is_live_is_seen_while_it_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    for text in ["first, and longer", "second"] {
        let mut output = Output::live(&path).expect("opened");
        output.write_all(text.as_bytes()).expect("written");
        assert_eq!(fs::read(&path).expect("it is there"), text.as_bytes());
        output.finish().expect("finished");
    }
    let link = folder.path().join("link");
    symlink("log", &link).expect("made");
    let mut output = Output::live(&link).expect("opened");
    output.write_all(b"third").expect("written");
    assert_eq!(fs::read(&path).expect("it is there"), b"third");
}
