"""The RPC backend RENDEZ: its options, how an agent begins, and torch's list of backends."""

import contextlib
import functools
import secrets
import time

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
    options = rpc_backend_options
    if not world_size:
        return _join(store, name, rank, options)
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


#: The stores of dynamic groups by the names of this process's workers, for when they leave.
_stores = {}


@contextlib.contextmanager
def _turn(store, what, timeout):
    """The right to change who is in a dynamic group: one worker has it at a time. torch's own keeps it for ever where
    joining fails."""
    what = f"{what} ({secrets.token_hex(4)})"
    until = time.monotonic() + timeout
    while (found := store.compare_set("turn", "", what).decode()) != what:
        if time.monotonic() > until:
            raise TimeoutError(f"{what}, and has waited {timeout} s for its turn: `{found}` does not end")
        time.sleep(0.01)
    try:
        yield
    finally:
        store.set("turn", "")


def _join(store, name, rank, options):
    """Joins a dynamic group: one worker at a time joins or leaves, and tells the others."""
    with _turn(store, f"{name} joins", options.rpc_timeout):
        agent = _native.RendezAgent(store, name, rank, 0, options.rpc_timeout, options.num_worker_threads)
        _stores[name] = store
        api._init_rpc_states(agent)
        try:
            agent.announce(True)
        except Exception:
            _stores.pop(name)
            with contextlib.suppress(Exception):
                agent.announce(False)
            agent.join(shutdown=True)
            api.shutdown(graceful=False)
            raise
    return agent


def _shutdown(graceful=True, timeout=constants.DEFAULT_SHUTDOWN_TIMEOUT):
    agent = api._get_current_rpc_agent() if api._is_current_rpc_agent_set() else None
    if not graceful or not isinstance(agent, _native.RendezAgent) or agent.is_static_group:
        return _torchs_shutdown(graceful, timeout)
    try:
        name = agent.get_worker_info().name
        with _turn(_stores.pop(name), f"{name} leaves", timeout or constants.DEFAULT_RPC_TIMEOUT_SEC):
            agent.announce(False)
            agent.join(shutdown=True, timeout=timeout)
    finally:
        api._finalize_shutdown()


# torch's own knows dynamic groups of its own agent alone.
_torchs_shutdown = api.shutdown
functools.update_wrapper(_shutdown, _torchs_shutdown)
api.shutdown = rpc.shutdown = _shutdown

RENDEZ = backend_registry.register_backend("RENDEZ", _options, _init)
# `register_backend` makes a new enumeration; torch.distributed.rpc would keep the old one, whose members are no longer
# taken, not even TENSORPIPE.
rpc.BackendType = backend_registry.BackendType
