"""`rendez.torch.checkpoint`: what a peer says is a claim, and fails by name where it makes no sense.

`scripts/torch-suites.sh` runs this, where PyTorch is.
"""

import json

import pytest

import rendez

pytest.importorskip("torch")
pytest.importorskip("rendez_torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from rendez.torch.checkpoint import _files, _pieces  # noqa: E402


@pytest.mark.parametrize("said", ["text", 7, [], None])
def test_a_peer_that_gives_up_and_does_not_say_why(said):
    with pytest.raises(rendez.DataLoss, match="far") as caught:
        raise _pieces.failed(said, "far")
    assert caught.value.reason == "CHECKPOINT_MALFORMED"


@pytest.mark.parametrize("code", [99, -1, 0, "x", 1e400, None, [1], 2**70])
def test_a_peer_that_gives_up_with_no_code(code):
    error = _pieces.failed({"code": code, "reason": "ODD", "message": "so"}, "far")
    assert (type(error), error.reason, error.message) == (rendez.Unknown, "ODD", "far gave up: so")


def test_a_peer_that_gives_up():
    assert isinstance(_pieces.failed({"code": 5}, "far"), rendez.NotFound)


class Line:
    """One that has said all it will."""

    peer = "far"

    def __init__(self, engine, *said):
        self._said = [self._value(engine, one) for one in said]

    def _value(self, engine, said):
        engine.send((engine.task, engine.task, "said"), said if isinstance(said, bytes) else json.dumps(said).encode())
        return engine.recv((engine.task, engine.task, "said")).wait(10)

    def hear(self):
        return self._said.pop(0)

    def took(self):
        pass


class Holder:
    place = None

    def __init__(self, engine):
        self.engine = engine

    def begin(self, save, name):
        pass


FILE = {"name": "x", "is_weights": True}


def header(**about):
    return json.dumps({"t": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], **about}}).encode()


@pytest.mark.parametrize(
    "said",
    [
        [{"files": 7}],
        [{"files": [7]}],
        [{"files": ["x", None]}],
        [{"files": [FILE | {"bytes": "x"}]}, b"{}"],
        [{"files": [FILE | {"bytes": 1e400}]}, b"{}"],
        [{"files": [FILE | {"bytes": 8 + len(header(shape=[2**70])) + 1}]}, header(shape=[2**70]), b"a"],
        [{"files": [FILE | {"bytes": 8 + len(header(shape=7)) + 1}]}, header(shape=7), b"a"],
        [{"files": [FILE | {"bytes": 8 + len(header(shape=[2**62, 4])) + 1}]}, header(shape=[2**62, 4]), b"a"],
        [{"files": []}],
    ],
)
def test_files_that_are_none(engine, said):
    with pytest.raises(rendez.DataLoss, match="far") as caught:
        _files._taken(Holder(engine), Line(engine, *said), "save")
    assert caught.value.reason in ("CHECKPOINT_MALFORMED", "DATA_MISMATCH")
