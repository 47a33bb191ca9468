#!/usr/bin/env python3
"""Asks TensorFlow what its kernels compute and refuse, for tests/data/kernels.jsonl.

Run: python scripts/kernel-oracle.py > tests/data/kernels.jsonl   (made with tensorflow-cpu 2.21.0, numpy 2)
Each line is a case: operation, attributes, inputs, and what came out or how it was refused. Inputs are fed through
placeholders, so that refusals are the kernels' own.
"""
import json
import os
import re
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

v1 = tf.compat.v1
rng = np.random.RandomState(7)
options = v1.ConfigProto()
options.graph_options.rewrite_options.disable_meta_optimizer = True
options.graph_options.optimizer_options.opt_level = v1.OptimizerOptions.L0


def number(x):
    if isinstance(x, (bytes, np.bytes_)):
        return x.decode("latin1")
    if isinstance(x, (bool, np.bool_)):
        return int(x)
    if isinstance(x, (int, np.integer)):
        return int(x)
    # The shortest decimal that is this number in its own type.
    x = float(str(x)) if isinstance(x, (np.float32, np.float16, float)) else float(x)
    return x if np.isfinite(x) else str(x)


def told(array):
    array = np.asarray(array)
    dtype = "string" if array.dtype.kind in "OS" else tf.as_dtype(array.dtype).name
    return {"dtype": dtype, "dims": list(array.shape), "values": [number(x) for x in array.reshape(-1)]}


def case(op, attrs=None, **inputs):
    attrs = attrs or {}
    with tf.Graph().as_default():
        feeds, arguments, flat = {}, {}, []
        for name, value in inputs.items():
            many = isinstance(value, list)
            places = []
            for item in value if many else [value]:
                item = np.asarray(item)
                place = v1.placeholder(tf.string if item.dtype.kind in "OS" else tf.as_dtype(item.dtype))
                feeds[place] = item
                places.append(place)
                flat.append(item)
            arguments[name] = places if many else places[0]
        given = {key: getattr(tf, value[3:]) if isinstance(value, str) and value.startswith("dt:") else value
                 for key, value in attrs.items()}
        line = {"op": op, "attrs": attrs, "inputs": [told(item) for item in flat]}
        try:
            made = getattr(tf.raw_ops, op)(name="n", **arguments, **given)
        except Exception as error:
            print("skipped", op, attrs, error, file=sys.stderr)
            return
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        with v1.Session(config=options) as session:
            try:
                line["outputs"] = [told(value) for value in session.run(
                    [m for m in made] if not isinstance(made[0], tf.Operation) else made, feeds)
                    if value is not None]
            except tf.errors.OpError as error:
                text = error.message.split("\n\t [[{{node n}}]]")[0].split("\n")[-1]
                line["error"] = re.sub(r"^\{\{function_node.*?\}\} ?", "", text)
    print(json.dumps(line, separators=(",", ":")))


f = lambda *dims: rng.uniform(-2, 2, dims).astype(np.float32)
d = lambda *dims: rng.uniform(-2, 2, dims)
i = np.int32
l = np.int64

# Reductions.
for op in ("Sum", "Mean", "Prod", "Max", "Min"):
    for dims, axes in (([2, 3, 4], [0]), ([2, 3, 4], [1]), ([2, 3, 4], [2]), ([2, 3, 4], [0, 2]), ([2, 3, 4], [-1, 0]),
                       ([2, 3, 4], [0, 1, 2]), ([2, 3, 4], []), ([5], [0]), ([], []), ([3, 1, 2], [1]), ([40, 3], [0])):
        for keep in (False, True):
            case(op, {"keep_dims": keep}, input=f(*dims), axis=i(axes))
    case(op, input=rng.randint(-9, 9, (3, 4)).astype(i), axis=l(1))
    case(op, input=f(3, 4).astype(np.float16), axis=i([0]))
    case(op, input=f(0, 3), axis=i([1]))
    case(op, input=f(2, 3), axis=i([2]))
    case(op, input=f(2, 3), axis=i([-3]))
    case(op, input=f(2, 3), axis=i([1, 1]))
