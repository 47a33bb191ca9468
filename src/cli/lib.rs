//! The `rendez` command: what `main.rs` calls, and nothing else does.
//!
//! Knows a running engine only through two seams, [`bench::Workload`] and [`demo::Handover`]. Results go to standard
//! output, errors and progress to standard error; exit statuses stand in [`exits`].

#[doc = include_str!("../ARCHITECTURE.md")]
pub mod architecture {}

// The README's examples run with the others, and so do the book's.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub mod readme {}
#[cfg(doctest)]
#[doc = include_str!("../book/tutorial/library.md")]
pub mod book_library {}
#[cfg(doctest)]
#[doc = include_str!("../book/tutorial/cluster.md")]
pub mod book_cluster {}

pub mod allocations;
pub mod args;
pub mod ask;
mod at_once;
pub mod baseline;
pub mod bench;
mod bounded;
pub mod call;
mod clock;
pub mod cluster;
pub mod completions;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod dump;
pub mod error;
mod exchange;
pub mod exits;
pub mod histogram;
mod interrupt;
mod itself;
pub mod logs;
pub mod machine;
pub mod man;
mod meeting;
pub mod npy;
mod observer;
pub mod page;
pub mod pending;
pub mod push;
mod push_files;
pub mod report;
pub mod run;
pub mod secret;
pub mod serve;
pub mod settings;
mod shelf;
pub mod stat;
pub mod stopwatch;
pub mod terminal;
pub mod train;
pub mod up;
pub mod weights;
pub mod workload;

pub use rendez::ground::units;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};
use tracing_subscriber::filter::LevelFilter;

use self::args::{Cli, Command, LogFormat};
use self::error::CliError;
use self::exits::{EXIT_OK, EXIT_USAGE};
use self::terminal::Terminal;

/// The whole command: reads the process's arguments, runs, and says how it ended.
#[must_use]
pub fn main() -> ExitCode {
    itself::begin();
    run(
        std::env::args_os(),
        &mut Terminal::standard(),
        &mut std::io::stderr(),
    )
    .into()
}

/// As [`main`], with arguments, output and error output given. Returns the exit code.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    terminal: &mut Terminal,
    errors: &mut dyn Write,
) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let format = logs::format_of(&arguments);
    let result = match parse(arguments) {
        Ok(cli) => {
            if cli.wide {
                terminal.widen();
            }
            dispatch(&cli, terminal)
        }
        Err(error) => return show_usage(&error, format, terminal, errors),
    };
    match result {
        Ok(()) => EXIT_OK,
        Err(error) => told(&error, format, errors),
    }
}

fn parse(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = with_negative(Cli::command());
    let matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The command, where a negative number is a value as any other: what refuses it names the argument that it is for.
fn with_negative(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| match arg.get_action().takes_values() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    });
    command.mut_subcommands(with_negative)
}

/// Says what ended a command, unless that is no failure.
fn told(error: &CliError, format: LogFormat, errors: &mut dyn Write) -> u8 {
    if error.exit() != EXIT_OK {
        // If standard error is closed too, the error cannot be reported.
        let _ = writeln!(errors, "{}", logs::error_line(error, format));
    }
    error.exit()
}

fn dispatch(cli: &Cli, terminal: &mut Terminal) -> Result<(), CliError> {
    let command = &cli.command;
    let usual = match command {
        Command::Serve(_) => LevelFilter::INFO,
        _ => LevelFilter::WARN,
    };
    logs::begin(usual, cli.log);
    match command {
        Command::Demo(args) => {
            let mut pair =
                demo::pair::TwoProcesses::of(args.file.clone(), args.rounds, args.linger);
            demo::run(args, &mut pair, terminal)
        }
        Command::Config(command) => config::run(command, terminal),
        Command::Cluster(command) => cluster::run(command, terminal),
        Command::Doctor(args) => doctor::run(args, terminal),
        Command::Secret(command) => secret::run(command, terminal),
        Command::Serve(args) => serve::run(args, terminal),
        Command::Up(args) => up::run(args, terminal),
        Command::Run(args) => run::run(args, terminal),
        Command::Train(command) => train::run(command, terminal),
        Command::TrainWorker(args) => train::worker::run(args),
        Command::Push(args) => push::push(args, terminal),
        Command::Pull(args) => push::pull(args, terminal),
        Command::Call(args) => call::call(args, terminal),
        Command::Rrefs(args) => call::rrefs(args, terminal),
        Command::Ping(args) => ask::ping(args, terminal),
        Command::Report(args) => {
            page::make(&args.logs, &args.html)?;
            Ok(terminal.line(format_args!("report: {}", args.html.display()))?)
        }
        Command::Explain(args) => ask::explain(args, terminal),
        Command::Pending(args) => pending::run(args, terminal),
        Command::Stat(args) => stat::run(args, terminal),
        Command::Dump(args) => dump::run(args, terminal),
        Command::Completions(args) => completions::run(args, terminal),
        Command::Man(args) => man::run(args, terminal),
        Command::DemoPeer(args) => demo::peer::serve(args),
        Command::Bench(args) if args.listen.is_some() => workload::listen(args, terminal),
        Command::Bench(args) => {
            bench::run(args, &mut workload::Engines::of(args)?, terminal).map(|_| ())
        }
        Command::BenchPeer(args) => workload::serve(args),
        Command::BaselinePeer(args) => {
            baseline::serve(args.parent, args.core, args.shared_core, args.tcp)
        }
    }
}

/// Subcommands that the program runs itself under.
const HIDDEN: [&str; 4] = [
    demo::pair::PEER_COMMAND,
    baseline::PEER_COMMAND,
    workload::PEER_COMMAND,
    train::worker::WORKER_COMMAND,
];

/// Help and version are results; what is not understood is an error with a stable reason.
fn show_usage(
    error: &clap::Error,
    format: LogFormat,
    terminal: &mut Terminal,
    errors: &mut dyn Write,
) -> u8 {
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            match terminal.line(text.trim_end()).map_err(CliError::from) {
                Ok(()) => EXIT_OK,
                Err(error) => told(&error, format, errors),
            }
        }
        _ => {
            let reason = std::error::Error::source(error)
                .and_then(|source| source.downcast_ref::<units::UnitError>());
            let reason = reason.map_or("USAGE", units::UnitError::reason);
            let text = text
                .trim_end()
                .trim_start_matches("error: ")
                .replace(&format!(" [{reason}]"), "");
            // Hidden subcommands are no answer to what may be asked for.
            let text = HIDDEN
                .iter()
                .fold(text, |text, name| text.replace(&format!("{name}, "), ""));
            let error = CliError::usage(reason, text);
            let _ = writeln!(errors, "{}", logs::error_line(&error, format));
            EXIT_USAGE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Cli, clap::Error> {
        parse(line.split(' ').map(OsString::from).collect())
    }

    #[test]
    fn a_negative_number_that_cannot_be_is_told_with_its_argument() {
        for line in ["rendez bench --size -1", "rendez push --patience -1"] {
            let said = parsed(line).expect_err(line).to_string();
            let option = line.split(' ').nth(2).expect("an option");
            let named = format!("invalid value '-1' for '{option} <");
            assert!(said.contains(&named), "{said}");
        }
        parsed("rendez call unix:@a scale -1.5").expect("an argument of a function");
    }
}
