//! The rules that give rights to hosts.

use super::rights::Rights;
use crate::limits::MAX_NSID;
use bpfof_auth::dhchap::{Algorithms, ControllerConfig};
use bpfof_auth::{ConfiguredPsk, Derivation, DhchapKey, KeyFileError, Names, key_file};
use bpfof_nvme::fabrics::DISCOVERY_NQN;
use bpfof_tls::{Psk, PskHash};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The names that a key was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) host_nqn: String,
    pub(crate) subsystem_nqn: String,
}

/// A rule of the configuration: what a host may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRule {
    /// NVMe qualified name of the host, or `*` for each.
    pub nqn: String,
    /// The subsystems that it applies to. None: all.
    pub subsystems: Option<Vec<String>>,
    /// Ids of the namespaces that exist for the host. None: all.
    pub namespaces: Option<Vec<u32>>,
    /// The rights of the host.
    pub rights: Rights,
    /// The keys by which the host proves its identity.
    pub keys: HostKeys,
}

/// Files with the keys of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostKeys {
    /// Keys for TLS, `NVMeTLSkey-1:…`. If there are any, the host must come by TLS.
    pub tls_psk: Vec<PathBuf>,
    /// Its keys are derived as by libnvme before 1.16, if their identities do not show the derivation.
    pub tls_compat: bool,
    /// Secrets for DH-HMAC-CHAP, `DHHC-1:…`: one, or two during rotation. If there are any, the host must authenticate
    /// itself.
    pub dhchap_key: Vec<PathBuf>,
    /// The target's own secret, for hosts that want to authenticate the target.
    pub dhchap_ctrl_key: Option<PathBuf>,
}

impl HostKeys {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tls_psk.is_empty() && self.dhchap_key.is_empty() && self.dhchap_ctrl_key.is_none()
    }
}

impl HostRule {
    /// Whether it applies to this host in this subsystem.
    pub(crate) fn is_about(&self, host_nqn: &str, subsystem: &str) -> bool {
        let is_host = self.nqn == "*" || self.nqn == host_nqn;
        let is_in = |subsystems: &Vec<String>| subsystems.iter().any(|known| known == subsystem);
        is_host && self.subsystems.as_ref().is_none_or(is_in)
    }
}

/// Namespaces, a bit for each id from 1 on.
type NamespaceSet = [u64; MAX_NSID as usize / 64];

/// The access of a host to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) rights: Rights,
    /// Namespaces that exist for the host; None: all.
    namespaces: Option<Box<NamespaceSet>>,
    /// The rule that gives it, for logs: its place in the file, from 1. None: there are no rules.
    rule: Option<usize>,
    /// The host must come by TLS, with a key of its own.
    pub(crate) needs_tls: bool,
    /// The host must authenticate itself with this.
    pub(crate) authentication: Option<Arc<ControllerConfig>>,
}

impl Access {
    /// Full access, for a target without rules.
    pub(crate) const fn everything() -> Access {
        Access {
            rights: Rights::ALL,
            namespaces: None,
            rule: None,
            needs_tls: false,
            authentication: None,
        }
    }

    /// Whether the host must prove its identity.
    pub(crate) fn proves_identity(&self) -> bool {
        self.needs_tls || self.authentication.is_some()
    }

    fn of(rule: &HostRule, place: usize) -> Access {
        let namespaces = rule.namespaces.as_ref().map(|ids| {
            let mut set = Box::new([0; MAX_NSID as usize / 64]);
            for at in ids.iter().map(|nsid| *nsid as usize - 1) {
                set[at / 64] |= 1u64 << (at % 64);
            }
            set
        });
        Access {
            rights: rule.rights,
            namespaces,
            rule: Some(place),
            needs_tls: !rule.keys.tls_psk.is_empty(),
            authentication: None,
        }
    }

    /// Whether all namespaces exist for the host.
    pub(crate) const fn sees_all(&self) -> bool {
        self.namespaces.is_none()
    }

