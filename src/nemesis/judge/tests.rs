//! The judge against histories in which one thing is wrong: each must be found, and a good one not.

use super::super::scope::FLOOD_SLOT;
use super::*;

mod devices;
mod remote;

const MS: u64 = 1_000_000;
/// The slot that everything is in, and its beginning, long after the tasks began.
const SLOT: u64 = 400;
const START: u64 = SLOT * SLOT_NS / MS;

const BOUNDS: Bounds = Bounds {
    failure_detection_ns: 1_000 * MS,
    slack_ns: 500 * MS,
    settle_ns: 3_000 * MS,
    resident_max_kib: 1_000,
    descriptors_max: 100,
};

/// Two tasks that exchange one value of each kind, and the script's history.
struct Run {
    histories: [Vec<String>; 2],
    script: Vec<String>,
}

fn step() -> u64 {
    Scope::new((0, 0), (1, 0), SLOT).step().0
}

fn line(at_ms: u64, text: &str) -> String {
    format!("{} {text}", at_ms * MS)
}

/// Steps of a session from then on, two seconds apart, each right.
fn steps(from_ms: u64) -> Vec<String> {
    let begins = (from_ms..200_000).step_by(2_000).enumerate();
    let steps = begins.flat_map(|(step, at_ms)| {
        let answer = format!("answer {step} true");
        [
            line(at_ms, &format!("step {step}")),
            line(at_ms + 20, &answer),
        ]
    });
    steps.collect()
}

/// A small value every two seconds from that slot on, there and back between task 1 and that life of task 0: what the
/// one of them writes.
fn values(first: u64, life: u32, other: u64) -> Vec<String> {
    let slots = (first..800).step_by(8).filter(|slot| *slot != SLOT);
    let values = slots.flat_map(|slot| {
        let scope = Scope::new((0, life), (1, 0), slot);
        let (at_ms, lane) = (scope.begins_ns() / MS, scope.step().0);
        let lane = format!("{lane} {other} small 0");
        [
            line(at_ms, &format!("sent {lane} a0")),
            line(at_ms, &format!("asked {lane} {}", 2_000 * MS)),
            line(at_ms + 5, &format!("got {lane} right 0 a0 inline")),
        ]
    });
    values.collect()
}

impl Run {
    fn good() -> Self {
        let step = step();
        let history = |me: u64| {
            let other = 1 - me;
            let mut lines = vec![line(1_000, &format!("begin {me} 0 {me} 1{me}"))];
            for (kind, count) in [("small", 3), ("middle", 1), ("large", 1), ("device", 1)] {
                for at in 0..count {
                    let now = START + 10 * at;
                    lines.push(line(now, &format!("sent {step} {other} {kind} {at} a{at}")));
                    let lane = format!("{step} {other} {kind} {at}");
                    lines.push(line(now, &format!("asked {lane} {}", 2_000 * MS)));
                    let claim = format!("right {at} a{at}");
                    let way = match kind {
                        "device" => kind,
                        "large" => "lease",
                        _ => "inline",
                    };
                    lines.push(line(now + 5, &format!("got {lane} {claim} {way}")));
                }
            }
            lines.extend(values(8, 0, other));
            let flood = Scope::new((0, 0), (1, 0), FLOOD_SLOT + 20);
            let (at_ms, flood) = (flood.begins_ns() / MS, flood.step().0);
            let lane = format!("{flood} {other} flood 0");
            lines.push(line(at_ms + 1, &format!("sent {lane} a0")));
            lines.push(line(at_ms + 2_300, &format!("asked {lane} {}", 500 * MS)));
            let claim = "right 0 a0 lease";
            lines.push(line(at_ms + 2_301, &format!("got {lane} {claim}")));
            lines.extend(steps(1_500));
            lines.extend(remote::lines(me));
            lines.push(line(190_000, "devices 0 0 0 0"));
            lines.push(line(200_000, "left 0 0"));
            lines.push(line(200_000, "end"));
            lines
        };
        let script = vec![
            line(500, "host 0"),
            line(500, "host 1"),
            line(2_000, "used 0 0 900 50"),
        ];
        Self {
            histories: [history(0), history(1)],
            script,
        }
    }

    /// A run in which `text` stands in task 1's history instead of the line with `old` in it.
    fn with(old: &str, text: &str) -> Self {
        let mut run = Self::good();
        run.replace(old, text);
        run
    }

    fn replace(&mut self, old: &str, text: &str) {
        let lines = &mut self.histories[1];
        let at = lines.iter().position(|line| line.contains(old));
        let at = at.unwrap_or_else(|| panic!("no line has '{old}'"));
        lines.splice(at..=at, text.lines().map(str::to_owned));
    }

    /// A run that something happened in.
    fn and(mut self, script: &[(u64, &str)]) -> Self {
        let lines = script.iter().map(|(at_ms, text)| line(*at_ms, text));
        self.script.extend(lines);
        self
    }

    /// A watch of task 1 that began before the value, and how it ended.
    fn watched(asked_ms: u64, ended: Option<(u64, &str)>) -> Self {
        let watch = Scope::new((0, 0), (1, 0), WATCH_SLOT).step().0;
        let mut run = Self::good();
        let end = run.histories[1].pop().expect("it ends");
        let lane = format!("{watch} 0 watch 0");
        let patience = 4_000 * MS;
        run.histories[1].push(line(asked_ms, &format!("asked {lane} {patience}")));
        if let Some((at_ms, reason)) = ended {
            run.histories[1].push(line(at_ms, &format!("failed {lane} {reason}")));
        }
        run.histories[1].push(end);
        run
    }

