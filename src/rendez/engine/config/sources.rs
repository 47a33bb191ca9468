//! Where settings are found: the file, the environment, this machine's name.
//!
//! The only part of the settings that reads anything from the system.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::layers::{hint, of_service};
use super::table::{SETTINGS, Setting};
use super::{Config, Origin, invalid};
use crate::cluster::variables::{PORT, SERVICE_HOST, is_service_link};
use crate::cluster::{self, Flags, Surroundings};
use crate::ground::limits::CLUSTER_TEXT_BYTES_MAX;
use crate::ground::{Status, TaskName};
use crate::users::UserNumbers;

/// Names the file; if it is set, the usual places are not looked at.
pub(super) const FILE_VARIABLE: &str = "RENDEZ_CONFIG_FILE";

/// The file of all users of this machine.
const OF_MACHINE: &str = "/etc/rendez/config.toml";

/// Variables that begin as settings do and are none: the file's name, those of builds and tests, and where PyTorch's
/// backends find the library.
const NO_SETTINGS: [&str; 4] = [
    FILE_VARIABLE,
    "RENDEZ_VERSION",
    "RENDEZ_LOG",
    "RENDEZ_LIBRARY",
];
const OF_TESTS: &str = "RENDEZ_TEST_";
/// Variables that Kubernetes sets beside the port of a service of our name.
const OF_SERVICES: [&str; 2] = ["RENDEZ_SERVICE_", "RENDEZ_PORT_"];

/// What the command line says of the settings, and the environment they are read from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file that `--config` names: no other is looked for.
    pub file: Option<PathBuf>,
    /// Flags: keys of the table and their values, as texts.
    pub flags: Vec<(&'static str, String)>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// Variables whose values are no text: an error where they are ours.
    pub unreadable: Vec<String>,
}

/// Settings as they were found; by default none were.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// The file, if there was one.
    pub file: Option<cluster::File>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// What is odd, and no error: unknown variables that look like ours.
    pub warnings: Vec<String>,
}

impl Sources {
    /// The process's own environment, and no flags.
    #[must_use]
    pub fn of_process() -> Self {
        let mut sources = Self::default();
        for (name, value) in std::env::vars_os() {
            // What is ours has a name that is text.
            let Ok(name) = name.into_string() else {
                continue;
            };
            match value.into_string() {
                Ok(value) => drop(sources.environment.insert(name, value)),
                Err(_) => sources.unreadable.push(name),
            }
        }
        sources
    }

    /// Finds and reads them.
    ///
    /// # Errors
    /// `InvalidArgument` names the file with its line, the variable or the flag, and what would be right.
    pub fn load(self) -> Result<Loaded, Status> {
        self.check_texts()?;
        let mut config = Config::default();
        let file = match self.named() {
            Some(path) => Some(read(&path, Whose::Any)?),
            None => (self.find()?)
                .map(|path| read(&path, Whose::Own))
                .transpose()?,
        };
        if let Some(file) = &file {
            config.apply_toml(&file.text, &file.path)?;
        }
        let mut warnings = config.apply_spellings(&self.environment)?;
        warnings.extend(self.unknown_variables());
        // Warned of here, and not by the layer: the log may not have begun.
        let link = self.service_link();
        warnings.extend(link.map(|text| of_service(PORT, text)));
        config.apply_env(|name| {
            let value = self
                .environment
                .get(name)
                .filter(|_| name != PORT || link.is_none());
            value.cloned()
        })?;
        for (key, text) in &self.flags {
            let setting = Setting::find(key)
                .ok_or_else(|| invalid(format!("there is no setting `{key}`")))?;
            config.apply_flag(setting, text)?;
        }
        config.check()?;
        Ok(Loaded {
            warnings,
            config,
            file,
            environment: self.environment,
        })
    }

