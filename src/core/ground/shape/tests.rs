//! Shapes: what went in comes out, and nothing that fits in no memory is a shape.

use proptest::prelude::*;

use super::*;

#[test]
fn scalars_hold_one_element() {
    assert_eq!(Shape::new(&[]), Ok(Shape::SCALAR));
    assert_eq!(Shape::default(), Shape::SCALAR);
    assert_eq!((Shape::SCALAR.rank(), Shape::SCALAR.elements()), (0, 1));
    assert_eq!(Shape::SCALAR.dim(0), None);
    assert_eq!(Shape::SCALAR.to_string(), "[]");
}

#[test]
fn bounds() {
    assert_eq!(Shape::new(&[1; 9]), Err(ShapeError::Rank(9)));
    assert_eq!(
        Shape::new(&[1 << 32, 1, 1, 1]).map(|shape| shape.elements()),
        Ok(1 << 32)
    );
    assert_eq!(
        Shape::new(&[1 << 32, 1, 1, 1, 1]),
        Err(ShapeError::Dimension(1 << 32))
    );
    assert_eq!(
        Shape::new(&[(1 << 63) - 1]).map(|shape| shape.elements()),
        Ok((1 << 63) - 1)
    );
    assert_eq!(Shape::new(&[1 << 63]), Err(ShapeError::Size));
    assert_eq!(Shape::new(&[1 << 32, 1 << 32]), Err(ShapeError::Size));
    assert_eq!(
        Shape::new(&[0, 1 << 40]).map(|shape| shape.elements()),
        Ok(0),
        "no element, whatever the rest"
    );
    assert!(size_of::<Shape>() <= 40);
}

#[test]
fn shapes_of_other_ranks_differ() {
    let shapes = [
        vec![],
        vec![0],
        vec![1],
        vec![1, 1],
        vec![1; 5],
        vec![1; 8],
        vec![0; 8],
    ];
    for (a, one) in shapes.iter().enumerate() {
        for (b, other) in shapes.iter().enumerate() {
            assert_eq!(
                Shape::new(one) == Shape::new(other),
                a == b,
                "{one:?} {other:?}"
            );
        }
    }
}

#[test]
fn metadata_counts_bytes() {
    let meta = |dtype, dims: &[u64]| TensorMeta::new(dtype, Shape::new(dims).unwrap());
    assert_eq!(meta(DType::C128, &[2, 3]).unwrap().size(), Some(96));
    assert_eq!(meta(DType::F32, &[]).unwrap().size(), Some(4));
    assert_eq!(meta(DType::F32, &[7, 0]).unwrap().size(), Some(0));
    assert_eq!(meta(DType::String, &[2]).unwrap().size(), None);
    assert!(meta(DType::U8, &[(1 << 63) - 1]).is_ok());
    assert_eq!(meta(DType::U16, &[1 << 62]), Err(ShapeError::Size));
    assert_eq!(
        meta(DType::C128, &[1 << 62]),
        Err(ShapeError::Size),
        "the product may not wrap round"
    );
}

#[test]
fn literal_dimensions_are_a_shape() {
    assert_eq!(Shape::from([2, 3]), Shape::new(&[2, 3]).unwrap());
    assert_eq!(Shape::from([]), Shape::SCALAR);
    let deep = [1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(Shape::from(deep), Shape::new(&deep).unwrap());
    assert_eq!(Shape::try_from(&[7_u64][..]), Ok(Shape::from([7])));
    assert_eq!(Shape::try_from(&[1 << 63][..]), Err(ShapeError::Size));
}

#[test]
fn dimensions_that_no_tensor_has_are_refused_by_what_would_use_them() {
    // Also where a zero among them would make the product small again.
    for shape in [
        Shape::from([1 << 40, 1 << 40]),
        Shape::from([1 << 40, 1 << 40, 0]),
        Shape::from([u64::MAX]),
        Shape::from([1, 1, 1, 1, 1 << 32]),
    ] {
        assert_eq!(shape, Shape::IMPOSSIBLE);
        assert_eq!(shape.elements(), u64::MAX);
        for dtype in [DType::U8, DType::C128, DType::String] {
            assert_eq!(TensorMeta::new(dtype, shape), Err(ShapeError::Size));
            let size = (dtype != DType::String).then_some(u64::MAX);
            assert_eq!(TensorMeta { dtype, shape }.size(), size);
        }
    }
}

proptest! {
    #[test]
    fn dimensions_come_back(dims in proptest::collection::vec(0u64..200, 0..=8)) {
        let shape = Shape::new(&dims).unwrap();
        prop_assert_eq!(shape.rank(), dims.len());
        prop_assert_eq!(shape.dims().collect::<Vec<_>>(), dims.clone());
        prop_assert_eq!(shape.dim(dims.len()), None);
        prop_assert_eq!(shape.elements(), dims.iter().product::<u64>());
        let text: Vec<_> = dims.iter().map(u64::to_string).collect();
        prop_assert_eq!(format!("{shape:?}"), format!("[{}]", text.join(",")));
    }

    /// Against arithmetic that cannot overflow; dimensions of all magnitudes.
    #[test]
    fn what_is_refused_is_too_big(parts in proptest::collection::vec((0u32..64, any::<u64>()), 0..=9)) {
        let dims: Vec<u64> = parts.iter().map(|(shift, bits)| bits >> shift).collect();
        // As `new` does: from the outermost dimension inwards, and a prefix that is too big stays so.
        let elements = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let fits = elements.is_some_and(|elements| elements < 1 << 63)
            && dims.len() <= RANK_MAX
            && (dims.len() <= 4 || dims.iter().all(|&dim| dim < 1 << 32));
        prop_assert_eq!(Shape::new(&dims).is_ok(), fits);
    }
}
