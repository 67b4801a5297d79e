//! The configuration of a target: from command-line options or a TOML file.

mod error;
mod listen;
mod memory;
mod namespace_spec;
mod tls_mode;
mod toml;
mod values;

use crate::access::HostRule;
use crate::hosts::HostLimits;
use crate::limits::{LAST_CONTROLLER_ID, MAX_LISTENERS, MAX_NSID};
use bpfof_chain::Limits;
pub use error::ConfigError;
pub use listen::{Advertised, AnaState, AnaStates, ListenConfig, Listeners, Transport};
pub use namespace_spec::{NamespaceConfig, NamespaceSource};
use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
pub use tls_mode::TlsMode;
pub(crate) use values::is_nqn;
pub use values::{parse_address, parse_cntlids, parse_size, parse_tls_mode};

/// The default name of a target.
const DEFAULT_NQN: &str = "nqn.2026-01.io.bpf-of:target";

/// Everything a target needs to start.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The addresses to listen on.
    pub listen: Listeners,
    /// The address for hosts that only read the discovery log, usually with port 8009. The discovery subsystem is also
    /// reached at `listen`.
    pub discovery: Option<SocketAddr>,
    /// Ids for controllers. Targets that serve one subsystem together need different ranges: hosts refuse a second
    /// controller with the same id.
    pub cntlids: RangeInclusive<u16>,
    /// NVMe qualified name of the subsystem for namespaces that do not name one.
    pub nqn: String,
    /// Namespaces. In each subsystem ids count from 1 in this order, except where an id is given.
    pub namespaces: Vec<NamespaceConfig>,
    /// The processors that get a reactor each. Empty: one reactor, not pinned.
    pub cores: Vec<usize>,
    /// Never sleep: for processors that have no other work.
    pub poll: bool,
    /// How long to poll for work before sleeping, in µs, as long as polling has paid off so far.
    pub spin_us: u32,
    /// Budgets of each chain.
    pub limits: Limits,
    /// Maximum memory of the process in bytes, including namespaces in memory. None: a quarter of the machine's memory
    /// in addition to these namespaces.
    pub memory_max_bytes: Option<u64>,
    /// Whether namespaces in memory may together exceed the machine's memory: unwritten pages take none.
    pub overcommit_memory: bool,
    /// What one host may use, and how long it may be silent.
    pub hosts: HostLimits,
    /// Which hosts may connect and what they may do; the first matching rule applies. Without rules every host may do
    /// everything.
    pub rules: Vec<HostRule>,
    /// Objects of storage functions that each subsystem keeps from the start, so that no host needs the right `keep`.
    pub functions: Vec<PathBuf>,
    /// Whether hosts connect by TLS.
    pub tls: TlsMode,
    /// Let the kernel encrypt TLS records where it can. Otherwise this process does; it always decrypts them itself.
    pub kernel_tls: bool,
    /// Without rules, allow listening on addresses that other machines reach.
    pub allow_any_host: bool,
    /// Where to listen for metrics collectors, if anywhere. The program that starts the server does this, not the
    /// server.
    pub metrics: Option<SocketAddr>,
    /// Host names that metrics requests may use, besides the machine's own.
    pub metrics_names: Vec<String>,
    /// The operators' control socket, if any. Also opened by the program, not by the server.
    pub control: Option<PathBuf>,
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            listen: ([127, 0, 0, 1], 4420).into(),
            discovery: None,
            cntlids: 1..=LAST_CONTROLLER_ID,
            nqn: DEFAULT_NQN.to_owned(),
            namespaces: Vec::new(),
            cores: Vec::new(),
            poll: false,
            spin_us: 200,
            limits: Limits::default(),
            memory_max_bytes: None,
            overcommit_memory: false,
            hosts: HostLimits::default(),
            rules: Vec::new(),
            functions: Vec::new(),
            tls: TlsMode::default(),
            kernel_tls: true,
            allow_any_host: false,
            metrics: None,
            metrics_names: Vec::new(),
            control: None,
        }
    }
}

