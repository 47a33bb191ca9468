"""`rendez.torch.checkpoint`: what some processes save is what others load, in other numbers and layouts."""

import array
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import textwrap

import pytest
from conftest import since

from rendez.__main__ import find

#: What all processes here share: two groups of processes, and a state that is known everywhere.
COMMON = """
import warnings
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
import rendez
from rendez.__main__ import find
from rendez.torch.checkpoint import Holder, Place, RendezReader, RendezWriter

warnings.filterwarnings("ignore", message="torch.distributed is disabled")
warnings.filterwarnings("ignore", message="torch.distributed is unavailable")
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, rank == 0, wait_for_workers=False)
BACKEND = os.environ.get("BACKEND", "rendez")

def join(name, ranks):
    # One group for each kind of process, all over one store.
    if rank in ranks:
        dist.init_process_group(BACKEND, store=dist.PrefixStore(name, store), rank=ranks.index(rank),
                                world_size=len(ranks))

def tell(name, value="1"):
    store.set(name, str(value))

def told(name):
    return store.get(name).decode()

def model(seed):
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(17, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5))
    return made

def trained(net, seed=3):
    # Two steps, so that the optimizer has a state.
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for step in range(2):
        torch.manual_seed(seed + step)
        net(torch.randn(8, 17)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer

def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value

def same(a, b):
    assert a.keys() == b.keys(), (a.keys(), b.keys())
    for key in a:
        x, y = whole(a[key]), whole(b[key])
        assert x.dtype == y.dtype and torch.equal(x, y), key
"""


def script(text):
    return COMMON + textwrap.dedent(text)


def test_sharded_by_two_loaded_by_two_and_by_one(world, path):
    """FSDP2's state of a model and its optimizer, saved by two ranks; loaded by two that shard it otherwise, and by
    one without a group."""
    world.run(
        script("""
        savers, loaders = [0, 1], [2, 3]
        join("save", savers)
        join("load", loaders)
        if rank in savers:
            net = model(1)
            fully_shard(net[0]); fully_shard(net)
            optimizer = trained(net)
            weights, optim = get_state_dict(net, optimizer)
            writer = RendezWriter("trained")
            dcp.save({"model": weights, "optim": optim, "epoch": 7}, storage_writer=writer)
            full = {key: whole(value).clone() for key, value in weights.items()}
            if rank == 0:
                torch.save(full, store_path := os.environ["FOLDER"] + "/full")
                tell("place", writer.place)
            for other in range(2, 5):
                told(f"loaded {other}")
        elif rank in loaders:
            net = model(2)
            fully_shard(net)
            optimizer = trained(net, 50)
            weights, optim = get_state_dict(net, optimizer)
            state = {"model": weights, "optim": optim, "epoch": 0}
            dcp.load(state, storage_reader=RendezReader(told("place"), allow_pickle=False))
            set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
            assert state["epoch"] == 7
            same(net.state_dict(), torch.load(os.environ["FOLDER"] + "/full"))
            moments = optimizer.state_dict()["state"]
            assert all(int(whole(one["step"])) == 2 for one in moments.values()), moments
            tell(f"loaded {rank}")
        else:
            net = model(2)
            state = {"model": net.state_dict()}
            dcp.load(state, storage_reader=RendezReader(told("place"), checkpoint_id="trained"))
            same(state["model"], torch.load(os.environ["FOLDER"] + "/full"))
            tell(f"loaded {rank}")
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
        """),
        size=5,
        group=False,
        FOLDER=str(world.folder),
        **path,
    )


def test_the_settings_file_says_how_others_are_reached(world):
    """As variables do: TCP that was demanded there was found to be no way to a task of this machine."""
    file = world.folder / "rendez.toml"
    file.write_text('require = "tcp"\nlisten = "127.0.0.1:0"\n')
    world.run(
        script("""
        join("all", [0, 1])
        dist.barrier()
        if rank == 0:
            writer = RendezWriter("trained")
            dcp.save({"x": torch.arange(9)}, storage_writer=writer, no_dist=True)
            tell("place", writer.place)
        else:
            state = {"x": torch.zeros(9, dtype=torch.int64)}
            dcp.load(state, storage_reader=RendezReader(told("place"), patience=20), no_dist=True)
            assert torch.equal(state["x"], torch.arange(9))
        dist.barrier()
        dist.destroy_process_group()
        """),
        SECONDS="20",
        group=False,
        timeout=60,
        RENDEZ_CONFIG_FILE=str(file),
    )


