//! Parts of models: made by name and seed, here or at another worker.

use std::convert::Infallible;
use std::sync::Arc;

use super::digits::tensor;
use rendez::ground::Status;
use rendez::ground::rng::Rng;
use rendez_autograd::optim::Parameter;
use rendez_autograd::tape::{Padding, Tape, Var, Window};
use rendez_autograd::worker::Worker;
use rendez_rpc::{Context, Error, Functions, RRef};

/// Levels of a pixel.
const LEVELS: u64 = 17;
/// Width of a level's embedding.
pub(crate) const EMBEDDED: u64 = 4;

/// A part of a model.
pub(crate) struct Part {
    kind: String,
    parameters: Vec<Parameter>,
}

/// Weights of these dimensions, uniform, scaled by the inputs of their layer.
fn weights(tape: &Tape, rng: &mut Rng, dims: &[u64], inputs: u64) -> Parameter {
    let scale = 1.0 / (inputs as f32).sqrt();
    let len = dims.iter().product::<u64>();
    let uniform = |_| (rng.below(2_000_001) as f32 / 1_000_000.0 - 1.0) * scale;
    Parameter::new(tape, tensor(dims, (0..len).map(uniform).collect())).expect("floats")
}

impl Part {
    /// The part of that kind with the weights of that seed, on `tape`.
    pub(crate) fn new(tape: &Tape, kind: &str, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut make = |dims: &[u64], inputs| weights(tape, &mut rng, dims, inputs);
        let parameters = match kind {
            "hidden" => vec![make(&[64, 32], 64), make(&[32], 64)],
            "classes" => vec![make(&[32, 10], 32), make(&[10], 32)],
            "convolution" => vec![
                make(&[3, 3, 1, 4], 9),
                make(&[4], 9),
                make(&[64, 32], 64),
                make(&[32], 64),
            ],
            "embedding" => vec![make(&[LEVELS, EMBEDDED], 1)],
            "memory" => vec![
                make(&[8 * EMBEDDED, 128], 32),
                make(&[32, 128], 32),
                make(&[128], 32),
            ],
            other => panic!("no part is called {other}"),
        };
        Self {
            kind: kind.to_owned(),
            parameters,
        }
    }

    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        self.parameters.clone()
    }

    /// What it makes of `x`.
    pub(crate) fn forward(&self, x: &Var) -> Result<Var, Status> {
        let p: Vec<_> = self.parameters.iter().map(Parameter::var).collect();
        match self.kind.as_str() {
            "hidden" => x.linear(&p[0], &p[1])?.tanh(),
            "classes" => x.linear(&p[0], &p[1]),
            "convolution" => {
                let window = Window {
                    size: [3, 3],
                    stride: [1, 1],
                    padding: Padding::Zeros(1),
                };
                let pool = Window {
                    size: [2, 2],
                    stride: [2, 2],
                    padding: Padding::Valid,
                };
                let seen = x.conv2d(&p[0], window)?.bias_add(&p[1])?.relu()?;
                let flat = seen.max_pool2d(pool)?.reshape(&[-1, 64])?;
                flat.linear(&p[2], &p[3])?.relu()
            }
            // Rows of eight levels become rows of eight embeddings.
            "embedding" => x.embed_rows(&p[0]),
            // A digit is read row by row.
            _ => {
                let rows = x.unstack(8, 1)?;
                let n = x.shape().dim(0).unwrap_or(0) as usize;
                let zeros = x
                    .tape()
                    .constant(tensor(&[n as u64, 32], vec![0f32; n * 32]));
                let (mut hidden, mut cell) = (zeros.clone(), zeros);
                for row in &rows {
                    (hidden, cell) = row.lstm_cell(&hidden, &cell, [&p[0], &p[1], &p[2]])?;
                }
                Ok(hidden)
            }
        }
    }
}

/// Embeds levels `[n, 8, 8]` to `[n, 8, 8 · EMBEDDED]`.
trait EmbedRows {
    fn embed_rows(&self, table: &Var) -> Result<Var, Status>;
}

impl EmbedRows for Var {
    fn embed_rows(&self, table: &Var) -> Result<Var, Status> {
        let width = i32::try_from(8 * EMBEDDED).unwrap_or(i32::MAX);
        table.embed(self)?.reshape(&[-1, 8, width])
    }
}

/// The functions by which parts are made and used at other workers, and that tell what is kept there.
pub(crate) fn functions(tape: &Tape, worker: &Worker<Tape>) -> Functions {
    let (tape, worker) = (tape.clone(), worker.clone());
    let load = move || {
        let (messages, passes) = worker.engine().kept();
        let contexts = worker.load().contexts;
        (contexts as u64, messages as u64, passes as u64)
    };
    let new = move |kind: String, seed: u64| Ok::<_, Infallible>(Part::new(&tape, &kind, seed));
    let forward = |part: RRef<Part>, x: Var| -> Result<Var, Error> {
        let part: Arc<Part> = part.local_value()?;
        part.forward(&x).map_err(Error::local)
    };
    let parameters = |part: RRef<Part>| -> Result<Vec<RRef<Parameter>>, Error> {
        let agent = Context::current().expect("it is called").agent();
        let part = part.local_value()?;
        Ok(part
            .parameters()
            .into_iter()
            .map(|parameter| RRef::to_object(&agent, parameter))
            .collect())
    };
    Functions::new()
        .add_object("part.new", new)
        .add("part.forward", forward)
        .add("part.parameters", parameters)
        .add("part.load", load)
}
