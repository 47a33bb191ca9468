"""Remote calls of rendez beside those of PyTorch's TensorPipe agent, in turns, on this machine.

    TORCH_PYTHON=/path/to/a/python/with/torch python3 bench/rpc.py [pairs]

`TORCH_PYTHON` is the interpreter of an environment that has PyTorch; without it, rendez is measured alone, which needs
nothing but this repository. Each pair is a round of either, one after the other, in two processes each that stay up;
what is printed is the median over the pairs (9 unless told otherwise), and of ratios the median of the pairs' ratios.

Each is used in its own language, so the two are not alike: rendez is called from Rust, its functions are closures of
Rust, and its 4 B are a plain number; TensorPipe is called from Python, its functions are PyTorch's or Python's, and its
4 B are a tensor. `src/torch/bench/rpc.py` has both called from Python with the same tensors.
"""

import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What rendez calls it, and what is nearest to it there, which is not the same.
UNLIKE = "TensorPipe: from Python, with tensors; rendez: from Rust, 4 B a plain number. Not like with like."
SAME = {
    "sync 4 B, shard": "sync 4 B",
    "sync 4 B, pool": "sync 4 B",
    "200 in flight, 4 B, shard": "200 in flight, 4 B",
    "200 in flight, 4 B, pool": "200 in flight, 4 B",
    "16 MiB argument, untouched": "16 MiB argument",
    "16 MiB result, untouched": "16 MiB result",
    "16 MiB argument, read": "16 MiB argument, read",
    "16 MiB result, read": "16 MiB result, read",
    "forward and backward, 8 × 8": "forward and backward, 8 × 8",
    "init, group of 2": "init, group of 2",
}


def times(seconds):
    seconds = sorted(seconds)
    at = lambda part: seconds[min(len(seconds) - 1, int(len(seconds) * part))] * 1e6
    return {"times": {"p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": seconds[-1] * 1e6}}


def timed(count, call):
    all_times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        all_times.append(time.perf_counter() - began)
    return times(all_times)


# ─────────────────────────────────────── TensorPipe, in the environment of PyTorch ───────────────────────────────────


def take(tensor):
    return None


def read(tensor):
    return tensor.sum().item()


def make():
    import torch

    if not hasattr(make, "kept"):
        make.kept = torch.ones(4 << 20)
    return make.kept


def peer(rank, port, pipe):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed.autograd as autograd
    import torch.distributed.rpc as rpc

    torch.set_num_threads(1)
    pipe.send("ready")
    pipe.recv()
    began = time.perf_counter()
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=2, backend=rpc.BackendType.TENSORPIPE)
    pipe.send(time.perf_counter() - began)
    small, large, weights = torch.ones(1), torch.ones(4 << 20), torch.ones(8, 8, requires_grad=True)

    def batches():
        began = time.perf_counter()
        for _ in range(3):
            torch.futures.wait_all([rpc.rpc_async("w1", take, (small,)) for _ in range(200)])
        return {"rate": 600 / (time.perf_counter() - began)}

    def both_ways():
        with autograd.context() as context:
            product = rpc.rpc_sync("w1", torch.mul, (weights, 2.0))
            autograd.backward(context, [product.sum()])

    while pipe.recv() == "round":
        pipe.send(
            {
                "sync 4 B": timed(300, lambda: rpc.rpc_sync("w1", torch.add, (small, 1))),
                "200 in flight, 4 B": batches(),
                "16 MiB argument": timed(10, lambda: rpc.rpc_sync("w1", take, (large,))),
                "16 MiB result": timed(10, lambda: rpc.rpc_sync("w1", make, ())),
                "16 MiB argument, read": timed(10, lambda: rpc.rpc_sync("w1", read, (large,))),
                "16 MiB result, read": timed(10, lambda: rpc.rpc_sync("w1", make, ()).sum().item()),
                "forward and backward, 8 × 8": timed(50, both_ways),
            }
        )
    rpc.shutdown()


def group(port):
    """Two processes of a group that is there, their pipes, and how long it took."""
    import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(2):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=peer, args=(rank, port, theirs))
        process.start()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    took = max([pipe.recv() for pipe in pipes])
    return pipes, processes, took


def leave(pipes, processes):
    for pipe in pipes:
        pipe.send("leave")
    for process in processes:
        process.join()


def tensorpipe():
    """A round for each line of the input."""
    port = 29600 + os.getpid() % 1000
    pipes, processes, _ = group(port)
    pipes[0].send("round")
    pipes[0].recv()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "init":
            port += 1
            *others, took = group(port)
            leave(*others)
            figures = {"init, group of 2": times([took])}
        else:
            pipes[0].send("round")
            figures = pipes[0].recv()
        print(json.dumps(figures), flush=True)
    leave(pipes, processes)


# ──────────────────────────────────────────────────────── the pairs ──────────────────────────────────────────────────


class Side:
    """A program that measures a round for each line that it is told."""

    def __init__(self, command):
        lines = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=ROOT, **lines)
        assert self.process.stdout.readline().strip() == "ready", command

    def round(self, what):
        print(what, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def first(figure):
    value = next(iter(figure.values()))
    return value["p50"] if isinstance(value, dict) else value


def shown(figures):
    if isinstance(next(iter(figures[0].values())), dict):
        parts = (statistics.median(figure["times"][part] for figure in figures) for part in ("p50", "p99", "p999", "max"))
        return "".join(f"{part:>11.2f}" for part in parts) + " µs"
    return f"{statistics.median(map(first, figures)):>11.2f}"


def main():
    if sys.argv[1:] == ["tensorpipe"]:
        return tensorpipe()
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    build = ["cargo", "bench", "-p", "rendez-autograd", "--bench", "rpc"]
    subprocess.run([*build, "--no-run"], cwd=ROOT, check=True)
    sides = [Side([*build, "--quiet", "--", "in-turns"])]
    torch = os.environ.get("TORCH_PYTHON")
    if torch:
        sides.append(Side([torch, os.path.abspath(__file__), "tensorpipe"]))
    rounds = [[side.round("calls") | side.round("init") for side in sides] for _ in range(pairs)]
    for side in sides:
        side.end()
    print(f"{pairs} pairs, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    if torch:
        print(UNLIKE)
    print(f"{'medians':<46}{'p50':>11}{'p99':>11}{'p99.9':>11}{'max':>11}")
    for name in rounds[0][0]:
        print(f"{name:<46}{shown([each[0][name] for each in rounds])}")
        same = SAME.get(name)
        if torch and same:
            print(f"{'    TensorPipe: ' + same:<46}{shown([each[1][same] for each in rounds])}")
            ratios = [first(each[1][same]) / first(each[0][name]) for each in rounds]
            ratio = statistics.median(ratios)
            print(f"{'    ratio of the pairs, median':<46}{(1 / ratio if 'flight' in name else ratio):>11.1f} ×")
    return None


if __name__ == "__main__":
    main()
