//! The command where containers put it: no io_uring or a part of it, and next to no lockable memory.
//!
//! The filter and the limit are set in the child between fork and exec, so the program starts under them, and so does
//! the second process that it starts itself.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};
use rustix::thread::CapabilitySet;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// `io_uring_setup`, `io_uring_enter` and `io_uring_register`, which have these numbers on every machine.
const IO_URING: [i64; 3] = [425, 426, 427];

/// The memory that default container profiles let a process lock.
const MEMLOCK: u64 = 64 << 10;

#[test]
fn the_demonstration_runs_without_rings_and_without_lockable_memory() {
    let output = demo();
    let shown = whole(&output);
    let runtime = shown
        .lines()
        .find(|line| line.starts_with("control "))
        .unwrap_or_default();
    assert!(
        runtime.contains("Poll: "),
        "it must say what it runs on: {shown}"
    );
    assert!(runtime.contains("io_uring"), "and why: {runtime}");
}

/// A ring that cannot be used is none: one that can be made and not entered would stop the control plane.
#[test]
fn rings_that_can_be_made_and_not_used_are_left_alone() {
    let [_, enter, register] = IO_URING;
    for (call, name) in [(enter, "io_uring_enter"), (register, "io_uring_register")] {
        for errno in [Errno::PERM, Errno::NOSYS] {
            let under = |args: &[&str]| {
                let mut command = rendez(args);
                refuse(&mut command, &[call], errno);
                command.output().unwrap()
            };
            let output = under(&["demo", "--rounds", "20"]);
            let shown = whole(&output);
            assert!(
                shown.contains(&format!("Poll: {name} is refused")),
                "{shown}"
            );
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!said.contains("panicked"), "{said}");
            let output = under(&["doctor"]);
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(
                shown.contains(&format!("poor   io_uring         {name}")),
                "{shown}"
            );
        }
    }
}

#[test]
fn the_filter_is_in_force() {
    let mut command = Command::new("/bin/cat");
    command.args(["/proc/self/status", "/proc/self/limits"]);
    limit_memlock(&mut command);
    refuse(&mut command, &IO_URING, Errno::PERM);
    let shown = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let field = |name: &str| {
        shown
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
            .unwrap_or_default()
    };
    assert_eq!(field("Seccomp:"), "2", "{shown}");
    assert!(field("Max locked memory").starts_with("65536"), "{shown}");
    let capabilities = u64::from_str_radix(field("CapEff:"), 16).unwrap();
    assert_eq!(
        capabilities & CapabilitySet::IPC_LOCK.bits(),
        0,
        "without the limit in force the test shows nothing"
    );
}

#[test]
fn address_space_that_a_table_does_not_get_is_told_of() {
    let output = Command::new("sh")
        .args(["-c", "ulimit -v 450000 && exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_rendez"))
        .args(["serve", "--shards=1", "--task=/job:a/task:0"])
        .arg("--cluster=a=127.0.0.1:1")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("error[SYSTEM_LIMIT]: "), "{said}");
    assert!(said.contains("raise `ulimit -v`"), "{said}");
}

/// What a demonstration that went well has shown.
fn whole(output: &Output) -> String {
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        shown.contains("12 tensors") && shown.contains("every byte"),
        "{shown}"
    );
    shown
}

fn demo() -> Output {
    let mut command = rendez(&["demo", "--rounds", "20"]);
    limit_memlock(&mut command);
    refuse(&mut command, &IO_URING, Errno::PERM);
    command.output().unwrap()
}

fn rendez(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendez"));
    command.args(args).stdin(Stdio::null());
    command
}

fn limit_memlock(command: &mut Command) {
    let prepare = || {
        let limit = Rlimit {
            current: Some(MEMLOCK),
            maximum: Some(MEMLOCK),
        };
        rustix::process::setrlimit(Resource::Memlock, limit)?;
        // A process that may lock memory has no limit. What the bounding set lacks is gone after exec, even for root;
        // one that may not change that set is not root, and has no such capability either.
        let _ = rustix::thread::remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK);
        Ok(())
    };
    // SAFETY: `prepare` runs in the child between fork and exec, where only async-signal-safe calls are allowed: it
    // makes system calls (prlimit64, prctl), and neither allocates nor locks. Its error is a number.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Has the system refuse these calls, with this error.
fn refuse(command: &mut Command, calls: &[i64], errno: Errno) {
    let filter = filter(calls, errno);
    let prepare =
        move || seccompiler::apply_filter(&filter).map_err(|_| io::Error::from_raw_os_error(1));
    // SAFETY: as above: it makes system calls (prctl, seccomp) on a filter that was made before the fork and is only
    // read, and neither allocates nor locks. Its error is a number.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// What refuses `calls`, as container profiles do, and allows all else.
fn filter(calls: &[i64], errno: Errno) -> BpfProgram {
    let architecture = TargetArch::try_from(std::env::consts::ARCH).expect("a known architecture");
    let rules = calls.iter().map(|number| (*number, Vec::new())).collect();
    let refused = SeccompAction::Errno(errno.raw_os_error() as u32);
    let filter =
        SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture).expect("a filter");
    filter.try_into().expect("a program")
}
