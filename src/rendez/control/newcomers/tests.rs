//! Whose share a newcomer counts for.

use std::net::TcpListener;

use super::*;

/// Other users of this machine have one share, from whichever of its addresses they come, and our own user another.
#[test]
fn other_users_of_the_machine_are_one_source() {
    let mut newcomers = Newcomers::new(Duration::from_secs(1));
    newcomers.gate = Gate::new(4, 2);
    let own = newcomers.users;
    let mut dialled = Vec::new();
    let mut enter = |newcomers: &mut Newcomers, at: &str| {
        let listener = TcpListener::bind(at).expect("loopback");
        let to = listener.local_addr().expect("bound");
        dialled.push(TcpStream::connect(to).expect("it listens"));
        let (socket, from) = listener.accept().expect("dialled");
        let before = newcomers.len();
        newcomers.enter(socket, from);
        newcomers.len() > before
    };
    // As if this process were another user's.
    newcomers.users = UserNumbers::named(own.own() + 1);
    assert!(enter(&mut newcomers, "127.0.0.1:0"));
    assert!(enter(&mut newcomers, "127.0.0.2:0"));
    assert!(!enter(&mut newcomers, "127.0.0.1:0"), "their share is full");
    assert!(!enter(&mut newcomers, "127.0.0.3:0"), "by any address");
    newcomers.users = own;
    // A sandbox may forbid to ask the kernel: all are others then.
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let asks = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (asked, _) = listener.accept().expect("dialled");
    let can_ask = !owner::is_of_another(&asked, own);
    assert_eq!(enter(&mut newcomers, "127.0.0.1:0"), can_ask);
    drop(asks);
}
