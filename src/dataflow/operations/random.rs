//! Random tensors: uniform, normal, truncated normal, whole numbers; the same as the original's for the same seeds.
//!
//! Each kernel counts how far it has come; a call takes a stretch of the stream for itself, of the length the original
//! reserves, and then needs no further synchronisation. How bits become numbers is `random_distributions.h`.

use std::sync::atomic::{AtomicU64, Ordering};

use half::{bf16, f16};

use super::row::{Row, row};
use crate::graph::infer::{Inferred, Known, said};
use crate::graph::{Node, attr};
use crate::kernel::Call;
use crate::kernel::call::{Done, Fault, shape_of};
use crate::kernel::make::{Cost, Made, dtype, for_each_said, made};
use rendez::ground::{DType, Shape};
use rendez::memory::Element;

mod philox;

use philox::{BLOCK, Philox};

/// Numbers that the original reserves for each one that is asked for: some distributions throw many away.
const RESERVED: u64 = 256;
/// Picoseconds for each number.
const EACH: usize = 5000;
/// What is farther from zero is drawn anew.
const CUT: f64 = 2.0;

const FLOW: &str = "shape: T -> output: dtype";
const SEEDS: &str = "seed: int = 0; seed2: int = 0; dtype: fp; T: index";

pub(super) const ROWS: &[Row] = &[
    row("RandomUniform", FLOW, SEEDS, drawn_shape)
        .stateful()
        .kernel(uniform),
    row("RandomStandardNormal", FLOW, SEEDS, drawn_shape)
        .stateful()
        .kernel(normal),
    row("TruncatedNormal", FLOW, SEEDS, drawn_shape)
        .stateful()
        .kernel(truncated_normal),
    row(
        "RandomUniformInt",
        "shape: T, minval: Tout, maxval: Tout -> output: Tout",
        "seed: int = 0; seed2: int = 0; Tout: index; T: index",
        drawn_shape,
    )
    .stateful()
    .kernel(uniform_int),
];

fn drawn_shape(known: Known<'_>) -> Inferred {
    Ok(vec![said(known, 0)?])
}

/// Where a kernel stands in its stream.
#[derive(Debug)]
struct Source {
    stream: Philox,
    used: AtomicU64,
}

fn cost() -> Cost {
    for_each_said(0, EACH)
}

fn uniform(node: &Node) -> Made {
    let source = Source::of(node)?;
    match dtype(node, "dtype") {
        Some(DType::F32) => draw(cost(), source, |bits| bits.map(unit32)),
        Some(DType::F64) => draw(cost(), source, |[a, b, c, d]| [unit64(a, b), unit64(c, d)]),
        Some(DType::F16) => draw(cost(), source, |bits| {
            bits.map(|bits| f16::from_bits(15 << 10 | bits as u16 & 0x3ff) - f16::ONE)
        }),
        Some(DType::BF16) => draw(cost(), source, |bits| {
            bits.map(|bits| bf16::from_bits(127 << 7 | bits as u16 & 0x7f) - bf16::ONE)
        }),
        _ => Ok(None),
    }
}

fn normal(node: &Node) -> Made {
    let source = Source::of(node)?;
    match dtype(node, "dtype") {
        Some(DType::F32) => draw(cost(), source, normals),
        Some(DType::F64) => draw(cost(), source, normals64),
        Some(DType::F16) => draw(cost(), source, |bits| normals(bits).map(f16::from_f32)),
        Some(DType::BF16) => draw(cost(), source, |bits| normals(bits).map(bf16::from_f32)),
        _ => Ok(None),
    }
}

fn truncated_normal(node: &Node) -> Made {
    let source = Source::of(node)?;
    match dtype(node, "dtype") {
        Some(DType::F32) => truncated::<f32, 4>(cost(), source, |pair| pair),
        Some(DType::F16) => truncated::<f16, 4>(cost(), source, |pair| pair.map(f16::from_f32)),
        Some(DType::BF16) => truncated::<bf16, 4>(cost(), source, |pair| pair.map(bf16::from_f32)),
        Some(DType::F64) => truncated64(cost(), source),
        _ => Ok(None),
    }
}

fn uniform_int(node: &Node) -> Made {
    let source = Source::of(node)?;
    match dtype(node, "Tout") {
        Some(DType::I32) => made(cost(), move |call| {
            let (low, range) = bounds(call)?;
            source.fill(call, |bits| {
                bits.map(|bits| (low + i64::from(bits) % range.cast_signed()) as i32)
            })
        }),
        Some(DType::I64) => made(cost(), move |call| {
            let (low, range) = bounds(call)?;
            source.fill(call, |[a, b, c, d]| {
                [[a, b], [c, d]].map(|[a, b]| {
                    let bits = u64::from(b) << 32 | u64::from(a);
                    low.wrapping_add((bits % range).cast_signed())
                })
            })
        }),
        _ => Ok(None),
    }
}

/// The lowest number and how many there are: some, unless none is drawn.
fn bounds(call: &Call<'_>) -> Result<(i64, u64), Fault> {
    let (low, high) = (call.integer(1)?, call.integer(2)?);
    if low >= high && shape_of(&call.dims(0)?)?.elements() > 0 {
        return Err(format!("Need minval < maxval, got {low} >= {high}").into());
    }
    Ok((low, high.abs_diff(low)))
}

fn draw<T: Element, const N: usize>(
    cost: Cost,
    source: Source,
    f: impl Fn([u32; BLOCK]) -> [T; N] + Send + Sync + 'static,
) -> Made {
    made(cost, move |call| source.fill(call, &f))
}

