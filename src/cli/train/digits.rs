//! Handwritten digits: the file that the program carries, split and cut into batches.
//!
//! Knows no graph. `tests/data/digits/README.md` tells where the digits come from.

use crate::error::CliError;
use crate::weights::{Entry, Weights};
use rendez::ground::rng::Rng;
use rendez::ground::{Shape, Status, catalogue};
use rendez::memory::Tensor;

const FILE: &[u8] = include_bytes!("../../../tests/data/digits/digits.safetensors");
const NAME: &str = "tests/data/digits/digits.safetensors (built in)";

/// Pixels of a digit.
pub(super) const PIXELS: usize = 64;
/// What a digit can be.
pub(super) const CLASSES: usize = 10;
/// How dark a pixel can be.
const DARKEST: f32 = 16.0;
/// Every so manieth digit is kept for testing.
const TESTED: usize = 5;

/// Digits and what they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Digits {
    /// Pixels from 0 to 1, one digit behind the other.
    pixels: Vec<f32>,
    labels: Vec<i64>,
}

impl Digits {
    /// Those to learn from and those to test with.
    ///
    /// # Errors
    /// None, unless the program itself is damaged.
    pub(super) fn load() -> Result<(Self, Self), CliError> {
        let weights = Weights::from_memory(NAME, FILE)?;
        let images = bytes(&weights, "images")?;
        let labels = bytes(&weights, "labels")?;
        let (mut learnt, mut tested) = (Self::default(), Self::default());
        let (images, _) = images.as_chunks::<PIXELS>();
        for (at, (image, label)) in images.iter().zip(&labels).enumerate() {
            let part = if at % TESTED == 0 {
                &mut tested
            } else {
                &mut learnt
            };
            let pixels = image.iter().map(|&dark| f32::from(dark) / DARKEST);
            part.pixels.extend(pixels);
            part.labels.push(i64::from(*label));
        }
        Ok((learnt, tested))
    }

    pub(super) const fn len(&self) -> usize {
        self.labels.len()
    }

    /// All of them: pixels `[n, 64]` and labels `[n]`.
    ///
    /// # Errors
    /// None: there is one shape for what there is.
    pub(super) fn all(&self) -> Result<(Tensor, Tensor), Status> {
        tensors(self.pixels.clone(), self.labels.clone())
    }

    /// Those of these numbers.
    ///
    /// # Errors
    /// None: there is one shape for what there is.
    pub(super) fn some(&self, numbers: &[usize]) -> Result<(Tensor, Tensor), Status> {
        let (digits, _) = self.pixels.as_chunks::<PIXELS>();
        let mut pixels = Vec::with_capacity(numbers.len() * PIXELS);
        let mut labels = Vec::with_capacity(numbers.len());
        for &number in numbers {
            if let (Some(digit), Some(label)) = (digits.get(number), self.labels.get(number)) {
                pixels.extend_from_slice(digit);
                labels.push(*label);
            }
        }
        tensors(pixels, labels)
    }
}

fn tensors(pixels: Vec<f32>, labels: Vec<i64>) -> Result<(Tensor, Tensor), Status> {
    let count = labels.len() as u64;
    let pixels = Tensor::from_vec(pixels, shape(&[count, PIXELS as u64])?)?;
    let labels = Tensor::from_vec(labels, shape(&[count])?)?;
    Ok((pixels, labels))
}

/// A shape of few elements.
pub(super) fn shape(dims: &[u64]) -> Result<Shape, Status> {
    Shape::new(dims).map_err(|error| Status::of(catalogue::TENSOR_SHAPE, error.to_string()))
}

fn bytes(weights: &Weights, name: &str) -> Result<Vec<u8>, CliError> {
    let entry: Option<&Entry> = weights.entries().iter().find(|entry| entry.name == name);
    let entry = entry.ok_or_else(|| {
        let message = format!("{NAME} has no tensor '{name}'");
        CliError::failure("SAFETENSORS_MALFORMED", message)
    })?;
    let mut bytes = vec![0; entry.len as usize];
    weights.read_into(entry, &mut bytes)?;
    Ok(bytes)
}

/// Numbers of digits in an order that a seed gives, all of them before any comes again.
#[derive(Clone, Debug)]
pub(super) struct Order {
    random: Rng,
    numbers: Vec<usize>,
    at: usize,
}

impl Order {
    pub(super) fn new(len: usize, seed: u64) -> Self {
        Self {
            random: Rng::new(seed),
            numbers: (0..len).collect(),
            at: len,
        }
    }

    /// The next `count`, of which there are at least one in each order.
    pub(super) fn next(&mut self, count: usize) -> &[usize] {
        let count = count.min(self.numbers.len());
        if self.at + count > self.numbers.len() {
            for last in (1..self.numbers.len()).rev() {
                let other = self.random.below(last as u64 + 1) as usize;
                self.numbers.swap(last, other);
            }
            self.at = 0;
        }
        let from = self.at;
        self.at += count;
        &self.numbers[from..self.at]
    }
}

/// A number from 0 to 1.
fn unit(random: &mut Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A normally distributed number (Box and Muller): the same for the same seed, wherever this runs.
pub(super) fn normal(random: &mut Rng) -> f32 {
    let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
    (radius * (std::f64::consts::TAU * unit(random)).cos()) as f32
}

#[cfg(test)]
mod tests;
