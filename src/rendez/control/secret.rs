//! The cluster secret: what proves that both sides know it, and what follows from that proof.
//!
//! Pure: nonces and bytes in, proofs and verdicts out; the code that reads the secret's file checks the file.
//!
//! ```text
//!   dialler                                    acceptor
//!   modes, nonce D ──────────────────────────▶
//!               ◀────────────────────────── modes, nonce A
//!   HMAC(secret, "dialler", t) ─────────────▶ checks
//!        checks ◀─────────────── verdict, HMAC(secret, "acceptor", t)          t = binding · nonce D · nonce A
//!   session = HMAC(secret, "session", t)
//! ```
//! Until both have proved it, neither has said a name. Role labels keep a proof from being sent back to its maker, the
//! nonces keep it from being used again, and the binding (the exporter of the TLS connection, the lane of a Unix
//! socket, or zeros) keeps it from being passed on from one connection to another. Over TCP in the clear each message
//! that follows is sealed with a key of the session, by direction and number: so the names, lives and numbers of both
//! hellos belong to the very handshake that they follow, and no intermediary can change, drop or repeat a message
//! unseen.

use std::fmt;

use ring::hmac::{self, HMAC_SHA256, Key};

use crate::ground::limits::{SECRET_BYTES_MAX, SECRET_BYTES_MIN};
use crate::ground::{Code, Status, catalogue};

/// Bytes of a challenge and of an answer to a proof.
pub(crate) const MESSAGE: usize = 40;
/// Bytes of a proof, a key and a MAC.
pub(crate) const MAC: usize = 32;

/// The secret that the tasks of a cluster share.
#[derive(Clone)]
pub struct Secret(Key);

/// Which side speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Dialler,
    Acceptor,
}

/// What a side says of itself before anything is proved: whether it has a secret, and a number used once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Challenge {
    pub(crate) has_secret: bool,
    /// It has one, and lets this very peer in without it: the kernel names the same user.
    pub(crate) waives: bool,
    pub(crate) nonce: [u8; 32],
}

/// Both challenges and what binds them to their connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transcript([u8; 96]);

/// What a proof leaves behind, known to both sides only.
#[derive(Clone)]
pub(crate) struct Session(Key);

/// One direction of sealed messages.
pub(crate) struct Seal {
    key: Key,
    count: u64,
}

impl Secret {
    /// A secret of these bytes, as its file holds them, less blanks and line ends around them.
    ///
    /// # Errors
    /// `InvalidArgument` if they are too few to withstand guessing, or more than a secret needs.
    pub fn new(bytes: &[u8]) -> Result<Self, Status> {
        let bytes = bytes.trim_ascii();
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
            let message = format!(
                "a cluster secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, not {}; \
                 make one with: rendez secret new FILE",
                bytes.len()
            );
            return Err(Status::new(
                Code::InvalidArgument,
                catalogue::SECRET_UNFIT,
                message,
            ));
        }
        Ok(Self(Key::new(HMAC_SHA256, bytes)))
    }

    /// The proof of `role` that it knows the secret.
    pub(crate) fn prove(&self, role: Role, transcript: &Transcript) -> [u8; MAC] {
        sign(&self.0, proof_label(role), &transcript.0)
    }

    /// Checks a proof of `role`, in a time that tells nothing.
    pub(crate) fn is_proved(&self, role: Role, transcript: &Transcript, proof: &[u8; MAC]) -> bool {
        verify(&self.0, proof_label(role), &transcript.0, proof)
    }

    /// What follows from both proofs.
    pub(crate) fn session(&self, transcript: &Transcript) -> Session {
        Session::new(&sign(&self.0, *b"rendez 1 session", &transcript.0))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Challenge {
    /// A challenge with a nonce of the system's.
    pub(crate) fn draw(has_secret: bool, waives: bool) -> Result<Self, getrandom::Error> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce)?;
        Ok(Self {
            has_secret,
            waives,
            nonce,
        })
    }

    pub(crate) fn emit(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[0] = self.has_secret.into();
        bytes[1] = self.waives.into();
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Reads a challenge; `None` if it is none.
    pub(crate) fn read(bytes: &[u8; MESSAGE]) -> Option<Self> {
        let challenge = Self {
            has_secret: bytes[0] == 1,
            waives: bytes[1] == 1,
            nonce: std::array::from_fn(|index| bytes[8 + index]),
        };
        (challenge.emit() == *bytes).then_some(challenge)
    }
}

