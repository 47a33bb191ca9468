//! What a kernel computes with: its inputs as slices, its outputs in the engine's memory, and what it refuses.
//!
//! Knows no operation.

use super::Call;
use crate::kernel::variables::{Held, Variable};
use crate::kernel::{Value, Waiting};
use rendez::ground::limits::STRING_TENSOR_BYTES_MAX;
use rendez::ground::shape::{RANK_MAX, ShapeError};
use rendez::ground::{DType, Shape, Status, TensorMeta, catalogue};
use rendez::memory::strings::encoded_len;
use rendez::memory::{Element, Tensor, TensorBuilder, TensorError};
use std::sync::Arc;

/// What a kernel refuses; its node is not named yet.
#[derive(Debug)]
pub(crate) struct Fault(Status);
/// The end of a call.
pub(crate) type Done = Result<(), Fault>;

impl Fault {
    /// The refusal with the node's name.
    pub(crate) fn at(self, node: &str, op: &str) -> Status {
        let Self(status) = self;
        let message = format!("{}; {{{{node {node}}}}} = {op}", status.message());
        Status::new(status.code(), status.reason(), message)
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self(status)
    }
}

impl From<String> for Fault {
    fn from(what: String) -> Self {
        Self(Status::of(catalogue::KERNEL_INPUT, what))
    }
}

impl From<&str> for Fault {
    fn from(what: &str) -> Self {
        Self(Status::of(catalogue::KERNEL_INPUT, what))
    }
}

impl From<TensorError> for Fault {
    fn from(error: TensorError) -> Self {
        error.to_string().into()
    }
}

impl From<ShapeError> for Fault {
    fn from(error: ShapeError) -> Self {
        error.to_string().into()
    }
}

impl<'a> Call<'a> {
    /// The variable that flows in at `index`.
    pub(crate) fn variable(&self, index: usize) -> Result<&'a Arc<Variable>, Fault> {
        let variable = self.inputs.get(index).and_then(Value::variable);
        variable.ok_or_else(|| format!("input {index} is a tensor, not a variable").into())
    }
}

