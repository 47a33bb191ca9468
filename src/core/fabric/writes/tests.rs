//! Writes that a stream's peer refuses while bytes of them are still promised.

use super::*;
use crate::fabric::{Landing, Token};
use crate::ground::{DType, Region, Shape, TensorMeta};
use crate::memory::Tensor;

const LEN: usize = 100;
const QP: QpId = QpId(0);

fn write(number: u64) -> Write {
    let meta = TensorMeta::new(DType::U8, Shape::from([LEN as u64])).unwrap();
    Write {
        qp: QP,
        token: Token(number),
        source: Tensor::from_bytes(meta, vec![1; LEN].into()).unwrap(),
        landing: Landing {
            index: number as u32,
            generation: 1,
        },
        region: Region::default(),
    }
}

fn answer(sequence: u32, what: u64) -> Frame {
    let mut frame = fabric_frame(super::super::queue_pair::ANSWER, sequence);
    frame.words[2] = what;
    frame
}

/// The last promised bytes of a refused write go, and what follows is not begun before it was given back: the peer may
/// answer that at once, and an answer is to the oldest write.
#[test]
fn what_follows_a_refused_write_begins_when_that_was_given_back() {
    let mut writes = Outbound::default();
    for number in [0, 1] {
        writes.post(write(number)).unwrap();
    }
    let mut ended = Vec::new();
    let mut sink = |arrival: Arrival<'_>| match arrival {
        Arrival::Wrote { token, outcome, .. } => ended.push((token.0, outcome)),
        other => panic!("{other:?}"),
    };
    assert_eq!(writes.begin_chunk(1 << 20).unwrap().1, LEN);
    writes.chunk_sent(10);
    writes.answer(QP, &answer(0, REFUSED), &mut sink).unwrap();
    assert!(!writes.has_refused(), "bytes of it are promised");
    writes.chunk_sent(LEN - 10);
    assert!(writes.begin_chunk(1 << 20).is_none());
    assert_eq!(writes.give_refused(QP, &mut sink), 1);
    assert_eq!(writes.begin_chunk(1 << 20).unwrap().1, LEN);
    writes.chunk_sent(LEN);
    writes.answer(QP, &answer(1, DONE), &mut sink).unwrap();
    assert!(writes.is_empty());
    assert_eq!(ended, [(0, Outcome::Refused), (1, Outcome::Done)]);
}