/// The acceptor's answer to a proof: its own, or none.
pub(crate) fn emit_answer(proof: Option<&[u8; MAC]>) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    if let Some(proof) = proof {
        bytes[0] = 1;
        bytes[8..].copy_from_slice(proof);
    }
    bytes
}

/// Reads such an answer.
pub(crate) fn read_answer(bytes: &[u8; MESSAGE]) -> Option<[u8; MAC]> {
    (bytes[0] == 1).then(|| std::array::from_fn(|index| bytes[8 + index]))
}

impl Transcript {
    pub(crate) fn new(binding: &[u8; 32], dialler: &Challenge, acceptor: &Challenge) -> Self {
        let mut bytes = [0; 96];
        bytes[..32].copy_from_slice(binding);
        bytes[32..64].copy_from_slice(&dialler.nonce);
        bytes[64..].copy_from_slice(&acceptor.nonce);
        Self(bytes)
    }
}

impl Session {
    /// A session of this key.
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Key::new(HMAC_SHA256, key))
    }

    /// What seals the messages of `role`.
    pub(crate) fn seal(&self, role: Role) -> Seal {
        let label = match role {
            Role::Dialler => *b"rendez 1 seal  D",
            Role::Acceptor => *b"rendez 1 seal  A",
        };
        Seal {
            key: Key::new(HMAC_SHA256, &sign(&self.0, label, &[])),
            count: 0,
        }
    }

    /// Signs a data preamble for the connection that `binding` belongs to: the exporter of its TLS, or nothing in the
    /// clear. What is signed has one length, so nothing can be something else.
    pub(crate) fn sign_ticket(&self, signed: &[u8], binding: &[u8]) -> [u8; MAC] {
        sign(&self.0, *b"rendez 1 ticket ", &[signed, binding].concat())
    }

    /// Checks a data preamble, in a time that tells nothing.
    pub(crate) fn is_ticket(&self, signed: &[u8], binding: &[u8], mac: &[u8; MAC]) -> bool {
        let message = [signed, binding].concat();
        verify(&self.0, *b"rendez 1 ticket ", &message, mac)
    }
}

shown! { Session {} }

impl Seal {
    /// The seal of the next message.
    pub(crate) fn seal(&mut self, message: &[u8]) -> [u8; MAC] {
        let count = self.next();
        sign(&self.key, count, message)
    }

    /// Checks the seal of the next message.
    pub(crate) fn is_sealed(&mut self, message: &[u8], mac: &[u8; MAC]) -> bool {
        let count = self.next();
        verify(&self.key, count, message, mac)
    }

    fn next(&mut self) -> [u8; 16] {
        let count = self.count;
        self.count += 1;
        u128::from(count).to_le_bytes()
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal({})", self.count)
    }
}

const fn proof_label(role: Role) -> [u8; 16] {
    match role {
        Role::Dialler => *b"rendez 1 proof D",
        Role::Acceptor => *b"rendez 1 proof A",
    }
}

/// Labels have one length, so no label and message can be another label and message.
fn sign(key: &Key, label: [u8; 16], message: &[u8]) -> [u8; MAC] {
    let mut context = hmac::Context::with_key(key);
    context.update(&label);
    context.update(message);
    let tag = context.sign();
    let mut mac = [0; MAC];
    mac.copy_from_slice(tag.as_ref());
    mac
}

fn verify(key: &Key, label: [u8; 16], message: &[u8], mac: &[u8; MAC]) -> bool {
    let message = [&label, message].concat();
    hmac::verify(key, &message, mac).is_ok()
}

#[cfg(test)]
mod tests;
