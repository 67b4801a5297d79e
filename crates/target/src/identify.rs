//! What the controller says of itself: identify structures, log pages, pushdown limits.

use crate::admin::{MAX_EXTENTS, MAX_FILE_MAPS, MAX_FUNCTIONS};
use crate::connection::{IN_CAPSULE_BYTES, MAX_QUEUE_ENTRIES, MAX_TRANSFER_BYTES, Reply};
use crate::controller::Controller;
use crate::namespace::{Namespace, fnv1a_128};
use crate::subsystem::Subsystem;
use bpfof_function::abi;
use bpfof_nvme::fabrics::Version;
use bpfof_nvme::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, LbaFormat, NamespaceDescriptor, cns,
    namespace_descriptors, namespace_list,
};
use bpfof_nvme::log_page::{ErrorLogEntry, SmartLog, firmware_slot, lid};
use bpfof_nvme::vendor::{FUNCTION_TYPE_EBPF, PROTOCOL_VERSION, PushdownLimits};
use bpfof_nvme::{SpacePadded, Status};

/// Names all active namespaces (NVMe Base 2.0 §3.2.1).
const ALL_NAMESPACES: u32 = u32::MAX;

/// An identify structure (NVMe Base 2.0 §5.17).
pub(crate) fn page(
    subsystem: &Subsystem,
    controller: &Controller,
    cns: u8,
    nsid: u32,
    csi: u8,
) -> Result<[u8; IDENTIFY_BYTES], Reply> {
    let namespace = || {
        let index = subsystem.namespace_index(nsid);
        index
            .map(|index| &subsystem.namespaces[index])
            .ok_or(Reply::from(Status::INVALID_NAMESPACE.with_dnr()))
    };
    match cns {
        cns::NAMESPACE if nsid == ALL_NAMESPACES => Ok(IdentifyNamespace {
            lbaf: [LbaFormat { lbads: 9, ..LbaFormat::default() }; 16],
            ..IdentifyNamespace::default()
        }
        .to_bytes()),
        cns::NAMESPACE => Ok(identify_namespace(namespace()?).to_bytes()),
        cns::CONTROLLER => Ok(identify_controller(subsystem, controller).to_bytes()),
        cns::ACTIVE_NAMESPACES if nsid >= ALL_NAMESPACES - 1 => {
            Err(Status::INVALID_NAMESPACE.with_dnr().into())
        }
        cns::ACTIVE_NAMESPACES => {
            Ok(namespace_list(subsystem.namespaces.iter().map(|n| n.nsid), nsid))
        }
        cns::NAMESPACE_DESCRIPTORS => {
            let nguid = NamespaceDescriptor::Nguid(namespace()?.nguid);
            Ok(namespace_descriptors(&[nguid, NamespaceDescriptor::CommandSet(0)]))
        }
        // The NVM command set adds nothing that we support: all zero (NVM Command Set 1.0
        // §4.1.5.3).
        cns::COMMAND_SET_CONTROLLER if csi == 0 => Ok([0; IDENTIFY_BYTES]),
        _ => Err(Status::INVALID_FIELD.with_dnr().into()),
    }
}

fn identify_controller(subsystem: &Subsystem, controller: &Controller) -> IdentifyController {
    let serial = format!("{:016x}", fnv1a_128(subsystem.nqn.as_bytes()) as u64);
    let volatile = subsystem.namespaces.iter().any(Namespace::has_volatile_cache);
    let only_memory = subsystem.namespaces.iter().all(|n| !n.has_volatile_cache());
    let model = if only_memory { "bpf-of (volatile memory)" } else { "bpf-of" };
    IdentifyController {
        serial: SpacePadded::new(&serial),
        model: SpacePadded::new(model),
        firmware: SpacePadded::new(env!("CARGO_PKG_VERSION")),
        // More than one controller (one a host) shares the subsystem.
        cmic: 1 << 1,
        mdts: (MAX_TRANSFER_BYTES / 4096).trailing_zeros() as u8,
        cntlid: controller.id,
        ver: Version::V1_4.0,
        cntrltype: 1,
        aerl: 3,
        acl: 3,
        // One read-only firmware slot.
        frmw: 1 | 1 << 1,
        npss: 0,
        kas_100ms: 1,
        sqes: 6 | 6 << 4,
        cqes: 4 | 4 << 4,
        maxcmd: MAX_QUEUE_ENTRIES,
        nn: subsystem.namespaces.len() as u32,
        // Write Zeroes.
        oncs: 1 << 3,
        vwc: u8::from(volatile),
        // SGLs, transport and in-capsule with an offset.
        sgls: 1 | 1 << 20,
        subnqn: subsystem.nqn.as_str().into(),
        // Disconnect.
        ofcs: 1,
        ioccsz_16b: (64 + IN_CAPSULE_BYTES) / 16,
        iorcsz_16b: 1,
        msdbd: 1,
        ..IdentifyController::default()
    }
}

fn identify_namespace(namespace: &Namespace) -> IdentifyNamespace {
    let mut lbaf = [LbaFormat::default(); 16];
    lbaf[0].lbads = namespace.block_shift as u8;
    IdentifyNamespace {
        nsze: namespace.blocks,
        ncap: namespace.blocks,
        nuse: namespace.blocks,
        // Shared: every host sees it.
        nmic: 1,
        // Deallocated blocks read as zeroes, and Write Zeroes deallocates.
        dlfeat: 1 | 1 << 3,
        nguid: namespace.nguid,
        lbaf,
        ..IdentifyNamespace::default()
    }
}

/// A log page, whole (NVMe Base 2.0 §5.16).
pub(crate) fn log_page(lid: u8) -> Result<Vec<u8>, Reply> {
    match lid {
        // Nothing to report: no error has happened that the host was not told in a completion.
        lid::ERROR => Ok(ErrorLogEntry::default().to_bytes().to_vec()),
        lid::SMART => Ok(SmartLog::default().to_bytes().to_vec()),
        lid::FIRMWARE_SLOT => {
            Ok(firmware_slot(SpacePadded::new(env!("CARGO_PKG_VERSION"))).to_vec())
        }
        _ => Err(Status::INVALID_LOG_PAGE.with_dnr().into()),
    }
}

/// docs/protocol.md, Pushdown Identify.
pub(crate) fn pushdown_limits(subsystem: &Subsystem) -> PushdownLimits {
    let limits = &subsystem.limits;
    PushdownLimits {
        protocol_version: PROTOCOL_VERSION,
        files: abi::MAX_READS as u16,
        scratch_bytes: abi::MAX_SCRATCH_BYTES as u32,
        reads_per_hop: abi::MAX_READS as u32,
        hop_bytes: abi::MAX_HOP_BYTES as u32,
        hops: limits.hops,
        functions: MAX_FUNCTIONS as u32,
        file_maps: MAX_FILE_MAPS as u32,
        extents: MAX_EXTENTS as u32,
        chain_bytes: limits.bytes,
        chain_instructions: limits.instructions,
        object_bytes: abi::MAX_OBJECT_BYTES as u32,
        call_instructions: limits.instructions_per_call,
        function_types: FUNCTION_TYPE_EBPF,
    }
}
