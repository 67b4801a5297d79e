//! Configurations: files, and command-line values.

use super::input::Input;
use crate::access::{HostKeys, HostRule, Rights};
use crate::config::{
    Advertised, AnaState, AnaStates, ListenConfig, Listeners, NamespaceConfig, NamespaceSource,
    TargetConfig, TlsMode, Transport, is_nqn, parse_size,
};
use crate::hosts::HostLimits;
use bpfof_chain::Limits;
use bpfof_device::Layout;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Reads `data` as a configuration file, as the text of a `--namespace` option or as a size; or
/// builds a configuration from it, writes that and reads it again. Errors name the place; accepted
/// configurations follow the rules, and are unchanged after being written and read again.
pub fn config(data: &[u8]) {
    let mut input = Input(data);
    let kind = input.byte();
    let text = String::from_utf8_lossy(input.0);
    match kind % 4 {
        0 => file(&text),
        1 => namespace(&text),
        2 => size(&text),
        _ => {
            let made = make(&mut input);
            let text = written(&made);
            let read = TargetConfig::from_toml(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert_eq!(shown(&read), shown(&made), "{text}");
            if made.check().is_ok() {
                assert!(!made.namespaces.is_empty(), "{text}");
                check_rules(&made);
            }
        }
    }
}

fn file(text: &str) {
    match TargetConfig::from_toml(text) {
        Ok(config) => {
            config.namespaces.iter().for_each(check);
            if config.check().is_ok() {
                assert!(is_nqn(&config.nqn) && !config.namespaces.is_empty());
                check_rules(&config);
            }
            let written = written(&config);
            let again = TargetConfig::from_toml(&written);
            let again = again.unwrap_or_else(|error| panic!("{error}: {written}"));
            assert_eq!(shown(&again), shown(&config), "{written}");
        }
        Err(message) => {
            let (line, column) = place(&message).unwrap_or_else(|| panic!("no place: {message}"));
            // The empty last line also counts.
            let there = text.split('\n').nth(line - 1);
            let there = there.unwrap_or_else(|| panic!("{message}: of {text:?}"));
            assert!(column <= there.chars().count() + 2, "{message}: of {text:?}");
        }
    }
}

/// The numbers in "line 3, column 4: …".
fn place(message: &str) -> Option<(usize, usize)> {
    let (line, rest) = message.strip_prefix("line ")?.split_once(", column ")?;
    let (column, reason) = rest.split_once(": ")?;
    let place = (line.parse().ok()?, column.parse().ok()?);
    (place.0 > 0 && place.1 > 0 && !reason.is_empty()).then_some(place)
}

fn namespace(text: &str) {
    match text.parse::<NamespaceConfig>() {
        Ok(config) => {
            check(&config);
            let option = option(&config);
            let again = option.parse::<NamespaceConfig>();
            assert_eq!(again.unwrap_or_else(|error| panic!("{error}: {text:?}")), config);
        }
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains(&format!("{text:?}")) && message.contains("write mem:"));
        }
    }
}

/// Checks the rules of a namespace.
fn check(config: &NamespaceConfig) {
    assert!(matches!(config.lba_bytes, 512 | 4096));
    assert!(config.subsystem.as_ref().is_none_or(|nqn| is_nqn(nqn)));
    match &config.source {
        NamespaceSource::Memory { size_bytes, latency_us, iops } => {
            assert!(*size_bytes >= u64::from(config.lba_bytes));
            assert!(*latency_us <= 3_600_000_000 && *iops <= 1_000_000_000);
        }
        NamespaceSource::MemoryFile { path, latency_us, iops } => {
            assert!(!path.as_os_str().is_empty());
            assert!(*latency_us <= 3_600_000_000 && *iops <= 1_000_000_000);
        }
        NamespaceSource::File { path, .. } | NamespaceSource::Drive { path } => {
            assert!(!path.as_os_str().is_empty())
        }
        NamespaceSource::Pieces { paths, layout, .. } => {
            assert!((2..=64).contains(&paths.len()));
            assert!(paths.iter().all(|path| !path.as_os_str().is_empty()));
            if let Layout::Striped { chunk_bytes } = layout {
                assert!(chunk_bytes.is_power_of_two());
                assert!((4 << 10..=1 << 30).contains(chunk_bytes));
            }
        }
    }
    assert!(config.nsid.is_none_or(|nsid| (1..=1024).contains(&nsid)));
}

