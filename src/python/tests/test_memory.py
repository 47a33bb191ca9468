"""Tensors: what is sent, how it is seen, who keeps it, and how the memory comes home."""

import array
import asyncio
import concurrent.futures
import ctypes
import gc
import math
import queue
import sys
import threading
import time
import tracemalloc
import weakref

import numpy as np
import pytest

import rendez
from conftest import SMALL, key_of, named

TYPES = {
    "bool": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32",
    "i64": "int64", "u64": "uint64", "f16": "float16", "f32": "float32", "f64": "float64", "c64": "complex64",
    "c128": "complex128",
}


def over(engine, key, value, **how):
    engine.send(key, value, **how)
    return engine.recv(key, timeout=10).wait()


@pytest.mark.parametrize("ours,theirs", TYPES.items())
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0, 3), (4, 5), (1, 2, 3, 4, 1, 1, 2, 1)])
def test_arrays_keep_type_and_shape(engine, own, ours, theirs, shape):
    count = math.prod(shape)
    sent = (np.arange(count) % 2 if ours == "bool" else np.arange(count)).astype(theirs).reshape(shape)
    got = over(engine, own("x"), sent)
    assert (got.dtype, got.shape, got.nbytes) == (ours, shape, sent.nbytes)
    for array in (got.numpy(), np.from_dlpack(got), np.asarray(memoryview(got))):
        assert array.dtype == sent.dtype and array.shape == shape
        np.testing.assert_array_equal(array, sent)
        assert not array.flags.writeable
    assert got.tolist() == sent.tolist()


def test_numbers(engine, own):
    for sent, dtype in [(True, "bool"), (-5, "i64"), (2**63, "u64"), (0.25, "f64"), (1 + 2j, "c128")]:
        got = over(engine, own("x"), sent)
        assert (got.item(), got.dtype, got.shape) == (sent, dtype, ())
    assert float(over(engine, own("x"), 2)) == 2.0
    assert int(over(engine, own("x"), 2.5)) == 2
    assert not over(engine, own("x"), 0)
    for scalar in (np.float32(1.5), np.int8(-3), np.bool_(True), np.float64(2.5)):
        got = over(engine, own("x"), scalar)
        assert got.numpy().dtype == scalar.dtype and got.item() == scalar.item()


@pytest.mark.parametrize("read", [bool, float, int, lambda tensor: tensor.item()])
def test_a_tensor_of_many_is_no_number_at_once(engine, own, read):
    got = over(engine, own("x"), np.ones(1 << 18), copy=False)
    tracemalloc.start()
    with pytest.raises(ValueError, match="262144 elements is no single number"):
        read(got)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert over(engine, own("x"), np.full((1, 1), 3)).item() == 3


def test_bfloat16(engine, own):
    import ml_dtypes

    sent = np.array([[1.5, -2, 0.25]], dtype=ml_dtypes.bfloat16)
    got = over(engine, own("x"), sent)
    assert (got.dtype, got.shape, got.tolist()) == ("bf16", (1, 3), [[1.5, -2.0, 0.25]])
    assert got.numpy().dtype == sent.dtype
    np.testing.assert_array_equal(got.numpy(), sent)
    with pytest.raises(BufferError, match="bf16"):
        memoryview(got)
    made = engine.empty((4,), ml_dtypes.bfloat16)
    made.numpy()[:] = [1, 2, 3, 4]
    assert over(engine, own("x"), made).tolist() == [1, 2, 3, 4]


def test_buffers_of_pythons_own(engine, own):
    for sent in (b"abc" * 100, bytearray(b"abc" * 100), memoryview(b"abc" * 100)):
        assert over(engine, own("x"), sent).tobytes() == bytes(sent)
    assert over(engine, own("x"), array.array("d", [1, 2, 3])).tolist() == [1, 2, 3]
    assert over(engine, own("x"), memoryview(bytes(24)).cast("q", [3, 1])).shape == (3, 1)


