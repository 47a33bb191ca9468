//! Products of matrices against three nested loops.

use crate::kernel::numbers::{Number, by_type};
use crate::operations::testing::{NUMBERS, is_close, one, one_with, refusal, run, tensor};

fn naive(left: &[f64], right: &[f64], rows: usize, depth: usize, columns: usize) -> Vec<f64> {
    let mut out = vec![];
    for row in 0..rows {
        for column in 0..columns {
            out.push(
                (0..depth)
                    .map(|at| left[row * depth + at] * right[at * columns + column])
                    .sum(),
            );
        }
    }
    out
}

fn turned(values: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..columns)
        .flat_map(|column| (0..rows).map(move |row| (row, column)))
        .map(|(row, column)| values[row * columns + column])
        .collect()
}

fn check<T: Number>(rows: usize, depth: usize, columns: usize) {
    let numbers = |len: usize, seed: usize| {
        (0..len)
            .map(|at| ((at * 7 + seed) % 5) as f64)
            .collect::<Vec<_>>()
    };
    let (left, right) = (numbers(rows * depth, 1), numbers(depth * columns, 3));
    let expected = naive(&left, &right, rows, depth, columns);
    let make = |values: &[f64], dims: [usize; 2]| {
        let values: Vec<_> = values.iter().map(|&value| T::from_f64(value)).collect();
        tensor(&dims.map(|dim| dim as u64), &values)
    };
    for (turn_left, turn_right) in [(false, false), (true, false), (false, true), (true, true)] {
        let left = match turn_left {
            true => make(&turned(&left, rows, depth), [depth, rows]),
            false => make(&left, [rows, depth]),
        };
        let right = match turn_right {
            true => make(&turned(&right, depth, columns), [columns, depth]),
            false => make(&right, [depth, columns]),
        };
        let (dims, actual) = one_with::<T>("MatMul", &[left, right], |node| {
            node.attr("transpose_a", turn_left)
                .attr("transpose_b", turn_right)
        });
        assert_eq!(dims, [rows as u64, columns as u64]);
        let actual: Vec<_> = actual.into_iter().map(Number::to_f64).collect();
        // All numbers are small integers: what is wide enough for them is exact.
        let tolerance = if size_of::<T>() == 2 && !T::IS_INTEGER {
            0.01
        } else {
            0.0
        };
        assert!(
            is_close(&actual, &expected, tolerance),
            "{turn_left} {turn_right} {:?}",
            T::DTYPE
        );
    }
}

#[test]
fn every_type_and_turn() {
    for &dtype in NUMBERS {
        let found = by_type!(dtype, T: numbers => {
            check::<T>(2, 3, 4);
            check::<T>(1, 1, 1);
        });
        assert!(found.is_some(), "{dtype}");
    }
}

#[test]
fn sizes_around_the_blocks_of_the_multiplication() {
    for (rows, depth, columns) in [
        (17, 33, 9),
        (64, 64, 64),
        (1, 100, 1),
        (100, 1, 100),
        (8, 0, 5),
        (0, 3, 2),
    ] {
        check::<f32>(rows, depth, columns);
        check::<f64>(rows, depth, columns);
        check::<i32>(rows, depth, columns);
    }
}

#[test]
fn what_is_no_product_is_refused() {
    let matrix = tensor(&[2, 3], &[0f32; 6]);
    let text = refusal("MatMul", &[matrix.clone(), matrix.clone()]);
    assert_eq!(
        text,
        "Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]; {{node n}} = MatMul"
    );
    let text = refusal("MatMul", &[matrix, tensor(&[3], &[0f32; 3])]);
    assert!(
        text.contains("In[0] and In[1] has different ndims: [2,3] vs. [3]"),
        "{text}"
    );
}

#[test]
fn products_of_nothing_take_no_memory_however_wide_they_are() {
    const WIDE: u64 = 1 << 45;
    let none = |dims: [u64; 2]| tensor::<i32>(&dims, &[]);
    for (left, right, product) in [
        ([0, 0], [0, WIDE], [0, WIDE]),
        ([WIDE, 0], [0, 0], [WIDE, 0]),
    ] {
        let (dims, values) = one::<i32>("MatMul", &[none(left), none(right)]);
        assert_eq!((dims, values), (product.to_vec(), vec![]));
    }
    // A product that has elements has to have room for them.
    assert!(run("MatMul", &[none([WIDE, 0]), none([0, 1])]).is_err());
}
