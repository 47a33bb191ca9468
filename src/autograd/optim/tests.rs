//! Optimizers against what PyTorch's made of the same gradients.

use std::collections::BTreeMap;

use super::step::{ParameterState, step};
use super::{Adagrad, Adam, AdamW, Optimizer, Parameter, RmsProp, Rule, Sgd};
use crate::tape::Tape;
use rendez::ground::{Shape, catalogue};
use rendez::memory::Tensor;
use serde_json::Value;

const ORACLE: &str = include_str!("../../../tests/data/optimizers.jsonl");

fn row(values: Vec<f64>) -> Tensor {
    let shape = Shape::new(&[values.len() as u64]).expect("a row");
    Tensor::from_vec(values, shape).expect("a tensor")
}

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("a list");
    list.iter()
        .map(|number| number.as_f64().expect("a number"))
        .collect()
}

/// The rule of a case, whose gradients are turned round if the case maximizes.
fn rule(case: &Value) -> (Rule, bool) {
    let settings = &case["settings"];
    let number = |name: &str, otherwise: f64| settings[name].as_f64().unwrap_or(otherwise);
    let is = |name: &str| settings[name].as_bool().unwrap_or(false);
    let adam = |of: Adam| Adam {
        lr: number("lr", of.lr),
        beta1: number("beta1", of.beta1),
        beta2: number("beta2", of.beta2),
        eps: number("eps", of.eps),
        weight_decay: number("weight_decay", of.weight_decay),
        amsgrad: is("amsgrad"),
    };
    let rule = match case["optimizer"].as_str().expect("a name") {
        "sgd" => Rule::Sgd(Sgd {
            lr: number("lr", 0.0),
            momentum: number("momentum", 0.0),
            dampening: number("dampening", 0.0),
            nesterov: is("nesterov"),
            weight_decay: number("weight_decay", 0.0),
        }),
        "adagrad" => {
            let of = Adagrad::default();
            Rule::Adagrad(Adagrad {
                lr: number("lr", of.lr),
                lr_decay: number("lr_decay", of.lr_decay),
                weight_decay: number("weight_decay", of.weight_decay),
                initial_accumulator_value: number(
                    "initial_accumulator_value",
                    of.initial_accumulator_value,
                ),
                eps: number("eps", of.eps),
            })
        }
        "adam" => Rule::Adam(adam(Adam::default())),
        "adamw" => Rule::AdamW(AdamW(adam(AdamW::default().0))),
        "rmsprop" => {
            let of = RmsProp::default();
            Rule::RmsProp(RmsProp {
                lr: number("lr", of.lr),
                alpha: number("alpha", of.alpha),
                eps: number("eps", of.eps),
                weight_decay: number("weight_decay", of.weight_decay),
                momentum: number("momentum", of.momentum),
                centered: is("centered"),
            })
        }
        other => panic!("no optimizer is called {other}"),
    };
    (rule, is("maximize"))
}

#[test]
fn every_step_is_that_of_pytorch() {
    let mut cases = 0;
    for line in ORACLE.lines() {
        let case: Value = serde_json::from_str(line).expect("a case");
        let (rule, maximizes) = rule(&case);
        let tape = Tape::new().expect("memory");
        let parameter = Parameter::new(&tape, row(numbers(&case["start"]))).expect("a parameter");
        let optimizer = Optimizer::new(rule, vec![parameter.clone()]).expect("an optimizer");
        let steps = case["gradients"]
            .as_array()
            .expect("gradients")
            .iter()
            .zip(case["values"].as_array().expect("values"));
        for (step, (gradient, expected)) in steps.enumerate() {
            let sign = if maximizes { -1.0 } else { 1.0 };
            let gradient = numbers(gradient)
                .into_iter()
                .map(|number| sign * number)
                .collect();
            optimizer
                .step(&BTreeMap::from([(parameter.id(), row(gradient))]))
                .expect("a step");
            let actual = parameter.var().tensor().to_vec::<f64>().expect("doubles");
            let expected = numbers(expected);
            assert_eq!(actual.len(), expected.len());
            for (actual, expected) in actual.into_iter().zip(expected) {
                let near = (actual - expected).abs() <= 1e-12 * expected.abs().max(1.0);
                assert!(
                    near,
                    "{rule:?}, step {step}: {actual} instead of {expected}"
                );
            }
        }
        cases += 1;
    }
    assert_eq!(cases, 16);
}

