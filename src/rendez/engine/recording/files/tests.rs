//! Recorders that cannot be made, and those that other lives have left.

use std::time::{Duration, SystemTime};

use super::*;
use crate::drive::Driver;
use crate::engine::Engine;

/// Where this lies, the second shard gets no recorder.
const BLOCKED: &str = "blocked";

/// What happens to a new file in a test.
pub(super) fn fail(path: &Path, shard: usize) -> std::io::Result<()> {
    match shard == 1 && path.with_file_name(BLOCKED).exists() {
        true => Err(std::io::ErrorKind::AlreadyExists.into()),
        false => Ok(()),
    }
}

/// Where this lies, there is room for three recorders.
const FULL: &str = "full";

/// Where this lies, no blocks can be taken before they are written.
const UNABLE: &str = "unable";

/// What happens when a recorder takes its blocks in a test.
pub(super) fn has_room(path: &Path) -> std::io::Result<()> {
    if path.with_file_name(UNABLE).exists() {
        return Err(rustix::io::Errno::OPNOTSUPP.into());
    }
    let entries = fs::read_dir(path.parent().expect("a folder")).expect("a folder");
    match path.with_file_name(FULL).exists() && entries.count() > 1 + 3 {
        true => Err(rustix::io::Errno::NOSPC.into()),
        false => Ok(()),
    }
}

/// The recorders of a folder.
fn recorders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let mut found: Vec<_> = entries.map(|entry| entry.path()).collect();
    found.sort();
    found
}

/// Of one shard, which records into `folder`.
fn config(folder: &Path) -> Config {
    let mut config = Config::new("/job:a/task:0");
    (config.shards, config.share_cores, config.stage_sampling) = (1, true, 1);
    config.recorder_dir = Some(folder.to_owned());
    config
}

#[test]
fn a_folder_that_is_not_there_is_made_for_its_owner_alone() {
    let above = tempfile::tempdir().expect("a folder");
    let folder = above.path().join("recorders");
    let engine = Engine::start(config(&folder)).expect("it starts");
    assert_eq!(recorders(&folder).len(), 1);
    let mode = fs::metadata(&folder).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    engine.shutdown(Duration::ZERO);
    let file = above.path().join("file");
    fs::write(&file, b"").expect("written");
    let refused = Engine::start(config(&file)).expect_err("it is no folder");
    assert_eq!(refused.reason(), catalogue::FILE_UNWRITABLE);
    assert!(refused.message().starts_with("recorder_dir: "), "{refused}");
}

/// As on NFS 3: a recorder that has no blocks yet would end the process when the folder is full.
#[test]
fn a_recorder_is_written_where_blocks_cannot_be_taken_ahead() {
    let folder = tempfile::tempdir().expect("a folder");
    let unable = folder.path().join(UNABLE);
    fs::write(&unable, "").expect("written");
    let engine = Engine::start(config(folder.path())).expect("it starts");
    let mut found = recorders(folder.path());
    found.retain(|path| *path != unable);
    assert_eq!(found.len(), 1, "{found:?}");
    let of = fs::metadata(&found[0]).expect("made");
    assert!(of.len() > 0 && of.blocks() * 512 >= of.len(), "{of:?}");
    engine.shutdown(Duration::ZERO);
}

#[test]
fn an_engine_takes_no_recorder_of_another_of_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut config = config(folder.path());
    let first = Engine::start(config.clone()).expect("it starts");
    let before = recorders(folder.path());
    assert_eq!(before.len(), 1, "{before:?}");
    // One that cannot start: the address is taken.
    config.listen = first.address().cloned();
    Engine::start(config.clone()).expect_err("it is there already");
    assert_eq!(recorders(folder.path()), before);
    // Some that run beside it, and more than are kept of the dead.
    config.control = false;
    let start = |_| Engine::start(config.clone()).expect("it starts");
    let others: Vec<_> = (0..=RECORDINGS_LEFT).map(start).collect();
    assert_eq!(recorders(folder.path()).len(), 1 + others.len());
    others
        .iter()
        .for_each(|other| other.shutdown(Duration::ZERO));
    assert_eq!(recorders(folder.path()), before);
    first.shutdown(Duration::ZERO);
    assert_eq!(recorders(folder.path()).len(), 0);
}

#[test]
fn the_last_lives_that_crashed_keep_their_recorders() {
    let folder = tempfile::tempdir().expect("a folder");
    let task = TaskName::parse("/job:a/task:0").expect("a name");
    // All have our number, as after restarts of a container.
    let crashed = |life: u64, shard| {
        let path = folder.path().join(name(&task, Incarnation(life), shard));
        let file = File::create_new(&path).expect("made");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(life);
        file.set_modified(at).expect("set");
        path
    };
    let lives = 1..=RECORDINGS_LEFT as u64 + 2;
    let mut left: Vec<_> = lives.rev().map(|life| crashed(life, 0)).collect();
    left.truncate(RECORDINGS_LEFT);
    let copy = copy_of(&name(&task, Incarnation(1), 0), "asked");
    let copy = folder.path().join(copy);
    fs::write(&copy, "").expect("written");
    left.extend([crashed(1, 1), copy]);
    left.sort();
    for _ in 0..2 {
        let engine = Engine::start(config(folder.path())).expect("it starts");
        let found = recorders(folder.path());
        assert_eq!(found.len(), left.len() + 1);
        assert!(left.iter().all(|left| found.contains(left)), "{found:?}");
        engine.shutdown(Duration::ZERO);
        assert_eq!(recorders(folder.path()), left);
    }
}

