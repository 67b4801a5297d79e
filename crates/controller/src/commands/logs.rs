//! Log pages of subsystems with namespaces (NVMe Base 2.0 §5.16).

use super::context::{Answered, Command, Context, Outcome};
use super::{discovery, events};
use crate::controller::Controller;
use crate::limits::{ALL_NAMESPACES, BYTES_PER_UNIT, MAX_TRANSFER_BYTES};
use crate::namespace::Namespace;
use crate::refusal::{Refusal, Reply};
use crate::subsystem::Subsystem;
use bpfof_nvme::identify::namespace_list;
use bpfof_nvme::log_page::{
    AnaGroup, AnaHeader, command_effects, firmware_slot, lid, supported_log_pages,
};
use bpfof_nvme::opcode::{admin, nvm};
use bpfof_nvme::{AdminCommand, SpacePadded, Status};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The supported log pages: those of [`page`], and those whose changes cause events.
const SUPPORTED: &[u8] = &[
    lid::SUPPORTED,
    lid::ERROR,
    lid::SMART,
    lid::FIRMWARE_SLOT,
    lid::CHANGED_NAMESPACES,
    lid::COMMAND_EFFECTS,
    lid::ANA,
];

/// Log Specific Parameter of the ANA log, bit 0: groups only, without their namespaces (§5.16.1.13).
const GROUPS_ONLY: u8 = 1;

/// Get Log Page.
pub(super) fn get_log_page(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    parsed: AdminCommand,
) -> Answered {
    let AdminCommand::GetLogPage { lid, lsp, rae, length_bytes, offset_bytes, nsid } = parsed
    else {
        return Err(Status::INVALID_OPCODE.with_dnr().into());
    };
    let (controller, subsystem) = (cx.controller(), cx.subsystem());
    let range = (offset_bytes, length_bytes);
    if subsystem.is_discovery() {
        if lid != lid::DISCOVERY {
            return Err(unknown(lid));
        }
        // Taken before the page is made: a change in between still causes an event.
        let generation = subsystem.log_generation();
        let host = controller.host_nqn();
        let (registry, ends) = (&cx.executor.registry, &cx.connection.ends);
        let page = discovery::log_page(registry, generation, host, ends);
        // The whole page is made, however little of it is requested.
        cx.executor.spend(page.len() as u64 / BYTES_PER_UNIT);
        let part = part(command, &page, range)?;
        cx.admin().events.known_log = generation;
        return answer(cx, command, part, (events::DISCOVERY_CHANGED, rae));
    }
    if lid == lid::CHANGED_NAMESPACES {
        // The Changed Namespace List (§5.16.1.5).
        let changed = controller.changed_namespaces();
        let page = namespace_list(changed.iter().copied(), 0);
        let part = part(command, &page, range)?;
        if !rae {
            controller.forget_changes(&changed);
        }
        return answer(cx, command, part, (events::NAMESPACE_CHANGED, rae));
    }
    if lid == lid::ANA {
        // Taken before the page is made: a change in between still causes an event.
        let changes = controller.ana_changes();
        let part = part(command, &ana(lsp, &controller, &subsystem), range)?;
        controller.learn_ana();
        if !rae {
            cx.admin().events.known_ana = changes;
        }
        return answer(cx, command, part, (events::ANA_CHANGED, rae));
    }
    let page = page(lid, nsid, &controller, &subsystem)?;
    Ok(Outcome::Data(Reply::default(), part(command, &page, range)?))
}

/// Sends a log page whose changes cause events. Unless `retain` (RAE) is set, reading it allows the next event, which
/// is sent after the page.
fn answer(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    page: Vec<u8>,
    (kind, retain): (u32, bool),
) -> Answered {
    cx.answer(command, Ok(Outcome::Data(Reply::default(), page)));
    if !retain {
        events::has_read(cx, kind);
    }
    Ok(Outcome::Pending)
}

