//! Asking running tasks: an observer, a task of no cluster, proves the secret like any other and hands nothing over.
//! Also what is said of tasks that cannot be asked.
//!
//! Knows settings, clusters and the engine's calls; not what is asked.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use clap::Args;

use super::at_once::at_once;
use super::error::CliError;
use super::report::wrapped;
use super::settings::SettingArgs;
use super::terminal::Terminal;
use super::units;
use super::weights::printable;
use rendez::cluster::{ClusterSpec, Membership, members};
use rendez::control::Address;
use rendez::engine::{Connected, Engine, Loaded, OBSERVER_JOB};
use rendez::ground::{Code, Status, TaskName, catalogue};
use rendez_proto::Method;

/// At most so many tasks are asked at once.
const ASKED_AT_ONCE: usize = 64;

/// Observers have names of so many.
const NAMES: u32 = 1 << 22;

/// Options that all questions have.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct AskArgs {
    /// How long a task may take to be reached, and to answer.
    #[arg(long, value_parser = units::positive_duration, default_value = "5s", value_name = "TIME")]
    pub patience: Duration,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// An engine that looks and hands nothing over, and the tasks that it asks.
pub(super) struct Observer {
    engine: Engine,
    targets: Vec<Target>,
    patience: Duration,
}

/// One task that is asked.
pub(super) struct Target {
    address: Address,
    /// Its name, once known: a task given by address says it.
    task: OnceLock<TaskName>,
}

/// The tasks that could not be asked, and the files that could not be read.
#[derive(Default)]
pub(super) struct Unanswered {
    first: Option<CliError>,
    count: usize,
}

impl Observer {
    /// Asks `whom`: tasks of the cluster or of `[peers]`, and addresses. An empty list means all tasks.
    pub(super) fn new(args: &AskArgs, whom: &[String]) -> Result<Self, CliError> {
        Self::with_arena(args, whom, 1 << 20)
    }

    /// The same, with so many bytes for what it hands over itself.
    pub(super) fn with_arena(
        args: &AskArgs,
        whom: &[String],
        arena_bytes: usize,
    ) -> Result<Self, CliError> {
        let loaded = args.settings.load()?;
        let targets = targets(&loaded, whom)?;
        let mut config = loaded.config.of_client();
        // Not the process's number: containers number theirs alike.
        let number = getrandom::u32().unwrap_or_else(|_| std::process::id()) % NAMES;
        config.task = format!("/job:{OBSERVER_JOB}/task:{number}");
        (config.shards, config.share_cores) = (1, true);
        // A measurement says how to wait; a mere query sleeps.
        if !args.settings.flags.iter().any(|(key, _)| *key == "poll") {
            config.poll = rendez::drive::PollPolicy::Park;
        }
        config.arena.segment_bytes = arena_bytes;
        let engine = Engine::start(config)?;
        for target in &targets {
            if let Some(task) = target.task.get() {
                engine.add_peer(task.clone(), target.address.clone());
            }
        }
        Ok(Self {
            engine,
            targets,
            patience: args.patience,
        })
    }

    /// The engine.
    pub(super) const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The tasks that it asks.
    pub(super) fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// How long each may take.
    pub(super) const fn patience(&self) -> Duration {
        self.patience
    }

    /// Connects, and learns the task's name.
    ///
    /// # Errors
    /// As [`Engine::reach`].
    pub(super) fn meet(&self, target: &Target) -> Result<Connected, Status> {
        let task = match target.task.get() {
            Some(task) => task,
            None => {
                let task = self.engine.who_listens(&target.address, self.patience)?;
                self.engine.add_peer(task.clone(), target.address.clone());
                target.task.get_or_init(|| task)
            }
        };
        self.engine.reach(task, self.patience)
    }

    /// Calls a service, as bytes.
    pub(super) fn call(
        &self,
        target: &Target,
        method: u32,
        payload: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let task = self.meet(target)?.task;
        self.engine.call(&task, method, payload, self.patience)
    }

    /// Calls a service.
    pub(super) fn ask<M: Method>(
        &self,
        target: &Target,
        question: &M::Request,
    ) -> Result<M::Answer, Status> {
        let task = self.meet(target)?.task;
        self.engine.ask::<M>(&task, question, self.patience)
    }

