"""What tensors on a GPU cost to hand over and to copy, beside the driver's own copies and PyTorch's TensorPipe.

    python bench/devices.py

Needs the wheel, PyTorch with CUDA and one GPU. What is compared is done in turns, in the same run; each figure is the
median. Prints rows of a table: `bench/PROMISES.md` has those of a card.
"""

import contextlib
import multiprocessing
import os
import statistics
import sys
import time

import numpy as np
import rendez
import torch

SPAWN = multiprocessing.get_context("spawn")
PATIENCE = 60
SETTINGS = {
    "stage_sampling": 0,
    "devices": "require",
    "device_bytes": "8GiB",
    "device_pinned_bytes": "4GiB",
    "parked_bytes": "64GiB",
}
ONE, OTHER = "/job:one/task:0", "/job:other/task:0"
THERE, BACK = rendez.Key("one", "other", "there"), rendez.Key("other", "one", "back")
SMALL, MIDDLE, LARGE = 4096, 256 << 20, 1 << 30


def times(count, once):
    once()
    once()
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - began)
    return seconds


def shown(seconds):
    ordered = sorted(seconds)
    at = lambda part: ordered[min(len(ordered) - 1, int(len(ordered) * part))]
    unit, scale = ("µs", 1e6) if statistics.median(ordered) < 1e-3 else ("ms", 1e3)
    return " / ".join(f"{at(part) * scale:.4g}" for part in (0.5, 0.99, 1)) + f" {unit}"


def row(what, bar, ours, theirs, ratio):
    print(f"| {what} | {bar} | {shown(ours)} | {shown(theirs)} | {ratio:.3g} |", flush=True)


def in_turns(rounds, count, ours, theirs):
    mine, yours = [], []
    for _ in range(rounds):
        mine += times(count, ours)
        yours += times(count, theirs)
    return mine, yours, statistics.median(yours) / statistics.median(mine)


# ───────────────────────────────────────────── one process: copies ──────────────────────────────────────────────────


def copies():
    stream = torch.cuda.Stream()

    def done(copy):
        with torch.cuda.stream(stream):
            copy()
        stream.synchronize()

    with rendez.Engine(ONE, **SETTINGS) as engine:
        near = engine.empty((MIDDLE,), "u8")
        near.numpy()[:] = 7
        near = near.freeze()
        pinned = torch.full((MIDDLE,), 7, dtype=torch.uint8).pin_memory()
        there = torch.empty(MIDDLE, dtype=torch.uint8, device="cuda")

        def to_device():
            moved = engine.to(near, "cuda:0")
            torch.from_dlpack(moved)
            torch.cuda.current_stream().synchronize()

        def plain_to_device():
            done(lambda: there.copy_(pinned, non_blocking=True))

        row("host to device, 256 MiB", "≥ 0.9", *in_turns(5, 6, to_device, plain_to_device))
        moved = engine.to(near, "cuda:0")
        assert int(torch.from_dlpack(moved).to(torch.int64).sum()) == 7 * MIDDLE
        assert (moved.cpu().numpy()[:: 1 << 12] == 7).all()
        row(
            "device to host, 256 MiB",
            "–",
            *in_turns(5, 6, lambda: moved.cpu(), lambda: done(lambda: pinned.copy_(there, non_blocking=True))),
        )
        del moved
        source = torch.full((LARGE,), 3, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        torch.cuda.synchronize()
        key = rendez.Key("one", "one", "copied")

        def copied():
            # `send` copies on the device, and returns when that is done.
            engine.send(key, source)
            engine.recv(key, timeout=PATIENCE).wait().release()

        row("on the device, 1 GiB", "≥ 0.95", *in_turns(5, 6, copied, lambda: done(lambda: target.copy_(source))))
        print(f"| pinned by the engine | | {engine.devices()[0]['bytes_pinned'] >> 20} MiB | | |", flush=True)


# ─────────────────────────────────────────── two processes: hand-overs ──────────────────────────────────────────────


def echo(address, pipe, settings):
    with rendez.Engine(OTHER, **settings) as engine:
        engine.add_peer(ONE, address)
        pipe.send(engine.tcp_address or engine.address)
        step, last = engine.step(1), None
        while True:
            got = step.recv(THERE, timeout=PATIENCE).wait()
            if got.shape == (1,):
                return
            if got.device != "cpu":
                view = torch.from_dlpack(got)
                del view
            # The answer says how it came.
            step.send(BACK, np.float32(got.path == "lease"))
            got.release()


@contextlib.contextmanager
def pair(**settings):
    settings = {**SETTINGS, **settings}
    with rendez.Engine(ONE, **settings) as engine:
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=echo, args=(engine.tcp_address or engine.address, theirs, settings), daemon=True)
        process.start()
        try:
            assert ours.poll(PATIENCE)
            engine.add_peer(OTHER, ours.recv())
            step = engine.step(1)
            yield engine, step
            step.send(THERE, np.zeros(1, "f4"))
            process.join(PATIENCE)
        finally:
            process.kill()


