//! The runtime: the one file that knows which executor the control plane's asynchronous code runs on, and why.
//!
//! Everything else in this room sees an [`Runtime`] that spawns, sleeps and adopts sockets, and streams that
//! implement `AsyncRead` and `AsyncWrite`.
//!
//! glommio is preferred: one executor with a long life, its preempt timer set to an hour (a short one can hang it for
//! good), none of its queues. But containers commonly refuse `io_uring_setup` by seccomp or give 64 KiB of lockable
//! memory, and glommio may then panic where it should fail. So the machine is probed first (`trial`), and if io_uring
//! is unavailable the same code runs on a small executor over poll. A glommio executor leaves one eventfd open when it
//! ends: another reason to keep it for as long as the process lives (`threads`).
#![allow(unsafe_code)]

pub(super) mod trial;

use std::fmt;
use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_lite::io::{AsyncRead, AsyncWrite};
use rustix::io::Errno;
use rustix::net::RecvFlags;

/// glommio's preempt timer: longer than any turn, see the head of this file.
const PREEMPT_TIMER: Duration = Duration::from_secs(3600);
/// Registered buffers are for files, which we have none of: the least glommio takes.
const IO_MEMORY: usize = 64 << 10;

/// A pause that lets all others run: longer than it takes to set its timer, or there is none.
const REST: Duration = Duration::from_micros(20);
/// A pause that glommio does not sleep for: it has passed by the time that all timers are looked at.
const TURN: Duration = Duration::from_micros(2);
/// Reads without a wait before others have their turn: TLS reads for as long as it has nothing to give, and a peer can
/// send for ever what gives nothing.
const READS_AT_ONCE: usize = 16;

/// What can drive the control plane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RuntimeKind {
    /// glommio, over io_uring.
    Glommio,
    /// A small executor over poll.
    Poll,
}

/// What drives the control plane, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuntimeReport {
    /// The runtime.
    pub kind: RuntimeKind,
    /// Why this one: for people.
    pub why: String,
}

impl fmt::Display for RuntimeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.why)
    }
}

/// Says what the control plane would run on here. `force` names one regardless of the probe's opinion.
#[must_use]
pub fn probe(force: Option<RuntimeKind>) -> RuntimeReport {
    match force {
        Some(kind) => RuntimeReport {
            kind,
            why: "asked for by the configuration".into(),
        },
        None => match trial::ring_refusal() {
            None => RuntimeReport {
                kind: RuntimeKind::Glommio,
                why: "io_uring is available".into(),
            },
            Some(why) => RuntimeReport {
                kind: RuntimeKind::Poll,
                why,
            },
        },
    }
}

