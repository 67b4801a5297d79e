//! Names of commands, for errors.

use bpfof_nvme::opcode::{admin, fabrics, nvm};

/// Name of the command with `opcode` on an admin queue or an I/O queue; `fctype` tells fabrics
/// commands apart.
pub(crate) const fn command_name(on_admin_queue: bool, opcode: u8, fctype: u8) -> &'static str {
    match (opcode, on_admin_queue) {
        (fabrics::FABRICS, _) => match fctype {
            fabrics::CONNECT => "Connect",
            fabrics::PROPERTY_GET => "Property Get",
            fabrics::PROPERTY_SET => "Property Set",
            fabrics::DISCONNECT => "Disconnect",
            _ => "a fabrics command",
        },
        (admin::IDENTIFY, true) => "Identify",
        (admin::GET_LOG_PAGE, true) => "Get Log Page",
        (admin::SET_FEATURES, true) => "Set Features",
        (admin::GET_FEATURES, true) => "Get Features",
        (admin::KEEP_ALIVE, true) => "Keep Alive",
        (admin::ABORT, true) => "Abort",
        (admin::FUNCTION_LOAD, true) => "Function Load",
        (admin::FUNCTION_UNLOAD, true) => "Function Unload",
        (admin::FUNCTION_REPORT, true) => "Function Report",
        (admin::MAP_REPORT, true) => "Map Report",
        (admin::MAP_GET, true) => "Map Get",
        (admin::MAP_READ, true) => "Map Read",
        (admin::MAP_CHANGE, true) => "Map Change",
        (admin::FILE_MAP_SET, true) => "File Map Set",
        (admin::PUSHDOWN_IDENTIFY, true) => "Pushdown Identify",
        (nvm::READ, false) => "Read",
        (nvm::WRITE, false) => "Write",
        (nvm::FLUSH, false) => "Flush",
        (nvm::WRITE_ZEROES, false) => "Write Zeroes",
        (nvm::COMPARE, false) => "Compare",
        (nvm::VERIFY, false) => "Verify",
        (nvm::DATASET_MANAGEMENT, false) => "Dataset Management",
        (nvm::PUSHDOWN, false) => "Pushdown",
        (nvm::PUSHDOWN_SHORT, false) => "Pushdown Short",
        _ => "a command",
    }
}
