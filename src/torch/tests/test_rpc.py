"""The RPC backend RENDEZ: calls, references, distributed autograd, memory by value, and workers that die."""

import pytest

BEGIN = """
import torch.distributed.rpc as rpc, torch.distributed.autograd as autograd
def double(x): return x * 2
def boom(): raise ValueError("the other side says no")
def add_in_place(x): x.add_(1); return x
def firsts(tensors): return [t[0].item() for t in tensors]
def same(a, b): return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr(), b.storage_offset()
KEPT = torch.ones(1 << 20)
def kept(): return KEPT
def parts(): return torch.ones(3 << 17), torch.ones(5 << 17)
def parts_for(process):
    import signal, threading
    threading.Timer(13, os.kill, (process, signal.SIGCONT)).start()
    os.kill(process, signal.SIGSTOP)
    return parts()
def change(value): KEPT.fill_(value); return None
def begin(): rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, backend=rpc.BackendType.RENDEZ)
begin()
"""


# A worker that stands still takes little of what is for it.
LITTLE_ROOM = {
    "RENDEZ_PARKED_BYTES": "4MiB",
    "RENDEZ_PARKED_BYTES_PER_STEP": "2MiB",
    "RENDEZ_FAILURE_DETECTION": "60s",
}
STANDS_STILL = {**LITTLE_ROOM, "RENDEZ_REQUIRE": "tcp", "RENDEZ_LISTEN": "127.0.0.1:0"}


def only_first(body):
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return BEGIN + "if rank == 0:\n" + lines + "\nrpc.shutdown()\n"


def test_calls_of_every_kind(world, path):
    world.run(
        only_first(
            """
assert torch.equal(rpc.rpc_sync("w1", torch.add, (torch.ones(2), 3)), torch.full((2,), 4.))
assert torch.equal(rpc.rpc_sync("w1", double, (torch.arange(4.).view(2, 2).t(),)), 2 * torch.arange(4.).view(2, 2).t())
got = [f.wait() for f in [rpc.rpc_async("w1", double, (torch.full((n,), float(n)),)) for n in (0, 1, 500, 3000, 900_000)]]
assert [len(t) for t in got] == [0, 1, 500, 3000, 900_000] and (got[4] == 1_800_000).all()
try: rpc.rpc_sync("w1", boom); raise SystemExit("no error")
except ValueError as error: assert "says no" in str(error)
try: rpc.rpc_sync("w1", time.sleep, (2,), timeout=0.2); raise SystemExit("no error")
except RuntimeError as error: assert "RPC ran for more than" in str(error)
assert rpc.rpc_sync("w0", double, (3,)) == 6
assert rpc.rpc_sync("w1", len, ("x" * 3_000_000,)) == 3_000_000
a = torch.arange(600_000.).view(2, -1)
assert rpc.rpc_sync("w1", same, (a, a.t())) == (True, 0)
b = torch.arange(6.).view(2, 3)
assert rpc.rpc_sync("w1", same, (b, b[1])) == (True, 3)
assert rpc.rpc_sync("w1", double, (torch.eye(3).to_sparse(),)).to_dense().sum() == 6
r = rpc.remote("w1", torch.nn.Linear, (3, 2))
assert r.owner().name == "w1" and r.rpc_sync().forward(torch.ones(1, 3)).shape == (1, 2)
with autograd.context() as context:
    x = torch.ones(8, requires_grad=True)
    autograd.backward(context, [rpc.rpc_sync("w1", torch.mul, (x, 3.0)).sum()])
    assert (autograd.get_gradients(context)[x] == 3).all()
del r
"""
        ),
        group=False,
        **path,
    )


def test_a_call_that_is_over_keeps_no_timer(world):
    world.run(
        """
        import torch.distributed.rpc as rpc
        options = rendez.torch.RendezRpcBackendOptions(rpc_timeout=100_000)
        rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)
        def timers(): return int(rpc.api._get_current_rpc_agent().get_metrics()["agent.client_timers"])
        [rpc.rpc_sync("w0", torch.add, (i, 1)) for i in range(20)]
        assert timers() == 0, timers()
        long = rpc.rpc_async("w0", time.sleep, (600,))
        assert timers() == 1, timers()
        os._exit(0)
        """,
        size=1,
        group=False,
    )