/// Spawns, sleeps and adopts sockets on whatever this thread runs.
#[derive(Clone, Debug)]
pub(crate) struct Runtime(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Glommio,
    Poll(Weak<async_executor::LocalExecutor<'static>>),
}

impl Runtime {
    /// The glommio executor of this thread.
    pub(crate) const fn glommio() -> Self {
        Self(Inner::Glommio)
    }

    /// Runs `task` beside the others of this thread until it is done or the executor ends.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        match &self.0 {
            Inner::Glommio => drop(glommio::spawn_local(task).detach()),
            Inner::Poll(executor) => {
                if let Some(executor) = executor.upgrade() {
                    executor.spawn(task).detach();
                }
            }
        }
    }

    /// Waits for `time`.
    pub(crate) async fn sleep(&self, time: Duration) {
        match &self.0 {
            Inner::Glommio => glommio::timer::sleep(time).await,
            Inner::Poll(_) => drop(async_io::Timer::after(time).await),
        }
    }

    /// Lets all others run: tasks, timers and sockets. To wake oneself at once would not do: glommio looks at no socket
    /// as long as a task is ready.
    pub(crate) async fn rest(&self) {
        self.sleep(REST).await;
    }

    /// The same without a sleep, for a task that has just seen to it that no other is ready.
    pub(crate) async fn turn(&self) {
        self.sleep(TURN).await;
    }

    /// What `task` gives, or nothing if `time` is over first; `task` is dropped then.
    pub(crate) async fn within<T>(
        &self,
        time: Duration,
        task: impl Future<Output = T>,
    ) -> Option<T> {
        futures_lite::future::or(async { Some(task.await) }, async {
            self.sleep(time).await;
            None
        })
        .await
    }

    /// A stream that may be read until nothing is left: all others run meanwhile.
    pub(crate) fn paced(&self, stream: Stream) -> Paced {
        Paced {
            stream,
            runtime: self.clone(),
            reads: 0,
            rest: None,
        }
    }

    /// Makes a connected socket a stream of this runtime.
    pub(crate) fn adopt(&self, socket: UnixStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        Ok(match &self.0 {
            Inner::Glommio => {
                let socket = OwnedFd::from(socket).into_raw_fd();
                // SAFETY: `socket` was an `OwnedFd` until this line, so it is open and has no other owner; it is a
                // connected Unix stream socket, as `UnixStream` requires; and we are on a glommio executor's thread.
                let stream = unsafe { glommio::net::UnixStream::from_raw_fd(socket) };
                Stream(StreamInner::Glommio(stream, Socket::new(socket)))
            }
            Inner::Poll(_) => Stream(StreamInner::Poll(async_io::Async::new(socket)?)),
        })
    }

    /// The same for a TCP connection.
    pub(crate) fn adopt_tcp(&self, socket: TcpStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        Ok(match &self.0 {
            Inner::Glommio => {
                let socket = OwnedFd::from(socket).into_raw_fd();
                // SAFETY: `socket` was an `OwnedFd` until this line, so it is open and has no other owner; it is a
                // connected TCP socket, as `TcpStream` requires; and we are on a glommio executor's thread.
                let stream = unsafe { glommio::net::TcpStream::from_raw_fd(socket) };
                Stream(StreamInner::GlommioTcp(stream, Socket::new(socket)))
            }
            Inner::Poll(_) => Stream(StreamInner::PollTcp(async_io::Async::new(socket)?)),
        })
    }
}

/// A connected stream of whichever runtime.
#[derive(Debug)]
pub(crate) struct Stream(StreamInner);

#[derive(Debug)]
enum StreamInner {
    Glommio(glommio::net::UnixStream, Socket),
    Poll(async_io::Async<UnixStream>),
    GlommioTcp(glommio::net::TcpStream, Socket),
    PollTcp(async_io::Async<TcpStream>),
}

