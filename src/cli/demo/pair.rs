//! The demonstration's two processes, seen from the first: it starts the second, has the tensors, and reports.
//!
//! Knows processes, engines and the plan; nothing of tables and terminals. The second process is this program again,
//! under a hidden subcommand. All that outlives a process that is killed is memory the other has mapped, and the name
//! of an abstract socket goes with it: nothing has to be cleaned up.

use std::ops::Range;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::plan::{self, CONSUMER, Findings, PRODUCER, Plan};
use super::tasks::{BatchKeys, Producer, numbers};
use super::wait::{MEET_TIMEOUT, PairWait, is_leaving};
use super::{Fact, Handed, Handover, Outcome};
use crate::error::CliError;
use crate::exchange::tensor_of;
use crate::histogram::Recorder;
use crate::itself::{self, ITSELF, Other};
use crate::machine::{self, Pair};
use crate::units::{show_bytes, show_nanos};
use crate::weights::Weights;
use rendez::control::Address;
use rendez::drive::PollPolicy;
use rendez::engine::{Config, Engine};
use rendez::ground::{Status, catalogue};
use rendez::memory::HugePagesReport;
use rendez::trace::Path;

/// The hidden subcommand under which this program is the consumer.
pub const PEER_COMMAND: &str = "demo-peer";

/// How long the consumer may take to end once all is said: it has nothing left to do.
const FAREWELL: Duration = Duration::from_secs(5);

/// Two tasks as two processes, each with one shard on a core of its own where there are two.
#[derive(Clone, Debug)]
pub struct TwoProcesses {
    /// The file, as the consumer shall read it by itself; `None` for the built-in one.
    pub file: Option<PathBuf>,
    /// Exactly so many rounds over each batch, instead of as many as fit the time.
    pub rounds: Option<u64>,
    /// Goes on for so long, handing all over again.
    pub linger: Duration,
    /// What the second process runs.
    pub program: PathBuf,
}

impl TwoProcesses {
    /// The usual pair for a file.
    #[must_use]
    pub fn of(file: Option<PathBuf>, rounds: Option<u64>, linger: Duration) -> Self {
        Self {
            file,
            rounds,
            linger,
            program: ITSELF.into(),
        }
    }
}

impl Handover for TwoProcesses {
    fn hand_over(
        &mut self,
        weights: &Weights,
        each: &mut dyn FnMut(Handed),
    ) -> Result<Outcome, CliError> {
        let plan = Plan::of(weights);
        check_room(weights, &plan)?;
        let cores = machine::pair()?;
        let address = Address::unique(PRODUCER);
        let mut consumer = Consumer::spawn(self, &address, cores)?;
        let mut config = config(PRODUCER, cores.near, cores.is_shared());
        config.listen = Some(address);
        config.arena.bytes_max = config.arena.bytes_max.max(2 * largest(weights, &plan));
        let engine = Engine::start(config)?;
        let facts = facts(&engine, &consumer, cores);
        let mut ended = || consumer.ended();
        let mut producer = Side {
            waiting: PairWait::new(&engine, (PRODUCER, CONSUMER), &mut ended)?,
            engine: &engine,
        };
        let tallies = producer.hand_all_over(weights, &plan, self.linger, each)?;
        consumer.farewell()?;
        engine.shutdown(Duration::from_millis(200));
        Ok(tallies.outcome(facts))
    }
}

/// The settings of one side.
pub(super) fn config(job: &str, core: usize, is_shared: bool) -> Config {
    let mut config = Config::new(format!("/job:{job}/task:0"));
    config.shards = 1;
    config.cores = vec![core];
    config.share_cores = is_shared;
    // A core of its own may be polled without end; a shared one must be given away when there is nothing to do.
    config.poll = if is_shared {
        PollPolicy::Adaptive
    } else {
        PollPolicy::Busy
    };
    config.connect_timeout = MEET_TIMEOUT;
    config
}

/// The first process's side of the talk.
struct Side<'a> {
    engine: &'a Engine,
    waiting: PairWait<'a>,
}

