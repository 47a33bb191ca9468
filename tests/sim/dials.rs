//! Dials: what one simulated world is like, drawn from its seed. Knows numbers only.

use rendez::channel::Rules;
use rendez::fabric::Geometry;
use rendez::fabric::faulty::Faults;
use rendez::ground::limits;
use rendez::ground::rng::Rng;
use rendez::rendezvous::Limits;
use rendez::shard::Settings;
use rendez::testing::solo::Queues;

/// A world's measures. A scripted test starts from [`Dials::calm`] and changes what it is about.
#[derive(Clone, Debug)]
pub struct Dials {
    pub seed: u64,
    /// Shards of each task.
    pub shards: Vec<u16>,
    pub settings: Settings,
    pub faults: Faults,
    pub geometry: Geometry,
    /// Tasks meet over byte streams, cut anywhere, and not over rings.
    pub is_stream: bool,
    /// Tasks may read each other's memory.
    pub read_domain: bool,
    pub steps: u64,
    /// Steps under way at once.
    pub steps_at_once: usize,
    pub flows_per_step: u64,
    pub values_per_flow: u64,
    /// The longest value.
    pub bytes_max: u64,
    /// One operation in so many is such a disturbance; zero for never.
    pub loss_one_in: u64,
    pub restart_one_in: u64,
    /// One receive in so many has a deadline, or is cancelled.
    pub deadline_one_in: u64,
    pub cancel_one_in: u64,
    /// One step in so many ends that way.
    pub abort_one_in: u64,
    pub finish_one_in: u64,
    pub one_sided_one_in: u64,
    /// One leased tensor in so many is held for a while.
    pub hold_one_in: u64,
    /// One value in so many is a tensor that its sender holds as a lease, if it holds one: it is sent on, often back to
    /// whose memory it is.
    pub relay_one_in: u64,
    /// Tasks do not seal their memory, and cut it short when it has been mapped.
    pub is_unsealed: bool,
    /// The host of each task; none given means one for all. Tasks of one host meet over rings and may read each other's
    /// memory, others meet over streams.
    pub hosts: Vec<usize>,
    /// One operation in so many cuts two tasks off from each other, for at most `partition_max_ns`.
    pub partition_one_in: u64,
    pub partition_max_ns: u64,
    /// Clocks of tasks begin anywhere, run fast or slow, and leap.
    pub is_skewed: bool,
    /// One operation in so many takes the core from a shard, or from a task, for at most `lost_max_ns`.
    pub lost_one_in: u64,
    pub lost_max_ns: u64,
    /// One mapping of a peer's segment in so many fails.
    pub unmapped_one_in: u64,
    /// One operation in so many takes all registrations from a task, for a while.
    pub unregistered_one_in: u64,
    /// Bounds are so small that they are reached: then operations are refused, and steps fail.
    pub is_scarce: bool,
    pub queues: Queues,
    pub arena_bytes: u64,
    /// How long a peer may be away before its shards give it up by themselves.
    pub away_ns: u64,
    /// Before this no task is connected.
    pub apart_ns: u64,
    /// Operations between two ticks, at most.
    pub hurry: u64,
    /// Nanoseconds of a tick, at most.
    pub tick_ns: u64,
}

/// The longest the clock moves in one tick of any world, and so the grain of every bound on time.
pub const TICK_NS_MAX: u64 = 50_000;

impl Dials {
    /// Two tasks of one shard, and nothing goes wrong.
    pub fn calm(seed: u64) -> Self {
        Self {
            seed,
            shards: vec![1, 1],
            settings: settings(),
            faults: Faults {
                latency_min_ns: 1_000,
                latency_max_ns: 5_000,
                ..Faults::default()
            },
            geometry: Geometry {
                slots: 512,
                payload_bytes: 1 << 16,
            },
            is_stream: false,
            read_domain: false,
            steps: 4,
            steps_at_once: 2,
            flows_per_step: 4,
            values_per_flow: 4,
            bytes_max: 1000,
            loss_one_in: 0,
            restart_one_in: 0,
            deadline_one_in: 0,
            cancel_one_in: 0,
            abort_one_in: 0,
            finish_one_in: 0,
            one_sided_one_in: 0,
            hold_one_in: 0,
            relay_one_in: 0,
            is_unsealed: false,
            hosts: Vec::new(),
            partition_one_in: 0,
            partition_max_ns: 0,
            is_skewed: false,
            lost_one_in: 0,
            lost_max_ns: 0,
            unmapped_one_in: 0,
            unregistered_one_in: 0,
            is_scarce: false,
            queues: Queues::default(),
            arena_bytes: 64 << 20,
            away_ns: 1_000_000_000,
            apart_ns: 0,
            hurry: 4,
            tick_ns: 10_000,
        }
    }

