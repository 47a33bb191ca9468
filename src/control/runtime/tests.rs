//! The same code on both runtimes: tasks, times, streams, and wake-ups from other threads.

use futures_lite::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::control::mailbox::mailbox;

fn on_both(test: fn(Executor) -> Pin<Box<dyn Future<Output = ()>>>) {
    for kind in [RuntimeKind::Glommio, RuntimeKind::Poll] {
        let mut report = None;
        run(probe(Some(kind)), |started| report = Some(started), test);
        assert_eq!(report.expect("told").kind, kind);
    }
}

#[test]
fn the_probe_obeys_and_explains() {
    for kind in [RuntimeKind::Glommio, RuntimeKind::Poll] {
        let report = probe(Some(kind));
        assert!(report.kind == kind && report.to_string().contains("configuration"));
    }
    assert!(!probe(None).why.is_empty());
}

#[test]
fn streams_carry_bytes_and_ends() {
    on_both(|executor| {
        Box::pin(async move {
            let (one, other) = UnixStream::pair().expect("a pair");
            let (mut one, mut other) = (
                executor.adopt(one).expect("adopted"),
                executor.adopt(other).expect("adopted"),
            );
            // More than a socket holds: the writer must wait for the reader.
            let sent: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
            let copy = sent.clone();
            executor.spawn(async move {
                one.write_all(&copy).await.expect("written");
                one.close().await.expect("closed");
            });
            let mut received = Vec::new();
            other.read_to_end(&mut received).await.expect("read");
            assert!(received == sent);
        })
    });
}

#[test]
fn what_takes_too_long_is_dropped() {
    on_both(|executor| {
        Box::pin(async move {
            let never = executor
                .within(Duration::from_millis(1), std::future::pending::<()>())
                .await;
            assert!(never.is_none());
            assert_eq!(
                executor.within(Duration::from_secs(60), async { 7 }).await,
                Some(7)
            );
        })
    });
}

#[test]
fn other_threads_wake_this_one() {
    on_both(|executor| {
        Box::pin(async move {
            let (sender, mut receiver) = mailbox();
            let thread = std::thread::spawn(move || {
                (0..10_000).for_each(|item| sender.send(item).expect("open"))
            });
            for item in 0..10_000 {
                assert_eq!(receiver.receive().await, item);
            }
            thread.join().expect("no panic");
            drop(executor);
        })
    });
}

#[test]
fn a_task_that_never_ends_does_not_keep_what_it_holds() {
    let (one, mut other) = UnixStream::pair().expect("a pair");
    run(
        probe(Some(RuntimeKind::Poll)),
        drop,
        |executor| async move {
            executor.spawn(async move {
                std::future::pending::<()>().await;
                drop(one);
            });
            executor.sleep(Duration::from_millis(1)).await;
        },
    );
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut other, &mut rest)
        .expect("the end: the task and its socket are gone");
}
