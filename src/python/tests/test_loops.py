"""Event loops: asyncio, uvloop, trio, and both through anyio."""

import asyncio
import concurrent.futures
import gc
import os
import threading
import time
import weakref

import anyio
import pytest
import uvloop

import rendez
from rendez._rendez import Wakes
from conftest import SMALL, key_of, named

KINDS = [("asyncio", {}), ("asyncio", {"use_uvloop": True}), ("trio", {})]


@pytest.fixture(params=KINDS, ids=["asyncio", "uvloop", "trio"])
def run(request):
    backend, options = request.param

    def run(function):
        async def bounded():
            with anyio.fail_after(30):
                return await function()

        return anyio.run(bounded, backend=backend, backend_options=options)

    return run


def sent_later(engine, key, *values, after=0.02):
    def send():
        for value in values:
            time.sleep(after)
            engine.send(key, value)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_await(run, engine, own):
    async def main():
        engine.send(own("first"), 1)
        assert (await engine.recv(own("first"))).item() == 1
        thread = sent_later(engine, own("later"), 2)
        assert (await engine.recv(own("later"))).item() == 2
        receive = engine.recv(own("again"))
        engine.send(own("again"), 3)
        assert (await receive) is (await receive)
        thread.join()

    run(main)


def test_an_engine_without_threads_goes_on_while_something_waits(run):
    with rendez.Engine(named("alone"), drive="caller", **SMALL) as engine:
        key, ended = key_of(engine, engine, "never"), threading.Event()

        async def main():
            with anyio.fail_after(5), pytest.raises(rendez.DeadlineExceeded):
                await engine.recv(key, timeout=0.02)

        run(main)
        engine.recv(key, timeout=0.02).add_done_callback(lambda _: ended.set())
        assert ended.wait(5)


def test_many_at_once(run, engine, own):
    async def main():
        got = []

        async def one(number):
            got.append((await engine.recv(own(str(number)))).item())

        async with anyio.create_task_group() as group:
            for number in range(300):
                group.start_soon(one, number)
            await anyio.sleep(0.01)
            for number in range(300):
                engine.send(own(str(number)), number)
        assert sorted(got) == list(range(300))

    run(main)


def test_cancelling_a_task_loses_nothing(run, engine, own):
    async def main():
        for number in range(60):
            got = []

            async def take():
                got.append((await engine.recv(own("x"))).item())

            async with anyio.create_task_group() as group:
                group.start_soon(take)
                await anyio.sleep(0)
                thread = sent_later(engine, own("x"), number, after=0.0001 * (number % 5))
                await anyio.sleep(0.0001 * (number % 7))
                group.cancel_scope.cancel()
            thread.join()
            if not got:
                got.append(engine.recv(own("x")).wait(10).item())
            assert got == [number]
        assert not [item for item in engine.pending() if item.what == "receive"]

    run(main)


def test_timeouts(run, engine, own):
    async def main():
        with anyio.move_on_after(0.02) as scope:
            await engine.recv(own("x"))
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            await engine.recv(own("x"), timeout=0.02)
        assert engine.pending() == []

    run(main)


def test_steps_and_engines_are_entered(run):
    async def main():
        async with rendez.Engine(named("entered"), **SMALL) as engine, engine.step(1) as step:
            key = key_of(engine, engine, "x")
            step.send(key, 1)
            assert (await step.recv(key)).item() == 1
        assert engine.closed

    run(main)


def test_an_engine_is_closed_also_when_its_task_is_cancelled(run):
    async def main():
        with anyio.move_on_after(0.05) as scope:
            async with rendez.Engine(named("left"), **SMALL) as engine:
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        return engine.closed

    assert run(main)


def test_an_engine_is_closed_also_when_no_thread_of_the_loop_is_free():
    is_free = threading.Event()

    async def within(engines):
        async with rendez.Engine(named("left"), **SMALL) as engine:
            engines.append(engine)
            await asyncio.sleep(30)

    async def main():
        loop, engines = asyncio.get_running_loop(), []
        loop.set_default_executor(concurrent.futures.ThreadPoolExecutor(1))
        busy, task = loop.run_in_executor(None, is_free.wait), asyncio.create_task(within(engines))
        for _ in range(3):
            await asyncio.sleep(0.05)
            task.cancel()
        await asyncio.sleep(0.05)
        is_free.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)
        await busy
        return engines[0].closed

    assert asyncio.run(main())


def test_waiting_for_room(run):
    async def main():
        settings = {**SMALL, "parked_bytes": 65536, "parked_bytes_per_step": 65536}
        with rendez.Engine(named("room"), **settings) as engine:
            key = key_of(engine, engine, "x")

            async def produce():
                for number in range(300):
                    await engine.step(1).send_wait(key, bytes([number % 256]) * 1024)

            async with anyio.create_task_group() as group:
                group.start_soon(produce)
                for number in range(300):
                    got = await engine.step(1).recv(key)
                    assert got.tobytes()[0] == number % 256

    run(main)


def test_receive_into(run, engine, own):
    async def main():
        out = bytearray(3)
        thread = sent_later(engine, own("x"), b"abcd", b"abc")
        with pytest.raises(rendez.RendezError) as caught:
            await engine.recv_into(own("x"), out)
        assert caught.value.reason == "RECV_ROOM"
        assert (await engine.recv(own("x"))).tobytes() == b"abcd"
        assert (await engine.recv_into(own("x"), out)).nbytes == 3
        assert out == b"abc"
        thread.join()

    run(main)


