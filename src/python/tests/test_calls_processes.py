"""Remote calls between processes: two, three, and some that are killed."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

import called
import rendez
from conftest import SMALL
from rendez import rpc

HERE = Path(__file__).parent
# Engines that reach each other by TCP alone, and prove a secret there.
TCP = {"listen": "127.0.0.1:0", "require": "tcp"}


class Others:
    """This process as the worker `first`, and other processes beside it."""

    def __init__(self, tmp_path, names, pickles=False, **of_engine):
        self.path = tmp_path / "group"
        if of_engine:
            secret = tmp_path / "secret"
            secret.write_bytes(os.urandom(32))
            secret.chmod(0o600)
            of_engine["cluster_secret_file"] = str(secret)
        self.names = [f"{name}{os.getpid()}" for name in names]
        size = len(names) + 1
        self.processes = [self.begin(name, size, pickles, of_engine) for name in self.names]
        self.engine = rendez.Engine(f"/job:first{os.getpid()}/task:0", **SMALL, **of_engine)
        self.agent = rpc.Agent(self.engine, "first", store=self.path, size=size, allow_pickle=pickles)

    def begin(self, name, size, pickles, of_engine):
        program = f"import called; called.worker({name!r}, {str(self.path)!r}, {size}, {pickles}, {of_engine})"
        command = [sys.executable, "-X", "dev", "-c", program]
        return subprocess.Popen(command, cwd=HERE, stderr=subprocess.PIPE)

    def kill(self, at):
        os.kill(self.processes[at].pid, signal.SIGKILL)
        self.processes[at].wait(30)

    def close(self):
        """All leave in good order, with nothing to say, but those that were killed."""
        with contextlib.closing(self.engine):
            self.agent.shutdown(timeout=60)
        for process in self.processes:
            said = process.communicate(timeout=60)[1].decode()
            assert process.returncode == -signal.SIGKILL or (process.returncode, said) == (0, ""), said


@pytest.fixture
def others(tmp_path, request):
    names, *more = getattr(request, "param", (["second"],))
    others = Others(tmp_path, names, *more[:1], **dict(*more[1:]))
    try:
        yield others
        others.close()
    finally:
        for process in others.processes:
            if process.poll() is None:
                process.kill()
                process.wait(30)
            process.stderr.close()
        others.engine.close()


def test_two_processes(others):
    agent, (second,) = others.agent, others.names
    assert agent.call(second, called.process) == others.processes[0].pid
    assert agent.call(second, "called.process") == others.processes[0].pid
    # It calls back, while it is called.
    assert agent.call(second, called.relay, "first", "called.process") == os.getpid()


def test_large_arrays_are_read_in_place(others):
    agent, (second,) = others.agent, others.names
    count = 1 << 20
    # What is written into memory of the engine's is not copied, neither here nor there.
    before = copied(others.engine)
    room = others.engine.empty(count, "f64")
    room.numpy()[:] = 3
    assert agent.call(second, called.lease_of, room) == ("lease", 3.0 * count)
    # An array of Python's is copied once, into memory that the other reads.
    array = np.full(count, 2.0)
    where, is_writable, total = agent.call(second, called.seen, array)
    assert (is_writable, total) == (False, 2.0 * count)
    assert copied(others.engine) == before
    # Bytes, which nothing can change, stay where they are, and are copied on their way: it would be seen.
    assert agent.call(second, "called.length", bytes(1 << 20)) == 1 << 20
    assert copied(others.engine) > before
    # Results are read in place too.
    got = agent.call(second, called.ones, count)
    assert got.path == "lease" and got.numpy().sum() == count
    mine = agent.call(second, called.relay, "first", "called.array", count)
    assert mine.sum() == count and not mine.flags.writeable


def copied(engine):
    return sum(shard["copied_foreign"] + shard["copied_leased"] for shard in engine.stats())


def test_an_array_comes_home(others):
    """A lease that is sent back to its owner is the owner's own memory."""
    agent, (second,) = others.agent, others.names
    array = np.arange(1 << 19)
    agent.call(second, called.keep, array)
    first = agent.call(second, "called.kept")
    again = agent.call(second, "called.kept")
    assert first.sum() == array.sum()
    assert first.__array_interface__["data"] == again.__array_interface__["data"]
    agent.call(second, called.let_go)


@pytest.mark.parametrize("others", [(["second"], True)], indirect=True)
def test_pickled_buffers_are_read_in_place(others):
    agent, (second,) = others.agent, others.names
    before = copied(others.engine)
    # Pickle writes them out of band: the other process reads them in place.
    boxed = Box(np.full(1 << 20, 2.0))
    assert agent.call(second, total_of, boxed) == 2.0 * (1 << 20)
    assert copied(others.engine) == before
    with pytest.raises(LookupError) as caught:
        agent.call(second, called.raises, True)
    assert caught.value.args == ("here", 3)
    with pytest.raises(rpc.RemoteError, match="Strange"):
        agent.call(second, called.raises, False)