def test_dtensors_of_every_layout_and_type(world):
    """Shards along either dimension and uneven ones, by gloo; types that rendez has not, scalars and empty tensors."""
    world.run(
        script("""
        join("all", list(range(size)))
        mesh = init_device_mesh("cpu", (size,))
        torch.manual_seed(0)
        kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.uint16,
                 torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]
        values = {str(kind): (torch.randn(7, 10) * 9).to(kind) for kind in kinds}
        values["scalar"], values["empty"] = torch.tensor(2.5), torch.zeros(0, 3)
        values["view"] = torch.randn(12, 12).t()[1:9, ::2]

        def state(fill, layout):
            made = {key: (value.clone() if fill else torch.zeros_like(value)) for key, value in values.items()}
            made["spread"] = distribute_tensor(torch.arange(7 * 10.0).reshape(7, 10) * fill, mesh, layout)
            made["nested"] = [{"x": torch.ones(3) * fill}, "text" if fill else ""]
            return made

        writer = RendezWriter()
        dcp.save(state(1, [Shard(0)]), storage_writer=writer)
        places = [None] * size
        dist.all_gather_object(places, str(writer.place))
        for layout in ([Shard(1)], [Replicate()], [Shard(0)]):
            got = state(0, layout)
            dcp.load(got, storage_reader=RendezReader(places[0]))
            for key, value in values.items():
                assert torch.equal(got[key].view(torch.uint8) if value.itemsize == 1 else got[key],
                                   value.view(torch.uint8) if value.itemsize == 1 else value), key
            assert torch.equal(whole(got["spread"]), torch.arange(70.0).reshape(7, 10)), layout
            assert torch.equal(got["nested"][0]["x"], torch.ones(3)) and got["nested"][1] == "text"
        dist.barrier()
        """),
        size=2,
        group=False,
        BACKEND="gloo",
    )


def test_async_saves_copy_once_and_keep_the_moment(world):
    """What is written to the state after `async_save` returned is not in the checkpoint, and staged tensors are the
    ones that are kept."""
    world.run(
        script("""
        join("all", [0, 1])
        mesh = init_device_mesh("cpu", (2,))
        weight = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
        plain = torch.ones(1000)
        writer = RendezWriter()
        for round in (1, 2, 3):
            before = sum(one["arena_in_use"] for one in writer.engine.stats())
            done = dcp.async_save({"w": weight, "p": plain}, storage_writer=writer, checkpoint_id=f"round {round}")
            weight.to_local().add_(1)
            plain.add_(1)
            done.result()
            assert writer._staged == {}
        place = [str(writer.place)]
        dist.broadcast_object_list(place, 0)
        state = {"w": distribute_tensor(torch.zeros(8, 4), mesh, [Shard(1)]), "p": torch.zeros(1000)}
        dcp.load(state, storage_reader=RendezReader(place[0]), checkpoint_id="round 3")
        assert torch.equal(whole(state["w"]), torch.full((8, 4), 3.0)), whole(state["w"])
        assert torch.equal(state["p"], torch.full((1000,), 3.0))
        if rank == 0:
            assert Holder.of(writer.engine).checkpoints == ["round 3"]
        dist.barrier()
        """),
        size=2,
        group=False,
        BACKEND="cpu:rendez",
    )


