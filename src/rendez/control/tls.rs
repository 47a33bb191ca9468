//! TLS 1.3 around conversations and data connections over TCP: both sides show a certificate of the cluster's
//! authority.
//!
//! Knows certificates and streams; not what is said. Which files they come from is the settings' business; here they
//! are PEM texts. A certificate names no task: a holder of one that the authority has signed belongs to the cluster.
//! The provider of the primitives is ring, which needs no more than a C compiler to be built.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_lite::io::{AsyncRead, AsyncWrite};
use futures_rustls::{TlsAcceptor, TlsConnector, TlsStream, server};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Connection,
    ConnectionCommon, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::fabric::Secured;
use crate::ground::{Code, Locked, Status, catalogue};

use super::errand::Errands;
use super::mailbox::Receiver;
use super::refusal::Refusal;

/// What the exporter is asked for; its value is the same on both ends of one connection and on no other.
const BINDING_LABEL: &[u8] = b"EXPORTER-rendez-control-1";
/// The same of a data connection: no ticket of the one can serve for the other.
const DATA_LABEL: &[u8] = b"EXPORTER-rendez-data-1";

/// A look for new certificates that takes longer is not waited for by handshakes that begin meanwhile.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// A task's certificate, its key, and the authority that signs all tasks'.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

struct Shared {
    /// What handshakes that begin now go by.
    current: Mutex<Sides>,
    /// Data connections give their keys to the kernel where it takes them.
    in_kernel: bool,
    renewal: Option<Renewal>,
    /// Locked while one looks whether there is something new. When the last look began that is over.
    looked: Mutex<Option<Instant>>,
    /// When the look began that is under way.
    looks_since: Mutex<Option<Instant>>,
    errands: Errands,
}

/// The same certificates for a dialler and for an acceptor.
#[derive(Clone)]
struct Sides {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    own: Arc<Own>,
}

/// This task's certificate and those that signed it, as peers with the same authorities judge them.
struct Own {
    chain: Vec<CertificateDer<'static>>,
    dialled: Arc<AnyNameVerifier>,
    dialler: Arc<dyn ClientCertVerifier>,
}

impl Own {
    fn judge(&self, now: UnixTime) -> Result<(), rustls::Error> {
        let (certificate, signers) = self
            .chain
            .split_first()
            .ok_or(rustls::Error::NoCertificatesPresented)?;
        self.dialled.judge(certificate, signers, now)?;
        self.dialler
            .verify_client_cert(certificate, signers, now)
            .map(drop)
    }

    /// When it ends, in seconds since 1970.
    fn ends(&self) -> Option<u64> {
        // Nothing else tells: the refusal of a time when it has surely ended.
        let at_the_end_of_time = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
        match self.judge(at_the_end_of_time) {
            Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
                not_after,
                ..
            })) => Some(not_after.as_secs()),
            _ => None,
        }
    }
}

/// Looks whether there are new certificates, and gives them. It may block.
type Renewal = Box<dyn Fn() -> Option<Tls> + Send + Sync>;

