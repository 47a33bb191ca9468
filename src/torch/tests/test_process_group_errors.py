"""What a process group says of ranks that differ in their calls, of ranks that have left, and of time that is up."""

import pytest
from conftest import since

#: Ends each rank when all are done: none hears of the end of another before, and the store is rank 0's.
OVER = """
        def over():
            store = dist.distributed_c10d._get_default_store()
            store.add("over", 1)
            while store.add("over", 0) < size: time.sleep(0.01)
            store.add("heard", 1)
            while rank == 0 and store.add("heard", 0) < size: time.sleep(0.01)
            os._exit(0)
"""

#: What each of two ranks calls, and what the error says of both.
DIFFERENT = [
    ("dist.broadcast(x, 0)", "dist.all_reduce(x)", "broadcast from rank 0", "all_reduce with SUM"),
    ("dist.all_reduce(x, dist.ReduceOp.MAX)", "dist.all_reduce(x)", "with MAX", "with SUM"),
    ("dist.all_reduce(x.int())", "dist.all_reduce(x)", "12 bytes of Int", "12 bytes of Float"),
    ("dist.reduce(x, 1)", "dist.gather(x, [x, x], dst=1)", "reduce with SUM to rank 1", "gather to rank 1"),
    ("dist.all_to_all([x, x], [x, x])", "dist.all_gather([x, x], x)", "all_to_all", "all_gather"),
    ("dist.barrier()", "dist.all_reduce(torch.ones(1, dtype=torch.uint8))", "barrier", "1 bytes of Byte"),
    ("dist.reduce_scatter(x, [x, x], dist.ReduceOp.AVG)", "dist.reduce_scatter(x, [x, x])", "with AVG", "with SUM"),
    ("dist.all_gather_object([0, 0], 1)", "dist.broadcast_object_list([1], 1)", "all_gather", "broadcast from rank 1"),
    ("dist.all_reduce(x[:1].long())", "dist.all_reduce(sparse)", "all_reduce with SUM", "sparse all_reduce"),
    ("dist.broadcast(large, 0)", "dist.all_reduce(large)", "broadcast from rank 0", "all_reduce with SUM"),
]


@pytest.mark.parametrize("first, second, says_first, says_second", DIFFERENT)
def test_collectives_that_differ_are_refused_and_end_the_group(world, first, second, says_first, says_second):
    """They passed, if their values had as many bytes, and the next ones that were right took what was left of them."""
    outputs = world.run(
        OVER
        + f"""
        store = dist.distributed_c10d._get_default_store()
        x, large = torch.ones(3), torch.ones(1 << 20)
        sparse = torch.sparse_coo_tensor([[rank]], [1.0], (8,))
        def outcome(call):
            try: call()
            except dist.DistBackendError as error: return str(error)
        failed = outcome(lambda: {first} if rank == 0 else {second})
        if failed is not None:
            assert "same collectives in the same order" in failed, failed
            assert {says_first!r} in failed and {says_second!r} in failed, failed
            print("told", flush=True)
            store.set("told", "1")
        else:
            # Who only sends has nothing to compare, and hears of it with the next, which differs too.
            store.wait(["told"])
            failed = outcome(lambda: dist.all_reduce(x))
            assert failed and "same collectives in the same order" in failed, failed
        for later in (lambda: dist.all_reduce(x), lambda: dist.barrier(), lambda: dist.send(x, 1 - rank)):
            said = outcome(later)
            assert "it failed before" in said and "called different collectives" in said, said
        over()
        """
    )
    assert any("told" in output for output in outputs), outputs


def test_a_collective_that_one_rank_left_out_is_missed_in_the_next(world):
    """What comes is of the same kind, from the same root."""
    world.run(
        """
        x = torch.ones(3)
        if rank == 1: dist.broadcast(x, 1)
        else:
            dist.broadcast(x, 0)
            try: dist.broadcast(x, 1); raise SystemExit("no error")
            except dist.DistBackendError as error: said = str(error)
            assert "collective 1, broadcast from rank 1" in said and "collective 2, broadcast from rank 1" in said, said
        """
    )


@pytest.mark.parametrize("sizes", [[(2 << 20) + 4, (2 << 20) + 8], [2 << 20, 3 << 20]])
def test_a_piece_whose_first_part_is_alike_is_missed_in_a_later_one(world, sizes):
    """Only the first has what the collective is; here a later one is longer, or is not the last."""
    world.run(
        OVER
        + f"""
        x = torch.ones({sizes}[rank], dtype=torch.uint8)
        try:
            dist.broadcast(x, 0)
            if rank == 0: dist.recv(x, 1)
            raise SystemExit("no error")
        except dist.DistBackendError as error: said = str(error)
        assert "sent a later part of one (" in said, said
        assert "rank 1 waited for a later part of collective 1, broadcast from rank 0" in said, said
        over()
        """
    )


