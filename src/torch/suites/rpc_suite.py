"""torch's own RPC suites over rendez. SUITE: generic (the default), tensorpipe (torch's list of what only that has), or
faulty."""

import os

import torch.distributed.rpc as rpc
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed import rpc_utils
from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import RpcAgentTestFixture

import forked  # noqa: F401
import rendez.torch  # noqa: F401


class RendezRpcAgentTestFixture(RpcAgentTestFixture):
    """What torch's tests ask of a backend."""

    @property
    def rpc_backend(self):
        return rpc.BackendType.RENDEZ

    @property
    def rpc_backend_options(self):
        return rpc.backend_registry.construct_rpc_backend_options(self.rpc_backend, init_method=self.init_method)

    def get_shutdown_error_regex(self):
        return "(connection)|(shut down)|(no longer running)"

    def get_timeout_error_regex(self):
        return "RPC ran for more than"


LISTS = {"generic": rpc_utils.GENERIC_TESTS, "tensorpipe": rpc_utils.TENSORPIPE_TESTS}
globals().update(
    rpc_utils.generate_tests(
        "Rendez", RendezRpcAgentTestFixture, LISTS[os.environ.get("SUITE", "generic")], __name__
    )
)

if __name__ == "__main__":
    run_tests()
