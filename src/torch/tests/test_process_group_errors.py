"""What a process group says of ranks that have left, and of time that is up."""

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