    /// A setting that is set counts, or is an error: one that was left out may be what keeps others out.
    fn check_texts(&self) -> Result<(), Status> {
        let is_ours = |name: &&String| name.starts_with("RENDEZ_") && !name.starts_with(OF_TESTS);
        match self.unreadable.iter().find(is_ours) {
            Some(name) => Err(invalid(format!(
                "{name}: its value is not UTF-8; write it in UTF-8, or unset it"
            ))),
            None => Ok(()),
        }
    }

    /// A variable that is set to something.
    fn variable(&self, name: &str) -> Option<&String> {
        self.environment.get(name).filter(|value| !value.is_empty())
    }

    /// The file that `--config` names, or else its variable.
    fn named(&self) -> Option<PathBuf> {
        let by_variable = || self.variable(FILE_VARIABLE).map(PathBuf::from);
        self.file.clone().or_else(by_variable)
    }

    /// The first of the usual places there is.
    ///
    /// # Errors
    /// That one cannot be looked at, as in a folder of `/etc` that this user may not enter. The working folder and
    /// `HOME` may be another user's, whose file would not be obeyed: there it counts as none.
    fn find(&self) -> Result<Option<PathBuf>, Status> {
        let home = self.variable("HOME");
        let usual = [
            Some("rendez.toml".into()),
            home.map(|home| Path::new(home).join(".config/rendez/config.toml")),
            Some(PathBuf::from(OF_MACHINE)),
        ];
        for path in usual.into_iter().flatten() {
            match path.metadata() {
                Ok(found) if found.is_file() => return Ok(Some(path)),
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::NotFound | ErrorKind::NotADirectory => {}
                    ErrorKind::PermissionDenied if path != Path::new(OF_MACHINE) => {}
                    _ => {
                        let mend = format!("fix that, or name another file with {FILE_VARIABLE}");
                        return Err(unreadable(
                            &path,
                            &format!("{error}; {mend}, such as /dev/null"),
                        ));
                    }
                },
            }
        }
        Ok(None)
    }

    /// The port that is none, if a service of Kubernetes has our name.
    fn service_link(&self) -> Option<&str> {
        let has_service = self.environment.contains_key(SERVICE_HOST);
        let text = self.environment.get(PORT)?;
        is_service_link(PORT, text, has_service).then_some(text)
    }

    fn unknown_variables(&self) -> Vec<String> {
        let variables: Vec<&str> = SETTINGS.iter().map(Setting::variable).collect();
        let is_linked = self.service_link().is_some();
        let is_link =
            |name: &&String| is_linked && OF_SERVICES.iter().any(|start| name.starts_with(start));
        let is_unknown = |name: &&String| {
            name.starts_with("RENDEZ_")
                && !variables.contains(&name.as_str())
                && !NO_SETTINGS.contains(&name.as_str())
                && !name.starts_with(OF_TESTS)
        };
        let unknown = self.environment.keys().filter(is_unknown);
        let unknown = unknown.filter(|name| !is_link(name));
        unknown
            .map(|name| {
                let hint = hint(name, variables.iter().copied(), str::to_owned);
                format!("{name} is ignored: there is no such setting{hint}")
            })
            .collect()
    }
}

impl Loaded {
    /// The settings, for an engine that is in no cluster: the log is told what is odd in them, and which of them such
    /// an engine does not take.
    #[must_use]
    pub fn told(self) -> Config {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
        for (setting, origin) in self.config.beyond_an_engine() {
            tracing::warn!(
                %origin,
                "`{}` is for the tasks of a cluster (`rendez serve`, `Server`), and is ignored by an engine alone",
                setting.key
            );
        }
        self.config
    }