impl Source {
    fn of(node: &Node) -> Result<Self, Fault> {
        let seed = |name| attr::int(&node.attrs, name).unwrap_or(0).cast_unsigned();
        let mut seeds = [seed("seed"), seed("seed2")];
        if seeds == [0, 0] {
            // No seed means another stream each time.
            for seed in &mut seeds {
                let mut bytes = [0; 8];
                getrandom::fill(&mut bytes).map_err(|error| format!("no random seed: {error}"))?;
                *seed = u64::from_le_bytes(bytes);
            }
        }
        Ok(Self {
            stream: Philox::new(seeds[0], seeds[1]),
            used: AtomicU64::new(0),
        })
    }

    /// The stretch of the stream for `count` numbers.
    fn reserve(&self, count: u64) -> Philox {
        let blocks = count.wrapping_mul(RESERVED).div_ceil(BLOCK as u64);
        self.stream
            .skip(self.used.fetch_add(blocks, Ordering::Relaxed))
    }

    /// The next output: what `f` makes of one block after the other.
    fn fill<T: Element, const N: usize>(
        &self,
        call: &mut Call<'_>,
        f: impl Fn([u32; BLOCK]) -> [T; N],
    ) -> Done {
        let shape = shape_of(&call.dims(0)?)?;
        call.output::<T>(shape, |out| {
            let mut stream = self.reserve(shape.elements());
            for out in out.chunks_mut(N) {
                for (out, number) in out.iter_mut().zip(f(stream.block())) {
                    *out = number;
                }
            }
        })
    }

    /// The next output: groups of `N`, each from a stretch of its own, of numbers that `pairs` draws and that are near
    /// enough to zero.
    fn fill_near<T: Element, F: Copy + Into<f64>, const N: usize>(
        &self,
        call: &mut Call<'_>,
        shape: Shape,
        pairs: impl Fn(&mut Words) -> [F; 2],
        number: impl Fn([F; 2]) -> [T; 2],
    ) -> Done {
        let group_blocks = N as u64 * RESERVED / BLOCK as u64;
        call.output::<T>(shape, |out| {
            let stream = self.reserve(shape.elements());
            for (group, out) in (0u64..).zip(out.chunks_mut(N)) {
                let mut words = Words::of(stream.skip(group.wrapping_mul(group_blocks)));
                let mut out = out.iter_mut();
                let mut missing = out.len();
                while missing > 0 {
                    let pair = pairs(&mut words);
                    for (value, number) in pair.into_iter().zip(number(pair)) {
                        if value.into().abs() < CUT
                            && let Some(out) = out.next()
                        {
                            *out = number;
                            missing -= 1;
                        }
                    }
                }
            }
        })
    }
}

/// A stream, word by word.
struct Words {
    stream: Philox,
    block: [u32; BLOCK],
    next: usize,
}

impl Words {
    const fn of(stream: Philox) -> Self {
        Self {
            stream,
            block: [0; BLOCK],
            next: BLOCK,
        }
    }

    fn word(&mut self) -> u32 {
        if self.next >= BLOCK {
            self.block = self.stream.block();
            self.next = 0;
        }
        let word = self.block[self.next];
        self.next += 1;
        word
    }
}

fn truncated<T: Element, const N: usize>(
    cost: Cost,
    source: Source,
    number: impl Fn([f32; 2]) -> [T; 2] + Copy + Send + Sync + 'static,
) -> Made {
    made(cost, move |call| {
        let shape = shape_of(&call.dims(0)?)?;
        source.fill_near::<T, f32, N>(
            call,
            shape,
            |words| {
                let (first, second) = (words.word(), words.word());
                box_muller(first, second)
            },
            number,
        )
    })
}

fn truncated64(cost: Cost, source: Source) -> Made {
    made(cost, move |call| {
        let shape = shape_of(&call.dims(0)?)?;
        source.fill_near::<f64, f64, 2>(
            call,
            shape,
            |words| {
                let block = [(); BLOCK].map(|()| words.word());
                normals64(block)
            },
            |pair| pair,
        )
    })
}

/// From 0 to below 1, by the 23 low bits.
fn unit32(bits: u32) -> f32 {
    f32::from_bits(127 << 23 | bits & 0x007f_ffff) - 1.0
}

/// From 0 to below 1, by 52 bits.
fn unit64(high: u32, low: u32) -> f64 {
    f64::from_bits(1023 << 52 | u64::from(high & 0x000f_ffff) << 32 | u64::from(low)) - 1.0
}

/// Two normal numbers from two uniform ones: a radius and an angle.
fn box_muller(first: u32, second: u32) -> [f32; 2] {
    let radius = (-2.0 * unit32(first).max(1.0e-7).ln()).sqrt();
    let angle = (2.0 * std::f64::consts::PI * f64::from(unit32(second))) as f32;
    [angle.sin() * radius, angle.cos() * radius]
}

fn normals([a, b, c, d]: [u32; BLOCK]) -> [f32; BLOCK] {
    let ([first, second], [third, fourth]) = (box_muller(a, b), box_muller(c, d));
    [first, second, third, fourth]
}

fn normals64([a, b, c, d]: [u32; BLOCK]) -> [f64; 2] {
    let radius = (-2.0 * unit64(a, b).max(1.0e-7).ln()).sqrt();
    let angle = 2.0 * std::f64::consts::PI * unit64(c, d);
    [angle.sin() * radius, angle.cos() * radius]
}
