//! What can be computed of eager tensors: the operations of the dataflow runtime that have gradients, by name.
//!
//! Shapes are row-major; two operands are broadcast as NumPy does. Each function's errors are those of
//! [`Tape::apply`]: a shape or type that the kernel refuses, with its text.

use super::recipe::Attr;
use super::var::{Tape, Var};
use rendez::ground::{DType, Shape, Status, catalogue};
use rendez::memory::Tensor;

/// What an operation gives.
type Result<T = Var> = std::result::Result<T, Status>;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// As [`Tape::apply`].
        pub fn $name(&self) -> Result {
            self.tape.one($op, &[], &[self])
        }
    )*};
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// As [`Tape::apply`].
        pub fn $name(&self, other: &Self) -> Result {
            self.tape.one($op, &[], &[self, other])
        }
    )*};
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// As [`Tape::apply`].
        pub fn $name(&self, axes: &[i32], keep_dims: bool) -> Result {
            let axes = self.tape.row(axes)?;
            self.tape.one($op, &[("keep_dims", Attr::Bool(keep_dims))], &[self, &axes])
        }
    )*};
}

impl Tape {
    /// A row of integers.
    pub(super) fn row(&self, values: &[i32]) -> Result {
        let shape = shape_of(&[values.len() as u64])?;
        Ok(self.constant(Tensor::from_vec(values.to_vec(), shape)?))
    }

    /// One integer.
    pub(super) fn number(&self, value: i32) -> Var {
        self.constant(Tensor::scalar(value))
    }

    /// A scalar of type `dtype`.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn scalar(&self, dtype: DType, value: f64) -> Result {
        let tensor = match dtype {
            DType::F32 => Tensor::scalar(value as f32),
            _ => Tensor::scalar(value),
        };
        self.constant(tensor).cast(dtype)
    }

    /// The tensors one after the other along `axis`.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn concat(&self, vars: &[&Var], axis: i32) -> Result {
        let axis = self.number(axis);
        let inputs: Vec<_> = vars.iter().copied().chain([&axis]).collect();
        self.one("ConcatV2", &[], &inputs)
    }

    /// The tensors side by side along a new `axis`.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn stack(&self, vars: &[&Var], axis: i64) -> Result {
        self.one("Pack", &[("axis", Attr::Int(axis))], vars)
    }

    /// The sum of tensors of one shape.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn add_all(&self, vars: &[&Var]) -> Result {
        self.one("AddN", &[], vars)
    }
}

impl Var {
    unary! {
        /// Minus it.
        neg = "Neg";
        /// e to its power.
        exp = "Exp";
        /// Its natural logarithm.
        log = "Log";
        /// The natural logarithm of one more than it.
        log1p = "Log1p";
        /// Its square root.
        sqrt = "Sqrt";
        /// One over its square root.
        rsqrt = "Rsqrt";
        /// Its square.
        square = "Square";
        /// One over it.
        reciprocal = "Reciprocal";
        /// Its absolute value.
        abs = "Abs";
        /// Its hyperbolic tangent.
        tanh = "Tanh";
        /// 1 / (1 + e⁻ˣ).
        sigmoid = "Sigmoid";
        /// The larger of it and zero.
        relu = "Relu";
        /// The same, at most six.
        relu6 = "Relu6";
        /// Each row of a matrix as probabilities.
        softmax = "Softmax";
        /// Their logarithms.
        log_softmax = "LogSoftmax";
        /// Half the sum of all squares.
        l2_loss = "L2Loss";
        /// It, through which no gradient flows.
        stop_gradient = "StopGradient";
    }

    binary! {
        /// The sum.
        add = "AddV2";
        /// The difference.
        sub = "Sub";
        /// The product, element by element.
        mul = "Mul";
        /// The quotient.
        div = "RealDiv";
        /// The larger of both.
        maximum = "Maximum";
        /// The smaller of both.
        minimum = "Minimum";
        /// It to the power of `other`.
        pow = "Pow";
        /// The square of the difference.
        squared_difference = "SquaredDifference";
        /// Where it is less than `other`.
        less = "Less";
        /// Where it equals `other`.
        equal = "Equal";
        /// A row added to each row along the last dimension.
        bias_add = "BiasAdd";
    }

    reductions! {
        /// The sum along `axes`.
        sum = "Sum";
        /// The mean along `axes`.
        mean = "Mean";
        /// The largest along `axes`.
        max = "Max";
        /// The smallest along `axes`.
        min = "Min";
    }

