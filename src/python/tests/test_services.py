"""What modules of the package build on: services of Python's, values that are frozen, and reasons of dead ones."""

import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

import rendez


@pytest.fixture
def two():
    with rendez.Engine("/job:one/task:0") as one, rendez.Engine("/job:two/task:0") as two:
        two.add_peer(one.task, one.address)
        yield one, two


def test_a_call_is_answered_by_a_function(two):
    one, other = two
    heard = []

    def answer(task, payload):
        heard.append((task, payload, threading.current_thread() is threading.main_thread()))
        return payload[::-1]

    one._serve(56, answer)
    assert other._call(one.task, 56, b"abc") == b"cba"
    assert other._call(one.task, 56, b"") == b""
    assert heard == [(other.task, b"abc", False), (other.task, b"", False)]
    one._serve(56, None)
    with pytest.raises(rendez.Unimplemented, match="no service 56"):
        other._call(one.task, 56, b"abc")


@pytest.mark.parametrize(
    ("raised", "kind", "reason", "text"),
    [
        (ValueError("odd"), rendez.Internal, "SERVICE_FAILED", "ValueError: odd"),
        (rendez.NotFound("none here", "CHECKPOINT_UNKNOWN"), rendez.NotFound, "CHECKPOINT_UNKNOWN", "none here"),
        (rendez.NotFound("none here", "NOT_OURS"), rendez.Internal, "SERVICE_FAILED", "none here"),
        (SystemExit(3), rendez.Internal, "SERVICE_FAILED", "SystemExit"),
    ],
)
def test_what_a_service_raises_is_heard(two, raised, kind, reason, text):
    one, other = two

    def fail(task, payload):
        raise raised

    one._serve(57, fail)
    with pytest.raises(kind, match=text) as error:
        other._call(one.task, 57, b"")
    assert error.value.reason == reason and one.task in str(error.value)


def test_answers_that_are_no_bytes_are_refused(two):
    one, other = two
    for wrong in (None, "text", 3, ["x"]):
        one._serve(58, lambda task, payload, wrong=wrong: wrong)
        with pytest.raises(rendez.Internal) as error:
            other._call(one.task, 58, b"")
        assert error.value.reason == "SERVICE_FAILED"
    one._serve(58, lambda task, payload: bytes(1 << 20))
    with pytest.raises(rendez.RendezError, match="CALL_PAYLOAD_MAX"):
        other._call(one.task, 58, b"")


def test_numbers_of_others_are_refused(two):
    one, _ = two
    for method in (0, 1, 47, 64, 2**32 - 1):
        with pytest.raises(ValueError, match="48 to 63"):
            one._serve(method, lambda task, payload: b"")
    with pytest.raises((OverflowError, TypeError)):
        one._serve(-1, None)


def test_a_closed_engine_serves_nothing_and_lets_go(two):
    one, other = two

    class Kept:
        pass

    kept, gone = Kept(), threading.Event()

    weakref.finalize(kept, gone.set)
    one._serve(56, lambda task, payload, kept=kept: b"")
    del kept
    one.close()
    assert gone.wait(10)
    with pytest.raises(rendez.RendezError):
        other._call(one.task, 56, b"", timeout=0.5)


def test_a_frozen_value_is_sent_any_number_of_times(two):
    one, other = two
    made = one.empty((4, 5), "f64")
    made.numpy()[:] = 2.5
    value = made.freeze()
    assert (value.shape, value.dtype, value.path) == ((4, 5), "f64", "local")
    with pytest.raises(rendez.FailedPrecondition):
        one.send("one->one;x", made)
    for _ in range(3):
        one.send("one->two;x", value)
    for _ in range(3):
        assert (other.recv("one->two;x").wait(10).numpy() == 2.5).all()
    viewed = one.empty(3)
    view = viewed.numpy()
    with pytest.raises(rendez.FailedPrecondition, match="views"):
        viewed.freeze()
    view[:] = 1
    del view
    assert viewed.freeze().tolist() == [1, 1, 1]


def test_a_dead_value_says_why(two):
    one, other = two
    with one.step(5) as step:
        step.send_dead("one->two;x", b"because")
        step.send_dead("one->two;x")
        with other.step(5) as theirs:
            why, none = theirs.recv("one->two;x").wait(10), theirs.recv("one->two;x").wait(10)
    assert why.dead and why.tobytes() == b"because"
    assert none.dead and none.nbytes == 0


def _program(body):
    """A program with two tasks, of which one answers to the other."""
    return [sys.executable, "-c", textwrap.dedent("""
        import os, signal, sys, threading, time
        import rendez
        small = {"arena_segment_bytes": "4MiB"}
        one = rendez.Engine(f"/job:one{os.getpid()}/task:0", **small)
        two = rendez.Engine(f"/job:two{os.getpid()}/task:0", **small)
        two.add_peer(one.task, one.address)
        begun = threading.Event()
        def slow(task, payload):
            begun.set()
            time.sleep(float(payload))
            print("carried out", flush=True)
            return b""
        one._serve(56, slow)
        def call(seconds):
            try: two._call(one.task, 56, str(seconds).encode())
            except rendez.RendezError: pass
        def under_way(seconds):
            threading.Thread(target=call, args=(seconds,), daemon=True).start()
            begun.wait()
        """) + textwrap.dedent(body)]


def test_the_interpreters_exit_waits_for_services():
    done = subprocess.run(_program("under_way(0.5)"), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "carried out\n", ""), done.stderr


@pytest.mark.parametrize(("handler", "code"), [("lambda *_: sys.exit(7)", 7), ("signal.default_int_handler", 130)])
def test_a_signal_that_ends_the_wait_for_services_ends_engines_first(engine, handler, code):
    program = _program(f"""
        one.add_peer({engine.task!r}, {engine.address!r})
        one.send((one.task, {engine.task!r}, "x"), 1)
        print(one.task, one.address, flush=True)
        sys.stdin.readline()
        signal.signal(signal.SIGALRM, {handler})
        under_way(30)
        signal.setitimer(signal.ITIMER_REAL, 2)
        """)
    began = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        task, address = process.stdout.readline().split()
        engine.add_peer(task, address)
        assert engine.recv((task, engine.task, "x"), timeout=30).wait().item() == 1
        # It hears that the program leaves; one that begins afterwards would wait for it to come back.
        never = engine.recv((task, engine.task, "never"), timeout=30)
        print(file=process.stdin, flush=True)
        with pytest.raises(rendez.RendezError, match="has left"):
            never.wait()
        assert (process.wait(30), process.stderr.read()) == (code, "")
    assert time.monotonic() - began < 25
