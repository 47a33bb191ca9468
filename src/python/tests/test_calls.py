"""Remote calls between agents of one process: what travels, and what is refused."""

import math
import operator
import os
import threading
from collections import OrderedDict
from typing import Annotated

import numpy as np
import pytest

import rendez
from callees import (
    at_once,
    counter,
    Counter,
    doubled,
    echo,
    end,
    EVIL,
    Evil,
    fail,
    made_at,
    make_evil,
    make_tensor,
    multiply,
    Own,
    plain_function,
    Point,
    refuse_annotated,
    refuse_plainly,
    unwritable,
)
from conftest import SMALL, named
from rendez import rpc

PLAIN = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64, -(2**200), 1.5, -0.0, math.inf, 1 + 2j,
    "", "ä€𝄞", "\ud800", "x" * 10_000, b"", b"bytes", bytes(10_000), bytearray(b"abc"), bytearray(100_000),
    [], [1, [2, [3]]], (), (1, (2,)), {}, {"a": 1, 2: [3], None: None, (1, 2): b"x"}, {1, 2}, frozenset({"a"}),
    [None] * 1000, list(range(5000)),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: repr(value)[:20])
def test_plain_values(both, value):
    got = both[0].call("two", echo, value)
    assert type(got) is type(value) and got == value
    if isinstance(value, float):
        assert math.copysign(1, got) == math.copysign(1, value)


def test_arguments(both):
    assert both[0].call("two", echo, 1, "b", c=[2]) == ((1, "b"), {"c": [2]})
    assert math.isnan(both[0].call("two", echo, math.nan))
    # To itself too.
    assert both[0].call("one", echo, {"x": (1,)}) == {"x": (1,)}


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (40, 50), (2, 0, 3), (100, 1000)])
def test_arrays(both, dtype, shape):
    array = (np.arange(math.prod(shape)) % 100).astype(dtype).reshape(shape)
    got = both[0].call("two", echo, {"it": array})["it"]
    assert type(got) is np.ndarray and got.dtype == array.dtype and got.shape == shape
    assert not got.flags.writeable
    np.testing.assert_array_equal(got, array)


def test_arrays_of_other_orders(both):
    array = np.arange(60_000).reshape(200, 300)
    for view in (array.T, array[::2, ::3], array[:, 5], np.asfortranarray(array)):
        np.testing.assert_array_equal(both[0].call("two", echo, view), view)
    for scalar in (np.float32(1.5), np.int8(-3), np.bool_(True), np.float64(2.5)):
        got = both[0].call("two", echo, scalar)
        assert type(got) is type(scalar) and got == scalar


def test_tensors(both):
    one, two = both
    made = one.call("two", make_tensor, 5000)
    assert isinstance(made, rendez.Tensor) and made.path == "lease" and made.numpy().sum() == 5000
    again = one.call("two", echo, made_at(one.engine, np.full((30, 100), 2.5)))
    assert again.shape == (30, 100) and again.numpy().sum() == 7500
    room = one.engine.empty(3000, "f32")
    room.numpy()[:] = 2
    # It is sent once, and met twice.
    first, second = one.call("two", echo, room, room)
    assert first.numpy().sum() == second.numpy().sum() == 6000
    with pytest.raises(rendez.FailedPrecondition):
        one.call("two", echo, room)


def test_what_is_sent_back_is_not_copied(both):
    array = np.ones(1_000_000)
    first = both[0].call("two", echo, array)
    again = both[0].call("two", echo, first)
    where = [each.__array_interface__["data"][0] for each in (first, again)]
    # An array that lies in the engine's memory goes as it is, and the same memory comes back.
    assert where[0] == where[1]
    half = first[:500_000]
    assert both[0].call("two", echo, half).sum() == 500_000


def test_what_only_pickle_writes(trusting):
    one, two = trusting
    point = one.call("two", echo, Point(3, np.arange(100_000.0)))
    assert point.x == 3 and point.array.sum() == np.arange(100_000.0).sum()
    assert not point.array.flags.writeable
    # Small buffers too are read only: it does not depend on the size.
    assert not one.call("two", echo, Point(3, np.arange(3))).array.flags.writeable
    ordered = one.call("two", echo, OrderedDict(b=1, a=2))
    assert type(ordered) is OrderedDict and list(ordered) == ["b", "a"]
    assert one.call("two", plain_function, 1) == (1, "plain")
    assert one.call("two", operator.add, 2, 3) == 5 and one.call("two", sorted, [3, 1]) == [1, 3]
    cycle = [1]
    cycle.append(cycle)
    got = one.call("two", echo, cycle)
    assert got[1] is got
    # Tensors and references go beside the pickle.
    reference = rpc.RRef(one, Counter(1))
    carried = one.call("two", echo, Point(reference, made_at(one.engine, np.ones(3000))))
    assert carried.array.numpy().sum() == 3000 and carried.x.rpc_sync().add(1) == 2


