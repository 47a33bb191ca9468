//! Observers see every leg of a call, and their headers ride along.

use std::sync::Mutex;

use super::*;
use crate::{Leg, Observer};

/// Writes down what it sees, and sends a header that names its worker.
#[derive(Default)]
struct Scribe(Mutex<Vec<String>>);

impl Scribe {
    fn note(&self, what: &str, leg: Leg<'_>, more: &str) {
        let way = if leg.is_reply { "reply" } else { "request" };
        let text = format!(
            "{what} {way} {} {}->{} {more}",
            leg.function, leg.me, leg.peer
        );
        self.0
            .lock()
            .expect("no panic")
            .push(text.trim_end().to_owned());
    }
}

impl Observer for Scribe {
    fn sending(&self, leg: Leg<'_>) {
        self.note("sending", leg, "");
    }

    fn unwritten(&self, leg: Leg<'_>) {
        self.note("unwritten", leg, "");
    }

    fn sent(&self, leg: Leg<'_>, tensors: &[Tensor]) -> Result<Option<Vec<u8>>, crate::ValueError> {
        self.note("sent", leg, &tensors.len().to_string());
        Ok(Some(format!("from {}", leg.me).into_bytes()))
    }

    fn receiving(&self, leg: Leg<'_>, header: Option<&[u8]>, tensors: &[Tensor]) {
        let header = String::from_utf8_lossy(header.unwrap_or_default()).into_owned();
        self.note("receiving", leg, &format!("{} {header}", tensors.len()));
    }

    fn received(&self, leg: Leg<'_>) {
        self.note("received", leg, "");
    }

    fn enter(&self, leg: Leg<'_>, _: Option<&[u8]>) {
        self.note("enter", leg, "");
    }

    fn leave(&self, leg: Leg<'_>, _: Option<&[u8]>) {
        self.note("leave", leg, "");
    }
}

#[test]
fn observers_see_both_legs_at_both_ends_in_order() {
    let engines = engines(2, "observers");
    let scribes: Vec<Arc<Scribe>> = vec![Arc::default(), Arc::default()];
    let functions = Functions::new().add_in_shard("same", |tensor: Tensor| tensor);
    let agents = start(&engines, |at, options| {
        let scribe = Arc::clone(&scribes[at]);
        options.functions(functions.clone()).observer(scribe)
    });
    let _: Tensor = agents[0]
        .rpc_sync("w1", "same", (Tensor::scalar(1_u8),))
        .expect("a result");
    let seen = |at: usize| scribes[at].0.lock().expect("no panic").clone();
    assert_eq!(
        seen(0),
        [
            "sending request same 0->1",
            "sent request same 0->1 1",
            "receiving reply same 0->1 1 from 1",
            "received reply same 0->1",
        ]
    );
    assert_eq!(
        seen(1),
        [
            "receiving request same 1->0 1 from 0",
            "enter request same 1->0",
            "received request same 1->0",
            "sending reply same 1->0",
            "sent reply same 1->0 1",
            "leave request same 1->0",
        ]
    );
}

/// Its author has erred.
struct Falls;

impl crate::Value for Falls {
    fn name(to: &mut String) {
        to.push_str("Falls");
    }

    fn put(&self, _: &mut crate::Packer) -> Result<(), crate::ValueError> {
        panic!("it falls")
    }

    fn take(_: &mut crate::Unpacker) -> Result<Self, crate::ValueError> {
        Ok(Self)
    }
}

#[test]
fn observers_are_told_of_arguments_that_panic() {
    let engines = engines(2, "falling");
    let scribe = Arc::<Scribe>::default();
    let agents = start(&engines, |_, options| {
        options.observer(Arc::clone(&scribe) as Arc<dyn Observer>)
    });
    let call = || agents[0].rpc_sync::<u32>("w1", "now", (Falls,));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).expect_err("it panics");
    let seen = scribe.0.lock().expect("no panic").clone();
    assert_eq!(
        seen,
        ["sending request now 0->1", "unwritten request now 0->1"]
    );
}

/// The thread stayed in the call: what it did next was done in it.
#[test]
fn observers_leave_what_panics() {
    let engines = engines(2, "leaving");
    let scribes: Vec<Arc<Scribe>> = vec![Arc::default(), Arc::default()];
    let falls = async |_: u32| -> u32 { panic!("it falls") };
    let functions = Functions::new()
        .add("now", |_: u32| -> u32 { panic!("it falls") })
        .add_async("later", falls);
    let agents = start(&engines, |at, options| {
        let scribe = Arc::clone(&scribes[at]);
        options.functions(functions.clone()).observer(scribe)
    });
    for function in ["now", "later"] {
        let outcome = agents[0].rpc_sync::<u32>("w1", function, (1_u32,));
        assert_eq!(outcome.unwrap_err().reason(), catalogue::RPC_REMOTE_PANIC);
        let seen = scribes[1].0.lock().expect("no panic").clone();
        let count = |what: &str| {
            let of = format!("{what} {function}");
            seen.iter().filter(|one| one.starts_with(&of)).count()
        };
        let entered = count("enter request");
        assert_eq!(entered, count("leave request"), "{seen:?}");
        assert!(entered > 0, "{seen:?}");
        assert_eq!(count("unwritten reply"), 1, "{seen:?}");
    }
}

/// One of the two headers would not travel, though the leg does.
#[test]
fn a_leg_for_which_two_observers_have_a_header_does_not_go() {
    let engines = engines(2, "two_headers");
    let functions = Functions::new().add("number", |number: u32| number);
    let agents = start(&engines, |at, options| {
        let options = options.functions(functions.clone());
        match at {
            0 => options
                .observer(Arc::<Scribe>::default())
                .observer(Arc::<Scribe>::default()),
            _ => options,
        }
    });
    let outcome = agents[0].rpc_sync::<u32>("w1", "number", (1_u32,));
    let error = outcome.unwrap_err();
    assert_eq!(error.reason(), catalogue::RPC_ARGUMENTS, "{error}");
    assert!(error.to_string().contains("two observers"), "{error}");
    let back: u32 = agents[1]
        .rpc_sync("w1", "number", (2_u32,))
        .expect("a number");
    assert_eq!(back, 2);
}