for values in (np.uint8([200, 200]), np.full(256, 100, np.uint8), i([2**31 - 1, 1]), i([-3, 0]), l([2**63 - 1, 1]), i([])):
    case("Mean", input=values, axis=i([0]))
for op in ("Sum", "Max", "Prod"):
    case(op, input=f(0, 3), axis=i([0]))
for op in ("All", "Any"):
    for axes in ([0], [1], [0, 1]):
        case(op, input=np.array([[True, False, True], [True, True, True]]), axis=i(axes))
for op in ("ArgMax", "ArgMin"):
    for axis in (0, 1, -1, 3):
        case(op, {"output_type": "dt:int32"}, input=f(2, 3, 4), dimension=i(axis))
    case(op, {"output_type": "dt:int64"}, input=np.array([3, 1, 3, 1], l), dimension=i(0))
    case(op, {"output_type": "dt:int64"}, input=np.zeros((0, 2), i), dimension=i(0))

# Networks.
for fmt, value, bias in (("NHWC", f(2, 3), f(3)), ("NHWC", f(2, 2, 3), f(3)), ("NCHW", f(2, 3, 2), f(3)),
                         ("NCHW", f(2, 3, 2, 2), f(3)), ("NHWC", f(2, 3), f(2)), ("NHWC", f(3), f(3)),
                         ("NHWC", f(2, 3), f(1, 3))):
    case("BiasAdd", {"data_format": fmt}, value=value, bias=bias)
for fmt, value in (("NHWC", f(2, 3)), ("NHWC", f(2, 2, 3)), ("NCHW", f(2, 3, 2)), ("NHWC", d(4, 3)), ("NHWC", f(3))):
    case("BiasAddGrad", {"data_format": fmt}, out_backprop=value)
case("Relu", features=f(3, 4)); case("Relu", features=i([-2, 0, 3])); case("Relu6", features=f(3, 4) * 5)
case("ReluGrad", gradients=f(3, 4), features=f(3, 4)); case("ReluGrad", gradients=f(3), features=f(4))
for op in ("Softmax", "LogSoftmax"):
    case(op, logits=f(3, 4)); case(op, logits=d(2, 3, 4)); case(op, logits=f(3).astype(np.float16))
    case(op, logits=np.float32([[1000, 0, -1000], [-1e30, 0, 1]])); case(op, logits=f())
labels = np.float32([[0, 1, 0, 0], [.5, 0, .5, 0], [.25] * 4])
case("SoftmaxCrossEntropyWithLogits", features=f(3, 4), labels=labels)
case("SoftmaxCrossEntropyWithLogits", features=d(3, 4), labels=labels.astype(np.float64))
case("SoftmaxCrossEntropyWithLogits", features=f(3, 4), labels=labels[:1])
case("SoftmaxCrossEntropyWithLogits", features=f(3, 4), labels=labels[:2])
case("SoftmaxCrossEntropyWithLogits", features=f(4), labels=labels[0])
for kind in (i, l):
    case("SparseSoftmaxCrossEntropyWithLogits", features=f(3, 4), labels=kind([0, 3, 1]))
case("SparseSoftmaxCrossEntropyWithLogits", features=f(3, 4), labels=i([0, 4, 1]))
case("SparseSoftmaxCrossEntropyWithLogits", features=f(3, 4), labels=i([0, -1, 1]))
case("SparseSoftmaxCrossEntropyWithLogits", features=f(3, 4), labels=i([0, 1]))
case("SparseSoftmaxCrossEntropyWithLogits", features=f(3), labels=i([0]))
case("L2Loss", t=f(3, 4))

# Comparisons, choices, casts.
for op in ("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"):
    case(op, x=i([[1, 2, 3]]), y=i([[2], [3]])); case(op, x=np.float32([1, np.nan, 2]), y=np.float32([1, np.nan, 3]))
    case(op, x=i([1, 2]), y=i([1, 2, 3]))
