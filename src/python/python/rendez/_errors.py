"""The exceptions: one for each of gRPC's codes, all of them `RendezError`."""

from enum import IntEnum
from typing import Any, ClassVar


class Code(IntEnum):
    """The seventeen codes, as gRPC numbers them."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RendezError(Exception):
    """What went wrong: a code, a reason that never changes its name, and a message for people."""

    code: ClassVar[Code] = Code.UNKNOWN
    reason: str
    """The stable reason, as `KEY_MALFORMED`; each stands in the reference of errors."""
    message: str
    """What happened, where, and what to do."""
    secondary: bool
    """It only follows from another failure."""

    def __init__(self, message: str = "", reason: str = "", secondary: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.secondary = secondary

    def __str__(self) -> str:
        return f"{self.message} [{self.reason}]" if self.reason else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.reason, self.secondary))


class Cancelled(RendezError):
    """The caller gave up."""

    code = Code.CANCELLED


class Unknown(RendezError):
    """No better code is known."""

    code = Code.UNKNOWN


class InvalidArgument(RendezError, ValueError):
    """What was asked makes no sense, whatever the state."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(RendezError, TimeoutError):
    """Time ran out first."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(RendezError, LookupError):
    """No such thing."""

    code = Code.NOT_FOUND


class AlreadyExists(RendezError):
    """There is one already."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(RendezError, PermissionError):
    """Not allowed."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(RendezError):
    """A bound was reached; the message names it and its setting."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(RendezError):
    """The state is not one in which this can be done."""

    code = Code.FAILED_PRECONDITION


class Aborted(RendezError):
    """Ended by an abort or the end of its step, or of this task."""

    code = Code.ABORTED


class OutOfRange(RendezError):
    """Past the end."""

    code = Code.OUT_OF_RANGE


class Unimplemented(RendezError, NotImplementedError):
    """Not built."""

    code = Code.UNIMPLEMENTED


class Internal(RendezError):
    """An invariant broke on this side."""

    code = Code.INTERNAL


class Unavailable(RendezError, ConnectionError):
    """The peer is not there now; trying again may help."""

    code = Code.UNAVAILABLE


class DataLoss(RendezError):
    """Bytes were lost or damaged."""

    code = Code.DATA_LOSS


class Unauthenticated(RendezError):
    """The caller's identity is not proved."""

    code = Code.UNAUTHENTICATED


_classes = {
    kind.code: kind
    for kind in (
        Cancelled,
        Unknown,
        InvalidArgument,
        DeadlineExceeded,
        NotFound,
        AlreadyExists,
        PermissionDenied,
        ResourceExhausted,
        FailedPrecondition,
        Aborted,
        OutOfRange,
        Unimplemented,
        Internal,
        Unavailable,
        DataLoss,
        Unauthenticated,
    )
}


def of(code: int, reason: str, message: str, secondary: bool) -> RendezError:
    """The exception of a status of the engine's."""
    kind: type[RendezError] = _classes.get(Code(code), Unknown)
    return kind(message, reason, secondary)
