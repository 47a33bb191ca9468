//! Devices: RDMA, GPUs, and the networks' frames.

use super::host::Host;
use super::{Finding, State};

pub(super) fn rdma(host: &Host) -> Finding {
    const WANTED: &str = "a device with an active port, /dev/infiniband, and libibverbs";
    const COST: &str = "tensors to other machines go by tcp";
    let devices = host.names("/sys/class/infiniband");
    let packages = packages(host);
    let install = match packages.as_slice() {
        [] => String::new(),
        packages => format!("; of Debian's packages install {}", packages.join(", ")),
    };
    if devices.is_empty() {
        let found = match &host.verbs_refusal {
            Some(why) => format!("no device; {why}"),
            None => "no device".into(),
        };
        let mend = format!("nothing, where the machine has none{install}");
        return Finding::new("rdma", State::None, found, WANTED).mend(mend, COST);
    }
    let mut found = Vec::new();
    let mut is_active = false;
    for device in &devices {
        let ports = format!("/sys/class/infiniband/{device}/ports");
        for port in host.names(&ports) {
            let read = |file: &str| host.text(&format!("{ports}/{port}/{file}"));
            let state = read("state").unwrap_or_default();
            let rate = read("rate").unwrap_or_default();
            let state = state.rsplit(": ").next().unwrap_or("").to_owned();
            is_active |= state == "ACTIVE";
            let mut line = format!("{device}/{port} {state} {rate}");
            for gid in gids(host, &format!("{ports}/{port}")) {
                line = format!("{} {gid}", line.trim_end());
            }
            found.push(line.trim_end().to_owned());
        }
    }
    let verbs = host
        .names("/dev/infiniband")
        .iter()
        .any(|name| name.starts_with("uverbs"));
    if !verbs {
        found.push("no /dev/infiniband/uverbs*".into());
    }
    found.extend(host.verbs_refusal.clone());
    let state = if is_active && verbs && host.verbs_refusal.is_none() {
        State::Good
    } else {
        State::Poor
    };
    let mend = format!(
        "rdma link, and the cable; modprobe ib_uverbs; in a container pass /dev/infiniband through{install}"
    );
    Finding::new("rdma", state, found.join("; "), WANTED).mend(mend, COST)
}

/// The Debian packages that are missing for RDMA: those of the library, of the devices' drivers for it, and of what
/// loads modules and names devices.
fn packages(host: &Host) -> Vec<&'static str> {
    let drivers = !host.names("/etc/libibverbs.d").is_empty();
    let system = host.has("/usr/lib/udev/rdma_rename") || host.has("/lib/udev/rdma_rename");
    [
        (host.verbs_refusal.is_some(), "libibverbs1"),
        (!drivers, "ibverbs-providers"),
        (!system, "rdma-core"),
    ]
    .into_iter()
    .filter_map(|(is_missing, package)| is_missing.then_some(package))
    .collect()
}

/// The addresses of a port that are of use, with their indices: `GID 1 RoCE v2 10.2.0.1`.
fn gids(host: &Host, port: &str) -> Vec<String> {
    let show = |index: String| {
        let gid = host.text(&format!("{port}/gids/{index}"))?;
        let kind = host
            .text(&format!("{port}/gid_attrs/types/{index}"))
            .unwrap_or_default();
        let parts: Vec<u16> = gid
            .split(':')
            .filter_map(|part| u16::from_str_radix(part, 16).ok())
            .collect();
        let parts: [u16; 8] = parts.try_into().ok()?;
        let address = std::net::Ipv6Addr::from(parts);
        // RoCE v1 is never chosen unasked.
        if address.is_unspecified() || kind.contains("v1") {
            return None;
        }
        let shown = address
            .to_ipv4_mapped()
            .map_or_else(|| address.to_string(), |address| address.to_string());
        let kind = format!("{kind} ");
        Some(format!("GID {index} {}{shown}", kind.trim_start()))
    };
    let mut indices = host.names(&format!("{port}/gids"));
    indices.sort_by_key(|index| index.parse::<u32>().unwrap_or(u32::MAX));
    indices.into_iter().filter_map(show).collect()
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

/// Whether tensors can lie in a device's memory.
pub(super) fn device_memory(host: &Host) -> Finding {
    const WANTED: &str =
        "none is needed; with a device, its driver's library, and memory that can be exported";
    const COST: &str = "tensors of a device are copied through the host, or refused";
    match &host.devices {
        Ok(devices) => {
            let lacks = devices.iter().any(|device| device.contains(','));
            let state = if lacks { State::Poor } else { State::Good };
            let mend = "a newer driver; outside a container, or with its devices passed through";
            Finding::new("device memory", state, devices.join("; "), WANTED).mend(mend, COST)
        }
        Err(why) => {
            let has_card = !host.names("/proc/driver/nvidia/gpus").is_empty();
            let state = if has_card { State::Poor } else { State::None };
            let mend =
                "install the driver's library, libcuda.so.1, and pass it through into a container";
            Finding::new("device memory", state, why.as_str(), WANTED).mend(mend, COST)
        }
    }
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
        "a tunnel eats into frames: more of them, and lost ones where a router drops the notice of it"
    } else {
        "six times the frames for a tensor over tcp, and RDMA in messages of 1024 bytes"
    };
    Finding::new("mtu", state, list.join(", "), WANTED)
        .mend("ip link set DEV mtu 9000, if the switches allow it", cost)
}
