//! Client: who begins sessions and steps at a master, and judges what becomes of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crossbeam::queue::SegQueue;
use rendez::ground::{Code, Status, catalogue};
use rendez::memory::Tensor;
use rendez_dataflow::server::solo::{Prepared, Run, Site, SoloSession};

use super::draft::{Case, Draft, numbers};
use super::{Graphs, HOP_NS};

/// What may become of a step.
pub(crate) const FATES: [&str; 3] = ["right", "cancelled", "failed"];

/// What is said of a step that ends only because something else did.
const CASCADES: [&str; 3] = [
    "the line was closed",
    "Stopping remaining executors.",
    "is over at this worker.",
];

/// The end of what is said where only such failures are known.
const UNKNOWN_CAUSE: &str = "which no part of the step could tell.";

/// A client of one master.
pub(crate) struct Client {
    master: usize,
    session: Option<Open>,
    step: Option<Step>,
    /// Tasks that something happened to since the session began.
    pub(crate) culprits: BTreeSet<usize>,
    /// The last step failed.
    has_failed: bool,
}

/// A session.
struct Open {
    session: SoloSession,
    draft: Draft,
    prepared: BTreeMap<Vec<&'static str>, Prepared>,
}

/// A step under way.
struct Step {
    id: u64,
    case: Case,
    run: Run,
    told: Arc<SegQueue<Result<Vec<Tensor>, Status>>>,
    began: u64,
    is_cancelled: bool,
}

impl Client {
    pub(crate) const fn new(master: usize) -> Self {
        Self {
            master,
            session: None,
            step: None,
            culprits: BTreeSet::new(),
            has_failed: false,
        }
    }

    /// It waits for nothing.
    pub(crate) const fn is_free(&self) -> bool {
        self.step.is_none()
    }

    /// A task has died: its clients die with it.
    pub(crate) fn died(&mut self, task: usize) {
        self.culprits.insert(task);
        if self.master == task {
            (self.session, self.step) = (None, None);
        }
    }

    /// Does what is next.
    pub(crate) fn go_on(&mut self, graphs: &mut Graphs) -> Result<(), String> {
        if let Some(step) = self.step.take() {
            return self.watch(graphs, step);
        }
        if graphs.left == 0 || graphs.world.rng.below(4) > 0 {
            return Ok(());
        }
        let Some(open) = &self.session else {
            return self.begin_session(graphs);
        };
        let lost = open.session.lost();
        let gives_up = self.has_failed && graphs.world.rng.one_in(2);
        if gives_up || (!lost.is_empty() && graphs.world.rng.one_in(2)) {
            return self.close(graphs);
        }
        if lost.is_empty() {
            return self.begin_step(graphs);
        }
        if !graphs.is_whole() {
            return Ok(());
        }
        self.reopen(graphs)
    }

    /// Its session goes on at the workers whose lines were lost: what of its steps was left there ends. An errand does
    /// this, where a cleanup finds a line lost; here there are none.
    pub(crate) fn reopen(&mut self, graphs: &mut Graphs) -> Result<(), String> {
        let Some(open) = &self.session else {
            return Ok(());
        };
        for task in open.session.lost() {
            let at = graphs.world.nodes.iter().position(|node| node.task == task);
            let at = at.ok_or("a line to an unknown task")?;
            let id = graphs.draw();
            if let Err(status) = open.session.reopen(&graphs.lives[at].site, id) {
                if status.reason() != catalogue::WORKER_SESSION_UNKNOWN {
                    return Err(format!("reopening: {status}"));
                }
                return self.close(graphs);
            }
        }
        Ok(())
    }

    /// Begins a session over all tasks, as soon as they are connected.
    fn begin_session(&mut self, graphs: &mut Graphs) -> Result<(), String> {
        if !graphs.is_whole() {
            return Ok(());
        }
        let nodes = graphs.world.nodes.iter();
        let devices: Vec<_> = nodes
            .map(|node| format!("{}/device:CPU:0", node.task))
            .collect();
        let failed = |status: Status| format!("a session cannot begin: {status}");
        let draft = Draft::new(&mut graphs.world.rng, &devices).map_err(failed)?;
        let handle = format!("{:x}", graphs.draw().0);
        let lines: Vec<_> = (0..devices.len()).map(|_| graphs.draw()).collect();
        let sites = graphs
            .lives
            .iter()
            .map(|life| &life.site)
            .zip(lines)
            .enumerate();
        let others = sites.filter(|(at, _)| *at != self.master);
        let others: Vec<_> = others.map(|(_, other)| other).collect();
        let site = &graphs.lives[self.master].site;
        let session = site
            .begin(&handle, draft.def.clone(), &others)
            .map_err(failed)?;
        self.culprits.clear();
        self.has_failed = false;
        self.session = Some(Open {
            session,
            draft,
            prepared: BTreeMap::new(),
        });
        Ok(())
    }

