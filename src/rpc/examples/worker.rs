//! A worker of a group that comes and goes, met through a file. It serves until its input ends; with a call it makes
//! that first, and holds a reference until then.
//!
//! ```sh
//! cargo run -p rendez-rpc --example worker -- /tmp/group alice           # in one terminal
//! cargo run -p rendez-rpc --example worker -- /tmp/group bob alice hello # in another
//! rendez call unix:@… greet hello                                        # in a third: alice says where
//! ```

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use rendez::engine::{Config, Engine};
use rendez::memory::Tensor;
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

fn scale(tensor: Tensor, by: f32) -> Result<Tensor, Box<dyn std::error::Error + Send + Sync>> {
    let scaled: Vec<f32> = tensor
        .as_slice::<f32>()?
        .iter()
        .map(|value| value * by)
        .collect();
    Ok(Tensor::from_vec(scaled, tensor.shape())?)
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
        .add("count", count)
        .add("scale", scale);
    let options = Options::through_file(Path::new(file), None).functions(functions);
    let agent = Agent::init(&engine, name, options)?;
    // A reference of ours that is held ends with this.
    let mut held = None;
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
        held = Some(words);
    }
    let address = engine
        .address()
        .map(ToString::to_string)
        .unwrap_or_default();
    writeln!(
        std::io::stdout(),
        "{name} serves until its input ends (Ctrl-D), at {address}"
    )?;
    std::io::stdin().lines().for_each(drop);
    drop(held);
    agent.shutdown(Duration::from_secs(10))?;
    Ok(())
}
