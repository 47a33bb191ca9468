//! Framing: one envelope behind its length, on any stream of bytes.
//!
//! Knows no socket, no runtime and no meaning of a message. Any bytes may come in: each gives an envelope or an
//! error.

use futures_lite::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use prost::Message;

use crate::ground::limits::CONTROL_MESSAGE_MAX;
use rendez_proto::Envelope;

use super::secret::{MAC, Seal};

/// Bytes of the length that goes before each envelope.
const HEADER: usize = 4;

/// Why there is no envelope.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FrameError {
    /// The stream ended between two envelopes.
    #[error("the connection ended")]
    Ended,
    /// The stream ended within an envelope.
    #[error("the connection ended within a message")]
    Truncated,
    /// A length beyond the bound.
    #[error(
        "a control message of {0} bytes; the limit CONTROL_MESSAGE_MAX is {CONTROL_MESSAGE_MAX}"
    )]
    TooLong(u64),
    /// Bytes that are no envelope.
    #[error("a control message that cannot be parsed: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// Bytes that were not sealed by the peer, or not as the next of its messages.
    #[error("a control message that was made, changed or repeated on its way")]
    Unsealed,
    /// The system refused.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// The bytes of `envelope` as they go on the stream.
pub(crate) fn encode(envelope: &Envelope) -> Result<Vec<u8>, FrameError> {
    let len = envelope.encoded_len();
    if len > CONTROL_MESSAGE_MAX {
        return Err(FrameError::TooLong(len as u64));
    }
    let mut bytes = Vec::with_capacity(HEADER + len);
    bytes.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    envelope.encode_raw(&mut bytes);
    Ok(bytes)
}

/// Writes `envelope`, sealed if there is a seal.
pub(crate) async fn write<W: AsyncWrite + Unpin>(
    stream: &mut W,
    envelope: &Envelope,
    seal: Option<&mut Seal>,
) -> Result<(), FrameError> {
    let mut bytes = Vec::new();
    append(&mut bytes, envelope, seal)?;
    write_all(stream, &bytes).await
}

/// Adds `envelope` to what is to be written, sealed if there is a seal. Gives the bytes there are.
pub(crate) fn append(
    bytes: &mut Vec<u8>,
    envelope: &Envelope,
    seal: Option<&mut Seal>,
) -> Result<usize, FrameError> {
    let frame = encode(envelope)?;
    bytes.extend_from_slice(&frame);
    if let Some(seal) = seal {
        bytes.extend_from_slice(&seal.seal(&frame));
    }
    Ok(bytes.len())
}

/// Writes whole envelopes.
pub(crate) async fn write_all<W: AsyncWrite + Unpin>(
    stream: &mut W,
    bytes: &[u8],
) -> Result<(), FrameError> {
    stream.write_all(bytes).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads one envelope, with its seal if there is one. Dropped half way it has eaten bytes: the stream is of no use
/// then.
pub(crate) async fn read<R: AsyncRead + Unpin>(
    stream: &mut R,
    seal: Option<&mut Seal>,
) -> Result<Envelope, FrameError> {
    let mut header = [0u8; HEADER];
    let mut filled = 0;
    while filled < HEADER {
        match stream.read(&mut header[filled..]).await? {
            0 if filled == 0 => return Err(FrameError::Ended),
            0 => return Err(FrameError::Truncated),
            count => filled += count,
        }
    }
    let len = u32::from_le_bytes(header);
    let Some(len) = usize::try_from(len)
        .ok()
        .filter(|&len| len <= CONTROL_MESSAGE_MAX)
    else {
        return Err(FrameError::TooLong(u64::from(len)));
    };
    let mut bytes = vec![0; HEADER + len];
    bytes[..HEADER].copy_from_slice(&header);
    read_all(stream, &mut bytes[HEADER..]).await?;
    if let Some(seal) = seal {
        let mut mac = [0; MAC];
        read_all(stream, &mut mac).await?;
        if !seal.is_sealed(&bytes, &mac) {
            return Err(FrameError::Unsealed);
        }
    }
    Ok(Envelope::decode(&bytes[HEADER..])?)
}

async fn read_all<R: AsyncRead + Unpin>(
    stream: &mut R,
    bytes: &mut [u8],
) -> Result<(), FrameError> {
    stream
        .read_exact(bytes)
        .await
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => FrameError::Truncated,
            _ => FrameError::System(error),
        })
}

#[cfg(test)]
mod tests;
