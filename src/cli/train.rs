//! `rendez train`: the worked example: a small network learns handwritten digits, with its variables on parameter
//! servers and its work on workers, each a process of its own.
//!
//! Knows sessions, processes and terminals. Two ways to train, which show the two ways to replicate a graph:
//!
//! * asynchronously: each worker has its own graph and session, and trains as fast as it can (`worker.rs`);
//! * synchronously: one graph has a tower for each worker, one session drives them, and the mean is learnt.
//!
//! Either way this process is the chief: it gives the variables their first values, tests what was learnt, keeps
//! checkpoints, and starts a worker again that was killed.

mod checkpoint;
mod digits;
mod edges;
mod network;
mod story;
mod tasks;
pub mod worker;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};

use self::digits::{Digits, Order};
use self::network::Jobs;
use self::story::{Ending, Look, Story};
use self::tasks::Processes;
use self::worker::{PATIENCE, PAUSE, WORKER_COMMAND, is_passing};
use super::error::CliError;
use super::observer::{AskArgs, Observer};
use super::secret::Inherited;
use super::settings::SettingArgs;
use super::terminal::Terminal;
use super::units;
use rendez::cluster::ClusterSpec;
use rendez::engine::Config;
use rendez::ground::{Status, TaskName, catalogue};
use rendez::memory::Tensor;
use rendez_dataflow::server::{Server, Session};
use rendez_proto::tensorflow::ConfigProto;

/// How often the chief tests what was learnt, and looks after its tasks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long a step of all workers may take before it counts as failed.
const STEP_PATIENCE: Duration = Duration::from_secs(10);
/// How long an answer to the report of the edges may take.
const REPORT_PATIENCE: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  rendez train digits --ps 1 --workers 2                       asynchronously, a process for each task
  rendez train digits --ps 1 --workers 2 --sync                all workers take each step together
  rendez train digits --ps 1 --workers 2 --kill-worker-at 1s   a worker is killed, and comes back
  rendez train digits --checkpoint model --epochs 20           and later, from where it ended:
  rendez train digits --checkpoint model --resume";

/// What is trained.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub enum TrainCommand {
    /// Learn to read handwritten digits, on parameter servers and workers of this machine.
    #[command(after_help = EXAMPLES)]
    Digits(DigitsArgs),
}

/// Options of `train digits`.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct DigitsArgs {
    /// Parameter servers: the variables are spread over them.
    #[arg(long, default_value_t = 1, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub ps: u32,
    /// Workers: each computes gradients of batches of its own.
    #[arg(long, default_value_t = 2, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub workers: u32,
    /// All workers take each step together, and the mean of their gradients is learnt.
    #[arg(long, conflicts_with = "asynchronous")]
    pub sync: bool,
    /// Each worker trains as fast as it can; this is the default.
    #[arg(long = "async")]
    pub asynchronous: bool,
    /// How many times every digit is learnt from; without --sync at least that many times.
    #[arg(long, default_value_t = 40, value_name = "COUNT", conflicts_with = "steps",
        value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub epochs: u64,
    /// How many steps are made, counted from the first of a resumed training; without --sync at least that many.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub steps: Option<u64>,
    /// Digits in a batch of one worker.
    #[arg(long, default_value_t = 32, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1437))]
    pub batch: u64,
    /// The seed of the first weights and of the order of the digits.
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    pub seed: u64,
    /// Kill a worker this long after training began, and start it again; training goes on at least until it is back.
    #[arg(long, value_name = "TIME", value_parser = units::positive_duration)]
    pub kill_worker_at: Option<Duration>,
    /// Keep the variables in this folder, every second and at the end.
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,
    /// The folder below which the tasks' graphs may read and write files; without it the one that files_root names, or
    /// else the working folder.
    #[arg(long, value_name = "FOLDER")]
    pub files: Option<PathBuf>,
    /// Start from the variables that the checkpoint folder holds.
    #[arg(long, requires = "checkpoint")]
    pub resume: bool,
    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,
    /// The settings of all tasks.
    #[command(flatten)]
    pub settings: SettingArgs,
}

impl DigitsArgs {
    const fn jobs(&self) -> Jobs {
        Jobs {
            servers: self.ps,
            workers: self.workers,
        }
    }

