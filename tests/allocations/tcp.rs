//! After warm-up the TCP port touches the heap no more, whatever it carries: counted, in a process of its own.

use std::net::{TcpListener, TcpStream};

use crate::warm::{self, Pair};
use rendez::fabric::{Caps, TcpConfig, TcpPort};

fn pair() -> Pair<TcpPort> {
    let caps = Caps {
        body_max: usize::MAX,
        one_sided: false,
        read_domain: false,
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("loopback");
    let (far, _) = listener.accept().expect("it connects");
    let mut ports = [(); 2].map(|()| TcpPort::new(TcpConfig::default()).expect("epoll"));
    let qps = [
        ports[0].attach(near.into(), caps).expect("connected"),
        ports[1].attach(far.into(), caps).expect("connected"),
    ];
    Pair::new(ports, qps, warm::pool())
}

#[test]
fn a_warm_port_leaves_the_heap_alone() {
    pair().leaves_the_heap_alone();
}
