//! A worker of a group that comes and goes, met through a file. Without a call it serves until its input ends.
//!
//! ```sh
//! cargo run -p rendez-rpc --example worker -- /tmp/group alice           # in one terminal
//! cargo run -p rendez-rpc --example worker -- /tmp/group bob alice hello # in another
//! ```

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use rendez::engine::{Config, Engine};
use rendez_rpc::{Agent, Context, Functions, Options, RRef};

/// What others may call: plain functions.
fn greet(text: String) -> Result<String, String> {
    if text.is_empty() {
        return Err("there is nothing to say".into());
    }
    let caller = Context::current()
        .map(|call| call.caller_name())
        .unwrap_or_default();
    Ok(format!("{text}, {caller}"))
}

fn words(text: String) -> Vec<String> {
    text.split_whitespace().map(Into::into).collect()
}

fn count(words: RRef<Vec<String>>) -> Result<u64, rendez_rpc::Error> {
    Ok(words.local_value()?.len() as u64)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (file, name, call) = match &arguments[..] {
        [file, name] => (file, name, None),
        [file, name, to, text] => (file, name, Some((to, text))),
        _ => return Err("usage: worker FILE NAME [TO TEXT]".into()),
    };
    let mut config = Config::new(format!("/job:{name}/task:0"));
    (config.shards, config.share_cores) = (1, true);
    let engine = Engine::start(config)?;
    let functions = Functions::new()
        .add("greet", greet)
        .add("words", words)
        .add("count", count);
    let options = Options::through_file(Path::new(file), None).functions(functions);
    let agent = Agent::init(&engine, name, options)?;
    if let Some((to, text)) = call {
        // A call and its result.
        let greeting: String = agent.rpc_sync(to, "greet", (text.clone(),))?;
        writeln!(std::io::stdout(), "{to} says: {greeting}")?;
        // A value that stays there, and a call of a function that uses it there.
        let words = agent.remote::<Vec<String>>(to, "words", (text.clone(),))?;
        writeln!(
            std::io::stdout(),
            "{words:?} has {} words: {:?}",
            words.rpc_sync::<u64>("count", ())?,
            words.to_here()?
        )?;
    } else {
        writeln!(std::io::stdout(), "{name} serves; end its input to leave")?;
        std::io::stdin().lines().for_each(drop);
    }
    agent.shutdown(Duration::from_secs(10))?;
    Ok(())
}
