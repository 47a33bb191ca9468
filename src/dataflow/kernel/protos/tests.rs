//! Messages of every type come back as they went, and hostile ones are refused.

use super::*;
use crate::graph::empty;
use crate::kernel::testing::grown;
use proptest::prelude::*;
use prost::Message;
use rendez::ground::Code;
use rendez::memory::{ArenaConfig, ArenaId, Pool};
use rendez_proto::tensorflow::tensor_shape_proto::Dim;

/// The message of a tensor.
///
/// # Errors
/// `TENSOR_MALFORMED` for strings that are no encoding of them, as a peer may have sent; `TENSOR_DEVICE` for a
/// tensor in a device's memory.
fn write(tensor: &Tensor) -> Result<TensorProto, Status> {
    let dim = |size: u64| Dim {
        size: i64::try_from(size).unwrap_or(i64::MAX),
        name: String::new(),
    };
    let mut message = TensorProto {
        dtype: types::data_type(tensor.dtype()) as i32,
        tensor_shape: Some(TensorShapeProto {
            dim: tensor.shape().dims().map(dim).collect(),
            unknown_rank: false,
        }),
        ..TensorProto::default()
    };
    if tensor.dtype() == DType::String {
        let strings = tensor.strings();
        let strings = strings.map_err(|error| malformed(&error.to_string()))?;
        message.string_val = strings.iter().map(<[u8]>::to_vec).collect();
    } else {
        message.tensor_content = tensor.host()?.to_vec();
    }
    Ok(message)
}

fn read_back(message: &TensorProto) -> Result<Tensor, Status> {
    let mut pool = Pool::new(
        ArenaId(0),
        ArenaConfig {
            bytes_max: 64 << 20,
            ..ArenaConfig::default()
        },
    );
    let pool = pool.as_mut().expect("an arena");
    read(message, |meta| {
        let mut room = pool.builder(meta)?;
        room.bytes_mut().fill(0xff);
        Ok(room)
    })
}

#[test]
fn what_is_written_is_read() {
    for &dtype in DType::ALL {
        let shape = Shape::new(&[2, 3]).expect("a shape");
        let tensor = match dtype.size() {
            Some(size) => {
                // A truth value is 0 or 1.
                let most = if dtype == DType::Bool { 1 } else { u8::MAX };
                let bytes: Vec<u8> = (0..size as u8 * 6).map(|at| at & most).collect();
                Tensor::from_bytes(TensorMeta { dtype, shape }, bytes.into())
            }
            None => Tensor::from_strings(&["", "a", "bc", "def", "\u{e9}", "x"], shape),
        };
        let tensor = tensor.expect("a tensor");
        let message = write(&tensor).expect("a message");
        let back = read_back(&message).expect("a tensor");
        assert_eq!(
            (back.meta(), back.bytes()),
            (tensor.meta(), tensor.bytes()),
            "{dtype}"
        );
    }
}

#[test]
fn the_last_element_fills_the_shape_and_none_is_zero() {
    let floats = TensorProto {
        float_val: vec![1.0, 2.0],
        ..empty(DataType::DtFloat, &[4])
    };
    assert_eq!(
        read_back(&floats).expect("a tensor").as_slice::<f32>(),
        Ok(&[1., 2., 2., 2.][..])
    );
    let zeros = empty(DataType::DtInt64, &[3]);
    assert_eq!(
        read_back(&zeros).expect("a tensor").as_slice::<i64>(),
        Ok(&[0i64; 3][..])
    );
    let strings = TensorProto {
        string_val: vec![b"a".to_vec(), b"b".to_vec()],
        ..empty(DataType::DtString, &[3])
    };
    let strings = read_back(&strings).expect("a tensor");
    let strings: Vec<_> = strings
        .strings()
        .expect("strings")
        .iter()
        .map(<[u8]>::to_vec)
        .collect();
    assert_eq!(strings, [b"a", b"b", b"b"]);
    let bytes = TensorProto {
        int_val: vec![-1, 300],
        ..empty(DataType::DtUint8, &[2])
    };
    assert_eq!(
        read_back(&bytes).expect("a tensor").host().unwrap(),
        [255, 44]
    );
    let halves = TensorProto {
        half_val: vec![0x3c00],
        ..empty(DataType::DtHalf, &[])
    };
    assert_eq!(
        read_back(&halves).expect("a tensor").as_slice::<f16>(),
        Ok(&[f16::ONE][..])
    );
    let truths = TensorProto {
        bool_val: vec![true],
        ..empty(DataType::DtBool, &[2])
    };
    assert_eq!(
        read_back(&truths).expect("a tensor").host().unwrap(),
        [1, 1]
    );
    let complex = TensorProto {
        scomplex_val: vec![1.0, -2.0],
        ..empty(DataType::DtComplex64, &[])
    };
    let complex = read_back(&complex).expect("a tensor");
    assert_eq!(
        complex.as_slice::<Complex<f32>>(),
        Ok(&[Complex::new(1.0, -2.0)][..])
    );
}

