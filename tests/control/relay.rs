//! A relay between a dialler and a TCP port: it can record, change a byte, and go silent without closing anything.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rendez::control::Address;

/// What the relay does to what passes.
#[derive(Debug, Default)]
pub(crate) struct Habits {
    /// Passes nothing on while set, in either direction; connections stay open.
    pub(crate) is_cut: AtomicBool,
    /// Passes nothing of the dialler's on while set, and everything that is said to it.
    pub(crate) is_mute: AtomicBool,
    /// The byte of the first connection to be changed, counted from the dialler; zero for none.
    pub(crate) changed_byte: AtomicUsize,
    /// What the dialler said on the first connection.
    pub(crate) recorded: Mutex<Vec<u8>>,
    /// What was said on the others, both ways.
    pub(crate) recorded_data: Mutex<Vec<u8>>,
    /// Changes one bit of the next that the dialler says on one of the others.
    pub(crate) spoils_data: AtomicBool,
}

/// A relay; its threads end with the connections they carry, and with the test.
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) address: Address,
    pub(crate) habits: Arc<Habits>,
}

impl Relay {
    pub(crate) fn to(target: &Address) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let address = listener.local_addr().expect("bound").to_string();
        let habits = Arc::new(Habits::default());
        let (target, shared) = (target.to_string(), Arc::clone(&habits));
        std::thread::spawn(move || {
            for (index, near) in listener.incoming().enumerate() {
                let Ok(near) = near else { return };
                let Ok(far) = TcpStream::connect(&target) else {
                    continue;
                };
                let ends = || {
                    (
                        near.try_clone().expect("a clone"),
                        far.try_clone().expect("a clone"),
                    )
                };
                let ((near_in, far_out), (near_out, far_in)) = (ends(), ends());
                let (out, back) = (Arc::clone(&shared), Arc::clone(&shared));
                std::thread::spawn(move || carry(near_in, far_out, &out, index, true));
                std::thread::spawn(move || carry(far_in, near_out, &back, index, false));
            }
        });
        Self {
            address: address.parse().expect("an address"),
            habits,
        }
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.habits.is_cut.store(is_cut, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, habits: &Habits, index: usize, is_out: bool) {
    let mut buffer = [0; 4096];
    let mut passed = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        while habits.is_cut.load(Ordering::SeqCst)
            || (is_out && habits.is_mute.load(Ordering::SeqCst))
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = &mut buffer[..count];
        if index > 0 {
            if is_out && habits.spoils_data.swap(false, Ordering::SeqCst) {
                bytes[count / 2] ^= 1;
            }
            let mut recorded = habits.recorded_data.lock().expect("no panic");
            recorded.extend_from_slice(bytes);
        } else if is_out {
            let changed = habits.changed_byte.load(Ordering::SeqCst);
            if changed > passed && changed <= passed + count {
                bytes[changed - passed - 1] ^= 1;
            }
            habits
                .recorded
                .lock()
                .expect("no panic")
                .extend_from_slice(bytes);
        }
        passed += count;
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    // A waiter for more hears that there is none.
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}
