//! Each rule catches a planted violation, and leaves alone what only looks like one.

use crate::book::{self, Page};
use crate::source::Source;
use crate::{Violation, check, image, locks, prose, scripts, tables};

fn run(
    files: &[(&str, &str)],
    unsafe_files: &[&str],
    exceptions: &[(&str, &str, &str)],
) -> Vec<Violation> {
    let sources: Vec<Source> = files
        .iter()
        .map(|(path, text)| Source::new(path, &format!("//! A planted file.\n{text}")))
        .collect();
    check(&sources, unsafe_files, exceptions)
}

/// The rule that `text` at `path` breaks, and the line; the first line is the file's documentation.
#[track_caller]
fn catches(rule: &str, line: usize, path: &str, text: &str) {
    let found = run(&[(path, text)], &[], &[]);
    let hit = found
        .iter()
        .any(|violation| violation.rule == rule && violation.line == line);
    assert!(
        hit,
        "{path}: {text}\nshould break [{rule}] in line {line}, but: {found:#?}"
    );
    let shown = found[0].to_string();
    assert!(
        shown.starts_with(&format!("{path}:")) && shown.contains("; "),
        "place, rule and remedy: {shown}"
    );
}

#[track_caller]
fn passes(path: &str, text: &str) {
    let found = run(&[(path, text)], &[], &[]);
    assert!(found.is_empty(), "{path}: {text}\n{found:#?}");
}

#[test]
fn imports() {
    for (path, text) in [
        ("src/channel/mod.rs", "use crate::fabric::Port;"),
        ("src/channel/a/b.rs", "use crate::memory::Tensor;"),
        ("src/fabric/mod.rs", "use crate::channel::Channel;"),
        ("src/memory/pool.rs", "use crate::fabric::Port;"),
        (
            "src/rendezvous/mod.rs",
            "use crate::{ground::Key, memory::Tensor};",
        ),
        ("src/rendezvous/mod.rs", "use crate::wire::Frame;"),
        (
            "src/rendezvous/mod.rs",
            "fn f() { let _ = crate::shard::now(); }",
        ),
        ("src/ground/key.rs", "use super::super::wire::Frame;"),
        ("src/ground/key/tests.rs", "use crate::wire::Frame;"),
        ("src/ground/mod.rs", "use super::wire::Frame;"),
        ("src/fabric/mod.rs", "use crate::wire::Message;"),
        ("src/fabric/mod.rs", "use crate::wire::{Frame, Message};"),
        ("src/shard/mod.rs", "use crate::engine::Engine;"),
        ("src/trace/stages.rs", "use crate::shard::Shard;"),
        ("src/trace/stages.rs", "use crate::fabric::AnyPort;"),
        ("src/mail/call.rs", "use crate::shard::Task;"),
        ("src/shard/mod.rs", "use crate::testing::solo::Solo;"),
        ("src/control/mod.rs", "use crate::engine::Engine;"),
        ("src/engine/mod.rs", "use crate::cli::Cli;"),
        ("src/engine/mod.rs", "use crate::Engine;"),
        ("src/graph/mod.rs", "use rendez::engine::Engine;"),
        (
            "src/server/mod.rs",
            "use rendez::{fabric::Port, engine::Engine};",
        ),
        ("src/memory/mod.rs", "use rendez_proto::Hello;"),
    ] {
        catches("imports", 2, path, text);
    }
    catches("imports", 1, "src/attic/mod.rs", "");
    for (path, text) in [
        (
            "src/fabric/mod.rs",
            "use crate::wire::{Frame, INLINE_BODY_MAX};\nuse crate::memory::{Buffer, Pool};",
        ),
        (
            "src/channel/mod.rs",
            "//! See [crate::fabric].\nuse crate::{ground::{Key, Nanos}, wire::Frame};",
        ),
        (
            "src/channel/mod.rs",
            "const NOTE: &str = \"use crate::fabric::Port;\"; // use crate::fabric::Port;",
        ),
        (
            "src/channel/a.rs",
            "use super::Channel;\npub(crate) fn f(_: crate::channel::Channel) {}",
        ),
        (
            "src/shard/mod.rs",
            "use crate::channel::Channel;\nuse crate::fabric::Port;",
        ),
        ("src/engine/mod.rs", "use crate::control::Control;"),
        ("src/cli/mod.rs", "use rendez::engine::Engine;"),
        (
            "src/server/mod.rs",
            "use rendez_proto::Hello;\nuse rendez::engine::Engine;",
        ),
        ("src/cli/main.rs", "use rendez_cli::run;"),
    ] {
        passes(path, text);
    }
}