impl Call<'_> {
    /// Keeps all others from assigning to a variable. Waits for one that does, if this call may wait. Hold all that you
    /// need before you change anything: the whole call may be made again.
    ///
    /// # Errors
    /// `WAIT_IN_SHARD` if it may not, and would have to. The call is to end with it then: it is made again from its
    /// start, whatever it ends with, where it may wait.
    pub fn hold<'v>(&mut self, variable: &'v Variable) -> Result<Held<'v>, Status> {
        if self.waiting == Waiting::May {
            return Ok(variable.hold());
        }
        variable.try_hold().ok_or_else(|| {
            self.waiting = Waiting::Would;
            let message = format!("another thread assigns to {}", variable.name());
            Status::of(catalogue::WAIT_IN_SHARD, message)
        })
    }

    /// Input `index`, in the host's memory and aligned for its elements.
    pub(crate) fn tensor(&self, index: usize) -> Result<Tensor, Fault> {
        let value = self.inputs.get(index);
        let tensor = value.ok_or("an input is missing")?.tensor()?;
        let size = tensor.dtype().size().unwrap_or(1);
        if tensor.host()?.as_ptr().addr().is_multiple_of(size.min(8)) {
            return Ok(tensor);
        }
        // Foreign memory may begin anywhere.
        self.copied(&tensor)
    }

    /// Input `index` to keep beyond the step: in memory of this task, where a peer's is kept no longer than it is read.
    pub(crate) fn kept(&self, index: usize) -> Result<Tensor, Fault> {
        let tensor = self.tensor(index)?;
        if !tensor.is_leased() {
            return Ok(tensor);
        }
        if tensor.dtype() == DType::String {
            let items: Vec<_> = tensor.strings()?.iter().collect();
            return Ok(self.home.strings(tensor.shape(), &items)?);
        }
        self.copied(&tensor)
    }

    fn copied(&self, tensor: &Tensor) -> Result<Tensor, Fault> {
        let mut room = self.home.allocate(tensor.meta())?;
        room.bytes_mut().copy_from_slice(tensor.host()?);
        Ok(room.finish())
    }

    /// The variable that the handle at `index` names: if that was forgotten meanwhile, the one that has its name now.
    pub(crate) fn handle(&self, index: usize) -> Result<Arc<Variable>, Fault> {
        let variable = self.variable(index)?;
        if variable.is_forgotten() {
            let (container, name) = (variable.container(), variable.name());
            return Ok(self.home.variables.find(container, name));
        }
        Ok(Arc::clone(variable))
    }

    /// The integers of input `index`, of any width, at most [`RANK_MAX`] of them: a shape, or axes of one.
    pub(crate) fn dims(&self, index: usize) -> Result<Vec<i64>, Fault> {
        let tensor = self.tensor(index)?;
        if tensor.shape().rank() > 1 {
            return Err(format!(
                "input {index} must be a vector of dimensions, and has shape {}",
                tensor.shape()
            )
            .into());
        }
        if tensor.shape().elements() > RANK_MAX as u64 {
            return Err(format!(
                "input {index} names {} dimensions, and a tensor has at most {RANK_MAX}",
                tensor.shape().elements()
            )
            .into());
        }
        integers(&tensor)
    }

    /// The one integer of input `index`, of any width.
    pub(crate) fn integer(&self, index: usize) -> Result<i64, Fault> {
        let tensor = self.tensor(index)?;
        if tensor.shape().elements() != 1 {
            return Err(format!(
                "input {index} must be a scalar, and has shape {}",
                tensor.shape()
            )
            .into());
        }
        let integers = integers(&tensor)?;
        integers
            .first()
            .copied()
            .ok_or_else(|| "a scalar is missing".into())
    }

    /// The next output: `T`s of `shape`, which `fill` writes, every one of them.
    pub(crate) fn output<T: Element>(&mut self, shape: Shape, fill: impl FnOnce(&mut [T])) -> Done {
        self.try_output(shape, |out| {
            fill(out);
            Ok(())
        })
    }

    /// The next output, which `fill` may refuse to write.
    pub(crate) fn try_output<T: Element>(
        &mut self,
        shape: Shape,
        fill: impl FnOnce(&mut [T]) -> Done,
    ) -> Done {
        let tensor = self.written(shape, fill)?;
        self.push(tensor);
        Ok(())
    }

    /// Room for elements of `dtype`.
    pub(crate) fn room(&self, dtype: DType, shape: Shape) -> Result<TensorBuilder, Fault> {
        Ok(self.home.allocate(TensorMeta::new(dtype, shape)?)?)
    }

    /// A tensor of `T`s of `shape`, which `fill` writes.
    pub(crate) fn written<T: Element>(
        &self,
        shape: Shape,
        fill: impl FnOnce(&mut [T]) -> Done,
    ) -> Result<Tensor, Fault> {
        let mut fill = Some(fill);
        self.filled(T::DTYPE, shape, &mut |room| {
            fill.take().map_or(Ok(()), |fill| fill(elements_mut(room)?))
        })
    }

    /// What is the same for every type and kernel of [`Self::written`], compiled once.
    fn filled(
        &self,
        dtype: DType,
        shape: Shape,
        fill: &mut dyn FnMut(&mut TensorBuilder) -> Done,
    ) -> Result<Tensor, Fault> {
        let mut room = self.room(dtype, shape)?;
        fill(&mut room)?;
        Ok(room.finish())
    }

    /// What `place` makes of each of `indices`, integers of any width, by number: in the engine's memory, since they
    /// may be as many as an input has bytes.
    pub(crate) fn places(
        &self,
        indices: &Tensor,
        mut place: impl FnMut(usize, i64) -> Result<u64, Fault>,
    ) -> Result<Tensor, Fault> {
        fn all<T: Element + Into<i64>>(
            indices: &Tensor,
            out: &mut [u64],
            mut place: impl FnMut(usize, i64) -> Result<u64, Fault>,
        ) -> Done {
            for (at, (out, &index)) in out.iter_mut().zip(elements::<T>(indices)?).enumerate() {
                *out = place(at, index.into())?;
            }
            Ok(())
        }
        let count = Shape::new(&[indices.shape().elements()])?;
        self.written::<u64>(count, |out| match indices.dtype() {
            DType::I8 => all::<i8>(indices, out, &mut place),
            DType::U8 => all::<u8>(indices, out, &mut place),
            DType::I16 => all::<i16>(indices, out, &mut place),
            DType::I32 => all::<i32>(indices, out, &mut place),
            DType::I64 => all::<i64>(indices, out, &mut place),
            other => Err(format!("integers are wanted, and {other} came").into()),
        })
    }

    /// The next output: integers as wide as `dtype` says, 32 or 64 bits.
    pub(crate) fn output_ints(&mut self, dtype: DType, shape: Shape, values: &[i64]) -> Done {
        if dtype == DType::I64 {
            return self.output::<i64>(shape, |out| out.copy_from_slice(values));
        }
        let narrow: Result<Vec<i32>, _> = values.iter().map(|&value| value.try_into()).collect();
        let narrow = narrow.map_err(|_| "a number does not fit 32 bits: ask for out_type int64")?;
        self.output::<i32>(shape, |out| out.copy_from_slice(&narrow))
    }

    /// The next output: strings.
    pub(crate) fn output_strings<S: AsRef<[u8]>>(
        &mut self,
        shape: Shape,
        items: impl IntoIterator<Item = S, IntoIter: Clone>,
    ) -> Done {
        let items = items.into_iter();
        check_string_bytes(encoded_len(items.clone()))?;
        self.push(self.home.strings(shape, items)?);
        Ok(())
    }

    /// The next output.
    pub(crate) fn push(&mut self, tensor: Tensor) {
        self.outputs.push(Value::Tensor(tensor));
    }
}