    /// Whether a namespace exists for the host.
    #[inline]
    pub(crate) fn sees(&self, nsid: u32) -> bool {
        let Some(set) = &self.namespaces else { return true };
        let at = nsid.wrapping_sub(1) as usize;
        set.get(at / 64).is_some_and(|word| word & 1 << (at % 64) != 0)
    }

    /// Whether it allows all that `other` allows.
    pub(crate) fn contains(&self, other: &Access) -> bool {
        let sees_all = (1..=MAX_NSID).all(|nsid| self.sees(nsid) || !other.sees(nsid));
        // Access without proof of identity is more.
        let proves_less = (other.needs_tls || !self.needs_tls)
            && (other.authentication.is_some() || self.authentication.is_none());
        self.rights.contains(other.rights) && sees_all && proves_less
    }

    /// Its origin as text.
    pub(crate) fn origin(&self) -> String {
        match self.rule {
            Some(place) => format!("[[host]] rule {place} gives {}", self.rights),
            None => "there are no [[host]] rules".to_owned(),
        }
    }
}

/// A rule with its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    rule: HostRule,
    dhchap_keys: Vec<DhchapKey>,
    dhchap_ctrl_key: Option<DhchapKey>,
}

/// All rules of a configuration, with the keys that they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rules {
    known: Vec<Known>,
    /// Keys for TLS by the identity that a host presents, with the names that they are for.
    tls: HashMap<String, TlsKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct TlsKey {
    secret: bpfof_auth::Secret,
    hash: PskHash,
    names: Identity,
}

impl Rules {
    /// Reads the keys of rules, for these subsystems of the target.
    ///
    /// # Errors
    /// A key file that cannot be used.
    pub(crate) fn load(rules: &[HostRule], subsystems: &[&str]) -> Result<Rules, KeyFileError> {
        let mut loaded = Rules::default();
        for rule in rules {
            let keys = &rule.keys;
            let dhchap = |path: &PathBuf| key_file::parse(path, DhchapKey::parse);
            for path in &keys.tls_psk {
                let psk = key_file::parse(path, ConfiguredPsk::parse)?;
                loaded.add_psk(rule, &psk, subsystems);
            }
            loaded.known.push(Known {
                rule: rule.clone(),
                dhchap_keys: keys.dhchap_key.iter().map(dhchap).collect::<Result<_, _>>()?,
                dhchap_ctrl_key: keys.dhchap_ctrl_key.as_ref().map(dhchap).transpose()?,
            });
        }
        Ok(loaded)
    }

    /// Rules for one host with these secrets, and with a secret of the target, without files.
    #[cfg(any(test, feature = "fuzz"))]
    pub(crate) fn with_secrets(
        nqn: &str,
        dhchap_keys: Vec<DhchapKey>,
        dhchap_ctrl_key: Option<DhchapKey>,
    ) -> Rules {
        let (subsystems, namespaces, keys) = (None, None, HostKeys::default());
        let rule =
            HostRule { nqn: nqn.to_owned(), subsystems, namespaces, rights: Rights::ALL, keys };
        Rules { known: vec![Known { rule, dhchap_keys, dhchap_ctrl_key }], ..Rules::default() }
    }

    /// Adds each identity that the host may present for a key.
    fn add_psk(&mut self, rule: &HostRule, psk: &ConfiguredPsk, subsystems: &[&str]) {
        let derivation = match rule.keys.tls_compat {
            true => Derivation::Compat,
            false => Derivation::Standard,
        };
        // If an earlier rule applies to the host in a subsystem, that rule's keys are valid there.
        let is_first = |nqn: &str| {
            let is_about = |known: &Known| known.rule.is_about(&rule.nqn, nqn);
            rule.is_about(&rule.nqn, nqn) && !self.known.iter().any(is_about)
        };
        let its: Vec<&str> = subsystems.iter().copied().filter(|nqn| is_first(nqn)).collect();
        for subsystem in its.into_iter().chain([DISCOVERY_NQN]) {
            let Ok(names) = Names::new(rule.nqn.as_str(), subsystem) else { continue };
            for found in psk.identities(&names, derivation) {
                let hash = match found.hash {
                    bpfof_auth::PskHash::Sha256 => PskHash::Sha256,
                    bpfof_auth::PskHash::Sha384 => PskHash::Sha384,
                };
                let names =
                    Identity { host_nqn: rule.nqn.clone(), subsystem_nqn: subsystem.to_owned() };
                // An identity of version 0 is the same for all keys: the first key is valid.
                let key = TlsKey { secret: found.psk, hash, names };
                self.tls.entry(found.identity).or_insert(key);
            }
        }
    }

