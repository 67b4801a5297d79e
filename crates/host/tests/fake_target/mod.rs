//! A small target for tests: one memory namespace, two I/O queues, chains that reverse their
//! argument. It blocks, trusts its host, and can be told to misbehave.

use bpfof_host::{FileVersion, PushdownCall};
use bpfof_nvme::fabrics::{Cap, ConnectData, ControllerConfig, Csts, FabricsCommand, offset};
use bpfof_nvme::identify::{IdentifyController, IdentifyNamespace, cns, namespace_list};
use bpfof_nvme::log_page::{AnaGroup, AnaHeader};
use bpfof_nvme::opcode::admin;
use bpfof_nvme::tcp::{
    C2hData, CapsuleResp, Digests, IcResp, Pdu, PduEvent, PduReceiver, R2t, data_digest,
};
use bpfof_nvme::vendor_specific::{PushdownLimits, PushdownRequest};
use bpfof_nvme::{AdminCommand, Cqe, NvmCommand, ReportContent, Rw, Sgl, Sqe, Status, features};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const NQN: &str = "nqn.2026-01.org.example:fake";
pub(crate) const BLOCKS: u64 = 2048;
/// A chain, which reverses its argument.
#[allow(dead_code)] // Not every test runs chains.
pub(crate) const CALL: PushdownCall<'_> = PushdownCall {
    nsid: 1,
    function: 42,
    files: &[FileVersion { id: 0, version: 1 }],
    first_file: 0,
    first_offset_bytes: 0,
    first_size_bytes: 512,
    scratch: b"stressed",
    scratch_size_bytes: 0,
    answer_max_bytes: 64,
};
const CNTLID: u16 = 7;

/// State that all connections share, and the switches for misbehaviour.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) memory: Mutex<Vec<u8>>,
    pub(crate) uploads: Mutex<Vec<Vec<u8>>>,
    pub(crate) connections: AtomicUsize,
    /// Never answer I/O commands.
    pub(crate) silent: AtomicBool,
    /// Commands that were not answered for such a reason.
    pub(crate) unanswered: AtomicUsize,
    /// Never answer Connect for I/O queues.
    pub(crate) no_lanes: AtomicBool,
    /// End Connect for I/O queues with this status, and this dword 0.
    pub(crate) refuses_lanes: Mutex<Option<(Status, u32)>>,
    /// Close new connections without an answer.
    pub(crate) full: AtomicBool,
    /// Have no namespace.
    pub(crate) no_namespace: AtomicBool,
    /// The largest transfer in pages of 4 KiB, as a power of two (MDTS); 0 is the usual one.
    pub(crate) mdts: AtomicU8,
    /// Never answer Function Load and Function Report of a last fault.
    pub(crate) no_functions: AtomicBool,
    /// Close the connection upon an I/O command.
    pub(crate) hang_up: AtomicBool,
    /// Close the connection upon an admin command with this opcode; 0 is none.
    pub(crate) hangs_up_on: AtomicU8,
    /// End I/O commands as a path does whose namespace is inaccessible by it.
    pub(crate) inaccessible: AtomicBool,
    /// Time until they end so, in ms.
    pub(crate) refusal_ms: AtomicU32,
    /// The ANA state of the namespace; 0 if the target reports none.
    pub(crate) ana: AtomicU8,
    /// Asynchronous Event Requests: where the answers go, and their identifiers.
    pub(crate) parked: Mutex<Vec<(TcpStream, u16)>>,
    /// Refuse Asynchronous Event Requests.
    pub(crate) refuses_events: AtomicBool,
    /// Answer them at once.
    pub(crate) tells_always: AtomicBool,
    /// Asynchronous Event Requests received so far.
    pub(crate) event_requests: AtomicUsize,
    /// Be an ordinary target.
    pub(crate) no_pushdown: AtomicBool,
    /// Give answers of its own to admin commands.
    pub(crate) says: Mutex<Option<Says>>,
    /// Refuse functions.
    pub(crate) reject: AtomicBool,
    /// Have a keep-alive timer, reported by Identify (KAS).
    pub(crate) has_timer: AtomicBool,
    /// Refuse hosts that ask for a keep-alive timer.
    pub(crate) refuses_timer: AtomicBool,
    /// Answer no commands at all any more.
    pub(crate) deaf: AtomicBool,
    /// The keep-alive timeout of the last association, in ms.
    pub(crate) kato_ms: AtomicU32,
    /// Time that Function Unload takes, in ms.
    pub(crate) slow_ms: AtomicU32,
    /// Keep Alives received so far.
    pub(crate) keep_alives: AtomicUsize,
    /// How many more chains to interrupt.
    pub(crate) interruptions: AtomicUsize,
}