    /// The world of a seed.
    pub fn of_seed(seed: u64) -> Self {
        let mut dials = Self::disturbed(seed);
        let mut rng = Rng::new(seed ^ 0x7365_6e74_6261_636b);
        if rng.one_in(3) {
            // Few worlds have leases, and fewer hold one when its holder sends.
            dials.read_domain = true;
            dials.settings.lease = true;
            dials.is_stream = false;
            dials.bytes_max = dials.bytes_max.max(8_000);
            dials.values_per_flow = dials.values_per_flow.max(8);
            dials.hold_one_in = 1 + rng.below(2);
            dials.relay_one_in = 1 + rng.below(3);
        }
        let mut rng = Rng::new(seed ^ 0x666f_7267_6574_7321);
        // In three of four worlds keys are forgotten all the time.
        let kept = [1, 2, 6, limits::IDLE_KEYS];
        dials.settings.idle_keys = kept[rng.below(kept.len() as u64) as usize];
        dials
    }

    /// The world of a seed as it was before leases were sent on.
    pub fn disturbed(seed: u64) -> Self {
        let (mut dials, mut rng) = Self::ample(seed);
        if rng.one_in(5) {
            dials.make_scarce(&mut rng);
        }
        dials
    }

    /// The world of a seed with room for all, and the dice that are left.
    pub fn ample(seed: u64) -> (Self, Rng) {
        let mut dials = Self::plain(seed);
        let mut rng = Rng::new(seed ^ 0x6469_7374_7572_6273);
        let pick = |rng: &mut Rng, of: &[u64]| of[rng.below(of.len() as u64) as usize];
        if rng.one_in(3) {
            let tasks = pick(&mut rng, &[2, 3, 3, 4]);
            dials.shards = (0..tasks)
                .map(|_| pick(&mut rng, &[1, 1, 2]) as u16)
                .collect();
            dials.hosts = (0..tasks).map(|_| rng.below(2) as usize).collect();
            dials.is_stream = false;
        }
        dials.partition_one_in = pick(&mut rng, &[0, 0, 60, 200]);
        dials.partition_max_ns = pick(&mut rng, &[20_000, 500_000, 3_000_000]);
        dials.away_ns = pick(&mut rng, &[1_000_000_000, 200_000]);
        dials.is_skewed = rng.one_in(2);
        dials.lost_one_in = pick(&mut rng, &[0, 0, 100]);
        dials.lost_max_ns = pick(&mut rng, &[100_000, 2_000_000]);
        dials.faults.unopened_one_in = pick(&mut rng, &[0, 0, 20, 3]);
        dials.unregistered_one_in = pick(&mut rng, &[0, 0, 100]);
        dials.faults.linger_one_in = pick(&mut rng, &[0, 0, 5]);
        dials.faults.linger_max_ns = pick(&mut rng, &[100_000, 3_000_000]);
        dials.unmapped_one_in = pick(&mut rng, &[0, 0, 0, 10]);
        (dials, rng)
    }

    /// Bounds that are reached.
    fn make_scarce(&mut self, rng: &mut Rng) {
        let pick = |rng: &mut Rng, of: &[u64]| of[rng.below(of.len() as u64) as usize];
        self.is_scarce = true;
        let table = &mut self.settings.table;
        table.records = pick(rng, &[16, 64]) as u32;
        table.values = pick(rng, &[8, 32]) as u32;
        table.waiters = pick(rng, &[8, 32]) as u32;
        table.waiters_per_key = pick(rng, &[2, 8]) as u32;
        table.parked_bytes = pick(rng, &[1 << 14, 1 << 17]);
        table.parked_bytes_per_step = table.parked_bytes / 2;
        table.steps = pick(rng, &[2, 8]) as u32;
        table.grace_steps = pick(rng, &[1, 4]) as u32;
        self.settings.keys = pick(rng, &[16, 64]) as usize;
        self.settings.waiters = pick(rng, &[4, 32]) as usize;
        self.settings.shard_messages = pick(rng, &[2, 16]) as usize;
        self.queues.shard_messages = 2;
        self.arena_bytes = pick(rng, &[1 << 20, 2 << 20]);
    }