@since((2, 12), "no reason is told why a checkpoint cannot be read")
def test_a_holder_outlives_its_writers(world):
    world.run(
        script("""
        if rank == 2:
            holder = Holder(keep=2)
            tell("holder", holder.place)
            told("saved"); told("loaded")
            tell("heard")
            assert holder.checkpoints == ["two", "three"]
            holder.drop("two")
            assert holder.checkpoints == ["three"]
            # Of a writer that died.
            from rendez.torch.checkpoint._holder import bytes_held
            holder.begin("number", "four")
            holder.put("number", bytes_held(holder.engine, b"four"))
            assert (holder.checkpoints, holder.unfinished) == (["three"], ["four"])
            holder.drop("four")
            assert (holder.checkpoints, holder.unfinished) == (["three"], [])
            try:
                holder.drop("two")
                raise SystemExit("it was there")
            except rendez.NotFound as error:
                assert error.reason == "CHECKPOINT_UNKNOWN" and "'three'" in str(error)
        elif rank < 2:
            join("save", [0, 1])
            mesh = init_device_mesh("cpu", (2,))
            for number, name in enumerate(["one", "two", "three"]):
                state = {"w": distribute_tensor(torch.arange(1 << 20) * number, mesh, [Shard(0)]), "n": number}
                dcp.save(state, checkpoint_id=name, storage_writer=RendezWriter(to=told("holder")))
            dist.barrier()
            dist.destroy_process_group()
            if rank == 0:
                rendez.torch._end()
                tell("saved")
                # The store lives here.
                told("heard")
        else:
            told("saved")
            for number, name in ((1, "two"), (2, "three"), (2, None)):
                state = {"w": torch.zeros(1 << 20, dtype=torch.int64), "n": 0}
                dcp.load(state, storage_reader=RendezReader(told("holder"), checkpoint_id=name))
                assert torch.equal(state["w"], torch.arange(1 << 20) * number) and state["n"] == number
            tell("loaded")
        """),
        size=4,
        group=False,
    )


@since((2, 12), "no reason is told why a checkpoint cannot be read")
def test_errors_say_what_is_wrong(world):
    world.run(
        script("""
        import pickle
        class Odd:
            def __eq__(self, other):
                return isinstance(other, Odd)
        sys.modules["__main__"].Odd = Odd

        def fails(work, *texts):
            try:
                work()
            # torch's CheckpointException is none of Exception's.
            except BaseException as error:
                said = str(error)
                assert all(text in said for text in texts), said
                return error
            raise SystemExit(f"it worked, and should have said {texts}")

        if rank == 0:
            writer = RendezWriter("odd")
            dcp.save({"odd": Odd(), "w": torch.ones(3)}, storage_writer=writer)
            tell("place", writer.place)
            # What has no place in a checkpoint.
            sparse = {"s": torch.eye(3).to_sparse()}
            fails(lambda: dcp.save(sparse, storage_writer=writer), "CHECKPOINT_UNSUPPORTED", "to_dense")
            fails(lambda: dcp.save({"w": torch.ones(1)}, storage_writer=writer, checkpoint_id="a/b"), "without slashes")
            fails(lambda: pickle.dumps(writer), "CHECKPOINT_UNSUPPORTED")
            assert Holder.of(writer.engine).checkpoints == ["odd"]
            told("done")
        else:
            place = told("place")
            def load(state, **options):
                dcp.load(state, storage_reader=RendezReader(place, patience=2, **options))
            fails(lambda: load({"odd": None}), "CHECKPOINT_PICKLE", "allow_pickle=True")
            state = {"odd": None, "w": torch.zeros(3)}
            load(state, allow_pickle=True)
            assert state["odd"] == Odd() and state["w"].sum() == 3
            fails(lambda: load({"w": torch.zeros(3)}, checkpoint_id="even"), "CHECKPOINT_UNKNOWN", "'even'", "'odd'")
            fails(lambda: load({"v": torch.zeros(3)}), "Missing key")
            fails(lambda: load({"w": torch.zeros(4)}), "Size mismatch")
            absent = lambda: dcp.load({}, storage_reader=RendezReader("/job:none/task:0", patience=1))
            fails(absent, "PEER_UNKNOWN", "/job:none")
            # A holder judges what it is asked for, whoever asks.
            engine = RendezReader(place).engine
            for everywhere in ("0.0.0.0:5", "[::]:5"):
                far = Place("/job:far/replica:0/task:0", "unix:@far", everywhere, "far")
                fails(lambda: far.told(engine), everywhere, "`listen`")
            task = Place.parse(place).told(engine)
            for method, payload in ((56, b""), (57, b"[]"), (57, b'{"items": [[1]]}'), (57, b'{"items": 3}'),
                                    (58, b'{"save": 3, "name": "/"}'), (59, b'{"items": [["nothing", [1]]]}'),
                                    (60, b"{}"), (57, b'{"save": "x", "items": [[1, null, null]]}')):
                error = fails(lambda: engine._call(task, method, payload), task)
                assert isinstance(error, rendez.RendezError) and error.reason in (
                    "CHECKPOINT_MALFORMED", "CHECKPOINT_UNKNOWN", "PYTHON_ARGUMENT"), (method, payload, error)
            tell("done")
        """),
        size=2,
        group=False,
    )