/// What `rule` makes of `start`, by one step for each gradient.
fn stepped(rule: Rule, start: Vec<f64>, gradients: &[&[f64]]) -> Vec<f64> {
    let tape = Tape::new().expect("memory");
    let parameter = Parameter::new(&tape, row(start)).expect("a parameter");
    let optimizer = Optimizer::new(rule, vec![parameter.clone()]).expect("an optimizer");
    for gradient in gradients {
        let gradients = BTreeMap::from([(parameter.id(), row(gradient.to_vec()))]);
        optimizer.step(&gradients).expect("a step");
    }
    parameter.var().tensor().to_vec().expect("doubles")
}

/// The lengths of what is kept of a parameter of two values.
fn kept(rule: Rule) -> [usize; 3] {
    let mut state = ParameterState::<f32>::default();
    step(&rule, &mut state, &mut [1.0, 2.0], &[0.5, 0.5]);
    [state.first.len(), state.second.len(), state.third.len()]
}

#[test]
fn nothing_is_kept_that_no_step_reads() {
    for amsgrad in [false, true] {
        let adam = Adam {
            amsgrad,
            ..Adam::default()
        };
        let third = if amsgrad { 2 } else { 0 };
        assert_eq!(kept(Rule::Adam(adam)), [2, 2, third]);
        assert_eq!(kept(Rule::AdamW(AdamW(adam))), [2, 2, third]);
    }
    for (momentum, centered) in [(0.0, false), (0.9, false), (0.0, true), (0.9, true)] {
        let rule = RmsProp {
            momentum,
            centered,
            ..RmsProp::default()
        };
        let first = if momentum > 0.0 { 2 } else { 0 };
        let third = if centered { 2 } else { 0 };
        assert_eq!(kept(Rule::RmsProp(rule)), [first, 2, third]);
    }
}

#[test]
fn without_decay_an_infinite_parameter_stays() {
    for rule in [
        Rule::Sgd(Sgd::default()),
        Rule::Adagrad(Adagrad::default()),
        Rule::Adam(Adam::default()),
        Rule::AdamW(AdamW::default()),
        Rule::RmsProp(RmsProp::default()),
    ] {
        let values = stepped(rule, vec![f64::NEG_INFINITY, 1.0], &[&[0.0, 0.0]]);
        assert_eq!(values[0], f64::NEG_INFINITY, "{rule:?}");
        assert!((values[1] - 1.0).abs() < 1e-4, "{rule:?}: {values:?}");
    }
}

#[test]
fn a_mean_that_keeps_nothing_is_the_last_gradient() {
    let rule = Rule::Adam(Adam {
        lr: 0.1,
        beta1: 0.0,
        beta2: 0.0,
        ..Adam::default()
    });
    let values = stepped(rule, vec![0.0], &[&[1e17], &[1.0]]);
    assert!((values[0] + 0.2).abs() < 1e-6, "{values:?}");
}

#[test]
fn settings_that_pytorch_refuses_are_refused_by_name() {
    for (rule, text) in [
        (
            Rule::Sgd(Sgd {
                lr: -1.0,
                ..Sgd::default()
            }),
            "Invalid lr value: -1",
        ),
        (
            Rule::Sgd(Sgd {
                nesterov: true,
                ..Sgd::default()
            }),
            "Nesterov momentum requires a momentum",
        ),
        (
            Rule::Adam(Adam {
                beta1: 1.0,
                ..Adam::default()
            }),
            "Invalid beta1 value: 1",
        ),
        (
            Rule::AdamW(AdamW(Adam {
                beta2: -0.5,
                ..Adam::default()
            })),
            "Invalid beta2 value: -0.5",
        ),
        (
            Rule::Adagrad(Adagrad {
                lr_decay: f64::NAN,
                ..Adagrad::default()
            }),
            "Invalid lr_decay value: NaN",
        ),
        (
            Rule::RmsProp(RmsProp {
                alpha: -0.1,
                ..RmsProp::default()
            }),
            "Invalid alpha value: -0.1",
        ),
    ] {
        let error = rule.check().expect_err("it is refused");
        assert_eq!(error.reason(), catalogue::AUTOGRAD_OPTIMIZER);
        assert!(error.message().contains(text), "{error}");
    }
    assert!(Optimizer::new(Rule::Sgd(Sgd::default()), vec![]).is_err());
}

