"""Remote calls over rendez beside TensorPipe: python rpc.py [--rounds 9] [--device cuda]

With `--device cuda` all tensors are on the first card, for both processes, and each round ends when its work is done.

Rounds alternate between two pairs of processes, one of each backend; the pair that is not measured waits. What counts
is the ratio of the medians, rendez' time over TensorPipe's."""

import argparse
import json
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

from processes import free_port, median

kept = {}


def take(tensor):
    return None


def give(device):
    if device not in kept:
        kept[device] = torch.ones(4 << 20, device=device)
    return kept[device]


CASES = {
    "builtin 4 B": (lambda small, big: rpc.rpc_sync("other", torch.add, (small, 1)), 200),
    "python 4 B": (lambda small, big: rpc.rpc_sync("other", take, (small,)), 200),
    "16 MiB there": (lambda small, big: rpc.rpc_sync("other", take, (big,)), 5),
    "16 MiB back": (lambda small, big: rpc.rpc_sync("other", give, (str(big.device),)), 5),
}


def work(rank, backend, port, device, pipe):
    torch.set_num_threads(1)
    import rendez.torch  # noqa: F401

    options = {"rendez": rendez.torch.RendezRpcBackendOptions, "tensorpipe": rpc.TensorPipeRpcBackendOptions}[backend]
    name = "first" if rank == 0 else "other"
    options = options(init_method=f"tcp://127.0.0.1:{port}")
    if device == "cuda" and rank == 0:
        options.set_device_map("other", {0: 0})
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        small, big = torch.ones(1, device=device), torch.ones(4 << 20, device=device)
        while (case := pipe.recv()) is not None:
            call, times = CASES[case]
            began = time.perf_counter()
            for _ in range(times):
                call(small, big)
            if device == "cuda":
                torch.cuda.synchronize()
            pipe.send((time.perf_counter() - began) / times)
    rpc.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    given = parser.parse_args()
    context = mp.get_context("spawn")
    pipes, processes = {}, []
    for backend in ("tensorpipe", "rendez"):
        ours, theirs = context.Pipe()
        pipes[backend], port = ours, free_port()
        processes += [context.Process(target=work, args=(rank, backend, port, given.device, theirs)) for rank in range(2)]
    for process in processes:
        process.start()
    for case in CASES:
        times = {backend: [] for backend in pipes}
        for at in range(given.rounds + 1):
            for backend, pipe in pipes.items():
                pipe.send(case)
                took = pipe.recv()
                if at:
                    times[backend].append(took)
        pipe_us, ours_us = (median(times[backend]) * 1e6 for backend in ("tensorpipe", "rendez"))
        line = {"case": case, "tensorpipe_us": round(pipe_us, 1), "rendez_us": round(ours_us, 1)}
        print(json.dumps({**line, "ratio": round(ours_us / pipe_us, 3)}), flush=True)
    for pipe in pipes.values():
        pipe.send(None)
    for process in processes:
        process.join()
