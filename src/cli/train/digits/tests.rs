//! The digits: all there, split once, and in every order each once.

use super::*;

#[test]
fn every_digit_is_learnt_or_tested() {
    let (learnt, tested) = Digits::load().expect("the built-in file");
    assert_eq!((learnt.len(), tested.len()), (1437, 360));
    // How often each digit was written, as the origin's description says.
    let mut counts = [0; CLASSES];
    for label in learnt.labels.iter().chain(&tested.labels) {
        counts[*label as usize] += 1;
    }
    assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    let all = learnt.pixels.iter().chain(&tested.pixels);
    assert!(all.clone().all(|pixel| (0.0..=1.0).contains(pixel)));
    assert!(all.clone().any(|pixel| *pixel == 1.0) && all.clone().any(|pixel| *pixel == 0.0));
    let (pixels, labels) = tested.all().expect("tensors");
    assert_eq!(pixels.shape(), Shape::new(&[360, 64]).expect("a shape"));
    assert_eq!(labels.as_slice::<i64>().expect("labels"), tested.labels);
}

#[test]
fn an_order_gives_each_digit_once_before_any_again() {
    let mut order = Order::new(10, 7);
    for _ in 0..3 {
        let mut seen: Vec<usize> = (0..5).flat_map(|_| order.next(2).to_vec()).collect();
        assert_ne!(seen, (0..10).collect::<Vec<_>>());
        seen.sort_unstable();
        assert_eq!(seen, (0..10).collect::<Vec<_>>());
    }
    assert_eq!(Order::new(3, 0).next(9).len(), 3);
    let (learnt, _) = Digits::load().expect("the built-in file");
    let (pixels, labels) = learnt.some(&[1, 0]).expect("tensors");
    assert_eq!(
        labels.as_slice::<i64>().expect("labels"),
        [learnt.labels[1], learnt.labels[0]]
    );
    assert_eq!(
        pixels.as_slice::<f32>().expect("pixels")[..PIXELS],
        learnt.pixels[PIXELS..2 * PIXELS]
    );
}

#[test]
fn random_numbers_are_those_of_their_seed_and_spread_as_they_should() {
    let mut random = Rng::new(1);
    let some: Vec<f32> = (0..10_000).map(|_| normal(&mut random)).collect();
    let mean = some.iter().sum::<f32>() / 10_000.0;
    let square = some.iter().map(|value| value * value).sum::<f32>() / 10_000.0;
    assert!(
        mean.abs() < 0.05 && (square - 1.0).abs() < 0.05,
        "{mean} {square}"
    );
    let mut again = Rng::new(1);
    assert!(some.iter().all(|value| *value == normal(&mut again)));
}
