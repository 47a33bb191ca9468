//! The plans of a session: made once, found again, and not kept for ever.

use super::*;

fn signature(fetch: &str) -> StepSignature {
    StepSignature {
        fetches: vec![fetch.to_owned()],
        ..StepSignature::default()
    }
}

fn plan(signature: &StepSignature) -> StepPlan {
    StepPlan {
        parts: vec![],
        signature: signature.clone(),
        feeds: vec![],
        keys: None,
    }
}

#[test]
fn a_plan_is_made_once_and_again_only_after_a_failure() {
    let plans = Plans::default();
    let wanted = signature("x");
    assert!(plans.ready(&wanted).is_none());
    let refused = plans.find(&wanted, |making| making.told(Err(no("no"))));
    assert_eq!(refused.unwrap_err().message(), "no");
    let made = plans
        .find(&wanted, |making| making.told(Ok(plan(&wanted))))
        .unwrap();
    let found = plans
        .find(&wanted, |_| unreachable!("it is made already"))
        .unwrap();
    assert!(Arc::ptr_eq(&made, &found));
    assert!(Arc::ptr_eq(&made, &plans.ready(&wanted).unwrap()));
    let partial = StepSignature {
        is_partial: true,
        ..wanted
    };
    assert!(plans.ready(&partial).is_none(), "another kind of step");
    plans.end(&crate::server::master::closed());
    assert!(plans.ready(&signature("x")).is_none());
}

#[test]
fn who_may_not_wait_does_not_wait_for_a_plan_that_is_being_made() {
    let plans = Plans::default();
    let wanted = signature("x");
    let made = plans.find(&wanted, |making| {
        assert!(plans.ready(&wanted).is_none());
        making.told(Ok(plan(&wanted)));
    });
    assert!(made.is_ok() && plans.ready(&wanted).is_some());
}

/// Wants a plan that another makes. Gives the place, and what was told by now.
fn waits(plans: &Plans, wanted: &StepSignature) -> (Option<PlanWait>, Arc<Mutex<Vec<String>>>) {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let hears = Arc::clone(&told);
    let then = Box::new(move |made: Result<Arc<StepPlan>, Status>| {
        let what = made.map_or_else(|status| status.message().to_owned(), |_| "made".to_owned());
        hears.lock().unwrap().push(what);
    });
    match plans.want(wanted, || Err::<(), _>(no("no room"))) {
        Ok(Wanted::Begun(begun)) => (begun.then(then), told),
        Ok(Wanted::Made(_)) => panic!("it is made"),
        _ => panic!("no other makes it"),
    }
}

fn begun(plans: &Plans, wanted: &StepSignature) -> Making {
    match plans.want(wanted, || Ok(())) {
        Ok(Wanted::New(making, ())) => making,
        _ => panic!("it is made, or another makes it"),
    }
}

fn no(what: &str) -> Status {
    Status::of(catalogue::GRAPH_ENDPOINT, what)
}

#[test]
fn a_plan_is_made_by_one_and_the_others_hear_of_it() {
    let plans = Plans::default();
    let wanted = signature("x");
    let making = begun(&plans, &wanted);
    let (_place, early) = waits(&plans, &wanted);
    let (place, vain) = waits(&plans, &wanted);
    let (_place, late) = waits(&plans, &wanted);
    place.unwrap().end(no("too late"));
    assert_eq!(*vain.lock().unwrap(), ["too late"]);
    assert!(plans.ready(&wanted).is_none());
    let begun = making.begun();
    making.told(Ok(plan(&wanted)));
    assert_eq!(*early.lock().unwrap(), ["made"]);
    assert_eq!(*late.lock().unwrap(), ["made"]);
    assert_eq!(vain.lock().unwrap().len(), 1);
    assert!(plans.ready(&wanted).is_some());
    // It may have been made since it was looked for.
    let hears = Arc::clone(&late);
    let then = Box::new(move |made: Result<_, _>| {
        assert!(made.is_ok());
        hears.lock().unwrap().clear();
    });
    assert!(begun.then(then).is_none() && late.lock().unwrap().is_empty());
}

#[test]
fn those_who_wait_hear_why_a_plan_is_not_made_and_the_next_has_it_made_anew() {
    let plans = Plans::default();
    let wanted = signature("x");
    let making = begun(&plans, &wanted);
    let (place, told) = waits(&plans, &wanted);
    making.told(Err(no("no")));
    assert_eq!(*told.lock().unwrap(), ["no"]);
    place.unwrap().end(no("too late"));
    assert_eq!(told.lock().unwrap().len(), 1);

    let making = begun(&plans, &wanted);
    let (_place, told) = waits(&plans, &wanted);
    making.told(Err(no("no room")));
    assert_eq!(*told.lock().unwrap(), ["no room"]);

    let making = begun(&plans, &wanted);
    let (_place, told) = waits(&plans, &wanted);
    drop(making);
    assert_eq!(told.lock().unwrap().len(), 1, "it was dropped undone");
    drop(begun(&plans, &wanted));
}

