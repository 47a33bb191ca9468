//! Handwritten digits, in batches. `tests/data/digits/README.md` tells where they come from.

use rendez::ground::Shape;
use rendez::memory::{Element, Tensor};
use safetensors::SafeTensors;

const FILE: &[u8] = include_bytes!("../../../tests/data/digits/digits.safetensors");
/// How dark a pixel can be.
const DARKEST: f32 = 16.0;
/// Pixels of a digit.
pub(crate) const PIXELS: usize = 64;

/// All digits.
pub(crate) struct Digits {
    images: Vec<u8>,
    labels: Vec<u8>,
}

impl Digits {
    pub(crate) fn load() -> Self {
        let file = SafeTensors::deserialize(FILE).expect("the file is whole");
        let bytes = |name| file.tensor(name).expect("it is there").data().to_vec();
        Self {
            images: bytes("images"),
            labels: bytes("labels"),
        }
    }

    fn places(&self, step: usize, count: usize) -> impl Iterator<Item = usize> {
        let len = self.labels.len();
        (0..count).map(move |at| (step * count + at) * 7 % len)
    }

    fn pixels(&self, step: usize, count: usize) -> Vec<u8> {
        let digit = |place: usize| &self.images[place * PIXELS..(place + 1) * PIXELS];
        self.places(step, count)
            .flat_map(|place| digit(place).to_vec())
            .collect()
    }

    /// The pixels of batch `step`, from 0 to 1, in this shape.
    pub(crate) fn images(&self, step: usize, dims: &[u64]) -> Tensor {
        let pixels = self.pixels(step, dims[0] as usize);
        tensor(
            dims,
            pixels
                .into_iter()
                .map(|dark| f32::from(dark) / DARKEST)
                .collect(),
        )
    }

    /// The same as numbers from 0 to 16.
    pub(crate) fn levels(&self, step: usize, dims: &[u64]) -> Tensor {
        let pixels = self.pixels(step, dims[0] as usize);
        tensor(dims, pixels.into_iter().map(i32::from).collect())
    }

    /// Which digits they are.
    pub(crate) fn labels(&self, step: usize, count: usize) -> Tensor {
        let labels = self
            .places(step, count)
            .map(|place| i32::from(self.labels[place]))
            .collect();
        tensor(&[count as u64], labels)
    }
}

pub(crate) fn tensor<T: Element>(dims: &[u64], values: Vec<T>) -> Tensor {
    Tensor::from_vec(values, Shape::new(dims).expect("a shape")).expect("as many as the shape has")
}
