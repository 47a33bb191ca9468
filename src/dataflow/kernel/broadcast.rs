//! Broadcasting: how elements of tensors of different shapes meet, by NumPy's rule. Knows no arithmetic.
//!
//! A [`Walk`] visits the rows of a shape in order and says where each operand stands. Dimensions that lie behind each
//! other in every operand are one, so that the usual cases (equal shapes, a scalar, a row for each line) are few long
//! rows.

use super::numbers::PIECE;
use rendez::ground::Shape;
use rendez::ground::shape::RANK_MAX;

#[cfg(test)]
mod tests;

/// Dimensions of a walk: a tile has two for each of its tensor's.
const DIMS_MAX: usize = 2 * RANK_MAX;

/// The rows of a shape, and where each of `N` operands stands in them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk<const N: usize> {
    rank: usize,
    dims: [usize; DIMS_MAX],
    strides: [[usize; DIMS_MAX]; N],
    /// Elements of a row.
    pub(crate) row: usize,
    /// From one element of a row to the next, for each operand.
    pub(crate) step: [usize; N],
}

/// The shape of an elementwise operation on both.
///
/// # Errors
/// The original's text for shapes that do not fit.
pub(crate) fn broadcast(left: Shape, right: Shape) -> Result<Shape, String> {
    if left == right {
        return Ok(left);
    }
    let rank = left.rank().max(right.rank());
    let mut dims = [0u64; RANK_MAX];
    for (index, dim) in dims.iter_mut().enumerate().take(rank) {
        *dim = match (at(left, index, rank), at(right, index, rank)) {
            (left, right) if left == right => left,
            (1, size) | (size, 1) => size,
            _ => return Err(format!("Incompatible shapes: {left} vs. {right}")),
        };
    }
    Shape::new(&dims[..rank]).map_err(|error| error.to_string())
}

/// Dimension `index` of `shape` as one of `rank`, which has ones in front.
fn at(shape: Shape, index: usize, rank: usize) -> u64 {
    let own = (index + shape.rank()).checked_sub(rank);
    own.and_then(|index| shape.dim(index)).unwrap_or(1)
}

/// How many elements dimensions have together; at most as many as can be counted: where one of a shape is zero, the
/// others may multiply to more.
pub(crate) fn count(dims: impl Iterator<Item = usize>) -> usize {
    dims.fold(1, usize::saturating_mul)
}

/// As [`count`], of dimensions as shapes have them.
pub(crate) fn count_of(dims: &[u64]) -> usize {
    count(dims.iter().map(|&dim| dim as usize))
}

impl<const N: usize> Walk<N> {
    /// The rows of `out`, in which each of `operands` is broadcast.
    pub(crate) fn broadcast(out: Shape, operands: [Shape; N]) -> Self {
        let rank = out.rank();
        let mut strides = [[0usize; RANK_MAX]; N];
        for (strides, operand) in strides.iter_mut().zip(operands) {
            let mut stride = 1usize;
            for index in (0..rank).rev() {
                let size = at(operand, index, rank) as usize;
                strides[index] = if size == 1 { 0 } else { stride };
                stride = stride.saturating_mul(size);
            }
        }
        Self::strided(out, strides)
    }

    /// The rows of `out`, with these strides of the operands.
    pub(crate) fn strided(out: Shape, strides: [[usize; RANK_MAX]; N]) -> Self {
        Self::over((0..out.rank()).map(|index| {
            let size = out.dim(index).unwrap_or(1) as usize;
            (size, strides.map(|strides| strides[index]))
        }))
    }

