//! The configuration file.

use super::TargetConfig;
use super::error::ConfigError;
use super::listen::Listeners;
use super::tls_mode::TlsMode;
use super::values::{parse_address, parse_cntlids, parse_size, parse_tls_mode};
use crate::access::{HostKeys, HostRule, Rights, UnknownRight};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// An address in a file.
fn address<'de, D: Deserializer<'de>>(form: D) -> Result<Option<SocketAddr>, D::Error> {
    parse_address(&String::deserialize(form)?).map(Some).map_err(D::Error::custom)
}

/// A range of controller ids.
fn cntlids<'de, D: Deserializer<'de>>(form: D) -> Result<Option<RangeInclusive<u16>>, D::Error> {
    parse_cntlids(&String::deserialize(form)?).map(Some).map_err(D::Error::custom)
}

/// Whether hosts connect by TLS.
fn tls_mode<'de, D: Deserializer<'de>>(form: D) -> Result<Option<TlsMode>, D::Error> {
    let text = String::deserialize(form)?;
    parse_tls_mode(&text).map(Some).map_err(D::Error::custom)
}

/// A size in a file: a number of bytes, or a text as on the command line.
fn size<'de, D: Deserializer<'de>>(form: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Bytes(u64),
        Text(String),
    }
    match Form::deserialize(form)? {
        Form::Bytes(bytes) => Ok(Some(bytes)),
        Form::Text(text) => parse_size(&text).map(Some).map_err(D::Error::custom),
    }
}

/// The file's structure. Namespaces are written as on the command line.
// One field for each option.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct FileForm {
    listen: Option<Listeners>,
    #[serde(default, deserialize_with = "address")]
    discovery: Option<SocketAddr>,
    #[serde(default, deserialize_with = "cntlids")]
    cntlid: Option<RangeInclusive<u16>>,
    nqn: Option<String>,
    #[serde(default)]
    namespaces: Vec<toml::Spanned<String>>,
    cores: Option<Vec<usize>>,
    poll: Option<bool>,
    spin_us: Option<u32>,
    max_hops: Option<u32>,
    max_chain_bytes: Option<u64>,
    max_instructions: Option<u64>,
    max_instructions_per_call: Option<u32>,
    max_chains: Option<usize>,
    #[serde(default, deserialize_with = "size")]
    memory_max: Option<u64>,
    overcommit_memory: Option<bool>,
    connections_per_address: Option<u32>,
    connections_per_host: Option<u32>,
    associations_per_address: Option<u32>,
    associations_per_host: Option<u32>,
    send_timeout_s: Option<u32>,
    idle_timeout_s: Option<u32>,
    #[serde(default, deserialize_with = "tls_mode")]
    tls: Option<TlsMode>,
    kernel_tls: Option<bool>,
    functions: Option<Vec<PathBuf>>,
    allow_any_host: Option<bool>,
    #[serde(default, deserialize_with = "address")]
    metrics: Option<SocketAddr>,
    metrics_names: Option<Vec<String>>,
    control: Option<PathBuf>,
    #[serde(default)]
    host: Vec<toml::Spanned<HostForm>>,
}

/// A rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct HostForm {
    nqn: String,
    subsystems: Option<Vec<String>>,
    namespaces: Option<Vec<u32>>,
    rights: Option<Vec<String>>,
    #[serde(default, deserialize_with = "keys")]
    tls_psk: Vec<PathBuf>,
    #[serde(default)]
    tls_compat: bool,
    #[serde(default, deserialize_with = "keys")]
    dhchap_key: Vec<PathBuf>,
    dhchap_ctrl_key: Option<PathBuf>,
}

/// Files with keys, at least one: an empty list would let every host in without a key, not none.
fn keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    let files = Vec::deserialize(deserializer)?;
    if files.is_empty() {
        let what = "no keys: name a file, or remove the rule; without this line the host could \
                    connect without a key";
        return Err(D::Error::custom(what));
    }
    Ok(files)
}

impl HostForm {
    fn into_rule(self) -> Result<HostRule, UnknownRight> {
        let HostForm { nqn, subsystems, namespaces, rights, .. } = self;
        let HostForm { tls_psk, tls_compat, dhchap_key, dhchap_ctrl_key, .. } = self;
        let keys = HostKeys { tls_psk, tls_compat, dhchap_key, dhchap_ctrl_key };
        let rights = match rights {
            Some(names) => Rights::from_names(names.iter().map(String::as_str))?,
            None => Rights::USUAL,
        };
        Ok(HostRule { nqn, subsystems, namespaces, rights, keys })
    }
}

impl TargetConfig {
    /// Reads a TOML file over the defaults. Also returns its text.
    pub fn from_file(path: &Path) -> Result<(TargetConfig, String), ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let config = TargetConfig::from_toml(&text)
            .map_err(|message| ConfigError::File { path: path.to_owned(), message })?;
        Ok((config, text))
    }

    /// Parses TOML over the defaults. The error names line and column.
    pub fn from_toml(text: &str) -> Result<TargetConfig, String> {
        let place = |at: usize| {
            let before = &text[..text.floor_char_boundary(at)];
            let line = before.matches('\n').count() + 1;
            let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
            format!("line {line}, column {column}")
        };
        let form: FileForm = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            format!("{}: {}", place(at), error.message())
        })?;
        let mut config = TargetConfig::default();
        for namespace in form.namespaces {
            let at = namespace.span().start;
            let parsed = namespace.get_ref().parse().map_err(|e| format!("{}: {e}", place(at)))?;
            config.namespaces.push(parsed);
        }
        for host in form.host {
            let at = host.span().start;
            let rule = host.into_inner().into_rule().map_err(|e| format!("{}: {e}", place(at)))?;
            config.rules.push(rule);
        }
        set(&mut config.tls, form.tls);
        set(&mut config.kernel_tls, form.kernel_tls);
        set(&mut config.functions, form.functions);
        set(&mut config.allow_any_host, form.allow_any_host);
        let limits = &mut config.limits;
        set(&mut limits.hops, form.max_hops);
        set(&mut limits.bytes, form.max_chain_bytes);
        set(&mut limits.instructions, form.max_instructions);
        set(&mut limits.instructions_per_call, form.max_instructions_per_call);
        set(&mut limits.chains, form.max_chains);
        config.memory_max_bytes = form.memory_max;
        set(&mut config.overcommit_memory, form.overcommit_memory);
        let hosts = &mut config.hosts;
        set(&mut hosts.connections_per_address, form.connections_per_address);
        set(&mut hosts.connections_per_host, form.connections_per_host);
        set(&mut hosts.associations_per_address, form.associations_per_address);
        set(&mut hosts.associations_per_host, form.associations_per_host);
        set(&mut hosts.send_timeout_s, form.send_timeout_s);
        set(&mut hosts.idle_timeout_s, form.idle_timeout_s);
        set(&mut config.listen, form.listen);
        config.discovery = form.discovery;
        config.metrics = form.metrics;
        set(&mut config.metrics_names, form.metrics_names);
        config.control = form.control;
        set(&mut config.cntlids, form.cntlid);
        set(&mut config.nqn, form.nqn);
        set(&mut config.cores, form.cores);
        set(&mut config.poll, form.poll);
        set(&mut config.spin_us, form.spin_us);
        Ok(config)
    }
}

fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}
