//! Hosts that follow the rules of the transport but no others, on admin queues.

use super::input::Input;
use super::object::object;
use crate::commands::events;
use crate::connection::Phase;
use crate::controller::Controller;
use crate::hosts::HostLimits;
use crate::limits::{
    BUFFER_BYTES, MAX_ASYNC_EVENTS, MAX_FILE_MAPS, MAX_FUNCTIONS, MAX_KEPT_FUNCTIONS,
    MAX_TRANSFER_BYTES,
};
use crate::rig::{
    FOLLOW, NAMESPACE_BYTES, NQN, Rig, capsule, connect_command, enable_command, follow,
    follow_code, h2c_data,
};
use bpfof_chain::{FunctionMap, FunctionMaps, Limits};
use bpfof_function::{Map, MapDefinition, MapKind};
use bpfof_nvme::fabrics::{
    CATTR_DISABLE_SQ_FLOW_CONTROL, CNTLID_DYNAMIC, ConnectData, ControllerConfig, DISCOVERY_NQN,
    FabricsCommand, SQHD_NO_FLOW_CONTROL, Shutdown, offset,
};
use bpfof_nvme::tcp::{C2hData, DataPdu, Digests, H2cData, IcReq, Pdu, PduEvent, PduReceiver, R2t};
use bpfof_nvme::vendor_specific::{Extent, FileMapObject, MapAddress, MapChange, MapCommand};
use bpfof_nvme::{AdminCommand, Cqe, Installation, Sgl, Sqe, Status, Upload, features, opcode};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum connections of one run.
const MAX_CALLERS: usize = 6;
/// Commands of one connection that may wait for answers or data, not counting asynchronous event requests. Fewer than
/// would fill a connection's allowance of data.
const MAX_PENDING: usize = 16;
/// Objects of one run that can be compiled; compiling one takes a hundred times as long as everything else.
const MAX_SOUND_OBJECTS: u8 = 2;
/// Bytes of incomplete uploads: a function and a map.
const MAX_UPLOAD_BYTES: usize = 2 << 20;
/// Upper bound of the time that commands take between two calls of `pass_time`, in ns.
const SOON_NS: u64 = 50_000_000;

/// A command that has not been answered yet.
struct Pending {
    sqe: Sqe,
    /// Its number among the connection's commands.
    number: u64,
    /// Whether the controller was enabled when the command came.
    was_enabled: bool,
    /// Whether the target has requested its data.
    asked: bool,
    /// Bytes of data that the target has sent for it.
    data_bytes: u32,
}

/// The queue of a connection, as requested by its Connect.
#[derive(Clone, Copy)]
struct Joined {
    qid: u16,
    sqsize: u16,
    flow_control: bool,
}

/// One connection, from its host's side.
struct Caller {
    receiver: PduReceiver,
    digests: Digests,
    inbox: Vec<u8>,
    joined: Option<Joined>,
    pending: BTreeMap<u16, Pending>,
    r2ts: Vec<R2t>,
    commands: u64,
}

/// Hosts that take every choice from the input.
struct Hosts<'a> {
    rig: Rig,
    input: Input<'a>,
    callers: Vec<Caller>,
    /// Id of the controller that was created last.
    cntlid: u16,
    /// How many compilable objects may still be sent.
    sound_objects: u8,
}

/// Plays `data` as hosts that connect to the target's subsystem and to the discovery subsystem, and send admin commands
/// with fields and data from `data`, whole or in pieces. No connection may end unless the host ends it or falls silent.
/// Each command is answered once, with a fitting status and no more data than it announced; only asynchronous event
/// requests wait, and only a few. The state that the target keeps is bounded, and is gone once the hosts are.
pub fn admin(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.byte();
    let digests = Digests { header: mode & 1 != 0, data: mode & 2 != 0 };
    let limits = Limits { chains: 1, ..Limits::default() };
    let mut hosts = Hosts {
        rig: Rig::new(limits),
        input,
        callers: Vec::new(),
        cntlid: 0,
        sound_objects: MAX_SOUND_OBJECTS,
    };
    let caller = hosts.open(digests, mode & 4 != 0);
    if mode & 8 == 0 {
        let (connect, data) = match mode & 16 {
            0 => connect_command(0, 31, 0),
            _ => discovery_connect(),
        };
        hosts.command(caller, connect, &data);
        hosts.command(caller, enable_command(), &[]);
        hosts.listen();
        if let Some(controller) = hosts.controller(caller) {
            controller.update(|tables| tables.with_function_and_maps(follow(), maps()));
        }
    }
    while !hosts.input.0.is_empty() {
        hosts.act();
    }
    hosts.listen();
    for caller in 0..hosts.callers.len() {
        hosts.end(caller);
    }
    hosts.rig.finish();
}

