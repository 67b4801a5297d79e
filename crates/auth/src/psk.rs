//! Pre-shared keys for TLS, and the identities and keys that a TLS handshake needs (NVMe/TCP 1.0
//! §3.6.1, TP8018).
//!
//! The *configured* key, which both ends get as text, is never used itself. A *retained* key is
//! derived from it for one host. The key for TLS is derived from the retained key for one host and
//! one subsystem, together with the *identity* that names it in the handshake.

use crate::error::{IdentityTooLong, KeyError, KeyKind, KeyProblem, RandomError};
use crate::hash::Hash;
use crate::key_text;
use crate::names::Names;
use crate::secret::Secret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Most bytes of a context in the standard derivation, whose length is one byte (RFC 8446 §7.1).
const CONTEXT_MAX_BYTES: usize = 255;

/// The hash of a key for TLS, which is the hash of the cipher suite too (NVMe/TCP 1.0 §3.6.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PskHash {
    /// SHA-256: keys of 32 bytes, TLS_AES_128_GCM_SHA256.
    Sha256,
    /// SHA-384: keys of 48 bytes, TLS_AES_256_GCM_SHA384.
    Sha384,
}

impl PskHash {
    /// The hash function.
    #[must_use]
    pub const fn hash(self) -> Hash {
        match self {
            Self::Sha256 => Hash::Sha256,
            Self::Sha384 => Hash::Sha384,
        }
    }

    /// Length of a key with this hash in bytes: the length of the hash's output.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        self.hash().length_bytes()
    }
}

/// Version of an identity (NVMe/TCP 1.0 §3.6.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdentityVersion {
    /// `NVMe0R…`, of NVMe/TCP 1.0a: names only.
    V0,
    /// `NVMe1R…`, of NVMe/TCP 1.0c: names, and a digest of them under the retained key.
    V1,
}

/// How keys are derived. Both ways are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Derivation {
    /// As RFC 8446 §7.1 specifies: libnvme 1.16 and later, and this project's hosts.
    #[default]
    Standard,
    /// As in libnvme before 1.16 (nvme-cli 2.13, which Debian 13 has): the length of the key in
    /// little-endian order, label and context without their lengths. Newer versions do the same
    /// with `--compat`.
    Compat,
}

/// The input of a TLS handshake: an identity, and the key that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsIdentity {
    /// The identity, as it travels in the ClientHello. It is no secret.
    pub identity: String,
    /// The key for TLS.
    pub psk: Secret,
    /// Hash of the key.
    pub hash: PskHash,
    /// Version of the identity.
    pub version: IdentityVersion,
    /// The derivation of both.
    pub derivation: Derivation,
}

impl TlsIdentity {
    /// The key in the interchange format, in ASCII. Preceded by the identity and a space, it is a
    /// line that nvme-cli imports into the keyring of a Linux host (`nvme tls-key --import`).
    #[must_use]
    pub fn psk_text(&self) -> Secret {
        key_text::format(KeyKind::TlsPsk, self.hash.hash().id(), &self.psk)
    }
}

/// A configured key: the contents of `NVMeTLSkey-1:HH:…:` (NVMe/TCP 1.0 §3.6.1.5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredPsk {
    /// Whether the retained key is derived from it (HH 01, 02) or equals it (HH 00).
    derived: bool,
    hash: PskHash,
    key: Secret,
}

/// HKDF-Extract without a salt, then HKDF-Expand-Label to the length of the hash (RFC 5869 §2; RFC
/// 8446 §7.1).
fn extract_and_expand(
    hash: Hash,
    key: &Secret,
    label: &str,
    context: &[u8],
    derivation: Derivation,
) -> Result<Secret, usize> {
    let extracted = hash.hmac(&[0; 64][..hash.length_bytes()], &[key.expose()]);
    let label = [b"tls13 ", label.as_bytes()].concat();
    let length = hash.length_bytes() as u16;
    let info = match derivation {
        Derivation::Standard => {
            if context.len() > CONTEXT_MAX_BYTES {
                return Err(context.len());
            }
            let (label_bytes, context_bytes) = (label.len() as u8, context.len() as u8);
            [&length.to_be_bytes()[..], &[label_bytes], &label, &[context_bytes], context].concat()
        }
        Derivation::Compat => [&length.to_le_bytes()[..], &label, context].concat(),
    };
    // One block of HKDF-Expand is enough, because the key is as long as the hash's output.
    Ok(hash.hmac(extracted.expose(), &[&info, &[1]]))
}