fn size(text: &str) {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" | "B" => Some(0),
        "k" | "K" | "KiB" => Some(10),
        "M" | "MiB" => Some(20),
        "G" | "GiB" => Some(30),
        "T" | "TiB" => Some(40),
        _ => None,
    };
    let expected = number.parse::<u64>().ok().zip(shift);
    let expected = expected.and_then(|(number, shift)| number.checked_mul(1 << shift));
    assert_eq!(parse_size(text).ok(), expected, "{text:?}");
}

/// A complete configuration as text, for comparison.
fn shown(config: &TargetConfig) -> String {
    format!("{config:?}")
}

/// Writes a namespace as a `--namespace` option.
fn option(config: &NamespaceConfig) -> String {
    let NamespaceConfig { source, lba_bytes, subsystem, nsid, uuid, ana_group } = config;
    let size = |bytes: &Option<u64>| bytes.map_or(String::new(), |bytes| format!(",size={bytes}"));
    let mut text = match source {
        NamespaceSource::Memory { size_bytes, latency_us, iops } => {
            format!("mem:size={size_bytes},latency_us={latency_us},iops={iops}")
        }
        NamespaceSource::MemoryFile { path, latency_us, iops } => {
            format!("mem:file={},latency_us={latency_us},iops={iops}", path.display())
        }
        NamespaceSource::File { path, size_bytes } => {
            format!("file:path={}{}", path.display(), size(size_bytes))
        }
        NamespaceSource::Pieces { paths, size_bytes, layout } => {
            let paths: Vec<_> = paths.iter().map(|p| format!("path={}", p.display())).collect();
            let (kind, chunk) = match layout {
                Layout::Concatenated => ("concat", String::new()),
                Layout::Striped { chunk_bytes } => ("stripe", format!(",chunk={chunk_bytes}")),
            };
            format!("{kind}:{}{chunk}{}", paths.join(","), size(size_bytes))
        }
        NamespaceSource::Drive { path } => format!("nvme:path={}", path.display()),
    };
    if !matches!(source, NamespaceSource::Drive { .. }) {
        text.push_str(&format!(",lba={lba_bytes}"));
    }
    if let Some(nqn) = subsystem {
        text.push_str(&format!(",nqn={nqn}"));
    }
    if let Some(nsid) = nsid {
        text.push_str(&format!(",nsid={nsid}"));
    }
    if let Some(uuid) = uuid {
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
        text.push_str(&format!(",uuid={a}-{b}-{c}-{d}-{e}"));
    }
    text.push_str(&format!(",anagrpid={ana_group}"));
    text
}

