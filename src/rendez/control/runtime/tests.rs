//! The same code on both runtimes: tasks, times, streams, and wake-ups from other threads.

use futures_lite::io::{AsyncReadExt, AsyncWriteExt};

use std::process::Command;
use std::sync::mpsc;

use super::*;
use crate::control::errand::Errands;
use crate::control::mailbox::mailbox;
use crate::control::threads::start;

fn on_both<F: Future<Output = ()> + 'static>(test: fn(Runtime) -> F) {
    for kind in [RuntimeKind::Glommio, RuntimeKind::Poll] {
        let (told, ended) = mpsc::channel();
        let main = move |runtime| async move {
            test(runtime).await;
            told.send(()).expect("waited for");
        };
        let (report, working) = start(probe(Some(kind)), main).expect("a thread");
        assert_eq!(report.kind, kind);
        working.wait();
        assert!(ended.try_recv().is_ok(), "it ended without a panic");
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
fn the_probe_cuts_no_wait_of_its_caller_short() {
    let (mut one, _other) = UnixStream::pair().expect("a pair");
    let little = Some(Duration::from_millis(20));
    one.set_read_timeout(little).expect("a socket");
    for _ in 0..10 {
        drop(probe(None));
        let error = std::io::Read::read(&mut one, &mut [0]).expect_err("none writes");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}

#[test]
fn streams_carry_bytes_and_ends() {
    on_both(|runtime| {
        Box::pin(async move {
            let (one, other) = UnixStream::pair().expect("a pair");
            let (mut one, mut other) = (
                runtime.adopt(one).expect("adopted"),
                runtime.adopt(other).expect("adopted"),
            );
            // More than a socket holds: the writer must wait for the reader.
            let sent: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
            let copy = sent.clone();
            runtime.spawn(async move {
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
    on_both(|runtime| {
        Box::pin(async move {
            let never = runtime
                .within(Duration::from_millis(1), std::future::pending::<()>())
                .await;
            assert!(never.is_none());
            assert_eq!(
                runtime.within(Duration::from_secs(60), async { 7 }).await,
                Some(7)
            );
        })
    });
}

#[test]
fn who_reads_until_nothing_is_left_leaves_others_their_turn() {
    on_both(|runtime| {
        Box::pin(async move {
            let (one, mut other) = UnixStream::pair().expect("a pair");
            let flood = std::thread::spawn(move || {
                while std::io::Write::write_all(&mut other, &[7; 1 << 16]).is_ok() {}
            });
            let mut stream = runtime.paced(runtime.adopt(one).expect("adopted"));
            let mut reads = 0;
            // As TLS reads what gives it nothing.
            let greedy = std::future::poll_fn(|context| {
                let before = reads;
                while Pin::new(&mut stream)
                    .poll_read(context, &mut [0; 16])
                    .is_ready()
                {
                    reads += 1;
                    assert!(reads - before < 1000, "no other has its turn");
                }
                // It goes on after each rest.
                match reads > 100 {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            let time = Duration::from_secs(30);
            assert!(
                runtime.within(time, greedy).await.is_some(),
                "it rests for good"
            );
            drop(stream);
            flood.join().expect("no panic");
        })
    });
}

#[test]
fn other_threads_wake_this_one() {
    on_both(|runtime| {
        Box::pin(async move {
            let (sender, mut receiver) = mailbox();
            let thread = std::thread::spawn(move || {
                (0..10_000).for_each(|item| sender.send(item).expect("open"))
            });
            for item in 0..10_000 {
                assert_eq!(receiver.receive().await, item);
            }
            thread.join().expect("no panic");
            drop(runtime);
        })
    });
}

#[test]
fn a_task_that_never_ends_does_not_keep_what_it_holds() {
    let (one, mut other) = UnixStream::pair().expect("a pair");
    run_poll(|runtime| async move {
        runtime.spawn(async move {
            std::future::pending::<()>().await;
            drop(one);
        });
        runtime.sleep(Duration::from_millis(1)).await;
    });
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut other, &mut rest)
        .expect("the end: the task and its socket are gone");
}

/// Set for the child of the test that needs one.
const CHILD: &str = "RENDEZ_TEST_BROKEN_PIPE";

#[test]
fn a_peer_that_has_hung_up_ends_no_program_by_a_signal() {
    if std::env::var_os(CHILD).is_none() {
        let name = "a_peer_that_has_hung_up_ends_no_program_by_a_signal";
        let child = Command::new(std::env::current_exe().expect("our binary"))
            .args(["--exact", &format!("control::runtime::tests::{name}")])
            .env(CHILD, "1")
            .output()
            .expect("a child");
        assert!(child.status.success(), "{child:?}");
        return;
    }
    // A program of Rust ignores the signal from its start; one of C or C++ does not.
    // SAFETY: the default action runs no code of ours, and this process has no other thread that sets actions.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    on_both(|runtime| {
        Box::pin(async move {
            let (one, other) = UnixStream::pair().expect("a pair");
            let mut one = runtime.adopt(one).expect("adopted");
            drop(other);
            let error = one.write_all(b"late").await.expect_err("no reader");
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            let errand = || {
                let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
                drop(reader);
                rustix::io::write(writer, b"late")
            };
            let mut outcome = Errands::default().begin(errand).expect("begun");
            assert_eq!(outcome.receive().await, Err(Errno::PIPE));
        })
    });
}