fn unknown(lid: u8) -> Refusal {
    let cause = format!("there is no log page {lid:#x}");
    Refusal::new(Status::INVALID_LOG_PAGE.with_dnr(), cause).of_field("LID")
}

/// The part of a page that a command requests; bytes behind the page's end are zero (§5.16).
fn part(
    command: &Command<'_>,
    page: &[u8],
    (offset_bytes, length_bytes): (u64, u64),
) -> Result<Vec<u8>, Refusal> {
    if !offset_bytes.is_multiple_of(4) {
        return Err(Refusal::field("LPO", format!("{offset_bytes} is not a multiple of 4")));
    }
    let rest = usize::try_from(offset_bytes).ok().and_then(|start| page.get(start..));
    let rest = rest.ok_or_else(|| {
        let cause = format!("{offset_bytes} is beyond the page's {} bytes", page.len());
        Refusal::field("LPO", cause)
    })?;
    if length_bytes > u64::from(MAX_TRANSFER_BYTES) {
        let cause = format!("{length_bytes} bytes, but MDTS allows {MAX_TRANSFER_BYTES}");
        return Err(Refusal::field("NUMD", cause));
    }
    command.check_remote()?;
    let room = command.pointer.length_bytes() as usize;
    let length = (length_bytes as usize).min(room);
    let mut part = rest[..length.min(rest.len())].to_vec();
    part.resize(length, 0);
    Ok(part)
}

/// A whole log page.
fn page(
    lid: u8,
    nsid: u32,
    controller: &Controller,
    subsystem: &Subsystem,
) -> Result<Vec<u8>, Refusal> {
    let page = match lid {
        lid::SUPPORTED => supported_log_pages(SUPPORTED).to_vec(),
        lid::ERROR => controller.errors.page(),
        // There are no pages for single namespaces (LPA bit 0).
        lid::SMART if !matches!(nsid, 0 | ALL_NAMESPACES) => {
            return Err(Refusal::field("NSID", "there is one page for the whole controller"));
        }
        lid::SMART => subsystem.health.smart(controller.errors.count()).to_bytes().to_vec(),
        lid::FIRMWARE_SLOT => firmware_slot(SpacePadded::new(env!("CARGO_PKG_VERSION"))).to_vec(),
        lid::COMMAND_EFFECTS => command_effects(admin::COMMANDS, nvm::COMMANDS).to_vec(),
        _ => return Err(unknown(lid)),
    };
    Ok(page)
}

/// The ANA log (§5.16.1.13): the groups with namespaces that the host sees, in their states at the listener that it
/// uses; `lsp` is the command's Log Specific Parameter.
fn ana(lsp: u8, controller: &Controller, subsystem: &Subsystem) -> Vec<u8> {
    // Before the groups: a change in between counts for the next page.
    let group_changes = controller.group_changes();
    let change_count = controller.ana_changes() + controller.namespace_changes();
    let mut namespaces = subsystem.namespaces();
    namespaces.retain(|namespace| controller.access.sees(namespace.nsid));
    let mut groups: BTreeMap<u32, Vec<Arc<Namespace>>> = BTreeMap::new();
    for namespace in namespaces {
        groups.entry(namespace.ana_group()).or_default().push(namespace);
    }
    let listener = &controller.listener;
    let header = AnaHeader { change_count, groups: groups.len() as u16 };
    let mut page = header.to_bytes().to_vec();
    for (id, mut members) in groups {
        if lsp & GROUPS_ONLY != 0 {
            members.clear();
        }
        let (state, state_changes) = listener.group(id);
        // A move changes the descriptors of two groups; the others count it as well.
        let change_count = state_changes + group_changes;
        let namespaces = members.len() as u32;
        let group = AnaGroup { group: id, namespaces, change_count, state: state as u8 };
        page.extend(group.to_bytes());
        page.extend(members.iter().flat_map(|namespace| namespace.nsid.to_le_bytes()));
    }
    page
}