@pytest.mark.parametrize("shape,fits", [((), True), ((3,), True), ((1, 3), True), ((3, 1), True), ((0, 2, 3), True),
                                        ((2, 3), False), ((2, 1, 3), False)])
def test_buffers_in_the_order_of_fortran(engine, own, shape, fits):
    ask, give_back = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    ask.argtypes, give_back.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]
    strides = 0x10 | 0x08
    fortran, either, ours = 0x40 | strides, 0x80 | strides, 0x20 | strides
    for value in (over(engine, own("x"), np.zeros(shape)), engine.empty(shape)):
        for flags in (ours, either, fortran):
            view = ctypes.create_string_buffer(256)
            if flags == fortran and not fits:
                with pytest.raises(BufferError, match="order"):
                    ask(value, view, flags)
            else:
                assert ask(value, view, flags) == 0
                give_back(view)


def test_what_is_sent_may_change_at_once(engine, own):
    sent = np.ones(1000)
    engine.send(own("x"), sent)
    sent[:] = 2
    assert engine.recv(own("x")).wait(10).numpy().sum() == 1000


def test_what_a_send_refused_can_be_sent_again(engine, own):
    room = engine.empty(1000)
    room.numpy()[:] = 3
    step = engine.step(7)
    step.abort()
    for _ in range(2):
        with pytest.raises(rendez.Aborted):
            step.send(own("x"), room)
    with pytest.raises(rendez.FailedPrecondition):
        room.numpy()
    with pytest.raises(rendez.Aborted):
        step.send(own("x"), frozen := engine.empty(10))
    assert len(frozen.freeze()) == 10
    engine.send(own("x"), room)
    assert engine.recv(own("x")).wait(10).numpy().sum() == 3000
    with pytest.raises(rendez.FailedPrecondition) as caught:
        engine.send(own("x"), room)
    assert caught.value.reason == "PYTHON_SPENT"


def test_what_waited_for_room_in_vain_can_be_sent_again(engine, own):
    room = engine.empty(1000)
    room.numpy()[:] = 3
    step = engine.step(7)
    step.abort()
    with pytest.raises(rendez.Aborted):
        step.send_wait(own("x"), room).wait()
    settings = {**SMALL, "parked_bytes": 65536, "parked_bytes_per_step": 65536}
    with rendez.Engine(named("full"), **settings) as full:
        key = key_of(full, full, "x")
        with pytest.raises(rendez.ResourceExhausted):
            while True:
                full.step(1).send(key, bytes(1024))
        with pytest.raises(rendez.DeadlineExceeded):
            full.step(1).send_wait(key, room, timeout=0.01).wait()
        waits = full.step(1).send_wait(key, room)
        assert waits.cancel()
        asyncio.run(gives_up(full.step(1).send_wait(key, room)))
    engine.step(8).send_wait(own("x"), room).wait(10)
    assert engine.step(8).recv(own("x")).wait(10).numpy().sum() == 3000
    with pytest.raises(rendez.FailedPrecondition):
        engine.send(own("x"), room)


async def gives_up(sending):
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(sending, 0.01)


