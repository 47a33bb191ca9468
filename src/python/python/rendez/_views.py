"""Tensors as values and arrays of others. Nothing of others is imported before it is asked for."""

import itertools
import math
import operator
import struct
from typing import Any

_CODES = {
    "bool": "?",
    "i8": "b",
    "u8": "B",
    "i16": "h",
    "u16": "H",
    "i32": "i",
    "u32": "I",
    "i64": "q",
    "u64": "Q",
    "f16": "e",
    "f32": "f",
    "f64": "d",
}

#: Empty lists that are made at most.
_LISTS = 1 << 24


def numpy(tensor: Any) -> Any:
    """A view as a NumPy array; of `bf16` by the package ml_dtypes."""
    import numpy as np

    # By a memoryview, which raises what is wrong; NumPy would make an array of one object.
    if tensor.dtype != "bf16":
        return np.asarray(memoryview(tensor))
    import ml_dtypes

    return np.asarray(memoryview(tensor.recast("u16"))).view(ml_dtypes.bfloat16)


def array(tensor: Any, dtype: Any, copy: bool | None) -> Any:
    """As `numpy.asarray` asks for it where the buffer protocol is not enough."""
    view = numpy(tensor)
    if dtype is not None and dtype != view.dtype:
        if copy is False:
            raise ValueError(f"an array of {dtype} needs a copy of the tensor, whose elements are {view.dtype}")
        return view.astype(dtype)
    return view.copy() if copy else view


def torch_copy(torch: Any, tensor: Any) -> Any:
    """A copy as a PyTorch tensor, which may be written to."""
    return torch.from_dlpack(_Copied(tensor))


class _Copied:
    """Lends a copy of a tensor by DLPack, whatever the consumer asks for."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **wanted: Any) -> Any:
        return self._tensor.__dlpack__(**{**wanted, "copy": True})

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._tensor.__dlpack_device__()
        return device


def _flat(tensor: Any) -> list[Any]:
    if tensor.dtype == "string":
        strings: list[Any] = tensor.strings()
        return strings
    if tensor.dtype == "bf16":
        # The upper half of an f32.
        halves = struct.unpack(f"={tensor.nbytes // 2}H", _bytes(tensor.recast("u16")))
        return list(struct.unpack(f"={len(halves)}f", struct.pack(f"={len(halves)}I", *(half << 16 for half in halves))))
    raw = _bytes(tensor)
    if tensor.dtype in ("c64", "c128"):
        size, code = (4, "f") if tensor.dtype == "c64" else (8, "d")
        parts = struct.unpack(f"={len(raw) // size}{code}", raw)
        return [complex(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
    code = _CODES[tensor.dtype]
    return list(struct.unpack(f"={len(raw) // struct.calcsize('=' + code)}{code}", raw))


def _bytes(tensor: Any) -> bytes:
    return memoryview(tensor).cast("B").tobytes() if tensor.nbytes and tensor.ndim else bytes(memoryview(tensor))


def tolist(tensor: Any) -> Any:
    """The elements as Python numbers, in lists of lists as the shape has them."""
    shape = tensor.shape
    if 0 in shape:
        # No byte of it need have come: its number is what its sender says.
        lists = sum(itertools.accumulate(shape[: shape.index(0)], operator.mul))
        if lists > _LISTS:
            raise ValueError(f"a tensor of shape {shape} has no elements, and would be more than {_LISTS} empty lists")
        return _empty(shape)
    values = _flat(tensor)
    if not shape:
        return values[0]
    for size in reversed(shape[1:]):
        values = [values[at * size : (at + 1) * size] for at in range(len(values) // size)]
    return values


def _empty(shape: tuple[int, ...]) -> list[Any]:
    return [_empty(shape[1:]) for _ in range(shape[0])]


def item(tensor: Any) -> Any:
    """The only element, as a Python number."""
    count = math.prod(tensor.shape)
    if count != 1:
        raise ValueError(f"a tensor of {count} elements is no single number")
    return _flat(tensor)[0]
