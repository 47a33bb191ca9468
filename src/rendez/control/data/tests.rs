//! What opens data connections is over by its deadline.

use std::net::TcpListener;
use std::thread;

use super::*;

/// A peer that says a little all the time keeps no errand for longer than it may take.
#[test]
fn a_peer_that_never_stops_is_given_up_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = listener.local_addr().expect("bound");
    let talks = thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("the dial");
        while peer.write_all(&[7]).is_ok() {
            thread::sleep(Duration::from_micros(200));
        }
    });
    let socket = TcpStream::connect(to).expect("it listens");
    let began = Instant::now();
    let mut bounded = Bounded {
        socket: &socket,
        deadline: began + Duration::from_millis(100),
    };
    let error = loop {
        match bounded.read(&mut [0; 8]) {
            Ok(read) => assert!(read > 0 && began.elapsed() < Duration::from_secs(5)),
            Err(error) => break error,
        }
    };
    let late = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
    assert!(late.contains(&error.kind()), "{error}");
    assert!(bounded.write(&[7]).is_err());
    drop(socket);
    talks.join().expect("no panic");
}
