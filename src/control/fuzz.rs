//! A seam for fuzzing: the control plane's parsers, which nobody outside it calls, on any bytes.
//!
//! Not part of the interface: it knows no socket, and says only whether the bytes were taken.

use futures_lite::future::block_on;
use futures_lite::io::Cursor;
use prost::Message;

use super::config::ControlConfig;
use super::credentials::Credentials;
use super::frame;
use super::hello::{Evidence, Identity, judge};
use crate::ground::Incarnation;
use crate::proto;

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
        user: 1,
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
