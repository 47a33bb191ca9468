"""How the workers of a group find each other, as `Agent` is told."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from .._errors import InvalidArgument

World: TypeAlias = Mapping[str, Sequence[str | None]] | Iterable[Sequence[str | None]]
"""Names of workers, each with its task, or with its task and its address; the same, in the same order, at all."""


class Worker(NamedTuple):
    """A worker of a group."""

    name: str
    id: int
    task: str


class Reference(NamedTuple):
    """What a worker knows of a reference: of a value that it keeps, or of its share of one elsewhere."""

    rref: str
    """The worker that asked for the value, and a counter."""
    owner: str
    """The name of the worker that has the value."""
    fork: str | None
    """This worker's share; None where the value is."""
    state: str
    """Of a value `made` or `expected`; of a share `pending`, `in doubt`, `confirmed`, `ending` or `gone`."""
    handles: int
    """How many this worker's program holds."""
    carriers: int
    """How many messages that carry it are not settled."""
    users: list[tuple[str, str]]
    """The shares that others have of a value here, and the names of those workers."""
    age: float
    """For how many seconds this worker has known it."""


def _wrong(message: str) -> InvalidArgument:
    return InvalidArgument(message, "PYTHON_ARGUMENT")


def meeting(world: Any, store: Any, size: Any) -> Any:
    """What the extension takes: a list of workers, or a store's kind, its place, and the group's size."""
    if (world is None) == (store is None):
        raise _wrong("name the workers by `world=`, or where they meet by `store=`: one of the two")
    if store is not None:
        if size is not None and (not isinstance(size, int) or size < 1):
            raise _wrong(f"size={size!r}: it is the number of workers, or None for a group that grows and shrinks")
        return (*_store(store), size)
    if size is not None:
        raise _wrong("`size=` is for a group that meets by `store=`: `world=` names all workers")
    return _world(world)


def _store(store: Any) -> tuple[str, str]:
    address = getattr(store, "address", None)
    if isinstance(address, str):
        return ("tcp", address)
    text = os.fspath(store)
    if not isinstance(text, str):
        raise _wrong("a store's path is a str")
    if text.startswith("tcp://"):
        return ("tcp", text.removeprefix("tcp://"))
    if text.startswith("file://"):
        return ("file", text.removeprefix("file://"))
    if isinstance(store, os.PathLike) or "/" in text:
        return ("file", text)
    host, colon, port = text.rpartition(":")
    if host and colon and port.isdecimal():
        return ("tcp", text)
    raise _wrong(f"store={text!r}: it is a file's path, or `host:port`")


def _world(world: Any) -> list[tuple[str, str, str | None]]:
    items = world.items() if isinstance(world, Mapping) else [(entry[0], tuple(entry[1:])) for entry in world]
    workers = []
    for name, about in items:
        task, *rest = (about,) if isinstance(about, str) else about
        if len(rest) > 1 or not all(isinstance(text, str) for text in (name, task)):
            raise _wrong(f"world={world!r}: each worker has a name, a task, and an address or none")
        address = rest[0] if rest else None
        if address is not None and not isinstance(address, str):
            raise _wrong(f"world={world!r}: an address is a str, as `engine.address`")
        workers.append((name, task, address))
    return workers
