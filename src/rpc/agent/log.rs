//! The log of a group: who came and went, in order. Pure.
//!
//! Through a store of keys each worker appends a line when it comes and one when it goes, which the store does in one
//! piece; all that read the log come to the same group by it, without a lock. A file has the state alone. Lines have
//! words with tabs between:
//!
//! ```text
//! + TOKEN SIZE NAME TASK ADDRESS    a worker comes; SIZE 0 is a group that grows and shrinks
//! - TOKEN                           it goes
//! = NEXT SIZE ROUND                 the state at a time, in place of all lines before: then for each worker
//! * TOKEN ID ROUND IN NAME TASK ADDRESS
//! ~ ID TASK                         and for each task that has left a group that grows and shrinks
//! ! TOKEN KIND WHY                  and for each that was refused since the state before, which may not have read it
//! ```
//!
//! A static group meets again and again, in *rounds*: a worker that comes again after its round is over belongs to the
//! next, also when others have not left the one before yet.
//!
//! In a dynamic group a number is a task's for as long as the group lasts. Its keys are the task's, too, so those that
//! stayed would hear one that comes again by another number as of both.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rendez::control::Address;
use rendez::ground::{TaskName, catalogue};

use super::WorkerInfo;
use super::store::{MIXED, Member};
use crate::error::Error;
use crate::id::{WorkerId, check_name};

/// Lines beside those that the state needs, above which a log is written anew.
const LOOSE: usize = 512;

/// Kinds of refusals, as words of a line.
const NAME: &str = "name";
const GROUP: &str = "group";

/// Why a worker is not in the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// Its name is another's.
    Name(String),
    /// It does not fit the group.
    Group(String),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Name(why) => Self::of(catalogue::RPC_NAME, why),
            Refusal::Group(why) => Self::of(catalogue::RPC_GROUP, why),
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    token: u64,
    id: WorkerId,
    round: u64,
    is_in: bool,
    task: TaskName,
    address: Address,
}

/// A group, as its log has it.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// How many workers a static group has, zero for a dynamic one; `None` while there is no worker.
    size: Option<usize>,
    /// The number of the next worker of a dynamic group.
    next: u32,
    /// The highest round.
    round: u64,
    entries: BTreeMap<String, Entry>,
    /// The numbers of tasks that have left a dynamic group.
    left: BTreeMap<TaskName, WorkerId>,
    /// Those that were refused, and why.
    refused: BTreeMap<u64, Refusal>,
    /// Those that were refused before the last state.
    refused_before: BTreeMap<u64, Refusal>,
    lines: usize,
}

/// A worker's coming, as a line.
pub(super) fn comes(token: u64, size: usize, name: &str, task: &TaskName, at: &Address) -> String {
    format!("+\t{token:x}\t{size}\t{name}\t{task}\t{at}\n")
}

/// Its going.
pub(super) fn goes(token: u64) -> String {
    format!("-\t{token:x}\n")
}