    /// The key of an identity.
    pub(crate) fn psk(&self, identity: &str) -> Option<Psk> {
        let key = self.tls.get(identity)?;
        Psk::new(identity, key.secret.expose(), key.hash).ok()
    }

    /// The names that an identity stands for, if it has the same key as in the rules `before`.
    pub(crate) fn still_stands_for(&self, identity: &str, before: &Rules) -> Option<Identity> {
        let key = self.tls.get(identity)?;
        (before.tls.get(identity) == Some(key)).then(|| key.names.clone())
    }

    /// A host's access to a subsystem, by the first rule in the file that applies to it. None if no rule applies; full
    /// access if there are no rules at all. Each host that some rule applies to, in any
    /// subsystem, may use the discovery subsystem.
    pub(crate) fn access(&self, host_nqn: &str, subsystem: &str) -> Option<Access> {
        if self.known.is_empty() {
            return Some(Access::everything());
        }
        let place = self.known.iter().position(|known| known.rule.is_about(host_nqn, subsystem))?;
        let Known { rule, dhchap_keys, dhchap_ctrl_key } = &self.known[place];
        let names = Names::new(host_nqn, subsystem).ok().filter(|_| !dhchap_keys.is_empty());
        let authentication = names.map(|names| {
            let its_own = dhchap_ctrl_key.as_ref();
            let config = ControllerConfig::new(names, dhchap_keys, its_own, Algorithms::default());
            Arc::new(config)
        });
        if !dhchap_keys.is_empty() && authentication.is_none() {
            return None;
        }
        Some(Access { authentication, ..Access::of(rule, place + 1) })
    }

