//! A seam for fuzzing: the control plane's parsers, which are private to it, on any bytes.
//!
//! Not part of the interface: it knows no socket, and says only whether the bytes were taken.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_lite::future::block_on;
use futures_lite::io::{AsyncRead, AsyncWrite, Cursor};
use prost::Message;

use super::config::ControlConfig;
use super::credentials::Credentials;
use super::frame;
use super::handshake::{Terms, accept, dial};
use super::hello::{Evidence, Identity, judge};
use super::preamble::{self, Opening, Verdict};
use super::secret::{Secret, Session};
use super::tickets::Tickets;
use crate::ground::Incarnation;
use crate::users::UserNumbers;
use rendez_proto as proto;

/// How many envelopes a stream of these bytes carries before it ends or breaks. Each goes out again as it came in.
#[must_use]
pub fn envelopes(bytes: &[u8]) -> usize {
    let mut stream = Cursor::new(bytes);
    let mut count = 0;
    while let Ok(envelope) = block_on(frame::read(&mut stream, None)) {
        // Fields that this version does not know are dropped, so what goes out is never longer.
        assert!(
            frame::encode(&envelope).is_ok(),
            "an envelope that came in goes out"
        );
        count += 1;
    }
    count
}

/// Whether a peer with this hello would be let in.
#[must_use]
pub fn hello(bytes: &[u8]) -> bool {
    let Ok(hello) = proto::Hello::decode(bytes) else {
        return false;
    };
    let identity = Identity {
        users: UserNumbers::named(1),
        machine: "boot".into(),
    };
    let credentials = Credentials {
        user: 1,
        process: None,
        pidfd: None,
    };
    let config = ControlConfig::new("/job:a/replica:0/task:0", Incarnation(1), 1);
    let evidence = Evidence::Socket {
        credentials: &credentials,
        has_proved: false,
    };
    judge(&hello, &config, &identity, evidence).is_ok()
}

/// Whether a TCP connection that begins with these bytes would get further than its first ones.
#[must_use]
pub fn opening(bytes: &[u8]) -> bool {
    let head = bytes.first_chunk().copied();
    let opening = head.map_or(Opening::Stranger, preamble::read_opening);
    if let Some(verdict) = head.and_then(preamble::read_answer) {
        let again = preamble::answer(verdict);
        assert!(preamble::read_answer(again) == Some(verdict), "one verdict");
    }
    if let Opening::Known(kind) = opening {
        assert!(preamble::may_be_opening(bytes), "no part of it was refused");
        assert_eq!(head, Some(preamble::opening(kind)), "one spelling");
    }
    opening != Opening::Stranger
}

/// Whether a data preamble would be taken by an acceptor that waits for channels 0 to 3 of a set that it may name.
#[must_use]
pub fn ticket(bytes: &[u8]) -> bool {
    let Some(bytes) = bytes.first_chunk::<{ preamble::TICKET }>() else {
        return false;
    };
    let mut tickets = Tickets::new(Incarnation(1));
    let session = Session::new(&[1; 32]);
    let _ = tickets.issue([1; 16], 4, None, 1000);
    let _ = tickets.issue([2; 16], 4, Some(session), 1000);
    let Ok(place) = tickets.judge(bytes, &[], 500) else {
        return false;
    };
    tickets.put(place, ());
    assert_eq!(
        tickets.judge(bytes, &[], 500),
        Err(Verdict::ReusedTicket),
        "taken once"
    );
    true
}

/// Whether a peer that sends these bytes proves the secret, as acceptor or as dialler.
#[must_use]
pub fn handshake(bytes: &[u8]) -> bool {
    let Ok(secret) = Secret::new(b"a secret that no bytes can guess") else {
        return false;
    };
    let terms = Terms {
        secret: Some(&secret),
        binding: [0; 32],
        waives: false,
        may_go_without: false,
    };
    let accepted = block_on(accept(&mut Says(Cursor::new(bytes)), terms, |_| true));
    let dialled = block_on(dial(&mut Says(Cursor::new(bytes)), terms));
    accepted.is_ok() || dialled.is_ok()
}

/// Reads from its bytes, and forgets what is written.
struct Says<'a>(Cursor<&'a [u8]>);

impl AsyncRead for Says<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Says<'_> {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