    /// The matrix product, of either transposed if so asked.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn matmul_with(&self, other: &Self, transpose_self: bool, transpose_other: bool) -> Result {
        let attrs = [
            ("transpose_a", Attr::Bool(transpose_self)),
            ("transpose_b", Attr::Bool(transpose_other)),
        ];
        self.tape.one("MatMul", &attrs, &[self, other])
    }

    /// The matrix product.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn matmul(&self, other: &Self) -> Result {
        self.matmul_with(other, false, false)
    }

    /// The sum of all elements, a scalar.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn total(&self) -> Result {
        let axes: Vec<_> = (0..self.shape().rank() as i32).collect();
        self.sum(&axes, false)
    }

    /// The mean of all elements, a scalar.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn average(&self) -> Result {
        let axes: Vec<_> = (0..self.shape().rank() as i32).collect();
        self.mean(&axes, false)
    }

    /// The same elements under another shape; one dimension may be -1, and follows.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn reshape(&self, dims: &[i32]) -> Result {
        let dims = self.tape.row(dims)?;
        self.tape.one("Reshape", &[], &[self, &dims])
    }

    /// With dimension `order[i]` as dimension i.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn transpose(&self, order: &[i32]) -> Result {
        let order = self.tape.row(order)?;
        self.tape.one("Transpose", &[], &[self, &order])
    }

    /// With another dimension, of one, before `axis`.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn expand_dims(&self, axis: i32) -> Result {
        let axis = self.tape.number(axis);
        self.tape.one("ExpandDims", &[], &[self, &axis])
    }

    /// Without the dimensions of one.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn squeeze(&self) -> Result {
        self.tape.one("Squeeze", &[], &[self])
    }

    /// `size` elements from `begin` on in each dimension; a size of -1 is all that are left.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn slice(&self, begin: &[i32], size: &[i32]) -> Result {
        let (begin, size) = (self.tape.row(begin)?, self.tape.row(size)?);
        self.tape.one("Slice", &[], &[self, &begin, &size])
    }

    /// Repeated to `dims`.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn broadcast_to(&self, dims: &[i32]) -> Result {
        let dims = self.tape.row(dims)?;
        self.tape.one("BroadcastTo", &[], &[self, &dims])
    }

    /// Repeated so many times in each dimension.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn tile(&self, times: &[i32]) -> Result {
        let times = self.tape.row(times)?;
        self.tape.one("Tile", &[], &[self, &times])
    }

    /// Cut into `count` equal parts along `axis`.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn split(&self, count: i64, axis: i32) -> Result<Vec<Self>> {
        let axis = self.tape.number(axis);
        self.tape
            .apply("Split", &[("num_split", Attr::Int(count))], &[&axis, self])
    }

    /// Its slices along `axis`, `count` of them.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn unstack(&self, count: i64, axis: i64) -> Result<Vec<Self>> {
        let attrs = [("num", Attr::Int(count)), ("axis", Attr::Int(axis))];
        self.tape.apply("Unpack", &attrs, &[self])
    }

    /// Its slices along `axis` that `indices` names, of any shape.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn gather(&self, indices: &Self, axis: i32) -> Result {
        let axis = self.tape.number(axis);
        self.tape.one("GatherV2", &[], &[self, indices, &axis])
    }

    /// `yes` where it is true, `no` elsewhere.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn select(&self, yes: &Self, no: &Self) -> Result {
        self.tape.one("SelectV2", &[], &[self, yes, no])
    }

    /// The same numbers as `dtype`.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn cast(&self, dtype: DType) -> Result {
        if self.dtype() == dtype {
            return Ok(self.clone());
        }
        self.tape
            .one("Cast", &[("DstT", Attr::Type(dtype))], &[self])
    }

    /// It times a number.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn scale(&self, by: f64) -> Result {
        self.mul(&self.tape.scalar(self.dtype(), by)?)
    }

    /// The loss of each row of logits `[n, classes]` by `labels`, integers `[n]`.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn sparse_cross_entropy(&self, labels: &Self) -> Result {
        self.tape
            .one("SparseSoftmaxCrossEntropyWithLogits", &[], &[self, labels])
    }

    /// The loss of each row of logits by a row of probabilities.
    ///
    /// # Errors
    /// As [`Tape::apply`].
    pub fn cross_entropy(&self, labels: &Self) -> Result {
        self.tape
            .one("SoftmaxCrossEntropyWithLogits", &[], &[self, labels])
    }
}

/// A shape, as a status if it is none.
pub(super) fn shape_of(dims: &[u64]) -> Result<Shape> {
    Shape::new(dims).map_err(|error| Status::of(catalogue::TENSOR_SHAPE, error.to_string()))
}
