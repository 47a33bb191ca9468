//! Cores: which this process may run on, whether others run there too, and at what speed.

use super::host::Host;
use super::{Finding, State};
use crate::machine::cpu_list;

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
    // The system keeps the first core with all its threads; what is left of the mask may be isolated.
    let kept = host
        .affinity
        .first()
        .map_or_else(Vec::new, |first| threads_of(host, *first));
    let spare: Vec<usize> = host
        .affinity
        .iter()
        .copied()
        .filter(|core| !kept.contains(core))
        .collect();
    let mend = match show_list(&spare) {
        list if list.is_empty() => {
            "nothing here: this process may use one core, and the system needs that; allow it more"
                .into()
        }
        list => format!(
            "boot with isolcpus=managed_irq,domain,{list} nohz_full={list}, and set `cores` to {}",
            show_list(&one_thread_each(host, &spare))
        ),
    };
    Finding::new("isolation", state, found, "isolated cores for shards with poll = busy").mend(
        mend,
        "other processes and ticks take microseconds to milliseconds of a shard's core: tails, not medians",
    )
}

pub(super) fn siblings(host: &Host) -> Finding {
    let is_shared = |core: &&usize| threads_of(host, **core).len() > 1;
    let shared = host.affinity.iter().filter(is_shared).count();
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
    let elsewhere = "move other work elsewhere; poll = park where it must stay";
    let mend = match shared {
        0 => elsewhere.to_owned(),
        _ => format!(
            "set `cores` to {}, one thread of each core; {elsewhere}",
            show_list(&one_thread_each(host, &host.affinity))
        ),
    };
    Finding::new(
        "sharing",
        state,
        found,
        "whole cores, and no more work than cores",
    )
    .mend(
        mend,
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

/// The threads of the core that `core` is one of, itself among them.
fn threads_of(host: &Host, core: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let mut threads = cores(host, &path);
    if !threads.contains(&core) {
        threads.push(core);
    }
    threads
}

/// Of each core that has a thread among `list`, the first.
fn one_thread_each(host: &Host, list: &[usize]) -> Vec<usize> {
    let mut chosen: Vec<usize> = Vec::new();
    for core in list {
        let threads = threads_of(host, *core);
        if !chosen.iter().any(|chosen| threads.contains(chosen)) {
            chosen.push(*core);
        }
    }
    chosen
}

/// 0, 1, 2 and 8 as `0-2,8`.
fn show_list(cores: &[usize]) -> String {
    let runs = cores.chunk_by(|one, next| one + 1 == *next);
    let show = |run: &[usize]| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run.iter().map(ToString::to_string).collect(),
    };
    runs.map(show).collect::<Vec<_>>().join(",")
}

fn cores(host: &Host, path: &str) -> Vec<usize> {
    host.text(path)
        .map_or_else(Vec::new, |text| cpu_list(&text))
}
