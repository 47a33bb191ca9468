"""Remote calls between agents of one process: how calls, references and agents come to their ends."""

import asyncio
import concurrent.futures
import contextvars
import fcntl
import gc
import inspect
import math
import signal
import threading
import time
import weakref

import numpy as np
import pytest

import callees
import rendez
from callees import (
    add_to,
    at_once,
    bare_object,
    broken_counter,
    chain,
    chain_softly,
    Counter,
    counter,
    echo,
    end,
    fail,
    hold_and_wait,
    leave,
    leave_softly,
    LOCALS,
    nap,
    release,
    released_later,
    settled,
    STATES,
    value_here,
    wait_for,
)
from conftest import SMALL, named
from rendez import rpc
from rendez.rpc import _serve



def test_timeouts_and_cancel(both):
    one, two = both
    with pytest.raises(TimeoutError) as caught:
        one.call("two", nap, 30, timeout=0.05)
    # Either side may be the first to see that the time is over: each names the worker.
    assert caught.value.reason == "RPC_TIMEOUT" and "two" in str(caught.value)
    assert one.call("two", nap, 0.01, timeout=math.inf) is False
    call = one.call_async("two", nap, 30)
    with pytest.raises(TimeoutError):
        call.wait(0.01)
    assert not call.done() and call.cancel() and call.cancelled()
    with pytest.raises(rendez.Cancelled) as caught:
        call.wait()
    assert caught.value.reason == "RPC_CANCELLED"


@pytest.fixture
def busy():
    """Two agents, of which the second has one thread, and that is busy until the test is over."""
    engines, agents = callees.begin(["one", "two"], threads=1)
    napping = agents[0].call_async("two", nap, 60)
    yield agents
    napping.cancel()
    end(engines, agents)


def interrupt_soon():
    threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()


@pytest.mark.parametrize("kind", ["call", "call_async", "remote"])
def test_a_call_by_name_ends_in_time_while_it_asks_for_signatures(busy, kind):
    began = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        getattr(busy[0], kind)("two", "typed/join", ["a"], "-", 2, timeout=0.2)
    assert caught.value.reason == "RPC_TIMEOUT" and "two" in str(caught.value)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("kind", ["call", "signatures"])
def test_a_signal_ends_the_question_for_signatures(busy, kind):
    arguments = {"call": ("typed/join", ["a"], "-", 2), "signatures": ()}[kind]
    began = time.monotonic()
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        getattr(busy[0], kind)("two", *arguments)
    assert time.monotonic() - began < 10


def test_a_value_that_is_not_made_yet_is_waited_for_in_time_at_its_owner(both):
    one, name = both[0], f"owned{id(both[0])}"
    own = one.remote("one", wait_for, name)
    for use in (own.to_here, lambda timeout: own.to_here_async(timeout=timeout).wait()):
        began = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            use(timeout=0.2)
        assert caught.value.reason == "RPC_TIMEOUT" and "one" in str(caught.value)
        assert time.monotonic() - began < 10
    for use in (own.to_here, own.local_value):
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            use()
    one.call("one", release, name)
    assert own.to_here(timeout=20) == (name, "one") and own.local_value() is own.to_here()


def test_asyncio(both):
    one, two = both

    async def main():
        got = await asyncio.gather(*(one.call_async("two", echo, number) for number in range(100)))
        assert got == list(range(100))
        with pytest.raises((KeyError, rpc.RemoteError)):
            await one.call_async("two", fail, "key", "k")
        # Coroutines hold no thread of the pool: more of them wait than it has threads.
        waiting = [one.call_async("two", wait_for, f"many{id(one)}") for _ in range(64)]
        await one.call_async("two", echo, 1)
        while STATES.get(f"many{id(one)}") != "waits":
            await asyncio.sleep(0.01)
        await one.call_async("two", release, f"many{id(one)}")
        assert set(await asyncio.gather(*waiting)) == {(f"many{id(one)}", "one")}

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_coroutine_whose_result_stays_holds_no_thread():
    engines, agents = callees.begin(["one", "two"], threads=1)
    one, name = agents[0], "kept"
    kept = one.remote("two", wait_for, name)
    while STATES.get(name) != "waits":
        time.sleep(0.01)
    one.call("two", release, name, timeout=20)
    assert kept.to_here(timeout=20) == (name, "one")
    given_up = one.remote("two", wait_for, "late", timeout=0.2)
    while STATES.get("late") != "cancelled":
        time.sleep(0.01)
    with pytest.raises(rendez.RendezError):
        given_up.to_here(timeout=20)
    callees.end(engines, agents)


