//! Values that stay where they are made: their history goes through references, and a pass may begin at their owner.

use super::*;
use crate::remote::backward;

fn leaf_of(worker: &Worker<Tape>, values: &[f64]) -> Var {
    worker.engine().leaf(row(values))
}

/// The only gradient at a worker that is none of `others`.
fn gradient(worker: &Worker<Tape>, context: u64, others: &[&Var]) -> Option<Vec<f64>> {
    let context = crate::autograd::ContextId::from_wire(context);
    let all = worker.gradients(context).expect("gradients");
    let is_other = |id: u64| others.iter().any(|var| var.leaf_id() == Some(id));
    let mut left = all.iter().filter(|(id, _)| !is_other(**id));
    left.next().map(|(_, tensor)| numbers(tensor))
}

#[test]
fn a_value_that_is_fetched_brings_its_history() {
    let group = Group::start("fetched", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = leaf_of(worker, &[1.0, 3.0]);
    for options in both_modes() {
        let scope = worker.scope().expect("a context");
        let kept: RRef<Var> = agent
            .remote("w1", "scale", (x.clone(),))
            .expect("a reference");
        let y = kept.to_here().expect("a value");
        assert!(y.requires_gradient());
        let loss = y.total().expect("a sum");
        worker
            .backward(scope.id(), &[loss], options)
            .expect("a pass");
        let context = scope.id().to_wire();
        assert_eq!(gradient_of(&scope, &x), [2.0, -1.0]);
        assert_eq!(
            gradient(&group.workers[1], context, &[]),
            Some(vec![1.0, 3.0])
        );
    }
    group.leave();
}

#[test]
fn a_fetch_makes_the_context_known_though_nothing_wants_gradients() {
    let group = Group::start("known", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let weights: RRef<Tensor> = agent.remote("w1", "weights", ()).expect("a reference");
    weights.to_here().expect("outside of all contexts");
    assert_eq!(group.workers[1].load().contexts, 0);
    let scope = worker.scope().expect("a context");
    weights.to_here().expect("inside");
    assert_eq!(group.workers[1].load().contexts, 1);
    drop((scope, weights));
    group.leave();
}

#[test]
fn a_value_goes_by_reference_through_three_workers() {
    let group = Group::start("by_way", 3);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = leaf_of(worker, &[1.0, 3.0]);
    for options in both_modes() {
        let scope = worker.scope().expect("a context");
        let kept: RRef<Var> = agent
            .remote("w1", "scale", (x.clone(),))
            .expect("a reference");
        // Worker 2 fetches it from 1, and scales it on.
        let y: Var = agent.rpc_sync("w2", "scale_kept", (kept,)).expect("a call");
        assert_eq!(numbers(y.tensor()), [4.0, 3.0]);
        let loss = y.total().expect("a sum");
        worker
            .backward(scope.id(), &[loss], options)
            .expect("a pass");
        assert_eq!(gradient_of(&scope, &x), [4.0, 1.0]);
        let context = scope.id().to_wire();
        for at in [1, 2] {
            let of_weights = gradient(&group.workers[at], context, &[]);
            assert_eq!(of_weights, Some(vec![2.0, -3.0]), "worker {at}");
        }
    }
    group.leave();
}

#[test]
fn a_pass_begins_where_the_value_of_a_reference_is() {
    let group = Group::start("at_owner", 2);
    let (agent, worker) = (&group.agents[0], &group.workers[0]);
    let x = leaf_of(worker, &[1.0, 3.0]);
    for options in both_modes() {
        let scope = worker.scope().expect("a context");
        let loss: RRef<Var> = agent
            .remote("w1", "loss", (x.clone(),))
            .expect("a reference");
        backward(&loss, scope.id(), options).expect("a pass");
        assert_eq!(gradient_of(&scope, &x), [2.0, -1.0]);
        let again = backward(&loss, scope.id(), options).expect_err("it is used up");
        assert_eq!(again.reason(), catalogue::RPC_REMOTE_ERROR, "{again}");
        assert!(again.message().contains("second time"), "{again}");
    }
    group.leave();
}