    fn begin_step(&mut self, graphs: &mut Graphs) -> Result<(), String> {
        let Some(open) = &mut self.session else {
            return Ok(());
        };
        let failed = |status: Status| format!("a step cannot begin: {status}");
        let case = open.draft.case(&mut graphs.world.rng).map_err(failed)?;
        let sites: Vec<&Site> = graphs.lives.iter().map(|life| &life.site).collect();
        if !open.prepared.contains_key(&case.fetches) {
            let feeds: Vec<_> = case.feeds.iter().map(|(name, _)| *name).collect();
            match open.session.prepare(&feeds, &case.fetches, &sites) {
                Ok(prepared) => drop(open.prepared.insert(case.fetches.clone(), prepared)),
                Err(status) => {
                    self.judge_failure(graphs, &status)?;
                    return self.close(graphs);
                }
            }
        }
        let prepared = &open.prepared[&case.fetches];
        let told = Arc::new(SegQueue::new());
        let tell = Arc::clone(&told);
        let feeds = case
            .feeds
            .iter()
            .map(|(_, tensor)| tensor.clone())
            .collect();
        let id = graphs.draw();
        graphs.left -= 1;
        let run = open
            .session
            .run(prepared, id, feeds, move |outcome| tell.push(outcome));
        self.step = Some(Step {
            id: id.0,
            case,
            run: run.map_err(failed)?,
            told,
            began: graphs.world.now(),
            is_cancelled: false,
        });
        Ok(())
    }

    /// Looks what has become of a step.
    fn watch(&mut self, graphs: &mut Graphs, mut step: Step) -> Result<(), String> {
        if let Some(outcome) = step.told.pop() {
            return self.judge(graphs, &step, &outcome);
        }
        let Some(open) = &self.session else {
            return Ok(());
        };
        open.session.turn();
        let bound = open.draft.hops * HOP_NS;
        let now = graphs.world.now();
        if now > graphs.troubled_at.max(step.began) + bound {
            return Err(format!(
                "step {:x} of {:?} began at {}, nothing is broken since {}, and it has not ended: {}",
                step.id,
                step.case.fetches,
                step.began,
                graphs.troubled_at,
                graphs.stuck()
            ));
        }
        if !step.is_cancelled && graphs.world.rng.one_in(graphs.cancel_one_in * 100) {
            step.is_cancelled = true;
            let message = "Step was cancelled by its client.";
            step.run
                .cancel(Status::of(catalogue::STEP_CANCELLED, message));
            if graphs.is_slow {
                std::thread::sleep(Duration::from_millis(400));
            }
        }
        self.step = Some(step);
        Ok(())
    }

    fn judge(
        &mut self,
        graphs: &mut Graphs,
        step: &Step,
        outcome: &Result<Vec<Tensor>, Status>,
    ) -> Result<(), String> {
        let fate = match outcome {
            Ok(values) => {
                let got: Vec<_> = values.iter().map(numbers).collect();
                if got != step.case.expected {
                    return Err(format!(
                        "step {:x}: {:?} gave {got:?}",
                        step.id, step.case.fetches
                    ));
                }
                FATES[0].to_owned()
            }
            Err(status) if step.is_cancelled && status.reason() == catalogue::STEP_CANCELLED => {
                FATES[1].to_owned()
            }
            Err(status) => {
                self.judge_failure(graphs, status)
                    .map_err(|fault| format!("step {:x}: {fault}", step.id))?;
                format!("{} {status}", FATES[2])
            }
        };
        self.has_failed = outcome.is_err();
        let now = graphs.world.now();
        graphs.told.push(format!("{now} {:x} {fate}", step.id));
        Ok(())
    }

    /// A step may fail where something was broken, with that alone.
    fn judge_failure(&self, graphs: &Graphs, status: &Status) -> Result<(), String> {
        if self.culprits.is_empty() {
            return Err(format!("nothing was broken, and it failed with {status}"));
        }
        let is_named = |&at: &usize| {
            status
                .message()
                .contains(&graphs.world.nodes[at].task.to_string())
        };
        let is_cause = matches!(status.code(), Code::Unavailable | Code::Aborted);
        let message = status.message();
        let is_cascade = CASCADES.iter().any(|text| message.ends_with(text));
        // Of two that broke, one may have been all that knew of the other.
        let is_cascade = is_cascade || self.culprits.len() < 2 && message.ends_with(UNKNOWN_CAUSE);
        let is_cause = is_cause && !is_cascade && !status.is_derived();
        if !is_cause || !self.culprits.iter().any(is_named) {
            let culprits = &self.culprits;
            return Err(format!(
                "{culprits:?} were broken, and it failed with {status:?}"
            ));
        }
        Ok(())
    }

    /// Ends the session, if there is one; some workers hear of it twice.
    pub(crate) fn close(&mut self, graphs: &mut Graphs) -> Result<(), String> {
        if let Some(open) = self.session.take() {
            let (lives, rng) = (&graphs.lives, &mut graphs.world.rng);
            let told = lives.iter().map(|life| &life.site);
            let told: Vec<_> = told.filter(|_| rng.one_in(2)).collect();
            if open.session.steps() > 0 {
                return Err(format!(
                    "{} steps are alive in a session of none",
                    open.session.steps()
                ));
            }
            open.session.close(&told);
        }
        Ok(())
    }

    /// Another session in its place.
    pub(crate) fn renew(&mut self, graphs: &mut Graphs) -> Result<(), String> {
        self.close(graphs)?;
        self.culprits.clear();
        Ok(())
    }
}
