//! Identify structures and pushdown limits.

use super::context::{Answered, Command, Context, Outcome};
use super::events::{ANA_CHANGED, DISCOVERY_CHANGED, NAMESPACE_CHANGED};
use crate::access::{Access, Rights};
use crate::config::AnaState;
use crate::controller::Controller;
use crate::health::ERROR_ENTRIES;
use crate::limits::{
    ALL_NAMESPACES, MAX_ANA_GROUPS, MAX_ASSOCIATION_MAP_BYTES, MAX_ASYNC_EVENTS, MAX_EXTENTS,
    MAX_FILE_MAPS, MAX_FUNCTIONS, MAX_NSID, MAX_QUEUE_ENTRIES, MAX_TRANSFER_BYTES,
    MAX_VECTOR_BYTES, MAX_VECTOR_CHAINS,
};
use crate::namespace::{Namespace, Traits, fnv1a_128};
use crate::refusal::{Refusal, Reply};
use crate::subsystem::Subsystem;
use crate::transport::Port;
use bpfof_chain::Limits;
use bpfof_function::abi;
use bpfof_nvme::fabrics::Version;
use bpfof_nvme::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyNamespace, IndependentNamespace, LbaFormat,
    NamespaceDescriptor, NvmController, cns, namespace_descriptors, namespace_list,
};
use bpfof_nvme::vendor_specific::{FUNCTION_TYPE_EBPF, PROTOCOL_VERSION, PushdownLimits};
use bpfof_nvme::{SpacePadded, Status};

/// ANACAP bits 2:0: the states Optimized, Non-Optimized and Inaccessible are reported (NVMe Base 2.0
/// §5.17.2.1). Bit 6 is clear: a reload may change the group of a namespace that hosts use.
const ANA_STATES: u8 = 0b111;

/// Identify (NVMe Base 2.0 §5.17).
pub(super) fn identify(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    (cns, nsid, csi): (u8, u32, u8),
) -> Answered {
    let page = page(cx, (cns, nsid, csi))?;
    command.check_room(page.len())?;
    Ok(Outcome::Data(Reply::default(), page.to_vec()))
}

fn page(
    cx: &Context<'_>,
    (cns, nsid, csi): (u8, u32, u8),
) -> Result<[u8; IDENTIFY_BYTES], Refusal> {
    let (controller, subsystem) = (cx.controller(), cx.subsystem());
    let no_namespace = || {
        let cause = format!("there is no namespace {nsid:#x}");
        Refusal::new(Status::INVALID_NAMESPACE.with_dnr(), cause).of_field("NSID")
    };
    let access = &controller.access;
    let known = || subsystem.namespace(nsid).filter(|_| access.sees(nsid));
    let namespace = || known().ok_or_else(no_namespace);
    let unknown = || Refusal::field("CNS", format!("there is no structure {cns:#x}"));
    match cns {
        cns::CONTROLLER => {
            let port = &cx.connection.port;
            Ok(identify_controller(&controller, &subsystem, port).to_bytes())
        }
        // A discovery controller has no other structure.
        _ if subsystem.is_discovery() => Err(unknown()),
        cns::NAMESPACE if nsid == ALL_NAMESPACES => Ok(IdentifyNamespace {
            lbaf: [LbaFormat { lbads: 9, ..LbaFormat::default() }; 16],
            ..IdentifyNamespace::default()
        }
        .to_bytes()),
        // A valid id that no namespace has (NVM Command Set 1.0 §4.1.5.1).
        cns::NAMESPACE if (1..=MAX_NSID).contains(&nsid) => {
            let is_writable = access.rights.intersects(Rights::WRITE);
            let known = known().map(|known| {
                let (state, _) = controller.listener.group(known.ana_group());
                let is_accessible = state != AnaState::Inaccessible;
                identify_namespace(&known, is_writable, is_accessible).to_bytes()
            });
            Ok(known.unwrap_or([0; IDENTIFY_BYTES]))
        }
        cns::NAMESPACE => Err(no_namespace()),
        cns::ACTIVE_NAMESPACES if nsid >= ALL_NAMESPACES - 1 => Err(no_namespace()),
        cns::ACTIVE_NAMESPACES => {
            let visible = subsystem.namespaces();
            let visible = visible.iter().map(|namespace| namespace.nsid);
            Ok(namespace_list(visible.filter(|nsid| access.sees(*nsid)), nsid))
        }
        cns::NAMESPACE_DESCRIPTORS => {
            let namespace = namespace()?;
            Ok(namespace_descriptors(&[
                NamespaceDescriptor::Nguid(namespace.nguid),
                NamespaceDescriptor::Uuid(namespace.uuid),
                NamespaceDescriptor::CommandSet(0),
            ]))
        }
        // The NVM command set adds nothing that the target supports: all zero (NVM Command Set 1.0 §4.1.5.3).
        cns::COMMAND_SET_NAMESPACE if csi == 0 => namespace().map(|_| [0; IDENTIFY_BYTES]),
        cns::COMMAND_SET_CONTROLLER if csi == 0 => {
            Ok(NvmController { vsl: max_transfer_exponent() }.to_bytes())
        }
        cns::INDEPENDENT_NAMESPACE => {
            let anagrpid = namespace()?.ana_group();
            // Shared, and ready.
            let nsattr = u8::from(!access.rights.intersects(Rights::WRITE));
            let page = IndependentNamespace { nmic: 1, nsattr, nstat: 1, ..Default::default() };
            Ok(IndependentNamespace { anagrpid, ..page }.to_bytes())
        }
        _ => Err(unknown()),
    }
}

