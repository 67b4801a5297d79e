//! The user's file `hosts.toml`, which names the NQN of this host and its key files for each target.
//!
//! ```toml
//! [[target]]
//! match = "nvme-tcp://10.0.0.2:4420/*"    # or nvme-rdma://, or an NQN; * stands for anything
//! hostnqn = "nqn.2026-01.org.example:app"
//! tls-psk = "app.psk"                     # relative to the folder of this file
//! ```

use crate::credentials::KeyFiles;
use crate::{Error, Portal, TargetUrl};
use bpfof_auth::key_file;
use bpfof_nvme::fabrics::NQN_MAX_BYTES;
use bpfof_nvme::tcp::DEFAULT_PORT;
use serde::Deserialize;
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// Longest accepted file, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Path of the file below the user's configuration folder.
const PLACE: &str = "bpfof/hosts.toml";

/// The entries of a file: for each target the NQN of this host and files with its keys.
#[derive(Clone, Debug)]
pub struct HostsFile {
    targets: Vec<Target>,
    /// The file itself. Relative paths of key files are relative to its folder.
    path: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(default)]
    target: Vec<toml::Spanned<Target>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Target {
    #[serde(rename = "match")]
    pattern: String,
    hostnqn: Option<String>,
    tls_psk: Option<PathBuf>,
    #[serde(default)]
    tls_compat: bool,
    dhchap_key: Option<PathBuf>,
    dhchap_ctrl_key: Option<PathBuf>,
}

impl Target {
    fn check(&self) -> Result<(), String> {
        let is_known = ["nvme-tcp://", "nvme-rdma://", "nqn.", "*"]
            .iter()
            .any(|start| self.pattern.starts_with(start));
        if !is_known {
            let pattern = &self.pattern;
            return Err(format!(
                "match = {pattern:?} is neither the address of a target, nvme-tcp://HOST:PORT/NQN, \
                 nor the NQN of a subsystem (* matches anything)"
            ));
        }
        let keys = [&self.tls_psk, &self.dhchap_key, &self.dhchap_ctrl_key];
        if keys.into_iter().flatten().any(|path| key_file::is_key(path)) {
            return Err("a key is given instead of the name of a file with it".to_owned());
        }
        if self.tls_compat && self.tls_psk.is_none() {
            return Err("tls-compat says how a key is used, and needs a tls-psk".to_owned());
        }
        let is_nqn = |nqn: &&String| nqn.starts_with("nqn.") && nqn.len() <= NQN_MAX_BYTES;
        match self.hostnqn.as_ref().filter(|nqn| !is_nqn(nqn)) {
            Some(nqn) => Err(format!("hostnqn = {nqn:?} is not the NQN of a host")),
            None => Ok(()),
        }
    }

    fn is_about(&self, url: &TargetUrl, portal: &Portal) -> bool {
        let scheme = url.transport.scheme();
        let Some((before, rest)) = self.pattern.split_once("://") else {
            return matches(&self.pattern, &url.nqn);
        };
        let pattern = match rest.split_once('/') {
            Some((place, nqn)) => format!("{before}://{}/{nqn}", usual(place)),
            None => format!("{before}://{}", usual(rest)),
        };
        let portal = &Portal { host: usual(&portal.host), port: portal.port };
        let with_port = format!("{scheme}{portal}/{}", url.nqn);
        let without = || {
            let text = portal.to_string();
            let host = text.rsplit_once(':').map_or("", |(host, _)| host);
            format!("{scheme}{host}/{}", url.nqn)
        };
        matches(&pattern, &with_port)
            || portal.port == DEFAULT_PORT && matches(&pattern, &without())
    }

    /// Whether the entry matches all portals of an address, because its keys apply to all of them.
    fn is_about_all(&self, url: &TargetUrl) -> bool {
        url.portals().all(|portal| self.is_about(url, &portal))
    }

    /// A portal of the address that the entry does not match, although it matches another one.
    fn leaves_out(&self, url: &TargetUrl) -> Option<Portal> {
        let (about, others): (Vec<_>, Vec<_>) =
            url.portals().partition(|portal| self.is_about(url, portal));
        if about.is_empty() { None } else { others.into_iter().next() }
    }

