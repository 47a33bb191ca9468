//! The book: every page is in its summary, no link is dead, and every reason of the catalogue is explained.
//!
//! Knows as much of Markdown as the book uses: headings, fences, code spans and links.

use std::collections::BTreeSet;

use crate::Violation;
use crate::source::{Kind, Source};

const BOOK: &str = "src/book/";
pub(crate) const SUMMARY: &str = "src/book/SUMMARY.md";
pub(crate) const ERRORS: &str = "src/book/reference/errors.md";
const CATALOGUE: &str = "src/ground/catalogue/";
/// What `scripts/book.sh` puts beside the book's pages.
const MADE: &str = "src/book/api/";
/// Where paths begin that pages name.
const FOLDERS: [&str; 5] = ["tests/", "src/", "scripts/", "bench/", "proto/"];
/// What pages name that is not here: a page that `scripts/nightly.sh` makes, and a reader's own program.
const ELSEWHERE: [&str; 2] = ["bench/NIGHTLY.md", "src/main.rs"];
const LINE_CHARS_MAX: usize = 120;

/// A page of Markdown, by its path under the repository's root.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Checks `pages`, those of the book and others; `exists` says whether there is a file that is none of them.
pub(crate) fn check(
    pages: &[Page],
    sources: &[Source],
    exists: &dyn Fn(&str) -> bool,
) -> Vec<Violation> {
    let mut found = vec![];
    for page in pages {
        found.extend(long_lines(page));
        for (line, target) in links(page) {
            found.extend(dead(page, line, &target, pages, exists));
        }
    }
    found.extend(summary(pages));
    found.extend(unexplained(pages, sources));
    found
}

fn complaint(
    path: &str,
    line: usize,
    rule: &'static str,
    what: String,
    remedy: &'static str,
) -> Violation {
    Violation {
        path: path.into(),
        line,
        rule,
        what,
        remedy,
    }
}

fn long_lines(page: &Page) -> Vec<Violation> {
    long(page, (1..).zip(page.text.lines()))
}

/// The long lines of a page, except those of its code and tables.
pub(crate) fn long_prose(page: &Page) -> Vec<Violation> {
    long(page, prose(page).filter(|(_, line)| !line.starts_with('|')))
}

fn long<'a>(page: &Page, lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Violation> {
    let long = lines
        .map(|(line, text)| (line, text.chars().count()))
        .filter(|&(_, chars)| chars > LINE_CHARS_MAX);
    long.map(|(line, chars)| {
        let what = format!("{chars} characters, over {LINE_CHARS_MAX}");
        complaint(&page.path, line, "line-length", what, "break it")
    })
    .collect()
}

/// The lines of a page outside of fenced code, with their numbers.
fn prose(page: &Page) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            return None;
        }
        (!is_code).then_some((at + 1, line))
    })
}

/// Where the links of a page lead, each with its line.
fn links(page: &Page) -> Vec<(usize, String)> {
    let mut found = vec![];
    for (line, text) in prose(page) {
        // A link's text may be a code span; what stands wholly within one is no link.
        let mut rest = text;
        while let Some(at) = rest.find("](") {
            let is_code = rest[..at].matches('`').count() % 2 == 1;
            rest = &rest[at + 2..];
            if let (false, Some(end)) = (is_code, rest.find(')')) {
                found.push((line, rest[..end].to_owned()));
            }
        }
    }
    found
}

fn dead(
    page: &Page,
    line: usize,
    target: &str,
    pages: &[Page],
    exists: &dyn Fn(&str) -> bool,
) -> Option<Violation> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match file {
        "" => page.path.clone(),
        file => joined(&page.path, file),
    };
    if path.starts_with(MADE) {
        return None;
    }
    let remedy = "correct the link";
    let Some(other) = pages.iter().find(|other| other.path == path) else {
        let is_there = exists(&path) && !page.path.starts_with(BOOK);
        let what = format!("`{target}` leads to no page");
        return (!is_there).then(|| complaint(&page.path, line, "book-link", what, remedy));
    };
    let is_there = anchor.is_empty() || headings(other).contains(anchor);
    let what = format!("{path} has no heading `{anchor}`");
    (!is_there).then(|| complaint(&page.path, line, "book-link", what, remedy))
}

/// What stands between backticks on a page, each with its line.
fn spans(page: &Page) -> impl Iterator<Item = (usize, &str)> {
    prose(page).flat_map(|(line, text)| {
        let spans = text.split('`').skip(1).step_by(2);
        spans.map(move |span| (line, span))
    })
}

