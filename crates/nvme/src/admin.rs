//! Commands of the admin queue, parsed once, and their constructors (NVMe Base 2.0 §5, protocol.md).

use crate::fabrics::FabricsCommand;
use crate::opcode::{FABRICS, admin};
use crate::vendor_specific::MapCommand;
use crate::{Sgl, Sqe, Status};

/// The position of a chunk in an upload (protocol.md, "Uploads").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Length of the whole object in bytes (CDW10).
    pub total_bytes: u32,
    /// Offset of this chunk in bytes (CDW11).
    pub offset_bytes: u32,
}

impl Upload {
    /// The commands that upload an object of less than 4 GiB, each with its data of at most `chunk_bytes` (not 0).
    pub fn chunks(object: &[u8], chunk_bytes: u32) -> impl Iterator<Item = (Upload, &[u8])> {
        let total_bytes = object.len() as u32;
        let offsets = (0..total_bytes).step_by(chunk_bytes as usize);
        let uploads = offsets.map(move |offset_bytes| Upload { total_bytes, offset_bytes });
        uploads.zip(object.chunks(chunk_bytes as usize))
    }
}

/// What Function Load installs (protocol.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    /// The entry point: which `bpfof/…` section of the object, in file order (CDW13).
    pub entry: u32,
    /// Installed for all associations with the subsystem until it is unloaded, not only for this one (CDW12 bit 0).
    pub kept: bool,
    /// The upload begins with the function's name, [`NAME_BYTES`](Self::NAME_BYTES) long; otherwise the function is
    /// named after its section (CDW12 bit 1).
    pub named: bool,
}

impl Installation {
    /// Bytes of the name in front of the object: UTF-8, zero-padded.
    pub const NAME_BYTES: usize = 64;
    /// Bit 0 of CDW12.
    const KEPT: u32 = 1;
    /// Bit 1 of CDW12.
    const NAMED: u32 = 2;
}

/// A command of the admin queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// Identify (NVMe Base 2.0 §5.17).
    Identify {
        /// Which structure (CDW10 bits 7:0).
        cns: u8,
        /// Namespace, or where a list starts.
        nsid: u32,
        /// Controller identifier (CDW10 bits 31:16).
        cntid: u16,
        /// Command set identifier (CDW11 bits 31:24).
        csi: u8,
    },
    /// Get Log Page (§5.16).
    GetLogPage {
        /// Log page identifier (CDW10 bits 7:0).
        lid: u8,
        /// Log specific parameter (CDW10 bits 14:8).
        lsp: u8,
        /// Retain Asynchronous Event (CDW10 bit 15).
        rae: bool,
        /// Bytes to return (CDW10 bits 31:16 and CDW11 bits 15:0, there 0's based dwords).
        length_bytes: u64,
        /// Where to start in the log page, in bytes (CDW12 and 13).
        offset_bytes: u64,
        /// Namespace.
        nsid: u32,
    },
    /// Get Features (§5.15).
    GetFeatures {
        /// Feature identifier (CDW10 bits 7:0).
        fid: u8,
        /// Which value (CDW10 bits 10:8).
        sel: u8,
        /// CDW11, as the feature defines it.
        cdw11: u32,
        /// Namespace.
        nsid: u32,
    },
    /// Set Features (§5.27).
    SetFeatures {
        /// Feature identifier (CDW10 bits 7:0).
        fid: u8,
        /// Keep the value across resets (CDW10 bit 31).
        save: bool,
        /// CDW11, as the feature defines it.
        cdw11: u32,
        /// Namespace.
        nsid: u32,
    },
    /// Asynchronous Event Request (§5.2).
    AsyncEventRequest,
    /// Abort (§5.1).
    Abort {
        /// Submission queue of the command to abort (CDW10 bits 15:0).
        sqid: u16,
        /// Its command identifier (CDW10 bits 31:16).
        cid: u16,
    },
    /// Keep Alive (§5.18).
    KeepAlive,
    /// Function Load (protocol.md): the chunk, and the index of the entry point's section.
    FunctionLoad(Upload, Installation),
    /// File Map Set (protocol.md).
    FileMapSet(Upload),
    /// Function Unload (protocol.md).
    FunctionUnload {
        /// Function id (CDW10).
        function: u32,
    },
    /// Function Report (protocol.md).
    FunctionReport {
        /// Function id, [`AdminCommand::ALL_FUNCTIONS`] or [`AdminCommand::LAST_LOAD_MESSAGE`]
        /// (CDW10).
        function: u32,
        /// Length of the host's buffer in bytes (CDW11).
        length_bytes: u32,
        /// The kind of report (CDW12).
        content: ReportContent,
        /// Association that has the functions: its controller id, or 0 for the command's own (CDW13 bits 15:0).
        controller: u16,
    },
    /// Pushdown Identify (protocol.md).
    PushdownIdentify {
        /// Length of the host's buffer in bytes (CDW11).
        length_bytes: u32,
    },
    /// A command about function maps (protocol.md).
    Map(MapCommand),
    /// A fabrics command (NVMe Base 2.0 §6).
    Fabrics(FabricsCommand),
    /// Any other opcode.
    Unknown(u8),
}

