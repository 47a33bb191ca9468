//! History: what happened to a task or to its world, as lines of text, written one by one.
//!
//! Knows no rule. A line goes to the kernel in one piece before anything else is done, so that a process that is killed
//! loses none but, at most, the one it was writing.
//!
//! ```text
//! 12345678901 got 1152921504606846976 2 small 0 right 0 51 inline
//! ```

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use rustix::time::{ClockId, clock_gettime};

use super::devices::Held;
use super::scope::Kind;
use rendez::ground::Locked;

pub(super) mod remote;

/// A value of one direction of a step: its step, the other task, and its kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Lane {
    pub(super) step: u64,
    /// The receiver of what is sent, the sender of what is received.
    pub(super) other: u32,
    pub(super) kind: Kind,
}

/// What a value said of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Claim {
    /// Its label is that of the key and step it came under, and its checksum is right.
    pub(super) is_right: bool,
    pub(super) ordinal: u32,
    pub(super) sum: u64,
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A life of a task began.
    Begin {
        task: u32,
        life: u32,
        pid: u32,
        incarnation: u64,
    },
    /// A value is about to be sent.
    Sent { lane: Lane, ordinal: u32, sum: u64 },
    /// That value was refused.
    Refused {
        lane: Lane,
        ordinal: u32,
        reason: String,
    },
    /// A receive is about to begin: the so many'th of its lane.
    Asked {
        lane: Lane,
        nth: u32,
        patience_ns: u64,
    },
    /// It has its value, which came that way.
    Got {
        lane: Lane,
        nth: u32,
        claim: Claim,
        way: String,
    },
    /// It has none.
    Failed {
        lane: Lane,
        nth: u32,
        reason: String,
    },
    /// The task could not begin a session, and tried for so long.
    Unbegun { for_ns: u64, reason: String },
    /// A step of the task's session is about to begin.
    Step { step: u64 },
    /// It has an answer.
    Right { step: u64, is_right: bool },
    /// It has none.
    Broken {
        step: u64,
        reason: String,
        is_derived: bool,
        named: Vec<u32>,
    },
    /// The task's session is closed: what is left here of all sessions, and of their steps.
    Left { sessions: u64, steps: u64 },
    /// A thread that only sleeps woke up so much too late: the machine let the task wait.
    Late { for_ns: u64 },
    /// The clock of the day was moved under the task.
    Jumped { by_s: i64 },
    /// What the task's devices hold while nothing is sent that lies there.
    Devices(Held),
    /// The bytes of values that the task keeps for receivers: parked, and on offer or lent; and how often it has closed
    /// a connection because the peer broke the protocol.
    Kept {
        parked: u64,
        offered: u64,
        violations: u64,
    },
    /// The task had no descriptor for a file.
    Short,
    /// The task is about to abort a step.
    Aborted { step: u64 },
    /// What its remote calls do.
    Remote(remote::Remote),
    /// The life ended in good order.
    End,
    /// The script: these tasks share a host.
    Host { tasks: Vec<u32> },
    /// The script: something is broken for those tasks.
    Fault { what: String, tasks: Vec<u32> },
    /// The script: it is whole again.
    Healed { what: String, tasks: Vec<u32> },
    /// By now it is broken.
    Struck { what: String, tasks: Vec<u32> },
    /// The kernel says that the processes that were killed are gone.
    Gone { what: String, tasks: Vec<u32> },
    /// The script: what a task's process holds.
    Used {
        task: u32,
        life: u32,
        resident_kib: u64,
        descriptors: u64,
    },
}

