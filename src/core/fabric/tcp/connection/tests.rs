//! Whatever is posted comes whole, in order and once, wherever the stream is cut; and everything comes back.

use proptest::prelude::*;

use crate::fabric::queue_pair::{ANSWER, CHUNK, REFUSED, fabric_frame};
use crate::fabric::tcp::fuzz::Lone;
use crate::fabric::{Arrival, DownReason, Landing, Outcome, QpId, Token, Write};
use crate::ground::pattern::pattern;
use crate::ground::{DType, Region, Shape, TensorMeta};
use crate::memory::{ArenaConfig, ArenaId, HugePages, Pool, Tensor};
use crate::wire::Frame;

#[derive(Clone, Debug)]
enum Post {
    Frame(usize),
    /// Bytes, and whether the landing is there.
    Write(usize, bool),
}

fn posts() -> impl Strategy<Value = Vec<Post>> {
    let len = prop_oneof![0..20usize, 0..2000usize];
    let long = prop_oneof![0..20usize, 0..2000usize, 2_100_000..2_200_000usize];
    let post = prop_oneof![
        len.prop_map(Post::Frame),
        (long, proptest::bool::weighted(0.8)).prop_map(|(len, has)| Post::Write(len, has)),
    ];
    proptest::collection::vec(post, 0..12)
}

fn pool() -> Pool {
    let config = ArenaConfig {
        segment_bytes: 64 << 20,
        bytes_max: 64 << 20,
        huge_pages: HugePages::Off,
    };
    Pool::new(ArenaId(3), config).expect("64 MiB")
}

fn tensor(bytes: Vec<u8>) -> Tensor {
    let shape = Shape::new(&[bytes.len() as u64]).expect("one dimension");
    let meta = TensorMeta::new(DType::U8, shape).expect("small");
    Tensor::from_bytes(meta, bytes.into()).expect("as many bytes")
}

fn landing(number: usize) -> Landing {
    Landing {
        index: number as u32,
        generation: 5,
    }
}

/// What the near side posts, with the landings that the far side opens for it.
fn post(near: &mut Lone, far: &mut Lone, pool: &mut Pool, posts: &[Post]) {
    for (number, post) in posts.iter().enumerate() {
        match *post {
            Post::Frame(len) => {
                let mut frame = Frame::default();
                frame.words[0] = 1 << 32;
                frame.words[1] = (len as u64) << 32;
                frame.words[2] = number as u64;
                assert!(near.post_send(&frame, &pattern(number, len)));
            }
            Post::Write(len, has_landing) => {
                let buffer = pool.buffer(len.max(1)).expect("room");
                let region = buffer.region();
                if has_landing {
                    far.open_landing(landing(number), buffer).expect("free");
                }
                assert!(near.post_write(Write {
                    qp: QpId(0),
                    token: Token(number as u64),
                    source: tensor(pattern(number, len)),
                    landing: landing(number),
                    region,
                }));
            }
        }
    }
}

/// A chunk of the first write, of `total` bytes into landing 1.
fn chunk(region: Region, total: usize, bytes: &[u8]) -> Vec<u8> {
    let mut head = fabric_frame(CHUNK, 0);
    head.words[1] |= (bytes.len() as u64) << 32;
    head.words[2] = u64::from(landing(1).index) | u64::from(landing(1).generation) << 32;
    head.words[3] = region.offset;
    head.words[4] = total as u64;
    head.words[5] = region.place();
    [head.to_bytes().as_slice(), bytes].concat()
}

