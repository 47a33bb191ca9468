//! Graphs: one session of a task under test, which runs a graph over all tasks again and again, and writes down what
//! became of each step.
//!
//! Knows a server and the public face of sessions; judges nothing. The graph is a loop whose every turn crosses all
//! tasks, so that a step takes a while and whatever is broken is broken in its midst.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::history::{Event, Log, now_ns};
use super::scope::mixed;
use rendez::ground::{Status, TaskName};
use rendez::memory::Tensor;
use rendez_dataflow::graph::{Builder, NodeId, Output, ints};
use rendez_dataflow::operations::Operations;
use rendez_dataflow::server::{Load, Server, Session};
use rendez_proto::tensorflow::{DataType, GraphDef};

/// Turns of the loop in one step, at most.
const TURNS: u64 = 40;
/// Between two steps, and between two attempts to begin a session.
const PAUSE: Duration = Duration::from_millis(20);
/// How long what is left of other tasks' sessions may take to go, once all are told to end.
const LEAVING: Duration = Duration::from_secs(4);
/// What is fetched.
const FETCH: &str = "counted";

/// Runs steps until it is over; then nothing of any session may be left here.
pub(super) fn run(server: &Server, tasks: &[TaskName], log: &Log, is_over: &AtomicBool) {
    let Ok(graph) = graph(tasks) else {
        // A graph that is none is a mistake of this file: the judge misses the steps.
        return;
    };
    let mut session: Option<Session> = None;
    let mut step = 0;
    while !is_over.load(Ordering::Acquire) {
        std::thread::sleep(PAUSE);
        let Some(open) = &session else {
            let began_ns = now_ns();
            match begin(server, &graph) {
                Ok(open) => session = Some(open),
                Err(status) => {
                    let now_ns = now_ns();
                    eprintln!("no session at {now_ns}: {status}");
                    log.add(&Event::Unbegun {
                        for_ns: now_ns - began_ns,
                        reason: status.reason().to_owned(),
                    });
                }
            }
            continue;
        };
        let turns = 1 + mixed(now_ns()) % TURNS;
        log.add(&Event::Step { step });
        let outcome = open.run(&feeds(turns, tasks.len()), &[FETCH], &[]);
        if let Err(status) = &outcome {
            // The history has the reason and the names only; who looks into a finding wants the words.
            eprintln!("step {step} failed at {}: {status}", now_ns());
        }
        log.add(&match &outcome {
            Ok(values) => Event::Right {
                step,
                is_right: is_right(values, turns, tasks.len()),
            },
            Err(status) => Event::Broken {
                step,
                reason: status.reason().to_owned(),
                is_derived: status.is_derived(),
                named: named(status, tasks),
            },
        });
        step += 1;
        if outcome.is_err() {
            // Another one: a worker that has restarted knows nothing of this one.
            let _ = session.take().map(|open| open.close());
        }
    }
    let _ = session.take().map(|open| open.close());
    if let Some(left) = left(|| server.load(), Instant::now() + LEAVING) {
        log.add(&Event::Left {
            sessions: (left.sessions + left.worker_sessions) as u64,
            steps: left.steps as u64,
        });
    }
}

/// What is left by then, or sooner if nothing is. A server that cannot say so says nothing, which the judge finds.
fn left(load: impl Fn() -> Result<Load, Status>, until: Instant) -> Option<Load> {
    loop {
        let load = load().ok()?;
        if load == Load::default() || Instant::now() >= until {
            return Some(load);
        }
        std::thread::sleep(PAUSE);
    }
}

fn begin(server: &Server, graph: &GraphDef) -> Result<Session, Status> {
    let session = Session::on(server)?;
    session.create(graph.clone())?;
    Ok(session)
}

/// So many turns, each of which adds one at every task.
fn feeds(turns: u64, tasks: usize) -> [(&'static str, Tensor); 2] {
    let limit = turns * tasks as u64;
    [
        ("from", Tensor::scalar(0_i32)),
        ("limit", Tensor::scalar(limit as i32)),
    ]
}

fn is_right(values: &[Tensor], turns: u64, tasks: usize) -> bool {
    let expected = (turns * tasks as u64) as i32;
    let [counted] = values else { return false };
    counted
        .as_slice::<i32>()
        .is_ok_and(|counted| counted == [expected])
}

/// Which tasks a failure names.
fn named(status: &Status, tasks: &[TaskName]) -> Vec<u32> {
    let is_named = |task: &TaskName| status.message().contains(&task.to_string());
    let named = (0..).zip(tasks).filter(|(_, task)| is_named(task));
    named.map(|(index, _)| index).collect()
}

/// Counts from what is fed up to a limit; in each turn one is added at every task.
fn graph(tasks: &[TaskName]) -> Result<GraphDef, Status> {
    let mut graph = Builder::new(Operations::standard().ops());
    let placeholder = |graph: &mut Builder, name: &str| {
        let node = graph.node("Placeholder").name(name);
        node.attr("dtype", DataType::DtInt32).build()
    };
    let enter = |graph: &mut Builder, data: Output, is_constant: bool| {
        let node = graph.node("Enter").input(data).attr("frame_name", "loop");
        node.attr("is_constant", is_constant).build()
    };
    let one = |graph: &mut Builder, after: NodeId| {
        let node = graph.node("Const").control(after);
        let node = node.attr("dtype", DataType::DtInt32);
        node.attr("value", ints(&[], &[1])).build()
    };
    let from = placeholder(&mut graph, "from")?;
    let limit = placeholder(&mut graph, "limit")?;
    let from = enter(&mut graph, from, false)?;
    let limit = enter(&mut graph, limit, true)?;
    let merge = graph.node("Merge").inputs([from, from]).build()?;
    let less = graph.node("Less").inputs([merge, limit]).build()?;
    let condition = graph.node("LoopCond").input(less).build()?;
    let switch = graph.node("Switch").inputs([merge, condition]).build()?;
    let mut value = Output { port: 1, ..switch };
    for task in tasks {
        graph.on(&task.to_string());
        let hand = graph.node("Identity").input(value).build()?;
        let by = one(&mut graph, hand.node)?;
        value = graph.node("AddV2").inputs([hand, by]).build()?;
    }
    graph.on("");
    let next = graph.node("NextIteration").input(value).build()?;
    graph.set_input(merge.node, 1, next)?;
    graph.node("Exit").name(FETCH).input(switch).build()?;
    Ok(graph.finish()?.to_def())
}

#[cfg(test)]
mod tests {
    use rendez::ground::catalogue;

    use super::*;

    #[test]
    fn a_server_that_cannot_say_what_is_left_says_nothing() {
        let stopped = || Err(Status::of(catalogue::SERVER_STOPPED, "it is stopped"));
        let now = Instant::now();
        assert_eq!(left(stopped, now + LEAVING), None);
        assert_eq!(
            left(|| Ok(Load::default()), now + LEAVING),
            Some(Load::default())
        );
        let steps = Load {
            steps: 1,
            ..Load::default()
        };
        assert_eq!(left(|| Ok(steps), now), Some(steps));
    }
}