@pytest.mark.parametrize("kind", ["name", "signature", "remote", "remote by signature"])
def test_more_coroutines_wait_for_each_other_than_there_can_be_threads(engine, kind):
    event, here, count = asyncio.Event(), [], 400

    async def meet(own: int) -> int:
        here.append(own)
        if len(here) == count:
            event.set()
        await event.wait()
        return own

    with rpc.Agent(engine, "one", world={"one": engine.task}, functions={"meet": meet}, timeout=30) as agent:
        if "signature" in kind:
            agent._take_for_foreign("one")
        begin = agent.remote if "remote" in kind else agent.call_async
        begun = [begin("one", "meet", own) for own in range(count)]
        ended = [each.to_here() if "remote" in kind else each.wait() for each in begun]
        assert ended == list(range(count))


def test_a_coroutine_that_is_given_up_keeps_nothing():
    engines, agents = callees.begin(["one", "two"], threads=1)
    agents[0].remote("two", hold_and_wait, "held", timeout=0.2)
    until = time.monotonic() + 20
    while STATES.get("held") != "cancelled" or LOCALS["held"]() is not None:
        assert time.monotonic() < until, (STATES.get("held"), gc.get_referrers(LOCALS["held"]()))
        gc.collect()
        time.sleep(0.01)
    callees.end(engines, agents)


@pytest.mark.parametrize("graceful", [True, False])
def test_an_agent_whose_functions_are_methods_of_its_holder_is_freed(graceful):
    class Holder:
        def __init__(self, engine):
            self.agent = rpc.Agent(engine, "one", world={"one": engine.task}, functions={"get": self.get})

        def get(self) -> int:
            return 7

    with rendez.Engine(named("holder"), **SMALL) as engine:
        holder = Holder(engine)
        gone = weakref.ref(holder)
        assert holder.agent.call("one", "get") == 7
        holder.agent.shutdown(graceful=graceful)
        del holder
        until = time.monotonic() + 20
        while gone() is not None:
            assert time.monotonic() < until, gc.get_referrers(gone())
            gc.collect()
            rendez._rendez._run_errands()
            time.sleep(0.01)


def test_a_cancelled_task_cancels_the_call(both):
    one, two = both
    name = f"cancelled{id(one)}"

    async def main():
        task = asyncio.create_task(anext_of(one.call_async("two", wait_for, name)))
        while STATES.get(name) != "waits":
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The coroutine at the other side hears so.
        while STATES.get(name) != "cancelled":
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 60))


async def anext_of(call):
    return await call


def test_callbacks(both):
    ended = threading.Event()
    both[0].call_async("two", echo, 7).add_done_callback(lambda call: call.result() == 7 and ended.set())
    assert ended.wait(30)


def test_references(both):
    one, two = both
    reference = one.remote("two", counter, 5)
    assert (reference.owner, reference.owner_id, reference.is_owner) == ("two", 1, False)
    assert reference.rpc_sync().add(1) == 6
    assert reference.rpc_async().add(1).wait(30) == 7
    assert reference.rpc_sync(timeout=30).later(1) == 8
    # As an argument, to its owner and round to its maker.
    assert one.call("two", add_to, reference, 1) == 9
    assert one.call("one", add_to, reference, 1) == 10
    assert one.call("two", value_here, reference) == 10
    back = one.call("two", echo, [reference])[0]
    assert back.rpc_sync().add(0) == 10 and not back.is_owner
    # A class is called as a function is.
    made = one.remote("two", Counter, 3)
    assert made.rpc_sync().add(1) == 4
    # The result of a method that stays.
    kept = reference.remote().add(5)
    assert kept.to_here() == 15 and kept.to_here_async().wait(30) == 15
    with pytest.raises(rendez.FailedPrecondition) as caught:
        reference.local_value()
    assert caught.value.reason == "RPC_REFERENCE"
    mine = rpc.RRef(one, Counter(1))
    assert mine.is_owner and mine.owner == "one" and mine.local_value() is mine.to_here()
    assert one.call("two", add_to, mine, 2) == 3 and mine.local_value().number == 3
    own = one.remote("one", counter, 4)
    assert own.is_owner and own.local_value().number == 4
    coroutine = one.remote("two", released_later)
    assert coroutine.to_here() == "later"


