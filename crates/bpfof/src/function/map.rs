//! `bpfof function map …`: reads and changes the maps of functions from outside.
//!
//! Maps belong to the association that loaded the function, and this process has another one. So a
//! target gives access to all associations with the same host identifier.

use super::identity::HostId;
use crate::hex;
use bpfof_host::{Controller, FunctionMap, MapChange, Options, TargetUrl};
use bpfof_terminal::{Outcome, output, target_url};
use clap::{Args, Subcommand};
use serde::{Serialize, Serializer};
use std::io::Write;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List the maps of a host's connections.
    List(Host),
    /// Print the value of a key.
    Get(Get),
    /// Set the value of a key.
    Set(Set),
    /// Remove an entry.
    Delete(Get),
    /// Print all entries.
    Dump(Map),
}

#[derive(Args)]
pub(crate) struct Host {
    /// The target: nvme-tcp://HOST:PORT/NQN.
    #[arg(long, env = "BPFOF_TARGET", value_parser = target_url)]
    target: TargetUrl,
    /// Identifier of the host that has loaded the functions: a UUID (`Options::host_id` of the
    /// library, the hostid of nvme-cli).
    #[arg(long, value_name = "UUID")]
    host_id: HostId,
    /// NQN of that host [default: made from the identifier].
    #[arg(long, value_name = "NQN")]
    host_nqn: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Map {
    #[command(flatten)]
    host: Host,
    /// Only maps of the connection with this controller id, which `list` shows [default: the only
    /// one with such a map].
    #[arg(long, value_name = "ID")]
    controller: Option<u16>,
    /// Name of the map.
    name: String,
}

#[derive(Args)]
pub(crate) struct Get {
    #[command(flatten)]
    map: Map,
    /// A number (of up to 8 bytes), hex:BYTES, or text:TEXT, which is padded with zeroes.
    #[arg(allow_negative_numbers = true)]
    key: String,
}

#[derive(Args)]
pub(crate) struct Set {
    #[command(flatten)]
    entry: Get,
    /// Like the key.
    #[arg(allow_negative_numbers = true)]
    value: String,
}

/// An entry for people: its bytes, and the numbers that they may represent.
#[derive(Serialize)]
struct Shown {
    key_hex: String,
    key: Option<u64>,
    value_hex: String,
    /// For a value of 1, 2 or 4 bytes, or of a multiple of 8 bytes.
    value: Option<Vec<u64>>,
}

pub(crate) fn run(command: &Command) -> Outcome {
    match command {
        Command::List(host) => list(host),
        Command::Get(options) => get(options),
        Command::Set(options) => set(options),
        Command::Delete(options) => delete(options),
        Command::Dump(options) => dump(options),
    }
}

/// Connects as the host, and finds the maps of its other connections.
fn connect(host: &Host) -> Result<(Controller, Vec<FunctionMap>), Box<dyn std::error::Error>> {
    let mut url = host.target.clone();
    url.host_nqn = host.host_nqn.clone().or(url.host_nqn);
    let mut controller = Controller::connect(&url, Options::for_host(host.host_id.0))?;
    let own = controller.identify_controller()?.cntlid;
    let mut maps = controller.host_maps()?;
    maps.retain(|map| map.address.controller != own);
    Ok((controller, maps))
}

/// Finds the map that the options name.
fn find(options: &Map) -> Result<(Controller, FunctionMap), Box<dyn std::error::Error>> {
    let (controller, maps) = connect(&options.host)?;
    let asked =
        |map: &&FunctionMap| options.controller.is_none_or(|id| map.address.controller == id);
    let found: Vec<&FunctionMap> =
        maps.iter().filter(asked).filter(|map| map.name == options.name).collect();
    let mut controllers: Vec<u16> = found.iter().map(|map| map.address.controller).collect();
    controllers.dedup();
    match (found.first(), &controllers[..]) {
        // A connection's own map is listed before the map of a function that is installed for all
        // hosts.
        (Some(map), [_]) => Ok((controller, (*map).clone())),
        (Some(_), _) => {
            let ids: Vec<String> = controllers.iter().map(u16::to_string).collect();
            let name = &options.name;
            let ids = ids.join(", ");
            Err(format!("connections {ids} have a map {name}; choose one with --controller").into())
        }
        (None, _) => Err(format!(
            "no connection of this host has a map {}; `bpfof function map list` shows all maps",
            options.name
        )
        .into()),
    }
}

fn list(host: &Host) -> Outcome {
    let (controller, maps) = connect(host)?;
    controller.disconnect()?;
    let kind = |map: &FunctionMap| if map.is_array { "array" } else { "hash" };
    if host.json {
        let maps: Vec<_> = maps
            .iter()
            .map(|map| {
                serde_json::json!({
                    "controller": map.address.controller,
                    "id": map.address.map,
                    "name": map.name,
                    "kind": kind(map),
                    "key_bytes": map.key_bytes,
                    "value_bytes": map.value_bytes,
                    "entries": map.entries,
                    "max_entries": map.max_entries,
                    "memory_bytes": map.memory_bytes,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&maps)?);
        return Ok(());
    }
    if maps.is_empty() {
        println!("no connection of this host has a function with maps");
        return Ok(());
    }
    println!(
        "{:>10} {:<24} {:<6} {:>9} {:>11} {:>9} {:>11} {:>12}",
        "controller",
        "name",
        "kind",
        "key bytes",
        "value bytes",
        "entries",
        "max entries",
        "memory"
    );
    for map in &maps {
        println!(
            "{:>10} {:<24} {:<6} {:>9} {:>11} {:>9} {:>11} {:>12}",
            map.address.controller,
            map.name,
            kind(map),
            map.key_bytes,
            map.value_bytes,
            map.entries,
            map.max_entries,
            map.memory_bytes
        );
    }
    Ok(())
}

fn get(options: &Get) -> Outcome {
    let (mut controller, map) = find(&options.map)?;
    let key = bytes(&options.key, map.key_bytes)?;
    let value = controller.map_get(&map, &key)?;
    controller.disconnect()?;
    let value = value.ok_or_else(|| no_entry(&map, &options.key))?;
    let shown = show(&key, &value);
    if options.map.host.json {
        println!("{}", serde_json::to_string(&shown)?);
    } else {
        println!("{}", shown.value_text());
    }
    Ok(())
}

fn no_entry(map: &FunctionMap, key: &str) -> String {
    format!("map {} of connection {} has no entry {key}", map.name, map.address.controller)
}

fn set(options: &Set) -> Outcome {
    let (mut controller, map) = find(&options.entry.map)?;
    let key = bytes(&options.entry.key, map.key_bytes)?;
    let value = bytes(&options.value, map.value_bytes)?;
    controller.map_change(&map, MapChange::Set, &key, &value)?;
    controller.disconnect()?;
    Ok(())
}

fn delete(options: &Get) -> Outcome {
    let (mut controller, map) = find(&options.map)?;
    let key = bytes(&options.key, map.key_bytes)?;
    if map.is_array {
        let name = &map.name;
        return Err(
            format!("entries of the array {name} cannot be deleted; set them instead").into()
        );
    }
    let was_there = controller.map_delete(&map, &key)?;
    controller.disconnect()?;
    if was_there { Ok(()) } else { Err(no_entry(&map, &options.key).into()) }
}

fn dump(options: &Map) -> Outcome {
    let (mut controller, map) = find(options)?;
    let entries = controller.map_entries(&map)?;
    controller.disconnect()?;
    // Sort indexes instead of entries: there may be millions of a few bytes each.
    let mut order: Vec<usize> = (0..entries.len()).collect();
    let entry = |index: &usize| entries.get(*index).unwrap_or_default();
    // In the order of numbers if the keys have the size of numbers, else in the order of their
    // bytes.
    match map.key_bytes {
        1 | 2 | 4 | 8 => order.sort_by_key(|index| number(entry(index).0)),
        _ => order.sort_by_key(|index| entry(index)),
    }
    let shown = order.iter().map(entry).map(|(key, value)| show(key, value));
    if options.host.json {
        let mut out = output();
        let written = serde_json::Serializer::pretty(&mut out).collect_seq(shown);
        written.map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    for entry in shown {
        println!("{} {}", entry.key_text(), entry.value_text());
    }
    Ok(())
}

/// Parses a key or value of `size` bytes.
fn bytes(text: &str, size: u32) -> Result<Vec<u8>, String> {
    let size = size as usize;
    if let Some(hex) = text.strip_prefix("hex:") {
        let bytes = hex::decode(hex).filter(|bytes| bytes.len() == size);
        return bytes.ok_or(format!("{text}: not {size} bytes of two hexadecimal digits each"));
    }
    if let Some(text) = text.strip_prefix("text:") {
        let mut bytes = text.as_bytes().to_vec();
        if bytes.len() > size {
            return Err(format!("text:{text}: longer than {size} bytes"));
        }
        bytes.resize(size, 0);
        return Ok(bytes);
    }
    let number = match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.map_err(|_| format!("{text}: not a number, hex:BYTES or text:TEXT"))?;
    let bits = 8 * size as u32;
    let fits = size <= 8 && number < 1 << bits && number >= -(1 << (bits - 1));
    if !fits {
        return Err(format!("{text}: not a number of {size} bytes; give hex:BYTES or text:TEXT"));
    }
    Ok(number.to_le_bytes()[..size].to_vec())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn show(key: &[u8], value: &[u8]) -> Shown {
    let value_numbers = match value.len() {
        1 | 2 | 4 => Some(vec![number(value)]),
        length if length % 8 == 0 => Some(value.chunks(8).map(number).collect()),
        _ => None,
    };
    Shown {
        key_hex: hex::encode(key),
        key: matches!(key.len(), 1 | 2 | 4 | 8).then(|| number(key)),
        value_hex: hex::encode(value),
        value: value_numbers,
    }
}

impl Shown {
    fn key_text(&self) -> String {
        self.key.map_or_else(|| format!("hex:{}", self.key_hex), |key| key.to_string())
    }

    fn value_text(&self) -> String {
        match &self.value {
            Some(numbers) => numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
            None => format!("hex:{}", self.value_hex),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_numbers_bytes_or_text() {
        assert_eq!(bytes("258", 2), Ok(vec![2, 1]));
        assert_eq!(bytes("0xFFFFFFFFFFFFFFFF", 8), Ok(vec![0xff; 8]));
        assert_eq!(bytes("-1", 4), Ok(vec![0xff; 4]));
        assert_eq!(bytes("-128", 1), Ok(vec![0x80]));
        assert_eq!(bytes("hex:00Fe", 2), Ok(vec![0, 0xfe]));
        assert_eq!(bytes("text:ab", 4), Ok(b"ab\0\0".to_vec()));
        let wrong = [
            ("256", 1),
            ("-129", 1),
            ("1", 16),
            ("one", 8),
            ("", 8),
            ("hex:00f", 2),
            ("hex:00", 2),
            ("hex:é0", 2),
            ("text:abc", 2),
        ];
        for (text, size) in wrong {
            assert!(bytes(text, size).is_err(), "{text}");
        }
        let shown = show(&[1, 2], &[3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(shown.key_text(), "513");
        assert_eq!(shown.value_text(), "3 72057594037927940");
        let shown = show(&[1, 2, 3], &[4, 5, 6]);
        assert_eq!(
            (shown.key_text(), shown.value_text()),
            ("hex:010203".into(), "hex:040506".into())
        );
    }
}