/// A stream that rests after so many reads without a wait.
pub(crate) struct Paced {
    stream: Stream,
    runtime: Runtime,
    /// Reads since the last wait.
    reads: usize,
    rest: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

/// The descriptor of a glommio stream.
#[derive(Debug)]
struct Socket {
    number: RawFd,
    /// It had less than there was room for, a moment ago: the next read is glommio's, to be told of more.
    is_drained: bool,
}

impl StreamInner {
    /// What lies in the socket already. glommio itself looks only after its ring has told it to, which a thread that
    /// stays awake has not asked yet.
    fn read_now(&mut self, buffer: &mut [u8]) -> Option<io::Result<usize>> {
        let (Self::Glommio(_, socket) | Self::GlommioTcp(_, socket)) = self else {
            return None;
        };
        if std::mem::take(&mut socket.is_drained) {
            return None;
        }
        // SAFETY: it is the descriptor that the glommio stream beside it was made from; the stream owns it, and closes
        // it only when it is dropped, with this.
        let borrowed = unsafe { BorrowedFd::borrow_raw(socket.number) };
        let room = buffer.len();
        match rustix::net::recv(borrowed, buffer, RecvFlags::DONTWAIT) {
            Ok((_, read)) => {
                socket.is_drained = read < room;
                Some(Ok(read))
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => Some(Err(errno.into())),
        }
    }
}

impl Socket {
    const fn new(number: RawFd) -> Self {
        Self {
            number,
            is_drained: false,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(read) = self.0.read_now(buffer) {
            return Poll::Ready(read);
        }
        match &mut self.0 {
            StreamInner::Glommio(stream, _) => Pin::new(stream).poll_read(cx, buffer),
            StreamInner::Poll(stream) => Pin::new(stream).poll_read(cx, buffer),
            StreamInner::GlommioTcp(stream, _) => Pin::new(stream).poll_read(cx, buffer),
            StreamInner::PollTcp(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            StreamInner::Glommio(stream, _) => Pin::new(stream).poll_write(cx, bytes),
            StreamInner::Poll(stream) => Pin::new(stream).poll_write(cx, bytes),
            StreamInner::GlommioTcp(stream, _) => Pin::new(stream).poll_write(cx, bytes),
            StreamInner::PollTcp(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            StreamInner::Glommio(stream, _) => Pin::new(stream).poll_flush(cx),
            StreamInner::Poll(stream) => Pin::new(stream).poll_flush(cx),
            StreamInner::GlommioTcp(stream, _) => Pin::new(stream).poll_flush(cx),
            StreamInner::PollTcp(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            StreamInner::Glommio(stream, _) => Pin::new(stream).poll_close(cx),
            StreamInner::Poll(stream) => Pin::new(stream).poll_close(cx),
            StreamInner::GlommioTcp(stream, _) => Pin::new(stream).poll_close(cx),
            StreamInner::PollTcp(stream) => Pin::new(stream).poll_close(cx),
        }
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.reads >= READS_AT_ONCE {
            let runtime = self.runtime.clone();
            let rest = self
                .rest
                .get_or_insert_with(|| Box::pin(async move { runtime.rest().await }));
            std::task::ready!(rest.as_mut().poll(cx));
            self.rest = None;
            self.reads = 0;
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.reads = match read {
            Poll::Ready(_) => self.reads + 1,
            Poll::Pending => 0,
        };
        read
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

/// Has async-io make its reactor and the thread for it, which all planes on poll share: it would do so at their first
/// timer, by a panic if that failed.
pub(crate) fn prepare_poll() -> io::Result<()> {
    let touch = || {
        let timer = async_io::Timer::after(PREEMPT_TIMER);
        futures_lite::future::block_on(futures_lite::future::poll_once(timer));
    };
    catch_unwind(touch).map_err(|_| io::Error::other("async-io panicked at its start"))
}

/// Runs `main` on this thread until it is done, on a small executor over poll.
pub(crate) fn run_poll<F: Future<Output = ()> + 'static>(main: impl FnOnce(Runtime) -> F) {
    let executor = Rc::new(async_executor::LocalExecutor::new());
    // Tasks hold a weak handle: a strong one would keep the executor that keeps them.
    let main = main(Runtime(Inner::Poll(Rc::downgrade(&executor))));
    async_io::block_on(executor.run(main));
}

/// Makes an executor for this thread, and names the thread.
pub(crate) fn make_glommio(name: &str) -> Result<glommio::LocalExecutor, String> {
    let make = || {
        glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
            .name(name)
            .io_memory(IO_MEMORY)
            .preempt_timer(PREEMPT_TIMER)
            .make()
    };
    match catch_unwind(AssertUnwindSafe(make)) {
        Ok(Ok(executor)) => Ok(executor),
        Ok(Err(error)) => Err(format!("glommio could not start: {error}")),
        // Seen where lockable memory was short for a moment: its probe ring's failure is a panic.
        Err(_) => Err("glommio panicked at its start".into()),
    }
}

/// Keeps SIGPIPE from this thread, and from those that it begins: a write to whom has hung up is an error, no more.
pub(crate) fn block_broken_pipe() {
    let mut blocked = MaybeUninit::uninit();
    let set = blocked.as_mut_ptr();
    // SAFETY: the set is ours and writable, as `sigemptyset` requires, which makes it an empty one.
    unsafe { libc::sigemptyset(set) };
    // SAFETY: the set is initialized, and the signal's number is one.
    unsafe { libc::sigaddset(set, libc::SIGPIPE) };
    // SAFETY: the set is initialized and only read; the null pointer asks for no copy of the former mask.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, set, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests;
