//! `rendez secret`: a cluster secret in a file, or in memory for the tasks that a command starts itself.
//!
//! Knows random bytes, files and descriptors; what the secret proves is the control plane's business.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::io::FdFlags;

use super::error::CliError;
use super::terminal::Terminal;
use rendez::engine::{Config, Setting};
use rendez::files::Output;
use rendez::memory::files;

/// Bytes of a secret before it is written as text.
const BYTES: usize = 32;

/// Examples of its use.
const EXAMPLES: &str = "\
Examples:
  rendez secret new cluster.secret
  rendez serve --config cluster.toml --job worker --task 0 --cluster-secret-file cluster.secret";

/// What of a secret.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum SecretCommand {
    /// Make a cluster secret, in a new file that its owner alone may read. All tasks are given the same file.
    #[command(after_help = EXAMPLES)]
    New(NewArgs),
}

/// Options of `secret new`.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct NewArgs {
    /// The file; an existing one is not overwritten.
    pub file: PathBuf,
}

/// Runs it.
///
/// # Errors
/// `FILE_UNWRITABLE`, also for a file that is there already.
pub fn run(command: &SecretCommand, terminal: &mut Terminal) -> Result<(), CliError> {
    let SecretCommand::New(NewArgs { file }) = command;
    write_new(file).map_err(|error| {
        let message = format!("cannot make {}: {error}", file.display());
        CliError::failure("FILE_UNWRITABLE", message)
    })?;
    Ok(terminal.line(format!("secret: {}", file.display()))?)
}

fn write_new(path: &Path) -> std::io::Result<()> {
    // What is there stays, whatever it is, and is not even opened.
    if path.symlink_metadata().is_ok() {
        return Err(rustix::io::Errno::EXIST.into());
    }
    // No other user may read it at any time, no link is followed to another file, and half a secret is none.
    let mut output = Output::private(path)?;
    output.write_all(draw()?.as_bytes())?;
    output.finish_new()
}

/// Random bytes as a line of text.
fn draw() -> std::io::Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(STANDARD.encode(bytes) + "\n")
}

/// A secret that lies in no file, for the processes that this one starts: they inherit its descriptor.
#[derive(Debug)]
pub(super) struct Inherited(File);

impl Inherited {
    /// One for tasks with these settings, unless they say themselves what keeps strangers out, or that nothing does.
    ///
    /// # Errors
    /// `CONTROL_SYSTEM` if the system gives no memory or no random numbers.
    pub(super) fn for_tasks_of(config: &Config) -> Result<Option<Self>, CliError> {
        let is_kept = config.cluster_secret_file.is_some()
            || config.cluster_secret_fd.is_some()
            || config.tls_cert.is_some();
        if is_kept || config.insecure {
            return Ok(None);
        }
        Self::new().map(Some)
    }

    /// One of random bytes.
    ///
    /// # Errors
    /// `CONTROL_SYSTEM` if the system gives no memory or no random numbers.
    pub(super) fn new() -> Result<Self, CliError> {
        Self::make().map_err(|error| {
            let message = format!("no secret for the tasks: {error}");
            CliError::failure("CONTROL_SYSTEM", message)
        })
    }

    fn make() -> std::io::Result<Self> {
        // Not closed when a program begins: that is how the tasks come by it.
        let memory =
            files::create(c"rendez-secret", MemfdFlags::empty()).map_err(|(_, errno)| errno)?;
        rustix::io::fcntl_setfd(&memory, FdFlags::empty())?;
        rustix::fs::fchmod(&memory, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(memory);
        file.write_all(draw()?.as_bytes())?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        Ok(Self(file))
    }

    /// The number of the descriptor, here and in every process that inherits it.
    pub(super) fn number(&self) -> u32 {
        self.0.as_raw_fd().unsigned_abs()
    }

    /// The variable that tells a task of it.
    pub(super) fn variable(&self) -> (&'static str, String) {
        (variable(), self.number().to_string())
    }
}

/// The number of the descriptor that this process inherited, if it inherited one.
pub(super) fn inherited() -> Option<u32> {
    std::env::var(variable()).ok()?.parse().ok()
}

fn variable() -> &'static str {
    Setting::find("cluster_secret_fd").map_or("", Setting::variable)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_secret_is_private_and_never_overwrites() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        write_new(&path).expect("made");
        let text = std::fs::read_to_string(&path).expect("read");
        assert_eq!(STANDARD.decode(text.trim()).expect("text").len(), BYTES);
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("none"), &link).expect("linked");
        for taken in [&path, &link] {
            assert!(write_new(taken).is_err(), "{taken:?}");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
        assert!(!folder.path().join("none").exists());
    }

    #[test]
    fn tasks_get_a_secret_unless_the_settings_have_what_keeps_strangers_out() {
        let config = Config::new("/job:a/task:0");
        let inherited = Inherited::for_tasks_of(&config)
            .expect("made")
            .expect("one");
        let path = format!("/proc/self/fd/{}", inherited.number());
        let once = std::fs::read_to_string(&path).expect("read");
        assert_eq!(std::fs::read_to_string(&path).expect("read again"), once);
        let mode = std::fs::metadata(&path)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(inherited.variable().0, "RENDEZ_CLUSTER_SECRET_FD");
        let with = |set: fn(&mut Config)| {
            let mut config = config.clone();
            set(&mut config);
            Inherited::for_tasks_of(&config).expect("asked").is_none()
        };
        assert!(with(|config| config.insecure = true));
        assert!(with(|config| config.tls_cert = Some("cert".into())));
        assert!(with(|config| config.cluster_secret_fd = Some(9)));
        assert!(with(
            |config| config.cluster_secret_file = Some("file".into())
        ));
    }
}
