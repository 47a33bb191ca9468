//! RDMA of an engine: its devices, what is registered with them, and why there are none if there are none.
//!
//! Knows devices, shards' mailboxes and memory; not peers (`rdma/ends.rs`) nor what travels. One thread of its own does
//! what takes long or waits: registering segments that arenas grew by, and hearing what devices tell of themselves.
//!
//! **What may fail.** No library, no device or a setting that switches it off: there is no RDMA, tensors go by TCP, and
//! only a query tells. A device that cannot be used (locked memory is limited, a port is down, a call fails): the same,
//! and every peer that has RDMA too counts as a fallback with the reason. If RDMA is required, each is an error.

mod ends;
mod near;

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::{Registered, Transport, Wired, port_of};
use crate::control::{Lack, Offers, Path, PeerUp};
use crate::drive::Driver;
use crate::engine::Inner;
use crate::engine::config::{Config, VerbsSettings};
use crate::fabric::AnyPort;
use crate::fabric::shm::LinkMapping;
use crate::fabric::verbs::sys::{self, VerbsTable};
use crate::fabric::verbs::{
    Access, Domain, Registration, VerbsConfig, VerbsDevice, VerbsError, VerbsPort,
};
use crate::ground::{Locked, Status, catalogue};
use crate::memory::Segment;
use crate::shard::Call;

/// Its line in the list.
pub(super) const REGISTERED: Registered = Registered {
    path: Path::Verbs,
    open: |config, cores| Ok(Rdma::open(config, cores)?),
};

/// How long the thread sleeps when nothing happens.
const NAP: Duration = Duration::from_secs(5);

/// RDMA of an engine. Dropped, its thread ends.
#[derive(Debug)]
struct Rdma {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What its thread knows too.
#[derive(Debug)]
struct Shared {
    /// The devices in use, each with its protection domain.
    domains: Vec<Arc<Domain>>,
    /// Which of them each shard uses.
    of_shard: Vec<usize>,
    port: VerbsConfig,
    /// Why there is none (any more).
    no: Mutex<Option<Lack>>,
    is_required: bool,
    /// Segments to be registered.
    fresh: Mutex<VecDeque<Arc<Segment>>>,
    bell: Option<OwnedFd>,
    is_stopping: AtomicBool,
    engine: OnceLock<Weak<Inner>>,
}

impl Rdma {
    /// Looks for devices, one for each of the shards that run on `cores`.
    ///
    /// # Errors
    /// Where RDMA is required, why there is none.
    fn open(config: &Config, cores: &[usize]) -> Result<Arc<Self>, Status> {
        let settings = &config.verbs;
        let is_required = config.require.demanded() == Some(Path::Verbs);
        let unwanted = |why| Err((Status::of(catalogue::PATH_REFUSED, why), false));
        let found = match (settings.enabled, config.has_tls() && !settings.in_clear) {
            (false, _) => unwanted("switched off by the setting `verbs`"),
            (true, _) if config.drive == Driver::Caller => {
                unwanted("`drive = \"caller\"` leaves no thread to answer the greeting of a device")
            }
            (true, true) => unwanted(
                "TLS is set, and RDMA would carry tensors unencrypted: the setting `verbs_in_clear` allows that",
            ),
            (true, false) => find(settings),
        };
        let (domains, no) = match found {
            Ok(domains) => (domains, None),
            Err((status, _)) if is_required => {
                let message = format!("require = \"verbs\": {}", status.message());
                return Err(Status::new(status.code(), status.reason(), message));
            }
            Err((status, is_fault)) => {
                let why = status.message().to_owned();
                if is_fault {
                    tracing::warn!(%why, "an RDMA device is present but cannot be used: tensors go by TCP");
                }
                (Vec::new(), Some(Lack { why, is_fault }))
            }
        };
        let names: Vec<String> = domains
            .iter()
            .map(|domain| domain.device().name().to_string())
            .collect();
        let of_shard = near::choose(&names, cores);
        if !names.is_empty() {
            tracing::info!(devices = ?names, ?of_shard, "RDMA is available");
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        Ok(Arc::new(Self {
            shared: Arc::new(Shared {
                domains,
                of_shard,
                port: settings.port(),
                no: Mutex::new(no),
                is_required,
                fresh: Mutex::default(),
                bell,
                is_stopping: AtomicBool::new(false),
                engine: OnceLock::new(),
            }),
            thread: Mutex::default(),
        }))
    }

    /// Why there is none.
    fn no(&self) -> Option<Lack> {
        self.shared.no.locked().clone()
    }
}

impl Transport for Rdma {
    fn path(&self) -> Path {
        Path::Verbs
    }

    fn offers(self: Arc<Self>) -> Option<Arc<dyn Offers>> {
        Some(self)
    }

    fn links(
        &self,
        engine: &Arc<Inner>,
        up: PeerUp,
        _: Option<LinkMapping>,
    ) -> Result<Wired, Status> {
        Ok((Vec::new(), ends::links(engine, up)?))
    }

