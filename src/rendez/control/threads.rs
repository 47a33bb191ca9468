//! Control threads: where planes run, one thread for each, and which plane uses a thread next.
//!
//! Knows runtimes and namespaces; not what a plane does.
//!
//! glommio 0.9 never closes an executor's eventfd: `task/raw.rs`, `destroy` frees a task's memory without dropping its
//! header, and with it a reference to what holds the descriptor (its issue 448; fixed in its main branch, in no
//! release). So an executor, once made, is kept with its thread for the next engine: a process has as many as it ever
//! had engines at once. They are lent, not shared: what breaks or blocks the control plane of one engine stops that of
//! no other. An executor whose plane panicked ends with its thread, and leaves its descriptor.
//!
//! The poll runtime leaves nothing behind: its threads end with their planes.
//!
//! A control thread blocks SIGPIPE, and so do the errands that it begins: glommio, and a write of several buffers, ask
//! the kernel for that signal when the other side has hung up, and in a program that has not set it aside it ends the
//! process. The signal goes to the thread that wrote, so what the program itself does with SIGPIPE stays as it was.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, mpsc};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use rustix::thread::CpuSet;

use super::mailbox::{Receiver, Sender, mailbox};
use super::runtime::{
    Runtime, RuntimeKind, RuntimeReport, block_broken_pipe, make_glommio, prepare_poll, run_poll,
    trial,
};
use crate::ground::Locked;

const NAME: &str = "rendez-control";
/// Time for glommio to take in the last wake-ups from other threads, and to cancel what closed streams had under way,
/// before the end of its plane is told.
const LAST_TURN: Duration = Duration::from_millis(1);

/// Threads whose executors have nothing to do.
static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

/// A plane at work on its thread.
#[derive(Debug)]
pub(crate) struct Working {
    thread: ThreadId,
    /// Nothing is ever said: it ends with the plane.
    done: mpsc::Receiver<()>,
    /// The thread itself, if it ends with the plane.
    handle: Option<JoinHandle<()>>,
}

/// What a thread is to run; until it has run, waiters for its end keep waiting.
struct Turn {
    main: Main,
    cores: Option<CpuSet>,
    done: mpsc::Sender<()>,
}

type Main = Box<dyn FnOnce(Runtime) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A glommio executor, with its thread, that is free.
struct Idle {
    thread: ThreadId,
    turns: Sender<Turn>,
    network: Option<PathBuf>,
}

/// What a new thread says once: what it runs on, or why it does not.
type Begun = mpsc::Sender<io::Result<RuntimeReport>>;

/// Runs `main` on a control thread, and says what it runs on. Where glommio refuses that is the poll runtime.
pub(crate) fn start<F: Future<Output = ()> + 'static>(
    wanted: RuntimeReport,
    main: impl FnOnce(Runtime) -> F + Send + 'static,
) -> io::Result<(RuntimeReport, Working)> {
    let main: Main = Box::new(|runtime| Box::pin(main(runtime)));
    let (done, ended) = mpsc::channel();
    let mut turn = Turn {
        main,
        // A thread that is lent again was begun by another: it runs where one begun now would.
        cores: rustix::thread::sched_getaffinity(None).ok(),
        done,
    };
    let network = network();
    if wanted.kind == RuntimeKind::Glommio {
        while let Some(idle) = take(network.as_deref()) {
            match idle.turns.offer(turn) {
                Ok(()) => {
                    let working = Working {
                        thread: idle.thread,
                        done: ended,
                        handle: None,
                    };
                    return Ok((wanted, working));
                }
                // Its thread has ended: by a panic, after it was free.
                Err(refused) => turn = refused,
            }
        }
    }
    let (report, reported) = mpsc::channel();
    let body = move || {
        block_broken_pipe();
        if let Err(error) = trial::room() {
            let _ = report.send(Err(error));
            return;
        }
        match wanted.kind {
            RuntimeKind::Poll => poll(turn, wanted, &report),
            RuntimeKind::Glommio => match make_glommio(NAME) {
                Ok(executor) => {
                    let _ = report.send(Ok(wanted));
                    executor.run(serve(turn, network));
                }
                Err(why) => {
                    let kind = RuntimeKind::Poll;
                    poll(turn, RuntimeReport { kind, why }, &report);
                }
            },
        }
    };
    let handle = std::thread::Builder::new().name(NAME.into()).spawn(body)?;
    let ended_early = |_| Err(io::Error::other("the control thread ended at its start"));
    let report = match reported.recv().unwrap_or_else(ended_early) {
        Ok(report) => report,
        Err(error) => {
            // What it was to run holds the address until it is dropped.
            let _ = handle.join();
            return Err(error);
        }
    };
    let working = Working {
        thread: handle.thread().id(),
        done: ended,
        handle: (report.kind == RuntimeKind::Poll).then_some(handle),
    };
    Ok((report, working))
}

impl Working {
    /// Waits until the plane has ended; on its own thread not at all.
    pub(crate) fn wait(self) {
        if self.thread == std::thread::current().id() {
            return;
        }
        let _ = self.done.recv();
        if let Some(handle) = self.handle {
            // A panic of the control thread was told by the panic hook.
            let _ = handle.join();
        }
    }
}

/// Runs one plane after the other, for as long as the process lives.
async fn serve(first: Turn, network: Option<PathBuf>) {
    let thread = std::thread::current().id();
    let (sender, mut turns): (_, Receiver<Turn>) = mailbox();
    let mut turn = first;
    loop {
        let Turn { main, cores, done } = turn;
        if let Some(cores) = cores {
            // The kernel may refuse cores that have gone meanwhile; any core will do then.
            let _ = rustix::thread::sched_setaffinity(None, &cores);
        }
        let runtime = Runtime::glommio();
        main(runtime.clone()).await;
        runtime.sleep(LAST_TURN).await;
        // Free before its end is told: a caller that stops an engine and starts another gets this thread again.
        idle().push(Idle {
            thread,
            turns: sender.clone(),
            network: network.clone(),
        });
        drop(done);
        turn = turns.receive().await;
    }
}

fn poll(turn: Turn, runs_on: RuntimeReport, report: &Begun) {
    let begun = prepare_poll().map(|()| runs_on);
    let is_begun = begun.is_ok();
    let _ = report.send(begun);
    if !is_begun {
        return;
    }
    run_poll(turn.main);
    drop(turn.done);
}

/// The free thread that was used last, of those that live in `network`.
fn take(network: Option<&std::path::Path>) -> Option<Idle> {
    let mut idle = idle();
    let at = idle
        .iter()
        .rposition(|idle| idle.network.as_deref() == network)?;
    Some(idle.remove(at))
}

fn idle() -> MutexGuard<'static, Vec<Idle>> {
    IDLE.locked()
}

/// The network namespace of this thread, which threads begun by it inherit: sockets made in another lead elsewhere.
fn network() -> Option<PathBuf> {
    std::fs::read_link("/proc/thread-self/ns/net").ok()
}

#[cfg(test)]
mod tests;
