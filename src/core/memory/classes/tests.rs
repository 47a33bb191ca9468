//! Tests of `classes.rs`.

use super::*;

#[test]
fn every_length_fits_its_class_and_no_smaller_one() {
    for len in 0..=SMALL_MAX {
        let class = class_of(len);
        let size = size_of(class);
        assert!(size >= len && size.is_multiple_of(ALIGN), "{len} in {size}");
        assert!(
            class == 0 || size_of(class - 1) < len,
            "{len} would fit below {size}"
        );
        assert!(
            size - len <= ALIGN || (size - len) * 5 <= size,
            "{len} in {size} wastes too much"
        );
    }
}
