//! The first bytes of a TCP connection: which of the two it is, a conversation or a pipe for data, and the short
//! answer to that.
//!
//! Pure: bytes in, bytes out. Nothing here has a length that the other side chooses, so a stranger costs as many bytes
//! as are named here. These layouts are the only thing about a connection that no version may change.
//!
//! ```text
//!   opening, 8 bytes:   "rendez" kind version        kind: C a conversation, S one under TLS, D data, E data under TLS
//!   answer, 8 bytes:    "rendez" verdict version
//!   ticket, behind a D: incarnation u64 · channel u32 · zero u32 · ticket 16 bytes · expiry u64 · MAC 32 bytes
//! ```
//! Numbers are little endian. Behind an E comes the handshake of TLS, and within TLS a D with its ticket, and the
//! answer; in clear an E is answered only where it is not wanted.

use crate::ground::Incarnation;

/// The version of the layouts here and of the handshake that follows them.
pub(crate) const VERSION: u8 = 1;
/// Bytes of an opening and of an answer.
pub(crate) const OPENING: usize = 8;
/// Bytes of a whole data preamble, with its opening.
pub(crate) const TICKET: usize = 80;
/// Bytes of a data preamble that its MAC covers.
pub(crate) const TICKET_SIGNED: usize = 48;

const NAME: &[u8; 6] = b"rendez";

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConnectionKind {
    /// A conversation in the clear.
    Control,
    /// A conversation under TLS.
    Tls,
    /// A pipe for data, in the clear.
    Data,
    /// A pipe for data, under TLS.
    SealedData,
}

/// What 8 bytes turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Opening {
    /// One of ours.
    Known(ConnectionKind),
    /// One of ours, of another version.
    OtherVersion(u8),
    /// Nothing of ours.
    Stranger,
}

/// The short answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Go on.
    Welcome,
    /// Another version is spoken here, the one in the answer.
    OtherVersion(u8),
    /// Everything is under TLS here.
    WantsTls,
    /// There is no TLS here.
    NoTls,
    /// The ticket is none of ours, or was signed by another process.
    UnknownTicket,
    /// The ticket came too late.
    ExpiredTicket,
    /// The ticket has been used for this channel.
    ReusedTicket,
    /// Only connections of one user are taken here, and this one is another's.
    OtherUser,
}

/// What a data connection says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    /// The life of the task it is meant for.
    pub(crate) incarnation: Incarnation,
    /// The channel it is to carry.
    pub(crate) channel: u32,
    /// The set of connections it belongs to.
    pub(crate) id: [u8; 16],
    /// When it ends, by the clock of its issuer.
    pub(crate) expires_ms: u64,
}

/// The opening of a connection of this kind.
pub(crate) const fn opening(kind: ConnectionKind) -> [u8; OPENING] {
    let kind = match kind {
        ConnectionKind::Control => b'C',
        ConnectionKind::Tls => b'S',
        ConnectionKind::Data => b'D',
        ConnectionKind::SealedData => b'E',
    };
    [b'r', b'e', b'n', b'd', b'e', b'z', kind, VERSION]
}

/// Reads an opening.
pub(crate) fn read_opening(bytes: [u8; OPENING]) -> Opening {
    let kind = match bytes[6] {
        b'C' => ConnectionKind::Control,
        b'S' => ConnectionKind::Tls,
        b'D' => ConnectionKind::Data,
        b'E' => ConnectionKind::SealedData,
        _ => return Opening::Stranger,
    };
    match (bytes.starts_with(NAME), bytes[7]) {
        (false, _) => Opening::Stranger,
        (true, VERSION) => Opening::Known(kind),
        (true, other) => Opening::OtherVersion(other),
    }
}

/// True if `bytes`, the first of a connection, may become an opening.
pub(crate) fn may_be_opening(bytes: &[u8]) -> bool {
    let len = bytes.len().min(NAME.len());
    bytes[..len] == NAME[..len]
}

/// The answer that says `verdict`.
pub(crate) const fn answer(verdict: Verdict) -> [u8; OPENING] {
    let (code, version) = match verdict {
        Verdict::Welcome => (b'W', VERSION),
        Verdict::OtherVersion(version) => (b'V', version),
        Verdict::WantsTls => (b'T', VERSION),
        Verdict::NoTls => (b'P', VERSION),
        Verdict::UnknownTicket => (b'U', VERSION),
        Verdict::ExpiredTicket => (b'E', VERSION),
        Verdict::ReusedTicket => (b'R', VERSION),
        Verdict::OtherUser => (b'O', VERSION),
    };
    [b'r', b'e', b'n', b'd', b'e', b'z', code, version]
}

/// Reads an answer; `None` if it is none of ours.
pub(crate) fn read_answer(bytes: [u8; OPENING]) -> Option<Verdict> {
    if !bytes.starts_with(NAME) {
        return None;
    }
    Some(match bytes[6] {
        b'W' => Verdict::Welcome,
        b'V' => Verdict::OtherVersion(bytes[7]),
        b'T' => Verdict::WantsTls,
        b'P' => Verdict::NoTls,
        b'U' => Verdict::UnknownTicket,
        b'E' => Verdict::ExpiredTicket,
        b'R' => Verdict::ReusedTicket,
        b'O' => Verdict::OtherUser,
        _ => return None,
    })
}

impl Ticket {
    /// The bytes to be signed: the first of the data preamble.
    pub(crate) fn signed(&self) -> [u8; TICKET_SIGNED] {
        let mut bytes = [0; TICKET_SIGNED];
        bytes[..8].copy_from_slice(&opening(ConnectionKind::Data));
        bytes[8..16].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.channel.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.id);
        bytes[40..48].copy_from_slice(&self.expires_ms.to_le_bytes());
        bytes
    }

    /// The whole data preamble, signed with `mac`.
    pub(crate) fn emit(&self, mac: &[u8; 32]) -> [u8; TICKET] {
        let mut bytes = [0; TICKET];
        bytes[..TICKET_SIGNED].copy_from_slice(&self.signed());
        bytes[TICKET_SIGNED..].copy_from_slice(mac);
        bytes
    }

    /// Reads a whole data preamble and its MAC, which is only a claim yet; `None` if it is none.
    pub(crate) fn read(bytes: &[u8; TICKET]) -> Option<(Self, [u8; 32])> {
        let ticket = Self {
            incarnation: Incarnation(u64::from_le_bytes(part(bytes, 8))),
            channel: u32::from_le_bytes(part(bytes, 16)),
            id: part(bytes, 24),
            expires_ms: u64::from_le_bytes(part(bytes, 40)),
        };
        // One spelling for each ticket: reserved bytes are zero.
        (ticket.signed() == bytes[..TICKET_SIGNED]).then(|| (ticket, part(bytes, TICKET_SIGNED)))
    }
}

fn part<const N: usize>(bytes: &[u8; TICKET], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

#[cfg(test)]
mod tests;
