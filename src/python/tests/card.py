"""Tensors on a real card, with the libraries that make them. Run by `scripts/gpu.sh`, where there is one.

What `test_devices.py` shows over a played driver, a card shows here: streams that really run, memory that really is
used again, and other processes.
"""

import contextlib
import gc
import multiprocessing
import os
import random
import signal
import time

import pytest

import rendez
from conftest import key_of, named

torch = pytest.importorskip("torch")
SPAWN = multiprocessing.get_context("spawn")
SETTINGS = {"stage_sampling": 0, "devices": "require", "device_bytes": "4GiB"}
PATIENCE = 20
# Some 300 ms of a card's clock: longer than Python looks for garbage.
LONG = 500_000_000


def until(is_so):
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end
        gc.collect()
        time.sleep(0.001)


def in_use(engine):
    return engine.devices()[0]["bytes_in_use"]


def until_leased(left, right):
    """Until the peer is known to see the device, values come by way of the processor's memory."""
    key = key_of(left, right, "probe")

    def is_leased():
        left.send(key, torch.zeros(16, device="cuda"))
        return right.recv(key, timeout=PATIENCE).wait().path == "lease"

    until(is_leased)
    until(lambda: in_use(left) == 0)


@pytest.fixture(scope="module")
def engines():
    assert torch.cuda.is_available()
    with rendez.Engine(named("gone"), **SETTINGS) as left, rendez.Engine(named("here"), **SETTINGS) as right:
        left.add_peer(right.task, right.address)
        until_leased(left, right)
        # A kernel that is loaded waits for all that is queued.
        torch.full((1 << 20,), 1.0, device="cuda").sum().item()
        yield left, right


@pytest.fixture
def pair(engines):
    yield engines
    until(lambda: all(in_use(engine) == 0 for engine in engines))


def handed(left, right, value, name="x", **asked):
    key = key_of(left, right, name)
    left.send(key, value, **asked)
    return right.recv(key, timeout=PATIENCE).wait()


