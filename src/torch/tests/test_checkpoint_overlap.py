"""`rendez.torch.checkpoint`: several saves that are under way at once."""

from conftest import since
from test_checkpoint import script

#: Planners that wait, in all ranks, until they are let go.
WAITING = """
import threading

class Waits(dcp.DefaultSavePlanner):
    def __init__(self, where, error=None):
        super().__init__()
        self.where, self.error = where, error
        self.is_there, self.may_go = threading.Event(), threading.Event()
    def wait(self, where):
        if where == self.where:
            self.is_there.set()
            assert self.may_go.wait(60)
    def finish_plan(self, plan):
        self.wait("planned")
        return super().finish_plan(plan)
    def resolve_data(self, item):
        self.wait("begun")
        if self.error is not None: raise self.error
        return super().resolve_data(item)

class Under:
    # A save in a thread and a group of its own, which has come to where it waits.
    def __init__(self, name, group, planner, fill):
        self.planner, self.failed = planner, None
        self.thread = threading.Thread(target=self.save, args=(name, group, state(fill)))
        self.thread.start()
        assert planner.is_there.wait(60)
    def save(self, name, group, state):
        writer = RendezWriter(keep=8)
        try: dcp.save(state, checkpoint_id=name, storage_writer=writer, planner=self.planner, process_group=group)
        except dcp.api.CheckpointException as error: self.failed = error
    def go(self):
        self.planner.may_go.set()
        self.thread.join()
        return self.failed
"""


@since((2, 12), "no reason is told why a checkpoint cannot be saved")
def test_a_save_that_begins_leaves_others_that_are_under_way_or_have_ended_since(world):
    """It deleted all that was not whole when it was planned."""
    world.run(
        script(
            WAITING
            + """
join("all", [0, 1])
mesh, groups = init_device_mesh("cpu", (2,)), [dist.new_group([0, 1]) for _ in range(2)]
def state(fill):
    return {"w": distribute_tensor(torch.full((6, 4), float(fill)), mesh, [Shard(0)])}
place = [str(RendezWriter().place)]
dist.broadcast_object_list(place, 0)
def loaded(name):
    got = state(0)
    dcp.load(got, storage_reader=RendezReader(place[0], checkpoint_id=name))
    return whole(got["w"]).unique().tolist()

# One is whole when the next, which was planned before that, begins and fails.
first = Under("first", groups[0], Waits("begun"), 1)
second = Under("second", groups[1], Waits("planned", OSError("of its own")), 2)
assert first.go() is None, first.failed
assert "of its own" in str(second.go()), second.failed
assert loaded("first") == [1]
# One is under way when the next begins and ends.
model = Under("model", groups[0], Waits("begun"), 3)
dcp.save(state(4), storage_writer=RendezWriter("optimizer", keep=8), process_group=groups[1])
assert model.go() is None, model.failed
assert [loaded(name) for name in ("first", "optimizer", "model")] == [[1], [4], [3]]
# One of its own name takes its place.
older = Under("model", groups[0], Waits("begun"), 5)
dcp.save(state(6), storage_writer=RendezWriter("model", keep=8), process_group=groups[1])
assert "given up" in str(older.go()), older.failed
assert loaded("model") == [6]
dist.barrier()
assert rank or Holder.of().checkpoints == ["first", "optimizer", "model"], Holder.of().checkpoints
dist.barrier(); dist.destroy_process_group()
"""
        ),
        group=False,
        timeout=150,
    )


def test_a_rank_may_begin_saves_in_another_order(world):
    world.run(
        script("""
        from rendez.torch.checkpoint._holder import bytes_held
        first, second = (rendez.Engine(f"/job:{name}/task:0") for name in ("first", "second"))
        here, there = Holder(first, keep=8), Holder(second)
        def names(holder): return sorted(save.name for save in holder._saves.values())
        a, b = here.plan("a"), here.plan("b")
        there.join(b, "b")
        there.join(a, "a")
        assert names(there) == names(here) == ["a", "b"]
        here.commit(b.save, bytes_held(first, b"").tensor)
        again = here.plan("a")
        there.join(again, "a")
        assert list(there._saves) == [b.save, again.save]
        # One whose writer begins another save, or is gone, has failed: nothing else tells.
        class Writer: pass
        one, other = Writer(), Writer()
        for name, writer in (("d", one), ("e", other), ("f", one)):
            there.join(here.plan(name, writer), name)
        assert here.unfinished == ["a", "e", "f"] and there.unfinished == ["b", "a", "e", "f"], there.unfinished
        del other, writer
        there.join(here.plan("g", Writer()), "g")
        assert here.unfinished == ["a", "f", "g"] and there.unfinished == ["b", "a", "f", "g"], there.unfinished
        # The coordinator has come again.
        first.close()
        with rendez.Engine("/job:first/task:0") as first:
            new = Holder(first).plan("c")
            there.join(new, "c")
            assert list(there._saves) == [new.save]
        second.close()
        """),
        size=1,
        group=False,
        timeout=60,
    )
