//! TCP as a transport: one data connection for each channel, opened by the control plane.

use std::sync::Arc;

use super::{NO_PORT, Registered, Taking, Transport, Wired, port_of};
use crate::control::{Path, PeerUp};
use crate::engine::Inner;
use crate::engine::config::Config;
use crate::engine::links::{Links, ordered_pairs, side_of};
use crate::fabric::shm::LinkMapping;
use crate::fabric::tcp::{TcpConfig, TcpPort};
use crate::fabric::{AnyPort, Caps};
use crate::ground::{Status, catalogue, limits};

/// Its line in the list.
pub(super) const REGISTERED: Registered = Registered {
    path: Path::Tcp,
    open: |config, _| Ok(Arc::new(Tcp::new(config))),
};

/// TCP of an engine.
#[derive(Debug)]
struct Tcp(TcpConfig);

impl Tcp {
    fn new(config: &Config) -> Self {
        Self(TcpConfig {
            user_timeout_ms: u32::try_from(config.tcp_user_timeout.as_millis()).unwrap_or(u32::MAX),
            ..TcpConfig::default()
        })
    }
}

impl Transport for Tcp {
    fn path(&self) -> Path {
        Path::Tcp
    }

    fn make_port(&self, _: usize) -> Result<Option<AnyPort>, Status> {
        let port = TcpPort::new(self.0).map_err(|error| {
            let message = format!("the engine cannot start: no port for TCP: {error}");
            Status::of(catalogue::SYSTEM_LIMIT, message)
        })?;
        Ok(Some(AnyPort::Tcp(port)))
    }

    fn links(
        &self,
        engine: &Arc<Inner>,
        up: PeerUp,
        _: Option<LinkMapping>,
    ) -> Result<Wired, Status> {
        let shards = engine.mailboxes.len();
        let caps = Caps {
            body_max: limits::BODY_MAX,
            one_sided: false,
            read_domain: false,
        };
        let mut links: Links = engine.mailboxes.iter().map(|_| Vec::new()).collect();
        let taking = Taking::of(engine, &up);
        let channels = ordered_pairs(shards, usize::from(up.hello.shards), side_of(&up));
        for ((ours, theirs), socket) in channels.zip(up.descriptors.sockets) {
            let attach = taking.by(move |ports| {
                let (at, port) = port_of!(ports, Tcp).ok_or(NO_PORT)?;
                let qp = port.attach_secured(socket.fd, socket.secured, caps);
                Ok((at, qp.map_err(|error| error.to_string())?))
            });
            links[ours].push((theirs as u16, attach));
        }
        Ok((Vec::new(), links))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ports_have_the_user_timeout_of_the_settings() {
        let mut config = Config::new("/job:a/task:0");
        let mut of = |time| {
            config.tcp_user_timeout = time;
            Tcp::new(&config).0.user_timeout_ms
        };
        assert_eq!(of(Duration::from_millis(7_700)), 7_700);
        assert_eq!(of(Duration::MAX), u32::MAX);
    }
}
