"""Methods of values that live elsewhere: `rref.rpc_sync().method(…)`."""

from collections.abc import Callable
from typing import Any

from .._rendez import Call, RRef


class Proxy:
    """The value of a reference: its methods are called where it lives."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[str, tuple[Any, ...], dict[str, Any]], Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        call = self._call

        def method(*args: Any, **kwargs: Any) -> Any:
            return call(name, args, kwargs)

        method.__name__ = method.__qualname__ = name
        return method

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"`{name}` cannot be set at a value that lives elsewhere: call a method of it")


def sync(rref: "RRef[Any]", timeout: float | None) -> Proxy:
    return Proxy(lambda name, args, kwargs: rref._call(name, args, kwargs, timeout).wait())


def asynchronous(rref: "RRef[Any]", timeout: float | None) -> Proxy:
    def call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "Call[Any]":
        return rref._call(name, args, kwargs, timeout)

    return Proxy(call)


def remote(rref: "RRef[Any]", timeout: float | None) -> Proxy:
    return Proxy(lambda name, args, kwargs: rref._remote(name, args, kwargs, timeout))
