//! A timeline of recordings, as the JSON that Chrome's and Perfetto's viewers read: tracks for each shard of each life
//! of a task, a slice for each stage, an arrow from where a value was sent to where it was taken.
//!
//! Viewers leave out a slice that overlaps another of its track. A shard has as many tracks as it had values at once.
//!
//! Knows events. Times of recordings of one boot are put side by side by the counter they share, all at one rate: each
//! process measured the counter's rate by itself, and by the day two of them are seconds apart. Those of another
//! machine are put there by their values, since none arrives before it was sent.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::units::show_nanos;
use rendez::ground::limits::COUNTER_DRIFT_PPM;
use rendez::trace::clock::Scale;
use rendez::trace::recorder::{CLASSES, Event, Head, Recording, What};

/// How the times of one recording become those of the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aligned {
    /// How the recording's process made times of ticks, and how the first of its boot did.
    own: Scale,
    lead: Scale,
    /// From the times of that one to those of the first of all.
    shift: i64,
    /// By how much times may be wrong, beside those of the first; `None` if unknown.
    pub(super) error_ns: Option<u64>,
}

impl Aligned {
    /// Of each recording. Those of one boot stay together, wherever their values put them.
    pub(super) fn of(all: &[Recording]) -> Vec<Self> {
        let lead = |own: &Recording| {
            let is_same = |other: &Recording| other.head.boot == own.head.boot;
            all.iter()
                .position(|other| own.head.boot != 0 && is_same(other))
        };
        let leads: Vec<usize> = all
            .iter()
            .enumerate()
            .map(|(at, own)| lead(own).unwrap_or(at))
            .collect();
        let clocks = leads.iter().zip(all).map(|(lead, own)| Self {
            own: own.head.scale,
            lead: all[*lead].head.scale,
            shift: 0,
            error_ns: Some(0),
        });
        let mut clocks: Vec<_> = clocks.collect();
        let events_of = |lead: usize, clocks: &[Self]| -> Vec<Event> {
            let members = (0..all.len()).filter(|at| leads[*at] == lead);
            let events = members.flat_map(|at| {
                let clock = clocks[at];
                let events = all[at].events().into_iter();
                events.map(move |event| Event {
                    at: clock.nanos(event.at),
                    ..event
                })
            });
            events.collect()
        };
        for other in (1..all.len()).filter(|at| leads[*at] == *at) {
            let (first, others) = (events_of(0, &clocks), events_of(other, &clocks));
            let (shift, error_ns) = shift_by_values(&first, &others);
            for at in (0..all.len()).filter(|at| leads[*at] == other) {
                clocks[at].shift = shift;
                clocks[at].error_ns = error_ns;
            }
        }
        clocks
    }

    pub(super) fn nanos(&self, nanos: u64) -> u64 {
        // Both origins are moments of one counter, and one rate is taken for it: the lead's.
        let (own, lead) = (self.own, self.lead);
        let rate = i128::from(lead.rate);
        let since = i128::from(nanos) - i128::from(own.nanos);
        // A recording may say any number: what no counter comes to is told as zero.
        let since = since
            .saturating_mul(rate)
            .checked_div(i128::from(own.rate))
            .unwrap_or(since);
        let between = own.ticks.wrapping_sub(lead.ticks).cast_signed();
        let moved = (i128::from(between) * rate) >> 32;
        let shared = i128::from(lead.nanos)
            .saturating_add(since)
            .saturating_add(moved)
            .saturating_add(self.shift.into());
        u64::try_from(shared).unwrap_or(0)
    }

    /// What to say of times that share no counter with the first, beside those of which they stand.
    pub(super) fn error(&self) -> Option<String> {
        match self.error_ns {
            Some(0) => None,
            Some(error) => Some(format!("± {}", show_nanos(error as f64))),
            None => Some("of another clock, by an unknown error".into()),
        }
    }
}

/// What to call the life that a recording is of: its task, and which life where there are several.
pub(super) fn life_of(recordings: &[Recording], at: usize) -> String {
    let head = &recordings[at].head;
    let mut others = recordings.iter().map(|other| &other.head);
    let is_other = |other: &Head| other.task == head.task && other.incarnation != head.incarnation;
    match others.any(is_other) {
        true => format!("{} life {:016x}", head.task, head.incarnation),
        false => head.task.clone(),
    }
}

/// Step, key, loop frame and iteration, ordinal.
type Name = (u64, u64, (u32, u32), u32);

/// A value's identity, on both sides.
fn name(event: &Event) -> Name {
    (event.step, event.key, event.frame_iter, event.ordinal)
}

