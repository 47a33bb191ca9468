//! Elements moved as they are: what only arranges elements is the same for every type of one size, and for strings.
//!
//! Knows sizes and no types. A kernel says [how](Arrange); [`arranged`] finds the elements and the room for them.

use super::Call;
use super::broadcast::Walk;
use super::call::{Done, Fault, check_string_bytes};
use rendez::ground::{DType, Shape};
use rendez::memory::Tensor;
use rendez::memory::strings::encoded_len;

/// How elements of inputs become those of an output.
pub(crate) trait Arrange {
    /// Writes all of `out`; `zero` is what an element is where nothing goes.
    fn arrange<E: Copy>(&self, inputs: &[&[E]], zero: E, out: &mut [E]) -> Done;
}

/// Every element of the output is the one of the only input that a walk leads to.
#[derive(Debug)]
pub(crate) struct Strided {
    /// Where the walk begins.
    pub(crate) base: usize,
    /// The output's rows, and where in the input each stands.
    pub(crate) walk: Walk<1>,
}

/// The tensor of `shape` that `how` makes of `inputs`, which have one type.
pub(crate) fn arranged(
    call: &Call<'_>,
    inputs: &[&Tensor],
    shape: Shape,
    how: &impl Arrange,
) -> Result<Tensor, Fault> {
    let Some(dtype) = inputs.first().map(|input| input.dtype()) else {
        return Err("there is no input".into());
    };
    if let Some(other) = inputs.iter().find(|input| input.dtype() != dtype) {
        return Err(format!("inputs are {dtype} and {}", other.dtype()).into());
    }
    match dtype.size() {
        Some(1) => sized::<1>(call, inputs, dtype, shape, how),
        Some(2) => sized::<2>(call, inputs, dtype, shape, how),
        Some(4) => sized::<4>(call, inputs, dtype, shape, how),
        Some(8) => sized::<8>(call, inputs, dtype, shape, how),
        Some(16) => sized::<16>(call, inputs, dtype, shape, how),
        Some(_) => Err(format!("elements of type {dtype} have no size").into()),
        None => strings(call, inputs, shape, how),
    }
}

fn sized<const N: usize>(
    call: &Call<'_>,
    inputs: &[&Tensor],
    dtype: DType,
    shape: Shape,
    how: &impl Arrange,
) -> Result<Tensor, Fault> {
    let elements = chunks::<N>(inputs)?;
    written(call, dtype, shape, &mut |bytes| {
        how.arrange(&elements, [0; N], bytes.as_chunks_mut::<N>().0)
    })
}

/// The elements of each input; compiled once for each size.
#[inline(never)]
fn chunks<'a, const N: usize>(inputs: &[&'a Tensor]) -> Result<Vec<&'a [[u8; N]]>, Fault> {
    let chunks = inputs
        .iter()
        .map(|input| Ok(input.host()?.as_chunks::<N>().0));
    chunks.collect()
}

/// A tensor whose bytes `write` writes; compiled once.
fn written(
    call: &Call<'_>,
    dtype: DType,
    shape: Shape,
    write: &mut dyn FnMut(&mut [u8]) -> Done,
) -> Result<Tensor, Fault> {
    let mut room = call.room(dtype, shape)?;
    write(room.bytes_mut())?;
    Ok(room.finish())
}

fn strings(
    call: &Call<'_>,
    inputs: &[&Tensor],
    shape: Shape,
    how: &impl Arrange,
) -> Result<Tensor, Fault> {
    // Each string has an entry of eight bytes, also an empty one.
    let entries = shape.elements().saturating_mul(8);
    check_string_bytes(usize::try_from(entries).unwrap_or(usize::MAX))?;
    // Numbers of strings are arranged, in the engine's memory: they may be many more than those that came.
    let (mut items, mut numbers) = (vec![&b""[..]], Vec::with_capacity(inputs.len()));
    for input in inputs {
        let first = items.len();
        items.extend(input.strings()?.iter());
        let own = [first, items.len()].map(|end| u32::try_from(end).unwrap_or(u32::MAX));
        numbers.push((own[0]..own[1]).collect::<Vec<_>>());
    }
    let numbers: Vec<_> = numbers.iter().map(Vec::as_slice).collect();
    let arranged = call.written::<u32>(shape, |out| {
        out.fill(0);
        how.arrange(&numbers, 0, out)
    })?;
    let item = |number: &u32| items.get(*number as usize).copied().unwrap_or_default();
    let arranged = arranged.as_slice::<u32>()?.iter().map(item);
    check_string_bytes(encoded_len(arranged.clone()))?;
    Ok(call.home.strings(shape, arranged)?)
}

impl Arrange for Strided {
    fn arrange<E: Copy>(&self, inputs: &[&[E]], _: E, out: &mut [E]) -> Done {
        let Some(input) = inputs.first() else {
            return Err("there is no input".into());
        };
        let [step] = self.walk.step;
        let mut rows = out.chunks_exact_mut(self.walk.row.max(1));
        let mut is_inside = true;
        self.walk.rows(|[place]| {
            let place = self.base.wrapping_add(place);
            let Some(row) = rows.next() else {
                return;
            };
            match (step, input.get(place..)) {
                (0, Some([element, ..])) => row.fill(*element),
                (1, Some(elements)) if elements.len() >= row.len() => {
                    row.copy_from_slice(&elements[..row.len()]);
                }
                _ => {
                    let mut at = place;
                    for out in row {
                        match input.get(at) {
                            Some(element) => *out = *element,
                            None => is_inside = false,
                        }
                        at = at.wrapping_add(step);
                    }
                }
            }
        });
        if is_inside {
            Ok(())
        } else {
            Err("an element outside of the input is wanted".into())
        }
    }
}

/// The strides of a shape's dimensions, outermost first: elements from one index to the next.
pub(crate) fn strides(shape: Shape) -> Vec<usize> {
    let mut stride = 1usize;
    let mut strides: Vec<_> = shape
        .dims()
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .map(|dim| {
            let own = stride;
            stride = stride.saturating_mul(dim as usize);
            own
        })
        .collect();
    strides.reverse();
    strides
}