impl Log {
    /// Reads a log.
    ///
    /// # Errors
    /// Which line is none, and why.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
        let mut log = Self::default();
        for (number, line) in text.lines().enumerate() {
            log.line(line)
                .map_err(|why| format!("line {}: {why}", number + 1))?;
            log.lines += 1;
        }
        Ok(log)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["+", token, size, name, task, address] => {
                let token = hex(token)?;
                let size = number(size)?;
                let (task, address) = place(name, task, address)?;
                if let Err(refusal) = self.come(token, size, name, task, address) {
                    self.refused.insert(token, refusal);
                }
            }
            ["-", token] => self.go(hex(token)?),
            ["=", next, size, round] => {
                self.next = number(next)?;
                self.size = Some(number(size)?);
                self.round = round_of(round)?;
            }
            ["*", token, id, round, is_in, name, task, address] => {
                let (task, address) = place(name, task, address)?;
                let entry = Entry {
                    token: hex(token)?,
                    id: WorkerId(number(id)?),
                    round: round_of(round)?,
                    is_in: is_in == "in",
                    task,
                    address,
                };
                self.entries.insert(name.to_owned(), entry);
            }
            ["~", id, task] => {
                let task = TaskName::parse(task).map_err(|error| error.to_string())?;
                self.left.insert(task, WorkerId(number(id)?));
            }
            ["!", token, kind, why] => {
                let refusal = match kind {
                    NAME => Refusal::Name(why.into()),
                    GROUP => Refusal::Group(why.into()),
                    _ => return Err(format!("'{kind}' is no kind of refusal")),
                };
                self.refused_before.insert(hex(token)?, refusal);
            }
            _ => return Err("it is no line of a group".into()),
        }
        Ok(())
    }

    /// A worker comes: its place and its round.
    pub(super) fn come(
        &mut self,
        token: u64,
        size: usize,
        name: &str,
        task: TaskName,
        address: Address,
    ) -> Result<(WorkerId, u64), Refusal> {
        match self.size {
            Some(has) if (has == 0) != (size == 0) => return Err(Refusal::Group(MIXED.into())),
            Some(has) if has != size => {
                let message = format!(
                    "this worker says that the group has {size} workers, and others say {has}"
                );
                return Err(Refusal::Group(message));
            }
            _ => {}
        }
        let before = self.entries.get(name);
        if let Some(other) = before
            && other.is_in
            && other.task != task
        {
            let message = format!(
                "RPC worker name {name} is not unique: it is worker {}, the task {}",
                other.id, other.task
            );
            return Err(Refusal::Name(message));
        }
        let (id, round) = match size {
            0 => (self.dynamic_id(&task)?, 0),
            _ => self.static_place(name, size)?,
        };
        self.size = Some(size);
        self.round = self.round.max(round);
        let entry = Entry {
            token,
            id,
            round,
            is_in: true,
            task,
            address,
        };
        self.entries.insert(name.to_owned(), entry);
        Ok((id, round))
    }

    /// The number of a task, which it keeps: one that has started again takes its former place. What was there under
    /// another name is gone, for a task has one worker at a time.
    fn dynamic_id(&mut self, task: &TaskName) -> Result<WorkerId, Refusal> {
        let mut former = self.left.remove(task);
        self.entries.retain(|_, entry| {
            let is_same = entry.task == *task;
            former = if is_same { Some(entry.id) } else { former };
            !is_same
        });
        if let Some(id) = former {
            return Ok(id);
        }
        let id = u16::try_from(self.next).map(WorkerId).map_err(|_| {
            Refusal::Group("65536 tasks have joined: begin a group of another name".into())
        })?;
        self.next += 1;
        Ok(id)
    }

    fn static_place(&self, name: &str, size: usize) -> Result<(WorkerId, u64), Refusal> {
        let before = self.entries.get(name);
        // One that was killed takes its former place, unless its round is over: some have left it.
        let is_over = || self.of_round(self.round).any(|(_, entry)| !entry.is_in);
        let round = match before {
            Some(entry) if entry.is_in && entry.round == self.round && !is_over() => {
                return Ok((entry.id, entry.round));
            }
            Some(entry) if entry.round == self.round => self.round + 1,
            _ => self.round,
        };
        let taken: Vec<WorkerId> = self.of_round(round).map(|(_, entry)| entry.id).collect();
        let free = (0..=u16::MAX)
            .map(WorkerId)
            .take(size)
            .find(|id| !taken.contains(id));
        let id = free.ok_or_else(|| {
            Refusal::Group(format!(
                "{size} workers are there already, as many as the group has"
            ))
        })?;
        Ok((id, round))
    }

    fn of_round(&self, round: u64) -> impl Iterator<Item = (&String, &Entry)> {
        self.entries
            .iter()
            .filter(move |(_, entry)| entry.round == round)
    }

    /// The worker that came with `token` goes.
    pub(super) fn go(&mut self, token: u64) {
        let found = self
            .entries
            .iter()
            .find(|(_, entry)| entry.token == token && entry.is_in);
        let Some((name, round)) = found.map(|(name, entry)| (name.clone(), entry.round)) else {
            return;
        };
        // In a round that never was complete it has not been.
        let is_complete = Some(self.of_round(round).count()) == self.size || round < self.round;
        if self.size == Some(0) {
            let gone = self.entries.remove(&name);
            self.left.extend(gone.map(|gone| (gone.task, gone.id)));
        } else if !is_complete {
            self.entries.remove(&name);
        } else if let Some(entry) = self.entries.get_mut(&name) {
            entry.is_in = false;
        }
        if !self.entries.values().any(|entry| entry.is_in) {
            // An empty group begins again.
            let was_complete = !self.entries.is_empty();
            self.entries.clear();
            self.left.clear();
            self.size = None;
            self.next = 0;
            self.round += u64::from(was_complete);
        }
    }

    /// The place of the worker that came with `token`, its round, or why it has none; `None` if it is not in the log.
    pub(super) fn verdict(&self, token: u64) -> Option<Result<(WorkerId, u64), Refusal>> {
        let before = || self.refused_before.get(&token);
        if let Some(refusal) = self.refused.get(&token).or_else(before) {
            return Some(Err(refusal.clone()));
        }
        let entry = self
            .entries
            .values()
            .find(|entry| entry.token == token && entry.is_in)?;
        Some(Ok((entry.id, entry.round)))
    }

    /// The workers of a round of a static group, or of a dynamic one, by number.
    pub(super) fn members(&self, round: u64) -> BTreeMap<WorkerId, Member> {
        let member = |(name, entry): (&String, &Entry)| {
            let info = WorkerInfo {
                id: entry.id,
                name: name.clone(),
                task: entry.task.clone(),
            };
            (entry.id, (info, entry.address.clone()))
        };
        self.of_round(round).map(member).collect()
    }

    /// The same group in as few lines as it needs, if the log has many more.
    pub(super) fn compacted(&self) -> Option<String> {
        let is_long = self.lines >= LOOSE + 4 * (self.entries.len() + self.left.len());
        (is_long && !self.entries.is_empty()).then(|| self.text())
    }

    /// The state of the group; nothing of an empty one.
    pub(super) fn text(&self) -> String {
        if self.entries.is_empty() {
            return String::new();
        }
        let size = self.size.unwrap_or_default();
        let mut text = format!("=\t{}\t{size}\t{}\n", self.next, self.round);
        for (name, entry) in &self.entries {
            let is_in = if entry.is_in { "in" } else { "out" };
            let (token, id, round) = (entry.token, entry.id, entry.round);
            // Writing into a text does not fail.
            let _ = writeln!(
                text,
                "*\t{token:x}\t{id}\t{round}\t{is_in}\t{name}\t{}\t{}",
                entry.task, entry.address
            );
        }
        for (task, id) in &self.left {
            let _ = writeln!(text, "~\t{id}\t{task}");
        }
        for (token, refusal) in &self.refused {
            let (kind, why) = match refusal {
                Refusal::Name(why) => (NAME, why),
                Refusal::Group(why) => (GROUP, why),
            };
            let _ = writeln!(text, "!\t{token:x}\t{kind}\t{why}");
        }
        text
    }
}