impl ConfiguredPsk {
    /// Reads the interchange format: 65 characters with a key of 32 bytes, 89 with one of 48. White
    /// space around it is ignored.
    ///
    /// # Errors
    /// The error says what is wrong with the text and what to do, and reveals nothing about the
    /// key.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let (hash_id, key) = key_text::parse(KeyKind::TlsPsk, text)?;
        let refuse = |problem| KeyError { kind: KeyKind::TlsPsk, problem };
        let key_bytes = key.length_bytes();
        let hash = if key_bytes == PskHash::Sha256.key_bytes() {
            PskHash::Sha256
        } else {
            PskHash::Sha384
        };
        match hash_id {
            0 => Ok(Self { derived: false, hash, key }),
            1 | 2 if hash_id == hash.hash().id() => Ok(Self { derived: true, hash, key }),
            1 | 2 => Err(refuse(KeyProblem::HashForLength { hash_id, key_bytes })),
            other => Err(refuse(KeyProblem::UnknownHash(other))),
        }
    }

    /// Writes the interchange format, in ASCII.
    #[must_use]
    pub fn to_text(&self) -> Secret {
        let hash_id = if self.derived { self.hash.hash().id() } else { 0 };
        key_text::format(KeyKind::TlsPsk, hash_id, &self.key)
    }

    /// A new key of random bytes, from which retained keys are derived (HH 01 or 02).
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn generate(hash: PskHash) -> Result<Self, RandomError> {
        Ok(Self { derived: true, hash, key: Secret::random(hash.key_bytes())? })
    }

    /// The hash of all keys that are derived from it.
    #[must_use]
    pub const fn hash(&self) -> PskHash {
        self.hash
    }

    /// Whether retained keys are derived from it (HH 01, 02) or equal it (HH 00).
    #[must_use]
    pub const fn is_derived(&self) -> bool {
        self.derived
    }

    /// The identity and key of one version and derivation, as a host offers them.
    ///
    /// # Errors
    /// The standard derivation of version 0 uses the whole identity as a context, which may have
    /// 255 bytes at most. Version 1 never fails.
    pub fn identity(
        &self,
        names: &Names,
        version: IdentityVersion,
        derivation: Derivation,
    ) -> Result<TlsIdentity, IdentityTooLong> {
        let hash = self.hash.hash();
        let too_long = |found_bytes| IdentityTooLong { found_bytes };
        let (host, subsystem) = (names.host(), names.subsystem());
        let retained = if self.derived {
            extract_and_expand(hash, &self.key, "HostNQN", host.as_bytes(), derivation)
                .map_err(too_long)?
        } else {
            self.key.clone()
        };
        let hash_id = format!("{:02}", hash.id());
        let (identity, context) = match version {
            IdentityVersion::V0 => {
                let identity = format!("NVMe0R{hash_id} {host} {subsystem}");
                (identity.clone(), identity)
            }
            IdentityVersion::V1 => {
                let of = format!("{host} {subsystem} NVMe-over-Fabrics");
                let digest = hash.hmac(retained.expose(), &[of.as_bytes()]);
                let digest = STANDARD.encode(digest.expose());
                let identity = format!("NVMe1R{hash_id} {host} {subsystem} {digest}");
                (identity, format!("{hash_id} {digest}"))
            }
        };
        let psk =
            extract_and_expand(hash, &retained, "nvme-tls-psk", context.as_bytes(), derivation)
                .map_err(too_long)?;
        Ok(TlsIdentity { identity, psk, hash: self.hash, version, derivation })
    }

    /// Every identity that a host may present for this key, each one once, as a target needs them.
    ///
    /// With HH 01 and 02 the two derivations give different identities of version 1, so both are
    /// returned. Otherwise the identity does not show how the key was derived, and `ambiguous`
    /// decides: if the host uses the other derivation, its handshake fails although the configured
    /// keys are equal. An identity of version 0 that is too long for its derivation is left out.
    #[must_use]
    pub fn identities(&self, names: &Names, ambiguous: Derivation) -> Vec<TlsIdentity> {
        let other = match ambiguous {
            Derivation::Standard => Derivation::Compat,
            Derivation::Compat => Derivation::Standard,
        };
        [
            Some((IdentityVersion::V1, ambiguous)),
            self.derived.then_some((IdentityVersion::V1, other)),
            Some((IdentityVersion::V0, ambiguous)),
        ]
        .into_iter()
        .flatten()
        .filter_map(|(version, derivation)| self.identity(names, version, derivation).ok())
        .collect()
    }
}
