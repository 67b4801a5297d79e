//! Finds the target that serves a file.

use bpfof_host::TargetUrl;
use bpfof_host::files::KernelNamespace;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The environment variable that gives the targets of mounts: `MOUNT=URL DEVICE; …`.
const TARGETS: &str = "BPFOF_TARGETS";

/// How files are accessed.
#[derive(Clone, Debug)]
pub enum Reach {
    /// Without a target: the stages run on this machine.
    Here,
    /// All files at one target.
    Target {
        /// Its address.
        url: Box<TargetUrl>,
        /// The namespace's device on this machine.
        device: PathBuf,
    },
    /// At the target of each file's mount: from `BPFOF_TARGETS`, else from the kernel's NVMe host.
    Mounts {
        /// Parses an address, and adds the user's keys.
        address: fn(&str) -> Result<TargetUrl, String>,
    },
}

/// The place where the stages run over a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// On this machine, with the reason.
    Here(String),
    /// At a target.
    Target {
        /// Its address.
        url: Box<TargetUrl>,
        /// The namespace's device on this machine.
        device: PathBuf,
    },
}

impl fmt::Display for Where {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(why) => write!(f, "on this machine ({why})"),
            Self::Target { url, .. } => write!(f, "at {url}"),
        }
    }
}

/// The reason why the target of a file is not known.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The environment variable is invalid.
    #[error("{TARGETS}: {0}; write MOUNT=URL DEVICE, and separate several entries by ;")]
    Variable(String),
    /// An address is invalid.
    #[error("{0}")]
    Address(String),
    /// A file cannot be examined.
    #[error("cannot examine {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// There is no target, and the stages may not run here.
    #[error("{}: no target: {why}", path.display())]
    NoTarget {
        /// The file.
        path: PathBuf,
        /// The reason why there is none.
        why: String,
    },
}

impl Reach {
    /// The place where the stages run over a file.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn place(&self, path: &Path) -> Result<Where, PlaceError> {
        let address = match self {
            Self::Here => return Ok(Where::Here("as requested".to_owned())),
            Self::Target { url, device } => {
                return Ok(Where::Target { url: url.clone(), device: device.clone() });
            }
            Self::Mounts { address } => address,
        };
        let failed = |source| PlaceError::File { path: path.to_owned(), source };
        let path = fs::canonicalize(path).map_err(failed)?;
        let address = |text: &str| address(text).map_err(PlaceError::Address);
        let told = std::env::var(TARGETS).unwrap_or_default();
        if let Some((url, device)) = of_mount(&told, &path).map_err(PlaceError::Variable)? {
            return Ok(Where::Target { url: Box::new(address(url)?), device: device.into() });
        }
        let number = fs::metadata(&path).map_err(failed)?.dev();
        match KernelNamespace::of(number) {
            Some(KernelNamespace { url, host_nqn, device }) => {
                let mut url = address(&url.to_string())?;
                // A target that admits the kernel by this name admits this process as well.
                url.host_nqn = url.host_nqn.or(host_nqn);
                Ok(Where::Target { url: Box::new(url), device })
            }
            None => Ok(Where::Here(format!(
                "its file system is not on a namespace that the kernel's NVMe host has connected; name \
                 the target by --target and --device, or in {TARGETS}"
            ))),
        }
    }
}

/// Address and device of the longest mount that contains a path without symbolic links.
fn of_mount<'a>(told: &'a str, path: &Path) -> Result<Option<(&'a str, &'a str)>, String> {
    let mut found: Option<(PathBuf, (&str, &str))> = None;
    for entry in told.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
        let parts = entry.split_once('=').and_then(|(mount, rest)| {
            let (url, device) = rest.trim().split_once(char::is_whitespace)?;
            Some((Path::new(mount.trim()), (url, device.trim())))
        });
        let (mount, place) = parts.ok_or_else(|| format!("{entry:?} has no target"))?;
        let mount = fs::canonicalize(mount).unwrap_or_else(|_| mount.to_owned());
        let is_longer = found.as_ref().is_none_or(|(known, _)| mount.starts_with(known));
        if path.starts_with(&mount) && is_longer {
            found = Some((mount, place));
        }
    }
    Ok(found.map(|(_, place)| place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_counts() {
        let told = "/mnt=nvme-tcp://a/nqn.a?ns=1 /dev/a; /mnt/d = nvme-tcp://b/nqn.b /dev/b;";
        let of = |path: &str| of_mount(told, Path::new(path)).expect("it is right");
        assert_eq!(of("/mnt/d/x"), Some(("nvme-tcp://b/nqn.b", "/dev/b")));
        assert_eq!(of("/mnt/dd/x"), Some(("nvme-tcp://a/nqn.a?ns=1", "/dev/a")));
        assert_eq!(of("/x"), None);
        assert!(
            of_mount("/mnt", Path::new("/x"))
                .expect_err("wrong")
                .contains("\"/mnt\" has no target")
        );
        assert!(of_mount("/mnt=URL", Path::new("/x")).is_err());
    }

    #[test]
    fn a_mount_may_be_a_symbolic_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let (disk, link) = (folder.path().join("disk"), folder.path().join("link"));
        fs::create_dir(&disk).expect("a folder");
        std::os::unix::fs::symlink(&disk, &link).expect("a link");
        let told = format!("{}=nvme-tcp://a/nqn.a /dev/a", link.display());
        let path = fs::canonicalize(&disk).expect("a folder").join("file");
        assert_eq!(of_mount(&told, &path), Ok(Some(("nvme-tcp://a/nqn.a", "/dev/a"))));
    }

    #[test]
    fn files_on_other_devices_run_here() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "").expect("written");
        let reach =
            Reach::Mounts { address: |text| text.parse().map_err(|error| format!("{error}")) };
        let Where::Here(why) = reach.place(&path).expect("a place") else { panic!("no target") };
        assert!(why.contains("--target and --device"), "{why}");
        assert!(reach.place(&folder.path().join("none")).is_err());
    }
}
