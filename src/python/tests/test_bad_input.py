"""Whatever Python passes: it raises, or it works. It never takes the process down."""

import copy
import gc
import math
import os
import pickle
import queue
import re
import subprocess
import sys
import textwrap
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

import rendez
from conftest import key_of

EASY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

OBJECTS = [
    None, "text", object(), [1, 2], {1: 2}, {3}, lambda: 1, 2**64, -(2**63) - 1, 10**100, type, rendez, Ellipsis,
    np.array(["text"]), np.array([object()]), np.array([1], dtype=">i4"), np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    np.arange(10)[::2], np.arange(12).reshape(3, 4).T, np.arange(10)[::-1], np.zeros((1,) * 9), np.array("now", "M8[s]"),
    np.datetime64("2020-01-01"), np.timedelta64(1, "s"),
    np.zeros(4, np.longdouble), memoryview(bytes(10))[::2], memoryview(b"abcd").cast("c")[::2],
]


@pytest.mark.parametrize("wrong", OBJECTS, ids=[f"{type(it).__name__}{at}" for at, it in enumerate(OBJECTS)])
@pytest.mark.parametrize("how", [None, False, True])
def test_what_cannot_be_sent(engine, own, wrong, how):
    with pytest.raises((TypeError, ValueError, BufferError)):
        engine.send(own("x"), wrong, copy=how)
    with pytest.raises((TypeError, ValueError, BufferError)):
        engine.recv_into(own("x"), wrong)
    # All is as before.
    engine.send(own("x"), 1)
    assert engine.recv(own("x")).wait(10).item() == 1
    assert engine.pending() == []


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int4", "M8[s]", "m8[ms]", "S3", "U3", "g"])
def test_arrays_without_a_type_here(engine, own, dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    array = np.zeros(4, dtype)
    with pytest.raises(rendez.InvalidArgument, match="rendez has no such type; send their") as caught:
        engine.send(own("x"), array)
    # It works as told.
    view = re.search(r"x\.view\(numpy\.(\w+)\)", str(caught.value))[1]
    engine.send(own("x"), array.view(view))
    assert engine.recv(own("x")).wait(10).numpy().view(dtype).tolist() == array.tolist()


@pytest.mark.parametrize("wrong", [None, 1, b"a->b;x", "", ";", "->", "a->b", "a->;x", "->b;x", ("a", "b"), (1, 2, 3), "a" * 100_000,
                                   "\0", "a->b;\ud800", object()])
def test_what_is_no_key(engine, wrong):
    for call in (lambda: engine.send(wrong, 1), lambda: engine.recv(wrong), lambda: engine.send_dead(wrong)):
        with pytest.raises((TypeError, ValueError)):
            call()


@pytest.mark.parametrize("shape", [-1, (-1,), 2**63, 2**64, (2**40, 2**40), (1,) * 9, "text", None, (1.5,), 10**12, [[1]]])
def test_what_is_no_shape(engine, shape):
    with pytest.raises((TypeError, ValueError, OverflowError, rendez.ResourceExhausted)):
        engine.empty(shape)


@pytest.mark.parametrize("shape", [(2**63, 0), (0, 2**64 - 1)])
def test_a_dimension_that_no_view_can_have(engine, shape):
    room = engine.empty(shape)
    for made in (lambda: room, room.freeze):
        tensor = made()
        assert tensor.shape == shape
        for view in (memoryview, np.asarray, np.from_dlpack):
            with pytest.raises(BufferError, match="dimensions as long as"):
                view(tensor)


@pytest.mark.parametrize("dtype", ["", "f31", object, 7, "string", np.dtype("M8[s]"), np.dtype(object), np.dtype(">f4"),
                                   "torch.qint8"])
def test_what_is_no_dtype(engine, dtype):
    with pytest.raises((TypeError, ValueError)):
        engine.empty((2,), dtype)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_a_shape_that_is_no_number_of_elements(engine, number):
    with pytest.raises(rendez.InvalidArgument, match=f"{number} is no number of elements"):
        engine.empty(number)
    with pytest.raises(rendez.InvalidArgument, match=f"{number},.* is no shape"):
        engine.empty((number, 2))


def test_integers_by_their_names_in_c(engine):
    for kind in (np.short, np.ushort, np.intc, np.uintc, np.int_, np.uint, np.long, np.ulong, np.longlong, np.ulonglong):
        dtype = f"{'i' if np.dtype(kind).kind == 'i' else 'u'}{np.dtype(kind).itemsize * 8}"
        assert engine.empty(3, kind).dtype == engine.empty(3, np.dtype(kind)).dtype == dtype


@pytest.mark.parametrize("seconds", [-1, math.nan, -math.inf, "1", object()])
def test_what_is_no_time(engine, own, seconds):
    with pytest.raises((TypeError, ValueError)):
        engine.recv(own("x"), timeout=seconds)
    with pytest.raises((TypeError, ValueError)):
        engine.recv(own("x")).wait(seconds)
    with pytest.raises((TypeError, ValueError)):
        engine.step(1, deadline=seconds)


@pytest.mark.parametrize("id", [-1, 2**64, 1.5, "1", None])
def test_what_is_no_step(engine, id):
    with pytest.raises((TypeError, OverflowError)):
        engine.step(id)


def test_times_without_bound(engine, own):
    engine.send(own("x"), 1)
    assert engine.recv(own("x"), timeout=math.inf).wait(1e300).item() == 1
    for call in (engine.connect, engine.explain):
        with pytest.raises(ValueError, match="at least 0, or math.inf for no bound"):
            call(engine.task, timeout=-1)


def test_a_peer_is_waited_for_without_bound(pair):
    left, right = pair
    assert left.connect(right.task, timeout=math.inf) and right.task in left.explain(right.task, timeout=1e300)
    right._serve(50, lambda task, payload: payload)
    assert left._call(right.task, 50, b"x", timeout=math.inf) == b"x"


@pytest.mark.parametrize("count", [16, 1000])
def test_bools_that_are_none(engine, own, count):
    wrong = np.full(count, 7, dtype="u1").view("?")
    with pytest.raises(rendez.InvalidArgument):
        engine.send(own("x"), wrong, copy=False)
    # In a copy they are made true.
    engine.send(own("x"), wrong)
    assert engine.recv(own("x")).wait(10).numpy().view("u1").max() == 1


def test_classes_are_not_made_by_hand():
    for kind in (rendez.Tensor, rendez.TensorMut, rendez.Step, rendez.Recv, rendez.Sending, rendez.Operation):
        with pytest.raises(TypeError):
            kind()


def test_hooks_that_fail(engine, own, monkeypatch):
    seen = queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda about: seen.put((about.thread.name, about.exc_type)))
    engine.send(own("x"), np.ones(1000), copy=False, on_release=lambda: 1 / 0)
    engine.recv(own("x")).wait(10).release()
    assert seen.get(timeout=10) == ("rendez-hooks", ZeroDivisionError)
    # Also where nothing was lent, and it is called at once.
    engine.send(own("x"), engine.empty(1000, "u8"), on_release=lambda: [][0])
    assert seen.get(timeout=10) == ("rendez-hooks", IndexError)
    assert engine.recv(own("x")).wait(10).nbytes == 1000


