//! What an agent tells of itself: metrics on its engine's page, stages, what is pending, and figures.

use std::sync::mpsc;

use super::*;
use crate::metrics::FAMILIES;
use crate::{RRef, WorkerId};
use rendez::ground::Locked;

/// Functions of which one waits until the sender is dropped.
fn functions() -> (Functions, mpsc::Sender<()>) {
    let (end, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let functions = Functions::new()
        .add("waits", move || {
            let waits = waits.locked();
            let _ = waits.recv();
        })
        .add("fails", || Err::<(), String>("it is broken".into()))
        .add("panics", || -> () { panic!("on purpose") })
        .add("float", || 1.5_f32)
        .add_in_shard("add", |a: u32, b: u32| a + b);
    (functions, end)
}

/// The number of the one sample on `page` that has all of these in its name and labels.
fn sample(page: &str, parts: &[&str]) -> f64 {
    let mut lines = page.lines().filter(|line| !line.starts_with('#'));
    let line = lines.find(|line| parts.iter().all(|part| line.contains(part)));
    let line = line.unwrap_or_else(|| panic!("no sample of {parts:?} in\n{page}"));
    let number = line
        .rsplit(' ')
        .next()
        .and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no number in {line}"))
}

fn until(what: &str, is_it: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_it() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_page_of_the_engine_counts_calls_by_outcome_and_times_them() {
    let (functions, _end) = functions();
    let agents = group(2, "page", &functions);
    for at in 0..3 {
        let sum: u32 = agents[0].rpc_sync("w1", "add", (at, 1_u32)).expect("a sum");
        assert_eq!(sum, at + 1);
    }
    let calls = [
        ("fails", "error"),
        ("panics", "panic"),
        ("none", "function"),
    ];
    for (function, _) in calls {
        let _ = agents[0].rpc_sync::<()>("w1", function, ()).unwrap_err();
    }
    let _: f32 = agents[0].rpc_sync("w1", "float", ()).expect("a result");
    let (caller, callee) = (
        agents[0].engine().metrics_text().expect("a page"),
        agents[1].engine().metrics_text().expect("a page"),
    );
    let count = |page: &str, family: &str, outcome: &str| {
        sample(
            page,
            &[family, "group=\"rpc\"", &format!("outcome=\"{outcome}\"")],
        )
    };
    assert_eq!(count(&caller, "rpc_calls_total{", "value"), 4.0);
    assert_eq!(count(&callee, "rpc_answers_total{", "value"), 4.0);
    for (_, outcome) in calls {
        assert_eq!(
            count(&caller, "rpc_calls_total{", outcome),
            1.0,
            "{outcome}"
        );
        assert_eq!(
            count(&callee, "rpc_answers_total{", outcome),
            1.0,
            "{outcome}"
        );
        assert_eq!(
            count(&callee, "rpc_calls_total{", outcome),
            0.0,
            "{outcome}"
        );
    }
    assert_eq!(
        sample(&caller, &["rpc_call_seconds_count", "worker=\"w0\""]),
        7.0
    );
    // Of the seven, six were carried out.
    let run = ["rpc_stage_seconds_count", "stage=\"run\""];
    assert_eq!(sample(&callee, &run), 6.0);
    assert!(sample(&caller, &["rpc_call_seconds_sum"]) > 0.0);
    // Every family of the reference is there, and none beside.
    for page in [&caller, &callee] {
        let shown: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE rendez_rpc_"))
            .filter_map(|line| line.split(' ').next())
            .map(|name| name.trim_end_matches("_total"))
            .collect();
        let known: Vec<&str> = FAMILIES
            .iter()
            .filter_map(|family| family.name.strip_prefix("rendez_rpc_"))
            .collect();
        assert_eq!(shown, known);
    }
}

#[test]
fn gauges_show_what_is_under_way_and_what_is_held() {
    let (functions, end) = functions();
    let set = |options: Options| Options {
        threads: 1,
        window: 2,
        ..options.functions(functions.clone())
    };
    let agents = group_with(2, "gauges", set);
    let value: RRef<f32> = agents[0].remote("w1", "float", ()).expect("a reference");
    value.to_here().expect("a value");
    let calls: Vec<_> = (0..3)
        .map(|_| {
            agents[0]
                .rpc_async::<()>("w1", "waits", ())
                .expect("a call")
        })
        .collect();
    let page = |at: usize| agents[at].engine().metrics_text().expect("a page");
    until("one runs, one is queued", || {
        let page = page(1);
        sample(&page, &["queue=\"pool\""]) == 1.0
            && sample(&page, &["pool_threads", "state=\"busy\""]) == 1.0
    });
    assert_eq!(sample(&page(0), &["side=\"client\""]), 3.0);
    assert_eq!(sample(&page(0), &["queue=\"window\""]), 1.0);
    assert_eq!(sample(&page(0), &["references{", "kind=\"held\""]), 1.0);
    assert_eq!(sample(&page(1), &["side=\"server\""]), 2.0);
    assert_eq!(sample(&page(1), &["references{", "kind=\"owned\""]), 1.0);
    assert_eq!(sample(&page(1), &["references{", "kind=\"forks\""]), 1.0);
    drop(end);
    wait_all(calls).expect("they end");
    drop(value);
    until("all is at rest", || {
        let (caller, callee) = (page(0), page(1));
        sample(&caller, &["side=\"client\""]) == 0.0
            && sample(&caller, &["references{", "kind=\"held\""]) == 0.0
            && sample(&callee, &["references{", "kind=\"owned\""]) == 0.0
    });
}

#[test]
fn pending_names_calls_functions_and_references_with_worker_and_age() {
    let (functions, end) = functions();
    let agents = group(2, "pending", &functions);
    let value: RRef<f32> = agents[0].remote("w1", "float", ()).expect("a reference");
    value.to_here().expect("a value");
    let calls: Vec<_> = (0..2)
        .map(|_| {
            agents[0]
                .rpc_async::<()>("w1", "waits", ())
                .expect("a call")
        })
        .collect();
    let has = |at: usize, parts: &[&str]| {
        let lines = agents[at].pending();
        lines
            .iter()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    };
    until("the functions begin", || {
        has(1, &["function waits at 'w0': 2, the oldest since "])
    });
    assert!(
        has(0, &["call waits at 'w1': 2, the oldest since "]),
        "{:?}",
        agents[0].pending()
    );
    let name = format!("RRefId={}", value.id());
    assert!(
        has(0, &["reference UserRRef(", &name, "at 'w1', since "]),
        "{:?}",
        agents[0].pending()
    );
    assert!(
        has(1, &["value OwnerRRef(", "at 'w1'"]),
        "{:?}",
        agents[1].pending()
    );
    // The engine tells the same, by task, the oldest first.
    let told = agents[0].engine().outstanding();
    let call = told
        .iter()
        .find(|one| one.what == "call")
        .expect("the calls");
    assert_eq!((&*call.name, call.count), ("waits", 2));
    assert_eq!(call.on, agents[1].worker().task);
    assert!(
        told.is_sorted_by(|one, next| one.age_ns >= next.age_ns),
        "{told:?}"
    );
    drop(end);
    wait_all(calls).expect("they end");
    drop(value);
    until("nothing is left", || {
        agents[0].pending().is_empty() && agents[1].pending().is_empty()
    });
}

#[test]
fn stages_of_calls_are_told_as_those_of_hand_overs_are() {
    let (functions, _end) = functions();
    let agents = group(2, "stages", &functions);
    let _: f32 = agents[0].rpc_sync("w1", "float", ()).expect("a result");
    let names =
        |at: usize| -> Vec<String> {
            let stages = agents[at].engine().reported_stages();
            assert!(stages.iter().all(|stage| stage.way == "rpc"
                && stage.count == 1
                && stage.p50_ns <= stage.max_ns));
            stages.into_iter().map(|stage| stage.stage).collect()
        };
    assert_eq!(names(0), ["call"]);
    assert_eq!(names(1), ["queued", "run"]);
}

#[test]
fn figures_have_the_names_of_pytorch_and_threads_that_have_not_begun_are_idle() {
    let (functions, end) = functions();
    let agents = group(2, "figures", &functions);
    let names: Vec<&str> = agents[1].debug_info().into_keys().collect();
    for name in [
        "agent.thread_pool_size",
        "agent.num_idle_threads",
        "agent.client_active_calls",
        "agent.server_active_calls",
        "agent.server_active_async_calls",
        "num_owner_rrefs",
        "num_pending_futures",
        "num_pending_users",
        "num_forks",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    assert_eq!(agents[1].debug_info()["agent.num_idle_threads"], 16);
    let call = agents[0]
        .rpc_async::<()>("w1", "waits", ())
        .expect("a call");
    until("it runs", || {
        agents[1].debug_info()["agent.num_idle_threads"] == 15
    });
    drop(end);
    call.wait().expect("it ends");
    until("it ran", || {
        agents[1].debug_info()["agent.num_idle_threads"] == 16
    });
}

#[test]
fn an_agent_that_is_gone_tells_nothing_and_keeps_no_one_waiting() {
    let (functions, _end) = functions();
    let mut agents = group(2, "gone", &functions);
    let (engine, shared) = (agents[1].engine().clone(), Arc::clone(agents[1].shared()));
    agents.remove(1).shutdown_local();
    let began = std::time::Instant::now();
    assert!(engine.outstanding().is_empty() && engine.samples().is_empty());
    assert!(shared.ask(|view| view.node.me()).is_none());
    assert!(began.elapsed() < LONG);
    assert_ne!(shared.me, WorkerId(0));
}
