#!/usr/bin/env python3
"""Runs the same graphs with TensorFlow and with rendez, and prints one table. Called by vs-tensorflow.sh.

    vs-tensorflow.py FOLDER             both, with graphs written into FOLDER
    vs-tensorflow.py serve CLUSTER      TensorFlow's second task, until its standard input ends
"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

HOPS = 20
SIZES = {"4 B": 1, "16 MiB": 4 << 20}
WORKERS = ["/job:worker/task:0", "/job:worker/task:1"]


def cluster():
    """Two addresses at which nothing listens."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in WORKERS]
    addresses = ["127.0.0.1:%d" % one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return addresses


def serve(addresses):
    import tensorflow.compat.v1 as tf
    tf.disable_eager_execution()
    server = tf.distribute.Server({"worker": addresses}, "worker", 1)
    print("ready", flush=True)
    sys.stdin.read()
    del server
    os._exit(0)


def graphs(folder):
    """A chain for each size, from a variable of task 0 to and fro; and a graph that does nothing on both tasks."""
    import tensorflow.compat.v1 as tf
    tf.disable_eager_execution()
    tf.disable_resource_variables()
    made = {}
    for name, count in SIZES.items():
        graph = tf.Graph()
        with graph.as_default():
            with tf.device(WORKERS[0]):
                value = tf.Variable(tf.fill([count], 1.0), name=f"source{count}")
                at = tf.identity(value)
            for hop in range(HOPS):
                with tf.device(WORKERS[(hop + 1) % 2]):
                    at = tf.identity(at)
            with tf.device(WORKERS[0]), tf.control_dependencies([at]):
                tf.no_op(name="last")
            tf.variables_initializer([value], name="init")
        made[name] = (graph, ["last"])
    graph = tf.Graph()
    with graph.as_default():
        for at, worker in enumerate(WORKERS):
            with tf.device(worker):
                tf.no_op(name=f"nothing{at}")
        tf.no_op(name="init")
    made["empty"] = (graph, ["nothing0", "nothing1"])
    files = {}
    for name, (graph, targets) in made.items():
        path = folder / f"{name.replace(' ', '')}.pb"
        path.write_bytes(graph.as_graph_def().SerializeToString())
        files[name] = (graph, targets, path)
    return files


def steps_of(name):
    return {"4 B": 300, "16 MiB": 12, "empty": 1000}[name]


def tensorflow(files):
    """The median time of a step of each graph, in seconds."""
    import tensorflow.compat.v1 as tf
    addresses = cluster()
    other = subprocess.Popen([sys.executable, __file__, "serve", *addresses], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        server = tf.distribute.Server({"worker": addresses}, "worker", 0)
        assert other.stdout.readline().strip() == "ready", "TensorFlow's second task did not start"
        # As the graph is written: nothing folded, nothing merged.
        config = tf.ConfigProto(graph_options=tf.GraphOptions(rewrite_options={"disable_meta_optimizer": True}))
        found = {}
        for name, (graph, targets, _) in files.items():
            with tf.Session(server.target, graph=graph, config=config) as session:
                session.run("init")
                step = session.make_callable([graph.get_operation_by_name(target) for target in targets])
                for _ in range(3):
                    step()
                times = []
                for _ in range(steps_of(name)):
                    before = time.perf_counter()
                    step()
                    times.append(time.perf_counter() - before)
                found[name] = statistics.median(times)
        return found
    finally:
        other.stdin.close()
        other.kill()
        other.wait()


def rendez(files, more):
    """The same, of rendez."""
    program = os.environ["RENDEZ"]
    addresses = cluster()
    common = [f"--cluster=worker={','.join(addresses)}", "--job=worker", "--share-cores=true", "--shards=1", *more]
    other = subprocess.Popen([program, "serve", "--with-parent", *common, "--task=1"], stdout=subprocess.DEVNULL)
    try:
        found = {}
        for name, (_, targets, path) in files.items():
            wanted = [f"--target={target}" for target in targets]
            done = subprocess.run([program, "run", str(path), "--init=init", *wanted, "--json", *common, "--task=0",
                                   f"--repeat={10 * steps_of(name)}"], stdout=subprocess.PIPE, check=True, timeout=120)
            last = json.loads(done.stdout.splitlines()[-1])
            found[name] = last["step_ns"]["p50"] / 1e9
        return found
    finally:
        other.terminate()
        other.wait()


def shown(seconds):
    for unit, scale in [("s", 1), ("ms", 1e3), ("µs", 1e6)]:
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def main(folder):
    import tensorflow as tf
    files = graphs(folder)
    theirs = tensorflow(files)
    shm, tcp = rendez(files, []), rendez(files, ["--require=tcp"])
    print(f"TensorFlow {tf.__version__} (grpc) and rendez on {os.cpu_count()} cores, medians\n")
    print("| | TensorFlow | rendez, shm | | rendez, tcp | |")
    print("|---|---|---|---|---|---|")
    for name in files:
        share = 1 if name == "empty" else HOPS
        label = "empty step on two workers" if name == "empty" else f"chain of {HOPS} hops, {name}, per hop"
        row = [label, shown(theirs[name] / share)]
        for ours in [shm, tcp]:
            row += [shown(ours[name] / share), f"1/{theirs[name] / ours[name]:.1f}"]
        print("| " + " | ".join(row) + " |")
    print(f"\nsteps a second of an empty step: TensorFlow {1 / theirs['empty']:.0f}, rendez {1 / shm['empty']:.0f} (shm), "
          f"{1 / tcp['empty']:.0f} (tcp)")


if sys.argv[1] == "serve":
    serve(sys.argv[2:])
else:
    main(pathlib.Path(sys.argv[1]))
