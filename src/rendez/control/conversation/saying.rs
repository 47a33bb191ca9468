//! Saying: what is queued goes out, as much at once as there is, and with it which answers came.

use std::future::pending;
use std::io;

use futures_lite::io::AsyncWrite;

use crate::ground::limits::CALL_WINDOW;
use rendez_proto::envelope::Body;
use rendez_proto::{self as proto, Envelope};

use super::Conversation;
use crate::control::frame::{self, FrameError};
use crate::control::peer::PeerGone;
use crate::control::refusal::frame_refusal;
use crate::control::secret::Seal;

/// With so many bytes a write waits for no more messages.
const WRITE_BYTES: usize = 4096;

impl Conversation {
    /// An answer came: that is said with what is said next.
    pub(crate) fn acknowledge(&self, request: u64) {
        self.answered.borrow_mut().push(request);
        if self.answered.borrow().len() >= CALL_WINDOW {
            self.acknowledge_all();
        }
    }

    /// Says now which answers came.
    pub(crate) fn acknowledge_all(&self) {
        let requests = self.answered.take();
        if !requests.is_empty() {
            self.tell(Body::CallDone(proto::CallDone { requests }));
        }
    }

    /// Writes what is queued until the stream fails.
    pub(super) async fn write<W: AsyncWrite + Unpin>(
        &self,
        writer: &mut W,
        mut seal: Option<Seal>,
    ) -> PeerGone {
        loop {
            let first = self.outbox.take().await;
            let mut bytes = Vec::new();
            let mut put = |envelope: &Envelope| frame::append(&mut bytes, envelope, seal.as_mut());
            let (mut count, mut filled) = (1, put(&first));
            // What waits beside it goes with it.
            while let Ok(len) = filled
                && len < WRITE_BYTES
                && let Some(next) = self.outbox.next()
            {
                (count, filled) = (count + 1, put(&next));
            }
            let written = match filled {
                Ok(_) => frame::write_all(writer, &bytes).await,
                Err(error) => Err(error),
            };
            match written {
                Ok(()) => (0..count).for_each(|_| self.outbox.written()),
                // The peer's last words may still lie unread: the reader finds them, and after them the end.
                Err(FrameError::System(error)) if is_hang_up(&error) => {
                    (0..count).for_each(|_| self.outbox.written());
                    return pending().await;
                }
                Err(error) => {
                    return PeerGone::ConnectionLost(
                        frame_refusal(&self.hello.task, &error).status,
                    );
                }
            }
        }
    }
}

fn is_hang_up(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}