    /// How many steps are to be made.
    fn steps(&self, digits: usize) -> u64 {
        let each = self.batch
            * if self.sync {
                u64::from(self.workers)
            } else {
                1
            };
        self.steps
            .unwrap_or_else(|| (self.epochs * digits as u64).div_ceil(each))
    }
}

/// Runs it.
///
/// # Errors
/// What is wrong with the settings or the checkpoint; a task that ended by itself; what ended training.
pub fn run(command: &TrainCommand, terminal: &mut Terminal) -> Result<(), CliError> {
    let TrainCommand::Digits(args) = command;
    let (learnt, tested) = Digits::load()?;
    let jobs = args.jobs();
    let variables = match (&args.checkpoint, args.resume) {
        (Some(folder), true) => checkpoint::read(folder, &network::variables())?,
        _ => network::initial(args.seed)?,
    };
    if let Some(folder) = &args.checkpoint {
        // Not at the end of a training that cannot be kept.
        drop(checkpoint::open(folder)?);
    }
    let spec = [("chief", 1), ("ps", args.ps), ("worker", args.workers)];
    let cluster = tasks::cluster(&spec)?;
    let settings = args.settings.with_files(args.files.as_deref())?;
    // Its tasks say what is odd in them.
    let mut config = settings.read()?.config;
    let secret = Inherited::for_tasks_of(&config)?;
    if let Some(secret) = &secret {
        config.cluster_secret_fd = Some(secret.number());
    }
    let mut processes = Processes::new(&cluster, &settings, &config, secret);
    for task in 0..args.ps {
        processes.start(name("ps", task)?, served())?;
    }
    for task in 0..args.workers {
        let arguments = if args.sync { served() } else { trained(args) };
        processes.start(name("worker", task)?, arguments)?;
    }
    let server = chief(&cluster, config, &settings)?;
    let story = Story::new(args, args.steps(learnt.len()), tested.len());
    let mut training = Training {
        args,
        jobs,
        server,
        cluster,
        processes,
        story,
        test: tested.all()?,
    };
    let ended = training.run(variables, &learnt, terminal);
    training.processes.end();
    training.server.stop(None);
    ended
}

/// What a task is started with that only serves.
fn served() -> Vec<String> {
    vec!["serve".to_owned(), "--with-parent".to_owned()]
}

/// What a worker is started with that trains by itself.
fn trained(args: &DigitsArgs) -> Vec<String> {
    let options = [
        WORKER_COMMAND.to_owned(),
        format!("--ps={}", args.ps),
        format!("--workers={}", args.workers),
        format!("--batch={}", args.batch),
        format!("--seed={}", args.seed),
    ];
    options.to_vec()
}

fn name(job: &str, task: u32) -> Result<TaskName, Status> {
    Ok(TaskName::new(job, 0, task)?)
}

/// This process's own task.
fn chief(cluster: &str, mut config: Config, settings: &SettingArgs) -> Result<Server, CliError> {
    let is_given = |key: &str| settings.flags.iter().any(|(given, _)| *given == key);
    if !is_given("shards") {
        config.shards = 1;
    }
    config.share_cores = true;
    config.stage_sampling = 1;
    config.listen = None;
    config.connect_timeout = PATIENCE;
    let builder = Server::builder()
        .config(config)
        .cluster(ClusterSpec::parse(cluster)?);
    let server = builder.task(name("chief", 0)?).build()?;
    server.start()?;
    Ok(server)
}

struct Training<'a> {
    args: &'a DigitsArgs,
    jobs: Jobs,
    server: Server,
    cluster: String,
    processes: Processes,
    story: Story,
    /// Pixels and labels of what is tested.
    test: (Tensor, Tensor),
}

