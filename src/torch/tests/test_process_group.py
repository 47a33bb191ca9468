"""The process group `rendez`: every collective against what torch computes of the same tensors, over both ways."""

import pytest
from conftest import since

COLLECTIVES = """
def everyone(make):
    return [make(r) for r in range(size)]

for n in (1, 7, 1000, 9000, 100_003, 700_001):
    for dtype in (torch.float32, torch.int64, torch.bfloat16, torch.bool):
        def value(r, n=n, dtype=dtype):
            g = torch.Generator().manual_seed(r * 1000 + n)
            return torch.randint(0, 3, (n,), generator=g).to(dtype)
        if dtype is torch.bool and n > 1000:
            continue
        # all_reduce: sums of small integers are exact in every type
        mine = value(rank)
        dist.all_reduce(mine)
        want = torch.stack([v.to(torch.int64) for v in everyone(value)]).sum(0)
        assert torch.equal(mine, want.to(dtype)), ("all_reduce", n, dtype)
        mine = value(rank)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        assert torch.equal(mine, torch.stack([v.to(torch.int64) for v in everyone(value)]).amax(0).to(dtype))
        # broadcast from each
        for root in range(size):
            mine = value(rank)
            dist.broadcast(mine, root)
            assert torch.equal(mine, value(root)), ("broadcast", n, dtype, root)
        # reduce: others keep their own
        mine = value(rank)
        dist.reduce(mine, size - 1)
        assert torch.equal(mine, want.to(dtype) if rank == size - 1 else value(rank)), ("reduce", n, dtype)
        # all_gather, in a list and in one tensor
        got = [torch.zeros_like(mine) for _ in range(size)]
        dist.all_gather(got, value(rank))
        assert all(torch.equal(a, b) for a, b in zip(got, everyone(value))), ("all_gather", n, dtype)
        flat = torch.zeros(size * n, dtype=dtype)
        dist.all_gather_into_tensor(flat, value(rank))
        assert torch.equal(flat, torch.cat(everyone(value)))
        # gather and scatter
        got = [torch.zeros_like(mine) for _ in range(size)] if rank == 0 else None
        dist.gather(value(rank), got, dst=0)
        assert rank or all(torch.equal(a, b) for a, b in zip(got, everyone(value))), ("gather", n, dtype)
        one = torch.zeros_like(mine)
        dist.scatter(one, everyone(value) if rank == 0 else None, src=0)
        assert torch.equal(one, value(rank)), ("scatter", n, dtype)
        # reduce_scatter: rank r's piece of rank s is value(r + s)
        one = torch.zeros(n, dtype=dtype)
        dist.reduce_scatter(one, [value(rank + r) for r in range(size)])
        want = torch.stack([value(rank + r).to(torch.int64) for r in range(size)]).sum(0).to(dtype)
        assert torch.equal(one, want), ("reduce_scatter", n, dtype)
        dist.reduce_scatter_tensor(one, torch.cat([value(rank + r) for r in range(size)]))
        assert torch.equal(one, want)
        # all_to_all, even and uneven
        got = [torch.zeros(n, dtype=dtype) for _ in range(size)]
        dist.all_to_all(got, [value(10 * rank + r) for r in range(size)])
        assert all(torch.equal(got[r], value(10 * r + rank)) for r in range(size)), ("all_to_all", n, dtype)
        sizes = [n * (r + 1) for r in range(size)]
        source = torch.cat([value(rank).repeat(r + 1) for r in range(size)])
        into = torch.zeros(n * (rank + 1) * size, dtype=dtype)
        dist.all_to_all_single(into, source, [n * (rank + 1)] * size, sizes)
        assert torch.equal(into, torch.cat([value(r).repeat(rank + 1) for r in range(size)]))
    dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_give_what_torch_computes(world, size, path):
    world.run(COLLECTIVES, size=size, **path)


@pytest.mark.parametrize("size", [2, 3])
def test_outputs_may_lie_where_inputs_do(world, size):
    """What was written there first went to the ranks that the inputs were for."""
    world.run(
        """
        def same(got, want): assert torch.equal(got, want), (rank, n, got, want)
        ranks = range(size)
        for n in (4, 700_001):
            def value(r, s): return torch.arange(float(n)) % 7 + 100 * r + 10 * s
            def mine(): return [value(rank, s) for s in ranks]
            came = [value(r, rank) for r in ranks]
            for at in ranks:
                xs = mine(); dist.reduce_scatter(xs[at], xs); same(xs[at], sum(came))
                xs = mine(); dist.scatter(xs[at], xs if rank == 1 else None, src=1); same(xs[at], value(1, rank))
            for at in (0, n // 2, n * rank, n * (size - 1)):
                x = torch.cat(mine()); dist.reduce_scatter_tensor(x[at : at + n], x); same(x[at : at + n], sum(came))
                x[at : at + n] = value(rank, 0); dist.all_gather_into_tensor(x, x[at : at + n])
                same(x, torch.cat([value(r, 0) for r in ranks]))
            xs = mine(); dist.all_to_all(xs[::-1], xs); same(torch.cat(xs[::-1]), torch.cat(came))
            xs = mine(); dist.all_to_all(xs, xs); same(torch.cat(xs), torch.cat(came))
            x = torch.cat([*mine(), torch.zeros(n // 2)]); dist.all_to_all_single(x[n // 2 :], x[: n * size])
            same(x[n // 2 :], torch.cat(came))
        dist.barrier(); dist.destroy_process_group()
        """,
        size=size,
    )


def test_many_ranks_go_by_doubling_and_by_trees(world):
    world.run(
        """
        zero = torch.tensor([0.0 if rank % 2 else -0.0])
        dist.all_reduce(zero, op=dist.ReduceOp.MIN)
        signs = [torch.empty(1) for _ in range(size)]
        dist.all_gather(signs, torch.copysign(torch.ones(1), zero))
        assert len({sign.item() for sign in signs}) == 1, "all have the same zero"
        for n in (1, 5, 4096):
            x = torch.arange(n, dtype=torch.float64) + rank
            dist.all_reduce(x)
            assert torch.equal(x, torch.arange(n, dtype=torch.float64) * size + size * (size - 1) / 2)
            for root in (0, 3, size - 1):
                x = torch.full((n,), float(rank)); dist.broadcast(x, root); assert (x == root).all()
        dist.barrier()
        dist.destroy_process_group()
        """,
        size=11,
    )


def test_results_are_the_same_to_the_last_bit(world):
    outputs = world.run(
        """
        import hashlib
        for n in (100, 100_000):
            x = torch.rand(n, generator=torch.Generator().manual_seed(rank)); dist.all_reduce(x)
            print(hashlib.sha256(x.numpy().tobytes()).hexdigest())
        dist.destroy_process_group()
        """,
        size=3,
    )
    assert len(set(outputs)) == 1


def test_views_averages_and_objects(world):
    world.run(
        """
        x = torch.arange(12.).view(3, 4).t() + rank
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        assert torch.equal(x, torch.arange(12.).view(3, 4).t() + (size - 1) / 2)
        x = torch.zeros(4, 4)
        dist.broadcast(x[:, 1], 0) if rank else dist.broadcast(torch.ones(4, 4)[:, 1], 0)
        assert rank == 0 or (x.sum() == 4 and x[:, 1].sum() == 4)
        got = [None] * size
        dist.all_gather_object(got, {"rank": rank, "text": "x" * 5000})
        assert [g["rank"] for g in got] == list(range(size))
        s = torch.sparse_coo_tensor([[rank, 5]], [1.0, 2.0], (8,)); dist.all_reduce(s)
        assert torch.equal(s.to_dense()[:size], torch.ones(size)) and s.to_dense()[5] == 2 * size
        tensors = [torch.full((3,), float(rank)), torch.full((2, 2), 1.0)]
        with dist._coalescing_manager(): [dist.all_reduce(t) for t in tensors]
        assert tensors[0][0] == sum(range(size)) and tensors[1][1, 1] == size
        work = dist.all_reduce(torch.ones(3), async_op=True); work.wait()
        assert work.is_completed() and work.get_future().wait()[0][0] == size
        dist.all_to_all_single(torch.empty(0, 4), torch.empty(0, 4))
        dist.destroy_process_group()
        """,
        size=3,
    )


def test_point_to_point(world, path):
    world.run(
        """
        other = 1 - rank
        for n in (0, 1, 300, 2000, 300_000):
            got = torch.full((n,), -1.)
            if rank: dist.recv(got, 0); dist.send(got + 1, 0)
            else: dist.send(torch.ones(n), 1); dist.recv(got, 1)
            assert (got == 2 - rank).all(), n
        # tags apart from each other, whatever the order
        a, b = torch.zeros(2), torch.zeros(2)
        if rank == 0: dist.send(torch.ones(2), 1, tag=1); dist.send(torch.full((2,), 2.), 1, tag=2)
        else: dist.recv(b, 0, tag=2); dist.recv(a, 0, tag=1); assert a[0] == 1 and b[0] == 2
        # many at once, in order
        n = 50
        works = [dist.isend(torch.full((3,), float(i)), other) for i in range(n)]
        got = [torch.zeros(3) for _ in range(n)]
        works += [dist.irecv(t, other) for t in got]
        [w.wait() for w in works]
        assert [t[0].item() for t in got] == list(range(n))
        ops = [dist.P2POp(dist.isend, torch.full((4,), float(rank)), other), dist.P2POp(dist.irecv, got[0].new_zeros(4), other)]
        [w.wait() for w in dist.batch_isend_irecv(ops)]
        assert ops[1].tensor[0] == other
        # the last thing a rank does is to send, and it leaves at once
        if rank == 0: dist.send(torch.arange(1000.), 1)
        else: time.sleep(1); last = torch.zeros(1000); dist.recv(last, 0); assert last[999] == 999
        """,
        **path,
    )


def test_what_was_sent_arrives_though_its_sender_ended_with_its_group(world):
    world.run(
        """
        if rank == 0:
            dist.send(torch.ones(3), 1)
            half = dist.new_group([0, 1])
            dist.send(torch.full((2,), 2.0), 1, group=half)
        else:
            half = dist.new_group([0, 1])
            # Longer than it takes until the engine of rank 0 is done, if no group holds it up.
            time.sleep(3)
            for group, expected in [(None, torch.ones(3)), (half, torch.full((2,), 2.0))]:
                got = torch.zeros_like(expected)
                dist.recv(got, 0, group=group)
                assert torch.equal(got, expected)
        """
    )


def test_each_message_may_have_a_tag_of_its_own(world):
    """The engine keeps what it knows of a key as long as the group lives, and has room for a million: tags share them."""
    world.run(
        """
        count, few, first, late = 22_000, 2000, torch.zeros(1), torch.zeros(1)
        def megabytes(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
        def take(tags):
            x = torch.zeros(1)
            for tag in tags: dist.recv(x, 1, tag=tag); assert x == tag, (x, tag)
        if rank == 0:
            early = dist.irecv(first, 1, tag=count)
            take(range(few))
            before = megabytes()
            take(range(few, count))
            # It was 18.
            grown = megabytes() - before
            assert grown < 6, grown
            take(range(few))
            dist.recv(late, 1, tag=count + 1); assert late == -2
            dist.barrier()
            early.wait(); assert first == -1
        else:
            dist.send(torch.full((1,), -2.0), 0, tag=count + 1)
            for tag in [*range(count), *range(few)]: dist.send(torch.full((1,), float(tag)), 0, tag=tag)
            dist.barrier()
            dist.send(torch.full((1,), -1.0), 0, tag=count)
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=100,
    )


def test_receive_from_anyone(world):
    world.run(
        """
        if rank == 0:
            seen = []
            for i in range(2 * (size - 1)):
                x = torch.zeros(1); source = dist.recv(x); assert x.item() // 10 == source; seen.append(x.item())
            assert sorted(seen) == sorted(10. * r + k for r in range(1, size) for k in range(2))
        else:
            for k in range(2): dist.send(torch.tensor([10. * rank + k]), 0)
        dist.barrier(); dist.destroy_process_group()
        """,
        size=3,
    )


def test_groups_meet_over_one_store_again(world):
    """torch numbers the groups of a process from zero after each, so the names in the store are the same. The member
    that is first finds what the group before has left."""
    world.run(
        """
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
        bound = datetime.timedelta(seconds=20)
        for life in range(3):
            if rank == 0:
                # The others are in the store before.
                store.wait([f"{life} {other}" for other in range(1, size)]); time.sleep(0.5)
            else: store.set(f"{life} {rank}", "1")
            dist.init_process_group("rendez", store=store, rank=rank, world_size=size, timeout=bound)
            x = torch.ones(3); dist.all_reduce(x); assert (x == size).all(), x
            group = dist.new_group([0, size - 1])
            if rank in (0, size - 1): dist.all_reduce(x, group=group); assert (x == 2 * size).all(), x
            dist.destroy_process_group()
        """,
        size=3,
        group=False,
        timeout=100,
    )


def test_a_group_meets_after_a_member_has_waited_in_vain(world):
    world.run(
        """
        store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
        bound = datetime.timedelta(seconds=20)
        make = rendez.torch._native.create_process_group
        if rank == 0:
            store.set_timeout(datetime.timedelta(seconds=0.5))
            for _ in range(2):
                try: make(store, rank, size, bound); raise SystemExit("no error")
                except RuntimeError as error: assert "timeout" in str(error).lower(), error
            store.set_timeout(bound)
            store.set("in vain", "1")
        else: store.wait(["in vain"]); time.sleep(0.5)
        group = make(store, rank, size, bound)
        x = [torch.ones(3)]; group.allreduce(x).wait(); assert (x[0] == size).all(), x
        group.shutdown()
        store.add("done", 1)
        while rank == 0 and store.add("done", 0) < size: time.sleep(0.01)
        """,
        group=False,
        timeout=100,
    )


def test_groups_that_are_split_over_one_store(world):
    """As older versions of torch do, once for each type of device: each group has a step of its own."""
    world.run(
        """
        store = dist.PrefixStore("split", dist.distributed_c10d._get_default_store())
        make = rendez.torch._native.create_process_group
        first, second = [make(store, rank, size, datetime.timedelta(seconds=20)) for _ in range(2)]
        def sum_of(group, value):
            x = [torch.tensor([float(value)])]; group.allreduce(x).wait(); return x[0].item()
        assert sum_of(second, 1) == size and sum_of(first, 10) == 10 * size
        first.shutdown()
        assert sum_of(second, 2) == 2 * size
        second.shutdown()
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=100,
    )


def test_conjugates_and_negatives_are_what_they_stand_for(world, path):
    """Their memory is that of what they were made of, also where they are written to. torch's functions give a backend
    copies of those that are written to, mostly, and drop the copies: so some are called here as the backend's own."""
    world.run(
        """
        def make(r): return torch.complex(torch.arange(6.), torch.arange(6.) + r).view(2, 3)
        def none(kind=torch.cfloat): return torch.zeros(2, 3, dtype=kind)
        everyone = [make(r).conj().resolve_conj() for r in range(size)]
        summed = torch.stack(everyone).sum(0)
        x = everyone[0].clone() if rank == 0 else make(rank).conj()
        dist.reduce(x, 0); assert torch.equal(x, summed if rank == 0 else everyone[rank]), x
        got = [none().conj() if r else none() for r in range(size)] if rank == 0 else None
        dist.gather(make(rank).conj(), got, dst=0)
        assert rank or all(torch.equal(a, b) for a, b in zip(got, everyone)), got
        one = none()
        dist.reduce_scatter(one, [make(rank).conj() for _ in range(size)]); assert torch.equal(one, summed), one
        own = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        x = make(rank).conj(); own.reduce([x], dist.ReduceOptions()).wait()
        assert torch.equal(x, summed if rank == 0 else everyone[rank]), x
        one = torch.zeros(3, 2, dtype=torch.cfloat).t().conj() if rank == 0 else none().conj()
        own.reduce_scatter([one], [[make(rank).conj()] * size], dist.ReduceScatterOptions()).wait()
        assert torch.equal(one, summed), one
        # Real ones: the imaginary part of a conjugate.
        def negative(r): return make(r).conj().imag
        assert negative(rank).is_neg()
        x = negative(rank); own.allreduce([x], dist.AllreduceOptions()).wait(); assert torch.equal(x, summed.imag), x
        x = negative(5)
        if rank == 0: own.recv([x], 1, 0).wait(); assert torch.equal(x, negative(7).clone()), x
        else: own.send([negative(7)], 0, 0).wait()
        dist.barrier(); dist.destroy_process_group()
        """,
        **path,
    )


def test_the_result_of_a_work_is_the_tensor_that_was_given(world):
    world.run(
        """
        x, into = torch.arange(float(size)) + 10 * rank, torch.zeros(size)
        for sizes in ([], [[1] * size] * 2):
            work = dist.all_to_all_single(into, x, *sizes, async_op=True); work.wait()
            for results in (work.result(), work.get_future().wait()):
                assert len(results) == 1 and results[0].data_ptr() == into.data_ptr(), results
                assert torch.equal(results[0], torch.arange(float(size)) * 10 + rank), results
        dist.barrier(); dist.destroy_process_group()
        """
    )


@pytest.mark.parametrize("ends", [False, True])
def test_nothing_is_kept_of_a_receive_that_is_over(world, ends):
    """Not even in the lines of the other ranks that it waited for: here of one that sends nothing, or is killed."""
    world.run(
        f"""
        import signal, weakref, numpy
        kept = []
        def fresh():
            array = numpy.zeros(4, numpy.float32); kept.append(weakref.ref(array))
            return torch.from_numpy(array)
        def all_are_gone():
            # The thread that filled the last one lets go of it soon after.
            until = time.monotonic() + 20
            while any(ref() is not None for ref in kept) and time.monotonic() < until: time.sleep(0.01)
            return not any(ref() is not None for ref in kept)
        store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
        dist.barrier()
        if rank == 2 and {ends}: os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0:
            if {ends}:
                try: dist.recv(fresh(), 2); raise SystemExit("no error")
                except RuntimeError as error: assert "rank 2" in str(error), error
            for _ in range(20): assert dist.recv(fresh()) == 1
            work = dist.irecv(fresh(), 1)
            try: work.wait(datetime.timedelta(seconds=0.2)); raise SystemExit("no error")
            except RuntimeError as error: assert "Timed out" in str(error), error
            del work
            assert all_are_gone(), [ref() is not None for ref in kept]
            store.set("done", "1")
        else:
            if rank == 1: [dist.send(torch.ones(4), 0) for _ in range(20)]
            store.wait(["done"])
        """,
        size=3,
        expect=[0, 0, -9 if ends else 0],
        **world.DETECTION,
    )


def test_subgroups_and_splits(world):
    world.run(
        """
        groups = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
        for g, members in zip(groups, ([0, 1], [1, 2], [0, 2])):
            if rank in members:
                x = torch.tensor([float(rank)]); dist.all_reduce(x, group=g); assert x.item() == sum(members)
        dist.barrier(); dist.destroy_process_group()
        """,
        size=3,
    )


def test_ddp(world):
    world.run(
        """
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        data = torch.randn(size * 4, 64, generator=torch.Generator().manual_seed(1))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad(); ddp(data[rank * 4:(rank + 1) * 4]).square().mean().backward(); optimizer.step()
        alone = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        torch.manual_seed(0)
        alone = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad(); alone(data).square().mean().backward(); optimizer.step()
        for p, q in zip(model.parameters(), alone.parameters()): assert torch.allclose(p, q, atol=1e-6)
        dist.destroy_process_group()
        """
    )


def test_tensors_whose_elements_share_memory_may_be_read(world):
    """Where others write to theirs such a tensor is refused, and they go on with the next."""
    world.run(
        """
        x = torch.full((1,), 2.0).expand(4) if rank == 0 else torch.zeros(4)
        dist.broadcast(x, 0); assert (x == 2).all(), x
        x = torch.ones(1).expand(4) if rank == 0 else torch.ones(4)
        dist.reduce(x, 1); assert (x == 1 + rank).all(), x
        try: dist.broadcast(torch.ones(1).expand(4), 1 - rank); raise SystemExit("no error")
        except RuntimeError as error: assert "share memory" in str(error), error
        x = torch.ones(4); dist.all_reduce(x); assert (x == size).all(), x
        dist.barrier(); dist.destroy_process_group()
        """
    )


def test_bounds_may_be_longer_than_any_clock_counts(world):
    world.run(
        """
        ages = datetime.timedelta(days=200_000)
        group = dist.new_group([0, 1], timeout=ages)
        def late():
            if rank == 1: time.sleep(0.2)
        x = torch.ones(4)
        late(); dist.all_reduce(x, group=group); assert (x == size).all(), x
        late(); dist.all_reduce(x, group=group, async_op=True).wait(ages)
        late(); dist.recv(x, 1, group=group) if rank == 0 else dist.send(x, 0, group=group)
        dist.barrier(); dist.destroy_process_group()
        """
    )


def test_a_child_of_fork_ends_at_once(world):
    """It has none of the threads that the groups and the engine of its parent have, and nothing of its own to send."""
    world.run(
        """
        import signal
        x = torch.ones(4); dist.all_reduce(x)
        if rank == 0: dist.send(x, 1)
        child = os.fork()
        if child == 0:
            signal.alarm(4)
            dist.destroy_process_group() if rank else None
            rendez.torch._end()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        if rank == 1: dist.recv(x, 0)
        dist.all_reduce(x); assert (x == size * size).all(), x
        """
    )


@pytest.mark.parametrize("call", ["dist.all_reduce(x, async_op=True)", "dist.irecv(x, 1 - rank)", "dist.barrier()"])
def test_a_child_of_fork_is_told_that_it_has_no_group(world, call):
    """It left its collectives to a thread that only its parent has."""
    world.run(
        f"""
        import signal
        x = torch.ones(4); dist.all_reduce(x, async_op=True).wait()
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try: work = {call}; work and work.wait(); os._exit(2)
            except RuntimeError as error: assert "fork" in str(error), error
            dist.destroy_process_group()
            os._exit(0)
        ended = os.waitpid(child, 0)[1]
        assert ended == 0, ended
        dist.all_reduce(x); assert (x == size * size).all(), x
        """,
        timeout=60,
    )


def test_lines_of_the_engine_go_to_logging(world):
    """A program of torch's makes no `rendez.Engine`, which would begin what hands them over."""
    world.run(
        """
        import logging, queue
        lines = queue.SimpleQueue()
        handler = logging.Handler(); handler.emit = lambda record: lines.put(record.name)
        logging.getLogger("rendez").addHandler(handler); logging.getLogger("rendez").setLevel(logging.DEBUG)
        dist.all_reduce(torch.ones(4))
        # Levels are looked at now and then.
        time.sleep(2)
        if rank == 1: os._exit(0)
        assert lines.get(timeout=30).startswith("rendez")
        os._exit(0)
        """
    )


def test_timeouts_name_the_rank(world):
    world.run(
        """
        if rank == 0:
            for call in (lambda: dist.all_reduce(torch.ones(4)), lambda: dist.barrier()):
                try: call(); raise SystemExit("no error")
                except RuntimeError as error: assert "rank 1" in str(error) or "failed before" in str(error), error
        else: time.sleep(4)
        """,
        SECONDS="1",
    )


def test_a_collective_behind_one_that_failed_takes_none_of_its_values(world):
    """It was queued already, and took what the late rank gave to the one before."""
    world.run(
        """
        store = dist.distributed_c10d._get_default_store()
        a, b = torch.full((4,), 1.0 + rank), torch.full((4,), 10.0 + rank)
        store.add("test/there", 1)
        while store.add("test/there", 0) < size: time.sleep(0.01)
        if rank == 1: time.sleep(1.5)
        failures = []
        for work in [dist.all_reduce(a, async_op=True), dist.all_reduce(b, async_op=True)]:
            try: work.wait()
            except RuntimeError as error: failures.append(str(error))
        if rank == 0:
            assert len(failures) == 2, (failures, b)
            assert "for rank 1" in failures[0] and "failed before" in failures[1], failures
            while store.add("test/over", 0) == 0: time.sleep(0.01)
        else: store.add("test/over", 1)
        """,
        SECONDS="1",
    )


def test_a_receive_that_times_out_takes_no_later_value(world):
    world.run(
        """
        if rank == 0:
            work = dist.irecv(torch.zeros(2), 1)
            try: work.wait(datetime.timedelta(seconds=0.2)); raise SystemExit("no error")
            except RuntimeError as error: assert "Timed out waiting 200ms" in str(error), error
            dist.barrier(); x = torch.zeros(2); dist.recv(x, 1); assert x[0] == 7
        else: dist.barrier(); dist.send(torch.full((2,), 7.), 0)
        dist.destroy_process_group()
        """
    )


def test_a_receive_that_its_tensor_cannot_take_fails(world, path):
    world.run(
        """
        if rank == 0: dist.send(torch.ones(2, 4), 1)
        else:
            with torch.inference_mode(): x = torch.zeros(4, 2).t()
            work = dist.irecv(x, 0)
            try: work.wait(datetime.timedelta(seconds=20)); raise SystemExit("no error")
            except RuntimeError as error: assert "inference tensor" in str(error), error
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
        **path,
    )


def test_tensors_of_inference_with_gaps(world):
    """They are copied to in another thread, which has to be in the mode of inference too."""
    world.run(
        """
        bound = datetime.timedelta(seconds=20)
        with torch.inference_mode():
            if rank == 0: dist.send(torch.arange(8.).view(2, 4), 1)
            else:
                x = torch.zeros(4, 2).t(); dist.irecv(x, 0).wait(bound)
                assert torch.equal(x, torch.arange(8.).view(2, 4))
            x = torch.ones(4, 2).t(); dist.all_reduce(x, async_op=True).wait(); assert (x == 2).all()
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


@pytest.mark.parametrize(
    "begin, wait, tags",
    [
        ("dist.all_reduce(x, async_op=True)", "dist.all_reduce(y, async_op=True).get_future().wait()", ()),
        ("dist.all_reduce(x, async_op=True)", "dist.all_reduce(y, async_op=True).get_future().then(str).wait()", ()),
        ("dist.irecv(x, other, tag=1)", "dist.recv(y, other, tag=2)", (1, 2)),
        ("dist.irecv(x, other, tag=1)", "dist.irecv(y, other, tag=2).get_future().wait()", (1, 2)),
    ],
)
def test_a_callback_may_wait_for_its_group(world, begin, wait, tags):
    world.run(
        f"""
        store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
        other, x, y = 1 - rank, torch.ones(4), torch.ones(4)
        futures = []
        if rank == 0:
            for _ in range(3): futures.append({begin}.get_future().then(lambda done: {wait}))
            store.set("go", "1")
        else:
            store.wait(["go"])
            for _ in range(3): futures.append({begin}.get_future().then(lambda done: {wait}))
        for tag in {tags}: [dist.send(torch.ones(4), other, tag=tag) for _ in range(3)]
        [future.wait() for future in futures]
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


def test_callbacks_run_in_the_order_of_their_operations(world):
    """So what they begin pairs with what those of the other ranks begin, however long each takes."""
    world.run(
        """
        count = 12
        x, y, works, order = torch.ones(count, 4), torch.arange(float(count)), {}, []
        def begin(i):
            time.sleep(0.02 * ((i + rank) % 3))
            order.append(i)
            works[i] = dist.all_reduce(y[i:i + 1], async_op=True)
        futures = [dist.all_reduce(x[i], async_op=True).get_future() for i in range(count)]
        for i, future in enumerate(futures): futures[i] = future.then(lambda done, i=i: begin(i))
        [future.wait() for future in futures]
        [work.wait() for work in works.values()]
        assert order == list(range(count)), order
        assert torch.equal(y, torch.arange(float(count)) * size), y
        dist.barrier(); dist.destroy_process_group()
        """,
        size=3,
        timeout=60,
    )


def test_callbacks_stay_in_order_while_one_waits_for_a_rank_that_is_late(world):
    world.run(
        """
        a, b, c = (torch.full((1,), value) for value in (1., 10., 100.))
        def first(done):
            until = time.monotonic() + 3.5 * rank
            while time.monotonic() < until: pass
            dist.all_reduce(a); dist.all_reduce(b)
        def second(done): dist.all_reduce(c)
        futures = [dist.all_reduce(torch.ones(1), async_op=True).get_future().then(then) for then in (first, second)]
        [future.wait() for future in futures]
        assert (a.item(), b.item(), c.item()) == (2, 20, 200), (a, b, c)
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


def test_a_future_that_is_asked_for_late_takes_its_turn(world):
    world.run(
        """
        b, c = torch.full((1,), 10.), torch.full((1,), 100.)
        def first(done): time.sleep(0.5); dist.all_reduce(b)
        def second(done): dist.all_reduce(c)
        one = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(first)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        if rank == 0: time.sleep(0.2)
        other = work.get_future().then(second)
        one.wait(); other.wait()
        assert (b.item(), c.item()) == (20, 200), (b, c)
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


def test_a_chain_of_callbacks_may_be_long(world):
    world.run(
        """
        import threading
        x, left, over = torch.ones(1), 3000, threading.Event()
        def step(done):
            global left
            left -= 1
            if left: dist.all_reduce(x, async_op=True).get_future().then(step)
            else: over.set()
        dist.all_reduce(x, async_op=True).get_future().then(step)
        assert over.wait(50), left
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


def test_sends_to_a_rank_that_is_lost_keep_nothing(world):
    world.run(
        """
        if rank == 1: dist.barrier(group=None); os._exit(0)
        dist.barrier()
        try: dist.recv(torch.ones(1), 1); raise SystemExit("no error")
        except RuntimeError as error: assert "rank 1" in str(error), error
        for _ in range(300):
            try: dist.send(torch.ones(1 << 20), 1); raise SystemExit("no error")
            except RuntimeError as error: assert "rank 1 is lost" in str(error), error
        os._exit(0)
        """,
        RENDEZ_ARENA_BYTES="256MiB",
        **world.DETECTION,
    )


def test_a_full_mailbox_loses_no_receive(world):
    world.run(
        """
        if rank == 0:
            tensors = [torch.zeros(1) for _ in range(300)]
            works = [dist.irecv(tensor, 1, tag=tag) for tag, tensor in enumerate(tensors)]
            [work.wait() for work in works]
            assert [tensor.item() for tensor in tensors] == list(range(300))
        else: [dist.send(torch.full((1,), float(tag)), 0, tag=tag) for tag in range(300)]
        dist.barrier(); dist.destroy_process_group()
        """,
        RENDEZ_MAILBOX="2",
        timeout=60,
    )


def test_groups_are_made_though_a_mailbox_is_full(world):
    """A group of four begins six receives in a row, and its making failed unless the engine kept up."""
    world.run(
        """
        for _ in range(30): dist.new_group()
        store = dist.distributed_c10d._get_default_store()
        store.add("test/over", 1)
        # The store is rank 0's.
        while rank == 0 and store.add("test/over", 0) < size: time.sleep(0.01)
        os._exit(0)
        """,
        size=4,
        RENDEZ_MAILBOX="2",
        timeout=100,
    )


def test_a_callback_may_wait_for_the_next(world):
    """That begins though its turn has not come, since the one before it stands still."""
    world.run(
        """
        store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
        x, y, order = torch.ones(4), torch.ones(4), []
        def first(done):
            second.wait()
            order.append(1)
        if rank == 0:
            futures = [dist.all_reduce(x, async_op=True).get_future(), dist.all_reduce(y, async_op=True).get_future()]
            second = futures[1].then(lambda done: order.append(2))
            futures[0] = futures[0].then(first)
            store.set("go", "1")
            [future.wait() for future in futures]
            assert order == [2, 1], order
        else:
            store.wait(["go"])
            dist.all_reduce(x); dist.all_reduce(y)
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=60,
    )


def test_a_group_that_is_destroyed_waits_for_its_callbacks(world):
    world.run(
        """
        store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
        x, y, ended = torch.ones(4), torch.ones(4), []
        def first(done):
            time.sleep(0.3)
            dist.all_reduce(y, async_op=True).get_future().then(second)
        def second(done):
            time.sleep(0.3)
            ended.append(y[0].item())
        if rank == 0:
            dist.all_reduce(x, async_op=True).get_future().then(first)
            store.set("go", "1")
            dist.destroy_process_group()
            assert ended == [size], ended
        else:
            store.wait(["go"])
            dist.all_reduce(x); dist.all_reduce(y)
            dist.destroy_process_group()
        """,
        timeout=60,
    )


def test_a_group_that_is_destroyed_waits_ten_seconds_in_all(world):
    """For a callback that does not end, and then for a value that is not taken."""
    world.run(
        """
        store, x = dist.distributed_c10d._get_default_store(), torch.ones(4)
        work = dist.all_reduce(x, async_op=True)
        if rank == 0:
            work.get_future().then(lambda _: time.sleep(60))
            dist.send(x, 1)
            began = time.monotonic()
            dist.destroy_process_group()
            took = time.monotonic() - began
            assert 9 < took < 18, took
            store.set("test/over", "")
            while store.add("test/heard", 0) == 0: time.sleep(0.01)
        else:
            work.wait()
            store.get("test/over")
            store.add("test/heard", 1)
        os._exit(0)
        """
    )


def test_a_process_that_ends_waits_ten_seconds_for_all_groups(world):
    world.run(
        """
        store, x = dist.distributed_c10d._get_default_store(), torch.ones(4)
        groups = [dist.new_group() for _ in range(2)]
        if rank == 0:
            [dist.send(x, 1, group=group) for group in groups]
            began = time.monotonic()
            rendez.torch._native.shutdown_groups()
            took = time.monotonic() - began
            assert 9 < took < 18, took
            store.set("test/over", "")
            while store.add("test/heard", 0) == 0: time.sleep(0.01)
        else:
            store.get("test/over")
            store.add("test/heard", 1)
        os._exit(0)
        """
    )


def test_a_group_that_is_destroyed_waits_for_nothing_that_was_not_sent(world):
    """A send that finds no room fails alone, and was counted all the same."""
    world.run(
        """
        store, sent = dist.distributed_c10d._get_default_store(), 0
        def hear(what):
            while store.add(what, 0) == 0: time.sleep(0.01)
        dist.barrier()
        if rank == 0:
            for _ in range(64):
                try: dist.send(torch.full((1 << 18,), float(sent)), 1)
                except RuntimeError as error: assert "Timed out" in str(error), error; break
                sent += 1
            else: raise SystemExit("there was room for all")
            store.add("test/sent", sent)
            hear("test/taken")
            began = time.monotonic()
            dist.destroy_process_group()
            took = time.monotonic() - began
            store.add("test/over", 1)
            hear("test/heard")
            assert took < 5, took
        else:
            x = torch.zeros(1 << 18)
            hear("test/sent")
            for n in range(store.add("test/sent", 0)): dist.recv(x, 0); assert x[0] == n
            store.add("test/taken", 1)
            hear("test/over")
            store.add("test/heard", 1)
        os._exit(0)
        """,
        SECONDS="1",
        RENDEZ_PARKED_BYTES="4MiB",
        RENDEZ_PARKED_BYTES_PER_STEP="2MiB",
        timeout=60,
    )


def test_powersgd(world):
    """Its hook waits for collectives in the callbacks of others."""
    world.run(
        """
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
        torch.manual_seed(0)
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
        ddp.register_comm_hook(powersgd.PowerSGDState(None, start_powerSGD_iter=2), powersgd.powerSGD_hook)
        for _ in range(5): ddp(torch.randn(4, 64)).square().mean().backward()
        dist.barrier(); dist.destroy_process_group()
        """,
        timeout=100,
    )


def test_a_callback_may_drop_its_group(world):
    """The group ends in a thread of its own then. What is freed is filled, so that no use of it goes unseen."""
    world.run(
        """
        import ctypes, glob
        store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
        def threads(): return [open(path).read().strip() for path in glob.glob("/proc/self/task/*/comm")]
        if rank == 0:
            ctypes.CDLL(None).mallopt(-6, 165)  # M_PERTURB
            future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
            assert "rendez-group" in threads(), threads()
            future = future.then(lambda done: dist.destroy_process_group())
            store.set("go", "1")
            future.wait()
            while "rendez-group" in threads(): time.sleep(0.01)
            assert not dist.is_initialized()
        else: store.wait(["go"]); dist.all_reduce(torch.ones(4)); dist.destroy_process_group()
        """,
        timeout=60,
    )


@since((2, 15), "monitored_barrier is gloo's alone")
def test_monitored_barrier_names_who_is_missing(world):
    world.run(
        """
        dist.monitored_barrier()
        second = datetime.timedelta(seconds=1)
        if rank == 0:
            try: dist.monitored_barrier(timeout=second, wait_all_ranks=True); raise SystemExit("no error")
            except RuntimeError as error: assert "Ranks 1, 2 failed to pass" in str(error), error
        time.sleep(1.5); dist.monitored_barrier(); dist.barrier(); dist.destroy_process_group()
        """,
        size=3,
    )


@since((2, 15), "monitored_barrier is gloo's alone")
def test_monitored_barrier_takes_no_rank_for_there_that_has_given_up(world):
    """Nor one for missing that is there, behind one that is."""
    world.run(
        """
        store = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())
        def fails(seconds, text, **options):
            bound = datetime.timedelta(seconds=seconds)
            try: dist.monitored_barrier(timeout=bound, **options)
            except RuntimeError as error: assert text in str(error), error
            else: raise SystemExit("no error")
        def meet(name):
            store.add(name, 1)
            while store.add(name, 0) < size: time.sleep(0.01)
        # Ranks 1 and 2 arrive alone, and go; then rank 0 finds none of them.
        if rank: fails(0.5, "successfully reached monitoredBarrier")
        meet("gone")
        if rank == 0: fails(1, "Ranks 1, 2 failed to pass", wait_all_ranks=True)
        meet("alone")
        # Rank 2 is there, behind rank 1, which is not; it gives up before rank 0 does.
        if rank == 0: time.sleep(0.5)
        if rank != 1: fails(2, "Ranks 1 failed to pass" if rank == 0 else "reached", wait_all_ranks=True)
        meet("one missing")
        # Rank 1 was heard by a barrier that failed, of which something may be left.
        if rank == 2: time.sleep(1.5)
        else: fails(0.7, "Rank 2 failed to pass" if rank == 0 else "reached")
        dist.monitored_barrier(); dist.monitored_barrier()
        dist.barrier(); dist.destroy_process_group()
        """,
        size=3,
        timeout=100,
    )


@since((2, 15), "monitored_barrier is gloo's alone")
def test_monitored_barrier_keeps_its_bound_where_a_collective_hangs(world):
    world.run(
        """
        store = dist.distributed_c10d._get_default_store()
        if rank != 1:
            work = dist.all_reduce(torch.ones(4), async_op=True)
            began = time.monotonic()
            try: dist.monitored_barrier(timeout=datetime.timedelta(seconds=6), wait_all_ranks=True)
            except RuntimeError as error: assert ("reached" if rank else "Ranks 1 failed to pass") in str(error), error
            else: raise SystemExit("no error")
            took = time.monotonic() - began
            assert took < 20, took
            store.add("test/over", 1)
        # Rank 0 has the store, and rank 1 is there as long as the others.
        while rank == 0 and store.add("test/over", 0) < size: time.sleep(0.01)
        if rank == 1:
            while store.add("test/over", 0) < size - 1: time.sleep(0.01)
            store.add("test/over", 1)
        os._exit(0)
        """,
        size=3,
        timeout=100,
    )


def test_different_calls_are_told_apart(world):
    world.run(
        """
        try: dist.all_reduce(torch.ones(4 + rank)); raise SystemExit("no error")
        except RuntimeError as error: assert "same collectives in the same order" in str(error), error
        """
    )


@pytest.mark.parametrize(
    ("megabytes", "call"),
    [
        ((2, 1), "dist.broadcast(x, 0)"),
        ((1, 2), "dist.reduce(x, 1)"),
        ((1, 2), "dist.all_reduce(torch.cat([x, x]))"),
    ],
)
def test_tensors_that_differ_by_whole_chunks_are_told_apart(world, megabytes, call):
    """Such as were cut into chunks of a mebibyte looked alike, and what was left over went into the next call."""
    outputs = world.run(
        f"""
        x = torch.ones({megabytes}[rank] << 20, dtype=torch.uint8)
        try: {call}; print("no error")
        except RuntimeError as error: assert "same collectives in the same order" in str(error), error; print("told")
        """
    )
    assert "told\n" in outputs, outputs


def test_a_root_waits_for_room_in_the_engines_memory(world):
    """It failed at once, and closed the group, where those who receive were late."""
    world.run(
        """
        x = torch.arange(24 << 20, dtype=torch.uint8) if rank == 0 else torch.zeros(24 << 20, dtype=torch.uint8)
        dist.barrier()
        if rank == 1: time.sleep(2)
        dist.broadcast(x, 0)
        assert torch.equal(x, torch.arange(24 << 20, dtype=torch.uint8))
        dist.barrier()
        """,
        RENDEZ_ARENA_BYTES="16MiB",
        RENDEZ_ARENA_SEGMENT_BYTES="4MiB",
    )


@pytest.mark.parametrize("call", ["dist.all_reduce(torch.ones(5_000_000))", "dist.barrier()", "dist.recv(torch.ones(3), 1)"])
def test_a_rank_that_is_killed_is_named_to_all_others(world, path, call):
    outputs = world.run(
        f"""
        import re, signal
        dist.barrier()
        if rank == 1:
            time.sleep(0.5)
            print(time.monotonic(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        try: {call}; raise SystemExit("no error")
        except RuntimeError as error:
            # And no other, though one told the other of it.
            assert re.findall(r"rank ([0-9]) is lost", str(error)) in (["1"], ["1", "1"]), error
        print(time.monotonic(), flush=True)
        """,
        size=3,
        expect=[0, -9, 0],
        **path,
        **world.DETECTION,
    )
    world.told_in_time(outputs, killed=1)


def test_a_rank_that_ends_the_group_is_named_and_none_is_lost(world):
    """Those who waited for a third rank took that for lost, now and in each later call."""
    world.run(
        """
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        if rank == 0:
            time.sleep(0.5)
            dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).abort()
        else:
            other = 3 - rank
            for call in (lambda: dist.recv(torch.ones(3), other), lambda: dist.send(torch.ones(3), other),
                         lambda: dist.all_reduce(torch.ones(4))):
                try: call(); raise SystemExit("no error")
                except RuntimeError as error:
                    assert "rank 0 aborted the group" in str(error) and "is lost" not in str(error), error
        store.add("test/over", 1)
        # The store is rank 0's.
        while rank == 0 and store.add("test/over", 0) < size: time.sleep(0.01)
        """,
        size=3,
        timeout=60,
    )


# A receive that begins after the loss was told waited for another life of the rank, as long as the group's timeout.
@pytest.mark.parametrize("call", ["dist.all_reduce(torch.ones(4))", "dist.recv(torch.ones(3), 1)", "dist.send(torch.ones(3), 1)"])
def test_a_rank_that_was_lost_before_a_call_is_named_at_once(world, path, call):
    outputs = world.run(
        f"""
        import signal
        dist.barrier()
        if rank == 1:
            print(0, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(2 * {world.FAILURE_DETECTION})
        began = time.monotonic()
        try: {call}; raise SystemExit("no error")
        except RuntimeError as error: assert "rank 1" in str(error), error
        print(time.monotonic() - began, flush=True)
        """,
        size=3,
        expect=[0, -9, 0],
        **path,
        **world.DETECTION,
    )
    world.told_in_time(outputs, killed=1)


@pytest.mark.parametrize(
    "call, says",
    [
        ("dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)", "integers"),
        ("dist.all_reduce(torch.ones(2, dtype=torch.float8_e5m2))", "cannot reduce"),
        ("dist.send(torch.ones(2), 0)", ""),
        ("dist.scatter(torch.ones(2), [torch.ones(3)])", "differ|own|size"),
        ("dist.all_gather_into_tensor(torch.ones(5), torch.ones(2))", ""),
        ("dist.all_to_all_single(torch.ones(5), torch.ones(4), [5], [4])", "differ|size"),
        ("dist.all_reduce(torch.ones(1).expand(4))", "share memory"),
        ("dist.reduce(torch.ones(1).expand(4), 0)", "share memory"),
        ("dist.all_reduce_coalesced([torch.ones(2), torch.ones(1).expand(4)])", "share memory"),
        ("dist.all_gather([torch.ones(1).expand(4)], torch.ones(4))", "share memory"),
        ("dist.all_gather_into_tensor(torch.ones(1).expand(4), torch.ones(4))", "share memory"),
        ("dist.gather(torch.ones(4), [torch.ones(1).expand(4)])", "share memory"),
        ("dist.scatter(torch.ones(1).expand(4), [torch.ones(4)])", "share memory"),
        ("dist.reduce_scatter(torch.ones(1).expand(4), [torch.ones(4)])", "share memory"),
        ("dist.reduce_scatter_tensor(torch.ones(1).expand(4), torch.ones(4))", "share memory"),
        ("dist.all_to_all([torch.ones(1).expand(4)], [torch.ones(4)])", "share memory"),
    ],
)
def test_bad_input_is_an_error_and_nothing_else(world, call, says):
    world.run(
        f"""
        import re
        try: {call}; raise SystemExit("no error")
        except (RuntimeError, ValueError, NotImplementedError) as error: assert re.search({says!r}, str(error)), error
        x = torch.ones(3); dist.all_reduce(x); assert x.sum() == 3
        """,
        size=1,
    )
