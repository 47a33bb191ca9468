//! A server of a few pages by HTTP/1, for scrapers and probes.
//!
//! It knows no engine. One thread polls all connections at once, so that a slow client delays no other. Requests are
//! parsed by `httparse`, of the hyper project: it accepts all that the grammar allows and allocates nothing. Bounded
//! are the connections, the bytes of a head and the time for all of it; if all places are taken, the connection that
//! has waited longest without a whole request is closed. A page that was just made is served again, so that a flood of
//! scrapes costs the shards no more than a scrape of each kind in each tenth of a second.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::Pages;
use crate::cluster::HostPort;
use crate::control::{Owner, is_loopback};
use crate::ground::{Status, catalogue, limits};
use crate::mail::forks::ParentOnly;
use crate::users::UserNumbers;

/// Bytes of a request's head.
const HEAD_MAX: usize = 8 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// How long a connection may last.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a page is good for others.
const FRESH: Duration = Duration::from_millis(100);

/// The user that may read everything anyway.
const ROOT: u32 = 0;
/// What strangers hear.
const FORBIDDEN: &str = "this task answers its own user and root only; metrics_any_user = true lets every user \
     of this machine read\n";

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// The running server; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct MetricsServer {
    address: SocketAddr,
    stop: Arc<std::os::fd::OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// Listens at `address` and answers from then on: all clients, or at a loopback address, if not `any_user`, only
    /// our own user and root.
    ///
    /// # Errors
    /// `METRICS_ADDRESS`.
    pub(crate) fn start(
        address: &HostPort,
        any_user: bool,
        pages: impl Pages,
    ) -> Result<Self, Status> {
        let failed = |error: io::Error| {
            Status::of(
                catalogue::METRICS_ADDRESS,
                format!("metrics = \"{address}\": {error}"),
            )
        };
        let resolved: Vec<SocketAddr> = (address.host(), address.port())
            .to_socket_addrs()
            .map_err(failed)?
            .collect();
        if resolved.iter().any(|address| !is_loopback(address.ip())) {
            tracing::warn!(%address, "anyone who can reach this address can read the metrics, from other machines too");
        }
        let listener = TcpListener::bind(&resolved[..]).map_err(failed)?;
        let listener = ParentOnly::new(listener);
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|errno| failed(errno.into()))?);
        let stopped = Arc::clone(&stop);
        let body = move || {
            let mut server_loop = ServerLoop {
                own_user: (!any_user && is_loopback(address.ip())).then(UserNumbers::read),
                pages: Box::new(pages),
                clients: Vec::new(),
                fresh: [None, None],
                health: None,
            };
            server_loop.run(&listener, &stopped);
        };
        let thread = std::thread::Builder::new().name("rendez-metrics".into());
        let thread = Some(thread.spawn(body).map_err(failed)?);
        tracing::info!(%address, "metrics are served at /metrics");
        Ok(Self {
            address,
            stop,
            thread,
        })
    }

    /// Where it listens, with the port it got.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Has it end behind the page that it makes; waits for nothing.
    pub(crate) fn end_soon(&self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.end_soon();
        // The last owner of the engine may be a page that is being made: its thread ends by itself then.
        let other = |thread: &JoinHandle<()>| thread.thread().id() != std::thread::current().id();
        if let Some(thread) = self.thread.take().filter(other) {
            // A panic there was told by the panic hook.
            let _ = thread.join();
        }
    }
}

/// A connected client.
struct Client {
    socket: TcpStream,
    is_welcome: bool,
    since: Instant,
    heard: Vec<u8>,
    /// What is to be said, and how much of it was.
    answer: Option<(Vec<u8>, usize)>,
}

struct ServerLoop {
    /// The only user it answers, beside root; without it, all.
    own_user: Option<UserNumbers>,
    pages: Box<dyn Pages>,
    clients: Vec<Client>,
    /// The page of each kind that was made last, and when: the open kind's is the second.
    fresh: [Option<(Instant, String)>; 2],
    /// Whether the shards answered last, and when.
    health: Option<(Instant, bool)>,
}

