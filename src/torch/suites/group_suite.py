"""torch's suite of process groups, DistributedTest, over rendez. NAME=gloo runs it under gloo's name: torch runs 26 of
its tests for that name alone."""

import os
import tempfile

folder = tempfile.mkdtemp()
os.environ.setdefault("TEMP_DIR", folder)
os.environ.setdefault("INIT_METHOD", "file://" + os.path.join(folder, "shared_init_file"))
os.environ.setdefault("WORLD_SIZE", "3")
os.environ["BACKEND"] = name = os.environ.get("NAME", "rendez")

import datetime  # noqa: E402

import torch.distributed.distributed_c10d as c10d  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

import forked  # noqa: E402, F401
import rendez.torch  # noqa: E402
from rendez_torch import _native  # noqa: E402

if os.environ.get("REFERENCE") == "1":
    # gloo itself, to compare with.
    pass
elif name == "gloo":

    class ProcessGroupRendez:
        """Stands where torch looks for gloo."""

        _Options = c10d.ProcessGroupGloo._Options

        def __new__(cls, store, rank, size, timeout=datetime.timedelta(minutes=30), **_):
            return _native.create_process_group(store, rank, size, timeout, "gloo")

    c10d.ProcessGroupGloo = ProcessGroupRendez
else:
    # The suite knows backends by name, and skips what it does not know.
    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature.setdefault(feature, set()).add(name)

from torch.testing._internal.common_utils import run_tests  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class TestDist(TestDistBackend, DistributedTest._DistTestBase):
    """The suite, whose processes begin with each test."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    run_tests()