    /// A run in which a task noted that it woke up late.
    fn late(mut self, task: usize, at_ms: u64, for_ms: u64) -> Self {
        self.insert(task, line(at_ms, &format!("late {}", for_ms * MS)));
        self
    }

    /// Before the last line of a task's history.
    fn insert(&mut self, task: usize, text: String) {
        let at = self.histories[task].len() - 1;
        self.histories[task].insert(at, text);
    }

    fn findings(&self) -> Vec<String> {
        judge(&self.story(), &BOUNDS).findings
    }

    fn story(&self) -> Story {
        let mut story = Story::default();
        let [one, other] = &self.histories;
        for lines in [one, other, &self.script] {
            let text = lines.join("\n") + "\n";
            story.read("history", &text).expect("it is a history");
        }
        story
    }

    /// Exactly one finding, which says so.
    fn finds(&self, what: &str) {
        let findings = self.findings();
        assert_eq!(findings.len(), 1, "{findings:#?}");
        assert!(findings[0].contains(what), "{findings:#?}");
    }

    fn finds_nothing(&self) {
        assert_eq!(self.findings(), Vec::<String>::new());
    }
}

fn got(nth: u32, claim: &str) -> String {
    let at = START + 10 * u64::from(nth) + 5;
    line(at, &format!("got {} 0 small {nth} {claim}", step()))
}

fn second(what: &str) -> String {
    format!("{what} {} 0 small 1", step())
}

#[test]
fn a_good_run_passes() {
    Run::good().finds_nothing();
}

#[test]
fn a_value_that_comes_twice_is_found() {
    let twice = got(1, "right 0 a0 inline");
    let findings = Run::with(&second("got"), &twice).findings();
    assert!(
        findings
            .iter()
            .any(|found| found.contains("received before"))
    );
    assert!(findings.iter().any(|found| found.contains("out of order")));
}

#[test]
fn wrong_bytes_are_found() {
    let wrong = got(1, "wrong 0 0 inline");
    let findings = Run::with(&second("got"), &wrong).findings();
    assert!(
        findings
            .iter()
            .any(|found| found.contains("not those of a value"))
    );
    let other_sum = got(1, "right 1 bad inline");
    Run::with(&second("got"), &other_sum).finds("not those that were sent");
}

#[test]
fn values_that_nobody_sent_or_that_went_missing_are_found() {
    let more = got(2, "right 3 a3 inline");
    let findings = Run::with(&format!("got {} 0 small 2", step()), &more).findings();
    assert!(
        findings
            .iter()
            .any(|found| found.contains("no task sent it"))
    );
    assert!(findings.iter().any(|found| found.contains("were lost")));
}

#[test]
fn disorder_is_found_whatever_was_broken() {
    let run = Run::with(&second("got"), &got(1, "right 2 a2 inline"));
    let mut run = run.and(&[(START, "fault cut 0"), (START + 10, "healed cut 0")]);
    let last = format!("got {} 0 small 2", step());
    let at = run.histories[1]
        .iter()
        .position(|line| line.contains(&last));
    run.histories[1][at.expect("it is there")] = got(2, "right 1 a1 inline");
    let findings = run.findings();
    let is_found = findings.iter().any(|found| found.contains("out of order"));
    assert!(is_found, "{findings:#?}");
}

/// A connection that is made again loses nothing; a peer that is given up loses what was sent before.
#[test]
fn a_value_that_is_lost_with_its_connection_is_found() {
    let cut = [(START - 600, "fault cut 0"), (START + 50, "healed cut 0")];
    let skipped = || {
        let mut run = Run::with(&second("got"), &got(1, "right 2 a2 inline"));
        let lane = format!("{} 0 small 2", step());
        run.histories[1].retain(|line| !line.contains(&lane) || line.contains("sent"));
        run.and(&cut)
    };
    skipped().finds("value: values before it were lost");
    let late = || {
        let failed = format!("failed {} 0 small 2 DEADLINE", step());
        let got = format!("got {} 0 small 2", step());
        Run::with(&got, &line(START + 2_020, &failed)).and(&cut)
    };
    late().finds("value: it was sent, did not come");
    // Either may have given the other up.
    for task in [0, 1] {
        let lost = |mut run: Run| {
            let watch = Scope::new((0, 0), (1, 0), WATCH_SLOT).step().0;
            let lane = format!("{watch} {} watch 0", 1 - task);
            let asked = format!("asked {lane} {}", 4_000 * MS);
            run.insert(task, line(START - 40, &asked));
            run.insert(task, line(START + 40, &format!("failed {lane} PEER_LOST")));
            run
        };
        lost(skipped()).finds_nothing();
        lost(late()).finds_nothing();
    }
    // What is broken again may come later, and what was never sent does not come.
    let again = [
        (START + 1_500, "fault cut 0"),
        (START + 1_600, "healed cut 0"),
    ];
    late().and(&again).finds_nothing();
    let mut unsent = late();
    let sent = format!("sent {} 1 small 2", step());
    unsent.histories[0].retain(|line| !line.contains(&sent));
    unsent.finds_nothing();
}

