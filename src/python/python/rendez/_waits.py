"""Waiting in event loops: asyncio (uvloop too) and trio, and what is called on threads of the package's.

Each loop has one hub: an eventfd that the loop watches, and who waits for which number. A shard that brings outcomes
writes to the eventfd once for as many as there are before the loop wakes.

Who is woken takes the outcome itself, in the task that awaits: one that is cancelled between the two has taken
nothing, and the value is the next receive's.
"""

import asyncio
import contextvars
import itertools
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from ._rendez import Operation, Wakes, _listen, _log_from, _next_told, _run_errands

_TURN_EVERY = 0.001
"""Seconds after which what waits polls again, where the engine has no thread that wakes it."""

_LEVELS_EVERY = 0.5
"""Seconds after which the levels of `logging` are read again."""


async def wait(operation: "Operation[Any]") -> Any:
    """The outcome of an operation, in whichever event loop this runs."""
    hub = _hub()
    number = next(hub.numbers)
    try:
        patience = hub.wakes._patience()
        if patience and not operation.done():
            # The last values came at once: so may this one. Others go first, and nothing is taken that a task which is
            # cancelled meanwhile could lose.
            await hub.turn()
            if operation._linger(hub.wakes, patience):
                return operation.result()
        if operation._poll(hub.wakes, number):
            await hub.pause()
        else:
            sleep = hub.nap if operation._is_alone() else hub.sleep
            await sleep(number)
            while not operation._poll(hub.wakes, number):
                await sleep(number)
    except BaseException:
        # Cancelled, or its loop has ended: nothing is lost.
        operation.cancel()
        raise
    else:
        return operation.result()
    finally:
        # The operation has what it raises, whose traceback has this frame: they are freed without Python's collector.
        del operation


async def at_once(value: Any) -> Any:
    """`value`, for a protocol that awaits."""
    return value


async def in_thread(function: Callable[[], Any]) -> Any:
    """What a function returns that blocks. A task that is cancelled still calls it, and is told when it has returned."""
    trio = _trio()
    if trio is not None:
        with trio.CancelScope(shield=True):
            return await trio.to_thread.run_sync(function)
    future = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, function)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            # This does not cancel the future, which might not have begun.
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    result = future.result()
    if cancelled is not None:
        raise cancelled
    return result


class _AsyncioHub:
    """What waits in one loop of asyncio's. It does not keep the loop: the loop keeps it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wakes = Wakes()
        self.numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self.wakes.fileno(), self._drain)

    def _drain(self) -> None:
        for number in self.wakes.drain():
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(None)

    async def sleep(self, number: int) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await future
        finally:
            del self._waiting[number]

    async def nap(self, _number: int) -> None:
        await asyncio.sleep(_TURN_EVERY)

    async def pause(self) -> None:
        """Nothing: what is there at once is taken at once, as a full queue's `get` has it."""

    async def turn(self) -> None:
        """Everything else that can go on does."""
        await asyncio.sleep(0)


class _TrioHub:
    """What waits in one run of trio's."""

    def __init__(self, trio: Any) -> None:
        self.wakes = Wakes()
        self.numbers = itertools.count()
        self._trio = trio
        self._waiting: dict[int, Any] = {}
        trio.lowlevel.spawn_system_task(self._watch)

    async def _watch(self) -> None:
        while True:
            await self._trio.lowlevel.wait_readable(self.wakes.fileno())
            for number in self.wakes.drain():
                task = self._waiting.pop(number, None)
                if task is not None:
                    self._trio.lowlevel.reschedule(task)

    async def sleep(self, number: int) -> None:
        lowlevel = self._trio.lowlevel
        self._waiting[number] = lowlevel.current_task()

        def abort(_raise: Any) -> Any:
            self._waiting.pop(number, None)
            return lowlevel.Abort.SUCCEEDED

        await lowlevel.wait_task_rescheduled(abort)

    async def nap(self, _number: int) -> None:
        await self._trio.sleep(_TURN_EVERY)

    async def pause(self) -> None:
        """A checkpoint, as trio wants of everything that awaits; the value is taken already."""
        await self._trio.lowlevel.cancel_shielded_checkpoint()

    async def turn(self) -> None:
        """Everything else that can go on does."""
        await self._trio.lowlevel.checkpoint()


# The reader of its eventfd keeps a hub until the loop is closed. If these did, a loop that is closed while something waits
# would stay for ever: the hub has the futures, and they have the loop.
_asyncio_hubs: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_AsyncioHub]]"
_asyncio_hubs = weakref.WeakKeyDictionary()
_trio_hub: Any = None


