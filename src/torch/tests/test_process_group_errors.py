"""What a process group says of errors that it has had before."""

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
