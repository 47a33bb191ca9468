"""Tensors on devices, over a played driver: what other libraries lend, what they are lent, and when memory goes home."""

import asyncio
import collections
import ctypes
import gc
import multiprocessing
import threading
import time

import numpy as np
import pytest

import played
import rendez
from conftest import key_of, named
from rendez import rpc

SETTINGS = {
    "arena_segment_bytes": "4MiB",
    "stage_sampling": 0,
    "devices": "require",
    "device_library": played.PATH,
    "device_segment_bytes": "4MiB",
    "device_bytes": "32MiB",
    "device_pinned_bytes": "192KiB",
}


@pytest.fixture(scope="module")
def driver():
    return played.Driver()


@pytest.fixture
def pair(driver):
    """Two engines with devices, each of which reads the other's memory in place."""
    before, lent = driver.violations(), played.lent()
    with rendez.Engine(named("gone"), **SETTINGS) as left, rendez.Engine(named("here"), **SETTINGS) as right:
        left.add_peer(right.task, right.address)
        # Until the peer is known to see the device, values come by way of the processor's memory.
        probe = left.to(bytes(64), "cuda:0")
        key = key_of(left, right, "probe")

        def is_seen():
            left.send(key, probe)
            return right.recv(key, timeout=10).wait().device == "cuda:0"

        until(is_seen)
        probe.release()
        until(lambda: in_use(left) == 0)
        yield left, right
        until(lambda: played.lent() == lent)
    assert driver.violations() == before, "work met memory that is gone"


def until(is_so):
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        gc.collect()
        time.sleep(0.001)


def in_use(engine):
    return engine.devices()[0]["bytes_in_use"]


def view(driver, tensor, **asked):
    return played.View(driver, tensor.__dlpack__(**{"max_version": (1, 0), **asked}))


def values(count=5000, dtype="f4"):
    return np.arange(count).astype(dtype)


@pytest.mark.parametrize("how", ["dlpack", "before 1.0", "interface"])
@pytest.mark.parametrize("copy", [None, False])
def test_arrays_of_devices_arrive_on_devices(driver, pair, how, copy):
    left, right = pair
    for shape, dtype in [((5000,), "f4"), ((7, 3), "i8"), ((), "f8"), ((0, 4), "i2"), ((70000,), "?"), ((2, 2), "c16")]:
        sent = (values(int(np.prod(shape, dtype=int))) % 2).astype(dtype).reshape(shape)
        array = played.Array(driver, sent, versions=how != "before 1.0")
        given = played.CudaArray(array) if how == "interface" else array
        key = key_of(left, right, f"{shape}{dtype}")
        left.send(key, given, copy=copy)
        del array, given
        got = right.recv(key, timeout=10).wait()
        assert (got.shape, got.nbytes) == (shape, sent.nbytes)
        if sent.nbytes:
            assert (got.device, got.path) == ("cuda:0", "lease")
        seen = view(driver, got) if got.device != "cpu" else None
        if seen is not None:
            assert (seen.device, seen.shape, seen.flags) == ((2, 0), shape, 1)
            assert seen.bytes() == sent.tobytes()
            seen.let_go()
        np.testing.assert_array_equal(got.cpu().numpy(), sent)


class Refusing(np.ndarray):
    """As CuPy's and JAX's arrays: it has the buffer protocol, and refuses it, for it lies on a device."""

    @classmethod
    def of(cls, array):
        # NumPy lends no buffer of dates.
        made = np.zeros(1, "M8[s]").view(cls)
        made.array = array
        return made

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**asked)


def test_arrays_that_refuse_buffers_are_asked_by_dlpack(driver, pair):
    left, right = pair
    given = Refusing.of(played.Array(driver, values()))
    with pytest.raises(ValueError, match="buffer"):
        memoryview(given)
    key = key_of(left, right, "x")
    left.send(key, given)
    given.array = None
    got = right.recv(key, timeout=10).wait()
    assert (got.device, got.cpu().tolist()) == ("cuda:0", values().tolist())
    # One of the processor's is refused for its type.
    with pytest.raises(ValueError, match="no such type"):
        left.send(key, np.zeros(1, "M8[s]"))


def test_what_was_sent_may_be_written_at_once(driver, pair):
    left, right = pair
    sent = values()
    array = played.Array(driver, sent)
    key = key_of(left, right, "x")
    left.send(key, array)
    array.write(sent * 0)
    assert right.recv(key, timeout=10).wait().cpu().tolist() == sent.tolist()