impl ServerLoop {
    fn run(&mut self, listener: &TcpListener, stop: &std::os::fd::OwnedFd) {
        loop {
            let mut waits: Vec<PollFd<'_>> = vec![
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(listener, PollFlags::IN),
            ];
            for client in &self.clients {
                let wish = if client.answer.is_some() {
                    PollFlags::OUT
                } else {
                    PollFlags::IN
                };
                waits.push(PollFd::from_borrowed_fd(client.socket.as_fd(), wish));
            }
            let patience = Timespec {
                tv_sec: 0,
                tv_nsec: 200_000_000,
            };
            let patience = (!self.clients.is_empty()).then_some(&patience);
            // An interrupted wait is a short one.
            let _ = poll(&mut waits, patience);
            let is_ready = |at: usize| waits.get(at).is_some_and(|fd| !fd.revents().is_empty());
            if is_ready(0) {
                return;
            }
            let has_client = is_ready(1);
            let ready: Vec<usize> = (0..self.clients.len())
                .filter(|at| is_ready(at + 2))
                .collect();
            drop(waits);
            // Before anything is made that takes its time: that of the others is not theirs.
            let now = Instant::now();
            let mut gone: Vec<usize> = ready.into_iter().filter(|&at| !self.serve(at)).collect();
            let spent = now.elapsed();
            for client in &mut self.clients {
                client.since += spent;
            }
            let is_late = |client: &Client| client.since.elapsed() > PATIENCE;
            gone.extend((0..self.clients.len()).filter(|&at| is_late(&self.clients[at])));
            gone.sort_unstable();
            gone.dedup();
            for at in gone.into_iter().rev() {
                self.clients.swap_remove(at);
            }
            if has_client {
                self.let_in(listener);
            }
        }
    }

    fn let_in(&mut self, listener: &TcpListener) {
        match listener.accept() {
            Ok((socket, _)) if socket.set_nonblocking(true).is_ok() => {
                if self.clients.len() >= limits::METRICS_GUESTS {
                    let longest = |at: &usize| {
                        let client = &self.clients[*at];
                        (client.answer.is_some(), client.since)
                    };
                    if let Some(at) = (0..self.clients.len()).min_by_key(longest) {
                        self.clients.swap_remove(at);
                    }
                }
                let is_welcome = self.own_user.is_none_or(|users| {
                    let owner = Owner::of(&socket);
                    owner.is_ok_and(|owner| {
                        matches!(owner, Owner::User(user) if user == ROOT || users.is_own(user))
                    })
                });
                self.clients.push(Client {
                    socket,
                    is_welcome,
                    since: Instant::now(),
                    heard: Vec::new(),
                    answer: None,
                });
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // No descriptor is left, say: to look again at once would be to spin.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }

    /// Hears or tells what there is. False when the client is done.
    fn serve(&mut self, at: usize) -> bool {
        if self.clients[at].answer.is_none() {
            let mut room = [0; 2048];
            match self.clients[at].socket.read(&mut room) {
                Ok(0) => return false,
                Ok(len) => self.clients[at].heard.extend_from_slice(&room[..len]),
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            let heard = std::mem::take(&mut self.clients[at].heard);
            let answer = self.answer(&heard, self.clients[at].is_welcome);
            self.clients[at].heard = heard;
            match answer {
                Some(answer) => self.clients[at].answer = Some((answer, 0)),
                None => return true,
            }
        }
        let client = &mut self.clients[at];
        let Some((answer, told)) = &mut client.answer else {
            return true;
        };
        match client.socket.write(&answer[*told..]) {
            Ok(len) => *told += len,
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
        if *told < answer.len() {
            return true;
        }
        // Closed with something unread, the kernel would take the answer back.
        let _ = client.socket.shutdown(std::net::Shutdown::Write);
        let _ = client.socket.read(&mut [0; 2048]);
        false
    }

    /// What is answered to `heard`; `None` if there is more to come.
    fn answer(&mut self, heard: &[u8], is_welcome: bool) -> Option<Vec<u8>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let parsed = match request.parse(heard) {
            Ok(httparse::Status::Complete(_)) => Ok(()),
            Ok(httparse::Status::Partial) if heard.len() <= HEAD_MAX => return None,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => Err((
                "431 Request Header Fields Too Large",
                "the head of the request is too long\n",
            )),
            Err(_) => Err(("400 Bad Request", "this is not an HTTP/1 request\n")),
        };
        if let Err((status, text)) = parsed {
            return Some(response(status, PLAIN, text, true));
        }
        if !is_welcome {
            return Some(response("403 Forbidden", PLAIN, FORBIDDEN, true));
        }
        let method = request.method.unwrap_or_default();
        let path = request.path.unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        let has_body = match method {
            "GET" => true,
            "HEAD" => false,
            _ => {
                return Some(response(
                    "405 Method Not Allowed",
                    PLAIN,
                    "only GET and HEAD\n",
                    true,
                ));
            }
        };
        let accepts = request
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case("accept"));
        let is_open = accepts
            .filter_map(|header| std::str::from_utf8(header.value).ok())
            .any(prefers_open);
        Some(match path {
            "/metrics" => match self.metrics(is_open) {
                Some(text) => {
                    response("200 OK", if is_open { OPEN } else { TEXT }, &text, has_body)
                }
                None => response(
                    "503 Service Unavailable",
                    PLAIN,
                    "the task has ended\n",
                    has_body,
                ),
            },
            "/healthz" if self.is_healthy() => response("200 OK", PLAIN, "ok\n", has_body),
            "/healthz" => response(
                "503 Service Unavailable",
                PLAIN,
                "a shard does not answer\n",
                has_body,
            ),
            "/readyz" => {
                let missing = self.pages.missing();
                let text = format!("not connected: {}\n", missing.join(", "));
                match missing.is_empty() {
                    true => response("200 OK", PLAIN, "ok\n", has_body),
                    false => response("503 Service Unavailable", PLAIN, &text, has_body),
                }
            }
            "/" => response("200 OK", PLAIN, "/metrics\n/healthz\n/readyz\n", has_body),
            _ => response(
                "404 Not Found",
                PLAIN,
                "there is /metrics, /healthz and /readyz\n",
                has_body,
            ),
        })
    }

    fn metrics(&mut self, is_open: bool) -> Option<String> {
        let kind = usize::from(is_open);
        if let Some((made, text)) = &self.fresh[kind]
            && made.elapsed() < FRESH
        {
            return Some(text.clone());
        }
        let text = self.pages.metrics(is_open)?;
        self.fresh[kind] = Some((Instant::now(), text.clone()));
        Some(text)
    }

    fn is_healthy(&mut self) -> bool {
        match self.health {
            Some((asked, is_healthy)) if asked.elapsed() < FRESH => is_healthy,
            _ => {
                let is_healthy = self.pages.is_healthy();
                self.health = Some((Instant::now(), is_healthy));
                is_healthy
            }
        }
    }
}

/// True if the header wants OpenMetrics at least as much as plain text.
fn prefers_open(accept: &str) -> bool {
    let weight_of = |kind: &str| {
        let ranges = accept.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            (parts.next()? == kind).then(|| {
                let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
                weight.unwrap_or(1.0)
            })
        });
        ranges.fold(0.0_f32, f32::max)
    };
    let open = weight_of("application/openmetrics-text");
    open > 0.0 && open >= weight_of("text/plain")
}

fn response(status: &str, kind: &str, text: &str, has_body: bool) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    if has_body {
        answer.push_str(text);
    }
    answer.into_bytes()
}

#[cfg(test)]
mod tests;
