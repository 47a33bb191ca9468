//! Deadlines of steps: the earliest counts, and one that has ended has none.

use super::*;

#[test]
fn the_earliest_deadline_of_a_step_counts() {
    let mut deadlines = StepDeadlines::default();
    assert_eq!(deadlines.next(), Nanos::NEVER);
    for (step, at) in [(1, 50), (2, 30), (1, 20), (2, 90), (3, 70)] {
        deadlines.set(StepId(step), Nanos(at));
    }
    assert_eq!(deadlines.next(), Nanos(20));
    assert_eq!(deadlines.due(Nanos(19)), []);
    assert_eq!(deadlines.due(Nanos(30)), [StepId(1), StepId(2)]);
    deadlines.forget(StepId(1));
    assert_eq!(deadlines.next(), Nanos(30));
    assert_eq!(deadlines.due(Nanos(100)), [StepId(2), StepId(3)]);
}
