//! What a call costs, beside what the engine alone takes for the same: a value there and one back, by the threads of
//! two processes. Both are measured in one run, in turns; the ratio is what says something.
//!
//! `cargo run --release -p rendez-rpc --example calls`

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rendez::control::Address;
use rendez::engine::{Config, Engine, Step};
use rendez::ground::{DType, Key, StepId};
use rendez::memory::Tensor;
use rendez_rpc::{Agent, Functions, Options, Worker, wait_all};

type Failure = Box<dyn std::error::Error>;

const ROLE: &str = "RENDEZ_RPC_BENCH_WORKER";
const ROUNDS: usize = 9;
const CALLS: usize = 2_000;
const IN_FLIGHT: usize = 200;
const LARGE: u64 = 16 << 20;
const LONG: Duration = Duration::from_secs(60);

fn engine(task: &str) -> Result<Engine, Failure> {
    let mut config = Config::new(task);
    (
        config.shards,
        config.share_cores,
        config.arena.segment_bytes,
    ) = (1, true, 64 << 20);
    Ok(Engine::start(config)?)
}

fn options(first: &str, second: &str, at: Option<Address>) -> Options {
    let mut other = Worker::new("second", second);
    other.address = at;
    Options::of_workers([Worker::new("first", first), other]).functions(
        Functions::new()
            .add_in_shard("shard", |value: u32| value)
            .add("pool", |value: u32| value)
            .add_in_shard("size", |tensor: Tensor| tensor.size() as u64)
            .add("sum", |tensor: Tensor| {
                tensor
                    .as_slice::<u64>()
                    .map_or(0, |words| words.iter().fold(0, |sum: u64, word| sum ^ word))
            }),
    )
}

fn raw_keys(first: &str, second: &str) -> Result<(Key, Key), Failure> {
    Ok((
        Key::between(first, second, "raw")?,
        Key::between(second, first, "raw")?,
    ))
}

/// The other process: it answers calls, and echoes values of the engine's own.
fn second(tasks: &str) -> Result<(), Failure> {
    let (first, second) = tasks.split_once(' ').ok_or("two tasks")?;
    let engine = engine(second)?;
    writeln!(
        std::io::stdout(),
        "listens {}",
        engine.address().ok_or("it does not listen")?
    )?;
    let (there, back) = raw_keys(first, second)?;
    let step = engine.step(StepId(1));
    std::thread::spawn(move || {
        while let Ok(received) = step.recv(&there).wait() {
            if step.send(&back, received.tensor).is_err() {
                break;
            }
        }
    });
    let agent = Agent::init(&engine, "second", options(first, second, None))?;
    agent.shutdown(Duration::ZERO)?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    if let Ok(tasks) = std::env::var(ROLE) {
        return second(&tasks);
    }
    let id = std::process::id();
    let (first, second) = (
        format!("/job:first_{id}/task:0"),
        format!("/job:second_{id}/task:0"),
    );
    let mut child = Command::new(std::env::current_exe()?)
        .env(ROLE, format!("{first} {second}"))
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
    let line = lines.next().ok_or("the other process said nothing")??;
    let at: Address = line.trim_start_matches("listens ").parse()?;
    let engine = engine(&first)?;
    let agent = Agent::init(&engine, "first", options(&first, &second, Some(at)))?;
    let keys = raw_keys(&first, &second)?;
    measure(&engine, &agent, &keys)?;
    agent.shutdown(LONG)?;
    child.wait()?;
    Ok(())
}

/// A value there and back, by the engine alone.
fn raw(step: &Step, (there, back): &(Key, Key), value: &Tensor) -> Result<(), Failure> {
    step.send(there, value.clone())?;
    step.recv(back).deadline(LONG).wait()?;
    Ok(())
}

/// The mean time of `work`, in microseconds.
fn mean(times: usize, mut work: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let began = Instant::now();
    for _ in 0..times {
        work()?;
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / times as f64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(engine: &Engine, agent: &Agent, keys: &(Key, Key)) -> Result<(), Failure> {
    let step = engine.step(StepId(1));
    let small = Tensor::scalar(7_u32);
    let mut large = engine.tensor(DType::U64, &[LARGE / 8])?;
    large.as_mut_slice::<u64>()?.fill(3);
    let large = large.finish();
    let names = [
        "shard",
        "pool",
        "in flight, shard",
        "in flight, pool",
        "16 MiB, untouched",
        "16 MiB, read",
    ];
    let mut raws = vec![Vec::new(); 3];
    let mut times = vec![Vec::new(); names.len()];
    for round in 0..=ROUNDS {
        let call = |function| {
            mean(CALLS, || {
                Ok(agent
                    .rpc_sync::<u32>("second", function, (7_u32,))
                    .map(|_| ())?)
            })
        };
        let many = |function| {
            let batch = || -> Result<(), Failure> {
                let calls =
                    (0..IN_FLIGHT).map(|_| agent.rpc_async::<u32>("second", function, (7_u32,)));
                wait_all(calls.collect::<Result<Vec<_>, _>>()?)?;
                Ok(())
            };
            mean(CALLS / IN_FLIGHT, batch).map(|batch| batch / IN_FLIGHT as f64)
        };
        let arg = |function, times| {
            mean(times, || {
                Ok(agent
                    .rpc_sync::<u64>("second", function, (large.clone(),))
                    .map(|_| ())?)
            })
        };
        let pass = || {
            let words = large.as_slice::<u64>()?;
            std::hint::black_box(words.iter().fold(0, |sum: u64, word| sum ^ word));
            Ok(())
        };
        let raw_round = [
            mean(CALLS, || raw(&step, keys, &small))?,
            mean(CALLS / 20, || raw(&step, keys, &large))?,
            mean(5, pass)?,
        ];
        let round_times = [
            call("shard")?,
            call("pool")?,
            many("shard")?,
            many("pool")?,
            arg("size", CALLS / 20)?,
            arg("sum", 5)?,
        ];
        // The first warms up.
        if round > 0 {
            raws.iter_mut()
                .zip(raw_round)
                .for_each(|(all, time)| all.push(time));
            times
                .iter_mut()
                .zip(round_times)
                .for_each(|(all, time)| all.push(time));
        }
    }
    let raws: Vec<f64> = raws.into_iter().map(median).collect();
    writeln!(
        std::io::stdout(),
        "engine alone, round trip: 4 B {:.2} µs, 16 MiB {:.2} µs; one pass over 16 MiB: {:.1} µs",
        raws[0],
        raws[1],
        raws[2]
    )?;
    let beside = [0, 0, 0, 0, 1, 2];
    for ((name, times), beside) in names.iter().zip(times).zip(beside) {
        let time = median(times);
        writeln!(
            std::io::stdout(),
            "{name:20} {time:10.2} µs  {:8.2} × beside it  {:10.0} a second",
            time / raws[beside],
            1e6 / time
        )?;
    }
    Ok(())
}
