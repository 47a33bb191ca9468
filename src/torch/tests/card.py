"""PyTorch on a card: calls with device maps, autograd over them, and collectives of CUDA tensors. Run by
`scripts/gpu.sh`: `pytest src/torch/tests/card.py`, where torch has CUDA. One device is enough."""

import pytest
import torch

if not torch.backends.cuda.is_built():
    pytest.skip("PyTorch is built without CUDA", allow_module_level=True)

BEGIN = """
import torch.distributed.rpc as rpc, torch.distributed.autograd as autograd
OPTIONS = rendez.torch.RendezRpcBackendOptions()
def sum_(x, y): return x + y
def where(*tensors): return [str(one.device) for one in tensors]
def slow_double(x):
    # Kernels that are queued when this returns: the response comes behind them.
    for _ in range(50): x = x + torch.ones_like(x)
    return x - 50 + x - x - 50 + 50
def made(n, value): return torch.full((n,), value, device="cuda")
def to_host(x): return x.cpu()
def begin(*maps):
    for to, map_ in maps: OPTIONS.set_device_map(to, map_)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, rpc_backend_options=OPTIONS)
"""


def first(maps, body):
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return BEGIN + f"begin(*({maps} if rank == 0 else []))\nif rank == 0:\n{lines}\nrpc.shutdown()\n"


@pytest.mark.parametrize("mapped", ["by both", "by one"])
def test_calls_with_tensors_of_a_device(world, path, mapped):
    """Arguments go to the device that the map names, results come back, and streams are in order on both sides."""
    text = first(
        "[('w1', {0: 0})]",
        """
for n in (0, 1, 1000, 3_000_000):
    x = torch.arange(float(n), device="cuda")
    for _ in range(20): x = x + 1
    got = rpc.rpc_sync("w1", sum_, (x, torch.ones(n, device="cuda")))
    x.zero_()
    assert got.device == torch.device("cuda", 0) and got.device.type == "cuda"
    assert torch.equal(got, torch.arange(float(n), device="cuda") + 21), n
assert rpc.rpc_sync("w1", where, (torch.ones(3, device="cuda"), torch.ones(3))) == ["cuda:0", "cpu"]
x = torch.rand(1 << 20, device="cuda")
futures = [rpc.rpc_async("w1", slow_double, (x,)) for _ in range(8)]
assert all(torch.allclose(future.wait(), x, atol=1e-3) for future in futures)
a = torch.arange(6.0, device="cuda").view(2, 3)
assert torch.equal(rpc.rpc_sync("w1", sum_, (a.t(), a[0, 0])), a.t())
r = rpc.remote("w1", made, (1000, 3.0))
assert (r.to_here() == 3).all() and r.to_here().is_cuda
with autograd.context() as context:
    x = torch.ones(8, device="cuda", requires_grad=True)
    autograd.backward(context, [rpc.rpc_sync("w1", torch.mul, (x, torch.full((8,), 3.0, device="cuda"))).sum()])
    assert (autograd.get_gradients(context)[x] == 3).all()
""",
    )
    if mapped == "by both":
        text = text.replace("if rank == 0 else []", "if rank == 0 else [('w0', {0: 0})]")
    world.run(text, group=False, **path)


def test_a_map_between_a_device_and_the_host(world):
    world.run(
        first(
            "[('w1', {0: 'cpu', 'cpu': 0})]",
            """
x = torch.rand(100_000)
assert rpc.rpc_sync("w1", where, (x, x[:10].clone(), x.cuda())) == ["cuda:0", "cuda:0", "cpu"]
got = rpc.rpc_sync("w1", slow_double, (x,))
assert got.device.type == "cpu" and torch.allclose(got, x, atol=1e-3)
""",
        ),
        group=False,
    )


def test_what_has_no_device_there_is_told(world):
    world.run(
        first(
            "[('w1', {})]",
            """
def fails(says, call):
    try: call(); raise SystemExit("no error")
    except RuntimeError as error: assert says in str(error), error
x = torch.ones(3, device="cuda")
fails("Request device mapping is not available for destination w1", lambda: rpc.rpc_sync("w1", to_host, (x,)))
fails("Response device mapping is not available for destination w0", lambda: rpc.rpc_sync("w1", made, (3, 1.0)))
assert rpc.rpc_sync("w1", sum_, (1, 2)) == 3
""",
        ),
        group=False,
    )


def test_maps_that_cannot_be_are_refused(world):
    world.run(
        """
        import torch.distributed.rpc as rpc
        for map_, says in [({"w0": {99: 0}}, "invalid"), ({"w0": {0: 99}}, "invalid"), ({"w9": {0: 0}}, "target node")]:
            try:
                options = rendez.torch.RendezRpcBackendOptions(device_maps=map_)
                rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)
                raise SystemExit("no error")
            except ValueError as error:
                assert says in str(error), error
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
        """,
        size=1,
        group=False,
    )


def test_an_engine_without_devices_copies_by_the_host(world):
    world.run(
        first(
            "[('w1', {0: 0})]",
            """
x = torch.rand(100_000, device="cuda")
assert torch.equal(rpc.rpc_sync("w1", sum_, (x, x)), x + x)
""",
        ),
        group=False,
        RENDEZ_DEVICES="off",
    )


def test_collectives_of_cuda_tensors(world, path):
    world.run(
        """
        def told(value, n=1000):
            x = torch.full((n,), float(value), device="cuda")
            for _ in range(30): x = x + 1
            return x - 30
        for n in (1, 1000, 1_000_000):
            x = told(rank + 1, n)
            dist.all_reduce(x)
            assert (x == size * (size + 1) / 2).all() and x.is_cuda
            x = told(rank, n)
            dist.broadcast(x, 1)
            assert (x == 1).all()
            work = dist.all_reduce(y := told(1, n), async_op=True)
            work.wait()
            assert (y == size).all()
        many = [torch.empty(1000, device="cuda") for _ in range(size)]
        dist.all_gather(many, told(rank))
        assert all((one == at).all() for at, one in enumerate(many))
        one = torch.empty(1000, device="cuda")
        dist.reduce_scatter(one, [told(at) for at in range(size)])
        assert (one == size * rank).all()
        out = torch.empty(size, 4, device="cuda").t()
        given = told(rank, 4 * size).view(size, 4).t()
        dist.all_reduce(given)
        assert (given == size * (size - 1) / 2).all()
        outs, ins = [torch.empty(10, device="cuda") for _ in range(size)], [told(rank, 10) for _ in range(size)]
        dist.all_to_all(outs, ins)
        assert all((o == at).all() for at, o in enumerate(outs))
        if rank == 0:
            dist.send(told(7), 1)
        elif rank == 1:
            x = torch.empty(1000, device="cuda")
            dist.recv(x, 0)
            assert (x == 7).all()
        dist.barrier()
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
        model(torch.full((4, 8), float(rank), device="cuda")).sum().backward()
        grads = [torch.empty_like(model.module.weight.grad) for _ in range(size)]
        dist.all_gather(grads, model.module.weight.grad)
        assert torch.equal(grads[0], grads[1])
        """,
        **path,
    )
