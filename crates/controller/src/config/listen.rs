//! The addresses of a target, as in `--listen` and in the file.

use super::values::parse_address;
use crate::limits::MAX_ANA_GROUPS;
use bpfof_nvme::log_page::AnaGroup;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// One address that the target listens on: a port of the NVM subsystem, as the specification calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenConfig {
    /// The address to listen on.
    pub address: SocketAddr,
    /// The address for the discovery log, if hosts reach the listener by another one.
    pub advertise: Option<Advertised>,
    /// Its number in the discovery log (PORTID), not 0; the default is its position.
    pub port_id: Option<u16>,
    /// The ANA states of namespaces at this listener.
    pub ana: AnaStates,
    /// The transport of its connections.
    pub transport: Transport,
}

/// The transport of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA, with a network card of this machine.
    Rdma,
}

impl Transport {
    /// The name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Transport::Tcp => "tcp",
            Transport::Rdma => "rdma",
        }
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "tcp" => Ok(Transport::Tcp),
            "rdma" => Ok(Transport::Rdma),
            _ => Err(format!("transport {text:?} is neither tcp nor rdma")),
        }
    }
}

/// All listeners, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listeners(pub Vec<ListenConfig>);

/// A name or an address by which hosts reach a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advertised {
    /// An IP address, or a name that hosts resolve.
    pub host: String,
    /// None: the listener's port.
    pub port: Option<u16>,
}

/// The accessibility of a namespace (NVMe Base 2.0 §8.1.1), with the numbers of the specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnaState {
    /// With the best performance.
    #[default]
    Optimized = AnaGroup::OPTIMIZED as isize,
    /// With less performance: hosts use this path only if no other is better.
    NonOptimized = AnaGroup::NON_OPTIMIZED as isize,
    /// Not accessible now: I/O ends with the status Asymmetric Access Inaccessible.
    Inaccessible = AnaGroup::INACCESSIBLE as isize,
}

/// The state of each group of namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnaStates([AnaState; MAX_ANA_GROUPS as usize]);

impl AnaState {
    /// All states with their names.
    const NAMES: [(AnaState, &'static str); 3] = [
        (AnaState::Optimized, "optimized"),
        (AnaState::NonOptimized, "non-optimized"),
        (AnaState::Inaccessible, "inaccessible"),
    ];

    /// The name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        AnaState::NAMES.iter().find(|(state, _)| *state == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for AnaState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for AnaState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = AnaState::NAMES.iter().find(|(_, name)| *name == text);
        let unknown = || format!("{text:?} is not optimized, non-optimized or inaccessible");
        found.map(|(state, _)| *state).ok_or_else(unknown)
    }
}

impl AnaStates {
    /// All groups in one state.
    #[must_use]
    pub const fn all(state: AnaState) -> AnaStates {
        AnaStates([state; MAX_ANA_GROUPS as usize])
    }

    /// The state of a group; groups count from 1.
    #[must_use]
    pub fn of(&self, group: u32) -> AnaState {
        self.0.get(group.wrapping_sub(1) as usize).copied().unwrap_or_default()
    }

    /// Sets the state of a group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn set(&mut self, group: u32, state: AnaState) -> Result<(), String> {
        let slot = self.0.get_mut(group.wrapping_sub(1) as usize);
        *slot.ok_or_else(|| no_group(group))? = state;
        Ok(())
    }
}

/// The error for an invalid ANA group.
pub(crate) fn no_group(group: impl fmt::Display) -> String {
    format!("an ANA group must be 1 to {MAX_ANA_GROUPS}, not {group}")
}

impl FromStr for Advertised {
    type Err = String;

    /// `HOST`, `HOST:PORT`; an IPv6 address with a port is in brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| {
            let example = "192.0.2.7:4420, [2001:db8::7]:4420 or storage1.example.org";
            Err(format!("advertise={text:?}: {why}; write it as {example}"))
        };
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Advertised { host: ip.to_string(), port: None }.checked(bad);
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            let (host, port) = (address.ip().to_string(), Some(address.port()));
            return Advertised { host, port }.checked(bad);
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => match port.parse() {
                Ok(port) => (host, Some(port)),
                Err(_) => return bad("invalid port"),
            },
            None => (text, None),
        };
        Advertised { host: host.to_owned(), port }.checked(bad)
    }
}

