//! Wire numbers are for ever: this table is written out by hand so that a change of one must be meant.

use super::DType;

#[test]
fn numbers_names_and_sizes() {
    let table = [
        (1, "bool", Some(1)),
        (2, "i8", Some(1)),
        (3, "u8", Some(1)),
        (4, "i16", Some(2)),
        (5, "u16", Some(2)),
        (6, "i32", Some(4)),
        (7, "u32", Some(4)),
        (8, "i64", Some(8)),
        (9, "u64", Some(8)),
        (10, "f16", Some(2)),
        (11, "bf16", Some(2)),
        (12, "f32", Some(4)),
        (13, "f64", Some(8)),
        (14, "c64", Some(8)),
        (15, "c128", Some(16)),
        (16, "string", None),
    ];
    let ours: Vec<_> = DType::ALL
        .iter()
        .map(|dtype| (*dtype as u8, dtype.name(), dtype.size()))
        .collect();
    assert_eq!(ours, table);
}

#[test]
fn from_wire_undoes_the_number_and_refuses_the_rest() {
    for number in 0..=u8::MAX {
        let known = DType::from_wire(number);
        assert_eq!(
            known.map(|dtype| dtype as u8),
            (1..=16).contains(&number).then_some(number)
        );
    }
    assert_eq!(DType::BF16.to_string(), "bf16");
}