def test_a_bound_may_be_longer_than_any_clock_counts(world):
    world.run(only_first('assert rpc.rpc_sync("w1", time.sleep, (0.2,), timeout=1e12) is None'), group=False)


def test_arguments_and_results_are_values(world, path):
    """What one side writes afterwards, the other does not see, though large tensors are read in place."""
    world.run(
        only_first(
            """
x = torch.zeros(1 << 20)
y = rpc.rpc_sync("w1", add_in_place, (x,))
assert (x == 0).all() and (y == 1).all()
mine = rpc.rpc_sync("w1", kept)
rpc.rpc_sync("w1", change, (5.0,))
assert (mine == 1).all()
mine.add_(1); assert (mine == 2).all() and (rpc.rpc_sync("w1", kept) == 5).all()
for i in range(20):
    t = torch.full((1 << 18,), float(i)); f = rpc.rpc_async("w1", double, (t,)); t.fill_(-1); assert (f.wait() == 2 * i).all()
"""
        ),
        group=False,
        **path,
    )


def test_parts_of_a_message_keep_their_places(world, path):
    world.run(
        only_first(
            """
for _ in range(40):
    calls = [rpc.rpc_async("w1", firsts, ([torch.full((2048,), n + i) for i in range(40)],)) for n in range(40)]
    assert [call.wait() for call in calls] == [list(range(n, n + 40)) for n in range(40)]
"""
        ),
        group=False,
        **path,
    )


def test_messages_of_more_parts_than_a_key_has_receives(world, path):
    world.run(
        only_first(
            """
assert rpc.rpc_sync("w1", firsts, ([torch.full((2048,), i) for i in range(6000)],)) == list(range(6000))
calls = [rpc.rpc_async("w1", firsts, ([torch.full((2048,), n + i) for i in range(50)],)) for n in range(100)]
assert [call.wait() for call in calls] == [list(range(n, n + 50)) for n in range(100)]
assert rpc.rpc_sync("w1", double, (3,)) == 6
"""
        ),
        group=False,
        **path,
    )


def test_a_message_without_room_fails_and_spoils_no_other(world):
    """A request of which a part is sent, and a response, to one that stands still: what comes behind is no part of it."""
    world.run(
        only_first(
            """
import signal
other = rpc.rpc_sync("w1", os.getpid)
os.kill(other, signal.SIGSTOP)
try: rpc.rpc_sync("w1", same, parts(), timeout=60); raise SystemExit("no error")
except RuntimeError as error: assert "w1" in str(error), error
os.kill(other, signal.SIGCONT)
assert (rpc.rpc_sync("w1", double, (torch.full((1 << 14,), 3.),), timeout=20) == 6).all()
try: rpc.rpc_sync("w1", parts_for, (os.getpid(),), timeout=60); raise SystemExit("no error")
except RuntimeError as error: assert "could not send" in str(error) or "parked_bytes" in str(error), error
assert (rpc.rpc_sync("w1", double, (torch.full((1 << 14,), 4.),), timeout=20) == 8).all()
"""
        ),
        group=False,
        **STANDS_STILL,
    )


def test_calls_of_a_worker_that_stands_still_return_when_their_time_is_up(world):
    """Each held the next for ten seconds."""
    world.run(
        only_first(
            """
import signal, threading
other = rpc.rpc_sync("w1", os.getpid)
os.kill(other, signal.SIGSTOP)
took = []
def call():
    began = time.monotonic()
    try: rpc.rpc_async("w1", same, parts(), timeout=1).wait()
    except RuntimeError: took.append(time.monotonic() - began)
threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
os.kill(other, signal.SIGCONT)
assert len(took) == 4 and max(took) < 8, took
assert (rpc.rpc_sync("w1", double, (torch.full((1 << 14,), 3.),), timeout=20) == 6).all()
"""
        ),
        group=False,
        **STANDS_STILL,
    )