    /// None where there is no RDMA. Where it is required, the error says why.
    fn make_port(&self, shard: usize) -> Result<Option<AnyPort>, Status> {
        let shared = &self.shared;
        let Some(domain) = shared.domain_of(shard).filter(|_| self.no().is_none()) else {
            return Ok(None);
        };
        match VerbsPort::new(domain, shared.port) {
            Ok(port) => Ok(Some(AnyPort::Verbs(Box::new(port)))),
            Err(error) => shared.do_without(status_of(&error)).map(|()| None),
        }
    }

    /// The segments are registered now, so that the first peer need not wait for it.
    fn begin(&self, engine: &Arc<Inner>, segments: &[Arc<Segment>]) -> Result<(), Status> {
        let shared = &self.shared;
        let _ = shared.engine.set(Arc::downgrade(engine));
        if self.no().is_some() {
            return Ok(());
        }
        for segment in segments {
            if let Err(error) = shared.register(engine, segment) {
                return shared.do_without(status_of(&error));
            }
        }
        let thread = std::thread::Builder::new()
            .name("rendez-rdma".into())
            .spawn({
                let shared = Arc::clone(shared);
                move || shared.run()
            });
        match thread {
            Ok(thread) => *self.thread.locked() = Some(thread),
            Err(error) => {
                let message = format!("no thread for RDMA: {error}");
                return shared.do_without(Status::of(catalogue::SYSTEM_LIMIT, message));
            }
        }
        Ok(())
    }

    /// Another thread registers the segment.
    fn segment_added(&self, segment: &Arc<Segment>) {
        if self.no().is_none() {
            self.shared.fresh.locked().push_back(Arc::clone(segment));
            self.shared.ring();
        }
    }

    /// Ends its thread.
    fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared.ring();
        let thread = self.thread.locked().take();
        // The last owner of the engine may be this very thread: it ends by itself then.
        let own = std::thread::current().id();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != own) {
            let _ = thread.join();
        }
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn domain_of(&self, shard: usize) -> Option<&Arc<Domain>> {
        self.domains.get(*self.of_shard.get(shard)?)
    }

    /// Registers a segment with every device, and tells the shards on it.
    fn register(&self, engine: &Inner, segment: &Arc<Segment>) -> Result<(), VerbsError> {
        for (index, domain) in self.domains.iter().enumerate() {
            let registered: Arc<Registration> = Arc::new(domain.register(segment, Access::Peers)?);
            let on_it = |shard: &usize| self.of_shard.get(*shard) == Some(&index);
            for shard in (0..engine.mailboxes.len()).filter(on_it) {
                let registered = Arc::clone(&registered);
                engine.mailboxes[shard].call(Call::Ports(Box::new(move |ports| {
                    if let Some((_, port)) = port_of!(ports, Verbs) {
                        port.add_memory(&registered);
                    }
                })));
            }
        }
        Ok(())
    }

    /// The engine starts without RDMA, for this reason.
    ///
    /// # Errors
    /// The reason, where RDMA is required.
    fn do_without(&self, why: Status) -> Result<(), Status> {
        if self.is_required {
            return Err(why);
        }
        self.no_more(why.message().to_owned());
        Ok(())
    }

    fn no_more(&self, why: String) {
        let before = self.no.locked().replace(Lack {
            why: why.clone(),
            is_fault: true,
        });
        if before.is_none() {
            tracing::warn!(%why, "RDMA is unavailable from now on: tensors go by TCP");
        }
        if let Some(engine) = self.engine.get().and_then(Weak::upgrade) {
            engine.wiring.leave_path(Path::Verbs, &why);
        }
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            // Full means rung.
            let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        }
    }

    /// The thread.
    fn run(&self) {
        let mut deaf = vec![false; self.domains.len()];
        let mut losses: Vec<u32> = self
            .domains
            .iter()
            .map(|domain| domain.port_losses())
            .collect();
        self.domains.iter().for_each(|domain| domain.watch());
        while !self.is_stopping.load(Ordering::Relaxed) {
            self.register_fresh();
            let told = self.wait(&mut deaf);
            if told {
                self.look(&mut losses);
            }
        }
    }

    fn register_fresh(&self) {
        loop {
            let next = self.fresh.locked().pop_front();
            let engine = self.engine.get().and_then(Weak::upgrade);
            let (Some(segment), Some(engine)) = (next, engine) else {
                return;
            };
            if let Err(error) = self.register(&engine, &segment) {
                self.no_more(status_of(&error).message().to_owned());
            }
        }
    }

