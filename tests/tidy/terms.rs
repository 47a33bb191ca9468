//! Terms: one word for one thing. Names that were replaced by the field's own do not come back.

use std::collections::BTreeMap;

use crate::source::{Kind, Source};
use crate::{Violation, violation};

/// A former word, what it is called now, and where the word may stand because it means something else there.
const FORMER: &[(&str, &str, &[&str])] = &[
    ("anteroom", "send queue", &[]),
    ("answerer", "responder", &["src/control/"]),
    ("desk", "step driver", &["src/rpc/"]),
    (
        "guest",
        "blocked send",
        &["src/fabric/verbs/", "src/rpc/", "src/cli/", "tests/"],
    ),
    ("hearer", "handler", &[]),
    ("letter", "RPC message", &["bench/", "src/cli/", "tests/"]),
    ("parcel", "pending send", &[]),
    ("whence", "record of", &[]),
];

const REMEDY: &str = "use the word that tests/tidy/terms.rs gives";

/// Types of one crate have names of their own, if more than their files see them.
pub(crate) fn types(sources: &[Source]) -> Vec<Violation> {
    let mut places: BTreeMap<(&str, &str), Vec<(&Source, usize)>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.room().is_some()) {
        for window in source.tokens.windows(2) {
            let [what, name] = window else { continue };
            let is_type = ["struct", "enum", "union", "trait"].contains(&what.text.as_str());
            if is_type && source.is_visible(what.line) && !source.is_test(what.line) {
                let name = (source.house.as_str(), name.text.as_str());
                places.entry(name).or_default().push((source, what.line));
            }
        }
    }
    let mut found = vec![];
    for ((_, name), all) in places {
        if all.len() > 1 {
            let (source, line) = all[1];
            let what = format!("another `{name}` is in {}", all[0].0.path);
            let remedy = "say in the name what it is of";
            found.push(violation(source, line, "type-name", what, remedy));
        }
    }
    found
}

/// Checks the names of one file.
pub(crate) fn check(source: &Source) -> Vec<Violation> {
    let mut found = vec![];
    let words = source
        .tokens
        .iter()
        .filter(|token| token.kind == Kind::Word);
    for token in words {
        for part in parts(&token.text) {
            let former = FORMER.iter().find(|(word, ..)| {
                part.eq_ignore_ascii_case(word)
                    || part
                        .strip_suffix('s')
                        .is_some_and(|one| one.eq_ignore_ascii_case(word))
            });
            let Some((word, now, places)) = former else {
                continue;
            };
            if places.iter().any(|place| source.path.starts_with(place)) {
                continue;
            }
            let what = format!("`{}`: a {word} is a {now}", token.text);
            found.push(violation(source, token.line, "term", what, REMEDY));
        }
    }
    found
}

/// The words of a name, in snake or camel case.
fn parts(name: &str) -> Vec<&str> {
    let mut found = vec![];
    for word in name.split('_') {
        let mut from = 0;
        let mut was_small = false;
        for (at, c) in word.char_indices() {
            if c.is_uppercase() && was_small {
                found.push(&word[from..at]);
                from = at;
            }
            was_small = c.is_lowercase() || c.is_numeric();
        }
        found.push(&word[from..]);
    }
    found
}
