#!/usr/bin/env python3
"""Makes tests/data/graphs with real TensorFlow: small graphs, what they were fed, and what TensorFlow made of it.

Needs TensorFlow (pip install tensorflow-cpu) and nothing of rendez. Each graph is cut by TensorFlow itself over three
tasks of one process, /job:ps/task:0 and /job:worker/task:0 and 1, so that what is written down was seen to cross tasks.

    python3 scripts/export-graphs.py [DIRECTORY]
"""

import json
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

PS, W0, W1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"


def described(value):
    """A value as JSON: numbers as they are (the shortest decimals that read back the same), strings in hexadecimal."""
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        flat = [item if isinstance(item, bytes) else str(item).encode() for item in array.reshape(-1)]
        return {"dtype": "string", "shape": list(array.shape), "hex": [item.hex() for item in flat]}
    name = tf.as_dtype(array.dtype).name
    name = {"float32": "float", "float64": "double"}.get(name, name)
    return {"dtype": name, "shape": list(array.shape), "values": array.reshape(-1).tolist()}


class Case:
    """A graph and the steps it was run for."""

    def __init__(self, name, about, resource=False):
        self.name, self.about, self.steps = name, about, []
        self.graph = tf.Graph()
        self.resource = resource

    def __enter__(self):
        (tf.enable_resource_variables if self.resource else tf.disable_resource_variables)()
        self.scope = self.graph.as_default()
        self.scope.__enter__()
        return self

    def __exit__(self, *error):
        self.scope.__exit__(*error)
        if error[0] is not None:
            return
        with tf.Session(TARGET, graph=self.graph, config=CONFIG) as session:
            for step in self.steps:
                step(session)
        folder = OUT / self.name
        folder.mkdir(parents=True, exist_ok=True)
        definition = self.graph.as_graph_def()
        (folder / "graph.pb").write_bytes(definition.SerializeToString(deterministic=True))
        (folder / "graph.pbtxt").write_text(text_format.MessageToString(definition))
        lines = ",\n  ".join(json.dumps(step) for step in self.written)
        about = json.dumps(self.about)
        text = f'{{"about": {about},\n "tensorflow": "{tf.__version__}",\n "steps": [\n  {lines}\n]}}\n'
        (folder / "steps.json").write_text(text)
        print(f"{self.name}: {len(definition.node)} nodes, {len(self.written)} steps, "
              f"{len(set(node.op for node in definition.node))} operations")

    @property
    def written(self):
        if not hasattr(self, "_written"):
            self._written = []
        return self._written

    def run(self, feeds=None, fetches=(), targets=()):
        """Runs a step: what is fed by name, fetched by name, and only run by name."""
        feeds = feeds or {}

        def step(session):
            got = session.run(list(fetches) + list(targets), feeds)
            self.note("run", feeds, fetches, got, targets)

        self.steps.append(step)

    def fails(self, feeds, fetches):
        """Runs a step that must fail; with which code TensorFlow itself does differs from one way to run to another."""

        def step(session):
            try:
                session.run(list(fetches), feeds)
            except tf.errors.OpError as error:
                inputs = {name: described(value) for name, value in feeds.items()}
                self.written.append({"kind": "fails", "feeds": inputs, "fetches": list(fetches),
                                     "code": error.error_code})
                return
            raise AssertionError(f"{self.name}: did not fail")

        self.steps.append(step)

    def partial(self, fetches, feeds, calls):
        """A partial run: set up with all names, then called again and again."""

        def step(session):
            handle = session.partial_run_setup(fetches, feeds)
            self.written.append({"kind": "partial_setup", "feeds": feeds, "fetches": fetches})
            for fed, fetched in calls:
                got = session.partial_run(handle, fetched, fed)
                self.note("partial_run", fed, fetched, got, ())

        self.steps.append(step)

    def note(self, kind, feeds, fetches, got, targets):
        self.written.append({
            "kind": kind,
            "feeds": {name: described(value) for name, value in feeds.items()},
            "fetches": {name: described(value) for name, value in zip(fetches, got)},
            "targets": list(targets),
        })


