//! A gate is full in all, and for one address before that.

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn an_address_has_its_share_and_gets_it_back() {
    let gate = Gate::new(3, 2);
    let one = gate.enter(ip("10.0.0.1")).expect("room");
    let two = gate.enter(ip("::ffff:10.0.0.1")).expect("room");
    assert!(gate.enter(ip("10.0.0.1")).is_none(), "its share is full");
    let three = gate.enter(ip("10.0.0.2")).expect("room for another");
    assert!(!gate.has_room() && gate.enter(ip("10.0.0.3")).is_none());
    drop((one, three));
    assert!(gate.has_room());
    drop(two);
    assert!(
        gate.inside.locked().by_source.is_empty(),
        "who left is forgotten"
    );
}

#[test]
fn a_network_of_ipv6_is_one_source() {
    let gate = Gate::new(9, 1);
    let _inside = gate.enter(ip("2001:db8::1")).expect("room");
    assert!(gate.enter(ip("2001:db8::2")).is_none());
    assert!(gate.enter(ip("2001:db8:0:1::1")).is_some());
}
