//! Names: what the hosts of addresses mean, and the way to a connected socket at one of them.
//!
//! Knows hosts and errands, and nothing of what is said over a connection.
//!
//! A name server may answer late or never, and the system repeats a question that was lost only after seconds. So no
//! attempt waits for a name longer than for a connection, all dials of a host wait for one look-up, and look-ups have
//! threads of their own: those that hang keep no thread from dials of addresses. Until the answer is there a dial goes
//! to where a connection stood before: a network that breaks often takes the way to the name server with it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::ground::limits::{ERRANDS_MAX, PEERS_MAX};
use crate::ground::{Incarnation, catalogue};

use super::address::Address;
use super::dial::{Route, unreachable};
use super::errand::{ErrandError, Errands};
use super::plane::Plane;
use super::refusal::Refusal;
use super::side::no_errand;
use super::signal::Signal;
use super::tcp::{self, DialError};

/// How the name of a host becomes addresses, whose port is zero. May block.
pub(crate) type Resolve = fn(&str) -> io::Result<Vec<SocketAddr>>;

/// A look-up of one host, for all dials that wait for it.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    found: RefCell<Option<io::Result<Vec<SocketAddr>>>>,
    is_over: Signal,
}

/// What is known of names.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Look-ups under way, by host: no more than there may be errands.
    underway: RefCell<BTreeMap<String, Rc<Lookup>>>,
    errands: Errands,
    /// Where the last connection by an address led, and to which life of its task: bounded by the peers there may be.
    stood: RefCell<BTreeMap<Address, (SocketAddr, Incarnation)>>,
}

impl Names {
    /// A connection by `address` stands, at `to`, with `life`. Without a name there is nothing to keep.
    pub(super) fn stands(&self, address: &Address, to: SocketAddr, life: Incarnation) {
        if matches!(address, Address::Tcp { host, .. } if host.parse::<IpAddr>().is_ok()) {
            return;
        }
        let mut stood = self.stood.borrow_mut();
        if stood.len() >= PEERS_MAX && !stood.contains_key(address) {
            stood.pop_first();
        }
        stood.insert(address.clone(), (to, life));
    }

    fn stood(&self, address: &Address) -> Option<(SocketAddr, Incarnation)> {
        self.stood.borrow().get(address).copied()
    }
}

impl Plane {
    /// A fresh connection to where `route` leads, a TCP address. The look-up of a name and the try to connect have the
    /// time `reach` each; where a connection stood before, a name that is not known at once has half of it.
    pub(super) async fn reach(
        self: &Rc<Self>,
        route: &mut Route,
        reach: Duration,
        deadline: Instant,
    ) -> Result<TcpStream, Refusal> {
        route.stood = None;
        let Address::Tcp { host, port } = &route.address else {
            let error = DialError::NotTcp(route.address.clone());
            return Err(unreachable(&error, error.kind()));
        };
        if let Ok(ip) = host.parse::<IpAddr>() {
            let addresses = vec![SocketAddr::new(ip, *port)];
            return self.connect_any(addresses, reach, deadline).await;
        }
        let stood = self.names.stood(&route.address);
        let left = deadline.saturating_duration_since(Instant::now());
        let time = match stood {
            Some(_) => reach / 2,
            None => reach,
        };
        let found = self.find(&route.address, host, &mut route.lookup, time.min(left));
        let addresses = match (found.await, stood) {
            (Ok(mut addresses), _) => {
                for address in &mut addresses {
                    address.set_port(*port);
                }
                addresses
            }
            (Err(_), Some((stood, life))) => {
                route.stood = Some(life);
                vec![stood]
            }
            (Err(refusal), None) => return Err(refusal),
        };
        self.connect_any(addresses, reach, deadline).await
    }

    /// The addresses of `host`, which `address` names, by the look-up that is under way for this dial, or by a new one;
    /// one that is not over within `time` is left there.
    async fn find(
        self: &Rc<Self>,
        address: &Address,
        host: &str,
        under_way: &mut Option<Rc<Lookup>>,
        time: Duration,
    ) -> Result<Vec<SocketAddr>, Refusal> {
        let lookup = match under_way.take() {
            Some(lookup) => lookup,
            None => self.look_up(host)?,
        };
        let over = self.runtime.within(time, lookup.is_over.wait()).await;
        if over.is_none() {
            *under_way = Some(lookup);
            let message = format!("the last attempt: {host} is still being looked up");
            return Err(Refusal::later(catalogue::CONNECT_DEADLINE, message));
        }
        lookup
            .found(address)
            .map_err(|error| unreachable(&error, error.kind()))
    }

    async fn connect_any(
        &self,
        addresses: Vec<SocketAddr>,
        reach: Duration,
        deadline: Instant,
    ) -> Result<TcpStream, Refusal> {
        let reached_by = deadline.min(Instant::now() + reach);
        let work = move || tcp::connect_any(&addresses, reached_by);
        let mut connected = self.errands.begin(work).map_err(no_errand)?;
        let connected = connected.receive().await;
        connected.map_err(|error| unreachable(&error, error.kind()))
    }

    /// The look-up of `host` that is under way, or a new one.
    fn look_up(self: &Rc<Self>, host: &str) -> Result<Rc<Lookup>, Refusal> {
        if let Some(underway) = self.names.underway.borrow().get(host) {
            return Ok(Rc::clone(underway));
        }
        let (resolve, asked) = (self.config.resolve, host.to_owned());
        let begun = self.names.errands.begin(move || resolve(&asked));
        let mut answer = begun.map_err(|error| match error {
            ErrandError::NoThread(_) => no_errand(error),
            _ => {
                let message =
                    format!("{ERRANDS_MAX} names are being looked up, the limit ERRANDS_MAX");
                Refusal::later(catalogue::PEER_BUSY, message)
            }
        })?;
        let lookup = Rc::<Lookup>::default();
        let (plane, host, told) = (Rc::clone(self), host.to_owned(), Rc::clone(&lookup));
        let mut underway = self.names.underway.borrow_mut();
        underway.insert(host.clone(), Rc::clone(&lookup));
        drop(underway);
        self.spawn(async move {
            let found = answer.receive().await;
            *told.found.borrow_mut() = Some(found);
            plane.names.underway.borrow_mut().remove(&host);
            told.is_over.set();
        });
        Ok(lookup)
    }
}

impl Lookup {
    /// What was found, once it is over.
    fn found(&self, address: &Address) -> Result<Vec<SocketAddr>, DialError> {
        let found = self.found.borrow();
        let error = match &*found {
            Some(Ok(addresses)) if !addresses.is_empty() => return Ok(addresses.clone()),
            Some(Err(error)) => io::Error::new(error.kind(), error.to_string()),
            _ => tcp::no_address(),
        };
        let address = address.clone();
        Err(DialError::Unresolved { address, error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_names_led_is_kept_of_the_last_ones_within_the_bound() {
        let names = Names::default();
        let at = |host: &str| -> Address { format!("{host}:1").parse().expect("an address") };
        let to = SocketAddr::from(([127, 0, 0, 1], 1));
        for number in 0..=PEERS_MAX {
            names.stands(&at(&format!("{number}.test")), to, Incarnation(1));
        }
        assert_eq!(names.stood.borrow().len(), PEERS_MAX);
        let last = at(&format!("{PEERS_MAX}.test"));
        names.stands(&last, to, Incarnation(2));
        assert_eq!(names.stood(&last), Some((to, Incarnation(2))));
        for literal in ["127.0.0.1", "[::1]"] {
            names.stands(&at(literal), to, Incarnation(1));
            assert_eq!(names.stood(&at(literal)), None);
        }
    }
}
