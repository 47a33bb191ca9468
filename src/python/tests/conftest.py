"""Engines for the tests: small ones, of which several fit one process and machine."""

import itertools
import os

import pytest

import rendez

_names = itertools.count()

SMALL = {"arena_segment_bytes": "4MiB", "stage_sampling": 0}


def named(job: str) -> str:
    return f"/job:{job}{os.getpid()}x{next(_names)}/task:0"


@pytest.fixture
def engine():
    with rendez.Engine(named("one"), **SMALL) as engine:
        yield engine


@pytest.fixture(scope="module")
def lasting():
    """For many short examples, each in a step of its own."""
    with rendez.Engine(named("lasting"), **SMALL) as engine:
        yield engine


@pytest.fixture
def pair():
    """Two engines that know each other, and hand large values over in place."""
    with rendez.Engine(named("left"), **SMALL) as left, rendez.Engine(named("right"), **SMALL) as right:
        left.add_peer(right.task, right.address)
        yield left, right


def key_of(source, destination, name):
    return rendez.Key(source.task, destination.task, name)


@pytest.fixture
def own(engine):
    """Keys of an engine to itself."""
    return lambda name: key_of(engine, engine, name)


@pytest.fixture(scope="module")
def careful():
    """Two agents without pickle, as they are by default."""
    import callees

    engines, agents = callees.begin(["one", "two"])
    yield agents
    callees.end(engines, agents)


@pytest.fixture(scope="module")
def trusting():
    """Two agents that allow it."""
    import callees

    engines, agents = callees.begin(["one", "two"], allow_pickle=True)
    yield agents
    callees.end(engines, agents)


@pytest.fixture(params=["careful", "trusting"])
def both(request):
    return request.getfixturevalue(request.param)
