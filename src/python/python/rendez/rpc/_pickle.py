"""Pickle with buffers out of band, and tensors and references beside it."""

import copyreg
import io
import pickle
import threading
from typing import Any

from .._errors import InvalidArgument
from .._rendez import RRef, Tensor, TensorMut

_reading = threading.local()


def _carried(index: int) -> Any:
    """What travelled beside the pickle that this thread reads."""
    return _reading.carried[index]


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer], carried: list[Any]) -> None:
        super().__init__(file, 5, buffer_callback=buffers.append)
        self.dispatch_table = copyreg.dispatch_table.copy()
        self._kept = carried
        for kind in (Tensor, TensorMut, RRef):
            self.dispatch_table[kind] = self._carry

    def _carry(self, value: Any) -> tuple[Any, ...]:
        self._kept.append(value)
        return (_carried, (len(self._kept) - 1,))


def dumps(value: Any) -> tuple[bytes, list[memoryview], list[Any]]:
    """The pickle, its buffers, and what travels beside it."""
    file, buffers, carried = io.BytesIO(), list[pickle.PickleBuffer](), list[Any]()
    try:
        _Pickler(file, buffers, carried).dump(value)
        raw = [buffer.raw() for buffer in buffers]
    except RecursionError:
        raise InvalidArgument("it cannot be pickled: values lie too deep within each other", "RPC_ARGUMENTS") from None
    except Exception as error:
        raise InvalidArgument(f"it cannot be pickled: {error}", "RPC_ARGUMENTS") from error
    return (file.getvalue(), raw, carried)


def loads(data: Any, buffers: list[Any], carried: list[Any]) -> Any:
    """What `dumps` was given."""
    before = getattr(_reading, "carried", None)
    _reading.carried = carried
    try:
        return pickle.loads(data, buffers=buffers)
    finally:
        _reading.carried = before