def in_a_thread(function):
    """What it returns in a thread that is not the main one, while that has nothing to do."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(30)


@pytest.mark.parametrize("length", [8, 1000, 1 << 20])
def test_a_copy_gives_the_memory_back_in_any_thread(engine, own, length):
    class Lender:
        def __init__(self, array):
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    def grow():
        sent = bytearray(length)
        engine.send(own("x"), sent)
        sent.append(1)
        room = bytearray(length)
        engine.recv_into(own("x"), room).wait(10)
        room.append(1)
        given_up = engine.recv_into(own("x"), room).start()
        given_up.cancel()
        room.append(1)
        with memoryview(sent) as view:
            engine.send(own("x"), view)
        array = np.zeros(length, "u1")
        kept = weakref.ref(array)
        engine.send(own("x"), Lender(array))
        del array
        assert kept() is None
        for _ in range(2):
            engine.recv(own("x")).wait(10)

    for _ in range(20):
        in_a_thread(grow)


def test_in_place_and_its_release(engine, own):
    sent, released = np.ones(100_000), threading.Event()
    engine.send(own("x"), sent, copy=False, on_release=released.set)
    got = engine.recv(own("x")).wait(10)
    sent[0] = 5
    assert got.numpy()[0] == 5
    assert not released.is_set()
    got.release()
    assert released.wait(10)


def test_a_release_is_heard_while_the_main_thread_waits_for_it(engine, own):
    released, over = threading.Event(), threading.Event()

    def read():
        engine.recv(own("x")).wait(10).release()
        # It calls nothing of rendez's until then, either.
        over.wait(10)

    thread = threading.Thread(target=read)
    thread.start()
    engine.send(own("x"), bytearray(100_000), copy=False, on_release=released.set)
    heard = released.wait(5)
    over.set()
    thread.join()
    assert heard


def test_a_release_takes_a_lock_that_another_thread_holds(engine, own):
    """No hook is called within what a thread of the program's does: it would wait for itself."""
    lock, took = threading.Lock(), queue.SimpleQueue()

    def hear():
        took.put((lock.acquire(timeout=30), threading.current_thread().name))

    for value in (bytearray(100_000), engine.empty(100, "u8")):
        with lock:
            engine.send(own("x"), value, copy=False, on_release=hear)
            engine.recv(own("x")).wait(10).release()
            # This runs what is left to threads of the program's.
            rendez._rendez._run_errands()
        assert took.get(timeout=10) == (True, "rendez-hooks")
        lock.release()


def test_a_buffer_is_its_owners_again_when_its_release_is_heard(engine, own):
    sent, grown = bytearray(100_000), queue.SimpleQueue()

    def grow():
        try:
            sent.append(1)
            grown.put(None)
        except BufferError as error:
            grown.put(error)

    engine.send(own("x"), sent, copy=False, on_release=grow)
    engine.recv(own("x")).wait(10).release()
    assert grown.get(timeout=10) is None


def test_memory_is_given_back_after_some_that_another_thread_was_quicker_to_give_back(engine, own):
    heard, tensors = [], {}

    def hear(name):
        heard.append(name)
        if name == "first":
            # The thread has counted two pieces. This gives the second back, so that the thread goes on with the third.
            rendez._rendez._run_errands()
            tensors["third"].release()

    for name in ("first", "second", "third", "last"):
        lent = np.zeros(100_000)
        weakref.finalize(lent, hear, name)
        engine.send(own(name), lent, copy=False)
        del lent
        tensors[name] = engine.recv(own(name)).wait(10)

    def run():
        tensors["first"].release()
        tensors["second"].release()
        rendez._rendez._run_errands()

    # The main thread is asked to hear of them, and is not there before all is heard.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert heard == ["first", "second", "third"]
    tensors["last"].release()
    end = time.monotonic() + 10
    while "last" not in heard and time.monotonic() < end:
        time.sleep(0.001)
    assert heard[3:] == ["last"]


def test_a_long_copy_lets_other_threads_go_on(engine, own):
    """As `wait` does: those that poll, as event loops, and `tobytes`."""
    sent, out, looks, is_over = np.ones(2_000_000), np.zeros(2_000_000), [0], threading.Event()

    def look():
        while not is_over.is_set():
            looks[0] += 1
            time.sleep(0.0001)

    def receive_into():
        receive = engine.recv_into(own("x"), out)
        before = looks[0]
        while not receive.done():
            pass
        return looks[0] > before

    def copy():
        tensor = engine.recv(own("x")).wait(10)
        before = looks[0]
        assert len(tensor.tobytes()) == sent.nbytes
        return looks[0] > before

    thread = threading.Thread(target=look)
    thread.start()
    usual = sys.getswitchinterval()
    # No thread is made to let another go on.
    sys.setswitchinterval(1000)
    try:
        for use in (receive_into, copy):
            for _ in range(50):
                engine.send(own("x"), sent)
                if use():
                    break
            else:
                raise AssertionError(f"{use.__name__} holds up the others")
    finally:
        sys.setswitchinterval(usual)
        is_over.set()
        thread.join()


