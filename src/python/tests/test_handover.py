"""What every user does: send, receive, in either order, within steps."""

import asyncio
import math
import pickle
import re
import signal
import socket
import threading
import time

import pytest

import rendez
from conftest import SMALL, key_of, named
from rendez import rpc


def test_value_first(engine, own):
    with engine.step(1) as step:
        step.send(own("x"), 0.5)
        got = step.recv(own("x")).wait()
    assert got.item() == 0.5
    assert (got.dtype, got.shape, got.path, got.dead) == ("f64", (), "local", False)


def test_receiver_first(engine, own):
    step = engine.step(1)
    got = []
    thread = threading.Thread(target=lambda: got.append(step.recv(own("x")).wait().item()))
    thread.start()
    time.sleep(0.02)
    step.send(own("x"), 7)
    thread.join(10)
    assert got == [7]


def test_order_of_a_key(engine, own):
    step = engine.step(1)
    for number in range(100):
        step.send(own("x"), number)
    assert [step.recv(own("x")).wait().item() for _ in range(100)] == list(range(100))


@pytest.mark.parametrize("spelled", ["text", "full", "tuple", "key"])
def test_keys_have_spellings(engine, spelled):
    key = rendez.Key(engine.task, engine.task, "v")
    given = {
        "text": f"{engine.task}->{engine.task};v",
        "full": str(key),
        "tuple": (engine.task, engine.task, "v"),
        "key": key,
    }[spelled]
    engine.send(given, 3)
    assert engine.recv(key, timeout=10).wait().item() == 3


def test_keys_compare():
    key = rendez.Key("a", "b", "x")
    assert key == rendez.Key.parse("a->b;x") == rendez.Key.parse(str(key))
    assert hash(key) == hash(rendez.Key("a", "b", "x"))
    assert key != key.at(1, 2)
    assert (key.edge, key.source) == ("x", "/job:a/replica:0/task:0/device:CPU:0")
    assert eval(repr(key), {"Key": rendez.Key}) == key
    # The name may have an arrow in it.
    key = rendez.Key("a", "b", "grad->w")
    assert key == rendez.Key.parse("a->b;grad->w") == rendez.Key.parse(str(key))
    assert eval(repr(key), {"Key": rendez.Key}) == pickle.loads(pickle.dumps(key)) == key


def test_a_step_finishes(engine, own):
    with engine.step(5) as step:
        step.send(own("x"), 1)
    with pytest.raises(rendez.Aborted) as caught:
        step.recv(own("x")).wait()
    assert caught.value.reason == "STEP_FINISHED"


def test_a_step_ends_with_what_was_raised(engine, own):
    with pytest.raises(KeyError):
        with engine.step(5) as step:
            raise KeyError("no such weight")
    with pytest.raises(rendez.Aborted, match="KeyError: 'no such weight'"):
        step.recv(own("x")).wait()


def test_a_step_keeps_the_code_of_an_error(engine, own):
    with pytest.raises(rendez.DeadlineExceeded):
        with engine.step(5) as step:
            step.recv(own("x"), timeout=0.01).wait()
    with pytest.raises(rendez.DeadlineExceeded):
        step.send(own("x"), 1)


def test_a_step_has_a_deadline(engine, own):
    step = engine.step(9, deadline=0.05)
    with pytest.raises(TimeoutError):
        step.recv(own("x")).wait(30)


@pytest.mark.parametrize("way", ["engine", "step"])
def test_the_hook_of_a_send_that_fails_is_called_also_when_the_engine_is_closed(way):
    with rendez.Engine(named("closed"), **SMALL) as engine:
        sender = engine if way == "engine" else engine.step(1)
        key, released = key_of(engine, engine, "x"), threading.Event()
    with pytest.raises(rendez.Aborted):
        sender.send(key, bytearray(100), copy=False, on_release=released.set)
    assert released.wait(10)


def test_a_tensor_says_where_it_lies_also_when_it_was_sent(engine, own):
    room = engine.empty(1000)
    engine.send(own("x"), room)
    assert (room.device, room.__dlpack_device__()) == ("cpu", (1, 0))