/// Writes a configuration as a file.
fn written(config: &TargetConfig) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let TargetConfig { listen, discovery, nqn, namespaces, cores, poll, spin_us, .. } = config;
    let listen: Vec<String> = listen.0.iter().map(|one| quoted(&one.to_string())).collect();
    let listen = listen.join(", ");
    let (first, last) = config.cntlids.clone().into_inner();
    let TargetConfig { limits, memory_max_bytes, hosts, rules, allow_any_host, functions, .. } =
        config;
    let (kernel_tls, overcommit) = (config.kernel_tls, config.overcommit_memory);
    let tls = match config.tls {
        TlsMode::ByRules => "",
        TlsMode::Off => "tls = \"off\"\n",
        TlsMode::Allowed => "tls = \"allowed\"\n",
        TlsMode::Required => "tls = \"required\"\n",
    };
    let functions: Vec<String> =
        functions.iter().map(|path| quoted(&path.display().to_string())).collect();
    let functions = functions.join(", ");
    let rules: String = rules.iter().map(written_rule).collect();
    let memory = memory_max_bytes.map_or(String::new(), |max| format!("memory-max = {max}\n"));
    let discovery = discovery.map_or(String::new(), |at| format!("discovery = \"{at}\"\n"));
    let metrics = config.metrics.map_or(String::new(), |at| format!("metrics = \"{at}\"\n"));
    let names: Vec<String> = config.metrics_names.iter().map(|name| quoted(name)).collect();
    let metrics = format!("{metrics}metrics-names = [{}]\n", names.join(", "));
    let control = config.control.as_ref().map_or(String::new(), |path| {
        format!("control = {}\n", quoted(&path.display().to_string()))
    });
    let namespaces: Vec<String> = namespaces.iter().map(|n| quoted(&option(n))).collect();
    format!(
        "listen = [{listen}]\ncntlid = \"{first}-{last}\"\n{discovery}{metrics}{control}{tls}nqn = {}\nnamespaces = [{}]\ncores = {cores:?}\n\
         poll = {poll}\nspin-us = {spin_us}\nmax-hops = {}\nmax-chain-bytes = {}\n\
         max-instructions = {}\nmax-instructions-per-call = {}\nmax-chains = {}\n{memory}\
         connections-per-address = {}\nconnections-per-host = {}\nassociations-per-address = {}\n\
         associations-per-host = {}\nsend-timeout-s = {}\nidle-timeout-s = {}\n\
         functions = [{functions}]\nallow-any-host = {allow_any_host}\n\
         kernel-tls = {kernel_tls}\novercommit-memory = {overcommit}\n{rules}",
        quoted(nqn),
        namespaces.join(", "),
        limits.hops,
        limits.bytes,
        limits.instructions,
        limits.instructions_per_call,
        limits.chains,
        hosts.connections_per_address,
        hosts.connections_per_host,
        hosts.associations_per_address,
        hosts.associations_per_host,
        hosts.send_timeout_s,
        hosts.idle_timeout_s,
    )
}

fn written_rule(rule: &HostRule) -> String {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let HostRule { nqn, subsystems, namespaces, rights, keys } = rule;
    let mut text = format!("[[host]]\nnqn = {}\n", quoted(nqn));
    if let Some(names) = subsystems {
        let names: Vec<String> = names.iter().map(|name| quoted(name)).collect();
        text.push_str(&format!("subsystems = [{}]\n", names.join(", ")));
    }
    if let Some(ids) = namespaces {
        text.push_str(&format!("namespaces = {ids:?}\n"));
    }
    let rights = rights.to_string();
    let rights: Vec<&str> = rights.split(", ").filter(|name| *name != "nothing").collect();
    text.push_str(&format!("rights = {rights:?}\n"));
    let path = |path: &PathBuf| quoted(&path.display().to_string());
    let HostKeys { tls_psk, tls_compat, dhchap_key, dhchap_ctrl_key } = keys;
    for (name, paths) in [("tls-psk", tls_psk), ("dhchap-key", dhchap_key)] {
        if !paths.is_empty() {
            let paths: Vec<String> = paths.iter().map(path).collect();
            text.push_str(&format!("{name} = [{}]\n", paths.join(", ")));
        }
    }
    if let Some(key) = dhchap_ctrl_key {
        text.push_str(&format!("dhchap-ctrl-key = {}\n", path(key)));
    }
    text.push_str(&format!("tls-compat = {tls_compat}\n"));
    text
}

/// Checks the rules of `[[host]]` rules.
fn check_rules(config: &TargetConfig) {
    for HostRule { nqn, subsystems, namespaces, rights, keys } in &config.rules {
        assert!(
            nqn == "*" && keys.is_empty() || is_nqn(nqn),
            "{nqn}: a rule with keys must name one host"
        );
        assert!(subsystems.iter().flatten().all(|nqn| is_nqn(nqn)));
        assert!(namespaces.iter().flatten().all(|nsid| (1..=1024).contains(nsid)));
        assert!(!rights.contains(Rights::LOAD) || rights.contains(Rights::READ));
        assert!(keys.dhchap_key.len() <= 2);
        assert!(keys.dhchap_ctrl_key.is_none() || !keys.dhchap_key.is_empty());
        assert!(
            keys.tls_psk.is_empty() || config.tls() != TlsMode::Off,
            "TLS keys although TLS is off"
        );
    }
    let listens = config.listen.0.iter().map(|one| one.address).chain(config.discovery);
    let is_open = listens.into_iter().any(|at| !at.ip().to_canonical().is_loopback());
    assert!(
        !is_open || config.allow_any_host || !config.rules.is_empty(),
        "hosts of other machines are allowed without rules"
    );
}

