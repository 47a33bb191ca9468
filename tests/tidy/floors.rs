//! The import table: which room may name which, as the floors of the house have it.
//!
//! Arrows run downwards only. The pure column (`wire`, `rendezvous`, `channel`) and the machine column (`memory`,
//! `fabric`) never name each other, except the frame, whose 64 bytes the fabric carries; the shard is the only
//! room where they meet.

use crate::source::{Kind, Source, Token};
use crate::{Violation, violation};

/// A room, and those it may name. `*` is everything.
const TABLE: &[(&str, &[&str])] = &[
    // Floor 0.
    ("ground", &[]),
    ("sync", &[]),
    ("listed", &[]),
    ("mutant", &[]),
    ("reached", &[]),
    ("shown", &[]),
    ("users", &[]),
    ("files", &["users"]),
    // Floor 1.
    ("wire", &["ground"]),
    ("proto", &["ground"]),
    // Floor 2: pure.
    ("graph", &["ground", "wire", "proto"]),
    ("autograd", &["ground", "mutant"]),
    ("cluster", &["ground", "wire", "proto"]),
    // Floor 3, the pure column.
    ("rendezvous", &["ground"]),
    ("channel", &["ground", "mutant", "wire", "rendezvous"]),
    // Floor 3, the machine column.
    ("memory", &["ground", "sync"]),
    ("fabric", &["ground", "sync", "wire", "memory"]),
    // Floor 4: what times hand-overs, how others speak to a shard, and where the columns meet.
    ("trace", &["ground", "sync", "memory"]),
    (
        "mail",
        &["ground", "sync", "rendezvous", "memory", "fabric", "trace"],
    ),
    (
        "shard",
        &[
            "ground",
            "sync",
            "wire",
            "proto",
            "cluster",
            "rendezvous",
            "channel",
            "memory",
            "fabric",
            "trace",
            "mail",
        ],
    ),
    (
        "drive",
        &["ground", "sync", "memory", "fabric", "mail", "shard"],
    ),
    // Above both: shards that are turned by hand.
    (
        "testing",
        &[
            "ground",
            "sync",
            "rendezvous",
            "memory",
            "fabric",
            "trace",
            "mail",
            "shard",
            "drive",
        ],
    ),
    // Floor 5.
    ("control", &["ground", "users", "proto", "fabric"]),
    (
        "engine",
        &[
            "ground",
            "sync",
            "users",
            "files",
            "wire",
            "proto",
            "cluster",
            "rendezvous",
            "channel",
            "memory",
            "fabric",
            "trace",
            "mail",
            "shard",
            "drive",
            "testing",
            "control",
        ],
    ),
    // Floors 4 to 7: what computes nodes, the operations, and the task that runs graphs of them.
    ("kernel", &["ground", "files", "proto", "graph", "memory"]),
    (
        "operations",
        &["ground", "files", "proto", "graph", "memory", "kernel"],
    ),
    (
        "server",
        &[
            "ground",
            "sync",
            "files",
            "wire",
            "proto",
            "graph",
            "cluster",
            "memory",
            "mail",
            "shard",
            "drive",
            "control",
            "engine",
            "kernel",
            "operations",
        ],
    ),
    // Autograd above its pure room: eager tensors, optimizers, workers, and all of it over remote calls, of which only
    // the tests start engines.
    (
        "tape",
        &[
            "ground",
            "proto",
            "graph",
            "autograd",
            "memory",
            "kernel",
            "operations",
        ],
    ),
    ("optim", &["ground", "memory", "tape"]),
    ("worker", &["ground", "autograd", "memory", "tape"]),
    (
        "remote",
        &[
            "ground", "autograd", "memory", "drive", "engine", "server", "tape", "optim", "worker",
        ],
    ),
    ("examples", &["*"]),
    (
        "rpc",
        &[
            "ground", "mutant", "files", "proto", "memory", "trace", "mail", "shard", "drive",
            "control", "cluster", "engine",
        ],
    ),
    // Floor 8, and the root, which only lists the rooms.
    ("cli", &["*"]),
    ("capi", &["*"]),
    // Floor 9.
    ("nemesis", &["*"]),
    ("python", &["*"]),
    ("lib", &["*"]),
];

/// What the tests of a room may name beside: `graph` knows no operation, and its tests make graphs of some; `autograd`
/// knows no connection, and the golden bytes of its messages are those of a version of it.
const OF_TESTS: &[(&str, &[&str])] = &[("graph", &["operations"]), ("autograd", &["control"])];

/// What the fabric may name of `wire`: a frame is 64 bytes to it, and a body has a length.
const OF_WIRE_TO_FABRIC: &[&str] = &["Frame", "frame", "INLINE_BODY_MAX", "FRAME_WORDS"];

const REMEDY: &str = "arrows run downwards only: pass the value as an argument, or move the code to the floor it \
                      belongs to (the table is in tests/tidy/floors.rs)";