@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_tensor_that_is_pickled_says_what_to_take(engine, own, how):
    engine.send(own("x"), np.ones(3))
    tensor = engine.recv(own("x")).wait(10)
    with pytest.raises(TypeError, match="take `tensor.numpy"):
        how(tensor)


@pytest.mark.parametrize("way", ["send", "send_wait"])
def test_a_hook_that_cannot_be_called(engine, own, way):
    with pytest.raises(TypeError, match="on_release: int cannot be called"):
        getattr(engine.step(1), way)(own("x"), np.ones(1000), on_release=5)
    assert engine.pending() == []


def test_producers_that_lie(engine, own):
    class Lies:
        def __init__(self, capsule, device=(1, 0)):
            self.capsule, self.device = capsule, device

        def __dlpack__(self, **_how):
            if isinstance(self.capsule, Exception):
                raise self.capsule
            return self.capsule

        def __dlpack_device__(self):
            return self.device

    used = np.arange(100).__dlpack__()
    np.from_dlpack(Lies(used))
    wrong = [Lies(None), Lies(1), Lies(used), Lies(np.arange(9).__dlpack__(), (2, 0)), Lies(None, None), Lies(None, (1,)),
             Lies(RuntimeError("no")), Lies(rendez._C_API), Lies(engine._c_engine())]
    for lie in wrong:
        with pytest.raises((TypeError, ValueError, BufferError, RuntimeError, rendez.FailedPrecondition)):
            engine.send(own("x"), lie)
    engine.send(own("x"), 1)
    assert engine.recv(own("x")).wait(10).item() == 1