fn make_rule(input: &mut Input<'_>) -> HostRule {
    let choice = input.byte();
    let names = ["read", "write", "load", "keep", "run", "maps"];
    let chosen = (0..6).filter(|at| choice >> at & 1 != 0).map(|at| names[at]);
    HostRule {
        nqn: if choice & 64 != 0 { "*".to_owned() } else { make_nqn(input) },
        subsystems: (choice & 128 != 0)
            .then(|| (0..input.byte() % 3).map(|_| make_nqn(input)).collect()),
        namespaces: (input.byte() & 1 != 0)
            .then(|| (0..input.byte() % 4).map(|_| 1 + u32::from(input.byte())).collect()),
        rights: Rights::from_names(chosen).unwrap_or(Rights::USUAL),
        keys: make_keys(input),
    }
}

/// No keys, or some, which may be inconsistent.
fn make_keys(input: &mut Input<'_>) -> HostKeys {
    let choice = input.byte();
    if choice & 1 == 0 {
        return HostKeys::default();
    }
    let path = |input: &mut Input<'_>| PathBuf::from(format!("/{}", word(input)));
    HostKeys {
        tls_psk: (0..choice >> 1 & 3).map(|_| path(input)).collect(),
        tls_compat: choice & 8 != 0,
        dhchap_key: (0..choice >> 4 & 3).map(|_| path(input)).collect(),
        dhchap_ctrl_key: (choice & 64 != 0).then(|| path(input)),
    }
}

/// A configuration that follows the rules.
fn make(input: &mut Input<'_>) -> TargetConfig {
    // TOML integers are signed.
    let number = |input: &mut Input<'_>| input.edge() & i64::MAX as u64;
    let address = |input: &mut Input<'_>| match input.byte() & 1 {
        0 => SocketAddr::from((
            std::net::Ipv4Addr::from(input.number() as u32),
            input.number() as u16,
        )),
        _ => SocketAddr::from((u128::from(input.number()).to_be_bytes(), input.number() as u16)),
    };
    let listen = (0..=input.byte() % 3).map(|_| make_listener(address(input), input)).collect();
    let (listen, choice) = (Listeners(listen), input.byte());
    let first = 1 + input.number() as u16 % 10_000;
    let discovery = (choice & 1 != 0).then(|| address(input));
    let limits = Limits {
        hops: number(input) as u32,
        bytes: number(input),
        instructions: number(input),
        instructions_per_call: number(input) as u32,
        chains: number(input) as usize,
    };
    let cores = (0..choice >> 4).map(|_| number(input) as usize).collect();
    let (poll, spin_us) = (choice & 2 != 0, number(input) as u32);
    let namespaces = (0..choice >> 2 & 3).map(|_| make_namespace(input)).collect();
    let nqn = make_nqn(input);
    let memory_max_bytes = (choice & 4 != 0).then(|| number(input));
    let hosts = HostLimits {
        connections_per_address: number(input) as u32,
        connections_per_host: number(input) as u32,
        associations_per_address: number(input) as u32,
        associations_per_host: number(input) as u32,
        send_timeout_s: number(input) as u32,
        idle_timeout_s: number(input) as u32,
    };
    TargetConfig {
        listen,
        discovery,
        cntlids: first..=first + 1023 + input.number() as u16 % 50_000,
        nqn,
        namespaces,
        cores,
        poll,
        spin_us,
        limits,
        memory_max_bytes,
        overcommit_memory: input.byte() & 1 != 0,
        hosts,
        rules: (0..input.byte() % 3).map(|_| make_rule(input)).collect(),
        functions: (0..input.byte() % 3).map(|_| PathBuf::from(word(input))).collect(),
        tls: [TlsMode::ByRules, TlsMode::Off, TlsMode::Allowed, TlsMode::Required]
            [usize::from(input.byte() & 3)],
        kernel_tls: input.byte() & 1 != 0,
        allow_any_host: choice & 8 != 0,
        metrics: (input.byte() & 1 != 0).then(|| address(input)),
        metrics_names: (0..input.byte() % 3).map(|_| word(input)).collect(),
        control: (input.byte() & 1 != 0).then(|| PathBuf::from(word(input))),
    }
}

