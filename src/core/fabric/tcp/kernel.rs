//! TLS records kept by the kernel: a socket is given the keys of its session, and carries plain bytes from then on.
//!
//! Knows sockets and the keys of a session whose handshake is done; not how that was done. The kernel must have TLS as
//! an upper protocol of TCP (`CONFIG_TLS`, the module `tls`) and the session's cipher. Both are tried once per process,
//! on a connection to ourselves, and again where none could be made: keys leave a session for good, so they are not
//! taken out before support is certain.
//!
//! The kernel sends no key updates, so a connection ends when its keys have sealed as many records as they may
//! ([`KERNEL_TLS_RECORDS_MAX`](crate::ground::limits::KERNEL_TLS_RECORDS_MAX)); the channel above replays what is on
//! its way over the next one. It takes no updates either: a peer that sends one, an alert or anything else that is not
//! data ends the connection.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};
use rustls::{CipherSuite, Connection, ConnectionTrafficSecrets, ExtractedSecrets};

/// The tried ciphers, and what came of each.
static TRIED: [OnceLock<Result<(), Missing>>; 3] = [const { OnceLock::new() }; 3];

/// Why the kernel keeps no TLS records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Missing {
    /// No connection to ourselves could be made to try it on.
    #[error("it could not be tried: there is no connection over 127.0.0.1")]
    Untried,
    /// TCP has no TLS.
    #[error("TCP of this kernel has no TLS ({0}): modprobe tls")]
    Protocol(Errno),
    /// It has TLS 1.3 without this cipher.
    #[error("TLS of this kernel does not support the session's cipher ({0})")]
    Cipher(Errno),
}

/// The ciphers of TLS 1.3 that both the kernel and rustls know.
#[derive(Clone, Copy, Debug)]
enum Cipher {
    Aes128,
    Aes256,
    Chacha20,
}

/// Whether the kernel keeps records under the cipher that our own tasks agree on.
///
/// # Errors
/// Why it does not.
pub fn kernel_tls() -> Result<(), Missing> {
    Cipher::Aes256.is_taken()
}

/// True if the kernel takes this session's keys, and nothing of the session waits in rustls.
pub(super) fn takes(session: &mut Connection) -> bool {
    let suite = session.negotiated_cipher_suite().map(|suite| suite.suite());
    let cipher = match suite {
        Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => Cipher::Aes128,
        Some(CipherSuite::TLS13_AES_256_GCM_SHA384) => Cipher::Aes256,
        Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => Cipher::Chacha20,
        _ => return false,
    };
    let is_empty = session
        .process_new_packets()
        .is_ok_and(|state| state.plaintext_bytes_to_read() == 0 && state.tls_bytes_to_write() == 0);
    is_empty && cipher.is_taken().is_ok()
}

/// Gives a socket the keys of a session that it takes.
///
/// # Errors
/// The system's; or the session gives no keys away. Its keys are gone then, and the socket is good for nothing.
pub(super) fn hand_over(session: Connection, socket: &impl AsFd) -> io::Result<()> {
    let ExtractedSecrets { tx, rx } = session
        .dangerous_extract_secrets()
        .map_err(io::Error::other)?;
    let unknown = || io::Error::other("a cipher that the kernel does not know");
    let sends = info(&tx).ok_or_else(unknown)?;
    let receives = info(&rx).ok_or_else(unknown)?;
    Ok(set(socket, &sends, &receives).map_err(|(errno, _)| errno)?)
}

/// Gives a connected socket its keys; which step failed, where one did.
fn set(
    socket: &impl AsFd,
    sends: &TlsCryptoInfo,
    receives: &TlsCryptoInfo,
) -> Result<(), (Errno, Missing)> {
    setsockopt(socket, TcpUlp::default(), b"tls")
        .map_err(|errno| (errno, Missing::Protocol(errno)))?;
    let cipher = |errno| (errno, Missing::Cipher(errno));
    setsockopt(socket, TcpTlsTx, sends).map_err(cipher)?;
    setsockopt(socket, TcpTlsRx, receives).map_err(cipher)
}