def test_release_hook_of_a_copy(engine, own):
    released = threading.Event()
    engine.send(own("x"), np.ones(1000), on_release=released.set)
    assert released.wait(10)


@pytest.mark.parametrize("fails", ["a key", "a view", "no type", "a tensor", "the engine"])
@pytest.mark.parametrize("way", ["send", "send_wait"])
def test_a_release_is_heard_once_of_a_send_that_fails(engine, own, fails, way):
    heard, step = queue.SimpleQueue(), engine.step(7)
    spent = over(engine, own("y"), 1)
    spent.release()
    key, value = {
        "a key": ("none", np.ones(1000)),
        "a view": (own("x"), np.ones(1000)[::2]),
        "no type": (own("x"), object()),
        "a tensor": (own("x"), spent),
        "the engine": (rendez.Key("/job:other/task:0", engine.task, "x"), np.ones(1000)),
    }[fails]

    def send():
        sent = getattr(step, way)(key, value, copy=False, on_release=lambda: heard.put(1))
        if way == "send_wait":
            sent.wait(10)

    with pytest.raises((TypeError, ValueError, BufferError, rendez.RendezError)):
        send()
    assert heard.get(timeout=10) == 1
    time.sleep(0.05)
    assert heard.empty()


def test_lent_memory_outlives_its_owner(engine, own):
    sent = np.arange(100_000)
    engine.send(own("x"), sent, copy=False)
    del sent
    gc.collect()
    assert engine.recv(own("x")).wait(10).numpy()[-1] == 99_999


def test_views_outlive_the_tensor(pair):
    left, right = pair
    key = key_of(left, right, "x")
    made = left.empty((1000, 100), "f32")
    made.numpy()[:] = 3
    left.send(key, made)
    got = right.recv(key, timeout=30).wait()
    assert got.path == "lease"
    view, lent = got.numpy(), np.from_dlpack(got)
    assert right.stats()[0]["leases"] == 1
    got.release()
    with pytest.raises(rendez.FailedPrecondition):
        got.numpy()
    assert view.sum() == lent.sum() == 300_000
    assert right.stats()[0]["leases"] == 1
    del view, lent
    gc.collect()
    assert right.stats()[0]["leases"] == 0


def test_a_tensor_is_sent_on(engine, own):
    got = over(engine, own("x"), np.arange(10))
    assert over(engine, own("y"), got).tolist() == list(range(10))
    assert got.tolist() == list(range(10))


def test_written_in_the_arena(engine, own):
    made = engine.empty((2, 3), "i32")
    np.asarray(made)[:] = [[1, 2, 3], [4, 5, 6]]
    memoryview(made)[0, 0] = 9
    engine.send(own("x"), made)
    assert engine.recv(own("x")).wait(10).tolist() == [[9, 2, 3], [4, 5, 6]]
    with pytest.raises(rendez.FailedPrecondition) as caught:
        engine.send(own("x"), made)
    assert caught.value.reason == "PYTHON_SPENT"
    with pytest.raises(rendez.FailedPrecondition):
        made.numpy()


def test_views_keep_it_from_being_sent(engine, own):
    made = engine.empty(1000)
    for view in (made.numpy(), np.from_dlpack(made), memoryview(made)):
        with pytest.raises(rendez.FailedPrecondition) as caught:
            engine.send(own("x"), made)
        assert caught.value.reason == "PYTHON_VIEWS"
        if isinstance(view, memoryview):
            view.release()
        del view
    engine.send(own("x"), made)