#[test]
fn a_failure_without_a_cause_is_found_and_one_with_a_cause_is_not() {
    let failed = line(START + 15, &second("failed"));
    let lost = format!("{failed} PEER_LOST");
    Run::with(&second("got"), &lost).finds("PEER_LOST without a cause");
    let cut = [(START - 600, "fault cut 1"), (START + 12, "healed cut 1")];
    Run::with(&second("got"), &lost).and(&cut).finds_nothing();
    // For a moment no peer is given up, unless the machine makes it longer.
    let moment = [(START - 450, "fault cut 1"), (START + 12, "healed cut 1")];
    let run = || Run::with(&second("got"), &lost).and(&moment);
    run().finds("PEER_LOST without a cause");
    run().late(0, START + 20, 50).finds_nothing();
    // Long ago is no excuse, nor is what was broken elsewhere, nor an unknown reason.
    let before = [
        (START - 5_000, "fault cut 1"),
        (START - 4_000, "healed cut 1"),
    ];
    assert!(
        !Run::with(&second("got"), &lost)
            .and(&before)
            .findings()
            .is_empty()
    );
    let elsewhere = [(START + 2, "fault cut 2"), (START + 12, "healed cut 2")];
    assert!(
        !Run::with(&second("got"), &lost)
            .and(&elsewhere)
            .findings()
            .is_empty()
    );
    let odd = format!("{failed} FRAME_MALFORMED");
    Run::with(&second("got"), &odd)
        .and(&cut)
        .finds("FRAME_MALFORMED without a cause");
}

#[test]
fn an_abort_is_a_cause() {
    let mut run = Run::with(
        &second("got"),
        &format!("{} STEP_ABORTED", line(START + 15, &second("failed"))),
    );
    assert!(!run.findings().is_empty());
    let end = run.histories[0].pop().expect("it ends");
    run.histories[0].push(line(START + 14, &format!("aborted {}", step())));
    run.histories[0].push(end);
    run.finds_nothing();
}

/// A receive that began late in its step, and ended with `reason` so long after the step had begun.
fn ended_late(after_ms: u64, reason: &str) -> Run {
    let asked = line(START + 2_100, &second("asked"));
    let mut run = Run::with(&second("asked"), &format!("{asked} {}", 2_000 * MS));
    let failed = line(START + after_ms, &second("failed"));
    run.replace(&second("got"), &format!("{failed} {reason}"));
    run
}

#[test]
fn a_step_that_is_finished_on_schedule_is_a_cause_and_one_finished_before_is_not() {
    let kept_ms = SLOTS_KEPT * SLOT_NS / MS;
    ended_late(kept_ms, "STEP_FINISHED").finds_nothing();
    ended_late(kept_ms - 1, "STEP_FINISHED").finds("STEP_FINISHED without a cause");
    // The schedule excuses nothing else.
    for reason in ["STEP_ABORTED", "PEER_STATUS", "PEER_LOST", "DEADLINE"] {
        let findings = ended_late(kept_ms, reason).findings();
        let what = format!("{reason} without a cause");
        let is_found = findings.iter().any(|found| found.contains(&what));
        assert!(is_found, "{findings:#?}");
    }
}

#[test]
fn floods_and_watches_are_not_finished_on_that_schedule() {
    let mut run = flood(2);
    let scope = Scope::new((0, 0), (1, 0), FLOOD_SLOT + 30);
    let (lane, began) = (
        format!("{} 0 flood 2", scope.step().0),
        scope.begins_ns() / MS,
    );
    let asked = line(began + 3_700, &format!("asked {lane} {}", 500 * MS));
    run.replace(&format!("asked {lane}"), &asked);
    let finished = line(began + 4_100, &format!("failed {lane} STEP_FINISHED"));
    run.replace(&format!("failed {lane}"), &finished);
    run.finds("STEP_FINISHED without a cause");

    let told = Some((START + 3_000, "STEP_FINISHED"));
    Run::watched(START, told).finds("STEP_FINISHED without a cause");
}

/// A run in which task 0 was refused a send.
fn refused(reason: &str) -> Run {
    let mut run = Run::good();
    let refused = format!("refused {} 1 small 2 {reason}", step());
    run.insert(0, line(START + 20, &refused));
    run
}

#[test]
fn refusals_need_a_cause_too() {
    refused("ARENA_FULL").finds("refused without a cause");
}

#[test]
fn room_may_be_full_of_what_was_sent_to_a_task_that_could_not_be_reached() {
    refused("PARKED_BYTES").finds("refused without a cause: PARKED_BYTES");
    let cut = |until_ms: u64| {
        let faults = [(until_ms - 100, "fault cut 1"), (until_ms, "healed cut 1")];
        refused("PARKED_BYTES").and(&faults)
    };
    // A second ago, and so long ago that all that was kept is gone.
    cut(START - 1_000).finds_nothing();
    cut(START - 10_000).finds("refused without a cause: PARKED_BYTES");
}

#[test]
fn a_send_may_find_the_system_out_of_descriptors_while_it_is() {
    let without = |task: u32, until_ms: u64| {
        let faults = [
            (until_ms - 100, format!("fault descriptors {task}")),
            (until_ms, format!("healed descriptors {task}")),
        ];
        let faults = faults.each_ref().map(|(at, what)| (*at, what.as_str()));
        let mut run = refused("SYSTEM_LIMIT").and(&faults);
        run.insert(task as usize, line(until_ms - 50, "short"));
        run
    };
    without(0, START + 50).finds_nothing();
    without(0, START).finds("refused without a cause: SYSTEM_LIMIT");
    without(1, START + 50).finds("refused without a cause: SYSTEM_LIMIT");
}

#[test]
fn late_and_early_ends_are_found() {
    Run::watched(START, Some((START + 4_001, "DEADLINE"))).finds_nothing();
    Run::watched(START, Some((START + 4_501, "DEADLINE"))).finds("after its deadline");
    Run::watched(START, Some((START + 3_900, "DEADLINE"))).finds("too soon");
    Run::watched(START, None).finds("it never ended");
}