def test_a_worker_that_stands_still_keeps_no_answer_from_another(world):
    """All threads of a pool have an answer for it, and one waited behind the other."""
    world.run(
        """
def late_part(): time.sleep(1.5); return torch.ones(3 << 17)
def begin_calls():
    global CALLS
    CALLS = [rpc.rpc_async("w1", late_part, timeout=30) for _ in range(24)]
    return os.getpid()
def end_calls():
    for call in CALLS:
        try: call.wait()
        except RuntimeError: pass
"""
        + BEGIN
        + """
import signal
if rank == 2:
    still = rpc.rpc_sync("w0", begin_calls)
    time.sleep(0.5)
    os.kill(still, signal.SIGSTOP)
    time.sleep(2)
    began = time.monotonic()
    try: assert rpc.rpc_sync("w1", double, (3,), timeout=100) == 6
    finally: os.kill(still, signal.SIGCONT)
    took = time.monotonic() - began
    assert took < 18, took
    rpc.rpc_sync("w0", end_calls)
rpc.shutdown()
""",
        size=3,
        group=False,
        **LITTLE_ROOM,
    )


def test_a_burst_of_calls_waits_for_room_in_the_engines_memory(world):
    world.run(
        only_first(
            """
calls = [rpc.rpc_async("w1", double, (torch.full((5 << 19,), float(n)),)) for n in range(20)]
assert all((call.wait() == 2 * n).all() for n, call in enumerate(calls))
"""
        ),
        group=False,
        RENDEZ_ARENA_BYTES="64MiB",
        RENDEZ_ARENA_SEGMENT_BYTES="4MiB",
    )


def test_what_is_kept_of_a_workers_answers_keeps_it_from_no_other(world):
    """Read in place, they took all that it has for messages."""
    world.run(
        only_first(
            """
kept = [rpc.rpc_sync("w1", double, (torch.full((1 << 20,), float(n)),)) for n in range(40)]
assert all((one == 2 * n).all() for n, one in enumerate(kept))
"""
        ),
        group=False,
        RENDEZ_ARENA_BYTES="64MiB",
        RENDEZ_ARENA_SEGMENT_BYTES="4MiB",
    )


def test_a_worker_that_is_killed_fails_all_that_waits_for_it(world, path):
    outputs = world.run(
        BEGIN
        + """
import signal
if rank == 1:
    time.sleep(2)
    print(time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
futures = [rpc.rpc_async("w1", time.sleep, (60,)) for _ in range(5)]
for f in futures:
    try: f.wait(); raise SystemExit("no error")
    except RuntimeError as error: assert "w1" in str(error), error
print(time.monotonic(), flush=True)
try: rpc.rpc_sync("w1", double, (1,)); raise SystemExit("no error")
except RuntimeError as error: assert "w1" in str(error), error
rpc.shutdown(graceful=False)
""",
        group=False,
        expect=[0, -9],
        **path,
        **world.DETECTION,
    )
    world.told_in_time(outputs, killed=1)


def test_a_worker_that_has_shut_down_is_named(world, path):
    """The error said `Cleanup` and the number of a step."""
    world.run(
        BEGIN
        + """
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
assert rpc.rpc_sync(f"w{1 - rank}", double, (1,)) == 2
if rank == 1:
    store.wait(["called"])
    rpc.shutdown(graceful=False)
    store.set("down", "1"); store.wait(["over"])
else:
    store.set("called", "1"); store.wait(["down"])
    try: rpc.rpc_sync("w1", double, (1,)); raise SystemExit("no error")
    except RuntimeError as error: assert "w1 has shut down" in str(error) and "Cleanup" not in str(error), error
    store.set("over", "1"); rpc.shutdown(graceful=False)
os._exit(0)
""",
        group=False,
        **path,
    )


