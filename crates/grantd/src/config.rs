//! The operator's settings.

use bpfof_host::{TargetUrl, Transport, UrlError};
use serde::Deserialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The settings of a daemon.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the socket to which clients connect.
    pub socket: PathBuf,
    /// Permissions of the socket.
    pub mode: u32,
    /// Group of the socket, by name or number; None leaves it to the kernel.
    pub group: Option<String>,
    /// The namespaces whose files are granted.
    pub namespaces: Vec<Served>,
    /// Whether clients may load functions of their own at the target.
    pub allow_own_functions: bool,
    /// Whether files on ext4 are granted although their owners could truncate them in spite of a lease, and then read
    /// data that other files store in their former blocks.
    pub trust_owners: bool,
    /// Limits for users.
    pub limits: Limits,
    /// Program and arguments of the process that holds the leases if the daemon dies: it runs
    /// [`hold_leases`](crate::hold_leases).
    pub holder: Vec<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/bpfof/grantd.sock"),
            mode: 0o660,
            group: None,
            namespaces: Vec::new(),
            allow_own_functions: false,
            trust_owners: false,
            limits: Limits::default(),
            holder: Vec::new(),
        }
    }
}

/// A namespace at a target, and its device on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The target and the namespace.
    pub url: TargetUrl,
    /// Block device or image file; see [`NamespaceDevice`](bpfof_host::files::NamespaceDevice).
    pub device: PathBuf,
}

/// What users may have at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients of all users together: a target gives one host 128 associations.
    pub clients: usize,
    /// Clients of one user.
    pub clients_per_user: usize,
    /// Files of one user, granted or not.
    pub files_per_user: usize,
    /// Extents of the maps of one user.
    pub extents_per_user: usize,
    /// Lanes that one client may get in its lifetime.
    pub lanes_per_client: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 128,
            clients_per_user: 16,
            files_per_user: 8192,
            extents_per_user: 1 << 18,
            lanes_per_client: 32,
        }
    }
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is invalid.
    #[error("{}: {message}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Line and reason.
        message: String,
    },
    /// The address of a target is unusable.
    #[error("{url}: {source}")]
    Url {
        /// The address.
        url: String,
        /// Why.
        source: UrlError,
    },
    /// The permissions are not an octal number up to 777.
    #[error("\"{0}\" is not the mode of a socket; write an octal number such as 0660")]
    Mode(String),
    /// No namespace is configured.
    #[error("no namespace: give --target and --device, or [[namespace]] in the --config file")]
    NoNamespace,
    /// An address with several portals.
    #[error("{0}: a client's association uses only one portal; name one")]
    SeveralPortals(String),
    /// An address of RDMA.
    #[error("{0}: clients get TCP connections to the target; name it by nvme-tcp://")]
    Rdma(String),
    /// A limit of 0.
    #[error("{0} is 0, so that nothing could be granted: it must be 1 or more")]
    Zero(&'static str),
}

/// The TOML file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Form {
    socket: Option<PathBuf>,
    mode: Option<String>,
    group: Option<String>,
    #[serde(default)]
    namespace: Vec<NamespaceForm>,
    allow_own_functions: Option<bool>,
    trust_owners: Option<bool>,
    clients: Option<usize>,
    clients_per_user: Option<usize>,
    files_per_user: Option<usize>,
    extents_per_user: Option<usize>,
    lanes_per_client: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceForm {
    target: String,
    device: PathBuf,
}

/// Permissions in octal.
///
/// # Errors
/// [`ConfigError::Mode`].
pub(crate) fn mode(text: &str) -> Result<u32, ConfigError> {
    let parsed = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    parsed.ok_or_else(|| ConfigError::Mode(text.to_owned()))
}

