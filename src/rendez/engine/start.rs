//! How an engine comes up: cores, threads, shards, control plane, in that order.
//!
//! A shard's thread is pinned first and then makes its arena and ports, so that their pages are near its core.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use core_affinity::CoreId;
use crossbeam::channel;

use super::config::{Config, draw};
use super::ending::Ended;
use super::reporters::Reporters;
use super::secrets;
use super::services::OWN_MAX;
use super::steps::Steps;
use super::transports::Transports;
use super::users::Users;
use super::wiring::{ShardObserver, Wiring};
use super::{Crew, Inner, Placement};
use super::{metrics, recording};
use crate::control::{Control, ControlConfig, PollPolicy as ControlPolicy, Services};
use crate::drive::{Drive, Driver, PollPolicy, Running};
use crate::fabric::doorbell::{Doorbell, DoorbellError};
use crate::ground::device::TaskName;
use crate::ground::{Code, Incarnation, Locked, Status, catalogue, faults, limits};
use crate::mail::forks;
use crate::mail::neighbour::{Neighbour, neighbours};
use crate::memory::{ArenaId, House, Pool, Segment};
use crate::shard::carriers::carriers;
use crate::shard::{Mailbox, Parts, Shard};
use crate::trace::Clock;
use crate::trace::recorder::{Head, Recorder};
use crate::trace::stages::{RecorderPlace, Stages};

/// The least time for a greeting: for machines that start many tasks at once.
const GREETING_MIN: Duration = Duration::from_secs(1);
/// The longest that a control thread looks for what follows a call, before it sleeps.
const LOOKOUT_MAX: Duration = Duration::from_micros(100);

