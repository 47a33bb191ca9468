"""What calls must survive: any plain value, any bytes of another worker, a fork, and the interpreter's end."""

import asyncio
import gc
import math
import os
import struct
import sys
import time
import tracemalloc
import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rendez
from conftest import SMALL, named
from rendez import rpc
from test_bad_input import python

MANY = settings(deadline=None, max_examples=300, suppress_health_check=list(HealthCheck))

KEYS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters()), st.binary(),
    st.tuples(st.integers(), st.text()), st.frozensets(st.integers()),
)
LEAVES = st.one_of(KEYS, st.floats(), st.complex_numbers(), st.binary(max_size=5000), st.text(max_size=3000),
                   st.binary().map(bytearray), st.integers(-(2**300), 2**300))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(KEYS, inner), st.sets(KEYS)),
    max_leaves=40,
)
BYTES = st.one_of(
    st.binary(max_size=200),
    # Almost right: a value of some kind, or an exception, and what may follow.
    st.tuples(st.sampled_from([b"\0\0", b"\0\1", b"\1", b"\0"]), st.binary(max_size=200)).map(b"".join),
    st.tuples(st.integers(0, 20), st.binary(max_size=60)).map(lambda it: bytes([0, 0, it[0]]) + it[1]),
)


@rpc.function
def back(value):
    return value


@pytest.fixture(scope="module")
def agent():
    with rendez.Engine(named("bad"), **SMALL) as engine, rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
        yield agent


@pytest.fixture(scope="module")
def trusting():
    with rendez.Engine(named("bad"), **SMALL) as engine:
        with rpc.Agent(engine, "one", world={"one": engine.task}, allow_pickle=True) as agent:
            yield agent


def same(left, right):
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return left == right


@MANY
@given(VALUES)
def test_any_plain_value(agent, value):
    assert same(agent.call("one", back, value), value)


@MANY
@given(BYTES)
def test_any_bytes(agent, data):
    try:
        agent._read(data)
    except (rendez.RendezError, TypeError, ValueError, OverflowError):
        pass


@MANY
@given(BYTES)
def test_any_bytes_where_pickle_is_allowed(trusting, data):
    # The bytes of a pickle are the other's to choose: what it runs is not judged here, and it is none of these.
    if data[:2] == b"\0\1":
        data = b"\0\0" + data[2:]
    try:
        trusting._read(data)
    except Exception:
        pass


def test_counts_that_lie(agent):
    """A count that nothing follows takes no memory."""
    tracemalloc.start()
    for kind in (10, 11, 12, 13, 14, 7, 8, 9, 4):
        for count in (b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 12):
            with pytest.raises(rendez.RendezError) as caught:
                agent._read(bytes([0, 0, kind]) + count)
            assert caught.value.reason == "RPC_ARGUMENTS"
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_deep_values(agent, trusting):
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(rendez.PermissionDenied):
        agent.call("one", back, value)
    with pytest.raises(rendez.InvalidArgument, match="too deep"):
        trusting.call("one", back, value)
    with pytest.raises(rendez.RendezError):
        agent._read(b"\0\0" + bytes([10, 1]) * 100_000 + b"\0")
    while value:
        value = value[0]
    deep = 0
    for _ in range(100):
        deep = (deep,)
    assert agent.call("one", back, deep) == deep


def test_huge_values(agent):
    many = [np.zeros(10)] * 5000
    with pytest.raises(rendez.RendezError) as caught:
        agent.call("one", back, many)
    assert caught.value.reason == "RPC_ARGUMENTS"
    with pytest.raises(rendez.RendezError):
        # More than any machine has; no page of it is touched.
        agent.call("one", back, np.broadcast_to(np.int8(1), (1 << 46,)))
    # Of bytes and texts there may be more: what is not carried beside the others is among them.
    for one in (bytes(2049), bytearray(2049), "x" * 2049):
        assert agent.call("one", back, [one] * 4200) == [one] * 4200
    assert agent.call("one", back, list(range(300_000)))[-1] == 299_999
    assert len(agent.call("one", back, "ä" * 10_000_000)) == 10_000_000


