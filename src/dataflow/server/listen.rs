//! Listen: where a task listens that was told nothing but its cluster.
//!
//! Others dial it at the host that the cluster names. What that name means on the task's own machine is another matter:
//! Debian writes `127.0.1.1` beside it into `/etc/hosts`, and the DNS of Kubernetes knows a pod later than the pod
//! itself, or has its former address. In such cases the task listens at all addresses of its machine.

use std::net::IpAddr;
use std::time::Duration;

use rendez::cluster::{ClusterSpec, HostPort, Local};
use rendez::control::Address;
use rendez::control::here::{HostNetwork, ThisHost, host_beside, is_loopback, way_to};
use rendez::engine::Config;
use rendez::ground::{Status, TaskName};

use super::dialled;

/// Where `task` of `cluster` listens on this machine, at `port` if that is another one than the cluster's.
///
/// # Errors
/// The cluster does not have the task.
pub fn listen_at(
    cluster: &ClusterSpec,
    task: &TaskName,
    port: Option<u16>,
) -> Result<Address, Status> {
    of_cluster(&ThisHost, cluster, task, port)
}

pub(super) fn of_cluster(
    machine: &dyn HostNetwork,
    cluster: &ClusterSpec,
    task: &TaskName,
    port: Option<u16>,
) -> Result<Address, Status> {
    let own = cluster.find(task.job(), task.task())?;
    let has_others = || {
        let others = cluster.tasks().map(|(_, address)| address);
        let mut others = others.filter(|other| other.host() != own.host());
        others.any(|other| is_elsewhere(machine, other))
    };
    let port = port.unwrap_or_else(|| own.port());
    Ok(of_name(machine, own, port, has_others))
}

/// The same where only the root is known, and what rank of how many the task is. A name that means nothing yet has
/// `patience`, as a dial has.
///
/// # Errors
/// `Unavailable` if no way leads to the root.
pub(super) fn of_root(
    machine: &dyn HostNetwork,
    root: &HostPort,
    rank: u32,
    has_others: bool,
    patience: Duration,
) -> Result<Address, Status> {
    if rank == 0 {
        return Ok(of_name(machine, root, root.port(), || has_others));
    }
    let root_at = dialled(root);
    let way = way_to(machine, &root_at, patience)?;
    // The root is on this machine by a name that others know it by: they know this task by it as well.
    if is_loopback(way) && !is_written_out(root.host()) && has_others {
        let why = "is a loopback address here";
        return Ok(everywhere(machine, root.host(), 0, why));
    }
    Ok(Address::Tcp {
        host: host_beside(way, &root_at),
        port: 0,
    })
}

/// Whether ranks run on other machines. Without proof that keeps strangers out there can be none.
pub(super) fn has_others(config: &Config, local: Option<Local>, size: u32) -> bool {
    let is_kept = config.insecure
        || config.cluster_secret_file.is_some()
        || config.cluster_secret_fd.is_some()
        || config.tls_cert.is_some();
    match local.and_then(|local| local.size) {
        Some(here) => here < size,
        None => is_kept,
    }
}

fn of_name(
    machine: &dyn HostNetwork,
    own: &HostPort,
    port: u16,
    has_others: impl FnOnce() -> bool,
) -> Address {
    let named = Address::Tcp {
        host: own.host().to_owned(),
        port,
    };
    if is_written_out(own.host()) {
        return named;
    }
    let found = match machine.resolve(&named) {
        Ok(found) => found,
        Err(why) => return everywhere(machine, own.host(), port, &format!("is not known: {why}")),
    };
    // The first that can be listened at is the one that is taken.
    match found.iter().find(|address| machine.has(address.ip())) {
        None => everywhere(machine, own.host(), port, "belongs to another machine"),
        Some(first) if is_loopback(first.ip()) && has_others() => {
            everywhere(machine, own.host(), port, "is a loopback address here")
        }
        Some(_) => named,
    }
}

/// True unless the host is known to be this machine. A name that is not known yet is not this machine's.
fn is_elsewhere(machine: &dyn HostNetwork, host: &HostPort) -> bool {
    let is_own = |ip: IpAddr| is_loopback(ip) || machine.has(ip);
    machine
        .resolve(&dialled(host))
        .map_or(true, |found| !found.iter().any(|found| is_own(found.ip())))
}

/// An address, or a name that means this machine everywhere: the one who wrote it meant it.
fn is_written_out(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok() || host.contains('%')
}

fn everywhere(machine: &dyn HostNetwork, host: &str, port: u16, why: &str) -> Address {
    let address = at(machine.all(), port);
    tracing::warn!(
        host,
        %address,
        "the own host {why}: this task listens at all addresses of its machine; set `listen` to choose one"
    );
    address
}

