//! This program, started again as another process: a task, or the far side of a measurement.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// What runs here, by the link to it: its file may have been replaced or removed since it was started.
pub(crate) const ITSELF: &str = "/proc/self/exe";

/// What lists of processes show it as.
const NAME: &str = "rendez";

/// A command that starts it again.
pub(crate) fn again() -> Command {
    start(Path::new(ITSELF))
}

/// A command that starts this program from another file.
pub(crate) fn start(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg0(NAME);
    command
}

/// Names the process, which is called by the last part of the path that it was started by. Without the name nothing
/// fails.
pub(crate) fn name() {
    let _ = rustix::thread::set_name(c"rendez");
}