#[test]
fn one_that_finds_no_room_to_make_a_plan_leaves_none_begun() {
    let plans = Plans::default();
    let wanted = signature("x");
    let refused = plans.want(&wanted, || Err::<(), _>(no("no room")));
    assert_eq!(refused.err(), Some(no("no room")));
    // One that waits for what another makes needs no room.
    let making = begun(&plans, &wanted);
    let (_place, told) = waits(&plans, &wanted);
    making.told(Ok(plan(&wanted)));
    assert_eq!(*told.lock().unwrap(), ["made"]);
}

#[test]
fn a_plan_of_a_graph_that_has_grown_since_is_not_waited_for() {
    let plans = Plans::default();
    let (wanted, other) = (signature("x"), signature("y"));
    plans
        .find(&other, |making| making.told(Ok(plan(&other))))
        .unwrap();
    let of_the_former = begun(&plans, &wanted);
    let (_place, told) = waits(&plans, &wanted);
    plans.forget_begun();
    let of_the_new = begun(&plans, &wanted);
    let (_place, new) = waits(&plans, &wanted);
    of_the_former.told(Err(no("no such node")));
    assert_eq!(*told.lock().unwrap(), ["no such node"]);
    of_the_new.told(Ok(plan(&wanted)));
    assert_eq!(*new.lock().unwrap(), ["made"]);
    assert!(plans.ready(&wanted).is_some() && plans.ready(&other).is_some());
}

#[test]
fn who_waits_for_a_plan_whose_place_another_has_taken_hears_of_the_end_too() {
    let plans = Plans::default();
    let kept = signature("kept");
    let (made, wanted) = (
        |plan| |making: Making| making.told(Ok(plan)),
        signature("x"),
    );
    let outgrown = begun(&plans, &wanted);
    let (_place, first) = waits(&plans, &wanted);
    plans.forget_begun();
    let _pushed_out = begun(&plans, &wanted);
    let (_place, second) = waits(&plans, &wanted);
    for number in 1..SESSION_PLANS_MAX {
        let filler = signature(&format!("n{number}"));
        plans.find(&filler, made(plan(&filler))).unwrap();
    }
    plans.find(&kept, made(plan(&kept))).unwrap();
    drop(begun(&plans, &wanted));
    plans.stop(&no("closed"));
    assert_eq!(*first.lock().unwrap(), ["closed"]);
    assert_eq!(*second.lock().unwrap(), ["closed"]);
    // What is made too late is not kept, and what runs may need its plan until it has ended.
    outgrown.told(Ok(plan(&wanted)));
    assert!(plans.ready(&wanted).is_none() && plans.ready(&kept).is_some());
    assert_eq!(first.lock().unwrap().len(), 1);
}

#[test]
fn the_oldest_plan_makes_room() {
    let plans = Plans::default();
    let name = |number: usize| signature(&format!("n{number}"));
    for number in 0..=SESSION_PLANS_MAX {
        let wanted = name(number);
        plans
            .find(&wanted, |making| making.told(Ok(plan(&wanted))))
            .unwrap();
    }
    assert!(plans.ready(&name(0)).is_none());
    assert!(plans.ready(&name(1)).is_some() && plans.ready(&name(SESSION_PLANS_MAX)).is_some());
}

#[test]
fn feeds_that_do_not_fit_are_named() {
    let mut plan = plan(&StepSignature {
        feeds: vec!["x:0".into()],
        ..StepSignature::default()
    });
    plan.feeds.push(Fed {
        base: DataType::DtFloat,
        dtype: Some(DType::F32),
        shape: Some(PartialShape::known(&[])),
    });
    assert!(plan.check_feeds(&[Tensor::scalar(1.0_f32)]).is_ok());
    let none = plan.check_feeds(&[]).unwrap_err();
    assert_eq!(none.message(), "1 feeds are missing: x:0");
    let row = Tensor::from_vec(vec![1.0_f32], rendez::ground::Shape::row(1).unwrap()).unwrap();
    let shape = plan.check_feeds(&[row]).unwrap_err();
    assert!(
        shape
            .message()
            .starts_with("Cannot feed value of shape [1] for Tensor 'x:0'"),
        "{shape}"
    );
    let dtype = plan.check_feeds(&[Tensor::scalar(1_u8)]).unwrap_err();
    assert_eq!(
        dtype.message(),
        "Cannot feed a tensor of u8 for 'x:0', which has type float"
    );
}

#[test]
fn a_workers_name_stands_before_what_it_says() {
    let status = Status::of(catalogue::VARIABLE_EMPTY, "empty");
    let told = from_worker("/job:w/replica:0/task:1", &status);
    assert_eq!(told.message(), "From /job:w/replica:0/task:1:\nempty");
    assert!((told.code(), told.reason()) == (status.code(), status.reason()) && !told.is_derived());
    assert!(from_worker("w", &status.derived()).is_derived());
}