pub(super) fn start(config: Config, services: Services) -> Result<Arc<Users>, Status> {
    if forks::is_child() {
        return Err(faults::forked());
    }
    config.check()?;
    if let Some(number) = services.numbers().find(|number| *number <= OWN_MAX) {
        return Err(super::config::invalid(format!(
            "service {number}: numbers up to {OWN_MAX} are reserved for the engine; use a larger one"
        )));
    }
    if let Some(root) = config.files_root.as_deref().filter(|root| !root.is_dir()) {
        return Err(super::config::invalid(format!(
            "files_root: {} is no folder",
            root.display()
        )));
    }
    forks::watch().map_err(|error| missing(format!("no handler for forks: {error}")))?;
    let task = TaskName::parse(&config.task)?;
    let incarnation =
        Incarnation(draw().ok_or_else(|| missing("the system gives no random numbers"))?);
    let (cores, is_shared) = place(&config)?;
    let count = cores.len();
    let clock = Clock::system();
    let doorbells = (0..count)
        .map(|_| Doorbell::new().map(Arc::new).map_err(no_doorbell))
        .collect::<Result<Vec<_>, _>>()?;
    let mailboxes: Vec<_> = doorbells
        .iter()
        .map(|doorbell| Arc::new(Mailbox::new(config.mailbox, Arc::clone(doorbell))))
        .collect();
    let running = Running {
        driver: config.drive,
        policy: config.poll,
        spin: config.spin,
        is_shared,
    };
    let drives: Vec<_> = mailboxes
        .iter()
        .map(|mailbox| {
            Drive::new(running, Arc::clone(mailbox))
                .map(Arc::new)
                .map_err(no_doorbell)
        })
        .collect::<Result<_, _>>()?;
    if config.drive == Driver::Caller {
        Drive::join(&drives);
    }
    let house = House::new();
    let pool = Pool::of(house, ArenaId(count as u16), config.arena)?;
    let transports = Transports::open(&config, &cores)?;
    let wiring = Wiring::new(&config, count, house, transports.clone(), services)?;
    let wiring = Arc::new(wiring);
    for segment in pool.segments() {
        wiring.segment_added(count as u16, Arc::clone(segment));
    }
    let settings = config.shard_settings(count);
    let mut threads = Vec::new();
    let mut is_huge = true;
    let (ready, started) = mpsc::channel::<Result<_, Status>>();
    let (working, done) = mpsc::channel();
    let (stay, parting) = channel::bounded::<()>(0);
    let wakes: Vec<_> = doorbells.iter().map(|bell| bell.wake()).collect();
    let mut rings = neighbours(&wakes, limits::SHARD_MESSAGE_RING)
        .into_iter()
        .enumerate();
    // What fails here is told when there is an engine: it ends the shards that run already.
    let begun = rings.try_for_each(|(index, neighbours)| {
        let seed = Seed {
            index: index as u16,
            task: task.clone(),
            incarnation,
            settings,
            clock: clock.clone(),
            house,
            arena: config.arena,
            mailbox: Arc::clone(&mailboxes[index]),
            neighbours,
            observer: ShardObserver::new(&wiring, index as u16),
            transports: transports.clone(),
            place: recording::place(&config, &task, incarnation, index)?,
        };
        let drive = Arc::clone(&drives[index]);
        let ready = ready.clone();
        if config.drive == Driver::Caller {
            let (shard, segments, recorder) = seed.grow()?;
            drive.adopt(shard).map_err(no_doorbell)?;
            let _ = ready.send(Ok((index as u16, segments, recorder)));
            return Ok(());
        }
        let core = cores[index];
        let (working, parting) = (working.clone(), parting.clone());
        let thread = std::thread::Builder::new()
            .name(format!("rendez-shard-{index}"))
            .spawn(move || match seed.grow_on(core) {
                Ok((shard, segments, recorder)) => {
                    let _ = ready.send(Ok((index as u16, segments, recorder)));
                    drop(ready);
                    let shard = drive.run(shard);
                    drop(working);
                    // Its connections end with it: first its peers are told why.
                    let _ = parting.recv();
                    drop(shard);
                }
                Err(status) => drop(ready.send(Err(status))),
            });
        threads.push(thread.map_err(|error| no_thread(index, &error))?);
        Ok::<_, Status>(())
    });
    // Only the shards are waited for: one that panics before it is ready says so by its end.
    drop((working, ready));
    let inner = Arc::new(Inner {
        parked_bytes: config.parked_bytes.min(config.parked_bytes_per_step),
        task,
        incarnation,
        clock,
        mailboxes,
        doorbells,
        drives,
        steps: Steps::default(),
        wiring: Arc::clone(&wiring),
        control: OnceLock::new(),
        pool: Mutex::new(pool),
        crew: Mutex::new(Some(Crew {
            threads,
            done,
            stay,
            metrics: None,
        })),
        ended: Ended::new(false),
        placement: Placement { cores, is_shared },
        locals: Mutex::default(),
        failed: OnceLock::new(),
        dumping: Mutex::default(),
        dumped: AtomicU64::new(0),
        clock_keeper: Mutex::default(),
        refused_traces: AtomicU64::new(0),
        reporters: Reporters::default(),
        clocks: Mutex::default(),
        began: Clock::system().stamp(),
        metrics: Mutex::default(),
        recorders: OnceLock::new(),
        config,
    });
    // Dropped where a start fails: what runs by then ends.
    let users = Users::of(Arc::clone(&inner));
    begun?;
    let mut recorders = vec![None; count];
    for _ in 0..count {
        let (shard, segments, recorder) = started
            .recv()
            .map_err(|_| missing("a shard's thread ended"))??;
        recorders[usize::from(shard)] = recorder;
        for segment in segments {
            is_huge &= segment.is_huge();
            wiring.segment_added(shard, segment);
        }
    }
    let _ = inner.recorders.set(recorders);
    wiring.bind(&inner);
    let segments: Vec<_> = wiring
        .segments()
        .into_iter()
        .map(|(_, segment)| segment)
        .collect();
    transports.begin(&inner, &segments)?;
    if inner.config.control {
        start_control(&inner)?;
    }
    if let Some(address) = &inner.config.metrics {
        let page = metrics::Page(Arc::downgrade(&inner));
        let server = metrics::MetricsServer::start(address, inner.config.metrics_any_user, page)?;
        *inner.metrics.locked() = Some(server);
    }
    tracing::debug!(task = %inner.task, cores = ?inner.placement.cores, is_huge, "the engine runs");
    Ok(users)
}