/// Refuses strings that take more bytes, each with an entry of eight, than a tensor of them may have.
pub(crate) fn check_string_bytes(bytes: usize) -> Done {
    if bytes <= STRING_TENSOR_BYTES_MAX {
        return Ok(());
    }
    let message = format!("{bytes} bytes of strings are over STRING_TENSOR_BYTES_MAX");
    Err(Status::of(catalogue::GRAPH_LIMIT, message).into())
}

/// Room of the heap for so many. What is not there is refused: the heap itself would end the process.
pub(crate) fn heap<T>(len: usize) -> Result<Vec<T>, Fault> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| {
        let bytes = len.saturating_mul(size_of::<T>());
        let message = format!("{bytes} bytes beside its output are not there: give it less");
        Status::of(catalogue::GRAPH_LIMIT, message)
    })?;
    Ok(room)
}

/// As [`heap`], with `value` at every place.
pub(crate) fn heap_of<T: Clone>(len: usize, value: T) -> Result<Vec<T>, Fault> {
    let mut room = heap(len)?;
    room.resize(len, value);
    Ok(room)
}

/// The elements of a tensor. Not inlined: it is compiled once for each type, not for each kernel.
#[inline(never)]
pub(crate) fn elements<T: Element>(tensor: &Tensor) -> Result<&[T], Fault> {
    Ok(tensor.as_slice()?)
}

/// The elements of an output, compiled once for each type too.
#[inline(never)]
pub(crate) fn elements_mut<T: Element>(room: &mut TensorBuilder) -> Result<&mut [T], Fault> {
    Ok(room.as_mut_slice()?)
}

/// The integers of a tensor, of any width.
pub(crate) fn integers(tensor: &Tensor) -> Result<Vec<i64>, Fault> {
    fn wide<T: Element + Into<i64>>(tensor: &Tensor) -> Result<Vec<i64>, Fault> {
        let elements = tensor.as_slice::<T>()?;
        let mut integers = heap(elements.len())?;
        integers.extend(elements.iter().map(|&number| number.into()));
        Ok(integers)
    }
    match tensor.dtype() {
        DType::I8 => wide::<i8>(tensor),
        DType::U8 => wide::<u8>(tensor),
        DType::I16 => wide::<i16>(tensor),
        DType::I32 => wide::<i32>(tensor),
        DType::I64 => wide::<i64>(tensor),
        other => Err(format!("integers are wanted, and {other} came").into()),
    }
}

/// The shape of dimensions that were computed or came as values.
pub(crate) fn shape_of(dims: &[i64]) -> Result<Shape, Fault> {
    let mut sizes = [0u64; RANK_MAX];
    let sizes = sizes
        .get_mut(..dims.len())
        .ok_or(ShapeError::Rank(dims.len()))?;
    for (index, (size, &dim)) in sizes.iter_mut().zip(dims).enumerate() {
        *size = u64::try_from(dim).map_err(|_| {
            format!("Dimension {dim} must be >= 0: it is number {index} of a shape")
        })?;
    }
    Ok(Shape::new(sizes)?)
}

/// Dimension `axis` of `rank`, counted from the end if it is negative.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let signed = i64::try_from(rank).ok()?;
    let axis = if axis < 0 {
        axis.checked_add(signed)?
    } else {
        axis
    };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

/// The same; one that there is not is refused, with `what` before the original's words.
pub(crate) fn axis_within(axis: i64, rank: usize, what: &str) -> Result<usize, Fault> {
    axis_of(axis, rank).ok_or_else(|| {
        let low = -(rank as i64);
        format!("{what} in the range [{low}, {rank}), but got {axis}").into()
    })
}