impl Side<'_> {
    fn hand_all_over(
        &mut self,
        weights: &Weights,
        plan: &Plan,
        linger: Duration,
        each: &mut dyn FnMut(Handed),
    ) -> Result<Tallies, CliError> {
        let ready = self
            .waiting
            .hear(&plan::key(CONSUMER, PRODUCER, "ready")?)?;
        if ready.as_slice::<u64>().map_err(Status::from)? != [plan.fingerprint] {
            let message = format!(
                "'{}' changed while it was read: the two sides found other tensors",
                weights.name()
            );
            return Err(CliError::failure("FILE_CHANGED", message));
        }
        self.waiting.say(
            &plan::key(PRODUCER, CONSUMER, "begin")?,
            numbers(&[plan.fingerprint])?,
        )?;
        let (more, since) = (plan::key(PRODUCER, CONSUMER, "more")?, Instant::now());
        loop {
            let mut tallies = Tallies::default();
            for batch in &plan.batches {
                self.hand_batch_over(weights, batch.clone(), &mut tallies, each)?;
            }
            let goes_on = since.elapsed() < linger;
            self.waiting.say(&more, numbers(&[u64::from(goes_on)])?)?;
            if !goes_on {
                return Ok(tallies);
            }
        }
    }

    fn hand_batch_over(
        &mut self,
        weights: &Weights,
        batch: Range<usize>,
        tallies: &mut Tallies,
        each: &mut dyn FnMut(Handed),
    ) -> Result<(), CliError> {
        let keys = BatchKeys::new()?;
        let mut tensors = Vec::with_capacity(batch.len());
        for index in batch.clone() {
            let entry = &weights.entries()[index];
            let tensor = tensor_of(self.engine, weights, entry)?;
            tensors.push((plan::tensor_key(index, &entry.name)?, tensor));
        }
        let failure = self.waiting.failure.clone();
        self.engine
            .spawn(0, Box::new(Producer::new(keys.clone(), tensors, failure)))?;
        let sent = self.waiting.value_of(&keys.sent)?;
        let findings = self.waiting.value_of(&keys.findings)?;
        let sent = sent.as_slice::<u64>().map_err(Status::from)?;
        let findings = Findings::parse(findings.as_slice::<u64>().map_err(Status::from)?)
            .ok_or_else(nonsense)?;
        if let Some((index, at)) = findings.differs {
            let name = weights
                .entries()
                .get(batch.start + index)
                .map_or("?", |entry| &*entry.name);
            let message = format!(
                "tensor '{name}' of '{}' differs from the file from its byte {at}: either the file changed while it \
                 was read, or memory is not to be trusted",
                weights.name()
            );
            return Err(CliError::failure("BYTES_DIFFER", message));
        }
        let bytes: u64 = weights.entries()[batch.clone()]
            .iter()
            .map(|entry| entry.len)
            .sum();
        tallies.add(batch, bytes, sent, &findings, each)
    }
}

/// What is known so far of all hand-overs.
struct Tallies {
    first: Recorder,
    all: Recorder,
    rounds: u64,
    bytes: u64,
    elapsed: Duration,
}

impl Default for Tallies {
    fn default() -> Self {
        let (first, all) = (Recorder::nanos(), Recorder::nanos());
        Self {
            first,
            all,
            rounds: u64::MAX,
            bytes: 0,
            elapsed: Duration::ZERO,
        }
    }
}

impl Tallies {
    fn add(
        &mut self,
        batch: Range<usize>,
        bytes: u64,
        sent: &[u64],
        findings: &Findings,
        each: &mut dyn FnMut(Handed),
    ) -> Result<(), CliError> {
        let count = batch.len();
        let rounds = sent.len() / count;
        if sent.len() != findings.received.len() || sent.len() != rounds * count || rounds == 0 {
            return Err(nonsense());
        }
        for (place, index) in batch.enumerate() {
            let hand_overs = (0..rounds).map(|round| {
                let at = round * count + place;
                let (received, path) = findings.received[at];
                (received.saturating_sub(sent[at]), path)
            });
            let mut hand_overs: Vec<(u64, Path)> = hand_overs.collect();
            let (first_ns, _) = hand_overs.remove(0);
            self.first.record(first_ns);
            hand_overs
                .iter()
                .for_each(|(latency, _)| self.all.record(*latency));
            each(Handed::summed_up(index, first_ns, hand_overs));
        }
        let measured = rounds as u64 - 1;
        self.rounds = self.rounds.min(measured);
        self.bytes += bytes * measured;
        self.elapsed += Duration::from_nanos(findings.ended_ns.saturating_sub(findings.began_ns));
        Ok(())
    }

    fn outcome(&self, facts: Vec<Fact>) -> Outcome {
        Outcome {
            rounds: if self.rounds == u64::MAX {
                0
            } else {
                self.rounds
            },
            bytes: self.bytes,
            elapsed: self.elapsed,
            first: self.first.summary(),
            latencies: self.all.summary(),
            facts,
        }
    }
}

/// The second process.
struct Consumer {
    process: Other,
}

impl Consumer {
    fn spawn(how: &TwoProcesses, address: &Address, cores: Pair) -> Result<Self, CliError> {
        let mut command = itself::start(&how.program);
        command.arg(PEER_COMMAND);
        command.args([
            "--parent",
            &std::process::id().to_string(),
            "--address",
            &address.to_string(),
        ]);
        command.args(["--core", &cores.far.to_string()]);
        if cores.is_shared() {
            command.arg("--shared-core");
        }
        if let Some(rounds) = how.rounds {
            command.args(["--rounds", &rounds.to_string()]);
        }
        if let Some(file) = &how.file {
            command.arg("--").arg(file);
        }
        // What it has to say about its failures goes where ours goes; results are ours to tell.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Other::spawn(&mut command)
            .map(|process| Self { process })
            .map_err(|error| {
                let message = format!(
                    "cannot start the second process ({}): {}",
                    how.program.display(),
                    itself::refused(&error)
                );
                CliError::failure("PROCESS_REFUSED", message)
            })
    }

