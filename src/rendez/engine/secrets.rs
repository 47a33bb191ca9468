//! Secrets: reads the files that prove that this task belongs to its cluster.
//!
//! Knows files and their modes; what is proved with their bytes is the control plane's business.

use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Mutex;

use super::config::Config;
use crate::control::{Part, Secret, Tls};
use crate::ground::limits::SECRET_FILE_BYTES_MAX;
use crate::ground::{Code, Locked, Status, catalogue};

/// The cluster's secret, if there is one.
///
/// # Errors
/// `InvalidArgument` for a file that cannot be read, that others may read, or whose bytes are no secret.
pub(super) fn secret(config: &Config) -> Result<Option<Secret>, Status> {
    named_secret(config).map_err(|(_, status)| status)
}

/// What TLS needs, if it is wanted: all three files, or none. They are read again when they have changed.
///
/// # Errors
/// `InvalidArgument` names the file that is missing, or is not what it should be.
pub(super) fn tls(config: &Config) -> Result<Option<Tls>, Status> {
    // Before they are read: what changes meanwhile is read again.
    let read = marks(config);
    let Some(tls) = read_tls(config)? else {
        return Ok(None);
    };
    tell_unless_taken(config, &tls);
    let known = Mutex::new(Known {
        used: read,
        told: read,
    });
    let config = config.clone();
    Ok(Some(tls.renewed_by(move || {
        let mut known = known.locked();
        // Before they are read, as above.
        let now = marks(&config);
        let renewed = known.renewed(&config.task, now, || read_tls(&config))?;
        renewed.inspect(|tls| tell_unless_taken(&config, tls))
    })))
}

/// The log hears of a certificate that peers refuse. The task goes on: its files may be made anew, or its clock be set.
fn tell_unless_taken(config: &Config, tls: &Tls) {
    if let Err((_, status)) = judge_certificate(config, tls) {
        tracing::warn!(task = config.task, %status, "peers will refuse this task's certificate");
    }
}

/// Whether peers take the task's certificate now, as far as that can be told by its own authorities.
fn judge_certificate(config: &Config, tls: &Tls) -> Result<(), Unfit> {
    let of = config.tls_cert.as_deref().unwrap_or_else(|| Path::new(""));
    tls.judge_own()
        .map_err(|status| ("tls_cert", of_file("tls_cert", of, &status)))
}

/// Which files of TLS are in use, and which were last said not to fit.
struct Known {
    used: Marks,
    told: Marks,
}

impl Known {
    /// What the files of TLS hold `now`, if others are in use and these fit. Those that could not be read are read
    /// again: it may have been for want of descriptors, or one of them had not been put there yet.
    fn renewed<T>(
        &mut self,
        task: &str,
        now: Marks,
        read: impl FnOnce() -> Result<T, Status>,
    ) -> Option<T> {
        if now == self.used {
            return None;
        }
        match read() {
            Ok(tls) => {
                self.used = now;
                tracing::info!(
                    task,
                    "the TLS files have changed: new connections use their new contents"
                );
                Some(tls)
            }
            Err(status) => {
                if self.told != now {
                    self.told = now;
                    tracing::warn!(
                        task, %status,
                        "the TLS files have changed but cannot be used: their previous contents stay in use"
                    );
                }
                None
            }
        }
    }
}

/// What tells of each file of TLS whether it has changed, also if it is reached by another link: its file system, its
/// number there, the time of its last change and its size. Nothing for one that cannot be asked about.
type Marks = [Option<(u64, u64, (i64, i64), u64)>; 3];

fn marks(config: &Config) -> Marks {
    [&config.tls_cert, &config.tls_key, &config.tls_ca].map(|path| {
        let of = std::fs::metadata(path.as_deref()?).ok()?;
        Some((of.dev(), of.ino(), (of.ctime(), of.ctime_nsec()), of.size()))
    })
}

fn read_tls(config: &Config) -> Result<Option<Tls>, Status> {
    let mut found = Vec::new();
    let tls = named_tls(config, &mut found);
    match found.into_iter().next() {
        Some((_, status)) => Err(status),
        None => Ok(tls),
    }
}

