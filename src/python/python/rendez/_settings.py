"""Settings as a Python table, written as the engine reads them: TOML."""

import json
import os
from collections.abc import Mapping
from typing import Any


def _value(value: Any, name: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        # Every string of JSON's is one of TOML's; characters beyond the first plane are written as they are.
        text = json.dumps(os.fspath(value), ensure_ascii=False)
        return text.replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = (f"{_key(key)} = {_value(item, name)}" for key, item in value.items())
        return "{ " + ", ".join(inner) + " }"
    if isinstance(value, (list, tuple, set, frozenset, range)):
        return "[" + ", ".join(_value(item, name) for item in value) + "]"
    raise TypeError(f"setting `{name}`: {type(value).__name__} is no value of a setting")


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a setting's name is a str, and not {type(key).__name__}")
    return json.dumps(key, ensure_ascii=False)


def toml(table: Mapping[str, Any]) -> str:
    """The settings of `table`; those that are None are left as they are."""
    lines = (f"{_key(key)} = {_value(value, str(key))}\n" for key, value in table.items() if value is not None)
    return "".join(lines)