def test_lent_memory_is_sent_before_it_is_there(driver, pair):
    left, _ = pair
    array = played.Array(driver, values())
    given = []
    driver.hold(array.stream)
    left.send(key_of(left, left, "x"), array, copy=False, on_release=lambda: given.append(1))
    got = left.recv(key_of(left, left, "x"), timeout=10).wait()
    # The consumer's stream waits for the producer's.
    mine = driver.stream()
    seen = view(driver, got, stream=mine)
    assert driver.pending(mine) > 0
    seen.let_go()
    got.release()
    time.sleep(0.05)
    assert not given, "work that reads it is still queued"
    driver.hold(array.stream, False)
    until(lambda: given)
    assert driver.pending(mine) == 0


def test_a_lease_goes_home_when_its_readers_stream_is_past_it(driver, pair):
    left, right = pair
    key = key_of(left, right, "x")
    left.send(key, played.Array(driver, values()))
    got = right.recv(key, timeout=10).wait()
    mine = driver.stream()
    seen = view(driver, got, stream=mine)
    driver.hold(mine)
    seen.let_go()
    got.release()
    time.sleep(0.05)
    assert in_use(left) > 0
    driver.hold(mine, False)
    until(lambda: in_use(left) == 0)


def test_copies_are_the_consumers_own(driver, pair):
    left, right = pair
    key = key_of(left, right, "x")
    sent = values()
    left.send(key, played.Array(driver, sent))
    got = right.recv(key, timeout=10).wait()
    own = view(driver, got, copy=True)
    assert own.flags == 2 and own.bytes() == sent.tobytes()
    assert own.data != view_of(driver, got)
    own.let_go()
    # A consumer on the processor gets a copy there, and none if it wants no copy.
    np.testing.assert_array_equal(np.from_dlpack(got, device="cpu"), sent)
    with pytest.raises(BufferError):
        got.__dlpack__(dl_device=(1, 0), copy=False)
    # Before 1.0 a consumer cannot be told that it is read only.
    with pytest.raises(BufferError, match="read only"):
        got.__dlpack__()
    assert played.View(driver, got.__dlpack__(copy=True)).let_go() is None


def view_of(driver, tensor):
    seen = view(driver, tensor)
    seen.let_go()
    return seen.data


def test_streams_are_named_as_the_protocol_has_it(driver, pair):
    left, _ = pair
    tensor = left.to(values(), "cuda:0")
    for stream in (None, -1, 1, 2, driver.stream()):
        seen = view(driver, tensor, stream=stream)
        assert seen.bytes() == values().tobytes()
        seen.let_go()
    for wrong in (0, -2, 2**70):
        with pytest.raises(BufferError, match="stream"):
            tensor.__dlpack__(stream=wrong)
    with pytest.raises(TypeError):
        tensor.__dlpack__(stream="mine")
    with pytest.raises(BufferError, match="2:1"):
        tensor.__dlpack__(dl_device=(2, 1))
    with pytest.raises(rendez.RendezError) as caught:
        tensor.__dlpack__(stream=driver.stream(1))
    assert caught.value.reason == "DEVICE_OTHER"


def test_the_interface_says_where_it_lies(driver, pair):
    left, right = pair
    key = key_of(left, right, "x")
    sent = values(24, "i4").reshape(2, 3, 4)
    left.send(key, played.Array(driver, sent))
    got = right.recv(key, timeout=10).wait()
    said = got.__cuda_array_interface__
    address, is_read_only = said["data"]
    assert is_read_only and (said["shape"], said["typestr"], said["stream"]) == ((2, 3, 4), "<i4", 1)
    assert driver.read(address, sent.nbytes) == sent.tobytes()
    assert got.reshape([24]).__cuda_array_interface__["shape"] == (24,)
    with pytest.raises(AttributeError, match="bf16"):
        left.to(values(4, "u2"), "cuda:0").recast("bf16").__cuda_array_interface__
    assert not hasattr(left.to(1.5, "cpu"), "__cuda_array_interface__")
    # What it shows can be sent on, and is nobody's copy.
    left.send(key_of(left, left, "y"), got)
    assert left.recv(key_of(left, left, "y"), timeout=10).wait().device == "cuda:0"


@pytest.fixture
def pinned(driver):
    """Memory that devices read."""
    raw = ctypes.create_string_buffer(values().tobytes(), values().nbytes)
    driver("cuMemHostRegister_v2", raw, ctypes.c_size_t(len(raw)), 1)
    yield raw
    driver("cuMemHostUnregister", raw)


