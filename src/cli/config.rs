//! `rendez config`: every setting, its value and where it comes from; what cannot work; and the reference page.
//!
//! Knows the table of settings, and not what they do.

mod check;

use clap::{Args, Subcommand};
use serde::Serialize;

pub use check::CheckArgs;

use super::error::CliError;
use super::report::lay_out;
use super::settings::SettingArgs;
use super::terminal::Terminal;
use rendez::engine::{Config, Loaded, SETTINGS, Setting, reference_page};

const EXAMPLES: &str = "\
Examples:
  rendez config show                       every setting as a file would have it
  rendez config show --origin              with where each value comes from
  rendez config show --shards 2 --json     for programs
  rendez config check --config FILE        what cannot work: values, secrets, addresses given twice or not reached
  rendez config check --offline            the same without trying the addresses
  rendez config reference                  the reference page, in Markdown
  rendez config metrics                    the same of the metrics
  rendez config operations                 the same of the operations that graphs may have";

/// What of the configuration.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
#[command(after_help = EXAMPLES)]
pub enum ConfigCommand {
    /// Print every setting; the output is a configuration file.
    #[command(after_help = EXAMPLES)]
    Show(ConfigShowArgs),
    /// Say what in the configuration cannot work; exits with 78 if anything, with 12 if tasks are merely not reached.
    #[command(after_help = EXAMPLES)]
    Check(CheckArgs),
    /// Print the reference page.
    Reference,
    /// Print the reference page of the metrics.
    Metrics,
    /// Print the reference page of the operations that graphs may have.
    Operations,
}

/// Options of `config show`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct ConfigShowArgs {
    /// Say where each value comes from, and which part uses it.
    #[arg(long)]
    pub origin: bool,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
    /// The settings.
    #[command(flatten)]
    pub settings: SettingArgs,
}

/// Runs it.
///
/// # Errors
/// What is wrong with a file, a variable or a flag.
pub fn run(command: &ConfigCommand, terminal: &mut Terminal) -> Result<(), CliError> {
    match command {
        ConfigCommand::Operations => {
            terminal.line(rendez_dataflow::operations::operations_page().trim_end())?
        }
        ConfigCommand::Metrics => {
            terminal.line(rendez::engine::metrics::reference_page().trim_end())?
        }
        ConfigCommand::Reference => terminal.line(reference_page().trim_end())?,
        ConfigCommand::Check(args) => check::run(args, terminal)?,
        ConfigCommand::Show(args) => {
            let loaded = args.settings.read()?;
            let text = match (args.json, args.origin) {
                (true, _) => json(&loaded),
                (false, true) => with_origins(&loaded, terminal.width()),
                (false, false) => as_file(&loaded),
            };
            terminal.line(text)?;
        }
    }
    Ok(())
}

fn as_file(loaded: &Loaded) -> String {
    let line = |setting: &Setting| match setting.show(&loaded.config).as_str() {
        "" => format!("# {} is not set\n", setting.key),
        value => format!("{} = {value}\n", setting.key),
    };
    let mut text: String = SETTINGS.iter().map(line).collect();
    for warning in &loaded.warnings {
        text.push_str(&format!("# warning: {warning}\n"));
    }
    text.trim_end().to_owned()
}

fn with_origins(loaded: &Loaded, width: Option<usize>) -> String {
    let heading = ["setting", "value", "origin", "taken by"];
    let mut lines = vec![heading.map(str::to_owned).to_vec()];
    for setting in SETTINGS {
        let value = setting.show(&loaded.config);
        lines.push(vec![
            setting.key.to_owned(),
            if value.is_empty() {
                "–".into()
            } else {
                value
            },
            loaded.config.origin(setting).to_string(),
            setting.taker.name().to_owned(),
        ]);
    }
    let mut text = lay_out(&lines, &[0, 1, 2, 3], &[3], width);
    let file = loaded.file.as_ref().map(|file| file.path.as_str());
    text.push_str(&format!("\nfile: {}", file.unwrap_or("none found")));
    for warning in &loaded.warnings {
        text.push_str(&format!("\nwarning: {warning}"));
    }
    text
}

/// What `--json` writes.
#[derive(Serialize)]
struct Report<'a> {
    file: Option<&'a str>,
    settings: Vec<Line>,
    warnings: &'a [String],
}

/// What `--json` writes of one setting.
#[derive(Serialize)]
struct Line {
    key: &'static str,
    value: Option<toml::Value>,
    default: Option<toml::Value>,
    origin: String,
    taker: &'static str,
}

fn json(loaded: &Loaded) -> String {
    let defaults = Config::default();
    // As text the value is TOML, and has its type there.
    let value = |shown: String| {
        let table: toml::Table = format!("value = {shown}").parse().ok()?;
        table.get("value").cloned()
    };
    let line = |setting: &Setting| Line {
        key: setting.key,
        value: value(setting.show(&loaded.config)),
        default: value(setting.show(&defaults)),
        origin: loaded.config.origin(setting).to_string(),
        taker: setting.taker.name(),
    };
    let report = Report {
        file: loaded.file.as_ref().map(|file| file.path.as_str()),
        settings: SETTINGS.iter().map(line).collect(),
        warnings: &loaded.warnings,
    };
    serde_json::to_string(&report).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}
