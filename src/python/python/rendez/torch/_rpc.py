"""The RPC backend RENDEZ: its options, how an agent begins, and torch's list of backends."""

import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.distributed.rpc import api, backend_registry, constants

from rendez_torch import _native


class RendezRpcBackendOptions(rpc.RpcBackendOptions):
    """Options of `init_rpc` for rendez. Without `backend=` torch takes the backend from their type."""

    def __init__(
        self,
        *,
        num_worker_threads=constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout=constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method=constants.DEFAULT_INIT_METHOD,
        device_maps=None,
    ):
        if device_maps:
            raise ValueError(
                "the RPC backend RENDEZ moves CPU tensors, so device_maps are unavailable: "
                "move tensors by .cpu(), or use the backend TENSORPIPE"
            )
        super().__init__()
        self.num_worker_threads = num_worker_threads
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method


def _options(rpc_timeout, init_method, num_worker_threads=constants.DEFAULT_NUM_WORKER_THREADS, **others):
    return RendezRpcBackendOptions(
        rpc_timeout=rpc_timeout, init_method=init_method, num_worker_threads=num_worker_threads, **others
    )


def _init(store, name, rank, world_size, rpc_backend_options):
    if not isinstance(store, dist.Store):
        raise TypeError(f"`store` must be a c10d::Store, and is {store!r}")
    if not isinstance(rpc_backend_options, RendezRpcBackendOptions):
        raise TypeError(f"`rpc_backend_options` must be a RendezRpcBackendOptions, and is {rpc_backend_options!r}")
    if world_size is None:
        raise ValueError("the RPC backend RENDEZ needs `world_size`: groups that grow are unavailable")
    options = rpc_backend_options
    agent = _native.RendezAgent(store, name, rank, world_size, options.rpc_timeout, options.num_worker_threads)
    api._init_rpc_states(agent)
    try:
        # No worker leaves before all have been here.
        api._all_gather(None, timeout=options.rpc_timeout)
        agent.join(False)
    except Exception:
        api.shutdown(graceful=False)
        raise
    return agent


RENDEZ = backend_registry.register_backend("RENDEZ", _options, _init)
# `register_backend` makes a new enumeration; torch.distributed.rpc would keep the old one, whose members are no longer
# taken, not even TENSORPIPE.
rpc.BackendType = backend_registry.BackendType