fn start_control(inner: &Arc<Inner>) -> Result<(), Status> {
    let config = &inner.config;
    let mut control = ControlConfig::new(
        inner.task.to_string(),
        inner.incarnation,
        inner.mailboxes.len() as u16,
    );
    match &config.listen {
        Some(address) if address.is_tcp() => control.tcp_listen = Some(address.clone()),
        listen => control.listen.clone_from(listen),
    }
    control.secret = secrets::secret(config)?;
    // No other process can have what came by a descriptor.
    control.waives_secret = config.cluster_secret_file.is_none();
    control.tls = secrets::tls(config)?;
    control.features = inner.wiring.features();
    control.insecure = config.insecure;
    control.path_wish = config.require;
    control.boot.clone_from(&config.boot);
    set_times(&mut control, config);
    control.force_runtime = config.runtime;
    control.poll_policy = match config.poll {
        PollPolicy::Adaptive => ControlPolicy::Adaptive,
        PollPolicy::Busy => ControlPolicy::Busy,
        PollPolicy::Park => ControlPolicy::Park,
    };
    control.lookout = match config.poll {
        PollPolicy::Adaptive => config.spin.min(LOOKOUT_MAX),
        PollPolicy::Busy => LOOKOUT_MAX,
        PollPolicy::Park => Duration::ZERO,
    };
    control.limits.frame_window = u32::from(limits::FRAME_WINDOW);
    control.limits.line_window = u32::from(limits::LINE_WINDOW);
    control.limits.body_max = limits::BODY_MAX as u32;
    let started =
        Control::start(control, Arc::clone(&inner.wiring) as _).map_err(|error| error.status())?;
    let _ = inner.control.set(started);
    inner.wiring.control_is_up();
    Ok(())
}

/// How long what is silent passes for what lives.
fn set_times(control: &mut ControlConfig, config: &Config) {
    control.lost_after = config.lost_after();
    control.ping_every = config.ask_every();
    control.doubtful_after = control.lost_after / 2;
    control.reach_min = config.ask_every();
    // A greeting that a broken way left unfinished keeps its task out as long as this.
    let greeting = config.failure_detection.max(GREETING_MIN);
    control.greet_deadline = control.greet_deadline.min(greeting);
}

/// Which cores the shards get, and whether they share them.
pub(super) fn place(config: &Config) -> Result<(Vec<usize>, bool), Status> {
    let mask: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .into_iter()
        .map(|core| core.id)
        .collect();
    if mask.is_empty() {
        return Err(missing("the affinity mask of this process names no core"));
    }
    let cores = if config.cores.is_empty() {
        mask.clone()
    } else {
        config.cores.clone()
    };
    if let Some(foreign) = cores.iter().find(|core| !mask.contains(core)) {
        return Err(super::config::invalid(format!(
            "cores: core {foreign} is not in this process's affinity mask {mask:?}"
        )));
    }
    let shards = if config.shards == 0 {
        cores.len().min(limits::SHARDS)
    } else {
        config.shards
    };
    if shards > cores.len() && !config.share_cores {
        return Err(Status::new(
            Code::InvalidArgument,
            catalogue::SHARDS_OVER_CORES,
            format!(
                "{shards} shards on {} cores: a busy shard needs a core of its own. Lower `shards`, or set \
                 `share_cores` to let them take turns",
                cores.len()
            ),
        ));
    }
    if shards > cores.len() {
        tracing::warn!(
            shards,
            cores = cores.len(),
            "more shards than cores: they yield to each other"
        );
    }
    let placed = (0..shards)
        .map(|shard| cores[shard % cores.len()])
        .collect();
    Ok((placed, config.share_cores))
}

/// What a shard's thread makes the shard of.
struct Seed {
    index: u16,
    task: TaskName,
    incarnation: Incarnation,
    settings: crate::shard::Settings,
    clock: Clock,
    house: House,
    arena: crate::memory::ArenaConfig,
    mailbox: Arc<Mailbox>,
    neighbours: Vec<Option<Neighbour>>,
    observer: Arc<ShardObserver>,
    transports: Transports,
    place: RecorderPlace,
}

impl Seed {
    /// Pins this thread to `core` first.
    fn grow_on(self, core: usize) -> Result<Grown, Status> {
        // A core that was in the mask a moment ago may be gone; the shard then runs where the kernel puts it.
        if !core_affinity::set_for_current(CoreId { id: core }) {
            tracing::warn!(core, "the shard could not be pinned to its core");
        }
        self.grow()
    }

