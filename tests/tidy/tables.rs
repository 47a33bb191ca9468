//! Tables and those who use them: limits, reasons, promises. And the look of a file: its first line and its size.
//!
//! A bound that is never asked is no bound; a reason that is not in the catalogue cannot be looked up; a promise
//! that no command measures is a wish.

use std::collections::BTreeSet;

use crate::source::{Kind, Source};
use crate::{Violation, violation};

pub(crate) const LIMITS: &str = "src/ground/limits.rs";
/// The catalogue's tables: its file, and those in the folder of that name.
pub(crate) const CATALOGUE: &str = "src/ground/catalogue";
const LINE_CHARS_MAX: usize = 120;
const FILE_LINES_MAX: usize = 600;

/// The look of one file.
pub(crate) fn look(source: &Source) -> Vec<Violation> {
    let mut found = vec![];
    if !source
        .lines
        .first()
        .is_some_and(|line| line.starts_with("//! ") && line.len() > 8)
    {
        let remedy = "begin the file with `//! ` and what the module is";
        found.push(violation(
            source,
            1,
            "first-line",
            "the first line does not say what the file is",
            remedy,
        ));
    }
    for (index, line) in source.lines.iter().enumerate() {
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX {
            let what = format!("{chars} characters, over {LINE_CHARS_MAX}");
            found.push(violation(
                source,
                index + 1,
                "line-length",
                what,
                "break it: `cargo fmt` leaves comments alone",
            ));
        }
    }
    let lines = (1..=source.lines.len())
        .filter(|&line| !source.is_test(line))
        .count();
    if source.room().is_some() && lines > FILE_LINES_MAX {
        let what = format!("{lines} lines without tests, over {FILE_LINES_MAX}");
        found.push(violation(
            source,
            1,
            "file-length",
            what,
            "it holds two ideas: give each a file",
        ));
    }
    found
}

/// Every bound of `limits.rs` is asked somewhere.
pub(crate) fn limits(sources: &[Source]) -> Vec<Violation> {
    let Some(limits) = sources.iter().find(|source| source.path == LIMITS) else {
        return vec![];
    };
    let names = limits
        .tokens
        .windows(3)
        .filter(|words| words[0].text == "pub" && words[1].text == "const");
    let elsewhere = sources
        .iter()
        .filter(|source| source.room().is_some() && source.path != LIMITS);
    let used: BTreeSet<&str> = elsewhere
        .flat_map(|source| &source.tokens)
        .filter(|token| token.kind == Kind::Word)
        .map(|token| token.text.as_str())
        .collect();
    let unused = names
        .map(|words| &words[2])
        .filter(|name| !used.contains(name.text.as_str()));
    let remedy = "enforce the bound where it applies, or remove it";
    unused
        .map(|name| {
            violation(
                limits,
                name.line,
                "limits",
                format!("`{}` is never asked", name.text),
                remedy,
            )
        })
        .collect()
}

/// Every reason in use stands in the catalogue.
///
/// In the library any text in capitals with an underscore counts as a reason, however it gets to its status; what
/// begins with `RENDEZ_`, `CARGO_`, `OUT_` or `RDMA_` is a variable of the environment. The command and the judge of
/// nemesis have reasons of their own.
pub(crate) fn reasons(sources: &[Source]) -> Vec<Violation> {
    let tables = sources
        .iter()
        .filter(|source| source.path.starts_with(CATALOGUE));
    let table: BTreeSet<String> = tables.flat_map(rows).collect();
    if table.is_empty() {
        return vec![];
    }
    let mut found = vec![];
    for source in sources.iter().filter(|source| source.room().is_some()) {
        for (line, reason) in uses(source)
            .into_iter()
            .filter(|used| !source.is_test(used.0))
        {
            if !table.contains(&reason) {
                let what = format!("reason `{reason}` is not in the catalogue");
                let remedy =
                    "add a row to a table in src/ground/catalogue, or use a reason that is there";
                found.push(violation(source, line, "reasons", what, remedy));
            }
        }
    }
    found
}

/// The names in a text that begin so.
pub(crate) fn names<'a>(text: &'a str, start: &str) -> BTreeSet<&'a str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(start)).collect()
}

/// Every row of the promises names its command, or says `pending` or `missed`.
pub(crate) fn promises(path: &str, text: &str) -> Vec<Violation> {
    let mut found = vec![];
    let mut in_table = false;
    for (index, line) in text.lines().enumerate() {
        if !line.starts_with('|') {
            in_table = false;
        } else if line.contains("|--") || line.contains("| --") || line.contains("|:-") {
            in_table = true;
        } else if in_table
            && !["`", "pending", "missed"]
                .iter()
                .any(|word| line.contains(word))
        {
            found.push(Violation {
                path: path.into(),
                line: index + 1,
                rule: "promises",
                what: "a promise that nothing measures".into(),
                remedy: "name the command in backticks, or write `pending` or `missed`",
            });
        }
    }
    found
}

/// The first words of the rows `REASON: Code, …` of the macro's call.
fn rows(catalogue: &Source) -> BTreeSet<String> {
    let words = catalogue
        .tokens
        .windows(4)
        .filter(|words| words[1].text == ":" && words[3].text == ",");
    words
        .filter(|words| is_reason(&words[0].text))
        .map(|words| words[0].text.clone())
        .collect()
}

/// Texts that are reasons by their look, or by their place behind `Code::X,`.
fn uses(source: &Source) -> Vec<(usize, String)> {
    let in_library = !matches!(source.room(), Some("cli" | "bin" | "nemesis"));
    let tokens = &source.tokens;
    let mut found = vec![];
    for (at, token) in tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.kind == Kind::Text)
    {
        let before = |steps: usize| {
            at.checked_sub(steps)
                .map_or("", |index| tokens[index].text.as_str())
        };
        let placed = (before(4), before(3), before(1)) == ("Code", "::", ",");
        let variable = ["RENDEZ_", "CARGO_", "OUT_", "RDMA_"]
            .iter()
            .any(|start| token.text.starts_with(start));
        let looks = in_library && !variable && token.text.contains('_');
        if (placed || looks) && is_reason(&token.text) {
            found.push((token.line, token.text.clone()));
        }
    }
    found
}

fn is_reason(word: &str) -> bool {
    word.len() > 2
        && word
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'_')
}