#[test]
fn words() {
    for (rule, path, text) in [
        ("lock", "src/shard/mod.rs", "use std::sync::{Arc, Mutex};"),
        ("lock", "src/memory/mod.rs", "use std::sync::RwLock;"),
        (
            "random-state",
            "src/rendezvous/mod.rs",
            "use std::collections::HashMap;",
        ),
        (
            "clock",
            "src/fabric/tcp.rs",
            "use std::time::{Duration, Instant};",
        ),
        (
            "day",
            "src/shard/mod.rs",
            "fn f() { std::time::SystemTime::now(); }",
        ),
        (
            "day",
            "src/control/tickets.rs",
            "use std::time::{Instant, UNIX_EPOCH};",
        ),
        ("clock", "src/ground/time.rs", "use std::time::Instant;"),
        ("print", "src/engine/mod.rs", "fn f() { println!(\"x\"); }"),
        (
            "format",
            "src/channel/mod.rs",
            "fn f() -> String { format!(\"x\") }",
        ),
        (
            "log",
            "src/fabric/mod.rs",
            "fn f() { tracing::info!(\"x\"); }",
        ),
        (
            "thread",
            "src/fabric/mod.rs",
            "fn f() { std::thread::spawn(|| ()); }",
        ),
        (
            "thread",
            "src/memory/mod.rs",
            "use std::thread;\nfn f() { thread::Builder::new(); }",
        ),
        ("async", "src/shard/mod.rs", "pub async fn f() {}"),
        ("pure", "src/channel/mod.rs", "use std::io::Write;"),
        ("pure", "src/ground/mod.rs", "static mut COUNT: u32 = 0;"),
        ("getter", "src/engine/mod.rs", "pub fn get_key() {}"),
        ("leftover", "src/engine/mod.rs", "fn f() { todo!() }"),
        ("leftover", "src/engine/mod.rs", "fn f() { dbg!(1); }"),
        ("leftover", "tests/any.rs", "fn f() { unimplemented!() }"),
        ("leftover", "src/engine/mod.rs", "// FIXME: later"),
        ("leftover", "bench/any.rs", "/* XXX */"),
    ] {
        let line = 1 + text.lines().count();
        catches(rule, line, path, text);
    }
    for (path, text) in [
        ("src/trace/clock.rs", "use std::time::Instant;"),
        (
            "src/shard/mod.rs",
            "use std::time::Duration;\nuse std::thread;\nfn f() { thread::Builder::new(); }",
        ),
        (
            "src/channel/mod.rs",
            "#[cfg(test)]\nmod tests {\n    fn f() { format!(\"{}\", '{'); }\n}",
        ),
        ("src/channel/tests.rs", "use std::collections::HashMap;"),
        (
            "src/channel/mod.rs",
            "/// Not a `Mutex`, and no format!(…).\nconst NOTE: &str = r#\"HashMap \"Instant\" \"#;",
        ),
        (
            "src/control/mod.rs",
            "use std::time::Instant;\npub async fn f() { g().await }",
        ),
        ("src/cli/mod.rs", "fn f() { println!(\"todo!()\"); }"),
        (
            "src/engine/mod.rs",
            "fn f<'a>(x: &'a str) -> char { '\\'' }\n// prefix_XXX_suffix",
        ),
    ] {
        passes(path, text);
    }
    catches(
        "format",
        6,
        "src/channel/mod.rs",
        "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\nfn g() { format!(\"\"); }",
    );
    catches(
        "format",
        3,
        "src/channel/mod.rs",
        "#[cfg(test)] mod tests;\nfn g() { format!(\"\"); }",
    );
}

#[test]
fn prose() {
    for (line, text) in [
        (2, "// The value is for whoever waits."),
        (2, "/// Nobody reads it."),
        (2, "const A: &str = \"all but for one\";"),
        (3, "\n//! Memory is not to be had."),
    ] {
        catches("prose", line, "src/engine/mod.rs", text);
    }
    passes("src/engine/mod.rs", "const A: &str = \"nobody\";");
    passes("src/engine/mod.rs", "// unix:@nobody, but four of them.");
    let page = prose::check_page("README.md", "One.\nThe task that nobody asks.\n");
    assert_eq!(page.len(), 1);
    assert_eq!((page[0].line, page[0].rule), (2, "prose"));
}

#[test]
fn terms() {
    for text in [
        "struct Anteroom;",
        "fn expire_guests() {}",
        "let next_parcel = 1;",
    ] {
        catches("term", 2, "src/shard/queue.rs", text);
    }
    passes("src/shard/queue.rs", "struct SendQueue; fn guesses() {}");
    passes("src/fabric/verbs/mod.rs", "fn in_guest() {}");
}