impl Advertised {
    fn checked(
        self,
        bad: impl Fn(&str) -> Result<Advertised, String>,
    ) -> Result<Advertised, String> {
        let is_name = |host: &str| {
            let label = |label: &str| {
                let of_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
                !label.is_empty() && label.len() < 64 && label.chars().all(of_name)
            };
            host.len() < 254 && host.split('.').all(label)
        };
        match self.host.parse::<IpAddr>() {
            _ if self.port == Some(0) => bad("port 0 is invalid"),
            Ok(ip) if ip.is_unspecified() => bad("hosts cannot connect to an unspecified address"),
            Ok(_) => Ok(self),
            Err(_) if is_name(&self.host) => Ok(self),
            Err(_) => bad("neither an IP address nor a host name"),
        }
    }
}

impl fmt::Display for Advertised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.port, self.host.contains(':')) {
            (Some(port), true) => write!(f, "[{}]:{port}", self.host),
            (Some(port), false) => write!(f, "{}:{port}", self.host),
            (None, _) => f.write_str(&self.host),
        }
    }
}

impl From<SocketAddr> for ListenConfig {
    fn from(address: SocketAddr) -> Self {
        ListenConfig {
            address,
            advertise: None,
            port_id: None,
            ana: AnaStates::default(),
            transport: Transport::default(),
        }
    }
}

impl From<SocketAddr> for Listeners {
    fn from(address: SocketAddr) -> Self {
        Listeners(vec![address.into()])
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for Listeners {
    fn from(address: (I, u16)) -> Self {
        SocketAddr::from(address).into()
    }
}

impl FromStr for ListenConfig {
    type Err = String;

    /// `ADDRESS[,transport=tcp|rdma][,advertise=HOST[:PORT]][,id=N][,ana=STATE][,ana=GROUP:STATE]…`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (address, options) = text.split_once(',').unwrap_or((text, ""));
        let mut config = ListenConfig::from(parse_address(address)?);
        let mut seen = Vec::new();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').ok_or(format!("{option:?} has no value"))?;
            // `ana` may be given once for each group.
            if key != "ana" && seen.contains(&key) {
                return Err(format!("{key}= is given twice"));
            }
            seen.push(key);
            match key {
                "transport" => config.transport = value.parse()?,
                "advertise" => config.advertise = Some(value.parse()?),
                "id" => config.port_id = Some(parse_port_id(value)?),
                "ana" => match value.split_once(':') {
                    Some((group, state)) => config.ana.set(parse_group(group)?, state.parse()?)?,
                    None => config.ana = AnaStates::all(value.parse()?),
                },
                _ => return Err(format!("unknown option {key:?} of an address to listen on")),
            }
        }
        Ok(config)
    }
}

impl fmt::Display for ListenConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenConfig { address, advertise, port_id, ana, transport } = self;
        write!(f, "{address}")?;
        if *transport == Transport::Rdma {
            f.write_str(",transport=rdma")?;
        }
        if let Some(advertise) = advertise {
            write!(f, ",advertise={advertise}")?;
        }
        if let Some(id) = port_id {
            write!(f, ",id={id}")?;
        }
        let mut differ = (1..=MAX_ANA_GROUPS).filter(|group| ana.of(*group) != AnaState::default());
        differ.try_for_each(|group| write!(f, ",ana={group}:{}", ana.of(group)))
    }
}

fn parse_port_id(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|id| *id > 0).ok_or(format!("id={text} is not 1 to 65535"))
}

fn parse_group(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| no_group(text))
}

/// A table `[[listen]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Table {
    address: String,
    transport: Option<String>,
    advertise: Option<String>,
    id: Option<u16>,
    ana: Option<AnaTable>,
}

/// One state for all groups, or states by group.
#[derive(Deserialize)]
#[serde(untagged)]
enum AnaTable {
    All(String),
    ByGroup(BTreeMap<String, String>),
}

impl Table {
    fn into_config(self) -> Result<ListenConfig, String> {
        let mut config = ListenConfig::from(parse_address(&self.address)?);
        if let Some(transport) = self.transport {
            config.transport = transport.parse()?;
        }
        config.advertise = self.advertise.map(|text| text.parse()).transpose()?;
        config.port_id = self.id.map(|id| parse_port_id(&id.to_string())).transpose()?;
        match self.ana {
            None => {}
            Some(AnaTable::All(state)) => config.ana = AnaStates::all(state.parse()?),
            Some(AnaTable::ByGroup(states)) => {
                for (group, state) in states {
                    config.ana.set(parse_group(&group)?, state.parse()?)?;
                }
            }
        }
        Ok(config)
    }
}

/// A text as on the command line, or a table.
struct OneVisitor;

impl<'de> Visitor<'de> for OneVisitor {
    type Value = ListenConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address to listen on, or a table with one")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ListenConfig, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<ListenConfig, M::Error> {
        let table = Table::deserialize(MapAccessDeserializer::new(map))?;
        table.into_config().map_err(M::Error::custom)
    }
}