for op in ("Equal", "NotEqual"):
    case(op, x=np.array([b"a", b"bc"], object), y=np.array(b"a", object))
    case(op, x=np.array([True, False]), y=np.array([True, True]))
    case(op, {"incompatible_shape_error": False}, x=i([1, 2]), y=i([1, 2, 3]))
    case(op, {"incompatible_shape_error": False}, x=i([1, 2]), y=i([1, 3]))
for op in ("LogicalAnd", "LogicalOr"):
    case(op, x=np.array([[True], [False]]), y=np.array([True, False]))
case("LogicalNot", x=np.array([True, False]))
case("Select", condition=np.array([True, False]), x=f(2, 3), y=f(2, 3))
case("Select", condition=np.array(True), x=f(2, 3), y=f(2, 3))
case("Select", condition=np.array([[True, False]]), x=f(1, 2), y=f(1, 2))
case("Select", condition=np.array([True]), x=f(2, 3), y=f(2, 3)); case("Select", condition=np.array(True), x=f(2), y=f(3))
case("SelectV2", condition=np.array([[True], [False]]), t=f(3), e=f(2, 1))
case("SelectV2", condition=np.array([True, False]), t=np.array([b"a", b"b"], object), e=np.array(b"c", object))
case("SelectV2", condition=np.array([True, False, True]), t=f(2), e=f(2))
values = [0, 1, 2.7, -2.7, 100.5, 3]
kinds = [np.float32, np.float64, np.float16, np.int8, i, l, np.uint8, bool, np.int16, np.uint16, np.uint32, np.uint64]
for source in kinds:
    for target in kinds:
        x = np.array(values).astype(np.int64 if np.dtype(source).kind == "u" else source)
        x = np.abs(x).astype(source) if np.dtype(source).kind == "u" or np.dtype(target).kind == "u" else x.astype(source)
        case("Cast", {"DstT": "dt:" + tf.as_dtype(target).name}, x=x)
case("Cast", {"DstT": "dt:bfloat16"}, x=np.float32([1.00390625, 3.14159, -1e-3]))
case("Cast", {"DstT": "dt:float32"}, x=np.array([2**63 + 2**40], np.uint64))
case("Cast", {"DstT": "dt:int8"}, x=i([300, -300, 128]))
for source in (np.float64, np.float32):
    for target in ("float32", "float16", "bfloat16"):
        x = source([1.9999999, -1.9999999, 0.1, -2.7, 65519, 1e-7, np.nan, -np.inf])
        case("Cast", {"DstT": "dt:" + target, "Truncate": True}, x=x)

# Shapes.
for kind in ("dt:int32", "dt:int64"):
    case("Shape", {"out_type": kind}, input=f(2, 3)); case("Size", {"out_type": kind}, input=f(2, 3))
case("Shape", input=f()); case("Rank", input=f(2, 3)); case("ShapeN", input=[f(2, 3), f(4), f()])
for dims in ([3, 2], [-1], [2, -1, 1], [-1, -1], [4], [5, -1], [0, -1], [-2, 3], [6, 1, 1]):
    case("Reshape", tensor=f(2, 3), shape=i(dims))
case("Reshape", tensor=f(1), shape=i([])); case("Reshape", tensor=np.array([b"a", b"b"], object), shape=l([2, 1]))
for axis in (0, 1, 2, -1, -3, 3, -4):
    case("ExpandDims", input=f(2, 3), axis=i(axis))
for axes in ([], [0], [2], [0, 2], [-1], [1], [3]):
    case("Squeeze", {"axis": axes}, input=f(1, 3, 1))
for dims, perm in (([2, 3], [1, 0]), ([2, 3, 4], [2, 0, 1]), ([2, 3, 4], [1, 0, 2]), ([2, 3], [0, 1]), ([2, 1, 3], [1, 0, 2]),
                   ([2, 3], [1]), ([2, 3], [0, 0]), ([2, 3], [0, 2]), ([2, 3], [-1, 0]), ([0, 3], [1, 0])):
    case("Transpose", x=f(*dims), perm=i(perm))
