//! Tests of `pages.rs`: the table against a map of the owner of each page.

use super::*;
use crate::ground::rng::Rng;

#[test]
fn runs_are_exact_disjoint_and_merge_when_given_back() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let mut pages = Pages::new();
        let segments = [
            (pages.add(500).expect("room"), 500u32),
            (pages.add(37).expect("room"), 37),
        ];
        let mut taken = vec![false; 600];
        let mut runs: Vec<(PageIndex, u32)> = Vec::new();
        for _ in 0..3_000 {
            if rng.one_in(2) {
                let count = 1 + rng.below(40) as u32;
                if let Some(mut first) = pages.take(count) {
                    let mut count = count;
                    if rng.one_in(3) {
                        // What is cut off is free again, and merges with its neighbours.
                        let skip = rng.below(u64::from(count)) as u32;
                        let kept = 1 + rng.below(u64::from(count - skip)) as u32;
                        assert_eq!(pages.cut(first, skip, kept), first + skip);
                        (first, count) = (first + skip, kept);
                    }
                    assert!(
                        segments
                            .iter()
                            .any(|&(start, len)| first >= start && first + count <= start + len)
                    );
                    for page in &mut taken[first as usize..(first + count) as usize] {
                        assert!(!*page, "given out twice");
                        *page = true;
                    }
                    runs.push((first, count));
                } else {
                    // It says there is none only if there is none.
                    let free = |page: usize| {
                        !taken[page]
                            && segments
                                .iter()
                                .any(|&(s, l)| (s as usize..(s + l) as usize).contains(&page))
                    };
                    let longest = (0..600).fold((0, 0), |(best, run), page| {
                        let run = if free(page) { run + 1 } else { 0 };
                        (best.max(run), run)
                    });
                    assert!(
                        longest.0 < count,
                        "{} pages were free in a row, {count} asked",
                        longest.0
                    );
                    assert_eq!(pages.longest(), longest.0);
                }
            } else if !runs.is_empty() {
                let (first, count) = runs.swap_remove(rng.below(runs.len() as u64) as usize);
                assert_eq!(pages.give(first), count);
                taken[first as usize..(first + count) as usize].fill(false);
            }
            let out: u32 = runs.iter().map(|run| run.1).sum();
            assert_eq!(pages.free(), u64::from(537 - out));
        }
        for (first, _) in runs {
            pages.give(first);
        }
        assert_eq!(pages.take(500), Some(segments[0].0), "all merged again");
        assert_eq!(
            pages.take(37),
            Some(segments[1].0),
            "and not across the wall"
        );
        assert_eq!((pages.take(1), pages.free()), (None, 0));
        assert_eq!(pages.longest(), 0);
    }
}

#[test]
fn lists_are_in_order_and_rounding_up_reaches_only_runs_long_enough() {
    let mut last = (0, 0);
    for count in 1..100_000 {
        let list = list_of(count);
        assert!(list >= last, "lists grow with the length");
        last = list;
        let rounded = round_up(count).expect("small enough");
        assert!(
            list_of(count - 1) < list_of(rounded),
            "a run shorter than {count} is in the list searched"
        );
    }
    assert!(list_of(u32::MAX).0 < ROWS);
}