fn hex(word: &str) -> Result<u64, String> {
    u64::from_str_radix(word, 16).map_err(|_| format!("'{word}' is no token"))
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse()
        .map_err(|_| format!("'{word}' is no number that fits"))
}

/// A round: far from where counting on from it would end.
fn round_of(word: &str) -> Result<u64, String> {
    number::<u32>(word).map(u64::from)
}

fn place(name: &str, task: &str, address: &str) -> Result<(TaskName, Address), String> {
    check_name(name).map_err(|error| error.to_string())?;
    let task = TaskName::parse(task).map_err(|error| error.to_string())?;
    let address = address
        .parse()
        .map_err(|error: rendez::control::AddressError| error.to_string())?;
    Ok((task, address))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plus(token: u64, size: usize, name: &str) -> String {
        format!("+\t{token:x}\t{size}\t{name}\t/job:{name}/task:0\t127.0.0.1:1\n")
    }

    fn read(lines: &[String]) -> Log {
        Log::read(lines.concat().as_bytes()).expect("a log")
    }

    fn place_of(log: &Log, token: u64) -> (u16, u64) {
        let (id, round) = log.verdict(token).expect("it came").expect("a place");
        (id.0, round)
    }

    #[test]
    fn a_static_group_has_its_rounds_whoever_is_slow() {
        let mut lines = vec![plus(1, 2, "a"), plus(2, 2, "b")];
        let log = read(&lines);
        assert_eq!((place_of(&log, 1), place_of(&log, 2)), ((0, 0), (1, 0)));
        assert_eq!(log.members(0).len(), 2);
        // The one leaves and comes again before the other has left.
        lines.extend([goes(1), plus(3, 2, "a")]);
        let log = read(&lines);
        assert_eq!(place_of(&log, 3), (0, 1));
        assert_eq!(log.members(1).len(), 1);
        lines.extend([goes(2), plus(4, 2, "b")]);
        let log = read(&lines);
        assert_eq!((place_of(&log, 3), place_of(&log, 4)), ((0, 1), (1, 1)));
        assert_eq!(log.members(1).len(), 2);
        // All leave: then it may be another group, and its rounds are new.
        lines.extend([goes(3), goes(4), plus(5, 1, "c")]);
        assert_eq!(place_of(&read(&lines), 5), (0, 2));
    }

    #[test]
    fn one_that_starts_again_takes_its_place_and_one_that_gives_up_leaves_it() {
        let mut lines = vec![plus(1, 3, "a"), plus(2, 3, "b"), plus(3, 3, "a")];
        let log = read(&lines);
        assert_eq!((place_of(&log, 3), place_of(&log, 2)), ((0, 0), (1, 0)));
        assert_eq!(log.verdict(1), None);
        // What its former life says late is nothing.
        lines.extend([goes(1), goes(3), plus(4, 3, "c"), plus(5, 3, "a")]);
        let log = read(&lines);
        assert_eq!((place_of(&log, 4), place_of(&log, 5)), ((0, 0), (2, 0)));
        assert_eq!(log.members(0).len(), 3);
    }

    #[test]
    fn who_does_not_fit_is_told_why() {
        let other = "+\tb\t2\ta\t/job:z/task:0\t127.0.0.1:1\n".to_owned();
        let lines = [
            plus(1, 2, "a"),
            plus(10, 0, "d"),
            other,
            plus(12, 3, "e"),
            plus(2, 2, "b"),
            plus(13, 2, "c"),
        ];
        let log = read(&lines);
        let refusal = |token| log.verdict(token).expect("it came").expect_err("refused");
        assert_eq!(refusal(10), Refusal::Group(MIXED.into()));
        assert!(matches!(refusal(11), Refusal::Name(why) if why.contains("not unique")));
        assert!(matches!(refusal(12), Refusal::Group(why) if why.contains("others say 2")));
        assert!(matches!(refusal(13), Refusal::Group(why) if why.contains("already")));
        assert_eq!(log.members(0).len(), 2);
    }

    /// A worker of a dynamic group, under a name that need not be its task's.
    fn comes_as(token: u64, name: &str, task: &str) -> String {
        format!("+\t{token:x}\t0\t{name}\t/job:{task}/task:0\t127.0.0.1:1\n")
    }

    #[test]
    fn a_number_of_a_dynamic_group_is_one_tasks_until_the_group_is_empty() {
        let mut lines = vec![plus(1, 0, "a"), plus(2, 0, "b"), goes(1), plus(3, 0, "c")];
        assert_eq!(place_of(&read(&lines), 3), (2, 0));
        // It comes again under its name, and under another; the log may have been written anew meanwhile.
        let mut again = lines.clone();
        again.push(plus(4, 0, "a"));
        assert_eq!(place_of(&read(&again), 4), (0, 0));
        again = vec![read(&lines).text(), comes_as(4, "z", "a")];
        let log = read(&again);
        assert_eq!((place_of(&log, 4), log.members(0).len()), ((0, 0), 3));
        // What was killed there has not said that it goes.
        again.push(comes_as(5, "y", "a"));
        let log = read(&again);
        assert_eq!((place_of(&log, 5), log.members(0).len()), ((0, 0), 3));
        assert_eq!(log.verdict(4), None);
        // The name of one that has gone is free for another task, which is another worker.
        lines.push(comes_as(6, "a", "d"));
        assert_eq!(place_of(&read(&lines), 6), (3, 0));
        lines.push(comes_as(7, "x", "a"));
        assert_eq!(place_of(&read(&lines), 7), (0, 0));
        lines.extend([2, 3, 6, 7].map(goes));
        lines.push(plus(8, 0, "b"));
        assert_eq!(place_of(&read(&lines), 8), (0, 0));
    }

    #[test]
    fn a_long_log_is_written_in_few_lines_and_says_the_same() {
        for size in [0, 2] {
            let mut lines = vec![plus(1, size, "a"), plus(2, size, "b")];
            for token in 0..600 {
                lines.extend([goes(2 + token), plus(3 + token, size, "b")]);
            }
            let log = read(&lines);
            let short = log.compacted().expect("it is long");
            assert!(short.lines().count() <= 3, "{short}");
            let again = Log::read(short.as_bytes()).expect("a log");
            assert_eq!(again.members(0), log.members(0));
            assert_eq!(again.members(log.round), log.members(log.round));
            assert_eq!(again.verdict(602), log.verdict(602));
            assert_eq!(
                (again.next, again.size, again.round),
                (log.next, log.size, log.round)
            );
            assert_eq!(again.compacted(), None);
        }
    }

    /// The killed one met the other's former life, and that one's next life waited in the next round.
    #[test]
    fn one_that_was_killed_does_not_come_back_to_a_round_that_others_have_left() {
        let both = [plus(1, 2, "a"), plus(2, 2, "b"), goes(1)];
        for [first, second] in [["a", "b"], ["b", "a"]] {
            let again = [plus(3, 2, first), plus(4, 2, second)];
            let log = read(&[&both[..], &again].concat());
            assert_eq!([3, 4].map(|token| place_of(&log, token).1), [1, 1]);
            assert_eq!(log.members(1).len(), 2);
        }
    }

    /// Another may write the log anew before one that is refused has read it.
    #[test]
    fn a_refusal_is_told_once_more_when_the_log_is_written_anew() {
        let other = "+\tb\t0\ta\t/job:z/task:0\t127.0.0.1:1\n".to_owned();
        let mut lines = vec![plus(1, 0, "a"), plus(2, 0, "b")];
        lines.extend((0..600).flat_map(|at| [goes(20 + at), plus(21 + at, 0, "b")]));
        lines.extend([other, plus(12, 3, "c")]);
        let log = read(&lines);
        let short = log.compacted().expect("it is long");
        let again = Log::read(short.as_bytes()).expect("a log");
        for token in [11, 12] {
            assert!(matches!(again.verdict(token), Some(Err(_))), "{short}");
            assert_eq!(again.verdict(token), log.verdict(token));
        }
        assert!(!again.text().contains('!'), "and not for ever");
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for line in [
            "?\n",
            "+\t1\t2\ta\n",
            "-\tx\n",
            "=\t1\t2\n",
            "*\t1\n",
            "!\t1\tnone\twhy\n",
            "~\t1\tnone\n",
            "+\t1\t1\ta b\t/job:a/task:0\tx:1\n",
            "=\t1\t2\t18446744073709551615\n",
            "*\t1\t0\t18446744073709551615\tin\tz\t/job:a/task:0\t127.0.0.1:1\n",
        ] {
            let text = format!("{}{line}", plus(1, 2, "a"));
            let why = Log::read(text.as_bytes()).unwrap_err();
            assert!(why.starts_with("line 2: "), "{why}");
        }
        assert!(Log::read(&[0xff]).is_err());
    }

    /// Words that are none, and true ones at their ends, in any order.
    fn any_line() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just("0".to_owned()),
            Just("1".to_owned()),
            Just("4294967295".to_owned()),
            Just("18446744073709551615".to_owned()),
            Just("a".to_owned()),
            Just("in".to_owned()),
            Just("/job:a/task:0".to_owned()),
            Just("127.0.0.1:1".to_owned()),
            ".{0,4}",
        ];
        let kind = prop_oneof![
            Just("+"),
            Just("-"),
            Just("="),
            Just("*"),
            Just("~"),
            Just("?")
        ];
        let words = prop::collection::vec(word, 0..8);
        let true_line = (0..3_u64, 0..3_usize).prop_map(|(token, size)| plus(token, size, "a"));
        prop_oneof![
            (kind, words).prop_map(|(kind, words)| format!("{kind}\t{}\n", words.join("\t"))),
            true_line,
        ]
    }

    proptest! {
        #[test]
        fn no_log_panics(lines in prop::collection::vec(any_line(), 0..6)) {
            if let Ok(log) = Log::read(lines.concat().as_bytes()) {
                prop_assert!(log.members(log.round).len() <= lines.len());
                if let Some(short) = log.compacted() {
                    prop_assert!(Log::read(short.as_bytes()).is_ok());
                }
            }
        }
    }
}