    /// Whether this entry has a kind of key that the other one lacks.
    fn protects_more_than(&self, other: Option<&Self>) -> bool {
        let has =
            |of: &Self| [&of.tls_psk, &of.dhchap_key, &of.dhchap_ctrl_key].map(Option::is_some);
        let others = other.map_or([false; 3], has);
        has(self).into_iter().zip(others).any(|(has, other)| has && !other)
    }
}

/// The canonical form of a host, perhaps in brackets or with a port: names in lower case, without a trailing dot; IPv6
/// addresses compressed; IPv4 addresses as four numbers, also those in IPv6 form.
fn usual(place: &str) -> String {
    let bracketed = place.strip_prefix('[').and_then(|rest| rest.split_once(']'));
    let (host, rest) = match bracketed {
        Some((host, rest)) => (host, rest.to_owned()),
        None if place.matches(':').count() == 1 => {
            let (host, port) = place.split_once(':').unwrap_or((place, ""));
            (host, format!(":{port}"))
        }
        None => (place, String::new()),
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let address = host.parse::<Ipv6Addr>().ok().map(|address| IpAddr::from(address).to_canonical());
    let host = match address.or_else(|| numbers(&host).map(IpAddr::from)) {
        Some(IpAddr::V4(address)) => return format!("{address}{rest}"),
        Some(IpAddr::V6(address)) => address.to_string(),
        None => host,
    };
    if bracketed.is_some() { format!("[{host}]{rest}") } else { format!("{host}{rest}") }
}

/// The IPv4 address that a resolver takes a text for: one to four numbers, octal with a leading 0 and hexadecimal with
/// 0x, of which the last fills what is left of the address (inet_aton(3)).
fn numbers(host: &str) -> Option<Ipv4Addr> {
    let number = |text: &str| {
        let (digits, radix) = match text.strip_prefix("0x") {
            Some(digits) => (digits, 16),
            None if text.len() > 1 && text.starts_with('0') => (text, 8),
            None => (text, 10),
        };
        let is_number = digits.chars().all(|digit| digit.is_digit(radix));
        is_number.then(|| u32::from_str_radix(digits, radix).ok()).flatten()
    };
    let (last, first) = host.rsplit_once('.').map_or((host, None), |(of, last)| (last, Some(of)));
    let (mut address, mut left) = (0_u32, 4);
    for part in first.into_iter().flat_map(|first| first.split('.')) {
        left -= 1;
        let part = number(part).filter(|part| *part < 256 && left > 0)?;
        address |= part << (8 * left);
    }
    let last = number(last).filter(|last| u64::from(*last) < 1 << (8 * left))?;
    Some(Ipv4Addr::from(address | last))
}

/// Whether a text matches a pattern, in which `*` stands for any number of characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, others)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let (middle, last) = others.rsplit_once('*').unwrap_or(("", others));
    for part in middle.split('*') {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

impl HostsFile {
    /// The path of the user's file: `$XDG_CONFIG_HOME/bpfof/hosts.toml`, or `~/.config/bpfof/hosts.toml`. None if
    /// neither variable holds an absolute path.
    #[must_use]
    pub fn default_path() -> Option<PathBuf> {
        place(std::env::var_os("XDG_CONFIG_HOME"), std::env::var_os("HOME"))
    }

    /// Reads the user's file; None if it does not exist.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn of_user() -> Result<Option<Self>, Error> {
        let Some(path) = Self::default_path() else { return Ok(None) };
        match std::fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => Self::read(&path).map(Some),
        }
    }

    /// Reads a file. The key files that it names are read when a connection is made.
    ///
    /// # Errors
    /// [`Error::Key`]: it cannot be read, or other users may read it. [`Error::HostsFile`]: it belongs to another user,
    /// or its contents are invalid.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let (text, owner) = key_file::read_private(path, MAX_BYTES)?;
        let refused = |why: String| Error::HostsFile { path: path.to_owned(), why };
        let is_ours = [0, rustix::process::geteuid().as_raw()];
        // Otherwise a user who sets the environment of a program with more privileges could choose its keys.
        if !is_ours.contains(&owner) {
            return Err(refused("it belongs to another user".to_owned()));
        }
        Ok(Self { targets: parse(&text).map_err(refused)?, path: path.to_owned() })
    }

    /// Completes an address with the first entry that matches all of its portals, but only if the address itself names
    /// neither this host's NQN nor keys.
    ///
    /// # Errors
    /// [`Error::HostsFile`]: an earlier entry matches some of the portals, and has a kind of key that the matching
    /// entry lacks. Those portals would be connected without the key.
    pub fn complete(&self, url: &mut TargetUrl) -> Result<(), Error> {
        if url.host_nqn.is_some() || url.keys != KeyFiles::default() {
            return Ok(());
        }
        let at = self.targets.iter().position(|target| target.is_about_all(url));
        let found = at.map(|at| &self.targets[at]);
        for target in self.targets.iter().take(at.unwrap_or(self.targets.len())) {
            if let Some(portal) = target.leaves_out(url)
                && target.protects_more_than(found)
            {
                let pattern = &target.pattern;
                let why = format!(
                    "match = {pattern:?} has keys for some portals of the address, but not for \
                     {portal}: change it to match all portals (* matches anything) or the NQN of \
                     the subsystem, or name only one portal"
                );
                return Err(Error::HostsFile { path: self.path.clone(), why });
            }
        }
        let Some(found) = found else { return Ok(()) };
        let folder = self.path.parent().unwrap_or(Path::new(""));
        let file = |path: &Option<PathBuf>| path.as_ref().map(|path| folder.join(path));
        url.host_nqn.clone_from(&found.hostnqn);
        url.keys = KeyFiles {
            tls_psk: file(&found.tls_psk),
            tls_compat: found.tls_compat,
            dhchap_key: file(&found.dhchap_key),
            dhchap_ctrl_key: file(&found.dhchap_ctrl_key),
        };
        Ok(())
    }
}