    /// Whether some rule applies to a host, in any subsystem, or there are no rules.
    pub(crate) fn knows(&self, host_nqn: &str) -> bool {
        let is_about = |known: &Known| known.rule.nqn == "*" || known.rule.nqn == host_nqn;
        self.known.is_empty() || self.known.iter().any(is_about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(nqn: &str, subsystems: Option<&[&str]>, namespaces: Option<&[u32]>) -> HostRule {
        HostRule {
            nqn: nqn.to_owned(),
            subsystems: subsystems.map(|names| names.iter().map(|&name| name.into()).collect()),
            namespaces: namespaces.map(<[u32]>::to_vec),
            rights: Rights::READ,
            keys: HostKeys::default(),
        }
    }

    fn load(rules: &[HostRule]) -> Rules {
        Rules::load(rules, &["one", "two"]).expect("no keys")
    }

    #[test]
    fn the_first_rule_about_a_host_counts() {
        let rules = load(&[
            rule("a", Some(&["one"]), Some(&[1, 64, 65, 1024])),
            rule("a", None, None),
            rule("*", Some(&["two"]), Some(&[])),
        ]);
        let access = rules.access("a", "one").expect("a rule");
        for (nsid, sees) in
            [(0, false), (1, true), (2, false), (64, true), (65, true), (66, false), (1024, true)]
        {
            assert_eq!(access.sees(nsid), sees, "{nsid}");
        }
        assert!(!access.sees(1025) && !access.sees(u32::MAX));
        let all = rules.access("a", "other").expect("a rule");
        assert!(all.sees(1024) && all.contains(&access) && !access.contains(&all));
        assert!(!rules.access("b", "two").expect("a rule").sees(1));
        assert_eq!(rules.access("b", "one"), None);
        assert!(rules.knows("b") && Rules::default().knows("anybody"));
        assert_eq!(Rules::default().access("anybody", "any"), Some(Access::everything()));
        assert_eq!(access.origin(), "[[host]] rule 1 gives read");
    }

    /// Each rule has its own key for TLS.
    #[test]
    fn keys_are_those_of_the_first_rule_about_a_subsystem() {
        let psk = || ConfiguredPsk::generate(bpfof_auth::PskHash::Sha256).expect("random numbers");
        let identities = |psk: &ConfiguredPsk, subsystem: &str| {
            let names = Names::new("a", subsystem).expect("names");
            psk.identities(&names, Derivation::Standard)
        };
        let (first, second) = (psk(), psk());
        let mut rules = Rules::default();
        for (rule, psk) in
            [(rule("a", Some(&["one"]), None), &first), (rule("a", None, None), &second)]
        {
            rules.add_psk(&rule, psk, &["one", "two"]);
            rules.known.push(Known { rule, dhchap_keys: Vec::new(), dhchap_ctrl_key: None });
        }
        for (psk, subsystem, is_in) in [
            (&first, "one", true),
            (&second, "one", false),
            (&first, "two", false),
            (&second, "two", true),
        ] {
            for found in identities(psk, subsystem) {
                let known = rules.tls.get(&found.identity);
                let opens = known.is_some_and(|key| key.secret.expose() == found.psk.expose());
                assert_eq!(opens, is_in, "{subsystem} {}", found.identity);
            }
        }
        // An identity that is the same for both keys of a rule stands for the first key.
        let mut rules = Rules::default();
        let both = rule("a", None, None);
        rules.add_psk(&both, &first, &["one"]);
        rules.add_psk(&both, &second, &["one"]);
        for found in identities(&first, "one") {
            assert_eq!(rules.tls[&found.identity].secret.expose(), found.psk.expose());
        }
    }

    /// An identity of version 0 does not distinguish keys.
    #[test]
    fn a_replaced_key_identifies_no_host() {
        let psk = || ConfiguredPsk::generate(bpfof_auth::PskHash::Sha256).expect("random numbers");
        let names = Names::new("a", "one").expect("names");
        let rules = [psk(), psk()].map(|psk| {
            let mut rules = Rules::default();
            rules.add_psk(&rule("a", None, None), &psk, &["one"]);
            let all = psk.identities(&names, Derivation::Standard);
            (rules, all.into_iter().map(|found| found.identity).collect::<Vec<_>>())
        });
        let [(before, identities), (after, others)] = &rules;
        let common = identities.iter().find(|identity| others.contains(identity));
        let common = common.expect("one of version 0");
        assert!(before.still_stands_for(common, before).is_some_and(|who| who.host_nqn == "a"));
        assert_eq!(after.still_stands_for(common, before), None);
        assert_eq!(Rules::default().still_stands_for(common, before), None);
    }

    #[test]
    fn access_without_proof_of_identity_is_wider() {
        let open = Access::of(&rule("a", None, None), 1);
        let with_tls = Access { needs_tls: true, ..open.clone() };
        assert!(open.contains(&with_tls) && !with_tls.contains(&open));
        let names = Names::new("a", "one").expect("names");
        let config = ControllerConfig::new(names, &[], None, Algorithms::default());
        let config = Arc::new(config);
        let with_authentication = Access { authentication: Some(config), ..open.clone() };
        assert!(open.contains(&with_authentication) && !with_authentication.contains(&open));
    }

    #[test]
    fn fewer_rights_are_less() {
        let more = HostRule { rights: Rights::USUAL, ..rule("a", None, None) };
        let (less, more) = (Access::of(&rule("a", None, None), 1), Access::of(&more, 1));
        assert!(more.contains(&less) && !less.contains(&more));
    }
}