    /// What the cluster's resolvers look at: what flags say, then the environment, then the file.
    ///
    /// # Errors
    /// `DEVICE_MALFORMED` if a flag's task is none.
    pub fn surroundings(&self) -> Result<Surroundings, Status> {
        let config = &self.config;
        let by_flag = |key: &str| {
            let setting = Setting::find(key);
            setting.is_some_and(|setting| matches!(config.origin(setting), Origin::Flag(_)))
        };
        let task = by_flag("task").then(|| TaskName::parse(&config.task));
        let flags = Flags {
            task: task.transpose()?,
            cluster: config.cluster.clone().filter(|_| by_flag("cluster")),
            root: config.root.clone().filter(|_| by_flag("root")),
            rank: config.rank.filter(|_| by_flag("rank")),
            world_size: config.world_size.filter(|_| by_flag("world_size")),
            port: by_flag("port").then_some(config.port),
            subdomain: config.subdomain.clone().filter(|_| by_flag("subdomain")),
        };
        let host_name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        Ok(Surroundings {
            flags,
            environment: self.environment.clone(),
            file: self.file.clone(),
            host_name: host_name.map(|name| name.trim().to_owned()),
        })
    }
}

impl Config {
    /// The settings of the first file there is of `RENDEZ_CONFIG_FILE`, `./rendez.toml`,
    /// `~/.config/rendez/config.toml` and `/etc/rendez/config.toml`, with `RENDEZ_*` variables over them.
    ///
    /// The log is told what is odd, as [`Loaded::told`] says.
    ///
    /// # Errors
    /// `InvalidArgument` names the file or variable, the key, and what would be right; or the file that is not
    /// named, and cannot be looked at, or that a user other than this one and root owns or may write to.
    pub fn load() -> Result<Self, Status> {
        Ok(Sources::of_process().load()?.told())
    }
}

/// Whose file is obeyed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// Every user's: who runs the program named it.
    Any,
    /// This user's and root's, that no other user may write to: a folder that is worked in may be anyone's.
    Own,
}

/// Reads a file that is a configuration by its size.
fn read(path: &Path, whose: Whose) -> Result<cluster::File, Status> {
    let unreadable = |why: &dyn std::fmt::Display| unreadable(path, why);
    let mut options = std::fs::File::options();
    if whose == Whose::Own {
        // Another user may have put a pipe where the file was seen.
        options.custom_flags(libc::O_NONBLOCK);
    }
    let file = (options.read(true).open(path)).map_err(|error| unreadable(&error))?;
    if whose == Whose::Own {
        let found = file.metadata().map_err(|error| unreadable(&error))?;
        check_owner(path, &found)?;
    }
    let mut text = String::new();
    let mut some = file.take(CLUSTER_TEXT_BYTES_MAX as u64 + 1);
    some.read_to_string(&mut text)
        .map_err(|error| unreadable(&error))?;
    if text.len() > CLUSTER_TEXT_BYTES_MAX {
        let why =
            format!("it has more than {CLUSTER_TEXT_BYTES_MAX} bytes (CLUSTER_TEXT_BYTES_MAX)");
        return Err(unreadable(&why));
    }
    let path = path.display().to_string();
    Ok(cluster::File { path, text })
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Status {
    invalid(format!("cannot read {}: {why}", path.display()))
}

/// Refuses the file of another user, and one that others may write to. A group with its owner's number is the owner's
/// own.
fn check_owner(path: &Path, found: &Metadata) -> Result<(), Status> {
    let (owner, group, mode) = (found.uid(), found.gid(), found.mode() & 0o7777);
    let users = UserNumbers::read();
    let is_open = mode & 0o002 != 0 || mode & 0o020 != 0 && group != owner;
    let (what, mend) = match users.is_own(owner) || owner == 0 {
        true if !is_open => return Ok(()),
        true => ("may be changed by other users", "chmod go-w it".to_owned()),
        false if users.is_nameless(owner) => (
            "may belong to another user: this user namespace shows all users without a number in it as one",
            "give it to a user that has a number there".to_owned(),
        ),
        false => (
            "is another user's",
            format!("chown it to user {}", users.own()),
        ),
    };
    Err(invalid(format!(
        "the file of settings {} {what}: its owner is user {owner}, its group {group}, its mode {mode:03o}. \
         Settings decide which code runs here: read it, and {mend}, or name it by --config or {FILE_VARIABLE}",
        path.display()
    )))
}
