//! What is counted of a peer to which now this path fails, now that.

use crate::control::Path;
use crate::engine::Engine;
use crate::engine::tests::{PATIENCE, config};
use crate::ground::Incarnation;
use crate::ground::device::TaskName;

use super::Connected;

/// The samples of the page, without their family.
fn samples(engine: &Engine) -> Vec<String> {
    let page = engine.metrics_text().unwrap();
    let lines = page.lines();
    let of_family = lines.filter_map(|line| line.strip_prefix("rendez_fallbacks_total"));
    of_family.map(str::to_owned).collect()
}

#[test]
fn what_was_counted_under_one_reason_stays_there_when_there_is_another() {
    let mut config = config("/job:a/task:0");
    config.control = false;
    let engine = Engine::start(config).unwrap();
    let connected = |task, path: Path, why: &str| Connected {
        task: TaskName::parse(task).unwrap(),
        incarnation: Incarnation(1),
        shards: 1,
        path,
        why: why.into(),
        fell_back: true,
        read_domain: false,
        protection: "clear",
    };
    let fall_back = |from, to, why: &str| {
        let connected = connected("/job:b/task:0", to, why);
        engine.inner.wiring.fell_back(&connected, from);
    };
    fall_back(Path::Shm, Path::Tcp, "one");
    fall_back(Path::Shm, Path::Tcp, "two");
    fall_back(Path::Verbs, Path::Tcp, "three");
    let shm = |count: u64| {
        format!(
            "{{peer=\"/job:b/replica:0/task:0\",from=\"shm\",to=\"tcp\",reason=\"shm_unavailable\"}} {count}"
        )
    };
    let all = samples(&engine);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all.contains(&shm(2)), "{all:?}");
    let last = engine.fallbacks();
    assert_eq!(last.len(), 1);
    assert_eq!((last[0].from, last[0].why.as_str()), (Path::Verbs, "three"));
    assert_eq!(last[0].count, 3);
    // It comes back to the first, which goes on where it was.
    fall_back(Path::Shm, Path::Tcp, "four");
    let all = samples(&engine);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all.contains(&shm(3)), "{all:?}");
    let last = engine.fallbacks();
    assert_eq!((last[0].from, last[0].count), (Path::Shm, 4));
    engine.shutdown(PATIENCE);
}