#[test]
fn unsafe_code() {
    const BLOCK: &str = "fn f() {\n    // SAFETY: it is.\n    unsafe { g() }\n}";
    catches("unsafe-list", 4, "src/memory/pool.rs", BLOCK);
    catches(
        "unsafe-list",
        2,
        "src/memory/pool.rs",
        "#![allow(unsafe_code)]",
    );
    catches("unsafe-room", 4, "src/rendezvous/mod.rs", BLOCK);
    assert!(
        run(
            &[("src/memory/pool.rs", BLOCK)],
            &["src/memory/pool.rs"],
            &[]
        )
        .is_empty()
    );

    let listed = |text: &str| {
        let found = run(
            &[("src/memory/pool.rs", text)],
            &["src/memory/pool.rs"],
            &[],
        );
        found
            .into_iter()
            .map(|violation| (violation.rule, violation.line))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        listed("fn f() { let x = 1; }"),
        [("unsafe-list", 1)],
        "listed without need"
    );
    assert_eq!(listed("fn f() {\n    unsafe { g() }\n}"), [("safety", 3)]);
    assert_eq!(listed("unsafe impl Send for X {}"), [("safety", 2)]);
    assert_eq!(
        listed("// Safe enough.\nunsafe impl Send for X {}"),
        [("safety", 3)]
    );
    assert_eq!(
        listed("unsafe extern \"C\" {\n    fn f();\n}"),
        [("safety", 2)]
    );
    let shared = "// SAFETY: both.\nunsafe impl Send for X {}\nunsafe impl Sync for X {}";
    assert_eq!(listed(shared), [("safety", 4)], "one proof each");
    let twice = "fn f() {\n    // SAFETY: both.\n    let x = (unsafe { g() }, unsafe { h() });\n}";
    assert_eq!(listed(twice), [("safety", 4)], "one proof each");
    let far = "fn f() {\n    // SAFETY: it is.\n    let x = 1;\n    unsafe { g(x) }\n}";
    assert_eq!(
        listed(far),
        [("safety", 5)],
        "a proof stands directly above"
    );
    for proved in [
        "fn f() {\n    // SAFETY: it is,\n    // and for two reasons.\n    let x =\n        unsafe { g() };\n}",
        "fn f() {\n    h(\n        // SAFETY: it is.\n        unsafe { g() },\n\
                 // SAFETY: it is too.\n        unsafe { g() },\n    );\n}",
        "// SAFETY: it is.\n#[cfg(unix)]\nunsafe impl Send for X {}",
        "/// # Safety\n/// Be careful.\npub unsafe fn f() {}",
        "type F = unsafe extern \"C\" fn(u32);\nunsafe extern fn g() {}",
    ] {
        assert_eq!(listed(proved), [], "{proved}");
    }
    let gone = run(&[], &["src/memory/gone.rs"], &[]);
    assert_eq!((gone[0].rule, gone.len()), ("unsafe-list", 1));
}

#[test]
fn looks() {
    let source = Source::new("src/engine/mod.rs", "use std::fmt;\n");
    assert_eq!(tables::look(&source)[0].rule, "first-line");
    catches(
        "line-length",
        2,
        "src/engine/mod.rs",
        &format!("// {}", "é".repeat(118)),
    );
    passes("src/engine/mod.rs", &format!("// {}", "é".repeat(117)));
    catches("file-length", 1, "src/engine/mod.rs", &"//\n".repeat(600));
    passes("src/engine/mod.rs", &"//\n".repeat(599));
    passes("src/engine/tests.rs", &"//\n".repeat(900));
    let tests = format!(
        "{}#[cfg(test)]\nmod tests {{\n{}}}\n",
        "//\n".repeat(500),
        "//\n".repeat(500)
    );
    passes("src/engine/mod.rs", &tests);
}

#[test]
fn limits() {
    let limits = (
        "src/ground/limits.rs",
        "pub const A: usize = 1;\npub const B: usize = A;",
    );
    let found = run(
        &[limits, ("src/ground/key.rs", "use super::limits::B; // A")],
        &[],
        &[],
    );
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].rule, found[0].line), ("limits", 2));
    assert!(
        run(
            &[limits, ("src/ground/key.rs", "use super::limits::{A, B};")],
            &[],
            &[]
        )
        .is_empty()
    );
}