@pytest.mark.parametrize("copy", [None, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_torch_reads_in_place_what_torch_made(pair, dtype, copy):
    left, right = pair
    for shape in [(1,), (5000,), (7, 3), (1 << 20,), (64, 1024, 257)]:
        sent = torch.randint(0, 2, shape, device="cuda").to(dtype)
        got = handed(left, right, sent, f"{dtype}{shape}", copy=copy)
        assert (got.path, got.device, got.shape) == ("lease", "cuda:0", shape)
        # To be written by nobody: older consumers cannot be told.
        seen = torch.from_dlpack(got)
        assert seen.device.type == "cuda" and torch.equal(seen, sent)


def test_no_byte_is_copied_to_show_it(pair):
    left, _ = pair
    sent = torch.arange(1000, device="cuda")
    got = handed(left, left, sent, copy=False)
    assert torch.from_dlpack(got).data_ptr() == sent.data_ptr()


def test_what_was_sent_may_be_written_at_once(pair):
    left, right = pair
    for round in range(20):
        sent = torch.full((1 << 22,), float(round), device="cuda")
        key = key_of(left, right, f"w{round}")
        left.send(key, sent)
        sent.fill_(-1.0)
        assert (torch.from_dlpack(right.recv(key, timeout=PATIENCE).wait()) == round).all()


def test_values_are_sent_before_they_are_there(pair):
    left, _ = pair
    stream, given = torch.cuda.Stream(), []
    torch.cuda.synchronize()
    for round in range(5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(LONG)
            sent = torch.full((1 << 20,), float(round), device="cuda")
            began = time.monotonic()
            got = handed(left, left, sent, f"t{round}", copy=False, on_release=lambda: given.append(1))
        took = time.monotonic() - began
        assert not stream.query(), "the producer's work is still under way"
        mine = torch.cuda.Stream()
        with torch.cuda.stream(mine):
            total = torch.from_dlpack(got).sum()
        assert not mine.query(), f"the reader waits for the producer ({took:.6f} s to hand it over)"
        mine.synchronize()
        assert total.item() == round * (1 << 20)
        del got, total
        until(lambda: len(given) == round + 1)


def test_memory_goes_home_when_its_readers_stream_is_past_it(pair):
    left, right = pair
    for round in range(5):
        sent = torch.full((1 << 24,), float(round), device="cuda")
        got = handed(left, right, sent, f"m{round}")
        torch.cuda.synchronize()
        mine = torch.cuda.Stream()
        with torch.cuda.stream(mine):
            seen = torch.from_dlpack(got)
            torch.cuda._sleep(LONG)
            total = seen.sum()
            del seen, got
        assert in_use(left) > 0 and not mine.query()
        # It would take the memory and spoil it, if it were free.
        spoil = left.empty((1 << 24,), "f32", device="cuda:0")
        torch.from_dlpack(spoil).fill_(-1.0)
        assert not mine.query()
        mine.synchronize()
        assert total.item() == round * (1 << 24)
        spoil.release()
        until(lambda: in_use(left) == 0)


def test_room_on_the_card_is_written_by_torch_and_sent(pair):
    left, right = pair
    for round in range(10):
        room = left.empty((1 << 20,), "f32", device="cuda:0")
        view = torch.from_dlpack(room)
        torch.cuda._sleep(LONG // 100)
        view.fill_(float(round))
        del view
        got = handed(left, right, room, f"r{round}")
        assert got.path == "lease"
        assert (torch.from_dlpack(got) == round).all()


def test_values_move_between_memories(pair):
    left, _ = pair
    for count in (1, 1000, 1 << 20, (1 << 24) + 3):
        sent = torch.randint(-100, 100, (count,), dtype=torch.int32)
        there = left.to(sent.numpy(), "cuda:0")
        assert there.device == "cuda:0"
        assert torch.equal(torch.from_dlpack(there).cpu(), sent)
        assert (there.cpu().numpy() == sent.numpy()).all()


def test_cupy_and_numba_arrays(pair):
    left, right = pair
    cupy = pytest.importorskip("cupy")
    sent = cupy.arange(10_000, dtype="f4").reshape(100, 100)

    class Interface:
        __cuda_array_interface__ = sent.__cuda_array_interface__

    for name, given in [("cupy", sent), ("interface", Interface())]:
        got = handed(left, right, given, name)
        assert bool((cupy.from_dlpack(got) == sent).all())
        assert bool((cupy.asarray(got) == sent).all())
        del got


def test_jax_arrays(pair):
    left, right = pair
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax = pytest.importorskip("jax")
    sent = jax.numpy.arange(10_000, dtype="float32")
    got = handed(left, right, sent, "jax")
    assert got.path == "lease"

    class Copied:
        """JAX asks as before DLPack 1.0, which cannot say that memory is read only: it gets a copy."""

        __dlpack_device__ = got.__dlpack_device__

        def __dlpack__(self, stream=None):
            return got.__dlpack__(stream=stream, copy=True)

    assert bool((jax.dlpack.from_dlpack(Copied()) == sent).all())


def test_a_storm_of_sizes_comes_whole(pair):
    left, right = pair
    choose, held = random.Random(7), []
    streams = [torch.cuda.Stream() for _ in range(4)]
    for round in range(400):
        count = choose.choice([1, 17, 4096, 100_000, 1 << 20, 3 << 20])
        with torch.cuda.stream(choose.choice(streams)):
            sent = torch.full((count,), round, dtype=torch.int32, device="cuda")
            held.append((round, handed(left, right, sent, f"storm{round}", copy=choose.choice([None, False]))))
            del sent
        if len(held) > 16:
            number, got = held.pop(choose.randrange(len(held)))
            with torch.cuda.stream(choose.choice(streams)):
                assert (torch.from_dlpack(got) == number).all()
            del got


def _echo(task, server, address, pipe):
    with rendez.Engine(task, **SETTINGS) as engine:
        engine.add_peer(server, address)
        pipe.send(engine.address)
        while (name := pipe.recv()) is not None:
            got = engine.recv((server, task, name), timeout=PATIENCE).wait()
            seen = torch.from_dlpack(got)
            engine.send((task, server, name), seen + 1)
            pipe.send((got.path, got.device))
            if name == "die":
                time.sleep(PATIENCE)
            del seen, got


@contextlib.contextmanager
def other(engine):
    task = named("worker")
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_echo, args=(task, engine.task, engine.address, theirs), daemon=True)
    process.start()
    assert ours.poll(PATIENCE)
    engine.add_peer(task, ours.recv())
    try:
        yield task, process, ours
    finally:
        process.kill()
        process.join()


def test_processes_read_each_others_memory_in_place(pair):
    left, _ = pair
    with other(left) as (task, process, pipe):
        paths = []
        for round in range(50):
            sent = torch.full((1 << (round % 22),), float(round), device="cuda")
            name = f"p{round}"
            pipe.send(name)
            left.send((left.task, task, name), sent)
            got = left.recv((task, left.task, name), timeout=PATIENCE).wait()
            paths.append((*pipe.recv(), got.path))
            assert (torch.from_dlpack(got) == round + 1).all()
            del got
        assert paths[-1] == ("lease", "cuda:0", "lease"), paths
        pipe.send(None)
        process.join(PATIENCE)


def test_memory_comes_home_from_a_process_that_was_killed(pair):
    left, _ = pair
    with other(left) as (task, process, pipe):
        for name in ("first", "second", "die"):
            pipe.send(name)
            left.send((left.task, task, name), torch.full((1 << 20,), 1.0, device="cuda"))
            got = left.recv((task, left.task, name), timeout=PATIENCE).wait()
            pipe.recv()
        assert in_use(left) > 0 and got.path == "lease"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        until(lambda: in_use(left) == 0)
        # What the dead lent is still read: the card keeps it for who has imported it.
        assert (torch.from_dlpack(got) == 2).all()
        del got
