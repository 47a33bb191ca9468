//! Story: all histories of a run put together: which lives there were, what each received, and what was broken when.
//!
//! Knows how histories hang together, and no promise.

use std::collections::{BTreeMap, BTreeSet};

use super::devices::Held;
use super::history::{Claim, Event, Lane};
use super::scope::Kind;
use rendez_cli::error::CliError;

pub(super) mod remote;

/// What an engine says of a peer that is there again as another.
const RETURNED: &str = "a peer has returned in another life";

/// How it marks what should not be.
const ERROR: &str = " ERROR ";

/// Everything that is known of a run.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// By task and life.
    pub(super) lives: BTreeMap<(u32, u32), Life>,
    pub(super) receives: Vec<Receive>,
    /// What was sent: by step, sender, receiver, kind and ordinal.
    pub(super) sent: BTreeMap<Sent, Sending>,
    pub(super) refused: Vec<Refused>,
    /// Steps that were ended on purpose.
    pub(super) aborted: BTreeSet<u64>,
    pub(super) faults: Vec<Fault>,
    pub(super) hosts: Vec<Vec<u32>>,
    pub(super) uses: Vec<Use>,
    /// How many bytes a life kept for receivers, and when.
    pub(super) kept: Vec<(u64, (u32, u32), u64)>,
    /// How often a life had closed a connection because the peer broke the protocol, as it said last.
    pub(super) violations: BTreeMap<(u32, u32), u64>,
    /// What a life said of its devices, and when.
    pub(super) devices: Vec<(u64, (u32, u32), Held)>,
    /// Sessions that could not be begun.
    pub(super) unbegun: Vec<Unbegun>,
    /// When a task had no descriptor for a file.
    pub(super) shorts: Vec<(u32, u64)>,
    /// Steps of sessions, over all tasks.
    pub(super) steps: Vec<GraphStep>,
    /// What a life that ended says is left of sessions and of their steps.
    pub(super) left: BTreeMap<(u32, u32), (u64, u64)>,
    /// When a life was not let run by its machine: from when to when.
    pub(super) lates: BTreeMap<(u32, u32), Vec<(u64, u64)>>,
    /// When a life saw the clock of the day move.
    pub(super) jumps: BTreeMap<(u32, u32), Vec<u64>>,
    /// Lines of logs in which an engine says that something went wrong.
    pub(super) errors: Vec<((u32, u32), String)>,
    /// What was done by remote calls.
    pub(super) remote: remote::Calls,
    /// Incarnations of which a life said that a peer has returned in them.
    pub(super) returns: BTreeSet<((u32, u32), u64)>,
}

/// Step, sender, receiver, kind and ordinal.
pub(super) type Sent = (u64, u32, u32, Kind, u32);

/// How a value was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) at_ns: u64,
    pub(super) sum: u64,
    /// The engine did not take it.
    pub(super) is_refused: bool,
}

/// A life of a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) began_ns: u64,
    pub(super) incarnation: u64,
    /// It ended in good order.
    pub(super) ended_ns: Option<u64>,
}

/// A receive.
#[derive(Clone, Debug)]
pub(super) struct Receive {
    /// Whose: a task and its life.
    pub(super) by: (u32, u32),
    pub(super) lane: Lane,
    pub(super) nth: u32,
    pub(super) asked_ns: u64,
    pub(super) patience_ns: u64,
    pub(super) end: Option<(u64, Outcome)>,
}

/// What a receive ended with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// A value, and the way it came.
    Got(Claim, String),
    /// The reason.
    Failed(String),
}

/// A send that was refused.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) by: u32,
    pub(super) at_ns: u64,
    pub(super) lane: Lane,
    pub(super) reason: String,
}

/// Something that was broken for a while.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub(super) what: String,
    pub(super) tasks: Vec<u32>,
    pub(super) from_ns: u64,
    /// By when it was broken: what has to be told of it is due from here. To break it takes a busy machine a while.
    pub(super) struck_ns: u64,
    /// When the kernel had taken down what was killed: what its neighbours have to be told is due from here.
    pub(super) gone_ns: u64,
    /// `u64::MAX` if it never healed.
    pub(super) until_ns: u64,
}

/// What a process held at some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) at_ns: u64,
    pub(super) by: (u32, u32),
    pub(super) resident_kib: u64,
    pub(super) descriptors: u64,
}

/// An attempt to begin a session, in vain.
#[derive(Clone, Debug)]
pub(super) struct Unbegun {
    pub(super) by: (u32, u32),
    pub(super) from_ns: u64,
    pub(super) until_ns: u64,
    pub(super) reason: String,
}

/// A step of a task's session.
#[derive(Clone, Debug)]
pub(super) struct GraphStep {
    pub(super) by: (u32, u32),
    pub(super) step: u64,
    pub(super) began_ns: u64,
    pub(super) end: Option<(u64, Ended)>,
}