def test_why_a_value_is_dead_may_need_more_room(engine, own):
    engine.send_dead(own("empty"))
    assert engine.recv_into(own("empty"), bytearray()).wait().dead
    step = engine.step(1)
    step.send_dead(own("x"), b"why it is dead")
    with pytest.raises(rendez.InvalidArgument, match="no value will come.*14 bytes") as caught:
        step.recv_into(own("x"), bytearray(4), timeout=10).wait()
    assert caught.value.reason == "RECV_ROOM" and step.recv(own("x"), timeout=10).wait().dead


def test_dead_values(engine, own):
    engine.send_dead(own("x"))
    assert engine.recv(own("x")).wait().dead


def test_wait_gives_up_and_the_receive_goes_on(engine, own):
    receive = engine.recv(own("x"))
    with pytest.raises(rendez.DeadlineExceeded):
        receive.wait(0.01)
    assert not receive.done()
    engine.send(own("x"), 4)
    assert receive.wait(10).item() == 4
    assert receive.wait(10) is receive.result()


def test_operations_say_what_they_are(engine, own):
    step, key = engine.step(7), own("x")
    receive, sending = step.recv(key), step.send_wait(key, 1)
    assert repr(sending) == f"<rendez.Sending of {key} in step 7: pending>" and sending.wait(10) is None
    assert repr(sending) == f"<rendez.Sending of {key} in step 7: done>"
    assert receive.wait(10).item() == 1
    late, it = step.recv(key), re.escape(f"receive of {key} in step 7")
    with pytest.raises(rendez.FailedPrecondition, match=f"the {it} has not ended yet"):
        late.result()
    with pytest.raises(rendez.DeadlineExceeded, match=f"the {it} has not ended in time"):
        late.wait(0)
    assert late.cancel() and repr(late) == f"<rendez.Recv of {key} in step 7: failed>"
    with pytest.raises(rendez.Cancelled, match=f"the {it} was cancelled"):
        late.wait()


def test_a_deadline_leaves_the_value(engine, own):
    with pytest.raises(rendez.DeadlineExceeded) as caught:
        engine.recv(own("x"), timeout=0.02).wait()
    assert caught.value.code is rendez.Code.DEADLINE_EXCEEDED
    engine.send(own("x"), 4)
    assert engine.recv(own("x")).wait(10).item() == 4


def test_cancel_loses_nothing(engine, own):
    receive = engine.recv(own("x")).start()
    engine.send(own("x"), 1)
    receive.cancel()
    engine.send(own("x"), 2)
    first = engine.recv(own("x")).wait(10).item()
    assert first == (1 if receive.cancelled() else 2)
    if receive.cancelled():
        with pytest.raises(rendez.Cancelled):
            receive.wait()
        assert engine.recv(own("x")).wait(10).item() == 2


def test_cancel_while_a_thread_waits(engine, own):
    receive = engine.recv(own("x"))
    raised = []

    def wait():
        try:
            receive.wait()
        except rendez.RendezError as error:
            raised.append(type(error))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.02)
    assert receive.cancel()
    for thread in threads:
        thread.join(10)
    assert raised == [rendez.Cancelled] * 3
    engine.send(own("x"), 1)
    assert engine.recv(own("x")).wait(10).item() == 1


@pytest.mark.parametrize("into", [False, True])
def test_a_value_goes_past_a_receive_that_was_cancelled_while_a_thread_waits(engine, own, into):
    room, ended = bytearray(8), []
    receive = engine.recv_into(own("x"), room) if into else engine.recv(own("x"))

    def wait():
        try:
            ended.append(receive.wait())
        except rendez.RendezError as error:
            ended.append(type(error))

    for _ in range(20):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.005)
        assert receive.cancel()
        engine.send(own("x"), 1)
        assert engine.recv(own("x")).wait(10).item() == 1
        thread.join(10)
        assert receive.cancelled() and ended.pop() is rendez.Cancelled
        assert bytes(room) == bytes(8)
        receive = engine.recv_into(own("x"), room) if into else engine.recv(own("x"))


