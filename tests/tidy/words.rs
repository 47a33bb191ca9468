//! Words that have no place in a room: clocks, locks, logs, formatting, threads, leftovers.
//!
//! Tests may use all but the leftovers. What a room needs in spite of a rule stands in `EXCEPTIONS`, with its reason.

use crate::source::{Kind, Source};
use crate::{Violation, violation};

/// Rooms of the floors up to 3 that no value passes.
const ASIDE: &[&str] = &["ground", "sync", "proto", "graph", "autograd", "cluster"];
/// Rooms of the floors up to 3 that every value passes.
const PASSED: &[&str] = &[
    "wire",
    "rendezvous",
    "channel",
    "memory",
    "fabric",
    "trace",
    "mail",
];
/// Rooms of floor 4 that every value passes.
const TURNED: &[&str] = &["shard", "testing"];
/// Rooms above floor 4, without the command.
const ABOVE: &[&str] = &[
    "control",
    "engine",
    "kernel",
    "operations",
    "server",
    "tape",
    "optim",
    "worker",
    "remote",
    "rpc",
    "lib",
];

/// Rooms on the path of every value.
const HOT: &[&[&str]] = &[PASSED, TURNED];
/// Rooms whose code is run millions of times a second; `memory`, `trace`, `mail` and `shard` also set things up.
const HOTTEST: &[&[&str]] = &[&["wire", "rendezvous", "channel", "fabric"]];
/// Rooms without clock, I/O and globals.
const PURE: &[&[&str]] = &[&[
    "ground",
    "wire",
    "graph",
    "autograd",
    "cluster",
    "rendezvous",
    "channel",
]];
/// Floors 0 to 3.
const BELOW_SHARD: &[&[&str]] = &[ASIDE, PASSED];
/// Floors 0 to 4.
const BELOW_CONTROL: &[&[&str]] = &[ASIDE, PASSED, TURNED];
/// All but the command.
const LIBRARY: &[&[&str]] = &[ASIDE, PASSED, TURNED, ABOVE];

struct Ban {
    rule: &'static str,
    rooms: &'static [&'static [&'static str]],
    words: &'static [&'static str],
    remedy: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        rule: "lock",
        rooms: HOT,
        words: &["Mutex", "RwLock", "Condvar"],
        remedy: "one owner for each thing: hand it over by a ring or a mailbox",
    },
    Ban {
        rule: "random-state",
        rooms: HOT,
        words: &["HashMap", "HashSet", "RandomState"],
        remedy: "use the room's own table, or an index: a random hash is another run each time",
    },
    Ban {
        rule: "clock",
        rooms: BELOW_CONTROL,
        words: &["Instant"],
        remedy: "time is an argument (`Nanos`); only src/trace/clock.rs reads a clock",
    },
    Ban {
        rule: "day",
        rooms: LIBRARY,
        words: &[
            "SystemTime",
            "UNIX_EPOCH",
            "ClockId :: Realtime",
            "CLOCK_REALTIME",
        ],
        remedy: "the clock of the day jumps: measure with `Instant`; only logs, certificates and figures have a date",
    },
    Ban {
        rule: "print",
        rooms: LIBRARY,
        words: &["println !", "eprintln !", "print !", "eprint !"],
        remedy: "return it; only the command prints",
    },
    Ban {
        rule: "format",
        rooms: HOTTEST,
        words: &["format !"],
        remedy: "errors here are small enums; the edge makes the text",
    },
    Ban {
        rule: "log",
        rooms: &[&["ground"], PASSED],
        words: &["tracing ::", "log ::"],
        remedy: "count it or return it; the first to know above this floor logs",
    },
    Ban {
        rule: "thread",
        rooms: BELOW_SHARD,
        words: &["thread :: spawn", "thread :: Builder", "thread :: scope"],
        remedy: "nothing below the shard starts a thread",
    },
    Ban {
        rule: "async",
        rooms: BELOW_CONTROL,
        words: &["async fn", "async move", "async {", ". await"],
        remedy: "below floor 5 a task is a polled callback",
    },
    Ban {
        rule: "pure",
        rooms: PURE,
        words: &[
            "std :: fs",
            "std :: net",
            "std :: io",
            "std :: env",
            "std :: process",
            "std :: thread",
            "std :: os",
            "rustix ::",
            "libc ::",
            "static mut",
            "thread_local !",
            "OnceLock",
            "LazyLock",
            "getrandom",
        ],
        remedy: "no clock, no I/O, no globals here: take it as an argument",
    },
];

/// The file that reads the clock.
const CLOCK: &str = "src/trace/clock.rs";

/// Words that say a file is not done, in code or comments, tests or not.
const LEFTOVERS: &[&str] = &["dbg !", "todo !", "unimplemented !"];
const LEFTOVER_NOTES: &[&str] = &["FIXME", "XXX"];

/// Checks the words of one file.
pub(crate) fn check(source: &Source) -> Vec<Violation> {
    let mut found = leftovers(source);
    let Some(room) = source.room() else {
        return found;
    };
    let is_in = |rooms: &[&[&str]]| rooms.iter().any(|rooms| rooms.contains(&room));
    for ban in BANS.iter().filter(|ban| is_in(ban.rooms)) {
        if ban.rule == "clock" && source.path == CLOCK {
            continue;
        }
        for words in ban.words {
            for line in source
                .find(words)
                .into_iter()
                .filter(|&line| !source.is_test(line))
            {
                let what = format!("`{}` in `{room}`", words.replace(' ', ""));
                found.push(violation(source, line, ban.rule, what, ban.remedy));
            }
        }
    }
    found.extend(getters(source));
    found
}

fn leftovers(source: &Source) -> Vec<Violation> {
    let remedy = "finish it, or say in the documentation what is missing";
    let mut found = vec![];
    for words in LEFTOVERS {
        for line in source.find(words) {
            found.push(violation(
                source,
                line,
                "leftover",
                format!("`{}`", words.replace(' ', "")),
                remedy,
            ));
        }
    }
    for (line, comment) in &source.comments {
        let words = comment.split(|c: char| !c.is_alphanumeric() && c != '_');
        for word in words.filter(|word| LEFTOVER_NOTES.contains(word)) {
            found.push(violation(
                source,
                *line,
                "leftover",
                format!("`{word}`"),
                remedy,
            ));
        }
    }
    found
}

fn getters(source: &Source) -> Vec<Violation> {
    let names = source
        .tokens
        .windows(2)
        .filter(|pair| pair[0].text == "fn" && pair[1].kind == Kind::Word);
    let getters = names.filter(|pair| pair[1].text.starts_with("get_"));
    let complaint = |pair: &[crate::source::Token]| {
        let what = format!("`{}`", pair[1].text);
        violation(
            source,
            pair[1].line,
            "getter",
            what,
            "name it after what it gives, without `get_`",
        )
    };
    getters.map(complaint).collect()
}
