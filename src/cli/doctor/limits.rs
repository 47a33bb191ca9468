//! Limits set by others: processor time and cores of the control group, open files, namespaces.

use super::host::Host;
use super::{Finding, State};
use crate::machine::cpu_list;
use rendez::ground::limits::PEERS_MAX;

/// Descriptors of one peer: socket, lane, process, doorbells and link, as the bound on peers has it.
const DESCRIPTORS_PER_PEER: u64 = 5;

pub(super) fn cpu_time(host: &Host) -> Finding {
    // Unified: "max 100000" or "50000 100000". Before that, two files, and -1 for no limit.
    let unified = host
        .of_group("cpu", "cpu.max")
        .into_iter()
        .filter_map(|text| {
            let (quota, period) = text.split_once(' ')?;
            Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
        });
    let quotas = host.of_group("cpu", "cpu.cfs_quota_us");
    let periods = host.of_group("cpu", "cpu.cfs_period_us");
    let older = quotas.iter().zip(&periods).filter_map(|(quota, period)| {
        let quota = quota.parse::<f64>().ok().filter(|quota| *quota > 0.0)?;
        Some(quota / period.parse::<f64>().ok()?)
    });
    let least = unified
        .chain(older)
        .filter(|cores| cores.is_finite())
        .min_by(f64::total_cmp);
    let (state, found) = match least {
        None => (State::Good, "no quota".to_owned()),
        Some(cores) => (State::Poor, format!("{cores:.2} cores' worth")),
    };
    Finding::new("processor time", state, found, "no quota (cpu.max is max)").mend(
        "cpu.max = max; in Kubernetes whole cores by the static CPU manager, and no fraction as a limit; poll = park",
        "spinning shards use the quota up, and then everything stands still for tens of milliseconds, each period",
    )
}

pub(super) fn cpu_set(host: &Host) -> Finding {
    const WANTED: &str = "all cores of the affinity mask, for good";
    let sets = ["cpuset.cpus.effective", "cpuset.effective_cpus"].map(|name| {
        host.of_group("cpuset", name)
            .into_iter()
            .find(|text| !text.is_empty())
    });
    let Some(set) = sets.into_iter().flatten().next() else {
        return Finding::new(
            "cpuset",
            State::None,
            "the control group names no cores",
            WANTED,
        );
    };
    let cores = cpu_list(&set);
    let outside = host
        .affinity
        .iter()
        .filter(|core| !cores.contains(core))
        .count();
    let state = if outside == 0 {
        State::Good
    } else {
        State::Poor
    };
    Finding::new(
        "cpuset",
        state,
        format!("{set}; {outside} of the mask are outside"),
        WANTED,
    )
    .mend(
        "start the process after its cpuset is final, or name cores inside it in `cores`",
        "the kernel moves pinned shards, and several may end up on one core",
    )
}

pub(super) fn descriptors(host: &Host) -> Finding {
    let wanted = PEERS_MAX as u64 * DESCRIPTORS_PER_PEER;
    let (now, most) = host.descriptors;
    let show =
        |limit: Option<u64>| limit.map_or_else(|| "no limit".into(), |limit| limit.to_string());
    let state = if now.is_none_or(|now| now >= wanted) {
        State::Good
    } else {
        State::Poor
    };
    let found = format!("{} now, {} at most", show(now), show(most));
    Finding::new(
        "open files",
        state,
        found,
        "5120: five for each of 1024 peers",
    )
    .mend(
        "ulimit -n 8192; LimitNOFILE=8192 in a unit",
        "peers past a fifth of the limit are refused",
    )
}

/// Numbers the kernel gives the first namespaces of each kind.
const FIRST: [(&str, &str); 3] = [
    ("ipc", "ipc:[4026531839]"),
    ("user", "user:[4026531837]"),
    ("pid", "pid:[4026531836]"),
];

pub(super) fn namespaces(host: &Host) -> Finding {
    let own: Vec<&str> = FIRST
        .iter()
        .filter(|(kind, first)| {
            let link = host.link(&format!("/proc/self/ns/{kind}"));
            link.is_some_and(|link| link != *first)
        })
        .map(|(kind, _)| *kind)
        .collect();
    let (state, found) = if own.is_empty() {
        (State::Good, "those of the machine".to_owned())
    } else {
        (State::Poor, format!("own {}", own.join(", ")))
    };
    Finding::new("namespaces", state, found, "the same for all tasks that share memory").mend(
        "share the network namespace for unix:@name, or a directory for unix:/path; hostPID, or one pod for all",
        "tasks in other namespaces find each other over TCP only, or cannot prove that a peer has died",
    )
}
