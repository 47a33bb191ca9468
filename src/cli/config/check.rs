//! `rendez config check`: is this configuration one that can work, here and now?
//!
//! Values were judged when they were read. Here: cores of this machine, the files of the secret and of TLS, names and
//! addresses that are there twice, what a server refuses before it listens, and whether tasks can be reached where they
//! are said to listen. Nothing of what those files hold is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::at_once::at_once;
use crate::error::CliError;
use crate::settings::SettingArgs;
use crate::terminal::Terminal;
use rendez::cluster::{HostPort, Membership, resolve};
use rendez::control::Address;
use rendez::engine::{Config, Engine, Loaded};
use rendez::ground::{Locked, Status, TaskName, catalogue, units};
use rendez_dataflow::server::Protocol;

/// Addresses that are tried at once, and names that are looked up.
const TRIED_AT_ONCE: usize = 32;

/// The addresses of a host, at port 0, or why it has none.
type Found = Result<Vec<SocketAddr>, String>;

/// Finds them.
type Find<'a> = dyn Fn(&str) -> Found + Sync + 'a;

/// The addresses of hosts: each name is looked up once, and dialled only if it was found.
struct Hosts<'a> {
    /// `None` where no name is to be looked up.
    find: Option<&'a Find<'a>>,
    known: Mutex<BTreeMap<String, Found>>,
}

impl<'a> Hosts<'a> {
    /// Looks up those of `places`, many at once.
    fn of(places: &[Place], find: Option<&'a Find<'a>>) -> Self {
        let hosts = Self {
            find,
            known: Mutex::default(),
        };
        let names = places.iter().filter_map(|place| match &place.address {
            Address::Tcp { host, .. } => Some(host),
            _ => None,
        });
        let names: Vec<&String> = names.collect::<BTreeSet<_>>().into_iter().collect();
        at_once(&names, TRIED_AT_ONCE, |name| drop(hosts.found(name)));
        hosts
    }

    fn found(&self, host: &str) -> Found {
        if let Ok(ip) = host.parse() {
            return Ok(vec![SocketAddr::new(ip, 0)]);
        }
        let Some(find) = self.find else {
            return Ok(Vec::new());
        };
        let known = || self.known.locked();
        if let Some(found) = known().get(host) {
            return found.clone();
        }
        let found = find(host);
        known().insert(host.to_owned(), found.clone());
        found
    }

    /// Those that one of TCP stands for; none of a name that is not looked up, or not known.
    fn addresses(&self, address: &Address) -> Vec<SocketAddr> {
        let Address::Tcp { host, port } = address else {
            return Vec::new();
        };
        let mut found = self.found(host).unwrap_or_default();
        found.iter_mut().for_each(|at| at.set_port(*port));
        found
    }

    /// What two spellings of one address have in common: for TCP what the first of its names' addresses is.
    fn key(&self, address: &Address) -> String {
        let found = self.addresses(address);
        let first = found.first().map(SocketAddr::to_string);
        first.unwrap_or_else(|| address.to_string())
    }

    /// Tries to connect, as [`Address::reach`].
    fn reach(&self, address: &Address, patience: Duration) -> Result<(), String> {
        if let Address::Tcp { host, .. } = address {
            self.found(host)?;
        }
        address.reach(patience)
    }
}

fn look_up(host: &str) -> Found {
    let found = (host, 0).to_socket_addrs();
    found
        .map(Iterator::collect)
        .map_err(|error| format!("{host} cannot be resolved: {error}"))
}

/// Options of `config check`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct CheckArgs {
    /// Try no address: for a cluster that is not up yet.
    #[arg(long)]
    pub offline: bool,
    /// How long an address may take to answer.
    #[arg(long, default_value = "1s", value_parser = units::positive_duration)]
    pub patience: Duration,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Something that cannot work.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
struct Problem {
    setting: &'static str,
    problem: String,
}