def _trio() -> Any:
    """trio, if this is one of its tasks."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_task() else None


def _hub() -> Any:
    trio = _trio()
    if trio is not None:
        global _trio_hub
        if _trio_hub is None:
            _trio_hub = trio.lowlevel.RunVar("rendez")
        try:
            return _trio_hub.get()
        except LookupError:
            _trio_hub.set(_TrioHub(trio))
            return _trio_hub.get()
    loop = asyncio.get_running_loop()
    known = _asyncio_hubs.get(loop)
    hub = known() if known is not None else None
    if hub is None:
        hub = _AsyncioHub(loop)
        _asyncio_hubs[loop] = weakref.ref(hub)
    return hub


class _Thread:
    """A thread that calls what the program gave: no other does, which might hold a lock that this takes."""

    def __init__(self, name: str) -> None:
        self.wakes = Wakes()
        self._stops = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stops:
            self.wakes.wait(self._patience())
            for number in self.wakes.drain():
                self._look(number)
            self._look_around()

    def _patience(self) -> float | None:
        """For how many seconds it sleeps at most."""
        return None

    def _look_around(self) -> None:
        """Looks at what rings for nothing."""

    def _look(self, number: int) -> None:
        raise NotImplementedError

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except BaseException:
            # Also what ends a program: this thread calls for all others too.
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))

    def stop(self) -> None:
        self._stops = True
        self.wakes.ring(0)
        self._thread.join(1.0)


class _Callbacks(_Thread):
    """Calls functions when operations have ended."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Operation[Any], Callable[[Any], object]]] = {}
        self._alone: set[int] = set()
        super().__init__("rendez-callbacks")

    def add(self, operation: "Operation[Any]", function: Callable[[Any], object]) -> None:
        number = next(self._numbers)
        self._waiting[number] = (operation, function)
        # The thread polls it, and calls.
        self.wakes.ring(number)

    def _look(self, number: int) -> None:
        if number in self._waiting:
            self._call(self._poll, number)

    def _poll(self, number: int) -> None:
        operation, function = self._waiting.pop(number)
        if operation._poll(self.wakes, number):
            function(operation)
        else:
            self._waiting[number] = (operation, function)
            if operation._is_alone():
                self._alone.add(number)

    def _patience(self) -> float | None:
        return _TURN_EVERY if self._alone else None

    def _look_around(self) -> None:
        alone, self._alone = self._alone, set()
        for number in alone:
            self._look(number)


class _Hooks(_Thread):
    """Calls what is to hear that memory is read no more, and logs the engine's lines."""

    def __init__(self) -> None:
        self._read_at = 0.0
        super().__init__("rendez-hooks")
        _listen(self.wakes)

    def _patience(self) -> float:
        return _LEVELS_EVERY

    def _look_around(self) -> None:
        now = time.monotonic()
        if now >= self._read_at:
            self._read_at = now + _LEVELS_EVERY
            self._call(_read_levels)

    def _look(self, number: int) -> None:
        self._is_empty = False
        while not self._is_empty:
            # What cannot be called, as a line without a logger, stops none of those behind it.
            self._call(self._tell_next)

    def _tell_next(self) -> None:
        told = _next_told()
        if told is None:
            self._is_empty = True
        else:
            told[0](*told[1])

    def stop(self) -> None:
        super().stop()
        # It may have looked for the last time before it was told of these.
        if not self._thread.is_alive():
            self._look(0)


def _read_levels() -> None:
    """Has the engine say what any of its loggers takes: which they are, and their levels, the program may change."""
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith("rendez.")]
    levels = [logging.getLogger(name).getEffectiveLevel() for name in ("rendez", *names)]
    _log_from(max(0, min(255, *levels)))


_callbacks: _Callbacks | None = None
_hooks: _Hooks | None = None
_lock = threading.Lock()


def add_done_callback(operation: "Operation[Any]", function: Callable[[Any], object]) -> None:
    """Has `function` called with `operation` once it has ended, on a thread of its own."""
    if not callable(function):
        raise TypeError(f"{type(function).__name__} cannot be called")
    global _callbacks
    with _lock:
        if _callbacks is None:
            _callbacks = _Callbacks()
    _callbacks.add(operation, function)


def begin() -> None:
    """An engine is about to begin."""
    global _hooks
    _read_levels()
    with _lock:
        if _hooks is None:
            _hooks = _Hooks()


def end() -> None:
    """The interpreter is about to end."""
    global _callbacks
    if _callbacks is not None:
        _callbacks.stop()
        _callbacks = None
    _run_errands()


def end_calls() -> None:
    """The engines have ended."""
    global _hooks
    if _hooks is not None:
        _hooks.stop()
        _hooks = None


def _forked() -> None:
    # The parent's loops and threads are not here.
    global _callbacks, _hooks, _lock, _trio_hub
    _callbacks, _hooks, _trio_hub, _lock = None, None, None, threading.Lock()
    _asyncio_hubs.clear()


os.register_at_fork(after_in_child=_forked)
