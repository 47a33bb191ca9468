//! `rendez man`: manual pages, one for each command, made of the arguments that its help is made of.
//!
//! Knows the command line and the table of exit statuses; nothing of what the commands do.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::args::{Cli, VERSION};
use super::error::CliError;
use super::exits::{self, EXITS};
use super::terminal::Terminal;
use rendez::files::Output;

/// Examples of its use.
pub(super) const EXAMPLES: &str = "\
Examples:
  rendez man ~/.local/share/man/man1       and from then on: man rendez-bench
  rendez man pages; man ./pages/rendez.1   without installing them";

/// Options of `man`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct ManArgs {
    /// The folder that the pages are written to; it is made if it is not there.
    pub folder: PathBuf,
}

/// A page: the name of its file, and what is in it.
type Page = (String, Vec<u8>);

/// Writes the pages.
///
/// # Errors
/// `FILE_UNWRITABLE`.
pub fn run(args: &ManArgs, terminal: &mut Terminal) -> Result<(), CliError> {
    let folder = &args.folder;
    let unwritable = |error: io::Error| CliError::unwritable(folder, &error);
    fs::create_dir_all(folder).map_err(unwritable)?;
    let pages = pages().map_err(unwritable)?;
    for (name, page) in &pages {
        let path = folder.join(name);
        let written = Output::open(&path).and_then(|mut output| {
            output.write_all(page)?;
            output.finish()
        });
        written.map_err(|error| CliError::unwritable(&path, &error))?;
    }
    let (count, folder) = (pages.len(), folder.display());
    Ok(terminal.line(format_args!("manual pages: {count} in {folder}"))?)
}

fn pages() -> io::Result<Vec<Page>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(command, &mut pages)?;
    Ok(pages)
}

/// The page of a command and of those below it, without what is hidden.
fn add(command: Command, pages: &mut Vec<Page>) -> io::Result<()> {
    let below = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set());
    let below: Vec<Command> = below.cloned().collect();
    let examples = command.get_after_help().map(ToString::to_string);
    // A page leaves the text out of an option that short help hides, if that is all the text there is.
    let command = command.mut_args(|arg| match (arg.get_long_help(), arg.get_help().cloned()) {
        (None, Some(help)) => arg.long_help(help),
        _ => arg,
    });
    let man = Man::new(command)
        .source(format!("rendez {VERSION}"))
        .manual("rendez");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if !below.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    if let Some(examples) = &examples {
        show_examples(exits::without_table(examples), &mut roff);
    }
    show_statuses(&mut roff);
    roff.to_writer(&mut page)?;
    pages.push((man.get_filename(), page));
    below.into_iter().try_for_each(|below| add(below, pages))
}

/// Lines that are set in are shown as they stand; others are text.
fn show_examples(examples: &str, roff: &mut Roff) {
    roff.control("SH", ["EXAMPLES"]);
    let mut is_literal = false;
    for line in examples.lines().filter(|line| *line != "Examples:") {
        if line.starts_with(' ') != is_literal {
            is_literal = !is_literal;
            roff.control(if is_literal { "nf" } else { "fi" }, []);
        }
        match line.trim() {
            "" => roff.control("PP", []),
            _ => roff.text([roman(line)]),
        };
    }
    if is_literal {
        roff.control("fi", []);
    }
}

fn show_statuses(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for exit in EXITS {
        roff.control("TP", []);
        roff.text([bold(exit.status.to_string())]);
        let reasons = match exit.reasons {
            [] => String::new(),
            reasons => format!(" ({})", reasons.join(", ")),
        };
        roff.text([roman(format!("{}{reasons}", exit.meaning))]);
    }
    roff.control("PP", []);
    roff.text([roman(exits::ERRORS)]);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The files of the commands that are no secret.
    fn names(command: &Command, name: &str, found: &mut Vec<String>) {
        found.push(format!("{name}.1"));
        let below = command.get_subcommands();
        for below in below.filter(|below| !below.is_hide_set() && below.get_name() != "help") {
            names(below, &format!("{name}-{}", below.get_name()), found);
        }
    }

    #[test]
    fn each_command_has_a_page_that_names_the_exit_statuses() {
        let folder = tempfile::tempdir().expect("a folder");
        let args = ManArgs {
            folder: folder.path().join("new/man1"),
        };
        let mut terminal = Terminal::into_writer(Box::new(io::sink()), None);
        run(&args, &mut terminal).expect("written");
        let files = fs::read_dir(&args.folder).expect("a folder");
        let pages: BTreeMap<String, String> = files
            .map(|file| {
                let file = file.expect("a file");
                let name = file.file_name().into_string().expect("a name");
                (name, fs::read_to_string(file.path()).expect("text"))
            })
            .collect();
        let mut expected = Vec::new();
        names(&Cli::command(), "rendez", &mut expected);
        expected.sort();
        assert!(expected.contains(&"rendez-config-show.1".into()));
        assert_eq!(pages.keys().cloned().collect::<Vec<_>>(), expected);
        for (name, page) in &pages {
            let statuses = page.split(".SH \"EXIT STATUS\"").nth(1).expect(name);
            for exit in EXITS {
                let bold = format!("\\fB{}\\fR", exit.status);
                assert!(statuses.contains(&bold), "{} in {name}", exit.status);
                for reason in exit.reasons {
                    assert!(statuses.contains(reason), "{reason} in {name}");
                }
            }
            assert!(!page.contains("Exit statuses:"), "once is enough: {name}");
            for option in page.split(".TP\n").skip(1) {
                let mut lines = option.lines();
                let option = lines.next().expect("a name");
                let text = lines.next().unwrap_or_default();
                let has_text = !text.is_empty() && !text.starts_with(".SH");
                assert!(has_text, "{option} of {name} says nothing");
            }
            for hidden in crate::HIDDEN {
                let hidden = hidden.replace('-', "\\-");
                assert!(!page.contains(&hidden), "{hidden} in {name}");
            }
        }
        assert!(pages["rendez-bench.1"].contains(".SH EXAMPLES"));
        assert!(pages["rendez-bench.1"].contains("\\-\\-repeat"));
    }
}
