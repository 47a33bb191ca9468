//! Three hosts of one machine: `scripts/netns.sh` with the program as it was built for tests.
//!
//! It needs root and iproute2, as network namespaces do. Where they are unavailable the test says so and ends: the
//! checks' own script installs what it needs, and runs as root.

use std::process::Command;

#[path = "skipped/mod.rs"]
mod skipped;

fn can_make_hosts() -> bool {
    let name = format!("rz-probe-{}", std::process::id());
    let ip = |verb: &str| {
        let output = Command::new("ip").args(["netns", verb, &name]).output();
        output.is_ok_and(|output| output.status.success())
    };
    ip("add") && ip("del")
}

#[test]
fn tasks_of_several_hosts_meet_and_strangers_do_not() {
    if !can_make_hosts() {
        skipped::skipped("`ip netns add` is unavailable here (it needs root and iproute2)");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/netns.sh");
    let output = Command::new("bash")
        .arg(script)
        .env("RENDEZ", env!("CARGO_BIN_EXE_rendez"))
        .output()
        .expect("bash is there");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    assert!(said.contains("netns: passed"), "{said}\n{complained}");
}