#[test]
fn a_stop_excuses_the_stopped_alone() {
    let late = Run::watched(START, Some((START + 5_400, "DEADLINE")));
    let stop = [
        (START + 3_900, "fault stop 1"),
        (START + 5_000, "healed stop 1"),
    ];
    late.and(&stop).finds_nothing();
    let late = Run::watched(START, Some((START + 5_400, "DEADLINE")));
    let stop = [
        (START + 3_900, "fault stop 0"),
        (START + 5_000, "healed stop 0"),
    ];
    late.and(&stop).finds("after its deadline");
}

#[test]
fn a_loss_that_is_told_late_is_found() {
    for (what, lasts_ms) in [
        ("cut", 2_500),
        ("deaf", 2_500),
        ("mute", 2_500),
        ("stop", 2_500),
    ] {
        let (fault, healed) = (format!("fault {what} 0"), format!("healed {what} 0"));
        let script = [
            (START + 100, fault.as_str()),
            (START + 100 + lasts_ms, healed.as_str()),
        ];
        let told = |after_ms: u64| {
            Run::watched(START, Some((START + 100 + after_ms, "PEER_LOST"))).and(&script)
        };
        told(1_499).finds_nothing();
        told(1_501).finds("detection: not told within");
        // What the machine did not let the waiting task run is not counted; another's time is.
        told(1_600).late(1, START + 1_400, 150).finds_nothing();
        told(1_600)
            .late(1, START + 1_400, 50)
            .finds("not told within");
        told(1_600)
            .late(0, START + 1_400, 150)
            .finds("not told within");
    }
}

#[test]
fn what_takes_a_while_to_break_is_told_from_when_it_is_broken() {
    let script = [
        (START + 100, "fault cut 0"),
        (START + 250, "struck cut 0"),
        (START + 2_600, "healed cut 0"),
    ];
    let told = |after_ms: u64| {
        Run::watched(START, Some((START + 250 + after_ms, "PEER_LOST"))).and(&script)
    };
    told(1_499).finds_nothing();
    told(1_501).finds("detection: not told within");
    // It may be told before the script has noted that it is broken.
    Run::watched(START, Some((START + 150, "PEER_LOST")))
        .and(&script)
        .finds_nothing();
}

#[test]
fn a_short_cut_need_not_be_told() {
    let script = [(START + 100, "fault cut 0"), (START + 600, "healed cut 0")];
    Run::watched(START, Some((START + 4_000, "DEADLINE")))
        .and(&script)
        .finds_nothing();
}

#[test]
fn a_pair_that_has_heard_of_a_loss_is_not_connected_until_values_come() {
    let script = [
        (START - 600, "fault cut 0"),
        (START + 8, "healed cut 0"),
        (START + 100, "fault stop 0"),
        (START + 2_600, "healed stop 0"),
    ];
    // One watch hears of the cut, and the next waits in vain; values come until 25 ms after the start.
    let told = |at_ms: u64| {
        let mut run = Run::watched(START, Some((START + at_ms, "PEER_LOST"))).and(&script);
        let watch = Scope::new((0, 0), (1, 0), WATCH_SLOT).step().0;
        let lane = format!("{watch} 0 watch 1");
        let patience = 4_000 * MS;
        run.insert(1, line(START + 50, &format!("asked {lane} {patience}")));
        run.insert(1, line(START + 4_050, &format!("failed {lane} DEADLINE")));
        run
    };
    told(40).finds_nothing();
    told(10).finds("detection: not told within");
    // What the other heard excuses no task here.
    let mut other = told(10);
    let watch = Scope::new((1, 0), (0, 0), WATCH_SLOT).step().0;
    let lane = format!("{watch} 1 watch 0");
    other.insert(0, line(START, &format!("asked {lane} {}", 4_000 * MS)));
    other.insert(0, line(START + 40, &format!("failed {lane} PEER_LOST")));
    other.finds("detection: not told within");
}

#[test]
fn a_death_is_told_sooner_on_the_same_machine() {
    let script = [
        (START + 100, "fault kill 0"),
        (START + 3_000, "healed kill 0"),
    ];
    let told = |script: &[(u64, &str)], after_ms: u64, host: &str| {
        let ended = Some((START + 100 + after_ms, "PEER_LOST"));
        let mut run = Run::watched(START, ended).and(script).and(&[(500, host)]);
        run.histories[0].pop();
        run
    };
    let killed = |after_ms: u64, host: &str| told(&script, after_ms, host);
    killed(1_400, "host 2").finds_nothing();
    killed(49, "host 0 1").finds_nothing();
    killed(51, "host 0 1").finds("detection: not told within 50.0 ms");
    // Neighbours are told when the kernel has taken the process down; others need not wait for that.
    let taken_down = [
        script[0],
        (START + 105, "struck kill 0"),
        (START + 400, "gone kill 0"),
        script[1],
    ];
    let large = |after_ms: u64, host: &str| told(&taken_down, after_ms, host);
    large(349, "host 0 1").finds_nothing();
    large(351, "host 0 1").finds("detection: not told within 50.0 ms");
    large(1_506, "host 2").finds("detection: not told within");
}

#[test]
fn a_stopped_neighbour_that_is_given_up_is_found() {
    let stop = [
        (START + 100, "fault stop 0"),
        (START + 2_600, "healed stop 0"),
    ];
    let told = || Run::watched(START, Some((START + 1_300, "PEER_LOST"))).and(&stop);
    told().finds_nothing();
    told().and(&[(500, "host 0 1")]).finds("its process lives");
}

