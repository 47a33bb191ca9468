//! Broadcasting against a loop over every index, for shapes of all kinds.

use super::*;
use proptest::prelude::*;

fn shape(dims: &[u64]) -> Shape {
    Shape::new(dims).expect("a shape")
}

/// NumPy's rule, element by element.
fn naive(left: &[u64], right: &[u64]) -> Option<(Vec<u64>, Vec<[usize; 2]>)> {
    let rank = left.len().max(right.len());
    let pad = |dims: &[u64]| [vec![1; rank - dims.len()], dims.to_vec()].concat();
    let (left, right) = (pad(left), pad(right));
    let mut out = vec![];
    for (&l, &r) in left.iter().zip(&right) {
        out.push(match (l, r) {
            (l, r) if l == r => l,
            (1, r) => r,
            (l, 1) => l,
            _ => return None,
        });
    }
    let count: u64 = out.iter().product();
    let places = (0..count).map(|flat| {
        let mut rest = flat;
        let mut places = [0, 0];
        let mut strides = [1, 1];
        for index in (0..rank).rev() {
            let at = rest % out[index];
            rest /= out[index];
            for (which, dims) in [&left, &right].into_iter().enumerate() {
                if dims[index] != 1 {
                    places[which] += (at * strides[which]) as usize;
                }
                strides[which] *= dims[index];
            }
        }
        places
    });
    Some((out.clone(), places.collect()))
}

fn check(left: &[u64], right: &[u64]) {
    let expected = naive(left, right);
    let actual = broadcast(shape(left), shape(right));
    let Some((dims, places)) = expected else {
        assert_eq!(
            actual,
            Err(format!(
                "Incompatible shapes: {} vs. {}",
                shape(left),
                shape(right)
            ))
        );
        return;
    };
    let out = actual.expect("shapes that fit");
    assert_eq!(out, shape(&dims));
    let numbers = |dims: &[u64]| (0..dims.iter().product::<u64>() as usize).collect::<Vec<_>>();
    let mut met = vec![[usize::MAX; 2]; places.len()];
    let walk = Walk::broadcast(out, [shape(left), shape(right)]);
    let (lefts, rights) = (numbers(left), numbers(right));
    for most in [1, 2, 70, usize::MAX] {
        met.fill([usize::MAX; 2]);
        walk.zip(
            [&lefts, &rights],
            &mut met,
            most,
            &mut |[left, right], out| {
                assert!(out.len() <= most && left.len() == out.len() && right.len() == out.len());
                for ((out, &left), &right) in out.iter_mut().zip(left).zip(right) {
                    *out = [left, right];
                }
            },
        );
        assert_eq!(met, places, "{left:?} with {right:?} by {most}: {walk:?}");
    }
}

#[test]
fn rows_longer_than_a_piece_meet() {
    let long = 2 * PIECE as u64 + 3;
    for (left, right) in [
        (&[long][..], &[1][..]),
        (&[2, 1], &[2, long]),
        (&[2, 1, long], &[2, 2, 1]),
        // Rows of one, three and sixty that are gathered, more than fit into a piece.
        (&[long, 1], &[1, 1]),
        (&[long, 3], &[long, 1]),
        (&[long, 3], &[3]),
        (&[40, 1, 60], &[40, 2, 1]),
        (&[long], &[long]),
    ] {
        check(left, right);
        check(right, left);
    }
}

#[test]
fn rows_of_an_empty_outcome_meet_nothing() {
    for row in [15, 16, 17, 63, 64, 65] {
        check(&[0, 0, row], &[1, 1, row]);
        check(&[0, 1], &[1, row]);
    }
}

#[test]
fn shapes_meet() {
    let shapes: &[&[u64]] = &[
        &[],
        &[1],
        &[3],
        &[0],
        &[2, 3],
        &[1, 3],
        &[2, 1],
        &[4, 2, 3],
        &[4, 1, 3],
        &[1, 2, 1],
        &[0, 3],
        &[2, 1, 2, 1, 2],
        &[1, 2, 1, 2, 1],
        &[2, 2, 2, 2, 2, 2, 2, 2],
        &[1, 2, 2, 1, 1, 2, 2, 1],
    ];
    for left in shapes {
        for right in shapes {
            check(left, right);
        }
    }
}

#[test]
fn rows_that_follow_each_other_at_the_same_place_are_counted() {
    let walk = |dims: &[(usize, usize)]| {
        let mut walk = Walk::over(dims.iter().map(|&(size, stride)| (size, [stride])));
        let repeats = walk.take_repeats();
        let mut places = vec![];
        walk.rows(|[place]| places.push(place));
        (walk.row, repeats, places)
    };
    assert_eq!(walk(&[(5, 0), (3, 1)]), (3, 5, vec![0]));
    assert_eq!(walk(&[(2, 3), (5, 0), (3, 1)]), (3, 5, vec![0, 3]));
    assert_eq!(
        walk(&[(4, 0), (2, 1), (5, 0)]),
        (5, 1, vec![0, 1, 0, 1, 0, 1, 0, 1])
    );
    assert_eq!(walk(&[(7, 0)]), (7, 1, vec![0]));
}

#[test]
fn usual_cases_are_one_row_or_a_row_for_each_line() {
    let walk = |left: &[u64], right: &[u64]| {
        let (left, right) = (shape(left), shape(right));
        Walk::broadcast(broadcast(left, right).expect("they fit"), [left, right])
    };
    let same = walk(&[4, 5, 6], &[4, 5, 6]);
    assert_eq!((same.rank, same.row, same.step), (0, 120, [1, 1]));
    let scalar = walk(&[4, 5, 6], &[]);
    assert_eq!((scalar.rank, scalar.row, scalar.step), (0, 120, [1, 0]));
    let bias = walk(&[4, 5, 6], &[6]);
    assert_eq!((bias.rank, bias.row, bias.step), (1, 6, [1, 1]));
    assert_eq!(bias.dims[0], 20);
}

proptest! {
    #[test]
    fn any_shapes_meet(
        left in prop::collection::vec(0u64..4, 0..6),
        keep in prop::collection::vec(any::<bool>(), 6),
        skip in 0usize..3,
    ) {
        // The other shape is the same with some dimensions one, and some in front left out: it always fits.
        let right: Vec<_> = left
            .iter()
            .zip(&keep)
            .map(|(&size, &keep)| if keep { size } else { 1 })
            .skip(skip)
            .collect();
        check(&left, &right);
        check(&right, &left);
    }

    #[test]
    fn unrelated_shapes_fit_or_are_refused(
        left in prop::collection::vec(0u64..3, 0..4),
        right in prop::collection::vec(0u64..3, 0..4),
    ) {
        check(&left, &right);
    }
}