@pytest.mark.parametrize("others", [(["second"], True)], indirect=True)
def test_functions_that_the_other_does_not_have(others, monkeypatch):
    agent, (second,) = others.agent, others.names
    absent = types.ModuleType("absent_there")
    for module in (called, absent):
        exec("def extra():\n    pass", module.__dict__)
        module.extra.__module__ = module.__name__
        monkeypatch.setitem(sys.modules, module.__name__, module)
        with pytest.raises(rendez.NotFound) as caught:
            agent.call(second, module.extra)
        assert caught.value.reason == "RPC_FUNCTION" and "extra" in str(caught.value) and second in str(caught.value)
    monkeypatch.delattr(called, "extra")
    # A value of a class that it does not have.
    exec("class Only:\n    pass", absent.__dict__)
    absent.Only.__module__ = absent.__name__
    with pytest.raises((rpc.RemoteError, ImportError), match="absent_there"):
        agent.call(second, called.length, absent.Only())


class Box:
    def __init__(self, array):
        self.array = array


def total_of(box):
    assert not box.array.flags.writeable
    return float(box.array.sum())


@pytest.mark.parametrize("others", [(["second"], None, TCP)], indirect=True)
def test_over_tcp(others):
    """As between machines: what was read in place is copied, and nothing else is another."""
    agent, (second,) = others.agent, others.names
    # The secret that both have proved is why pickle is allowed.
    assert agent.allow_pickle
    assert "by tcp" in others.engine.explain(f"/job:{second}/task:0")
    assert agent.call(second, called.process) == others.processes[0].pid
    path, total = agent.call(second, called.lease_of, agent.call(second, called.ones, 1 << 20))
    assert (path, total) == ("copy", 1 << 20)
    got = agent.call(second, called.array, 1 << 20)
    assert got.sum() == 1 << 20 and not got.flags.writeable
    assert agent.call(second, total_of, Box(np.full(1 << 20, 2.0))) == 2 << 20
    reference = agent.remote(second, called.store)
    assert reference.rpc_sync().put("a", np.arange(100_000)) == 1
    others.kill(0)
    with pytest.raises(ConnectionError) as caught:
        reference.rpc_sync().get("a")
    assert second in str(caught.value)


@pytest.mark.parametrize("others", [(["second", "third"],)], indirect=True)
def test_three_processes(others):
    agent, (second, third) = others.agent, others.names
    assert agent.call(second, called.relay, third, "called.process") == others.processes[1].pid
    # The value lives at the third, is made for the first, and used by the second.
    reference = agent.remote(third, called.store)
    assert agent.call(second, called.put_into, reference, "x", np.arange(100_000)) == 1
    assert reference.rpc_sync().get("x").sum() == np.arange(100_000).sum()
    # A share that another holds outlives ours, and with it the value; it goes with the last share.
    agent.call(second, called.hold, reference)
    del reference
    until = time.monotonic() + 30
    while agent.references():
        assert time.monotonic() < until, agent.references()
        time.sleep(0.01)
    assert agent.call(second, called.held_size) == 1
    assert agent.call(third, called.references) == 1
    agent.call(second, called.let_go)
    while agent.call(third, called.references):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_that_is_killed(others):
    agent, (second,) = others.agent, others.names
    reference = agent.remote(second, called.store)
    assert reference.rpc_sync().put("a", 1) == 1
    calls = [agent.call_async(second, called.nap, 60) for _ in range(3)]
    calls.append(agent.call_async(second, called.nap_softly, 60))
    while not agent.call(second, called.naps):
        time.sleep(0.01)
    others.kill(0)
    for call in calls:
        with pytest.raises(ConnectionError) as caught:
            call.wait(30)
        assert caught.value.reason in ("PEER_LOST", "PEER_RESET") and second in str(caught.value)
    for use in (lambda: reference.rpc_sync().put("b", 2), lambda: agent.call(second, called.process)):
        with pytest.raises(rendez.RendezError) as caught:
            use()
        assert isinstance(caught.value, ConnectionError) and second in str(caught.value)


def test_a_function_that_kills_its_process(others):
    agent, (second,) = others.agent, others.names
    with pytest.raises(ConnectionError) as caught:
        agent.call(second, called.die)
    assert second in str(caught.value)


def test_a_call_of_a_process_that_is_stopped(others):
    agent, (second,) = others.agent, others.names
    agent.call(second, called.process)
    os.kill(others.processes[0].pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError) as caught:
            agent.call(second, called.process, timeout=0.2)
        assert second in str(caught.value)
    finally:
        os.kill(others.processes[0].pid, signal.SIGCONT)
    assert agent.call(second, called.process) == others.processes[0].pid


def test_nothing_leaks(others):
    """Neither descriptors nor references, here and there."""
    agent, (second,) = others.agent, others.names

    def once():
        references = [agent.remote(second, called.store) for _ in range(20)]
        for reference in references:
            reference.rpc_sync().put("x", np.arange(5000))
            reference.rpc_sync().get("x").sum()
        with pytest.raises(rendez.RendezError):
            agent.call(second, "called.missing")
        with pytest.raises(TimeoutError):
            agent.call(second, called.nap_softly, 30, timeout=0.01)

    def held():
        gc.collect()
        rendez._rendez._run_errands()
        return (len(os.listdir("/proc/self/fd")), agent.call(second, called.descriptors))

    for _ in range(3):
        once()
    before = held()
    for _ in range(10):
        once()
    after = held()
    assert after[0] <= before[0] and after[1] <= before[1]
    until = time.monotonic() + 30
    # Releases are on their way for a while.
    while leases(others.engine) or agent.references() or agent.call(second, called.references):
        gc.collect()
        assert time.monotonic() < until, (agent.references(), others.engine.stats())
        time.sleep(0.01)


def leases(engine):
    return sum(shard["leases"] for shard in engine.stats())
