//! Nearness: which device each shard uses, by the NUMA nodes of devices and cores.
//!
//! Reads two numbers of sysfs; the choice itself is pure.

use std::fs;

/// For each shard, the index of its device: one on its core's node if there is any, and in turn among those.
pub(super) fn choose(devices: &[String], cores: &[usize]) -> Vec<usize> {
    if devices.len() < 2 {
        return vec![0; cores.len()];
    }
    let of_devices: Vec<_> = devices.iter().map(|name| node_of_device(name)).collect();
    let of_cores: Vec<_> = cores.iter().map(|&core| node_of_core(core)).collect();
    nearest(&of_devices, &of_cores)
}

/// The choice. Unknown nodes are near to all.
fn nearest(devices: &[Option<u32>], cores: &[Option<u32>]) -> Vec<usize> {
    let mut used = vec![0usize; devices.len()];
    let place = |core: &Option<u32>| {
        let is_near = |device: Option<u32>| match (device, *core) {
            (Some(device), Some(core)) => device == core,
            _ => true,
        };
        let rank = |&index: &usize| (!is_near(devices[index]), used[index], index);
        let chosen = (0..devices.len()).min_by_key(rank).unwrap_or(0);
        used[chosen] += 1;
        chosen
    };
    cores.iter().map(place).collect()
}

fn node_of_device(name: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/class/infiniband/{name}/device/numa_node")).ok()?;
    // -1 is a machine with one node, or firmware that does not say.
    text.trim().parse().ok()
}

fn node_of_core(core: usize) -> Option<u32> {
    let entries = fs::read_dir(format!("/sys/devices/system/cpu/cpu{core}")).ok()?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut nodes = names.filter_map(|name| name.strip_prefix("node")?.parse().ok());
    nodes.next()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn each_shard_gets_a_device_of_its_node_in_turn() {
        let (a, b) = (Some(0), Some(1));
        assert_eq!(nearest(&[a, b], &[a, a, b, b]), [0, 0, 1, 1]);
        assert_eq!(nearest(&[a, b, a], &[a, a, b, a]), [0, 2, 1, 0]);
        // No pair is near: all in turn.
        assert_eq!(nearest(&[a, a], &[b, b, b]), [0, 1, 0]);
        assert_eq!(nearest(&[None, None], &[a, b, None]), [0, 1, 0]);
        assert_eq!(nearest(&[a, b], &[]), Vec::<usize>::new());
    }
}
