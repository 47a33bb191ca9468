"""What the processes of `test_calls_processes.py` call at each other, and how they begin."""

import asyncio
import os
import signal
import time

import numpy as np

import rendez
from conftest import SMALL
from rendez import rpc

STATE = {}


@rpc.function
def process():
    return os.getpid()


@rpc.function
def seen(array):
    """Where an array lies here, whether it may be written, and its sum."""
    return (array.__array_interface__["data"][0], array.flags.writeable, float(array.sum()))


@rpc.function
def lease_of(tensor):
    return (tensor.path, float(tensor.numpy().sum()))


@rpc.function
def length(value):
    return len(value)


@rpc.function
def keep(array):
    STATE["kept"] = array


@rpc.function
def kept():
    return STATE["kept"]


@rpc.function
def ones(count):
    room = rpc.current().agent.engine.empty(count, "f64")
    room.numpy()[:] = 1
    return room


@rpc.function
def array(count):
    return np.ones(count)


@rpc.function
def nap(seconds):
    STATE["naps"] = True
    time.sleep(seconds)


@rpc.function
def naps():
    return STATE.get("naps", False)


@rpc.function
async def nap_softly(seconds):
    await asyncio.sleep(seconds)


@rpc.function
def die():
    os.kill(os.getpid(), signal.SIGKILL)


@rpc.function
def relay(to, function, *args):
    """Calls on."""
    return rpc.current().agent.call(to, function, *args)


@rpc.function
class Store:
    def __init__(self):
        self.values = {}

    def put(self, name, value):
        self.values[name] = value
        return len(self.values)

    def get(self, name):
        return self.values[name]

    def names(self):
        return list(self.values)


@rpc.function
def store():
    return Store()


@rpc.function
def put_into(reference, name, value):
    return reference.rpc_sync().put(name, value)


@rpc.function
def hold(reference):
    STATE["held"] = reference


@rpc.function
def held_size():
    return len(STATE["held"].rpc_sync().names())


@rpc.function
def let_go():
    STATE.clear()


@rpc.function
def descriptors():
    return len(os.listdir("/proc/self/fd"))


@rpc.function
def references():
    return len(rpc.current().agent.references())


@rpc.function
def raises(pickled):
    if pickled:
        raise LookupError("here", 3)
    raise Strange("here")


class Strange(Exception):
    def __reduce__(self):
        raise TypeError("it stays here")


def worker(name, store, size, pickles, of_engine):
    """A worker that serves until all leave."""
    with rendez.Engine(f"/job:{name}/task:0", **SMALL, **of_engine) as engine:
        with rpc.Agent(engine, name, store=store, size=size, allow_pickle=pickles):
            pass

