//! The handshake: proving the cluster secret over a fresh stream, before either side says a name.
//!
//! Knows the messages of [`secret`](super::secret) and their order; no socket, no deadline (kept by the caller).

use futures_lite::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::ground::{Code, Status, catalogue};

use super::refusal::Refusal;
use super::secret::{Challenge, MAC, MESSAGE, Role, Secret, Session, Transcript};
use super::secret::{emit_answer, read_answer};
use super::tls;

/// What a side brings into its handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) secret: Option<&'a Secret>,
    /// What ties the proof to its connection.
    pub(crate) binding: [u8; 32],
    /// Whether a side without a secret may talk with one that has one: where the kernel vouches for both.
    pub(crate) may_go_without: bool,
    /// Whether this very peer may, and is told so: the kernel says that it is of our own user.
    pub(crate) waives: bool,
}

/// What ties a proof to a Unix socket: its lane, by its `mark`, and that the process which dialled has made it, which
/// the kernel tells the acceptor. A third process in between brings a lane of its own, of another mark, or passes on
/// one that it has not made. Numbers of users do not belong here: each user namespace has its own.
pub(crate) fn bind_lane(mark: u64, is_of_dialler: bool) -> [u8; 32] {
    let mut binding = [0; 32];
    binding[..23].copy_from_slice(b"rendez 1 lane of a sock");
    binding[23] = is_of_dialler.into();
    binding[24..].copy_from_slice(&mark.to_le_bytes());
    binding
}

/// The dialler's side: a session if both have proved the secret.
pub(crate) async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    terms: Terms<'_>,
) -> Result<Option<Session>, Refusal> {
    let ours = draw(&terms)?;
    send(stream, &ours.emit()).await?;
    let theirs = Challenge::read(&receive(stream).await?).ok_or_else(broken)?;
    let Some(secret) = both(&terms, &theirs)? else {
        return Ok(None);
    };
    let transcript = Transcript::new(&terms.binding, &ours, &theirs);
    send(stream, &secret.prove(Role::Dialler, &transcript)).await?;
    let proof = read_answer(&receive::<_, MESSAGE>(stream).await?)
        .ok_or_else(|| other_secret("the peer did not take our proof of it"))?;
    if !secret.is_proved(Role::Acceptor, &transcript, &proof) {
        return Err(other_secret("the peer's proof of it is wrong"));
    }
    Ok(Some(secret.session(&transcript)))
}

/// The acceptor's side. `is_new` is told the dialler's nonce and says whether it was never seen before.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    terms: Terms<'_>,
    is_new: impl FnOnce([u8; 32]) -> bool,
) -> Result<Option<Session>, Refusal> {
    let theirs = Challenge::read(&receive(stream).await?).ok_or_else(broken)?;
    let ours = draw(&terms)?;
    let is_replay = theirs.nonce == ours.nonce || !is_new(theirs.nonce);
    // Answered all the same: what was recorded is worthless against a new nonce, and its user learns nothing here.
    send(stream, &ours.emit()).await?;
    let Some(secret) = both(&terms, &theirs)? else {
        return Ok(None);
    };
    let transcript = Transcript::new(&terms.binding, &theirs, &ours);
    let proof: [u8; MAC] = receive(stream).await?;
    if is_replay || !secret.is_proved(Role::Dialler, &transcript, &proof) {
        send(stream, &emit_answer(None)).await?;
        return Err(match is_replay {
            true => Refusal::fatal(
                Code::PermissionDenied,
                catalogue::HANDSHAKE_REPLAYED,
                "a recorded handshake was played back",
            ),
            false => other_secret("the peer's proof of it is wrong"),
        });
    }
    let answer = emit_answer(Some(&secret.prove(Role::Acceptor, &transcript)));
    send(stream, &answer).await?;
    Ok(Some(secret.session(&transcript)))
}

fn draw(terms: &Terms<'_>) -> Result<Challenge, Refusal> {
    Challenge::draw(
        terms.secret.is_some(),
        terms.secret.is_some() && terms.waives,
    )
    .map_err(|error| {
        Refusal::later(
            catalogue::CONTROL_SYSTEM,
            format!("the system gives no random numbers: {error}"),
        )
    })
}

/// Our secret if both have one, nothing if both may go without.
fn both<'a>(terms: &Terms<'a>, theirs: &Challenge) -> Result<Option<&'a Secret>, Refusal> {
    match (terms.secret, theirs.has_secret) {
        (Some(secret), true) => Ok(Some(secret)),
        (None, false) => Ok(None),
        _ if terms.may_go_without => Ok(None),
        (Some(_), false) if terms.waives => Ok(None),
        (None, true) if theirs.waives => Ok(None),
        (Some(_), false) => Err(no_secret("this task has one, the peer has none")),
        (None, true) => Err(no_secret("the peer has one, this task has none")),
    }
}

fn other_secret(why: &str) -> Refusal {
    uncommon(catalogue::SECRET_WRONG, why)
}

fn no_secret(why: &str) -> Refusal {
    uncommon(catalogue::SECRET_MISSING, why)
}

fn uncommon(reason: &'static str, why: &str) -> Refusal {
    let message = format!("no common cluster secret: {why}");
    Refusal::fatal(Code::PermissionDenied, reason, message)
}

fn broken() -> Refusal {
    Refusal::fatal(
        Code::Internal,
        catalogue::PEER_PROTOCOL,
        "a handshake of other bytes than ours",
    )
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), Refusal> {
    let sent = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    sent.await.map_err(lost)
}

async fn receive<S: AsyncRead + Unpin, const N: usize>(stream: &mut S) -> Result<[u8; N], Refusal> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await.map_err(lost)?;
    Ok(bytes)
}

fn lost(error: std::io::Error) -> Refusal {
    // The peer's judgement of our certificate is the first that is read after our own side of TLS is done.
    if error.kind() == std::io::ErrorKind::InvalidData {
        let why = tls::ended_by_peer(&error);
        return Refusal {
            status: Status::new(Code::PermissionDenied, catalogue::TLS_REFUSED, why),
            retry: !tls::is_judged(&error),
        };
    }
    Refusal::later(
        catalogue::PEER_LOST,
        format!("the connection ended in the handshake: {error}"),
    )
}

#[cfg(test)]
mod tests;
