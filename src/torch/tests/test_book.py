"""The programs of the tutorial, saved and run as it says."""

import itertools
import os
import pathlib
import re
import subprocess
import sys

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "book/tutorial/pytorch.md"
SAYS = {
    "collectives.py": ["rank 0: sum 3.0", "rank 1: sum 3.0"],
    "training.py": ["learnt"],
    "calls.py": ["[0.0, 2.0, 4.0]", "worker1 5242880.0"],
}
TIMEOUT = 180


@pytest.fixture
def programs(tmp_path):
    if not PAGE.exists():
        pytest.skip("the book is not here")
    found = re.findall(r"Save this as `(\w+\.py)`.*?^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    for name, text in found:
        (tmp_path / name).write_text(text)
    assert {name for name, _ in found} == {*SAYS, "killed.py"}
    return tmp_path


@pytest.mark.parametrize("name", SAYS)
def test_what_torchrun_starts(programs, name):
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", name]
    done = subprocess.run(run, cwd=programs, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    # Two processes write to one pipe, and a line and its end are two writes.
    said = done.stdout.replace("\n", "")
    orders = ["".join(lines) for lines in itertools.permutations(SAYS[name])]
    assert said in orders, done.stdout + done.stderr


def test_what_the_other_rank_sees(programs, world):
    def start(rank):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", **port}
        run = [sys.executable, "killed.py"]
        return subprocess.Popen(run, cwd=programs, env=environment, stdout=subprocess.PIPE, text=True)

    port = {"MASTER_PORT": str(world.free_port())}
    processes = [start(rank) for rank in range(2)]
    said = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    assert said == ["rank 1 is gone, after less than a second\n", ""]
    assert [process.returncode for process in processes] == [0, -9]
