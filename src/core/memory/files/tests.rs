//! Files in memory meet what a system forbids: an error each, and no signal.

use rustix::fs::{SealFlags, fcntl_get_seals};
use rustix::process::{Rlimit, setrlimit};

use super::*;
use crate::ground::{Status, catalogue};
use crate::memory::words::Words;
use crate::memory::{ArenaConfig, ArenaId, HugePages, Pool};

const CHILD: &str = "RENDEZ_TEST_FILE_LIMIT";

/// From Linux 6.3 on no file of ours can be executed, and where the kernel takes no other there is one all the same.
#[test]
fn no_file_can_be_executed_where_the_kernel_can_say_so() {
    let file = create_of(c"rendez-test", 4096).unwrap();
    let seals = fcntl_get_seals(&file).unwrap();
    let knows = rustix::fs::memfd_create(c"rendez-test", MemfdFlags::NOEXEC_SEAL).is_ok();
    assert_eq!(seals.contains(SealFlags::from_bits_retain(0x20)), knows);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4096);
}

/// A limit that batch systems and units set. The test is a process of its own: the limit is one of the process, and so
/// is the end that it brings.
#[test]
fn a_limit_of_files_is_an_error_and_not_the_end_of_the_process() {
    if std::env::var_os(CHILD).is_none() {
        let this = std::env::current_exe().unwrap();
        let name = "a_limit_of_files_is_an_error_and_not_the_end_of_the_process";
        let mut child = std::process::Command::new(this);
        child.args(["--nocapture", name]).env(CHILD, "1");
        let ended = child.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(
            ended.status.success() && said.contains("1 passed"),
            "{ended:?}"
        );
        return;
    }
    let (current, maximum) = (Some(1 << 20), getrlimit(Resource::Fsize).maximum);
    setrlimit(Resource::Fsize, Rlimit { current, maximum }).unwrap();
    let config = ArenaConfig {
        segment_bytes: 4 << 20,
        bytes_max: 64 << 20,
        huge_pages: HugePages::Auto,
    };
    let status = Status::from(Pool::new(ArenaId(3), config).unwrap_err());
    assert_eq!(status.reason(), catalogue::SYSTEM_LIMIT);
    assert!(status.message().contains("ulimit -f"), "{status}");
    let error = Words::anonymous(1 << 20).unwrap_err().to_string();
    assert!(error.contains("ulimit -f"), "{error}");
    let file = tempfile::tempfile().unwrap();
    let error = Words::in_file(file, 1 << 20).unwrap_err().to_string();
    assert!(error.contains("ulimit -f"), "{error}");
    // What is short enough is made.
    create_of(c"rendez-test", 1 << 20).unwrap();
}