@pytest.mark.parametrize("way", ["send", "freeze"])
def test_room_on_a_device_is_sent_where_it_lies(driver, pair, pinned, way):
    left, right = pair
    sent = values()
    room = left.empty(sent.shape, "f32", device="cuda:0")
    assert (room.device, room.dtype, room.shape, room.__dlpack_device__()) == ("cuda:0", "f32", sent.shape, (2, 0))
    mine, other = driver.stream(), driver.stream()
    driver.hold(mine)
    first, second = view(driver, room, stream=mine), played.View(driver, room.__dlpack__(stream=other))
    assert (first.flags, first.device, first.data) == (0, (2, 0), second.data)
    driver.write(first.data, pinned, mine)
    key = key_of(left, right, way)
    with pytest.raises(rendez.FailedPrecondition, match="views"):
        left.send(key, room)
    second.let_go()
    first.let_go()
    at = first.data
    left.send(key, room if way == "send" else room.freeze())
    assert (room.device, room.__dlpack_device__()) == ("cuda:0", (2, 0))
    got = right.recv(key, timeout=10).wait()
    assert (got.device, got.path) == ("cuda:0", "lease")
    theirs = driver.stream()
    seen = view(driver, got, stream=theirs)
    assert driver.pending(theirs) > 0, "it is not there yet"
    driver.hold(mine, False)
    until(lambda: driver.pending(theirs) == 0)
    assert seen.bytes() == sent.tobytes() == driver.read(at, sent.nbytes)
    seen.let_go()
    got.release()
    until(lambda: in_use(left) == 0)


def _dies_before_it_writes(task, reader, address, pipe):
    driver = played.Driver()
    engine = rendez.Engine(task, **SETTINGS)
    engine.add_peer(reader, address)
    pipe.send(engine.address)
    while pipe.recv() == "probe":
        engine.send((task, reader, "probe"), engine.to(bytes(64), "cuda:0"))
    room = engine.empty(5000, "f32", device="cuda:0")
    mine = driver.stream()
    driver.hold(mine)
    seen = view(driver, room, stream=mine)
    raw = ctypes.create_string_buffer(values().nbytes)
    driver("cuMemHostRegister_v2", raw, ctypes.c_size_t(len(raw)), 1)
    driver.write(seen.data, raw, mine)
    seen.let_go()
    engine.send((task, reader, "x"), room)
    pipe.recv()


def test_what_a_dead_process_had_not_written_is_lost_by_name(driver):
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    task = named("writer")
    with rendez.Engine(named("reader"), **SETTINGS) as engine:
        arguments = (task, engine.task, engine.address, theirs)
        process = spawn.Process(target=_dies_before_it_writes, args=arguments, daemon=True)
        process.start()
        assert ours.poll(60)
        engine.add_peer(task, ours.recv())

        def is_seen():
            ours.send("probe")
            return engine.recv((task, engine.task, "probe"), timeout=10).wait().device == "cuda:0"

        until(is_seen)
        ours.send("go")
        got = engine.recv((task, engine.task, "x"), timeout=10).wait()
        assert (got.device, got.path) == ("cuda:0", "lease")
        process.kill()
        process.join(60)
        ways = [
            lambda: engine.to(got, "cpu"),
            lambda: got.__dlpack__(max_version=(1, 0), dl_device=(1, 0)),
            lambda: engine.to(got, "cuda:1"),
        ]
        for way in ways:
            with pytest.raises(rendez.RendezError) as error:
                way()
            assert error.value.reason == "DEVICE_LOST"


def test_room_that_is_not_sent_goes_home_when_it_is_written(driver, pair, pinned):
    left, _ = pair
    room = left.empty(5000, "f32", device="cuda")
    mine = driver.stream()
    driver.hold(mine)
    seen = view(driver, room, stream=mine)
    driver.write(seen.data, pinned, mine)
    seen.let_go()
    room.release()
    time.sleep(0.05)
    assert in_use(left) > 0
    driver.hold(mine, False)
    until(lambda: in_use(left) == 0)


