//! A stream keeps its frames in order, also those that go in front of others at the last moment.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

fn frame(mark: u64) -> Frame {
    let mut frame = Frame::default();
    frame.words[7] = mark;
    frame
}

fn next(stream: &FrameStream<()>) -> Option<u64> {
    stream.next().map(|(frame, _)| frame.words[7])
}

/// Many frames wait, each about a key that has no number yet.
#[test]
fn interns_of_many_keys_at_once_move_each_frame_a_few_times() {
    const FRAMES: u64 = 1000;
    let mut stream = FrameStream::<()>::new(8);
    stream.open(u16::MAX);
    for mark in 0..FRAMES {
        stream.push(frame(mark), None);
    }
    for mark in 0..FRAMES {
        stream.insert_next(frame(FRAMES + mark), None);
        for due in [FRAMES + mark, mark] {
            assert_eq!(next(&stream), Some(due));
            stream.mark_posted(false);
            stream.close_up();
        }
    }
    assert!(!stream.has_next() && stream.is_clear());
    assert_eq!(stream.len() as u64, 2 * FRAMES);
    let moves = stream.frames.moves.take();
    assert!(moves <= 4 * FRAMES, "{moves} moves");
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Push,
    Insert,
    Post(usize),
    Acknowledge(usize),
    Reconnect(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => Just(Act::Push),
        3 => Just(Act::Insert),
        4 => (1..4usize).prop_map(Act::Post),
        2 => (0..6usize).prop_map(Act::Acknowledge),
        1 => (0..6usize).prop_map(Act::Reconnect),
    ];
    prop::collection::vec(act, 0..200)
}

proptest! {
    /// Whatever is queued, put in front, posted, acknowledged and posted again: the order is that of a plain queue.
    #[test]
    fn it_is_a_queue_with_a_mark(warm in 1..9usize, acts in acts()) {
        let mut stream = FrameStream::<()>::new(warm);
        stream.open(u16::MAX);
        let (mut queue, mut posted, mut gone) = (VecDeque::new(), 0, 0);
        for (mark, act) in acts.into_iter().enumerate() {
            let mark = mark as u64;
            match act {
                Act::Push => {
                    stream.push(frame(mark), None);
                    queue.push_back(mark);
                    let last = stream.last_mut().map(|(frame, _)| frame.words[7]);
                    prop_assert_eq!(last, Some(mark));
                }
                Act::Insert => {
                    if next(&stream).is_some() {
                        stream.insert_next(frame(mark), None);
                        queue.insert(posted, mark);
                    }
                }
                Act::Post(count) => {
                    for _ in 0..count.min(queue.len() - posted) {
                        prop_assert_eq!(next(&stream), Some(queue[posted]));
                        stream.mark_posted(false);
            stream.close_up();
                        posted += 1;
                    }
                }
                Act::Acknowledge(count) => {
                    let count = count.min(posted);
                    queue.drain(..count);
                    (posted, gone) = (posted - count, gone + count);
                    prop_assert_eq!(stream.acknowledge(gone as u16), Ok(()));
                }
                Act::Reconnect(count) => {
                    let count = count.min(posted);
                    queue.drain(..count);
                    (posted, gone) = (0, gone + count);
                    stream.end_connection();
                    prop_assert_eq!(stream.resume(gone as u64), Ok(()));
                }
            }
            prop_assert_eq!(stream.len(), queue.len());
            prop_assert_eq!(stream.in_flight(), posted as u64);
            prop_assert_eq!(stream.has_next(), posted < queue.len());
            prop_assert_eq!(next(&stream), queue.get(posted).copied());
            let all: Vec<_> = stream.all().map(|frame| frame.words[7]).collect();
            prop_assert!(all.iter().eq(&queue));
        }
    }
}
