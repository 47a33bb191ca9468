//! A store of keys that PyTorch's clients share: hosts one, uses one, or meets a group through one.
//!
//! ```sh
//! cargo run -p rendez-rpc --example store -- host 127.0.0.1:29500          # until its input ends
//! cargo run -p rendez-rpc --example store -- meet 127.0.0.1:29500 2 alice  # in two terminals: a group of two
//! cargo run -p rendez-rpc --example store -- meet 127.0.0.1:29500 2 bob
//! ```
//!
//! `use` and `times` are for `scripts/torch-store.sh` and for measuring: the one does all that a store can, the other
//! says how long groups of so many tasks take to meet, all in this process.

use std::io::Write as _;
use std::time::{Duration, Instant};

use rendez::engine::{Config, Engine};
use rendez_rpc::store::{Client, Server};
use rendez_rpc::{Agent, Context, Functions, Options};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(60);

fn engine(task: &str) -> Result<Engine, Failure> {
    let mut config = Config::new(task);
    (config.shards, config.share_cores) = (1, true);
    config.poll = rendez::drive::PollPolicy::Park;
    config.arena.segment_bytes = 1 << 20;
    Ok(Engine::start(config)?)
}

fn say(text: impl std::fmt::Display) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

fn host(address: &str) -> Result<(), Failure> {
    let server = Server::start(address)?;
    say(format_args!("listens {}", server.address()))?;
    std::io::stdin().lines().for_each(drop);
    Ok(())
}

/// Does all that a store can, and leaves `rust` there for the other side to find.
fn use_all(address: &str) -> Result<(), Failure> {
    let mut store = Client::connect(address, PATIENCE)?;
    assert_eq!(store.get("python", PATIENCE)?, b"was here");
    assert_eq!((store.add("sum", 5)?, store.add("sum", -7)?), (5, -2));
    assert_eq!(store.get("sum", PATIENCE)?, b"-2");
    assert_eq!(store.compare_set("once", b"", b"first")?, b"first");
    assert_eq!(store.compare_set("once", b"", b"second")?, b"first");
    assert_eq!(store.compare_set("once", b"first", b"second")?, b"second");
    assert_eq!(store.compare_set("absent", b"x", b"y")?, b"x");
    assert_eq!(store.find("absent")?, None);
    store.append("text", b"one ")?;
    store.append("text", b"two")?;
    assert_eq!(store.get("text", PATIENCE)?, b"one two");
    store.multi_set(&[("m1", b"1"), ("m2", &[0, 255, 10])])?;
    assert_eq!(
        store.multi_get(&["m2", "m1"])?,
        [vec![0, 255, 10], b"1".to_vec()]
    );
    assert!(store.check(&["m1", "m2"])? && !store.check(&["m1", "never"])?);
    assert!(!store.wait(&["never"], Duration::from_millis(50))?);
    assert!(store.wait(&["m1"], PATIENCE)?);
    assert!(store.delete("m1")? && !store.delete("m1")?);
    let large = vec![0x5a; 1 << 20];
    store.set("large", &large)?;
    assert_eq!(store.get("large", PATIENCE)?, large);
    let count = store.count()?;
    store.set("rust", format!("was here and saw {count} keys").as_bytes())?;
    // The other side sets this when it has looked.
    assert!(store.wait(&["looked"], PATIENCE)?);
    say("all is as it should be")?;
    Ok(())
}

fn greet(text: String) -> String {
    let caller = Context::current().map(|call| call.caller_name());
    format!("{text}, {}", caller.unwrap_or_default())
}

/// A group of so many, or with `0` one that grows and shrinks: calls all that are there, and leaves.
fn meet(address: &str, size: &str, name: &str) -> Result<(), Failure> {
    let size = Some(size.parse::<usize>()?).filter(|&size| size > 0);
    let engine = engine(&format!("/job:{name}/task:0"))?;
    let options =
        Options::through_store(address, size).functions(Functions::new().add("greet", greet));
    let agent = Agent::init(&engine, name, options)?;
    for other in agent.workers() {
        if other.name != name {
            let greeting: String = agent.rpc_sync(&other.name, "greet", ("hello".to_owned(),))?;
            say(format_args!("{} says: {greeting}", other.name))?;
        }
    }
    agent.shutdown(PATIENCE)?;
    Ok(())
}

/// How long groups of `size` take from the beginning of the first to the end of the last `init`.
fn times(size: usize, rounds: usize) -> Result<(), Failure> {
    let server = Server::start("127.0.0.1:0")?;
    let address = server.address().to_string();
    let own = std::process::id();
    let engines: Vec<Engine> = (0..size)
        .map(|at| engine(&format!("/job:meet_{own}/task:{at}")))
        .collect::<Result<_, _>>()?;
    for round in 0..rounds {
        let began = Instant::now();
        let agents: Vec<Agent> = std::thread::scope(|scope| {
            let join = |(at, engine)| {
                let options = Options::through_store(&address, Some(size));
                scope.spawn(move || Agent::init(engine, &format!("w{at}"), options))
            };
            let joining: Vec<_> = engines.iter().enumerate().map(join).collect();
            let joined = joining
                .into_iter()
                .map(|one| one.join().map_err(|_| "it panicked"));
            joined
                .map(|joined| Ok(joined??))
                .collect::<Result<_, Failure>>()
        })?;
        let taken = began.elapsed();
        say(format_args!(
            "round {round}: {size} workers met in {taken:?}"
        ))?;
        let leaving: Vec<_> = agents
            .into_iter()
            .map(|agent| std::thread::spawn(move || agent.shutdown(PATIENCE)))
            .collect();
        for one in leaving {
            one.join().map_err(|_| "it panicked")??;
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["host", address] => host(address),
        ["use", address] => use_all(address),
        ["meet", address, size, name] => meet(address, size, name),
        ["times", size, rounds] => times(size.parse()?, rounds.parse()?),
        _ => Err(
            "usage: store host ADDRESS | use ADDRESS | meet ADDRESS SIZE NAME | times SIZE ROUNDS"
                .into(),
        ),
    }
}