/// An address, the task that is said to listen there, and the setting that says so.
struct Place {
    setting: &'static str,
    task: Option<TaskName>,
    address: Address,
}

/// Runs it.
///
/// # Errors
/// What is wrong with a file, a variable or a flag; `CONFIG` if anything else cannot work, after it was printed;
/// `CONNECT_DEADLINE` if all that is wrong is that tasks are not reached.
pub(super) fn run(args: &CheckArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let mut loaded = args.settings.read()?;
    let mut problems = Vec::new();
    if let Err(status) = Engine::judge_placement(&loaded.config) {
        let setting = if status.message().starts_with("cores") {
            "cores"
        } else {
            "shards"
        };
        problems.push(Problem {
            setting,
            problem: status.message().to_owned(),
        });
    }
    for (setting, status) in Engine::judge_secrets(&loaded.config) {
        let problem = status.message().to_owned();
        match status.reason() {
            catalogue::TLS_REFUSED => loaded.warnings.push(problem),
            _ => problems.push(Problem { setting, problem }),
        }
    }
    let (places, own) = places(&loaded.config);
    let find: &Find<'_> = &look_up;
    let hosts = Hosts::of(&places, Some(find).filter(|_| !args.offline));
    twice(&places, &hosts, &mut problems);
    of_server(&loaded, &hosts, &mut problems);
    let (mut tried, wrong) = (0, problems.len());
    if !args.offline {
        let others: Vec<&Place> = places
            .iter()
            .filter(|place| is_other(place, own.as_ref(), &loaded.config))
            .collect();
        tried = others.len();
        problems.extend(unreachable(&others, &hosts, args.patience));
    }
    terminal.line(match args.json {
        true => json(&loaded, &problems, tried),
        false => text(&loaded, &problems, tried, args.offline),
    })?;
    match (problems.len(), wrong) {
        (0, _) => Ok(()),
        // The settings may be right, and tasks come later: trying again helps.
        (unreached, 0) => Err(CliError::failure(
            catalogue::CONNECT_DEADLINE,
            format!(
                "{unreached} of {tried} addresses are not reached, see above; nothing else is wrong"
            ),
        )),
        (count, _) => Err(CliError::failure(
            catalogue::CONFIG,
            format!("the configuration cannot work as it is: {count} found, see above"),
        )),
    }
}

/// What a server refuses before it listens: a protocol that there is not, surroundings that make no sense, to be a task
/// that its cluster does not have, and to listen where strangers reach it with nothing to keep them out. A file that
/// leaves open which task this is serves all of them.
fn of_server(loaded: &Loaded, hosts: &Hosts<'_>, problems: &mut Vec<Problem>) {
    let config = &loaded.config;
    let protocol = Protocol::find(&config.protocol);
    if let Err(status) = protocol.and_then(|protocol| protocol.require(config.require)) {
        problems.push(Problem {
            setting: "protocol",
            problem: status.message().to_owned(),
        });
    }
    let resolved = loaded.surroundings().and_then(|around| resolve(&around));
    let setting = match resolved.as_ref().map_err(Status::reason) {
        Ok(_) | Err(catalogue::CLUSTER_UNRESOLVED | catalogue::CLUSTER_SPEC) => None,
        Err(catalogue::CLUSTER_TASK_UNDEFINED) => Some("task"),
        Err(_) => Some("cluster"),
    };
    if let (Some(setting), Err(status)) = (setting, &resolved) {
        problems.push(Problem {
            setting,
            problem: status.message().to_owned(),
        });
    }
    let dialled = |at: &HostPort| Address::Tcp {
        host: at.host().to_owned(),
        port: at.port(),
    };
    let listens: Vec<(&'static str, Address)> = match (&config.listen, &resolved) {
        (Some(address), _) => vec![("listen", address.clone())],
        (None, Ok(resolved)) => {
            let setting = match resolved.membership {
                Membership::Known(_) => "cluster",
                Membership::Rooted { .. } => "root",
            };
            let own = resolved.address().map(|at| (setting, dialled(at)));
            own.into_iter().collect()
        }
        (None, Err(_)) => {
            let tasks = config.cluster.iter().flat_map(|spec| spec.tasks());
            tasks.map(|(_, at)| ("cluster", dialled(at))).collect()
        }
    };
    // One is enough: what mends it mends all.
    let exposed = listens.iter().find_map(|(setting, address)| {
        let mut bound = hosts.addresses(address).into_iter();
        let status = bound.find_map(|bound| Engine::judge_exposure(config, bound).err())?;
        Some((*setting, status))
    });
    problems.extend(exposed.map(|(setting, status)| Problem {
        setting,
        problem: format!("{} [{}]", status.message(), status.reason()),
    }));
}

