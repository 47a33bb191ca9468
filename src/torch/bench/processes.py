"""Starts the processes of a benchmark: a function in each, as rank 0 to size - 1 of a group that gloo carries too."""

import os
import socket

import torch
import torch.multiprocessing as mp


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _begin(rank, function, size, port, arguments):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    function(rank, size, *arguments)


def start(function, size, *arguments):
    """Runs `function(rank, size, *arguments)` in so many processes, and waits for them."""
    mp.spawn(_begin, (function, size, free_port(), arguments), nprocs=size)


def both_groups():
    """A group of gloo and one of rendez, of the same processes."""
    import torch.distributed as dist

    import rendez.torch  # noqa: F401

    return {"gloo": dist.new_group(backend="gloo"), "rendez": dist.new_group(backend="rendez")}


def median(values):
    values = sorted(values)
    return values[len(values) // 2]
