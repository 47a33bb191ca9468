//! Exit statuses: one table for all commands, so that a script can tell causes apart without reading a message.
//!
//! Knows reasons of the catalogue; not which command failed.

use rendez::ground::catalogue;

/// All went well.
pub const EXIT_OK: u8 = 0;
/// The command was understood and failed.
pub const EXIT_FAILURE: u8 = 1;
/// The command was not understood.
pub const EXIT_USAGE: u8 = 2;

/// A row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// What the process ends with.
    pub status: u8,
    /// What it means.
    pub meaning: &'static str,
    /// The reasons that end with it; none where the status needs none.
    pub reasons: &'static [&'static str],
}

/// The table.
pub const EXITS: &[Exit] = &[
    Exit {
        status: EXIT_OK,
        meaning: "it went well",
        reasons: &[],
    },
    Exit {
        status: EXIT_FAILURE,
        meaning: "it failed; the reason says how",
        reasons: &[],
    },
    Exit {
        status: EXIT_USAGE,
        meaning: "the command line was not understood",
        reasons: &[],
    },
    Exit {
        status: 10,
        meaning: "no process listens at a task's address",
        reasons: &[catalogue::CONNECTION_REFUSED],
    },
    Exit {
        status: 11,
        meaning: "a connection is accepted, but no answer comes: a stopped process, or it is not rendez",
        reasons: &[catalogue::GREETING_LATE, catalogue::CALL_DEADLINE],
    },
    Exit {
        status: 12,
        meaning: "a task cannot be reached, or was lost",
        reasons: &[catalogue::CONNECT_DEADLINE, catalogue::PEER_LOST],
    },
    Exit {
        status: 13,
        meaning: "one side has a cluster secret, the other has none",
        reasons: &[catalogue::SECRET_MISSING],
    },
    Exit {
        status: 14,
        meaning: "the cluster secrets differ",
        reasons: &[catalogue::SECRET_WRONG],
    },
    Exit {
        status: 15,
        meaning: "only one side uses TLS, or one rejects the other's certificate",
        reasons: &[catalogue::TLS_REFUSED],
    },
    Exit {
        status: 16,
        meaning: "another task, cluster or run is there",
        reasons: &[
            catalogue::PEER_UNKNOWN,
            catalogue::PEER_NOT_OF_CLUSTER,
            catalogue::PEER_OTHER_EPOCH,
        ],
    },
    Exit {
        status: 17,
        meaning: "the task runs as another user",
        reasons: &[catalogue::PEER_OTHER_USER],
    },
    Exit {
        status: 18,
        meaning: "a program other than rendez is there, or another version of rendez",
        reasons: &[catalogue::PEER_PROTOCOL, catalogue::PEER_VERSION],
    },
    Exit {
        status: 19,
        meaning: "the function that was called failed at its worker",
        reasons: &[catalogue::RPC_REMOTE_ERROR, catalogue::RPC_REMOTE_PANIC],
    },
    Exit {
        status: 20,
        meaning: "a call was not answered in its time",
        reasons: &[catalogue::RPC_TIMEOUT],
    },
    Exit {
        status: 78,
        meaning: "the settings cannot work as they are: trying again does not help",
        reasons: &[
            catalogue::CONFIG,
            catalogue::SECRET_UNFIT,
            catalogue::CLUSTER_SPEC,
            catalogue::CLUSTER_DUPLICATE_JOB,
            catalogue::CLUSTER_FILE_MALFORMED,
            catalogue::CLUSTER_UNRESOLVED,
            catalogue::CLUSTER_ROOT_UNKNOWN,
            catalogue::CLUSTER_ADDRESS,
            catalogue::CLUSTER_TASK_UNDEFINED,
            catalogue::TF_CONFIG_MALFORMED,
            catalogue::LAUNCHER_ENVIRONMENT,
            catalogue::HOST_LIST_MALFORMED,
            catalogue::HOST_LIST_TOO_LONG,
            catalogue::SHARDS_OVER_CORES,
            catalogue::CONTROL_EXPOSED,
            catalogue::PROTOCOL_UNKNOWN,
            catalogue::PROTOCOL_REFUSED,
        ],
    },
    Exit {
        status: EXIT_INTERRUPTED,
        meaning: "it was interrupted; what was done until then is printed",
        reasons: &[catalogue::INTERRUPTED],
    },
];

