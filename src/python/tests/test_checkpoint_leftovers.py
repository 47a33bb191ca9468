"""`rendez.torch.checkpoint`: a save or a load leaves nothing on its way, however it ends.

`scripts/torch-suites.sh` runs this, where PyTorch is.
"""

import time

import pytest

import rendez
from conftest import named

torch = pytest.importorskip("torch")
pytest.importorskip("rendez_torch")
pytestmark = pytest.mark.filterwarnings("ignore")

import torch.distributed.checkpoint as dcp  # noqa: E402

from rendez.torch.checkpoint import Holder, RendezReader, RendezWriter  # noqa: E402

#: Bytes of one tensor of a state, and of a holder's memory.
BYTES, ROOM = 1 << 20, 8 << 20


@pytest.fixture(params=["shm", "tcp"])
def engines(request, monkeypatch):
    """A writer's or reader's, and one of a small memory."""
    if request.param == "tcp":
        monkeypatch.setenv("RENDEZ_REQUIRE", "tcp")
        monkeypatch.setenv("RENDEZ_LISTEN", "127.0.0.1:0")
    small = {"arena_segment_bytes": "4MiB", "arena_bytes": ROOM}
    with rendez.Engine(named("far")) as far, rendez.Engine(named("holder"), **small) as holding:
        yield far, holding


def state_of(count, value=None):
    """Tensors of `value`, or of a number each."""
    return {f"t{n}": torch.full((BYTES // 4,), float(n if value is None else value)) for n in range(count)}


def save(engine, place, state, name="x"):
    dcp.save(state, checkpoint_id=name, storage_writer=RendezWriter(engine=engine, to=place), no_dist=True)


def load(engine, place, state):
    dcp.load(state, storage_reader=RendezReader(place, engine=engine), no_dist=True)


def reasons(error):
    """The reasons of rendez' that a failure of torch's has."""
    return [one[0].reason for one in error.failures.values()]


def left(*engines):
    """Values that were not taken, and bytes that are kept for others."""
    stats = [one for engine in engines for one in engine.stats()]
    return sum(one["parked"] for one in stats), sum(one["offered_bytes"] for one in stats)


def leaves_no_tensor(*engines):
    def is_over():
        parked, offered = left(*engines)
        # The frames of what failed may have a small one.
        return parked == 0 and offered < BYTES

    until = time.monotonic() + 10
    while not is_over():
        assert time.monotonic() < until, left(*engines)
        time.sleep(0.01)


def test_a_save_that_is_refused(engines):
    writing, holding = engines
    holder = Holder(holding)
    for _ in range(3):
        with pytest.raises(dcp.api.CheckpointException) as caught:
            save(writing, holder.place, state_of(2 * ROOM // BYTES))
        assert reasons(caught.value) == ["ARENA_FULL"]
        leaves_no_tensor(*engines)
    save(writing, holder.place, state_of(3))
    leaves_no_tensor(*engines)
    assert holder.checkpoints == ["x"]


def test_a_save_that_was_dropped(engines, monkeypatch):
    writing, holding = engines
    holder = Holder(holding)
    begin = holder.begin

    def drop(save, name, *how):
        begin(save, name, *how)
        holder.drop(name)

    monkeypatch.setattr(holder, "begin", drop)
    with pytest.raises(dcp.api.CheckpointException) as caught:
        save(writing, holder.place, state_of(4))
    assert reasons(caught.value) == ["CHECKPOINT_UNKNOWN"]
    leaves_no_tensor(*engines)


class Odd:
    """What only pickle can read."""


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12),
    reason="before PyTorch 2.12 no reason is told why a checkpoint cannot be read",
)
def test_a_load_that_fails(engines):
    reading, holding = engines
    writer = RendezWriter(engine=holding)
    dcp.save({"aa": Odd(), **state_of(4)}, storage_writer=writer, no_dist=True)
    for _ in range(3):
        with pytest.raises(dcp.api.CheckpointException) as caught:
            load(reading, writer.place, {"aa": None, **state_of(4, 9)})
        assert reasons(caught.value) == ["CHECKPOINT_PICKLE"]
        leaves_no_tensor(*engines)
    state = state_of(4, 9)
    load(reading, writer.place, state)
    leaves_no_tensor(*engines)
    assert all(torch.equal(state[key], value) for key, value in state_of(4).items())