@pytest.mark.parametrize("value", [np.datetime64("2020-01-01"), np.timedelta64(3, "ms"), np.str_("text"), np.bytes_(b"bytes"),
                                   np.array((1, 2.5), dtype="i4,f8")[()]], ids=repr)
def test_scalars_that_are_no_numbers(careful, trusting, value):
    for carried in (value, [value], {"x": value}):
        got = trusting[0].call("two", echo, carried)
        assert got == carried
        while isinstance(got, (list, dict)):
            got = got["x"] if isinstance(got, dict) else got[0]
        assert type(got) is type(value) and got.dtype == value.dtype
        with pytest.raises(rendez.PermissionDenied):
            careful[0].call("two", echo, carried)


class Marked(np.ndarray):
    """An array with a mark, as others have a unit."""


@pytest.mark.parametrize("value", [np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0]), np.arange(3).view(Marked),
                                   np.rec.fromarrays([[1, 2], [3.0, 4.0]], names="a,b"), np.arange(3).view(np.recarray)],
                         ids=lambda value: type(value).__name__)
def test_arrays_of_other_classes(careful, trusting, value):
    got = trusting[0].call("two", echo, [value])[0]
    assert type(got) is type(value) and got.tolist() == value.tolist()
    with pytest.raises(rendez.PermissionDenied):
        careful[0].call("two", echo, value)


def test_a_part_of_a_file_is_an_array(both, tmp_path):
    np.arange(1000.0).tofile(tmp_path / "file")
    got = both[0].call("two", echo, np.memmap(tmp_path / "file", mode="r"))
    assert type(got) is np.ndarray and got.nbytes == 8000


def test_tensors_of_a_call_that_does_not_begin_are_given_back(both):
    one, two = both
    room = one.engine.empty(3000)
    room.numpy()[:] = 1
    reference = one.remote("two", Counter, 1)
    one._take_for_foreign("two")
    for call, raised in (
        (lambda: one.call("two", echo, room, threading.Lock()), rendez.RendezError),
        (lambda: one.call("two", "callees.scaled", room, "no number"), rendez.InvalidArgument),
        (lambda: one.remote("two", echo, [room], threading.Lock()), rendez.RendezError),
        (lambda: reference.rpc_sync().add(room, threading.Lock()), rendez.RendezError),
        (lambda: one.call("three", echo, room), rendez.RendezError),
    ):
        with pytest.raises(raised) as caught:
            call()
        assert "PYTHON_SPENT" not in str(caught.value)
    one.signatures("two")
    assert one.call("two", echo, room).numpy().sum() == 3000
    with pytest.raises(rendez.FailedPrecondition) as caught:
        one.call("two", echo, room)
    assert caught.value.reason == "PYTHON_SPENT"


def test_pickle_is_refused_by_default(careful):
    one, two = careful
    assert one.allow_pickle is False
    for call in (
        lambda: one.call("two", plain_function, 1),
        lambda: one.call("two", os.getpid),
        lambda: one.call("two", echo, Point(1, 2)),
        lambda: one.remote("two", echo, [OrderedDict()]),
        lambda: one.call_async("two", counter, Own("x")),
    ):
        with pytest.raises(rendez.PermissionDenied) as caught:
            call()
        # Before anything was sent.
        assert caught.value.reason == "RPC_PICKLE" and "'one'" in str(caught.value)
    # A result that needs it is refused by the worker that has it.
    with pytest.raises(rendez.PermissionDenied) as caught:
        one.call("two", counter, 1)
    assert caught.value.reason == "RPC_PICKLE" and "'two'" in str(caught.value)


def test_a_worker_reads_no_pickle_that_it_does_not_allow():
    names = ["one", "two"]
    engines = [rendez.Engine(named(name), **SMALL) for name in names]
    world = {name: (engine.task, engine.address) for name, engine in zip(names, engines, strict=True)}
    agents = {}

    def start(at, allows):
        agents[at] = rpc.Agent(engines[at], names[at], world=world, allow_pickle=allows)

    at_once([lambda: start(0, True), lambda: start(1, False)])
    one, two = agents[0], agents[1]
    evil = Evil()
    for call in (lambda: one.call("two", echo, evil), lambda: one.call("two", os.getpid)):
        with pytest.raises(rendez.PermissionDenied) as caught:
            call()
        assert caught.value.reason == "RPC_PICKLE" and "'two'" in str(caught.value)
    # And none in an answer.
    with pytest.raises(rendez.PermissionDenied):
        two.call("one", make_evil)
    with pytest.raises(rpc.RemoteError):
        two.call("one", fail, "own", "x")
    assert not EVIL
    end(engines, [one, two])


