//! Here: which addresses this machine has, and by which of them others reach it.
//!
//! Knows names and routes, and sends nothing. What blocks here (names) is called by applications, never from the
//! control thread.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::address::Address;
use super::owner::is_foreign;
use super::tcp;
use super::until;

pub use super::tcp::is_loopback;
use crate::ground::{Code, Status, catalogue};

/// A name that means nothing now is asked for again after so long.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// How often people are told that a name still means nothing.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// What a host knows of names and routes: this one, or one that is made up for tests.
pub trait HostNetwork {
    /// What the name of a TCP address means now.
    ///
    /// # Errors
    /// Why it means nothing, as text for people.
    fn resolve(&self, address: &Address) -> Result<Vec<SocketAddr>, String>;

    /// The address of this machine from which packets to `there` go.
    ///
    /// # Errors
    /// No way leads there.
    fn route(&self, there: SocketAddr) -> io::Result<IpAddr>;

    /// True if `ip` is an address of this machine.
    fn has(&self, ip: IpAddr) -> bool;

    /// The address that means all addresses of this machine.
    fn all(&self) -> IpAddr;
}

/// The host that this process runs on.
#[derive(Clone, Copy, Debug)]
pub struct ThisHost;

impl HostNetwork for ThisHost {
    fn resolve(&self, address: &Address) -> Result<Vec<SocketAddr>, String> {
        tcp::resolve(address).map_err(|error| error.to_string())
    }

    fn route(&self, there: SocketAddr) -> io::Result<IpAddr> {
        let any: IpAddr = match there {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((any, 0))?;
        // No packet is sent by this.
        socket.connect(there)?;
        Ok(socket.local_addr()?.ip())
    }

    fn has(&self, ip: IpAddr) -> bool {
        let bound = SocketAddr::new(ip.to_canonical(), 0);
        let is_own = |socket| is_foreign(&socket, bound).is_ok_and(|is_foreign| !is_foreign);
        UdpSocket::bind(bound).is_ok_and(is_own)
    }

    /// A socket at `::` takes connections by IPv4 as well, where there is IPv6 and `net.ipv6.bindv6only` is not set.
    fn all(&self) -> IpAddr {
        let takes_both = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))
            .is_ok_and(|socket| sockopt::ipv6_v6only(socket).is_ok_and(|only| !only));
        match takes_both {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}

/// The address of `machine` from which it reaches `there`. A name that means nothing yet, and a way that does not lead
/// there yet, have `patience`.
///
/// # Errors
/// `Unavailable` with the reason.
pub fn way_to(
    machine: &dyn HostNetwork,
    there: &Address,
    patience: Duration,
) -> Result<IpAddr, Status> {
    let until = until(patience);
    let mut said: Option<Instant> = None;
    loop {
        let why = match machine.resolve(there) {
            Ok(found) => {
                let mut why = format!("{there} has no address");
                for address in found {
                    match machine.route(address) {
                        Ok(ip) => return Ok(ip),
                        Err(error) => why = format!("there is no route to {address}: {error}"),
                    }
                }
                why
            }
            Err(why) => why,
        };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message = format!("{there} cannot be reached: {why}");
            return Err(Status::new(
                Code::Unavailable,
                catalogue::CLUSTER_INCOMPLETE,
                message,
            ));
        }
        if said.is_none_or(|said| said.elapsed() >= SAY_EVERY) {
            said = Some(Instant::now());
            tracing::info!(%there, why, "still waiting for a network route");
        }
        std::thread::sleep(ASK_AGAIN.min(left));
    }
}

/// The own address `way` as a host, where it leads to `there`. A link's address is one only with the name of its link,
/// which others have to call as we do: so does who names `there` by it.
#[must_use]
pub fn host_beside(way: IpAddr, there: &Address) -> String {
    let link = match there {
        Address::Tcp { host, .. } => host.split_once('%'),
        _ => None,
    };
    match (way, link) {
        (IpAddr::V6(way), Some((_, link))) if way.is_unicast_link_local() => {
            format!("{way}%{link}")
        }
        _ => way.to_string(),
    }
}