impl Tls {
    /// From PEM texts: this task's certificate chain, its private key, and the certificates of the authorities that
    /// peers' certificates must be signed by. With `in_kernel` the kernel keeps the records of data connections, where
    /// it can.
    ///
    /// # Errors
    /// `InvalidArgument` says which of them is not what it should be.
    pub fn from_pem(
        certificates: &[u8],
        key: &[u8],
        authorities: &[u8],
        in_kernel: bool,
    ) -> Result<Self, Status> {
        let chain = read_certificates("certificate", certificates)?;
        let key = read_key(key)?;
        let roots = Arc::new(read_authorities(authorities)?);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| unfit("authority", &error.to_string()))?;
        let fits = |error: rustls::Error| unfit("certificate or key", &error.to_string());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(fits)?
            .with_client_cert_verifier(Arc::clone(&clients))
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(fits)?;
        // Each connection is a full handshake: a certificate that is no longer good opens no old session.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = in_kernel;
        let verifier = Arc::new(AnyNameVerifier {
            roots,
            provider: Arc::clone(&provider),
        });
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(fits)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier) as _)
            .with_client_auth_cert(chain.clone(), key)
            .map_err(fits)?;
        client.resumption = rustls::client::Resumption::disabled();
        client.enable_secret_extraction = in_kernel;
        Ok(Self(Arc::new(Shared {
            current: Mutex::new(Sides {
                client: Arc::new(client),
                server: Arc::new(server),
                own: Arc::new(Own {
                    chain,
                    dialled: verifier,
                    dialler: clients,
                }),
            }),
            in_kernel,
            renewal: None,
            looked: Mutex::default(),
            looks_since: Mutex::default(),
            errands: Errands::default(),
        })))
    }

    /// The same, which asks before each conversation or data connection whether there are new certificates.
    pub(crate) fn renewed_by(
        self,
        renewal: impl Fn() -> Option<Self> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            current: Mutex::new(self.0.current()),
            in_kernel: self.0.in_kernel,
            renewal: Some(Box::new(renewal)),
            looked: Mutex::default(),
            looks_since: Mutex::default(),
            errands: Errands::default(),
        }))
    }

    /// Whether peers with the same authorities take this task's certificate now.
    ///
    /// # Errors
    /// `SECRET_UNFIT` says why they do not; `TLS_REFUSED` that they do not now, for it is of the wrong time.
    pub(crate) fn judge_own(&self) -> Result<(), Status> {
        let judged = self.0.current().own.judge(UnixTime::now());
        judged.map_err(|error| {
            let why = match &error {
                rustls::Error::InvalidCertificate(why) => why.to_string(),
                error => error.to_string(),
            };
            let is_of_time = is_of_time(&error);
            let mend = match &error {
                _ if is_of_time => "; make a new one, or set this machine's clock",
                rustls::Error::InvalidCertificate(
                    // Of an authority of the same name.
                    CertificateError::UnknownIssuer | CertificateError::BadSignature,
                ) => "; give all tasks one `tls_ca`, which holds the authority that signed it",
                rustls::Error::InvalidCertificate(
                    CertificateError::InvalidPurpose
                    | CertificateError::InvalidPurposeContext { .. },
                ) => "; make one for the authentication of both servers and clients",
                _ => "",
            };
            let message = format!("peers with this `tls_ca` refuse it: {why}{mend}");
            Status::of(
                match is_of_time {
                    true => catalogue::TLS_REFUSED,
                    false => catalogue::SECRET_UNFIT,
                },
                message,
            )
        })
    }

    /// When this task's certificate ends, in seconds since 1970. A new one is looked for, so that a task without new
    /// connections tells of it the next time that it is asked.
    pub(crate) fn ends(&self) -> Option<u64> {
        drop(self.begin_look());
        self.0.current().own.ends()
    }

    /// What a handshake goes by that begins now. The look for new certificates has a thread of its own, for files may
    /// lie on a server that does not answer: then others do not wait for it, and go by what is there.
    async fn sides(&self) -> Sides {
        if let Some(mut looked) = self.begin_look() {
            looked.receive().await;
        }
        self.0.current()
    }

    /// Begins a look, if there may be new certificates and no look takes too long already.
    fn begin_look(&self) -> Option<Receiver<()>> {
        let shared = &self.0;
        let asked = Instant::now();
        let looks_long = shared
            .looks_since
            .locked()
            .is_some_and(|since| asked.saturating_duration_since(since) > LOOK_MAX);
        if shared.renewal.is_none() || looks_long {
            return None;
        }
        let looks = Arc::clone(shared);
        shared.errands.begin(move || looks.look(asked)).ok()
    }

    /// The dialler's handshake, and what binds a proof to this very connection.
    pub(crate) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, [u8; 32]), Refusal> {
        let connector = TlsConnector::from(self.sides().await.client);
        let stream = connector
            .connect(no_name(), stream)
            .await
            .map_err(|error| refused(&error))?;
        let binding = binding(stream.get_ref().1, BINDING_LABEL)?;
        Ok((TlsStream::Client(stream), binding))
    }

    /// The acceptor's.
    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(TlsStream<S>, [u8; 32]), Refusal> {
        let acceptor = TlsAcceptor::from(self.sides().await.server);
        let stream = acceptor
            .accept(stream)
            .await
            .map_err(|error| refused(&error))?;
        let binding = binding(stream.get_ref().1, BINDING_LABEL)?;
        Ok((TlsStream::Server(stream), binding))
    }
}

impl Tls {
    /// The dialler's end of a data connection, before its handshake. Its conversation looked for new certificates.
    pub(crate) fn dial_data(&self) -> Result<ClientConnection, rustls::Error> {
        ClientConnection::new(self.0.current().client, no_name())
    }

    /// What protects a data connection whose handshake is done, and of which nothing was read behind it.
    pub(crate) fn settle(&self, session: Connection, socket: &impl AsFd) -> io::Result<Secured> {
        match self.0.in_kernel {
            true => Secured::in_kernel(session, socket),
            false => Ok(Secured::new(session)),
        }
    }

    /// The acceptor's handshake on a data connection.
    pub(crate) async fn accept_data<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<(server::TlsStream<S>, [u8; 32]), Refusal> {
        let acceptor = TlsAcceptor::from(self.sides().await.server);
        let stream = acceptor
            .accept(stream)
            .await
            .map_err(|error| refused(&error))?;
        let binding = binding(stream.get_ref().1, DATA_LABEL)?;
        Ok((stream, binding))
    }
}

impl Shared {
    fn current(&self) -> Sides {
        self.current.locked().clone()
    }