/// What such a step ended with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// An answer, and whether it is right.
    Right(bool),
    /// A failure, and the tasks it names.
    Broken {
        reason: String,
        is_derived: bool,
        named: Vec<u32>,
    },
}

/// What is in the making while one history is read.
#[derive(Default)]
struct Reading {
    by: Option<(u32, u32)>,
    open: BTreeMap<(Lane, u32), usize>,
}

impl Story {
    /// Adds a history. Its last line may be cut short, as a killed writer leaves it; no other.
    ///
    /// # Errors
    /// `NEMESIS_HISTORY` with name, line and what is wrong.
    pub(super) fn read(&mut self, name: &str, text: &str) -> Result<(), CliError> {
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut reading = Reading::default();
        for (at, line) in whole.lines().enumerate() {
            let taken = Event::parse(line)
                .ok_or("is no event")
                .and_then(|(at_ns, event)| self.take(&mut reading, at_ns, event));
            taken.map_err(|why| {
                let message = format!("{name}:{}: '{line}' {why}", at + 1);
                CliError::failure("NEMESIS_HISTORY", message)
            })?;
        }
        Ok(())
    }

    /// Adds what the engine of a life said.
    pub(super) fn read_log(&mut self, by: (u32, u32), text: &str) {
        let panics = text.lines().filter(|line| line.contains(" panicked at "));
        let panics = panics.map(|line| (by, line.to_owned()));
        self.remote.panics.extend(panics);
        let errors = text.lines().filter(|line| line.contains(ERROR));
        let errors = errors.map(|line| (by, line.to_owned()));
        self.errors.extend(errors);
        let returns = text.lines().filter(|line| line.contains(RETURNED));
        for line in returns {
            let mut words = line.split_whitespace();
            let incarnation = words.find_map(|word| word.strip_prefix("incarnation="));
            let incarnation = incarnation.map(|word| u64::from_str_radix(word, 16));
            if let Some(Ok(incarnation)) = incarnation {
                self.returns.insert((by, incarnation));
            }
        }
    }

    /// For how much of that time the machine did not let a life run.
    pub(super) fn late_ns(&self, by: (u32, u32), from_ns: u64, until_ns: u64) -> u64 {
        let lates = self.lates.get(&by).map_or(&[][..], Vec::as_slice);
        let shares = lates
            .iter()
            .map(|(from, until)| until_ns.min(*until).saturating_sub(from_ns.max(*from)));
        shares.sum()
    }

    /// When that life was over, if it was: by a kill, or in good order.
    pub(super) fn death_ns(&self, by: (u32, u32)) -> Option<u64> {
        let life = self.lives.get(&by)?;
        let kill = self
            .faults
            .iter()
            .filter(|fault| fault.what == "kill" && fault.tasks.contains(&by.0))
            .map(|fault| fault.from_ns)
            .filter(|killed_ns| *killed_ns > life.began_ns)
            .min();
        kill.into_iter().chain(life.ended_ns).min()
    }

    /// True if the two run on one host.
    pub(super) fn are_near(&self, one: u32, other: u32) -> bool {
        let both = |host: &Vec<u32>| host.contains(&one) && host.contains(&other);
        self.hosts.iter().any(both)
    }

    /// True if the fault is between those two, and not elsewhere or behind both.
    pub(super) fn strikes(&self, fault: &Fault, one: u32, other: u32) -> bool {
        let struck = [one, other].map(|task| fault.tasks.contains(&task));
        match fault.what.as_str() {
            "cut" | "deaf" | "mute" | "address" => struck[0] != struck[1],
            // The time of day concerns no task.
            "clock" => false,
            _ => struck[0] || struck[1],
        }
    }

    /// When the script ended all tasks.
    pub(super) fn over_ns(&self) -> u64 {
        let over = self.faults.iter().find(|fault| fault.what == "over");
        over.map_or(u64::MAX, |fault| fault.from_ns)
    }

