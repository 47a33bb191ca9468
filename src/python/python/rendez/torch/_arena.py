"""torch's CPU tensors in the engine's memory."""

import contextlib

from rendez_torch import _native

#: From so many bytes on: smaller ones are copied into a message anyway.
SMALLEST = 128 << 10


def use_arena(minimum=SMALLEST):
    """Has torch allocate CPU tensors of at least `minimum` bytes in the engine's memory, from where peers of the same
    machine read them in place: a result of a remote call that nobody else holds is not copied.

    From now on, in all threads; as a context manager, until the block ends. Tensors that were made meanwhile stay where
    they are. What the engine's memory has no room for lies where it used to. The engine starts now: not before a fork,
    after which a child would share this memory with its parent.
    """
    if not isinstance(minimum, int) or minimum < 1:
        raise ValueError(f"minimum={minimum!r}: it is a number of bytes, 1 or more")
    return _UntilEnd(_native.use_arena(minimum))


class _UntilEnd(contextlib.AbstractContextManager):
    """Gives back what was set before."""

    def __init__(self, before):
        self._before = before

    def __exit__(self, *_):
        _native.use_arena(self._before)


def arena_counts():
    """What torch has of the engine's memory: its `blocks` and their `bytes`, how many storages were `lent` without a
    copy, and how many allocations were `refused` for want of room."""
    return _native.arena_counts()
