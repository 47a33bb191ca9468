//! Secrets: reads the files that prove that this task belongs to its cluster.
//!
//! Knows files and their modes; what is proved with their bytes is the control plane's business.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::config::Config;
use crate::control::{Secret, Tls};
use crate::ground::limits::SECRET_FILE_BYTES_MAX;
use crate::ground::{Code, Status, catalogue};

/// The cluster's secret, if there is one.
///
/// # Errors
/// `InvalidArgument` for a file that cannot be read, that others may read, or whose bytes are no secret.
pub(super) fn secret(config: &Config) -> Result<Option<Secret>, Status> {
    let (key, path) = match (&config.cluster_secret_file, config.cluster_secret_fd) {
        (Some(path), _) => ("cluster_secret_file", path.clone()),
        // Opened anew, so that whoever shares the descriptor may read it too.
        (None, Some(fd)) => ("cluster_secret_fd", format!("/proc/self/fd/{fd}").into()),
        (None, None) => return Ok(None),
    };
    let bytes = read(&path, key, Privacy::Private)?;
    Secret::new(&bytes).map(Some).map_err(|status| {
        let message = format!("{}: {}", path.display(), status.message());
        Status::new(status.code(), catalogue::SECRET_UNFIT, message)
    })
}

/// What TLS needs, if it is wanted: all three files, or none.
///
/// # Errors
/// `InvalidArgument` names the file that is missing, or is not what it should be.
pub(super) fn tls(config: &Config) -> Result<Option<Tls>, Status> {
    let files = [
        ("tls_cert", &config.tls_cert, Privacy::Public),
        ("tls_key", &config.tls_key, Privacy::Private),
        ("tls_ca", &config.tls_ca, Privacy::Public),
    ];
    if files.iter().all(|(_, path, _)| path.is_none()) {
        return Ok(None);
    }
    let mut texts = Vec::new();
    for (key, path, privacy) in files {
        let path = path.as_deref().ok_or_else(|| {
            unfit(format!(
                "{key} is not set: TLS needs tls_cert, tls_key and tls_ca"
            ))
        })?;
        texts.push(read(path, key, privacy)?);
    }
    Tls::from_pem(&texts[0], &texts[1], &texts[2], config.tls_kernel).map(Some)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Privacy {
    Private,
    Public,
}

fn read(path: &Path, key: &str, privacy: Privacy) -> Result<Vec<u8>, Status> {
    let failed =
        |error: std::io::Error| unfit(format!("{key}: cannot read {}: {error}", path.display()));
    let file = std::fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if privacy == Privacy::Private && mode & 0o077 != 0 {
        return Err(unfit(format!(
            "{key}: others may read or change {} (its mode is {:03o}): chmod 600 it, and make what it holds anew",
            path.display(),
            mode & 0o777
        )));
    }
    let mut bytes = Vec::new();
    file.take(SECRET_FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > SECRET_FILE_BYTES_MAX {
        return Err(unfit(format!(
            "{key}: {} has more than {SECRET_FILE_BYTES_MAX} bytes",
            path.display()
        )));
    }
    Ok(bytes)
}

fn unfit(message: String) -> Status {
    Status::new(Code::InvalidArgument, catalogue::SECRET_UNFIT, message)
}
