//! Layers of networks, of the operations in `ops.rs`: what PyTorch has by these names, with its formulas,
//! apart from the gradient of [`Var::max_pool2d`] where pixels are equal.
//!
//! A convolution gathers the pixels under its window for each place, and is one matrix product then ("im2col":
//! Chellapilla, Puri, Simard: "High performance convolutional neural networks for document processing", 2006).

use super::ops::shape_of;
use super::var::Var;
use rendez::ground::{DType, Status, TensorMeta, catalogue};

/// What lies around an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Padding {
    /// Nothing: the window stays inside.
    Valid,
    /// So many zeros on each side.
    Zeros(usize),
}

/// How a window goes over an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Its height and width.
    pub size: [usize; 2],
    /// How far it goes on, down and to the right.
    pub stride: [usize; 2],
    /// What lies around.
    pub padding: Padding,
}

impl Var {
    /// `self · weight + bias`: rows `[n, in]` by `[in, out]` and `[out]`.
    ///
    /// # Errors
    /// What the kernels refuse.
    pub fn linear(&self, weight: &Self, bias: &Self) -> Result<Self, Status> {
        self.matmul(weight)?.bias_add(bias)
    }

    /// The rows of a table `[entries, width]` that `ids` names.
    ///
    /// # Errors
    /// What the kernels refuse: an id that is not in the table, for one.
    pub fn embed(&self, ids: &Self) -> Result<Self, Status> {
        self.gather(ids, 0)
    }

    /// One step of a plain recurrent cell: tanh(x·wx + h·wh + b), with `self` as x.
    ///
    /// # Errors
    /// What the kernels refuse.
    pub fn rnn_cell(&self, hidden: &Self, [wx, wh, bias]: [&Self; 3]) -> Result<Self, Status> {
        let sum = self.matmul(wx)?.add(&hidden.matmul(wh)?)?;
        sum.bias_add(bias)?.tanh()
    }

    /// One step of a long short-term memory: from x, h and c the next h and c. `wx` is `[in, 4·width]`, `wh`
    /// `[width, 4·width]`; the four parts are the input, forget, cell and output gates, as in PyTorch.
    ///
    /// # Errors
    /// What the kernels refuse.
    pub fn lstm_cell(
        &self,
        hidden: &Self,
        cell: &Self,
        [wx, wh, bias]: [&Self; 3],
    ) -> Result<(Self, Self), Status> {
        let sum = self.matmul(wx)?.add(&hidden.matmul(wh)?)?.bias_add(bias)?;
        let gates = sum.split(4, 1)?;
        let [input, forget, new, output] = gates.as_slice() else {
            return Err(Status::of(
                catalogue::AUTOGRAD_OPERATION,
                "an LSTM has four gates",
            ));
        };
        let kept = forget.sigmoid()?.mul(cell)?;
        let cell = kept.add(&input.sigmoid()?.mul(&new.tanh()?)?)?;
        let hidden = output.sigmoid()?.mul(&cell.tanh()?)?;
        Ok((hidden, cell))
    }

    /// One step of a gated recurrent unit; `wx` is `[in, 3·width]`, `wh` `[width, 3·width]`: the reset, update and new
    /// gates, each with a bias on either side, as in PyTorch.
    ///
    /// # Errors
    /// What the kernels refuse.
    pub fn gru_cell(&self, hidden: &Self, [wx, wh, bx, bh]: [&Self; 4]) -> Result<Self, Status> {
        let (here, there) = (
            self.linear(wx, bx)?.split(3, 1)?,
            hidden.linear(wh, bh)?.split(3, 1)?,
        );
        let ([rx, zx, nx], [rh, zh, nh]) = (here.as_slice(), there.as_slice()) else {
            return Err(Status::of(
                catalogue::AUTOGRAD_OPERATION,
                "a GRU has three gates",
            ));
        };
        let reset = rx.add(rh)?.sigmoid()?;
        let update = zx.add(zh)?.sigmoid()?;
        let new = nx.add(&reset.mul(nh)?)?.tanh()?;
        new.add(&update.mul(&hidden.sub(&new)?)?)
    }

    /// The convolution of images `[n, height, width, in]` with `weight` `[size, size, in, out]`, whose size is that of
    /// the window: `[n, height', width', out]`.
    ///
    /// # Errors
    /// `AUTOGRAD_OPERATION` for shapes that do not fit, or a window that does not fit the image.
    pub fn conv2d(&self, weight: &Self, window: Window) -> Result<Self, Status> {
        let [n, _, _, channels] = four(self)?;
        let [rows, columns, inputs, outputs] = four(weight)?;
        if [rows, columns] != window.size || inputs != channels {
            return refuse(format!(
                "weights of shape {} do not fit windows of {:?} over {channels} channels",
                weight.shape(),
                window.size
            ));
        }
        let (pixels, [height, width]) = self.windows(window)?;
        let taps = rows * columns * channels;
        let flat = pixels.reshape(&dims(&[n.saturating_mul(area([height, width])), taps])?)?;
        let product = flat.matmul(&weight.reshape(&dims(&[taps, outputs])?)?)?;
        product.reshape(&dims(&[n, height, width, outputs])?)
    }