def test_room_on_a_device_is_no_memory_of_the_processor(driver, pair):
    left, _ = pair
    room = left.empty((4, 4), "i32", device="cuda:1")
    assert room.recast("f32").device == "cuda:1"
    for read in (lambda: memoryview(room), room.numpy, room.tolist):
        with pytest.raises(rendez.RendezError) as caught:
            read()
        assert caught.value.reason == "TENSOR_DEVICE"
    with pytest.raises(BufferError, match="not sent"):
        room.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="2:0"):
        room.__dlpack__(dl_device=(2, 0))
    with pytest.raises(rendez.RendezError) as caught:
        room.__dlpack__(stream=driver.stream(0))
    assert caught.value.reason == "DEVICE_OTHER"
    with pytest.raises(ValueError, match="pages"):
        left.empty(4, device="cuda", paged=True)
    for wrong, reason in [(9, "DEVICE_ORDINAL"), (0, "ARENA_UNFIT")]:
        with pytest.raises(rendez.RendezError) as caught:
            left.empty(2**30, device=f"cuda:{wrong}")
        assert caught.value.reason == reason


class Carrier:
    """What only pickle writes, with a tensor in it."""

    def __init__(self, tensor):
        self.tensor = tensor


def looked_at(tensor: rendez.Tensor) -> tuple[str, list[float]]:
    return (tensor.device, tensor.cpu().tolist())


def opened(carrier):
    return looked_at(carrier.tensor)


def test_what_a_call_brings_can_be_read(driver, pair):
    """Written plainly, by a signature, and beside a pickle."""
    from callees import at_once

    left, right = pair
    world = {"left": (left.task, left.address), "right": (right.task, right.address)}
    functions = {"looked/at": looked_at, "plainly": lambda tensor: looked_at(tensor), "opened": opened}
    agents = {}

    def begin(name, engine):
        agents[name] = rpc.Agent(engine, name, world=world, functions=functions, allow_pickle=True)

    at_once([lambda: begin("left", left), lambda: begin("right", right)])
    sent = left.to(values(), "cuda:0")
    for name, value in [("plainly", sent), ("looked/at", sent), ("opened", Carrier(sent))]:
        assert agents["left"].call("right", name, value) == ("cuda:0", values().tolist()), name
    at_once([lambda agent=agent: agent.shutdown(timeout=30) for agent in agents.values()])


def test_streams_that_wait_leave_others_free(driver, pair):
    """What is lent behind work that does not end holds up no other value, and no lane."""
    left, _ = pair
    array = played.Array(driver, values())
    driver.hold(array.stream)
    for round in range(3):
        left.send(key_of(left, left, f"x{round}"), array, copy=False)
    free = played.Array(driver, values())
    left.send(key_of(left, left, "y"), free)
    assert left.recv(key_of(left, left, "y"), timeout=10).wait().cpu().tolist() == values().tolist()
    driver.hold(array.stream, False)
    for round in range(3):
        assert left.recv(key_of(left, left, f"x{round}"), timeout=10).wait().cpu().tolist() == values().tolist()


def test_devices_are_listed(driver, pair):
    left, _ = pair
    first, second = left.devices()
    assert (first["device"], second["device"]) == ("cuda:0", "cuda:1")
    assert first["name"] and first["uuid"] != second["uuid"] and first["bytes"] > 0
    assert (first["bytes_in_use"], first["bytes_mapped"], second["bytes_mapped"]) == (0, 4 << 20, 0)
    tensor = left.to(values(), "cuda:0")
    assert in_use(left) >= tensor.nbytes and left.devices()[0]["bytes_pinned"] == 192 << 10
    tensor.release()
    until(lambda: in_use(left) == 0)


def test_values_move_between_memories(driver, pair):
    left, _ = pair
    sent = values()
    there = left.to(sent, "cuda:1")
    assert (there.device, there.dtype, there.shape) == ("cuda:1", "f32", sent.shape)
    assert left.to(there, "cuda:1").device == "cuda:1"
    over = left.to(there, "cuda")
    assert over.device == "cuda:0"
    back = left.to(over, "cpu")
    assert back.device == "cpu" and back.tolist() == sent.tolist()
    assert left.to(played.Array(driver, sent, device=1), "cpu").tolist() == sent.tolist()
    assert back.cpu() is back
    for wrong in ("gpu", "cuda:x", "cuda:-1", ""):
        with pytest.raises(ValueError, match="device"):
            left.to(sent, wrong)
    room = left.empty(4)
    for given in (sent, room):
        with pytest.raises(rendez.RendezError) as caught:
            left.to(given, "cuda:2")
        assert caught.value.reason == "DEVICE_ORDINAL"
    assert left.to(room, "cpu").shape == (4,)


