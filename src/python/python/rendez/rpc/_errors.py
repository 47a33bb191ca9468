"""Exceptions that travel: what a function raised at its worker, as its caller sees it."""

import pickle
import traceback
from typing import Any

from .. import _errors
from .._errors import Code, RendezError

_LONGEST = 64 << 10
"""Characters of a message or a traceback that travel."""


class RemoteError(RendezError):
    """A function failed at its worker, and its exception cannot be raised here as it is."""

    code = Code.UNKNOWN
    __module__ = "rendez.rpc"
    worker: str
    """The worker's name."""
    type_name: str
    """The exception's type there."""
    traceback: str
    """Where it was raised, as text."""

    def __init__(
        self,
        message: str = "",
        reason: str = "RPC_REMOTE_ERROR",
        secondary: bool = False,
        *,
        worker: str = "",
        type_name: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message, reason, secondary)
        self.worker = worker
        self.type_name = type_name
        self.traceback = traceback

    def __str__(self) -> str:
        kind = f"{self.type_name}: " if self.type_name else ""
        text = f"worker '{self.worker}': {kind}{self.message} [{self.reason}]"
        return f"{text}\n\n{self.traceback.rstrip()}" if self.traceback else text

    def __reduce__(self) -> tuple[Any, ...]:
        return (_again, (self.message, self.reason, self.worker, self.type_name, self.traceback))


def _again(message: str, reason: str, worker: str, type_name: str, traceback: str) -> RemoteError:
    return RemoteError(message, reason, worker=worker, type_name=type_name, traceback=traceback)


def _text(text: str) -> str:
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def describe(error: BaseException, pickles: bool) -> tuple[str, str, str, str, int, bytes | None]:
    """An exception as it travels: type, message, traceback, reason, code, and its pickle where it has one."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error.message if isinstance(error, RendezError) else error)
    except Exception:
        message = "its message cannot be written"
    try:
        # Without the frame of ours that called the function.
        below = error.__traceback__.tb_next if error.__traceback__ else None
        trace = "".join(traceback.format_exception(kind, error, below or error.__traceback__))
    except Exception:
        trace = ""
    reason, code, pickled = "", 0, None
    if kind in _errors._classes.values() and isinstance(error, RendezError):
        reason, code = error.reason, int(error.code)
    elif pickles:
        try:
            pickled = pickle.dumps(error, 5)
        except Exception:
            pickled = None
    return (_text(name), _text(message), _text(trace), reason, code, pickled)


def rebuild(
    worker: str, type_name: str, message: str, trace: str, reason: str, code: int, pickled: bytes | None
) -> BaseException:
    """The exception that a caller sees."""
    if reason or code:
        told = message if worker in message else f"at worker '{worker}': {message}"
        return _errors.of(code if code in _errors._classes else int(Code.UNKNOWN), reason, told, False)
    remote = RemoteError(message, worker=worker, type_name=type_name, traceback=trace)
    if pickled is None:
        return remote
    try:
        error = pickle.loads(pickled)
    except Exception:
        return remote
    # What ends a program there does not end it here.
    if not isinstance(error, Exception):
        return remote
    error.__cause__ = remote
    return error


def kept(worker: str, error: BaseException) -> BaseException:
    """What a function raised whose result stays, as the owner's program sees it. It ends no program here, either."""
    return error if isinstance(error, Exception) else rebuild(worker, *describe(error, False))


def foreign(worker: str, message: str, trace: str, reason: str) -> RemoteError:
    """That of a function that is not Python's."""
    return RemoteError(message, reason, worker=worker, traceback=trace)