NUMBERS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]


@EASY
@given(data=some.data())
def test_any_array(lasting, data):
    dtype = data.draw(some.sampled_from(NUMBERS))
    shape = data.draw(some.lists(some.integers(0, 5), max_size=8).filter(lambda it: math.prod(it) <= 3000))
    array = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    array = data.draw(some.sampled_from([array, array.T, array[..., ::2] if array.ndim else array, array[:1] if array.ndim else array]))
    copy = data.draw(some.sampled_from([None, True, False]))
    key = key_of(lasting, lasting, "any")
    with lasting.step(data.draw(some.integers(1, 2**32))) as step:
        fits = array.flags.c_contiguous
        try:
            step.send(key, array, copy=copy)
        except rendez.InvalidArgument:
            assert not fits
        except rendez.Aborted:
            return
        else:
            assert fits
            np.testing.assert_array_equal(step.recv(key, timeout=10).wait().numpy(), array)


@EASY
@given(some.one_of(some.none(), some.booleans(), some.integers(), some.floats(), some.complex_numbers(), some.text(), some.binary(),
                   some.lists(some.integers())))
def test_any_object(lasting, value):
    key = key_of(lasting, lasting, "object")
    try:
        lasting.send(key, value)
    except (TypeError, ValueError):
        return
    got = lasting.recv(key, timeout=10).wait()
    if isinstance(value, bytes):
        assert got.tobytes() == value
    elif value == value:
        assert got.item() == value


@EASY
@given(some.text())
def test_any_key(lasting, text):
    try:
        key = rendez.Key.parse(text)
    except rendez.InvalidArgument:
        return
    assert rendez.Key.parse(str(key)) == key


@EASY
@given(some.text(max_size=30), some.one_of(some.none(), some.booleans(), some.integers(), some.floats(), some.text(max_size=30),
                                           some.lists(some.integers(), max_size=3), some.dictionaries(some.text(max_size=5), some.integers(), max_size=2)))
def test_any_setting(name, value):
    if value is None or name in ("cores", "self"):
        return
    with pytest.raises((rendez.RendezError, TypeError)):
        rendez.Engine("/job:none/task:0", config={name: value, "no such setting": 1})


def test_threads_at_once(engine, own):
    """One tensor and one receive, by many threads: read, released, waited for, given up."""
    made = np.arange(5000)
    for round in range(30):
        engine.send(own("x"), made)
        receive = engine.recv(own("x"))
        start, failures = threading.Barrier(6), []

        def use(what):
            start.wait()
            try:
                tensor = receive.wait(10)
                for _ in range(20):
                    what(tensor)
            except rendez.RendezError:
                pass
            except BaseException as error:
                failures.append(error)

        whats = [lambda it: it.numpy().sum(), lambda it: it.release(), lambda it: np.from_dlpack(it).sum(),
                 lambda it: it.tobytes(), lambda it: receive.cancel(), lambda it: it.reshape((50, 100))]
        threads = [threading.Thread(target=use, args=(what,)) for what in whats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert failures == []
        try:
            engine.recv(own("x"), timeout=0.001).wait()
        except rendez.DeadlineExceeded:
            pass


def python(program, timeout=60):
    """Runs a program of its own."""
    program = "import rendez, os, sys, threading, time\nsmall = {'arena_segment_bytes': '4MiB'}\n" + textwrap.dedent(program)
    return subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], capture_output=True, text=True, timeout=timeout)


