//! What must be found of devices: memory that stays away, work that met what was gone, and a run that shows nothing.

use super::*;

const AT_REST: &str = "devices 0 0 0 0";

#[test]
fn memory_that_does_not_come_home_is_found() {
    for held in ["devices 1 0 0 0", "devices 0 1 0 0"] {
        let found = Run::with(AT_REST, &line(190_000, held)).findings();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("did not come home"), "{found:?}");
    }
}

#[test]
fn it_may_be_away_while_a_neighbour_is_stopped() {
    let stop = [
        (100, "host 0 1"),
        (188_000, "fault stop 0"),
        (189_000, "healed stop 0"),
    ];
    let run = Run::with(AT_REST, &line(190_000, "devices 1 0 0 0")).and(&stop);
    let is_found = |what: &String| what.contains("did not come home");
    assert!(!run.findings().iter().any(is_found));
}

#[test]
fn work_that_meets_what_it_may_not_is_found_whatever_is_broken() {
    for held in ["devices 0 0 1 0", "devices 0 0 0 1"] {
        let stop = [
            (100, "host 0 1"),
            (188_000, "fault stop 0"),
            (189_000, "healed stop 0"),
        ];
        let run = Run::with(AT_REST, &line(190_000, held)).and(&stop);
        let is_found = |what: &String| what.contains("met what it may not");
        assert!(run.findings().iter().any(is_found), "{held}");
    }
}

#[test]
fn a_run_that_shows_nothing_of_devices_is_found() {
    let mut run = Run::good();
    for lines in &mut run.histories {
        lines.retain(|line| !line.contains(AT_REST));
    }
    let found = run.findings();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("never looked at"), "{found:?}");
    // Neighbours lend each other what lies on their devices.
    let mut run = Run::good().and(&[(100, "host 0 1")]);
    assert_eq!(run.findings(), Vec::<String>::new());
    for line in run.histories.iter_mut().flatten() {
        if line.ends_with(" device") {
            line.truncate(line.len() - "device".len());
            line.push_str("copy");
        }
    }
    let found = run.findings();
    let is_it = |what: &&String| what.contains("in place");
    assert_eq!(found.iter().filter(is_it).count(), 2, "{found:?}");
}
