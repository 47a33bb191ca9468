"""A faulty RPC backend for torch's suites of faults: as RENDEZ, with messages that fail and are late. It stands where
torch has its own, FAULTY_TENSORPIPE, since the tests ask for that name."""

import enum

import torch.distributed.rpc as rpc
import torch.distributed.rpc._testing  # noqa: F401
from torch.distributed.rpc import api, backend_registry

import rendez.torch  # noqa: F401
from rendez.torch import RendezRpcBackendOptions
from rendez_torch import _native


class FaultyRendezRpcBackendOptions(RendezRpcBackendOptions):
    """What fails, and how often; and what is late, by how many seconds."""

    def __init__(self, *, messages_to_fail, messages_to_delay, num_fail_sends, **others):
        super().__init__(**others)
        self.messages_to_fail = messages_to_fail
        self.messages_to_delay = messages_to_delay
        self.num_fail_sends = num_fail_sends


def _options(rpc_timeout, init_method, num_worker_threads, **others):
    return FaultyRendezRpcBackendOptions(
        rpc_timeout=rpc_timeout, init_method=init_method, num_worker_threads=num_worker_threads, **others
    )


def _init(store, name, rank, world_size, rpc_backend_options):
    options = rpc_backend_options
    agent = _native.FaultyAgent(
        store,
        name,
        rank,
        world_size,
        options.rpc_timeout,
        options.num_worker_threads,
        options.messages_to_fail,
        options.messages_to_delay,
        options.num_fail_sends,
    )
    api._init_rpc_states(agent)
    return agent


_known = {member.name: member.value for member in backend_registry.BackendType}
_known["FAULTY_TENSORPIPE"] = backend_registry.BackendValue(_options, _init)
backend_registry.BackendType = rpc.BackendType = enum.Enum(value="BackendType", names=_known)