def test_a_value_goes_to_the_next_in_line_past_a_receive_that_was_cancelled_while_a_thread_waits(engine, own):
    for _ in range(20):
        first, second = engine.recv(own("x")).start(), engine.recv(own("x")).start()
        ended = []

        def wait(first=first, ended=ended):
            with pytest.raises(rendez.Cancelled):
                first.wait()
            ended.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.005)
        assert first.cancel()
        engine.send(own("x"), 1)
        engine.send(own("x"), 2)
        assert second.wait(10).item() == 1
        assert engine.recv(own("x")).wait(10).item() == 2
        thread.join(10)
        assert ended


def test_cancel_tells_whether_it_came_first(engine, own):
    for number in range(200):
        receive, got = engine.recv(own("x")), []

        def wait(receive=receive, got=got):
            try:
                got.append(receive.wait().item())
            except rendez.Cancelled:
                got.append(None)

        threads = [threading.Thread(target=wait), threading.Thread(target=engine.send, args=(own("x"), number))]
        for thread in threads:
            thread.start()
        is_given_up = receive.cancel()
        for thread in threads:
            thread.join(10)
        assert got == [None if is_given_up else number]
        assert receive.cancelled() == is_given_up
        if is_given_up:
            assert engine.recv(own("x")).wait(10).item() == number


def test_many_threads_wait_for_one(engine, own):
    receive, got = engine.recv(own("x")), []
    threads = [threading.Thread(target=lambda: got.append(receive.wait(10).item())) for _ in range(8)]
    for thread in threads:
        thread.start()
    engine.send(own("x"), 1)
    for thread in threads:
        thread.join(10)
    assert got == [1] * 8


def test_signals_are_heard(engine, own):
    def stop(_number, _frame):
        raise InterruptedError("stop")

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        receive = engine.recv(own("x"))
        with pytest.raises(InterruptedError):
            receive.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    engine.send(own("x"), 1)
    assert receive.wait(10).item() == 1


@pytest.mark.parametrize("wait", ["connect", "explain", "call", "close"])
def test_signals_are_heard_by_what_waits_for_another_task(wait):
    """Ctrl-C did nothing until the time of the wait was over."""

    def stop(_number, _frame):
        raise InterruptedError("stop")

    one, two = rendez.Engine(named("one"), **SMALL), rendez.Engine(named("two"), **SMALL)
    silent = socket.create_server(("127.0.0.1", 0))
    absent = named("absent")
    one.add_peer(absent, f"127.0.0.1:{silent.getsockname()[1]}")
    one.add_peer(two.task, two.address)
    one.connect(two.task)
    one.send((one.task, two.task, "x"), one.empty(100_000))
    waits = {
        "connect": lambda: one.connect(absent, timeout=60),
        "explain": lambda: one.explain(absent, timeout=60),
        "call": lambda: one._call(absent, 77, b"", timeout=60),
        # Nothing takes what was sent.
        "close": lambda: one.close(60),
    }
    before = signal.signal(signal.SIGALRM, stop)
    began = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedError):
            waits[wait]()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 30
    two.close()
    one.close()
    silent.close()


def test_result_before_the_end(engine, own):
    receive = engine.recv(own("x"))
    with pytest.raises(rendez.FailedPrecondition) as caught:
        receive.result()
    assert caught.value.reason == "PYTHON_PENDING"


def test_done_callback(engine, own):
    called, done = [], threading.Event()
    receive = engine.recv(own("x"))
    receive.add_done_callback(lambda it: (called.append(it), done.set()))
    engine.send(own("x"), 1)
    assert done.wait(10)
    assert called == [receive]
    assert receive.result().item() == 1


@pytest.mark.parametrize("raised", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_a_done_callback_that_raises_stops_no_other(engine, own, monkeypatch, raised):
    told, failed, done = [], threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda args: (told.append(args.exc_type), failed.set()))

    def fail(_):
        raise raised

    engine.recv(own("first")).add_done_callback(fail)
    engine.send(own("first"), 1)
    assert failed.wait(10)
    engine.recv(own("second")).add_done_callback(lambda _: done.set())
    engine.send(own("second"), 2)
    assert done.wait(10) and told == [raised]