/// Every address that is given, and this task. The settings were checked: all tasks have names.
fn places(config: &Config) -> (Vec<Place>, Option<TaskName>) {
    let own = TaskName::parse(&config.task).ok();
    let mut places = Vec::new();
    if let Some(address) = &config.listen {
        places.push(Place {
            setting: "listen",
            task: own.clone(),
            address: address.clone(),
        });
    }
    let peers = config.peers.iter();
    let peers = peers.filter_map(|(task, address)| Some((TaskName::parse(task).ok()?, address)));
    places.extend(peers.map(|(task, address)| Place {
        setting: "peers",
        task: Some(task),
        address: address.clone(),
    }));
    let of_cluster = config.cluster.iter().flat_map(|spec| spec.tasks());
    let of_cluster = of_cluster.map(|(task, at)| ("cluster", Some(task), at));
    let root = config.root.iter().map(|at| ("root", None, at));
    places.extend(of_cluster.chain(root).map(|(setting, task, at)| Place {
        setting,
        task,
        address: Address::Tcp {
            host: at.host().to_owned(),
            port: at.port(),
        },
    }));
    (places, own)
}

/// Two tasks at one address, and one task at two.
fn twice(places: &[Place], hosts: &Hosts<'_>, problems: &mut Vec<Problem>) {
    let mut tasks: BTreeMap<String, (&Place, &TaskName)> = BTreeMap::new();
    let mut homes: BTreeMap<&TaskName, &Place> = BTreeMap::new();
    // No other is there to dial it.
    let is_alone = places
        .iter()
        .filter(|place| place.setting == "cluster")
        .count()
        == 1;
    for place in places {
        let (setting, address) = (place.setting, &place.address);
        // Port zero, any free port, is no address to reach.
        if matches!(address, Address::Tcp { port: 0, .. }) {
            if setting != "listen" && !(setting == "cluster" && is_alone) {
                let task = &place.task;
                let who = task
                    .as_ref()
                    .map_or_else(|| "rank 0".to_owned(), TaskName::to_string);
                let problem = format!(
                    "{who} at {address}: port 0 cannot be dialled; name the port it listens at"
                );
                problems.push(Problem { setting, problem });
            }
            continue;
        }
        let Some(task) = &place.task else { continue };
        let (first, named) = *tasks.entry(hosts.key(address)).or_insert((place, task));
        if named != task {
            let problem = format!(
                "{task} and {named} ({}) have one address, {address}; give each its own",
                first.setting
            );
            problems.push(Problem { setting, problem });
        }
        let home = *homes.entry(task).or_insert(place);
        // Where a task listens may be written in another way than where it is dialled.
        if home.setting != "listen" && hosts.key(&home.address) != hosts.key(address) {
            let problem = format!(
                "{task} is at {address} here and at {} in `{}`; keep one of them",
                home.address, home.setting
            );
            problems.push(Problem { setting, problem });
        }
    }
}

/// True if another task should listen there.
fn is_other(place: &Place, own: Option<&TaskName>, config: &Config) -> bool {
    let is_dialled = !matches!(&place.address, Address::Tcp { port: 0, .. });
    is_dialled
        && match &place.task {
            Some(task) => Some(task) != own,
            None => config.rank != Some(0),
        }
}

