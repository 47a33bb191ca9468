"""Which functions can be called, and how they are named."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from .._errors import InvalidArgument

_F = TypeVar("_F", bound=Callable[..., Any])

NAMED = 0
IMPORTED = 1

_registered: dict[str, Callable[..., Any]] = {}
_NAME = "__rendez_rpc_name__"


@overload
def function(function: _F, /) -> _F: ...
@overload
def function(*, name: str) -> Callable[[_F], _F]: ...


def function(function: Any = None, /, *, name: str | None = None) -> Any:
    """Registers a function: others may call it, also where pickle is not allowed.

    So it does a class: others may make an object of it, and call its public methods where they have a reference.

    Its name is that of its module and its own, or `name`. In the program itself, which has no name that all processes
    share, it is its own alone.
    """
    if function is None:
        return lambda function: _register(function, name)
    if not callable(function):
        raise InvalidArgument("@rendez.rpc.function registers what can be called", "PYTHON_ARGUMENT")
    return _register(function, name)


def _register(function: Any, name: str | None) -> Any:
    if name is None:
        module, own = function.__module__, function.__qualname__
        if "<" in own:
            raise InvalidArgument(
                f"`{own}` is defined within a function: give it a name, @rendez.rpc.function(name=…)",
                "PYTHON_ARGUMENT",
            )
        name = own if module in ("__main__", "__mp_main__") else f"{module}.{own}"
    _check(name)
    try:
        setattr(function, _NAME, name)
    except (AttributeError, TypeError):
        raise InvalidArgument(
            f"{function!r} cannot be registered, as it keeps no name: register a function of your own that calls it",
            "PYTHON_ARGUMENT",
        ) from None
    _registered[name] = function
    return function


def _check(name: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[\w.:/-]{1,200}", name) or name.startswith("rendez."):
        raise InvalidArgument(
            f"a function cannot be named {name!r}: names have letters, digits, `_`, `.`, `:`, `/` and `-`, and those "
            "that begin with `rendez.` are ours",
            "PYTHON_ARGUMENT",
        )


def registered(name: str) -> Callable[..., Any] | None:
    """The function of that name, if there is one."""
    return _registered.get(name)


def is_registered(kind: type) -> bool:
    """Whether a class is, or one that it is derived from."""
    return any(_registered.get(base.__dict__.get(_NAME, "")) is base for base in kind.__mro__)


def all_registered() -> dict[str, Callable[..., Any]]:
    """All of them, by name."""
    return dict(_registered)


def table(functions: Any) -> dict[str, Callable[..., Any]]:
    """Functions of one agent alone, by name."""
    if functions is None:
        return {}
    if isinstance(functions, Mapping):
        own = dict(functions)
    elif isinstance(functions, Iterable):
        own = {}
        for each in functions:
            # A class that is derived from a registered one is another, and a bound method is its function.
            own_name = getattr(getattr(each, "__func__", each), "__dict__", {}).get(_NAME)
            name = own_name or getattr(each, "__name__", "")
            if own.setdefault(name, each) != each:
                raise InvalidArgument(
                    f"functions=: two of them are named `{name}`: pass a mapping of names to functions",
                    "PYTHON_ARGUMENT",
                )
    else:
        raise InvalidArgument("functions= is a mapping of names to functions, or a list of them", "PYTHON_ARGUMENT")
    for name, each in own.items():
        _check(name)
        if not callable(each):
            raise InvalidArgument(f"functions=: `{name}` cannot be called", "PYTHON_ARGUMENT")
    return own


def named(function: Any) -> tuple[int, str]:
    """How the other side finds a function."""
    if isinstance(function, str):
        return (NAMED, function)
    name = getattr(function, _NAME, None)
    # A bound method has the name of its function, and is another.
    if isinstance(name, str) and _registered.get(name) is function:
        return (NAMED, name)
    if not callable(function):
        raise InvalidArgument(f"{type(function).__name__} cannot be called", "PYTHON_ARGUMENT")
    module, own = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(own, str) or "<" in own:
        raise InvalidArgument(
            f"{function!r} has no name by which another process finds it: lambdas, functions within functions, "
            "methods of objects and partials have none. Define it in a module, or register it by a name",
            "PYTHON_ARGUMENT",
        )
    try:
        found = _attribute(sys.modules[module], own)
    except (KeyError, AttributeError):
        found = None
    if found is not function:
        raise InvalidArgument(f"{module}.{own} is not {function!r}: others would call another", "PYTHON_ARGUMENT")
    return (IMPORTED, f"{'__main__' if module == '__mp_main__' else module}:{own}")


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


def imported(name: str) -> Any:
    """The function that `module:path` names, imported here. Raises what importing raises."""
    module, _, path = name.partition(":")
    if module == "__main__":
        # A process that multiprocessing has begun runs the program under another name.
        for main in ("__mp_main__", "__main__"):
            if main in sys.modules:
                try:
                    return _attribute(sys.modules[main], path)
                except AttributeError:
                    continue
        raise AttributeError(f"this program has no `{path}`")
    __import__(module)
    return _attribute(sys.modules[module], path)
