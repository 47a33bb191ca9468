//! Which lane is whose.

use rendez::ground::{Status, TaskName};
use rendez::shard::TaskContext;

use super::sending::Outbox;
use super::{Lane, Lanes};
use crate::id::WorkerId;

impl Lanes {
    /// The worker to whose task a lane leads, if that is another than `worker`.
    pub(crate) fn other_at(&self, task: &TaskName, worker: WorkerId) -> Option<WorkerId> {
        let is_other = |lane: &&Lane| !lane.is_free && lane.task == *task && lane.worker != worker;
        self.lanes.iter().find(is_other).map(|lane| lane.worker)
    }

    /// A lane to another worker, and ears for it.
    pub(crate) fn open(
        &mut self,
        worker: WorkerId,
        task: TaskName,
        context: &mut TaskContext<'_>,
    ) -> Result<(), Status> {
        if let Some(at) = self.lane_of(worker) {
            if self.lanes[at].task == task {
                return self.listen(worker, context);
            }
            // Its number is another task's now.
            self.forget(worker);
        }
        if let Some(at) = self.free(&task) {
            if self.lanes[at].task != task {
                self.close_keys(at, context);
            }
            let lane = &mut self.lanes[at];
            (lane.worker, lane.task, lane.is_free) = (worker, task, false);
            self.place(worker, at);
            return self.listen(worker, context);
        }
        let at = self.lanes.len();
        self.lanes.push(Lane {
            worker,
            task,
            out: [None; 3],
            back: [None; 3],
            outbox: Outbox::default(),
            awaited: 0,
            queued: Default::default(),
            posted: [0; 2],
            is_listening: false,
            life: 0,
            leave: None,
            is_free: false,
        });
        self.place(worker, at);
        self.listen(worker, context)
    }

    fn place(&mut self, worker: WorkerId, at: usize) {
        let place = usize::from(worker.0);
        if self.by_worker.len() <= place {
            self.by_worker.resize(place + 1, None);
        }
        self.by_worker[place] = Some(at as u32);
    }

    pub(super) fn lane_of(&self, worker: WorkerId) -> Option<usize> {
        let at = self.by_worker.get(usize::from(worker.0)).copied().flatten();
        at.map(|at| at as usize)
    }

    /// A lane whose worker is gone: that of the same task, which still listens, or one at which nothing is awaited.
    fn free(&self, task: &TaskName) -> Option<usize> {
        let is_same = |lane: &Lane| lane.is_free && lane.task == *task;
        let is_idle = |lane: &Lane| lane.is_free && !lane.is_listening;
        let lanes = &self.lanes;
        let same = lanes.iter().position(is_same);
        same.or_else(|| lanes.iter().position(is_idle))
    }

    /// A worker is gone: its lane is another's.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        if let Some(at) = self.lane_of(worker) {
            self.by_worker[usize::from(worker.0)] = None;
            self.lanes[at].is_free = true;
            self.lanes[at].outbox.clear();
            self.lanes[at].leave = None;
            self.forget_partials(at);
        }
    }

    pub(super) fn close_keys(&mut self, at: usize, context: &mut TaskContext<'_>) {
        let lane = &mut self.lanes[at];
        for key in lane
            .out
            .iter_mut()
            .chain(&mut lane.back)
            .filter_map(Option::take)
        {
            context.release(key);
        }
    }
}
