//! Instructions of what one function calls, counted by valgrind: in a process of its own, by a test named `child`.

use std::hint::black_box;
use std::process::Command;

/// Set where `child` is to run, and is counted: `1`, or what it is to do.
pub(crate) const ROLE: &str = "RENDEZ_COST";

/// What is counted: what this function calls.
#[inline(never)]
pub(crate) fn counted<R>(what: impl FnOnce() -> R) -> R {
    black_box(what())
}

/// How many instructions `child` in this role has in all that it gives to [`counted`].
pub(crate) fn instructions(role: &str) -> f64 {
    if cfg!(debug_assertions) {
        panic!("an optimised build is wanted: --release");
    }
    let out = std::env::temp_dir().join(format!("rendez-cost-{}-{role}", std::process::id()));
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*counted::counted*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().expect("a path"))
        .args(["--exact", "child", "--ignored", "--test-threads=1"])
        .env(ROLE, role)
        .output()
        .unwrap_or_else(|error| {
            panic!("valgrind, which counts: {error}; `apt-get install valgrind`")
        });
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    let profile = std::fs::read_to_string(&out).expect("a profile");
    std::fs::remove_file(&out).expect("it was there");
    let total = profile.lines().find_map(|line| {
        let total = line
            .strip_prefix("totals: ")
            .or_else(|| line.strip_prefix("summary: "))?;
        total.trim().parse::<f64>().ok()
    });
    total.expect("a sum")
}
