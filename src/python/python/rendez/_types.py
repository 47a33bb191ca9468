"""What calls take and return, beside the engine's own classes."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if sys.version_info >= (3, 12):
    from collections.abc import Buffer
elif TYPE_CHECKING:
    from typing_extensions import Buffer
else:
    Buffer = Any

from ._rendez import Key, Tensor, TensorMut


class SupportsDLPack(Protocol):
    """What lends its memory by DLPack: tensors of PyTorch, JAX, NumPy and others."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


class SupportsCudaArray(Protocol):
    """What says where it lies on a CUDA device: arrays of Numba, CuPy, and others."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


KeyLike: TypeAlias = Key | str | tuple[str, str, str]
"""A key, its text, `source->destination;name`, or these three."""

TensorLike: TypeAlias = (
    Tensor | TensorMut | SupportsDLPack | SupportsCudaArray | Buffer | bool | int | float | complex
)
"""What can be sent."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Something that waits, or is parked."""

    step: int
    key: Key
    what: str
    """`receive`, `value` or `send`."""
    age: float
    """For how many seconds."""
    bytes: int
    count: int
    """How many of the same kind wait at this key."""


class Filled(NamedTuple):
    """What was received into memory of the caller's."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    path: str
    dead: bool
