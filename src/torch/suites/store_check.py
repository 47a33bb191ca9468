"""The Rust store of keys and torch.distributed.TCPStore, each as server of the other's client.

    python store_check.py PATH_OF_THE_EXAMPLE_STORE

Ends with 0 and a line for each check, or with the first that fails.
"""

import datetime
import multiprocessing
import subprocess
import sys
import threading

import torch
import torch.distributed as dist

EXAMPLE = sys.argv[1] if len(sys.argv) > 1 else ""
SECONDS = 60


def timeout(seconds):
    return datetime.timedelta(seconds=seconds)


def client(port, seconds=SECONDS):
    return dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False, timeout=timeout(seconds))


def raises(work):
    try:
        work()
    except RuntimeError:
        return True
    return False


def run(*arguments):
    return subprocess.Popen([EXAMPLE, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def done(process):
    out, _ = process.communicate(timeout=2 * SECONDS)
    assert process.returncode == 0, f"it ended with {process.returncode}: {out}"
    return out


def hosted_by_torch(use_libuv):
    """PyTorch hosts; a Rust client does all that it can."""
    server = dist.TCPStore(
        "127.0.0.1", 0, None, True, use_libuv=use_libuv, wait_for_workers=False, timeout=timeout(SECONDS)
    )
    rust = run("use", f"127.0.0.1:{server.port}")
    server.set("python", "was here")
    server.wait(["rust"], timeout(SECONDS))
    assert server.get("rust").decode().startswith("was here and saw "), server.get("rust")
    assert server.get("m2") == b"\x00\xff\n"
    assert server.get("text") == b"one two"
    assert server.add("sum", 2) == 0
    server.set("looked", "")
    assert "all is as it should be" in done(rust)


def groups_of(port):
    """Rust workers meet through the store that listens there: a static group, twice, and a dynamic one."""
    for _ in range(2):
        workers = [run("meet", f"127.0.0.1:{port}", 3, name) for name in ("a", "b", "c")]
        for name, worker in zip("abc", workers):
            said = done(worker)
            for other in "abc":
                assert (f"{other} says: hello, {name}" in said) == (other != name), said
    # The static group is empty: now it may be one that grows and shrinks.
    assert "says" not in done(run("meet", f"127.0.0.1:{port}", 0, "alone"))


def clients_of(port):
    """PyTorch's client does all that it can at a Rust server."""
    store, other = client(port), client(port)
    store.set("k", "v")
    assert store.get("k") == b"v" and other.get("k") == b"v"
    assert (store.add("n", 5), other.add("n", -7)) == (5, -2)
    assert store.compare_set("c", "", "a") == b"a"
    assert store.compare_set("c", "x", "b") == b"a"
    assert store.compare_set("c", "a", "b") == b"b"
    assert store.compare_set("absent", "x", "y") == b"x"
    assert store.check(["k", "n"]) and not store.check(["k", "never"])
    store.append("k", "w")
    assert store.get("k") == b"vw"
    store.multi_set(["a", "b"], ["1", "22"])
    assert store.multi_get(["b", "a"]) == [b"22", b"1"]
    assert store.delete_key("a") and not store.delete_key("a")
    assert raises(lambda: store.wait(["never"], timeout(0.1)))
    store.wait(["k"], timeout(0.1))
    setter = threading.Timer(0.2, lambda: other.set("late", "x"))
    setter.start()
    assert store.get("late") == b"x"
    large = b"z" * (4 << 20)
    store.set("large", large)
    assert other.get("large") == large
    assert store.num_keys() == 6, store.num_keys()
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("k", "of the prefix")
    assert store.get("p/k") == b"of the prefix"
    if hasattr(store, "queue_push"):
        store.queue_push("q", "1")
        store.queue_push("q", "2")
        assert store.queue_len("q") == 2
        assert (store.queue_pop("q"), other.queue_pop("q")) == (b"1", b"2")
        assert raises(lambda: store.queue_pop("q", False))
    if hasattr(store, "list_keys"):
        assert "k" in store.list_keys(), store.list_keys()
    if hasattr(store, "barrier"):
        store.barrier("alone", 1, timeout(1))
        assert raises(lambda: store.barrier("two", 2, timeout(0.2)))


def rank(port, number, size):
    dist.init_process_group("gloo", store=client(port), rank=number, world_size=size)
    total = torch.tensor([float(number + 1)])
    dist.all_reduce(total)
    assert total.item() == size * (size + 1) / 2, total
    dist.destroy_process_group()


def process_group_of(port):
    """A process group of PyTorch meets through a Rust server."""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank, args=(port, number, 2)) for number in range(2)]
    [one.start() for one in ranks]
    [one.join(2 * SECONDS) for one in ranks]
    assert [one.exitcode for one in ranks] == [0, 0], [one.exitcode for one in ranks]


def check(name, work, *arguments):
    work(*arguments)
    print(f"torch-store: {name}: passed", flush=True)


def main():
    print(f"torch-store: torch {torch.__version__}")
    for use_libuv in (True, False):
        check(f"a Rust client of PyTorch's server, libuv {use_libuv}", hosted_by_torch, use_libuv)
    server = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    check("groups through PyTorch's server", groups_of, server.port)
    rust = run("host", "127.0.0.1:0")
    try:
        port = int(rust.stdout.readline().rsplit(":", 1)[1])
        check("PyTorch's clients of a Rust server", clients_of, port)
        check("a process group of PyTorch through a Rust server", process_group_of, port)
        check("groups through a Rust server", groups_of, port)
    finally:
        rust.stdin.close()
        rust.wait(SECONDS)
    print("torch-store: 6 checks passed")


if __name__ == "__main__":
    main()
