//! Limits set by others: processor time and cores of the control group, open files, processes, namespaces.

use super::host::Host;
use super::{Finding, State};
use crate::machine::cpu_list;
use rendez::ground::limits::{PEERS_MAX, SHARDS};

/// Descriptors of one peer: socket, lane, process, doorbells and link, as the bound on peers has it.
const DESCRIPTORS_PER_PEER: u64 = 5;

/// Threads of an engine beside those of its shards, with what a command adds: more than were ever seen.
const THREADS_BESIDE_SHARDS: u64 = 16;

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

pub(super) fn processes(host: &Host) -> Finding {
    let shards = host.affinity.len().min(SHARDS) as u64;
    let wanted = 2 * (shards + THREADS_BESIDE_SHARDS);
    let most = host.of_group("pids", "pids.max");
    let now = host.of_group("pids", "pids.current");
    let left = most.iter().zip(&now).filter_map(|(most, now)| {
        let most: u64 = most.parse().ok()?;
        Some(most.saturating_sub(now.parse().ok()?))
    });
    let least = left.chain(host.threads).min();
    let is_enough = least.is_none_or(|least| least >= wanted);
    let mut found = least.map_or_else(
        || "no limit".to_owned(),
        |least| format!("{least} threads at most, for {wanted}"),
    );
    if !host.has_proc {
        found.push_str("; /proc is not mounted");
    }
    let state = match is_enough && host.has_proc {
        true => State::Good,
        false => State::Poor,
    };
    Finding::new(
        "processes",
        state,
        found,
        "/proc, and threads for two tasks: one a shard, and 16",
    )
    .mend(
        "ulimit -u; TasksMax= in a unit; the control group's pids.max; mount -t proc proc /proc",
        "engines do not start; without /proc `demo`, `bench`, `train` and `up` start no other process",
    )
}

/// Numbers the kernel gives the first namespaces of each kind.
const FIRST: [(&str, &str); 3] = [
    ("ipc", "ipc:[4026531839]"),
    ("user", "user:[4026531837]"),
    ("pid", FIRST_PID),
];
const FIRST_PID: &str = "pid:[4026531836]";

pub(super) fn namespaces(host: &Host) -> Finding {
    let link = |process: &str, kind: &str| host.link(&format!("/proc/{process}/ns/{kind}"));
    let first = FIRST.map(|(kind, first)| (kind, Some(first.to_owned())));
    // The first network has no number of its own: that of the machine's first process is taken for it, if we may look.
    let is_machines = link("self", "pid").as_deref() == Some(FIRST_PID);
    let network = ("net", link("1", "net").filter(|_| is_machines));
    let (mut own, mut unknown) = (vec![], vec![]);
    for (kind, first) in first.into_iter().chain([network]) {
        match (link("self", kind), first) {
            (Some(ours), Some(first)) if ours == first => {}
            (Some(_), Some(_)) => own.push(kind),
            _ => unknown.push(kind),
        }
    }
    let state = match own.is_empty() {
        true => State::Good,
        false => State::Poor,
    };
    let seen = [("own", own), ("unknown:", unknown)];
    let said: Vec<String> = seen
        .iter()
        .filter(|(_, kinds)| !kinds.is_empty())
        .map(|(what, kinds)| format!("{what} {}", kinds.join(", ")))
        .collect();
    let found = match said.is_empty() {
        true => "those of the machine".to_owned(),
        false => said.join("; "),
    };
    Finding::new("namespaces", state, found, "the same for all tasks that share memory").mend(
        "share the network namespace for unix:@name, or a directory for unix:/path; hostPID, or one pod for all",
        "tasks in other namespaces find each other over TCP only, or cannot prove that a peer has died",
    )
}