    /// Waits for the bell or for a device; true if a device has something to tell.
    fn wait(&self, deaf: &mut [bool]) -> bool {
        let Some(bell) = &self.bell else {
            std::thread::sleep(Duration::from_millis(10));
            return true;
        };
        let mut of = Vec::new();
        let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
        for (index, domain) in self.domains.iter().enumerate() {
            if !deaf[index] {
                of.push(index);
                fds.push(PollFd::from_borrowed_fd(domain.events_fd(), PollFlags::IN));
            }
        }
        let nap = Timespec {
            tv_sec: NAP.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        // An error only shortens the wait.
        let _ = poll(&mut fds, Some(&nap));
        if !fds[0].revents().is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(bell.as_fd(), &mut count);
        }
        let mut told = false;
        for (fd, index) in fds[1..].iter().zip(of) {
            let events = fd.revents();
            told |= !events.is_empty();
            // One whose device is gone would be readable for ever.
            deaf[index] = events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        }
        told
    }

    /// A device has events: shards look at their queue pairs, and a dead device is given up.
    fn look(&self, losses: &mut [u32]) {
        let Some(engine) = self.engine.get().and_then(Weak::upgrade) else {
            return;
        };
        for (domain, before) in self.domains.iter().zip(losses) {
            domain.look_at_events();
            let device = domain.device().name();
            let now = domain.port_losses();
            if now != *before {
                *before = now;
                tracing::warn!(%device, "an RDMA port went down: its queue pairs end when packets stay unacknowledged");
            }
            if domain.is_dead() {
                self.no_more(format!("{device} reports a fatal error"));
            }
        }
        engine.call_all(|| {
            Call::Ports(Box::new(|ports| {
                if let Some((_, port)) = port_of!(ports, Verbs) {
                    port.look_at_events();
                }
            }))
        });
    }
}

/// Every device that is named, or else every one with an active port. The error says whether there is a device that
/// should have worked.
fn find(settings: &VerbsSettings) -> Result<Vec<Arc<Domain>>, (Status, bool)> {
    let table: &'static VerbsTable = match settings.table {
        Some(table) => table,
        None => sys::table().map_err(|error| (status_of(&error.into()), false))?,
    };
    let named = settings.devices();
    let fault = |error: &VerbsError| (status_of(error), !named.is_empty());
    let all = VerbsDevice::names(table).map_err(|error| fault(&error))?;
    if let Some(missing) = named.iter().find(|name| !all.contains(name)) {
        let wanted = missing.clone();
        return Err(fault(&VerbsError::NoDevice { wanted }));
    }
    let wanted = if named.is_empty() { &all } else { &named };
    let mut found = Vec::new();
    let mut last = VerbsError::NoDevice {
        wanted: String::new(),
    };
    for name in wanted {
        match Domain::open(table, &settings.path(name)) {
            Ok(domain) => found.push(domain),
            Err(error) if !named.is_empty() => return Err(fault(&error)),
            Err(error) => last = error,
        }
    }
    if found.is_empty() {
        // A port that is down is no fault; a call that fails is.
        let is_fault = !matches!(
            last,
            VerbsError::NoDevice { .. } | VerbsError::NoPort { .. } | VerbsError::NoGid { .. }
        );
        return Err((status_of(&last), is_fault));
    }
    Ok(found)
}

/// With its remedy: it ends a start or a greeting, and people read it.
fn status_of(error: &VerbsError) -> Status {
    Status::of(error.reason(), format!("{error}. {}", error.remedy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever devices there are.
    #[test]
    fn with_tls_rdma_needs_a_word_of_its_own() {
        let why = |has_tls: bool, in_clear| {
            let mut config = Config::new("a");
            config.tls_ca = has_tls.then(|| "ca.pem".into());
            config.verbs.in_clear = in_clear;
            let rdma = Rdma::open(&config, &[0]).expect("not required");
            rdma.no().map_or_else(String::new, |no| no.why)
        };
        assert!(why(true, false).contains("`verbs_in_clear` allows"));
        assert_eq!(why(true, true), why(false, false));
        let mut config = Config::new("a");
        config.tls_ca = Some("ca.pem".into());
        config.require = crate::engine::Require::Verbs;
        let status = Rdma::open(&config, &[0]).expect_err("required, and in clear");
        assert!(status.message().contains("verbs_in_clear"), "{status}");
    }

    /// A port, memory, or the thread of its own: whichever cannot be made.
    #[test]
    fn where_rdma_is_required_no_engine_starts_without_it() {
        let why = || Status::of(catalogue::SYSTEM_LIMIT, "no thread for RDMA");
        for is_required in [true, false] {
            let shared = Shared {
                domains: Vec::new(),
                of_shard: Vec::new(),
                port: VerbsConfig::default(),
                no: Mutex::default(),
                is_required,
                fresh: Mutex::default(),
                bell: None,
                is_stopping: AtomicBool::new(false),
                engine: OnceLock::new(),
            };
            assert_eq!(shared.do_without(why()).is_err(), is_required);
            let lack = shared.no.locked().clone();
            assert_eq!(lack.is_some_and(|lack| lack.is_fault), !is_required);
        }
    }
}