#[test]
fn neighbours_that_do_not_read_in_place_are_found() {
    let copied = || {
        let mut run = Run::good();
        run.replace(
            "a0 lease",
            &run.histories[1]
                .iter()
                .find(|line| line.contains("a0 lease"))
                .expect("a large value")
                .replace("lease", "copy"),
        );
        run
    };
    copied().finds_nothing();
    let near = [(500, "host 0 1")];
    Run::good().and(&near).finds_nothing();
    copied()
        .and(&near)
        .finds("life (1, 0) read no large value of its neighbour (0, 0)");
}

/// Task 0 is killed and begins again; its second life exchanges values with task 1 that soon after it began.
fn again(after_ms: u64, log: &str) -> Vec<String> {
    let (began, slot) = (START + 3_000, SLOT + 13);
    let mut run = Run::good().and(&[
        (START + 2_000, "fault kill 0"),
        (began + 10, "healed kill 0"),
    ]);
    run.histories[0].pop();
    let step = Scope::new((0, 1), (1, 0), slot).step().0;
    let mut second = vec![line(began, "begin 0 1 7 77")];
    let at = began + after_ms;
    run.insert(1, line(at - 5, &format!("sent {step} 0 small 0 b0")));
    run.insert(
        1,
        line(at - 5, &format!("asked {step} 0 small 0 {}", 2_000 * MS)),
    );
    run.insert(
        1,
        line(at, &format!("got {step} 0 small 0 right 0 b1 inline")),
    );
    second.push(line(at - 5, &format!("sent {step} 1 small 0 b1")));
    second.push(line(
        at - 5,
        &format!("asked {step} 1 small 0 {}", 2_000 * MS),
    ));
    second.push(line(at, &format!("got {step} 1 small 0 right 0 b0 inline")));
    for text in values(SLOT + 16, 1, 0) {
        run.insert(1, text);
    }
    second.extend(values(SLOT + 16, 1, 1));
    second.extend(steps(began + 500));
    second.extend(remote::next_life(&mut run, began));
    second.push(line(200_000, "left 0 0"));
    second.push(line(200_000, "end"));
    let mut story = run.story();
    story
        .read("history", &(second.join("\n") + "\n"))
        .expect("it is a history");
    story.read_log((1, 0), log);
    judge(&story, &BOUNDS).findings
}

const SAYS_SO: &str = "2026 INFO a peer has returned in another life task=/job:n/task:0 \
                       incarnation=0000000000000077 path=Tcp\n";

#[test]
fn a_task_that_begins_again_is_met_and_told_of_in_time() {
    assert_eq!(again(990, SAYS_SO), Vec::<String>::new());
    let late = again(1_010, SAYS_SO);
    assert!(
        late.len() == 2
            && late
                .iter()
                .all(|found| found.contains("restart: nothing came")),
        "{late:#?}"
    );
    let untold = again(990, "2026 INFO a peer is connected\n");
    assert!(
        untold.len() == 1 && untold[0].contains("does not say"),
        "{untold:#?}"
    );
}

#[test]
fn a_clock_that_was_not_moved_is_found() {
    let moved = [
        (START + 3_000, "fault clock 1"),
        (START + 3_500, "healed clock 1"),
    ];
    let mut run = Run::good().and(&moved);
    run.finds("saw no other time of day");
    run.insert(1, line(START + 3_010, "jumped -3600"));
    run.finds_nothing();
}

/// A flood of which so many values are sent and taken, one is refused, and so many are received.
fn flood(received: u32) -> Run {
    let mut run = Run::good();
    let slot = FLOOD_SLOT + 30;
    let scope = Scope::new((0, 0), (1, 0), slot);
    let (step, began) = (scope.step().0, scope.begins_ns() / MS);
    for ordinal in 0..4 {
        run.insert(
            0,
            line(
                began + 1,
                &format!("sent {step} 1 flood {ordinal} c{ordinal}"),
            ),
        );
    }
    run.insert(
        0,
        line(
            began + 1,
            &format!("refused {step} 1 flood 2 PARKED_BYTES_OF_STEP"),
        ),
    );
    for (nth, ordinal) in (0..).zip([0, 1, 3]).take(received as usize) {
        let lane = format!("{step} 0 flood {nth}");
        run.insert(
            1,
            line(began + 2_300, &format!("asked {lane} {}", 500 * MS)),
        );
        run.insert(
            1,
            line(
                began + 2_301,
                &format!("got {lane} right {ordinal} c{ordinal} lease"),
            ),
        );
    }
    let lane = format!("{step} 0 flood {received}");
    run.insert(
        1,
        line(began + 2_400, &format!("asked {lane} {}", 500 * MS)),
    );
    run.insert(1, line(began + 2_900, &format!("failed {lane} DEADLINE")));
    run
}

#[test]
fn all_that_was_taken_of_a_flood_comes() {
    flood(3).finds_nothing();
    flood(2).finds("DEADLINE without a cause");
}

#[test]
fn a_life_that_grows_is_found() {
    let mut bounds = BOUNDS;
    bounds.resident_max_kib = u64::MAX;
    let run = Run::good().and(&[
        (3_000, "used 1 0 1000 50"),
        (60_000, "used 1 0 2000 50"),
        (120_000, "used 1 0 35000 50"),
    ]);
    let findings = judge(&run.story(), &bounds).findings;
    assert!(
        findings.len() == 1 && findings[0].contains("grew by"),
        "{findings:#?}"
    );
}

#[test]
fn a_task_that_dies_by_itself_is_found() {
    let mut run = Run::good();
    run.histories[0].pop();
    run.finds("died by itself");
    let dead = [(START + 1_000, "fault kill 0")];
    run.and(&dead).finds_nothing();
}

