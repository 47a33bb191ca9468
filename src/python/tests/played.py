"""A driver of CUDA played in memory, as another library of arrays uses it: arrays on devices, streams, and DLPack.

The library is built with the tests, and lies beside them. The engine loads the same one.
"""

import ctypes
import pathlib

import numpy as np

PATH = str(pathlib.Path(__file__).parent / "librendez_played_cuda.so")

_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("kind", ctypes.c_int32),
        ("index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Old(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


class _New(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]

# What consumers have not given back: structures by their addresses. A capsule's name must live as long as the capsule.
_lent = {}
_NAMES = {name: ctypes.create_string_buffer(name) for name in (b"dltensor", b"dltensor_versioned", b"used")}


@_DELETER
def _give_back(address):
    _lent.pop(address)


class Driver:
    """The calls that a library makes, on one device's context, and those of tests."""

    def __init__(self):
        self.library = ctypes.CDLL(PATH)
        self("cuInit", 0)
        self.contexts = []
        # None is ended: the played driver forgets then what waits for it.
        self.events = []
        for device in range(2):
            context = ctypes.c_void_p()
            self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts.append(context)

    def __call__(self, name, *arguments, device=0):
        self._call(name, arguments) if name in ("cuInit", "cuDevicePrimaryCtxRetain") else self._in(device, name, arguments)

    def _in(self, device, name, arguments):
        self._call("cuCtxPushCurrent_v2", (self.contexts[device],))
        try:
            self._call(name, arguments)
        finally:
            self._call("cuCtxPopCurrent_v2", (ctypes.byref(ctypes.c_void_p()),))

    def _call(self, name, arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, f"{name} returns {code}"

    def stream(self, device=0):
        stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(stream), 1, device=device)
        return stream.value

    def waits_for(self, stream, other, device=0):
        """What `stream` does next waits for all that is queued on `other`."""
        event = ctypes.c_void_p()
        self("cuEventCreate", ctypes.byref(event), 2, device=device)
        self("cuEventRecord", event, ctypes.c_void_p(other), device=device)
        self("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0, device=device)
        self.events.append(event)

    def write(self, address, raw, stream):
        """Queues a copy to a device."""
        self("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), raw, ctypes.c_size_t(len(raw)), ctypes.c_void_p(stream))

    def hold(self, stream, held=True):
        assert self.library.played_hold(ctypes.c_size_t(stream), ctypes.c_bool(held))

    def pending(self, stream):
        self.library.played_pending.restype = ctypes.c_size_t
        return self.library.played_pending(ctypes.c_size_t(stream))

    def violations(self):
        self.library.played_violations.restype = ctypes.c_uint64
        return self.library.played_violations()

    def read(self, address, nbytes):
        out = ctypes.create_string_buffer(nbytes)
        if nbytes:
            self("cuMemcpyDtoH_v2", out, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
        return out.raw


class Array:
    """An array on a device, as another library has it: written by work on its stream."""

    def __init__(self, driver, values, device=0, stream=None, versions=True):
        self.driver, self.device, self.versions = driver, device, versions
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self.stream = stream if stream is not None else driver.stream(device)
        self.address, self.asked, self.strides = 0, [], None
        if self.nbytes:
            address = ctypes.c_uint64()
            driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.nbytes), device=device)
            self.address = address.value
            self.write(values)

    def write(self, values):
        raw = np.ascontiguousarray(values).tobytes()
        self.driver("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), raw, ctypes.c_size_t(len(raw)), device=self.device)

    def __del__(self):
        if self.address:
            self.driver("cuMemFree_v2", ctypes.c_uint64(self.address), device=self.device)

    def __dlpack_device__(self):
        return (2, self.device)

    def __dlpack__(self, *, stream=None, **wanted):
        if wanted and not self.versions:
            raise TypeError("an unexpected keyword")
        self.asked.append(stream)
        self.driver.waits_for(stream, self.stream, self.device)
        made = _New(1, 0, None, _give_back, 0) if wanted.get("max_version") else _Old(deleter=_give_back)
        rank = len(self.shape)
        shape = (ctypes.c_int64 * rank)(*self.shape)
        strides = self.strides and (ctypes.c_int64 * rank)(*self.strides)
        bits = 8 if self.dtype.kind == "b" else self.dtype.itemsize * 8
        made.tensor = _Tensor(self.address, 2, self.device, rank, _KINDS[self.dtype.kind], bits, 1, shape, strides)
        address = ctypes.addressof(made)
        _lent[address] = (self, made, shape, strides)
        name = b"dltensor_versioned" if isinstance(made, _New) else b"dltensor"
        return _api.PyCapsule_New(address, ctypes.cast(_NAMES[name], ctypes.c_char_p), None)


class CudaArray:
    """One that says by the CUDA array interface where it lies, and knows no DLPack."""

    def __init__(self, array, **said):
        self.array = array
        self.__cuda_array_interface__ = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (array.address, False),
            "strides": None,
            "stream": array.stream,
            "version": 3,
            **said,
        }


def lent():
    """How many arrays consumers have, and did not give back."""
    return len(_lent)


class View:
    """What a consumer has of a capsule, until it is let go."""

    def __init__(self, driver, capsule):
        name = next(name for name in (b"dltensor_versioned", b"dltensor") if _api.PyCapsule_IsValid(capsule, name))
        self.driver, self.address = driver, _api.PyCapsule_GetPointer(capsule, name)
        kind = _New if name == b"dltensor_versioned" else _Old
        self.managed = kind.from_address(self.address)
        self.flags = self.managed.flags if kind is _New else None
        tensor = self.managed.tensor
        self.device = (tensor.kind, tensor.index)
        self.shape = tuple(tensor.shape[: tensor.rank])
        self.data, self.bits = tensor.data, tensor.bits
        assert _api.PyCapsule_SetName(capsule, ctypes.cast(_NAMES[b"used"], ctypes.c_char_p)) == 0

    def bytes(self):
        return self.driver.read(self.data or 0, int(np.prod(self.shape, dtype=np.int64)) * self.bits // 8)

    def let_go(self):
        self.managed.deleter(self.address)