impl<'de> Deserialize<'de> for ListenConfig {
    fn deserialize<D: Deserializer<'de>>(form: D) -> Result<Self, D::Error> {
        form.deserialize_any(OneVisitor)
    }
}

/// A text, or a list of texts and tables.
struct AllVisitor;

impl<'de> Visitor<'de> for AllVisitor {
    type Value = Listeners;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address to listen on, or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Listeners, E> {
        OneVisitor.visit_str(text).map(|one| Listeners(vec![one]))
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Listeners, S::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        Ok(Listeners(all))
    }
}

impl<'de> Deserialize<'de> for Listeners {
    fn deserialize<D: Deserializer<'de>>(form: D) -> Result<Self, D::Error> {
        form.deserialize_any(AllVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TargetConfig;

    #[test]
    fn addresses_are_parsed_and_bad_ones_explained() {
        let parse = |text: &str| text.parse::<ListenConfig>();
        let full = "[::]:4420,transport=rdma,advertise=storage1.example.org:4421,id=7,ana=non-optimized,ana=2:inaccessible";
        let config = parse(full).expect("good");
        let name = Advertised { host: "storage1.example.org".to_owned(), port: Some(4421) };
        assert_eq!((&config.advertise, config.port_id), (&Some(name), Some(7)));
        assert_eq!(config.transport, Transport::Rdma);
        assert_eq!(
            [1, 2, 3].map(|group| config.ana.of(group)),
            [AnaState::NonOptimized, AnaState::Inaccessible, AnaState::NonOptimized]
        );
        assert_eq!(parse(&config.to_string()), Ok(config));
        for advertised in ["192.0.2.7", "192.0.2.7:1", "2001:db8::7", "[2001:db8::7]:1", "a-b"] {
            let config = parse(&format!("127.0.0.1:1,advertise={advertised}")).expect(advertised);
            assert_eq!(config.advertise.expect("it is there").to_string(), advertised);
        }
        for (text, reason) in [
            ("nowhere", "is not an IP address with a port"),
            ("127.0.0.1:1,advertise=0.0.0.0:1", "unspecified address"),
            ("127.0.0.1:1,advertise=a:0", "port 0"),
            ("127.0.0.1:1,advertise=a:x", "invalid port"),
            ("127.0.0.1:1,advertise=a..b", "neither an IP address nor a host name"),
            ("127.0.0.1:1,advertise=a b", "neither an IP address nor a host name"),
            ("127.0.0.1:1,id=0", "not 1 to 65535"),
            ("127.0.0.1:1,ana=good", "is not optimized"),
            ("127.0.0.1:1,ana=0:optimized", "1 to 32, not 0"),
            ("127.0.0.1:1,ana=33:optimized", "1 to 32, not 33"),
            ("127.0.0.1:1,transport=fc", "neither tcp nor rdma"),
            ("127.0.0.1:1,colour=red", "unknown option"),
            ("127.0.0.1:1,id", "has no value"),
            ("127.0.0.1:1,id=1,id=2", "id= is given twice"),
            ("127.0.0.1:1,transport=rdma,transport=tcp", "transport= is given twice"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn files_have_texts_lists_and_tables() {
        let listen = |text: &str| TargetConfig::from_toml(text).map(|config| config.listen.0);
        let one = "127.0.0.1:1,id=2,ana=1:inaccessible";
        let parsed: ListenConfig = one.parse().expect("good");
        let other = ListenConfig::from(SocketAddr::from(([127, 0, 0, 1], 2)));
        assert_eq!(listen(&format!("listen = \"{one}\"")), Ok(vec![parsed.clone()]));
        let both = Ok(vec![parsed, other]);
        assert_eq!(listen(&format!("listen = [\"{one}\", \"127.0.0.1:2\"]")), both);
        let tables = "[[listen]]\naddress = \"127.0.0.1:1\"\nid = 2\nana = { 1 = \"inaccessible\" }\n\
                      [[listen]]\naddress = \"127.0.0.1:2\"\nana = \"optimized\"\ntransport = \"tcp\"\n";
        assert_eq!(listen(tables), both);
        for (text, reason) in [
            ("\nlisten = 7", "line 2, column 10"),
            ("[[listen]]\naddress = \"127.0.0.1:1\"\ncolour = 1", "unknown field `colour`"),
            ("[[listen]]\naddress = \"127.0.0.1:1\"\nana = { 99 = \"optimized\" }", "1 to 32"),
            ("[[listen]]\nid = 1", "missing field `address`"),
        ] {
            let message = listen(text).expect_err(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
    }
}
