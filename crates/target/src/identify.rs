//! What the controller says of itself: identify structures and pushdown limits.

use crate::admin::{
    MAX_ASYNC_EVENTS, MAX_EXTENTS, MAX_FILE_MAPS, MAX_FUNCTIONS, NAMESPACE_CHANGED,
};
use crate::connection::{IN_CAPSULE_BYTES, MAX_QUEUE_ENTRIES, MAX_TRANSFER_BYTES, Reply};
use crate::controller::Controller;
use crate::health::ERROR_ENTRIES;
use crate::namespace::{Namespace, fnv1a_128};
use crate::subsystem::Subsystem;
use crate::target::Target;
use bpfof_chain::Limits;
use bpfof_function::abi;
use bpfof_nvme::fabrics::Version;
use bpfof_nvme::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, IndependentNamespace, LbaFormat,
    NamespaceDescriptor, NvmController, cns, namespace_descriptors, namespace_list,
};
use bpfof_nvme::vendor::{FUNCTION_TYPE_EBPF, PROTOCOL_VERSION, PushdownLimits};
use bpfof_nvme::{SpacePadded, Status};

/// Names all active namespaces (NVMe Base 2.0 §3.2.1).
const ALL_NAMESPACES: u32 = u32::MAX;

/// An identify structure (NVMe Base 2.0 §5.17).
pub(crate) fn page(
    target: &Target,
    controller: &Controller,
    cns: u8,
    nsid: u32,
    csi: u8,
) -> Result<[u8; IDENTIFY_BYTES], Reply> {
    let subsystem = &*controller.subsystem;
    let namespace = || {
        let index = subsystem.namespace_index(nsid);
        index
            .map(|index| &target.namespaces[index])
            .ok_or(Reply::from(Status::INVALID_NAMESPACE.with_dnr()))
    };
    match cns {
        cns::CONTROLLER => Ok(identify_controller(target, controller).to_bytes()),
        // A discovery controller knows no other structure.
        _ if subsystem.is_discovery() => Err(Status::INVALID_FIELD.with_dnr().into()),
        cns::NAMESPACE if nsid == ALL_NAMESPACES => Ok(IdentifyNamespace {
            lbaf: [LbaFormat { lbads: 9, ..LbaFormat::default() }; 16],
            ..IdentifyNamespace::default()
        }
        .to_bytes()),
        cns::NAMESPACE => Ok(identify_namespace(namespace()?).to_bytes()),
        cns::ACTIVE_NAMESPACES if nsid >= ALL_NAMESPACES - 1 => {
            Err(Status::INVALID_NAMESPACE.with_dnr().into())
        }
        cns::ACTIVE_NAMESPACES => {
            Ok(namespace_list(target.namespaces_of(subsystem).map(|n| n.nsid), nsid))
        }
        cns::NAMESPACE_DESCRIPTORS => {
            let namespace = namespace()?;
            Ok(namespace_descriptors(&[
                NamespaceDescriptor::Nguid(namespace.nguid),
                NamespaceDescriptor::Uuid(namespace.uuid),
                NamespaceDescriptor::CommandSet(0),
            ]))
        }
        // The NVM command set adds nothing that we support: all zero (NVM Command Set 1.0
        // §4.1.5.3).
        cns::COMMAND_SET_NAMESPACE if csi == 0 => namespace().map(|_| [0; IDENTIFY_BYTES]),
        cns::COMMAND_SET_CONTROLLER if csi == 0 => {
            Ok(NvmController { vsl: max_transfer_exponent() }.to_bytes())
        }
        cns::INDEPENDENT_NAMESPACE => {
            namespace()?;
            // Shared, and ready.
            Ok(IndependentNamespace { nmic: 1, nstat: 1, ..IndependentNamespace::default() }
                .to_bytes())
        }
        _ => Err(Status::INVALID_FIELD.with_dnr().into()),
    }
}

/// The largest transfer, as a power of two of memory pages of 4 KiB.
fn max_transfer_exponent() -> u8 {
    (MAX_TRANSFER_BYTES / 4096).trailing_zeros() as u8
}