@since((2, 12), "no reason is told why a checkpoint cannot be read")
def test_a_holder_that_dies_is_named(world):
    """Killed while another loads, and before: the loader has an exception that names it."""
    world.run(
        script("""
        import signal, threading
        if rank == 1:
            writer = RendezWriter()
            dcp.save({str(n): torch.full((1 << 20,), float(n)) for n in range(8)}, storage_writer=writer)
            tell("place", writer.place)
            tell("task", writer.engine.task)
            told("half")
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            place, task = told("place"), told("task")
            reader = RendezReader(place, patience=20)

            class Planner(dcp.DefaultLoadPlanner):
                # The holder is killed when half of it came, and nothing more is asked of it before.
                count = 0
                def commit_tensor(self, item, tensor):
                    super().commit_tensor(item, tensor)
                    self.count += 1
                    if self.count == 4:
                        tell("half")
                        while True:
                            try:
                                reader.engine._call(task, 1, b"x", timeout=0.2)
                            except rendez.RendezError:
                                break

            import rendez.torch.checkpoint._words as words
            words.PIECES = 2
            state = {str(n): torch.zeros(1 << 20) for n in range(8)}
            for attempt in range(2):
                try:
                    dcp.load(state, storage_reader=reader, planner=Planner())
                    raise SystemExit("it was loaded")
                except dcp.CheckpointException as error:
                    assert task in str(error), error
                    if attempt == 0:
                        kinds = [type(one[0]) for one in error.failures.values()]
                        assert all(issubclass(kind, ConnectionError) for kind in kinds), kinds
                # It may come again, and is waited for: not for long here.
                reader = RendezReader(place, patience=1)
        """),
        size=2,
        group=False,
        expect=[0, -9],
    )


def test_saves_of_other_groups_and_of_one_rank_alone_leave_a_checkpoint(world):
    """Each coordinator knows only its own. The ranks drop shards of it that it keeps no longer, and no others."""
    world.run(
        script("""
        join("all", [0, 1, 2])
        mesh = init_device_mesh("cpu", (3,))
        def state(fill):
            return {"w": distribute_tensor(torch.full((6, 4), float(fill)), mesh, [Shard(0)])}
        pair = dist.new_group([1, 2])
        dcp.save(state(1), storage_writer=RendezWriter("all"))
        place = [str(RendezWriter().place)]
        dist.broadcast_object_list(place, 0)
        mine = Holder.of()
        def saves():
            return sorted((save.name, len(save.items)) for save in mine._saves.values())

        if rank == 1:
            dcp.save({"v": torch.ones(5)}, storage_writer=RendezWriter("alone"), no_dist=True)
            assert saves() == [("all", 1), ("alone", 1)], saves()
        if rank:
            dcp.save({"v": torch.ones(5), "n": rank}, storage_writer=RendezWriter("pair"), process_group=pair)
        # A push or a save to this process, of the name of a checkpoint that it has a part of.
        mine.begin("pushed", "all")
        del mine._saves["pushed"]
        dist.barrier()
        got = state(0)
        dcp.load(got, storage_reader=RendezReader(place[0], checkpoint_id="all"))
        assert torch.equal(whole(got["w"]), torch.ones(6, 4)), whole(got["w"])
        dist.barrier()
        # What the coordinator keeps no longer goes: here when it saves the time after.
        for number in (2, 3, 4):
            dcp.save(state(number), storage_writer=RendezWriter("all"))
        dist.barrier()
        assert len([name for name, _ in saves() if name == "all"]) == (1 if rank == 0 else 2), saves()
        dist.barrier()
        dist.destroy_process_group()
        """),
        size=3,
        group=False,
    )


