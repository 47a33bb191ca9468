//! How soon a group is there: all its processes run, and start engine and agent at one word.

use std::path::Path;
use std::time::{Duration, Instant};

use rendez::drive::PollPolicy;
use rendez::engine::{Config, Engine};
use rendez_rpc::{Agent, Options};

use super::Failure;
use super::figures::Figure;
use super::process::{Other, say};

const LONG: Duration = Duration::from_secs(60);

/// One of the group.
pub(crate) fn member(file: &str, name: &str, count: usize) -> Result<(), Failure> {
    let mut lines = std::io::stdin().lines();
    say("ready")?;
    lines.next().ok_or("nothing was said")??;
    let began = Instant::now();
    let mut config = Config::new(format!("/job:{name}/task:0"));
    (config.shards, config.share_cores) = (1, true);
    config.arena.segment_bytes = 4 << 20;
    // Many tasks on few cores may not spin.
    if count > 2 {
        config.poll = PollPolicy::Park;
    }
    let engine = Engine::start(config)?;
    let mut options = Options::through_file(Path::new(file), Some(count));
    options.init_timeout = LONG;
    let agent = Agent::init(&engine, name, options)?;
    say(&began.elapsed().as_secs_f64().to_string())?;
    lines.for_each(drop);
    agent.shutdown_local();
    Ok(())
}

/// The time until the last of `count` workers has joined, from the word.
pub(crate) fn measure(count: usize) -> Result<(&'static str, Figure), Failure> {
    let id = std::process::id();
    let file = std::env::temp_dir().join(format!("rendez-bench-rpc-{id}"));
    let _ = std::fs::remove_file(&file);
    let path = file.display().to_string();
    let start = |at: usize| {
        let name = format!("m{id}_{at}");
        Other::start(&["member", &path, &name, &count.to_string()])
    };
    let mut members = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
    for member in &mut members {
        member.line()?;
    }
    let began = Instant::now();
    for member in &mut members {
        member.tell("go")?;
    }
    for member in &mut members {
        member.line()?;
    }
    let took = began.elapsed();
    members.into_iter().try_for_each(Other::end)?;
    let _ = std::fs::remove_file(&file);
    let name = if count == 2 {
        "init, group of 2"
    } else {
        "init, group of 64"
    };
    Ok((name, Figure::of(vec![took])))
}
