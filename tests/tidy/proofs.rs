//! Where `unsafe` may stand, and that each use of it has its own proof.
//!
//! That a block holds one operation, clippy checks; that a proof is one, only a reader can.

use std::collections::BTreeSet;

use crate::source::{Kind, Source, Token};
use crate::{Violation, violation};

/// Rooms that never hold `unsafe`, whatever the list says.
const NEVER: &[&str] = &[
    "ground",
    "wire",
    "proto",
    "graph",
    "autograd",
    "cluster",
    "rendezvous",
    "channel",
    "engine",
    "kernel",
    "operations",
    "server",
    "tape",
    "optim",
    "worker",
    "remote",
    "rpc",
];

/// Checks all files of `src/` against the list of those that may hold `unsafe`.
pub(crate) fn check(sources: &[Source], listed: &[&str]) -> Vec<Violation> {
    let mut found = vec![];
    for source in sources.iter().filter(|source| source.room().is_some()) {
        let lines = source.find("unsafe");
        let allows = source.find("allow ( unsafe_code");
        let uses = lines.first().or_else(|| allows.first());
        let is_listed = listed.contains(&source.path.as_str());
        if let Some(&line) = uses.filter(|_| !is_listed) {
            let remedy = "do it without, or argue for a place in UNSAFE_FILES of tests/tidy.rs";
            found.push(violation(
                source,
                line,
                "unsafe-list",
                "`unsafe` in a file that is not listed",
                remedy,
            ));
        }
        if let Some(&line) =
            uses.filter(|_| source.room().is_some_and(|room| NEVER.contains(&room)))
        {
            let remedy =
                "this room is safe code only: move the operation to memory, fabric or shard";
            found.push(violation(
                source,
                line,
                "unsafe-room",
                "`unsafe` in a safe room",
                remedy,
            ));
        }
        if is_listed && uses.is_none() {
            let remedy = "take it off UNSAFE_FILES in tests/tidy.rs";
            found.push(violation(
                source,
                1,
                "unsafe-list",
                "listed, but holds no `unsafe`",
                remedy,
            ));
        }
        found.extend(unproved(source));
    }
    for path in listed
        .iter()
        .filter(|path| !sources.iter().any(|source| source.path == **path))
    {
        found.push(Violation {
            path: (*path).into(),
            line: 1,
            rule: "unsafe-list",
            what: "listed, but there is no such file".into(),
            remedy: "take it off UNSAFE_FILES in tests/tidy.rs",
        });
    }
    found
}

/// Blocks, implementations and foreign declarations that have no comment of their own with `SAFETY:` in it.
fn unproved(source: &Source) -> Vec<Violation> {
    let mut taken = BTreeSet::new();
    let mut found = vec![];
    for (at, token) in source
        .tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| token.text == "unsafe")
    {
        let Some(next) = source.tokens.get(at + 1) else {
            continue;
        };
        // A function, and the type of one, use nothing: who calls it does. A foreign declaration says what is there.
        let is_function = (source.tokens[at + 2..].iter())
            .find(|token| token.kind != Kind::Text)
            .is_some_and(|token| token.text == "fn");
        let is_use = match next.text.as_str() {
            "{" | "impl" => true,
            "extern" => !is_function,
            _ => false,
        };
        if !is_use {
            continue;
        }
        let proof = [token.line, statement_line(&source.tokens, at)]
            .into_iter()
            .find_map(|line| proof_above(source, line))
            .or_else(|| proof_within(source, statement_line(&source.tokens, at), token.line));
        let remedy = "say above it, behind `// SAFETY:`, why each condition of the callee's contract holds here";
        match proof {
            None => found.push(violation(
                source,
                token.line,
                "safety",
                "`unsafe` without a proof",
                remedy,
            )),
            Some(line) if !taken.insert(line) => {
                found.push(violation(
                    source,
                    token.line,
                    "safety",
                    "a proof that two `unsafe` share",
                    remedy,
                ));
            }
            Some(_) => {}
        }
    }
    found
}

/// The line on which the statement begins that holds the token at `at`.
fn statement_line(tokens: &[Token], at: usize) -> usize {
    let before = tokens[..at]
        .iter()
        .rposition(|token| matches!(token.text.as_str(), ";" | "{" | "}" | "=>"));
    tokens[before.map_or(0, |before| before + 1)].line
}

/// The line of `SAFETY:` in the comment that ends directly above `line`.
fn proof_above(source: &Source, line: usize) -> Option<usize> {
    let above = (1..line).rev();
    above
        .map_while(|line| source.comment_only(line).map(|text| (line, text)))
        .find(|(_, text)| text.trim_start().starts_with("SAFETY:"))
        .map(|(line, _)| line)
}

/// The same in the middle of a statement: the last one before `unsafe`.
fn proof_within(source: &Source, first: usize, last: usize) -> Option<usize> {
    let within = source
        .comments
        .iter()
        .filter(|(line, _)| (first..last).contains(line));
    within
        .filter(|(_, text)| text.trim_start().starts_with("SAFETY:"))
        .map(|(line, _)| *line)
        .next_back()
}