/// The maps of the function that is installed at the start of a run.
fn maps() -> FunctionMaps {
    let map = |id, kind, key_bytes| {
        let definition = MapDefinition::new("fuzzed", kind, (key_bytes, 8), 5);
        Arc::new(FunctionMap {
            id,
            map: Map::new(definition.expect("within the limits")),
            memory: None,
            counted: None,
        })
    };
    [map(1, MapKind::Hash, 1), map(2, MapKind::Array, 4)].into()
}

fn discovery_connect() -> (Sqe, Vec<u8>) {
    let (sqe, data) = connect_command(0, 31, 0);
    let known = data.first_chunk().and_then(|data| ConnectData::from_bytes(data).ok());
    let known = known.expect("our own");
    (sqe, ConnectData { subnqn: DISCOVERY_NQN.to_owned(), ..known }.to_bytes().to_vec())
}

impl Hosts<'_> {
    /// Opens a connection and completes the ICReq/ICResp exchange.
    fn open(&mut self, digests: Digests, discovery_only: bool) -> usize {
        let caller = self.rig.open_at(discovery_only);
        self.callers.push(Caller {
            receiver: PduReceiver::for_host(),
            digests,
            inbox: Vec::new(),
            joined: None,
            pending: BTreeMap::new(),
            r2ts: Vec::new(),
            commands: 0,
        });
        let mut request = Vec::new();
        let hpda = self.input.byte() % 32;
        IcReq { hpda, digests, ..IcReq::default() }.encode_into(&mut request);
        self.say(caller, &request);
        self.listen();
        caller
    }

    fn controller(&self, caller: usize) -> Option<Arc<Controller>> {
        self.rig.entry(caller)?.controller().cloned()
    }

    /// Sends bytes in two pieces. They break no rule of the transport, so the connection stays open.
    fn say(&mut self, caller: usize, bytes: &[u8]) {
        let at = self.input.byte() as usize * bytes.len() / 256;
        for piece in [&bytes[..at], &bytes[at..]] {
            self.rig.feed(caller, piece);
        }
        let last =
            Sqe::from_bytes(bytes.get(8..72).and_then(<[u8]>::first_chunk).unwrap_or(&[0; 64]));
        assert!(self.rig.is_open(caller) || is_disconnect(&last), "closed after {last:?}");
    }

    fn command(&mut self, caller: usize, mut sqe: Sqe, data: &[u8]) {
        let entries =
            self.callers[caller].joined.map_or(MAX_PENDING, |j| usize::from(j.sqsize) + 1);
        if self.callers[caller].waiting() >= entries.min(MAX_PENDING) {
            self.settle(caller);
        }
        // Settling may deliver a reset, which ends the controller's queues.
        if !self.rig.is_open(caller) {
            return;
        }
        let was_enabled = self.controller(caller).is_some_and(|controller| controller.is_enabled());
        let Caller { pending, commands, digests, .. } = &mut self.callers[caller];
        while pending.contains_key(&sqe.cid) {
            sqe.cid = sqe.cid.wrapping_add(1);
        }
        *commands += 1;
        let known = Pending { sqe, number: *commands, was_enabled, asked: false, data_bytes: 0 };
        pending.insert(sqe.cid, known);
        let bytes = capsule(sqe, data, *digests);
        self.say(caller, &bytes);
        if is_disconnect(&sqe) && !self.rig.is_open(caller) {
            self.hear();
            assert!(
                self.callers[caller].waiting() == 0,
                "Disconnect and all commands before it are answered"
            );
            self.end(caller);
        }
    }

    /// Sends the target all data that it waits for.
    fn settle(&mut self, caller: usize) {
        self.listen();
        while let Some(r2t) = self.callers[caller].r2ts.pop() {
            self.give(caller, r2t);
        }
        self.listen();
        assert_eq!(self.callers[caller].waiting(), 0, "commands remain without an answer");
    }

    /// Sends the data that an R2T requests: a function or arbitrary bytes.
    fn give(&mut self, caller: usize, r2t: R2t) {
        let fill = self.input.byte();
        let mut data = match fill & 1 {
            0 => self.function(),
            _ => Vec::new(),
        };
        data.resize(r2t.length_bytes as usize, fill);
        let mut pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: 0,
            data_length_bytes: r2t.length_bytes,
            last: true,
        };
        let digests = self.callers[caller].digests;
        let first = r2t.length_bytes / 2;
        if fill & 2 != 0 && first > 0 {
            let (head, tail) = data.split_at(first as usize);
            let half = H2cData { data_length_bytes: first, last: false, ..pdu };
            self.say(caller, &h2c_data(half, head, digests));
            (pdu.data_offset_bytes, pdu.data_length_bytes) = (first, tail.len() as u32);
            data = tail.to_vec();
        }
        self.say(caller, &h2c_data(pdu, &data, digests));
    }

    /// Lets the target work, and drops the connections that it has closed.
    fn listen(&mut self) {
        self.hear();
        for caller in 0..self.callers.len() {
            if !self.rig.is_open(caller) {
                self.forget(caller);
            }
        }
    }

    /// Lets the target work, and reads its answers.
    fn hear(&mut self) {
        self.rig.work();
        for caller in 0..self.callers.len() {
            let output = self.rig.output(caller);
            let cntlid = self.callers[caller].hear(&output);
            self.cntlid = cntlid.unwrap_or(self.cntlid);
            self.callers[caller].check_quiet();
            self.check_bounds(caller);
        }
    }

    fn check_bounds(&self, caller: usize) {
        let Some(connection) = self.rig.entry(caller) else { return };
        // A buffer is aligned to a page, and so takes up to a page more.
        let transfer_bytes = MAX_TRANSFER_BYTES as usize + BUFFER_BYTES;
        assert!(connection.queue.held_bytes() <= MAX_PENDING * transfer_bytes);
        let uploaded = match &connection.phase {
            Phase::Admin(_, admin) => admin.upload_bytes(),
            _ => 0,
        };
        assert!(uploaded <= MAX_UPLOAD_BYTES, "{uploaded} bytes of uploads");
        if let Some(controller) = connection.controller() {
            let tables = controller.tables();
            assert!(tables.map_count() <= MAX_FILE_MAPS);
            // One more: the function installed at the start of the run.
            assert!(tables.functions().len() <= MAX_FUNCTIONS + MAX_KEPT_FUNCTIONS + 1);
        }
    }

    /// Closes a connection from the host's side.
    fn end(&mut self, caller: usize) {
        self.rig.close(caller);
        self.rig.output(caller);
        self.forget(caller);
    }

    /// Drops everything that the connection still waits for.
    fn forget(&mut self, caller: usize) {
        self.callers[caller].pending.clear();
        self.callers[caller].r2ts.clear();
    }

    fn act(&mut self) {
        let choice = self.input.byte();
        let caller = usize::from(choice >> 5) % self.callers.len();
        match choice & 31 {
            0 if self.callers.len() < MAX_CALLERS => {
                let mode = self.input.byte();
                let digests = Digests { header: mode & 1 != 0, data: mode & 2 != 0 };
                self.open(digests, mode & 12 == 12);
            }
            1 => self.pass_time(),
            2 => self.change_namespace(caller),
            3 => self.end(caller),
            4..=6 => self.connect(caller),
            7..=9 => self.property(caller),
            10..=14 => self.upload(caller),
            15 => {
                self.listen();
                let chosen = usize::from(self.input.byte());
                let r2ts = &mut self.callers[caller].r2ts;
                if !r2ts.is_empty() {
                    let r2t = r2ts.remove(chosen % r2ts.len());
                    self.give(caller, r2t);
                }
            }
            16 => self.listen(),
            17 => self.any_fields(caller),
            18 => self.map(caller),
            kind => self.query(caller, kind),
        }
    }

    /// Lets time pass, and the target close connections that were silent for too long.
    fn pass_time(&mut self) {
        self.listen();
        self.rig.core.io.now_ns += u64::from(self.input.byte()) * 100_000_000;
        // Move on until no connection would become overdue during the next commands.
        while (0..self.callers.len()).any(|caller| self.is_nearly_overdue(caller)) {
            self.rig.core.io.now_ns += SOON_NS;
        }
        self.listen();
    }

    fn is_nearly_overdue(&self, caller: usize) -> bool {
        let (now_ns, idle_timeout_s) =
            (self.rig.core.io.now_ns, HostLimits::default().idle_timeout_s);
        self.rig.entry(caller).is_some_and(|connection| {
            let is_overdue = |at_ns| connection.overdue(at_ns, idle_timeout_s).is_some();
            !is_overdue(now_ns) && is_overdue(now_ns + SOON_NS)
        })
    }

    fn change_namespace(&mut self, caller: usize) {
        let nsid = u32::from(self.input.byte() % 4);
        if let Some(controller) = self.controller(caller) {
            controller.namespace_changed(nsid);
            events::notify(self.rig.connection_mut(caller));
        }
    }

    /// Connect, correct except for what the input changes.
    fn connect(&mut self, caller: usize) {
        let (what, wrong) = (self.input.byte(), self.input.byte());
        let qid = match what & 3 {
            0 => self.input.edge() as u16,
            queue => u16::from(queue) - 1,
        };
        let cattr = if what & 4 == 0 { 0 } else { CATTR_DISABLE_SQ_FLOW_CONTROL };
        // Longer than commands take; a host with a shorter timeout would rightly be given up.
        let kato_ms = if what & 8 == 0 { 0 } else { (self.input.edge() as u32).max(1000) };
        let sqsize = if wrong & 1 == 0 { 31 } else { self.input.edge() as u16 };
        let recfmt = if wrong & 2 == 0 { 0 } else { u16::from(self.input.byte()) };
        let subnqn = match what >> 4 & 7 {
            0 => String::from_utf8_lossy(self.input.bytes(20)).into_owned(),
            1 | 2 => DISCOVERY_NQN.to_owned(),
            _ => NQN.to_owned(),
        };
        let cntlid = match (wrong & 4, qid) {
            (0, 0) => CNTLID_DYNAMIC,
            (0, _) => self.cntlid,
            _ => self.input.edge() as u16,
        };
        let hostnqn =
            format!("nqn.2026-01.io.bpf-of:peer{}", if wrong & 8 == 0 { "" } else { "\n" });
        let connect = FabricsCommand::Connect { recfmt, qid, sqsize, cattr, kato_ms };
        let data = ConnectData { hostid: [3; 16], cntlid, subnqn, hostnqn };
        let mut data = data.to_bytes().to_vec();
        if wrong & 16 != 0 {
            let at = self.input.number() as usize % data.len();
            data[at] = self.input.byte();
        }
        let mut sqe = connect.to_sqe();
        if wrong & 32 != 0 {
            data.resize(self.input.edge() as usize % 4096, 0);
        }
        if wrong & 64 != 0 {
            sqe.sgl = Sgl::in_capsule(data.len() as u32);
        }
        self.command(caller, sqe, &data);
        self.listen();
    }

    fn property(&mut self, caller: usize) {
        let (choice, any) = (self.input.byte(), self.input.edge());
        let offsets =
            [offset::CAP, offset::VS, offset::CC, offset::CSTS, offset::NSSR, offset::CRTO];
        let at = offsets.get(usize::from(choice & 7)).copied().unwrap_or(any as u32);
        let enabled = u32::from(ControllerConfig::ENABLED);
        let value = match choice >> 4 {
            0 => any,
            // Disabled, or shut down in one of two ways.
            1 | 2 => u64::from(enabled & !1),
            3 => u64::from(enabled | 1 << 14),
            4 => u64::from(enabled | 2 << 14),
            _ => u64::from(enabled),
        };
        let size8 = choice & 8 != 0;
        let command = match choice >> 4 {
            5..=7 => FabricsCommand::PropertyGet { offset: at, size8 },
            8..=13 => FabricsCommand::PropertySet { offset: offset::CC, size8: false, value },
            14 => FabricsCommand::Disconnect,
            _ => FabricsCommand::PropertySet { offset: at, size8, value },
        };
        self.command(caller, command.to_sqe(), &[]);
    }

    /// A command that reads data or settings, correct except for what the input changes.
    fn query(&mut self, caller: usize, kind: u8) {
        let (a, b, wrong) = (self.input.byte(), self.input.edge(), self.input.byte());
        let mut sqe = match kind {
            19 => AdminCommand::identify(a, b as u32),
            20 => {
                Sqe { cdw11: (b as u32) << 24, ..AdminCommand::identify(a % 32, u32::from(a % 5)) }
            }
            21 => AdminCommand::get_log_page(a % 8, 0, b, self.input.edge() as u32),
            22 => AdminCommand::get_log_page(0x70, 0, b, self.input.edge() as u32),
            23 => AdminCommand::get_log_page(a, u32::MAX, b, 64),
            24 => Sqe { cdw11: b as u32, ..AdminCommand::get_features(a % 32) },
            25 if a >= 0xC0 => {
                AdminCommand::set_features(features::QUEUE_RESTRICTION, b as u32 & 3)
            }
            25 if a >= 0x80 => AdminCommand::set_features(features::KEEP_ALIVE_TIMER, 5000),
            25 => {
                // As in `connect`.
                let least = if a % 32 == features::KEEP_ALIVE_TIMER { 1000 } else { 0 };
                AdminCommand::set_features(a % 32, (b as u32).max(least))
            }
            26 => Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0),
            27 => Sqe { cdw10: b as u32, ..Sqe::new(opcode::admin::ABORT, 0) },
            28 => AdminCommand::keep_alive(),
            29 if a & 0x80 != 0 => AdminCommand::trace([FOLLOW, 1][usize::from(b & 1 != 0)], 64),
            29 if a & 0x40 != 0 => AdminCommand::associations(b as u32),
            29 => {
                let function = [0, FOLLOW, 1, 1 << 31 | 1, u32::MAX, b as u32][usize::from(a) % 6];
                let report = AdminCommand::function_report(function, b as u32);
                AdminCommand::report_of([0, 1, 2, b as u16][usize::from(a >> 3) % 4], report)
            }
            30 => AdminCommand::function_unload(
                [FOLLOW, 1, 1 << 31 | 1, b as u32][usize::from(a) % 4],
            ),
            _ => AdminCommand::pushdown_identify(b as u32),
        };
        if wrong & 15 == 1 {
            sqe.cdw10 |= u32::from(self.input.byte()) << 8;
        }
        if wrong & 15 == 2 {
            sqe.cdw12 = self.input.number() as u32;
        }
        if wrong & 48 == 48 {
            sqe.sgl.length_bytes = self.input.edge() as u32;
        }
        if wrong & 0xC0 == 0xC0 {
            sqe.sgl.kind = self.input.byte();
        }
        sqe.nsid = if wrong & 15 == 3 { self.input.edge() as u32 } else { sqe.nsid };
        self.command(caller, sqe, &[]);
    }

    /// A command about function maps, correct except for what the input changes. Map 1 has keys of one byte and values
    /// of eight, map 2 is an array with such keys and values.
    fn map(&mut self, caller: usize) {
        let (choice, wrong) = (self.input.byte(), self.input.byte());
        let map = u32::from(choice >> 3 & 1) + 1;
        let controller = match choice >> 4 & 3 {
            0 | 1 => MapAddress::OWN,
            2 => self.cntlid,
            _ => MapAddress::ALL_OF_HOST,
        };
        let address = MapAddress { controller, map };
        let key = if map == 1 { 1 } else { 4 };
        let mut data = vec![0; key];
        data[0] = self.input.byte() % 8;
        let mut length_bytes = if choice & 64 == 0 { 4096 } else { u32::from(self.input.byte()) };
        if wrong & 7 == 7 {
            length_bytes = self.input.edge() as u32;
        }
        let command = match choice & 7 {
            0 => MapCommand::Report { controller, length_bytes },
            1 => MapCommand::Get { map: address, length_bytes },
            2 => MapCommand::Read {
                map: address,
                length_bytes,
                first_slot: if wrong & 8 == 0 { 0 } else { self.input.edge() as u32 },
            },
            kind => {
                let changes = [
                    MapChange::Set,
                    MapChange::SetNew,
                    MapChange::SetExisting,
                    MapChange::Delete,
                    MapChange::Set,
                ];
                let change = changes[usize::from(kind) - 3];
                if change != MapChange::Delete {
                    data.extend([self.input.byte(); 8]);
                }
                MapCommand::Change { map: address, change }
            }
        };
        if wrong & 0x30 == 0x30 {
            data.resize(self.input.edge() as usize % 5000, 1);
        }
        let mut sqe = command.to_sqe();
        if wrong & 0xC0 == 0xC0 {
            sqe.cdw12 = self.input.number() as u32;
        }
        let has_data = choice & 7 == 1 || choice & 7 > 2;
        match (has_data, choice & 128) {
            (true, 0) => {
                sqe.sgl = Sgl::in_capsule(data.len() as u32);
                self.command(caller, sqe, &data);
            }
            (true, _) => {
                sqe.sgl = Sgl::transport(data.len() as u32);
                self.command(caller, sqe, &[]);
            }
            (false, _) => self.command(caller, sqe, &[]),
        }
    }

    /// An arbitrary command; on I/O queues a fabrics command, because there the checks do not know other commands'
    /// data.
    fn any_fields(&mut self, caller: usize) {
        let mut bytes = [0; Sqe::BYTES];
        let given = self.input.bytes(Sqe::BYTES);
        bytes[..given.len()].copy_from_slice(given);
        let mut sqe = Sqe::from_bytes(&bytes);
        if self.callers[caller].joined.is_some_and(|joined| joined.qid != 0) {
            sqe.opcode = opcode::FABRICS;
        }
        let data = self.input.byte();
        let data = vec![data; if data & 1 == 0 { 0 } else { usize::from(data) * 4 }];
        if data.len() > 500 {
            sqe.sgl = Sgl::in_capsule(data.len() as u32);
        }
        self.command(caller, sqe, &data);
    }

    /// The object of a function, compilable as long as that is allowed.
    fn function(&mut self) -> Vec<u8> {
        let sound = self.sound_objects > 0;
        self.sound_objects = self.sound_objects.saturating_sub(1);
        if sound { object(&follow_code()) } else { object(&[0; 8]) }
    }

    /// A function or a file map in one to three chunks, correct except for what the input changes.
    fn upload(&mut self, caller: usize) {
        let (choice, wrong) = (self.input.byte(), self.input.byte());
        let mut whole = match choice & 3 {
            0 | 1 => self.function(),
            2 => self.file_map(),
            _ => self.input.bytes(usize::from(choice)).to_vec(),
        };
        if wrong & 3 == 3 && !whole.is_empty() {
            let at = self.input.number() as usize % whole.len();
            whole[at] = self.input.byte();
        }
        let [kept, named] = [choice & 4 != 0, wrong & 0x40 != 0];
        let installation = Installation { entry: u32::from(wrong >> 7), kept, named };
        let total_bytes =
            if wrong & 12 == 12 { self.input.edge() as u32 } else { whole.len() as u32 };
        let chunks = usize::from(choice >> 4 & 3).max(1);
        let mut offset_bytes = 0;
        for chunk in whole.chunks(whole.len().div_ceil(chunks).max(1)) {
            let at = if wrong & 48 == 48 { self.input.edge() as u32 } else { offset_bytes };
            let upload = Upload { total_bytes, offset_bytes: at };
            let mut sqe = match choice & 3 {
                2 => AdminCommand::file_map_set(upload),
                _ => AdminCommand::function_load(upload, installation),
            };
            let length = chunk.len() as u32;
            if choice & 8 == 0 {
                sqe.sgl = Sgl::in_capsule(length);
                self.command(caller, sqe, chunk);
            } else {
                let any = self.input.edge() as u32;
                sqe.sgl = Sgl::transport(if wrong & 64 == 0 { length } else { any });
                self.command(caller, sqe, &[]);
            }
            offset_bytes += length;
        }
    }

    fn file_map(&mut self) -> Vec<u8> {
        let mut object = Vec::new();
        let choice = self.input.byte();
        let near = |input: &mut Input<'_>| u64::from(input.byte()) * (NAMESPACE_BYTES / 256);
        let mut at = 0u64;
        let extents = (0..choice & 7).map(|_| {
            let (file_offset, length_bytes) = (at, near(&mut self.input));
            at = at.saturating_add(length_bytes);
            Extent { file_offset, device_offset: near(&mut self.input), length_bytes }
        });
        let extents = extents.collect();
        let (file, nsid) = (self.input.edge() as u32, u32::from(choice >> 3 & 3));
        let version = u64::from(choice >> 5);
        FileMapObject { file, nsid, version, length_bytes: at, extents }.encode_into(&mut object);
        object
    }
}