    /// The largest pixel under each window, by channel. Its gradient goes to all that are the largest in equal parts,
    /// as that of [`Var::max`]; PyTorch's goes to the first of them alone. So a training on images with equal pixels
    /// under a window has other gradients there.
    ///
    /// # Errors
    /// As [`conv2d`](Self::conv2d). Padding is refused: zeros could be the largest.
    pub fn max_pool2d(&self, window: Window) -> Result<Self, Status> {
        if window.padding != Padding::Valid {
            return refuse("the largest under a window is not sought among padding".to_owned());
        }
        self.windows(window)?.0.max(&[3], false)
    }

    /// The mean of the pixels under each window, by channel; padding counts as zeros.
    ///
    /// # Errors
    /// As [`conv2d`](Self::conv2d).
    pub fn avg_pool2d(&self, window: Window) -> Result<Self, Status> {
        self.windows(window)?.0.mean(&[3], false)
    }

    /// The pixels under each window, `[n, height', width', size · size, channels]`, and how many windows there are.
    fn windows(&self, window: Window) -> Result<(Self, [usize; 2]), Status> {
        let [n, height, width, channels] = four(self)?;
        let around = match window.padding {
            Padding::Valid => 0,
            Padding::Zeros(count) => count,
        };
        let mut places = [0; 2];
        for (at, side) in [height, width].into_iter().enumerate() {
            let (size, stride) = (window.size[at], window.stride[at]);
            let whole = around
                .checked_mul(2)
                .and_then(|around| side.checked_add(around));
            let left = whole.and_then(|whole| whole.checked_sub(size));
            let (Some(left), true) = (left, stride > 0 && size > 0 && around < size.max(1)) else {
                return refuse(format!(
                    "{window:?} does not fit an image of {height} × {width}"
                ));
            };
            places[at] = left / stride + 1;
        }
        let (pixels, taps) = (area([height, width]), area(window.size));
        let flat = dims(&[n, pixels, channels])?;
        if n == 0 || channels == 0 {
            // Nothing is gathered, from however many pixels.
            let nothing = self.reshape(&dims(&[n, places[0], places[1], taps, channels])?)?;
            return Ok((nothing, places));
        }
        let shape = shape_of(&[places[0] as u64, places[1] as u64, taps as u64])?;
        let meta = TensorMeta::new(DType::I32, shape)
            .map_err(|error| Status::of(catalogue::TENSOR_SHAPE, error.to_string()))?;
        let mut indices = self.tape.inner.home.allocate(meta)?;
        let mut each = indices.as_mut_slice::<i32>()?.iter_mut();
        for place in 0..area(places) {
            let (down, right) = (
                place / places[1] * window.stride[0],
                place % places[1] * window.stride[1],
            );
            for (tap, index) in each.by_ref().take(taps).enumerate() {
                let (row, column) = (down + tap / window.size[1], right + tap % window.size[1]);
                // Outside is one more pixel, which is zero.
                let inside = (around..around + height).contains(&row)
                    && (around..around + width).contains(&column);
                let at = if inside {
                    (row - around) * width + column - around
                } else {
                    pixels
                };
                *index = i32::try_from(at).unwrap_or(i32::MAX);
            }
        }
        let mut rows = self.reshape(&flat)?;
        if around > 0 {
            let zero = self
                .tape
                .scalar(self.dtype(), 0.0)?
                .broadcast_to(&dims(&[n, 1, channels])?)?;
            rows = self.tape.concat(&[&rows, &zero], 1)?;
        }
        let indices = self.tape.constant(indices.finish());
        Ok((rows.gather(&indices, 1)?, places))
    }
}

/// How many there are in a rectangle; too many for any tensor where that is more than is counted.
const fn area([height, width]: [usize; 2]) -> usize {
    height.saturating_mul(width)
}

fn refuse<T>(what: String) -> Result<T, Status> {
    Err(Status::of(catalogue::AUTOGRAD_OPERATION, what))
}

/// The four dimensions of images or of their weights.
fn four(of: &Var) -> Result<[usize; 4], Status> {
    let dims: Vec<_> = of
        .shape()
        .dims()
        .map(|dim| usize::try_from(dim).unwrap_or(usize::MAX))
        .collect();
    match <[usize; 4]>::try_from(dims) {
        Ok(four) => Ok(four),
        Err(_) => refuse(format!(
            "four dimensions are wanted, and a tensor has shape {}",
            of.shape()
        )),
    }
}

fn dims(sizes: &[usize]) -> Result<Vec<i32>, Status> {
    let each = sizes.iter().map(|&size| i32::try_from(size));
    let all: Result<Vec<_>, _> = each.collect();
    all.or_else(|_| {
        refuse(format!(
            "a tensor of {sizes:?} is larger than an operation takes"
        ))
    })
}
