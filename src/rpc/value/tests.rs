//! Values come back as they were, and what is none is refused.

use std::sync::{Arc, OnceLock, Weak};

use rendez::ground::Shape;

use super::*;
use crate::agent::rref::Held;
use crate::id::{GlobalId, WorkerId};

#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
struct Settings {
    rate: f64,
    names: Vec<String>,
}

crate::plain!(Settings);

/// Nothing, by a name.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
struct Unit;

crate::plain!(Unit);

struct Batch {
    images: Tensor,
    labels: Vec<i64>,
    settings: Option<Settings>,
}

crate::fields!(Batch {
    images,
    labels,
    settings
});

fn through<T: Value>(value: &T) -> Result<T, ValueError> {
    let mut packer = Packer::default();
    value.put(&mut packer)?;
    let mut from = Unpacker::new(packer.plain, packer.tensors, packer.handles);
    let value = T::take(&mut from)?;
    from.end()?;
    Ok(value)
}

#[test]
fn values_come_back_as_they_were() {
    assert_eq!(
        through(&(1_u8, -2_i64, "three".to_owned(), 4.5_f32)),
        Ok((1, -2, "three".into(), 4.5))
    );
    assert_eq!(through(&vec![Some(1_u32), None]), Ok(vec![Some(1), None]));
    assert_eq!(through(&vec![(); 7]), Ok(vec![(); 7]));
    assert_eq!(through(&vec![Unit; 3]), Ok(vec![Unit; 3]));
    assert_eq!(through(&vec![vec![(); 2]; 3]), Ok(vec![vec![(); 2]; 3]));
    for map in [BTreeMap::from([((), ())]), BTreeMap::new()] {
        assert_eq!(through(&map), Ok(map));
    }
    let map = BTreeMap::from([("a".to_owned(), vec![1_u16]), ("b".to_owned(), vec![])]);
    assert_eq!(through(&map), Ok(map));
    let settings = Settings {
        rate: 0.1,
        names: vec!["x".into()],
    };
    let images = Tensor::from_slice(&[1.0_f32, 2.0], Shape::from([2])).expect("a tensor");
    let batch = Batch {
        images,
        labels: vec![3, 4],
        settings: Some(settings.clone()),
    };
    let batch = through(&batch).expect("a batch");
    assert_eq!((batch.labels, batch.settings), (vec![3, 4], Some(settings)));
    assert_eq!(batch.images.as_slice::<f32>().expect("floats"), [1.0, 2.0]);
}

/// A list is the bytes that serde's of it is, and comes back.
fn is_written_as_ever<T>(list: &Vec<T>)
where
    T: Value + PartialEq + std::fmt::Debug + serde::Serialize,
{
    let mut packer = Packer::default();
    list.put(&mut packer).expect("a list");
    let bytes = postcard::to_stdvec(list).expect("bytes");
    assert_eq!(packer.plain[..], bytes, "{}", name_of::<T>());
    assert_eq!(through(list).as_ref(), Ok(list));
}

#[test]
fn a_list_is_written_as_its_elements_one_by_one() {
    is_written_as_ever::<f32>(&vec![0.0, -1.5, f32::MAX, f32::INFINITY]);
    is_written_as_ever::<f64>(&vec![-0.0, f64::MIN_POSITIVE, 1e300]);
    is_written_as_ever::<u8>(&(0..=u8::MAX).collect());
    is_written_as_ever::<i8>(&(i8::MIN..=i8::MAX).collect());
    is_written_as_ever::<bool>(&vec![true, false]);
    is_written_as_ever::<u64>(&vec![0, 127, 128, u64::MAX]);
    is_written_as_ever::<i64>(&vec![0, -1, i64::MIN, i64::MAX]);
    is_written_as_ever::<String>(&vec![String::new(), "a".repeat(300)]);
    is_written_as_ever::<u8>(&Vec::new());
    let nan = through(&vec![f32::from_bits(0x7fc0_1234)]).expect("a list");
    assert_eq!(nan[0].to_bits(), 0x7fc0_1234);
}

