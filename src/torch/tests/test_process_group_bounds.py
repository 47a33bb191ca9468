"""The process group `rendez` where something is bounded, or is for others too: memory, keys, and threads."""

import pytest
import torch
from conftest import since

TCP = {"RENDEZ_REQUIRE": "tcp", "RENDEZ_LISTEN": "127.0.0.1:0"}


def test_what_collectives_have_under_way_fits_whatever_the_number_of_ranks(world):
    """Each rank sent a chunk to all others before it took one of the chunks before, and all waited for room."""
    world.run(
        """
        n = 2 << 20
        mine = torch.full((n,), rank, dtype=torch.uint8)
        many = [torch.zeros(n, dtype=torch.uint8) for _ in range(size)]
        dist.all_gather(many, mine)
        assert all((one == at).all() for at, one in enumerate(many))
        # Where its own lies each gets what the others have for it.
        lists = torch.arange(size, dtype=torch.uint8).repeat_interleave(n) + 16 * rank
        dist.all_to_all_single(lists, lists)
        want = 16 * torch.arange(size, dtype=torch.uint8).repeat_interleave(n) + rank
        assert torch.equal(lists, want)
        x = torch.full((size * n // 4,), rank + 1.0)
        dist.all_reduce(x)
        assert (x == size * (size + 1) / 2).all()
        out = torch.zeros(n // 4)
        dist.reduce_scatter(out, list(x.chunk(size)))
        assert (out == x[0] * size).all()
        dist.reduce(x, 1, op=dist.ReduceOp.AVG)
        if rank == 1: assert torch.allclose(x, out[0] / size)
        dist.barrier(); dist.destroy_process_group()
        """,
        size=11,
        SECONDS="60",
        RENDEZ_PARKED_BYTES="64MiB",
        RENDEZ_PARKED_BYTES_PER_STEP="19MiB",
        # So many processes may keep each other from a processor for long.
        RENDEZ_FAILURE_DETECTION="60s",
        **TCP,
    )