    /// The world of a seed as it was before there were hosts, partitions, clocks of their own, lost cores and bounds
    /// that are reached: what the oldest regressions name.
    pub fn plain(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0073_696d_756c_6174);
        let mut dials = Self::calm(seed);
        let pick = |rng: &mut Rng, of: &[u64]| of[rng.below(of.len() as u64) as usize];
        let tasks = pick(&mut rng, &[2, 2, 2, 3]);
        dials.shards = (0..tasks)
            .map(|_| pick(&mut rng, &[1, 1, 2, 3]) as u16)
            .collect();
        dials.read_domain = rng.one_in(2);
        let settings = &mut dials.settings;
        settings.lease = dials.read_domain && !rng.one_in(4);
        settings.leases = pick(&mut rng, &[1, 4, 256]) as u32;
        settings.frame_window = pick(&mut rng, &[4, 8, 16, 64, 256]) as u16;
        settings.inline_max = pick(&mut rng, &[100, 300, 1064]) as usize;
        settings.line_window = pick(&mut rng, &[20, 40, 100, 1000, 16_384]) as u16;
        settings.landing_bytes = pick(&mut rng, &[1 << 12, 1 << 16, 1 << 17, 1 << 20]);
        settings.interned = pick(&mut rng, &[1, 2, 8, 1024]) as usize;
        settings.offers = pick(&mut rng, &[2, 8, 1024]) as usize;
        settings.ack_delay_ns = pick(&mut rng, &[1_000, 100_000, 2_000_000]);
        dials.geometry.slots = pick(&mut rng, &[16, 64, 512]) as u32;
        dials.geometry.payload_bytes = pick(&mut rng, &[1 << 14, 1 << 16, 1 << 18]) as u32;
        let latency_min_ns = pick(&mut rng, &[0, 1_000, 20_000]);
        dials.faults = Faults {
            latency_min_ns,
            latency_max_ns: latency_min_ns + pick(&mut rng, &[0, 10_000, 200_000]),
            refuse_one_in: pick(&mut rng, &[0, 0, 20, 3]),
            reset_one_in: pick(&mut rng, &[0, 0, 2000, 300]),
            pause_one_in: pick(&mut rng, &[0, 0, 500]),
            pause_max_ns: 500_000,
            ..Faults::default()
        };
        dials.steps = pick(&mut rng, &[3, 6, 10]);
        dials.steps_at_once = pick(&mut rng, &[1, 2, 4]) as usize;
        dials.flows_per_step = pick(&mut rng, &[1, 4, 12]);
        dials.values_per_flow = pick(&mut rng, &[1, 3, 20]);
        dials.bytes_max = pick(&mut rng, &[16, 1000, 8_000, 64_000]);
        dials.loss_one_in = pick(&mut rng, &[0, 0, 100]);
        dials.restart_one_in = pick(&mut rng, &[0, 0, 100]);
        dials.deadline_one_in = pick(&mut rng, &[0, 10, 3]);
        dials.cancel_one_in = pick(&mut rng, &[0, 10, 3]);
        dials.abort_one_in = pick(&mut rng, &[0, 4]);
        dials.finish_one_in = pick(&mut rng, &[0, 4]);
        dials.one_sided_one_in = pick(&mut rng, &[0, 4]);
        dials.hurry = pick(&mut rng, &[1, 4, 32]);
        dials.tick_ns = pick(&mut rng, &[500, 10_000, TICK_NS_MAX]);
        dials.is_stream = rng.one_in(3);
        dials.hold_one_in = pick(&mut rng, &[0, 4, 2]);
        dials
    }

    /// The same world with other rules.
    pub fn with(mut self, rules: Rules) -> Self {
        self.settings.rules = rules;
        self
    }
}

fn settings() -> Settings {
    let table = Limits {
        records: 4096,
        values: 4096,
        waiters: 4096,
        waiters_per_key: 512,
        parked_bytes: 64 << 20,
        parked_bytes_per_step: 32 << 20,
        steps: 64,
        tombstones: 256,
        grace_steps: 32,
        grace_ttl_ns: 60_000_000_000,
        hash_seed: 7,
        // The third value of a key begins the numbers anew.
        first_ordinal: u32::MAX - 1,
    };
    Settings {
        table,
        keys: 4096,
        waiters: 4096,
        leases: 64,
        landing_bytes: 1 << 20,
        connect_timeout_ns: 1_000_000_000,
        ..Settings::default()
    }
}
