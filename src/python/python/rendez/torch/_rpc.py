"""The RPC backend RENDEZ: its options, how an agent begins, and torch's list of backends."""

import contextlib
import functools
import json
import secrets
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.distributed.rpc import api, backend_registry, constants

from rendez_torch import _native

from .. import _waits


def _device(device):
    device = torch.device(device)
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and device.index is None):
        raise ValueError(f"calls move tensors between cpu and cuda devices by their numbers, and this is {device}")
    return device


class RendezRpcBackendOptions(rpc.RpcBackendOptions):
    """Options of `init_rpc` for rendez. Without `backend=` torch takes the backend from their type.

    `device_maps` says for each callee, by its name, to which of its devices tensors of this worker's devices go;
    results go the other way. `devices` are all of this worker's that its calls use; by default those that the maps of
    the group name, and in a group that workers join and leave all that this worker has once it names one."""

    def __init__(
        self,
        *,
        num_worker_threads=constants.DEFAULT_NUM_WORKER_THREADS,
        rpc_timeout=constants.DEFAULT_RPC_TIMEOUT_SEC,
        init_method=constants.DEFAULT_INIT_METHOD,
        device_maps=None,
        devices=None,
    ):
        super().__init__()
        if num_worker_threads < 1:
            raise ValueError(f"`num_worker_threads` is 1 or more, and this is {num_worker_threads}")
        self.num_worker_threads = num_worker_threads
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method
        self.device_maps = {}
        self.devices = []
        for to, device_map in (device_maps or {}).items():
            self.set_device_map(to, device_map)
        self.set_devices(devices or [])

    def set_device_map(self, to, device_map):
        """Adds to where tensors of this worker's devices go when it calls `to`: one device for each."""
        known = self.device_maps.get(to, {})
        for ours, theirs in device_map.items():
            ours, theirs = _device(ours), _device(theirs)
            if known.get(ours, theirs) != theirs or any(v == theirs and k != ours for k, v in known.items()):
                raise ValueError(
                    f"`set_device_map` only supports 1-to-1 mapping, trying to map {ours} to {theirs} where "
                    f"{known} is mapped"
                )
            known = {**known, ours: theirs}
        self.device_maps[to] = known

    def set_devices(self, devices):
        """Says which devices of this worker its calls use."""
        self.devices = [_device(device) for device in devices]
        if any(device.type != "cuda" for device in self.devices):
            raise ValueError(f"`devices` are CUDA devices, and these are {self.devices}")


def _exchange_devices(store, name, rank, world_size, options):
    """The devices of this worker that the maps of a static group name; raises for maps that cannot be."""
    maps = {to: {str(k): str(v) for k, v in map_.items()} for to, map_ in options.device_maps.items()}
    mine = json.dumps([rank, name, torch.cuda.device_count(), maps, [str(device) for device in options.devices]])
    number = store.add("devices", 1)
    store.set(f"devices/{number}", mine)
    told = sorted(json.loads(store.get(f"devices/{one}")) for one in range(1, world_size + 1))
    device = torch.device
    all_maps = {
        worker: {to: {device(k): device(v) for k, v in map_.items()} for to, map_ in maps.items()}
        for _, worker, _, maps, _ in told
    }
    if not any(all_maps.values()) and not any(devices for *_, devices in told):
        return []
    counts = {worker: count for _, worker, count, *_ in told}
    devices = {worker: [device(one) for one in devices] for _, worker, *_, devices in told}
    names = [worker for _, worker, *_ in told]
    store.add("devices/read", 1)
    try:
        backend_registry._validate_device_maps(names, counts, all_maps, devices)
    except ValueError:
        # The store ends with the worker of rank 0, and the others read it.
        until = time.monotonic() + options.rpc_timeout
        while rank == 0 and store.add("devices/read", 0) < world_size and time.monotonic() < until:
            time.sleep(0.01)
        raise
    back = backend_registry._create_reverse_mapping(name, names, all_maps)
    return backend_registry._create_device_list(options.devices, options.device_maps, back)


def _options(rpc_timeout, init_method, num_worker_threads=constants.DEFAULT_NUM_WORKER_THREADS, **others):
    return RendezRpcBackendOptions(
        rpc_timeout=rpc_timeout, init_method=init_method, num_worker_threads=num_worker_threads, **others
    )


