//! Greetings over a stream in memory: whatever bytes come in, the acceptor gives an outcome.

use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::future::block_on;
use proptest::prelude::*;

use super::*;
use crate::control::credentials::Credentials;
use crate::control::frame;
use crate::control::lane::Then;
use crate::control::peer::{PeerGone, PeerId, PeerUp};
use crate::ground::Incarnation;
use rendez_proto::Envelope;

/// Reads from a list of bytes and forgets what is written.
struct Script<'a>(&'a [u8]);

impl AsyncRead for Script<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(std::io::Read::read(&mut self.0, buffer))
    }
}

impl AsyncWrite for Script<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

struct Nothing;

impl Handler for Nothing {
    fn local(&self, _: &PeerHello) -> Result<LocalOffer, Status> {
        Ok(LocalOffer::default())
    }

    fn make_link(&self, _: &PeerHello) -> Result<LinkOffer, Status> {
        Err(Status::new(
            Code::Internal,
            "PEER_REFUSED",
            "no link in this test",
        ))
    }

    fn accept_link(&self, _: &PeerHello, _: &LinkOffer) -> Result<(), Status> {
        Ok(())
    }

    fn data_channels(&self, _: &PeerHello) -> Result<u32, Status> {
        Ok(0)
    }

    fn peer_up(&self, _: PeerUp) {}
    fn segment_added(&self, _: PeerId, _: SegmentOffer) {}
    fn peer_gone(&self, _: PeerId, _: PeerGone, _: std::time::Instant) {}
    fn dial_failed(&self, _: &str, _: Status, _: Status) {}
}

fn accept(bytes: &[u8]) -> Result<(Greeted, ()), Refusal> {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let _dialler = Lane::open(ours.as_fd(), Then::Greeting).expect("opened");
    let (mut lane, _) = Lane::take(theirs.as_fd())
        .expect("no error")
        .expect("there");
    let config = ControlConfig::new("a", Incarnation(1), 1);
    let identity = Identity {
        user: 1,
        machine: "boot".into(),
    };
    let credentials = Credentials {
        user: 1,
        process: None,
        pidfd: None,
    };
    let local = Local {
        config: &config,
        identity: &identity,
        handler: &Nothing,
        path: proto::PathWish::Auto,
        no_shm: "",
    };
    let evidence = Evidence::Socket {
        credentials: &credentials,
        has_proved: false,
    };
    let mut stream = Script(bytes);
    block_on(Greeting::new(&mut stream, &mut lane, local, evidence).accept(|_| Ok(())))
}

fn hello() -> Vec<u8> {
    let config = ControlConfig::new("b", Incarnation(2), 1);
    let hello = hello::our_hello(
        &config,
        &Identity {
            user: 1,
            machine: "boot".into(),
        },
        "a",
    );
    frame::encode(&Envelope {
        id: 1,
        reply: false,
        body: Some(Body::Hello(hello)),
    })
    .expect("fits")
}

#[test]
fn a_hello_alone_is_only_a_beginning() {
    let refusal = accept(&hello()).expect_err("nothing follows");
    assert_eq!(
        (refusal.status.reason(), refusal.retry),
        ("PEER_LOST", true)
    );
}

proptest! {
    #[test]
    fn any_bytes_give_an_outcome(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(accept(&bytes).is_err());
        prop_assert!(accept(&[hello(), bytes].concat()).is_err());
    }

    #[test]
    fn any_hello_gives_an_outcome(at in 0usize..200, value: u8) {
        let mut bytes = hello();
        let at = at % bytes.len();
        bytes[at] = value;
        prop_assert!(accept(&bytes).is_err());
    }
}