#[test]
fn a_gradient_that_does_not_fit_changes_nothing_and_one_that_is_missing_neither() {
    let tape = Tape::new().expect("memory");
    let new = |values| Parameter::new(&tape, row(values)).expect("a parameter");
    let (one, two) = (new(vec![1.0]), new(vec![2.0, 2.0]));
    let twice = Optimizer::new(Rule::Sgd(Sgd::default()), vec![one.clone(), one.clone()]);
    assert!(
        twice
            .expect_err("the same twice")
            .message()
            .contains("twice")
    );
    let rule = Rule::Sgd(Sgd {
        lr: 1.0,
        ..Sgd::default()
    });
    let optimizer = Optimizer::new(rule, vec![one.clone(), two.clone()]).expect("an optimizer");
    let value = |of: &Parameter| of.var().tensor().to_vec::<f64>().expect("doubles");
    let wrong = BTreeMap::from([(one.id(), row(vec![1.0])), (two.id(), row(vec![1.0]))]);
    let error = optimizer.step(&wrong).expect_err("it does not fit");
    assert_eq!(error.reason(), catalogue::AUTOGRAD_OPTIMIZER);
    assert_eq!((value(&one), value(&two)), (vec![1.0], vec![2.0, 2.0]));
    let used = one.var();
    optimizer
        .step(&BTreeMap::from([(one.id(), row(vec![0.5]))]))
        .expect("a step");
    assert_eq!((value(&one), value(&two)), (vec![0.5], vec![2.0, 2.0]));
    assert_eq!(
        used.tensor().item::<f64>().expect("one"),
        1.0,
        "what is in use stays"
    );
    assert_eq!(one.var().leaf_id(), used.leaf_id());
}

#[test]
fn no_step_is_lost_when_two_optimizers_step_one_parameter() {
    const LEN: usize = 1024;
    let tape = Tape::new().expect("memory");
    let parameter = Parameter::new(&tape, row(vec![0.0; LEN])).expect("a parameter");
    let steps = || {
        let rule = Rule::Sgd(Sgd {
            lr: 1.0,
            ..Sgd::default()
        });
        let optimizer = Optimizer::new(rule, vec![parameter.clone()]).expect("an optimizer");
        let gradients = BTreeMap::from([(parameter.id(), row(vec![1.0; LEN]))]);
        (0..1000).for_each(|_| optimizer.step(&gradients).expect("a step"));
    };
    std::thread::scope(|scope| {
        scope.spawn(steps);
        scope.spawn(steps);
    });
    let var = parameter.var();
    assert_eq!(
        var.tensor().to_vec::<f64>().expect("doubles"),
        [-2000.0; LEN]
    );
}

/// One in the tape's memory is read in place by peers; one on the heap takes no room from what is computed.
#[test]
fn a_parameter_stays_in_the_memory_it_came_in() {
    let tape = Tape::of(8 << 20).expect("memory");
    let on_heap = row(vec![1.0; 1 << 12]);
    let meta = on_heap.meta();
    let mut room = tape.home().allocate(meta).expect("room");
    room.as_mut_slice::<f64>().expect("doubles").fill(1.0);
    let values = [on_heap, room.finish()];
    let parameters = values.map(|value| Parameter::new(&tape, value).expect("doubles"));
    let rule = Rule::Sgd(Sgd {
        lr: 0.5,
        ..Sgd::default()
    });
    let optimizer = Optimizer::new(rule, parameters.to_vec()).expect("two");
    let gradient = row(vec![1.0; 1 << 12]);
    let gradients = parameters
        .each_ref()
        .map(|one| (one.id(), gradient.clone()));
    let gradients = BTreeMap::from(gradients);
    for (is_full, value) in [(false, 0.5), (true, 0.0), (false, -0.5)] {
        let others = std::iter::from_fn(|| tape.home().allocate(meta).ok());
        let _others: Vec<_> = others.take_while(|_| is_full).collect();
        optimizer.step(&gradients).expect("a step");
        let vars = parameters.each_ref().map(Parameter::var);
        let lie_in_arena = vars.each_ref().map(|var| var.tensor().region().is_some());
        assert_eq!(lie_in_arena, [false, !is_full], "{value}");
        for var in vars {
            assert_eq!(
                var.tensor().as_slice::<f64>().expect("doubles"),
                [value; 1 << 12]
            );
        }
    }
}
