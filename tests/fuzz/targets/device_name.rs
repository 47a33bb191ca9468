//! Any text as a device or task name: no panic, and what parses is spelled one way.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::ground::DeviceName;
use rendez::ground::device::TaskName;

fuzz_target!(|text: &str| {
    for name in [DeviceName::parse(text), DeviceName::parse_full(text)]
        .into_iter()
        .flatten()
    {
        let canonical = name.to_string();
        assert_eq!(
            DeviceName::parse(&canonical).as_ref(),
            Ok(&name),
            "{canonical:?}"
        );
        let _ = (name.is_full(), name.task_name());
    }
    if let Ok(task) = TaskName::parse(text) {
        assert_eq!(TaskName::parse(&task.to_string()), Ok(task));
    }
});
