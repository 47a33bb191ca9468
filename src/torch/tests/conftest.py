"""Runs a text in several processes, and collects what they print and how they end."""

import os
import pathlib
import signal
import socket
import sys
import tempfile
import textwrap
import time
import traceback
import types

import pytest
import torch

import rendez.torch

# Processes are forked: PyTorch is loaded once. No engine may start in this process, since it would not work in those.
torch.set_num_threads(1)


def since(version, why):
    """Skips a test under a PyTorch that is older, and cannot pass it."""
    release = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    return pytest.mark.skipif(release < version, reason=f"before PyTorch {'.'.join(map(str, version))} {why}")


class World:
    """Processes that run one text each, with `rank`, `size`, `dist`, `torch` and, unless `group=False`, a group."""

    #: How soon a death must be told, in seconds: enough for a machine that has more to do than cores.
    FAILURE_DETECTION = 2
    DETECTION = {"RENDEZ_FAILURE_DETECTION": f"{FAILURE_DETECTION}s"}

    PRELUDE = """
        import os, sys, time, datetime, torch, torch.distributed as dist
        import rendez.torch
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    """
    GROUP = """
        dist.init_process_group("rendez", timeout=datetime.timedelta(seconds=float(os.environ.get("SECONDS", "100"))))
    """

    def __init__(self, folder):
        self.folder = folder

    def run(self, body, size=2, group=True, expect=None, timeout=200, **environment):
        """Runs `body` `size` times; each process must end well, or as `expect` says. Gives what each printed."""
        text = textwrap.dedent(self.PRELUDE) + (textwrap.dedent(self.GROUP) if group else "") + textwrap.dedent(body)
        environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.free_port()), WORLD_SIZE=str(size))
        files = [self.folder / f"rank{rank}" for rank in range(size)]
        started = [self._fork(text, {**environment, "RANK": str(rank)}, file) for rank, file in enumerate(files)]
        wanted, ends = dict(enumerate(expect or [0] * size)), {}
        deadline = time.monotonic() + timeout
        try:
            # When one fails the others would wait for it.
            while ends.items() <= wanted.items() and len(ends) < size and time.monotonic() < deadline:
                for rank, process in enumerate(started):
                    if rank not in ends:
                        done, status = os.waitpid(process, os.WNOHANG)
                        if done:
                            ends[rank] = os.waitstatus_to_exitcode(status)
                time.sleep(0.02)
        finally:
            for rank, process in enumerate(started):
                if rank not in ends:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
        outputs = [file.read_text() for file in files]
        assert ends == wanted, f"processes ended so: {ends}\n" + "\n--- next rank\n".join(outputs)
        return outputs

    @staticmethod
    def free_port():
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            return sock.getsockname()[1]

    def told_in_time(self, outputs, killed):
        """The last line of each is a time: when one was killed, and when the others had been told."""
        times = [float(output.split()[-1]) for output in outputs]
        took = [time - times[killed] for rank, time in enumerate(times) if rank != killed]
        assert all(0 <= one <= 1.5 * self.FAILURE_DETECTION for one in took), took

    @staticmethod
    def _fork(text, environment, file):
        process = os.fork()
        if process:
            return process
        code = 1
        try:
            with open(file, "w") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            os.environ.update(environment)
            # Functions that are called remotely are found in the main module.
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(text, "<rank>", "exec"), main.__dict__)
            rendez.torch._end()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


@pytest.fixture
def world():
    with tempfile.TemporaryDirectory() as folder:
        yield World(pathlib.Path(folder))


@pytest.fixture(params=["shm", "tcp"])
def path(request):
    """Variables for the way between the processes."""
    return {"shm": {}, "tcp": {"RENDEZ_REQUIRE": "tcp", "RENDEZ_LISTEN": "127.0.0.1:0"}}[request.param]