def test_the_secret_allows_it(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32))
    secret.chmod(0o600)
    with rendez.Engine(named("secret"), cluster_secret_file=str(secret), **SMALL) as engine:
        with rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
            assert agent.allow_pickle is True
        with rpc.Agent(engine, "one", world={"one": engine.task}, allow_pickle=False) as agent:
            assert agent.allow_pickle is False


def test_exceptions(trusting, careful):
    for kind, raised in (("value", ValueError), ("key", KeyError), ("own", Own)):
        with pytest.raises(raised) as caught:
            trusting[0].call("two", fail, kind, "message")
        assert type(caught.value) is raised and caught.value.args == ("message",)
        # Where it was raised is told as its cause.
        assert isinstance(caught.value.__cause__, rpc.RemoteError)
        assert "in fail" in caught.value.__cause__.traceback
        with pytest.raises(rpc.RemoteError) as caught:
            careful[0].call("two", fail, kind, "message")
        error = caught.value
        assert (error.worker, error.reason) == ("two", "RPC_REMOTE_ERROR")
        assert error.type_name.endswith(raised.__name__) and "message" in error.message
        assert "in fail" in error.traceback and "'two'" in str(error)
    # Those of the package's, also without a reason.
    for agents in (trusting, careful):
        with pytest.raises(rendez.NotFound, match="'two': no such row"):
            agents[0].call("two", fail, "missing", "no such row")
    # One that cannot be pickled.
    with pytest.raises(rpc.RemoteError, match="Odd"):
        trusting[0].call("two", fail, "odd", "message")
    # A result that cannot travel.
    with pytest.raises(rendez.InvalidArgument, match="cannot be pickled"):
        trusting[0].call("two", unwritable)
    with pytest.raises(rendez.InvalidArgument, match="cannot be pickled"):
        trusting[0].call("two", echo, threading.Lock())
    # The wrong arguments.
    with pytest.raises(rpc.RemoteError, match="TypeError"):
        careful[0].call("two", counter)


def test_what_cannot_be_called(both):
    one, two = both
    for function in (lambda: 1, Counter(1).add, 5, None, [].append):
        with pytest.raises((rendez.InvalidArgument, rendez.PermissionDenied)) as caught:
            one.call("two", function)
        assert caught.value.reason in ("PYTHON_ARGUMENT", "RPC_PICKLE")
    with pytest.raises(rendez.NotFound) as caught:
        one.call("two", "no.such.function", 1)
    assert caught.value.reason == "RPC_FUNCTION" and "'two'" in str(caught.value)
    with pytest.raises(rendez.NotFound) as caught:
        one.call("nowhere", echo, 1)
    assert caught.value.reason == "RPC_WORKER" and "nowhere" in str(caught.value)
    with pytest.raises(ValueError):
        one.call("two", echo, 1, timeout=-1)
    with pytest.raises(ValueError):
        rpc.function(lambda: 1)
    with pytest.raises(ValueError):
        rpc.function(name="rendez.mine")(plain_function)
    with pytest.raises(ValueError, match="of your own"):
        rpc.function(math.sqrt)


def test_functions_of_other_languages(careful):
    """By their signatures, as Rust's programs and `rendez call` call them."""
    one, two = careful
    told = {text.partition("(")[0]: text for text in one.signatures("two")}
    assert not [name for name in told if name.startswith("rendez.")]
    for worker in ("one", "two"):
        one._take_for_foreign(worker)
    assert told["typed/join"] == "typed/join(Vec<String>,Option<String>,u8,) -> Map<String,i64>"
    assert one.call("two", "typed/join", ["a", "b"], "-", 2) == {"a-ba-b": 2}
    assert one.call("two", "typed/join", ("a", "b"), None, 1) == {"ab": 1}
    tensor, raw = one.call("two", "callees.scaled", np.arange(5000.0), 2)
    assert tensor.numpy().sum() == np.arange(5000.0).sum() * 2 and raw == b"done"
    for arguments in (("a", None, 1), (["a"], None, 256), (["a"], None, "x"), (["a"], None, 1, 1), ([1], None, 1)):
        with pytest.raises(rendez.InvalidArgument) as caught:
            one.call("two", "typed/join", *arguments)
        assert caught.value.reason == "RPC_ARGUMENTS" and "typed/join" in str(caught.value)
    with pytest.raises(rpc.RemoteError, match="times"):
        one.call("two", "typed/join", ["a"], None)
    kept = one.remote("two", "typed/join", ["a"], None, 3)
    assert kept.owner == "two" and kept.to_here() == {"aaa": 3} and kept.to_here_async().wait(30) == {"aaa": 3}
    own = one.remote("one", "typed/join", ["b"], None, 1)
    assert own.to_here() == {"b": 1}
    # It is no object of Python's.
    for use in (own.local_value, lambda: kept.rpc_sync().keys(), lambda: kept.remote().keys()):
        with pytest.raises(rendez.FailedPrecondition, match="`to_here`") as caught:
            use()
        assert caught.value.reason == "RPC_REFERENCE"
    # One without annotations is called by its name too, as Python calls it.
    assert one.call("two", "callees.echo", {1}) == {1}
    assert one.call("two", "typed/join", words=["x"], by=None, times=1) == {"x": 1}
    # Both are known again as what they are.
    for worker in ("one", "two"):
        one.signatures(worker)