impl Caller {
    /// Number of unanswered commands, not counting asynchronous event requests.
    fn waiting(&self) -> usize {
        self.pending.values().filter(|pending| !is_event_request(&pending.sqe)).count()
    }

    /// Reads the target's answers. Returns the controller id if a Connect for an admin queue has succeeded.
    fn hear(&mut self, output: &[u8]) -> Option<u16> {
        self.inbox.extend(output);
        let inbox = std::mem::take(&mut self.inbox);
        let (mut used, mut cntlid) = (0, None);
        loop {
            let next = self.receiver.next(&inbox[used..]);
            let next = next.unwrap_or_else(|error| panic!("the target broke a rule: {error}"));
            let Some((length, event)) = next else { break };
            used += length;
            match event {
                PduEvent::Header(Pdu::IcResp(response)) => {
                    assert_eq!(response.digests, self.digests, "digests are granted");
                    self.receiver.set_digests(response.digests);
                }
                PduEvent::Header(Pdu::R2t(r2t)) => self.asked(r2t),
                PduEvent::Header(Pdu::CapsuleResp(response)) => {
                    cntlid = self.answered(&response.cqe).or(cntlid);
                }
                PduEvent::Data {
                    pdu: DataPdu::C2h(pdu),
                    offset_bytes,
                    bytes,
                    last_fragment,
                    digest_ok,
                } => {
                    assert!(digest_ok || !last_fragment, "a wrong data digest");
                    self.given(&pdu, offset_bytes, bytes.len() as u32, last_fragment);
                }
                other => panic!("{other:?} ends a connection whose host broke no rule"),
            }
        }
        self.inbox = inbox[used..].to_vec();
        assert!(self.inbox.is_empty(), "the target's output ends within a PDU");
        cntlid
    }

