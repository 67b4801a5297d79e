//! File Map Set (docs/protocol.md).

use super::context::{Answered, Command, Context, Outcome};
use super::upload::{self, Kind, Part};
use crate::controller::Controller;
use crate::limits::{
    MAP_UNITS, MAP_UNITS_PER_BYTE, MAX_ASSOCIATION_EXTENTS, MAX_FILE_MAPS, MAX_MAP_BYTES,
};
use crate::operation::Fenced;
use crate::queue::State;
use crate::refusal::{Refusal, Reply};
use crate::transport::Payload;
use bpfof_chain::{Extent, FileMap, Tables};
use bpfof_nvme::vendor_specific::FileMapObject;
use bpfof_nvme::{Installation, Status, Upload};

/// File Map Set.
pub(super) fn set(cx: &mut Context<'_>, command: &Command<'_>, upload: Upload) -> Answered {
    let what = (Kind::FileMap, MAX_MAP_BYTES);
    match upload::take_part(cx, command, what, upload, Installation::default())? {
        Part::NeedData(length) => Ok(Outcome::NeedData(length)),
        Part::Taken => Ok(Outcome::DONE),
        Part::Whole(object) => {
            let controller = cx.controller();
            set_map(cx, &controller, &object.data)?;
            if !controller.is_restricted() {
                return Ok(Outcome::DONE);
            }
            let fenced =
                Fenced { command: cx.occupy(command, State::Fence), serial: cx.connection.serial };
            cx.executor.outbox.fences.push(fenced);
            Ok(Outcome::Pending)
        }
    }
}

/// Answers a map change once all reactors have passed a turn since then: no reactor continues a chain that has read
/// through an old map. Until then a reactor could be about to copy blocks that it found in the old map.
pub(crate) fn followed(cx: &mut Context<'_>, fenced: Fenced) {
    let slot = fenced.command.slot;
    // The command may have been dropped, and its slot reused by another.
    if matches!(cx.connection.queue.slot(slot).state, State::Fence) {
        let taken = cx.connection.queue.vacate(slot);
        cx.respond(&taken, Reply::default(), Payload::None);
    }
}

fn set_map(cx: &mut Context<'_>, controller: &Controller, object: &[u8]) -> Result<(), Refusal> {
    let tables = controller.tables();
    // The change copies a part of the table of maps.
    let copied = tables.copied_by_map() as u64;
    cx.executor.spend(object.len() as u64 * MAP_UNITS_PER_BYTE + copied * MAP_UNITS);
    let map = FileMapObject::parse(object).map_err(|error| {
        Refusal::field("the file map object", format!("it is malformed at byte {}", error.at))
    })?;
    let place = cx.executor.namespaces.find(cx.subsystem().number, map.nsid);
    let place = place.filter(|_| controller.access.sees(map.nsid));
    let place = place.ok_or_else(|| {
        Refusal::field("NSID of the object", format!("there is no namespace {}", map.nsid))
    })?;
    if map.version == 0 {
        // A new version takes memory until all connections have it.
        if tables.has_map(map.file) {
            controller.update(|tables| tables.without_map(map.file));
        }
        return Ok(());
    }
    let full = |cause| Err(Refusal::new(Status::RESOURCE_LIMIT.with_dnr(), cause));
    if tables.map_count() >= MAX_FILE_MAPS && !tables.has_map(map.file) {
        return full(format!("the association already has {MAX_FILE_MAPS} file maps, the limit"));
    }
    let extents = tables.extent_count(map.file) + map.extents.len();
    if extents > MAX_ASSOCIATION_EXTENTS {
        return full(format!(
            "the association's file maps would have {extents} extents; at most \
             {MAX_ASSOCIATION_EXTENTS} are allowed"
        ));
    }
    let extents = map.extents.iter().map(|extent| Extent {
        file_offset: extent.file_offset,
        device_offset: extent.device_offset,
        length: extent.length_bytes,
    });
    let namespace = cx.executor.namespace(place);
    let checked = FileMap::new(
        map.nsid,
        map.version,
        map.length_bytes,
        extents.collect(),
        namespace.size_bytes(),
        namespace.block_bytes(),
    );
    let checked = checked.map_err(|error| {
        Refusal::field("the file map object", format!("the map of file {}: {error}", map.file))
    })?;
    let memory = controller.host().memory.charge(checked.memory_bytes() + Tables::MAP_BYTES);
    let end = checked.device_end();
    let mut fits = true;
    let set = memory.and_then(|memory| {
        controller.try_update(|tables| {
            // The namespace may have shrunk in the meantime; the thread that shrinks it checks the maps afterwards.
            fits = end <= namespace.size_bytes();
            match fits {
                true => tables.with_counted_map(map.file, checked, Some(memory)),
                false => tables.without_map(map.file),
            }
        })
    });
    set.map_err(|full| cx.no_memory("a file map", &full))?;
    match fits {
        true => Ok(()),
        false => {
            Err(Refusal::field("the file map object", "the namespace has become smaller meanwhile"))
        }
    }
}