@pytest.mark.parametrize("end", ["time.sleep(0.5)", "os.kill(os.getpid(), 9)"])
def test_functions_that_wait_keep_no_response_from_another(world, end):
    """All threads of the pool run functions that wait for a response, or for the loss of who owes it."""
    dies = "kill" in end
    world.run(
        f"""
import torch.distributed.rpc as rpc
def slow(): {end}; return 1
def nested():
    try: return rpc.rpc_sync("w2", slow)
    except RuntimeError as error: assert "connection to w2" in str(error), error; return -1
options = rendez.torch.RendezRpcBackendOptions(num_worker_threads=2)
rpc.init_rpc(f"w{{rank}}", rank=rank, world_size=size, rpc_backend_options=options)
if rank == 1:
    said = [call.wait() for call in [rpc.rpc_async("w0", nested) for _ in range(4)]]
    assert said == [{-1 if dies else 1}] * 4, said
if {dies}: time.sleep(3); os._exit(0)
rpc.shutdown()
""",
        size=3,
        group=False,
        expect=[0, 0, -9 if dies else 0],
        timeout=60,
        **world.DETECTION,
    )


def test_backend_by_its_options_and_tensorpipe_beside_it(world):
    world.run(
        """
        import torch.distributed.rpc as rpc
        options = rendez.torch.RendezRpcBackendOptions(num_worker_threads=4, init_method="env://")
        rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, rpc_backend_options=options)
        assert type(rpc.api._get_current_rpc_agent()).__name__ == "RendezAgent"
        rpc.shutdown()
        """,
        group=False,
    )


@pytest.mark.parametrize(
    "call, says",
    [
        ("rendez.torch.RendezRpcBackendOptions(device_maps={'w1': {0: 0, 1: 0}})", "1-to-1"),
        ("rendez.torch.RendezRpcBackendOptions(device_maps={'w1': {'xpu': 0}})", "cuda devices"),
        ("rendez.torch.RendezRpcBackendOptions(devices=['cpu'])", "CUDA devices"),
        ("rendez.torch.RendezRpcBackendOptions(num_worker_threads=0)", "num_worker_threads"),
        ("begin_with({'w0': {99: 0}})", "invalid"),
        ("rpc.init_rpc('w0', backend='RENDEZ', rank=0, world_size=1)", "BackendType"),
    ],
)
def test_what_is_unavailable_is_refused_by_name(world, call, says):
    world.run(
        f"""
        import torch.distributed.rpc as rpc
        def begin_with(maps):
            options = rendez.torch.RendezRpcBackendOptions(device_maps=maps)
            rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)
        try: {call}; raise SystemExit("no error")
        except (ValueError, TypeError, RuntimeError) as error: assert {says!r} in str(error), error
        """,
        size=1,
        group=False,
    )


def test_workers_begin_though_a_mailbox_is_full(world):
    """Each asks all others for their first message in a row, and failed unless its engine kept up."""
    world.run(
        """
        import torch.distributed.rpc as rpc
        for _ in range(5):
            rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, backend=rpc.BackendType.RENDEZ)
            rpc.shutdown()
        """,
        size=4,
        group=False,
        RENDEZ_MAILBOX="2",
        timeout=100,
    )


DYNAMIC = """
import torch.distributed.rpc as rpc
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]) + 1, None, rank == 0, wait_for_workers=False)
options = rpc.backend_registry.construct_rpc_backend_options(
    rpc.BackendType.RENDEZ, init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}")

def join(name, rank):
    rpc.init_rpc(name, rank=rank, backend=rpc.BackendType.RENDEZ, rpc_backend_options=options)

def names():
    return sorted(worker.name for worker in rpc.api._get_current_rpc_agent().get_worker_infos())
"""


