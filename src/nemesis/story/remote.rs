//! What all tasks did by remote calls, put together.

use std::collections::BTreeMap;

use super::super::history::remote::{Answer, Remote};

/// A task and its life.
type Life = (u32, u32);

/// Everything that is known of remote calls.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// By number.
    pub(crate) calls: BTreeMap<u64, Call>,
    /// Where and when a call was carried out.
    pub(crate) ran: BTreeMap<u64, Vec<(Life, u64)>>,
    /// Values that were made.
    pub(crate) values: BTreeMap<u64, Value>,
    /// From when to when a life had a share of a value.
    pub(crate) holds: Vec<Hold>,
    /// When a life had tried in vain to join the group, and why.
    pub(crate) unjoined: BTreeMap<Life, Vec<(u64, String)>>,
    /// Who could get no share of a value to be made, of which task, when, and why.
    pub(crate) unmade: Vec<(Life, u32, u64, String)>,
    /// When a life was in the group.
    pub(crate) joined: BTreeMap<Life, u64>,
    /// What a life that ended says is left: references, calls, contexts.
    pub(crate) rests: BTreeMap<Life, [u64; 3]>,
    /// How it left.
    pub(crate) parted: BTreeMap<Life, Answer>,
    /// What trainers did, in their order.
    pub(crate) lessons: BTreeMap<Life, Vec<(u64, Lesson)>>,
    /// Lines of logs in which something panicked.
    pub(crate) panics: Vec<(Life, String)>,
}

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) by: Life,
    pub(crate) to: u32,
    pub(crate) function: String,
    pub(crate) began_ns: u64,
    pub(crate) patience_ns: u64,
    pub(crate) needs_ns: u64,
    pub(crate) cancelled_ns: Option<u64>,
    pub(crate) end: Option<(u64, Answer)>,
}

/// A value that others refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) at: Life,
    pub(crate) made_ns: u64,
    pub(crate) freed_ns: Option<u64>,
}

/// A share of a value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) by: Life,
    pub(crate) value: u64,
    pub(crate) at: u32,
    pub(crate) from_ns: u64,
    pub(crate) until_ns: Option<u64>,
}

/// What a trainer did.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Lesson {
    /// It goes on with a model there, with these weights.
    Begins { at: u32, weights: Vec<f32> },
    /// A step is done: its loss, and the weights after it.
    Step {
        step: u64,
        loss: f32,
        weights: Vec<f32>,
    },
    /// It gives the model up.
    Gave(String),
}

impl Calls {
    /// Adds what a life wrote.
    pub(super) fn take(&mut self, by: Life, at_ns: u64, what: Remote) -> Result<(), &'static str> {
        match what {
            Remote::Joined => {
                self.joined.entry(by).or_insert(at_ns);
            }
            Remote::Unjoined { reason } => {
                let attempts = self.unjoined.entry(by).or_default();
                attempts.push((at_ns, reason));
            }
            Remote::Unmade { at, reason } => self.unmade.push((by, at, at_ns, reason)),
            Remote::Call {
                id,
                to,
                function,
                patience_ns,
                needs_ns,
            } => {
                let call = Call {
                    by,
                    to,
                    function,
                    began_ns: at_ns,
                    patience_ns,
                    needs_ns,
                    cancelled_ns: None,
                    end: None,
                };
                if self.calls.insert(id, call).is_some() {
                    return Err("makes a call that there was");
                }
            }
            Remote::Cancel { id } => {
                let call = self.calls.get_mut(&id).ok_or("cancels no call")?;
                call.cancelled_ns = Some(at_ns);
            }
            Remote::Told { id, answer } => {
                let call = self.calls.get_mut(&id);
                let call = call.filter(|call| call.by == by && call.end.is_none());
                call.ok_or("ends no call")?.end = Some((at_ns, answer));
            }
            Remote::Ran { id } => self.ran.entry(id).or_default().push((by, at_ns)),
            Remote::Made { value } => {
                let made = Value {
                    at: by,
                    made_ns: at_ns,
                    freed_ns: None,
                };
                if self.values.insert(value, made).is_some() {
                    return Err("makes a value that there was");
                }
            }
            Remote::Freed { value } => {
                let value = self.values.get_mut(&value);
                let value = value.filter(|value| value.at == by && value.freed_ns.is_none());
                value.ok_or("frees no value")?.freed_ns = Some(at_ns);
            }
            Remote::Holds { value, at } => self.holds.push(Hold {
                by,
                value,
                at,
                from_ns: at_ns,
                until_ns: None,
            }),
            Remote::Lets { value } => {
                let is_it = |hold: &&mut Hold| {
                    hold.by == by && hold.value == value && hold.until_ns.is_none()
                };
                let hold = self.holds.iter_mut().rev().find(is_it);
                hold.ok_or("lets go what it does not hold")?.until_ns = Some(at_ns);
            }
            Remote::Model { at, weights, .. } => {
                let weights = floats(&weights);
                self.learn(by, at_ns, Lesson::Begins { at, weights });
            }
            Remote::Learnt {
                step,
                loss,
                weights,
                ..
            } => {
                let (loss, weights) = (f32::from_bits(loss), floats(&weights));
                let lesson = Lesson::Step {
                    step,
                    loss,
                    weights,
                };
                self.learn(by, at_ns, lesson);
            }
            Remote::Gave { reason, .. } => self.learn(by, at_ns, Lesson::Gave(reason)),
            Remote::Rest {
                references,
                calls,
                contexts,
            } => {
                self.rests.insert(by, [references, calls, contexts]);
            }
            Remote::Parted { answer } => {
                self.parted.insert(by, answer);
            }
        }
        Ok(())
    }

    fn learn(&mut self, by: Life, at_ns: u64, lesson: Lesson) {
        self.lessons.entry(by).or_default().push((at_ns, lesson));
    }
}

fn floats(bits: &[u32]) -> Vec<f32> {
    bits.iter().copied().map(f32::from_bits).collect()
}
