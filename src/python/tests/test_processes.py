"""Two processes, begun afresh, as programs of users are."""

import logging
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import rendez
from conftest import SMALL, named

SPAWN = multiprocessing.get_context("spawn")


def _worker(task, server, server_address, pipe):
    with rendez.Engine(task, **SMALL) as engine:
        engine.add_peer(server, server_address)
        pipe.send(engine.address)
        step = engine.step(1)
        for number in range(3):
            weights = engine.empty((256, 256), "f32", paged=number == 2)
            weights.numpy()[:] = number
            step.send((task, server, "weights"), weights)
            step.send((task, server, "loss"), float(number))
            # The server's sum: it has read them.
            assert step.recv((server, task, "sum"), timeout=60).wait().item() == number * 256 * 256
        import asyncio

        async def echo():
            for _ in range(20):
                got = await step.recv((server, task, "ping"), timeout=60)
                step.send((task, server, "pong"), got)

        asyncio.run(echo())
        pipe.recv()


def begin(target):
    server = rendez.Engine(named("server"), **SMALL)
    task = named("worker")
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(task, server.task, server.address, theirs), daemon=True)
    process.start()
    assert ours.poll(60)
    server.add_peer(task, ours.recv())
    return server, task, process, ours


def test_values_between_processes():
    server, task, process, pipe = begin(_worker)
    with server:
        step = server.step(1)
        for number in range(3):
            got = step.recv((task, server.task, "weights"), timeout=60).wait()
            assert (got.path, got.shape, got.dtype) == ("lease", (256, 256), "f32")
            assert got.numpy().sum() == number * 256 * 256
            assert step.recv((task, server.task, "loss"), timeout=60).wait().item() == number
            mine = got.writable(server)
            mine.numpy()[:] = -1
            assert got.numpy().sum() == number * 256 * 256
            step.send((server.task, task, "sum"), float(got.numpy().sum()))
        for number in range(20):
            step.send((server.task, task, "ping"), np.full(3000, number))
            assert step.recv((task, server.task, "pong"), timeout=60).wait().numpy()[7] == number
        pipe.send("done")
        process.join(60)
        assert process.exitcode == 0


def _dies(task, server, server_address, pipe):
    engine = rendez.Engine(task, **SMALL)
    engine.add_peer(server, server_address)
    pipe.send(engine.address)
    engine.send((task, server, "last"), bytes(100_000))
    signal.pause()


def test_a_peer_that_is_killed():
    server, task, process, pipe = begin(_dies)
    with server:
        last = server.recv((task, server.task, "last"), timeout=60).wait()
        waits = server.recv((task, server.task, "never"), timeout=60).start()
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(rendez.Unavailable) as caught:
            waits.wait(30)
        assert task.split("/")[1] in str(caught.value)
        # What is held of it stays.
        assert last.tobytes() == bytes(100_000)
        process.join(60)


class Lines(logging.Handler):
    """The lines of the engine's, and the threads that log them."""

    def __init__(self):
        super().__init__()
        self.lines = queue.SimpleQueue()

    def emit(self, record):
        self.lines.put((record.name.partition(".")[0], threading.current_thread().name))


def test_logging_hears_of_peers(caplog):
    """The engine's lines reach `logging`, whichever thread says them, while the main thread waits."""
    with caplog.at_level(logging.DEBUG, logger="rendez"):
        lines = Lines()
        logging.getLogger("rendez").addHandler(lines)
        left = rendez.Engine(named("left"), **SMALL)
        right = rendez.Engine(named("right"), **SMALL)
        left.add_peer(right.task, right.address)
        left.connect(right.task)
        right.close()
        left.close()
        assert lines.lines.get(timeout=10) == ("rendez", "rendez-hooks")
        logging.getLogger("rendez").removeHandler(lines)


def test_levels_may_be_changed_while_an_engine_runs(pair, monkeypatch):
    """Also that of one of its loggers alone."""
    left, right = pair
    lines, logger = Lines(), logging.getLogger("rendez.engine")
    told, tell = threading.Event(), getattr(rendez._waits, "_log_from", None)

    def hear(level):
        tell(level)
        if level <= logging.DEBUG:
            told.set()

    monkeypatch.setattr(rendez._waits, "_log_from", hear, raising=False)
    left.connect(right.task)
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    try:
        assert told.wait(5)
        # The other hears of it.
        right.close()
        assert lines.lines.get(timeout=10) == ("rendez", "rendez-hooks")
    finally:
        logger.setLevel(logging.NOTSET)
        logger.removeHandler(lines)


def test_the_command():
    done = subprocess.run([sys.executable, "-m", "rendez", "--version"], capture_output=True, text=True, timeout=60)
    if done.returncode == 127:
        assert "cargo install" in done.stderr
        pytest.skip("this wheel was built without the command")
    assert done.stdout.strip().startswith("rendez "), done


def test_the_capsule(engine):
    import ctypes

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = pointer(rendez._C_API, b"rendez._C_API")
    version, size = ctypes.cast(table, ctypes.POINTER(ctypes.c_uint32))[:2]
    assert version == 1 and size > 200
    # `engine_task` is the sixth function: see rendez.h.
    functions = ctypes.cast(table + 8, ctypes.POINTER(ctypes.c_void_p))
    engine_task = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(functions[5])
    capsule = engine._c_engine()
    handle = pointer(capsule, b"rendez.engine")
    assert engine_task(handle).decode() == engine.task
    engine.close()
    assert engine_task(handle).decode() == engine.task
