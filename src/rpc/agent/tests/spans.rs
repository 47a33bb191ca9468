//! Spans of a profile: those of callees come home under their callers'.

use std::sync::mpsc;

use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::spans::{Home, Profile, Span, SpanId, Spans, layer, span};
use crate::{RRef, WorkerId};

/// Functions of three workers: one that is carried out alone, some that call on.
fn functions() -> Functions {
    Functions::new()
        .add("work", |by: u32| {
            let _inner = span("inner");
            by + 1
        })
        .add_in_shard("quick", |by: u32| {
            let _inner = span("inside the shard");
            by
        })
        .add_async("later", |by: u32| async move {
            let _inner = span("in the future");
            by
        })
        .add("fails", || Err::<(), String>("it is broken".into()))
        .add("is_traced", || {
            let call = Context::current().expect("a call");
            call.traceparent().map(|trace| trace.to_string())
        })
        .add("calls_on", |by: u32| -> Result<u32, Error> {
            let agent = Context::current().expect("a call").agent();
            agent.rpc_sync("w2", "work", (by,))
        })
}

fn one<'a>(spans: &'a Spans, name: &str) -> &'a Span {
    let mut all = spans.iter().filter(|span| span.name == name);
    let found = all
        .next()
        .unwrap_or_else(|| panic!("no span {name} in\n{spans}"));
    assert!(all.next().is_none(), "two spans {name} in\n{spans}");
    found
}

/// The names of a span and of those above it, the span's first.
fn way(spans: &Spans, of: &Span) -> Vec<String> {
    let mut names = vec![of.name.clone()];
    let mut at = of.parent;
    while let Some(above) = spans.get(at) {
        names.push(above.name.clone());
        at = above.parent;
    }
    names
}

#[test]
fn spans_of_a_nested_call_come_home_under_those_of_its_callers() {
    let agents = group(3, "spans", &functions());
    let profile = Profile::new(&agents[0]);
    let result: u32 = profile
        .scope("step", || agents[0].rpc_sync("w1", "calls_on", (1_u32,)))
        .expect("a result");
    // They are home before the answer.
    let spans = profile.finish();
    assert_eq!((result, spans.dropped()), (2, 0));
    let inner = one(&spans, "inner");
    assert_eq!(
        way(&spans, inner),
        [
            "inner",
            "work",
            "rpc_sync#work(w1 -> w2)",
            "calls_on",
            "rpc_sync#calls_on(w0 -> w1)",
            "step"
        ]
    );
    assert_eq!(
        spans.key(inner),
        "rpc_sync#calls_on(w0 -> w1)#remote_op: rpc_sync#work(w1 -> w2)#remote_op: inner"
    );
    let at = |name: &str| spans.worker(one(&spans, name));
    assert_eq!(
        (&*at("inner"), &*at("calls_on"), &*at("step")),
        ("w2", "w1", "w0")
    );
    assert!(
        spans
            .iter()
            .all(|span| !span.is_error && span.id != SpanId(0))
    );
    let queued = spans.iter().filter(|span| span.name == "queued").count();
    assert_eq!(queued, 2, "each call waited for a thread:\n{spans}");
    let took = |name: &str| one(&spans, name).took_ns;
    assert!(took("step") >= took("rpc_sync#calls_on(w0 -> w1)"));
    assert!(took("calls_on") >= took("rpc_sync#work(w1 -> w2)"));
    assert!(took("work") >= took("inner"));
    // As text and for viewers.
    let text = spans.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("step at w0: ") && lines[1].starts_with("  rpc_sync#calls_on"),
        "{text}"
    );
    let timeline: serde_json::Value = serde_json::from_str(&spans.timeline()).expect("JSON");
    let events = timeline["traceEvents"].as_array().expect("events");
    assert_eq!(
        events.len(),
        spans.iter().count() + 3,
        "three workers have names"
    );
}

#[test]
fn every_kind_of_function_records_and_a_failure_is_marked() {
    let agents = group(2, "kinds", &functions());
    let profile = Profile::new(&agents[0]);
    profile.scope("step", || {
        let _: u32 = agents[0]
            .rpc_sync("w1", "quick", (1_u32,))
            .expect("a result");
        let _: u32 = agents[0]
            .rpc_async("w1", "later", (1_u32,))
            .expect("a call")
            .wait()
            .expect("a result");
        agents[0].rpc_sync::<()>("w1", "fails", ()).unwrap_err();
        let kept: RRef<u32> = agents[0]
            .remote("w1", "work", (1_u32,))
            .expect("a reference");
        assert_eq!(kept.to_here().expect("a value"), 2);
        // To itself, too.
        let _: u32 = agents[0]
            .rpc_sync("w0", "work", (1_u32,))
            .expect("a result");
    });
    let spans = profile.finish();
    let ways = [
        ("inside the shard", "rpc_sync#quick(w0 -> w1)"),
        ("in the future", "rpc_async#later(w0 -> w1)"),
    ];
    for (name, call) in ways {
        assert_eq!(
            way(&spans, one(&spans, name))[2..],
            [call, "step"],
            "{spans}"
        );
    }
    for name in [
        "rpc_remote#work(w0 -> w1)",
        "rpc_sync#to_here(w0 -> w1)",
        "rpc_sync#work(w0 -> w0)",
    ] {
        assert_eq!(way(&spans, one(&spans, name))[1..], ["step"]);
    }
    let failed: Vec<&str> = spans
        .iter()
        .filter(|span| span.is_error)
        .map(|span| &*span.name)
        .collect();
    assert_eq!(failed, ["rpc_sync#fails(w0 -> w1)", "fails"]);
    assert_eq!(spans.iter().filter(|span| span.name == "inner").count(), 2);
}

