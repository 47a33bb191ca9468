"""torch's own RPC suites over rendez. SUITE: generic (the default), tensorpipe (torch's list of what only that has),
faulty, or on a card cuda and cuda-tensorpipe."""

import os

import torch.distributed.rpc as rpc
from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed import rpc_utils
from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import RpcAgentTestFixture

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


SUITE = os.environ.get("SUITE", "generic")
if not SUITE.startswith("cuda"):
    # A device that was looked at here works in no process that is forked.
    import forked  # noqa: F401
if SUITE == "faulty":
    # It changes torch's list of backends, so the other suites do without.
    import faulty_agent  # noqa: F401
    from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import (
        default_messages_to_delay,
        retryable_message_types,
    )


class FaultyRendezRpcAgentTestFixture(RendezRpcAgentTestFixture):
    """The same for an agent whose messages fail and are late."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.messages_to_fail = retryable_message_types
        self.messages_to_delay = default_messages_to_delay

    @property
    def rpc_backend(self):
        return rpc.BackendType.FAULTY_TENSORPIPE

    @property
    def rpc_backend_options(self):
        return rpc.backend_registry.construct_rpc_backend_options(
            self.rpc_backend,
            init_method=self.init_method,
            num_worker_threads=8,
            num_fail_sends=3,
            messages_to_fail=self.messages_to_fail,
            messages_to_delay=self.messages_to_delay,
        )

    def setup_fault_injection(self, faulty_messages, messages_to_delay):
        if faulty_messages is not None:
            self.messages_to_fail = faulty_messages
        if messages_to_delay is not None:
            self.messages_to_delay = messages_to_delay


LISTS = {"generic": rpc_utils.GENERIC_TESTS, "tensorpipe": rpc_utils.TENSORPIPE_TESTS}
LISTS["faulty"] = rpc_utils.FAULTY_AGENT_TESTS
LISTS["cuda"] = rpc_utils.GENERIC_CUDA_TESTS
LISTS["cuda-tensorpipe"] = rpc_utils.TENSORPIPE_CUDA_TESTS
FIXTURE = FaultyRendezRpcAgentTestFixture if SUITE == "faulty" else RendezRpcAgentTestFixture
globals().update(rpc_utils.generate_tests("Rendez", FIXTURE, LISTS[SUITE], __name__))

if __name__ == "__main__":
    run_tests()