def test_ended_by_another_thread(run, engine, own):
    async def main():
        receive = engine.recv(own("x")).start()
        timer = threading.Timer(0.02, receive.cancel)
        timer.start()
        with pytest.raises(rendez.Cancelled):
            await receive
        step = engine.step(2)
        timer = threading.Timer(0.02, step.abort, ("enough",))
        timer.start()
        with pytest.raises(rendez.Aborted, match="enough"):
            await step.recv(own("x"))

    run(main)


def test_a_thread_and_a_task_wait_for_one(run, engine, own):
    async def main():
        receive, got = engine.recv(own("x")), []
        thread = threading.Thread(target=lambda: got.append(receive.wait(10).item()))
        thread.start()
        sent = sent_later(engine, own("x"), 5, after=0.1)
        assert (await receive).item() == 5
        thread.join()
        sent.join()
        assert got == [5]

    run(main)


def test_a_thread_that_leaves_does_not_take_the_wake(run, engine, own):
    async def main():
        receive = engine.recv(own("x"))

        def leave():
            with pytest.raises(rendez.DeadlineExceeded):
                receive.wait(0.02)

        async with anyio.create_task_group() as group:

            async def take():
                assert (await receive).item() == 5

            group.start_soon(take)
            await anyio.sleep(0.001)
            await anyio.to_thread.run_sync(leave)
            assert not receive.done()
            sent_later(engine, own("x"), 5).join()

    run(main)


def test_gather_and_wait_for(engine, own):
    async def main():
        for name in "ab":
            engine.send(own(name), name.encode() * 20)
        got = await asyncio.gather(engine.recv(own("a")), engine.recv(own("b")))
        assert [it.tobytes()[:1] for it in got] == [b"a", b"b"]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.recv(own("never")), 0.01)
        async with asyncio.timeout(10):
            engine.send(own("c"), 1)
            await engine.recv(own("c"))

    asyncio.run(main())


def test_loops_leave_no_descriptors(engine, own):
    def once():
        async def main():
            sent_later(engine, own("x"), 1, after=0.001)
            await engine.recv(own("x"))

        asyncio.run(main())

    once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        once()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_loop_that_is_closed_gives_the_receive_up(engine, own):
    loop = asyncio.new_event_loop()
    receive = engine.recv(own("x"))

    async def wait():
        await receive

    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0.01))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    assert receive.cancelled()
    engine.send(own("x"), 1)
    assert engine.recv(own("x")).wait(10).item() == 1


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_loop_that_is_closed_while_something_waits_is_freed(engine, own, new_loop):
    async def wait():
        await engine.recv(own("x"))

    def begin():
        loop = new_loop()
        loop.create_task(wait())
        loop.run_until_complete(asyncio.sleep(0.01))
        # What waits in a loop that is still to run does not go, also if nothing of the program's has the task.
        gc.collect()
        assert len(engine.pending()) == 1
        loop.close()
        return weakref.ref(loop)

    known = begin()
    gc.collect()
    assert known() is None
    engine.send(own("x"), 1)
    assert engine.recv(own("x")).wait(10).item() == 1


def test_calls(run, engine):
    """Remote calls are awaited as receives are."""

    async def main():
        functions = {"double": lambda number: 2 * number, "nap": time.sleep}
        async with rendez.rpc.Agent(engine, "one", world={"one": engine.task}, functions=functions) as agent:
            calls = [agent.call_async("one", "double", number) for number in range(50)]
            assert [await call for call in calls] == [2 * number for number in range(50)]
            with anyio.move_on_after(0.05) as scope:
                await agent.call_async("one", "nap", 0.3)
            assert scope.cancelled_caught
            assert await agent.call_async("one", "double", 4) == 8

    run(main)


def test_answers_that_come_at_once_starve_no_other_task(run, engine, own):
    rounds, there, back = 400, own("there"), own("back")

    def echo():
        for _ in range(rounds):
            engine.send(back, engine.recv(there).wait())

    async def main():
        thread, turns = threading.Thread(target=echo), 0
        thread.start()

        async def turn():
            nonlocal turns
            while True:
                turns += 1
                await anyio.sleep(0)

        async with anyio.create_task_group() as group:
            group.start_soon(turn)
            for at in range(rounds):
                engine.send(there, at)
                assert (await engine.recv(back)).item() == at
            group.cancel_scope.cancel()
        thread.join()
        # Whether it lingered or slept: a turn for each value at least, but for those that were there at once.
        assert turns >= rounds // 4, turns

    run(main)


def test_cancelling_one_that_lingers_loses_nothing(run, engine, own):
    key, values = own("key"), 300

    def send():
        for at in range(values):
            engine.send(key, at)
            time.sleep(0.0003 * (at % 3))

    async def main():
        # All that came before came at once, so those that are given up linger.
        for at in range(128):
            engine.send(own("warm"), at)
            await engine.recv(own("warm"))
        thread, got = threading.Thread(target=send), []
        thread.start()
        while len(got) < values:
            with anyio.move_on_after(0.0002):
                got.append((await engine.recv(key)).item())
        thread.join()
        assert got == list(range(values))

    run(main)


def test_lingering_is_learnt_and_given_up(engine, own):
    wakes = Wakes()

    def tries():
        return sum(wakes._patience() > 0 for _ in range(640))

    assert tries() == 10, "one await in many tries"
    receive = engine.recv(own("key")).start()
    assert not receive._linger(wakes, 200_000)
    assert tries() == 10, "and goes on to, when it was in vain"
    engine.send(own("key"), 1)
    assert receive._linger(wakes, 60_000_000_000) and receive.result().item() == 1
    receive = engine.recv(own("key")).start()
    for _ in range(4):
        assert tries() == 640
        assert not receive._linger(wakes, 1000)
    assert tries() == 10
    receive.cancel()