/// As shells have it: 128 and the number of SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The status of a command that failed for `reason`.
#[must_use]
pub fn exit_of(reason: &str) -> u8 {
    let row = EXITS.iter().find(|exit| exit.reasons.contains(&reason));
    row.map_or(EXIT_FAILURE, |exit| exit.status)
}

/// What stands between examples and the table.
const HEADING: &str = "\n\nExit statuses:\n";
/// Columns for the reasons of a status, behind what they are set in by.
const REASONS_WIDTH: usize = 90;

/// What is true of all errors.
pub(super) const ERRORS: &str =
    "Errors go to standard error as 'error[REASON]: …'; statuses and reasons are stable.";

/// What [`with_table`] was given.
pub(super) fn without_table(text: &str) -> &str {
    text.split_once(HEADING)
        .map_or(text, |(examples, _)| examples)
}

/// Examples of a command, and after them the table.
#[must_use]
pub fn with_table(examples: &str) -> String {
    let mut text = examples.trim_end().to_owned() + HEADING;
    for exit in EXITS {
        text.push_str(&format!("  {:<4} {}", exit.status, exit.meaning));
        let mut room = 0;
        for (at, reason) in exit.reasons.iter().enumerate() {
            if reason.len() + 2 > room {
                text.push_str("\n      ");
                room = REASONS_WIDTH;
            }
            room -= reason.len() + 2;
            let comma = if at + 1 < exit.reasons.len() { "," } else { "" };
            text.push_str(&format!(" {reason}{comma}"));
        }
        text.push('\n');
    }
    text.push_str(ERRORS);
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_status_and_reason_stands_once() {
        let statuses: BTreeSet<u8> = EXITS.iter().map(|exit| exit.status).collect();
        assert_eq!(statuses.len(), EXITS.len());
        let reasons: Vec<&str> = EXITS
            .iter()
            .flat_map(|exit| exit.reasons)
            .copied()
            .collect();
        let once: BTreeSet<&str> = reasons.iter().copied().collect();
        assert_eq!(once.len(), reasons.len());
        for exit in EXITS {
            for reason in exit.reasons {
                assert!(catalogue::find(reason).is_some(), "{reason}");
                assert_eq!(exit_of(reason), exit.status);
            }
        }
        assert_eq!(exit_of("FILE_UNREADABLE"), EXIT_FAILURE);
    }

    /// Tried again for ever, settings that cannot work would only fill the log.
    #[test]
    fn the_unit_is_not_started_again_with_settings_that_cannot_work() {
        let unit = include_str!("../../scripts/release/rendez.service");
        let status = exit_of(catalogue::CONFIG);
        let line = format!("\nRestartPreventExitStatus={EXIT_USAGE} {status}\n");
        assert!(unit.contains(&line), "no line {line:?}");
        // All else is tried for ever: an address that comes up late may be there at the next start.
        assert!(unit.contains("\nStartLimitIntervalSec=0\n"));
    }

    #[test]
    fn the_front_page_has_the_same_table() {
        let page = include_str!("../../README.md");
        for exit in EXITS {
            let reasons: Vec<String> = exit
                .reasons
                .iter()
                .map(|reason| format!("`{reason}`"))
                .collect();
            let row = format!(
                "| {} | {} | {} |",
                exit.status,
                exit.meaning,
                reasons.join(", ")
            );
            let row = row.replace("|  |", "| |");
            assert!(page.contains(&row), "README.md lacks this row: {row}");
        }
    }
}