@since((2, 12), "no reason is told why a checkpoint cannot be saved")
def test_plans_that_are_used_again_are_refused(world):
    """They name the save that they were made for: the planner is refused, and so is the plan of another."""
    world.run(
        script("""
        join("all", [0, 1])
        mesh = init_device_mesh("cpu", (2,))
        state = {"w": distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])}

        def is_refused(planner, writer):
            try:
                dcp.save(state, storage_writer=writer, planner=planner)
            except dcp.CheckpointException as error:
                assert "CHECKPOINT_UNSUPPORTED" in str(error) and "enable_plan_caching" in str(error), error
                return
            raise SystemExit("it was saved")

        holder = Holder.of()
        for _ in range(2):
            is_refused(dcp.DefaultSavePlanner(enable_plan_caching=True), RendezWriter())
        assert not holder._saves, holder._saves

        class Cached(dcp.DefaultSavePlanner):
            kept = None
            def finish_plan(self, plan):
                Cached.kept = Cached.kept or super().finish_plan(plan)
                self.plan = Cached.kept
                return self.plan

        writer = RendezWriter()
        dcp.save(state, storage_writer=writer, planner=Cached())
        before = {number: len(save.items) for number, save in holder._saves.items()}
        is_refused(Cached(), writer)
        assert {number: len(save.items) for number, save in holder._saves.items()} == before
        dcp.save(state, storage_writer=writer)
        dist.barrier()
        dist.destroy_process_group()
        """),
        size=2,
        group=False,
    )


def test_a_pull_that_fails_keeps_nothing(world):
    world.run(
        script("""
        from rendez.torch.checkpoint import _files, _pieces
        if rank == 1:
            writer = RendezWriter()
            dcp.save({str(n): torch.full((1 << 18,), float(n)) for n in range(4)}, storage_writer=writer)
            _pieces.Digest.text = lambda self: "0" * 64
            tell("place", writer.place)
            told("failed")
            tell("heard")
        else:
            holder = Holder()
            task = Place.parse(told("place")).told(holder.engine)
            def in_use():
                return sum(one["arena_in_use"] for one in holder.engine.stats())
            before = in_use()
            for _ in range(3):
                try:
                    holder.pull(task, patience=30)
                    raise SystemExit("it was taken")
                except rendez.DataLoss:
                    pass
                assert holder._saves == {} and holder.checkpoints == [], holder._saves
            # The last values go with the connection's buffers.
            until = time.monotonic() + 30
            while in_use() > before and time.monotonic() < until:
                time.sleep(0.05)
            assert in_use() <= before, (before, in_use())
            tell("failed")
            told("heard")
        """),
        size=2,
        group=False,
    )


def command():
    """The command `rendez`: RENDEZ_COMMAND, what this repository has built, or the one that came with the wheel."""
    target = pathlib.Path(__file__).parents[3] / "target"
    for found in (os.environ.get("RENDEZ_COMMAND"), target / "release/rendez", target / "debug/rendez"):
        if found and pathlib.Path(found).exists():
            return str(found)
    return find() or pytest.skip("there is no command `rendez`: cargo build, or RENDEZ_COMMAND=…")


def safetensors(path, tensors):
    """Writes a file of weights by hand: names, safetensors' types, shapes and bytes."""
    header, data = {"__metadata__": {"made": "by a test"}}, b""
    for name, (kind, shape, content) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def ports(count):
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [sock.getsockname()[1] for sock in socks]
    finally:
        [sock.close() for sock in socks]


