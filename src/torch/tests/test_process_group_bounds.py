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


def test_a_message_that_is_longer_than_may_wait_goes_when_no_other_waits(world):
    """It was refused at once while an earlier one had not been received."""
    world.run(
        """
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        if rank == 0:
            dist.send(torch.ones(200_000), 1)
            store.set("test/sent", "")
            dist.send(torch.full((400_000,), 2.0), 1)
        else:
            store.get("test/sent")
            time.sleep(1)
            for n, value in ((200_000, 1), (400_000, 2)):
                x = torch.zeros(n); dist.recv(x, 0); assert (x == value).all()
        dist.barrier(); dist.destroy_process_group()
        """,
        SECONDS="60",
        RENDEZ_PARKED_BYTES="8MiB",
        RENDEZ_PARKED_BYTES_PER_STEP="1MiB",
        **TCP,
    )


def test_messages_of_tags_that_share_an_edge_are_told_apart(world, path):
    world.run(
        """
        tags = [7, 7 + 64, 7, 7 + 640, 7 + 64, 2**31 - 1]
        if rank == 0:
            early = [dist.irecv(x := torch.zeros(1), source, tag=7 + 640) and x for source in (1, None)]
            dist.barrier()
            got = {tag: [] for tag in tags}
            for tag in reversed(tags):
                if tag != 7 + 640:
                    for source in (2, 1):
                        x = torch.zeros(1); dist.recv(x, source, tag=tag); got[tag].append((source, x.item()))
            assert got[7] == [(2, 20), (1, 10), (2, 22), (1, 12)], got
            assert got[7 + 64] == [(2, 21), (1, 11), (2, 24), (1, 14)], got
            assert got[2**31 - 1] == [(2, 25), (1, 15)], got
            dist.barrier()
            assert sorted(x.item() for x in early) == [13, 23], early
        else:
            dist.barrier()
            for n, tag in enumerate(tags): dist.send(torch.full((1,), 10.0 * rank + n), 0, tag=tag)
            dist.barrier()
        dist.destroy_process_group()
        """,
        size=3,
        **path,
    )


def test_what_is_refused_takes_no_message(world):
    world.run(
        """
        x = torch.zeros(4)
        def fails(says, call):
            try: call()
            except RuntimeError as error: assert says in str(error), error
            else: raise SystemExit("no error")
        if rank == 0:
            dist.send(torch.ones(4), 1)
            fails("negative", lambda: dist.send(x, 1, tag=-1))
        else:
            fails("share memory", lambda: dist.recv(torch.zeros(1).expand(4), 0))
            fails("negative", lambda: dist.recv(x, 0, tag=-1))
            fails("negative", lambda: dist.recv(x, tag=-1))
            dist.recv(x, 0); assert x.sum() == 4, x
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


def test_a_receive_that_waits_as_it_copies_holds_up_no_other(world):
    """As one into a tensor of a device does, behind what the caller's stream has queued. One thread tells of values."""
    world.run(
        """
        import threading
        if rank == 0:
            dist.barrier()
            for tag in (1, 2): dist.send(torch.full((2, 3), float(tag)), 1, tag=tag)
        else:
            begun, may_end = threading.Event(), threading.Event()
            class Slow(torch.Tensor):
                @classmethod
                def __torch_dispatch__(cls, function, types, arguments=(), options=None):
                    begun.set(); may_end.wait(20)
                    with torch._C._DisableTorchDispatch(): return function(*arguments, **options or {})
            plain, other = torch.zeros(3, 2), torch.zeros(2, 3)
            slow = torch.Tensor._make_subclass(Slow, plain.t())
            # torch's functions would have the tensor's class see them too.
            backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
            waits = backend.recv([slow], 0, 1)
            dist.barrier()
            assert begun.wait(20)
            dist.recv(other, 0, tag=2)
            assert other.sum() == 12 and not waits.is_completed()
            may_end.set()
            waits.wait()
            assert plain.sum() == 6, plain
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
        SECONDS="15",
    )


@since((2, 15), "no group is made for a device of the CPU")
def test_a_group_of_some_ranks_where_the_first_was_made_for_a_device(world):
    """torch has the ranks outside of it take part in the split, by a method that only nccl's class had."""
    world.run(
        """
        dist.init_process_group("rendez", device_id=torch.device("cpu:0"))
        group = dist.new_group([0])
        if rank == 0: dist.all_reduce(torch.ones(3), group=group)
        dist.barrier(); dist.destroy_process_group()
        """,
        group=False,
        timeout=60,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_floats_are_reduced_as_torch_does(world, dtype):
    """Of more elements than torch reduces in one thread, with a NaN, and in the order of ranks."""
    world.run(
        f"""
        dtype, op = {dtype}, dist.ReduceOp
        def mine(r):
            x = torch.randn(40_000, generator=torch.Generator().manual_seed(r)).to(dtype)
            x[[7, 39_999]] = float("nan") if r == 1 else 1.0
            return x
        def reduced(f):
            x = mine(0)
            for r in range(1, size): x = f(x, mine(r))
            return x
        ops = [(op.SUM, torch.add)]
        if not dtype.is_complex: ops += [(op.PRODUCT, torch.mul), (op.MIN, torch.minimum), (op.MAX, torch.maximum)]
        for part in (slice(0, 500), slice(0, 40_000)):
            for how, f in ops:
                x = mine(rank)[part].clone(); dist.all_reduce(x, op=how)
                assert x.isnan().sum() == (1 if part.stop == 500 else 2), (how, x.isnan().sum())
                want = reduced(f)[part]
                torch.testing.assert_close(x, want, equal_nan=True, rtol=2e-2, atol=2e-2)
                if part.stop == 500: assert torch.equal(x.nan_to_num(), want.nan_to_num()), how
            x = torch.full((part.stop,), 2 * rank, dtype=dtype); dist.all_reduce(x, op=op.AVG); assert (x == 2).all(), x
        dist.barrier(); dist.destroy_process_group()
        """,
        size=3,
    )
