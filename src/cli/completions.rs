//! `rendez completions`: what a shell needs to complete a command line, made of the arguments.

use clap::{Args, CommandFactory};

use super::args::Cli;
use super::error::CliError;
use super::terminal::Terminal;

/// Examples of its use.
pub(super) const EXAMPLES: &str = "\
Examples:
  rendez completions bash > ~/.local/share/bash-completion/completions/rendez
  rendez completions zsh > ~/.zfunc/_rendez
  rendez completions fish > ~/.config/fish/completions/rendez.fish";

/// Options of `completions`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Prints them.
///
/// # Errors
/// That nothing can be printed.
pub fn run(args: &CompletionsArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "rendez", &mut text);
    Ok(terminal.line(String::from_utf8_lossy(&text).trim_end())?)
}
