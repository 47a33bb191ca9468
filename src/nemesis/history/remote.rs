//! What remote calls, references and trainings of a task did, as lines of its history.
//!
//! Numbers of calls and of values say which life made them: see [`number`].

/// The so many'th call or value of a life.
pub(crate) fn number(by: (u32, u32), nth: u64) -> u64 {
    u64::from(by.0) << 56 | u64::from(by.1 & 0xffff) << 40 | nth & 0xff_ffff_ffff
}

/// What a call ended with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Its own result.
    Right,
    /// The result of another call, or none that there is.
    Wrong,
    /// The reason why there is none.
    Failed(String),
}

impl Answer {
    fn text(&self) -> &str {
        match self {
            Self::Right => "right",
            Self::Wrong => "wrong",
            Self::Failed(reason) => reason,
        }
    }

    fn of(word: &str) -> Self {
        match word {
            "right" => Self::Right,
            "wrong" => Self::Wrong,
            reason => Self::Failed(reason.to_owned()),
        }
    }
}

/// One line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Remote {
    /// The task is a worker of the group, and all others are there.
    Joined,
    /// It could not become one this time.
    Unjoined { reason: String },
    /// A call is about to be made of another task; its function takes so long.
    Call {
        id: u64,
        to: u32,
        function: String,
        patience_ns: u64,
        needs_ns: u64,
    },
    /// It is about to be cancelled.
    Cancel { id: u64 },
    /// It has ended.
    Told { id: u64, answer: Answer },
    /// A call of another task is carried out here.
    Ran { id: u64 },
    /// A value is made here, for others to refer to.
    Made { value: u64 },
    /// No share of a value to be made at another task could be had.
    Unmade { at: u32, reason: String },
    /// It is not kept any more.
    Freed { value: u64 },
    /// The task has a share of a value at another, and has used it.
    Holds { value: u64, at: u32 },
    /// It is about to let that share go.
    Lets { value: u64 },
    /// The trainer of this task goes on with a model at another, which begins with these weights.
    Model {
        model: u64,
        at: u32,
        weights: Vec<u32>,
    },
    /// A step of it is done: what was lost before it, and the weights after it.
    Learnt {
        model: u64,
        step: u64,
        loss: u32,
        weights: Vec<u32>,
    },
    /// That model is given up.
    Gave { model: u64, reason: String },
    /// All actors have ended: what is left here of references, of calls, and of contexts with their messages.
    Rest {
        references: u64,
        calls: u64,
        contexts: u64,
    },
    /// The worker has left the group.
    Parted { answer: Answer },
}

impl Remote {
    /// The line, without time and end.
    pub(super) fn text(&self) -> String {
        let hex = |weights: &[u32]| {
            let words: Vec<String> = weights.iter().map(|bits| format!("{bits:x}")).collect();
            words.join(" ")
        };
        match self {
            Self::Joined => "joined".into(),
            Self::Unjoined { reason } => format!("unjoined {reason}"),
            Self::Call {
                id,
                to,
                function,
                patience_ns,
                needs_ns,
            } => format!("call {id:x} {to} {function} {patience_ns} {needs_ns}"),
            Self::Cancel { id } => format!("cancel {id:x}"),
            Self::Told { id, answer } => format!("told {id:x} {}", answer.text()),
            Self::Ran { id } => format!("ran {id:x}"),
            Self::Made { value } => format!("made {value:x}"),
            Self::Unmade { at, reason } => format!("unmade {at} {reason}"),
            Self::Freed { value } => format!("freed {value:x}"),
            Self::Holds { value, at } => format!("holds {value:x} {at}"),
            Self::Lets { value } => format!("lets {value:x}"),
            Self::Model { model, at, weights } => format!("model {model:x} {at} {}", hex(weights)),
            Self::Learnt {
                model,
                step,
                loss,
                weights,
            } => format!("learnt {model:x} {step} {loss:x} {}", hex(weights)),
            Self::Gave { model, reason } => format!("gave {model:x} {reason}"),
            Self::Rest {
                references,
                calls,
                contexts,
            } => format!("rest {references} {calls} {contexts}"),
            Self::Parted { answer } => format!("parted {}", answer.text()),
        }
    }

