//! Control groups: the files of the one that this process is in and of those above it, and what they leave of memory.
//!
//! The files lie under a root, so that a test can lay out a machine of its own.

use std::path::{Path, PathBuf};

/// What the control group that leaves the least has of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupRoom {
    /// Bytes that can still be taken: its limit, less what it holds and could not drop.
    pub left: u64,
    /// Its limit.
    pub limit: u64,
    /// The file that says so.
    pub file: PathBuf,
}

/// The files called `name` of this process's control group and those above it, nearest first, each with its text: of
/// the unified hierarchy, or of the `controller`'s own.
#[must_use]
pub fn files(root: &Path, controller: &str, name: &str) -> Vec<(PathBuf, String)> {
    let groups = text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let is_unified = controllers.is_empty();
        if !is_unified && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        let mount = root.join("sys/fs/cgroup").join(controllers);
        for above in Path::new(path.trim_start_matches('/')).ancestors() {
            let file = mount.join(above).join(name);
            found.extend(text(&file).map(|text| (file, text)));
        }
    }
    found
}

/// What the unified hierarchy leaves; none if it sets no limit.
#[must_use]
pub fn room(root: &Path) -> Option<GroupRoom> {
    let limited = files(root, "memory", "memory.max").into_iter();
    let rooms = limited.filter_map(|(file, text)| {
        let limit: u64 = text.parse().ok()?;
        let beside = |name| self::text(&file.with_file_name(name));
        let held: u64 = beside("memory.current")?.parse().ok()?;
        // Pages of files go when others are wanted; those of memory files are not counted there.
        let stat = beside("memory.stat").unwrap_or_default();
        let of = |name: &str| {
            let (_, value) = stat
                .lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(key, _)| *key == name)?;
            value.parse::<u64>().ok()
        };
        let droppable = ["active_file", "inactive_file"].map(|name| of(name).unwrap_or(0));
        let held = held.saturating_sub(droppable.iter().sum());
        let left = limit.saturating_sub(held);
        Some(GroupRoom { left, limit, file })
    });
    rooms.min_by_key(|room| room.left)
}

/// A file's text without the blanks around it, if it can be read.
fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}
