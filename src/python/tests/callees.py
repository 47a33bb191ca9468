"""What the tests of calls call at each other, and the agents of one process that they are made of."""

import asyncio
import gc
import threading
import time
import weakref
from typing import Annotated

import numpy as np

import rendez
from conftest import SMALL, named
from rendez import rpc


@rpc.function
def echo(*values, **named_values):
    return (values, named_values) if named_values else values[0] if len(values) == 1 else values


@rpc.function
def fail(kind, message):
    raise {"value": ValueError, "key": KeyError, "own": Own, "odd": Odd, "missing": rendez.NotFound}[kind](message)


@rpc.function
def nap(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until and not rpc.current().cancelled:
        time.sleep(0.005)
    return rpc.current().cancelled


@rpc.function
async def wait_for(name):
    event = EVENTS.setdefault(name, asyncio.Event())
    STATES[name] = "waits"
    try:
        await event.wait()
    except asyncio.CancelledError:
        STATES[name] = "cancelled"
        raise
    return (name, rpc.current().caller)


class Local:
    pass


@rpc.function
async def hold_and_wait(name):
    local = Local()
    LOCALS[name] = weakref.ref(local)
    return await wait_for(name)


@rpc.function
async def release(name):
    EVENTS[name].set()


@rpc.function
def counter(start):
    return Counter(start)


@rpc.function
def broken_counter():
    raise OSError("no counter")


@rpc.function
def add_to(reference, number):
    return reference.rpc_sync().add(number)


@rpc.function
def value_here(reference):
    return reference.local_value().number


@rpc.function
def chain(path, value):
    """Calls on along a path of workers, and back."""
    here = rpc.current().agent
    return [here.name] if not path else [here.name, *here.call(path[0], chain, path[1:], value)]


@rpc.function
async def chain_softly(path):
    """The same, and no thread waits."""
    here = rpc.current().agent
    return [here.name] if not path else [here.name, *await here.call_async(path[0], chain_softly, path[1:])]


@rpc.function(name="typed/join")
def join(words: list[str], by: str | None, times: Annotated[int, "u8"]) -> dict[str, int]:
    return {(by or "").join(words) * times: times}


@rpc.function(name="typed/multiply")
def multiply(number: int, by: int = 2) -> int:
    return number * by


@rpc.function(name="typed/doubled")
def doubled(array: np.ndarray, by: float = 2.0) -> np.ndarray:
    return array * by


def refuse(what):
    raise {"value": ValueError("no"), "row": rendez.NotFound("no such row", "CALL_UNKNOWN")}[what]


@rpc.function(name="typed/refuse")
def refuse_annotated(what: str) -> int:
    refuse(what)


@rpc.function(name="plain/refuse")
def refuse_plainly(what):
    refuse(what)


@rpc.function
def scaled(array: np.ndarray, by: float) -> tuple[rendez.Tensor, bytes]:
    return (array * by, b"done")


@rpc.function
def unwritable():
    return threading.Lock()


@rpc.function
async def released_later():
    await asyncio.sleep(0.01)
    return "later"


@rpc.function
def bare_object():
    return Bare()


@rpc.function
def make_tensor(count):
    room = rpc.current().agent.engine.empty(count, "f64")
    room.numpy()[:] = 1
    return room


@rpc.function
def make_evil():
    return Evil()


@rpc.function
def leave():
    rpc.current().agent.shutdown()


@rpc.function
async def leave_softly():
    rpc.current().agent.shutdown()


def plain_function(value):
    return (value, "plain")


EVENTS, STATES, LOCALS, EVIL = {}, {}, {}, []


def make_evil_now():
    EVIL.append(1)


class Evil:
    def __reduce__(self):
        return (make_evil_now, ())


class Own(Exception):
    """One that pickle can write."""


class Odd(Exception):
    """One that it cannot read."""

    def __init__(self, message, *, needed=True):
        super().__init__(message, needed)

    def __reduce__(self):
        raise TypeError("not this one")


@rpc.function
class Counter:
    def __init__(self, number):
        self.number = number

    def add(self, more):
        self.number += more
        return self.number

    async def later(self, more):
        await asyncio.sleep(0.01)
        return self.add(more)

    def _secret(self):
        return "secret"


class Bare:
    def add(self, more):
        return more


class Point:
    def __init__(self, x, array):
        self.x, self.array = x, array


def begin(names, **settings):
    """Agents of one group, each on an engine of its own."""
    engines = [rendez.Engine(named(name), **SMALL) for name in names]
    world = {name: (engine.task, engine.address) for name, engine in zip(names, engines, strict=True)}
    agents = {}

    def start(name, engine):
        agents[name] = rpc.Agent(engine, name, world=world, **settings)

    at_once([lambda pair=pair: start(*pair) for pair in zip(names, engines, strict=True)])
    return engines, [agents[name] for name in names]


def at_once(functions):
    failures = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise failures[0]


def end(engines, agents):
    at_once([lambda agent=agent: agent.shutdown(timeout=30) for agent in agents])
    for engine in engines:
        engine.close()


def settled(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        gc.collect()
        rendez._rendez._run_errands()
        time.sleep(0.005)


def made_at(engine, array):
    """A tensor in an engine's memory."""
    room = engine.empty(array.shape, array.dtype)
    room.numpy()[:] = array
    engine.send((engine.task, engine.task, "made"), room)
    return engine.recv((engine.task, engine.task, "made")).wait(10)