def test_shapes_of_empty(engine):
    assert engine.empty(3).shape == (3,)
    assert engine.empty((), "f64").shape == ()
    assert engine.empty([2, 2], np.int8).dtype == "i8"
    assert engine.empty((2,), np.dtype("float16")).dtype == "f16"
    assert engine.empty((2,), float).dtype == "f64"


def test_dlpack_says_read_only(engine, own):
    got = over(engine, own("x"), np.arange(10.0))
    with pytest.raises(BufferError, match="read only"):
        got.__dlpack__()
    with pytest.raises(BufferError, match="read only"):
        got.__dlpack__(max_version=(0, 8))
    assert "dltensor_versioned" in repr(got.__dlpack__(max_version=(1, 0)))
    assert got.__dlpack_device__() == (1, 0)
    copy = np.from_dlpack(got, copy=True)
    copy[:] = 0
    assert got.numpy()[3] == 3
    with pytest.raises(BufferError):
        got.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    with pytest.raises(TypeError):
        memoryview(got)[0] = 1


def test_dlpack_of_others(engine, own):
    class Lent:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    sent = np.arange(1000.0).reshape(10, 100)
    assert over(engine, own("x"), Lent(sent)).numpy()[9, 99] == 999
    assert over(engine, own("x"), Lent(sent), copy=False).numpy()[9, 99] == 999
    with pytest.raises(rendez.InvalidArgument, match="contiguous"):
        engine.send(own("x"), Lent(sent.T))

    class Old(Lent):
        def __dlpack__(self):
            return self.array.__dlpack__()

    assert over(engine, own("x"), Old(sent)).shape == (10, 100)


def test_writable_copies(pair):
    left, right = pair
    key = key_of(left, right, "x")
    for paged in (True, False):
        made = left.empty((1000, 100), paged=paged)
        made.numpy()[:] = 1
        left.send(key, made)
        got = right.recv(key, timeout=30).wait()
        mine = got.writable(right)
        mine.numpy()[0] = 2
        assert mine.numpy()[0, 0] == 2 and got.numpy()[0, 0] == 1
        back = key_of(right, right, "y")
        right.send(back, mine)
        assert right.recv(back).wait(10).numpy()[:2, 0].tolist() == [2, 1]


def test_what_was_written_is_there_when_it_could_not_go(engine, own):
    room = engine.empty(4)
    room.numpy()[:] = 7
    step = engine.step(9)
    with pytest.raises(rendez.RendezError) as caught:
        engine.to(room, "cuda:0")
    assert caught.value.reason == "DEVICE_MISSING"
    with pytest.raises(rendez.RendezError):
        step.send_dead(rendez.Key("/job:other/task:0", engine.task, "x"), room)
    step.send(own("x"), room)
    assert step.recv(own("x")).wait(10).tolist() == [7] * 4


def test_other_bytes_in_a_copy_of_truth_values_are_made_true(pair):
    left, right = pair
    key, back = key_of(left, right, "x"), key_of(right, right, "y")
    for paged in (True, False):
        made = left.empty(100_000, "bool", paged=paged)
        made.numpy()[:] = False
        left.send(key, made)
        mine = right.recv(key, timeout=30).wait().writable(right)
        mine.numpy().view("u1")[1] = 7
        right.send(back, mine)
        assert right.recv(back).wait(10).numpy().view("u1")[:3].tolist() == [0, 1, 0]


def test_receive_into(engine, own):
    out = np.zeros((2, 3), dtype="f4")
    engine.send(own("x"), np.arange(6, dtype="f4").reshape(2, 3))
    filled = engine.recv_into(own("x"), out).wait(10)
    assert filled == ((2, 3), "f32", 24, "local", False)
    assert out.tolist() == [[0, 1, 2], [3, 4, 5]]
    raw = bytearray(100)
    engine.send(own("x"), np.arange(6, dtype="f4").reshape(2, 3))
    assert engine.recv_into(own("x"), raw).wait(10).nbytes == 24
    assert raw[:24] == out.tobytes()