def ask(step, value):
    step.send(THERE, value)
    return step.recv(BACK, timeout=PATIENCE).wait().item()


def until_leased(step, engine):
    end = time.monotonic() + PATIENCE
    while not ask(step, engine.to(bytes(1 << 16), "cuda:0")):
        assert time.monotonic() < end


def leases():
    with pair() as (engine, step):
        until_leased(step, engine)
        held = {}
        for size in (SMALL, LARGE):
            room = engine.empty((size,), "u8", device="cuda:0")
            torch.from_dlpack(room).fill_(1)
            held["device", size] = room.freeze()
            room = engine.empty((size,), "u8")
            held["host", size] = room.freeze()
        calls = {what: (lambda value=value: ask(step, value)) for what, value in held.items()}
        assert all(call() for what, call in calls.items() if what[0] == "device")
        large = in_turns(9, 200, calls["device", LARGE], calls["device", SMALL])
        row("a lease there and an answer back: device 1 GiB, beside 4 KiB", "≥ 0.77", *large)
        small = in_turns(9, 200, calls["device", SMALL], calls["host", SMALL])
        row("… device 4 KiB, beside host 4 KiB", "≥ 0.33", *small)
        large = in_turns(9, 200, calls["device", LARGE], calls["host", LARGE])
        row("… device 1 GiB, beside host 1 GiB", "≥ 0.33", *large)
        held.clear()
        calls.clear()


def over_tcp():
    with pair(require="tcp", listen="127.0.0.1:0") as (engine, step):
        near = engine.empty((MIDDLE,), "u8").freeze()
        there = engine.to(near, "cuda:0")
        turns = in_turns(3, 3, lambda: ask(step, there), lambda: ask(step, near))
        row("over TCP, 256 MiB of a device's, beside the host's", "≥ 0.85", *turns)
        del near, there


def take(tensor):
    return None


def tensorpipe(rank, port, pipe):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    options = torch.distributed.rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, rpc_timeout=PATIENCE)
    options.set_device_map(f"worker{1 - rank}", {0: 0})
    torch.distributed.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 1:
        torch.distributed.rpc.shutdown()
        return
    sent = {size: torch.ones(size, dtype=torch.uint8, device="cuda") for size in (SMALL, LARGE)}
    torch.cuda.synchronize()
    pipe.send("ready")
    while (asked := pipe.recv()) is not None:
        size, count = asked
        pipe.send(times(count, lambda: torch.distributed.rpc.rpc_sync("worker1", take, args=(sent[size],))))
    torch.distributed.rpc.shutdown()


def beside_tensorpipe():
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ours, theirs = SPAWN.Pipe()
    workers = [SPAWN.Process(target=tensorpipe, args=(rank, port, theirs), daemon=True) for rank in (0, 1)]
    for worker in workers:
        worker.start()
    try:
        assert ours.poll(PATIENCE), "TensorPipe did not begin"
        ours.recv()
        with pair() as (engine, step):
            until_leased(step, engine)
            for size, rounds, count, bar in ((SMALL, 9, 100, "≥ 2"), (LARGE, 5, 5, "≥ 1")):
                made = torch.ones(size, dtype=torch.uint8, device="cuda")
                torch.cuda.synchronize()
                room = engine.empty((size,), "u8", device="cuda:0")
                torch.from_dlpack(room).fill_(1)
                room = room.freeze()
                copied, leased, pipes = [], [], []
                for _ in range(rounds):
                    copied += times(count, lambda: ask(step, made))
                    leased += times(count, lambda: ask(step, room))
                    ours.send((size, count))
                    assert ours.poll(PATIENCE)
                    pipes += ours.recv()
                what = "4 KiB" if size == SMALL else "1 GiB"
                for way, mine in (("PyTorch's, copied once", copied), ("the engine's, in place", leased)):
                    ratio = statistics.median(pipes) / statistics.median(mine)
                    row(f"{what} of {way}, beside TensorPipe", bar, mine, pipes, ratio)
                del made, room
        ours.send(None)
        for worker in workers:
            worker.join(PATIENCE)
    finally:
        for worker in workers:
            worker.kill()


def main():
    print(f"\n{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, {os.cpu_count()} cores\n")
    print("| what | bar: reference over rendez | rendez: p50 / p99 / max | reference: p50 / p99 / max | ratio |")
    print("|---|---|---|---|---|")
    parts = {"copies": copies, "leases": leases, "tcp": over_tcp, "tensorpipe": beside_tensorpipe}
    is_whole = True
    for name in sys.argv[1:] or parts:
        try:
            parts[name]()
        except Exception as error:
            is_whole = False
            print(f"| {name} | failed: {type(error).__name__}: {error} | | | |", flush=True)
    sys.exit(not is_whole)


if __name__ == "__main__":
    main()
