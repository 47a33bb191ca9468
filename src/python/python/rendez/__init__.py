"""Hand a tensor from the one that made it to the one that needs it, by key.

An `Engine` is one task of a cluster. Values are sent and received by `Key`, within a `Step`; either side may come
first, and they may be in one thread, in two processes, or on two machines:

    import rendez

    with rendez.Engine("/job:worker/task:0") as engine, engine.step(1) as step:
        step.send("worker->worker;loss", 0.5)
        print(step.recv("worker->worker;loss").wait().item())
"""

import atexit as _atexit
import os as _os

from . import _waits, rpc
from ._errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    Code,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    RendezError,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unknown,
)
from ._rendez import _C_API as _C_API
from ._rendez import Engine, Key, Operation, Recv, Sending, Step, Tensor, TensorMut, __version__
from ._rendez import _at_exit, _end_calls, _end_services, _end_threads, _is_called
from ._types import Filled, KeyLike, Pending, SupportsDLPack, TensorLike

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Cancelled",
    "Code",
    "DataLoss",
    "DeadlineExceeded",
    "Engine",
    "FailedPrecondition",
    "Filled",
    "Internal",
    "InvalidArgument",
    "Key",
    "KeyLike",
    "NotFound",
    "Operation",
    "OutOfRange",
    "Pending",
    "PermissionDenied",
    "Recv",
    "RendezError",
    "ResourceExhausted",
    "Sending",
    "Step",
    "SupportsDLPack",
    "Tensor",
    "TensorLike",
    "TensorMut",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "__version__",
    "rpc",
]


def _end() -> None:
    try:
        try:
            _end_calls()
            rpc._serve.end()
            _waits.end()
        finally:
            # Whatever a handler of signals raised: peers hear that this task leaves.
            _at_exit()
            _waits.end_calls()
        _end_services()
    except BaseException as error:
        if not _is_called():
            raise
        # What another task has called still runs, and must not come back to an interpreter that is gone.
        _os._exit(_code_of(error))
    finally:
        _end_threads()


def _code_of(error: BaseException) -> int:
    """What the process ends with when that is raised in its last moments."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    code = error.code if isinstance(error, SystemExit) else 1
    return code if isinstance(code, int) else int(code is not None)


# Before the interpreter takes its threads down: peers hear that this task leaves.
_atexit.register(_end)