/// Checks one file of `src/` against the table.
pub(crate) fn check(source: &Source) -> Vec<Violation> {
    let Some(room) = source.room() else {
        return vec![];
    };
    let Some((_, allowed)) = TABLE.iter().find(|row| row.0 == room) else {
        let what = format!("room `{room}` is not in the import table");
        return vec![violation(
            source,
            1,
            "imports",
            what,
            "give it a row in tests/tidy/floors.rs",
        )];
    };
    if allowed.contains(&"*") {
        return vec![];
    }
    let mut found = vec![];
    for Import {
        line,
        room: named,
        items,
    } in imports(source)
    {
        let known = TABLE.iter().any(|row| row.0 == named);
        if named == room {
        } else if !known {
            let what = format!("`crate::{named}` is no room");
            found.push(violation(
                source,
                line,
                "imports",
                what,
                "name it by its room",
            ));
        } else if !allowed.contains(&named.as_str()) && !is_for_tests(source, room, &named) {
            found.push(violation(
                source,
                line,
                "imports",
                format!("`{room}` names `{named}`"),
                REMEDY,
            ));
        } else if room == "fabric" && named == "wire" {
            for item in items
                .iter()
                .filter(|item| !OF_WIRE_TO_FABRIC.contains(&item.as_str()))
            {
                let what = format!(
                    "`fabric` names `wire::{item}`: it knows the frame's size, not its meaning"
                );
                found.push(violation(source, line, "imports", what, REMEDY));
            }
        }
    }
    found
}

/// True if the file has nothing but tests, and those of its room may name the other.
fn is_for_tests(source: &Source, room: &str, named: &str) -> bool {
    let is_test = source.path.ends_with("/tests.rs") || source.path.contains("/tests/");
    let mut of_tests = OF_TESTS.iter().filter(|row| row.0 == room);
    is_test && of_tests.any(|row| row.1.contains(&named))
}

/// A path from the root: the room it names, and the items of the room where the next part of the path says so.
struct Import {
    line: usize,
    room: String,
    items: Vec<String>,
}

fn imports(source: &Source) -> Vec<Import> {
    let tokens = &source.tokens;
    let mut found = vec![];
    for at in 0..tokens.len() {
        if is(tokens, at, "rendez_proto") {
            let (line, room, items) = (tokens[at].line, "proto".into(), vec![]);
            found.push(Import { line, room, items });
        }
        let Some(after) = root_path(source, at) else {
            continue;
        };
        for (line, room, next) in heads(tokens, after) {
            let items = if is(tokens, next, "::") {
                heads(tokens, next + 1)
                    .into_iter()
                    .map(|(_, item, _)| item)
                    .collect()
            } else {
                vec![]
            };
            found.push(Import { line, room, items });
        }
    }
    found
}

/// Rooms that are crates of their own: what stands in their roots is no room.
const OWN_HOUSES: [&str; 1] = ["rpc"];

/// The crates whose roots list rooms, as the others name them.
const HOUSES: [&str; 5] = [
    "crate",
    "rendez",
    "rendez_core",
    "rendez_dataflow",
    "rendez_autograd",
];

/// Where a path that starts at `at` goes on below the root: behind `crate::` or another crate that has rooms, or behind
/// as many `super::` as the file is deep.
fn root_path(source: &Source, at: usize) -> Option<usize> {
    let tokens = &source.tokens;
    let own =
        source.room().is_some_and(|room| OWN_HOUSES.contains(&room)) && is(tokens, at, "crate");
    if !own && HOUSES.iter().any(|house| is(tokens, at, house)) && is(tokens, at + 1, "::") {
        return Some(at + 2);
    }
    let continues = at >= 2 && is(tokens, at - 1, "::") && is(tokens, at - 2, "super");
    if !is(tokens, at, "super") || continues {
        return None;
    }
    let supers = (0..)
        .take_while(|n| is(tokens, at + 2 * n, "super") && is(tokens, at + 2 * n + 1, "::"))
        .count();
    let parts: Vec<&str> = source
        .path
        .strip_prefix("src/")?
        .trim_end_matches(".rs")
        .split('/')
        .collect();
    let depth = parts.len() - usize::from(parts.last() == Some(&"mod"));
    (supers == depth).then_some(at + 2 * supers)
}

/// The first words of a path or of each path in braces, and where each goes on.
fn heads(tokens: &[Token], at: usize) -> Vec<(usize, String, usize)> {
    if let Some(token) = tokens.get(at).filter(|token| token.kind == Kind::Word) {
        return vec![(token.line, token.text.clone(), at + 1)];
    }
    if !is(tokens, at, "{") {
        return vec![];
    }
    let mut found = vec![];
    let mut depth = 0usize;
    for next in at..tokens.len() {
        match tokens[next].text.as_str() {
            "{" => depth += 1,
            "}" if depth == 1 => break,
            "}" => depth -= 1,
            _ => {}
        }
        let starts = depth == 1 && (is(tokens, next, "{") || is(tokens, next, ","));
        if let Some(token) = tokens
            .get(next + 1)
            .filter(|token| starts && token.kind == Kind::Word)
        {
            found.push((token.line, token.text.clone(), next + 2));
        }
    }
    found
}

fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens
        .get(at)
        .is_some_and(|token| token.kind != Kind::Text && token.text == text)
}
