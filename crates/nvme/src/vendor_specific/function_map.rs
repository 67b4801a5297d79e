//! Function maps: the commands that list, read and change them (protocol.md, "Function maps").

use crate::bytes::wire_struct;
use crate::opcode::admin;
use crate::{NulPadded, Sgl, Sqe, Status};

wire_struct! {
    /// The description of one function map (protocol.md, Map Report).
    pub struct MapReportEntry [64] {
        /// Map id (offset 0).
        0 => map: u32,
        /// The controller whose association has it (offset 4).
        4 => controller: u16,
        /// 1 hash, 2 array (offset 6).
        6 => kind: u8,
        /// Size of a key in bytes (offset 8).
        8 => key_bytes: u32,
        /// Size of a value in bytes (offset 12).
        12 => value_bytes: u32,
        /// Entry capacity (offset 16).
        16 => max_entries: u32,
        /// Entries present (offset 20).
        20 => entries: u32,
        /// Memory that the map takes, in bytes (offset 24).
        24 => memory_bytes: u64,
        /// Its name in the object (offset 32).
        32 => name: NulPadded<32>,
    }
}

impl MapReportEntry {
    /// The whole entries of a report.
    pub fn list(report: &[u8]) -> impl Iterator<Item = Self> + '_ {
        report.as_chunks::<64>().0.iter().map(Self::from_bytes)
    }
}

/// A map and its association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MapAddress {
    /// The association: its controller id, or [`MapAddress::OWN`] (CDW12 bits 15:0).
    pub controller: u16,
    /// Map id, as Map Report returns it (CDW10).
    pub map: u32,
}

impl MapAddress {
    /// The association of the command itself: no controller of a target with function maps has this
    /// id.
    pub const OWN: u16 = 0;
    /// Map Report: all associations of the command's host.
    pub const ALL_OF_HOST: u16 = 0xFFFF;
}

/// What Map Change does (CDW12 bits 17:16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MapChange {
    /// Sets the value of a key, present or not.
    Set = 0,
    /// Sets the value of a key that must not be present.
    SetNew = 1,
    /// Sets the value of a key that must be present.
    SetExisting = 2,
    /// Removes the entry.
    Delete = 3,
}

/// A command about function maps (protocol.md, "Function maps").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapCommand {
    /// Map Report: lists maps.
    Report {
        /// Association whose maps are listed: a controller id, [`MapAddress::OWN`] or
        /// [`MapAddress::ALL_OF_HOST`].
        controller: u16,
        /// Length of the host's buffer in bytes (CDW11).
        length_bytes: u32,
    },
    /// Map Get: the value of the key in the capsule.
    Get {
        /// The map.
        map: MapAddress,
        /// Longest answer that the host accepts, in bytes (CDW11).
        length_bytes: u32,
    },
    /// Map Read: entries from a slot on.
    Read {
        /// The map.
        map: MapAddress,
        /// Length of the host's buffer in bytes (CDW11).
        length_bytes: u32,
        /// 0, or the slot at which the last answer says to continue (CDW13).
        first_slot: u32,
    },
    /// Map Change: the data is the key, followed by the value if one is set.
    Change {
        /// The map.
        map: MapAddress,
        /// The kind of change.
        change: MapChange,
    },
}

impl MapCommand {
    /// Parses a command with one of the four opcodes; `None` for any other.
    ///
    /// # Errors
    /// Invalid Field in Command if a reserved field is set.
    pub fn parse(sqe: &Sqe) -> Option<Result<Self, Status>> {
        let map = MapAddress { controller: sqe.cdw12 as u16, map: sqe.cdw10 };
        let (length_bytes, high) = (sqe.cdw11, sqe.cdw12 >> 16);
        let (command, reserved) = match sqe.opcode {
            admin::MAP_REPORT => (
                Self::Report { controller: map.controller, length_bytes },
                sqe.cdw10 | high | sqe.cdw13,
            ),
            admin::MAP_GET => (Self::Get { map, length_bytes }, high | sqe.cdw13),
            admin::MAP_READ => (Self::Read { map, length_bytes, first_slot: sqe.cdw13 }, high),
            admin::MAP_CHANGE => {
                let change = match high & 3 {
                    0 => MapChange::Set,
                    1 => MapChange::SetNew,
                    2 => MapChange::SetExisting,
                    _ => MapChange::Delete,
                };
                (Self::Change { map, change }, sqe.cdw11 | high >> 2 | sqe.cdw13)
            }
            _ => return None,
        };
        if reserved | sqe.cdw2 | sqe.cdw3 | sqe.cdw14 | sqe.cdw15 != 0 {
            return Some(Err(Status::INVALID_FIELD.with_dnr()));
        }
        Some(Ok(command))
    }

    /// The command; the caller adds the data of Map Get and Map Change.
    #[must_use]
    pub fn to_sqe(&self) -> Sqe {
        let sqe = |opcode, MapAddress { controller, map }: MapAddress| Sqe {
            cdw10: map,
            cdw12: controller.into(),
            ..Sqe::new(opcode, 0)
        };
        match *self {
            Self::Report { controller, length_bytes } => Sqe {
                cdw11: length_bytes,
                sgl: Sgl::transport(length_bytes),
                ..sqe(admin::MAP_REPORT, MapAddress { controller, map: 0 })
            },
            Self::Get { map, length_bytes } => {
                Sqe { cdw11: length_bytes, ..sqe(admin::MAP_GET, map) }
            }
            Self::Read { map, length_bytes, first_slot } => Sqe {
                cdw11: length_bytes,
                cdw13: first_slot,
                sgl: Sgl::transport(length_bytes),
                ..sqe(admin::MAP_READ, map)
            },
            Self::Change { map, change } => {
                let sqe = sqe(admin::MAP_CHANGE, map);
                Sqe { cdw12: sqe.cdw12 | (change as u32) << 16, ..sqe }
            }
        }
    }
}