/// Generations of landings come round: a write that was left unfinished may find its own again, in another buffer.
#[test]
fn a_write_goes_on_in_no_later_opening_of_its_landing() {
    const LEN: usize = 256 << 10;
    for later_len in [100, LEN] {
        let mut pool = pool();
        let mut lone = Lone::new();
        let buffer = pool.buffer(LEN).expect("room");
        let region = buffer.region();
        lone.open_landing(landing(1), buffer).expect("free");
        let begun = chunk(region, LEN, &[1; 64]);
        lone.hear(&begun, &[255], &mut |arrival| panic!("{arrival:?}"));

        assert!(lone.close_landing(landing(1)));
        let mut later = pool.buffer(later_len).expect("room");
        later.fill(0);
        lone.open_landing(landing(1), later).expect("free");
        let rest = chunk(region, LEN, &[1; LEN - 64]);
        let (reason, sent) = lone.hear(&rest, &[255], &mut |arrival| {
            assert!(matches!(arrival, Arrival::Quiet { .. }), "{arrival:?}");
        });
        assert_eq!(
            reason,
            DownReason::Reset,
            "the end of the bytes, and nothing wrong with them"
        );
        let mut refused = fabric_frame(ANSWER, 0);
        refused.words[2] = REFUSED;
        assert_eq!(sent, refused.to_bytes());
        let mut back = Vec::new();
        lone.go_down(&mut |arrival| {
            if let Arrival::Quiet { buffer, .. } = arrival {
                back.push((buffer.len(), buffer.iter().all(|&byte| byte == 0)));
            }
        });
        assert_eq!(back, [(later_len, true)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn a_stream_may_be_cut_anywhere(posts in posts(), cuts: Vec<u8>, others: Vec<u8>, back: Vec<u8>) {
        // A reader of single bytes is another test than one of megabytes.
        let is_long = posts.iter().any(|post| matches!(post, Post::Write(100_000.., _)));
        let widen = |mut cuts: Vec<u8>| {
            cuts.push(255);
            if is_long {
                cuts.push(255);
            }
            cuts
        };
        let (cuts, others, back) = (widen(cuts), widen(others), widen(back));
        let mut pool = pool();
        let (mut near, mut far) = (Lone::new(), Lone::new());
        post(&mut near, &mut far, &mut pool, &posts);
        let there = near.sent(&cuts);

        let (mut frames, mut landed) = (Vec::new(), Vec::new());
        let (reason, answers) = far.hear(&there, &others, &mut |arrival| match arrival {
            Arrival::Frame { frame, body, .. } => {
                frames.push(frame.words[2] as usize);
                assert_eq!(body, pattern(frame.words[2] as usize, body.len()));
            }
            Arrival::Landed { landing, len, buffer, .. } => {
                let number = landing.index as usize;
                assert_eq!(buffer[..len as usize], pattern(number, len as usize)[..]);
                landed.push((number, len as usize));
            }
            other => panic!("{other:?}"),
        });
        prop_assert_eq!(reason, DownReason::Reset, "the end of the bytes, and nothing wrong with them");
        let sent = |of: fn(&Post) -> bool| posts.iter().enumerate().filter(move |(_, post)| of(post));
        let expected: Vec<_> = sent(|post| matches!(post, Post::Frame(_))).map(|(number, _)| number).collect();
        prop_assert_eq!(frames, expected);
        let expected: Vec<_> = sent(|post| matches!(post, Post::Write(_, true)))
            .map(|(number, post)| match *post {
                Post::Write(len, _) | Post::Frame(len) => (number, len),
            })
            .collect();
        prop_assert_eq!(landed, expected);

        let mut wrote = Vec::new();
        let mut outcome_of = |arrival: Arrival<'_>| match arrival {
            Arrival::Wrote { token, outcome, .. } => wrote.push((token.0 as usize, outcome)),
            other => panic!("{other:?}"),
        };
        let (reason, more) = near.hear(&answers, &back, &mut outcome_of);
        prop_assert_eq!((reason, more.len()), (DownReason::Reset, 0));
        let expected: Vec<_> = posts
            .iter()
            .enumerate()
            .filter_map(|(number, post)| match post {
                Post::Write(_, true) => Some((number, Outcome::Done)),
                Post::Write(_, false) => Some((number, Outcome::Refused)),
                Post::Frame(_) => None,
            })
            .collect();
        prop_assert_eq!(wrote, expected);

        far.go_down(&mut |arrival| assert!(matches!(arrival, Arrival::Down { .. }), "{arrival:?}"));
        pool.reclaim();
        prop_assert_eq!(pool.stats().blocks, 0, "everything went home");
    }

    #[test]
    fn any_bytes_are_heard_without_harm(bytes: Vec<u8>, cuts: Vec<u8>, kind in 0xf0..0xf4u8) {
        // Half of them with a kind of the fabric's own, or noise would seldom get past its first byte.
        for first in [bytes.first().copied().unwrap_or(0), kind] {
            let mut all = vec![0; 4];
            all.push(first);
            all.extend_from_slice(&bytes);
            let mut pool = pool();
            let mut lone = Lone::new();
            lone.open_landing(landing(1), pool.buffer(100).expect("room")).expect("free");
            let _ = lone.hear(&all, &cuts, &mut |_| {});
            let mut back = 0;
            lone.go_down(&mut |arrival| back += usize::from(matches!(arrival, Arrival::Quiet { .. })));
            prop_assert_eq!(back, 1);
        }
    }
}
