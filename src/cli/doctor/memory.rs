//! Memory: what may be locked, which pages there are, whether it can be shared, and how much there may be.

use super::host::Host;
use super::{Finding, State};
use crate::units::show_bytes;
use rendez::ground::limits::SHARDS;
use rendez::memory::ArenaConfig;

pub(super) fn memlock(host: &Host) -> Finding {
    let (state, found) = match (host.memlock_bytes, host.may_lock) {
        (None, _) => (State::Good, "no limit".to_owned()),
        (Some(bytes), true) => (
            State::Good,
            format!("{}, not enforced (CAP_IPC_LOCK)", show_bytes(bytes)),
        ),
        (Some(bytes), false) => (State::Poor, show_bytes(bytes)),
    };
    Finding::new("memlock", state, found, "no limit, or CAP_IPC_LOCK").mend(
        "ulimit -l unlimited; LimitMEMLOCK=infinity in a unit; capability IPC_LOCK in a container",
        "arenas cannot be registered with an RDMA device",
    )
}

pub(super) fn huge_pages(host: &Host) -> Finding {
    let number = |name| {
        let value = host.field("/proc/meminfo", name)?;
        value.split(' ').next()?.parse::<u64>().ok()
    };
    let free = number("HugePages_Free").unwrap_or(0);
    let total = number("HugePages_Total").unwrap_or(0);
    let shared = host
        .text("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
        .and_then(|text| Some(text.split(['[', ']']).nth(1)?.to_owned()));
    let merges = shared
        .as_deref()
        .is_some_and(|setting| !matches!(setting, "never" | "deny"));
    let state = if free > 0 || merges {
        State::Good
    } else {
        State::Poor
    };
    let found = format!(
        "{free} of {total} reserved ones free; merging of shared memory: {}",
        shared.as_deref().unwrap_or("unknown")
    );
    Finding::new("huge pages", state, found, "reserved ones free, or merging allowed (advise)").mend(
        "sysctl vm.nr_hugepages=2048 (4 GiB of 2 MiB pages), or echo advise > \
         /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "512 times the page faults when an arena is first touched, and more misses on large tensors",
    )
}

pub(super) fn shared_memory(host: &Host) -> Finding {
    const WANTED: &str = "memfd_create with seals";
    match &host.memfd_refusal {
        None => Finding::new("shared memory", State::Good, "sealed memory is available", WANTED),
        Some(why) => Finding::new("shared memory", State::Broken, format!("refused: {why}"), WANTED).mend(
            "allow memfd_create, ftruncate and fcntl in the container's seccomp profile; let files be as long as a \
             segment (`ulimit -f unlimited`, or LimitFSIZE=infinity in a unit); run Linux 5.1 or later",
            "no arena can be made",
        ),
    }
}

pub(super) fn bytes(host: &Host) -> Finding {
    let one = ArenaConfig::default().bytes_max;
    let arenas = host.affinity.len().min(SHARDS) as u64 + 1;
    let limits = [
        ("memory", "memory.max"),
        ("memory", "memory.limit_in_bytes"),
    ]
    .iter()
    .flat_map(|(controller, name)| host.of_group(controller, name))
    .filter_map(|text| text.parse::<u64>().ok());
    let available = host
        .field("/proc/meminfo", "MemAvailable")
        .and_then(|text| {
            Some(
                text.split(' ')
                    .next()?
                    .parse::<u64>()
                    .ok()?
                    .saturating_mul(1024),
            )
        });
    let least = limits.chain(available).chain(host.address_bytes).min();
    let (state, found) = match least {
        None => (State::Poor, "unknown".to_owned()),
        Some(bytes) => {
            let state = if bytes >= one.saturating_mul(arenas) {
                State::Good
            } else {
                State::Poor
            };
            (state, format!("{} for {arenas} arenas", show_bytes(bytes)))
        }
    };
    Finding::new("memory", state, found, "4 GiB for each arena: one a shard, and one").mend(
        "raise the control group's memory.max, `ulimit -v`, or lower arena_bytes or shards",
        "where addresses run out engines do not start, or sends end; when arenas fill up the kernel ends the process, \
         where a lower arena_bytes would end one send",
    )
}
