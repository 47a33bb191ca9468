//! Every rule of `RULES.md` names a test that exists, or says why there is none.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const RULES: &str = include_str!("../RULES.md");

/// The names of all functions that are tests, in the files of `folder`.
fn tests_in(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            tests_in(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let after_attribute = text.split("#[test]").skip(1);
            found.extend(after_attribute.filter_map(name_of));
        }
    }
}

/// The name of the function that a text begins with, after attributes and comments.
fn name_of(text: &str) -> Option<String> {
    let (before, rest) = text.split_once("fn ")?;
    let is_near = before.lines().count() < 6;
    let name = rest.split('(').next().filter(|_| is_near)?;
    Some(name.trim().to_owned())
}

/// The rules: items of lists, each as one line.
fn rules() -> Vec<String> {
    let mut rules: Vec<String> = vec![];
    let mut is_item = false;
    for line in RULES.lines() {
        if let Some(rule) = line.strip_prefix("* ") {
            rules.push(rule.to_owned());
            is_item = true;
        } else if let (Some(more), true) = (line.strip_prefix("  "), is_item) {
            let last = rules.last_mut().expect("an item has begun");
            last.push(' ');
            last.push_str(more);
        } else {
            is_item = false;
        }
    }
    rules
}

/// Names between backticks that are those of tests.
fn named(rule: &str) -> Vec<&str> {
    let is_name = |text: &&str| {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        text.contains('_') && text.bytes().all(is_word)
    };
    rule.split('`').skip(1).step_by(2).filter(is_name).collect()
}

#[test]
fn every_rule_has_a_test_that_exists_or_a_reason() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = BTreeSet::new();
    tests_in(here, &mut tests);
    tests_in(&here.join("../autograd"), &mut tests);
    let rules = rules();
    assert!(rules.len() > 90, "only {} rules were found", rules.len());
    let mut wrong = vec![];
    for rule in &rules {
        let named = named(rule);
        let is_shown = rule.contains("Shown by") && !named.is_empty();
        if !is_shown && !rule.contains("Differs: ") && !rule.contains("Open: ") {
            wrong.push(format!("no test and no reason: {rule}"));
        }
        let missing = named.into_iter().filter(|name| !tests.contains(*name));
        wrong.extend(missing.map(|name| format!("no test is called {name}: {rule}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
