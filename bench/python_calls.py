"""What a remote call costs from Python, between two processes, beside `concurrent.futures` in the same run.

    python bench/python_calls.py [rounds]

Needs the wheel and NumPy. Times are whole calls, there and back. Each figure is the median over blocks of rounds; the
last column is the ratio to a `ProcessPoolExecutor` of one process that is given the same in the same blocks. A machine
whose cores are shared shows what its scheduler does, too.
"""

import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import rendez
from rendez import rpc

SETTINGS = {"arena_segment_bytes": "128MiB"}
BLOCKS = 9
IN_FLIGHT = 64
LARGE = np.ones(2 << 20)


@rpc.function
def successor(number):
    return number + 1


@rpc.function
def first(array):
    return float(array[0])


@rpc.function
def ones(count):
    return np.ones(count)


def serve(store):
    with rendez.Engine("/job:other/task:0", **SETTINGS) as engine, rpc.Agent(engine, "other", store=store, size=2):
        pass


def timed(rounds, once):
    began = time.perf_counter()
    for _ in range(rounds):
        once()
    return (time.perf_counter() - began) / rounds


def pairs(agent, pool, rounds):
    """What is compared: a name, rounds, our call, and the pool's."""
    few = max(rounds // 40, 3)
    yield "a number", rounds, lambda: agent.call("other", successor, 1), lambda: pool.submit(successor, 1).result()
    yield (
        f"{IN_FLIGHT} numbers at once",
        few,
        lambda: [call.wait() for call in [agent.call_async("other", successor, at) for at in range(IN_FLIGHT)]],
        lambda: [future.result() for future in [pool.submit(successor, at) for at in range(IN_FLIGHT)]],
    )
    yield "16 MiB there", few, lambda: agent.call("other", first, LARGE), lambda: pool.submit(first, LARGE).result()
    count = LARGE.size
    yield "16 MiB back", few, lambda: agent.call("other", ones, count), lambda: pool.submit(ones, count).result()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    spawn = multiprocessing.get_context("spawn")
    with rpc.Store() as store, ProcessPoolExecutor(1, mp_context=spawn) as pool:
        process = spawn.Process(target=serve, args=(store.address,))
        process.start()
        with rendez.Engine("/job:one/task:0", **SETTINGS) as engine:
            with rpc.Agent(engine, "one", store=store, size=2) as agent:
                print(f"CPython {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
                print(f"{'there and back':<44} {'median':>12}  {'ratio':>7}")
                for name, count, ours, theirs in pairs(agent, pool, rounds):
                    blocks = [(timed(count, ours), timed(count, theirs)) for _ in range(BLOCKS + 1)][1:]
                    ratio = statistics.median(mine / its for mine, its in blocks)
                    median = statistics.median(mine for mine, _ in blocks)
                    print(f"{name:<44} {median * 1e6:>9.1f} µs  {ratio:>7.3f}")
        process.join()


if __name__ == "__main__":
    main()