/// The kinds of report of Function Report (protocol.md, Function Report).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportContent {
    /// An entry for each function.
    Entries,
    /// A description of one function's last fault.
    LastFault,
    /// The trace lines of one function, as text.
    Trace,
    /// The ids of the associations whose functions the host may report on, its own first.
    Associations,
    /// The digest of each function.
    Digests,
}

impl AdminCommand {
    /// Function Report: entries of all functions (protocol.md).
    pub const ALL_FUNCTIONS: u32 = 0;
    /// Function Report: the message of the last Function Load (protocol.md).
    pub const LAST_LOAD_MESSAGE: u32 = 0xFFFF_FFFF;

    /// Parses a command. Only vendor commands have their reserved fields checked.
    ///
    /// # Errors
    /// The status to answer: Invalid Field in Command if a reserved field of a vendor command is
    /// set.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        Ok(match sqe.opcode {
            admin::IDENTIFY => Self::Identify {
                cns: sqe.cdw10 as u8,
                nsid: sqe.nsid,
                cntid: (sqe.cdw10 >> 16) as u16,
                csi: (sqe.cdw11 >> 24) as u8,
            },
            admin::GET_LOG_PAGE => Self::get_log_page_from(sqe),
            admin::GET_FEATURES => Self::GetFeatures {
                fid: sqe.cdw10 as u8,
                sel: (sqe.cdw10 >> 8) as u8 & 7,
                cdw11: sqe.cdw11,
                nsid: sqe.nsid,
            },
            admin::SET_FEATURES => Self::SetFeatures {
                fid: sqe.cdw10 as u8,
                save: sqe.cdw10 >> 31 != 0,
                cdw11: sqe.cdw11,
                nsid: sqe.nsid,
            },
            admin::ASYNC_EVENT_REQUEST => Self::AsyncEventRequest,
            admin::ABORT => Self::Abort { sqid: sqe.cdw10 as u16, cid: (sqe.cdw10 >> 16) as u16 },
            admin::KEEP_ALIVE => Self::KeepAlive,
            admin::FUNCTION_LOAD
            | admin::FILE_MAP_SET
            | admin::FUNCTION_UNLOAD
            | admin::FUNCTION_REPORT
            | admin::PUSHDOWN_IDENTIFY => return Self::parse_vendor(sqe),
            FABRICS => Self::Fabrics(FabricsCommand::parse(sqe)),
            other => match MapCommand::parse(sqe) {
                Some(command) => Self::Map(command?),
                None => Self::Unknown(other),
            },
        })
    }

    fn get_log_page_from(sqe: &Sqe) -> Self {
        let dwords = u64::from(sqe.cdw10 >> 16) | u64::from(sqe.cdw11 & 0xFFFF) << 16;
        Self::GetLogPage {
            lid: sqe.cdw10 as u8,
            lsp: (sqe.cdw10 >> 8) as u8 & 0x7F,
            rae: sqe.cdw10 & 1 << 15 != 0,
            length_bytes: (dwords + 1) * 4,
            offset_bytes: u64::from(sqe.cdw12) | u64::from(sqe.cdw13) << 32,
            nsid: sqe.nsid,
        }
    }

    fn parse_vendor(sqe: &Sqe) -> Result<Self, Status> {
        let upload = Upload { total_bytes: sqe.cdw10, offset_bytes: sqe.cdw11 };
        let (command, reserved) = match sqe.opcode {
            admin::FUNCTION_LOAD => {
                let [kept, named] =
                    [Installation::KEPT, Installation::NAMED].map(|bit| sqe.cdw12 & bit != 0);
                let installation = Installation { entry: sqe.cdw13, kept, named };
                let flags = Installation::KEPT | Installation::NAMED;
                (Self::FunctionLoad(upload, installation), sqe.cdw12 & !flags)
            }
            admin::FILE_MAP_SET => (Self::FileMapSet(upload), sqe.cdw12 | sqe.cdw13),
            admin::FUNCTION_UNLOAD => {
                (Self::FunctionUnload { function: sqe.cdw10 }, sqe.cdw11 | sqe.cdw12 | sqe.cdw13)
            }
            admin::FUNCTION_REPORT => (
                Self::FunctionReport {
                    function: sqe.cdw10,
                    length_bytes: sqe.cdw11,
                    content: match sqe.cdw12 {
                        1 => ReportContent::LastFault,
                        2 => ReportContent::Trace,
                        3 => ReportContent::Associations,
                        4 => ReportContent::Digests,
                        _ => ReportContent::Entries,
                    },
                    controller: sqe.cdw13 as u16,
                },
                if sqe.cdw12 > 4 { sqe.cdw12 } else { sqe.cdw13 & !0xFFFF },
            ),
            admin::PUSHDOWN_IDENTIFY => (
                Self::PushdownIdentify { length_bytes: sqe.cdw11 },
                sqe.cdw10 | sqe.cdw12 | sqe.cdw13,
            ),
            other => (Self::Unknown(other), 0),
        };
        if reserved | sqe.cdw2 | sqe.cdw3 | sqe.cdw14 | sqe.cdw15 != 0 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        Ok(command)
    }

    /// Identify structure `cns` of `nsid` into 4096 bytes (NVMe Base 2.0 §5.17).
    #[must_use]
    pub fn identify(cns: u8, nsid: u32) -> Sqe {
        Sqe { cdw10: u32::from(cns), sgl: Sgl::transport(4096), ..Sqe::new(admin::IDENTIFY, nsid) }
    }

    /// Get Log Page `lid`: `length_bytes` (a multiple of 4, at least 4; rounded down) from
    /// `offset_bytes` on (NVMe Base 2.0 §5.16).
    #[must_use]
    pub fn get_log_page(lid: u8, nsid: u32, offset_bytes: u64, length_bytes: u32) -> Sqe {
        let dwords = (length_bytes / 4).max(1) - 1;
        Sqe {
            cdw10: u32::from(lid) | (dwords & 0xFFFF) << 16,
            cdw11: dwords >> 16,
            cdw12: offset_bytes as u32,
            cdw13: (offset_bytes >> 32) as u32,
            sgl: Sgl::transport((dwords + 1) * 4),
            ..Sqe::new(admin::GET_LOG_PAGE, nsid)
        }
    }

    /// Set Features (NVMe Base 2.0 §5.27).
    #[must_use]
    pub fn set_features(fid: u8, cdw11: u32) -> Sqe {
        Sqe { cdw10: u32::from(fid), cdw11, ..Sqe::new(admin::SET_FEATURES, 0) }
    }

    /// Get Features, the current value (NVMe Base 2.0 §5.15).
    #[must_use]
    pub fn get_features(fid: u8) -> Sqe {
        Sqe { cdw10: u32::from(fid), ..Sqe::new(admin::GET_FEATURES, 0) }
    }

    /// Keep Alive (NVMe Base 2.0 §5.18).
    #[must_use]
    pub fn keep_alive() -> Sqe {
        Sqe::new(admin::KEEP_ALIVE, 0)
    }

    /// Asynchronous Event Request (NVMe Base 2.0 §5.2).
    #[must_use]
    pub fn async_event_request() -> Sqe {
        Sqe::new(admin::ASYNC_EVENT_REQUEST, 0)
    }

    /// Function Load of one chunk; the caller adds the data (protocol.md).
    #[must_use]
    pub fn function_load(upload: Upload, installation: Installation) -> Sqe {
        let Installation { entry, kept, named } = installation;
        let cdw12 =
            (u32::from(kept) * Installation::KEPT) | (u32::from(named) * Installation::NAMED);
        Sqe { cdw12, cdw13: entry, ..Self::upload(admin::FUNCTION_LOAD, upload) }
    }

    /// File Map Set of one chunk; the caller adds the data (protocol.md).
    #[must_use]
    pub fn file_map_set(upload: Upload) -> Sqe {
        Self::upload(admin::FILE_MAP_SET, upload)
    }

    fn upload(opcode: u8, upload: Upload) -> Sqe {
        Sqe { cdw10: upload.total_bytes, cdw11: upload.offset_bytes, ..Sqe::new(opcode, 0) }
    }

    /// Function Unload (protocol.md).
    #[must_use]
    pub fn function_unload(function: u32) -> Sqe {
        Sqe { cdw10: function, ..Sqe::new(admin::FUNCTION_UNLOAD, 0) }
    }

    /// Function Report into a buffer of `length_bytes` (protocol.md).
    #[must_use]
    pub fn function_report(function: u32, length_bytes: u32) -> Sqe {
        Sqe {
            cdw10: function,
            cdw11: length_bytes,
            sgl: Sgl::transport(length_bytes),
            ..Sqe::new(admin::FUNCTION_REPORT, 0)
        }
    }

    /// Function Report: the last fault of one function in words, into a buffer of `length_bytes`
    /// (protocol.md).
    #[must_use]
    pub fn last_fault(function: u32, length_bytes: u32) -> Sqe {
        Sqe { cdw12: 1, ..Self::function_report(function, length_bytes) }
    }

    /// Function Report: what one function has traced, into a buffer of `length_bytes` (protocol.md).
    #[must_use]
    pub fn trace(function: u32, length_bytes: u32) -> Sqe {
        Sqe { cdw12: 2, ..Self::function_report(function, length_bytes) }
    }

    /// Function Report: the associations whose functions the host may ask for, into a buffer of
    /// `length_bytes` (protocol.md).
    #[must_use]
    pub fn associations(length_bytes: u32) -> Sqe {
        Sqe { cdw12: 3, ..Self::function_report(Self::ALL_FUNCTIONS, length_bytes) }
    }

    /// Function Report: the digests of all functions, into a buffer of `length_bytes` (protocol.md).
    #[must_use]
    pub fn digests(length_bytes: u32) -> Sqe {
        Sqe { cdw12: 4, ..Self::function_report(Self::ALL_FUNCTIONS, length_bytes) }
    }

    /// The same Function Report of another association's functions (protocol.md).
    #[must_use]
    pub fn report_of(controller: u16, report: Sqe) -> Sqe {
        Sqe { cdw13: u32::from(controller), ..report }
    }

    /// Pushdown Identify into a buffer of `length_bytes` (protocol.md).
    #[must_use]
    pub fn pushdown_identify(length_bytes: u32) -> Sqe {
        Sqe {
            cdw11: length_bytes,
            sgl: Sgl::transport(length_bytes),
            ..Sqe::new(admin::PUSHDOWN_IDENTIFY, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Upload;

    #[test]
    fn the_chunks_of_an_object_cover_it() {
        let object: Vec<u8> = (0..10).collect();
        for (chunk_bytes, lengths) in
            [(3, &[3, 3, 3, 1][..]), (5, &[5, 5]), (10, &[10]), (1 << 20, &[10])]
        {
            let all: Vec<_> = Upload::chunks(&object, chunk_bytes).collect();
            assert!(all.iter().map(|(_, chunk)| chunk.len()).eq(lengths.iter().copied()));
            for (upload, chunk) in all {
                assert_eq!(upload.total_bytes, 10);
                assert_eq!(object[upload.offset_bytes as usize..][..chunk.len()], *chunk);
            }
        }
        assert_eq!(Upload::chunks(&[], 3).count(), 0);
    }
}