/// The largest transfer, as an exponent of two in memory pages of 4 KiB.
fn max_transfer_exponent() -> u8 {
    (MAX_TRANSFER_BYTES / 4096).trailing_zeros() as u8
}

/// The model name says whether namespaces that the host sees lose their data when the target stops.
fn model(subsystem: &Subsystem, access: &Access) -> &'static str {
    let mut namespaces = subsystem.namespaces();
    namespaces.retain(|namespace| access.sees(namespace.nsid));
    let mut are_volatile = namespaces.iter().map(|namespace| namespace.is_volatile());
    if subsystem.is_discovery() {
        "bpf-of discovery"
    } else if are_volatile.clone().all(|is_volatile| is_volatile) {
        "bpf-of (volatile memory)"
    } else if are_volatile.any(|is_volatile| is_volatile) {
        "bpf-of (files and volatile memory)"
    } else {
        "bpf-of"
    }
}

/// Optional commands (ONCS): Compare and Verify always, Write Zeroes if every namespace can write zeroes without data,
/// Dataset Management if every namespace can deallocate blocks. No Compare and Write (fused): see docs/decisions.md. No
/// reservations.
fn optional_commands(traits: Traits) -> u16 {
    const COMPARE_AND_VERIFY: u16 = 1 | 1 << 7;
    COMPARE_AND_VERIFY | u16::from(traits.deallocates) << 2 | u16::from(traits.writes_zeroes) << 3
}

fn identify_controller(
    controller: &Controller,
    subsystem: &Subsystem,
    port: &Port,
) -> IdentifyController {
    let serial = format!("{:016x}", fnv1a_128(subsystem.nqn.as_bytes()) as u64);
    let is_discovery = subsystem.is_discovery();
    let traits = controller.traits;
    IdentifyController {
        serial: SpacePadded::new(&serial),
        model: SpacePadded::new(model(subsystem, &controller.access)),
        firmware: SpacePadded::new(env!("CARGO_PKG_VERSION")),
        // The subsystem may have several ports, here or at another target, and several controllers (one for each host);
        // ANA is reported.
        cmic: if is_discovery { 1 << 1 } else { 1 | 1 << 1 | 1 << 3 },
        mdts: max_transfer_exponent(),
        cntlid: controller.id,
        ver: Version::V1_4.0,
        oaes: if is_discovery { DISCOVERY_CHANGED } else { NAMESPACE_CHANGED | ANA_CHANGED },
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
        // The shortest time: groups change their state at once.
        anatt_s: if is_discovery { 0 } else { 1 },
        anacap: if is_discovery { 0 } else { ANA_STATES },
        anagrpmax: if is_discovery { 0 } else { MAX_ANA_GROUPS },
        nanagrpid: if is_discovery { 0 } else { MAX_ANA_GROUPS },
        sqes: 6 | 6 << 4,
        cqes: 4 | 4 << 4,
        maxcmd: MAX_QUEUE_ENTRIES,
        nn: if is_discovery { 0 } else { MAX_NSID },
        mnan: if is_discovery { 0 } else { MAX_NSID },
        oncs: if is_discovery { 0 } else { optional_commands(traits) },
        // Bits 2:1: Flush is for one namespace, not for all at once.
        vwc: u8::from(traits.has_volatile_cache) | 2 << 1,
        // SGLs, in the capsule with an offset; keyed ones where the transport has them.
        sgls: 1 | u32::from(port.is_keyed()) << 2 | 1 << 20,
        subnqn: subsystem.nqn.as_str().into(),
        // Disconnect.
        ofcs: 1,
        ioccsz_16b: (64 + port.in_capsule_bytes()) / 16,
        iorcsz_16b: 1,
        msdbd: 1,
        ..IdentifyController::default()
    }
}

fn identify_namespace(
    namespace: &Namespace,
    is_writable: bool,
    is_accessible: bool,
) -> IdentifyNamespace {
    let mut lbaf = [LbaFormat::default(); 16];
    lbaf[0].lbads = namespace.block_shift as u8;
    let blocks = namespace.blocks();
    IdentifyNamespace {
        nsze: blocks,
        ncap: blocks,
        // The usage of an inaccessible namespace is not reported (NVM Command Set 1.0 §4.1.5.1).
        nuse: if is_accessible { blocks } else { 0 },
        // Shared: every host sees it.
        nmic: 1,
        // Currently write protected.
        nsattr: u8::from(!is_writable),
        anagrpid: namespace.ana_group(),
        // Deallocated blocks read as zeroes, and Write Zeroes deallocates if the host asks for it.
        dlfeat: if namespace.deallocates() { 1 | 1 << 3 } else { 0 },
        nguid: namespace.nguid,
        lbaf,
        ..IdentifyNamespace::default()
    }
}

/// Pushdown Identify (docs/protocol.md).
pub(super) fn pushdown_identify(
    cx: &mut Context<'_>,
    command: &Command<'_>,
    length_bytes: u32,
) -> Answered {
    let mut limits = pushdown_limits(&cx.executor.registry.limits).to_bytes().to_vec();
    limits.truncate(length_bytes as usize);
    command.check_room(limits.len())?;
    Ok(Outcome::Data(Reply::default(), limits))
}

fn pushdown_limits(limits: &Limits) -> PushdownLimits {
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
        map_bytes: MAX_ASSOCIATION_MAP_BYTES as u32,
        vector_chains: MAX_VECTOR_CHAINS.into(),
        vector_bytes: MAX_VECTOR_BYTES,
    }
}