/// Everything that is wrong with the files of the secret and of TLS: the setting that names the file, and why. Nothing
/// of what a file holds is said.
pub(super) fn judge(config: &Config) -> Vec<Unfit> {
    let mut found: Vec<Unfit> = named_secret(config).err().into_iter().collect();
    let tls = named_tls(config, &mut found);
    found.extend(tls.and_then(|tls| judge_certificate(config, &tls).err()));
    found
}

/// The setting that names a file, and what is wrong with it.
pub(super) type Unfit = (&'static str, Status);

fn named_secret(config: &Config) -> Result<Option<Secret>, Unfit> {
    let (key, path) = match (&config.cluster_secret_file, config.cluster_secret_fd) {
        (Some(path), _) => ("cluster_secret_file", path.clone()),
        // Opened anew: processes that share the descriptor share its offset, and each reads from the start.
        (None, Some(fd)) => ("cluster_secret_fd", format!("/proc/self/fd/{fd}").into()),
        (None, None) => return Ok(None),
    };
    let bytes = read(&path, key, Privacy::Private).map_err(|status| (key, status))?;
    let secret = Secret::new(&bytes).map_err(|status| (key, of_file(key, &path, &status)))?;
    Ok(Some(secret))
}

fn named_tls(config: &Config, found: &mut Vec<Unfit>) -> Option<Tls> {
    let files = [
        ("tls_cert", &config.tls_cert, Part::Certificate),
        ("tls_key", &config.tls_key, Part::Key),
        ("tls_ca", &config.tls_ca, Part::Authority),
    ];
    if files.iter().all(|(_, path, _)| path.is_none()) {
        return None;
    }
    let mut texts = Vec::new();
    for (key, path, part) in files {
        match pem(key, path.as_deref(), part) {
            Ok(text) => texts.push(text),
            Err(status) => found.push((key, status)),
        }
    }
    let [certificates, key, authorities] = &texts[..] else {
        return None;
    };
    // Each is what it should be: now whether they fit each other.
    let tls = Tls::from_pem(certificates, key, authorities, config.tls_kernel);
    tls.map_err(|status| {
        let of = config.tls_cert.as_deref().unwrap_or_else(|| Path::new(""));
        found.push(("tls_cert", of_file("tls_cert", of, &status)));
    })
    .ok()
}

/// The text of a file of TLS, if it holds what it should.
fn pem(key: &str, path: Option<&Path>, part: Part) -> Result<Vec<u8>, Status> {
    let path = path.ok_or_else(|| {
        unfit(format!(
            "{key} is not set: TLS needs tls_cert, tls_key and tls_ca"
        ))
    })?;
    let privacy = match part {
        Part::Key => Privacy::Private,
        Part::Certificate | Part::Authority => Privacy::Public,
    };
    let text = read(path, key, privacy)?;
    part.judge(&text)
        .map_err(|status| of_file(key, path, &status))?;
    Ok(text)
}

/// The same, of that file and setting.
fn of_file(key: &str, path: &Path, status: &Status) -> Status {
    let message = format!("{key}: {}: {}", path.display(), status.message());
    Status::new(status.code(), status.reason(), message)
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
            "{key}: others may read or change {} (its mode is {:03o}): chmod 600 it, and replace what it holds",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_could_not_be_read_are_read_again() {
        let [used, now] = [1, 2].map(|inode| [Some((1, inode, (0, 0), 1)); 3]);
        let mut known = Known { used, told: used };
        let mut renewed = |now, outcome| known.renewed("a", now, || outcome);
        let unread = || Err(unfit("no descriptor is left".into()));
        assert_eq!(renewed(used, Ok("the same")), None);
        assert_eq!(renewed(now, unread()), None);
        assert_eq!(renewed(now, unread()), None);
        assert_eq!(renewed(now, Ok("new")), Some("new"));
        assert_eq!(renewed(now, Ok("new")), None);
    }
}
