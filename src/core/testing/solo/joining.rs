//! Joining: what connects a solo's ends to the ports that carry them.
//!
//! Knows ports; not what travels.

use super::End;
use crate::fabric::doorbell::PeerWake;
use crate::fabric::{AnyPort, Caps};
use crate::mail::call::Attach;

/// Attaches our end to the first port of its kind, through whatever misbehaves around it.
pub(super) fn attach(end: End) -> Attach {
    Box::new(move |ports| {
        let mut ports = ports.iter_mut().map(innermost).enumerate();
        match end {
            End::Connected(qp) => {
                let (at, _) = ports.find(|(_, port)| matches!(port, AnyPort::Verbs(_)))?;
                Some((at, qp))
            }
            End::Loopback(endpoint) => {
                let (at, port) = ports
                    .filter_map(|(at, port)| match port {
                        AnyPort::Loopback(port) => Some((at, port)),
                        _ => None,
                    })
                    .next()?;
                let qp = port.attach_local(endpoint, PeerWake::NEVER_SLEEPS).ok()?;
                Some((at, qp))
            }
            End::Stream(socket) => {
                let (at, port) = ports
                    .filter_map(|(at, port)| match port {
                        AnyPort::Tcp(port) => Some((at, port)),
                        _ => None,
                    })
                    .next()?;
                let caps = Caps {
                    body_max: usize::MAX,
                    one_sided: false,
                    read_domain: true,
                };
                let qp = port.attach(socket, caps).ok()?;
                Some((at, qp))
            }
        }
    })
}

fn innermost(mut port: &mut AnyPort) -> &mut AnyPort {
    while let AnyPort::Faulty(outer) = port {
        port = outer.inner_mut();
    }
    port
}