    /// Asks all targets at once, so that several silent ones cost one timeout.
    pub(super) fn ask_all<M: Method>(
        &self,
        question: &M::Request,
    ) -> Vec<(&Target, Result<M::Answer, Status>)>
    where
        M::Request: Sync,
        M::Answer: Send,
    {
        self.of_all(|target| self.ask::<M>(target, question))
    }

    /// Does the same with all targets, many at once.
    pub(super) fn of_all<T: Send>(
        &self,
        work: impl Fn(&Target) -> Result<T, Status> + Sync,
    ) -> Vec<(&Target, Result<T, Status>)> {
        at_once(&self.targets, ASKED_AT_ONCE, |target| {
            (target, work(target))
        })
    }
}

impl Target {
    fn task(task: TaskName, address: Address) -> Self {
        Self {
            address,
            task: OnceLock::from(task),
        }
    }

    /// The task's name, or the address while that is all that is known.
    pub(super) fn name(&self) -> String {
        let task = self.task.get();
        task.map_or_else(|| self.address.to_string(), ToString::to_string)
    }

    /// Why no more is asked of who answers one part after another, and gives parts that do not go on.
    pub(super) fn confused(&self) -> Status {
        let message = format!("{} answers in parts that do not go on", self.name());
        Status::of(catalogue::CALL_MALFORMED, message)
    }
}

impl Unanswered {
    /// Notes that `target` could not be asked, and says so: under `field` its name, where objects are wanted.
    pub(super) fn tell(
        &mut self,
        target: &Target,
        status: &Status,
        json: Option<&str>,
        terminal: &mut Terminal,
    ) -> Result<(), CliError> {
        let (name, why) = (target.name(), why(status));
        match json {
            Some(field) => terminal.line(serde_json::json!({
                field: name, "what": "unanswered", "reason": status.reason(), "why": why,
            }))?,
            None => {
                let text = format!("{name} cannot be asked: {why} [{}]", status.reason());
                terminal.line(wrapped("", &text, terminal.width()))?;
            }
        }
        let message = format!("{}: {name} cannot be asked: {why}", status.code());
        self.note(CliError::failure(status.reason(), message));
        Ok(())
    }

    /// Notes that `file` could not be read, and says so.
    pub(super) fn tell_unread(
        &mut self,
        file: &Path,
        error: CliError,
        is_json: bool,
        terminal: &mut Terminal,
    ) -> Result<(), CliError> {
        let why = printable(error.message());
        if is_json {
            terminal.line(serde_json::json!({
                "file": file.to_string_lossy(), "what": "unread", "reason": error.reason(), "why": why,
            }))?;
        } else {
            let text = format!("{why} [{}]", error.reason());
            terminal.line(wrapped("", &text, terminal.width()))?;
        }
        self.note(error);
        Ok(())
    }

    fn note(&mut self, error: CliError) {
        self.count += 1;
        self.first.get_or_insert(error);
    }

    /// How many there are.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// The failure of the first of them, if there is any.
    pub(super) fn end(self) -> Result<(), CliError> {
        match self.first {
            None => Ok(()),
            Some(first) if self.count == 1 => Err(first),
            Some(first) => {
                let others = self.count - 1;
                let message = format!("{}; so it is with {others} more", first.message());
                Err(CliError::failure(first.reason(), message))
            }
        }
    }
}

/// What befell the question, for people.
fn why(status: &Status) -> String {
    match status.reason() {
        catalogue::GREETING_LATE => {
            "a connection is accepted there, but no answer comes: the process is stopped, has no processor time, or is \
             not rendez"
                .into()
        }
        catalogue::CALL_DEADLINE => {
            "it is connected, and did not answer in time: the process is stopped, or has no processor time".into()
        }
        // It may be the peer's own word.
        _ => printable(status.message()),
    }
}

