//! Writes secrets to files or to standard output.

use crate::replace::{fill, replace};
use bpfof_terminal::folder::sync_folder;
use bpfof_terminal::{Outcome, output};
use clap::Args;
use std::fs::{File, OpenOptions, remove_file, symlink_metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(super) struct Output {
    /// Write it to this file, which only its owner may read (mode 600) [default: standard output].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists. The new file has the owner of the old one, unless other users can write to the
    /// folder.
    #[arg(long, requires = "output")]
    force: bool,
}

impl Output {
    pub(super) fn is_file(&self) -> bool {
        self.output.is_some()
    }

    /// Writes a secret, and a line feed after it. A file gets all of it or does not change.
    pub(super) fn write(&self, secret: &[u8]) -> Outcome {
        let Some(path) = &self.output else {
            let mut out = output();
            out.write_all(secret)?;
            return Ok(out.write_all(b"\n")?);
        };
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{} exists; --force replaces it", path.display())
            }
            _ => format!("cannot write {}: {error}", path.display()),
        };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let content = [secret, b"\n"];
        if !self.force {
            return Ok(create(path, &options, &content).map_err(failed)?);
        }
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{}", std::process::id()));
        let owner = owner(path);
        let keep_owner = |file: &File| {
            if let Some((user, group)) = owner {
                // Only root can give files away; other users own the new file themselves.
                let _ = fchown(file, Some(user), Some(group));
            }
            Ok(())
        };
        let aside = PathBuf::from(aside);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{} exists, left by a run that was killed: remove it", aside.display())
            }
            _ => failed(error),
        };
        Ok(replace((path, &aside), &options, keep_owner, &content).map_err(failed)?)
    }
}

/// The owner and group of the file to be replaced; none if other users can write to the folder, because one of them
/// could have put the file there to get the secret.
fn owner(path: &Path) -> Option<(u32, u32)> {
    let file = symlink_metadata(path).ok().filter(|of| of.file_type().is_file())?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = std::fs::metadata(folder.unwrap_or(Path::new("."))).ok()?;
    (folder.mode() & 0o022 == 0).then(|| (file.uid(), file.gid()))
}

/// Writes a new file; removes it again if that fails.
fn create(path: &Path, options: &OpenOptions, content: &[&[u8]]) -> io::Result<()> {
    let file = options.open(path)?;
    let written = fill(&file, content);
    if written.is_err() {
        let _ = remove_file(path);
    }
    written?;
    sync_folder(path)
}
