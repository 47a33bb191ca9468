//! The table of operations that arrange values and steer them: shapes, pieces, loops, checkpoints, crossings.

use super::super::infer::{
    broadcast_args, broadcast_to, concat, concat_v2, enter, expand_dims, fill, gather, gather_v2,
    merge, nothing, one_hot, pack, random, range, reshape, same, scalar, shape_of, slice, split,
    split_v, squeeze, switch, transpose, unknown, unpack, vector,
};
use super::{Row, op, stateful};

const ANY: &str = "T: type";
const RANDOM: &str = "seed: int = 0; seed2: int = 0; dtype: fp; T: index";
const SENDING: &str = "T: type; tensor_name: string; send_device: string; send_device_incarnation: int = 0; \
                       recv_device: string; client_terminated: bool = false";
const RECEIVING: &str = "tensor_type: type; tensor_name: string; send_device: string; \
                         send_device_incarnation: int = 0; recv_device: string; client_terminated: bool = false";
const FRAME: &str =
    "T: type; frame_name: string; is_constant: bool = false; parallel_iterations: int = 10";

pub(super) const ARRANGE: &[Row] = &[
    // ── Shapes and pieces ───────────────────────────────────────────────────────────────────────────────────────
    op(
        "Cast",
        "x: SrcT -> y: DstT",
        "SrcT: type; DstT: type; Truncate: bool = false",
        same,
    ),
    op(
        "_HostCast",
        "x: SrcT@ -> y: DstT@",
        "SrcT: type; DstT: type; Truncate: bool = false",
        same,
    ),
    op(
        "Shape",
        "input: T -> output: out_type@",
        "T: type; out_type: index = int32",
        shape_of,
    ),
    op(
        "ShapeN",
        "input: N * T -> output: N * out_type@",
        "N: int >= 1; T: type; out_type: index = int32",
        shape_of,
    ),
    op(
        "Size",
        "input: T -> output: out_type@",
        "T: type; out_type: index = int32",
        scalar,
    ),
    op("Rank", "input: T -> output: int32@", ANY, scalar),
    op(
        "Reshape",
        "tensor: T, shape: Tshape@ -> output: T",
        "T: type; Tshape: index = int32",
        reshape,
    ),
    op(
        "ExpandDims",
        "input: T, dim: Tdim@ -> output: T",
        "T: type; Tdim: index = int32",
        expand_dims,
    ),
    op(
        "Squeeze",
        "input: T -> output: T",
        "T: type; squeeze_dims: list(int) = []",
        squeeze,
    ),
    op(
        "Transpose",
        "x: T, perm: Tperm@ -> y: T",
        "T: type; Tperm: index = int32",
        transpose,
    ),
    op(
        "InvertPermutation",
        "x: T@ -> y: T@",
        "T: index = int32",
        same,
    ),
    op(
        "Concat",
        "concat_dim: int32@, values: N * T -> output: T",
        "N: int >= 2; T: type",
        concat,
    ),
    op(
        "ConcatV2",
        "values: N * T, axis: Tidx@ -> output: T",
        "N: int >= 2; T: type; Tidx: index = int32",
        concat_v2,
    ),
    op(
        "ConcatOffset",
        "concat_dim: int32@, shape: N * shape_type@ -> offset: N * shape_type@",
        "N: int >= 2; shape_type: index = int32",
        unknown,
    ),
    op(
        "Split",
        "split_dim: int32@, value: T -> output: num_split * T",
        "num_split: int >= 1; T: type",
        split,
    ),
    op(
        "SplitV",
        "value: T, size_splits: Tlen@, split_dim: int32@ -> output: num_split * T",
        "num_split: int >= 1; T: type; Tlen: {int8, int32, int64} = int64",
        split_v,
    ),
    op(
        "Slice",
        "input: T, begin: Index@, size: Index@ -> output: T",
        "T: type; Index: index",
        slice,
    ),
    op(
        "StridedSlice",
        "input: T, begin: Index@, end: Index@, strides: Index@ -> output: T",
        "T: type; Index: {int16, int32, int64}; begin_mask: int = 0; end_mask: int = 0; ellipsis_mask: int = 0; \
         new_axis_mask: int = 0; shrink_axis_mask: int = 0",
        unknown,
    ),
    op(
        "StridedSliceGrad",
        "shape: Index@, begin: Index@, end: Index@, strides: Index@, dy: T -> output: T",
        "T: type; Index: {int16, int32, int64}; begin_mask: int = 0; end_mask: int = 0; ellipsis_mask: int = 0; \
         new_axis_mask: int = 0; shrink_axis_mask: int = 0",
        unknown,
    ),
    op(
        "Pack",
        "values: N * T -> output: T",
        "N: int >= 1; T: type; axis: int = 0",
        pack,
    ),
    op(
        "Unpack",
        "value: T -> output: num * T",
        "num: int >= 0; T: type; axis: int = 0",
        unpack,
    ),
    op(
        "Gather",
        "params: Tparams, indices: Tindices -> output: Tparams",
        "validate_indices: bool = true; Tparams: type; Tindices: index",
        gather,
    ),
    op(
        "GatherV2",
        "params: Tparams, indices: Tindices, axis: Taxis@ -> output: Tparams",
        "batch_dims: int = 0; Tparams: type; Tindices: {int16, int32, int64}; Taxis: index",
        gather_v2,
    ),
    op(
        "OneHot",
        "indices: TI, depth: int32@, on_value: T, off_value: T -> output: T",
        "axis: int = -1; T: type; TI: {uint8, int8, int32, int64} = int64",
        one_hot,
    ),
    op(
        "Fill",
        "dims: index_type@, value: T -> output: T",
        "T: type; index_type: index = int32",
        fill,
    ),
    op("ZerosLike", "x: T -> y: T", ANY, same),
    op("OnesLike", "x: T -> y: T", ANY, same),
    op(
        "Range",
        "start: Tidx@, limit: Tidx@, delta: Tidx@ -> output: Tidx",
        "Tidx: {bfloat16, half, float, double, int8, int16, int32, int64, uint16, uint32} = int32",
        range,
    ),
    op(
        "Tile",
        "input: T, multiples: Tmultiples@ -> output: T",
        "T: type; Tmultiples: index = int32",
        unknown,
    ),
    op(
        "BroadcastTo",
        "input: T, shape: Tidx@ -> output: T",
        "T: type; Tidx: index = int32",
        broadcast_to,
    ),
    op(
        "BroadcastArgs",
        "s0: T@, s1: T@ -> r0: T@",
        "T: index = int32",
        broadcast_args,
    ),
    op(
        "BroadcastGradientArgs",
        "s0: T@, s1: T@ -> r0: T@, r1: T@",
        "T: index = int32",
        vector,
    ),
    op(
        "UnsortedSegmentSum",
        "data: T, segment_ids: Tindices, num_segments: Tnumsegments@ -> output: T",
        "T: num; Tindices: {int16, int32, int64}; Tnumsegments: index = int32",
        unknown,
    ),
    // ── Random numbers ──────────────────────────────────────────────────────────────────────────────────────────
    stateful(
        "RandomUniform",
        "shape: T@ -> output: dtype",
        RANDOM,
        random,
    ),
    stateful(
        "RandomStandardNormal",
        "shape: T@ -> output: dtype",
        RANDOM,
        random,
    ),
    stateful(
        "TruncatedNormal",
        "shape: T@ -> output: dtype",
        RANDOM,
        random,
    ),
    stateful(
        "RandomUniformInt",
        "shape: T@, minval: Tout, maxval: Tout -> output: Tout",
        "seed: int = 0; seed2: int = 0; Tout: index; T: index",
        random,
    ),
    // ── Control flow ────────────────────────────────────────────────────────────────────────────────────────────
    stateful(
        "Assert",
        "condition: bool@, data: T ->",
        "T: list(type) >= 1; summarize: int = 3",
        nothing,
    ),
    op(
        "Switch",
        "data: T, pred: bool@ -> output_false: T, output_true: T",
        ANY,
        switch,
    ),
    op(
        "RefSwitch",
        "data: Ref(T), pred: bool@ -> output_false: Ref(T), output_true: Ref(T)",
        ANY,
        switch,
    ),
    op(
        "Merge",
        "inputs: N * T -> output: T, value_index: int32@",
        "T: type; N: int >= 1",
        merge,
    ),
    op(
        "RefMerge",
        "inputs: N * Ref(T) -> output: Ref(T), value_index: int32@",
        "T: type; N: int >= 1",
        merge,
    ),
    op("Enter", "data: T -> output: T", FRAME, enter),
    op("RefEnter", "data: Ref(T) -> output: Ref(T)", FRAME, enter),
    op("Exit", "data: T -> output: T", ANY, same),
    op("RefExit", "data: Ref(T) -> output: Ref(T)", ANY, same),
    op("NextIteration", "data: T -> output: T", ANY, same),
    op(
        "RefNextIteration",
        "data: Ref(T) -> output: Ref(T)",
        ANY,
        same,
    ),
    op("LoopCond", "input: bool@ -> output: bool@", "", same),
    // ── Checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────
    stateful(
        "SaveV2",
        "prefix: string, tensor_names: string, shape_and_slices: string, tensors: dtypes ->",
        "dtypes: list(type) >= 1",
        nothing,
    ),
    stateful(
        "RestoreV2",
        "prefix: string, tensor_names: string, shape_and_slices: string -> tensors: dtypes",
        "dtypes: list(type) >= 1",
        unknown,
    ),
    op(
        "ShardedFilename",
        "basename: string, shard: int32, num_shards: int32 -> filename: string",
        "",
        scalar,
    ),
    stateful(
        "MergeV2Checkpoints",
        "checkpoint_prefixes: string, destination_prefix: string ->",
        "delete_old_dirs: bool = true; allow_missing_files: bool = false",
        nothing,
    ),
    op(
        "StringJoin",
        "inputs: N * string -> output: string",
        "N: int >= 0; separator: string = ''",
        unknown,
    ),
    // ── Made by cutting a graph ─────────────────────────────────────────────────────────────────────────────────
    stateful("_Send", "tensor: T ->", SENDING, nothing),
    stateful("_HostSend", "tensor: T@ ->", SENDING, nothing),
    stateful("_Recv", "-> tensor: tensor_type", RECEIVING, unknown),
    stateful("_HostRecv", "-> tensor: tensor_type@", RECEIVING, unknown),
    stateful("_Arg", "-> output: T", "T: type; index: int >= 0", unknown),
    stateful(
        "_Retval",
        "input: T ->",
        "T: type; index: int >= 0",
        nothing,
    ),
];
