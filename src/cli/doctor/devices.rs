//! Devices: RDMA, GPUs, and the networks' frames.

use super::host::Host;
use super::{Finding, State};

pub(super) fn rdma(host: &Host) -> Finding {
    const WANTED: &str = "a device with an active port, and /dev/infiniband";
    let devices = host.names("/sys/class/infiniband");
    if devices.is_empty() {
        return Finding::new("rdma", State::None, "no device", WANTED).mend(
            "nothing, where the machine has none",
            "tensors to other machines go by tcp",
        );
    }
    let mut found = Vec::new();
    let mut is_active = false;
    for device in &devices {
        let ports = format!("/sys/class/infiniband/{device}/ports");
        for port in host.names(&ports) {
            let state = host
                .text(&format!("{ports}/{port}/state"))
                .unwrap_or_default();
            let rate = host
                .text(&format!("{ports}/{port}/rate"))
                .unwrap_or_default();
            let state = state.rsplit(": ").next().unwrap_or("").to_owned();
            is_active |= state == "ACTIVE";
            found.push(
                format!("{device}/{port} {state} {rate}")
                    .trim_end()
                    .to_owned(),
            );
        }
    }
    let verbs = host
        .names("/dev/infiniband")
        .iter()
        .any(|name| name.starts_with("uverbs"));
    if !verbs {
        found.push("no /dev/infiniband/uverbs*".into());
    }
    let state = if is_active && verbs {
        State::Good
    } else {
        State::Poor
    };
    Finding::new("rdma", state, found.join("; "), WANTED).mend(
        "rdma link, and the cable; modprobe ib_uverbs; in a container pass /dev/infiniband through",
        "tensors to other machines go by tcp",
    )
}

pub(super) fn gpu(host: &Host) -> Finding {
    const WANTED: &str = "none is needed";
    let nvidia = host.names("/proc/driver/nvidia/gpus");
    let models = nvidia.iter().filter_map(|gpu| {
        host.field(
            &format!("/proc/driver/nvidia/gpus/{gpu}/information"),
            "Model",
        )
    });
    let mut found: Vec<String> = models.collect();
    if host.has("/dev/kfd") {
        found.push("AMD (/dev/kfd)".into());
    }
    if found.is_empty() {
        return Finding::new("gpu", State::None, "no device", WANTED);
    }
    Finding::new("gpu", State::Good, found.join(", "), WANTED)
}

/// What an Ethernet frame usually carries, and a jumbo frame.
const USUAL: u64 = 1500;
const JUMBO: u64 = 9000;

pub(super) fn mtu(host: &Host) -> Finding {
    const WANTED: &str = "9000 between machines";
    let of = |name: &String| {
        let read = |file: &str| host.text(&format!("/sys/class/net/{name}/{file}"));
        // Devices that are down, and the loopback, whose state is unknown.
        let is_up = read("operstate").is_some_and(|state| state == "up");
        Some((name.clone(), read("mtu")?.parse::<u64>().ok()?)).filter(|_| is_up)
    };
    let up: Vec<(String, u64)> = host.names("/sys/class/net").iter().filter_map(of).collect();
    let Some(least) = up.iter().map(|(_, mtu)| *mtu).min() else {
        return Finding::new(
            "mtu",
            State::None,
            "no network is up but the loopback",
            WANTED,
        );
    };
    let list: Vec<String> = up
        .iter()
        .map(|(name, mtu)| format!("{name} {mtu}"))
        .collect();
    let state = if least >= JUMBO {
        State::Good
    } else {
        State::Poor
    };
    let cost = if least < USUAL {
        "a tunnel eats into frames: more of them, and lost ones where somebody drops the notice of it"
    } else {
        "six times the frames for a tensor over tcp, and RDMA in messages of 1024 bytes"
    };
    Finding::new("mtu", state, list.join(", "), WANTED)
        .mend("ip link set DEV mtu 9000, if the switches allow it", cost)
}