def test_a_worker_is_called_as_soon_as_it_is_known(world, path):
    world.run(
        DYNAMIC
        + """
import threading
sums = []

def call(worker):
    while len(sums) < 4:
        try: sums.append(rpc.rpc_sync(worker, torch.add, args=(torch.ones(2), 1)).sum().item())
        except RuntimeError as error: assert "Unknown destination" in str(error), error

if rank == 0:
    join("first", 0)
    threads = [threading.Thread(target=call, args=(rpc.WorkerInfo("second", 1),)) for _ in range(4)]
    [thread.start() for thread in threads]
    store.set("first", "1")
    [thread.join() for thread in threads]
    assert set(sums) == {4}, sums
    store.set("done", "1")
    store.wait(["gone"])
    rpc.shutdown()
else:
    store.wait(["first"])
    join("second", 1)
    store.wait(["done"])
    rpc.shutdown()
    store.set("gone", "1")
""",
        group=False,
        **path,
    )


def test_workers_join_and_leave(world, path):
    """A dynamic group: the second worker joins later, leaves, and another takes its rank."""
    world.run(
        DYNAMIC
        + """
def fails(work, text):
    try:
        work()
    except Exception as error:
        assert text in str(error), error
    else:
        raise SystemExit(f"it worked, and should have said {text}")

if rank == 0:
    join("first", 0)
    assert names() == ["first"], names()
    store.set("first", "1")
    store.wait(["second"])
    assert names() == ["first", "second"], names()
    assert rpc.rpc_sync("second", torch.add, args=(torch.ones(1 << 18), 1)).sum() == 2 << 18
    rref = rpc.remote("second", torch.mul, args=(torch.ones(3), 3))
    assert rref.to_here().sum() == 9
    del rref
    store.set("leave", "1")
    store.wait(["left"])
    assert names() == ["first"], names()
    fails(lambda: rpc.rpc_sync("second", torch.add, args=(1, 1)), "could not find destination")
    store.set("third", "1")
    store.wait(["joined"])
    assert names() == ["first", "third"], names()
    assert rpc.rpc_sync("third", torch.add, args=(torch.ones(2), 1)).sum() == 4
    store.set("done", "1")
    store.wait(["gone"])
    rpc.shutdown()
elif rank == 1:
    store.wait(["first"])
    join("second", 1)
    assert names() == ["first", "second"], names()
    assert rpc.rpc_sync("first", names) == ["first", "second"]
    store.set("second", "1")
    store.wait(["leave"])
    rpc.shutdown()
    store.set("left", "1")
else:
    store.wait(["third"])
    join("third", 1)
    store.set("joined", "1")
    store.wait(["done"])
    rpc.shutdown()
    store.set("gone", "1")
""",
        size=3,
        group=False,
        **path,
    )


def test_a_worker_may_have_any_name_that_torch_takes(world):
    """The step that all agree on lay in the store under this one, and who came later took a card for it."""
    world.run(
        DYNAMIC
        + """
if rank == 0:
    join("step", 0)
    store.set("first", "1")
    store.wait(["gone"])
    rpc.shutdown()
else:
    store.wait(["first"])
    join("second", 1)
    assert rpc.rpc_sync("step", names) == ["second", "step"]
    rpc.shutdown()
    store.set("gone", "1")
""",
        group=False,
        timeout=60,
    )


def test_a_worker_that_dies_keeps_none_from_joining_and_leaving(world, path):
    """A worker that loses it says so in the store. Another may take its rank, or its name."""
    world.run(
        DYNAMIC
        + """
import signal

def listed():
    port = int(os.environ["MASTER_PORT"])
    cards = dist.PrefixStore("rpc_prefix_0/names", dist.TCPStore("127.0.0.1", port, None, False))
    return sorted(cards.get("workers").decode().split("\\n")[:-1])

if rank == 0:
    join("first", 0)
    store.set("first", "1")
    store.wait(["third"])
    # It joined when the second was dead, and was not listed with it.
    assert listed() == ["0 first", "2 third"], listed()
    store.set("again", "1")
    store.wait(["fourth"])
    assert names() == ["first", "fourth", "third"], names()
    assert rpc.rpc_sync("fourth", os.getpid) == int(store.get("fourth"))
    try: rpc.rpc_sync("second", os.getpid); raise SystemExit("it is known")
    except RuntimeError as error: assert "could not find destination" in str(error), error
    store.set("leave", "1")
    store.wait(["left"])
    assert names() == ["first", "fourth"], names()
    store.set("done", "1")
    store.wait(["gone"])
    rpc.shutdown()
elif rank == 1:
    store.wait(["first"])
    join("second", 1)
    store.set("second", "1")
    os.kill(os.getpid(), signal.SIGKILL)
elif rank == 2:
    store.wait(["second"])
    join("third", 2)
    store.set("third", "1")
    store.wait(["leave"])
    rpc.shutdown()
    store.set("left", "1")
else:
    store.wait(["again"])
    join("fourth", 1)
    assert names() == ["first", "fourth", "third"], names()
    store.set("fourth", str(os.getpid()))
    store.wait(["done"])
    rpc.shutdown()
    store.set("gone", "1")
""",
        size=4,
        group=False,
        timeout=100,
        expect=[0, -9, 0, 0],
        **path,
        **world.DETECTION,
    )