/// Tries them, many at once.
fn unreachable(places: &[&Place], hosts: &Hosts<'_>, patience: Duration) -> Vec<Problem> {
    let tried = at_once(places, TRIED_AT_ONCE, |place| {
        let why = hosts.reach(&place.address, patience).err()?;
        let who = place
            .task
            .as_ref()
            .map_or_else(|| "rank 0".to_owned(), TaskName::to_string);
        let problem = format!(
            "{who} is not reached at {}: {why}; start it, correct the address, or check `--offline`",
            place.address
        );
        Some(Problem {
            setting: place.setting,
            problem,
        })
    });
    let mut found: Vec<Problem> = tried.into_iter().flatten().collect();
    found.sort();
    found
}

fn text(loaded: &Loaded, problems: &[Problem], tried: usize, is_offline: bool) -> String {
    let mut lines = Vec::new();
    for warning in &loaded.warnings {
        lines.push(format!("warning  {warning}"));
    }
    for Problem { setting, problem } in problems {
        // Some begin with their setting.
        let problem = problem
            .strip_prefix(setting)
            .and_then(|problem| problem.strip_prefix(": "))
            .unwrap_or(problem);
        lines.push(format!("error    {setting}: {problem}"));
    }
    let file = loaded.file.as_ref().map(|file| file.path.as_str());
    let reached = match (is_offline, tried) {
        (true, _) => "no address was tried".to_owned(),
        (false, 0) => "no other task is named".to_owned(),
        (false, tried) => format!("{tried} addresses were tried"),
    };
    let verdict = match problems.len() {
        0 => "nothing is wrong".to_owned(),
        count => format!("{count} found"),
    };
    lines.push(format!(
        "{verdict}; file: {}; {reached}",
        file.unwrap_or("none found")
    ));
    lines.join("\n")
}

fn json(loaded: &Loaded, problems: &[Problem], tried: usize) -> String {
    #[derive(Serialize)]
    struct Report<'a> {
        file: Option<&'a str>,
        errors: &'a [Problem],
        warnings: &'a [String],
        tried: usize,
    }
    let report = Report {
        file: loaded.file.as_ref().map(|file| file.path.as_str()),
        errors: problems,
        warnings: &loaded.warnings,
        tried,
    };
    serde_json::to_string(&report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use rendez::cluster::ClusterSpec;

    #[test]
    fn the_name_service_is_asked_once_for_each_host() {
        let mut config = Config::default();
        let cluster = "a=h1:1,h1:2,h2:1;b=h2:2,127.0.0.1:3;c=none:1,none:2";
        config.cluster = Some(ClusterSpec::parse(cluster).expect("a cluster"));
        let places = places(&config).0;
        let asked = AtomicUsize::new(0);
        let find = |host: &str| {
            asked.fetch_add(1, Ordering::Relaxed);
            match host {
                "none" => Err("the service is silent".to_owned()),
                _ => Ok(vec![SocketAddr::from(([127, 0, 0, 1], 0))]),
            }
        };
        let hosts = Hosts::of(&places, Some(&find));
        let mut problems = Vec::new();
        twice(&places, &hosts, &mut problems);
        // Both hosts are one: each port of the first is there twice.
        assert_eq!(
            (problems.len(), asked.load(Ordering::Relaxed)),
            (2, 3),
            "{problems:?}"
        );
        // It may be silent for long: no dial asks it again.
        let lost: Vec<_> = places
            .iter()
            .filter(|at| hosts.addresses(&at.address).is_empty())
            .collect();
        let problems = unreachable(&lost, &hosts, Duration::from_secs(60));
        assert_eq!((problems.len(), asked.load(Ordering::Relaxed)), (2, 3));
        for Problem { problem, .. } in problems {
            assert!(problem.contains("the service is silent"), "{problem}");
        }
    }
}
