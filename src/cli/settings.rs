//! The settings as options of a subcommand: `--config`, one flag for each setting of the table, and `--job` with
//! `--task` for the task.
//!
//! Knows the table of settings; what a value means is read there.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::error::CliError;
use rendez::cluster::{Resolved, resolve};
use rendez::engine::{Config, Loaded, SETTINGS, Setting, Sources};
use rendez::ground::{Status, TaskName, catalogue};

/// How a command line names this task.
const TASK_FORMS: &str = "write --job worker --task 0, or --task /job:worker/task:0 alone";

/// The setting that names the folder whose files graphs may touch.
const FILES_ROOT: &str = "files_root";

/// What the options say of the settings.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SettingArgs {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// Settings that were given, and their values.
    pub flags: Vec<(&'static str, String)>,
}

impl SettingArgs {
    /// The settings of these flags, the process's environment and the file there is. The log is told what is odd in
    /// them.
    ///
    /// # Errors
    /// What is wrong with the file or a variable, and where.
    pub fn load(&self) -> Result<Loaded, CliError> {
        let loaded = self.read()?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        Ok(loaded)
    }

    /// The same, and nothing is told: for one who says it in another way, or where it is said anyway.
    ///
    /// # Errors
    /// As [`SettingArgs::load`].
    pub fn read(&self) -> Result<Loaded, CliError> {
        let sources = Sources {
            file: self.file.clone(),
            flags: self.flags.clone(),
            ..Sources::of_process()
        };
        sources.load().map_err(of_settings)
    }
}

impl SettingArgs {
    /// The same, with a folder whose files graphs may touch: `files`, or the one that is set, or the working folder.
    ///
    /// # Errors
    /// As [`SettingArgs::load`].
    pub(super) fn with_files(&self, files: Option<&Path>) -> Result<Self, CliError> {
        let mut settings = self.clone();
        let root = match files {
            Some(files) => files.to_owned(),
            None if self.read()?.config.files_root.is_some() => return Ok(settings),
            None => PathBuf::from("."),
        };
        // Its tasks may work elsewhere.
        let root = std::path::absolute(&root).map_err(|error| {
            CliError::failure("FILE_UNREADABLE", format!("{}: {error}", root.display()))
        })?;
        settings.flags.retain(|(key, _)| *key != FILES_ROOT);
        settings
            .flags
            .push((FILES_ROOT, root.display().to_string()));
        Ok(settings)
    }
}

/// The cluster that settings and surroundings describe, and this process's place in it.
///
/// # Errors
/// What is wrong with what says so.
pub(super) fn resolved(loaded: &Loaded) -> Result<Resolved, CliError> {
    Ok(loaded.surroundings().and_then(|around| resolve(&around))?)
}

/// What is wrong with settings: a task's name that is none cannot work either.
fn of_settings(status: Status) -> CliError {
    let message = status.message();
    match status.reason() {
        catalogue::DEVICE_MALFORMED if message.starts_with("task = ") => {
            Status::of(catalogue::CONFIG, format!("{message}; {TASK_FORMS}")).into()
        }
        catalogue::DEVICE_MALFORMED => Status::of(catalogue::CONFIG, message).into(),
        _ => status.into(),
    }
}

impl Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        let heading = "Settings (beat RENDEZ_* variables, which beat the file)";
        let command = command
            .next_help_heading(heading)
            .arg(
                Arg::new("config")
                    .long("config")
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .help("The configuration file; no other is looked for"),
            )
            .arg(
                Arg::new("job")
                    .long("job")
                    .value_name("JOB")
                    .requires("task")
                    .help("The job in which --task is the number of this task"),
            );
        let flag = |setting: &'static Setting| {
            let check = move |text: &str| {
                let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
                if setting.key == "task" && !is_number && TaskName::parse(text).is_err() {
                    return Err(TASK_FORMS.to_owned());
                }
                let mut config = Config::default();
                match config.apply_flag(setting, text) {
                    Ok(()) => Ok(text.to_owned()),
                    Err(status) => Err(status.message().to_owned()),
                }
            };
            let is_switch = setting.expects() == "true or false";
            Arg::new(setting.key)
                .long(setting.flag())
                .action(ArgAction::Set)
                .num_args(if is_switch { 0..=1 } else { 1..=1 })
                .require_equals(is_switch)
                .default_missing_value("true")
                .value_name("VALUE")
                .value_parser(check)
                .help(setting.meaning.trim_end_matches('.').to_owned())
                .hide_short_help(setting.key != "task")
        };
        SETTINGS
            .iter()
            .fold(command, |command, setting| command.arg(flag(setting)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |setting: &'static Setting| {
            let value = matches.get_one::<String>(setting.key)?;
            Some((setting.key, value.clone()))
        };
        let mut flags: Vec<(&'static str, String)> = SETTINGS.iter().filter_map(given).collect();
        for (_, task) in flags.iter_mut().filter(|(key, _)| *key == "task") {
            let is_number = task.bytes().all(|byte| byte.is_ascii_digit());
            match matches.get_one::<String>("job") {
                Some(job) if is_number => *task = format!("/job:{job}/task:{task}"),
                None if !is_number => {}
                _ => {
                    return Err(clap::Error::raw(
                        clap::error::ErrorKind::ValueValidation,
                        TASK_FORMS,
                    ));
                }
            }
        }
        Ok(Self {
            file: matches.get_one("config").cloned(),
            flags,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