case("Transpose", x=np.array([[b"a", b"b"], [b"c", b"d"]], object), perm=i([1, 0]))
for p in ([2, 0, 1], [0, 0], [0, 3]):
    case("InvertPermutation", x=i(p))
for a, b in (([2, 3], [3]), ([2, 1], [1, 3]), ([], [2]), ([1], [1]), ([2, 3], [2, 3]), ([4, 1, 3], [2, 1]), ([2], [3]), ([1, 2], [2])):
    case("BroadcastArgs", s0=i(a), s1=i(b)); case("BroadcastGradientArgs", s0=i(a), s1=i(b))

# Fills.
case("Fill", dims=i([2, 3]), value=np.float32(1.5)); case("Fill", dims=l([]), value=np.array(b"x", object))
case("Fill", dims=i([2]), value=f(1)); case("Fill", dims=i([-1]), value=np.float32(1)); case("Fill", dims=i([0]), value=i(3))
case("BroadcastTo", input=f(3), shape=i([2, 3])); case("BroadcastTo", input=f(2, 1), shape=l([2, 3]))
case("BroadcastTo", input=f(2), shape=i([3])); case("BroadcastTo", input=f(2, 2), shape=i([2]))
case("Tile", input=f(2, 3), multiples=i([2, 2])); case("Tile", input=f(2), multiples=i([0]))
case("Tile", input=f(2), multiples=i([2, 2])); case("Tile", input=np.array([b"a", b"b"], object), multiples=i([2]))
case("Tile", input=f(2, 1, 2), multiples=i([1, 3, 2])); case("Tile", input=f(2), multiples=i([-1]))
case("ZerosLike", x=f(2)); case("OnesLike", x=f(2)); case("OnesLike", x=np.array([False])); case("ZerosLike", x=np.array([b"a"], object))
for a in ((0, 5, 1), (0, 5, 2), (5, 0, -2), (0, 0, 1), (0, 5, 0), (5, 0, 1), (0, 5, -1)):
    case("Range", start=i(a[0]), limit=i(a[1]), delta=i(a[2]))
for kind in (np.float32, np.float64, np.float16, tf.bfloat16.as_numpy_dtype):
    for limit in (.3, .7, -.6, 30):
        case("Range", start=kind(0), limit=kind(limit), delta=kind(.1 if limit > 0 else -.1))
case("Range", start=np.float32(0), limit=np.float32(1), delta=np.float32(.3)); case("Range", start=i([0]), limit=i(2), delta=i(1))
for axis in (-1, 0, 1):
    case("OneHot", {"axis": axis}, indices=i([[0, 2], [-1, 3]]), depth=i(3), on_value=np.float32(5), off_value=np.float32(1))
case("OneHot", indices=l([1]), depth=i(2), on_value=np.array(b"on", object), off_value=np.array(b"off", object))
case("OneHot", indices=i([1]), depth=i(-1), on_value=i(1), off_value=i(0))

# Pieces.
for axis in (0, -2):
    case("ConcatV2", values=[f(2, 3), f(1, 3)], axis=i(axis))
case("ConcatV2", values=[f(2, 3), f(2, 1), f(2, 0)], axis=i(1)); case("Concat", concat_dim=i(1), values=[f(2, 3), f(2, 1)])
case("ConcatV2", values=[f(2, 3), f(2, 3)], axis=i(0 + 1)); case("ConcatV2", values=[f(2, 3), f(1, 2)], axis=i(0))
case("ConcatV2", values=[f(2, 3), f(2, 3)], axis=i(2)); case("ConcatV2", values=[f(2), f(2, 3)], axis=i(0))
case("ConcatV2", values=[np.array([b"a"], object), np.array([b"b", b"c"], object)], axis=i(0))
case("ConcatOffset", concat_dim=i(1), shape=[i([2, 2, 7]), i([2, 3, 7]), i([2, 9, 7])])
case("ConcatOffset", concat_dim=i(3), shape=[i([2, 2]), i([2, 3])]); case("ConcatOffset", concat_dim=i(0), shape=[i([2, 2]), i([2, 3])])
for axis in (0, 1, 2, -1, 3):
    case("Pack", {"axis": axis}, values=[f(2, 3), f(2, 3)])
