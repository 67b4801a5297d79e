//! Where secrets are written to.

use bpfof_terminal::Outcome;
use clap::Args;
use std::fs::{File, OpenOptions, remove_file, rename};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(super) struct Output {
    /// Write it to this file, which only its owner may read (mode 600) [default: standard output].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists.
    #[arg(long, requires = "output")]
    force: bool,
}

impl Output {
    pub(super) fn is_file(&self) -> bool {
        self.output.is_some()
    }

    /// Writes a secret, and a line feed behind it. A file has all of it or does not change.
    pub(super) fn write(&self, secret: &[u8]) -> Outcome {
        let Some(path) = &self.output else {
            let mut out = io::stdout().lock();
            out.write_all(secret)?;
            return Ok(out.write_all(b"\n")?);
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{} exists; --force replaces it", path.display())
            }
            _ => format!("cannot write {}: {error}", path.display()),
        };
        if !self.force {
            return Ok(create(path, secret).map_err(failed)?);
        }
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{}", std::process::id()));
        let aside = PathBuf::from(aside);
        create(&aside, secret).map_err(failed)?;
        let replaced = rename(&aside, path);
        if replaced.is_err() {
            let _ = remove_file(&aside);
        }
        Ok(replaced.map_err(failed)?)
    }
}

/// Makes a file that did not exist.
fn create(path: &Path, secret: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let written = fill(&file, secret);
    if written.is_err() {
        let _ = remove_file(path);
    }
    written
}

fn fill(mut file: &File, secret: &[u8]) -> io::Result<()> {
    file.write_all(secret)?;
    file.write_all(b"\n")?;
    file.sync_all()
}