def data(seed, *shape):
    """Values that are the same wherever and whenever this runs, with few bits, so that sums are nearly exact."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return (generator.integers(-64, 65, shape) / 64).astype(np.float32)


def softmax_regression():
    about = "Softmax regression: reference variables and their updates on the ps, everything else on a worker."
    with Case("softmax_regression", about) as case:
        with tf.device(PS):
            weights = tf.Variable(tf.zeros([6, 3]), name="weights")
            bias = tf.Variable(tf.zeros([3]), name="bias")
            steps = tf.Variable(0, trainable=False, name="steps")
        with tf.device(W0):
            x = tf.placeholder(tf.float32, [None, 6], name="x")
            y = tf.placeholder(tf.int64, [None], name="y")
            logits = tf.nn.bias_add(tf.matmul(x, weights), bias, name="logits")
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(each, name="loss")
            tf.nn.softmax(logits, name="probabilities")
            right = tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32)
            tf.reduce_mean(right, name="accuracy")
        with tf.device(W1):
            tf.reduce_sum(tf.square(tf.gradients(loss, weights)[0]), name="steepness")
        tf.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=steps, name="train")
        tf.global_variables_initializer()
        case.run(targets=["init"])
        inputs = data(1, 12, 6)
        labels = (inputs[:, 0] > 0).astype(np.int64) + (inputs[:, 1] > 0)
        for at in range(8):
            rows = slice(4 * (at % 3), 4 * (at % 3) + 4)
            case.run({"x:0": inputs[rows], "y:0": labels[rows]}, ["loss:0", "steepness:0"], ["train"])
        case.run({"x:0": inputs, "y:0": labels}, ["loss:0", "accuracy:0", "probabilities:0", "logits:0"])
        case.run({}, ["weights:0", "bias:0", "steps:0"])


def mlp(name, optimizer, about):
    with Case(name, about, resource=True) as case:
        with tf.device(PS):
            first = tf.Variable(data(2, 5, 7), name="first")
            first_bias = tf.Variable(np.zeros(7, np.float32), name="first_bias")
            second = tf.Variable(data(3, 7, 4), name="second")
            second_bias = tf.Variable(np.zeros(4, np.float32), name="second_bias")
        variables = [first, first_bias, second, second_bias]
        towers = []
        for at, worker in enumerate([W0, W1]):
            with tf.device(worker), tf.name_scope(f"tower{at}"):
                x = tf.placeholder(tf.float32, [6, 5], name="x")
                y = tf.placeholder(tf.float32, [6, 4], name="y")
                hidden = tf.nn.relu(tf.matmul(x, first) + first_bias)
                hidden = tf.tanh(hidden) + tf.sigmoid(hidden)
                logits = tf.matmul(hidden, second) + second_bias
                each = tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.stop_gradient(y), logits=logits)
                loss = tf.reduce_mean(each, name="loss")
                towers.append(tf.gradients(loss, variables))
        with tf.device(PS):
            mean = [(a + b) / 2.0 for a, b in zip(*towers)]
            optimizer().apply_gradients(list(zip(mean, variables)), name="train")
        tf.global_variables_initializer()
        case.run(targets=["init"])
        labels = np.eye(4, dtype=np.float32)
        for at in range(6):
            fed = {}
            for tower in range(2):
                inputs = data(10 + 2 * at + tower, 6, 5)
                fed[f"tower{tower}/x:0"] = inputs
                fed[f"tower{tower}/y:0"] = labels[(np.abs(inputs[:, :2]).sum(1) * 2).astype(int) % 4]
            case.run(fed, ["tower0/loss:0", "tower1/loss:0"], ["train"])
        reads = [variable.value().name for variable in variables]
        case.run({}, reads)


def while_loop():
    about = "A loop whose body crosses three tasks, with a loop in it whose length depends on the outer one."
    with Case("while_loop", about) as case:
        with tf.device(W0):
            start = tf.placeholder(tf.float32, [3, 3], name="start")
            limit = tf.placeholder(tf.int32, [], name="limit")
            turn = tf.constant([[0, 1, 0], [0, 0, 1], [1, 0, 0]], tf.float32, name="turn")

        def go_on(at, value, total):
            with tf.device(PS):
                return at < limit

        def body(at, value, total):
            with tf.device(W0):
                moved = tf.matmul(value, turn)
            with tf.device(W1):
                moved = moved + tf.cast(at, tf.float32)
                inner = tf.while_loop(lambda j, s: j < at, lambda j, s: (j + 1, s + j), [0, total])
            with tf.device(PS):
                return at + 1, moved * 0.5, inner[1]

        with tf.device(PS):
            at, value, total = tf.while_loop(go_on, body, [0, start, 0], parallel_iterations=4)
        with tf.device(W1):
            tf.identity(at, name="turns")
            tf.identity(value, name="value")
            tf.identity(total, name="total")
        for turns in [0, 1, 2, 7, 20]:
            case.run({"start:0": data(4, 3, 3), "limit:0": np.int32(turns)}, ["turns:0", "value:0", "total:0"])


def conditional():
    about = "A conditional with its branches on different tasks, and one in another."
    with Case("conditional", about) as case:
        with tf.device(PS):
            x = tf.placeholder(tf.float32, [4], name="x")
            limit = tf.placeholder(tf.float32, [], name="limit")
            total = tf.reduce_sum(x)

        def high():
            with tf.device(W0):
                doubled = x * 2.0
            with tf.device(W1):
                return tf.cond(total > 2.0 * limit, lambda: doubled - 100.0, lambda: doubled + limit)

        def low():
            with tf.device(W1):
                return tf.exp(tf.negative(tf.abs(x)))

        with tf.device(W0):
            tf.identity(tf.cond(total > limit, high, low), name="result")
        for limit_of_step in [-10.0, 1.0, 1.5, 2.5, 100.0]:
            x_of_step = np.array([0.5, 1.0, -0.5, 1.0], np.float32)
            case.run({"x:0": x_of_step, "limit:0": np.float32(limit_of_step)}, ["result:0"])


def partial_run():
    about = "A partial run: fetches that come before all feeds are there."
    with Case("partial_run", about) as case:
        with tf.device(W0):
            a = tf.placeholder(tf.float32, [2], name="a")
            b = tf.placeholder(tf.float32, [2], name="b")
        with tf.device(W1):
            c = tf.placeholder(tf.float32, [2], name="c")
            first = tf.add(a, b, name="first")
        with tf.device(PS):
            second = tf.multiply(first, c, name="second")
        with tf.device(W0):
            tf.reduce_sum(second - a, name="third")
        a, b, c = np.array([1, 2], np.float32), np.array([3, -4], np.float32), np.array([0.5, 8], np.float32)
        case.run({"a:0": a, "b:0": b, "c:0": c}, ["first:0", "second:0", "third:0"])
        case.partial(["first:0", "second:0", "third:0"], ["a:0", "b:0", "c:0"],
                     [({"a:0": a, "b:0": b}, ["first:0"]), ({"c:0": c}, ["second:0", "third:0"])])
        case.partial(["first:0", "third:0"], ["a:0", "b:0", "c:0"],
                     [({"a:0": b}, []), ({"b:0": a}, ["first:0"]), ({"c:0": a}, ["third:0"])])


def strings():
    about = "Tensors of strings, of any bytes and of none, between tasks."
    with Case("strings", about) as case:
        with tf.device(W0):
            words = tf.placeholder(tf.string, [None], name="words")
            fixed = tf.constant([b"\x00\xff", b"", "größer".encode(), b"x" * 300], name="fixed")
        with tf.device(W1):
            both = tf.concat([words, fixed], 0, name="both")
            tf.shape(both, name="shape")
            tf.equal(both, tf.constant(b""), name="empty")
        with tf.device(PS):
            joined = tf.string_join([both, both], separator="-", name="joined")
            last = tf.size(both) - 1
            tf.gather(joined, [0, last], name="ends")
            tf.reshape(joined, [2, -1], name="table")
        fetches = ["both:0", "shape:0", "empty:0", "joined:0", "ends:0", "table:0", "fixed:0"]
        case.run({"words:0": np.array([b"a", b"bc"], object)}, fetches)
        case.run({"words:0": np.array([], object)}, fetches)
        case.run({"words:0": np.array([b"\n\x00\x7f" * 9, b""], object)}, fetches)


def dead_branches():
    about = "Values of branches not taken, which cross tasks before anybody merges them; in a loop, too."
    with Case("dead_branches", about) as case:
        with tf.device(W0):
            x = tf.placeholder(tf.float32, [], name="x")
            is_high = tf.placeholder(tf.bool, [], name="is_high")
            no, yes = control_flow().switch(x, is_high)
        with tf.device(W1):
            yes = tf.sqrt(yes + 1.0)
            no_far = no - 1.0
        with tf.device(PS):
            no_far = tf.square(no_far)
            yes = yes * 3.0
        with tf.device(W0):
            merged, which = control_flow().merge([no_far, yes])
        tf.identity(merged, name="merged")
        tf.identity(which, name="which")
        with tf.device(W1):
            tf.identity(yes, name="maybe")

        def body(at, total):
            def odd():
                with tf.device(W0):
                    return total * 2.0

            def even():
                with tf.device(PS):
                    return total + 1.0

            with tf.device(W1):
                return at + 1, tf.cond(tf.equal(at % 2, 1), odd, even)

        with tf.device(W1):
            result = tf.while_loop(lambda at, total: at < 6, body, [0, x], parallel_iterations=3)
        tf.identity(result[1], name="looped")
        for value, flag in [(3.0, True), (3.0, False), (0.25, True)]:
            fed = {"x:0": np.float32(value), "is_high:0": np.bool_(flag)}
            case.run(fed, ["merged:0", "which:0", "looped:0"])
        case.run({"x:0": np.float32(8), "is_high:0": np.bool_(True)}, ["maybe:0"])
        case.fails({"x:0": np.float32(8), "is_high:0": np.bool_(False)}, ["maybe:0"])


def control_flow():
    from tensorflow.python.ops import control_flow_ops
    return control_flow_ops


def main():
    global OUT, TARGET, CONFIG
    here = pathlib.Path(__file__).resolve().parent.parent
    OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "tests/data/graphs"
    tf.disable_eager_execution()
    tf.disable_control_flow_v2()
    # Free ports: 0 would be chosen by each server, and the others could not know it.
    import socket
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    places = ["127.0.0.1:%d" % one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    cluster = tf.train.ClusterSpec({"ps": places[:1], "worker": places[1:]})
    servers = [tf.distribute.Server(cluster, job, task) for job, task in [("ps", 0), ("worker", 0), ("worker", 1)]]
    TARGET = servers[1].target
    CONFIG = tf.ConfigProto(graph_options=tf.GraphOptions(rewrite_options={"disable_meta_optimizer": True}))
    softmax_regression()
    mlp("mlp_momentum", lambda: tf.train.MomentumOptimizer(0.1, 0.9),
        "Two layers in two towers: resource variables on the ps, mean gradients, momentum.")
    mlp("mlp_adam", lambda: tf.train.AdamOptimizer(0.05), "The same with Adam.")
    while_loop()
    conditional()
    partial_run()
    strings()
    dead_branches()


main()