def test_references_that_fail(both):
    one, two = both
    failed = one.remote("two", broken_counter)
    for use in (failed.to_here, lambda: failed.rpc_sync().add(1)):
        with pytest.raises((OSError, rpc.RemoteError), match="no counter"):
            use()
    reference = one.remote("two", counter, 1)
    with pytest.raises(rendez.NotFound) as caught:
        reference.rpc_sync().no_such_method()
    assert caught.value.reason == "RPC_FUNCTION"
    if one.allow_pickle:
        assert reference.rpc_sync()._secret() == "secret" and reference.to_here().number == 1
    else:
        array = one.remote("two", echo, np.ones(3))
        bare = one.remote("two", bare_object)
        for use in (
            reference.to_here,
            lambda: reference.rpc_sync()._secret(),
            # What others have left there is not theirs to call.
            lambda: array.rpc_sync().tofile("/dev/null"),
            lambda: bare.rpc_sync().add(1),
        ):
            with pytest.raises(rendez.PermissionDenied) as caught:
                use()
            assert caught.value.reason == "RPC_PICKLE"
    with pytest.raises(AttributeError):
        reference.rpc_sync().number = 5
    with pytest.raises(Exception, match="cannot be pickled"):
        __import__("pickle").dumps(reference)


def test_values_are_freed(both):
    one, two = both
    gone = []

    class Held(Counter):
        def __del__(self):
            gone.append(self.number)

    mine = rpc.RRef(one, Held(77))
    assert one.call("two", add_to, mine, 1) == 78
    assert not gone
    del mine
    settled(lambda: gone == [78])


def test_values_are_freed_while_the_main_thread_waits(both):
    held = threading.Lock()
    held.acquire()

    class Held:
        def __del__(self):
            held.release()

    mine = rpc.RRef(both[0], Held())
    del mine
    assert held.acquire(timeout=30)


def test_calls_that_call_on(both):
    # Deeper than the pool has threads.
    path = ["one", "two"] * 20
    assert both[0].call("two", chain, path, 1) == ["two", *path]
    assert both[0].call("two", chain_softly, path) == ["two", *path]


def test_many_threads(both):
    def work(worker):
        for number in range(100):
            assert both[worker % 2].call(["two", "one"][worker % 2], echo, (worker, number)) == (worker, number)

    at_once([lambda worker=worker: work(worker) for worker in range(8)])


def test_groups_that_do_not_come_up(engine, tmp_path):
    for arguments in ({}, {"world": {}, "store": "x:1"}, {"store": "nonsense"}, {"store": tmp_path / "s", "size": 0},
                      {"world": {"one": ("a", "b", "c")}}, {"world": {"one": engine.task}, "size": 3}):
        with pytest.raises(ValueError):
            rpc.Agent(engine, "one", **arguments)
    with pytest.raises(rendez.FailedPrecondition) as caught:
        rpc.Agent(engine, "one", world={"two": engine.task})
    assert caught.value.reason == "RPC_GROUP"
    with pytest.raises(TimeoutError) as caught:
        rpc.Agent(engine, "one", world={"one": engine.task, "two": "/job:absent/task:0"}, init_timeout=0.1)
    assert caught.value.reason == "RPC_INIT" and "two" in str(caught.value)
    with pytest.raises(ValueError):
        rpc.Agent(engine, "no name", world={"no name": engine.task})
    # The engine is as it was.
    with rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
        assert agent.call("one", echo, 1) == 1
        with pytest.raises(rendez.FailedPrecondition):
            rpc.Agent(engine, "one", world={"one": engine.task})


@rpc.function
async def onward(to):
    return await rpc.current().agent.call_async(to, echo, 5)


@rpc.function
def onward_at_once(to):
    return rpc.current().agent.call(to, echo, 5)


def test_a_worker_that_is_called_before_it_has_met_all_calls_on():
    engines = {name: rendez.Engine(named(name), **SMALL) for name in ("one", "two", "three")}
    world = {name: (engine.task, engine.address) for name, engine in engines.items()}
    # The first meets both others, and these do not meet each other.
    apart = {name: (engine.task, "127.0.0.1:1") for name, engine in engines.items()}
    worlds = {"one": world, "two": world | {"three": apart["three"]}, "three": world | {"two": apart["two"]}}

    def begin(name):
        with pytest.raises(TimeoutError):
            rpc.Agent(engines[name], name, world=worlds[name], init_timeout=30)

    late = [threading.Thread(target=begin, args=(name,)) for name in ("two", "three")]
    for thread in late:
        thread.start()
    with rpc.Agent(engines["one"], "one", world=world) as agent:
        for function in (onward_at_once, onward):
            assert agent.call("two", function, "one", timeout=4) == 5
        agent.shutdown(graceful=False)
    for thread in late:
        thread.join()
    for engine in engines.values():
        engine.close()