case("Pack", values=[f(), f(), f()]); case("Pack", values=[f(2), f(3)])
for axis in (0, 1, -1, 2):
    case("Unpack", {"axis": axis, "num": [2, 3, 3, 2][axis]}, value=f(2, 3))
case("Unpack", {"num": 3}, value=f(2, 3))
for axis in (0, 1, -1, 2):
    case("Split", {"num_split": 2}, axis=i(axis), value=f(4, 2))
case("Split", {"num_split": 3}, axis=i(0), value=f(4, 2))
for sizes in ([1, 3], [-1, 1], [2, 3], [-1, -1]):
    case("SplitV", {"num_split": 2}, value=f(4, 2), size_splits=i(sizes), axis=i(0))
for begin, size in (([0, 1], [2, 2]), ([1, 0], [-1, -1]), ([0, 0], [0, 3]), ([0, 0], [3, 1]), ([3, 0], [0, 0]), ([-1, 0], [1, 1]),
                    ([0], [1]), ([0, 0], [2, 3])):
    case("Slice", input=f(2, 3), begin=i(begin), size=i(size))
for masks, b, e, s in (({}, [0, 1], [2, 3], [1, 1]), ({}, [0, 2], [2, 0], [1, -1]), ({"begin_mask": 3, "end_mask": 3}, [9, 9], [9, 9], [-1, 2]),
                       ({"shrink_axis_mask": 1}, [1], [2], [1]), ({"new_axis_mask": 1}, [0, 1], [0, 2], [1, 1]),
                       ({"ellipsis_mask": 1}, [0, 1], [0, 2], [1, 1]), ({"ellipsis_mask": 2, "shrink_axis_mask": 5}, [0, 0, -1], [1, 0, 0], [1, 1, 1]),
                       ({}, [-9, -2], [9, 9], [1, 1]), ({}, [0, 0], [4, 4], [1, 0]), ({"shrink_axis_mask": 1}, [5], [6], [1]),
                       ({"ellipsis_mask": 3}, [0, 0], [0, 0], [1, 1]), ({}, [0, 0, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]),
                       ({"begin_mask": 1}, [3], [-1], [1]), ({}, [3, 2], [0, -9], [-2, -1]), ({}, [2], [1], [1]),
                       ({"new_axis_mask": 2, "shrink_axis_mask": 3}, [1, 0], [2, 0], [1, 1])):
    case("StridedSlice", masks, input=f(4, 4, 2), begin=i(b), end=i(e), strides=i(s))
for masks, b, e, s, dy in (({}, [0, 1], [2, 3], [1, 1], f(2, 2)), ({}, [3, 2], [0, -9], [-2, -1], f(2, 3)),
                           ({"shrink_axis_mask": 1}, [1], [2], [1], f(4)), ({}, [0, 1], [2, 3], [1, 1], f(2, 3))):
    case("StridedSliceGrad", masks, shape=i([4, 4]), begin=i(b), end=i(e), strides=i(s), dy=dy)

# Gathers.
case("Gather", params=f(4, 2), indices=i([[3, 0], [1, 1]])); case("Gather", params=f(4, 2), indices=i([4]))
for axis in (0, 1, -1):
    case("GatherV2", params=f(3, 2), indices=i([[1, 0]]), axis=i(axis))
