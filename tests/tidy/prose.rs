//! Prose: phrases that a reader who is not of the house trips over, in comments and in what users read.
//!
//! A name in quotes that is one word is no prose: `"nobody"` may name a task that there is not.

use crate::source::{Kind, Source};
use crate::{Violation, violation};

/// The phrase, in small letters, and what says the same plainly.
const PHRASES: &[(&str, &str)] = &[
    (
        "whoever",
        "name who it is: the receiver, the task that asks",
    ),
    (
        "nobody",
        "say what does not happen: `it is not received`, `no task listens`",
    ),
    (
        "somebody",
        "name who it is: a peer, a thread, another process",
    ),
    ("everybody", "say `all tasks`, or whom it is"),
    ("to be had", "say `available` or `unavailable`"),
    ("but for", "say `except`, or what would happen otherwise"),
    ("whence", "say `from where`"),
    ("in the midst of", "say `during`"),
];

const REMEDY: &str = "say it in plain English; tests/tidy/prose.rs says how";

/// Checks the comments and texts of one file.
pub(crate) fn check(source: &Source) -> Vec<Violation> {
    // They name the phrases.
    if ["tests/tidy/prose.rs", "tests/tidy/planted.rs"].contains(&source.path.as_str()) {
        return vec![];
    }
    let comments = source.comments.iter().map(|(line, text)| (*line, text));
    let texts = source
        .tokens
        .iter()
        .filter(|token| token.kind == Kind::Text && token.text.contains(' '))
        .map(|token| (token.line, &token.text));
    let mut found = vec![];
    for (line, text) in comments.chain(texts) {
        for (phrase, instead) in phrases_in(text) {
            let what = format!("`{phrase}`: {instead}");
            found.push(violation(source, line, "prose", what, REMEDY));
        }
    }
    found
}

/// Checks a page.
pub(crate) fn check_page(path: &str, text: &str) -> Vec<Violation> {
    let mut found = vec![];
    for (line, text) in (1..).zip(text.lines()) {
        for (phrase, instead) in phrases_in(text) {
            found.push(Violation {
                path: path.into(),
                line,
                rule: "prose",
                what: format!("`{phrase}`: {instead}"),
                remedy: REMEDY,
            });
        }
    }
    found
}

fn phrases_in(text: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let words: Vec<String> = text
        .split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_' && c != '@')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    PHRASES.iter().filter(move |(phrase, _)| {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        words.windows(phrase.len()).any(|window| window == phrase)
    })
}