    /// The last such fault, which is not healed.
    fn broken(&mut self, what: &str, tasks: &[u32]) -> Result<&mut Fault, &'static str> {
        let is_it = |fault: &&mut Fault| {
            fault.what == what && fault.tasks == tasks && fault.until_ns == u64::MAX
        };
        let fault = self.faults.iter_mut().rev().find(is_it);
        fault.ok_or("is of no fault")
    }

    /// A life runs one step at a time.
    fn end_step(
        &mut self,
        by: (u32, u32),
        step: u64,
        end: (u64, Ended),
    ) -> Result<(), &'static str> {
        let last = self.steps.iter_mut().rev().find(|known| known.by == by);
        let last = last.filter(|known| known.step == step && known.end.is_none());
        last.ok_or("ends a step that did not begin")?.end = Some(end);
        Ok(())
    }

    fn take(
        &mut self,
        reading: &mut Reading,
        at_ns: u64,
        event: Event,
    ) -> Result<(), &'static str> {
        let by = reading.by.ok_or("comes before a life began");
        match event {
            Event::Begin {
                task,
                life,
                incarnation,
                ..
            } => {
                reading.by = Some((task, life));
                let life_begun = Life {
                    began_ns: at_ns,
                    incarnation,
                    ended_ns: None,
                };
                if self.lives.insert((task, life), life_begun).is_some() {
                    return Err("begins a life that there was");
                }
            }
            Event::Sent { lane, ordinal, sum } => {
                let value = (lane.step, by?.0, lane.other, lane.kind, ordinal);
                let sending = Sending {
                    at_ns,
                    sum,
                    is_refused: false,
                };
                if self.sent.insert(value, sending).is_some() {
                    return Err("sends what was sent before");
                }
            }
            Event::Refused {
                lane,
                ordinal,
                reason,
            } => {
                let value = (lane.step, by?.0, lane.other, lane.kind, ordinal);
                // Without memory for it there was nothing to be sent.
                if let Some(sending) = self.sent.get_mut(&value) {
                    sending.is_refused = true;
                }
                self.refused.push(Refused {
                    by: by?.0,
                    at_ns,
                    lane,
                    reason,
                });
            }
            Event::Unbegun { for_ns, reason } => {
                self.unbegun.push(Unbegun {
                    by: by?,
                    from_ns: at_ns.saturating_sub(for_ns),
                    until_ns: at_ns,
                    reason,
                });
            }
            Event::Step { step } => self.steps.push(GraphStep {
                by: by?,
                step,
                began_ns: at_ns,
                end: None,
            }),
            Event::Right { step, is_right } => {
                self.end_step(by?, step, (at_ns, Ended::Right(is_right)))?;
            }
            Event::Broken {
                step,
                reason,
                is_derived,
                named,
            } => {
                let ended = Ended::Broken {
                    reason,
                    is_derived,
                    named,
                };
                self.end_step(by?, step, (at_ns, ended))?;
            }
            Event::Left { sessions, steps } => {
                self.left.insert(by?, (sessions, steps));
            }
            Event::Late { for_ns } => {
                let lates = self.lates.entry(by?).or_default();
                lates.push((at_ns.saturating_sub(for_ns), at_ns));
            }
            Event::Jumped { .. } => self.jumps.entry(by?).or_default().push(at_ns),
            Event::Asked {
                lane,
                nth,
                patience_ns,
            } => {
                let before = reading.open.insert((lane, nth), self.receives.len());
                if before.is_some() {
                    return Err("asks again");
                }
                self.receives.push(Receive {
                    by: by?,
                    lane,
                    nth,
                    asked_ns: at_ns,
                    patience_ns,
                    end: None,
                });
            }
            Event::Got {
                lane,
                nth,
                claim,
                way,
            } => {
                let of = reading.open.remove(&(lane, nth)).ok_or("was not asked")?;
                self.receives[of].end = Some((at_ns, Outcome::Got(claim, way)));
            }
            Event::Failed { lane, nth, reason } => {
                let of = reading.open.remove(&(lane, nth)).ok_or("was not asked")?;
                self.receives[of].end = Some((at_ns, Outcome::Failed(reason)));
            }
            Event::Devices(held) => self.devices.push((at_ns, by?, held)),
            Event::Kept {
                parked,
                offered,
                violations,
            } => {
                self.kept.push((at_ns, by?, parked.saturating_add(offered)));
                self.violations.insert(by?, violations);
            }
            Event::Short => self.shorts.push((by?.0, at_ns)),
            Event::Aborted { step } => {
                by?;
                self.aborted.insert(step);
            }
            Event::Remote(what) => self.remote.take(by?, at_ns, what)?,
            Event::End => {
                let life = self.lives.get_mut(&by?).ok_or("ends no life")?;
                life.ended_ns = Some(at_ns);
            }
            Event::Host { tasks } => self.hosts.push(tasks),
            Event::Fault { what, tasks } => self.faults.push(Fault {
                what,
                tasks,
                from_ns: at_ns,
                struck_ns: at_ns,
                gone_ns: at_ns,
                until_ns: u64::MAX,
            }),
            Event::Struck { what, tasks } => {
                let fault = self.broken(&what, &tasks)?;
                (fault.struck_ns, fault.gone_ns) = (at_ns, at_ns);
            }
            Event::Gone { what, tasks } => self.broken(&what, &tasks)?.gone_ns = at_ns,
            Event::Healed { what, tasks } => self.broken(&what, &tasks)?.until_ns = at_ns,
            Event::Used {
                task,
                life,
                resident_kib,
                descriptors,
            } => self.uses.push(Use {
                at_ns,
                by: (task, life),
                resident_kib,
                descriptors,
            }),
        }
        Ok(())
    }
}
