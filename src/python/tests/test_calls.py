"""Remote calls between agents of one process: what travels, what is refused, how calls end."""

import asyncio
import gc
import math
import operator
import os
import threading
import time
from collections import OrderedDict
from typing import Annotated

import pytest

import rendez
from conftest import SMALL, named
from rendez import rpc

np = pytest.importorskip("numpy")


@rpc.function
def echo(*values, **named_values):
    return (values, named_values) if named_values else values[0] if len(values) == 1 else values


@rpc.function
def fail(kind, message):
    raise {"value": ValueError, "key": KeyError, "own": Own, "odd": Odd}[kind](message)


@rpc.function
def nap(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until and not rpc.current().cancelled:
        time.sleep(0.005)
    return rpc.current().cancelled


@rpc.function
async def wait_for(name):
    event = EVENTS.setdefault(name, asyncio.Event())
    STATES[name] = "waits"
    try:
        await event.wait()
    except asyncio.CancelledError:
        STATES[name] = "cancelled"
        raise
    return (name, rpc.current().caller)


@rpc.function
async def release(name):
    EVENTS[name].set()


@rpc.function
def address(array):
    return (array.__array_interface__["data"][0], array.flags.writeable, array.sum())


@rpc.function
def counter(start):
    return Counter(start)


@rpc.function
def broken_counter():
    raise OSError("no counter")


@rpc.function
def add_to(reference, number):
    return reference.rpc_sync().add(number)


@rpc.function
def value_here(reference):
    return reference.local_value().number


@rpc.function
def chain(path, value):
    """Calls on along a path of workers, and back."""
    here = rpc.current().agent
    return [here.name] if not path else [here.name, *here.call(path[0], chain, path[1:], value)]


@rpc.function
async def chain_softly(path):
    """The same, and no thread waits."""
    here = rpc.current().agent
    return [here.name] if not path else [here.name, *await here.call_async(path[0], chain_softly, path[1:])]


@rpc.function(name="typed/join")
def join(words: list[str], by: str | None, times: Annotated[int, "u8"]) -> dict[str, int]:
    return {(by or "").join(words) * times: times}


@rpc.function
def scaled(array: np.ndarray, by: float) -> tuple[rendez.Tensor, bytes]:
    return (array * by, b"done")


@rpc.function
def unwritable():
    return threading.Lock()


EVENTS, STATES = {}, {}


class Own(Exception):
    """One that pickle can write."""


class Odd(Exception):
    """One that it cannot read."""

    def __init__(self, message, *, needed=True):
        super().__init__(message, needed)

    def __reduce__(self):
        raise TypeError("not this one")


@rpc.function
class Counter:
    def __init__(self, number):
        self.number = number

    def add(self, more):
        self.number += more
        return self.number

    async def later(self, more):
        await asyncio.sleep(0.01)
        return self.add(more)

    def _secret(self):
        return "secret"


class Bare:
    def add(self, more):
        return more


@rpc.function
def bare_object():
    return Bare()


class Point:
    def __init__(self, x, array):
        self.x, self.array = x, array


def plain_function(value):
    return (value, "plain")


def begin(names, **settings):
    """Agents of one group, each on an engine of its own."""
    engines = [rendez.Engine(named(name), **SMALL) for name in names]
    world = {name: (engine.task, engine.address) for name, engine in zip(names, engines, strict=True)}
    agents = {}

    def start(name, engine):
        agents[name] = rpc.Agent(engine, name, world=world, **settings)

    at_once([lambda pair=pair: start(*pair) for pair in zip(names, engines, strict=True)])
    return engines, [agents[name] for name in names]


def at_once(functions):
    failures = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]


def end(engines, agents):
    at_once([lambda agent=agent: agent.shutdown(timeout=30) for agent in agents])
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def careful():
    """Two workers without pickle, as they are by default."""
    engines, agents = begin(["one", "two"])
    yield agents
    end(engines, agents)


@pytest.fixture(scope="module")
def trusting():
    """Two workers that allow it."""
    engines, agents = begin(["one", "two"], allow_pickle=True)
    yield agents
    end(engines, agents)


@pytest.fixture(params=["careful", "trusting"])
def both(request):
    return request.getfixturevalue(request.param)