# How long a worker that has the turn may say nothing.
TURNS = """
from rendez.torch import _rpc
_rpc._BEAT, _rpc._SILENCE = 0.05, 0.5
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, rank == 0, wait_for_workers=False)
"""


def test_a_worker_that_dies_in_its_turn_keeps_it_from_no_other(world):
    """Each later try to join or to leave failed."""
    world.run(
        TURNS
        + """
import signal
if rank == 1:
    with _rpc._turn(store, "second joins", 10):
        store.set("begun", "1")
        os.kill(os.getpid(), signal.SIGKILL)
store.wait(["begun"])
with _rpc._turn(store, "first leaves", 10): assert b"first leaves" in store.get("turn"), store.get("turn")
assert store.get("turn") == b"", store.get("turn")
""",
        group=False,
        timeout=60,
        expect=[0, -9],
    )


def test_a_worker_that_dies_before_it_says_what_changes_keeps_no_other_from_it(world):
    """It had counted the change that it was about to tell, and all waited for it for ever."""
    world.run(
        DYNAMIC
        + """
if rank == 0:
    join("first", 0)
    store.set("first", "1")
    store.wait(["second"])
    assert rpc.rpc_sync("second", names) == ["first", "second"]
    store.set("leave", "1")
    rpc.shutdown()
else:
    store.wait(["first"])
    port = int(os.environ["MASTER_PORT"])
    changes = dist.PrefixStore("rpc_prefix_0/names", dist.TCPStore("127.0.0.1", port, None, False))
    changes.add("changes", 1)
    join("second", 1)
    store.set("second", "1")
    store.wait(["leave"])
    changes.add("changes", 1)
    rpc.shutdown()
""",
        group=False,
        timeout=50,
    )


def test_a_worker_that_takes_long_keeps_its_turn(world):
    world.run(
        TURNS
        + """
_rpc._SILENCE = 3.0
if rank == 1:
    with _rpc._turn(store, "second joins", 10):
        store.set("begun", "1")
        time.sleep(4.0)
        store.set("over", "1")
    store.set("done", "1")
else:
    store.wait(["begun"])
    with _rpc._turn(store, "first leaves", 10): assert store.check(["over"])
    store.wait(["done"])
""",
        group=False,
        timeout=60,
    )