/// It is never written.
#[derive(Clone)]
struct Unwritten(#[allow(dead_code, reason = "it takes a byte of memory")] u8);

impl Value for Unwritten {
    fn name(to: &mut String) {
        to.push_str("Unwritten");
    }

    fn put(&self, _: &mut Packer) -> Result<(), ValueError> {
        panic!("the list is too long")
    }

    fn take(_: &mut Unpacker) -> Result<Self, ValueError> {
        Ok(Self(0))
    }
}

#[test]
fn a_list_that_is_too_long_is_refused_before_it_is_written() {
    let told = "plain values of more than 67108864 bytes; large data belongs into tensors";
    let most = PLAIN_BYTES_MAX - 4;
    let mut packer = Packer::default();
    vec![0_u8; most]
        .put(&mut packer)
        .expect("as long as it goes");
    assert_eq!(packer.plain.len(), PLAIN_BYTES_MAX);
    assert_eq!(1_u8.put(&mut packer).unwrap_err().to_string(), told);
    assert_eq!(packer.plain.len(), PLAIN_BYTES_MAX, "nothing more");
    for refused in [
        through(&vec![0_u8; most + 1]).map(drop),
        through(&vec![0_f32; PLAIN_BYTES_MAX / 4]).map(drop),
        through(&"a".repeat(PLAIN_BYTES_MAX)).map(drop),
    ] {
        assert_eq!(refused.unwrap_err().to_string(), told);
    }
    // Its count says so.
    let list = vec![Unwritten(0); PLAIN_BYTES_MAX + 1];
    assert_eq!(
        list.put(&mut Packer::default()).unwrap_err().to_string(),
        told
    );
}

#[test]
fn names_tell_types_apart() {
    assert_eq!(
        name_of::<(u32, Vec<Option<Tensor>>)>(),
        "(u32,Vec<Option<Tensor>>,)"
    );
    assert_eq!(name_of::<Batch>(), "Batch{images,labels,settings,}");
    assert_ne!(
        crate::payload::digest(&name_of::<u32>()),
        crate::payload::digest(&name_of::<i32>())
    );
}

#[test]
fn what_is_none_is_refused() {
    let bytes = |plain: &[u8]| Unpacker::new(plain.into(), Vec::new(), Vec::new());
    // A list of 2⁶⁰ elements, and no byte of them.
    let count = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
    let told = Vec::<u8>::take(&mut bytes(&count)).unwrap_err();
    assert_eq!(told.to_string(), "a count that is larger than what follows");
    let many =
        "lists of more than 1048576 values that are nothing: send how many there are as a number";
    let told = Vec::<()>::take(&mut bytes(&count)).unwrap_err();
    assert_eq!(told.to_string(), many);
    // Nor many short lists of many.
    let lists = [&[3][..], &[0x80, 0x80, 0x20].repeat(3)].concat();
    assert!(Vec::<Vec<()>>::take(&mut bytes(&lists)).is_err());
    let told = through(&vec![vec![(); 1 << 19]; 3]).unwrap_err();
    assert_eq!(told.to_string(), many);
    assert!(String::take(&mut bytes(&[2, 0xff, 0xff])).is_err());
    assert!(Tensor::take(&mut bytes(&[])).is_err());
    assert!(u32::take(&mut bytes(&[])).is_err());
    assert!(bytes(&[1]).end().is_err());
}

/// A share that belongs to no agent.
fn share() -> RRef<u32> {
    RRef::of(Handle(Arc::new(Held {
        shared: Weak::new(),
        rref: GlobalId {
            on: WorkerId(1),
            local: 1,
        },
        owner: WorkerId(1),
        fork: None,
        failed: OnceLock::new(),
        is_confirmed: OnceLock::new(),
    })))
}

#[test]
fn more_references_than_a_message_carries_are_refused() {
    let shares = vec![share(); REFERENCES_MAX];
    let mut packer = Packer::default();
    shares.put(&mut packer).expect("as many as go");
    let told = share().put(&mut packer).unwrap_err();
    assert_eq!(told.to_string(), "more than 65536 references");
    let mut one = Packer::default();
    share().put(&mut one).expect("a first");
    assert!(one.append(&packer).is_err());
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(plain in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
        let from = || Unpacker::new(plain.clone().into(), Vec::new(), Vec::new());
        let _ = Vec::<Vec<Option<String>>>::take(&mut from());
        let _ = HashMap::<u64, Vec<(u8, f64)>>::take(&mut from());
        let _ = Settings::take(&mut from());
    }
}