impl Event {
    /// The line, without time and end.
    fn text(&self) -> String {
        let lane = |lane: &Lane| format!("{} {} {}", lane.step, lane.other, lane.kind.name());
        let tasks = |tasks: &[u32]| {
            let tasks: Vec<String> = tasks.iter().map(u32::to_string).collect();
            tasks.join(" ")
        };
        match self {
            Self::Begin {
                task,
                life,
                pid,
                incarnation,
            } => format!("begin {task} {life} {pid} {incarnation:x}"),
            Self::Sent {
                lane: of,
                ordinal,
                sum,
            } => format!("sent {} {ordinal} {sum:x}", lane(of)),
            Self::Refused {
                lane: of,
                ordinal,
                reason,
            } => format!("refused {} {ordinal} {reason}", lane(of)),
            Self::Asked {
                lane: of,
                nth,
                patience_ns,
            } => format!("asked {} {nth} {patience_ns}", lane(of)),
            Self::Got {
                lane: of,
                nth,
                claim,
                way,
            } => {
                let is_right = if claim.is_right { "right" } else { "wrong" };
                let Claim { ordinal, sum, .. } = claim;
                let of = lane(of);
                format!("got {of} {nth} {is_right} {ordinal} {sum:x} {way}")
            }
            Self::Failed {
                lane: of,
                nth,
                reason,
            } => format!("failed {} {nth} {reason}", lane(of)),
            Self::Unbegun { for_ns, reason } => format!("unbegun {for_ns} {reason}"),
            Self::Step { step } => format!("step {step}"),
            Self::Right { step, is_right } => format!("answer {step} {is_right}"),
            Self::Broken {
                step,
                reason,
                is_derived,
                named,
            } => format!("broken {step} {reason} {is_derived} {}", tasks(named))
                .trim_end()
                .to_owned(),
            Self::Left { sessions, steps } => format!("left {sessions} {steps}"),
            Self::Late { for_ns } => format!("late {for_ns}"),
            Self::Jumped { by_s } => format!("jumped {by_s}"),
            Self::Devices(held) => {
                let Held {
                    blocks,
                    kept,
                    quarantined,
                    violations,
                } = held;
                format!("devices {blocks} {kept} {quarantined} {violations}")
            }
            Self::Kept {
                parked,
                offered,
                violations,
            } => format!("kept {parked} {offered} {violations}"),
            Self::Short => "short".into(),
            Self::Aborted { step } => format!("aborted {step}"),
            Self::Remote(what) => what.text(),
            Self::End => "end".into(),
            Self::Host { tasks: of } => format!("host {}", tasks(of)),
            Self::Fault { what, tasks: of } => format!("fault {what} {}", tasks(of)),
            Self::Healed { what, tasks: of } => format!("healed {what} {}", tasks(of)),
            Self::Struck { what, tasks: of } => format!("struck {what} {}", tasks(of)),
            Self::Gone { what, tasks: of } => format!("gone {what} {}", tasks(of)),
            Self::Used {
                task,
                life,
                resident_kib,
                descriptors,
            } => format!("used {task} {life} {resident_kib} {descriptors}"),
        }
    }

    /// A line's time and event; `None` if it is no line.
    pub(super) fn parse(line: &str) -> Option<(u64, Self)> {
        let mut words = line.split(' ');
        let at_ns = words.next()?.parse().ok()?;
        let what = words.next()?;
        let words: Vec<&str> = words.collect();
        Some((at_ns, Self::of(what, &words)?))
    }

    fn of(what: &str, words: &[&str]) -> Option<Self> {
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let small = |at: usize| words.get(at)?.parse::<u32>().ok();
        let hex = |at: usize| u64::from_str_radix(words.get(at)?, 16).ok();
        let word = |at: usize| words.get(at).map(|word| (*word).to_owned());
        let tasks = |from: usize| -> Option<Vec<u32>> {
            words
                .get(from..)?
                .iter()
                .map(|word| word.parse().ok())
                .collect()
        };
        let lane = || {
            Some(Lane {
                step: number(0)?,
                other: small(1)?,
                kind: Kind::of(words.get(2)?)?,
            })
        };
        Some(match (what, words.len()) {
            ("begin", 4) => Self::Begin {
                task: small(0)?,
                life: small(1)?,
                pid: small(2)?,
                incarnation: hex(3)?,
            },
            ("sent", 5) => Self::Sent {
                lane: lane()?,
                ordinal: small(3)?,
                sum: hex(4)?,
            },
            ("refused", 5) => Self::Refused {
                lane: lane()?,
                ordinal: small(3)?,
                reason: word(4)?,
            },
            ("asked", 5) => Self::Asked {
                lane: lane()?,
                nth: small(3)?,
                patience_ns: number(4)?,
            },
            ("got", 8) => Self::Got {
                lane: lane()?,
                nth: small(3)?,
                claim: Claim {
                    is_right: match words[4] {
                        "right" => true,
                        "wrong" => false,
                        _ => return None,
                    },
                    ordinal: small(5)?,
                    sum: hex(6)?,
                },
                way: word(7)?,
            },
            ("failed", 5) => Self::Failed {
                lane: lane()?,
                nth: small(3)?,
                reason: word(4)?,
            },
            ("unbegun", 2) => Self::Unbegun {
                for_ns: number(0)?,
                reason: word(1)?,
            },
            ("step", 1) => Self::Step { step: number(0)? },
            ("answer", 2) => Self::Right {
                step: number(0)?,
                is_right: words[1].parse().ok()?,
            },
            ("broken", 3..) => Self::Broken {
                step: number(0)?,
                reason: word(1)?,
                is_derived: words[2].parse().ok()?,
                named: tasks(3)?,
            },
            ("left", 2) => Self::Left {
                sessions: number(0)?,
                steps: number(1)?,
            },
            ("late", 1) => Self::Late { for_ns: number(0)? },
            ("jumped", 1) => Self::Jumped {
                by_s: words.first()?.parse().ok()?,
            },
            ("devices", 4) => Self::Devices(Held {
                blocks: number(0)?,
                kept: number(1)?,
                quarantined: number(2)?,
                violations: number(3)?,
            }),
            ("kept", 3) => Self::Kept {
                parked: number(0)?,
                offered: number(1)?,
                violations: number(2)?,
            },
            ("short", 0) => Self::Short,
            ("aborted", 1) => Self::Aborted { step: number(0)? },
            ("end", 0) => Self::End,
            ("host", 1..) => Self::Host { tasks: tasks(0)? },
            ("fault", 2..) => Self::Fault {
                what: word(0)?,
                tasks: tasks(1)?,
            },
            ("healed", 2..) => Self::Healed {
                what: word(0)?,
                tasks: tasks(1)?,
            },
            ("struck", 2..) => Self::Struck {
                what: word(0)?,
                tasks: tasks(1)?,
            },
            ("gone", 2..) => Self::Gone {
                what: word(0)?,
                tasks: tasks(1)?,
            },
            ("used", 4) => Self::Used {
                task: small(0)?,
                life: small(1)?,
                resident_kib: number(2)?,
                descriptors: number(3)?,
            },
            _ => Self::Remote(remote::Remote::of(what, words)?),
        })
    }
}

