//! Ports that are ring ports under another name.

/// `Port` for a newtype of [`RingPort`](super::RingPort).
macro_rules! forward_port {
    ($name:ident) => {
        impl Port for $name {
            fn caps(&self, qp: QpId) -> Caps {
                self.0.caps(qp)
            }

            #[inline]
            fn post_send(
                &mut self,
                qp: QpId,
                frame: &Frame,
                body: [&[u8]; 2],
            ) -> Result<(), PostRefusal> {
                self.0.post_send(qp, frame, body)
            }

            fn post_write(&mut self, write: Write) -> Result<(), RefusedWrite> {
                self.0.post_write(write)
            }

            fn open_landing(
                &mut self,
                qp: QpId,
                landing: Landing,
                buffer: Buffer,
            ) -> Result<Region, Buffer> {
                self.0.open_landing(qp, landing, buffer)
            }

            fn close_landing(&mut self, qp: QpId, landing: Landing) {
                self.0.close_landing(qp, landing);
            }

            #[inline]
            fn poll<S: FnMut(Arrival<'_>)>(
                &mut self,
                now: Nanos,
                budget: usize,
                sink: &mut S,
            ) -> usize {
                self.0.poll(now, budget, sink)
            }

            fn poll_one<S: FnMut(Arrival<'_>)>(
                &mut self,
                qp: QpId,
                now: Nanos,
                budget: usize,
                sink: &mut S,
            ) -> usize {
                self.0.poll_one(qp, now, budget, sink)
            }

            #[inline]
            fn flush(&mut self) {
                self.0.flush();
            }

            #[inline]
            fn must_flush(&self) -> bool {
                self.0.must_flush()
            }

            fn close(&mut self, qp: QpId) {
                self.0.close(qp);
            }

            fn arm(&mut self) -> bool {
                self.0.arm()
            }

            fn disarm(&mut self) {
                self.0.disarm();
            }
        }
    };
}
pub(in crate::fabric) use forward_port;