def test_meeting_through_a_store(tmp_path):
    with rpc.Store() as store:
        for place in (store, f"tcp://{store.address}", tmp_path / "group", f"file://{tmp_path}/other"):
            engines = [rendez.Engine(named(name), **SMALL) for name in ("one", "two")]
            agents = [None, None]

            def start(at, place=place, engines=engines, agents=agents):
                agents[at] = rpc.Agent(engines[at], ["one", "two"][at], store=place, size=2)

            at_once([lambda: start(0), lambda: start(1)])
            assert agents[0].call("two", echo, 1) == 1
            assert {worker.name for worker in agents[1].workers} == {"one", "two"}
            end(engines, agents)


def test_other_threads_go_on_while_an_agent_is_dropped_that_cannot_leave(engine, tmp_path):
    place = tmp_path / "group"
    agent = rpc.Agent(engine, "one", store=place)
    begins, unlocked = threading.Event(), threading.Event()

    def unlock(lock):
        begins.wait()
        time.sleep(0.2)
        unlocked.set()
        lock.close()

    lock = place.open("r+")
    fcntl.flock(lock, fcntl.LOCK_EX)
    thread = threading.Thread(target=unlock, args=(lock,))
    thread.start()
    begins.set()
    # It waits until the file's lock is free.
    del agent
    assert unlocked.is_set()
    thread.join()


def test_a_stopped_agent(engine):
    agent = rpc.Agent(engine, "one", world={"one": engine.task})
    reference = rpc.RRef(agent, 5)
    call = agent.call_async("one", nap, 30)
    agent.shutdown(graceful=False)
    assert agent.closed
    agent.shutdown()
    for use in (lambda: agent.call("one", echo, 1), lambda: agent.remote("one", echo, 1), lambda: rpc.RRef(agent, 1),
                lambda: agent.workers, reference.to_here, lambda: reference.rpc_sync().x()):
        with pytest.raises(rendez.FailedPrecondition) as caught:
            use()
        assert caught.value.reason == "RPC_SHUTDOWN"
    with pytest.raises(rendez.RendezError):
        call.wait(30)


def test_an_exception_leaves_at_once(engine):
    with pytest.raises(ZeroDivisionError):
        with rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
            agent.call_async("one", nap, 30)
            1 / 0
    assert agent.closed


def test_an_engine_that_ends_ends_calls():
    engine = rendez.Engine(named("ends"), **SMALL)
    agent = rpc.Agent(engine, "one", world={"one": engine.task})
    call = agent.call_async("one", nap, 30)
    engine.close()
    with pytest.raises(rendez.RendezError):
        call.wait(30)
    with pytest.raises(rendez.RendezError):
        agent.call("one", echo, 1, timeout=5)
    agent.shutdown(graceful=False)


def test_async_with():
    async def main():
        async with rendez.Engine(named("async"), **SMALL) as engine:
            async with rpc.Agent(engine, "one", world={"one": engine.task}) as agent:
                assert await agent.call_async("one", echo, 1) == 1
            assert agent.closed

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_function_cannot_shut_its_own_worker_down(careful):
    for function in (leave, leave_softly):
        with pytest.raises(rendez.FailedPrecondition, match="its own worker") as caught:
            careful[0].call("two", function, timeout=20)
        assert caught.value.reason == "RPC_SHUTDOWN"
        assert careful[0].call("two", echo, 1) == 1


class Promised:
    """What the loop tells how a coroutine ended."""

    def __init__(self):
        self.future = concurrent.futures.Future()

    def finish(self, value):
        self.future.set_result(value)

    def fail(self, error):
        self.future.set_exception(error)


def test_a_coroutine_that_is_cancelled_before_it_begins_is_told_and_closed():
    promise, loop = Promised(), _serve._running()
    coroutine = asyncio.sleep(30)

    def start_and_cancel():
        loop._start(-1, promise, coroutine, contextvars.copy_context())
        loop._tasks[-1].cancel()

    loop._loop.call_soon_threadsafe(start_and_cancel)
    with pytest.raises(asyncio.CancelledError):
        promise.future.result(30)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert -1 not in loop._tasks


def test_a_coroutine_that_is_given_up_as_it_begins_is_cancelled():
    promise, loop = Promised(), _serve._running()

    def begin_and_give_up():
        # The loop is about to look at what others have given up.
        loop._loop.call_soon(loop._drain)
        loop.wakes.ring(loop.begin(promise, None, asyncio.sleep(30)))

    loop._loop.call_soon_threadsafe(begin_and_give_up)
    with pytest.raises(asyncio.CancelledError):
        promise.future.result(10)