#[test]
fn strings_may_be_packed() {
    let packed = TensorProto {
        tensor_content: b"\x01\x00\x03abcd".to_vec(),
        ..empty(DataType::DtString, &[3])
    };
    let tensor = read_back(&packed).expect("three strings");
    let items: Vec<_> = tensor
        .strings()
        .expect("strings")
        .iter()
        .map(<[u8]>::to_vec)
        .collect();
    assert_eq!(items, [b"a".to_vec(), b"".to_vec(), b"bcd".to_vec()]);
}

#[test]
fn hostile_messages_are_refused_before_memory_is_taken() {
    let mut hostile = vec![
        empty(DataType::DtInvalid, &[1]),
        empty(DataType::DtResource, &[1]),
        TensorProto {
            dtype: 999,
            ..empty(DataType::DtFloat, &[])
        },
        empty(DataType::DtFloat, &[-1]),
        empty(DataType::DtFloat, &[-7]),
        empty(DataType::DtFloat, &[1 << 40, 1 << 40]),
        empty(DataType::DtFloat, &[1 << 61]),
        empty(DataType::DtFloat, &[1; 9]),
        TensorProto {
            float_val: vec![1.0; 3],
            ..empty(DataType::DtFloat, &[2])
        },
        TensorProto {
            tensor_content: vec![0; 7],
            ..empty(DataType::DtFloat, &[2])
        },
        TensorProto {
            tensor_content: vec![0; 7],
            ..empty(DataType::DtString, &[9])
        },
        TensorProto {
            tensor_content: vec![0xff; 12],
            ..empty(DataType::DtString, &[1])
        },
        TensorProto {
            tensor_content: vec![1, b'a', b'b'],
            ..empty(DataType::DtString, &[1])
        },
        TensorProto {
            string_val: vec![vec![0; 1000]],
            ..empty(DataType::DtString, &[1 << 50])
        },
        empty(DataType::DtString, &[1 << 60]),
    ];
    let mut unknown = empty(DataType::DtFloat, &[]);
    unknown.tensor_shape = Some(TensorShapeProto {
        unknown_rank: true,
        dim: vec![],
    });
    hostile.push(unknown);
    for message in hostile {
        let status = read_back(&message).expect_err("it is refused");
        assert_eq!(status.reason(), catalogue::TENSOR_MALFORMED, "{message:?}");
    }
}

/// A message of a few bytes stands for many strings, which are nowhere until there is room for them.
#[test]
fn strings_take_no_memory_beside_the_callers() {
    let repeated = TensorProto {
        string_val: vec![vec![b'a']],
        ..empty(DataType::DtString, &[100_000_000])
    };
    let more = grown(|| {
        let status = read_back(&repeated).expect_err("there is no room");
        assert_eq!(status.code(), Code::ResourceExhausted);
    });
    assert!(more < 512 << 10, "{more} kB more than before");
    let few = TensorProto {
        string_val: vec![b"ab".to_vec(), b"c".to_vec()],
        ..empty(DataType::DtString, &[4])
    };
    let read = read_back(&few).expect("strings");
    let items: Vec<_> = read.strings().expect("strings").iter().collect();
    assert_eq!(items, [&b"ab"[..], b"c", b"c", b"c"]);
}

proptest! {
    #[test]
    fn no_bytes_can_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(message) = TensorProto::decode(bytes.as_slice()) {
            let _ = read_back(&message);
        }
    }
}