def test_the_processor_does_not_read_a_devices_memory(driver, pair):
    left, _ = pair
    tensor = left.to(values(), "cuda:0")
    for read in (tensor.numpy, tensor.tobytes, tensor.tolist, lambda: memoryview(tensor), lambda: tensor.writable(left)):
        with pytest.raises(rendez.RendezError) as caught:
            read()
        assert caught.value.reason == "TENSOR_DEVICE"


def test_wrong_arrays_are_refused_and_given_back(driver, pair):
    left, _ = pair
    key = key_of(left, left, "x")

    def refused(given, reason, match=None):
        for copy in (None, False):
            with pytest.raises((rendez.RendezError, ValueError), match=match) as caught:
                left.send(key, given, copy=copy)
            assert caught.value.reason == reason
        assert left.pending() == []

    array = played.Array(driver, values().reshape(50, 100))
    array.strides = (1, 50)
    refused(array, "PYTHON_ARGUMENT", "follow each other")
    good = played.Array(driver, values())
    for said, reason, match in [
        ({"data": (4096, False)}, "DEVICE_POINTER", None),
        ({"shape": (2**22,)}, "REGION_OUTSIDE", None),
        ({"shape": (2**70,)}, None, None),
        ({"typestr": ">f4"}, "PYTHON_ARGUMENT", "order"),
        ({"typestr": "|O8"}, "PYTHON_ARGUMENT", "type"),
        ({"typestr": "é1"}, "PYTHON_ARGUMENT", "type"),
        ({"stream": 0}, "PYTHON_ARGUMENT", "ambiguous"),
        ({"mask": object()}, "PYTHON_ARGUMENT", "mask"),
        ({"strides": (8,)}, "PYTHON_ARGUMENT", "follow each other"),
        ({"typestr": None}, "PYTHON_ARGUMENT", "typestr"),
    ]:
        given = played.CudaArray(good, **said)
        if reason is None:
            with pytest.raises(OverflowError):
                left.send(key, given)
        else:
            refused(given, reason, match)
    gone = played.CudaArray(played.Array(driver, values()))
    gone.array.__del__()
    gone.array.address = 0
    refused(gone, "DEVICE_POINTER")
    good.device = 5
    refused(good, "DEVICE_ORDINAL")
    good.device = 0


def test_without_devices_it_says_what_to_do(driver, engine, own):
    array = played.Array(driver, values())
    for given in (array, played.CudaArray(array)):
        with pytest.raises(rendez.RendezError, match='devices="auto"') as caught:
            engine.send(own("x"), given)
        assert caught.value.reason == "DEVICE_MISSING"
    with pytest.raises(ValueError, match="processor"):
        engine.recv_into(own("x"), array)


def test_it_is_read_after_its_engine_has_ended(driver):
    with rendez.Engine(named("short"), **SETTINGS) as engine:
        tensor = engine.to(values(), "cuda:0")
    seen = view(driver, tensor)
    assert seen.bytes() == values().tobytes()
    seen.let_go()
    with pytest.raises(rendez.Aborted):
        tensor.cpu()


def _lets_others_go_on(what, pipe):
    """What waits for a device waits without the interpreter's lock: another thread ends the device's work."""
    driver = played.Driver()
    array = played.Array(driver, values())
    with rendez.Engine(named("gone"), **SETTINGS) as left, rendez.Engine(named("here"), **SETTINGS) as right:
        left.add_peer(right.task, right.address)
        driver.hold(array.stream)
        threading.Timer(0.3, driver.hold, (array.stream, False)).start()
        globals()[what](left, right, array)
    pipe.send("done")


def _sent_by_way_of_the_host(left, right, array):
    # No connection is up yet: this waits until it is there, and copies it.
    key = key_of(left, right, "x")
    left.send(key, array, copy=False)
    assert right.recv(key, timeout=10).wait().cpu().tolist() == values().tolist()


def _received_into(left, right, array):
    out = np.empty(8, "f4")

    async def receive():
        await left.step(1).recv_into(key_of(left, left, "x"), out, timeout=10)

    left.step(1).send(key_of(left, left, "x"), played.Array(array.driver, values(8), stream=array.stream), copy=False)
    asyncio.run(asyncio.wait_for(receive(), 20))
    assert out.tolist() == values(8).tolist()


