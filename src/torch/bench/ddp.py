"""A step of DistributedDataParallel over rendez beside gloo: python ddp.py [--ranks 2] [--rounds 9] [--steps 3]

A small residual network of convolutions, trained on noise; rounds alternate between two wrapped copies of it. What
counts is the ratio of the medians, rendez' time over gloo's."""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn

from processes import both_groups, median, start


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.body(x))


def network():
    stages = [nn.Conv2d(3, 64, 3, padding=1), *(Block(64) for _ in range(2)), nn.Conv2d(64, 256, 3, 2, 1)]
    return nn.Sequential(*stages, *(Block(256) for _ in range(2)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def measure(rank, size, rounds, steps):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    torch.manual_seed(0)
    models, times = {}, {}
    for name, group in both_groups().items():
        model = nn.parallel.DistributedDataParallel(network(), process_group=group)
        models[name] = model, torch.optim.SGD(model.parameters(), lr=0.01)
        times[name] = []
    data, wanted = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
    for at in range(rounds + 1):
        for name, (model, optimizer) in models.items():
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(steps):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(data), wanted).backward()
                optimizer.step()
            if at:
                times[name].append((time.perf_counter() - begin) / steps)
    if rank == 0:
        gloo, ours = (median(times[name]) * 1e3 for name in ("gloo", "rendez"))
        parameters = sum(p.numel() for p in model.parameters())
        line = {"ranks": size, "parameters": parameters, "gloo_ms": round(gloo, 1), "rendez_ms": round(ours, 1)}
        print(json.dumps({**line, "ratio": round(ours / gloo, 3)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    start(measure, given.ranks, given.rounds, given.steps)