    fn grow(self) -> Result<Grown, Status> {
        #[cfg(test)]
        tests::break_down(&self);
        let pool = Pool::of(self.house, ArenaId(self.index), self.arena)?;
        let segments = pool.segments().to_vec();
        let ports = self.transports.make_ports(usize::from(self.index))?;
        let head = Head {
            task: self.task.to_string(),
            incarnation: self.incarnation.0,
            shard: self.index,
            pid: std::process::id(),
            sampling: self.settings.sampling,
            clock_ns: 0,
            scale: self.clock.scale(),
            boot: recording::boot(),
        };
        let stages = Stages::new(self.clock.clone(), carriers(&ports), self.place, head)?;
        let recorder = stages.recorder();
        let shard = Shard::new(Parts {
            index: self.index,
            task: self.task,
            incarnation: self.incarnation,
            settings: self.settings,
            clock: self.clock,
            pool,
            ports,
            mailbox: self.mailbox,
            neighbours: self.neighbours,
            observer: self.observer,
            stages,
        });
        let mut shard = shard.map_err(|error| {
            missing(format!(
                "no address space for the table of shard {}: {error}; raise `ulimit -v`",
                self.index
            ))
        })?;
        shard.segments_are_told();
        Ok((shard, segments, recorder))
    }
}

/// A shard, its first memory, and what it records into.
type Grown = (Shard, Vec<Arc<Segment>>, Option<Arc<Recorder>>);

fn no_doorbell(error: DoorbellError) -> Status {
    missing(format!("no doorbell: {error}"))
}

/// The shard's thread cannot be made: why, and what to do if there may be no more threads.
fn no_thread(shard: usize, error: &std::io::Error) -> Status {
    let mend = match error.kind() {
        std::io::ErrorKind::WouldBlock => {
            "; raise the limit on threads (`ulimit -u`, TasksMax= in a unit, the control group's pids.max)"
        }
        _ => "",
    };
    missing(format!("no thread for shard {shard}: {error}{mend}"))
}

fn missing(what: impl std::fmt::Display) -> Status {
    Status::of(
        catalogue::SYSTEM_LIMIT,
        format!("the engine cannot start: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `pthread_create` says it where the user, or the control group, may have no more.
    #[test]
    fn a_thread_that_cannot_be_made_names_the_limits() {
        let of = |errno: rustix::io::Errno| no_thread(3, &errno.into());
        let limits = ["ulimit -u", "TasksMax=", "pids.max"];
        let status = of(rustix::io::Errno::AGAIN);
        assert_eq!(status.reason(), catalogue::SYSTEM_LIMIT);
        let said = status.message();
        assert!(limits.iter().all(|limit| said.contains(limit)), "{said}");
        assert!(said.contains("shard 3"), "{said}");
        let said = of(rustix::io::Errno::NOMEM);
        assert!(!said.message().contains("ulimit"), "{said}");
    }

    /// The last shard of such a task.
    pub(super) fn break_down(seed: &Seed) {
        let shards = seed.settings.shards;
        let is_broken = seed.task.to_string().contains("broken");
        assert!(!is_broken || seed.index + 1 < shards, "as it was asked to");
    }

    #[test]
    fn a_shard_that_panics_before_it_runs_ends_the_start() {
        for shards in [1, 2] {
            let mut config = Config::new("/job:broken/task:0");
            (config.shards, config.share_cores, config.control) = (shards, true, false);
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || tell.send(crate::engine::Engine::start(config)));
            // A start that waits for ever is not joined.
            let started = told.recv_timeout(Duration::from_secs(10)).unwrap();
            let status = started.unwrap_err();
            assert_eq!(status.reason(), catalogue::SYSTEM_LIMIT);
            assert!(status.message().contains("a shard's thread ended"));
        }
    }

    /// The failure model: questions and first attempts after D/8, a connection is lost after 5/8 D, and one that is of
    /// no use ends after a quarter of a second.
    #[test]
    fn the_control_plane_has_the_times_of_the_failure_model() {
        let mut config = Config::new("/job:a/task:0");
        config.failure_detection = Duration::from_secs(2);
        let mut control = ControlConfig::new("a", Incarnation(1), 1);
        set_times(&mut control, &config);
        let eighth = config.failure_detection / 8;
        assert_eq!((control.ping_every, control.reach_min), (eighth, eighth));
        assert_eq!(control.lost_after, 5 * eighth);
        assert_eq!(control.backoff_max, Duration::from_millis(250));
    }
}