def test_a_rank_that_waits_for_another_is_told_of_collectives_that_differ(world):
    world.run(
        OVER
        + """
        def call():
            if rank == 2: dist.recv(torch.ones(1), 1)
            else: dist.all_reduce(torch.ones(3), [dist.ReduceOp.MAX, dist.ReduceOp.SUM][rank])
        try: call(); raise SystemExit("no error")
        except dist.DistBackendError as error: assert "called different collectives" in str(error), error
        over()
        """,
        size=3,
    )


def test_collectives_of_other_forms_are_the_same(world):
    """A tensor or a list of them, for a rank that is the root or none, and of any type."""
    world.run(
        """
        x, into = torch.arange(2.0) + rank, torch.zeros(2 * size)
        if rank == 0: dist.all_gather(list(into.view(size, 2)), x)
        else: dist.all_gather_into_tensor(into, x)
        assert torch.equal(into, torch.cat([torch.arange(2.0) + r for r in range(size)])), into
        with dist._coalescing_manager():
            several = [torch.ones(2, dtype=kind) for kind in (torch.float8_e5m2, torch.int64, torch.cfloat)]
            got = [torch.zeros(2 * size, dtype=one.dtype) for one in several]
            for one, many in zip(several, got): dist.all_gather_into_tensor(many, one)
        assert all((many.to(torch.cfloat) == 1).all() for many in got), got
        dist.barrier(); dist.destroy_process_group()
        """,
        size=3,
    )


@pytest.mark.parametrize("call", ["dist.all_reduce(torch.ones(4))", "dist.recv(torch.ones(3), 1)", "dist.barrier()"])
@pytest.mark.parametrize("leaves", ["sys.exit()", "dist.destroy_process_group()"])
def test_a_rank_that_has_left_is_named_as_a_loss_is(world, path, call, leaves):
    """The error said `Cleanup` and the number of a step, and was none of the network."""
    world.run(
        f"""
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        if rank == 1:
            try: {leaves}
            except SystemExit: rendez.torch._end()
            store.wait(["over"])
            store.add("heard", 1)
        else:
            try: {call}; raise SystemExit("no error")
            except dist.DistNetworkError as error: said = str(error)
            assert "rank 1 has left the group" in said and "Cleanup" not in said, said
            try: dist.all_reduce(torch.ones(4)); raise SystemExit("no error")
            except dist.DistNetworkError as error: assert "rank 1 has left the group" in str(error), error
            store.set("over", "1")
            while store.add("heard", 0) == 0: time.sleep(0.01)
        os._exit(0)
        """,
        **path,
    )


def test_a_rank_that_has_left_itself_says_so(world):
    world.run(
        """
        group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        dist.barrier()
        group.shutdown()
        for call in (lambda: group.recv([torch.ones(1)], 1 - rank, 0), lambda: group.barrier()):
            try: call().wait(); raise SystemExit("no error")
            except RuntimeError as error: assert "this rank has left the group" in str(error), error
        os._exit(0)
        """
    )


def test_errors_of_time_that_is_up_have_no_keys(world):
    world.run(
        OVER
        + """
        if rank == 0:
            try: dist.all_reduce(torch.ones(4)); raise SystemExit("no error")
            except RuntimeError as error: said = str(error)
            assert "Timed out waiting 1000ms for rank 1 in all_reduce" in said and "/job:" not in said, said
        over()
        """,
        SECONDS="1",
    )


def test_a_send_that_finds_no_room_blames_no_rank_alone(world):
    """What fills it may be for another rank."""
    world.run(
        OVER
        + """
        if rank == 0:
            try:
                for _ in range(3): dist.send(torch.ones(1 << 18), 1)
                dist.send(torch.ones(1 << 18), 2); raise SystemExit("no error")
            except RuntimeError as error: said = str(error)
            assert "Timed out waiting 2000ms for rank 2 in send: there is no room" in said, said
            assert "or another has not taken" in said and "`parked_bytes_per_step`" in said, said
        over()
        """,
        size=3,
        SECONDS="2",
        RENDEZ_REQUIRE="tcp",
        RENDEZ_LISTEN="127.0.0.1:0",
        RENDEZ_PARKED_BYTES="64MiB",
        RENDEZ_PARKED_BYTES_PER_STEP="3200KiB",
    )


def test_errors_that_quote_another_have_no_frames_of_its_stack(world):
    world.run(
        """
        for _ in range(2):
            try: dist.all_reduce(torch.ones(4 + rank)); raise SystemExit("no error")
            except RuntimeError as error: assert "frame #" not in str(error), error
        """
    )


@since((2, 15), "monitored_barrier is gloo's alone")
def test_a_monitored_barrier_quotes_no_frames(world):
    world.run(
        OVER
        + """
        if rank == 0:
            try: dist.monitored_barrier(timeout=datetime.timedelta(seconds=1)); raise SystemExit("no error")
            except RuntimeError as error: said = str(error)
            assert "Original exception" in said and "frame #" not in said, said
        over()
        """
    )