    pub(super) fn of(what: &str, words: &[&str]) -> Option<Self> {
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        let hex = |at: usize| u64::from_str_radix(words.get(at)?, 16).ok();
        let bits = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
        let word = |at: usize| words.get(at).map(|word| (*word).to_owned());
        let task = |at: usize| words.get(at)?.parse::<u32>().ok();
        let answer = |at: usize| words.get(at).map(|word| Answer::of(word));
        let weights = |from: usize| (from..words.len()).map(bits).collect::<Option<Vec<u32>>>();
        Some(match (what, words.len()) {
            ("joined", 0) => Self::Joined,
            ("unjoined", 1) => Self::Unjoined { reason: word(0)? },
            ("call", 5) => Self::Call {
                id: hex(0)?,
                to: task(1)?,
                function: word(2)?,
                patience_ns: number(3)?,
                needs_ns: number(4)?,
            },
            ("cancel", 1) => Self::Cancel { id: hex(0)? },
            ("told", 2) => Self::Told {
                id: hex(0)?,
                answer: answer(1)?,
            },
            ("ran", 1) => Self::Ran { id: hex(0)? },
            ("made", 1) => Self::Made { value: hex(0)? },
            ("unmade", 2) => Self::Unmade {
                at: task(0)?,
                reason: word(1)?,
            },
            ("freed", 1) => Self::Freed { value: hex(0)? },
            ("holds", 2) => Self::Holds {
                value: hex(0)?,
                at: task(1)?,
            },
            ("lets", 1) => Self::Lets { value: hex(0)? },
            ("model", 3..) => Self::Model {
                model: hex(0)?,
                at: task(1)?,
                weights: weights(2)?,
            },
            ("learnt", 4..) => Self::Learnt {
                model: hex(0)?,
                step: number(1)?,
                loss: bits(2)?,
                weights: weights(3)?,
            },
            ("gave", 2) => Self::Gave {
                model: hex(0)?,
                reason: word(1)?,
            },
            ("rest", 3) => Self::Rest {
                references: number(0)?,
                calls: number(1)?,
                contexts: number(2)?,
            },
            ("parted", 1) => Self::Parted { answer: answer(0)? },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let (id, value, model) = (number((3, 7), 9), u64::MAX, 5);
        let (reason, weights) = ("PEER_LOST".to_owned(), vec![0x3f80_0000, 0, u32::MAX]);
        let lines = [
            Remote::Joined,
            Remote::Unjoined {
                reason: reason.clone(),
            },
            Remote::Call {
                id,
                to: 2,
                function: "slow".into(),
                patience_ns: 5,
                needs_ns: 6,
            },
            Remote::Cancel { id },
            Remote::Told {
                id,
                answer: Answer::Right,
            },
            Remote::Told {
                id,
                answer: Answer::Wrong,
            },
            Remote::Told {
                id,
                answer: Answer::Failed(reason.clone()),
            },
            Remote::Ran { id },
            Remote::Made { value },
            Remote::Unmade {
                at: 1,
                reason: reason.clone(),
            },
            Remote::Freed { value },
            Remote::Holds { value, at: 1 },
            Remote::Lets { value },
            Remote::Model {
                model,
                at: 3,
                weights: weights.clone(),
            },
            Remote::Learnt {
                model,
                step: 8,
                loss: 1,
                weights,
            },
            Remote::Gave { model, reason },
            Remote::Rest {
                references: 1,
                calls: 2,
                contexts: 3,
            },
            Remote::Parted {
                answer: Answer::Right,
            },
        ];
        for line in lines {
            let text = line.text();
            let words: Vec<&str> = text.split(' ').collect();
            assert_eq!(Remote::of(words[0], &words[1..]), Some(line), "{text}");
        }
    }

    #[test]
    fn numbers_of_two_lives_differ() {
        let all = [
            number((0, 0), 1),
            number((0, 1), 1),
            number((1, 0), 1),
            number((1, 0), 2),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one));
        }
    }
}
