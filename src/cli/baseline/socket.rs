//! A bare TCP socket between two processes: what bytes cost over the kernel's own loopback, without rendez.
//!
//! Knows nothing of clocks, rows or rendez. Non-blocking sockets, spun upon, `TCP_NODELAY`, kernel buffers as the
//! kernel makes them, no copy but the kernel's own: nothing here is left to save. A ping-pong has one buffer for both
//! ways. A stream is sent from one buffer again and again and received into several in turn, as rendez's own is: one
//! alone would stay in the cache, which a receiver's does not that uses what it received while the next comes.
//!
//! Near says first what it wants, in sixteen bytes: 0 for a ping-pong or 1 for a stream, and the length of a message.
//! Then far sends each message back, or sends them without end. It is over when near closes the socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use super::line::{Gone, Waiting};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// A message there and the same back.
    PingPong = 0,
    /// Messages from far to near, as many as go.
    Stream = 1,
}

/// Messages that a stream is received into, one after the other: so many landings rendez has open for a large one.
pub const STREAM_BUFFERS: u64 = 4;

/// One end.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    waiting: Waiting,
    /// Sent from the first, received into each in turn.
    messages: Vec<Vec<u8>>,
    turn: usize,
}

/// Two connected sockets of this machine: near's, for messages of `len` bytes, and far's to hand on.
///
/// # Errors
/// The kernel's error, if loopback is unavailable.
pub fn pair(mode: Mode, waiting: Waiting, len: usize) -> std::io::Result<(Socket, OwnedFd)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let own = near.local_addr()?;
    // Another process of this machine may have dialled first.
    let far = loop {
        let (far, from) = listener.accept()?;
        if from == own {
            break far;
        }
    };
    let buffers = match mode {
        Mode::PingPong => 1,
        Mode::Stream => STREAM_BUFFERS as usize,
    };
    let near = Socket::new(near, waiting, vec![vec![2; len]; buffers])?;
    Ok((near, far.into()))
}

/// Far's whole life, on the socket it was given.
///
/// # Errors
/// What the kernel says of a descriptor that is no socket.
pub fn serve(socket: OwnedFd, waiting: Waiting, len_max: usize) -> std::io::Result<()> {
    let mut far = Socket::new(socket.into(), waiting, vec![vec![0; 16]])?;
    if far.receive().is_err() {
        return Ok(());
    }
    let word = |at: usize| {
        let mut eight = [0; 8];
        eight.copy_from_slice(&far.messages[0][at..at + 8]);
        u64::from_le_bytes(eight)
    };
    let (mode, len) = (word(0), word(8));
    let len = usize::try_from(len).ok().filter(|&len| len <= len_max);
    let len = len.ok_or_else(|| std::io::Error::other("a message longer than there is memory"))?;
    // Written, not only allocated: an unwritten page is the kernel's one page of zeros.
    far.messages = vec![vec![1; len]];
    loop {
        let is_over =
            (mode == Mode::PingPong as u64 && far.receive().is_err()) || far.send().is_err();
        if is_over {
            return Ok(());
        }
    }
}

impl Socket {
    fn new(stream: TcpStream, waiting: Waiting, messages: Vec<Vec<u8>>) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        // As rendez does between two ends of one machine; an error is that the system does not let us choose.
        let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "reno");
        Ok(Self {
            stream,
            waiting,
            messages,
            turn: 0,
        })
    }

    /// Near's first word.
    ///
    /// # Errors
    /// [`Gone`] if far is.
    pub fn ask(&mut self, mode: Mode) -> Result<(), Gone> {
        let len = self.messages[0].len() as u64;
        let question = [(mode as u64).to_le_bytes(), len.to_le_bytes()].concat();
        let message = std::mem::replace(&mut self.messages[0], question);
        let asked = self.send();
        self.messages[0] = message;
        asked
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Gone`] if the other side is.
    pub fn send(&mut self) -> Result<(), Gone> {
        let mut sent = 0;
        while sent < self.messages[0].len() {
            match self.stream.write(&self.messages[0][sent..]) {
                Ok(count) => sent += count,
                Err(error) if is_not_now(&error) => self.wait(),
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }

    /// Receives a message.
    ///
    /// # Errors
    /// [`Gone`] if the other side is.
    pub fn receive(&mut self) -> Result<(), Gone> {
        let mut received = 0;
        while received < self.messages[self.turn].len() {
            match self.stream.read(&mut self.messages[self.turn][received..]) {
                Ok(0) => return Err(Gone),
                Ok(count) => received += count,
                Err(error) if is_not_now(&error) => self.wait(),
                Err(_) => return Err(Gone),
            }
        }
        self.turn = (self.turn + 1) % self.messages.len();
        Ok(())
    }

    fn wait(&self) {
        if self.waiting == Waiting::Yield {
            std::thread::yield_now();
        }
    }
}

fn is_not_now(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_there_and_back_and_stream() {
        for mode in [Mode::PingPong, Mode::Stream] {
            let (mut near, far) = pair(mode, Waiting::Yield, 100_000).expect("loopback");
            let far = std::thread::spawn(|| serve(far, Waiting::Yield, 1 << 20));
            assert_eq!(near.ask(mode), Ok(()));
            for _ in 0..10 {
                if mode == Mode::PingPong {
                    assert_eq!(near.send(), Ok(()));
                }
                assert_eq!(near.receive(), Ok(()));
            }
            drop(near);
            far.join().expect("no panic").expect("a socket");
        }
    }

    #[test]
    fn a_question_for_more_than_there_is_ends_it() {
        let (mut near, far) = pair(Mode::Stream, Waiting::Yield, 100_000).expect("loopback");
        let far = std::thread::spawn(|| serve(far, Waiting::Yield, 99_999));
        assert_eq!(near.ask(Mode::Stream), Ok(()));
        assert!(far.join().expect("no panic").is_err());
        assert_eq!(near.receive(), Err(Gone));
    }
}