    /// Looks, unless another look began since this one was `asked` for.
    fn look(&self, asked: Instant) {
        let mut looked = self.looked.locked();
        if looked.is_some_and(|began| began >= asked) {
            return;
        }
        let began = Instant::now();
        *self.looks_since.locked() = Some(began);
        let renewed = self.renewal.as_ref().and_then(|renewal| renewal());
        if let Some(renewed) = renewed {
            *self.current.locked() = renewed.0.current();
        }
        *self.looks_since.locked() = None;
        *looked = Some(began);
    }
}

/// What binds a ticket to the data connection that it is shown on.
pub(crate) fn data_binding(connection: &ClientConnection) -> Result<[u8; 32], Refusal> {
    binding(connection, DATA_LABEL)
}

/// What is the same at both ends of a connection, and on no other.
fn binding<D>(connection: &ConnectionCommon<D>, label: &[u8]) -> Result<[u8; 32], Refusal> {
    connection
        .export_keying_material([0; 32], label, None)
        .map_err(|error| refused(&io::Error::other(error)))
}

/// A name is asked for, and none is sent or checked: tasks move between hosts.
fn no_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

shown! { Tls {} }

/// Takes any server that the authority has signed, whatever its host is called.
#[derive(Debug)]
struct AnyNameVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl AnyNameVerifier {
    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(certificate)?,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )
    }
}

impl ServerCertVerifier for AnyNameVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.judge(certificate, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// What a PEM text should hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Certificate,
    Key,
    Authority,
}

impl Part {
    /// Whether it holds that, as far as it can be told from this text alone.
    ///
    /// # Errors
    /// `InvalidArgument` says why not, and nothing of what the text holds.
    pub(crate) fn judge(self, pem: &[u8]) -> Result<(), Status> {
        match self {
            Self::Certificate => {
                let chain = read_certificates("certificate", pem)?;
                let parsed = chain
                    .iter()
                    .try_for_each(|certificate| ParsedCertificate::try_from(certificate).map(drop));
                parsed.map_err(|error| unfit("certificate", &error.to_string()))
            }
            Self::Key => {
                let loaded = rustls::crypto::ring::sign::any_supported_type(&read_key(pem)?);
                let why = "it is not a key of a known kind (RSA, ECDSA, Ed25519)";
                loaded.map(drop).map_err(|_| unfit("private key", why))
            }
            Self::Authority => read_authorities(pem).map(drop),
        }
    }
}

fn read_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, Status> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| unfit("private key", fault_of(&error)))
}

fn read_authorities(pem: &[u8]) -> Result<RootCertStore, Status> {
    let mut roots = RootCertStore::empty();
    for authority in read_certificates("authority", pem)? {
        roots
            .add(authority)
            .map_err(|error| unfit("authority", &error.to_string()))?;
    }
    Ok(roots)
}

fn read_certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Status> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(unfit(what, "the file holds none")),
        Ok(found) => Ok(found),
        Err(error) => Err(unfit(what, fault_of(&error))),
    }
}

/// What is wrong with a PEM text. The error itself may show lines of the text, and a key that lost its line ends is one
/// line.
const fn fault_of(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::NoItemsFound => "the file holds none",
        pem::Error::MissingSectionEnd { .. } => "its last line is missing",
        pem::Error::IllegalSectionStart { .. } => "its first line is malformed",
        pem::Error::Base64Decode(_) => "it is not base64",
        pem::Error::SectionTooLarge => "it is too long",
        _ => "it is not PEM text",
    }
}

fn unfit(what: &str, why: &str) -> Status {
    Status::new(
        Code::InvalidArgument,
        catalogue::CONFIG,
        format!("the {what} cannot be used: {why}"),
    )
}

pub(crate) fn refused(error: &io::Error) -> Refusal {
    let status = Status::new(
        Code::PermissionDenied,
        catalogue::TLS_REFUSED,
        format!("the TLS handshake failed: {error}"),
    );
    Refusal {
        status,
        retry: !is_judged(error),
    }
}

/// True for what rustls judged, here or at the peer, and will judge so again. What befell the connection is not for
/// good; nor is a certificate of the wrong time: a new one may be on its way, or a clock that is behind comes up.
pub(super) fn is_judged(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData && !judgement(error).is_some_and(is_of_time)
}

fn judgement(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

const fn is_of_time(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }
        ) | rustls::Error::AlertReceived(AlertDescription::CertificateExpired)
    )
}

/// The peer's judgement of our certificate, in words. Of the wrong time there is but one alert.
pub(super) fn ended_by_peer(error: &io::Error) -> String {
    let time = rustls::Error::AlertReceived(AlertDescription::CertificateExpired);
    match judgement(error) {
        Some(error) if *error == time => format!(
            "the peer ended TLS: {error}: by its clock this task's certificate has expired or is not valid yet"
        ),
        _ => format!("the peer ended TLS: {error}"),
    }
}

#[cfg(test)]
mod tests;