#[test]
fn a_call_outside_of_a_profile_carries_nothing() {
    let agents = group(2, "unprofiled", &functions());
    let profile = Profile::new(&agents[0]);
    let trace =
        || -> Option<String> { agents[0].rpc_sync("w1", "is_traced", ()).expect("a result") };
    assert_eq!(trace(), None);
    let _: u32 = agents[0]
        .rpc_sync("w1", "work", (1_u32,))
        .expect("a result");
    let traced = profile.scope("step", trace).expect("a trace");
    assert!(
        traced.contains(&format!("{:032x}", profile.trace_id())),
        "{traced}"
    );
    assert_eq!(trace(), None);
    let spans = profile.finish();
    assert!(
        spans
            .iter()
            .all(|span| span.name != "work" && span.name != "inner"),
        "{spans}"
    );
    for agent in &agents {
        assert!(
            agent
                .shared()
                .recordings
                .lock()
                .expect("no panic")
                .is_empty(),
            "none is left"
        );
    }
}

#[test]
fn spans_of_a_call_that_its_caller_left_behind_come_home_afterwards() {
    let (end, waits) = mpsc::channel::<()>();
    let waits = Mutex::new(waits);
    let functions = functions()
        .add("waits", move || {
            let _inner = span("long");
            let _ = waits.lock().expect("no panic").recv();
        })
        .add("leaves_behind", || -> Result<(), Error> {
            let agent = Context::current().expect("a call").agent();
            agent.rpc_async::<()>("w2", "waits", ())?.detach();
            Ok(())
        });
    let agents = group(3, "afterwards", &functions);
    let profile = Profile::new(&agents[0]);
    profile
        .scope("step", || {
            agents[0].rpc_sync::<()>("w1", "leaves_behind", ())
        })
        .expect("it returns");
    assert!(profile.so_far().iter().all(|span| span.name != "long"));
    drop(end);
    let began = std::time::Instant::now();
    while !profile.so_far().iter().any(|span| span.name == "long") {
        assert!(began.elapsed() < LONG, "{}", profile.so_far());
        std::thread::sleep(Duration::from_millis(1));
    }
    let spans = profile.finish();
    let names = way(&spans, one(&spans, "long"));
    assert_eq!(names[1..3], ["waits", "rpc_async#waits(w1 -> w2)"]);
    assert_eq!(
        names[3..],
        ["leaves_behind", "rpc_sync#leaves_behind(w0 -> w1)", "step"]
    );
}

#[test]
fn calls_stand_under_spans_of_tracing() {
    let agents = group(2, "tracing", &functions());
    let profile = Profile::new(&agents[0]);
    let subscriber = tracing_subscriber::registry().with(layer());
    tracing::subscriber::with_default(subscriber, || {
        let outside = tracing::info_span!("outside");
        outside.in_scope(|| ());
        profile.scope("step", || {
            let _entered = tracing::info_span!("forward", layer = 3).entered();
            tracing::info_span!("dense").in_scope(|| {
                let _: u32 = agents[0]
                    .rpc_sync("w1", "work", (1_u32,))
                    .expect("a result");
            });
        });
    });
    let spans = profile.finish();
    let names = way(&spans, one(&spans, "rpc_sync#work(w0 -> w1)"));
    assert_eq!(names[1..], ["dense", "forward", "step"]);
    assert!(spans.iter().all(|span| span.name != "outside"), "{spans}");
}

#[test]
fn spans_of_a_worker_that_was_not_called_are_dropped_and_counted() {
    let agents = group(2, "uncalled", &functions());
    let profile = Profile::new(&agents[0]);
    let forged = |recording| {
        let span = Span {
            id: SpanId(7),
            parent: SpanId(7),
            name: "forged".into(),
            worker: WorkerId(900),
            began_ns: u64::MAX,
            took_ns: u64::MAX,
            is_error: false,
        };
        let home = Home {
            worker: WorkerId(0),
            recording,
        };
        agents[1].shared().send_home(home, vec![span]);
    };
    forged(profile.number());
    forged(12345);
    let began = std::time::Instant::now();
    while agents[0].shared().figures.dropped_spans() < 2 {
        assert!(began.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(profile.so_far().iter().count(), 0);
    // One that was called may send what it likes, and all of it can be shown.
    let _: u32 = profile
        .scope("step", || agents[0].rpc_sync("w1", "work", (1_u32,)))
        .expect("a result");
    forged(profile.number());
    while !profile.so_far().iter().any(|span| span.name == "forged") {
        assert!(began.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    let spans = profile.finish();
    let forged = one(&spans, "forged");
    assert_eq!(
        (&*spans.key(forged), &*spans.worker(forged)),
        ("forged", "900")
    );
    assert!(!spans.to_string().is_empty() && spans.timeline().contains("forged"));
}