    /// The rows of these dimensions, outermost first: the size of each, and the stride of each operand. A stride may
    /// be negative, as its complement: places wrap.
    pub(crate) fn over(dims: impl DoubleEndedIterator<Item = (usize, [usize; N])>) -> Self {
        let mut walk = Self {
            rank: 0,
            dims: [1; DIMS_MAX],
            strides: [[0; DIMS_MAX]; N],
            row: 1,
            step: [0; N],
        };
        // From the innermost dimension outwards; those of the walk lie innermost first too, until they are turned.
        let mut is_first = true;
        for (size, strides) in dims.rev() {
            if size == 1 {
                continue;
            }
            let (last_size, last) = match walk.rank.checked_sub(1) {
                Some(last) => (walk.dims[last], walk.strides.map(|strides| strides[last])),
                None => (walk.row, walk.step),
            };
            let follows =
                |operand: usize| strides[operand] == last[operand].wrapping_mul(last_size);
            if is_first {
                walk.row = size;
                walk.step = strides;
                is_first = false;
            } else if (0..N).all(follows) {
                // Of a tensor without elements the others may multiply to more than can be counted.
                let whole = match walk.rank.checked_sub(1) {
                    Some(last) => &mut walk.dims[last],
                    None => &mut walk.row,
                };
                *whole = whole.saturating_mul(size);
            } else {
                walk.dims[walk.rank] = size;
                for (kept, stride) in walk.strides.iter_mut().zip(strides) {
                    kept[walk.rank] = stride;
                }
                walk.rank += 1;
            }
        }
        walk
    }

    /// Keeps the first of rows that follow each other while no operand moves. Gives how many those are.
    pub(crate) fn take_repeats(&mut self) -> usize {
        let stays = self.strides.iter().all(|strides| strides[0] == 0);
        if self.rank == 0 || !stays {
            return 1;
        }
        let count = self.dims[0];
        self.dims.copy_within(1..self.rank, 0);
        for strides in &mut self.strides {
            strides.copy_within(1..self.rank, 0);
        }
        self.rank -= 1;
        count
    }

    /// Visits every row, in order, with the place where each operand's row begins. Nothing if there are no elements.
    pub(crate) fn rows(&self, mut visit: impl FnMut([usize; N])) {
        let mut rows = Rows {
            walk: self,
            at: [0; DIMS_MAX],
            places: [0; N],
            is_over: self.row == 0 || self.dims[..self.rank].contains(&0),
        };
        while let Some(places) = rows.next() {
            visit(places);
        }
    }
}

/// The rows of a walk, one after the other.
struct Rows<'a, const N: usize> {
    walk: &'a Walk<N>,
    at: [usize; DIMS_MAX],
    places: [usize; N],
    is_over: bool,
}

impl<const N: usize> Rows<'_, N> {
    /// The next row. Not inlined: it is compiled once, and not for each operation and type.
    #[inline(never)]
    fn next(&mut self) -> Option<[usize; N]> {
        if self.is_over {
            return None;
        }
        let row = self.places;
        for (index, &size) in self.walk.dims[..self.walk.rank].iter().enumerate() {
            self.at[index] += 1;
            let wraps = self.at[index] == size;
            for (place, strides) in self.places.iter_mut().zip(&self.walk.strides) {
                *place = match wraps {
                    true => place.wrapping_sub(strides[index].wrapping_mul(size - 1)),
                    false => place.wrapping_add(strides[index]),
                };
            }
            if !wraps {
                return Some(row);
            }
            self.at[index] = 0;
        }
        self.is_over = true;
        Some(row)
    }
}

/// What is done with elements that meet: those of the left and of the right, and where the outcome goes.
pub(crate) type Visit<'a, T, U> = &'a mut dyn FnMut([&[T]; 2], &mut [U]);

/// Rows shorter than this are gathered into pieces.
const SHORT: usize = 64;
/// Elements of a small outcome, which is gathered in little room.
const FEW: usize = 16;

