//! Objects that are uploaded in several commands (docs/protocol.md, Uploads).

use super::context::{Command, Context};
use crate::association::{AdminState, PartialUpload};
use crate::limits::MAX_TRANSFER_BYTES;
use crate::refusal::Refusal;
use bpfof_function::memory::Charge;
use bpfof_nvme::vendor_specific::FileMapObject;
use bpfof_nvme::{Installation, Upload};

/// The kind of an uploaded object: there is at most one upload of each kind at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Function,
    FileMap,
}

impl Kind {
    fn slot(self, admin: &mut AdminState) -> &mut Option<PartialUpload> {
        match self {
            Kind::Function => &mut admin.function_upload,
            Kind::FileMap => &mut admin.map_upload,
        }
    }
}

/// The result of a part of an upload.
pub(super) enum Part {
    /// Its data must be fetched first: this many bytes.
    NeedData(u32),
    /// More parts must follow.
    Taken,
    /// The object is complete.
    Whole(PartialUpload),
}

/// Takes a part of an object of at most `limit` bytes. An invalid part ends the upload.
pub(super) fn take_part(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    (kind, limit): (Kind, usize),
    upload: Upload,
    installation: Installation,
) -> Result<Part, Refusal> {
    let Upload { total_bytes, offset_bytes } = upload;
    let length = command.pointer.length_bytes();
    let slot = kind.slot(cx.admin());
    if let Err(refusal) = check(slot.as_ref(), upload, installation, (length, limit)) {
        *slot = None;
        return Err(refusal);
    }
    if command.data.len() != length as usize {
        return Ok(Part::NeedData(length));
    }
    if offset_bytes == 0 {
        *slot = None;
        let memory = charge(cx, kind, total_bytes as usize)?;
        let data = Vec::with_capacity(total_bytes as usize);
        let fresh = PartialUpload { total_bytes, installation, data, memory };
        *kind.slot(cx.admin()) = Some(fresh);
    }
    let slot = kind.slot(cx.admin());
    let Some(partial) = slot else {
        return Err(Refusal::field("OFFSET", "no upload has begun"));
    };
    partial.data.extend_from_slice(command.data);
    if partial.data.len() < total_bytes as usize {
        return Ok(Part::Taken);
    }
    slot.take().map(Part::Whole).ok_or_else(|| Refusal::field("OFFSET", "no upload has begun"))
}

/// Memory for an object. A file map without extents is not refused: that is how maps are removed, which must not
/// fail for a host that has used up its memory.
fn charge(cx: &mut Context<'_>, kind: Kind, bytes: usize) -> Result<Charge, Refusal> {
    let controller = cx.controller();
    let memory = &controller.host().memory;
    match kind {
        Kind::FileMap if bytes <= FileMapObject::HEADER_BYTES => Ok(memory.charge_anyway(bytes)),
        _ => memory.charge(bytes).map_err(|full| cx.no_memory("an upload", &full)),
    }
}

fn check(
    begun: Option<&PartialUpload>,
    upload: Upload,
    installation: Installation,
    (length, limit): (u32, usize),
) -> Result<(), Refusal> {
    let Upload { total_bytes, offset_bytes } = upload;
    if length == 0 || length > MAX_TRANSFER_BYTES {
        let cause = format!("{length} bytes, not from 1 to {MAX_TRANSFER_BYTES}");
        return Err(Refusal::field("SGL1", cause));
    }
    if total_bytes as usize > limit {
        let cause = format!("{total_bytes} bytes; at most {limit} are allowed");
        return Err(Refusal::field("TOTAL", cause));
    }
    if offset_bytes.checked_add(length).is_none_or(|end| end > total_bytes) {
        let cause = format!("{length} bytes at {offset_bytes} exceed the total of {total_bytes}");
        return Err(Refusal::field("OFFSET", cause));
    }
    let follows = |partial: &PartialUpload| {
        (partial.data.len(), partial.total_bytes, partial.installation)
            == (offset_bytes as usize, total_bytes, installation)
    };
    if offset_bytes > 0 && !begun.is_some_and(follows) {
        return Err(Refusal::field("OFFSET", "it does not continue the upload in progress"));
    }
    Ok(())
}
