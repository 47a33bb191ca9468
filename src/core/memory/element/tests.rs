//! Tests of `element.rs`.

use super::*;

#[test]
fn casts_check_alignment_and_whole_elements() {
    let words = [0x0102_0304_0506_0708u64, 9];
    let bytes = bytes_of(&words);
    assert_eq!(bytes[..9], [8, 7, 6, 5, 4, 3, 2, 1, 9]);
    assert_eq!(elements_of::<u64>(bytes), Ok(&words[..]));
    assert_eq!(
        elements_of::<u32>(&bytes[1..9]),
        Err(TensorError::Misaligned { align: 4 })
    );
    assert_eq!(
        elements_of::<u32>(&bytes[..7]),
        Err(TensorError::Size {
            expected: 4,
            actual: 7
        })
    );
    assert_eq!(
        elements_of::<Complex<f64>>(&bytes[..0]).map(<[_]>::len),
        Ok(0)
    );
}

#[test]
fn any_byte_is_a_truth_value() {
    let bytes: Vec<u8> = (0..=255).collect();
    let values = elements_of::<Bool8>(&bytes).expect("bytes are aligned");
    assert!(
        values
            .iter()
            .zip(&bytes)
            .all(|(value, &byte)| value.is_true() == (byte != 0))
    );
    assert_eq!(values[1], values[200]);
    assert_eq!((bool::from(values[0]), Bool8::from(true).0), (false, 1));
}
