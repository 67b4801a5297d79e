//! Responses of the two sides to challenges (NVMe Base 2.0 §8.13.5.4, §8.13.5.5).

use crate::hash::Hash;
use crate::names::Names;
use crate::secret::Secret;

/// All inputs of a response except the key. Secure channel concatenation is not offered, so its
/// byte is 0.
pub(crate) struct Question<'a> {
    /// The hash that the controller chose.
    pub(crate) hash: Hash,
    /// Host and subsystem.
    pub(crate) names: &'a Names,
    /// T_ID of the run.
    pub(crate) t_id: u16,
    /// S1, or S2 for the controller's response.
    pub(crate) sequence: u32,
    /// C1, or C2 for the controller's response.
    pub(crate) challenge: &'a [u8],
    /// g^xy; none without a group.
    pub(crate) shared: Option<&'a Secret>,
}

/// The byte for secure channel concatenation in a response: none.
const NO_CONCATENATION: [u8; 1] = [0];
/// Between two names.
const END_OF_NAME: [u8; 1] = [0];

impl Question<'_> {
    /// The challenge as used in a response: bound to the shared secret, if there is one.
    fn augmented(&self) -> Secret {
        match self.shared {
            None => Secret::new(self.challenge.to_vec()),
            Some(shared) => {
                let key = self.hash.digest(shared.expose());
                self.hash.hmac(key.expose(), &[self.challenge])
            }
        }
    }

    /// Calls `with` with the input of the host's HMAC.
    fn for_host<R>(&self, with: impl FnOnce(&[&[u8]]) -> R) -> R {
        with(&[
            self.augmented().expose(),
            &self.sequence.to_le_bytes(),
            &self.t_id.to_le_bytes(),
            &NO_CONCATENATION,
            b"HostHost",
            self.names.host().as_bytes(),
            &END_OF_NAME,
            self.names.subsystem().as_bytes(),
        ])
    }

    /// The host's response R1 under the host's transformed secret.
    pub(crate) fn host_response(&self, key: &Secret) -> Secret {
        self.for_host(|parts| self.hash.hmac(key.expose(), parts))
    }

    /// Whether `response` is R1 under `key`, in constant time.
    pub(crate) fn is_host_response(&self, key: &Secret, response: &[u8]) -> bool {
        self.for_host(|parts| self.hash.hmac_is(key.expose(), parts, response))
    }

    /// The controller's response R2 under the controller's transformed secret.
    pub(crate) fn controller_response(&self, key: &Secret) -> Secret {
        let challenge = self.augmented();
        let parts: [&[u8]; 8] = [
            challenge.expose(),
            &self.sequence.to_le_bytes(),
            &self.t_id.to_le_bytes(),
            &NO_CONCATENATION,
            b"Controller",
            self.names.subsystem().as_bytes(),
            &END_OF_NAME,
            self.names.host().as_bytes(),
        ];
        self.hash.hmac(key.expose(), &parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dhchap_key::DhchapKey;
    use crate::vectors::{HOST, SUBSYSTEM, hex, names};

    /// Hash, whether there is a shared secret of 256 bytes 07h, R1, R2; from independent code.
    const ANSWERS: [(Hash, bool, &str, &str); 6] = [
        (
            Hash::Sha256,
            false,
            "646ee20ed41e91553d283e38e9052a948fabae91ab1da123bea7370b400e9db2",
            "6bf6feee5ec0d52269120270f98a3b0b803538ef6fc3834e7d8b164b46cf5d45",
        ),
        (
            Hash::Sha256,
            true,
            "91712bdabb9d8768f209d0f7bb9819ec983f457238bd7411b57b826c734dd170",
            "362621fc3150e793a10ec89f6d0456a8c870d5e1f7ef445728723a7d4585b00e",
        ),
        (
            Hash::Sha384,
            false,
            "83ddc674557486f653516bbc4aa51bcadd97104581dc7b764c38106253a93775\
             a6e8d264c4d560ddd2658d3bcbea63c1",
            "a1c127d26cd30435f3838dd52ac9228721823b4d2788a27418e9063bc615962e\
             34f63eacd6559716327bd47ea74d3689",
        ),
        (
            Hash::Sha384,
            true,
            "616abbf6e970d5318b304dcbb91b5e9374a7f2485a5ef1cbe52f321bcedce7e4\
             3e16156482dcbd579fed3b949f81e5a5",
            "655b5130e7fdd05810e4c474774c7c209c88e42c05571af959fead9d91bad51f\
             5bd358083c37b1171ac12b2e6d39ae08",
        ),
        (
            Hash::Sha512,
            false,
            "4ec0b55e199b15e22233e3cbbb1952e526c59bd74f33b6d8892253f119d7f1a3\
             f3be422da84d0287efc0fcd9a9b9dff3dbbf37ff5811273676d3dcb5ca23c4e2",
            "0e862f9759abf6859958e31a425322ee28261e0495e2a12f6cf8cfcb7ba36a06\
             02d49c46199ae5772b19b44afc56e7a8b4cd2b8b716224442eab656e848add4c",
        ),
        (
            Hash::Sha512,
            true,
            "e91bdecb204166ed62bed409bdcd955c3c99f790ad9aca73502167da0361407c\
             498693f6f48e2a86afb167b2cadf429684959c2d0396104f6b1fa2a6dfee6565",
            "e50f9381629ce5348f0f79a1b6d317688f917d7cd95365d518fdf6fb36dedfc5\
             9b7598a6dd451aab69f0de8c6f65e684ecfbd22cda6c74eec9d6a7c3c103a951",
        ),
    ];

    #[test]
    fn known_answers() {
        let key = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
        let key = DhchapKey::parse(key).unwrap();
        let (host_key, controller_key) = (key.transform(HOST), key.transform(SUBSYSTEM));
        let (names, shared) = (names(), Secret::new(vec![7; 256]));
        for (hash, group, r1, r2) in ANSWERS {
            let challenge: Vec<u8> = (0x40..).take(hash.length_bytes()).collect();
            let question = Question {
                hash,
                names: &names,
                t_id: 0x0506,
                sequence: 0x0102_0304,
                challenge: &challenge,
                shared: group.then_some(&shared),
            };
            assert_eq!(question.host_response(&host_key).expose(), hex(r1));
            assert!(question.is_host_response(&host_key, &hex(r1)));
            assert!(!question.is_host_response(&controller_key, &hex(r1)));
            assert_eq!(question.controller_response(&controller_key).expose(), hex(r2));
        }
    }
}