def test_send_wait_waits_for_room():
    settings = {**SMALL, "parked_bytes": 65536, "parked_bytes_per_step": 65536}
    with rendez.Engine(named("room"), **settings) as engine:
        key = key_of(engine, engine, "x")
        step = engine.step(1)
        with pytest.raises(rendez.ResourceExhausted):
            for _ in range(1000):
                step.send(key, bytes(1024))
        waiting = step.send_wait(key, b"w" * 1024)
        with pytest.raises(rendez.DeadlineExceeded):
            waiting.wait(0.01)
        step.recv(key).wait(10)
        step.recv(key).wait(10)
        assert waiting.wait(10) is None


MIB = 1 << 20


@pytest.fixture
def crowded():
    """An engine whose memory is full, and the key of the values there, in step 1."""
    with rendez.Engine(named("crowded"), arena_segment_bytes="4MiB", arena_bytes="4MiB", stage_sampling=0) as engine:
        key, step = key_of(engine, engine, "x"), engine.step(1)
        with pytest.raises(rendez.ResourceExhausted) as caught:
            while True:
                step.send(key, bytearray(MIB))
        assert caught.value.reason == "ARENA_FULL"
        yield engine, key


def waited_for(sending, way, make_room):
    """How a send ends that is waited for in this way, where there is room from some moment on."""
    if way == "a thread":
        outcomes = []
        thread = threading.Thread(target=lambda: outcomes.append(sending.wait(10)))
        thread.start()
        make_room()
        thread.join(20)
        return outcomes[0]
    if way == "a callback":
        ended = threading.Event()
        sending.add_done_callback(lambda _: ended.set())
        make_room()
        assert ended.wait(10)
        return sending.result()

    async def awaited():
        return await sending

    async def both():
        task = asyncio.create_task(awaited())
        await asyncio.sleep(0)
        make_room()
        return await asyncio.wait_for(task, 10)

    return asyncio.run(both())


@pytest.mark.parametrize("way", ["a thread", "a loop", "a callback"])
def test_send_wait_waits_for_memory(crowded, way):
    engine, key = crowded
    step = engine.step(1)
    value, released = bytearray(b"w" * MIB), threading.Event()
    sending = step.send_wait(key, value, on_release=released.set)
    with pytest.raises(rendez.DeadlineExceeded):
        sending.wait(0.01)
    assert not sending.done() and not released.is_set()
    assert waited_for(sending, way, lambda: step.recv(key).wait(10).release()) is None
    assert released.wait(10)
    # The memory is its owner's again.
    value.append(1)
    got = b""
    while not got or got[0] == 0:
        with step.recv(key).wait(10) as tensor:
            got = tensor.tobytes()
    assert got == b"w" * MIB


@pytest.mark.parametrize("way", ["its time is over", "cancelled", "held no more", "its step has ended"])
def test_what_waited_for_memory_in_vain_is_its_owners_again(crowded, way):
    engine, key = crowded
    # The end of a step gives back what is kept in it.
    step = engine.step(2 if way == "its step has ended" else 1)
    value, released = bytearray(MIB), threading.Event()
    sending = step.send_wait(key, value, timeout=0.01 if way == "its time is over" else None, on_release=released.set)
    if way == "its time is over":
        with pytest.raises(rendez.DeadlineExceeded, match="waiting for room.* in step 1: .* arena"):
            sending.wait(10)
    elif way == "cancelled":
        assert not sending.done() and sending.cancel() and sending.cancelled()
    elif way == "its step has ended":
        assert not sending.done()
        step.abort()
        with pytest.raises(rendez.Aborted):
            sending.wait(10)
    else:
        del sending
    assert released.wait(10)
    value.append(1)
    # What can never have room does not wait for it.
    with pytest.raises(rendez.ResourceExhausted) as caught:
        engine.step(1).send_wait(key, bytearray(8 * MIB))
    assert caught.value.reason == "ARENA_UNFIT"