/// By how much the times of `other` must be moved so that no value of the first arrives there before it was sent, and
/// the quickest takes no time; and by how much that may be wrong.
fn shift_by_values(first: &[Event], other: &[Event]) -> (i64, Option<u64>) {
    let of = |events: &[Event], what: What| -> BTreeMap<_, u64> {
        events
            .iter()
            .filter(|event| event.what == what)
            .map(|event| (name(event), event.at))
            .collect()
    };
    let pairs = |sent: &BTreeMap<_, u64>, took: &BTreeMap<_, u64>| -> Vec<i64> {
        let gap = |(who, at): (&Name, &u64)| {
            took.get(who)
                .map(|took| took.wrapping_sub(*at).cast_signed())
        };
        sent.iter().filter_map(gap).collect()
    };
    let there = pairs(&of(first, What::Sent), &of(other, What::Took))
        .into_iter()
        .min();
    let back = pairs(&of(other, What::Sent), &of(first, What::Took))
        .into_iter()
        .min();
    match (there, back) {
        // The quickest of both directions are taken to be equally quick. Neither took less than no time, so no shift
        // is right that is further off than half of what they took together, and what the two counters drifted apart
        // in all that was recorded.
        (Some(there), Some(back)) => {
            let together = i128::from(there) + i128::from(back);
            let shift = (i128::from(back) - i128::from(there)) / 2;
            let shift = i64::try_from(shift).unwrap_or(0);
            let error = together / 2 + i128::from(drift(first, other, shift));
            (shift, u64::try_from(error).ok())
        }
        // One direction says how early the other's times may be, and not how late.
        (Some(there), None) => (there.saturating_neg(), None),
        (None, Some(back)) => (back, None),
        (None, None) => (0, None),
    }
}

/// By how much two counters may have drifted apart between the first and the last event of two machines.
fn drift(first: &[Event], other: &[Event], shift: i64) -> u64 {
    let ours = first.iter().map(|event| event.at);
    let theirs = other.iter();
    let theirs = theirs.map(|event| event.at.saturating_add_signed(shift));
    let (least, most) = ours.chain(theirs).fold((u64::MAX, 0), |(least, most), at| {
        (at.min(least), at.max(most))
    });
    let span = u128::from(most.saturating_sub(least));
    u64::try_from(span * u128::from(COUNTER_DRIFT_PPM) / 1_000_000).unwrap_or(u64::MAX)
}