    fn asked(&mut self, r2t: R2t) {
        let pending = self.pending.get_mut(&r2t.cccid).expect("an R2T is for a command");
        let sqe = &pending.sqe;
        let (load, set) = (opcode::admin::FUNCTION_LOAD, opcode::admin::FILE_MAP_SET);
        assert!([load, set, opcode::admin::MAP_CHANGE].contains(&sqe.opcode));
        assert_eq!((sqe.sgl.kind, sqe.sgl.length_bytes), (Sgl::TRANSPORT, r2t.length_bytes));
        assert!(!pending.asked && r2t.offset_bytes == 0, "the data is asked for once");
        pending.asked = true;
        self.r2ts.push(r2t);
    }

    fn given(&mut self, pdu: &C2hData, offset_bytes: u32, length_bytes: u32, last: bool) {
        let pending = self.pending.get_mut(&pdu.cccid).expect("data is for a command");
        assert_eq!(offset_bytes, pending.data_bytes, "data comes in order");
        pending.data_bytes += length_bytes;
        let Sqe { sgl, .. } = pending.sqe;
        // Map Get has no SGL for its answer: its SGL describes the key.
        let is_get = pending.sqe.opcode == opcode::admin::MAP_GET;
        let room = if is_get { pending.sqe.cdw11 } else { sgl.length_bytes };
        assert!((is_get || sgl.kind == Sgl::TRANSPORT) && pending.data_bytes <= room);
        if last && pdu.success {
            assert!(pdu.last && self.joined.is_some_and(|joined| !joined.flow_control));
            let pending = self.pending.remove(&pdu.cccid).expect("it was there");
            pending.check_success();
        }
    }