fn at(ip: IpAddr, port: u16) -> Address {
    Address::Tcp {
        host: ip.to_string(),
        port,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io;
    use std::net::SocketAddr;

    use super::*;

    /// A machine at 10.0.0.1 with a file of hosts.
    struct Played(BTreeMap<&'static str, [u8; 4]>);

    impl HostNetwork for Played {
        fn resolve(&self, address: &Address) -> Result<Vec<SocketAddr>, String> {
            let Address::Tcp { host, port } = address else {
                return Err("no TCP".into());
            };
            let ip = host.split('%').next().unwrap_or_default();
            let ip = match (ip.parse::<IpAddr>(), self.0.get(host.as_str())) {
                (Ok(ip), _) => ip,
                (_, Some(&ip)) => ip.into(),
                _ => return Err(format!("{host} is not known")),
            };
            Ok(vec![SocketAddr::new(ip, *port)])
        }

        fn route(&self, there: SocketAddr) -> io::Result<IpAddr> {
            Ok(match there {
                SocketAddr::V6(_) => "fe80::2".parse().unwrap(),
                there if is_loopback(there.ip()) => [127, 0, 0, 1].into(),
                _ => [10, 0, 0, 1].into(),
            })
        }

        fn has(&self, ip: IpAddr) -> bool {
            is_loopback(ip) || ip == IpAddr::from([10, 0, 0, 1])
        }

        fn all(&self) -> IpAddr {
            [0, 0, 0, 0].into()
        }
    }

    const LOOPBACK: [u8; 4] = [127, 0, 1, 1];
    const OWN: [u8; 4] = [10, 0, 0, 1];
    const OTHER: [u8; 4] = [10, 0, 0, 2];

    fn known(hosts: &[(&'static str, [u8; 4])], cluster: &str) -> String {
        let machine = Played(hosts.iter().copied().collect());
        let cluster = ClusterSpec::parse(cluster).unwrap();
        let task = TaskName::parse("/job:w/task:0").unwrap();
        of_cluster(&machine, &cluster, &task, None)
            .unwrap()
            .to_string()
    }

    #[test]
    fn a_task_listens_where_its_name_leads_others_to() {
        let debian = [("a", LOOPBACK), ("b", OTHER), ("localhost", [127, 0, 0, 1])];
        for (hosts, cluster, right) in [
            // As it should be.
            (&[("a", OWN), ("b", OTHER)][..], "w=a:5,b:5", "a:5"),
            // Debian's line, with others, with none, and with others of this machine.
            (&debian, "w=a:5,b:5", "0.0.0.0:5"),
            (&debian, "w=a:5,nowhere:5", "0.0.0.0:5"),
            (&debian, "w=a:5,a:6", "a:5"),
            (&debian, "w=a:5,localhost:6,10.0.0.1:7", "a:5"),
            // The name is not known yet, or is that of a former pod.
            (&[], "w=a:5,b:5", "0.0.0.0:5"),
            (&[("a", OTHER)], "w=a:5,b:5", "0.0.0.0:5"),
            // What is written out is meant.
            (&debian, "w=localhost:5,b:5", "localhost:5"),
            (&debian, "w=127.0.0.1:5,b:5", "127.0.0.1:5"),
            (&debian, "w=10.0.0.9:5,b:5", "10.0.0.9:5"),
        ] {
            assert_eq!(known(hosts, cluster), right, "{cluster} with {hosts:?}");
        }
    }

    #[test]
    fn ranks_of_the_roots_machine_are_reached_from_others() {
        let rooted = |host: &str, hosts: &[(&'static str, [u8; 4])], rank, has_others| {
            let machine = Played(hosts.iter().copied().collect());
            let root = HostPort::new(host, 5).unwrap();
            let listen = of_root(&machine, &root, rank, has_others, Duration::ZERO);
            listen.map(|address| address.to_string())
        };
        let debian = [("a", LOOPBACK)];
        for (host, hosts, rank, has_others, right) in [
            ("a", &debian[..], 0, true, "0.0.0.0:5"),
            ("a", &debian, 1, true, "0.0.0.0:0"),
            ("a", &debian, 0, false, "a:5"),
            ("a", &debian, 1, false, "127.0.0.1:0"),
            ("a", &[("a", OTHER)], 0, false, "0.0.0.0:5"),
            ("a", &[("a", OTHER)], 1, true, "10.0.0.1:0"),
            ("a", &[], 0, true, "0.0.0.0:5"),
            ("127.0.0.1", &[], 0, true, "127.0.0.1:5"),
            ("127.0.0.1", &[], 1, true, "127.0.0.1:0"),
            // A link's address names its link.
            ("fe80::1%eth0", &[], 1, true, "[fe80::2%eth0]:0"),
        ] {
            let listen = rooted(host, hosts, rank, has_others).unwrap();
            assert_eq!(listen, right, "{host} with {hosts:?}, rank {rank}");
        }
        let status = rooted("a", &[], 1, true).unwrap_err();
        assert_eq!(status.reason(), "CLUSTER_INCOMPLETE");
    }

    #[test]
    fn ranks_elsewhere_are_counted_where_a_launcher_counts_them() {
        let mut config = Config::new("/job:w/task:0");
        let local = |size| Some(Local { rank: 0, size });
        assert!(has_others(&config, local(Some(2)), 3));
        assert!(!has_others(&config, local(Some(3)), 3));
        assert!(!has_others(&config, None, 3));
        config.insecure = true;
        assert!(has_others(&config, local(None), 3));
    }
}
