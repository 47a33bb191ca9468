//! The report of the edges: what is an edge, and what its figures are.

use super::*;

fn event(what: What, [a, b, c]: [u32; 3]) -> Event {
    Event {
        what,
        at: 0,
        way: Way::ShmInline,
        class: 0,
        step: 1,
        key: 1,
        frame_iter: (0, 0),
        ordinal: 0,
        a,
        b,
        c,
    }
}

fn key(from: &str, to: &str, edge: &str) -> String {
    format!(
        "/job:{from}/replica:0/task:1/device:CPU:0;0123456789abcdef;/job:{to}/replica:0/task:0/device:CPU:0;{edge};0:0"
    )
}

#[test]
fn edges_between_tasks_are_gathered_by_stage() {
    let grads = key("worker", "ps", "edge_7_grad");
    let all = vec![
        (grads.clone(), event(What::Sent, [0, 100, 10])),
        (grads.clone(), event(What::Sent, [0, 300, 30])),
        (grads.clone(), event(What::Took, [5, 7, 400])),
        // How long the wire took is unknown.
        (grads.clone(), event(What::Took, [5, 9, u32::MAX])),
        (grads, event(What::Parked, [1 << 20, 0, 0])),
        (
            key("worker", "ps", "session_3"),
            event(What::Took, [1, 1, 1]),
        ),
        ("no key".to_owned(), event(What::Took, [1, 1, 1])),
    ];
    let edges = gather(all.into_iter());
    let [edge] = edges.as_slice() else {
        panic!("{edges:?}");
    };
    assert_eq!((edge.from.as_str(), edge.to.as_str()), ("worker:1", "ps:0"));
    assert_eq!((edge.edge.as_str(), edge.count), ("edge_7_grad", 2));
    assert_eq!(edge.stages, [0.0, 200.0, 20.0, 400.0, 5.0, 8.0].map(Some));
    let text = table(&edges, None);
    assert!(
        text.contains("edge_7_grad") && text.contains("633ns"),
        "{text}"
    );
    assert_eq!(json(edge)["mean_ns"]["wire"], 400.0);
}

#[test]
fn a_task_does_not_cut_itself() {
    let here =
        "/job:ps/replica:0/task:0/device:CPU:0;0;/job:ps/replica:0/task:0/device:CPU:1;edge_1_x";
    assert_eq!(
        gather([(here.to_owned(), event(What::Took, [1, 1, 1]))].into_iter()),
        []
    );
}