fn make_listener(address: SocketAddr, input: &mut Input<'_>) -> ListenConfig {
    let states = [AnaState::Optimized, AnaState::NonOptimized, AnaState::Inaccessible];
    let state = |input: &mut Input<'_>| states[usize::from(input.byte() % 3)];
    let mut ana = AnaStates::all(state(input));
    for _ in 0..input.byte() % 3 {
        let group = 1 + u32::from(input.byte() % 32);
        ana.set(group, state(input)).expect("such a group");
    }
    let advertised = ["192.0.2.7", "2001:db8::7", "storage-1.example.org"];
    let host = advertised[usize::from(input.byte() % 3)].to_owned();
    let port = (input.byte() & 1 != 0).then(|| 1 + u16::from(input.byte()));
    let advertise = (input.byte() & 1 != 0).then_some(Advertised { host, port });
    let port_id = (input.byte() & 1 != 0).then(|| 1 + u16::from(input.byte()));
    let transport = [Transport::Tcp, Transport::Rdma][usize::from(input.byte() % 2)];
    ListenConfig { address, advertise, port_id, ana, transport }
}

fn make_nqn(input: &mut Input<'_>) -> String {
    format!("nqn.2026-01.org.x:{}", word(input))
}

/// Arbitrary text without commas, which end an option.
fn word(input: &mut Input<'_>) -> String {
    let length = usize::from(input.byte() % 32);
    String::from_utf8_lossy(input.bytes(length)).replace(',', ";")
}

fn make_namespace(input: &mut Input<'_>) -> NamespaceConfig {
    let choice = input.byte();
    let lba_bytes = if choice & 1 == 0 { 512 } else { 4096 };
    let subsystem = (choice & 2 != 0).then(|| make_nqn(input));
    let path = |input: &mut Input<'_>| PathBuf::from(format!("/{}", word(input)));
    let source = match choice >> 2 & 3 {
        0 if choice & 16 != 0 => NamespaceSource::MemoryFile {
            path: path(input),
            latency_us: input.edge() % 3_600_000_001,
            iops: input.edge() % 1_000_000_001,
        },
        0 => NamespaceSource::Memory {
            size_bytes: input.edge().max(u64::from(lba_bytes)),
            latency_us: input.edge() % 3_600_000_001,
            iops: input.edge() % 1_000_000_001,
        },
        1 if choice & 0xC0 == 0xC0 => NamespaceSource::Drive { path: path(input) },
        1 => NamespaceSource::File {
            path: path(input),
            size_bytes: (choice & 16 != 0).then(|| input.edge()),
        },
        kind => NamespaceSource::Pieces {
            paths: (0..2 + (choice >> 6)).map(|_| path(input)).collect(),
            size_bytes: (choice & 16 != 0).then(|| input.edge()),
            layout: match kind {
                2 => Layout::Concatenated,
                _ => Layout::Striped { chunk_bytes: 4096 << (input.byte() % 19) },
            },
        },
    };
    let nsid = (choice & 32 != 0).then(|| 1 + u32::from(input.byte()));
    let is_drive = matches!(source, NamespaceSource::Drive { .. });
    let lba_bytes = if is_drive { 512 } else { lba_bytes };
    let uuid = (input.byte() & 1 != 0).then(|| {
        let mut uuid = [1; 16];
        uuid[8..].copy_from_slice(&input.number().to_be_bytes());
        uuid
    });
    let ana_group = 1 + u32::from(input.byte() % 32);
    NamespaceConfig { source, lba_bytes, subsystem, nsid, uuid, ana_group }
}
