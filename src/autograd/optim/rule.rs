//! The settings of optimizers, with the names and the defaults of `torch.optim`.

use rendez::ground::{Status, catalogue};
use serde::{Deserialize, Serialize};

/// Stochastic gradient descent, with momentum after Sutskever et al. ("On the importance of initialization and momentum
/// in deep learning", 2013) as PyTorch writes it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sgd {
    /// The learning rate.
    pub lr: f64,
    /// How much of the last step is kept.
    pub momentum: f64,
    /// How much less of the gradient is taken into the momentum.
    pub dampening: f64,
    /// Looks ahead along the momentum.
    pub nesterov: bool,
    /// How much of the parameter is added to its gradient.
    pub weight_decay: f64,
}

/// Duchi, Hazan, Singer: "Adaptive subgradient methods", 2011.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Adagrad {
    /// The learning rate.
    pub lr: f64,
    /// How fast that falls.
    pub lr_decay: f64,
    /// How much of the parameter is added to its gradient.
    pub weight_decay: f64,
    /// What the sums of squares begin with.
    pub initial_accumulator_value: f64,
    /// Added to what is divided by.
    pub eps: f64,
}

/// Kingma, Ba: "Adam: a method for stochastic optimization", 2014; `amsgrad` after Reddi, Kale, Kumar, 2018.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Adam {
    /// The learning rate.
    pub lr: f64,
    /// How slowly the mean of the gradients follows.
    pub beta1: f64,
    /// How slowly the mean of their squares follows.
    pub beta2: f64,
    /// Added to what is divided by.
    pub eps: f64,
    /// How much of the parameter is added to its gradient; of [`AdamW`], taken off the parameter itself.
    pub weight_decay: f64,
    /// Divides by the largest mean of squares so far.
    pub amsgrad: bool,
}

/// Loshchilov, Hutter: "Decoupled weight decay regularization", 2017.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct AdamW(pub Adam);

/// Hinton's lecture 6 of "Neural networks for machine learning"; `centered` after Graves, 2013.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct RmsProp {
    /// The learning rate.
    pub lr: f64,
    /// How slowly the mean of the squares follows.
    pub alpha: f64,
    /// Added to what is divided by.
    pub eps: f64,
    /// How much of the parameter is added to its gradient.
    pub weight_decay: f64,
    /// How much of the last step is kept.
    pub momentum: f64,
    /// Divides by the deviation instead.
    pub centered: bool,
}

/// An optimizer and its settings.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// Adagrad.
    Adagrad(Adagrad),
    /// Adam.
    Adam(Adam),
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// `RMSprop`.
    RmsProp(RmsProp),
}

impl Default for Sgd {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            momentum: 0.0,
            dampening: 0.0,
            nesterov: false,
            weight_decay: 0.0,
        }
    }
}

impl Default for Adagrad {
    fn default() -> Self {
        Self {
            lr: 1e-2,
            lr_decay: 0.0,
            weight_decay: 0.0,
            initial_accumulator_value: 0.0,
            eps: 1e-10,
        }
    }
}

impl Default for Adam {
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            amsgrad: false,
        }
    }
}

impl Default for AdamW {
    fn default() -> Self {
        Self(Adam {
            weight_decay: 1e-2,
            ..Adam::default()
        })
    }
}

impl Default for RmsProp {
    fn default() -> Self {
        Self {
            lr: 1e-2,
            alpha: 0.99,
            eps: 1e-8,
            weight_decay: 0.0,
            momentum: 0.0,
            centered: false,
        }
    }
}

impl Rule {
    /// Refuses settings that `torch.optim` refuses.
    ///
    /// # Errors
    /// `AUTOGRAD_OPTIMIZER` naming the setting and its value.
    pub fn check(&self) -> Result<(), Status> {
        type Named = Vec<(&'static str, f64)>;
        let (at_least_zero, below_one): (Named, Named) = match self {
            Self::Sgd(Sgd {
                lr,
                momentum,
                dampening,
                nesterov,
                weight_decay,
            }) => {
                if *nesterov && (*momentum <= 0.0 || *dampening != 0.0) {
                    let message = "Nesterov momentum requires a momentum and zero dampening";
                    return Err(Status::of(catalogue::AUTOGRAD_OPTIMIZER, message));
                }
                (
                    vec![
                        ("lr", *lr),
                        ("momentum", *momentum),
                        ("weight_decay", *weight_decay),
                    ],
                    vec![],
                )
            }
            Self::Adagrad(Adagrad {
                lr,
                lr_decay,
                weight_decay,
                initial_accumulator_value,
                eps,
            }) => {
                let all = [
                    ("lr", *lr),
                    ("lr_decay", *lr_decay),
                    ("weight_decay", *weight_decay),
                    ("initial_accumulator_value", *initial_accumulator_value),
                    ("eps", *eps),
                ];
                (all.to_vec(), vec![])
            }
            Self::Adam(Adam {
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
                ..
            })
            | Self::AdamW(AdamW(Adam {
                lr,
                beta1,
                beta2,
                eps,
                weight_decay,
                ..
            })) => (
                vec![("lr", *lr), ("eps", *eps), ("weight_decay", *weight_decay)],
                vec![("beta1", *beta1), ("beta2", *beta2)],
            ),
            Self::RmsProp(RmsProp {
                lr,
                alpha,
                eps,
                weight_decay,
                momentum,
                ..
            }) => {
                let all = [
                    ("lr", *lr),
                    ("alpha", *alpha),
                    ("eps", *eps),
                    ("weight_decay", *weight_decay),
                    ("momentum", *momentum),
                ];
                (all.to_vec(), vec![])
            }
        };
        let is_wrong = |(_, value): &&(&str, f64)| !(value.is_finite() && *value >= 0.0);
        let is_large = |(_, value): &&(&str, f64)| !(0.0..1.0).contains(value);
        let wrong = at_least_zero.iter().find(is_wrong);
        if let Some((name, value)) = wrong.or_else(|| below_one.iter().find(is_large)) {
            let message = format!("Invalid {name} value: {value}");
            return Err(Status::of(catalogue::AUTOGRAD_OPTIMIZER, message));
        }
        Ok(())
    }
}