    /// How the process ended, if it did.
    fn ended(&mut self) -> Option<String> {
        use std::os::unix::process::ExitStatusExt;
        let id = self.process.0.id();
        let Some(status) = self.process.ended() else {
            return is_leaving(id).then(|| format!("(process {id}) is ending"));
        };
        Some(match (status.code(), status.signal()) {
            (Some(code), _) => format!("(process {id}) ended with exit code {code}"),
            (None, Some(signal)) => format!("(process {id}) was killed by signal {signal}"),
            (None, None) => format!("(process {id}) ended"),
        })
    }

    /// All is said: the process must end by itself, and well.
    fn farewell(&mut self) -> Result<(), CliError> {
        let message = match self.process.farewell(FAREWELL) {
            Some(status) if status.success() => return Ok(()),
            Some(_) => {
                let how = self.ended().unwrap_or_default();
                format!("the consumer {how} after it had received everything")
            }
            None => {
                "the consumer received everything and does not end; it is killed now".to_owned()
            }
        };
        Err(CliError::failure(catalogue::PEER_LOST, message))
    }
}

/// The bytes of the largest batch.
fn largest(weights: &Weights, plan: &Plan) -> u64 {
    let bytes = |batch: &Range<usize>| {
        weights.entries()[batch.clone()]
            .iter()
            .map(|entry| entry.len)
            .sum()
    };
    plan.batches.iter().map(bytes).max().unwrap_or(0)
}

/// Both sides hold a batch, and its tensors are rounded up to whole pages.
fn check_room(weights: &Weights, plan: &Plan) -> Result<(), CliError> {
    let (needed, available) = (
        largest(weights, plan).saturating_mul(2),
        machine::available_bytes(),
    );
    if needed < available || available == 0 {
        return Ok(());
    }
    let message = format!(
        "the two sides need {} for the largest tensors of '{}', and {} of memory are free",
        show_bytes(needed),
        weights.name(),
        show_bytes(available)
    );
    Err(CliError::failure(catalogue::ARENA_FULL, message))
}

fn facts(engine: &Engine, consumer: &Consumer, cores: Pair) -> Vec<Fact> {
    let polls = if cores.is_shared() {
        "polls, yields, then sleeps (adaptive)"
    } else {
        "polls and never sleeps (busy)"
    };
    let side = |process: u32, core: usize| format!("process {process} on core {core}, {polls}");
    let control = engine
        .control_runtime()
        .map(ToString::to_string)
        .unwrap_or_default();
    vec![
        Fact {
            name: "producer",
            text: side(std::process::id(), cores.near),
        },
        Fact {
            name: "consumer",
            text: side(consumer.process.0.id(), cores.far),
        },
        Fact {
            name: "control",
            text: control,
        },
        Fact {
            name: "huge pages",
            text: pages(engine.huge_pages()),
        },
        Fact {
            name: "clock",
            text: format!(
                "CLOCK_MONOTONIC for both; latencies include one reading, {}",
                clock_cost()
            ),
        },
    ]
}

/// What one reading of the clock takes: the median of some.
fn clock_cost() -> String {
    let mut readings = [0; 101];
    for reading in &mut readings {
        let before = plan::now_ns();
        *reading = plan::now_ns() - before;
    }
    readings.sort_unstable();
    show_nanos(readings[readings.len() / 2] as f64)
}

fn pages(report: HugePagesReport) -> String {
    let why = |errno: i32| match rustix::io::Errno::from_raw_os_error(errno) {
        rustix::io::Errno::NOMEM => "none are reserved and free (vm.nr_hugepages)".to_owned(),
        other => format!("the kernel gives none ({other})"),
    };
    match report {
        HugePagesReport::Reserved { page_bytes } => format!("yes, of {}", show_bytes(page_bytes)),
        HugePagesReport::Advised { errno } => {
            format!("left to the kernel to merge: {}", why(errno))
        }
        HugePagesReport::Unavailable { errno } => format!("no: {}", why(errno)),
        _ => "off".to_owned(),
    }
}

fn nonsense() -> CliError {
    CliError::failure(
        catalogue::PEER_STATUS,
        "the consumer reports what no consumer finds; please report this",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(program: &str) -> CliError {
        let mut pair = TwoProcesses::of(None, None, Duration::ZERO);
        pair.program = program.into();
        pair.hand_over(&Weights::built_in().unwrap(), &mut |_| {})
            .unwrap_err()
    }

    #[test]
    fn a_second_process_that_cannot_start_is_a_clear_error() {
        let error = failing("/nonexistent/rendez");
        assert_eq!(error.reason(), "PROCESS_REFUSED");
        assert!(error.message().contains("/nonexistent/rendez"), "{error}");
    }

    #[test]
    fn a_second_process_that_ends_at_once_is_noticed_before_any_hello() {
        let error = failing("/bin/false");
        assert_eq!(error.reason(), "PEER_LOST");
        assert!(
            error
                .message()
                .contains("ended with exit code 1 before the two had met"),
            "{error}"
        );
    }
}
