//! The reference page of the settings, made from their table.
//!
//! It is kept as a file, so that it can be read without building, and a test compares the two.

use std::fmt::Write;

use super::Config;
use super::table::{SETTINGS, Taker};

/// The page, as Markdown.
#[must_use]
pub fn reference_page() -> String {
    let mut page = String::from(HEAD);
    let defaults = Config::default();
    for (taker, title) in TITLES {
        let _ = write!(
            page,
            "\n## {title}\n\n| key | variable | flag | default | value | what it means |\n|---|---|---|---|---|---|\n"
        );
        for setting in SETTINGS.iter().filter(|setting| setting.taker == taker) {
            let default = match setting.show(&defaults).as_str() {
                "" => "none".to_owned(),
                shown => format!("`{shown}`"),
            };
            let _ = writeln!(
                page,
                "| `{}` | `{}` | `--{}` | {default} | {} | {} |",
                setting.key,
                setting.variable(),
                setting.flag(),
                setting.expects(),
                setting.meaning
            );
        }
    }
    page
}

const TITLES: [(Taker, &str); 3] = [
    (Taker::Engine, "Engine"),
    (
        Taker::Cluster,
        "Cluster: which tasks there are, and which this is",
    ),
    (Taker::Server, "Server: an engine alone ignores this"),
];

const HEAD: &str = "# Configuration

<!-- Made from `config/table.rs` by `rendez config reference`; a test compares the two. -->

A setting comes from the first of these that sets it. `peers` come from all of them; each has the address that the first
of them gives it:

1. a flag of the command, such as `--shards 2`
2. an environment variable, such as `RENDEZ_SHARDS=2`; an empty variable counts as not set
3. a key of the configuration file, such as `shards = 2`
4. its default

The file is the one that `--config` names; else the one that `RENDEZ_CONFIG_FILE` names; else the first that exists of
`./rendez.toml`, `~/.config/rendez/config.toml` and `/etc/rendez/config.toml`. These must belong to the user or
to root, and no other user may be able to write to them: else it is an error. So is one that cannot be checked; name
another file then, such as `/dev/null`. It is TOML. An unknown key is an error; an unknown `RENDEZ_*` variable causes a
warning, in every command that takes settings. `rendez config show --origin` prints every value and where it comes from.

A relative path is relative to the folder in which the process runs. Paths in a configuration file are not relative to
that file.

Sizes are bytes, or have a unit: `64KiB`, `1.5MiB`, `1g`. Durations always have one: `50ms`, `2s`, `1.5m`. Tables are
written as such in the file, and in one line elsewhere: `RENDEZ_PEERS=/job:a/task:0=unix:@a,/job:b/task:0=unix:@b`,
`RENDEZ_CLUSTER=ps=a:2222,b:2222;worker=c:2222`, where `3@d:2222` gives a task its number.

TensorFlow's RDMA variables are read if a setting corresponds to them, after the file and before `RENDEZ_*`; others
that begin with `RDMA_` cause a warning.
";
