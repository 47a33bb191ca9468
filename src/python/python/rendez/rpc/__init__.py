"""Remote calls and references: functions called at other workers, values that live where they were made.

An `Agent` is one worker of a group. Functions that `function` has registered are called by any worker, with plain
values, arrays and tensors; where pickle is allowed, any function that both sides can import, with any value:

    import rendez
    from rendez import rpc

    @rpc.function
    def scale(array, by):
        return array * by

    with rendez.Engine("/job:one/task:0") as engine, rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
        print(agent.call("one", scale, 21, 2))
"""

from .._rendez import Agent, Call, RRef, Served, Store
from ._errors import RemoteError
from ._functions import function
from ._proxies import Proxy
from ._serve import current
from ._setup import Reference, Worker

__all__ = [
    "Agent",
    "Call",
    "Proxy",
    "RRef",
    "Reference",
    "RemoteError",
    "Served",
    "Store",
    "Worker",
    "current",
    "function",
]