@pytest.mark.parametrize("unreachable", ["second", "first"])
@pytest.mark.parametrize("listens", ["", "0.0.0.0:5"])
def test_a_worker_that_cannot_join_spoils_the_group_for_no_other(world, unreachable, listens):
    """The newcomer cannot be reached by the member, or cannot reach it."""
    world.run(
        DYNAMIC
        + f"""
def spoil(name):
    # From here on a process of another machine, which listens nowhere, or everywhere: that says of no machine.
    card = cards.get(name)
    task, _, _, _, life, _ = card.decode().split("\\n")
    cards.set(name, "\\n".join([task, "", "{listens}", "far", life, ""]))
    return card

if rank == 0:
    join("first", 0)
    store.set("first", "1")
    store.wait(["done"])
    assert [worker.name for worker in rpc.api._get_current_rpc_agent().get_worker_infos()] == ["first"]
    rpc.shutdown()
elif rank == 1:
    store.wait(["first"])
    port = int(os.environ["MASTER_PORT"])
    cards = dist.PrefixStore("rpc_prefix_0/cards", dist.TCPStore("127.0.0.1", port, None, False))
    begin = rpc.api._init_rpc_states
    def begin_and_spoil(agent): begin(agent); spoil("second")
    if "{unreachable}" == "first": card = spoil("first")
    else: rpc.api._init_rpc_states = begin_and_spoil
    try: join("second", 1); raise SystemExit("it joined")
    except RuntimeError as error: assert "no way to reach" in str(error), error
    assert not rpc.api._is_current_rpc_agent_set()
    if "{unreachable}" == "first": cards.set("first", card)
    store.set("failed", "1")
    store.wait(["done"])
else:
    store.wait(["failed"])
    join("third", 2)
    assert rpc.rpc_sync("first", torch.add, args=(torch.ones(2), 1)).sum() == 4
    rpc.shutdown()
    store.set("done", "1")
""",
        size=3,
        group=False,
        timeout=100,
    )


@pytest.mark.parametrize("bound", [0, 1])
def test_a_worker_that_waits_for_its_last_call_keeps_nothing_from_others(world, bound):
    """A function of it does not end. With a bound it leaves without that, and else when it has ended."""
    world.run(
        DYNAMIC
        + f"""
import threading
FUTURE = torch.futures.Future()
@rpc.functions.async_execution
def never(): return FUTURE

if rank == 0:
    join("first", 0)
    store.set("first", "1")
    store.wait(["second"])
    try: rpc.rpc_sync("second", never, timeout=0.5); raise SystemExit("no error")
    except RuntimeError as error: assert "RPC ran for more than" in str(error), error
    store.set("called", "1")
    store.wait(["done"])
    rpc.shutdown()
elif rank == 1:
    store.wait(["first"])
    join("second", 1)
    store.set("second", "1")
    store.wait(["called"])
    agent = rpc.api._get_current_rpc_agent()
    while agent.get_metrics()["agent.server_active_calls"] == "0": time.sleep(0.01)
    del agent
    thread = threading.Thread(target=rpc.shutdown, kwargs=dict(timeout={bound}))
    thread.start()
    store.set("leaving", "1")
    if {bound} == 0: store.wait(["done"]); FUTURE.set_result(1)
    thread.join()
    if {bound}: FUTURE.set_result(1)
    store.set("left", "1")
else:
    store.wait(["leaving" if {bound} == 0 else "left"])
    join("third", 2)
    assert rpc.rpc_sync("first", torch.add, args=(torch.ones(2), 1)).sum() == 4
    rpc.shutdown()
    store.set("done", "1")
""",
        size=3,
        group=False,
        timeout=100,
    )


def test_the_bound_of_calls_is_none_of_joining_and_leaving(world):
    """There may be none of calls. Leaving failed, and cut off what was under way."""
    world.run(
        DYNAMIC
        + """
if rank == 0:
    join("first", 0)
    store.set("first", "1")
    store.wait(["gone"])
    assert names() == ["first"], names()
    rpc.shutdown()
else:
    store.wait(["first"])
    join("second", 1)
    rpc._set_rpc_timeout(0)
    late = rpc.rpc_async("first", time.sleep, (1,), timeout=20)
    rpc.shutdown()
    late.wait()
    store.set("gone", "1")
""",
        group=False,
        timeout=60,
    )


def test_device_maps_that_cannot_be_are_refused_on_every_worker(world):
    """Also on those that read them from the store of the one that is refused first."""
    world.run(
        """
        import torch.distributed.rpc as rpc
        options = rendez.torch.RendezRpcBackendOptions(device_maps={"w0": {99: 0}} if rank == 0 else None)
        try:
            rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, rpc_backend_options=options)
            raise SystemExit("no error")
        except ValueError as error:
            assert "invalid" in str(error) and "w0" in str(error), error
        """,
        size=3,
        group=False,
    )
