"""Signatures of functions by their annotations: what programs in other languages call them by."""

import sys
import types
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Annotated, Any, Union, get_args, get_origin

from .._rendez import RRef, Tensor, TensorMut
from . import _functions

_PLAIN = (
    (bool, "bool"), (int, "i64"), (float, "f64"), (str, "String"), (bytes, "Vec<u8>"), (None, "()"), (type(None), "()"),
)
_NUMBERS = (
    "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64", "u128", "usize", "f32", "f64", "char",
)


def type_name(wanted: Any) -> str | None:
    """The name that signatures have for an annotation; None if they have none."""
    # An annotation may have what cannot be hashed in it.
    for plain, name in _PLAIN:
        if wanted is plain:
            return name
    if wanted in (Tensor, TensorMut) or _is_array(wanted):
        return "Tensor"
    origin, arguments = get_origin(wanted), get_args(wanted)
    if wanted is RRef or origin is RRef:
        return "RRef"
    if origin is Annotated:
        said = [name for name in arguments[1:] if isinstance(name, str) and name in _NUMBERS]
        return said[0] if said else type_name(arguments[0])
    if origin in (Union, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        return _wrapped("Option", inner) if len(inner) == 1 and len(arguments) == 2 else None
    if origin is list:
        return _wrapped("Vec", arguments)
    if origin is dict:
        return _wrapped("Map", arguments)
    if origin is tuple and arguments and Ellipsis not in arguments:
        names = [type_name(argument) for argument in arguments]
        return None if None in names else "(" + "".join(f"{name}," for name in names) + ")"
    return None


def _wrapped(outer: str, arguments: Any) -> str | None:
    names = [type_name(argument) for argument in arguments]
    if not names or None in names:
        return None
    inner = ",".join(str(name) for name in names)
    # What takes no bytes cannot be counted.
    return f"{outer}<{inner}>" if outer == "Option" or set(inner) - set("(),") else None


def _is_array(wanted: Any) -> bool:
    numpy = sys.modules.get("numpy")
    ndarray = getattr(numpy, "ndarray", None)
    return ndarray is not None and (wanted is ndarray or get_origin(wanted) is ndarray)


def described(own: Mapping[str, Callable[..., Any]]) -> list[tuple[str, Callable[..., Any]]]:
    """Each function whose types are all known: its signature, and what is called with values of these types."""
    found = {**_functions.all_registered(), **own}
    return [each for name, function in sorted(found.items()) if (each := _described(name, function)) is not None]


def _described(name: str, function: Callable[..., Any]) -> tuple[str, Callable[..., Any]] | None:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = list(signature(function).parameters.values())
    except Exception:
        # What is annotated with names that are not there is called by Python alone.
        return None
    if any(each.kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for each in parameters):
        return None
    if "return" not in hints or any(each.name not in hints for each in parameters):
        return None
    wanted = [hints[each.name] for each in parameters]
    names = [type_name(each) for each in (*wanted, hints["return"])]
    if None in names or len(wanted) > 8:
        return None
    text = f"{name}({''.join(f'{each},' for each in names[:-1])}) -> {names[-1]}"
    return (text, _adapted(function, [_is_array(each) for each in wanted]))


def _adapted(function: Callable[..., Any], arrays: list[bool]) -> Callable[..., Any]:
    if not any(arrays):
        return function

    def call(*values: Any) -> Any:
        return function(*(value.numpy() if is_array else value for value, is_array in zip(values, arrays, strict=True)))

    return call