fn place(config: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let config = config.and_then(absolute);
    let folder = config.or_else(|| Some(home.and_then(absolute)?.join(".config")))?;
    Some(folder.join(PLACE))
}

fn parse(text: &str) -> Result<Vec<Target>, String> {
    let line = |at: usize| {
        let before = text.as_bytes().iter().take(at);
        format!("line {}", before.filter(|byte| **byte == b'\n').count() + 1)
    };
    let form: Form = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        format!("{}: {}", line(at), error.message())
    })?;
    let checked = form.target.into_iter().map(|target| {
        let at = target.span().start;
        let target = target.into_inner();
        target.check().map_err(|why| format!("{}: {why}", line(at)))?;
        Ok(target)
    });
    checked.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn patterns() {
        for (pattern, text, is_it) in [
            ("nqn.a", "nqn.a", true),
            ("nqn.a", "nqn.ab", false),
            ("*", "anything", true),
            ("nqn.*", "nqn.", true),
            ("nqn.*:disk", "nqn.x:disk", true),
            ("nqn.*:disk", "nqn.x:disk2", false),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("a**c", "abc", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, text), is_it, "{pattern} {text}");
        }
    }

    #[test]
    fn the_first_entry_about_a_target_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts.toml");
        let text = "[[target]]\nmatch = \"nvme-tcp://10.0.0.2/*\"\nhostnqn = \"nqn.a\"\n\
                    tls-psk = \"a.psk\"\ntls-compat = true\n\
                    [[target]]\nmatch = \"nqn.*:disk\"\ndhchap-key = \"/k/b\"\n\
                    dhchap-ctrl-key = \"c\"\n";
        write(&path, text).unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let file = HostsFile::read(&path).unwrap();
        let complete = |url: &str| {
            let mut url: TargetUrl = url.parse().unwrap();
            file.complete(&mut url).unwrap();
            url
        };
        let first = complete("nvme-tcp://10.0.0.2/nqn.x:disk");
        assert_eq!(first.host_nqn.as_deref(), Some("nqn.a"));
        assert_eq!(first.keys.tls_psk, Some(folder.path().join("a.psk")));
        assert!(first.keys.tls_compat && first.keys.dhchap_key.is_none());
        let second = complete("nvme-tcp://10.0.0.2:4421/nqn.x:disk");
        assert_eq!((second.host_nqn, second.keys.tls_psk), (None, None));
        assert_eq!(second.keys.dhchap_key.as_deref(), Some(Path::new("/k/b")));
        assert_eq!(second.keys.dhchap_ctrl_key, Some(folder.path().join("c")));
        for text in ["nvme-tcp://10.0.0.3/nqn.x:tape", "nvme-tcp://10.0.0.2/nqn.x?hostnqn=nqn.b"] {
            assert_eq!(complete(text), text.parse().unwrap());
        }
    }

    /// Completes an address from the text of a file.
    fn completed(text: &str, address: &str) -> Result<TargetUrl, String> {
        let file = HostsFile { targets: parse(text).unwrap(), path: "/k/hosts.toml".into() };
        let mut url: TargetUrl = address.parse().unwrap();
        file.complete(&mut url).map(|()| url).map_err(|error| error.to_string())
    }

    /// An entry for one of two portals.
    fn some_with(key: &str) -> String {
        format!("[[target]]\nmatch = \"nvme-tcp://10.0.0.2/*\"\n{key} = \"a\"\n")
    }

    #[test]
    fn keys_for_some_portals_of_an_address_are_refused() {
        let both = "nvme-tcp://10.0.0.2,10.0.0.3/nqn.x";
        for key in ["tls-psk", "dhchap-key", "dhchap-ctrl-key"] {
            let some = some_with(key);
            for (addresses, portal) in [
                (both, "10.0.0.3:4420"),
                ("nvme-tcp://10.0.0.3,10.0.0.2/nqn.x", "10.0.0.3:4420"),
                ("nvme-tcp://10.0.0.2,10.0.0.2:4421/nqn.x", "10.0.0.2:4421"),
            ] {
                let error = completed(&some, addresses).unwrap_err();
                assert!(error.starts_with("/k/hosts.toml: match = "), "{error}");
                assert!(error.contains(portal) && error.contains("* matches"), "{error}");
            }
            let alone = completed(&some, "nvme-tcp://10.0.0.2/nqn.x").unwrap();
            assert!(alone.keys != KeyFiles::default());
            let others = "nvme-tcp://10.0.0.3,10.0.0.4/nqn.x";
            assert_eq!(completed(&some, others), Ok(others.parse().unwrap()));
            // An entry for all portals does not help without such a key.
            let named = format!("{some}[[target]]\nmatch = \"*\"\nhostnqn = \"nqn.a\"\n");
            assert!(completed(&named, both).unwrap_err().contains("10.0.0.3:4420"));
            let all = format!("{named}{key} = \"b\"\n");
            let url = completed(&all, both).unwrap();
            assert_eq!(url.host_nqn.as_deref(), Some("nqn.a"));
            assert!(url.keys != KeyFiles::default());
        }
    }

    #[test]
    fn a_target_is_the_same_however_its_name_is_written() {
        for (pattern, address) in [
            ("nvme-tcp://storage1/*", "nvme-tcp://Storage1/nqn.x"),
            ("nvme-tcp://storage1/*", "nvme-tcp://storage1.:4420/nqn.x"),
            (
                "nvme-tcp://Storage1.example.org.:4421/nqn.x",
                "nvme-tcp://storage1.example.org:4421/nqn.x",
            ),
            ("nvme-tcp://[2001:DB8:0::7]/nqn.x", "nvme-tcp://[2001:db8::7]/nqn.x"),
            ("nvme-tcp://[2001:db8::7]:4421/*", "nvme-tcp://[2001:db8:0:0::7]:4421/nqn.x"),
            ("nvme-tcp://10.0.0.2/*", "nvme-tcp://[::ffff:10.0.0.2]/nqn.x"),
            ("nvme-tcp://[::FFFF:a00:2]:4421/nqn.x", "nvme-tcp://10.0.0.2:4421/nqn.x"),
            ("nvme-tcp://10.0.0.2/*", "nvme-tcp://012.2/nqn.x"),
            ("nvme-tcp://10.0.0.2/*", "nvme-tcp://0x0A000002/nqn.x"),
            ("nvme-tcp://10.0.0.2:4420/*", "nvme-tcp://10.0.2:4420/nqn.x"),
            ("nvme-tcp://*.Example.org/nqn.x", "nvme-tcp://a.example.org/nqn.x"),
            ("nvme-tcp://*", "nvme-tcp://a/nqn.x"),
        ] {
            let text = format!("[[target]]\nmatch = \"{pattern}\"\ntls-psk = \"a\"\n");
            let url = completed(&text, address).unwrap();
            assert!(url.keys != KeyFiles::default(), "{pattern} {address}");
        }
        for name in
            ["10.0.0.2.3", "256.1.1.1", "10.0.0.256", "08", "1.", "a", "0x", "+1", "1..2", ""]
        {
            assert_eq!(numbers(name), None, "{name}");
        }
        assert_eq!(numbers("4294967295"), Some(Ipv4Addr::BROADCAST));
        // NQNs are case-sensitive.
        let text = "[[target]]\nmatch = \"nvme-tcp://a/nqn.X\"\ntls-psk = \"a\"\n";
        assert_eq!(completed(text, "nvme-tcp://a/nqn.x").unwrap().keys, KeyFiles::default());
    }

    #[test]
    fn entries_for_some_portals_that_take_no_key_away() {
        let both = "nvme-tcp://10.0.0.2,10.0.0.3/nqn.x";
        let name = some_with("hostnqn").replace("\"a\"", "\"nqn.a\"");
        assert_eq!(completed(&name, both), Ok(both.parse().unwrap()));
        // Entries after one that matches all portals never count.
        let first = format!("[[target]]\nmatch = \"nqn.x\"\n{}", some_with("tls-psk"));
        assert_eq!(completed(&first, both), Ok(both.parse().unwrap()));
        // The address itself names this host.
        let own = "nvme-tcp://10.0.0.2,10.0.0.3/nqn.x?hostnqn=nqn.b";
        assert_eq!(completed(&some_with("tls-psk"), own), Ok(own.parse().unwrap()));
        let all = some_with("tls-psk").replace("10.0.0.2/", "10.0.0.*/");
        assert_eq!(completed(&all, both).unwrap().keys.tls_psk.as_deref(), Some(Path::new("/k/a")));
    }

    #[test]
    fn files_that_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts.toml");
        let refused = |text: &str, mode| {
            write(&path, text).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            HostsFile::read(&path).unwrap_err().to_string()
        };
        let good = "[[target]]\nmatch = \"nqn.a\"\n";
        let open = refused(good, 0o640);
        assert!(open.contains("others may read") && open.contains("chmod 600"), "{open}");
        for (text, why) in [
            ("\n[[target]]\nmatch = \"disk\"\n", "line 2: match"),
            ("[[target]]\nmatch = \"nqn.a\"\npsk = 3\n", "line 3: unknown field"),
            ("[[target]]\nhostnqn = \"nqn.a\"\n", "missing field"),
            ("[[target]]\nmatch = \"*\"\nhostnqn = \"me\"\n", "not the NQN of a host"),
        ] {
            let error = refused(text, 0o600);
            assert!(error.contains(why), "{error}");
        }
        let missing = HostsFile::read(Path::new("/nowhere/hosts.toml")).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/hosts.toml"), "{missing}");
    }

    #[test]
    fn the_place_of_the_file() {
        let of = |config: Option<&str>, home: Option<&str>| {
            place(config.map(OsString::from), home.map(OsString::from))
        };
        let in_home = Some(PathBuf::from("/h/.config/bpfof/hosts.toml"));
        assert_eq!(of(Some("/c"), Some("/h")), Some(PathBuf::from("/c/bpfof/hosts.toml")));
        assert_eq!(of(None, Some("/h")), in_home);
        assert_eq!(of(Some("relative"), Some("/h")), in_home);
        assert_eq!(of(None, None), None);
        assert_eq!(of(None, Some("")), None);
    }
}
