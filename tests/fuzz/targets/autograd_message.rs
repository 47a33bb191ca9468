//! Messages and envelopes of autograd, and a machine that hears them, one after another: each after a byte of its
//! length and one that says whose it is and how many gradients come beside it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rendez_autograd::autograd::codec::{decode, decode_envelope, encode, encode_envelope};
use rendez_autograd::autograd::{Autograd, WorkerId};

fuzz_target!(|bytes: &[u8]| {
    let mut machine = Autograd::<i64>::new(WorkerId(1));
    let context = machine.create_context();
    let mut rest = bytes;
    while let [len, how, behind @ ..] = rest {
        let (one, next) = behind.split_at(usize::from(*len).min(behind.len()));
        rest = next;
        let from = WorkerId(u16::from(how & 3));
        if let Ok(envelope) = decode_envelope(one) {
            assert_eq!(
                decode_envelope(&encode_envelope(&envelope)),
                Ok(envelope.clone())
            );
            let _ = machine.record_receive(from, &envelope);
        }
        if let Ok(message) = decode(one, vec![1_i64; usize::from(how >> 4)]) {
            let (bytes, beside) = encode(&message);
            assert_eq!(decode(&bytes, beside), Ok(message.clone()));
            machine.handle_message(from, message);
        }
        if how & 4 != 0 {
            machine.handle_worker_dead(from);
        }
        if how & 8 != 0 {
            machine.handle_worker_joined(from);
        }
        while machine.poll_effect().is_some() {}
    }
    if let Ok(context) = context {
        let _ = machine.release_context(context);
    }
    while machine.poll_effect().is_some() {}
});