EXITS = {
    "engine left running": "e = rendez.Engine('/job:e/task:0', **small)",
    "with a receive": "e = rendez.Engine('/job:e/task:0', **small); r = e.recv('e->e;x').start()",
    "with a tensor": "e = rendez.Engine('/job:e/task:0', **small); e.send('e->e;x', b'a' * 9999); t = e.recv('e->e;x').wait(); v = memoryview(t)",
    "with memory lent": "import array\na = array.array('d', range(9999))\n"
                        "e = rendez.Engine('/job:e/task:0', **small); e.send('e->e;x', a, copy=False, on_release=lambda: None)",
    "in a hook": "e = rendez.Engine('/job:e/task:0', **small); b = threading.Event()\n"
                 "def hook():\n    b.set(); threading.Event().wait()\n"
                 "e.send('e->e;x', bytearray(9999), copy=False, on_release=hook); e.recv('e->e;x').wait().release(); b.wait()",
    "in a daemon's wait": "e = rendez.Engine('/job:e/task:0', **small)\n"
                          "def wait():\n    try: e.recv('e->e;x').wait()\n    except rendez.Aborted: pass\n"
                          "threading.Thread(target=wait, daemon=True).start(); time.sleep(.1)",
    "in a daemon's sends": "e = rendez.Engine('/job:e/task:0', **small)\n"
                           "def send():\n    try:\n        while True: e.send('e->e;x', b'a' * 99); e.recv('e->e;x').wait()\n"
                           "    except rendez.Aborted: pass\n"
                           "threading.Thread(target=send, daemon=True).start(); time.sleep(.1)",
    "in daemons that try again": "e = rendez.Engine('/job:e/task:0', **small); b, s = bytearray(1 << 20), e.step(1)\n"
                                 "def loop(k):\n    while True:\n        try: e.send(k, b); e.recv(k).wait()\n"
                                 "        except Exception: pass\n        try: s.send(k, 1); s.recv(k).wait()\n"
                                 "        except Exception: pass\n"
                                 "for i in range(4): threading.Thread(target=loop, args=(f'e->e;{i}',), daemon=True).start()\n"
                                 "time.sleep(.2)",
    "with a log of a daemon's": "import logging\ne = rendez.Engine('/job:e/task:0', **small)\n"
                                "class H(logging.Handler):\n    def emit(self, record):\n"
                                "        try: e.send('e->e;x', bytearray(1 << 20)); e.recv('e->e;x').wait()\n"
                                "        except rendez.RendezError: pass\n"
                                "logging.root.addHandler(H())\ndef loop():\n    while True: logging.warning('here')\n"
                                "for _ in range(3): threading.Thread(target=loop, daemon=True).start()\ntime.sleep(.2)",
    "with callbacks": "e = rendez.Engine('/job:e/task:0', **small)\ne.recv('e->e;x').add_done_callback(print)",
    "within a step": "e = rendez.Engine('/job:e/task:0', **small)\ns = e.step(1).__enter__()",
    "by sys.exit in with": "with rendez.Engine('/job:e/task:0', **small) as e:\n    sys.exit(0)",
    "in a cycle": "class C: pass\nc = C(); c.c = c; c.e = rendez.Engine('/job:e/task:0', **small)",
    "from atexit": "import atexit\ne = rendez.Engine('/job:e/task:0', **small)\n"
                   "def late():\n    try: e.send('e->e;x', 1)\n    except rendez.RendezError: pass\natexit.register(late)",
    "in __del__": "class D:\n    def __del__(self):\n        try: e.send('e->e;x', 1)\n        except BaseException: pass\n"
                  "e = rendez.Engine('/job:e/task:0', **small); d = D(); sys.d = d",
    "with a failure in __del__": "e = rendez.Engine('/job:e/task:0', **small)\n"
                                 "class D:\n    def __del__(self):\n        try: e.recv('e->e;x').wait()\n"
                                 "        except BaseException as error: assert error.reason == 'SHUTDOWN'\nd = D()",
    "with a loop": "import asyncio\ne = rendez.Engine('/job:e/task:0', **small)\nl = asyncio.new_event_loop()\n"
                   "async def f(): await e.recv('e->e;x')\nt = l.create_task(f()); l.run_until_complete(asyncio.sleep(.05)); t.cancel()\n"
                   "l.run_until_complete(asyncio.gather(t, return_exceptions=True)); l.close()",
}


