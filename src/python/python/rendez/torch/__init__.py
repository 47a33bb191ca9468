"""PyTorch on rendez: `import rendez.torch`, and torch has a process group backend and an RPC backend more.

    import torch.distributed as dist
    import rendez.torch
    dist.init_process_group("rendez")

    import torch.distributed.rpc as rpc
    rpc.init_rpc("worker0", rank=0, world_size=2, backend=rpc.BackendType.RENDEZ)

It needs the extension of the package `rendez-torch`, which is built against the installed PyTorch. Processes meet over
torch's own store; `RENDEZ_*` variables and rendez' configuration file say how they are reached.
"""

import atexit as _atexit

try:
    import torch as _torch  # noqa: F401 -- its libraries must be loaded before the extension
    import torch.distributed as _dist
except ImportError as _error:
    raise ImportError("rendez.torch needs PyTorch: pip install torch") from _error
try:
    import rendez_torch as _rendez_torch
except ImportError as _error:
    raise ImportError(
        "rendez.torch needs its extension, built against the installed PyTorch: "
        "in a clone of rendez, pip install --no-build-isolation ./src/torch"
    ) from _error

_rendez_torch.check_version()

from rendez_torch import _native  # noqa: E402
from torch._C._distributed_c10d import Backend as _Backend  # noqa: E402

from .. import _waits  # noqa: E402
from . import _library  # noqa: E402
from ._arena import arena_counts, use_arena  # noqa: E402

__all__ = ["arena_counts", "use_arena", "use_engine"]

#: Seconds that values which are under way have to arrive when the process ends.
_PATIENCE = 5.0

_native.use_table(_library.table_address())


def use_engine(engine):
    """Lets torch use a `rendez.Engine` of this program, instead of one of its own. It has to come before the first
    group or agent; the engine is kept until the process ends."""
    _native.adopt_engine(_library.engine_address(engine))


def _create_process_group(*arguments):
    # The engine's lines go to `logging`.
    _waits.begin()
    return _native.create_process_group(*arguments)


# Where a group was made with `device_id`, torch has ranks that are not in a new one take part in the split by this
# method of the backend's, and only nccl's class has it. For us there is nothing to do.
if not hasattr(_Backend, "perform_nocolor_split"):
    _Backend.perform_nocolor_split = lambda self, device: None

_dist.Backend.register_backend("rendez", _create_process_group, devices=["cpu", "cuda"])

if _dist.rpc.is_available():
    from ._rpc import RendezRpcBackendOptions

    __all__ += ["RendezRpcBackendOptions"]


@_atexit.register
def _end():
    try:
        # A program need not destroy its groups, and what they sent is to arrive.
        _native.shutdown_groups()
    finally:
        _native.stop_engine(_PATIENCE)
