"""Calls that come: how the function is found and called, and the loop that carries coroutines out."""

import asyncio
import contextvars
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from .._errors import NotFound, PermissionDenied
from .._rendez import Served, Wakes
from . import _functions

_current: contextvars.ContextVar[Served | None] = contextvars.ContextVar("rendez.rpc.current", default=None)


def current() -> Served | None:
    """The call that is carried out here: who called, with which agent; None outside of calls."""
    return _current.get()


def find(own: Mapping[str, Callable[..., Any]], name: str, here: str) -> Callable[..., Any]:
    """The function that is registered by that name."""
    found = own[name] if name in own else _functions.registered(name)
    if found is None:
        raise NotFound(
            f"worker '{here}' has registered no function `{name}`: its module is perhaps not imported there",
            "RPC_FUNCTION",
        )
    return found


def imported(name: str, here: str) -> Any:
    """The function that `module:path` names."""
    try:
        found = _functions.imported(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise NotFound(f"worker '{here}' cannot import the function `{name}`: {error}", "RPC_FUNCTION") from error
    if not callable(found):
        raise NotFound(f"`{name}` is no function at worker '{here}'", "RPC_FUNCTION")
    return found


def method(value: Any, name: str, trusts: bool, here: str) -> Any:
    """The method of a value that is referred to. Without pickle, a public one of a class that is registered."""
    kind = type(value)
    if not trusts and (name.startswith("_") or not _functions.is_registered(kind)):
        raise PermissionDenied(
            f"worker '{here}' does not allow pickle, and so no method but public ones of classes that "
            f"`@rendez.rpc.function` has registered, which `{kind.__qualname__}.{name}` is not",
            "RPC_PICKLE",
        )
    found = getattr(value, name, None) if trusts or callable(getattr(kind, name, None)) else None
    if not callable(found):
        raise NotFound(f"{kind.__name__} at worker '{here}' has no method `{name}`", "RPC_FUNCTION")
    return found


def apply(served: Served, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls it, as the call that this thread carries out."""
    token = _current.set(served)
    try:
        return function(*args, **kwargs)
    finally:
        _current.reset(token)


class _Loop:
    """One event loop for the coroutines that others call, on a thread of its own."""

    def __init__(self) -> None:
        self.wakes = Wakes()
        self.numbers = itertools.count()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="rendez-rpc-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.add_reader(self.wakes.fileno(), self._drain)
        self._loop.run_forever()
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait(list(self._tasks.values()), timeout=1.0))
        self._loop.close()

    def _drain(self) -> None:
        # Their callers have given them up. Those that are still to start stand in the loop's line, before what is put
        # there now.
        for number in self.wakes.drain():
            self._loop.call_soon(self._cancel, number)

    def _cancel(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None:
            task.cancel()

    def begin(self, promise: Any, served: Served, coroutine: Any) -> int:
        number = next(self.numbers)
        context = contextvars.copy_context()
        context.run(_current.set, served)
        self._loop.call_soon_threadsafe(self._start, number, promise, coroutine, context)
        return number

    def _start(self, number: int, promise: Any, coroutine: Any, context: contextvars.Context) -> None:
        begun = threading.Event()
        task = self._loop.create_task(_carry_out(promise, coroutine, begun), context=context)
        self._tasks[number] = task

        def end(_: object) -> None:
            self._tasks.pop(number, None)
            if not begun.is_set():
                # A task that is cancelled before it begins runs not a line.
                coroutine.close()
                promise.fail(asyncio.CancelledError())

        task.add_done_callback(end)

    def is_here(self) -> bool:
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)


async def _carry_out(promise: Any, coroutine: Any, begun: threading.Event) -> None:
    begun.set()
    try:
        value = await coroutine
    except BaseException as error:
        promise.fail(error)
        if isinstance(error, asyncio.CancelledError):
            raise
    else:
        promise.finish(value)


_loop: _Loop | None = None
_lock = threading.Lock()


def _running() -> _Loop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = _Loop()
        return _loop


def begin(promise: Any, served: Served, coroutine: Any) -> tuple[Wakes, int]:
    """Has the loop carry a coroutine out, and tell `promise` how it ended; by the number it can be cancelled."""
    loop = _running()
    return (loop.wakes, loop.begin(promise, served, coroutine))


def in_loop() -> Served | None:
    """The call that a coroutine carries out here; None in all threads but the loop's."""
    return _current.get() if _loop is not None and _loop.is_here() else None


def end() -> None:
    """The interpreter is about to end."""
    global _loop
    if _loop is not None:
        _loop.stop()
        _loop = None


def _forked() -> None:
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)