impl Cipher {
    fn is_taken(self) -> Result<(), Missing> {
        let tried = &TRIED[self as usize];
        if let Some(tried) = tried.get() {
            return *tried;
        }
        // For want of descriptors, say, or of the interface `lo`: nothing is known of the kernel, and the next may try.
        let ends = to_ourselves().map_err(|_| Missing::Untried)?;
        let keys = self.keys();
        *tried.get_or_init(|| set(&ends.0, &keys, &keys).map_err(|(_, missing)| missing))
    }

    /// Keys for a trial, and public: nothing is ever sent under them.
    fn keys(self) -> TlsCryptoInfo {
        match self {
            Self::Aes128 => aes128(0, [0; 16], [0; 12]),
            Self::Aes256 => aes256(0, [0; 32], [0; 12]),
            Self::Chacha20 => chacha20(0, [0; 32], [0; 12]),
        }
    }
}

/// A connection of this process with itself.
fn to_ourselves() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    Ok((near, far))
}

/// One direction's keys as the kernel wants them: tls(7), and `include/uapi/linux/tls.h`.
fn info((sequence, secrets): &(u64, ConnectionTrafficSecrets)) -> Option<TlsCryptoInfo> {
    Some(match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => aes128(
            *sequence,
            key.as_ref().try_into().ok()?,
            iv.as_ref().try_into().ok()?,
        ),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => aes256(
            *sequence,
            key.as_ref().try_into().ok()?,
            iv.as_ref().try_into().ok()?,
        ),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => chacha20(
            *sequence,
            key.as_ref().try_into().ok()?,
            iv.as_ref().try_into().ok()?,
        ),
        _ => return None,
    })
}

const fn head(cipher_type: u16) -> libc::tls_crypto_info {
    libc::tls_crypto_info {
        version: libc::TLS_1_3_VERSION,
        cipher_type,
    }
}

const fn aes128(sequence: u64, key: [u8; 16], iv: [u8; 12]) -> TlsCryptoInfo {
    // The kernel's salt is the head of what TLS 1.3 calls the vector.
    let [a, b, c, d, iv @ ..] = iv;
    TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
        info: head(libc::TLS_CIPHER_AES_GCM_128),
        iv,
        key,
        salt: [a, b, c, d],
        rec_seq: sequence.to_be_bytes(),
    })
}

const fn aes256(sequence: u64, key: [u8; 32], iv: [u8; 12]) -> TlsCryptoInfo {
    // The kernel's salt is the head of what TLS 1.3 calls the vector.
    let [a, b, c, d, iv @ ..] = iv;
    TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 {
        info: head(libc::TLS_CIPHER_AES_GCM_256),
        iv,
        key,
        salt: [a, b, c, d],
        rec_seq: sequence.to_be_bytes(),
    })
}

const fn chacha20(sequence: u64, key: [u8; 32], iv: [u8; 12]) -> TlsCryptoInfo {
    TlsCryptoInfo::Chacha20Poly1305(libc::tls12_crypto_info_chacha20_poly1305 {
        info: head(libc::TLS_CIPHER_CHACHA20_POLY1305),
        iv,
        key,
        salt: [],
        rec_seq: sequence.to_be_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::{Missing, kernel_tls};

    const CHILD: &str = "RENDEZ_TEST_NO_DESCRIPTORS";

    /// In a process of its own: the limit is one of the process.
    #[test]
    fn what_could_not_be_tried_is_tried_again() {
        if std::env::var_os(CHILD).is_none() {
            let this = std::env::current_exe().unwrap();
            let mut child = std::process::Command::new(this);
            child.args(["--nocapture", "what_could_not_be_tried_is_tried_again"]);
            let ended = child.env(CHILD, "1").output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout).into_owned();
            assert!(
                ended.status.success() && said.contains("1 passed"),
                "{ended:?}"
            );
            return;
        }
        let usual = getrlimit(Resource::Nofile);
        let none = Rlimit {
            current: Some(0),
            ..usual
        };
        setrlimit(Resource::Nofile, none).unwrap();
        assert_eq!(kernel_tls(), Err(Missing::Untried));
        setrlimit(Resource::Nofile, usual).unwrap();
        assert_ne!(kernel_tls(), Err(Missing::Untried));
    }
}
