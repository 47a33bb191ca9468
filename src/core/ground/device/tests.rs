//! Device names: the original's tables, the bounds, and parse ∘ emit = identity.

use proptest::prelude::*;

use super::*;
use crate::ground::Code;

fn name(text: &str) -> DeviceName {
    DeviceName::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn fault(text: &str) -> Fault {
    match DeviceName::parse(text) {
        Err(DeviceError::Malformed {
            fault,
            text: echoed,
        }) => {
            assert_eq!(*echoed, *text);
            fault
        }
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn canonical_text() {
    for (text, canonical) in [
        (
            "/job:foo/replica:1/task:2/gpu:3",
            "/job:foo/replica:1/task:2/device:GPU:3",
        ),
        (
            "/job:foo_bar/replica:1/task:2/CPU:3",
            "/job:foo_bar/replica:1/task:2/device:CPU:3",
        ),
        (
            "/job:foo/cpu:1/task:2/replica:1",
            "/job:foo/replica:1/task:2/device:CPU:1",
        ),
        (
            "/job:foo/replica:1/task:2/device:myDevice_7:13",
            "/job:foo/replica:1/task:2/device:myDevice_7:13",
        ),
        (
            "/job:foo/replica:1/task:2/device:cpu:3",
            "/job:foo/replica:1/task:2/device:cpu:3",
        ),
        ("/job:*/replica:4/gpu:*", "/replica:4/device:GPU:*"),
        ("/gpu:*/job:*/replica:4", "/replica:4/device:GPU:*"),
        ("/job:*/device:GPU/replica:4", "/replica:4/device:GPU:*"),
        ("/device:*:3", "/device:*:3"),
        ("/device:*", "/"),
        ("/job:*/replica:*/task:*/device:*:*", "/"),
        ("/task:007", "/task:7"),
        ("/", "/"),
        ("", "/"),
    ] {
        assert_eq!(name(text).to_string(), canonical, "{text}");
        assert_eq!(name(canonical), name(text), "{text}");
    }
}

#[test]
fn malformed_names_say_why() {
    use Component::{Index, Job, Replica, Task, Type};
    for (text, expected) in [
        ("foobar", Fault::Unknown),
        ("//", Fault::Unknown),
        ("/job", Fault::Unknown),
        ("/job:123/replica:1/task:2/gpu:3", Fault::Value(Job)),
        ("/job:", Fault::Value(Job)),
        ("/job:a-b", Fault::Value(Job)),
        ("/job:aé", Fault::Value(Job)),
        ("/job:a;", Fault::Value(Job)),
        ("/job:*x", Fault::Unknown),
        ("/job:foo/replica:-1/task:2/gpu:3", Fault::Value(Replica)),
        ("/job:foo/replica:+1", Fault::Value(Replica)),
        ("/job:foo/replica:1/task:-2/gpu:3", Fault::Value(Task)),
        ("/task:4294967296", Fault::Value(Task)),
        ("/job:foo/replica:1/task:2/gpu:", Fault::Value(Index)),
        ("/job:foo/replica:1/task:2/device:gpu:", Fault::Value(Index)),
        ("/device:7up:1", Fault::Value(Type)),
        ("/job:foo/replica:1/task:2/bar:3", Fault::Unknown),
        ("/job:foo/replica:1/task:2/gpu:3/extra", Fault::Unknown),
        ("/job:foo/replica:1/task:2/gpu:3 ", Fault::Unknown),
        ("/Job:foo", Fault::Unknown),
        ("/job:a/job:b", Fault::Repeated(Job)),
        ("/job:*/job:b", Fault::Repeated(Job)),
        ("/cpu:0/device:GPU:0", Fault::Repeated(Type)),
    ] {
        assert_eq!(fault(text), expected, "{text}");
    }
}

#[test]
fn lengths_are_bounded() {
    let job = "j".repeat(JOB_NAME_BYTES_MAX);
    let kind = "K".repeat(DEVICE_TYPE_BYTES_MAX);
    let widest = format!("/job:{job}/replica:4294967295/task:4294967295/device:{kind}:4294967295");
    assert_eq!(
        DeviceName::parse_full(&widest).map(|name| name.to_string()),
        Ok(widest)
    );
    assert_eq!(fault(&format!("/job:{job}j")), Fault::Value(Component::Job));
    assert_eq!(
        fault(&format!("/device:{kind}K:0")),
        Fault::Value(Component::Type)
    );

    let absurd = format!("/task:{}", "0".repeat(100_000));
    let error = DeviceName::parse(&absurd).unwrap_err();
    assert!(matches!(
        &error,
        DeviceError::Malformed {
            fault: Fault::TooLong,
            ..
        }
    ));
    assert!(
        error.to_string().len() < 2 * DEVICE_NAME_BYTES_MAX,
        "the echo is bounded"
    );
}

#[test]
fn full_names_have_all_five() {
    assert!(DeviceName::parse_full("/job:a/replica:0/task:0/cpu:0").is_ok());
    for (text, missing) in [
        ("/replica:0/task:0/cpu:0", Component::Job),
        ("/job:a/task:0/cpu:0", Component::Replica),
        ("/job:a/replica:0/cpu:0", Component::Task),
        ("/job:a/replica:0/task:0", Component::Type),
        ("/job:a/replica:0/task:0/device:CPU", Component::Index),
        ("", Component::Job),
    ] {
        let error = DeviceName::parse_full(text).unwrap_err();
        assert_eq!(
            error,
            DeviceError::Malformed {
                text: text.into(),
                fault: Fault::Missing(missing)
            }
        );
    }
}

#[test]
fn tasks() {
    let task = TaskName::parse("/task:2/job:a").unwrap();
    assert_eq!(task.to_string(), "/job:a/replica:0/task:2");
    assert_eq!((task.job(), task.replica(), task.task()), ("a", 0, 2));
    assert_eq!(TaskName::new("a", 0, 2), Ok(task.clone()));
    assert_eq!(
        name("/job:a/replica:0/task:2/cpu:9").task_name(),
        Some(task.clone())
    );
    assert_eq!(name("/job:a/task:2").task_name(), None);
    assert_eq!(
        DeviceName::cpu(&task).to_string(),
        "/job:a/replica:0/task:2/device:CPU:0"
    );
    assert_eq!(
        DeviceName::new(&task, "TPU", 7).unwrap().to_string(),
        "/job:a/replica:0/task:2/device:TPU:7"
    );
    assert!(DeviceName::new(&task, "T:", 7).is_err());
    assert!(TaskName::new("1a", 0, 0).is_err());
    for (text, expected) in [
        ("/job:a", Fault::Missing(Component::Task)),
        ("/task:1", Fault::Missing(Component::Job)),
        ("/job:a/task:0/cpu:0", Fault::Unwanted(Component::Type)),
    ] {
        let malformed = DeviceError::Malformed {
            text: text.into(),
            fault: expected,
        };
        assert_eq!(TaskName::parse(text), Err(malformed));
    }
}

#[test]
fn a_refusal_shows_the_text_and_how_a_task_is_written() {
    for text in ["worker", ""] {
        let refused = TaskName::parse(text).unwrap_err().to_string();
        assert!(refused.contains(&format!("\"{text}\"")), "{refused}");
        assert!(refused.contains("/job:worker/task:0,"), "{refused}");
    }
}

#[test]
fn merge_takes_the_union() {
    for (a, b, expected) in [
        ("", "", ""),
        (
            "/job:foo/replica:1/task:2/cpu:1",
            "/job:foo/replica:1/task:2/cpu:1",
            "/job:foo/replica:1/task:2/cpu:1",
        ),
        ("", "/job:foo", "/job:foo"),
        ("/replica:1", "/task:2", "/replica:1/task:2"),
        (
            "/job:foo/cpu:*",
            "/task:2/device:CPU:3",
            "/job:foo/task:2/cpu:3",
        ),
        ("/gpu:*", "/device:*:3", "/gpu:3"),
    ] {
        for conflict in [Conflict::Strict, Conflict::Clear] {
            let (mut left, mut right) = (name(a), name(b));
            left.merge(&name(b), conflict).unwrap();
            right.merge(&name(a), conflict).unwrap();
            assert_eq!((left, right), (name(expected), name(expected)), "{a} {b}");
        }
    }
}

#[test]
fn merge_of_contradictions() {
    for (a, b, word) in [
        ("/job:foo", "/job:bar", "jobs"),
        ("/replica:0", "/replica:1", "replicas"),
        ("/task:0", "/task:1", "tasks"),
        ("/gpu:*", "/cpu:*", "types"),
        ("/cpu:0", "/cpu:1", "ids"),
    ] {
        let mut target = name(a);
        let error = target.merge(&name(b), Conflict::Strict).unwrap_err();
        let (first, second) = (name(a), name(b));
        let text =
            format!("Cannot merge devices with incompatible {word}: '{first}' and '{second}'");
        assert_eq!(error.to_string(), text);
        assert_eq!(target, name(a), "a refused merge changes nothing");
        let status = Status::from(error);
        assert_eq!(
            (status.code(), status.reason()),
            (Code::InvalidArgument, catalogue::DEVICE_CONFLICT)
        );
    }
    for (conflict, a, b, expected) in [
        (Conflict::Clear, "/job:a/gpu:1", "/cpu:1", "/job:a"),
        (Conflict::Clear, "/gpu:1", "/task:3/cpu:1", "/task:3"),
        (Conflict::Clear, "/gpu:1", "/gpu:2", "/gpu:*"),
    ] {
        let mut target = name(a);
        target.merge(&name(b), conflict).unwrap();
        assert_eq!(target, name(expected), "{a} {b}");
    }
    let mut target = name("/job:a/gpu:1");
    assert!(
        target
            .merge(&name("/job:b/cpu:0"), Conflict::Clear)
            .is_err(),
        "soft placement moves no process"
    );
}

#[test]
fn fill_changes_nothing_that_is_set() {
    let mut target = name("/job:a/gpu:*");
    target.fill(&name("/job:b/replica:1/task:2/cpu:3"));
    assert_eq!(target, name("/job:a/replica:1/task:2/gpu:3"));
}

fn word() -> impl Strategy<Value = String> {
    "[A-Za-z][A-Za-z0-9_]{0,20}"
}

pub(crate) fn any_name() -> impl Strategy<Value = DeviceName> {
    let number = || proptest::option::of(any::<u32>());
    (
        proptest::option::of(word()),
        number(),
        number(),
        proptest::option::of(word()),
        number(),
    )
        .prop_map(|(job, replica, task, kind, index)| DeviceName {
            job: job.map(Into::into),
            replica,
            task,
            kind: kind.map(Into::into),
            index,
        })
}

proptest! {
    #[test]
    fn parse_undoes_emit(name in any_name()) {
        let text = name.to_string();
        prop_assert!(text.len() <= DEVICE_NAME_BYTES_MAX);
        prop_assert_eq!(DeviceName::parse(&text), Ok(name));
    }

    #[test]
    fn components_come_in_any_order(name in any_name(), seed in any::<u64>()) {
        let text = name.to_string();
        let mut parts: Vec<&str> = text.split('/').skip(1).filter(|part| !part.is_empty()).collect();
        let mut rng = crate::ground::rng::Rng::new(seed);
        for last in (1..parts.len()).rev() {
            parts.swap(last, rng.below(last as u64 + 1) as usize);
        }
        let shuffled: String = parts.iter().map(|part| format!("/{part}")).collect();
        prop_assert_eq!(DeviceName::parse(&shuffled), Ok(name));
    }

    #[test]
    fn no_text_panics(text in "(/|job:|task:|replica:|device:|cpu:|[*:;é0-9a-zA-Z]){0,12}") {
        if let Ok(name) = DeviceName::parse(&text) {
            prop_assert_eq!(DeviceName::parse(&name.to_string()), Ok(name));
        }
        let _ = TaskName::parse(&text);
    }

    #[test]
    fn fill_makes_full(mut partial in any_name(), base in any_name()) {
        partial.fill(&base);
        for (set, either) in [
            (partial.job().is_some(), base.job().is_some()),
            (partial.task().is_some(), base.task().is_some()),
        ] {
            prop_assert!(set || !either);
        }
    }
}