def run_command(*arguments):
    return subprocess.Popen(
        [command(), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ended(process):
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0, said
    return said


def test_what_the_command_pushes_is_a_flat_state(world):
    """`rendez push` to a task that loads, of one file and of a model in two, and by a holder for several processes."""
    half = bytes(range(256)) * 4
    safetensors(world.folder / "one.safetensors", {
        "a.weight": ("F32", [16, 16], half), "a.bias": ("BF16", [512], half), "f8": ("F8_E4M3", [32, 32], half),
        "scalar": ("I64", [], (7).to_bytes(8, "little")), "empty": ("F16", [0, 4], b""),
    })
    (world.folder / "two").mkdir()
    safetensors(world.folder / "two/model-1.safetensors", {"x": ("I32", [256], half)})
    safetensors(world.folder / "two/model-2.safetensors", {"y": ("U8", [4, 256], half)})
    index = {"metadata": {"total_size": 2048}, "weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}}
    (world.folder / "two/model.safetensors.index.json").write_text(json.dumps(index))
    a, b = ports(2)
    cluster = f"a=127.0.0.1:{a};b=127.0.0.1:{b}"
    pushes = [
        run_command("push", world.folder / name, "--to", "/job:b/task:0", "--cluster", cluster, "--job", "a", "--task",
                    "0", "--patience", "40s")
        for name in ["one.safetensors"]
    ]
    world.run(
        script("""
        engine = rendez.Engine("/job:b/task:0", listen=os.environ["B"])
        source = "/job:a/task:0"
        half = torch.tensor(list(range(256)) * 4, dtype=torch.uint8)
        state = {"a.weight": torch.zeros(16, 16), "a.bias": torch.zeros(512, dtype=torch.bfloat16),
                 "f8": torch.zeros(32, 32).to(torch.float8_e4m3fn), "scalar": torch.tensor(0),
                 "empty": torch.ones(0, 4).half()}
        dcp.load(state, storage_reader=RendezReader(source, address=os.environ["A"], engine=engine, patience=30))
        for name in ("a.weight", "a.bias", "f8"):
            assert torch.equal(state[name].flatten().view(torch.uint8), half), name
        assert state["scalar"] == 7
        # It is a checkpoint of this process's now, for others too.
        holder = Holder.of(engine)
        assert holder.checkpoints == ["one"], holder.checkpoints
        import subprocess
        push = subprocess.Popen(os.environ["SECOND"].split("|"))
        assert holder.pull(source, patience=30) == "two"
        assert push.wait(30) == 0
        flat = {"x": torch.zeros(256, dtype=torch.int32), "y": torch.zeros(4, 256, dtype=torch.uint8)}
        dcp.load(flat, storage_reader=RendezReader(holder.place, engine=engine, checkpoint_id="two"))
        assert torch.equal(flat["x"].view(torch.uint8), half) and torch.equal(flat["y"].flatten(), half)
        engine.close()
        """),
        size=1,
        group=False,
        A=f"127.0.0.1:{a}",
        B=f"127.0.0.1:{b}",
        SECOND="|".join([command(), "push", str(world.folder / "two"), "--to", "/job:b/task:0", "--cluster", cluster,
                         "--job", "a", "--task", "0", "--patience", "40s"]),
    )
    for push in pushes:
        assert "kept in no file there" in ended(push)


def test_the_command_pulls_what_was_saved(world):
    """`rendez pull` at the coordinator's task: shards of two ranks are one file of weights."""
    a, b = ports(2)
    out = world.folder / "pulled.safetensors"
    pull = run_command("pull", "--from", "/job:a/task:0", "--out", out, "--cluster",
                       f"a=127.0.0.1:{a};b=127.0.0.1:{b}", "--job", "b", "--task", "0", "--patience", "40s", "--json")
    world.run(
        script("""
        join("all", [0, 1])
        engine = rendez.Engine("/job:a/task:0", listen=os.environ["A"]) if rank == 0 else None
        mesh = init_device_mesh("cpu", (2,))
        writer = RendezWriter("step 3", engine=engine)
        state = {"model": {"w": distribute_tensor(torch.arange(35.0).reshape(7, 5), mesh, [Shard(0)]),
                           "b": torch.full((3,), 2, dtype=torch.int16), "f8": torch.ones(4).to(torch.float8_e5m2)},
                 "epoch": 9}
        dcp.save(state, storage_writer=writer)
        if rank == 0:
            until = time.monotonic() + 60
            while not os.path.exists(os.environ["OUT"]) and time.monotonic() < until:
                time.sleep(0.05)
        dist.barrier()
        """),
        size=2,
        group=False,
        BACKEND="gloo",
        A=f"127.0.0.1:{a}",
        OUT=str(out),
    )
    said = [json.loads(line) for line in ended(pull).splitlines() if line.startswith("{")]
    assert said[-1]["files"][0]["file"] == "step 3.safetensors" and said[-1]["is_written"], said
    content = out.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__")
    got = {}
    for name, about in header.items():
        begin, end = about["data_offsets"]
        got[name] = (about["dtype"], about["shape"], content[8 + size + begin : 8 + size + end])
    assert got == {
        "model.b": ("I16", [3], array.array("h", [2] * 3).tobytes()),
        "model.f8": ("F8_E5M2", [4], bytes([0x3C] * 4)),
        "model.w": ("F32", [7, 5], array.array("f", range(35)).tobytes()),
    }


def test_the_page_of_the_book(tmp_path):
    page = pathlib.Path(__file__).parents[2] / "book/howto/checkpoints.md"
    if not page.exists():
        pytest.skip("the book is not here")
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    program = tmp_path / "program.py"
    program.write_text("\n\n".join(blocks))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "['step 7']\n", done.stdout + done.stderr