impl TargetConfig {
    /// Checks everything that can be checked without opening files or sockets.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.namespaces.is_empty() {
            return Err(ConfigError::NoNamespace);
        }
        self.check_listeners()?;
        if let Some(address) = self.open_to_all() {
            return Err(ConfigError::AnyHost(address));
        }
        self.check_memory()?;
        for (place, rule) in self.rules.iter().enumerate() {
            check_rule(rule)?;
            check_reached(rule, &self.rules[..place])?;
        }
        let has_keys = |rule: &&HostRule| !rule.keys.tls_psk.is_empty();
        if let Some(rule) = self.rules.iter().find(has_keys).filter(|_| self.tls == TlsMode::Off) {
            let why = "it has a tls-psk, but tls is \"off\"".to_owned();
            return Err(ConfigError::Rule { nqn: rule.nqn.clone(), why });
        }
        let (limits, hosts) = (&self.limits, &self.hosts);
        let least_one = [
            ("max-chains", limits.chains as u64),
            ("max-hops", limits.hops.into()),
            ("max-chain-bytes", limits.bytes),
            ("max-instructions", limits.instructions),
            ("max-instructions-per-call", limits.instructions_per_call.into()),
            ("connections-per-address", hosts.connections_per_address.into()),
            ("connections-per-host", hosts.connections_per_host.into()),
            ("associations-per-address", hosts.associations_per_address.into()),
            ("associations-per-host", hosts.associations_per_host.into()),
            ("send-timeout-s", hosts.send_timeout_s.into()),
        ];
        if let Some((name, _)) = least_one.into_iter().find(|(_, value)| *value == 0) {
            return Err(ConfigError::Zero(name));
        }
        let mut cores = HashSet::new();
        let twice = self.cores.iter().find(|core| !cores.insert(**core));
        if let Some(core) = twice.filter(|_| self.poll) {
            return Err(ConfigError::SameCore(*core));
        }
        let named = self.namespaces.iter().filter_map(|namespace| namespace.subsystem.as_ref());
        match named.chain([&self.nqn]).find(|nqn| !is_nqn(nqn)) {
            Some(nqn) => return Err(ConfigError::Nqn(nqn.clone())),
            None => self.placed()?,
        };
        let mut paths = HashSet::new();
        let mut all = self.namespaces.iter().flat_map(|namespace| namespace.source.paths());
        match all.find(|path| !paths.insert(path.as_path())) {
            Some(path) => Err(ConfigError::SameFile(path.to_owned())),
            None => Ok(()),
        }
    }

    /// Whether hosts connect by TLS, taking the rules into account.
    pub(crate) fn tls(&self) -> TlsMode {
        match (self.tls, self.has_tls_keys()) {
            (TlsMode::ByRules, true) => TlsMode::Allowed,
            (TlsMode::ByRules, false) => TlsMode::Off,
            (mode, _) => mode,
        }
    }

    /// Whether any rule has a TLS key.
    pub(crate) fn has_tls_keys(&self) -> bool {
        self.rules.iter().any(|rule| !rule.keys.tls_psk.is_empty())
    }

    /// Total size of the namespaces in memory, in bytes.
    fn memory_size_bytes(&self) -> u64 {
        let sizes = self.namespaces.iter().map(|namespace| match namespace.source {
            NamespaceSource::Memory { size_bytes, .. } => size_bytes,
            _ => 0,
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// The names of all subsystems.
    pub(crate) fn subsystems(&self) -> Vec<&str> {
        let named = self.namespaces.iter().filter_map(|namespace| namespace.subsystem.as_deref());
        let mut names: Vec<&str> = named.chain([self.nqn.as_str()]).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Warnings of rules whose keys have no effect in any subsystem that has namespaces.
    pub(crate) fn keys_without_effect(&self) -> Vec<String> {
        let nqn = self.nqn.as_str();
        let served = self.namespaces.iter().map(|of| of.subsystem.as_deref().unwrap_or(nqn));
        let served: BTreeSet<&str> = served.collect();
        let hidden = self.rules.iter().enumerate().filter_map(|(place, rule)| {
            let its = served.iter().copied().filter(|subsystem| rule.is_about(&rule.nqn, subsystem));
            let hiding = hiding(rule, &self.rules[..place], &its.collect::<Vec<_>>())?;
            let warning = || {
                format!(
                    "[[host]] rule {} for {} has keys, but rule {} comes first in all subsystems that have namespaces: \
                     the host enters them by that rule",
                    place + 1,
                    rule.nqn,
                    hiding + 1
                )
            };
            (!rule.keys.is_empty()).then(warning)
        });
        hidden.collect()
    }

    /// An address through which any host on the network could connect, although the configuration does not allow that.
    fn open_to_all(&self) -> Option<SocketAddr> {
        let listens = self.listen.0.iter().map(|listener| listener.address).chain(self.discovery);
        let mut reachable = listens.filter(|address| !address.ip().to_canonical().is_loopback());
        let is_asked_for = self.allow_any_host || !self.rules.is_empty();
        reachable.next().filter(|_| !is_asked_for)
    }

    /// The namespaces, each with the name of its subsystem and its id there.
    pub(crate) fn placed(&self) -> Result<Vec<(&str, u32, &NamespaceConfig)>, ConfigError> {
        let mut placed: Vec<(&str, u32, &NamespaceConfig)> = Vec::new();
        for namespace in &self.namespaces {
            let nqn = namespace.subsystem.as_deref().unwrap_or(&self.nqn);
            let before = placed.iter().filter(|(of, ..)| *of == nqn).count() as u32;
            let nsid = namespace.nsid.unwrap_or(before + 1);
            if nsid > MAX_NSID {
                return Err(ConfigError::TooMany { nqn: nqn.to_owned() });
            }
            if placed.iter().any(|(of, taken, _)| (*of, *taken) == (nqn, nsid)) {
                return Err(ConfigError::SameId { nqn: nqn.to_owned(), nsid });
            }
            let is_same = |(_, _, other): &(&str, u32, &NamespaceConfig)| {
                namespace.uuid.is_some() && namespace.uuid == other.uuid
            };
            if placed.iter().any(is_same) {
                return Err(ConfigError::SameUuid { nqn: nqn.to_owned(), nsid });
            }
            placed.push((nqn, nsid, namespace));
        }
        Ok(placed)
    }

    fn check_listeners(&self) -> Result<(), ConfigError> {
        let all = &self.listen.0;
        if all.is_empty() || all.len() > MAX_LISTENERS {
            return Err(ConfigError::Listeners(all.len()));
        }
        let mut seen = HashSet::new();
        let named = all.iter().map(|listener| (listener.address, listener.transport));
        let mut named = named.filter(|(address, _)| address.port() != 0);
        if let Some((twice, _)) = named.find(|place| !seen.insert(*place)) {
            return Err(ConfigError::SameAddress(twice));
        }
        if self.tls == TlsMode::Required
            && let Some(plain) = all.iter().find(|listener| listener.transport == Transport::Rdma)
        {
            return Err(ConfigError::RdmaWithoutTls(plain.address));
        }
        let mut seen = HashSet::new();
        let twice = self.port_ids().find(|id| !seen.insert(*id));
        twice.map_or(Ok(()), |id| Err(ConfigError::SamePortId(id)))
    }

    /// The PORTID of each listener, in order.
    pub(crate) fn port_ids(&self) -> impl Iterator<Item = u16> {
        let positions = self.listen.0.iter().zip(1..);
        positions.map(|(listener, position)| listener.port_id.unwrap_or(position))
    }

    /// Addresses and ids of all listeners, which are fixed while the target runs.
    fn places(&self) -> Vec<(SocketAddr, Transport, u16)> {
        let all = self.listen.0.iter().zip(self.port_ids());
        all.map(|(listener, id)| (listener.address, listener.transport, id)).collect()
    }

    /// A host that must prove its identity to the running target, and would no longer have to.
    fn unproved<'a>(&self, running: &'a TargetConfig) -> Option<&'a str> {
        let comes_in_unproved = |config: &TargetConfig, nqn: &str, subsystem: &str| {
            let first = config.rules.iter().find(|rule| rule.is_about(nqn, subsystem));
            let keys = first.map(|rule| &rule.keys);
            let has_none =
                keys.is_some_and(|keys| keys.tls_psk.is_empty() && keys.dhchap_key.is_empty());
            (config.rules.is_empty() || has_none) && config.tls != TlsMode::Required
        };
        let subsystems = self.subsystems();
        let is_unproved = |rule: &&HostRule| {
            subsystems.iter().any(|subsystem| {
                rule.is_about(&rule.nqn, subsystem)
                    && !comes_in_unproved(running, &rule.nqn, subsystem)
                    && comes_in_unproved(self, &rule.nqn, subsystem)
            })
        };
        let with_keys = running.rules.iter().filter(|rule| !rule.keys.is_empty());
        with_keys.filter(is_unproved).map(|rule| rule.nqn.as_str()).next()
    }

    /// Checks that a running target can change from `running` to this configuration: the settings below must stay the
    /// same, while namespaces, rules and what listeners report may change. `serves_tls`: it was started with TLS.
    pub(crate) fn check_change(
        &self,
        running: &TargetConfig,
        serves_tls: bool,
    ) -> Result<(), ConfigError> {
        self.check()?;
        if let Some(nqn) = self.unproved(running) {
            let why = "the host authenticates with keys now, but the new configuration would let \
                       it, or any host with its name, connect without keys: keep its keys, or \
                       remove what lets it in (a rule without keys; without any rules every host \
                       may connect), or restart the target if it is intended";
            return Err(ConfigError::Rule { nqn: nqn.to_owned(), why: why.to_owned() });
        }
        // A target that was started with TLS serves handshakes to its end, whether there are keys or not.
        let tls_stays = self.tls == running.tls && (serves_tls || self.tls() == TlsMode::Off);
        let fixed = [
            ("listen", self.places() == running.places()),
            ("cntlid", self.cntlids == running.cntlids),
            ("discovery", self.discovery == running.discovery),
            ("cores", self.cores == running.cores),
            ("poll", self.poll == running.poll),
            ("tls", tls_stays),
            ("kernel-tls", self.kernel_tls == running.kernel_tls),
            ("metrics", self.metrics == running.metrics),
            ("metrics-names", self.metrics_names == running.metrics_names),
            ("control", self.control == running.control),
            ("functions", self.functions == running.functions),
            ("spin-us", self.spin_us == running.spin_us),
            ("a limit (max-…)", self.limits == running.limits),
            ("memory-max", self.memory_max_bytes == running.memory_max_bytes),
            ("a limit of hosts", self.hosts == running.hosts),
        ];
        match fixed.into_iter().find(|(_, is_same)| !is_same) {
            Some((what, _)) => Err(ConfigError::Fixed(what)),
            None => Ok(()),
        }
    }
}

/// The earlier rule that applies in place of this one in all of these subsystems, by its place; none if there is a
/// subsystem in which this one applies.
fn hiding(rule: &HostRule, before: &[HostRule], subsystems: &[&str]) -> Option<usize> {
    let earlier = |subsystem: &&str| before.iter().position(|of| of.is_about(&rule.nqn, subsystem));
    let hidden: Option<Vec<usize>> = subsystems.iter().map(earlier).collect();
    hidden?.first().copied()
}

/// Rejects keys that would have no effect, whatever the subsystems are: the first rule for a host and a subsystem
/// applies.
fn check_reached(rule: &HostRule, before: &[HostRule]) -> Result<(), ConfigError> {
    if rule.keys.is_empty() {
        return Ok(());
    }
    let place = match &rule.subsystems {
        Some(named) => hiding(rule, before, &named.iter().map(String::as_str).collect::<Vec<_>>()),
        None => before
            .iter()
            .position(|of| of.subsystems.is_none() && (of.nqn == "*" || of.nqn == rule.nqn)),
    };
    let Some(place) = place else { return Ok(()) };
    let why = format!(
        "[[host]] rule {} applies to the same host and subsystems and comes first, so the keys of this rule would have \
         no effect: put them there",
        place + 1
    );
    Err(ConfigError::Rule { nqn: rule.nqn.clone(), why })
}

fn check_rule(rule: &HostRule) -> Result<(), ConfigError> {
    let refused = |why: String| Err(ConfigError::Rule { nqn: rule.nqn.clone(), why });
    if rule.nqn != "*" && !is_nqn(&rule.nqn) {
        return refused("nqn must be \"*\" or an NVMe qualified name".to_owned());
    }
    if rule.nqn == "*" && !rule.keys.is_empty() {
        return refused("keys belong to one host, so nqn must name it".to_owned());
    }
    if rule.keys.dhchap_ctrl_key.is_some() && rule.keys.dhchap_key.is_empty() {
        return refused("dhchap-ctrl-key also needs a dhchap-key".to_owned());
    }
    if rule.keys.tls_compat && rule.keys.tls_psk.is_empty() {
        return refused("tls-compat says how a key is used, and also needs a tls-psk".to_owned());
    }
    if rule.keys.dhchap_key.len() > 2 {
        return refused("dhchap-key may have at most two secrets (for rotation)".to_owned());
    }
    let unknown = |nqn: &&String| !is_nqn(nqn);
    if let Some(nqn) = rule.subsystems.iter().flatten().find(unknown) {
        return refused(format!("subsystems has {nqn:?}, which is not an NVMe qualified name"));
    }
    let outside = |nsid: &&u32| !(1..=MAX_NSID).contains(*nsid);
    match rule.namespaces.iter().flatten().find(outside) {
        Some(nsid) => refused(format!("namespaces has {nsid}, which is not 1 to {MAX_NSID}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_name_line_and_column() {
        let good = "listen = \"127.0.0.1:9\"\nnamespaces = [\"mem:size=1M\"]\nmax-hops = 5\n";
        let config = TargetConfig::from_toml(good).expect("good");
        assert_eq!((config.listen.0[0].address.port(), config.limits.hops), (9, 5));
        assert!(config.check().is_ok());
        for (text, reason) in [
            ("poll = 3", "line 1, column 8"),
            ("\nnamespaces = [\"mem:size=1M\", \"mem\"]", "line 2, column 30"),
            ("\n\n  colour = 1", "line 3, column 3"),
            ("listen = \"nowhere\"", "line 1, column 10"),
            (
                "discovery = \"[::1]:99999\"",
                "line 1, column 13: \"[::1]:99999\" is not an IP address",
            ),
        ] {
            let message = TargetConfig::from_toml(text).expect_err(text);
            assert!(message.starts_with(reason), "{message}");
        }
        assert!(matches!(TargetConfig::default().check(), Err(ConfigError::NoNamespace)));
        let with = |specs: &[&str]| {
            let parse = |spec: &&str| format!("mem:size=1M{spec}").parse().expect("valid");
            TargetConfig { namespaces: specs.iter().map(parse).collect(), ..config.clone() }
        };
        let ids = |specs: &[&str]| {
            let config = with(specs);
            let placed = config.placed().map_err(|error| error.to_string())?;
            Ok::<_, String>(placed.iter().map(|(_, nsid, _)| *nsid).collect::<Vec<_>>())
        };
        let other = ",nqn=nqn.2026-01.org:other";
        assert_eq!(ids(&["", ",nsid=9", "", other, ""]), Ok(vec![1, 9, 3, 1, 4]));
        for specs in [["", ",nsid=1"], [",nsid=2", ""], [",nsid=5", ",nsid=5"]] {
            let error = ids(&specs).expect_err("one id twice");
            assert!(error.contains("two namespaces with id"), "{error}");
        }
        assert!(ids(&[""; 1025]).is_err_and(|error| error.contains("more than 1024")));
        let twice =
            ["file:path=/x", "file:path=/x,nsid=7"].map(|spec| spec.parse().expect("valid"));
        let twice = TargetConfig { namespaces: twice.into(), ..config.clone() };
        assert!(matches!(twice.check(), Err(ConfigError::SameFile(_))));
        let polls = TargetConfig { poll: true, ..with(&["", ""]) };
        assert!(matches!(polls.check_change(&config, false), Err(ConfigError::Fixed("poll"))));
        assert!(with(&["", ""]).check_change(&config, false).is_ok());
        let nqn = TargetConfig { nqn: "disk".into(), ..config };
        assert!(matches!(nqn.check(), Err(ConfigError::Nqn(_))));
        for (text, why) in [
            ("max-hops = 0", "max-hops is 0"),
            ("max-chain-bytes = 0", "max-chain-bytes is 0"),
            ("max-instructions = 0", "max-instructions is 0"),
            ("max-instructions-per-call = 0", "max-instructions-per-call is 0"),
            ("max-chains = 0", "max-chains is 0"),
            ("poll = true\ncores = [1, 0, 1]", "cores has 1 twice"),
        ] {
            let config =
                TargetConfig::from_toml(&format!("namespaces = [\"mem:size=1M\"]\n{text}"));
            let error = config.expect("read").check().expect_err(text).to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn keys_without_effect_are_refused() {
        let host = "[[host]]\nnqn = \"nqn.2026-01.org:a\"\n";
        let key = "tls-psk = [\"a.psk\"]\n";
        let of_one = "subsystems = [\"nqn.2026-01.org:x\"]\n";
        let check = |rules: &[&str]| {
            let [x, y] =
                ["x", "y"].map(|name| format!("\"mem:size=1M,nqn=nqn.2026-01.org:{name}\""));
            let text = format!("namespaces = [{x}, {y}]\n{}", rules.concat());
            TargetConfig::from_toml(&text).expect("read").check().map_err(|error| error.to_string())
        };
        let anybody = "[[host]]\nnqn = \"*\"\n";
        let of_both = "subsystems = [\"nqn.2026-01.org:x\", \"nqn.2026-01.org:y\"]\n";
        let of_other = "subsystems = [\"nqn.2026-01.org:y\"]\n";
        assert_eq!(check(&[host, key]), Ok(()));
        assert_eq!(check(&[host, of_one, host, key]), Ok(()));
        assert_eq!(check(&[host, key, "[[host]]\nnqn = \"*\"\n"]), Ok(()));
        for rules in [
            [host, key, host, key].as_slice(),
            &["[[host]]\nnqn = \"*\"\n", host, key],
            &[host, of_one, host, of_one, key],
            &[anybody, of_one, host, of_other, host, of_both, key],
        ] {
            let error = check(rules).expect_err("no host could use the key");
            assert!(
                error.contains("rule 1 applies to the same host and subsystems and comes first"),
                "{error}"
            );
        }
    }

    #[test]
    fn keys_without_effect_for_now_cause_warnings() {
        let warnings = |of: &str| {
            let text = format!(
                "namespaces = [\"mem:size=1M,nqn=nqn.2026-01.org:x\"]\n\
                 [[host]]\nnqn = \"*\"\nsubsystems = [{of}]\n\
                 [[host]]\nnqn = \"nqn.2026-01.org:a\"\ntls-psk = [\"a.psk\"]\n"
            );
            let config = TargetConfig::from_toml(&text).expect("read");
            assert!(config.check().is_ok());
            config.keys_without_effect()
        };
        assert!(warnings("\"nqn.2026-01.org:y\"").is_empty());
        let [warning] = &warnings("\"nqn.2026-01.org:x\"")[..] else { panic!("one warning") };
        assert!(warning.starts_with("[[host]] rule 2 for nqn.2026-01.org:a has keys, but rule 1"));
    }

    #[test]
    fn a_host_with_keys_cannot_come_in_without_them_after_a_reload() {
        let config = |rules: &str| {
            let text = format!("namespaces = [\"mem:size=1M\"]\n{rules}");
            TargetConfig::from_toml(&text).expect("good")
        };
        let rule = |keys: &str| format!("[[host]]\nnqn = \"nqn.2026-01.org:a\"\n{keys}\n");
        let (tls, secret) = (rule("tls-psk = [\"a\"]"), rule("dhchap-key = [\"b\"]"));
        let everybody = "[[host]]\nnqn = \"*\"\n";
        let other = rule("").replace(":a", ":b");
        for before in [&tls, &secret] {
            let running = config(before);
            let hidden = config(&(rule("") + before)).check_change(&running, true);
            assert!(hidden.is_err_and(|error| error.to_string().contains("would have no effect")));
            for after in [rule(""), everybody.to_owned(), String::new()] {
                let refused =
                    config(&after).check_change(&running, true).expect_err("it opens a name");
                assert!(refused.to_string().contains("any host with its name"), "{refused}");
            }
            for after in [tls.clone() + &secret, other.clone(), before.clone() + everybody] {
                let change = config(&after).check_change(&running, true);
                assert!(
                    !change.is_err_and(|error| error.to_string().contains("its name")),
                    "{after}"
                );
            }
        }
        let required = |rules: &str| TargetConfig { tls: TlsMode::Required, ..config(rules) };
        assert!(required(&rule("")).check_change(&required(&tls), true).is_ok());
        for key in ["tls-psk", "dhchap-key"] {
            let text = format!("[[host]]\nnqn = \"nqn.2026-01.org:a\"\n{key} = []");
            let error = TargetConfig::from_toml(&text).expect_err("no keys");
            assert!(error.contains("name a file"), "{error}");
        }
    }
}
