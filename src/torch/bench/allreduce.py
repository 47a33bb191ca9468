"""all_reduce of rendez beside gloo: python allreduce.py [--sizes 4096,1048576,67108864] [--ranks 2,4] [--rounds 9]

The same processes have a group of each; rounds alternate, and a round is the time of some calls. What counts is the
ratio of the medians, gloo's time over rendez'."""

import argparse
import json
import time

import torch
import torch.distributed as dist

from processes import both_groups, median, start


def measure(rank, size, sizes, rounds):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    groups = both_groups()
    for bytes_ in sizes:
        tensor = torch.zeros(bytes_ // 4)
        calls = max(2, min(200, (32 << 20) // bytes_))
        times = {name: [] for name in groups}
        for at in range(rounds + 1):
            for name, group in groups.items():
                dist.barrier()
                begin = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(tensor, group=group)
                if at:
                    times[name].append((time.perf_counter() - begin) / calls)
        if rank == 0:
            gloo, ours = (median(times[name]) for name in ("gloo", "rendez"))
            line = {"ranks": size, "bytes": bytes_, "gloo_us": round(gloo * 1e6, 1), "rendez_us": round(ours * 1e6, 1)}
            print(json.dumps({**line, "ratio": round(gloo / ours, 2)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="4096,1048576,67108864")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    for ranks in given.ranks.split(","):
        start(measure, int(ranks), [int(size) for size in given.sizes.split(",")], given.rounds)