def goes_on(what):
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_lets_others_go_on, args=(what, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(30), "no other thread goes on"
        assert ours.recv() == "done"
    finally:
        process.kill()
        process.join(60)


def test_a_send_waits_for_a_device_without_the_lock(driver):
    goes_on("_sent_by_way_of_the_host")


def test_a_send_that_finds_no_room_is_refused_as_one_of_the_hosts_is(driver):
    small = SETTINGS | {"parked_bytes": "64KiB", "parked_bytes_per_step": "64KiB"}
    with rendez.Engine(named("gone"), **small) as left, rendez.Engine(named("here"), **small) as right:
        left.add_peer(right.task, right.address)
        left.connect(right.task)
        given = left.to(bytes(16 << 10), "cuda:0")
        with pytest.raises(rendez.ResourceExhausted, match="parked_bytes"):
            for number in range(100):
                left.send(key_of(left, right, f"x{number}"), given)


def test_a_send_that_waits_goes_by_way_of_the_host_where_it_must(driver, pinned):
    with rendez.Engine(named("gone"), **SETTINGS) as left, rendez.Engine(named("here"), **SETTINGS) as right:
        left.add_peer(right.task, right.address)
        step, sent = left.step(1), values()
        room = left.empty(sent.shape, "f32", device="cuda:0")
        mine = driver.stream()
        seen = view(driver, room, stream=mine)
        driver.write(seen.data, pinned, mine)
        seen.let_go()
        # No connection is up yet, so none is read in place.
        sends = [
            step.send_wait(key_of(left, right, "waited"), played.Array(driver, sent)),
            step.send_wait(key_of(left, right, "asked"), played.Array(driver, sent), copy=False),
            step.send_wait(key_of(left, right, "room"), room, timeout=10),
        ]
        sends[0].wait(10)
        until(sends[1].done)
        asyncio.run(asyncio.wait_for(awaited(sends[2]), 20))
        for name in ("waited", "asked", "room"):
            got = right.step(1).recv(key_of(left, right, name), timeout=10).wait()
            assert got.cpu().tolist() == sent.tolist()


async def awaited(operation):
    return await operation


def test_a_hook_is_called_once_though_its_memory_goes_before_the_send_returns(driver):
    heard, over = collections.Counter(), threading.Event()

    def busy():
        while not over.is_set():
            sum(range(2000))

    others = [threading.Thread(target=busy) for _ in range(2)]
    for other in others:
        other.start()
    try:
        with rendez.Engine(named("gone"), **SETTINGS) as engine:
            key = key_of(engine, engine, "x")
            for number in range(100):
                receive = engine.recv(key, timeout=10).start()
                taker = threading.Thread(target=lambda receive=receive: receive.wait().release())
                taker.start()
                lent = played.Array(driver, values())
                engine.send(key, lent, copy=False, on_release=lambda number=number: heard.update([number]))
                taker.join()
            until(lambda: len(heard) == 100)
            time.sleep(0.2)
    finally:
        over.set()
        for other in others:
            other.join()
    assert set(heard.values()) == {1}


def test_a_send_that_would_go_by_way_of_the_host_can_be_given_up(driver):
    with rendez.Engine(named("gone"), **SETTINGS) as left, rendez.Engine(named("here"), **SETTINGS) as right:
        left.add_peer(right.task, right.address)
        send = left.step(1).send_wait(key_of(left, right, "x"), played.Array(driver, values()))
        # The shard has long said that its peer cannot read the value, and no poll has heard that.
        time.sleep(0.3)
        assert send.cancel() and send.cancelled()


def test_room_that_waited_in_vain_can_be_sent_again(driver, pinned):
    small = SETTINGS | {"parked_bytes": "64KiB", "parked_bytes_per_step": "64KiB"}
    with rendez.Engine(named("gone"), **small) as left, rendez.Engine(named("here"), **small) as right:
        left.add_peer(right.task, "127.0.0.1:1")
        filling = key_of(left, right, "filling")
        with pytest.raises(rendez.ResourceExhausted):
            while True:
                left.send(filling, bytes(10_000))
        room = left.empty(values().shape, "f32", device="cuda:0")
        send = left.step(0).send_wait(key_of(left, right, "x"), room, timeout=0.1)
        with pytest.raises(TimeoutError):
            send.wait(10)
        receive = left.recv(key_of(left, left, "y"), timeout=10).start()
        left.send(key_of(left, left, "y"), room)
        assert receive.wait().device == "cuda:0"


def test_an_event_loop_waits_for_a_device_without_the_lock(driver):
    goes_on("_received_into")