@rpc.function(name="typed/rows")
def rows(array: np.ndarray) -> int:
    return len(array)


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_values_for_which_the_arena_has_no_room(allow_pickle):
    """It says so, and not that they would need pickle."""
    with rendez.Engine(named("narrow"), arena_bytes="1MiB", arena_segment_bytes="1MiB", stage_sampling=0) as engine:
        with rpc.Agent(engine, "one", world={"one": engine.task}, allow_pickle=allow_pickle) as agent:
            for function in (back, "typed/rows"):
                with pytest.raises(rendez.ResourceExhausted):
                    agent.call("one", function, np.zeros(1 << 21))
                agent.call("one", function, np.zeros(1 << 10))


def test_arrays_that_are_none(agent):
    for array in (np.array([object()]), np.array(["a"]), np.zeros(2, "M8[s]"), np.zeros(3, [("x", "i4")])):
        with pytest.raises(rendez.PermissionDenied) as caught:
            agent.call("one", back, array)
        assert "ndarray" in str(caught.value)


def test_a_value_that_misbehaves(agent, trusting):
    class Bad:
        def __reduce__(self):
            raise KeyError("no")

        def __getattr__(self, name):
            raise RuntimeError(name)

    for each in (agent, trusting):
        with pytest.raises((rendez.RendezError, RuntimeError)):
            each.call("one", back, Bad())


class Rude(Exception):
    def __str__(self):
        raise RuntimeError


@rpc.function
def rude():
    raise Rude


@rpc.function
def leaves():
    sys.exit(3)


def test_exceptions_that_misbehave(agent, trusting):
    for each in (agent, trusting):
        with pytest.raises((rpc.RemoteError, Rude)):
            each.call("one", rude)
        # What would end the program there ends nothing here.
        with pytest.raises(rpc.RemoteError, match="SystemExit"):
            each.call("one", leaves)
        # Nor does it where a reference to its result is opened.
        reference = each.remote("one", leaves)
        for use in (reference.local_value, reference.to_here):
            with pytest.raises(rpc.RemoteError, match="SystemExit"):
                use()


def test_calls_that_fail_keep_nothing(trusting):
    class Batch:
        pass

    batches = weakref.WeakSet()

    def waits():
        batches.add(batch := Batch())
        call = trusting.call_async("one", fails)
        for _ in range(2):
            with pytest.raises(KeyError, match="fails") as caught:
                call.wait()
            del caught
        with pytest.raises(KeyError, match="fails"):
            call.result()
        assert batch is not None

    async def awaits():
        batches.add(batch := Batch())
        try:
            await trusting.call_async("one", fails)
        except KeyError:
            pass
        assert batch is not None

    async def all_of_them():
        for _ in range(3):
            await awaits()

    def receives():
        batches.add(batch := Batch())
        receive = trusting.engine.recv((trusting.engine.task, trusting.engine.task, "never"), timeout=0)
        with pytest.raises(rendez.DeadlineExceeded):
            receive.wait()
        assert batch is not None

    for _ in range(3):
        waits()
        receives()
    gc.collect()
    assert len(batches) == 0
    gc.disable()
    try:
        asyncio.run(all_of_them())
        assert len(batches) == 0
    finally:
        gc.enable()


