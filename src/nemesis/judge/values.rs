//! Values: each comes once, in order, with the bytes that were sent, and none is lost but with its peer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::super::history::Claim;
use super::super::scope::{Kind, Scope};
use super::super::story::{Outcome, Receive, Story};
use super::calm::calms_of;
use super::{Judge, SCRIPT_NS, show};

/// How long two tasks that have not given each other up must be whole for all that was sent to have come: connections
/// are made again sooner than a peer is given up.
const WHOLE_NS: u64 = 1_000_000_000;

/// How long nothing may be broken between two neighbours before one must have read a value of the other in place.
const LEASED_NS: u64 = 3_000_000_000;

impl Judge<'_> {
    /// Right bytes, of the right life, once, in order, and all of them.
    pub(super) fn values(&mut self) {
        let mut seen = BTreeSet::new();
        let mut last: BTreeMap<_, (u32, u32)> = BTreeMap::new();
        // Lanes of which a receive ended for a bound, or with its step: it may have cost its value.
        let mut failed = BTreeSet::new();
        for receive in &self.story.receives {
            let lane = (receive.by.0, receive.lane);
            let next = last.get(&lane).map_or(0, |before| before.1 + 1);
            let is_whole =
                !failed.contains(&lane) && !self.story.aborted.contains(&receive.lane.step);
            let mut wrong = Vec::new();
            match &receive.end {
                Some((got_ns, Outcome::Got(claim, _))) => {
                    wrong = self.mistakes(receive, claim);
                    if !seen.insert((lane, claim.ordinal)) {
                        wrong.push("it was received before".to_owned());
                    }
                    let place = (receive.nth, claim.ordinal);
                    let before = last.insert(lane, place);
                    if before.is_some_and(|before| before.0 < place.0 && before.1 >= place.1) {
                        wrong.push(format!("it comes after {before:?}, out of order"));
                    }
                    if is_whole && self.is_owed(receive, next..claim.ordinal, *got_ns, *got_ns) {
                        wrong.push("values before it were lost".to_owned());
                    }
                }
                Some((end_ns, Outcome::Failed(reason))) if reason == "DEADLINE" => {
                    let rest = next..receive.lane.kind.count();
                    if is_whole
                        && self.could_come(receive, *end_ns)
                        && self.is_owed(receive, rest, end_ns.saturating_sub(WHOLE_NS), *end_ns)
                    {
                        wrong.push("it was sent, did not come, and was not lost".to_owned());
                    }
                }
                Some((_, Outcome::Failed(_))) => {
                    failed.insert(lane);
                }
                None => {}
            }
            for what in wrong {
                let what = format!("value: {what}: {}", show(receive));
                self.verdict.findings.push(what);
            }
        }
    }

    /// Two lives that share a host read each other's large values in place, whatever became of those before them.
    pub(super) fn leases(&mut self) {
        let story = self.story;
        let leased = story.receives.iter().filter_map(|receive| {
            let (by, lane) = (receive.by, receive.lane);
            let other = (lane.other, Scope::of(lane.step).life_of(lane.other));
            let is_leased = lane.kind == Kind::Large
                && matches!(&receive.end, Some((_, Outcome::Got(_, way))) if way == "lease");
            is_leased.then_some((by, other))
        });
        let leased: BTreeSet<_> = leased.collect();
        let lasts = |life: &(u32, u32)| story.death_ns(*life).unwrap_or(u64::MAX);
        for (by, life) in &story.lives {
            for (other, others_life) in &story.lives {
                let is_near = by.0 != other.0 && story.are_near(by.0, other.0);
                if !is_near || leased.contains(&(*by, *other)) {
                    continue;
                }
                let from_ns = life.began_ns.max(others_life.began_ns);
                let until_ns = lasts(by).min(lasts(other)).min(story.over_ns());
                let calms = calms_of(story, self.bounds.settle_ns, vec![(by.0, other.0)]);
                if let Some(calm_ns) = self.calm_among(&calms, from_ns, until_ns, LEASED_NS) {
                    let what = format!(
                        "way: life {by:?} read no large value of its neighbour {other:?} in place, and nothing was \
                         broken between them at {calm_ns}"
                    );
                    self.verdict.findings.push(what);
                }
            }
        }
    }

    /// True if one of those values was sent by then, and after its sender and its receiver last gave each other up
    /// before that end: whatever was broken since, it comes.
    fn is_owed(
        &self,
        receive: &Receive,
        ordinals: Range<u32>,
        sent_by_ns: u64,
        until_ns: u64,
    ) -> bool {
        let lane = receive.lane;
        let parted_ns = self.parted_ns(receive.by.0, lane.other, until_ns);
        ordinals.into_iter().any(|ordinal| {
            let value = (lane.step, lane.other, receive.by.0, lane.kind, ordinal);
            let sending = self.story.sent.get(&value);
            sending.is_some_and(|sending| {
                !sending.is_refused && (parted_ns + 1..=sent_by_ns).contains(&sending.at_ns)
            })
        })
    }

    /// When one of two tasks last heard that the other is lost, or began, up to then. Who heard it may have written it
    /// down a little later.
    fn parted_ns(&self, one: u32, other: u32, until_ns: u64) -> u64 {
        let until_ns = until_ns.saturating_add(self.bounds.slack_ns);
        let heard = [(one, other), (other, one)].into_iter().filter_map(|two| {
            let lost = self.lost.get(&two)?;
            let before = lost.partition_point(|at_ns| *at_ns <= until_ns);
            lost[..before].last().copied()
        });
        let lives = self.story.lives.iter();
        let begins = lives.filter(|((task, _), life)| {
            (*task == one || *task == other) && life.began_ns <= until_ns
        });
        let begins = begins.map(|(_, life)| life.began_ns);
        heard.chain(begins).max().unwrap_or(0)
    }

    /// True if a value had a whole second of its receiver's patience to come in: both lives are there, have met since
    /// they last gave each other up, and nothing between them is broken.
    fn could_come(&self, receive: &Receive, end_ns: u64) -> bool {
        let (by, other) = (receive.by, receive.lane.other);
        let from_ns = end_ns.saturating_sub(WHOLE_NS);
        let other_life = (other, Scope::of(receive.lane.step).life_of(other));
        let is_there = |life| self.story.death_ns(life).is_none_or(|at_ns| at_ns > end_ns);
        let mut strikes = self.story.faults.iter().filter(|fault| {
            let from_ns = from_ns.saturating_sub(SCRIPT_NS);
            fault.from_ns <= end_ns + SCRIPT_NS && from_ns <= fault.until_ns
        });
        let parted_ns = self.parted_ns(by.0, other, end_ns);
        receive.asked_ns <= from_ns
            && is_there(by)
            && is_there(other_life)
            && !strikes.any(|fault| self.story.strikes(fault, by.0, other))
            && self.late_anywhere(from_ns, end_ns) < WHOLE_NS / 2
            && self.last_met(by.0, other, from_ns) > parted_ns
    }

    /// When the latest was sent of all values that had come between the two by then.
    fn last_met(&self, one: u32, other: u32, until_ns: u64) -> u64 {
        let pair = (one.min(other), one.max(other));
        let came = self.came.get(&pair).map_or(&[][..], Vec::as_slice);
        let before = came.partition_point(|(got_ns, _)| *got_ns <= until_ns);
        came[..before].last().map_or(0, |(_, sent_ns)| *sent_ns)
    }

    fn mistakes(&self, receive: &Receive, claim: &Claim) -> Vec<String> {
        let mut wrong = Vec::new();
        if !claim.is_right {
            wrong.push("its bytes are not those of a value of this key and step".to_owned());
            return wrong;
        }
        let lane = receive.lane;
        let value = (
            lane.step,
            lane.other,
            receive.by.0,
            lane.kind,
            claim.ordinal,
        );
        match self.story.sent.get(&value) {
            None => wrong.push("no task sent it".to_owned()),
            Some(sending) if sending.sum != claim.sum => {
                wrong.push("its bytes are not those that were sent".to_owned());
            }
            Some(_) => {}
        }
        wrong
    }
}

/// When values came, by pair, in order, and when the latest was sent of all that had come by then.
pub(super) fn came(story: &Story) -> BTreeMap<(u32, u32), Vec<(u64, u64)>> {
    let mut came: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for receive in &story.receives {
        let (lane, to) = (receive.lane, receive.by.0);
        if let Some((got_ns, Outcome::Got(claim, _))) = &receive.end
            && let value = (lane.step, lane.other, to, lane.kind, claim.ordinal)
            && let Some(sending) = story.sent.get(&value)
        {
            let pair = (to.min(lane.other), to.max(lane.other));
            came.entry(pair).or_default().push((*got_ns, sending.at_ns));
        }
    }
    for came in came.values_mut() {
        came.sort_unstable();
        let mut latest_ns = 0;
        for (_, sent_ns) in came {
            latest_ns = latest_ns.max(*sent_ns);
            *sent_ns = latest_ns;
        }
    }
    came
}

/// By when a value must have been sent to come in good time for a receive.
pub(super) const fn latest_ns(receive: &Receive) -> u64 {
    receive.asked_ns + receive.patience_ns - receive.patience_ns / 4
}
