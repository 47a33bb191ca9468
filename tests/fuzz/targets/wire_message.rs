//! Any frame and any body: no panic, and what parses has one meaning.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez::wire::{Frame, Message};

fuzz_target!(|bytes: &[u8]| {
    let Some((head, beside)) = bytes.split_first_chunk::<64>() else {
        return;
    };
    let frame = Frame::from_bytes(head);
    assert_eq!(frame.to_bytes(), *head);
    let tail = frame.tail();
    let Ok(message) = Message::parse(&frame, &tail, beside) else {
        return;
    };
    let (again, body) = message.emit();
    let whole = [body.as_bytes(), message.trailing()].concat();
    let beside = if again.body_is_inline() {
        &[][..]
    } else {
        &whole
    };
    let tail = again.tail();
    let back = Message::parse(&again, &tail, beside);
    // A status longer than a frame carries is cut, and only that.
    if message.trailing().len() < 1020 {
        assert_eq!(back, Ok(message));
    }
});