def test_a_call_by_name_is_as_one_by_the_function(both):
    one, _ = both

    def told(function, what):
        with pytest.raises(Exception) as caught:
            one.call("two", function, what)
        error = caught.value
        remote = error if isinstance(error, rpc.RemoteError) else error.__cause__
        about = remote and (remote.type_name, remote.message, "in refuse" in remote.traceback)
        return type(error), getattr(error, "reason", None), about

    for what in ("value", "row"):
        ways = (refuse_plainly, "plain/refuse", refuse_annotated, "typed/refuse")
        assert len({told(function, what) for function in ways}) == 1
    assert told("typed/refuse", "row")[:2] == (rendez.NotFound, "CALL_UNKNOWN")
    for function in (doubled, "typed/doubled"):
        for arguments in ((), (2.0,)):
            got = one.call("two", function, np.arange(3.0), *arguments)
            assert type(got) is np.ndarray and got.tolist() == [0, 2, 4]
    for function in (multiply, "typed/multiply"):
        assert one.call("two", function, 2**70, 1) == 2**70
        assert one.remote("one", function, 21, 2).local_value() == 42
        if one.allow_pickle:
            assert one.remote("two", function, 21, 2).rpc_sync().bit_length() == 6


def test_a_call_by_name_may_leave_out_what_has_a_default(careful):
    one, _ = careful
    for function in (multiply, "typed/multiply"):
        assert one.call("two", function, 21) == one.call("two", function, 21, 2) == 42
        assert one.call_async("two", function, 21).wait(30) == 42
        assert one.remote("two", function, 21).to_here() == 42


def test_functions_of_one_agent(engine):
    with rpc.Agent(engine, "one", world=[("one", engine.task)], functions={"mine": lambda number: number + 1}) as agent:
        assert agent.call("one", "mine", 1) == 2
    with pytest.raises(ValueError):
        rpc.Agent(engine, "one", world=[("one", engine.task)], functions={"not mine": print})

    class Worker:
        def __bool__(self):
            return False

        def __call__(self):
            return 7

        def run(self):
            return 8

    with pytest.raises(ValueError, match="two of them are named `run`"):
        rpc.Agent(engine, "one", world=[("one", engine.task)], functions=[Worker().run, Worker().run])
    run = Worker().run
    with rpc.Agent(engine, "two", world=[("two", engine.task)], functions=[run, run]) as agent:
        assert agent.call("two", "run") == 8
    with rpc.Agent(engine, "three", world=[("three", engine.task)], functions={"false": Worker()}) as agent:
        assert agent.call("three", "false") == 7


def test_a_class_among_own_functions_is_not_its_registered_base():
    @rpc.function(name="tests.Base")
    class Base:
        @rpc.function(name="tests.scale")
        def scale(self):
            return 2

    class Derived(Base):
        pass

    table = rpc._functions.table
    assert table([Base]) == {"tests.Base": Base}
    assert table([Derived]) == {"Derived": Derived}
    assert table([Base, Derived]) == {"tests.Base": Base, "Derived": Derived}
    own = Derived()
    assert table([own.scale]) == {"tests.scale": own.scale}


def test_annotations_that_cannot_be_hashed(engine):
    def told(number: Annotated[int, {"min": 1}], more: list[Annotated[int, []]]) -> dict[str, None]:
        return {str(number + sum(more)): None}

    with rpc.Agent(engine, "one", world=[("one", engine.task)], functions={"told": told}) as agent:
        assert "told(i64,Vec<i64>,) -> Map<String,()>" in agent.signatures("one")
        assert agent.call("one", "told", 1, [1]) == {"2": None}


def test_a_list_of_none_has_no_signature(engine):
    """Its items take no bytes, so that no count of them can be judged."""

    def nones(given: list[None]) -> list[None]:
        return [*given, None]

    with rpc.Agent(engine, "one", world=[("one", engine.task)], functions={"nones": nones}) as agent:
        assert not [text for text in agent.signatures("one") if text.startswith("nones")]
        assert agent.call("one", "nones", [None]) == [None, None]


def test_outside_of_calls():
    assert rpc.current() is None