impl Config {
    /// Reads a TOML file: socket, mode, group, allow-own-functions, trust-owners, clients, clients-per-user,
    /// files-per-user, extents-per-user, lanes-per-client, and `[[namespace]]` with target and device.
    ///
    /// # Errors
    /// [`ConfigError`] says what is wrong with it.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let form: Form = toml::from_str(&text).map_err(|error| ConfigError::Toml {
            path: path.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        let mut config = Self::default();
        let limits = &mut config.limits;
        for (limit, given) in [
            (&mut limits.clients, form.clients),
            (&mut limits.clients_per_user, form.clients_per_user),
            (&mut limits.files_per_user, form.files_per_user),
            (&mut limits.extents_per_user, form.extents_per_user),
            (&mut limits.lanes_per_client, form.lanes_per_client),
        ] {
            *limit = given.unwrap_or(*limit);
        }
        if let Some(text) = form.mode {
            config.set_mode(&text)?;
        }
        config.socket = form.socket.unwrap_or(config.socket);
        config.group = form.group;
        config.allow_own_functions = form.allow_own_functions.unwrap_or(false);
        config.trust_owners = form.trust_owners.unwrap_or(false);
        for NamespaceForm { target, device } in form.namespace {
            let url = target.parse();
            let url = url.map_err(|source| ConfigError::Url { url: target, source })?;
            config.namespaces.push(Served { url, device });
        }
        Ok(config)
    }

    /// Sets the permissions of the socket, in octal.
    ///
    /// # Errors
    /// [`ConfigError::Mode`].
    pub fn set_mode(&mut self, text: &str) -> Result<(), ConfigError> {
        self.mode = mode(text)?;
        Ok(())
    }

    /// # Errors
    /// [`ConfigError::NoNamespace`], [`ConfigError::SeveralPortals`], [`ConfigError::Rdma`],
    /// [`ConfigError::Zero`].
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let limits = self.limits;
        let named = [
            ("clients", limits.clients),
            ("clients-per-user", limits.clients_per_user),
            ("files-per-user", limits.files_per_user),
            ("extents-per-user", limits.extents_per_user),
            ("lanes-per-client", limits.lanes_per_client),
        ];
        if let Some((name, _)) = named.iter().find(|(_, limit)| *limit == 0) {
            return Err(ConfigError::Zero(name));
        }
        if self.namespaces.is_empty() {
            return Err(ConfigError::NoNamespace);
        }
        for Served { url, .. } in &self.namespaces {
            if !url.further_portals.is_empty() {
                return Err(ConfigError::SeveralPortals(url.to_string()));
            }
            if url.transport == Transport::Rdma {
                return Err(ConfigError::Rdma(url.to_string()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("grantd.toml");
        fs::write(&path, text).expect("written");
        Config::from_file(&path)
    }

    #[test]
    fn a_file_sets_what_it_names() {
        let text = "socket = \"/run/x\"\nmode = \"0600\"\ngroup = \"db\"\nallow-own-functions = true\n\
                    trust-owners = true\nfiles-per-user = 7\n[[namespace]]\ntarget = \"nvme-tcp://h/nqn.2026-01.a:b?ns=2\"\n\
                    device = \"/dev/nvme1n2\"\n";
        let config = read(text).expect("good");
        assert_eq!((config.mode, config.group.as_deref()), (0o600, Some("db")));
        assert_eq!(config.limits, Limits { files_per_user: 7, ..Limits::default() });
        assert!(config.allow_own_functions && config.trust_owners && config.check().is_ok());
        let served = &config.namespaces[0];
        assert_eq!((served.url.nsid, served.device.to_str()), (2, Some("/dev/nvme1n2")));
    }

    #[test]
    fn mistakes_are_named() {
        let why = |text: &str| match read(text) {
            Ok(config) => config.check().expect_err("it is wrong").to_string(),
            Err(error) => error.to_string(),
        };
        assert!(why("").contains("--target and --device"));
        assert!(why("mode = \"0999\"").contains("0999"));
        assert!(why("sockets = 1").contains("sockets"));
        assert!(why("clients = 0").contains("clients is 0"));
        let of_target = |target: &str| {
            why(&format!("[[namespace]]\ntarget = \"{target}\"\ndevice = \"/dev/x\"\n"))
        };
        assert!(of_target("tcp://h").contains("nvme-tcp://"));
        assert!(of_target("nvme-tcp://h,i/nqn.2026-01.a:b").contains("one portal"));
        assert!(of_target("nvme-rdma://h/nqn.2026-01.a:b").contains("by nvme-tcp://"));
    }
}