/// Where others dial a task that listens at `bound`, if they and the task meet at `meeting`. A task that listens at all
/// addresses of its machine is at the one from which it reaches the meeting; if the meeting is on its own machine, at
/// the host by which all of them know the meeting.
///
/// # Errors
/// `InvalidArgument` names `listen` if nothing says at which address; `Unavailable` if no way leads to the meeting
/// within `patience`.
pub fn told(
    machine: &dyn HostNetwork,
    bound: &Address,
    meeting: Option<&Address>,
    patience: Duration,
) -> Result<Address, Status> {
    let Address::Tcp { port, .. } = bound else {
        return Ok(bound.clone());
    };
    if !bound.is_wildcard() {
        return Ok(bound.clone());
    }
    let host = match meeting {
        Some(meeting @ Address::Tcp { host, .. }) if !meeting.is_wildcard() => {
            let way = way_to(machine, meeting, patience)?;
            match is_loopback(way) {
                true => host.clone(),
                false => host_beside(way, meeting),
            }
        }
        _ => {
            let message = format!(
                "this task listens at {bound}, which tells others of no machine: set `listen` to the address by which \
                 others reach this one"
            );
            return Err(Status::of(catalogue::CONTROL_ADDRESS, message));
        }
    };
    Ok(Address::Tcp { host, port: *port })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::Command;

    use super::*;

    /// `root` is 10.0.0.1, reached from 10.0.0.2; `own` is this machine; a name is there when it was asked for often
    /// enough.
    struct Played {
        absent: Cell<usize>,
    }

    impl HostNetwork for Played {
        fn resolve(&self, address: &Address) -> Result<Vec<SocketAddr>, String> {
            let Address::Tcp { host, port } = address else {
                return Err("no TCP".into());
            };
            if let Some(less) = self.absent.get().checked_sub(1) {
                self.absent.set(less);
                return Err(format!("{host} is not known"));
            }
            let ip: IpAddr = match host.as_str() {
                "root" => [10, 0, 0, 1].into(),
                "own" => [127, 0, 1, 1].into(),
                _ => return Err(format!("{host} is not known")),
            };
            Ok(vec![SocketAddr::new(ip, *port)])
        }

        fn route(&self, there: SocketAddr) -> io::Result<IpAddr> {
            Ok(match is_loopback(there.ip()) {
                true => [127, 0, 0, 1].into(),
                false => [10, 0, 0, 2].into(),
            })
        }

        fn has(&self, ip: IpAddr) -> bool {
            is_loopback(ip)
        }

        fn all(&self) -> IpAddr {
            [0, 0, 0, 0].into()
        }
    }

    fn at(text: &str) -> Address {
        text.parse().expect("an address")
    }

    #[test]
    fn others_are_told_of_an_address_that_they_can_dial() {
        let machine = Played {
            absent: Cell::new(0),
        };
        let told = |bound: &str, meeting: Option<&str>| {
            let meeting = meeting.map(at);
            told(&machine, &at(bound), meeting.as_ref(), Duration::ZERO)
                .map(|address| address.to_string())
        };
        for (bound, meeting, right) in [
            ("0.0.0.0:5", "root:1", "10.0.0.2:5"),
            ("[::]:5", "root:1", "10.0.0.2:5"),
            ("0.0.0.0:5", "own:1", "own:5"),
            ("10.0.0.7:5", "root:1", "10.0.0.7:5"),
            ("unix:@a", "root:1", "unix:@a"),
        ] {
            assert_eq!(told(bound, Some(meeting)).unwrap(), right, "{bound}");
        }
        for meeting in [None, Some("0.0.0.0:1"), Some("unix:@a")] {
            let status = told("0.0.0.0:5", meeting).unwrap_err();
            assert_eq!(status.reason(), catalogue::CONTROL_ADDRESS);
            assert!(status.message().contains("`listen`"), "{status}");
        }
        let status = told("0.0.0.0:5", Some("nowhere:1")).unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("nowhere"), "{status}");
        assert_eq!(told("10.0.0.7:5", None).unwrap(), "10.0.0.7:5");
    }

    #[test]
    fn a_name_that_comes_late_is_waited_for() {
        let machine = Played {
            absent: Cell::new(2),
        };
        let way = way_to(&machine, &at("root:1"), Duration::from_secs(60)).unwrap();
        assert_eq!(way, IpAddr::from([10, 0, 0, 2]));
    }

    /// A network of its own, where any address can be bound.
    #[test]
    fn an_address_that_can_only_be_bound_is_not_this_machines() {
        const WITHIN: &str = "RENDEZ_TEST_BINDS_ANY";
        let foreign: [IpAddr; 2] = [
            [192, 0, 2, 1].into(),
            "2001:db8::1".parse().expect("an address"),
        ];
        if std::env::var_os(WITHIN).is_some() {
            assert!(UdpSocket::bind((foreign[0], 0)).is_ok(), "not bound");
            assert_eq!(foreign.map(|ip| ThisHost.has(ip)), [false; 2]);
            assert!(ThisHost.has([127, 0, 0, 1].into()));
            return;
        }
        let script = "ip link set lo up; for family in ipv4 ipv6; do \
                      echo 1 >/proc/sys/net/$family/ip_nonlocal_bind; done; exec \"$@\"";
        let name = "control::here::tests::an_address_that_can_only_be_bound_is_not_this_machines";
        let own = std::env::current_exe().expect("a test runs");
        let is_allowed =
            |command: &mut Command| command.status().is_ok_and(|ended| ended.success());
        let probe = "ip link set lo up && echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind";
        if !is_allowed(Command::new("unshare").args(["-n", "sh", "-c", probe])) {
            eprintln!("no network of its own can be had here (`unshare -n` needs root, and `ip`)");
            return;
        }
        let mut within = Command::new("unshare");
        within.args(["-n", "sh", "-c", script, "sh"]).arg(own);
        within.args(["--exact", name]).env(WITHIN, "1");
        assert!(is_allowed(&mut within));
    }

    #[test]
    fn this_machine_knows_itself() {
        let machine = ThisHost;
        assert!(machine.has([127, 0, 1, 1].into()));
        assert!(!machine.has([192, 0, 2, 1].into()));
        assert!(machine.all().is_unspecified());
        let way = way_to(&machine, &at("127.0.0.1:9"), Duration::ZERO).unwrap();
        assert!(is_loopback(way));
    }
}