#[test]
fn use_beyond_the_bounds_is_found() {
    let run = Run::good().and(&[(3_000, "used 1 0 1001 50")]);
    run.finds("task 1 life 0 holds 1001 KiB");
    let run = Run::good().and(&[(3_000, "used 1 0 900 101")]);
    run.finds("101 descriptors");
    let mut run = Run::good();
    run.script.pop();
    run.finds("never looked at");
}

#[test]
fn a_life_that_leaks_descriptors_is_found() {
    let leaks = |count: u64| {
        let (before, after) = (
            "used 1 0 900 50".to_owned(),
            format!("used 1 0 900 {count}"),
        );
        Run::good().and(&[(10_000, &before), (60_000, &after), (70_000, &before)])
    };
    leaks(66).finds_nothing();
    leaks(67).finds("holds 17 descriptors more");
    let cut = [(59_000, "fault cut 0"), (59_100, "healed cut 0")];
    leaks(67).and(&cut).finds_nothing();
}

#[test]
fn a_task_that_was_left_descriptors_is_found() {
    let mut run = Run::good().and(&[
        (START, "fault descriptors 1"),
        (START + 1_000, "healed descriptors 1"),
    ]);
    run.finds("task 1 had some left");
    run.insert(1, line(START + 500, "short"));
    run.finds_nothing();
}

/// A run in which task 1 keeps so many bytes.
fn keeping(bytes: u64) -> Run {
    let mut run = Run::good();
    run.insert(1, line(START + 8_000, &format!("kept 5 {} 0", bytes - 5)));
    run
}

#[test]
fn values_that_are_kept_for_no_receiver_are_found() {
    keeping(16 << 20).finds_nothing();
    keeping((16 << 20) + 1).finds("for no receiver");
    let cut = [
        (START + 3_000, "fault cut 1"),
        (START + 3_100, "healed cut 1"),
    ];
    keeping(60 << 20).and(&cut).finds_nothing();
    let late = |for_ms: u64| keeping(60 << 20).late(0, START + 7_900, for_ms);
    late(300).finds_nothing();
    late(200).finds("for no receiver");
    // A receiver waits for a value that its sender left out.
    let behind = |sender: u32| {
        let (mut run, other) = (keeping(60 << 20), 1 - sender as usize);
        let lane = format!("{} {sender} small 7", step());
        run.insert(
            other,
            line(START + 5_000, &format!("asked {lane} {}", 2_000 * MS)),
        );
        run.insert(
            other,
            line(START + 7_000, &format!("failed {lane} DEADLINE")),
        );
        run
    };
    behind(1).finds_nothing();
    behind(0).finds("for no receiver");
}

#[test]
fn a_run_without_traffic_is_found() {
    let mut run = Run::good();
    run.histories[1].retain(|line| !line.contains("large") || line.contains("sent"));
    run.finds("nothing large came from 0 to 1");
    let mut run = Run::good();
    let is_came = |line: &String| line.contains("flood") && !line.contains("sent");
    run.histories[1].retain(|line| !is_came(line));
    run.finds("nothing flood came from 0 to 1");
}

/// Each with nothing else in the run that says so: no worker joins, no session begins, no training starts.
#[test]
fn a_run_without_calls_steps_lessons_or_shares_is_found() {
    let without = |words: &[&str], what: &str| {
        let mut run = Run::good();
        let is_of = |line: &String| words.iter().any(|word| line.contains(word));
        run.histories[1].retain(|line| !is_of(line));
        let findings = run.findings();
        let is_found = findings.iter().any(|found| found.contains(what));
        assert!(is_found, "{findings:#?}");
    };
    let called = [" call ", " told ", " joined", " rest ", " parted "];
    without(&called, "task 1 had no right call of 0");
    without(
        &[" step ", " answer "],
        "task 1 had no right step of a graph",
    );
    without(&[" model ", " learnt "], "task 1 had no step of a training");
    without(&[" holds ", " lets "], "task 1 had no share of a value");
}

#[test]
fn a_peer_that_is_taken_for_a_bad_one_is_found() {
    let mut run = Run::good();
    run.insert(1, line(START, "kept 0 0 2"));
    run.finds("life (1, 0) took 2 peers");
}

#[test]
fn an_error_of_an_engine_is_found() {
    let findings = |run: &Run, line: &str| {
        let mut story = run.story();
        story.read_log((0, 0), line);
        judge(&story, &BOUNDS).findings
    };
    let finds = |run: &Run, line: &str| {
        let found = findings(run, line);
        let is_it = found.len() == 1 && found[0].contains(line.trim_end());
        assert!(is_it, "{found:#?}");
    };
    let broke = "2026 ERROR a peer broke the protocol shard=0\n";
    let unmapped = "2026 ERROR a segment of a peer could not be mapped status=it is not sealed\n";
    let unwired = "2026 ERROR a greeted peer could not be wired status=SYSTEM_LIMIT: no socket\n";
    let short = |task: u32| {
        let faults = [
            (START, format!("fault descriptors {task}")),
            (START + 10, format!("healed descriptors {task}")),
        ];
        let faults = faults.each_ref().map(|(at, what)| (*at, what.as_str()));
        let mut run = Run::good().and(&faults);
        run.insert(task as usize, line(START + 5, "short"));
        run
    };
    for line in [broke, unmapped, unwired] {
        finds(&Run::good(), line);
        finds(&short(1), line);
    }
    // Without descriptors that alone goes wrong which needs some.
    finds(&short(0), broke);
    finds(&short(0), unmapped);
    assert_eq!(findings(&short(0), unwired), Vec::<String>::new());
}

