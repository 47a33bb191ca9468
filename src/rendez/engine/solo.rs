//! An engine over shards that its owner turns: no threads, no control plane, and the clock of the shards.
//!
//! For simulations of what stands on engines. It knows shards by their mailboxes, as every engine does: nothing happens
//! until their owner turns them, and a blocking wait on the thread that would have to turn them waits for ever.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::config::Config;
use super::ending::Ended;
use super::reporters::Reporters;
use super::steps::Steps;
use super::transports::Transports;
use super::users::Users;
use super::wiring::{ShardObserver, Wiring};
use super::{Engine, Inner, Placement};
use crate::control::Services;
use crate::ground::{Status, Unpoisoned};
use crate::memory::{ArenaId, House, Pool, Segment};
use crate::shard::Observer;
use crate::testing::solo::{Solo, Team};

impl Engine {
    /// An engine of `team` over its shards.
    ///
    /// # Errors
    /// `ResourceExhausted` when the machine gives no memory.
    pub fn over(team: &Team, solos: &[Solo]) -> Result<Self, Status> {
        let count = solos.len();
        let table = &team.settings.table;
        let mut config = Config::new(team.task.to_string());
        config.shards = count;
        config.control = false;
        config.verbs.enabled = false;
        config.arena = team.arena;
        config.mailbox = team.queues.mailbox;
        config.parked_bytes = table.parked_bytes;
        config.parked_bytes_per_step = table.parked_bytes_per_step;
        config.stage_sampling = team.settings.sampling as usize;
        config.connect_timeout = Duration::from_nanos(team.settings.connect_timeout_ns);
        let house = solos.first().map_or_else(House::new, Solo::house);
        let pool = Pool::of(house, ArenaId(count as u16), team.arena)?;
        let transports = Transports::open(&config, &[])?;
        let wiring = Wiring::new(&config, count, house, transports, Services::new())?;
        let wiring = Arc::new(wiring);
        let mailboxes: Vec<_> = solos
            .iter()
            .map(|solo| Arc::clone(solo.mailbox()))
            .collect();
        let inner = Arc::new(Inner {
            parked_bytes: table.parked_bytes.min(table.parked_bytes_per_step),
            task: team.task.clone(),
            incarnation: team.incarnation,
            clock: team.clock.clone(),
            doorbells: mailboxes.iter().map(|mailbox| mailbox.doorbell()).collect(),
            mailboxes,
            drives: Vec::new(),
            steps: Steps::default(),
            wiring: Arc::clone(&wiring),
            control: OnceLock::new(),
            pool: Mutex::new(pool),
            crew: Mutex::new(None),
            ended: Ended::new(true),
            placement: Placement {
                cores: vec![],
                is_shared: true,
            },
            dumping: Mutex::default(),
            dumped: AtomicU64::new(0),
            clock_keeper: Mutex::default(),
            refused_traces: AtomicU64::new(0),
            reporters: Reporters::default(),
            clocks: Mutex::default(),
            began: team.clock.stamp(),
            metrics: Mutex::default(),
            recorders: OnceLock::new(),
            locals: Mutex::default(),
            failed: OnceLock::new(),
            config,
        });
        wiring.bind(&inner);
        let inner = Users::of(inner);
        Ok(Self { inner })
    }

    /// The observer for shard `index` of an engine over shards: its owner passes it on.
    #[must_use]
    pub fn observer(&self, index: u16) -> Arc<dyn Observer> {
        ShardObserver::new(&self.inner.wiring, index)
    }

    /// The memory of what runs beside the shards, which no shard owns: the arena after theirs.
    #[must_use]
    pub fn segments(&self) -> Vec<Arc<Segment>> {
        let pool = self.inner.pool.lock();
        pool.unpoisoned().segments().to_vec()
    }
}
