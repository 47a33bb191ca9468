//! Cores: which this process may run on, whether others run there too, and at what speed.

use super::host::Host;
use super::{Finding, State};
use crate::cli::machine::cpu_list;

pub(super) fn affinity(host: &Host) -> Finding {
    const WANTED: &str = "two cores or more";
    let list: Vec<String> = host.affinity.iter().map(ToString::to_string).collect();
    let online = host.text("/sys/devices/system/cpu/online");
    let found = format!(
        "may use {}, of {} online",
        if list.is_empty() {
            "none".into()
        } else {
            list.join(",")
        },
        online.as_deref().unwrap_or("an unknown number")
    );
    let state = match host.affinity.len() {
        0 => State::Broken,
        1 => State::Poor,
        _ => State::Good,
    };
    Finding::new("affinity", state, found, WANTED).mend(
        "taskset, or the cpuset of the container; allow sched_getaffinity if it is refused",
        "shards, control plane and application take turns on one core: a hand-over then costs a switch",
    )
}

pub(super) fn isolation(host: &Host) -> Finding {
    let isolated = cores(host, "/sys/devices/system/cpu/isolated");
    let tickless = cores(host, "/sys/devices/system/cpu/nohz_full");
    let ours = |list: &[usize]| {
        host.affinity
            .iter()
            .filter(|core| list.contains(core))
            .count()
    };
    let (mine, of) = (ours(&isolated), host.affinity.len());
    let found = format!("{mine} of {of} isolated, {} without ticks", ours(&tickless));
    let state = if mine > 0 { State::Good } else { State::Poor };
    Finding::new("isolation", state, found, "isolated cores for shards with poll = busy").mend(
        "boot with isolcpus=managed_irq,domain,2-7 nohz_full=2-7, and name these in `cores`",
        "other processes and ticks take microseconds to milliseconds of a shard's core: tails, not medians",
    )
}

pub(super) fn siblings(host: &Host) -> Finding {
    let beside = |core: &usize| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        cores(host, &path)
            .into_iter()
            .filter(|other| other != core)
            .collect::<Vec<_>>()
    };
    let shared = host
        .affinity
        .iter()
        .filter(|core| !beside(core).is_empty())
        .count();
    let load = host.text("/proc/loadavg").unwrap_or_default();
    let load = load
        .split(' ')
        .next()
        .and_then(|load| load.parse::<f64>().ok());
    let busy = load.is_some_and(|load| load > host.affinity.len() as f64);
    let found = format!(
        "{shared} of {} are threads of a shared core; load {}",
        host.affinity.len(),
        load.map_or_else(|| "unknown".into(), |load| format!("{load:.1}"))
    );
    let state = if shared == 0 && !busy {
        State::Good
    } else {
        State::Poor
    };
    Finding::new("sharing", state, found, "whole cores, and no more work than cores").mend(
        "name one thread of each core in `cores`; move other work elsewhere; poll = park where it must stay",
        "a thread beside a spinning shard runs at about half speed, and the other way round",
    )
}

pub(super) fn governor(host: &Host) -> Finding {
    const WANTED: &str = "performance";
    let path = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    let Some(governor) = host.text(path) else {
        return Finding::new(
            "governor",
            State::None,
            "the kernel has no say in it here",
            WANTED,
        );
    };
    let state = if governor == WANTED {
        State::Good
    } else {
        State::Poor
    };
    Finding::new("governor", state, governor, WANTED).mend(
        "cpupower frequency-set -g performance",
        "after a pause the first hand-overs run at a low clock",
    )
}

fn cores(host: &Host, path: &str) -> Vec<usize> {
    host.text(path)
        .map_or_else(Vec::new, |text| cpu_list(&text))
}
