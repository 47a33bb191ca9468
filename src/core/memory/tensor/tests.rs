//! Tests of `tensor.rs`, `builder.rs` and `view.rs`.

use half::{bf16, f16};
use num_complex::Complex;

use super::super::{ArenaConfig, ArenaId, Bool8, HugePages, Pool};
use super::*;

fn shape(dims: &[u64]) -> Shape {
    Shape::new(dims).expect("a shape")
}

fn pool() -> Pool {
    let config = ArenaConfig {
        segment_bytes: 1 << 20,
        bytes_max: 1 << 20,
        huge_pages: HugePages::Off,
    };
    Pool::new(ArenaId(0), config).expect("a pool")
}

#[test]
fn scalars_of_every_type_lie_in_the_handle() {
    fn check<T: Element + PartialEq + std::fmt::Debug>(value: T) {
        let tensor = Tensor::scalar(value).clone();
        assert!(tensor.is_inline() && tensor.region().is_none() && !tensor.is_leased());
        assert_eq!((tensor.dtype(), tensor.shape()), (T::DTYPE, Shape::SCALAR));
        assert_eq!(tensor.as_slice::<T>(), Ok(&[value][..]));
        assert_eq!(tensor.view::<T>().expect("an array").first(), Some(&value));
    }
    check(Bool8::TRUE);
    check(-1i8);
    check(2u8);
    check(-3i16);
    check(4u16);
    check(-5i32);
    check(6u32);
    check(-7i64);
    check(8u64);
    check(f16::from_f32(1.5));
    check(bf16::from_f32(2.5));
    check(1.25f32);
    check(1e300f64);
    check(Complex::new(1f32, 2.0));
    check(Complex::new(1f64, -2.0));
}

#[test]
fn a_vector_is_kept_and_not_copied() {
    let values: Vec<f64> = (0..100).map(f64::from).collect();
    let address = values.as_ptr();
    let tensor = Tensor::from_vec(values, shape(&[10, 10])).expect("it fits");
    let clone = tensor.clone();
    drop(tensor);
    assert_eq!(clone.as_slice::<f64>().expect("floats").as_ptr(), address);
    assert_eq!(clone.view::<f64>().expect("an array")[[3, 4]], 34.0);
    let wrong = Tensor::from_vec(vec![1u8; 3], shape(&[4])).map(drop);
    assert_eq!(
        wrong,
        Err(TensorError::Elements {
            expected: 4,
            actual: 3
        })
    );
}

#[test]
fn foreign_memory_out_of_line_gives_bytes_and_no_slice() {
    let whole = Bytes::from_owner(VectorBytes(vec![0u64; 20]));
    let meta = TensorMeta {
        dtype: DType::F32,
        shape: shape(&[8]),
    };
    let tensor = Tensor::from_bytes(meta, whole.slice(1..33)).expect("32 bytes");
    assert_eq!(tensor.host().unwrap().as_ptr(), whole[1..].as_ptr());
    assert_eq!(
        tensor.as_slice::<f32>(),
        Err(TensorError::Misaligned { align: 4 })
    );
    assert!(tensor.view::<f32>().is_err());
    let short = Tensor::from_bytes(meta, whole.slice(0..31)).map(drop);
    assert_eq!(
        short,
        Err(TensorError::Size {
            expected: 32,
            actual: 31
        })
    );
}

#[test]
fn elements_are_read_as_what_they_are() {
    let tensor = Tensor::scalar(1f32);
    let wrong = TensorError::Dtype {
        expected: DType::I32,
        actual: DType::F32,
    };
    assert_eq!(tensor.as_slice::<i32>(), Err(wrong));
    assert!(matches!(
        tensor.strings(),
        Err(TensorError::Dtype {
            expected: DType::String,
            ..
        })
    ));
    let meta = TensorMeta {
        dtype: DType::U8,
        shape: shape(&[17]),
    };
    assert!(
        Tensor::from_inline(meta, &[0; 17]).is_err(),
        "too long for the handle"
    );
    let huge = TensorMeta {
        dtype: DType::F64,
        shape: shape(&[1 << 62]),
    };
    assert_eq!(
        Tensor::from_inline(huge, &[]).map(drop),
        Err(TensorError::Huge)
    );
}

#[test]
fn a_builder_writes_where_the_tensor_is_read() {
    let mut pool = pool();
    for dims in [&[2u64, 2][..], &[3, 5, 2, 1, 2], &[0, 7]] {
        let mut builder = pool
            .builder(TensorMeta {
                dtype: DType::F32,
                shape: shape(dims),
            })
            .expect("room");
        let mut value = 0.0;
        builder
            .view_mut::<f32>()
            .expect("an array")
            .iter_mut()
            .for_each(|place| {
                *place = value;
                value += 1.0;
            });
        assert!(builder.as_mut_slice::<u32>().is_err());
        let (region, address) = (builder.region(), builder.bytes_mut().as_ptr());
        let tensor = builder.finish();
        assert_eq!(tensor.region(), region);
        assert_eq!(tensor.is_inline(), dims != [3, 5, 2, 1, 2]);
        assert!(tensor.is_inline() || tensor.host().unwrap().as_ptr() == address);
        let view = tensor.view::<f32>().expect("an array");
        assert_eq!(
            view.shape()
                .iter()
                .map(|&dim| dim as u64)
                .collect::<Vec<_>>(),
            dims
        );
        assert!(
            view.iter()
                .enumerate()
                .all(|(at, &value)| value == at as f32)
        );
    }
}