    fn answered(&mut self, cqe: &Cqe) -> Option<u16> {
        let pending = self.pending.remove(&cqe.cid);
        let pending = pending.unwrap_or_else(|| panic!("{cqe:?} answers no command"));
        let sqe = pending.sqe;
        assert!(self.r2ts.iter().all(|r2t| r2t.cccid != cqe.cid), "answered without its data");
        match self.joined {
            Some(Joined { qid, sqsize, flow_control }) => {
                assert_eq!(cqe.sqid, qid);
                let in_ring = cqe.sqhd <= sqsize && flow_control;
                assert!(in_ring || cqe.sqhd == SQHD_NO_FLOW_CONTROL && !flow_control, "{cqe:?}");
            }
            None => assert_eq!(cqe.sqid, self.connect(&sqe, cqe.status)),
        }
        if !cqe.status.is_success() {
            assert_eq!(pending.data_bytes, 0, "data of a command that failed");
            return None;
        }
        pending.check_success();
        if let FabricsCommand::Connect { qid: 0, .. } = FabricsCommand::parse(&sqe)
            && sqe.opcode == opcode::FABRICS
        {
            return Some(cqe.dw0 as u16);
        }
        let ended = matches!(
            FabricsCommand::parse(&sqe),
            FabricsCommand::PropertySet { offset: offset::CC, value, .. }
                if ends_controller(ControllerConfig::from(value as u32))
        );
        if sqe.opcode == opcode::FABRICS && ended {
            self.pending.retain(|_, p| p.number > pending.number || !is_event_request(&p.sqe));
        }
        None
    }

