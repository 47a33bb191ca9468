"""What users write, for mypy and pyright: it is checked, and never run."""

from collections.abc import Sequence
from typing import assert_type

import numpy as np
import rendez


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
