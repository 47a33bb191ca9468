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

/// What happens when a recorder takes its blocks in a test.
pub(super) fn has_room(path: &Path) -> std::io::Result<()> {
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
    let copy = folder.path().join(format!("{}-asked.rdz", stem(&task, 0)));
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