@pytest.fixture
def full():
    """A step without room, the key of its values, and how many there are."""
    settings = {**SMALL, "parked_bytes": 65536, "parked_bytes_per_step": 65536}
    with rendez.Engine(named("full"), **settings) as engine:
        key, step, sent = key_of(engine, engine, "x"), engine.step(1), 0
        with pytest.raises(rendez.ResourceExhausted):
            while True:
                step.send(key, bytes(1024))
                sent += 1
        yield step, key, sent


def test_a_send_that_is_given_up_was_not_taken(engine, own, full):
    sent = engine.step(1).send_wait(own("x"), 7)
    assert not sent.cancel() and not sent.cancelled() and sent.result() is None
    assert engine.step(1).recv(own("x")).wait(10).item() == 7
    step, key, parked = full
    waits = step.send_wait(key, 9).start()
    assert waits.cancel() and not waits.cancel() and waits.cancelled()
    with pytest.raises(rendez.Cancelled):
        waits.wait()
    assert [step.recv(key).wait(10).nbytes for _ in range(parked)] == [1024] * parked
    with pytest.raises(rendez.DeadlineExceeded):
        step.recv(key, timeout=0.05).wait()


@pytest.mark.parametrize("waited", [False, True])
def test_cancel_of_a_send_tells_whether_it_came_first(full, waited):
    step, key, parked = full
    ends = []
    for number in range(1, 21):
        sending, ended = step.send_wait(key, bytes([number]) * 1024), []

        def wait(sending=sending, ended=ended):
            try:
                ended.append(sending.wait())
            except rendez.Cancelled as error:
                ended.append(type(error))

        threads = [threading.Thread(target=wait)] * waited
        for thread in threads:
            thread.start()
        if number % 2:
            step.recv(key).wait(10)
            # The shard takes it meanwhile, and most times this comes before a thread that waits has heard.
            time.sleep(0.002)
        is_given_up = sending.cancel()
        for thread in threads:
            thread.join(10)
        assert is_given_up == sending.cancelled()
        assert ended == [rendez.Cancelled if is_given_up else None] * waited
        ends.append((number, is_given_up))
        if not is_given_up and number % 2 == 0:
            step.recv(key).wait(10)
    last, got = step.send_wait(key, b"last"), []
    while not got or got[-1] != b"last":
        got.append(step.recv(key).wait(10).tobytes())
    taken = {number for number, is_given_up in ends if not is_given_up}
    assert {it[0] for it in got[:-1]} - {0} == taken
    assert last.wait(10) is None


@pytest.mark.parametrize("began", [False, True])
def test_what_was_written_comes_back_from_a_send_that_is_held_no_more(began):
    settings = {**SMALL, "parked_bytes": 65536, "parked_bytes_per_step": 65536}
    with rendez.Engine(named("full"), **settings) as engine:
        key, step = key_of(engine, engine, "x"), engine.step(1)
        step.send(key, bytes(60_000))
        room = engine.empty((20_000,), "u8")
        memoryview(room)[:] = b"w" * 20_000
        if began:
            with pytest.raises(rendez.DeadlineExceeded):
                step.send_wait(key, room).wait(0.05)
        else:
            step.send_wait(key, room)
        assert step.recv(key).wait(10).nbytes == 60_000
        with pytest.raises(rendez.DeadlineExceeded):
            step.recv(key, timeout=0.05).wait()
        step.send(key, room)
        assert step.recv(key).wait(10).tobytes() == b"w" * 20_000


