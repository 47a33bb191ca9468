//! The demonstration's second process: the consumer, which reads the file for itself and compares what it receives.
//!
//! Knows engines and the plan; nothing of terminals: what it finds goes to the first process by key.

use std::time::Duration;

use super::pair::{PEER_COMMAND, config};
use super::plan::{self, CONSUMER, PRODUCER, Plan};
use super::tasks::{Awaited, BatchKeys, Consumer, Until, numbers};
use super::wait::{PairWait, is_leaving};
use crate::args::DemoPeerArgs;
use crate::error::CliError;
use crate::weights::{Entry, Weights};
use rendez::control::Address;
use rendez::engine::Engine;
use rendez::ground::{Status, catalogue};

/// Receives until the first process has no more, or is there no more.
///
/// # Errors
/// `DEMO_PEER_MISUSED` if it was not started by a demonstration; `PEER_LOST` if the first process ends early.
pub fn serve(args: &DemoPeerArgs) -> Result<(), CliError> {
    let address: Address = args
        .address
        .parse()
        .map_err(|error| misused(format!("{error}")))?;
    let parent = args.parent;
    // A process whose parent is gone is handed to another: we can read our parent's number, and no other process reuses
    // it.
    let mut ended = || {
        let is_ours = rustix::process::Pid::as_raw(rustix::process::getppid()) == parent;
        (!is_ours || is_leaving(parent as u32)).then(|| format!("(process {parent}) is gone"))
    };
    if let Some(how) = ended() {
        return Err(CliError::failure(
            catalogue::PEER_LOST,
            format!("the producer {how} before the two had met"),
        ));
    }
    let weights = args
        .file
        .as_ref()
        .map_or_else(Weights::built_in, |path| Weights::open(path))?;
    let plan = Plan::of(&weights);
    let mut config = config(CONSUMER, args.core, args.shared_core);
    config
        .peers
        .insert(format!("/job:{PRODUCER}/task:0"), address);
    let engine = Engine::start(config)?;
    let mut waiting = PairWait::new(&engine, (CONSUMER, PRODUCER), &mut ended)?;
    waiting.say(
        &plan::key(CONSUMER, PRODUCER, "ready")?,
        numbers(&[plan.fingerprint])?,
    )?;
    waiting.hear(&plan::key(PRODUCER, CONSUMER, "begin")?)?;
    let more = plan::key(PRODUCER, CONSUMER, "more")?;
    loop {
        for batch in &plan.batches {
            receive(
                &engine,
                &weights,
                batch.start,
                &weights.entries()[batch.clone()],
                args.rounds,
                &mut waiting,
            )?;
        }
        if waiting
            .hear(&more)?
            .as_slice::<u64>()
            .map_err(Status::from)?
            == [0]
        {
            break;
        }
    }
    engine.shutdown(Duration::from_millis(200));
    Ok(())
}

fn receive(
    engine: &Engine,
    weights: &Weights,
    first: usize,
    batch: &[Entry],
    rounds: Option<u64>,
    waiting: &mut PairWait<'_>,
) -> Result<(), CliError> {
    let (mut awaited, mut start) = (Vec::with_capacity(batch.len()), 0);
    for (place, entry) in batch.iter().enumerate() {
        let (key, len) = (
            plan::tensor_key(first + place, &entry.name)?,
            entry.len as usize,
        );
        awaited.push(Awaited {
            key,
            meta: entry.meta,
            start,
            len,
        });
        start += len;
    }
    let mut expected = vec![0; start];
    for (entry, awaited) in batch.iter().zip(&awaited) {
        weights.read_into(entry, &mut expected[awaited.start..][..awaited.len])?;
    }
    let until = match rounds {
        Some(rounds) => Until {
            rounds: rounds.max(2),
            time: Duration::MAX,
        },
        None => Until {
            rounds: plan::ROUNDS_MAX,
            time: plan::rounds_time(batch, weights),
        },
    };
    let keys = BatchKeys::new()?;
    let task = Consumer::new(
        keys.clone(),
        awaited,
        expected,
        until,
        waiting.failure.clone(),
    );
    engine.spawn(0, Box::new(task))?;
    waiting.value_of(&keys.over).map(drop)
}

fn misused(what: String) -> CliError {
    CliError::failure(
        "DEMO_PEER_MISUSED",
        format!("{what}; '{PEER_COMMAND}' is for 'rendez demo' only"),
    )
}