case("GatherV2", {"batch_dims": 1}, params=f(2, 3, 2), indices=i([[1, 0], [2, 2]]), axis=i(1))
case("GatherV2", {"batch_dims": 1}, params=f(2, 3, 4), indices=i([[1, 0], [3, 2]]), axis=i(2))
case("GatherV2", params=f(3, 2), indices=i([[1, -1]]), axis=i(0)); case("GatherV2", params=np.array([b"a", b"b"], object), indices=l(1), axis=i(0))
case("UnsortedSegmentSum", data=f(4, 2), segment_ids=i([0, 2, 0, -1]), num_segments=i(3))
case("UnsortedSegmentSum", data=f(2, 2), segment_ids=i([[0, 1], [1, 1]]), num_segments=i(2))
case("UnsortedSegmentSum", data=f(2), segment_ids=i([0, 3]), num_segments=i(3)); case("UnsortedSegmentSum", data=f(2), segment_ids=i([0]), num_segments=i(3))

# Random numbers.
for kind in ("float32", "float64", "half", "bfloat16"):
    for op in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
        case(op, {"seed": 87654321, "seed2": 42, "dtype": "dt:" + kind}, shape=i([3, 3]))
case("RandomUniformInt", {"seed": 1, "seed2": 2**40}, shape=l([7]), minval=i(-5), maxval=i(100))
case("RandomUniformInt", {"seed": 2**35, "seed2": 0}, shape=i([7]), minval=l(-5), maxval=l(10**12))
case("RandomUniformInt", {"seed": 1}, shape=i([7]), minval=i(5), maxval=i(5))
for kind in (i, l):
    case("RandomUniformInt", {"seed": 1}, shape=i([2, 0]), minval=kind(5), maxval=kind(-5))

# Assertions and strings.
for data, n in (([i([1, 2, 3, 4, 5])], 3), ([np.float32(1.5)], 3), ([i([[1, 2], [3, 4]])], 3), ([i([[1, 2], [3, 4]])], 10),
                ([np.float32([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])], 5), ([np.array(b"abc", object), np.array([b"x", b"y\n"], object)], 3),
                ([np.array([True, False])], 3), ([f(0)], 3), ([np.float32([1 / 3, 1e10, 1e-7, np.nan, np.inf, .1, 123456789])], 10),
                ([np.float64([1 / 3, 1e10, 1e-7, .1, 123456789, 1e16, 1])], 10), ([l(range(10)), i(7)], 3), ([np.float16([1 / 3, 2, 1000])], 3),
                ([np.uint8([1, 255])], 3), ([np.ones((2, 3, 2), i)], 7), ([i([1, 2, 3, 4])], -1)):
    case("Assert", {"summarize": n}, condition=np.array(False), data=data)
case("Assert", condition=np.array(True), data=[i(1)])
case("StringJoin", {"separator": "-"}, inputs=[np.array([b"a", b"b"], object), np.array(b"x", object), np.array([b"", b"d"], object)])
case("StringJoin", inputs=[np.array([b"a", b"b"], object), np.array([b"x"], object)])
case("ShardedFilename", basename=np.array(b"/a/b", object), shard=i(3), num_shards=i(12))
# Arithmetic, for the texts and for special values.
for op in ("FloorMod", "Mod", "FloorDiv", "Div", "Pow", "Maximum", "Minimum", "SquaredDifference", "RealDiv"):
    kind = np.float32
    case(op, x=kind([[5.5, -5.5, 5, 0]]), y=kind([[2], [-2]]))
    if op != "RealDiv":
        case(op, x=i([[5, -5, 7]]), y=i([[2], [3]])); case(op, x=i([1, 2]), y=i([1, 2, 3])); case(op, x=i([1, 2]), y=i([-1, 0]))
case("Pow", x=l([-1, 3, 2, 7]), y=l([2**32, 2**32 + 5, 2**33, 2**62 + 3]))
case("AddN", inputs=[f(2), f(2), f(2)]); case("AddN", inputs=[f(2), f(3)])
case("MatMul", a=f(2, 3), b=f(2, 3)); case("MatMul", a=f(2), b=f(2, 3)); case("MatMul", {"transpose_a": True}, a=f(3, 2), b=f(3, 4))