def test_a_wait_lasts_as_long_as_it_says(engine, own, full):
    step, key, _ = full
    for _ in range(5):
        sending = step.send_wait(key, bytes(1024)).start()
        thread = threading.Timer(0.005, lambda: step.recv(key).wait(10))
        thread.start()
        began = time.monotonic()
        try:
            assert sending.wait(0.045) is None
        except rendez.DeadlineExceeded:
            assert time.monotonic() - began >= 0.045
        assert sending.wait(10) is None
        thread.join(10)
    # Another thread that waits too lays it down again and again.
    receive = engine.recv(own("x"))
    another = threading.Thread(target=receive.wait)
    another.start()
    for _ in range(20):
        began = time.monotonic()
        with pytest.raises(rendez.DeadlineExceeded):
            receive.wait(0.045)
        assert time.monotonic() - began >= 0.045
    engine.send(own("x"), 1)
    another.join(10)


def test_between_two_engines(pair):
    left, right = pair
    key = key_of(left, right, "x")
    left.send(key, b"7" * 100_000)
    got = right.recv(key, timeout=30).wait()
    assert got.path == "lease"
    assert got.tobytes() == b"7" * 100_000
    assert right.task in left.explain(right.task)
    assert left.connect(right.task) in ("shm", "local")


def test_what_an_engine_says(engine, own):
    engine.send(own("parked"), bytes(100))
    waits = engine.recv(own("waits")).start()
    wanted, until = {("parked", "value"), ("waits", "receive")}, time.monotonic() + 10
    # A question may overtake what was left for the shard just before.
    while {(item.key.edge, item.what) for item in engine.pending()} != wanted:
        assert time.monotonic() < until
    assert not waits.done()
    (stats,) = engine.stats()
    assert stats["parked"] == 1 and stats["waiting"] == 1
    assert "rendez_build_info" in engine.metrics()
    assert "is not connected" in engine.explain("/job:nobody/task:0", timeout=0.1)
    assert engine.address.startswith("unix:")


def test_close(engine, own):
    receive = engine.recv(own("x")).start()
    engine.close()
    assert engine.closed
    with pytest.raises(rendez.Aborted):
        receive.wait(10)
    with pytest.raises(rendez.Aborted) as caught:
        engine.send(own("x"), 1)
    assert caught.value.reason == "SHUTDOWN"
    engine.close()


@pytest.mark.parametrize("timeout", [math.inf, 1e9])
def test_close_without_bound_waits_for_what_is_on_its_way(timeout):
    right = rendez.Engine(named("right"), **SMALL)
    left = rendez.Engine(named("left"), drain_timeout="0s", **SMALL)
    key = key_of(left, right, "x")
    left.add_peer(right.task, right.address)
    left.connect(right.task)
    left.send(key, b"a" * 1_000_000)
    closing = threading.Thread(target=left.close, args=(timeout,))
    closing.start()
    time.sleep(0.1)
    assert right.recv(key, timeout=10).wait().tobytes() == b"a" * 1_000_000
    closing.join(10)
    assert not closing.is_alive()
    right.close()


def test_settings():
    table = {"shards": 2, "share_cores": True, "arena_segment_bytes": "4MiB"}
    with rendez.Engine(named("table"), config=table, connect_timeout="3s") as engine:
        assert engine.shards == 2
    with pytest.raises(rendez.InvalidArgument, match="no setting `shard`"):
        rendez.Engine(named("wrong"), shard=1)
    with pytest.raises(TypeError, match="shards"):
        rendez.Engine(named("wrong"), shards=object())
    with pytest.raises(rendez.InvalidArgument):
        rendez.Engine("no such name/")


def test_settings_of_a_file(tmp_path, monkeypatch):
    file = tmp_path / "rendez.toml"
    file.write_text('shards = 2\nshare_cores = true\narena_segment_bytes = "4MiB"\n')
    with rendez.Engine(named("file"), config=file) as engine:
        assert engine.shards == 2
    monkeypatch.setenv("RENDEZ_SHARDS", "3")
    with rendez.Engine(named("file"), config=file) as engine:
        assert engine.shards == 3
    with pytest.raises(rendez.RendezError):
        rendez.Engine(named("file"), config=tmp_path / "none.toml")


def test_classes_that_the_stubs_call_generic():
    for kind in (rendez.Operation, rendez.Recv, rpc.Call, rpc.RRef):
        assert kind[rendez.Tensor] is kind