#[test]
fn reasons() {
    let catalogue = (
        "src/ground/catalogue/peers.rs",
        "catalogue! {\n    PEER_LOST: Unavailable, \"Gone.\", \"Restart.\";\n}",
    );
    let rule_of = |text: &str| {
        let found = run(&[catalogue, ("src/engine/mod.rs", text)], &[], &[]);
        found
            .into_iter()
            .map(|violation| (violation.rule, violation.line))
            .collect::<Vec<_>>()
    };
    let status =
        |reason: &str| format!("fn f() {{\n    Status::new(Code::Unavailable, {reason}, x);\n}}");
    assert_eq!(rule_of(&status("\"PEER_GONE\"")), [("reasons", 3)]);
    assert_eq!(rule_of(&status("\"GONE\"")), [("reasons", 3)]);
    assert_eq!(
        rule_of("const WHY: &str = \"PEER_GONE\";"),
        [("reasons", 2)]
    );
    assert_eq!(rule_of(&status("\"PEER_LOST\"")), []);
    assert_eq!(rule_of(&status("catalogue::PEER_LOST")), []);
    assert_eq!(
        rule_of("const TASK: &str = \"RENDEZ_TASK\"; // \"PEER_GONE\""),
        []
    );
    assert_eq!(
        rule_of("#[cfg(test)]\nmod tests {\n    const WHY: &str = \"PEER_GONE\";\n}"),
        []
    );
}

#[test]
fn promises() {
    let table = "# Promises\n\n| what | number | how |\n|---|---|---|\n\
                 | fast | 1 µs | `bench/x.rs` |\n| small | 1 | pending |\n| slow | 2 | soon |\n";
    let found = tables::promises("bench/PROMISES.md", table);
    assert_eq!(
        found
            .iter()
            .map(|violation| violation.line)
            .collect::<Vec<_>>(),
        [7]
    );
}

#[test]
fn what_pages_name() {
    let page = |text: &str| Page {
        path: "src/A_MODEL.md".into(),
        text: text.into(),
    };
    let exists = |path: &str| path == "tests/there";
    let lost = |text: &str| book::lost_paths(&page(text), &exists).len();
    assert_eq!(lost("`tests/gone.rs` and `scripts/gone.sh 600`"), 2);
    assert_eq!(
        lost("`tests/there`, `tests/loom_*.rs`, `bench/NIGHTLY.md`, `mod/a.rs`"),
        0
    );
    let test = Source::new(
        "tests/a.rs",
        "//! A planted file.\nfn it_is_still_there() {}",
    );
    let lost = |text: &str| book::lost_names(&page(text), std::slice::from_ref(&test)).len();
    assert_eq!(
        lost("`a` (`it_was_renamed_meanwhile`, `here::it_went_away`, `here::it_is_still_there`)"),
        2
    );
    assert_eq!(lost("`core_pattern` and `Engine::shut_down_now`"), 0);
}

#[test]
fn the_book() {
    let page = |path: &str, text: &str| Page {
        path: path.into(),
        text: text.into(),
    };
    let catalogue = Source::new(
        "src/ground/catalogue/peers.rs",
        "//! A planted file.\ncatalogue! {\n    PEER_LOST: Unavailable,\n \"Gone.\",\n \"Restart.\";\n}",
    );
    let rules = |pages: &[Page]| {
        let exists = |path: &str| path == "LICENSE";
        let found = book::check(pages, std::slice::from_ref(&catalogue), &exists);
        found
            .into_iter()
            .map(|violation| (violation.path, violation.line, violation.rule))
            .collect::<Vec<_>>()
    };
    let broken = |path: &str, line: usize, rule: &'static str| (path.to_owned(), line, rule);
    let summary = |text: &str| page("src/book/SUMMARY.md", text);
    let a = "src/book/a.md";

    let good = "# A b\n\n[x](#a-b) [`y`](b/c.md#two_words) [z](api/rendez/index.html) `[no](link)`\n\
                ```text\n[no](link)\n```\n[out](https://example.com)\n";
    let both = "[a](a.md)\n- [c](b/c.md)\n";
    let c = || page("src/book/b/c.md", "## two_words\n\n[a](../a.md)\n");
    assert_eq!(rules(&[summary(both), page(a, good), c()]), []);

    for dead in ["b/d.md", "b/c.md#three", "#c", "../../LICENSE"] {
        let text = format!("# A b\n\n[x]({dead})\n");
        let found = rules(&[summary(both), page(a, &text), c()]);
        assert_eq!(found, [broken(a, 3, "book-link")], "{dead}");
    }
    assert_eq!(rules(&[page("SECURITY.md", "[x](LICENSE)")]), []);
    assert_eq!(
        rules(&[page("SECURITY.md", "[x](LICENCE)")]),
        [broken("SECURITY.md", 1, "book-link")]
    );
    assert_eq!(
        rules(&[summary(""), page(a, "")]),
        [broken(a, 1, "book-summary")]
    );
    assert_eq!(
        rules(&[summary("[a](a.md) [b](a.md)"), page(a, "")]),
        [broken("src/book/SUMMARY.md", 1, "book-summary")]
    );
    assert_eq!(
        rules(&[page("SECURITY.md", &"ä".repeat(121))]),
        [broken("SECURITY.md", 1, "line-length")]
    );
    let long = "ä".repeat(121);
    let front = format!("```text\n{long}\n```\n| {long} |\n");
    assert!(book::long_prose(&page("README.md", &front)).is_empty());
    let front = page("README.md", &format!("{front}\n{long}\n"));
    assert_eq!(book::long_prose(&front)[0].line, 6);

    let errors = "src/book/reference/errors.md";
    let row = "### PEER_LOST\n\n`Unavailable`.\nGone.\n\n*What to do:* Restart.\n";
    assert_eq!(rules(&[page(errors, row)]), []);
    let stale = row.replace("Gone", "Lost");
    assert_eq!(
        rules(&[page(errors, &stale)]),
        [broken(errors, 1, "book-errors")]
    );
}