def _agent(store, name, rank, world_size, options, devices):
    if devices:
        torch.cuda.init()
    _waits.begin()
    return _native.RendezAgent(
        store,
        name,
        rank,
        world_size,
        options.rpc_timeout,
        options.num_worker_threads,
        options.device_maps,
        devices,
    )


def _init(store, name, rank, world_size, rpc_backend_options):
    if not isinstance(store, dist.Store):
        raise TypeError(f"`store` must be a c10d::Store, and is {store!r}")
    if not isinstance(rpc_backend_options, RendezRpcBackendOptions):
        raise TypeError(f"`rpc_backend_options` must be a RendezRpcBackendOptions, and is {rpc_backend_options!r}")
    options = rpc_backend_options
    if not world_size:
        return _join(store, name, rank, options)
    devices = _exchange_devices(store, name, rank, world_size, options)
    agent = _agent(store, name, rank, world_size, options, devices)
    try:
        api._init_rpc_states(agent)
        # No worker leaves before all have been here.
        api._all_gather(None, timeout=options.rpc_timeout)
        agent.join(False)
    except Exception:
        api.shutdown(graceful=False)
        raise
    return agent


#: The stores of dynamic groups by the names of this process's workers, for when they leave.
_stores = {}


#: How often who has the turn says that it goes on, and how long it says nothing before another takes it; in seconds.
_BEAT, _SILENCE = 0.2, 10.0


@contextlib.contextmanager
def _turn(store, what, timeout):
    """The right to change who is in a dynamic group: one worker has it at a time, and one that dies loses it. torch's
    own keeps it for ever where joining fails."""
    what = f"{what} ({secrets.token_hex(4)})"
    silence = max(5 * _BEAT, min(_SILENCE, timeout / 2))
    began = heard_at = time.monotonic()
    heard, free = None, ""
    while (found := store.compare_set("turn", free, what).decode()) != what:
        now = time.monotonic()
        if now > began + timeout:
            raise TimeoutError(f"{what}, and has waited {timeout} s for its turn: `{found}` does not end")
        said = found, store.add("turn/beats", 0)
        if said != heard:
            heard, heard_at = said, now
        free = found if now > heard_at + silence else ""
        time.sleep(0.01)
    is_over = threading.Event()
    beats = threading.Thread(target=_beat, args=(store, is_over), name="rendez-turn", daemon=True)
    beats.start()
    try:
        yield
    finally:
        is_over.set()
        beats.join()
        # Another has it if this process stood still.
        store.compare_set("turn", what, "")


def _beat(store, is_over):
    while not is_over.wait(_BEAT):
        # A store that is gone has no waiters, and one that was late once may not be late again.
        with contextlib.suppress(RuntimeError):
            store.add("turn/beats", 1)


def _join(store, name, rank, options):
    """Joins a dynamic group: one worker at a time joins or leaves, and tells the others."""
    devices = options.devices
    if options.device_maps and not devices:
        devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if devices:
        # Before its turn: a driver that takes long lets no other thread of Python's say that it goes on.
        torch.cuda.init()
    timeout = options.rpc_timeout or constants.DEFAULT_RPC_TIMEOUT_SEC
    with _turn(store, f"{name} joins", timeout):
        agent = _agent(store, name, rank, 0, options, devices)
        try:
            api._init_rpc_states(agent)
            _stores[name] = store
            agent.announce(True, timeout)
        except Exception:
            if _stores.pop(name, None):
                with contextlib.suppress(Exception):
                    agent.announce(False, timeout)
            _torchs_shutdown(graceful=False)
            raise
    return agent


def _shutdown(graceful=True, timeout=constants.DEFAULT_SHUTDOWN_TIMEOUT):
    agent = api._get_current_rpc_agent() if api._is_current_rpc_agent_set() else None
    if not graceful or not isinstance(agent, _native.RendezAgent) or agent.is_static_group:
        return _torchs_shutdown(graceful, timeout)
    try:
        name = agent.get_worker_info().name
        # Others hear of it in their time, however long a call may take here.
        patience = timeout or constants.DEFAULT_RPC_TIMEOUT_SEC
        with _turn(_stores.pop(name), f"{name} leaves", patience):
            agent.announce(False, patience)
        # The last calls may take long, and others join and leave meanwhile.
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