impl Walk<2> {
    /// Gives `visit` the elements that meet, in order: those of the left and of the right, and where the outcome goes,
    /// in pieces of at most `most`. Compiled once for each type, not for each operation: an operand that stays at one
    /// element is repeated, and short rows are gathered, so that there is one loop for all.
    pub(crate) fn zip<T: Copy + Default, U>(
        &self,
        operands: [&[T]; 2],
        out: &mut [U],
        most: usize,
        visit: Visit<'_, T, U>,
    ) {
        // Rows may be longer than the room for so few elements.
        if out.is_empty() {
            return;
        }
        let stays = self.row > 1 && self.step.contains(&0);
        if (self.rank > 0 || stays) && self.row < SHORT.min(most) {
            return match out.len() {
                ..=FEW => self.gathered(operands, out, [[T::default(); FEW]; 2], most, visit),
                _ => self.gathered(operands, out, [[T::default(); PIECE]; 2], most, visit),
            };
        }
        if stays {
            let mut rooms = [[T::default(); PIECE]; 2];
            let most = most.min(PIECE).min(self.row);
            let rooms = rooms.each_mut().map(|room| &mut room[..most]);
            return self.pieces(operands, out, most, rooms, visit);
        }
        self.pieces(operands, out, most, [&mut [], &mut []], visit);
    }

    /// Each row by itself.
    fn pieces<T: Copy, U>(
        &self,
        [left, right]: [&[T]; 2],
        out: &mut [U],
        most: usize,
        [left_room, right_room]: [&mut [T]; 2],
        visit: Visit<'_, T, U>,
    ) {
        let most = most.min(self.row).max(1);
        let mut rows = out.chunks_exact_mut(self.row.max(1));
        let [left_step, right_step] = self.step;
        self.rows(|[left_at, right_at]| {
            let (Some(row), Some(left), Some(right)) = (
                rows.next(),
                side(left, left_at, left_step, &mut left_room[..]),
                side(right, right_at, right_step, &mut right_room[..]),
            ) else {
                return;
            };
            for (out, at) in row.chunks_mut(most).zip((0..).step_by(most)) {
                let len = out.len();
                if let (Some(left), Some(right)) =
                    (left.get(at * left_step..), right.get(at * right_step..))
                    && let (Some(left), Some(right)) = (left.get(..len), right.get(..len))
                {
                    visit([left, right], out);
                }
            }
        });
    }

    /// Several rows together, of which at least one has room.
    fn gathered<T: Copy, U, const N: usize>(
        &self,
        [left, right]: [&[T]; 2],
        out: &mut [U],
        [mut left_room, mut right_room]: [[T; N]; 2],
        most: usize,
        visit: Visit<'_, T, U>,
    ) {
        let row = self.row.max(1);
        let mut pieces = out.chunks_mut(most.min(N) / row * row);
        let mut piece = pieces.next();
        let mut filled = 0;
        let [left_step, right_step] = self.step;
        self.rows(|[left_at, right_at]| {
            if piece.is_none() {
                return;
            }
            let end = filled + row;
            gather(left, left_at, left_step, &mut left_room[filled..end]);
            gather(right, right_at, right_step, &mut right_room[filled..end]);
            filled = end;
            if let Some(out) = piece.take_if(|piece| piece.len() <= end) {
                visit([&left_room[..end], &right_room[..end]], out);
                (piece, filled) = (pieces.next(), 0);
            }
        });
    }
}

/// A row of an operand.
fn gather<T: Copy>(operand: &[T], at: usize, step: usize, room: &mut [T]) {
    match (step, operand.get(at..)) {
        (0, Some([element, ..])) => room.fill(*element),
        (_, Some(row)) => {
            for (room, element) in room.iter_mut().zip(row) {
                *room = *element;
            }
        }
        (_, None) => {}
    }
}

/// An operand from a place on: repeated in `room`, if it has any and the operand stays where it is.
fn side<'a, T: Copy>(
    operand: &'a [T],
    at: usize,
    step: usize,
    room: &'a mut [T],
) -> Option<&'a [T]> {
    let operand = operand.get(at..)?;
    if step != 0 || room.is_empty() {
        return Some(operand);
    }
    room.fill(*operand.first()?);
    Some(room)
}