impl Training<'_> {
    fn run(
        &mut self,
        variables: Vec<(String, Tensor)>,
        learnt: &Digits,
        terminal: &mut Terminal,
    ) -> Result<(), CliError> {
        let session = self.begin(&variables)?;
        let steps = variables.iter().find(|(name, _)| name == network::STEPS);
        let steps = steps.map_or(Ok(0), |(_, steps)| count(steps))?;
        self.story.begin(steps);
        let last = if self.args.sync {
            self.together(session, learnt, terminal)?
        } else {
            self.apart(&session, terminal)?
        };
        let took = self.story.elapsed();
        self.keep(&last)?;
        let edges = self.edges()?;
        self.story
            .end(self.args, took, &last.look, &edges, terminal)
    }

    /// A session with its graph, once all its tasks are there.
    fn session(&mut self) -> Result<Session, CliError> {
        let graph = if self.args.sync {
            network::towers(self.jobs)?
        } else {
            network::test(self.jobs)?
        };
        // A test needs no worker: one that is gone does not prevent it.
        let filters: &[&str] = if self.args.sync {
            &[]
        } else {
            &["/job:ps", network::CHIEF]
        };
        let graph = graph.to_def();
        let began = Instant::now();
        loop {
            let config = ConfigProto {
                device_filters: filters.iter().map(|&filter| filter.to_owned()).collect(),
                ..ConfigProto::default()
            };
            let session = Session::on(&self.server)?.configured(config)?;
            match session.create(graph.clone()) {
                Ok(()) => return Ok(session),
                Err(status) if is_passing(&status) && began.elapsed() < PATIENCE => {
                    self.processes.check()?;
                    std::thread::sleep(PAUSE);
                }
                Err(status) => return Err(status.into()),
            }
        }
    }

    /// Gives all variables their values.
    fn begin(&mut self, variables: &[(String, Tensor)]) -> Result<Session, CliError> {
        let session = self.session()?;
        let counters =
            (0..self.jobs.workers).map(|task| (network::steps_of(task), Tensor::scalar(0i64)));
        let named = variables.iter().cloned().chain(counters);
        let named: Vec<_> = named
            .map(|(name, value)| (network::value_of(&name), value))
            .collect();
        let feeds: Vec<_> = named
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        session.run(&feeds, &[], &[network::ASSIGN])?;
        Ok(session)
    }

    /// How it stands, and the values of all variables that a checkpoint keeps, if one is kept.
    fn look(&self, session: &Session) -> Result<Found, Status> {
        let [x, y] = network::feeds(network::TEST);
        let feeds = [
            (x.as_str(), self.test.0.clone()),
            (y.as_str(), self.test.1.clone()),
        ];
        // The last of them counts the steps.
        let kept = network::variables().into_iter().map(|(name, ..)| name);
        let kept: Vec<String> = match self.args.checkpoint {
            Some(_) => kept.collect(),
            None => vec![network::STEPS.to_owned()],
        };
        let mut fetches = vec![network::LOSS.to_owned(), network::ACCURACY.to_owned()];
        let counters = (0..self.jobs.workers).map(network::steps_of);
        let reads = counters.chain(kept.iter().cloned());
        fetches.extend(reads.map(|name| network::read_of(&name)));
        let wanted: Vec<&str> = fetches.iter().map(String::as_str).collect();
        let mut found = session.run(&feeds, &wanted, &[])?;
        let variables = found.split_off(found.len().saturating_sub(kept.len()));
        let (tests, counters) = found.split_at(2.min(found.len()));
        let look = Look {
            steps: variables.last().map_or(Ok(0), count)?,
            each: counters.iter().map(count).collect::<Result<_, _>>()?,
            loss: tests.first().map_or(Ok(f32::NAN), number)?,
            accuracy: tests.get(1).map_or(Ok(f32::NAN), number)?,
        };
        Ok(Found {
            look,
            variables: kept.into_iter().zip(variables).collect(),
        })
    }

    /// Asynchronously: the workers train by themselves, and we look at what comes of it.
    fn apart(&mut self, session: &Session, terminal: &mut Terminal) -> Result<Found, CliError> {
        loop {
            std::thread::sleep(LOOK_EVERY);
            let found = self.look(session)?;
            if self.told(&found, terminal)? {
                return Ok(found);
            }
        }
    }

    /// Synchronously: one session drives all workers. One that is gone ends the step, and nothing is lost but that.
    fn together(
        &mut self,
        session: Session,
        learnt: &Digits,
        terminal: &mut Terminal,
    ) -> Result<Found, CliError> {
        let mut session = session;
        let seed = self.args.seed;
        let mut order = Order::new(learnt.len(), seed);
        let mut succeeded = Instant::now();
        loop {
            match self.steps_together(&session, learnt, &mut order, terminal) {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => succeeded = Instant::now(),
                Err(Broken::Step(status))
                    if is_passing(&status) && succeeded.elapsed() < PATIENCE =>
                {
                    // What the session had at the worker is gone with it.
                    drop(session);
                    session = self.session()?;
                }
                Err(Broken::Step(status)) => return Err(status.into()),
                Err(Broken::Other(error)) => return Err(error),
            }
        }
    }

    /// Steps of all workers until it is time to look; what was found if that was the last.
    fn steps_together(
        &mut self,
        session: &Session,
        learnt: &Digits,
        order: &mut Order,
        terminal: &mut Terminal,
    ) -> Result<Option<Found>, Broken> {
        let names = (0..self.jobs.workers).flat_map(|task| network::feeds(&network::tower(task)));
        let names: Vec<String> = names.collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let step = session
            .callable(&names, &[], &[network::TRAIN])
            .map_err(Broken::Step)?;
        let looked = Instant::now();
        let mut made = 0;
        while looked.elapsed() < LOOK_EVERY && !self.story.is_enough(made) {
            made += 1;
            let mut feeds = Vec::with_capacity(names.len());
            for _ in 0..self.jobs.workers {
                let batch = order.next(self.args.batch as usize);
                let (pixels, labels) = learnt.some(batch).map_err(Broken::Step)?;
                feeds.extend([pixels, labels]);
            }
            step.run_within(STEP_PATIENCE, &feeds)
                .map_err(Broken::Step)?;
        }
        let found = self.look(session).map_err(Broken::Step)?;
        let is_over = self.told(&found, terminal).map_err(Broken::Other)?;
        Ok(is_over.then_some(found))
    }

    /// Tells of what was found, keeps it, and lets the story go on. True if training is over.
    fn told(&mut self, found: &Found, terminal: &mut Terminal) -> Result<bool, CliError> {
        let ending = self.story.tell(self.args, &found.look, terminal)?;
        if self.story.is_time_to_keep() {
            self.keep(found)?;
        }
        match ending {
            Ending::GoesOn | Ending::Back(..) => {}
            Ending::Kill => {
                let victim = name("worker", self.jobs.workers - 1)?;
                self.processes.kill(&victim);
                self.story.killed(self.args, &found.look, terminal)?;
                self.processes.restart(&victim)?;
            }
            Ending::Over => return Ok(true),
        }
        self.processes.check()?;
        Ok(false)
    }

    fn keep(&mut self, found: &Found) -> Result<(), CliError> {
        if let Some(folder) = &self.args.checkpoint {
            let path = checkpoint::write(folder, &found.variables)?;
            self.story.kept(path);
        }
        Ok(())
    }

    /// What all tasks have recorded of the edges between them.
    fn edges(&self) -> Result<Vec<edges::Edge>, CliError> {
        let mut settings = self.args.settings.clone();
        settings
            .flags
            .retain(|(key, _)| !matches!(*key, "cluster" | "task"));
        settings.flags.push(("cluster", self.cluster.clone()));
        let ask = AskArgs {
            patience: REPORT_PATIENCE,
            json: false,
            settings,
        };
        let observer = Observer::new(&ask, &[])?;
        let (recordings, unanswered) = super::dump::of_tasks(&observer, None)?;
        match unanswered.into_iter().next() {
            Some((_, status)) => Err(status.into()),
            None => Ok(edges::of(&recordings)),
        }
    }
}

/// What a look found.
struct Found {
    look: Look,
    variables: Vec<(String, Tensor)>,
}

/// What ended steps of all workers.
enum Broken {
    Step(Status),
    Other(CliError),
}

fn number(tensor: &Tensor) -> Result<f32, Status> {
    let first = tensor.as_slice::<f32>()?.first().copied();
    first.ok_or_else(|| nothing(tensor))
}

fn count(tensor: &Tensor) -> Result<u64, Status> {
    let first = tensor.as_slice::<i64>()?.first().copied();
    first
        .map(|count| count.max(0) as u64)
        .ok_or_else(|| nothing(tensor))
}

fn nothing(tensor: &Tensor) -> Status {
    let message = format!("a fetched number has no element: {}", tensor.meta().shape);
    Status::of(catalogue::TENSOR_SHAPE, message)
}
