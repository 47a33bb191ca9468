"""What a hand-over costs from Python, between two processes, beside a pair of sockets in the same run.

    python bench/python.py [rounds]

Needs the wheel and NumPy. Times are one way: half of a round trip, or, for what goes only there, from `send` to the
received view, by the one clock of both. Each figure is the median over blocks of rounds; the last column is the ratio
to the sockets' in the same blocks. A machine whose cores are shared shows what its scheduler does, too.
"""

import asyncio
import multiprocessing
import os
import socket
import statistics
import sys
import time

import numpy as np
import rendez

SETTINGS = {"arena_segment_bytes": "128MiB"}
BLOCKS = 9
LARGE = 64 << 20
ONE, OTHER = "/job:one/task:0", "/job:other/task:0"
THERE, BACK = rendez.Key("one", "other", "there"), rendez.Key("other", "one", "back")
NUMBER = np.float32(1)


def echo(address, pipe, peer, rounds):
    with rendez.Engine(OTHER, **SETTINGS) as engine:
        engine.add_peer(ONE, address)
        pipe.send(engine.address)
        step = engine.step(1)
        for _ in range(BLOCKS + 1):
            for _ in range(rounds):
                peer.send(peer.recv(4))
            for _ in range(rounds):
                step.send(BACK, step.recv(THERE).wait())
        asyncio.run(echo_awaited(step, rounds))
        for _ in range(3 * BLOCKS):
            with step.recv(THERE).wait() as large:
                large.numpy()
                came = time.monotonic_ns()
            step.send(BACK, came)
        pipe.recv()


async def echo_awaited(step, rounds):
    for _ in range((BLOCKS + 1) * rounds):
        step.send(BACK, await step.recv(THERE))


def timed(rounds, once):
    began = time.perf_counter()
    for _ in range(rounds):
        once()
    return (time.perf_counter() - began) / rounds / 2


def show(name, figures, reference):
    ratio = statistics.median(mine / its for mine, its in zip(figures, reference, strict=True))
    print(f"{name:<44} {statistics.median(figures) * 1e6:>9.2f} µs  {min(figures) * 1e6:>9.2f} µs  {ratio:>7.3f}")


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    mine, peer = socket.socketpair()
    with rendez.Engine(ONE, **SETTINGS) as engine:
        process = spawn.Process(target=echo, args=(engine.address, theirs, peer, rounds))
        process.start()
        engine.add_peer(OTHER, ours.recv())
        step, sockets, blocking = engine.step(1), [], []
        for _ in range(BLOCKS + 1):
            sockets.append(timed(rounds, lambda: (mine.send(b"four"), mine.recv(4))))
            blocking.append(timed(rounds, lambda: (step.send(THERE, NUMBER), step.recv(BACK).wait())))
        awaited = asyncio.run(all_awaited(step, rounds))
        large = []
        for _ in range(3 * BLOCKS):
            value = engine.empty(LARGE // 4)
            sent = time.monotonic_ns()
            step.send(THERE, value)
            large.append((step.recv(BACK).wait().item() - sent) / 1e9)
        ours.send("done")
        process.join()
    print(f"CPython {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {rounds} rounds a block")
    print(f"{'one way':<44} {'median':>12}  {'least':>12}  {'ratio':>7}")
    show("4 bytes, sockets of Python's", sockets[1:], sockets[1:])
    show("4 bytes, send and recv(…).wait()", blocking[1:], sockets[1:])
    show("4 bytes, send and await recv(…)", awaited[1:], sockets[1:])
    blocks = [statistics.median(large[at::BLOCKS]) for at in range(BLOCKS)]
    show("64 MiB in the arena, to a view of NumPy's", blocks, sockets[1:])


async def all_awaited(step, rounds):
    figures = []
    for _ in range(BLOCKS + 1):
        began = time.perf_counter()
        for _ in range(rounds):
            step.send(THERE, NUMBER)
            await step.recv(BACK)
        figures.append((time.perf_counter() - began) / rounds / 2)
    return figures


if __name__ == "__main__":
    main()