def test_leaks(trusting):
    """Neither memory of Python's nor descriptors."""

    def once():
        for number in range(20):
            trusting.call("one", back, np.ones(3000)).sum()
            trusting.call("one", back, Kept(number))
            reference = trusting.remote("one", Kept, number)
            reference.rpc_sync().get()
            trusting.call_async("one", back, number).cancel()
            with pytest.raises(rendez.RendezError):
                trusting.call("one", "missing")
            with pytest.raises(KeyError):
                trusting.call("one", fails)
            assert trusting.call("one", later) is None

    def held():
        until = time.monotonic() + 30
        while trusting.references():
            assert time.monotonic() < until, trusting.references()
            time.sleep(0.005)
        gc.collect()
        rendez._rendez._run_errands()
        return (tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd")))

    for _ in range(3):
        once()
    tracemalloc.start()
    once()
    before, fds = held()
    for _ in range(10):
        once()
    after, fds_after = held()
    tracemalloc.stop()
    # 200 rounds: a thousand bytes a round would be 200 000.
    assert after - before < 100_000 and fds_after <= fds


@rpc.function
class Kept:
    def __init__(self, number):
        self.number = number

    def get(self):
        return self.number


@rpc.function
def fails():
    raise KeyError("fails")


@rpc.function
async def later():
    await asyncio.sleep(0)


BEGIN = """
from rendez import rpc
@rpc.function
def back(value): return value
@rpc.function
def nap(seconds): time.sleep(seconds); return 1
@rpc.function
async def softly(seconds):
    import asyncio
    await asyncio.sleep(seconds)
e = rendez.Engine('/job:e/task:0', **small)
a = rpc.Agent(e, 'one', world={'one': e.task})
"""
EXITS = {
    "left running": "",
    "with a reference": "r = a.remote('one', back, 1); q = rpc.RRef(a, object())",
    "with a result in place": "import numpy as np\nx = a.call('one', back, np.ones(100_000))",
    "with a call under way": "c = a.call_async('one', nap, 0.3)",
    "with a coroutine under way": "c = a.call_async('one', softly, 100); time.sleep(.1)",
    "with a coroutine left there": "r = a.remote('one', softly, 100); time.sleep(.1)",
    "with a callback": "a.call_async('one', nap, 0.1).add_done_callback(lambda call: None)",
    "in a daemon's calls": "def calls():\n    try:\n        while True: a.call('one', back, 1)\n"
                           "    except rendez.RendezError: pass\n"
                           "threading.Thread(target=calls, daemon=True).start(); time.sleep(.2)",
    "in a daemon's wait": "def waits():\n    try: a.call('one', softly, 100)\n    except rendez.RendezError: pass\n"
                          "threading.Thread(target=waits, daemon=True).start(); time.sleep(.1)",
    "by sys.exit in with": "with a: sys.exit(0)",
    "in a cycle": "class C: pass\nc = C(); c.c = c; c.a = a; c.r = rpc.RRef(a, c)",
    "from atexit": "import atexit\ndef late():\n    try: a.call('one', back, 1)\n    except rendez.RendezError: pass\n"
                   "atexit.register(late)",
    "with an engine that was closed": "e.close()",
    "with an event loop": "import asyncio\nasync def main():\n    t = asyncio.ensure_future(wait())\n"
                          "    await asyncio.sleep(.05)\n    t.cancel()\n"
                          "async def wait(): await a.call_async('one', softly, 100)\nasyncio.run(main())",
}


@pytest.mark.parametrize("how", EXITS)
def test_the_interpreters_exit(how):
    done = python(BEGIN + EXITS[how])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_forked_child():
    # `python` dedents: what follows stands at the left already.
    done = python(BEGIN + """
import warnings
warnings.simplefilter("ignore")
r, c = rpc.RRef(a, 5), a.call_async('one', softly, 0.2)
child = os.fork()
if child == 0:
    calls = [lambda: a.call('one', back, 1), lambda: a.call_async('one', back, 1), lambda: a.remote('one', back, 1),
             lambda: r.to_here(), lambda: a.workers, lambda: c.wait(5), lambda: a.shutdown(),
             lambda: rpc.Agent(e, 'two', world={'two': e.task})]
    for call in calls:
        try:
            call()
        except rendez.RendezError as error:
            assert error.reason == 'ENGINE_FORKED', error
        else:
            raise SystemExit(3)
    del r, c, a
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
c.wait(10)
assert a.call('one', back, 1) == 1 and r.to_here() == 5
""")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_signals_are_heard():
    done = python(BEGIN + """
import signal
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(OSError('alarm')))
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    a.call('one', softly, 100)
except OSError as error:
    assert str(error) == 'alarm'
else:
    raise SystemExit(3)
f = rendez.Engine('/job:f/task:0', **small)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    rpc.Agent(f, 'two', world={'two': f.task, 'three': '/job:absent/task:0'}, group='other')
except OSError as error:
    assert str(error) == 'alarm'
else:
    raise SystemExit(4)
""")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