#[test]
fn locks_that_are_apart() {
    let package = |name: &str, version: &str| {
        format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"x\"\n\n")
    };
    let lock = package("a", "1.0.0") + &package("b", "1.0.0") + &package("b", "2.0.0");
    let alike = package("b", "2.0.0") + &package("only-here", "3.0.0");
    assert!(locks::apart(&lock, &alike).is_empty());
    assert_eq!(locks::apart(&lock, &package("b", "2.0.1")), ["b 2.0.1"]);
}

#[test]
fn the_image() {
    let manifest = "[workspace]\nmembers = [\n    \"src/a\",\n    \"tests/b\",\n]\n\
                    default-members = [\n    \".\",\n]\n";
    let missing = |recipe: &str| image::missing(manifest, recipe);
    assert!(missing("COPY src src\nCOPY tests/b tests/b\n").is_empty());
    assert!(missing("COPY Cargo.toml src tests ./\n").is_empty());
    assert_eq!(
        missing("COPY src src\nCOPY tests/bc tests/b\n"),
        ["tests/b"]
    );
    assert_eq!(
        missing("COPY --from=build src tests ./\n"),
        ["src/a", "tests/b"]
    );
}

#[test]
fn pipes_into_a_grep_that_ends_early() {
    let hasty = |line: &str| scripts::hasty_greps(&format!("set -euo pipefail\n{line}\n"));
    assert_eq!(hasty("! ldconfig -p | grep -q \"$library\""), [2]);
    assert_eq!(hasty("query x | grep -Eq 'y' && echo z"), [2]);
    assert_eq!(hasty("query x | sort | grep --quiet y"), [2]);
    assert_eq!(hasty("query x | grep 'a -q' >/dev/null"), []);
    assert_eq!(hasty("grep -q x file || exit 1"), []);
    assert_eq!(hasty("test -e file || grep -q x file"), []);
    assert_eq!(hasty("# a | grep -q b"), []);
    assert!(scripts::hasty_greps("a | grep -q b").is_empty());
}

#[test]
fn exceptions_yield_and_go_stale() {
    let file = ("src/channel/mod.rs", "fn f() -> String { format!(\"x\") }");
    assert!(run(&[file], &[], &[("src/channel/mod.rs", "format", "planted")]).is_empty());
    let stale = run(
        &[file],
        &[],
        &[
            ("src/channel/mod.rs", "format", "planted"),
            ("src/channel/mod.rs", "lock", "none"),
        ],
    );
    assert_eq!(stale.len(), 1);
    assert_eq!(stale[0].rule, "exceptions");
}

#[test]
fn type_names() {
    let two = |first: &str, second: &str| {
        let files = [("src/rpc/a.rs", first), ("src/rpc/b.rs", second)];
        let found = run(&files, &[], &[]);
        found.iter().filter(|one| one.rule == "type-name").count()
    };
    let seen = "/// A place.\npub(crate) struct Place;";
    assert_eq!(two(seen, seen), 1);
    assert_eq!(two(seen, "/// A place.\npub(super) enum Place {}"), 1);
    assert_eq!(two(seen, "/// A place.\nstruct Place;"), 0);
    assert_eq!(two(seen, "/// Another.\npub(crate) struct Places;"), 0);
    assert_eq!(
        two(seen, &format!("#[cfg(test)]\nmod tests {{\n{seen}\n}}")),
        0
    );
}
