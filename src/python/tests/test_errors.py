"""Exceptions: their tree, what they say, and how they travel."""

import copy
import pickle

import pytest

import rendez

CLASSES = [kind for kind in vars(rendez).values() if isinstance(kind, type) and issubclass(kind, rendez.RendezError)]


def test_one_for_each_code():
    codes = {kind.code for kind in CLASSES if kind is not rendez.RendezError}
    assert codes == set(rendez.Code) - {rendez.Code.OK}
    assert len(rendez.Code) == 17
    names = {kind.code.name.replace("_", "").lower(): kind for kind in CLASSES if kind is not rendez.RendezError}
    assert all(kind.__name__.lower() == name for name, kind in names.items())


@pytest.mark.parametrize("kind,other", [
    (rendez.DeadlineExceeded, TimeoutError),
    (rendez.InvalidArgument, ValueError),
    (rendez.Unimplemented, NotImplementedError),
    (rendez.Unavailable, ConnectionError),
    (rendez.PermissionDenied, PermissionError),
    (rendez.NotFound, LookupError),
])
def test_they_are_pythons_own_too(kind, other):
    assert issubclass(kind, other)


@pytest.mark.parametrize("kind", CLASSES)
def test_they_are_pickled(kind):
    error = kind("what happened", "SOME_REASON", True)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (again.message, again.reason, again.secondary) == ("what happened", "SOME_REASON", True)
        assert str(again) == "what happened [SOME_REASON]"


def test_what_they_say(engine):
    with pytest.raises(rendez.InvalidArgument) as caught:
        engine.send("no key", 1)
    assert caught.value.reason.startswith("KEY_")
    assert not caught.value.secondary
    with pytest.raises(rendez.InvalidArgument) as caught:
        engine.send(f"/job:other/task:0->{engine.task};x", 1)
    assert "/job:other" in str(caught.value)


def test_keys_are_pickled():
    key = rendez.Key("a", "b", "x").at(3)
    assert pickle.loads(pickle.dumps(key)) == key