/// As in a container whose folder has room for one life: each restart would fail for what the crash before it left.
#[test]
fn what_crashes_left_makes_room_where_there_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let task = TaskName::parse("/job:a/task:0").expect("a name");
    fs::write(folder.path().join(FULL), "").expect("written");
    let left = [(1, 0), (2, 3), (3, 1)].map(|(life, shard): (u64, u16)| {
        let path = folder.path().join(name(&task, Incarnation(life), shard));
        let file = File::create_new(&path).expect("made");
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(life);
        file.set_modified(at).expect("set");
        path
    });
    let engine = Engine::start(config(folder.path())).expect("it starts");
    assert!(!left[0].exists(), "the oldest made room");
    assert!(left[1].exists() && left[2].exists());
    // Of those that run none makes room, nor does what is not of this task.
    let mut another = config(folder.path());
    another.control = false;
    let engines: Vec<_> = (0..3)
        .map_while(|_| Engine::start(another.clone()).ok())
        .collect();
    assert_eq!(engines.len(), 2);
    let found = recorders(folder.path());
    assert_eq!(
        found.len(),
        1 + 3,
        "a start that failed leaves nothing: {found:?}"
    );
    for engine in engines.iter().chain([&engine]) {
        engine.shutdown(Duration::ZERO);
    }
    assert_eq!(recorders(folder.path()).len(), 1);
}

/// A copy that another life of the task has left of a shard at that time, all with one number of a process, as after
/// restarts of a container.
fn copy(folder: &Path, life: u64, why: &str, shard: u16, at: u64) -> PathBuf {
    let task = TaskName::parse("/job:a/task:0").expect("a name");
    let path = folder.join(copy_of(&name(&task, Incarnation(life), shard), why));
    let file = File::create_new(&path).expect("made");
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(at);
    file.set_modified(at).expect("set");
    path
}

#[test]
fn the_last_missed_deadlines_of_other_lives_keep_their_copies() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let kept = RECORDINGS_LEFT as u64;
    let copies = (1..=kept + 2).map(|at| copy(folder, at, "missed", 0, at));
    let mut left: Vec<_> = copies.collect();
    let gone: Vec<_> = left.drain(..2).collect();
    // Another shard's, and those that were asked for.
    left.push(copy(folder, 1, "missed", 1, 1));
    let asked = (1..=kept + 2).map(|at| copy(folder, at, "asked", 0, 1));
    left.extend(asked);
    left.sort();
    let engine = Engine::start(config(folder)).expect("it starts");
    engine.shutdown(Duration::ZERO);
    assert_eq!(recorders(folder), left);
    assert!(gone.iter().all(|gone| !gone.exists()));
}

#[test]
fn a_copy_replaces_none_of_an_earlier_life() {
    let folder = tempfile::tempdir().expect("a folder");
    for lives in 1..=2 {
        let engine = Engine::start(config(folder.path())).expect("it starts");
        for _ in 0..2 {
            engine.dump(folder.path(), MISSED).expect("written");
        }
        engine.shutdown(Duration::ZERO);
        assert_eq!(recorders(folder.path()).len(), lives);
    }
}

/// As where each life misses a deadline, ends in good order, and has a number of its own.
#[test]
fn what_missed_deadlines_left_makes_room_after_what_crashes_left() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    fs::write(folder.join(FULL), "").expect("written");
    let task = TaskName::parse("/job:a/task:0").expect("a name");
    let crashed = folder.join(name(&task, Incarnation(1), 0));
    File::create_new(&crashed).expect("made");
    let missed = copy(folder, 1, "missed", 3, 1);
    let asked = copy(folder, 2, "asked", 0, 1);
    let mut config = config(folder);
    config.control = false;
    let first = Engine::start(config.clone()).expect("it starts");
    assert!(!crashed.exists() && missed.exists(), "the life goes first");
    let second = Engine::start(config.clone()).expect("it starts");
    assert!(!missed.exists(), "the copy makes room");
    let status = Engine::start(config).expect_err("there is no more to remove");
    assert_eq!(status.reason(), catalogue::FILE_UNWRITABLE);
    for engine in [first, second] {
        engine.shutdown(Duration::ZERO);
    }
    assert!(asked.exists());
}

/// A recorder of `folder` is open or mapped in this process.
fn is_held(folder: &Path) -> bool {
    let folder = folder.to_str().expect("text");
    let open = fs::read_dir("/proc/self/fd").expect("descriptors");
    let mut open = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let mapped = fs::read_to_string("/proc/self/maps").expect("mappings");
    open.any(|path| path.starts_with(folder)) || mapped.contains(folder)
}

/// The recorder of the second shard cannot be made when the first shard runs already.
#[test]
fn a_start_that_fails_leaves_no_shard_behind() {
    for drive in [Driver::Thread, Driver::Caller] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = Config::new("/job:halfway/task:0");
        (config.shards, config.share_cores) = (2, true);
        (config.stage_sampling, config.control, config.drive) = (1, false, drive);
        config.recorder_dir = Some(folder.path().to_owned());
        fs::write(folder.path().join(BLOCKED), "").expect("made");
        let status = Engine::start(config).expect_err("blocked");
        assert_eq!(status.reason(), catalogue::FILE_UNWRITABLE);
        assert!(!is_held(folder.path()), "a shard goes on");
        let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