/// Paths of the repository that a page names are there. A pattern is none, and of a command the first word counts.
pub(crate) fn lost_paths(page: &Page, exists: &dyn Fn(&str) -> bool) -> Vec<Violation> {
    let paths = spans(page).filter_map(|(line, span)| {
        let path = span.split(char::is_whitespace).next()?;
        let is_path = FOLDERS.iter().any(|folder| path.starts_with(folder));
        let is_plain = !path.contains(['*', '<', '{', '…', '$']) && !path.contains("...");
        (is_path && is_plain && !ELSEWHERE.contains(&path)).then_some((line, path))
    });
    let lost = paths.filter(|(_, path)| !exists(path));
    let remedy = "name what is there";
    lost.map(|(line, path)| {
        let what = format!("there is no `{path}`");
        complaint(&page.path, line, "paths", what, remedy)
    })
    .collect()
}

/// Names of three words or more that a page gives as evidence are words of the sources: tests move and are renamed.
pub(crate) fn lost_names(page: &Page, sources: &[Source]) -> Vec<Violation> {
    let words: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| &source.tokens)
        .filter(|token| token.kind == Kind::Word)
        .map(|token| token.text.as_str())
        .collect();
    let is_name = |span: &str| {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        span.matches('_').count() > 1 && span.bytes().all(is_word)
    };
    // Modules may stand before it.
    let names = spans(page).map(|(line, span)| match span.rsplit_once("::") {
        Some((path, name)) if !path.contains(char::is_uppercase) => (line, name),
        _ => (line, span),
    });
    let lost = names.filter(|(_, name)| is_name(name) && !words.contains(name));
    let remedy = "name the test that shows it now";
    lost.map(|(line, name)| {
        let what = format!("nothing is called `{name}`");
        complaint(&page.path, line, "names", what, remedy)
    })
    .collect()
}

/// `link` as seen from the file `from`.
fn joined(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a page's headings.
fn headings(page: &Page) -> BTreeSet<String> {
    let titles = prose(page).filter_map(|(_, line)| {
        line.strip_prefix('#')
            .map(|line| line.trim_matches('#').trim())
    });
    titles
        .map(|title| {
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| match c {
                ' ' => '-',
                c => c.to_ascii_lowercase(),
            })
            .collect()
        })
        .collect()
}

/// The summary names every page of the book, once.
fn summary(pages: &[Page]) -> Vec<Violation> {
    let Some(summary) = pages.iter().find(|page| page.path == SUMMARY) else {
        return vec![];
    };
    let mut named = BTreeSet::new();
    let mut found = vec![];
    for (line, target) in links(summary) {
        let path = joined(SUMMARY, &target);
        if !named.insert(path) {
            let what = format!("`{target}` is named twice");
            found.push(complaint(
                SUMMARY,
                line,
                "book-summary",
                what,
                "name it once",
            ));
        }
    }
    for page in pages {
        let is_of_book = page.path.starts_with(BOOK) && page.path != SUMMARY;
        if is_of_book && !named.contains(&page.path) {
            let what = "the summary does not name this page".to_owned();
            let remedy = "add it to src/book/SUMMARY.md";
            found.push(complaint(&page.path, 1, "book-summary", what, remedy));
        }
    }
    found
}

/// The page of errors has every reason of the catalogue, as the catalogue tells of it.
fn unexplained(pages: &[Page], sources: &[Source]) -> Vec<Violation> {
    let Some(errors) = pages.iter().find(|page| page.path == ERRORS) else {
        return vec![];
    };
    let text = one_line(&errors.text);
    let mut found = vec![];
    let tables = sources
        .iter()
        .filter(|source| source.path.starts_with(CATALOGUE));
    for source in tables {
        for words in source.tokens.windows(8) {
            let kinds = (words[5].kind, words[7].text.as_str());
            let is_row =
                words[1].text == ":" && words[3].text == "," && words[4].kind == Kind::Text;
            if !is_row || words[5].text != "," || kinds != (Kind::Mark, ";") {
                continue;
            }
            let reason = &words[0].text;
            let row = format!(
                "### {reason} `{}`. {} *What to do:* {}",
                words[2].text,
                one_line(&words[4].text),
                one_line(&words[6].text)
            );
            if !text.contains(&row) {
                let what = format!("`{reason}` is not on the page, or stands there in other words");
                let remedy = "run scripts/book.sh generate";
                found.push(complaint(ERRORS, 1, "book-errors", what, remedy));
            }
        }
    }
    found
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
