//! The table of commands: opcode, name, queue and effects of each (NVMe Base 2.0 §5, §6; NVM Command
//! Set 1.0 §3; protocol.md, "Commands").

/// One command of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandEntry {
    /// Its opcode, or its type if it is a fabrics command.
    pub opcode: u8,
    /// Its name in the specification.
    pub name: &'static str,
    /// The effect of executing it.
    pub effect: Effect,
}

/// The effect that the Commands Supported and Effects log reports (NVMe Base 2.0 §5.16.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Changes no logical block.
    None,
    /// Changes logical blocks.
    ChangesBlocks,
    /// Not in the log: fabrics commands, and commands that controllers over fabrics do not have.
    Unlisted,
}

/// Defines opcode constants and their table.
macro_rules! commands {
    ($(#[$about:meta])* $module:ident {
        $($(#[$doc:meta])* $constant:ident = $opcode:literal, $name:literal, $effect:ident;)*
    }) => {
        $(#[$about])*
        pub mod $module {
            use super::{CommandEntry, Effect};

            $($(#[$doc])* pub const $constant: u8 = $opcode;)*

            /// All of these.
            pub const COMMANDS: &[CommandEntry] = &[
                $(CommandEntry { opcode: $opcode, name: $name, effect: Effect::$effect },)*
            ];
        }
    };
}

commands! {
    /// Opcodes of the admin queue (NVMe Base 2.0 §5).
    admin {
        /// Delete I/O Submission Queue; not supported over fabrics (§5.7).
        DELETE_IO_SQ = 0x00, "Delete I/O Submission Queue", Unlisted;
        /// Get Log Page (§5.16).
        GET_LOG_PAGE = 0x02, "Get Log Page", None;
        /// Identify (§5.17).
        IDENTIFY = 0x06, "Identify", None;
        /// Abort (§5.1).
        ABORT = 0x08, "Abort", None;
        /// Set Features (§5.27).
        SET_FEATURES = 0x09, "Set Features", None;
        /// Get Features (§5.15).
        GET_FEATURES = 0x0A, "Get Features", None;
        /// Asynchronous Event Request (§5.2).
        ASYNC_EVENT_REQUEST = 0x0C, "Asynchronous Event Request", None;
        /// Keep Alive (§5.18).
        KEEP_ALIVE = 0x18, "Keep Alive", None;
        /// Function Load (protocol.md).
        FUNCTION_LOAD = 0xC1, "Function Load", None;
        /// Map Report (protocol.md).
        MAP_REPORT = 0xC2, "Map Report", None;
        /// Map Get (protocol.md).
        MAP_GET = 0xC3, "Map Get", None;
        /// Function Unload (protocol.md).
        FUNCTION_UNLOAD = 0xC4, "Function Unload", None;
        /// File Map Set (protocol.md).
        FILE_MAP_SET = 0xC5, "File Map Set", None;
        /// Function Report (protocol.md).
        FUNCTION_REPORT = 0xC6, "Function Report", None;
        /// Map Change (protocol.md).
        MAP_CHANGE = 0xC9, "Map Change", None;
        /// Pushdown Identify (protocol.md).
        PUSHDOWN_IDENTIFY = 0xCA, "Pushdown Identify", None;
        /// Map Read (protocol.md).
        MAP_READ = 0xCE, "Map Read", None;
    }
}

commands! {
    /// Opcodes of I/O queues with the NVM command set (NVM Command Set 1.0 §3.2).
    nvm {
        /// Flush (NVMe Base 2.0 §7.1).
        FLUSH = 0x00, "Flush", None;
        /// Write (§3.2.6).
        WRITE = 0x01, "Write", ChangesBlocks;
        /// Read (§3.2.4).
        READ = 0x02, "Read", None;
        /// Compare (§3.2.1).
        COMPARE = 0x05, "Compare", None;
        /// Write Zeroes (§3.2.8).
        WRITE_ZEROES = 0x08, "Write Zeroes", ChangesBlocks;
        /// Dataset Management (§3.2.3).
        DATASET_MANAGEMENT = 0x09, "Dataset Management", ChangesBlocks;
        /// Verify (§3.2.5).
        VERIFY = 0x0C, "Verify", None;
        /// Pushdown Short (protocol.md).
        PUSHDOWN_SHORT = 0x82, "Pushdown Short", None;
        /// Pushdown (protocol.md).
        PUSHDOWN = 0x83, "Pushdown", None;
        /// Pushdown Vector (protocol.md).
        PUSHDOWN_VECTOR = 0x87, "Pushdown Vector", None;
    }
}

commands! {
    /// The fabrics command types (NVMe Base 2.0 §6).
    fabrics_type {
        /// Property Set (§6.6).
        PROPERTY_SET = 0x00, "Property Set", Unlisted;
        /// Connect (§6.3).
        CONNECT = 0x01, "Connect", Unlisted;
        /// Property Get (§6.5).
        PROPERTY_GET = 0x04, "Property Get", Unlisted;
        /// Authentication Send (§6.2).
        AUTHENTICATION_SEND = 0x05, "Authentication Send", Unlisted;
        /// Authentication Receive (§6.1).
        AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive", Unlisted;
        /// Disconnect (§6.4).
        DISCONNECT = 0x08, "Disconnect", Unlisted;
    }
}

/// Opcode of every fabrics command, on any queue (NVMe Base 2.0 §6).
pub const FABRICS: u8 = 0x7F;

/// The name of a command on an admin queue or an I/O queue, if it is known; `fctype` selects among fabrics commands.
#[must_use]
pub fn command_name(is_admin_queue: bool, opcode: u8, fctype: u8) -> Option<&'static str> {
    let (table, opcode) = match (opcode, is_admin_queue) {
        (FABRICS, _) => (fabrics_type::COMMANDS, fctype),
        (_, true) => (admin::COMMANDS, opcode),
        (_, false) => (nvm::COMMANDS, opcode),
    };
    table.iter().find(|entry| entry.opcode == opcode).map(|entry| entry.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_one_opcode_and_one_name() {
        for table in [admin::COMMANDS, nvm::COMMANDS, fabrics_type::COMMANDS] {
            for (index, entry) in table.iter().enumerate() {
                let others = &table[index + 1..];
                let is_other =
                    |other: &CommandEntry| other.opcode != entry.opcode && other.name != entry.name;
                assert!(others.iter().all(is_other), "{entry:?}");
            }
        }
        assert_eq!(command_name(true, admin::IDENTIFY, 0), Some("Identify"));
        assert_eq!(command_name(false, nvm::WRITE, 0), Some("Write"));
        assert_eq!(command_name(false, FABRICS, fabrics_type::DISCONNECT), Some("Disconnect"));
        assert_eq!(command_name(false, 0xFF, 0), None);
    }

    /// Bits 1:0 of an opcode say which way data goes (NVMe Base 2.0 §3.3.3.1).
    #[test]
    fn vendor_commands_are_in_their_range() {
        let is_vendor = |entry: &&CommandEntry| entry.opcode >= 0xC0;
        assert_eq!(admin::COMMANDS.iter().filter(is_vendor).count(), 9);
        assert!(nvm::COMMANDS.iter().filter(|entry| entry.opcode >= 0x80).count() == 3);
    }
}
