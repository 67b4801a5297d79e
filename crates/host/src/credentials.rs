//! How a host authenticates itself.

use crate::Error;
use bpfof_auth::dhchap::{Algorithms, HostConfig};
use bpfof_auth::{ConfiguredPsk, Derivation, DhchapKey, IdentityVersion, Names, key_file};
use bpfof_tls::{Psk, PskHash};
use std::path::PathBuf;
use std::sync::Arc;

/// Files with the keys of a host, as a [`TargetUrl`](crate::TargetUrl) names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyFiles {
    /// A key for TLS, `NVMeTLSkey-1:…`.
    pub tls_psk: Option<PathBuf>,
    /// The target is a Linux of 2025 or older: see [`Credentials::tls_compat`].
    pub tls_compat: bool,
    /// The host's secret for DH-HMAC-CHAP, `DHHC-1:…`.
    pub dhchap_key: Option<PathBuf>,
    /// The target's secret, if it is to authenticate itself as well.
    pub dhchap_ctrl_key: Option<PathBuf>,
}

/// How a host authenticates itself. Keys are overwritten when the last clone is dropped, and never shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// A key for TLS: all connections use it, and none is made without TLS.
    pub tls_psk: Option<Arc<ConfiguredPsk>>,
    /// Derive keys as libnvme before 1.16 does, and use SHA-256 for them whatever their length, as GnuTLS before 3.8.11
    /// does: for Linux targets of 2025 or older, such as Debian 13.
    pub tls_compat: bool,
    /// The host's secret for DH-HMAC-CHAP, for targets that ask for it.
    pub dhchap_key: Option<Arc<DhchapKey>>,
    /// The target's secret: if it is set, a target that does not authenticate itself is refused.
    pub dhchap_ctrl_key: Option<Arc<DhchapKey>>,
}

impl Credentials {
    /// Reads keys from files.
    ///
    /// # Errors
    /// [`Error::Key`]: a file cannot be read, other users may read it, or it does not contain such a key.
    pub fn read(files: &KeyFiles) -> Result<Self, Error> {
        let dhchap = |path: &Option<PathBuf>| -> Result<_, Error> {
            let read = |path: &PathBuf| key_file::parse(path, DhchapKey::parse).map(Arc::new);
            Ok(path.as_ref().map(read).transpose()?)
        };
        let psk = |path: &PathBuf| key_file::parse(path, ConfiguredPsk::parse).map(Arc::new);
        Ok(Self {
            tls_psk: files.tls_psk.as_ref().map(psk).transpose()?,
            tls_compat: files.tls_compat,
            dhchap_key: dhchap(&files.dhchap_key)?,
            dhchap_ctrl_key: dhchap(&files.dhchap_ctrl_key)?,
        })
    }

    /// The key of a TLS connection between this host and this subsystem.
    pub(crate) fn psk(&self, host_nqn: &str, subsystem: &str) -> Result<Option<Psk>, Error> {
        let Some(configured) = &self.tls_psk else { return Ok(None) };
        let derivation = if self.tls_compat { Derivation::Compat } else { Derivation::Standard };
        let wrong = |error: &dyn std::fmt::Display| Error::Credentials(error.to_string());
        let names = Names::new(host_nqn, subsystem).map_err(|error| wrong(&error))?;
        let found = configured
            .identity(&names, IdentityVersion::V1, derivation)
            .map_err(|error| wrong(&error))?;
        let hash = match found.hash {
            bpfof_auth::PskHash::Sha384 if !self.tls_compat => PskHash::Sha384,
            _ => PskHash::Sha256,
        };
        let psk = Psk::new(&found.identity, found.psk.expose(), hash);
        psk.map(Some).map_err(|error| wrong(&error))
    }

    /// The configuration of DH-HMAC-CHAP between this host and this subsystem; `None` without a secret.
    pub(crate) fn dhchap(
        &self,
        host_nqn: &str,
        subsystem: &str,
    ) -> Result<Option<Arc<HostConfig>>, Error> {
        let Some(key) = &self.dhchap_key else { return Ok(None) };
        let names = Names::new(host_nqn, subsystem);
        let names = names.map_err(|error| Error::Credentials(error.to_string()))?;
        let target = self.dhchap_ctrl_key.as_deref();
        Ok(Some(Arc::new(HostConfig::new(names, key, target, Algorithms::default()))))
    }
}
