//! How soon the death of a worker is told to all that depends on it: over `failure_detection`.

use std::time::{Duration, Instant};

use rendez::control::Address;
use rendez::engine::{Config, Engine};
use rendez::ground::catalogue;
use rendez_rpc::{Agent, Functions, Options, RRef, Worker};

use super::Failure;
use super::figures::{Figure, Figures};
use super::process::{Other, say};

const LONG: Duration = Duration::from_secs(60);
/// Calls that wait for the worker, and as many references whose values do.
const WAITING: usize = 100;

fn engine(task: &str) -> Result<Engine, Failure> {
    let mut config = Config::new(task);
    (config.shards, config.share_cores) = (1, true);
    config.arena.segment_bytes = 4 << 20;
    Ok(Engine::start(config)?)
}

fn options(first: &str, second: &str, at: Option<Address>) -> Options {
    let mut other = Worker::new("second", second);
    other.address = at;
    let forever = || std::future::pending::<u32>();
    Options::of_workers([Worker::new("first", first), other])
        .functions(Functions::new().add_async("forever", forever))
}

/// The one that dies.
pub(crate) fn victim(first: &str, second: &str) -> Result<(), Failure> {
    let engine = engine(second)?;
    let address = engine.address().ok_or("it does not listen")?;
    say(&address.to_string())?;
    let agent = Agent::init(&engine, "second", options(first, second, None))?;
    agent.shutdown(Duration::ZERO)?;
    Ok(())
}

/// The time until each call and each reference of a worker that is killed has ended, over `failure_detection`.
pub(crate) fn measure() -> Result<Figures, Failure> {
    let id = std::process::id();
    let (first, second) = (
        format!("/job:caller_{id}/task:0"),
        format!("/job:victim_{id}/task:0"),
    );
    let mut victim = Other::start(&["victim", &first, &second])?;
    let at: Address = victim.line()?.parse()?;
    let engine = engine(&first)?;
    let agent = Agent::init(&engine, "first", options(&first, &second, Some(at)))?;
    let calls: Vec<_> = (0..WAITING)
        .map(|_| agent.rpc_async::<u32>("second", "forever", ()))
        .collect::<Result<_, _>>()?;
    let values: Vec<RRef<u32>> = (0..WAITING)
        .map(|_| agent.remote("second", "forever", ()))
        .collect::<Result<_, _>>()?;
    let fetches: Vec<_> = values
        .iter()
        .map(RRef::to_here_async)
        .collect::<Result<_, _>>()?;
    std::thread::sleep(Duration::from_millis(50));
    let began = Instant::now();
    victim.kill()?;
    for call in calls.into_iter().chain(fetches) {
        let error = match call.wait_for(LONG) {
            Ok(outcome) => outcome.err().ok_or("it was answered")?,
            Err(_) => return Err("a call was not told".into()),
        };
        if error.reason() != catalogue::PEER_LOST {
            return Err(error.into());
        }
    }
    let took = began.elapsed();
    drop(values);
    agent.shutdown_local();
    let bound = Config::new(first).failure_detection;
    let over = Figure::Ratio(took.as_secs_f64() / bound.as_secs_f64());
    Ok(Figures::from([("death, over failure_detection", over)]))
}
