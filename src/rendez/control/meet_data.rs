//! Meetings of data connections: which tickets are good, in the clear or under TLS.
//!
//! Knows sockets, TLS and tickets; what is carried afterwards is for the shards.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use futures_lite::io::{AsyncReadExt, AsyncWriteExt};

use crate::fabric::Secured;
use crate::ground::Code;

use super::data::{self, Carrier};
use super::meet::late;
use super::newcomers::Data;
use super::plane::Plane;
use super::preamble::{self, TICKET, Verdict};
use super::refusal::Refusal;
use super::side::no_stream;
use super::tcp;
use super::tickets::Place;
use super::tls::Tls;

impl Plane {
    /// Judges a peer's connection for data, in the clear.
    pub(super) fn handle_data(&self, data: Data, preamble: &[u8; TICKET]) {
        let place = match (&self.config.tls, self.judge_owner(&data.socket)) {
            // However good the ticket is: no intermediary may strip TLS from a connection.
            (Some(_), _) => Err(Verdict::WantsTls),
            // Without the means to ask there is no verdict: the dialler comes again.
            (None, Err(refusal)) if refusal.retry => {
                let status = refusal.status;
                return self.complain_of_data(&data, status.reason(), status.message());
            }
            (None, Err(_)) => Err(Verdict::OtherUser),
            (None, Ok(())) => self.tickets.borrow().judge(preamble, &[], self.now_ms()),
        };
        let verdict = place.err().unwrap_or(Verdict::Welcome);
        let is_told = data::answer(&data.socket, verdict);
        match place {
            Ok(place) => {
                let tuned = tcp::tune(&data.socket, self.config.lost_after);
                // The dialler misses one that fails so early, too.
                if is_told && tuned.is_ok() {
                    let carrier = Carrier {
                        fd: OwnedFd::from(data.socket),
                        secured: None,
                    };
                    self.tickets.borrow_mut().put(place, carrier);
                }
            }
            Err(verdict) => {
                let (reason, why) = data::refusal(verdict);
                self.complain_of_data(&data, reason, why);
            }
        }
    }

    /// Shakes hands on a connection for data under TLS, and judges the ticket that comes in it.
    pub(super) async fn welcome_data(self: Rc<Self>, data: Data) {
        let Some(tls) = &self.config.tls else {
            data::answer(&data.socket, Verdict::NoTls);
            let (reason, why) = data::refusal(Verdict::NoTls);
            return self.complain_of_data(&data, reason, why);
        };
        let time = data.deadline.saturating_duration_since(Instant::now());
        let judged = self.judge_sealed(tls, &data);
        let judged = self.runtime.within(time, judged).await.unwrap_or_else(late);
        match judged {
            Ok((place, secured)) => {
                let carrier = Carrier {
                    fd: OwnedFd::from(data.socket),
                    secured: Some(secured),
                };
                self.tickets.borrow_mut().put(place, carrier);
            }
            Err(refusal) => {
                let status = refusal.status;
                self.complain_of_data(&data, status.reason(), status.message());
            }
        }
    }

    async fn judge_sealed(&self, tls: &Tls, data: &Data) -> Result<(Place, Secured), Refusal> {
        let socket = data.socket.try_clone().map_err(no_stream)?;
        tcp::tune(&socket, self.config.lost_after).map_err(no_stream)?;
        let stream = self.runtime.adopt_tcp(socket).map_err(no_stream)?;
        let (mut stream, binding) = tls.accept_data(self.runtime.paced(stream)).await?;
        let mut preamble = [0; TICKET];
        stream.read_exact(&mut preamble).await.map_err(no_stream)?;
        let now_ms = self.now_ms();
        let place = self.tickets.borrow().judge(&preamble, &binding, now_ms);
        let verdict = preamble::answer(place.err().unwrap_or(Verdict::Welcome));
        let told = async {
            stream.write_all(&verdict).await?;
            stream.flush().await
        };
        told.await.map_err(no_stream)?;
        let place = place.map_err(|verdict| {
            let (reason, why) = data::refusal(verdict);
            Refusal::fatal(Code::PermissionDenied, reason, why)
        })?;
        // Nothing is being read: the dialler says no more until it has its answer.
        let (_, session) = stream.into_inner();
        let secured = tls.settle(session.into(), &data.socket);
        Ok((place, secured.map_err(no_stream)?))
    }

    fn complain_of_data(&self, data: &Data, reason: &'static str, why: &str) {
        if let Some(more) = self.complaints.add(reason, Instant::now()) {
            tracing::warn!(
                task = %self.config.task,
                from = %data.from,
                reason,
                more,
                why,
                "a data connection was refused"
            );
        }
    }
}
