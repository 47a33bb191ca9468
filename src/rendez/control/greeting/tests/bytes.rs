//! Greetings over a stream in memory: whatever bytes come in, either side gives an outcome.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::future::block_on;
use futures_lite::io::{AsyncRead, AsyncWrite};
use proptest::prelude::*;
use rendez_proto::envelope::Body;

use super::*;
use crate::control::exchange::{self, Seals};
use crate::control::frame;

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

fn heard(bytes: &[u8], is_near: bool, is_dialler: bool) -> Result<Outcome, Refusal> {
    let [mut left, mut right] = Fake::pair(is_near, &[Path::Verbs]);
    let terms = |own| GreetingTerms {
        own,
        machine: "boot",
        wish: PathWish::Auto,
        is_near,
    };
    let (mut stream, mut seals) = (Script(bytes), Seals::default());
    match is_dialler {
        true => {
            let mut machine = Dialler::new(terms("a"), "b");
            block_on(exchange::run(
                &mut machine,
                &mut left,
                &mut stream,
                &mut seals,
            ))
        }
        false => {
            let mut machine = Acceptor::new(terms("b"));
            block_on(exchange::run(
                &mut machine,
                &mut right,
                &mut stream,
                &mut seals,
            ))
        }
    }
}

/// What a dialler or an acceptor says first.
fn hello(is_dialler: bool) -> Vec<u8> {
    let [left, right] = Fake::pair(false, &[Path::Verbs]);
    let body = match is_dialler {
        true => Body::Hello(left.hello("b")),
        false => Body::HelloReply(proto::HelloReply {
            outcome: Some(proto::hello_reply::Outcome::Accepted(right.hello(""))),
        }),
    };
    frame::encode(&Envelope {
        id: 1,
        reply: !is_dialler,
        body: Some(body),
    })
    .expect("fits")
}

#[test]
fn a_hello_alone_is_only_a_beginning() {
    for (is_near, is_dialler) in [(true, true), (true, false), (false, true), (false, false)] {
        let refusal = heard(&hello(!is_dialler), is_near, is_dialler).expect_err("nothing follows");
        let reason = refusal.status.reason();
        assert_eq!((reason, refusal.retry), ("PEER_LOST", true), "{refusal:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_give_an_outcome(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        is_near: bool,
        is_dialler: bool,
    ) {
        prop_assert!(heard(&bytes, is_near, is_dialler).is_err());
        let behind = [hello(!is_dialler), bytes].concat();
        prop_assert!(heard(&behind, is_near, is_dialler).is_err());
    }

    #[test]
    fn any_hello_gives_an_outcome(at in 0usize..200, value: u8, is_near: bool, is_dialler: bool) {
        let mut bytes = hello(!is_dialler);
        let at = at % bytes.len();
        bytes[at] = value;
        prop_assert!(!matches!(heard(&bytes, is_near, is_dialler), Ok(Outcome::Met(_))));
    }
}
