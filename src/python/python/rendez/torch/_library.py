"""Where the table of rendez' functions is: in the wheel `rendez`, or in a `librendez_c.so` that a variable names."""

import ctypes
import os

#: The version of the table that the extension speaks: RENDEZ_API_VERSION.
_VERSION = 1
#: Keeps what was loaded.
_loaded = []


def _pointer(capsule, name):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, name)


def table_address():
    """The address of the table. RENDEZ_LIBRARY, the path of a `librendez_c.so`, goes before the wheel's."""
    path = os.environ.get("RENDEZ_LIBRARY")
    if path:
        library = ctypes.CDLL(path)
        library.rendez_get_api.restype = ctypes.c_void_p
        library.rendez_get_api.argtypes = [ctypes.c_uint32]
        _loaded.append(library)
        address = library.rendez_get_api(_VERSION)
        if not address:
            raise ImportError(f"{path} has no table of version {_VERSION}: it is of another release of rendez")
        return address
    import rendez

    capsule = getattr(rendez, "_C_API", None)
    if capsule is None:
        raise ImportError(
            "this rendez offers no table of functions to extensions: install the wheel `rendez`, "
            "or name a librendez_c.so by RENDEZ_LIBRARY"
        )
    _loaded.append(capsule)
    return _pointer(capsule, b"rendez._C_API")


def engine_address(engine):
    """The C library's handle of a `rendez.Engine`, which is kept."""
    capsule = engine._c_engine()
    _loaded.append(capsule)
    return _pointer(capsule, b"rendez.engine")
