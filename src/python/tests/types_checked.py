"""What users write, for mypy and pyright: it is checked, and never run."""

from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np
import rendez
from rendez import rpc


def blocking(engine: rendez.Engine, names: Sequence[str]) -> float:
    key = rendez.Key("worker", "server", "loss")
    with engine.step(1, deadline=2.5) as step:
        step.send(key, 0.5)
        step.send("worker->server;x", np.zeros(3))
        step.send(("worker", "server", "y"), b"bytes", copy=False, on_release=lambda: None)
        for name in names:
            step.send_dead(key.at(1, 2))
            step.send_wait(("worker", "server", name), engine.empty((2, 3), np.float32)).wait(1.0)
        receive = step.recv(key, timeout=1.0)
        assert_type(receive, rendez.Recv[rendez.Tensor])
        tensor = receive.wait()
        assert_type(tensor, rendez.Tensor)
        assert_type(tensor.shape, tuple[int, ...])
        filled = step.recv_into(key, bytearray(10)).wait()
        assert_type(filled, rendez.Filled)
        receive.add_done_callback(lambda it: print(it.result().shape))
        with tensor as held:
            return float(held)


async def awaiting(task: str) -> rendez.Tensor:
    async with rendez.Engine(task, shards=1) as engine, engine.step(1) as step:
        try:
            value = await step.recv("a->b;x")
            assert_type(value, rendez.Tensor)
            assert_type(await step.send_wait("a->b;x", value), None)
        except rendez.DeadlineExceeded as error:
            assert_type(error.reason, str)
            raise
        for item in engine.pending():
            assert_type(item.key, rendez.Key)
        return value


@rpc.function
def scale(array: np.ndarray[Any, Any], by: float = 2.0) -> float:
    return float(array.sum()) * by


@rpc.function(name="later")
async def later(name: str) -> list[str]:
    return [name]


def calling(engine: rendez.Engine) -> float:
    with rpc.Store() as store, rpc.Agent(engine, "one", store=store, size=2, allow_pickle=True) as agent:
        assert_type(agent.call("two", scale, np.ones(3), timeout=5), float)
        assert_type(agent.call("two", later, "x"), list[str])
        call = agent.call_async("two", scale, np.ones(3))
        assert_type(call, rpc.Call[float])
        call.add_done_callback(lambda it: print(it.result() + 1))
        reference = agent.remote("two", scale, np.ones(3))
        assert_type(reference, rpc.RRef[float])
        assert_type(reference.to_here(timeout=1.0), float)
        assert_type(rpc.RRef(agent, "text").local_value(), str)
        reference.rpc_sync().as_integer_ratio()
        for worker in agent.workers:
            assert_type(worker.name, str)
        served = rpc.current()
        if served is not None:
            assert_type(served.agent.call("two", "by.name", 1), Any)
        try:
            return call.wait()
        except rpc.RemoteError as error:
            assert_type(error.worker, str)
            raise


async def awaiting_calls(engine: rendez.Engine) -> None:
    world = {"one": engine.task, "two": ("/job:two/task:0", engine.address)}
    async with rpc.Agent(engine, "one", world=world) as agent:
        assert_type(await agent.call_async("two", scale, np.ones(3)), float)
        assert_type(await agent.remote("two", later, "x").to_here_async(), list[str])