#[test]
fn an_attempt_that_fails_while_nothing_is_broken_is_found() {
    let cut = [(START - 200, "fault cut 0"), (START - 190, "healed cut 0")];
    for (what, found) in [
        ("unbegun 100000000 PEER_LOST", "could begin no session"),
        ("unmade 0 PEER_LOST", "had no value made at 0"),
    ] {
        let run = || {
            let mut run = Run::good();
            run.insert(1, line(START, what));
            run
        };
        run().finds(found);
        run().and(&cut).finds_nothing();
        let mut run = Run::good().and(&cut);
        run.insert(1, line(START, &what.replace("PEER_LOST", "PEER_PROTOCOL")));
        run.finds(found);
    }
    // A life that cannot join tries from its beginning on, or since the last time.
    let unjoined = |times: &[u64]| {
        let mut run = Run::good();
        for at_ms in times {
            run.insert(1, line(*at_ms, "unjoined RPC_TIMEOUT"));
        }
        run
    };
    unjoined(&[3_500]).finds_nothing();
    unjoined(&[4_500, 9_500]).finds("could not join from 4500000000 to 9500000000");
}

#[test]
fn what_was_not_seen_is_not_shown_as_kept() {
    let seen = |run: &Run, what: &str| {
        let rows = judge(&run.story(), &BOUNDS).rows;
        let row = rows.into_iter().find(|row| row[0] == what);
        row.map(|row| row[1].clone()).expect("there is such a row")
    };
    for what in [
        "kept for receivers, at rest",
        "living neighbours given up",
        "a step after a lasting fault",
        "a call told of its lost callee",
    ] {
        assert_eq!(seen(&Run::good(), what), "not seen", "{what}");
    }
    assert_eq!(
        seen(&keeping(1 << 20), "kept for receivers, at rest"),
        "1.0 MiB"
    );
    let run = ran_on(Some((150, "broken 900 PEER_LOST false 0")));
    assert_eq!(seen(&run, "a step after a lasting fault"), "50.0 ms");
}

#[test]
fn values_that_do_not_come_while_nothing_is_broken_are_found() {
    let gap = |until_ms: u64| {
        let mut run = Run::good();
        let is_gap = |line: &String| {
            let (at_ns, what) = line.split_once(' ').expect("a line");
            let at_ms = at_ns.parse::<u64>().expect("a time") / MS;
            what.contains(" 0 small ")
                && !what.starts_with("sent")
                && (60_000..until_ms).contains(&at_ms)
        };
        run.histories[1].retain(|line| !is_gap(line));
        run
    };
    gap(60_000).finds_nothing();
    gap(61_000).finds("no value of 0 came to life (1, 0)");
    let cut = |task: u32| {
        let faults = [
            (58_000, format!("fault cut {task}")),
            (61_000, format!("healed cut {task}")),
        ];
        let faults = faults.each_ref().map(|(at, what)| (*at, what.as_str()));
        gap(61_000).and(&faults)
    };
    cut(0).finds_nothing();
    cut(2).finds("no value of 0 came to life (1, 0)");
}

#[test]
fn a_history_that_is_none_is_refused() {
    let mut story = Story::default();
    for text in [
        "17 end\n",
        "x\n",
        "17 healed cut 1\n",
        "17 sent 1 1 small 0 a\n",
    ] {
        assert!(story.read("history", text).is_err(), "{text}");
    }
    // What a killed writer left unfinished is no error.
    assert!(story.read("history", "1000 begin 5 0 1 1\n2000 as").is_ok());
}

/// A run in which task 1 ran one more step.
fn ran(ended: Option<(u64, &str)>) -> Run {
    let mut run = Run::good();
    run.insert(1, line(START, "step 900"));
    if let Some((after_ms, how)) = ended {
        run.insert(1, line(START + after_ms, how));
    }
    run
}

/// The same, and task 0 was killed in its midst.
fn ran_on(ended: Option<(u64, &str)>) -> Run {
    let mut run = ran(ended).and(&[
        (START + 100, "fault kill 0"),
        (START + 3_000, "healed kill 0"),
    ]);
    run.histories[0].pop();
    run
}

#[test]
fn a_step_that_gives_what_is_wrong_is_found() {
    ran(Some((20, "answer 900 true"))).finds_nothing();
    ran(Some((20, "answer 900 false"))).finds("its answer is wrong");
    ran_on(Some((20, "answer 900 false"))).finds("its answer is wrong");
}

#[test]
fn a_step_fails_with_what_was_broken_or_not_at_all() {
    ran(Some((20, "broken 900 PEER_LOST false 0"))).finds("PEER_LOST without a cause");
    ran_on(Some((150, "broken 900 PEER_LOST false 0"))).finds_nothing();
    ran_on(Some((150, "broken 900 PEER_LOST false 1"))).finds("others were broken");
    // The step is task 1's.
    let stopped = |task: u32, after_ms: u64| {
        let faults = [
            (START + 100, format!("fault stop {task}")),
            (START + 3_000, format!("healed stop {task}")),
        ];
        let faults = faults.each_ref().map(|(at, what)| (*at, what.as_str()));
        ran(Some((after_ms, "broken 900 PEER_LOST false 0"))).and(&faults)
    };
    stopped(1, 3_010).finds_nothing();
    stopped(2, 150).finds("PEER_LOST without a cause");
    ran_on(Some((150, "broken 900 PEER_LOST false"))).finds("names no task");
    for reason in ["INTERNAL", "GRAPH_DEVICE", "no reason at all"] {
        let reason = reason.replace(' ', "_");
        let ended = format!("broken 900 {reason} false 0");
        ran_on(Some((150, &ended))).finds(&format!("{reason} is no reason"));
    }
    ran_on(Some((150, "broken 900 STEP_ABORTED true 0"))).finds("only follows");
}