/// The tasks that `whom` names.
fn targets(loaded: &Loaded, whom: &[String]) -> Result<Vec<Target>, CliError> {
    let mut known: Option<Vec<(TaskName, Address)>> = None;
    let mut targets = Vec::new();
    for text in whom {
        if !text.starts_with('/') {
            let address = text.parse::<Address>();
            let address = address
                .map_err(|error| Status::of(catalogue::CONTROL_ADDRESS, error.to_string()))?;
            targets.push(Target {
                address,
                task: OnceLock::new(),
            });
            continue;
        }
        let task = TaskName::parse(text).map_err(Status::from)?;
        let known = match &mut known {
            Some(known) => known,
            None => known.insert(all_tasks(loaded)?),
        };
        let (_, address) = known
            .iter()
            .find(|(of, _)| *of == task)
            .ok_or_else(|| undefined(&task, known.iter().map(|(of, _)| of)))?;
        targets.push(Target::task(task, address.clone()));
    }
    if whom.is_empty() {
        let all = all_tasks(loaded)?.into_iter();
        targets.extend(all.map(|(task, address)| Target::task(task, address)));
    }
    Ok(targets)
}

/// That no task is called so, of those that are `known`.
pub(super) fn undefined<'a>(task: &TaskName, known: impl Iterator<Item = &'a TaskName>) -> Status {
    let names: Vec<String> = known.take(16).map(TaskName::to_string).collect();
    let message = format!(
        "{task} is neither in the cluster nor in [peers]; they have {}",
        names.join(", ")
    );
    Status::of(catalogue::CLUSTER_TASK_UNDEFINED, message)
}

/// All tasks of the cluster, and those that `[peers]` names beside it.
fn all_tasks(loaded: &Loaded) -> Result<Vec<(TaskName, Address)>, CliError> {
    let mut all: Vec<(TaskName, Address)> = match cluster(loaded) {
        Ok(spec) => spec
            .tasks()
            .map(|(task, address)| (task, rendez_dataflow::server::dialled(address)))
            .collect(),
        Err(status)
            if status.reason() == catalogue::CLUSTER_UNRESOLVED
                && !loaded.config.peers.is_empty() =>
        {
            Vec::new()
        }
        Err(status) => return Err(status.into()),
    };
    for (name, address) in &loaded.config.peers {
        let task = TaskName::parse(name).map_err(Status::from)?;
        if !all.iter().any(|(known, _)| *known == task) {
            all.push((task, address.clone()));
        }
    }
    Ok(all)
}

/// The cluster. This process is none of its tasks, whatever its surroundings say.
fn cluster(loaded: &Loaded) -> Result<ClusterSpec, Status> {
    match members(&loaded.surroundings()?)? {
        Membership::Known(spec) => Ok(spec),
        Membership::Rooted { root, .. } => {
            let message = format!(
                "only the root {root} of this cluster is known: name its tasks with --cluster"
            );
            Err(Status::new(
                Code::FailedPrecondition,
                catalogue::CLUSTER_SPEC,
                message,
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rendez::engine::Sources;

    /// The addresses that are asked where these variables are set, beside a file.
    fn asked(file: Option<&str>, environment: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("cluster.toml");
        std::fs::write(&path, file.unwrap_or_default()).expect("written");
        let variables = environment.iter();
        let sources = Sources {
            file: Some(path),
            environment: variables
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..Sources::default()
        };
        let targets = targets(&sources.load().expect("settings"), &[]).expect("a cluster");
        let addresses = targets.iter().map(|target| target.address.to_string());
        addresses.collect()
    }

    #[test]
    fn who_asks_need_not_say_which_task_it_is() {
        const TWO: (&str, &str) = ("RENDEZ_CLUSTER", "ps=h1:1;worker=h2:2");
        const FILE: &str = "cluster = { a = [\"h3:3\"], b = [\"h4:4\"] }\n";
        const FOREIGN: (&str, &str) = ("RENDEZ_TASK", "/job:x/task:7");
        const TENSORFLOW: &str = r#"{"cluster": {"chief": ["h5:5"], "ps": ["h6:6"]}}"#;
        assert_eq!(asked(None, &[TWO]), ["h1:1", "h2:2"]);
        assert_eq!(asked(Some(FILE), &[TWO]), ["h1:1", "h2:2"]);
        assert_eq!(asked(Some(FILE), &[FOREIGN]), ["h3:3", "h4:4"]);
        assert_eq!(asked(None, &[("TF_CONFIG", TENSORFLOW)]), ["h5:5", "h6:6"]);
    }
}