@pytest.mark.parametrize("wrong", ["type", "shape", "short"])
def test_receive_into_what_does_not_fit(engine, own, wrong):
    out = {"type": np.zeros(6, "i4"), "shape": np.zeros((3, 2), "f4"), "short": bytearray(3)}[wrong]
    engine.send(own("x"), np.arange(6, dtype="f4"))
    with pytest.raises(rendez.RendezError) as caught:
        engine.recv_into(own("x"), out).wait(10)
    assert caught.value.reason in ("PYTHON_ARGUMENT", "RECV_ROOM")
    assert not any(memoryview(out).tolist()[0] if wrong == "shape" else out)
    # The value waits for the next.
    assert engine.recv(own("x")).wait(10).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("out", [np.zeros(8)[::2], np.zeros(4, ">f8")], ids=["strided", "big-endian"])
def test_what_cannot_be_filled_in_place_loses_no_value(engine, own, out):
    engine.send(own("x"), np.arange(4.0))
    with pytest.raises(rendez.InvalidArgument, match="receive without `out`, and assign"):
        engine.recv_into(own("x"), out)
    out[...] = engine.recv(own("x")).wait(10).numpy()
    assert out.tolist() == [0, 1, 2, 3]


def test_recast_and_reshape(engine, own):
    got = over(engine, own("x"), np.arange(6, dtype="f4"))
    assert got.reshape((2, 3)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert got.recast("u32").numpy()[1] == 0x3F800000
    with pytest.raises(rendez.InvalidArgument):
        got.reshape((4, 4))
    with pytest.raises(rendez.InvalidArgument):
        got.recast("f64")


def test_room_of_truth_values_is_not_seen_as_another_type(engine):
    for one, other in (("bool", "u8"), ("u8", "bool")):
        with engine.empty(4, one) as room, pytest.raises(ValueError, match=f"{one} cannot be seen as {other}"):
            room.recast(other)


def test_torch(engine, own):
    torch = pytest.importorskip("torch")
    sent = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
    got = over(engine, own("x"), sent)
    assert got.dtype == "bf16"
    for how in ("private", "copy"):
        mine = got.torch(writable=how)
        assert torch.equal(mine, sent)
        mine.add_(1)
    assert torch.equal(got.torch(), sent)
    made = engine.empty((2, 2), torch.float64)
    made.torch()[:] = 4
    gc.collect()
    assert over(engine, own("x"), made).tolist() == [[4, 4], [4, 4]]


def test_jax(engine, own):
    jax = pytest.importorskip("jax")
    for dtype in ("float32", "bfloat16", "int8"):
        sent = jax.numpy.arange(12, dtype=dtype).reshape(3, 4)
        for copy in (None, False):
            got = over(engine, own("x"), sent, copy=copy)
            assert (got.shape, got.tolist()) == ((3, 4), sent.tolist())
            mine = jax.numpy.asarray(got.numpy())
            assert mine.dtype == sent.dtype and (mine == sent).all()
            # JAX asks for DLPack before 1.0, which cannot say that memory is read only.
            with pytest.raises(BufferError, match="read only"):
                jax.dlpack.from_dlpack(got)
            assert (jax.dlpack.from_dlpack(got.writable(engine)) == sent).all()


def test_nothing_is_imported_needlessly():
    import subprocess
    import sys

    program = (
        "import rendez, sys\n"
        "with rendez.Engine('/job:lean/task:0', arena_segment_bytes='4MiB') as e:\n"
        "    e.send('lean->lean;x', b'abc' * 50); e.recv('lean->lean;x').wait().tobytes()\n"
        "print([m for m in ('numpy', 'torch', 'jax', 'cupy', 'ml_dtypes', 'trio') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