    /// Before Connect only a Connect can succeed. Returns the queue that it connected.
    fn connect(&mut self, sqe: &Sqe, status: Status) -> u16 {
        let is_fabrics = sqe.opcode == opcode::FABRICS;
        match FabricsCommand::parse(sqe) {
            FabricsCommand::Connect { qid, sqsize, cattr, .. } if is_fabrics => {
                if !status.is_success() {
                    return 0;
                }
                let flow_control = cattr & CATTR_DISABLE_SQ_FLOW_CONTROL == 0;
                self.joined = Some(Joined { qid, sqsize, flow_control });
                qid
            }
            _ => {
                assert!(!status.is_success(), "{sqe:?} succeeds before Connect");
                0
            }
        }
    }

    /// Checks that nothing is in progress: only commands that wait for the host may be unanswered.
    fn check_quiet(&self) {
        let events = self.pending.values().filter(|p| is_event_request(&p.sqe)).count();
        assert!(events <= MAX_ASYNC_EVENTS, "{events} asynchronous event requests wait");
        let asked = self.pending.values().filter(|p| p.asked).count();
        assert_eq!((self.waiting(), self.r2ts.len()), (asked, asked), "a command has no answer");
    }
}

impl Pending {
    /// Checks the conditions under which a command may succeed.
    fn check_success(&self) {
        let Sqe { opcode, sgl, .. } = self.sqe;
        assert!(opcode == opcode::FABRICS || self.was_enabled, "a controller that is off");
        let right = match (opcode, AdminCommand::parse(&self.sqe)) {
            (opcode::admin::IDENTIFY, _) => 4096,
            (_, Ok(AdminCommand::GetLogPage { length_bytes, .. })) => {
                length_bytes.min(u64::from(sgl.length_bytes)) as u32
            }
            (opcode::admin::GET_FEATURES, _) => self.data_bytes.next_multiple_of(16).min(16),
            (
                opcode::admin::FUNCTION_REPORT
                | opcode::admin::PUSHDOWN_IDENTIFY
                | opcode::admin::MAP_REPORT
                | opcode::admin::MAP_READ,
                _,
            ) => self.data_bytes,
            (opcode::admin::MAP_GET, _) => self.sqe.cdw11.min(8),
            _ => 0,
        };
        assert_eq!(self.data_bytes, right, "data of {:?}", self.sqe);
    }
}

fn is_event_request(sqe: &Sqe) -> bool {
    sqe.opcode == opcode::admin::ASYNC_EVENT_REQUEST
}

fn is_disconnect(sqe: &Sqe) -> bool {
    let is_fabrics = sqe.opcode == opcode::FABRICS;
    is_fabrics && FabricsCommand::parse(sqe) == FabricsCommand::Disconnect
}

fn ends_controller(config: ControllerConfig) -> bool {
    !config.enable || config.shutdown != Shutdown::None
}