#[test]
fn strings_on_the_heap() {
    let tensor = Tensor::from_strings(&["a", "bc"], shape(&[2])).expect("it fits");
    assert_eq!(tensor.strings().expect("strings").at(1), Some(&b"bc"[..]));
    let claim = TensorMeta {
        dtype: DType::String,
        shape: shape(&[1 << 60]),
    };
    let lie = Tensor::from_inline(claim, &[0; 16]).expect("strings of any length");
    assert_eq!(
        lie.strings().map(drop),
        Err(TensorError::Encoding { count: 1 << 60 })
    );
}

/// Whatever the type: also of strings, whose shape does not say how many bytes they take.
#[test]
fn no_tensor_has_an_impossible_shape() {
    let mut pool = pool();
    for dtype in [DType::U8, DType::String] {
        let meta = TensorMeta {
            dtype,
            shape: Shape::from([1 << 40, 1 << 40]),
        };
        let huge = Err(TensorError::Huge);
        let bytes = Bytes::from(vec![0; 64]);
        assert_eq!(Tensor::from_bytes(meta, bytes).map(drop), huge);
        assert_eq!(Tensor::from_foreign(meta, [0; 64], drop).map(drop), huge);
        assert_eq!(Tensor::from_inline(meta, &[0; 8]).map(drop), huge);
        let tensor = Tensor::from_strings(&["a"], shape(&[1])).expect("it fits");
        assert_eq!(tensor.recast(meta).map(drop), huge);
        let buffer = pool.buffer(64).expect("room");
        let misfit = buffer.into_tensor(meta).expect_err("impossible");
        assert_eq!(misfit.error, TensorError::Huge);
        let copy = pool.tensor_from(meta, &[0; 64]).map(drop);
        assert_eq!(copy, Err(TensorError::Huge.into()));
    }
}

#[test]
fn another_shape_shares_the_bytes() {
    for values in [vec![1f32; 4], vec![2f32; 64]] {
        let len = values.len() as u64;
        let tensor = Tensor::from_vec(values, shape(&[len])).expect("a row");
        let table = tensor.reshaped(shape(&[2, len / 2])).expect("as many");
        assert_eq!(table.shape(), shape(&[2, len / 2]));
        assert_eq!(table.bytes(), tensor.bytes());
        let shares = table.host().unwrap().as_ptr() == tensor.host().unwrap().as_ptr();
        assert!(shares || table.is_inline());
        let (expected, actual) = (len + 1, len);
        let lie = tensor.reshaped(shape(&[len + 1])).map(drop);
        assert_eq!(lie, Err(TensorError::Elements { expected, actual }));
    }
}

#[test]
fn a_slice_is_copied_into_the_handle_or_onto_the_heap() {
    for len in [0, 1, 4, 5, 1000] {
        let values: Vec<f32> = (0..len).map(|index| index as f32).collect();
        let tensor = Tensor::from_slice(&values, Shape::from([len])).unwrap();
        assert_eq!(tensor.is_inline(), len <= 4);
        assert_eq!(tensor.to_vec::<f32>().unwrap(), values);
        let unfit = Tensor::from_slice(&values, Shape::from([len + 1])).unwrap_err();
        let (expected, actual) = (len + 1, len);
        assert_eq!(unfit, TensorError::Elements { expected, actual });
    }
    let impossible = Shape::from([1 << 40, 1 << 40, 0]);
    assert!(Tensor::from_slice::<f32>(&[], impossible).is_err());
    assert!(Tensor::from_vec::<f32>(vec![], impossible).is_err());
    assert!(Tensor::from_strings::<&str>(&[], impossible).is_err());
}

#[test]
fn the_one_element_of_any_rank_is_read_and_no_other() {
    let one = Tensor::from_slice(&[7_i64], Shape::from([1, 1, 1])).unwrap();
    assert_eq!(one.item::<i64>(), Ok(7));
    assert_eq!(Tensor::scalar(2.5_f64).item::<f64>(), Ok(2.5));
    assert!(matches!(one.item::<f32>(), Err(TensorError::Dtype { .. })));
    for len in [0, 2] {
        let several = Tensor::from_vec(vec![1_u8; len], Shape::from([len as u64])).unwrap();
        let (expected, actual) = (1, len as u64);
        assert_eq!(
            several.item::<u8>(),
            Err(TensorError::Elements { expected, actual })
        );
    }
    let refused = Tensor::from_vec(vec![1_u8; 3], Shape::from([3]))
        .unwrap()
        .item::<u8>();
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the number of elements is 3, and should be 1"
    );
}