@pytest.mark.parametrize("how", EXITS)
def test_the_interpreters_exit(how):
    done = python(EXITS[how])
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_a_forked_child():
    done = python("""
        import warnings
        warnings.simplefilter("ignore")
        e = rendez.Engine('/job:e/task:0', **small)
        e.send('e->e;x', b'a' * 9999)
        t, step, r = e.recv('e->e;x').wait(), e.step(1), e.recv('e->e;y').start()
        waited = [e.recv('e->e;z') for _ in range(3)]
        threads = [threading.Thread(target=one.wait) for one in waited]
        for thread in threads: thread.start()
        time.sleep(.1)
        child = os.fork()
        if child == 0:
            calls = [lambda: e.send('e->e;x', 1), lambda: e.recv('e->e;x').wait(), lambda: step.send('e->e;x', 1),
                     lambda: e.pending(), lambda: e.stats(), lambda: rendez.Engine('/job:f/task:0', **small),
                     lambda: e.step(3, deadline=1), lambda: e.connect('/job:f/task:0'),
                     lambda: e.explain('/job:f/task:0'), lambda: e.metrics(),
                     lambda: e.add_peer('/job:f/task:0', '127.0.0.1:1'), lambda: step.abort('x'), lambda: step.finish(),
                     # The threads that waited are not here.
                     lambda: waited[0].wait(5), lambda: (waited[1].done(), waited[1].wait(5)),
                     lambda: (waited[2].cancel(), waited[2].wait(5))]
            for call in calls:
                try:
                    call()
                except rendez.RendezError as error:
                    assert error.reason == 'ENGINE_FORKED', error
                else:
                    raise SystemExit(3)
            assert t.tobytes() == b'a' * 9999
            r.cancel()
            with step: pass
            e.close()
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        e.send('e->e;y', 1)
        assert r.wait(10).item() == 1
        for one, thread in zip(waited, threads):
            e.send('e->e;z', 2)
            thread.join(10)
        assert [one.wait(10).item() for one in waited] == [2, 2, 2]
        """)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_lists_of_nothing_take_no_memory():
    """A shape that a peer says, of which no byte need come."""
    done = python("""
        import numpy as np, resource
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        with rendez.Engine('/job:e/task:0', **small) as e:
            for shape in [(2**40, 0), (2**24, 1, 1, 1, 1, 1, 1, 0)]:
                e.send('e->e;x', np.empty(shape, 'f4'))
                got = e.recv('e->e;x').wait(10)
                try:
                    got.tolist()
                except ValueError as error:
                    assert str(shape) in str(error), error
                else:
                    raise SystemExit(3)
            e.send('e->e;x', np.empty((0, 2**40), 'f4'))
            assert e.recv('e->e;x').wait(10).tolist() == []
    """)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def test_threads_that_ask_for_one_failure():
    program = """
        sys.setswitchinterval(1e-6)
        engine = rendez.Engine('/job:e/task:0', **small)
        receive = engine.recv('e->e;x', timeout=0)
        try: receive.wait()
        except TimeoutError: pass
        def ask():
            for _ in range(20_000):
                try: receive.result()
                except TimeoutError: pass
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """
    done = python(program)
    assert (done.returncode, done.stderr) == (0, "")


def test_leaks(engine, own):
    """Neither memory of Python's nor descriptors."""
    import tracemalloc

    def once():
        for number in range(50):
            array = np.ones(300)
            engine.send(own("x"), array, copy=False if number % 2 else None, on_release=lambda: None)
            got = engine.recv(own("x")).wait(10)
            got.numpy().sum(), np.from_dlpack(got).sum(), memoryview(got)[0], got.tolist()
            made = engine.empty(100)
            made.numpy()[:] = 1
            engine.send(own("y"), made)
            engine.recv(own("y")).wait(10)
            with pytest.raises(rendez.DeadlineExceeded):
                engine.recv(own("z"), timeout=0).wait()
            engine.recv(own("z")).start().cancel()

    # From the first round on: memory from before that is used again would count as new.
    tracemalloc.start()
    for _ in range(10):
        once()
    gc.collect()
    before, fds = tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        once()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    # 500 rounds: a hundred bytes a round would be 50 000.
    assert after - before < 20_000
    assert len(os.listdir("/proc/self/fd")) <= fds


def test_engines_leave_nothing():
    def once():
        with rendez.Engine("/job:gone/task:0", arena_segment_bytes="4MiB") as engine:
            engine.send(key_of(engine, engine, "x"), bytes(5000))
            engine.recv(key_of(engine, engine, "x")).wait(10)

    once()
    gc.collect()
    fds, threads = len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
    for _ in range(5):
        once()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= fds
    assert len(os.listdir("/proc/self/task")) <= threads
