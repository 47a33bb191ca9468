"""`use_arena()`: torch's CPU tensors in the engine's memory, and results of calls that go from there uncopied."""

ARENA = """
from rendez.torch import arena_counts, use_arena

def live():
    return arena_counts()["blocks"]
"""


def test_tensors_come_and_go(world):
    world.run(
        ARENA
        + """
import copy, gc, pickle
before = torch.ones(1 << 20)
with use_arena():
    x = torch.empty(1 << 20)
    y = torch.arange(1 << 18) * 2
    small = torch.ones(10)
    assert live() >= 2, arena_counts()
    assert x.data_ptr() % 64 == 0
    grown = torch.ones(100_000)
    grown.resize_(200_000).fill_(3)
    assert grown.sum() == 600_000
after = torch.ones(1 << 20)
blocks = live()
# What lies there is a tensor as any other.
x.copy_(before)
assert torch.equal(x, after) and torch.equal(copy.deepcopy(y), torch.arange(1 << 18) * 2)
assert torch.equal(pickle.loads(pickle.dumps(x)), x) and (x.numpy() == 1).all()
net = torch.nn.Linear(1000, 1000)
with use_arena(1):
    out = net(torch.ones(8, 1000)).sum()
    out.backward()
    torch.empty(0)
assert net.weight.grad.shape == (1000, 1000) and live() > blocks
kept = arena_counts()["bytes"]
del x, y, grown, small, out
net.zero_grad()
gc.collect()
assert arena_counts()["bytes"] < kept
# What the engine has no room for lies where it used to: its segments are files in memory, which this bounds.
import resource
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
with use_arena():
    many = [torch.full((1 << 22,), float(n)) for n in range(4)]
assert all(one[-1] == n for n, one in enumerate(many))
assert arena_counts()["refused"] > 0, arena_counts()
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
del many
gc.collect()
with use_arena():
    again = torch.ones(1 << 20)
assert again.sum() == 1 << 20
for wrong in (0, -1, 1.5, "x"):
    try:
        use_arena(wrong)
    except ValueError as error:
        assert "bytes" in str(error)
    else:
        raise SystemExit(f"{wrong!r} was taken")
# A child has no engine: its tensors lie elsewhere, and it gives nothing back.
with use_arena():
    shared = torch.ones(1 << 20)
    child = os.fork()
    if child == 0:
        mine = torch.full((1 << 20,), 5.0)
        good = bool((mine == 5).all()) and bool((shared == 1).all())
        del mine, shared
        os._exit(0 if good else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert shared.sum() == 1 << 20
""",
        size=1,
        group=False,
        RENDEZ_ARENA_SEGMENT_BYTES="8MiB",
    )


def test_results_that_nobody_else_holds_are_not_copied(world):
    world.run(
        ARENA
        + """
import torch.distributed.rpc as rpc
held = []

def made(n):
    return torch.full((n,), 7.0)

def kept(n):
    held.append(torch.full((n,), 8.0))
    return held[-1]

def view(n):
    base = torch.arange(float(n))
    held.append(base[:10])
    return base

def lent():
    return arena_counts()["lent"]

def changed():
    held[0].zero_()

use_arena()
rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, backend=rpc.BackendType.RENDEZ)
if rank == 0:
    n = 1 << 20
    at = rpc.rpc_sync("w1", lent)
    got = rpc.rpc_sync("w1", made, args=(n,))
    assert torch.equal(got, torch.full((n,), 7.0))
    assert rpc.rpc_sync("w1", lent) == at + 1
    # It may be written here, and that is seen nowhere else.
    got.add_(1)
    assert torch.equal(rpc.rpc_sync("w1", made, args=(n,)), torch.full((n,), 7.0))
    at = rpc.rpc_sync("w1", lent)
    # What its owner still has is a copy: later writes of the owner's are not seen.
    got = rpc.rpc_sync("w1", kept, args=(n,))
    rpc.rpc_sync("w1", changed)
    assert torch.equal(got, torch.full((n,), 8.0))
    assert torch.equal(rpc.rpc_sync("w1", view, args=(n,)), torch.arange(float(n)))
    assert rpc.rpc_sync("w1", lent) == at
    # Blocks that were lent come back, and are used again.
    for _ in range(50):
        assert rpc.rpc_sync("w1", made, args=(n,))[-1] == 7
rpc.shutdown()
""",
        size=2,
        group=False,
    )


def test_messages_have_room_whatever_torch_keeps(world):
    world.run(
        ARENA
        + """
import torch.distributed.rpc as rpc
def double(x): return x * 2
with use_arena():
    kept = [torch.full((1 << 18,), float(n)) for n in range(100)]
counts = arena_counts()
assert counts["refused"] > 0 and counts["bytes"] <= 32 << 20, counts
x = torch.ones(1 << 20)
dist.all_reduce(x)
assert (x == 2).all()
rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, backend=rpc.BackendType.RENDEZ)
if rank == 0:
    assert (rpc.rpc_sync("w1", double, (x,)) == 4).all()
rpc.shutdown()
assert all(one[-1] == n for n, one in enumerate(kept))
dist.destroy_process_group()
""",
        SECONDS="20",
        RENDEZ_ARENA_BYTES="64MiB",
        RENDEZ_ARENA_SEGMENT_BYTES="4MiB",
    )


def test_collectives_and_ddp_over_it(world):
    world.run(
        ARENA
        + """
use_arena()
x = torch.full((1 << 20,), float(rank + 1))
dist.all_reduce(x)
assert torch.equal(x, torch.full((1 << 20,), 3.0))
torch.manual_seed(0)
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512))
for _ in range(3):
    net(torch.ones(16, 512) * (rank + 1)).sum().backward()
grads = [torch.empty_like(net.module.weight.grad) for _ in range(size)]
dist.all_gather(grads, net.module.weight.grad)
assert torch.equal(grads[0], grads[1]) and live() > 0
dist.destroy_process_group()
""",
        size=2,
    )


def test_an_allocator_that_it_cannot_stand_before_is_refused_and_no_more(world):
    """Each call that was refused had every later fork take one lock once more, and two of them hung there."""
    world.run(
        ARENA
        + """
import ctypes, signal
c10 = ctypes.CDLL("libc10.so")
get, set_ = c10._ZN3c1015GetCPUAllocatorEv, c10._ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh
get.restype = ctypes.c_void_p
# torch's own, but that it gives no deleter: its functions are two to destroy it, `allocate`, one that is unused here,
# `raw_deleter` and `copy_data`.
own = ctypes.cast(get(), ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))
without = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)
functions = (ctypes.c_void_p * 8)(*own[0][:6])
functions[4] = ctypes.cast(without, ctypes.c_void_p)
other = ctypes.pointer(ctypes.cast(functions, ctypes.c_void_p))
set_(ctypes.c_byte(0), other, ctypes.c_ubyte(1))
for _ in range(2):
    try: use_arena(); raise SystemExit("no error")
    except RuntimeError as error: assert "another allocator" in str(error), error
signal.alarm(20)
child = os.fork()
if child == 0: os._exit(0)
assert os.waitpid(child, 0)[1] == 0
os._exit(0)
""",
        size=1,
        group=False,
        timeout=60,
    )