/// The timeline. Times of `events` are aligned already, by `clocks`.
pub(super) fn render(
    recordings: &[Recording],
    clocks: &[Aligned],
    events: &[(usize, Event)],
) -> String {
    let mut out: Vec<Value> = Vec::new();
    let mut lives: Vec<(&str, u64)> = Vec::new();
    for recording in recordings {
        let life = (&*recording.head.task, recording.head.incarnation);
        if !lives.contains(&life) {
            lives.push(life);
        }
    }
    let track = |recording: &Recording| -> Track {
        let own = (&*recording.head.task, recording.head.incarnation);
        let at = lives.iter().position(|life| *life == own);
        (at.unwrap_or(0) + 1, recording.head.shard)
    };
    for (at, recording) in recordings.iter().enumerate() {
        let (pid, _) = track(recording);
        if let Some(error) = clocks.get(at).and_then(Aligned::error) {
            let labels = json!({"labels": format!("times {error}")});
            out.push(json!({"ph": "M", "name": "process_labels", "pid": pid, "args": labels}));
        }
        let life = life_of(recordings, at);
        out.push(json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": life}}));
    }
    let mut traces: BTreeMap<u64, String> = BTreeMap::new();
    for (_, event) in events {
        if let Some(trace) = event.traceparent() {
            traces.insert(event.step, trace.to_string());
        }
    }
    let begins = events
        .iter()
        .map(|(_, event)| event.at.saturating_sub(spans(event)))
        .min()
        .unwrap_or(0);
    let mut spans_shown: Vec<Span> = Vec::new();
    let mut waits: BTreeMap<(usize, u64, u64, (u32, u32)), u64> = BTreeMap::new();
    for (at, event) in events {
        let Some(recording) = recordings.get(*at) else {
            continue;
        };
        let track = track(recording);
        let key = recording.name_of(event.key).unwrap_or_default();
        let micros = |nanos: u64| nanos.saturating_sub(begins) as f64 / 1e3;
        let args = json!({
            "step": event.step, "key": key, "ordinal": event.ordinal, "way": event.way.name(),
            "size_class": CLASSES[usize::from(event.class)], "traceparent": traces.get(&event.step),
        });
        let slice = |name: &str, from: u64, nanos: u64| {
            json!({
                "ph": "X", "name": name, "cat": "stage", "ts": micros(from), "dur": nanos as f64 / 1e3, "args": args,
            })
        };
        let mut show = |from: u64, shown: Vec<Value>| {
            spans_shown.push(Span {
                track,
                from,
                until: event.at,
                shown,
            });
        };
        let (a, b, c) = (u64::from(event.a), u64::from(event.b), u64::from(event.c));
        let who = (*at, event.step, event.key, event.frame_iter);
        let from = event.at.saturating_sub(spans(event));
        match event.what {
            What::Sent => {
                let mut shown = Vec::new();
                if a > 0 {
                    shown.push(slice("queued", from, a));
                }
                shown.push(slice("matched", from + a, b));
                shown.push(slice("posted", from + a + b, c));
                shown.push(flow("s", event, micros(event.at)));
                show(from, shown);
            }
            What::Took => {
                let met = event.at.saturating_sub(b);
                let arrived = met.saturating_sub(a);
                let mut shown = Vec::new();
                if event.c != u32::MAX {
                    shown.push(slice("wire", arrived.saturating_sub(c), c));
                }
                shown.push(slice("landed", arrived, a));
                shown.push(slice("woken", met, b));
                shown.push(flow("f", event, micros(arrived)));
                show(from, shown);
                // It may have begun while the value was on the wire.
                if let Some(since) = waits.remove(&who) {
                    let took = event.at.saturating_sub(since);
                    show(since, vec![slice("receive", since, took)]);
                }
            }
            What::Waits => {
                waits.insert(who, event.at);
            }
            What::Missed => {
                let missed = instant(event, micros(event.at), &args);
                match waits.remove(&who) {
                    Some(since) => {
                        let waited = event.at.saturating_sub(since);
                        show(since, vec![slice("waits in vain", since, waited), missed]);
                    }
                    None => show(event.at, vec![missed]),
                }
            }
            _ => show(event.at, vec![instant(event, micros(event.at), &args)]),
        }
    }
    let all = recordings.iter().map(track);
    put_on_tracks(all.collect(), spans_shown, &mut out);
    let text = json!({"traceEvents": out, "displayTimeUnit": "ns"});
    text.to_string()
}

/// A shard of a life.
type Track = (usize, u16);

/// What is shown of a shard from one moment to another. Its slices follow each other.
#[derive(Debug)]
struct Span {
    track: Track,
    from: u64,
    until: u64,
    shown: Vec<Value>,
}

/// Shows each span on a track on which nothing else is then. The tracks of a shard stand together.
fn put_on_tracks(shards: BTreeSet<Track>, mut spans: Vec<Span>, out: &mut Vec<Value>) {
    spans.sort_by_key(|span| span.from);
    // When what was put last on each lane of a shard ends.
    let mut lanes: BTreeMap<Track, Vec<u64>> = BTreeMap::new();
    for shard in shards {
        lanes.insert(shard, vec![0]);
    }
    let mut put = Vec::new();
    for span in spans {
        let ends = lanes.entry(span.track).or_default();
        let free = ends.iter().position(|end| *end <= span.from);
        let lane = free.unwrap_or(ends.len());
        match ends.get_mut(lane) {
            Some(end) => *end = span.until,
            None => ends.push(span.until),
        }
        put.push((span, lane));
    }
    let mut first: BTreeMap<Track, usize> = BTreeMap::new();
    let mut tid = 1;
    for ((pid, shard), ends) in &lanes {
        first.insert((*pid, *shard), tid);
        for lane in 0..ends.len() {
            let name = match lane {
                0 => format!("shard {shard}"),
                _ => format!("shard {shard}, {}", lane + 1),
            };
            let (name, order) = (json!({"name": name}), json!({"sort_index": tid}));
            out.push(
                json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": name}),
            );
            out.push(json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": order}));
            tid += 1;
        }
    }
    for (span, lane) in put {
        let tid = first.get(&span.track).map_or(lane, |first| first + lane);
        for mut value in span.shown {
            value["pid"] = json!(span.track.0);
            value["tid"] = json!(tid);
            out.push(value);
        }
    }
}

/// How far before its time an event begins.
fn spans(event: &Event) -> u64 {
    match event.what {
        What::Sent => u64::from(event.a) + u64::from(event.b) + u64::from(event.c),
        What::Took => {
            let wire = if event.c == u32::MAX {
                0
            } else {
                u64::from(event.c)
            };
            u64::from(event.a) + u64::from(event.b) + wire
        }
        _ => 0,
    }
}

fn instant(event: &Event, ts: f64, args: &Value) -> Value {
    json!({"ph": "i", "s": "t", "name": event.what.name(), "ts": ts, "args": args})
}

fn flow(end: &str, event: &Event, ts: f64) -> Value {
    let (step, key, (frame, iter), ordinal) = name(event);
    let id = format!("{step:x}.{key:x}.{frame:x}.{iter:x}.{ordinal:x}");
    json!({"ph": end, "bp": "e", "name": "value", "cat": "value", "id": id, "ts": ts})
}
