//! The table of operations that compute: a line for each of TensorFlow's definitions that has a kernel here.

use super::super::infer::{
    add_n, all_same, arg_reduce, bias_add, bias_add_grad, broadcast, constant, first, matmul,
    nothing, placeholder, reduce as reduce_shape, same, scalar, select, softmax_loss,
    sparse_softmax_loss, unknown, vector, zip_same,
};
use super::{Row, binary, compare, op, reduce, stateful, unary, unary_grad};

const NUM: &str = "T: num";
const REAL: &str = "T: real";
const FP: &str = "T: fp";
const SMOOTH: &str = "T: smooth";
const ANY: &str = "T: type";
const REDUCE: &str = "keep_dims: bool = false; T: num; Tidx: index = int32";
const REDUCE_BOOL: &str = "keep_dims: bool = false; Tidx: index = int32";
const UPDATE: &str = "T: num; use_locking: bool = false";
const NESTEROV: &str = "T: num; use_locking: bool = false; use_nesterov: bool = false";
const VARIABLE: &str =
    "shape: shape; dtype: type; container: string = ''; shared_name: string = ''";

pub(super) const COMPUTE: &[Row] = &[
    // ── Sources and identities ──────────────────────────────────────────────────────────────────────────────────
    op(
        "Const",
        "-> output: dtype",
        "value: tensor; dtype: type",
        constant,
    ),
    op(
        "Placeholder",
        "-> output: dtype",
        "dtype: type; shape: shape = ?",
        placeholder,
    ),
    op(
        "PlaceholderV2",
        "-> output: dtype",
        "dtype: type; shape: shape",
        placeholder,
    ),
    op(
        "PlaceholderWithDefault",
        "input: dtype -> output: dtype",
        "dtype: type; shape: shape",
        placeholder,
    ),
    op("Identity", "input: T -> output: T", ANY, same),
    op("RefIdentity", "input: Ref(T) -> output: Ref(T)", ANY, same),
    op(
        "IdentityN",
        "input: T -> output: T",
        "T: list(type) >= 1",
        zip_same,
    ),
    op("StopGradient", "input: T -> output: T", ANY, same),
    op(
        "PreventGradient",
        "input: T -> output: T",
        "T: type; message: string = ''",
        same,
    ),
    op("Snapshot", "input: T -> output: T", ANY, same),
    op("NoOp", "->", "", nothing),
    op("ControlTrigger", "->", "", nothing),
    // ── Variables ───────────────────────────────────────────────────────────────────────────────────────────────
    stateful("Variable", "-> ref: Ref(dtype)", VARIABLE, placeholder),
    stateful("VariableV2", "-> ref: Ref(dtype)", VARIABLE, placeholder),
    op(
        "IsVariableInitialized",
        "ref: Ref(dtype) -> is_initialized: bool",
        "dtype: type",
        scalar,
    ),
    op(
        "Assign",
        "ref: Ref(T), value: T -> output_ref: Ref(T)",
        "T: type; validate_shape: bool = true; use_locking: bool = true",
        all_same,
    ),
    op(
        "AssignAdd",
        "ref: Ref(T), value: T -> output_ref: Ref(T)",
        UPDATE,
        all_same,
    ),
    op(
        "AssignSub",
        "ref: Ref(T), value: T -> output_ref: Ref(T)",
        UPDATE,
        all_same,
    ),
    op(
        "ApplyGradientDescent",
        "var: Ref(T), alpha: T, delta: T -> out: Ref(T)",
        UPDATE,
        first,
    ),
    op(
        "ApplyMomentum",
        "var: Ref(T), accum: Ref(T), lr: T, grad: T, momentum: T -> out: Ref(T)",
        NESTEROV,
        first,
    ),
    op(
        "ApplyAdam",
        "var: Ref(T), m: Ref(T), v: Ref(T), beta1_power: T, beta2_power: T, lr: T, beta1: T, beta2: T, epsilon: T, \
         grad: T -> out: Ref(T)",
        NESTEROV,
        first,
    ),
    stateful(
        "VarHandleOp",
        "-> resource: resource",
        "container: string = ''; shared_name: string = ''; debug_name: string = ''; dtype: type; shape: shape; \
         allowed_devices: list(string) = []",
        scalar,
    ),
    stateful(
        "ReadVariableOp",
        "resource: resource -> value: dtype",
        "dtype: type",
        unknown,
    ),
    stateful(
        "VarIsInitializedOp",
        "resource: resource -> is_initialized: bool",
        "",
        scalar,
    ),
    stateful(
        "DestroyResourceOp",
        "resource: resource ->",
        "ignore_lookup_error: bool = true",
        nothing,
    ),
    stateful(
        "VariableShape",
        "input: resource -> output: out_type@",
        "out_type: index = int32",
        vector,
    ),
    stateful(
        "AssignVariableOp",
        "resource: resource, value: dtype ->",
        "dtype: type; validate_shape: bool = false",
        nothing,
    ),
    stateful(
        "AssignAddVariableOp",
        "resource: resource, value: dtype ->",
        "dtype: type",
        nothing,
    ),
    stateful(
        "AssignSubVariableOp",
        "resource: resource, value: dtype ->",
        "dtype: type",
        nothing,
    ),
    stateful(
        "ResourceApplyGradientDescent",
        "var: resource, alpha: T, delta: T ->",
        UPDATE,
        nothing,
    ),
    stateful(
        "ResourceApplyMomentum",
        "var: resource, accum: resource, lr: T, grad: T, momentum: T ->",
        NESTEROV,
        nothing,
    ),
    stateful(
        "ResourceApplyAdam",
        "var: resource, m: resource, v: resource, beta1_power: T, beta2_power: T, lr: T, beta1: T, beta2: T, \
         epsilon: T, grad: T ->",
        NESTEROV,
        nothing,
    ),
    // ── Arithmetic ──────────────────────────────────────────────────────────────────────────────────────────────
    binary("Add", ANY),
    binary("AddV2", NUM),
    binary("Sub", NUM),
    binary("Mul", NUM),
    binary("Div", NUM),
    binary("RealDiv", NUM),
    binary("FloorDiv", NUM),
    binary("FloorMod", REAL),
    binary("Mod", REAL),
    binary("Maximum", REAL),
    binary("Minimum", REAL),
    binary("Pow", NUM),
    binary("SquaredDifference", NUM),
    unary("Neg", NUM),
    unary("Abs", REAL),
    unary("Sign", NUM),
    unary("Exp", SMOOTH),
    unary("Log", SMOOTH),
    unary("Log1p", SMOOTH),
    unary("Sqrt", SMOOTH),
    unary("Rsqrt", SMOOTH),
    unary("Square", NUM),
    unary("Reciprocal", NUM),
    unary("Inv", NUM),
    unary("Tanh", SMOOTH),
    unary("Sigmoid", SMOOTH),
    unary_grad("TanhGrad"),
    unary_grad("SigmoidGrad"),
    unary_grad("SqrtGrad"),
    unary_grad("RsqrtGrad"),
    unary_grad("ReciprocalGrad"),
    op(
        "AddN",
        "inputs: N * T -> sum: T",
        "N: int >= 1; T: num",
        add_n,
    ),
    op(
        "MatMul",
        "a: T, b: T -> product: T",
        "transpose_a: bool = false; transpose_b: bool = false; T: num; grad_a: bool = false; grad_b: bool = false",
        matmul,
    ),
    // ── Networks ────────────────────────────────────────────────────────────────────────────────────────────────
    op(
        "BiasAdd",
        "value: T, bias: T -> output: T",
        "T: num; data_format: string = 'NHWC'",
        bias_add,
    ),
    op(
        "BiasAddGrad",
        "out_backprop: T -> output: T",
        "T: num; data_format: string = 'NHWC'",
        bias_add_grad,
    ),
    op("Relu", "features: T -> activations: T", REAL, same),
    op("Relu6", "features: T -> activations: T", REAL, same),
    op(
        "ReluGrad",
        "gradients: T, features: T -> backprops: T",
        REAL,
        all_same,
    ),
    op("Softmax", "logits: T -> softmax: T", FP, same),
    op("LogSoftmax", "logits: T -> logsoftmax: T", FP, same),
    op(
        "SoftmaxCrossEntropyWithLogits",
        "features: T, labels: T -> loss: T, backprop: T",
        FP,
        softmax_loss,
    ),
    op(
        "SparseSoftmaxCrossEntropyWithLogits",
        "features: T, labels: Tlabels -> loss: T, backprop: T",
        "T: fp; Tlabels: index = int64",
        sparse_softmax_loss,
    ),
    op("L2Loss", "t: T -> output: T", FP, scalar),
    // ── Reductions and comparisons ──────────────────────────────────────────────────────────────────────────────
    reduce("Sum", REDUCE),
    reduce("Mean", REDUCE),
    reduce("Prod", REDUCE),
    reduce("Max", REDUCE),
    reduce("Min", REDUCE),
    op(
        "All",
        "input: bool, reduction_indices: Tidx@ -> output: bool",
        REDUCE_BOOL,
        reduce_shape,
    ),
    op(
        "Any",
        "input: bool, reduction_indices: Tidx@ -> output: bool",
        REDUCE_BOOL,
        reduce_shape,
    ),
    op(
        "ArgMax",
        "input: T, dimension: Tidx@ -> output: output_type",
        "T: {float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}; \
         Tidx: index = int32; output_type: {int16, uint16, int32, int64} = int64",
        arg_reduce,
    ),
    op(
        "ArgMin",
        "input: T, dimension: Tidx@ -> output: output_type",
        "T: {float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}; \
         Tidx: index = int32; output_type: index = int64",
        arg_reduce,
    ),
    compare("Equal", "T: type; incompatible_shape_error: bool = true"),
    compare("NotEqual", "T: type; incompatible_shape_error: bool = true"),
    compare("Less", REAL),
    compare("LessEqual", REAL),
    compare("Greater", REAL),
    compare("GreaterEqual", REAL),
    op("LogicalAnd", "x: bool, y: bool -> z: bool", "", broadcast),
    op("LogicalOr", "x: bool, y: bool -> z: bool", "", broadcast),
    op("LogicalNot", "x: bool -> y: bool", "", same),
    op(
        "Select",
        "condition: bool, t: T, e: T -> output: T",
        ANY,
        select,
    ),
    op(
        "SelectV2",
        "condition: bool, t: T, e: T -> output: T",
        ANY,
        broadcast,
    ),
];
