//! Commands about function maps (docs/protocol.md, "Function maps").

use super::context::{Answered, Command, Context, Outcome};
use crate::controller::Controller;
use crate::limits::{MAX_PAGE_BYTES, MAX_TRANSFER_BYTES};
use crate::refusal::{Refusal, Reply};
use bpfof_chain::FunctionMap;
use bpfof_function::map::{MAX_KEY_BYTES, MAX_VALUE_BYTES, MapError, SetMode};
use bpfof_nvme::Status;
use bpfof_nvme::vendor_specific::{MapAddress, MapChange, MapCommand, MapReportEntry};
use std::sync::Arc;

pub(super) fn carry_out(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    map_command: MapCommand,
) -> Answered {
    match map_command {
        MapCommand::Report { controller, length_bytes } => {
            report(cx, command, controller, length_bytes)
        }
        MapCommand::Get { map, length_bytes } => get(cx, command, map, length_bytes),
        MapCommand::Read { map, length_bytes, first_slot } => {
            read(cx, command, map, (length_bytes, first_slot))
        }
        MapCommand::Change { map, change } => self::change(cx, command, map, change),
    }
}

/// The association that a command names, if the host may access it.
fn owner(cx: &Context<'_>, id: u16) -> Result<Arc<Controller>, Refusal> {
    cx.subsystem().association_for(&cx.controller(), id).ok_or_else(|| {
        Refusal::new(Status::UNKNOWN_MAP, format!("the host has no association {id}"))
    })
}

fn find(cx: &Context<'_>, address: MapAddress) -> Result<Arc<FunctionMap>, Refusal> {
    let owner = owner(cx, address.controller)?;
    let tables = owner.tables();
    tables.function_map(address.map).cloned().ok_or_else(|| {
        let cause = format!("association {} has no map {}", owner.id, address.map);
        Refusal::new(Status::UNKNOWN_MAP, cause)
    })
}

/// The refusal for an error of a map.
fn refusal(error: MapError) -> Refusal {
    match error {
        MapError::NoEntry => Status::NO_SUCH_ENTRY.into(),
        MapError::Exists => Status::ENTRY_EXISTS.into(),
        MapError::NoRoom => Status::MAP_FULL.into(),
        MapError::Invalid => {
            Refusal::field("the entry", "the key or the value does not fit the map")
        }
    }
}

/// Map Report: as many entries as fit, and the full length.
fn report(cx: &mut Context<'_>, command: &Command<'_>, of: u16, length_bytes: u32) -> Answered {
    let owners = match of {
        MapAddress::ALL_OF_HOST => cx.subsystem().associations_for(&cx.controller()),
        id => vec![owner(cx, id)?],
    };
    let length_bytes = length_bytes.min(MAX_TRANSFER_BYTES) as usize;
    let (mut report, mut full_bytes) = (Vec::new(), 0);
    for owner in owners {
        let tables = owner.tables();
        full_bytes += tables.function_maps().len() * MapReportEntry::BYTES;
        let room = (length_bytes - report.len()).div_ceil(MapReportEntry::BYTES);
        for known in tables.function_maps().iter().take(room) {
            report.extend_from_slice(&report_entry(known, &owner).to_bytes());
        }
        report.truncate(length_bytes);
    }
    command.check_room(report.len())?;
    Ok(Outcome::Data(Reply::dword(full_bytes as u32), report))
}

fn report_entry(known: &FunctionMap, owner: &Controller) -> MapReportEntry {
    let definition = known.map.definition();
    MapReportEntry {
        map: known.id,
        controller: owner.id,
        kind: definition.kind() as u8,
        key_bytes: definition.key_bytes() as u32,
        value_bytes: definition.value_bytes() as u32,
        max_entries: definition.max_entries(),
        entries: known.map.entries(),
        memory_bytes: definition.memory_bytes(),
        name: definition.name().into(),
    }
}

/// Map Get: the key is in the capsule, because the descriptor is for the answer.
fn get(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    map: MapAddress,
    length_bytes: u32,
) -> Answered {
    command.check_in_capsule("the key must be in the capsule")?;
    command.check_answer_room(length_bytes)?;
    let found = find(cx, map)?;
    let value = found.map.get(command.data).map_err(refusal)?;
    let shown = value[..value.len().min(length_bytes as usize)].to_vec();
    Ok(Outcome::Data(Reply::dword(value.len() as u32), shown))
}

/// Map Read: entries from a slot on.
fn read(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    map: MapAddress,
    (length_bytes, first_slot): (u32, u32),
) -> Answered {
    let found = find(cx, map)?;
    let max_bytes = (length_bytes as usize).min(MAX_PAGE_BYTES);
    let entry_bytes = found.map.definition().entry_bytes();
    if entry_bytes > max_bytes {
        let cause = format!("{length_bytes} bytes, but an entry has {entry_bytes}");
        return Err(Refusal::field("the buffer's length", cause));
    }
    let mut entries = Vec::new();
    let next = found.map.page(first_slot, max_bytes, &mut entries);
    let count = entries.len() / entry_bytes;
    let reply = Reply { dw0: next.unwrap_or(0), dw1: count as u32, ..Reply::default() };
    command.check_room(entries.len())?;
    Ok(Outcome::Data(reply, entries))
}

/// Map Change: its data is the key, and the value if one is set.
fn change(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    map: MapAddress,
    change: MapChange,
) -> Answered {
    let length = command.pointer.length_bytes();
    if command.data.len() != length as usize {
        // No entry is longer than this.
        if length as usize > MAX_KEY_BYTES + MAX_VALUE_BYTES {
            return Err(Refusal::field("SGL1", format!("no entry has {length} bytes")));
        }
        return Ok(Outcome::NeedData(length));
    }
    let found = find(cx, map)?;
    let map = &found.map;
    let key_bytes = map.definition().key_bytes();
    let (key, value) =
        command.data.split_at_checked(key_bytes).ok_or_else(|| refusal(MapError::Invalid))?;
    let changed = match change {
        MapChange::Set => map.set(key, value, SetMode::Any),
        MapChange::SetNew => map.set(key, value, SetMode::New),
        MapChange::SetExisting => map.set(key, value, SetMode::Existing),
        MapChange::Delete if value.is_empty() => map.delete(key),
        MapChange::Delete => Err(MapError::Invalid),
    };
    changed.map_err(refusal)?;
    Ok(Outcome::DONE)
}