pub(crate) fn start() -> (SocketAddr, Arc<Shared>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let shared = Arc::new(Shared::default());
    *shared.memory.lock().unwrap() = vec![0; BLOCKS as usize * 512];
    let for_all = Arc::clone(&shared);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let shared = Arc::clone(&for_all);
            if shared.full.load(Ordering::SeqCst) {
                continue;
            }
            std::thread::spawn(move || {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                Connection::new(stream.unwrap(), &shared).run();
                shared.connections.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (address, shared)
}

impl Shared {
    /// Changes the ANA state, and reports that to hosts that have asked for events: notice (2), ANA change (3), log
    /// 0Ch.
    #[allow(dead_code)] // Not every test has several paths.
    pub(crate) fn change_ana(&self, state: u8) {
        self.ana.store(state, Ordering::SeqCst);
        for (mut stream, cid) in self.parked.lock().unwrap().drain(..) {
            let cqe = Cqe { dw0: 0x0C_0302, cid, ..Cqe::default() };
            let mut response = Vec::new();
            CapsuleResp { cqe }.encode_into(&mut response, Digests::default());
            stream.write_all(&response).unwrap();
        }
    }
}

struct Connection<'s> {
    stream: TcpStream,
    shared: &'s Shared,
    digests: Digests,
    qid: u16,
    config: ControllerConfig,
    upload: Vec<u8>,
    /// Commands whose data comes after R2T.
    waiting: HashMap<u16, (Sqe, Vec<u8>)>,
    out: Vec<u8>,
}

/// A command's end: status, dwords 0 and 1, data.
pub(crate) type Answer = (Status, u32, u32, Vec<u8>);

/// Gives the answer to an admin command, or `None` for the usual one.
pub(crate) type Says = Box<dyn Fn(AdminCommand) -> Option<Answer> + Send>;

const fn ok(dw0: u32, dw1: u32) -> Answer {
    (Status::SUCCESS, dw0, dw1, Vec::new())
}

/// Decrements a counter; returns false if it is 0 already.
fn take_one(left: &AtomicUsize) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

impl<'s> Connection<'s> {
    fn new(stream: TcpStream, shared: &'s Shared) -> Self {
        let (config, upload, waiting) = (ControllerConfig::default(), vec![], HashMap::new());
        let digests = Digests::default();
        Self { stream, shared, digests, qid: 0, config, upload, waiting, out: Vec::new() }
    }

    fn run(mut self) {
        let mut receiver = PduReceiver::for_target(16 << 10);
        let (mut buffer, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
        while let Ok(count @ 1..) = self.stream.read(&mut chunk) {
            buffer.extend_from_slice(&chunk[..count]);
            let mut used = 0;
            while let Some((consumed, event)) = receiver.next(&buffer[used..]).unwrap() {
                used += consumed;
                if !self.event(event, &mut receiver) {
                    return;
                }
            }
            buffer.drain(..used);
            if self.stream.write_all(&self.out).is_err() {
                return;
            }
            self.out.clear();
        }
    }

    /// Returns whether to continue.
    fn event(&mut self, event: PduEvent<'_>, receiver: &mut PduReceiver) -> bool {
        match event {
            PduEvent::Header(Pdu::IcReq(request)) => {
                self.digests = request.digests;
                receiver.set_digests(self.digests);
                let digests = self.digests;
                let response = IcResp { digests, maxh2cdata_bytes: 4096, ..IcResp::default() };
                response.encode_into(&mut self.out);
            }
            PduEvent::Header(Pdu::CapsuleCmd { sqe, data, digest_ok: true }) => {
                let hangs_up = match self.qid {
                    0 => self.shared.hangs_up_on.load(Ordering::SeqCst) == sqe.opcode,
                    _ => self.shared.hang_up.load(Ordering::SeqCst),
                };
                if hangs_up {
                    return false;
                }
                let is_silent = if self.qid == 0 {
                    self.is_silent_about(&sqe)
                } else {
                    self.shared.silent.load(Ordering::SeqCst)
                };
                if is_silent || self.shared.deaf.load(Ordering::SeqCst) {
                    self.shared.unanswered.fetch_add(1, Ordering::SeqCst);
                    return true;
                }
                let to_controller = sqe.opcode & 3 == 1 && sqe.sgl.length_bytes != 0;
                if to_controller && sqe.sgl.kind == Sgl::TRANSPORT {
                    self.waiting.insert(sqe.cid, (sqe, Vec::new()));
                    self.ask(sqe.cid);
                } else {
                    self.end(&sqe, data);
                }
            }
            PduEvent::Data {
                pdu: bpfof_nvme::tcp::DataPdu::H2c(pdu),
                bytes,
                last_fragment,
                ..
            } => {
                let (sqe, data) = self.waiting.get_mut(&pdu.cccid).unwrap();
                data.extend_from_slice(bytes);
                let sqe = *sqe;
                if data.len() == sqe.sgl.length_bytes as usize && last_fragment {
                    let (_, data) = self.waiting.remove(&pdu.cccid).unwrap();
                    self.end(&sqe, &data);
                } else if pdu.last && last_fragment {
                    self.ask(pdu.cccid);
                }
            }
            PduEvent::Header(Pdu::TermReq(_)) => return false,
            other => panic!("{other:?}"),
        }
        true
    }

    /// Whether the target never answers this command, the first of a connection or one of an admin queue.
    fn is_silent_about(&self, sqe: &Sqe) -> bool {
        let flag = match AdminCommand::parse(sqe) {
            Ok(AdminCommand::Fabrics(FabricsCommand::Connect { qid: 1.., .. })) => {
                &self.shared.no_lanes
            }
            Ok(
                AdminCommand::FunctionLoad(..)
                | AdminCommand::FunctionReport { content: ReportContent::LastFault, .. },
            ) => &self.shared.no_functions,
            _ => return false,
        };
        flag.load(Ordering::SeqCst)
    }

    /// Asks for the next 6000 bytes, more than one H2CData PDU may carry.
    fn ask(&mut self, cccid: u16) {
        let (sqe, data) = &self.waiting[&cccid];
        let offset_bytes = data.len() as u32;
        let length_bytes = (sqe.sgl.length_bytes - offset_bytes).min(6000);
        R2t { cccid, ttag: 5, offset_bytes, length_bytes }.encode_into(&mut self.out, self.digests);
    }

    fn end(&mut self, sqe: &Sqe, data: &[u8]) {
        if self.qid == 0 && sqe.opcode == admin::ASYNC_EVENT_REQUEST {
            self.shared.event_requests.fetch_add(1, Ordering::SeqCst);
            let status = match () {
                () if self.shared.refuses_events.load(Ordering::SeqCst) => Status::INVALID_FIELD,
                () if self.shared.tells_always.load(Ordering::SeqCst) => Status::SUCCESS,
                () => {
                    let stream = self.stream.try_clone().unwrap();
                    self.shared.parked.lock().unwrap().push((stream, sqe.cid));
                    return;
                }
            };
            let cqe = Cqe { dw0: 0x0C_0302, cid: sqe.cid, status, ..Cqe::default() };
            CapsuleResp { cqe }.encode_into(&mut self.out, self.digests);
            return;
        }
        let (status, dw0, dw1, answer) =
            if self.qid == 0 { self.admin(sqe, data) } else { self.io(sqe, data) };
        // Data is sent in two halves, the second with SUCCESS if no response is needed.
        let success = sqe.opcode == 2 && self.qid != 0;
        let (first, second) = answer.split_at(answer.len() / 2);
        let mut at = 0;
        for (half, last) in [(first, false), (second, true)] {
            if half.is_empty() {
                continue;
            }
            C2hData {
                cccid: sqe.cid,
                data_offset_bytes: at,
                data_length_bytes: half.len() as u32,
                last,
                success: success && last,
            }
            .encode_header_into(&mut self.out, self.digests, 0);
            self.out.extend_from_slice(half);
            if self.digests.data {
                self.out.extend_from_slice(&data_digest(half));
            }
            at += half.len() as u32;
        }
        if answer.is_empty() || !success {
            let cqe = Cqe { dw0, dw1, cid: sqe.cid, status, ..Cqe::default() };
            CapsuleResp { cqe }.encode_into(&mut self.out, self.digests);
        }
    }

    fn fabrics(&mut self, command: FabricsCommand, data: &[u8]) -> Answer {
        match command {
            FabricsCommand::Connect { qid, kato_ms, .. } => {
                let connect = ConnectData::from_bytes(data.first_chunk().unwrap()).unwrap();
                if connect.subnqn != NQN {
                    return (
                        Status::CONNECT_INVALID_PARAMETERS.with_dnr(),
                        256 | 1 << 16,
                        0,
                        vec![],
                    );
                }
                if kato_ms != 0 && self.shared.refuses_timer.load(Ordering::SeqCst) {
                    return (Status::CONNECT_INVALID_PARAMETERS.with_dnr(), 48, 0, vec![]);
                }
                if let Some((status, dw0)) = *self.shared.refuses_lanes.lock().unwrap()
                    && qid != 0
                {
                    return (status, dw0, 0, vec![]);
                }
                if qid == 0 {
                    self.shared.kato_ms.store(kato_ms, Ordering::SeqCst);
                }
                self.qid = qid;
                ok(CNTLID.into(), 0)
            }
            FabricsCommand::PropertyGet { offset: offset::CAP, .. } => {
                let cap = Cap { mqes: 63, timeout_500ms: 2, css: 1, ..Cap::default() };
                let bits = u64::from(cap);
                ok(bits as u32, (bits >> 32) as u32)
            }
            FabricsCommand::PropertyGet { offset: offset::VS, .. } => ok(0x2_0000, 0),
            FabricsCommand::PropertyGet { .. } => {
                let shutdown = if self.config.shutdown as u8 != 0 { 2 } else { 0 };
                ok(Csts { ready: self.config.enable, fatal: false, shutdown }.into(), 0)
            }
            FabricsCommand::PropertySet { value, .. } => {
                self.config = ControllerConfig::from(value as u32);
                ok(0, 0)
            }
            other => panic!("{other:?}"),
        }
    }

    fn identify(&self, cns: u8, nsid: u32) -> Answer {
        let no_namespace = self.shared.no_namespace.load(Ordering::SeqCst);
        match (cns, nsid) {
            (cns::CONTROLLER, _) => {
                let identify = IdentifyController {
                    cntlid: CNTLID,
                    mdts: self.shared.mdts.load(Ordering::SeqCst).max(1),
                    kas_100ms: self.shared.has_timer.load(Ordering::SeqCst).into(),
                    ioccsz_16b: 260,
                    cmic: if self.shared.ana.load(Ordering::SeqCst) == 0 { 0 } else { 8 },
                    ..Default::default()
                };
                (Status::SUCCESS, 0, 0, identify.to_bytes().to_vec())
            }
            (cns::ACTIVE_NAMESPACES, nsid) => {
                let all = (!no_namespace).then_some(1);
                (Status::SUCCESS, 0, 0, namespace_list(all, nsid).to_vec())
            }
            (_, 1) if !no_namespace => {
                let mut identify =
                    IdentifyNamespace { nsze: BLOCKS, anagrpid: 1, ..Default::default() };
                identify.lbaf[0].lbads = 9;
                (Status::SUCCESS, 0, 0, identify.to_bytes().to_vec())
            }
            _ => (Status::INVALID_NAMESPACE.with_dnr(), 0, 0, vec![]),
        }
    }

    fn admin(&mut self, sqe: &Sqe, data: &[u8]) -> Answer {
        let plain = self.shared.no_pushdown.load(Ordering::SeqCst);
        let command = AdminCommand::parse(sqe).unwrap();
        if let Some(says) = &*self.shared.says.lock().unwrap()
            && let Some(answer) = says(command)
        {
            return answer;
        }
        match command {
            AdminCommand::Fabrics(command) => self.fabrics(command, data),
            AdminCommand::Identify { cns, nsid, .. } => self.identify(cns, nsid),
            AdminCommand::SetFeatures { .. } => ok(features::number_of_queues(2), 0),
            AdminCommand::GetLogPage { .. } => {
                let header = AnaHeader { change_count: 0, groups: 1 };
                let state = self.shared.ana.load(Ordering::SeqCst);
                let group = AnaGroup { group: 1, state, ..AnaGroup::default() };
                let log = [&header.to_bytes()[..], &group.to_bytes()[..]].concat();
                (Status::SUCCESS, 0, 0, log)
            }
            AdminCommand::KeepAlive => {
                self.shared.keep_alives.fetch_add(1, Ordering::SeqCst);
                ok(0, 0)
            }
            AdminCommand::PushdownIdentify { .. } if plain => {
                (Status::INVALID_OPCODE.with_dnr(), 0, 0, vec![])
            }
            AdminCommand::PushdownIdentify { .. } => {
                let limits = PushdownLimits {
                    protocol_version: 1,
                    object_bytes: 30_000,
                    extents: 10,
                    map_bytes: 1 << 20,
                    ..Default::default()
                };
                (Status::SUCCESS, 0, 0, limits.to_bytes().to_vec())
            }
            AdminCommand::FunctionLoad(upload, installation) => {
                self.upload.extend_from_slice(data);
                if self.upload.len() < upload.total_bytes as usize {
                    return ok(0, 0);
                }
                self.shared.uploads.lock().unwrap().push(std::mem::take(&mut self.upload));
                if self.shared.reject.load(Ordering::SeqCst) {
                    return (Status::FUNCTION_REJECTED, 0, 0, vec![]);
                }
                ok(40 + installation.entry, 0)
            }
            AdminCommand::FileMapSet(_) => {
                self.shared.uploads.lock().unwrap().push(data.to_vec());
                ok(0, 0)
            }
            AdminCommand::FunctionUnload { function: 42 } => {
                let slow_ms = self.shared.slow_ms.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(slow_ms.into()));
                ok(0, 0)
            }
            AdminCommand::FunctionUnload { .. } => (Status::UNKNOWN_FUNCTION, 0, 0, vec![]),
            AdminCommand::FunctionReport { length_bytes, .. } => {
                // Longer than the first buffer, so that the host must ask again.
                let message = format!("{:>5000}", "because");
                let length = (length_bytes as usize).min(message.len());
                (Status::SUCCESS, 5000, 0, message.as_bytes()[..length].to_vec())
            }
            other => panic!("{other:?}"),
        }
    }

    fn io(&mut self, sqe: &Sqe, data: &[u8]) -> Answer {
        if self.shared.inaccessible.load(Ordering::SeqCst) {
            let refusal_ms = self.shared.refusal_ms.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(refusal_ms.into()));
            return (Status::ANA_INACCESSIBLE, 0, 0, vec![]);
        }
        let mut memory = self.shared.memory.lock().unwrap();
        let place = |rw: Rw| {
            let start = rw.slba as usize * 512;
            start..start + rw.blocks as usize * 512
        };
        match NvmCommand::parse(sqe).unwrap() {
            NvmCommand::Fabrics(_) => panic!("a fabrics command on an open I/O queue"),
            NvmCommand::Flush => ok(0, 0),
            NvmCommand::Read(rw) => match memory.get(place(rw)) {
                Some(bytes) => (Status::SUCCESS, 0, 0, bytes.to_vec()),
                None => (Status::LBA_OUT_OF_RANGE.with_dnr(), 0, 0, vec![]),
            },
            NvmCommand::Write(rw) => {
                memory[place(rw)].copy_from_slice(data);
                ok(0, 0)
            }
            NvmCommand::WriteZeroes { rw, .. } => {
                memory[place(rw)].fill(0);
                ok(0, 0)
            }
            NvmCommand::Pushdown => {
                if take_one(&self.shared.interruptions) {
                    return (Status::COMMAND_INTERRUPTED, 0, 0, vec![]);
                }
                let request = PushdownRequest::parse(data, 4).unwrap();
                if request.header().function != 42 {
                    return (Status::UNKNOWN_FUNCTION, 0, 0, vec![]);
                }
                let answer: Vec<u8> = request.scratch().iter().rev().copied().collect();
                (Status::SUCCESS, 3, answer.len() as u32, answer)
            }
            // This target does not support vectors.
            NvmCommand::PushdownVector => (Status::INVALID_OPCODE.with_dnr(), 0, 0, vec![]),
            other => panic!("{other:?}"),
        }
    }
}
