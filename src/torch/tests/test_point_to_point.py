"""Receives that their callers bring themselves, and those that nobody waits for."""

import pytest


def test_who_waits_for_a_receive_brings_it(world):
    """No other thread is woken for it: the one that tells of values was, and the shard's, for each."""
    world.run(
        """
        import glob
        def switches():
            for path in glob.glob("/proc/self/task/*/status"):
                lines = dict(line.split(":", 1) for line in open(path))
                if lines["Name"].strip() == "rendez-callback": return int(lines["voluntary_ctxt_switches"])
        count, x, rounds = 100, torch.zeros(1), []
        def turn():
            if rank: dist.recv(x, 0); dist.send(x, 0)
            else: dist.send(x, 1); dist.recv(x, 1)
        for _ in range(20): turn()
        for _ in range(5):
            before = switches()
            for _ in range(count): turn()
            rounds.append(switches() - before)
        # It was twice as often as there were receives, in each. One that is not waited for soon is told all the same.
        assert min(rounds) < count, rounds
        dist.barrier(); dist.destroy_process_group()
        """
    )


def test_a_receive_that_nobody_waits_for_comes(world, path):
    world.run(
        """
        got, told = [torch.zeros(3) for _ in range(3)], []
        if rank == 0:
            works = [dist.irecv(tensor, 1, tag=tag) for tag, tensor in enumerate(got)]
            works[1].get_future().then(lambda done: told.append(1))
            dist.barrier()
            while not all(work.is_completed() for work in works) or not told: time.sleep(0.001)
            assert [tensor[0].item() for tensor in got] == [0, 1, 2], got
        else:
            dist.barrier()
            for tag in range(3): dist.send(torch.full((3,), float(tag)), 0, tag=tag)
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
        **path,
    )


def test_threads_that_wait_for_one_rank_get_each_its_own(world):
    """Tags that are 64 apart share a key, and whoever receives of it gets what another waits for."""
    world.run(
        """
        import threading
        count, sums = 200, {}
        def take(tag):
            x, sums[tag] = torch.zeros(1), 0
            for _ in range(count): dist.recv(x, 1, tag=tag); sums[tag] += x.item()
        if rank == 0:
            threads = [threading.Thread(target=take, args=(tag,)) for tag in (1, 65, 129)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            assert sums == {tag: tag * count for tag in (1, 65, 129)}, sums
        else:
            for i in range(count):
                for tag in (129, 1, 65): dist.send(torch.full((1,), float(tag)), 0, tag=tag)
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


def test_receives_that_nobody_waits_for_yet_make_room_for_sends(world):
    """Each rank sends more than may wait for receivers before it waits for what the other sends."""
    world.run(
        """
        got = [torch.zeros(1 << 18) for _ in range(16)]
        works = [dist.irecv(tensor, 1 - rank) for tensor in got]
        for i in range(16): dist.send(torch.full((1 << 18,), float(i)), 1 - rank)
        [work.wait() for work in works]
        assert [tensor[-1].item() for tensor in got] == list(range(16))
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
        RENDEZ_PARKED_BYTES="4MiB",
        RENDEZ_PARKED_BYTES_PER_STEP="2MiB",
    )


def test_a_wait_that_is_over_leaves_the_value_to_the_next(world):
    world.run(
        """
        def wait(work, seconds): work.wait(datetime.timedelta(seconds=seconds))
        if rank == 0:
            x, y = torch.zeros(1), torch.zeros(1)
            first, second = dist.irecv(x, 1, tag=1), dist.irecv(y, 1, tag=65)
            try: wait(first, 0.2); raise SystemExit("no error")
            except RuntimeError as error: assert "Timed out waiting 200ms" in str(error), error
            dist.barrier()
            wait(second, 30); assert y == 65, y
            dist.recv(x, 1, tag=1); assert x == 1, x
        else:
            dist.barrier()
            for tag in (1, 65): dist.send(torch.full((1,), float(tag)), 0, tag=tag)
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


@pytest.mark.parametrize("call", ["dist.recv(x, 0, tag=tag)", "dist.irecv(x, 0, tag=tag).wait()"])
def test_a_value_that_finds_no_memory_is_told_to_who_waits(world, call):
    """It is gone: the receive began again, waited for another, and would have taken the next."""
    world.run(
        f"""
        import rendez.torch
        os.environ["RENDEZ_ARENA_BYTES"] = ["256MiB", "16MiB"][rank]
        dist.init_process_group("rendez", timeout=datetime.timedelta(seconds=100))
        if rank == 0:
            dist.send(torch.ones(16 << 20), 1)
            dist.send(torch.ones(1), 1, tag=1)
        else:
            x, tag = torch.zeros(16 << 20), 0
            try: {call}; raise SystemExit("no error")
            except RuntimeError as error: assert "recv failed with rank 0" in str(error), error
            x, tag = torch.zeros(1), 1
            {call}
            assert x == 1, x
        dist.barrier(); dist.destroy_process_group()
        """,
        group=False,
        timeout=40,
        RENDEZ_REQUIRE="tcp",
        RENDEZ_LISTEN="127.0.0.1:0",
    )


def test_who_waits_is_told_when_another_thread_ends_the_same_receive(world):
    world.run(
        """
        import threading
        if rank == 0:
            works, said = [], []
            def wait(**bound):
                try: works[0].wait(**bound)
                except RuntimeError as error: said.append(str(error))
            def receive(): works.append(dist.irecv(torch.zeros(1), 1)); wait()
            thread = threading.Thread(target=receive)
            thread.start()
            while not works: time.sleep(0.001)
            wait(timeout=datetime.timedelta(seconds=1))
            thread.join()
            assert len(said) == 2 and all("Timed out waiting 1000ms" in one for one in said), said
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=40,
    )
