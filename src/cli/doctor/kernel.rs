//! The kernel: rings, the clock, and TLS.

use super::host::Host;
use super::{Finding, State};

pub(super) fn io_uring(host: &Host) -> Finding {
    let finding =
        |state, found: &str| Finding::new("io_uring", state, found, "rings for the control plane");
    let Some(why) = &host.ring_refusal else {
        return finding(State::Good, "the control plane runs on it");
    };
    let disabled = host.text("/proc/sys/kernel/io_uring_disabled");
    let seccomp = host.field("/proc/self/status", "Seccomp");
    let filtered = format!("{why}; a seccomp filter is set, as containers have");
    let (found, mend) = match (disabled.as_deref(), seccomp.as_deref()) {
        _ if why.starts_with("RLIMIT_MEMLOCK") => (why.as_str(), "see memlock"),
        (Some("1"), _) => (
            "kernel.io_uring_disabled is 1: only CAP_SYS_ADMIN and a group may",
            "sysctl kernel.io_uring_disabled=0, or name the group in kernel.io_uring_group",
        ),
        (Some("2"), _) => (
            "kernel.io_uring_disabled is 2",
            "sysctl kernel.io_uring_disabled=0",
        ),
        (_, Some("2")) => (
            filtered.as_str(),
            "a seccomp profile that allows io_uring_setup, io_uring_enter and io_uring_register",
        ),
        _ if why.contains("(os error 38)") => ("this kernel has none", "a kernel with io_uring"),
        _ => (why.as_str(), "see memlock"),
    };
    finding(State::Poor, found).mend(
        mend,
        "the control plane runs on poll: more system calls, the same results; data needs no rings",
    )
}

pub(super) fn clock(host: &Host) -> Finding {
    let source = host.text("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let flags = host.field("/proc/cpuinfo", "flags").unwrap_or_default();
    let has = |name: &str| flags.split(' ').any(|flag| flag == name);
    let steady = has("constant_tsc") && has("nonstop_tsc");
    let found = format!(
        "{}; the processor's counter is {}",
        source.as_deref().unwrap_or("unknown"),
        if steady {
            "steady"
        } else {
            "not known to be steady"
        }
    );
    // These are read without a system call.
    let is_cheap = matches!(
        source.as_deref(),
        Some("tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page" | "arch_sys_counter")
    );
    let state = if steady || is_cheap {
        State::Good
    } else {
        State::Poor
    };
    Finding::new("clock source", state, found, "a steady counter, or tsc").mend(
        "boot with tsc=reliable if the machine's counter is one; in a virtual machine let the host pass it on",
        "each reading of the clock is a system call, of which a busy shard makes one for every burst",
    )
}

pub(super) fn tls(host: &Host) -> Finding {
    const WANTED: &str = "a kernel that keeps TLS records, if you set TLS";
    let cost = "under TLS the process seals and opens what data connections carry: a copy each way";
    match &host.tls_refusal {
        None => Finding::new(
            "tls",
            State::Good,
            "the kernel can keep the records",
            WANTED,
        ),
        Some(why) => Finding::new("tls", State::Poor, why.clone(), WANTED)
            .mend("modprobe tls, if tls_cert is set; else nothing", cost),
    }
}
