//! Terms: one word for one thing. Names that were replaced by the field's own do not come back.

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