/// A history that is being written.
#[derive(Debug)]
pub(super) struct Log {
    file: Mutex<File>,
}

impl Log {
    /// A new file for it.
    pub(super) fn create(path: &Path) -> std::io::Result<Self> {
        let file = Mutex::new(File::create_new(path)?);
        Ok(Self { file })
    }

    /// Adds a line, with the time it is written.
    ///
    /// # Panics
    /// If the disk is full: a history with a hole proves nothing.
    pub(super) fn add(&self, event: &Event) {
        let mut file = self.file.locked();
        let line = format!("{} {}\n", now_ns(), event.text());
        file.write_all(line.as_bytes())
            .expect("the history can be written");
    }
}

/// Nanoseconds since the machine's start: the one clock that is the same in all the script's namespaces, of which each
/// may have its own idea of monotonic time.
pub(super) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let lane = Lane {
            step: u64::MAX,
            other: 2,
            kind: Kind::Large,
        };
        let claim = Claim {
            is_right: true,
            ordinal: 3,
            sum: u64::MAX,
        };
        let events = [
            Event::Begin {
                task: 1,
                life: 2,
                pid: 3,
                incarnation: 0xfeed,
            },
            Event::Sent {
                lane,
                ordinal: 7,
                sum: 0xff,
            },
            Event::Refused {
                lane,
                ordinal: 7,
                reason: "ARENA_FULL".into(),
            },
            Event::Asked {
                lane,
                nth: 1,
                patience_ns: 5,
            },
            Event::Got {
                lane,
                nth: 1,
                claim,
                way: "inline".into(),
            },
            Event::Failed {
                lane,
                nth: 1,
                reason: "PEER_LOST".into(),
            },
            Event::Unbegun {
                for_ns: 4,
                reason: "PEER_LOST".into(),
            },
            Event::Step { step: 5 },
            Event::Right {
                step: 5,
                is_right: false,
            },
            Event::Broken {
                step: 6,
                reason: "PEER_LOST".into(),
                is_derived: false,
                named: vec![0, 3],
            },
            Event::Broken {
                step: 7,
                reason: "PEER_LOST".into(),
                is_derived: true,
                named: vec![],
            },
            Event::Left {
                sessions: 0,
                steps: 1,
            },
            Event::Late { for_ns: 12 },
            Event::Jumped { by_s: -3600 },
            Event::Devices(Held {
                blocks: 1,
                kept: 2,
                quarantined: 3,
                violations: 4,
            }),
            Event::Kept {
                parked: 5,
                offered: 6,
                violations: 7,
            },
            Event::Short,
            Event::Aborted { step: 9 },
            Event::End,
            Event::Host { tasks: vec![0, 1] },
            Event::Fault {
                what: "cut".into(),
                tasks: vec![2],
            },
            Event::Healed {
                what: "cut".into(),
                tasks: vec![2],
            },
            Event::Struck {
                what: "cut".into(),
                tasks: vec![2],
            },
            Event::Gone {
                what: "kill".into(),
                tasks: vec![1, 2],
            },
            Event::Used {
                task: 1,
                life: 0,
                resident_kib: 1000,
                descriptors: 30,
            },
        ];
        for event in events {
            let line = format!("17 {}", event.text());
            assert_eq!(Event::parse(&line), Some((17, event)), "{line}");
        }
    }

    #[test]
    fn what_is_no_line_is_none() {
        for line in [
            "",
            "17",
            "x end",
            "17 end 3",
            "17 got 1 2 small",
            "17 sent 1 2 huge 3 4",
        ] {
            assert_eq!(Event::parse(line), None, "{line}");
        }
    }
}