/// A worker takes a session and loses its master, by a cut that ends at once; another is down for long, and the session
/// with its first step waits for that one. Of what happened to the first worker that step is the first to hear.
#[test]
fn what_a_session_met_while_it_was_begun_is_a_cause() {
    let run = |last_ms: u64, how: &str| {
        let mut run = Run::good().and(&[
            (START + 100, "fault cut 0"),
            (START + 500, "healed cut 0"),
            (START + 1_000, "fault kill 2"),
            (START + 5_000, "healed kill 2"),
        ]);
        let last = [(last_ms - 20, "step 899"), (last_ms, how)];
        let next = [
            (START + 5_100, "step 900"),
            (START + 5_120, "broken 900 WORKER_SESSION_UNKNOWN false 0 1"),
        ];
        for (at_ms, text) in last.into_iter().chain(next) {
            run.insert(1, line(at_ms, text));
        }
        run
    };
    let lost = "broken 899 PEER_LOST false 0";
    run(START + 400, lost).finds_nothing();
    // One that gave an answer since then had what it needs.
    run(START + 5_080, "answer 899 true").finds("WORKER_SESSION_UNKNOWN without a cause");
}

#[test]
fn a_step_that_ends_late_or_never_is_found() {
    ran_on(Some((2_090, "broken 900 PEER_LOST false 0"))).finds_nothing();
    ran_on(Some((2_110, "broken 900 PEER_LOST false 0"))).finds("too late");
    ran_on(None).finds("it never ended");
    ran(None).finds("it never ended");
    ran(Some((3_510, "answer 900 true"))).finds("too late");
    // What the machine did excuses it, and not what the script did to a task.
    let late = || ran(Some((3_510, "answer 900 true"))).late(0, START + 3_000, 500);
    late().finds_nothing();
    let stopped = |until| ran(Some((5_910, "answer 900 true"))).late(0, START + until, 2_000);
    let stop = [
        (START - 100, "fault stop 0"),
        (START + 2_000, "healed stop 0"),
    ];
    stopped(2_000).and(&stop).finds("too late");
}

/// A master waits for a worker on its own machine that is stopped, and no other does.
#[test]
fn a_step_waits_for_a_stopped_neighbour_of_its_master() {
    let stopped = |began_ms: u64, how: &str| {
        ran(Some((6_900, how))).and(&[
            (START + began_ms, "fault stop 0"),
            (START + 4_000, "healed stop 0"),
        ])
    };
    let beside = |began_ms: u64| {
        let mut run = stopped(began_ms, "answer 900 true");
        run.script.retain(|line| !line.contains(" host "));
        run.and(&[(500, "host 0 1")])
    };
    for began_ms in [0, 100] {
        beside(began_ms).finds_nothing();
        stopped(began_ms, "answer 900 true").finds("too late");
    }
    let mut late = beside(0);
    late.replace("answer 900 true", &line(START + 7_600, "answer 900 true"));
    late.finds("too late");
}

#[test]
fn steps_come_back_and_leave_nothing() {
    let mut run = Run::good();
    let is_gap = |line: &String| {
        let at_ns: u64 = line
            .split(' ')
            .next()
            .and_then(|at| at.parse().ok())
            .unwrap_or(0);
        let is_step = line.contains(" step ") || line.contains(" answer ");
        is_step && (60_000 * MS..70_000 * MS).contains(&at_ns)
    };
    run.histories[1].retain(|line| !is_gap(line));
    run.finds("had no answer");
    // What is broken for a moment does not: the time before is too short, and that after it is not.
    let cut = [(60_500, "fault cut 0"), (60_600, "healed cut 0")];
    let run = run.and(&cut);
    run.finds("had no answer");
    // Whatever is broken all the time excuses it.
    run.and(&[(59_000, "fault cut 0"), (70_000, "healed cut 0")])
        .finds_nothing();
    Run::with("left 0 0", &line(200_000, "left 1 0")).finds("1 sessions and 0 steps");
    Run::with("left 0 0", &line(200_000, "left 0 2")).finds("0 sessions and 2 steps");
    let mut run = Run::good();
    run.histories[1].retain(|line| !line.contains("left"));
    run.finds("did not say what is left");
}

#[test]
fn a_run_that_shows_nothing_of_a_promise_is_found() {
    let unmeasured = |at_ms| {
        let findings = Run::good().and(&[(at_ms, "fault over 0 1")]).findings();
        let unmeasured = findings.into_iter();
        let unmeasured = unmeasured.filter(|found| found.starts_with("unmeasured"));
        unmeasured.collect::<Vec<_>>()
    };
    // Three kinds of losses that are told, a stop of a neighbour, and a restart.
    for (at_ms, count) in [(30_900, 0), (31_100, 5), (300_900, 5), (301_100, 6)] {
        let found = unmeasured(at_ms);
        assert_eq!(found.len(), count, "{found:#?}");
    }
    // One of them does not stand for the others.
    let cut = [
        (START + 100, "fault cut 0"),
        (START + 2_600, "healed cut 0"),
        (199_000, "fault over 0 1"),
    ];
    let run = Run::watched(START, Some((START + 1_300, "PEER_LOST"))).and(&cut);
    let found = run.findings();
    let is_unmeasured = |what: &str| found.iter().any(|found| found.ends_with(what));
    assert!(
        is_unmeasured("how soon a death on the same machine is told"),
        "{found:#?}"
    );
    assert!(
        !is_unmeasured("how soon a link cut both ways is told"),
        "{found:#?}"
    );
}