/// Whether a namespace of the subsystem may lose acknowledged writes that were not flushed.
pub(crate) fn has_volatile_cache(target: &Target, subsystem: &Subsystem) -> bool {
    target.namespaces_of(subsystem).any(Namespace::has_volatile_cache)
}

/// The model name says which kind of storage loses everything when the target stops.
fn model(target: &Target, subsystem: &Subsystem) -> &'static str {
    let mut namespaces = target.namespaces_of(subsystem);
    if subsystem.is_discovery() {
        "bpf-of discovery"
    } else if namespaces.all(Namespace::is_memory) {
        "bpf-of (volatile memory)"
    } else if target.namespaces_of(subsystem).any(Namespace::is_memory) {
        "bpf-of (files and volatile memory)"
    } else {
        "bpf-of"
    }
}

/// Optional commands: Compare and Verify always, Dataset Management and Write Zeroes where each
/// namespace can give blocks back.
fn optional_commands(target: &Target, subsystem: &Subsystem) -> u16 {
    const COMPARE_AND_VERIFY: u16 = 1 | 1 << 7;
    const DATASET_MANAGEMENT_AND_ZEROES: u16 = 1 << 2 | 1 << 3;
    if target.namespaces_of(subsystem).all(Namespace::deallocates) {
        COMPARE_AND_VERIFY | DATASET_MANAGEMENT_AND_ZEROES
    } else {
        COMPARE_AND_VERIFY
    }
}

fn identify_controller(target: &Target, controller: &Controller) -> IdentifyController {
    let subsystem = &*controller.subsystem;
    let serial = format!("{:016x}", fnv1a_128(subsystem.nqn.as_bytes()) as u64);
    let is_discovery = subsystem.is_discovery();
    IdentifyController {
        serial: SpacePadded::new(&serial),
        model: SpacePadded::new(model(target, subsystem)),
        firmware: SpacePadded::new(env!("CARGO_PKG_VERSION")),
        // More than one controller (one a host) shares the subsystem.
        cmic: 1 << 1,
        mdts: max_transfer_exponent(),
        cntlid: controller.id,
        ver: Version::V1_4.0,
        // Namespaces may change their size.
        oaes: if is_discovery { 0 } else { NAMESPACE_CHANGED },
        // A 128-bit host identifier; keep-alive restarted by any traffic.
        ctratt: 1 | 1 << 6,
        cntrltype: if is_discovery { 2 } else { 1 },
        aerl: MAX_ASYNC_EVENTS as u8 - 1,
        acl: 3,
        // Commands supported and effects (not of discovery controllers); log pages in pieces.
        lpa: if is_discovery { 1 << 2 } else { 1 << 1 | 1 << 2 },
        elpe: ERROR_ENTRIES as u8 - 1,
        // One read-only firmware slot.
        frmw: 1 | 1 << 1,
        npss: 0,
        kas_100ms: 1,
        sqes: 6 | 6 << 4,
        cqes: 4 | 4 << 4,
        maxcmd: MAX_QUEUE_ENTRIES,
        nn: subsystem.members().len() as u32,
        oncs: if is_discovery { 0 } else { optional_commands(target, subsystem) },
        // Bits 2:1: Flush is for one namespace, not for all at once.
        vwc: u8::from(has_volatile_cache(target, subsystem)) | 2 << 1,
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
    let blocks = namespace.blocks();
    IdentifyNamespace {
        nsze: blocks,
        ncap: blocks,
        nuse: blocks,
        // Shared: every host sees it.
        nmic: 1,
        // Deallocated blocks read as zeroes, and Write Zeroes deallocates.
        dlfeat: if namespace.deallocates() { 1 | 1 << 3 } else { 0 },
        nguid: namespace.nguid,
        lbaf,
        ..IdentifyNamespace::default()
    }
}

/// docs/protocol.md, Pushdown Identify.
pub(crate) fn pushdown_limits(limits: &Limits) -> PushdownLimits {
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