def settled(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        gc.collect()
        rendez._rendez._run_errands()
        time.sleep(0.005)


PLAIN = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64, -(2**200), 1.5, -0.0, math.inf, "", "ä€𝄞", "\ud800", "x" * 10_000,
    b"", b"bytes", bytes(10_000), bytearray(b"abc"), bytearray(100_000), 1 + 2j, [], [1, [2, [3]]], (), (1, (2,)), {},
    {"a": 1, 2: [3], None: None, (1, 2): b"x"}, {1, 2}, frozenset({"a"}), [None] * 1000, list(range(5000)),
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


def made_at(engine, array):
    """A tensor in an engine's memory."""
    room = engine.empty(array.shape, array.dtype)
    room.numpy()[:] = array
    engine.send((engine.task, engine.task, "made"), room)
    return engine.recv((engine.task, engine.task, "made")).wait(10)


@rpc.function
def make_tensor(count):
    room = rpc.current().agent.engine.empty(count, "f64")
    room.numpy()[:] = 1
    return room


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


EVIL = []


def make_evil_now():
    EVIL.append(1)


class Evil:
    def __reduce__(self):
        return (make_evil_now, ())


@rpc.function
def make_evil():
    return Evil()


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


def test_a_function_that_is_not_there(trusting):
    global plain_function
    kept = plain_function
    try:
        # As a worker of another version has it.
        def stand_in(value):
            return value

        stand_in.__qualname__ = stand_in.__name__ = "missing_there"
        stand_in.__module__ = __name__
        globals()["missing_there"] = stand_in
        call = trusting[0].call_async("two", nap, 0.1)
        del globals()["missing_there"]
        with pytest.raises(rendez.InvalidArgument):
            trusting[0].call("two", stand_in, 1)
        call.wait(10)
    finally:
        plain_function = kept


def test_timeouts_and_cancel(both):
    one, two = both
    with pytest.raises(TimeoutError) as caught:
        one.call("two", nap, 30, timeout=0.05)
    # Either side may be the first to see that the time is over: each names the worker.
    assert caught.value.reason == "RPC_TIMEOUT" and "two" in str(caught.value)
    assert one.call("two", nap, 0.01, timeout=math.inf) is False
    call = one.call_async("two", nap, 30)
    with pytest.raises(TimeoutError):
        call.wait(0.01)
    assert not call.done() and call.cancel() and call.cancelled()
    with pytest.raises(rendez.Cancelled) as caught:
        call.wait()
    assert caught.value.reason == "RPC_CANCELLED"


def test_asyncio(both):
    one, two = both

    async def main():
        got = await asyncio.gather(*(one.call_async("two", echo, number) for number in range(100)))
        assert got == list(range(100))
        with pytest.raises((KeyError, rpc.RemoteError)):
            await one.call_async("two", fail, "key", "k")
        # Coroutines hold no thread of the pool: more of them wait than it has threads.
        waiting = [one.call_async("two", wait_for, f"many{id(one)}") for _ in range(64)]
        await one.call_async("two", echo, 1)
        while STATES.get(f"many{id(one)}") != "waits":
            await asyncio.sleep(0.01)
        await one.call_async("two", release, f"many{id(one)}")
        assert set(await asyncio.gather(*waiting)) == {(f"many{id(one)}", "one")}

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_cancelled_task_cancels_the_call(both):
    one, two = both
    name = f"cancelled{id(one)}"

    async def main():
        task = asyncio.create_task(anext_of(one.call_async("two", wait_for, name)))
        while STATES.get(name) != "waits":
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The coroutine at the other side hears so.
        while STATES.get(name) != "cancelled":
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


async def anext_of(call):
    return await call


def test_callbacks(both):
    ended = threading.Event()
    both[0].call_async("two", echo, 7).add_done_callback(lambda call: call.result() == 7 and ended.set())
    assert ended.wait(30)


def test_references(both):
    one, two = both
    reference = one.remote("two", counter, 5)
    assert (reference.owner, reference.owner_id, reference.is_owner) == ("two", 1, False)
    assert reference.rpc_sync().add(1) == 6
    assert reference.rpc_async().add(1).wait(30) == 7
    assert reference.rpc_sync(timeout=30).later(1) == 8
    # As an argument, to its owner and round to its maker.
    assert one.call("two", add_to, reference, 1) == 9
    assert one.call("one", add_to, reference, 1) == 10
    assert one.call("two", value_here, reference) == 10
    back = one.call("two", echo, [reference])[0]
    assert back.rpc_sync().add(0) == 10 and not back.is_owner
    # A class is called as a function is.
    made = one.remote("two", Counter, 3)
    assert made.rpc_sync().add(1) == 4
    # The result of a method that stays.
    kept = reference.remote().add(5)
    assert kept.to_here() == 15 and kept.to_here_async().wait(30) == 15
    with pytest.raises(rendez.FailedPrecondition) as caught:
        reference.local_value()
    assert caught.value.reason == "RPC_REFERENCE"
    mine = rpc.RRef(one, Counter(1))
    assert mine.is_owner and mine.owner == "one" and mine.local_value() is mine.to_here()
    assert one.call("two", add_to, mine, 2) == 3 and mine.local_value().number == 3
    own = one.remote("one", counter, 4)
    assert own.is_owner and own.local_value().number == 4
    coroutine = one.remote("two", released_later)
    assert coroutine.to_here() == "later"


@rpc.function
async def released_later():
    await asyncio.sleep(0.01)
    return "later"


def test_references_that_fail(both):
    one, two = both
    failed = one.remote("two", broken_counter)
    for use in (failed.to_here, lambda: failed.rpc_sync().add(1)):
        with pytest.raises((OSError, rpc.RemoteError), match="no counter"):
            use()
    reference = one.remote("two", counter, 1)
    with pytest.raises(rendez.NotFound) as caught:
        reference.rpc_sync().no_such_method()
    assert caught.value.reason == "RPC_FUNCTION"
    if one.allow_pickle:
        assert reference.rpc_sync()._secret() == "secret" and reference.to_here().number == 1
    else:
        array = one.remote("two", echo, np.ones(3))
        bare = one.remote("two", bare_object)
        for use in (
            reference.to_here,
            lambda: reference.rpc_sync()._secret(),
            # What others have left there is not theirs to call.
            lambda: array.rpc_sync().tofile("/dev/null"),
            lambda: bare.rpc_sync().add(1),
        ):
            with pytest.raises(rendez.PermissionDenied) as caught:
                use()
            assert caught.value.reason == "RPC_PICKLE"
    with pytest.raises(AttributeError):
        reference.rpc_sync().number = 5
    with pytest.raises(Exception, match="cannot be pickled"):
        __import__("pickle").dumps(reference)


def test_values_are_freed(both):
    one, two = both
    gone = []

    class Held(Counter):
        def __del__(self):
            gone.append(self.number)

    mine = rpc.RRef(one, Held(77))
    assert one.call("two", add_to, mine, 1) == 78
    assert not gone
    del mine
    settled(lambda: gone == [78])


def test_values_are_freed_while_the_main_thread_waits(both):
    held = threading.Lock()
    held.acquire()

    class Held:
        def __del__(self):
            held.release()

    mine = rpc.RRef(both[0], Held())
    del mine
    assert held.acquire(timeout=30)


def test_calls_that_call_on(both):
    # Deeper than the pool has threads.
    path = ["one", "two"] * 20
    assert both[0].call("two", chain, path, 1) == ["two", *path]
    assert both[0].call("two", chain_softly, path) == ["two", *path]


def test_many_threads(both):
    def work(worker):
        for number in range(100):
            assert both[worker % 2].call(["two", "one"][worker % 2], echo, (worker, number)) == (worker, number)

    at_once([lambda worker=worker: work(worker) for worker in range(8)])


def test_functions_of_other_languages(careful):
    """By their signatures, as Rust's programs and `rendez call` call them."""
    one, two = careful
    told = {text.partition("(")[0]: text for text in one.signatures("two")}
    assert told["typed/join"] == "typed/join(Vec<String>,Option<String>,u8,) -> Map<String,i64>"
    assert one.call("two", "typed/join", ["a", "b"], "-", 2) == {"a-ba-b": 2}
    assert one.call("two", "typed/join", ("a", "b"), None, 1) == {"ab": 1}
    tensor, raw = one.call("two", f"{__name__}.scaled", np.arange(5000.0), 2)
    assert tensor.numpy().sum() == np.arange(5000.0).sum() * 2 and raw == b"done"
    for arguments in (("a", None, 1), (["a"], None, 256), (["a"], None, "x"), (["a"], None), ([1], None, 1)):
        with pytest.raises(rendez.InvalidArgument) as caught:
            one.call("two", "typed/join", *arguments)
        assert caught.value.reason == "RPC_ARGUMENTS" and "typed/join" in str(caught.value)
    kept = one.remote("two", "typed/join", ["a"], None, 3)
    assert kept.owner == "two" and kept.to_here() == {"aaa": 3} and kept.to_here_async().wait(30) == {"aaa": 3}
    assert one.remote("one", "typed/join", ["b"], None, 1).to_here() == {"b": 1}
    # One without annotations is called by its name too, as Python calls it.
    assert one.call("two", f"{__name__}.echo", {1}) == {1}
    assert one.call("two", "typed/join", words=["x"], by=None, times=1) == {"x": 1}


def test_functions_of_one_agent(engine):
    with rpc.Agent(engine, "one", world=[("one", engine.task)], functions={"mine": lambda number: number + 1}) as agent:
        assert agent.call("one", "mine", 1) == 2
    with pytest.raises(ValueError):
        rpc.Agent(engine, "one", world=[("one", engine.task)], functions={"not mine": print})


def test_groups_that_do_not_come_up(engine, tmp_path):
    for arguments in ({}, {"world": {}, "store": "x:1"}, {"store": "nonsense"}, {"store": tmp_path / "s", "size": 0},
                      {"world": {"one": ("a", "b", "c")}}, {"world": {"one": engine.task}, "size": 3}):
        with pytest.raises(ValueError):
            rpc.Agent(engine, "one", **arguments)
    with pytest.raises(rendez.FailedPrecondition) as caught:
        rpc.Agent(engine, "one", world={"two": engine.task})
    assert caught.value.reason == "RPC_GROUP"
    with pytest.raises(TimeoutError) as caught:
        rpc.Agent(engine, "one", world={"one": engine.task, "two": "/job:absent/task:0"}, init_timeout=0.1)
    assert caught.value.reason == "RPC_INIT" and "two" in str(caught.value)
    with pytest.raises(ValueError):
        rpc.Agent(engine, "no name", world={"no name": engine.task})
    # The engine is as it was.
    with rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
        assert agent.call("one", echo, 1) == 1
        with pytest.raises(rendez.FailedPrecondition):
            rpc.Agent(engine, "one", world={"one": engine.task})


def test_meeting_through_a_store(tmp_path):
    with rpc.Store() as store:
        for place in (store, f"tcp://{store.address}", tmp_path / "group", f"file://{tmp_path}/other"):
            engines = [rendez.Engine(named(name), **SMALL) for name in ("one", "two")]
            agents = [None, None]

            def start(at, place=place, engines=engines, agents=agents):
                agents[at] = rpc.Agent(engines[at], ["one", "two"][at], store=place, size=2)

            at_once([lambda: start(0), lambda: start(1)])
            assert agents[0].call("two", echo, 1) == 1
            assert {worker.name for worker in agents[1].workers} == {"one", "two"}
            end(engines, agents)


def test_a_stopped_agent(engine):
    agent = rpc.Agent(engine, "one", world={"one": engine.task})
    reference = rpc.RRef(agent, 5)
    call = agent.call_async("one", nap, 30)
    agent.shutdown(graceful=False)
    assert agent.closed
    agent.shutdown()
    for use in (lambda: agent.call("one", echo, 1), lambda: agent.remote("one", echo, 1), lambda: rpc.RRef(agent, 1),
                lambda: agent.workers, reference.to_here, lambda: reference.rpc_sync().x()):
        with pytest.raises(rendez.FailedPrecondition) as caught:
            use()
        assert caught.value.reason == "RPC_SHUTDOWN"
    with pytest.raises(rendez.RendezError):
        call.wait(30)


def test_an_exception_leaves_at_once(engine):
    with pytest.raises(ZeroDivisionError):
        with rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
            agent.call_async("one", nap, 30)
            1 / 0
    assert agent.closed


def test_an_engine_that_ends_ends_calls():
    engine = rendez.Engine(named("ends"), **SMALL)
    agent = rpc.Agent(engine, "one", world={"one": engine.task})
    call = agent.call_async("one", nap, 30)
    engine.close()
    with pytest.raises(rendez.RendezError):
        call.wait(30)
    with pytest.raises(rendez.RendezError):
        agent.call("one", echo, 1, timeout=5)
    agent.shutdown(graceful=False)


def test_async_with():
    async def main():
        async with rendez.Engine(named("async"), **SMALL) as engine:
            async with rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
                assert await agent.call_async("one", echo, 1) == 1
            assert agent.closed

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_function_cannot_shut_its_own_worker_down(careful):
    with pytest.raises(rendez.FailedPrecondition) as caught:
        careful[0].call("two", leave)
    assert caught.value.reason == "RPC_SHUTDOWN"
    assert careful[0].call("two", echo, 1) == 1


@rpc.function
def leave():
    rpc.current().agent.shutdown()


def test_outside_of_calls():
    assert rpc.current() is None
