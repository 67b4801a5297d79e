//! Log pages of subsystems with namespaces (NVMe Base 2.0 §5.16).

use crate::connection::Reply;
use crate::controller::Controller;
use crate::identify::ANA_GROUP;
use bpfof_nvme::log_page::{
    AnaGroup, AnaHeader, EFFECT_BLOCKS_CHANGE, EFFECT_SUPPORTED, command_effects, firmware_slot,
    lid, supported_log_pages,
};
use bpfof_nvme::opcode::{admin, nvm};
use bpfof_nvme::{SpacePadded, Status};

/// What there is: [`page`], and the Changed Namespace List, which changes by being read.
const SUPPORTED: &[u8] = &[
    lid::SUPPORTED,
    lid::ERROR,
    lid::SMART,
    lid::FIRMWARE_SLOT,
    lid::CHANGED_NAMESPACES,
    lid::COMMAND_EFFECTS,
    lid::ANA,
];

/// Admin commands. Fabrics commands are not part of the log.
const ADMIN_COMMANDS: &[u8] = &[
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
    admin::FUNCTION_LOAD,
    admin::FUNCTION_UNLOAD,
    admin::FILE_MAP_SET,
    admin::FUNCTION_REPORT,
    admin::PUSHDOWN_IDENTIFY,
    admin::MAP_REPORT,
    admin::MAP_GET,
    admin::MAP_CHANGE,
    admin::MAP_READ,
];

/// I/O commands that change no block.
const READING_COMMANDS: &[u8] =
    &[nvm::FLUSH, nvm::READ, nvm::COMPARE, nvm::VERIFY, nvm::PUSHDOWN_SHORT, nvm::PUSHDOWN];

/// I/O commands that change blocks.
const WRITING_COMMANDS: &[u8] = &[nvm::WRITE, nvm::WRITE_ZEROES, nvm::DATASET_MANAGEMENT];

/// Names all namespaces (NVMe Base 2.0 §3.2.1).
const ALL_NAMESPACES: u32 = u32::MAX;

/// Log Specific Parameter of the ANA log, bit 0: groups only, without their namespaces (§5.16.1.13).
const GROUPS_ONLY: u8 = 1;

/// A log page, whole; `lsp` is the command's Log Specific Parameter.
pub(crate) fn page(
    lid: u8,
    (lsp, nsid): (u8, u32),
    controller: &Controller,
) -> Result<Vec<u8>, Reply> {
    let page = match lid {
        lid::SUPPORTED => supported_log_pages(SUPPORTED).to_vec(),
        lid::ERROR => controller.errors.page(),
        // There is none for each namespace (LPA bit 0).
        lid::SMART if !matches!(nsid, 0 | ALL_NAMESPACES) => {
            return Err(Status::INVALID_FIELD.with_dnr().into());
        }
        lid::SMART => {
            controller.subsystem.health.smart(controller.errors.count()).to_bytes().to_vec()
        }
        lid::FIRMWARE_SLOT => firmware_slot(SpacePadded::new(env!("CARGO_PKG_VERSION"))).to_vec(),
        lid::COMMAND_EFFECTS => effects(),
        lid::ANA => ana(lsp, controller),
        _ => return Err(Status::INVALID_LOG_PAGE.with_dnr().into()),
    };
    Ok(page)
}

/// One group of all namespaces, optimized: there is one way to them. That never changes, so its
/// count of changes is 0.
fn ana(lsp: u8, controller: &Controller) -> Vec<u8> {
    let namespaces = match lsp & GROUPS_ONLY {
        0 => controller.subsystem.namespaces(),
        _ => Vec::new(),
    };
    let group = AnaGroup {
        group: ANA_GROUP,
        namespaces: namespaces.len() as u32,
        change_count: 0,
        state: AnaGroup::OPTIMIZED,
    };
    let mut page = AnaHeader { change_count: 0, groups: 1 }.to_bytes().to_vec();
    page.extend(group.to_bytes());
    page.extend(namespaces.iter().flat_map(|namespace| namespace.nsid.to_le_bytes()));
    page
}

fn effects() -> Vec<u8> {
    let supported = |opcodes: &[u8], effects: u32| -> Vec<(u8, u32)> {
        opcodes.iter().map(|opcode| (*opcode, EFFECT_SUPPORTED | effects)).collect()
    };
    let mut io = supported(READING_COMMANDS, 0);
    io.extend(supported(WRITING_COMMANDS, EFFECT_BLOCKS_CHANGE));
    command_effects(&supported(ADMIN_COMMANDS, 0), &io).to_vec()
}
