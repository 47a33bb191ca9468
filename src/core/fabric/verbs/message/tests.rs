//! Messages: what is written is read, and nothing else is read as a message.

use super::*;
use crate::ground::MemoryKind;
use crate::ground::rng::Rng;

fn grant(number: u32) -> Grant {
    Grant {
        landing: Landing {
            index: number,
            generation: number ^ 0xffff_0000,
        },
        region: Region {
            arena: 3,
            segment: number as u16,
            generation: 9,
            offset: 1 << 20,
            len: 4096,
            kind: MemoryKind::Host,
            owns_pages: false,
        },
        address: 0x7f00_0000_0000 + u64::from(number),
        rkey: number | 1 << 31,
    }
}

fn told(len: usize) -> Frame {
    let mut frame = Frame::default();
    frame.words[0] = 7 << 32;
    frame.words[1] = (len as u64) << 32;
    frame
}

#[test]
fn what_is_written_is_read() {
    let body: Vec<u8> = (0..4096).map(|at| (at * 7) as u8).collect();
    for len in [0, 1, 16, 17, 1000, FIRST_MAX, FIRST_MAX + 1, 4096] {
        for split in [0, len / 2, len] {
            let parts = [&body[..split], &body[split..len]];
            let mut slot = [0; VERBS_SLOT_BYTES];
            let first = first_len(len);
            let granted: Vec<_> = (0..grants_max(first).min(3) as u32).map(grant).collect();
            let end = write_first(
                &mut slot,
                &told(len),
                parts,
                0xabcd,
                granted.iter().copied(),
            );
            let mut seen = vec![];
            let (stamp, message) =
                parse(&slot[..end], |grant| seen.push(grant)).expect("well formed");
            assert_eq!((stamp.consumed, stamp.is_further), (0xabcd, false));
            assert_eq!(seen, granted);
            let VerbsMessage::First { frame, body: got } = message else {
                panic!("{message:?}")
            };
            assert_eq!((frame.stamp(), frame.kind()), (0, 7));
            let mut whole = got.to_vec();
            let mut at = first;
            let mut count = 1;
            while len > INLINE_BODY_MAX && at < len {
                let (end, next) = write_further(&mut slot, parts, at, 5);
                let (stamp, message) =
                    parse(&slot[..end], |_| panic!("no grants")).expect("well formed");
                let VerbsMessage::Further { body: got } = message else {
                    panic!("{message:?}")
                };
                assert!(stamp.is_further);
                whole.extend(got);
                at = next;
                count += 1;
            }
            assert_eq!(whole, &body[..len]);
            assert_eq!(count, messages(len), "{len}");
        }
    }
}

#[test]
fn words_are_read_as_they_were_said() {
    let landing = Landing {
        index: 65_535,
        generation: u32::MAX,
    };
    for word in [
        Word::Credit,
        Word::Ask(landing),
        Word::None(landing),
        Word::Close(landing),
        Word::Quiet(landing),
        Word::Total(landing, u64::MAX),
        Word::Bye,
        Word::Check,
    ] {
        assert_eq!(Word::parse(&word.frame()), Ok(word));
    }
    let mut unknown = Word::Check.frame();
    unknown.words[0] += 1 << 32;
    assert_eq!(Word::parse(&unknown), Err(VerbsMalformed));
}

#[test]
fn any_bytes_are_read_or_refused() {
    let mut rng = Rng::new(3);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let len = rng.below(300) as usize;
        let body: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        let granted: Vec<_> = (0..rng.below(4) as u32).map(grant).collect();
        let mut slot = [0; VERBS_SLOT_BYTES];
        let parts = [&body[..], &[]];
        let mut end = write_first(&mut slot, &told(len), parts, 9, granted.into_iter());
        match rng.below(4) {
            0 => end = rng.below(end as u64) as usize,
            _ => slot[rng.below(end as u64) as usize] = rng.next_u64() as u8,
        }
        let mut grants = 0;
        match parse(&slot[..end], |_| grants += 1) {
            Ok((stamp, _)) => {
                assert_eq!(usize::from(stamp.grants), grants);
                read += 1;
            }
            Err(VerbsMalformed) => refused += 1,
        }
    }
    assert!(
        read > 1000 && refused > 1000,
        "{read} read, {refused} refused"
    );
    let mut past_the_end = [0; VERBS_SLOT_BYTES];
    let mut bad = grant(1);
    bad.address = u64::MAX - 5;
    let end = write_first(
        &mut past_the_end,
        &told(0),
        [&[], &[]],
        0,
        [bad].into_iter(),
    );
    assert_eq!(parse(&past_the_end[..end], |_| ()), Err(VerbsMalformed));
}

#[test]
fn a_write_is_located_only_in_its_own_landing() {
    let grant = grant(4);
    let inside = Region {
        offset: (1 << 20) + 96,
        len: 4000,
        ..grant.region
    };
    assert_eq!(grant.locate(&inside, 4000), Some(grant.address + 96));
    assert_eq!(grant.locate(&inside, 4001), None, "past its end");
    for wrong in [
        Region {
            kind: MemoryKind::Cuda,
            ..inside
        },
        Region { arena: 4, ..inside },
        Region {
            segment: 5,
            ..inside
        },
        Region {
            generation: 8,
            ..inside
        },
        Region {
            offset: 96,
            ..inside
        },
    ] {
        assert_eq!(grant.locate(&wrong, 10), None);
    }
    assert_eq!(
        grant.locate(&inside, u64::MAX),
        None,
        "no sum passes the end"
    );
}
