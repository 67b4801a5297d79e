//! A host that follows no rules.

use super::authentication::{self, Authentications};
use super::input::Input;
use crate::access::Rights;
use crate::rig::{FOLLOW, Rig, capsule, connect_command, enable_command, follow, h2c_data};
use bpfof_chain::Limits;
use bpfof_nvme::fabrics::{FabricsCommand, offset};
use bpfof_nvme::tcp::{DataPdu, Digests, H2cData, IcReq, Pdu, PduEvent, PduReceiver, R2t};
use bpfof_nvme::vendor_specific::{
    Extent, FileMapObject, FileVersion, FirstRead, FirstReads, PushdownParts, PushdownShort,
    PushdownVectorParts, VectorArguments,
};
use bpfof_nvme::{AdminCommand, DsmRange, Installation, Rw, Sgl, Sqe, Upload, opcode};
use std::collections::BTreeMap;

/// Command identifier of Connect; no other command gets it until many have been sent.
const CONNECT_CID: u16 = 0xFFFF;

/// What the host has received on a line.
struct Ear {
    receiver: PduReceiver,
    inbox: Vec<u8>,
    r2ts: Vec<R2t>,
    next_cid: u16,
    /// Requests of chains for which the target is to ask (R2T), by command.
    owed: BTreeMap<u16, Vec<u8>>,
}

/// A host that takes every choice from the input.
struct Host<'a> {
    rig: Rig,
    input: Input<'a>,
    ears: Vec<Ear>,
    digests: Digests,
    /// Set for a target that requires authentication. Then no bytes are damaged, so that the sent commands are known.
    authentications: Option<Authentications>,
}

/// Plays `data` as a host: random bytes on a new connection, random bytes after the handshake, or a sequence of
/// commands, transfers and uploads with fields from `data`, all split at random. Nothing may panic, everything that the
/// target sends must be valid, its unsent data is bounded, and nothing of the host is left once it is gone. On a target
/// that requires authentication, no queue serves a host that has not proved on that queue that it has the secret.
///
/// Byte 0: bits 1:0 select what is played, bits 3:2 digests, bit 4 a target that requires authentication. Then byte 1
/// is the argument of [`Authentications::new`].
pub fn connection(data: &[u8]) {
    let mut input = Input(data);
    let mode = input.byte();
    let digests = Digests { header: mode & 4 != 0, data: mode & 8 != 0 };
    let limits = Limits { hops: 64, chains: 8, instructions_per_call: 10_000, ..Limits::default() };
    let settings = if mode & 16 != 0 { Some(input.byte()) } else { None };
    let authentications = settings.map(Authentications::new);
    let mut host =
        Host { rig: Rig::new(limits), input, ears: Vec::new(), digests, authentications };
    if settings.is_some() {
        let _ = host.rig.core.executor.registry.set_rules(authentication::rules());
    }
    let admin = host.open();
    match mode & 3 {
        0 => {}
        1 => host.handshake(admin, 0),
        _ if settings.is_some_and(|settings| settings & 9 != 0) => {
            host.handshake(admin, 0);
            host.play();
        }
        _ => {
            host.handshake(admin, 0);
            if host.is_connected(admin) {
                host.furnish();
                let io = host.open();
                host.handshake(io, 1);
            }
            host.play();
        }
    }
    // From here on the host may send anything, so it may also authenticate itself.
    host.authentications = None;
    let rest = host.input.bytes(data.len());
    host.say(admin, rest.to_vec());
    host.listen();
    host.rig.finish();
}

impl Host<'_> {
    fn play(&mut self) {
        while !self.input.0.is_empty() {
            self.act();
            self.check_authentications();
        }
    }

    /// A random line.
    fn line(&mut self) -> usize {
        usize::from(self.input.byte() & 1).min(self.ears.len() - 1)
    }

    fn open(&mut self) -> usize {
        self.authentications.iter_mut().for_each(Authentications::open);
        self.ears.push(Ear {
            receiver: PduReceiver::for_host(),
            inbox: Vec::new(),
            r2ts: Vec::new(),
            next_cid: 0,
            owed: BTreeMap::new(),
        });
        self.rig.open()
    }

    fn handshake(&mut self, line: usize, qid: u16) {
        let mut request = Vec::new();
        let hpda = self.input.byte() % 32;
        IcReq { hpda, digests: self.digests, ..IcReq::default() }.encode_into(&mut request);
        self.rig.feed(line, &request);
        if self.authentications.is_some() && self.input.byte() > 127 {
            self.authentication(line, false);
        }
        let (mut connect, data) = connect_command(qid, 15, 0);
        if let Some(authentications) = &mut self.authentications {
            connect.cid = CONNECT_CID;
            authentications.sends(line, &connect);
        }
        self.rig.feed(line, &capsule(connect, &data, self.digests));
        self.listen();
        self.authenticate(line);
        if qid == 0 {
            self.rig.feed(line, &capsule(enable_command(), &[], self.digests));
        }
        self.listen();
        // Commands sent before Connect may have ended the connection.
        assert!(self.authentications.is_some() || self.is_connected(line), "the handshake works");
    }

    fn is_connected(&self, line: usize) -> bool {
        self.rig.entry(line).is_some_and(|connection| connection.controller().is_some())
    }

    /// A whole regular authentication, if the host starts with one.
    fn authenticate(&mut self, line: usize) {
        // Each step is one command; a run in which both sides authenticate has five.
        for _ in 0..6 {
            if !self.authentications.as_ref().is_some_and(|its| its.is_due(line)) {
                return;
            }
            self.authentication(line, true);
            self.listen();
        }
    }

    /// The next command of a regular authentication, or an arbitrary one like it.
    fn authentication(&mut self, line: usize, by_rules: bool) {
        let next_cid = self.ears[line].next_cid;
        let Some(authentications) = &mut self.authentications else { return };
        let command = match by_rules {
            true => authentications.next(line, next_cid, &mut self.input),
            false => Some(authentications.any(line, next_cid, &mut self.input)),
        };
        if let Some((sqe, data)) = command {
            self.command(line, sqe, &data);
        }
    }

    /// Checks that no queue works without a proof, whatever was sent on it.
    fn check_authentications(&self) {
        let Some(authentications) = &self.authentications else { return };
        for line in 0..self.ears.len() {
            let association = self.rig.entry(line).and_then(|entry| entry.phase.association());
            let Some(association) = association else { continue };
            let awaits = association.awaits_authentication();
            assert!(awaits || authentications.may_have_proved(line), "no proof was given");
            assert!(!awaits || association.rights == Rights::NONE);
        }
    }

    /// Installs a function, and stores a list of eight blocks, a block that points to itself, and a block that points
    /// outside the namespace.
    fn furnish(&mut self) {
        let controller = self.rig.connection(0).controller().cloned().expect("connected");
        controller.update(|tables| tables.with_function(follow()));
        for namespace in 0..2 {
            for block in 0..7 {
                self.rig.store(namespace, block * 512, &((block + 1) * 512).to_le_bytes());
            }
            self.rig.store(namespace, 8 * 512, &(8u64 * 512).to_le_bytes());
            self.rig.store(namespace, 9 * 512, &(u64::MAX - 8).to_le_bytes());
        }
    }

    /// Sends bytes in two pieces, occasionally with one byte damaged.
    fn say(&mut self, line: usize, mut bytes: Vec<u8>) {
        let (at, chance) = (self.input.number() as usize, self.input.byte());
        if chance & 31 == 31 && !bytes.is_empty() && self.authentications.is_none() {
            let index = at % bytes.len();
            bytes[index] ^= 1 << (chance >> 5);
        }
        let (head, tail) = bytes.split_at(at % (bytes.len() + 1));
        self.rig.feed(line, head);
        self.rig.feed(line, tail);
    }

    /// Lets the target work, and reads its answers.
    fn listen(&mut self) {
        self.rig.work();
        for (line, ear) in self.ears.iter_mut().enumerate() {
            ear.inbox.extend(self.rig.output(line));
            let mut used = 0;
            loop {
                let next = ear.receiver.next(&ear.inbox[used..]);
                let next = next.unwrap_or_else(|error| panic!("the target broke a rule: {error}"));
                let Some((length, event)) = next else { break };
                used += length;
                match event {
                    PduEvent::Header(Pdu::IcResp(response)) => {
                        ear.receiver.set_digests(response.digests);
                    }
                    PduEvent::Header(Pdu::R2t(r2t)) => ear.r2ts.push(r2t),
                    PduEvent::Header(Pdu::CapsuleResp(response)) => {
                        if let Some(authentications) = &mut self.authentications {
                            authentications.answered(line, &response.cqe);
                        }
                    }
                    PduEvent::Data { digest_ok: false, last_fragment: true, .. } => {
                        panic!("a wrong data digest");
                    }
                    PduEvent::Data { pdu: DataPdu::C2h(pdu), bytes, .. } => {
                        if let Some(authentications) = &mut self.authentications {
                            authentications.given(line, pdu.cccid, bytes);
                        }
                    }
                    _ => {}
                }
            }
            ear.inbox.drain(..used);
        }
    }

    fn act(&mut self) {
        match self.input.byte() % 18 {
            17 => self.pushdown_vector(),
            14.. => {
                let line = self.line();
                let by_rules = self.input.byte() < 128;
                self.authentication(line, by_rules);
            }
            13 => {
                let blocks = u64::from(self.input.byte() % 4) * 64;
                self.rig.replace_namespace(blocks);
            }
            0..=2 => self.read_or_write(),
            12 => self.dataset_management(),
            3 | 4 => self.pushdown(),
            5 => self.pushdown_short(),
            6 | 7 => self.transfer(),
            8 => self.admin(),
            9 => self.upload(),
            10 => {
                let line = self.line();
                let mut sqe = [0; Sqe::BYTES];
                let fields = self.input.bytes(Sqe::BYTES);
                sqe[..fields.len()].copy_from_slice(fields);
                self.command(line, Sqe::from_bytes(&sqe), &[]);
            }
            _ => self.listen(),
        }
    }

    fn command(&mut self, line: usize, mut sqe: Sqe, data: &[u8]) {
        let next_cid = &mut self.ears[line].next_cid;
        (sqe.cid, *next_cid) = (*next_cid, next_cid.wrapping_add(1));
        if let Some(authentications) = &mut self.authentications {
            authentications.sends(line, &sqe);
        }
        let bytes = capsule(sqe, data, self.digests);
        self.say(line, bytes);
    }

    fn read_or_write(&mut self) {
        let nsid = u32::from(self.input.byte() % 4);
        use opcode::nvm::{COMPARE, FLUSH, READ, VERIFY, WRITE, WRITE_ZEROES};
        let opcodes = [READ, WRITE, WRITE_ZEROES, FLUSH, VERIFY, COMPARE];
        let opcode = opcodes[usize::from(self.input.byte()) % opcodes.len()];
        let blocks = (self.input.edge() as u32 % 300).max(1);
        let rw = Rw { slba: self.input.edge(), blocks, fua: self.input.byte() & 1 != 0 };
        let mut sqe = rw.to_sqe(opcode, nsid);
        let block_bytes = if nsid == 2 { 4096 } else { 512 };
        let right = blocks * block_bytes;
        let choice = self.input.byte();
        let length_bytes = if choice & 7 == 7 { self.input.edge() as u32 } else { right };
        let in_capsule = choice & 8 != 0 && matches!(opcode, WRITE | COMPARE) && right <= 8192;
        sqe.sgl =
            if in_capsule { Sgl::in_capsule(length_bytes) } else { Sgl::transport(length_bytes) };
        if choice & 0x70 == 0x70 {
            sqe.sgl.kind = self.input.byte();
        }
        let data = vec![choice; if in_capsule { right as usize } else { 0 }];
        self.command(self.ears.len() - 1, sqe, &data);
    }

    fn dataset_management(&mut self) {
        let choice = self.input.byte();
        let count = usize::from(self.input.byte() % 4);
        let mut data = Vec::new();
        for _ in 0..count {
            let (slba, blocks) = (self.input.edge(), self.input.edge() as u32);
            data.extend(DsmRange { attributes: 0, blocks, slba }.to_bytes());
        }
        let length_bytes =
            if choice & 7 == 7 { self.input.edge() as u32 } else { data.len() as u32 };
        let in_capsule = choice & 8 != 0;
        let sgl =
            if in_capsule { Sgl::in_capsule(length_bytes) } else { Sgl::transport(length_bytes) };
        // Occasionally the count is one more or less than the number of ranges.
        let ranges = count as u32 + u32::from(choice >> 6 & 1);
        let sqe = Sqe {
            cdw10: ranges.wrapping_sub(1),
            cdw11: u32::from(choice >> 4),
            sgl,
            ..Sqe::new(opcode::nvm::DATASET_MANAGEMENT, u32::from(choice >> 5 & 3))
        };
        self.command(self.ears.len() - 1, sqe, if in_capsule { &data } else { &[] });
    }

    fn pushdown(&mut self) {
        let choice = self.input.byte();
        let count = usize::from(self.input.byte()) % 19;
        let file = |input: &mut Input<'_>| FileVersion {
            id: u32::from(input.byte() % 3),
            version: u64::from(input.byte() % 3),
        };
        let mut files: Vec<FileVersion> = (0..count).map(|_| file(&mut self.input)).collect();
        if choice & 1 == 0 {
            files = vec![FileVersion { id: 0, version: 1 }];
        }
        let scratch = vec![choice; self.input.edge() as usize % 8000];
        let parts = PushdownParts {
            function: if choice & 2 == 0 { FOLLOW } else { self.input.edge() as u32 },
            files: &files,
            first_file: if choice & 4 == 0 { 0 } else { u16::from(self.input.byte()) },
            first_offset_bytes: if choice & 8 == 0 {
                u64::from(self.input.byte() % 12) * 512
            } else {
                self.input.edge()
            },
            first_size_bytes: if choice & 16 == 0 { 512 } else { self.input.edge() as u32 },
            scratch: &scratch,
            answer_max_bytes: if choice & 32 == 0 { 64 } else { self.input.edge() as u32 },
            scratch_size_bytes: if choice & 128 == 0 { 0 } else { self.input.edge() as u32 },
        };
        let mut data = Vec::new();
        parts.encode_into(&mut data);
        if choice & 64 != 0 {
            let at = self.input.number() as usize % data.len();
            data[at] = self.input.byte();
        }
        let sqe = Sqe::new(opcode::nvm::PUSHDOWN, u32::from(self.input.byte() % 3));
        self.request(sqe, data);
    }

    /// Sends a command with its data in the capsule, or, sometimes, for the target to ask for it.
    fn request(&mut self, mut sqe: Sqe, data: Vec<u8>) {
        let line = self.ears.len() - 1;
        if self.input.byte() & 3 == 3 {
            sqe.sgl = Sgl::transport(data.len() as u32);
            let cid = self.ears[line].next_cid;
            self.ears[line].owed.insert(cid, data);
            self.command(line, sqe, &[]);
        } else {
            sqe.sgl = Sgl::in_capsule(data.len() as u32);
            self.command(line, sqe, &data);
        }
    }

    /// Chains of one function that start anywhere in the namespace; occasionally one byte of the request is changed, so
    /// that counts, tables and sizes are wrong.
    fn pushdown_vector(&mut self) {
        let choice = self.input.byte();
        let count = match self.input.byte() {
            byte if byte < 200 => usize::from(byte % 24),
            byte => 200 + usize::from(byte),
        };
        let mut files = vec![FileVersion { id: 0, version: 1 }];
        files.push(FileVersion { id: u32::from(choice % 3), version: u64::from(choice & 1) });
        files.truncate(1 + usize::from(choice >> 1 & 1));
        let read = |input: &mut Input<'_>| FirstRead {
            file: u16::from(input.byte() & 1),
            offset_bytes: u64::from(input.byte() % 12) * 512,
            size_bytes: 512,
        };
        let (reads, sizes): (Vec<FirstRead>, Vec<u16>) =
            (0..count).map(|_| (read(&mut self.input), self.input.byte() as u16 % 40)).unzip();
        let first = match reads.first() {
            Some(first) if choice & 4 == 0 => FirstReads::Same(FirstRead { file: 0, ..*first }),
            _ => FirstReads::Each(&reads),
        };
        let bytes = vec![choice; sizes.iter().map(|size| usize::from(*size)).sum()];
        let equal =
            VectorArguments::Equal { count: count as u16, bytes: &bytes[..count.min(bytes.len())] };
        let parts = PushdownVectorParts {
            function: if choice & 16 == 0 { FOLLOW } else { self.input.edge() as u32 },
            files: &files,
            first,
            arguments: match choice & 8 {
                0 => equal,
                _ => VectorArguments::Sized { sizes: &sizes, bytes: &bytes },
            },
            scratch_size_bytes: if choice & 32 == 0 { 0 } else { self.input.edge() as u32 },
            answer_max_bytes: 64,
            // Some answers, of 8 bytes each, have no room.
            room_bytes: match choice & 64 {
                0 => count as u32 * 16 + u32::from(self.input.byte()),
                _ => self.input.edge() as u32,
            },
        };
        let mut data = Vec::new();
        parts.encode_into(&mut data);
        if choice & 128 != 0 {
            let at = self.input.number() as usize % data.len();
            data[at] = self.input.byte();
        }
        data.truncate(8192);
        let sqe = Sqe::new(opcode::nvm::PUSHDOWN_VECTOR, u32::from(self.input.byte() % 3));
        self.request(sqe, data);
    }

    fn pushdown_short(&mut self) {
        let mut argument = [0; 24];
        let given = self.input.bytes(24);
        argument[..given.len()].copy_from_slice(given);
        let short = PushdownShort {
            function: if self.input.byte() & 3 == 0 { self.input.edge() as u32 } else { FOLLOW },
            file: u16::from(self.input.byte() % 3),
            first_blocks: u16::from(self.input.byte() % 4),
            argument,
        };
        let length = self.input.edge() as u32;
        let sqe = short.to_sqe(u32::from(self.input.byte() % 3), length);
        self.command(self.ears.len() - 1, sqe, &[]);
    }

    /// Sends data for an R2T, or unsolicited data.
    fn transfer(&mut self) {
        self.listen();
        let line = self.line();
        let choice = self.input.byte();
        let ear = &mut self.ears[line];
        let mut r2t = R2t { length_bytes: 512, ..R2t::default() };
        if !ear.r2ts.is_empty() {
            let index = usize::from(choice) % ear.r2ts.len();
            r2t = ear.r2ts[index];
            if choice & 1 == 0 {
                ear.r2ts.remove(index);
            }
        }
        let mut pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: 0,
            data_length_bytes: r2t.length_bytes,
            last: true,
        };
        match self.input.byte() % 16 {
            0 => pdu.ttag = self.input.number() as u16,
            1 => pdu.cccid = self.input.number() as u16,
            2 => pdu.data_offset_bytes = self.input.edge() as u32,
            3 => pdu.data_length_bytes = self.input.edge() as u32 % 300_000 + 1,
            4 => pdu.data_length_bytes = pdu.data_length_bytes / 2 + 1,
            5 => {
                // Correctly, in two pieces.
                let half = pdu.data_length_bytes / 2;
                if half > 0 {
                    let first = H2cData { data_length_bytes: half, last: false, ..pdu };
                    self.send_data(line, first, choice);
                    pdu.data_offset_bytes = half;
                    pdu.data_length_bytes -= half;
                }
            }
            _ => {}
        }
        self.send_data(line, pdu, choice);
    }

    /// Sends the piece of a command's data, if the command has this piece, or else bytes of this value.
    fn send_data(&mut self, line: usize, pdu: H2cData, fill: u8) {
        let mut data = vec![fill; pdu.data_length_bytes as usize];
        let of_authentication =
            || self.authentications.as_ref()?.data(line, pdu.cccid).map(Vec::as_slice);
        let owed = self.ears[line].owed.get(&pdu.cccid).map(Vec::as_slice);
        let known = owed.or_else(of_authentication).unwrap_or_default();
        let at = pdu.data_offset_bytes as usize;
        if let Some(known) = known.get(at..).and_then(|rest| rest.get(..data.len())) {
            data.copy_from_slice(known);
        }
        self.say(line, h2c_data(pdu, &data, self.digests));
    }

    fn admin(&mut self) {
        let (a, b, choice) = (self.input.edge(), self.input.edge(), self.input.byte());
        let sqe = match choice % 12 {
            0 => AdminCommand::identify(a as u8, b as u32),
            1 => AdminCommand::get_log_page(a as u8 % 16, 0, self.input.edge(), b as u32),
            2 => AdminCommand::get_features(a as u8),
            3 => AdminCommand::set_features(a as u8, b as u32),
            4 if choice >= 128 => AdminCommand::trace(a as u32, b as u32),
            4 if choice >= 64 => {
                AdminCommand::report_of(a as u16, AdminCommand::function_report(0, b as u32))
            }
            4 => AdminCommand::function_report(a as u32, b as u32),
            5 => AdminCommand::function_unload(a as u32),
            6 => AdminCommand::pushdown_identify(b as u32),
            7 => Sqe::new(opcode::admin::ASYNC_EVENT_REQUEST, 0),
            8 => Sqe::new(opcode::admin::ABORT, 0),
            9 => FabricsCommand::PropertyGet { offset: a as u32, size8: b & 1 != 0 }.to_sqe(),
            10 => {
                FabricsCommand::PropertySet { offset: offset::CC, size8: false, value: a }.to_sqe()
            }
            _ => Sqe::new(a as u8, b as u32),
        };
        self.command(0, sqe, &[]);
    }

    /// A chunk of a function or of a file map, in its capsule or to be fetched.
    fn upload(&mut self) {
        let choice = self.input.byte();
        let mut object = self.input.bytes(usize::from(choice)).to_vec();
        if choice & 1 == 0 {
            object.clear();
            let extent = |input: &mut Input<'_>| Extent {
                file_offset: u64::from(input.byte()) * 512,
                device_offset: u64::from(input.byte()) * 512,
                length_bytes: u64::from(input.byte()) * 512,
            };
            let (file, version) = (u32::from(self.input.byte() % 3), u64::from(choice & 2) / 2);
            let count = usize::from(self.input.byte() % 5);
            let extents = (0..count).map(|_| extent(&mut self.input)).collect();
            let length_bytes = self.input.edge();
            let nsid = u32::from(self.input.byte() % 3);
            FileMapObject { file, nsid, version, length_bytes, extents }.encode_into(&mut object);
        }
        let whole = object.len() as u32;
        let total_bytes = if choice & 4 == 0 { whole } else { self.input.edge() as u32 };
        let offset_bytes = if choice & 8 == 0 { 0 } else { self.input.edge() as u32 };
        let upload = Upload { total_bytes, offset_bytes };
        let [kept, named] = [16, 32].map(|bit| choice & bit != 0);
        let installation = Installation { entry: u32::from(choice >> 6), kept, named };
        let mut sqe = match choice & 1 {
            0 => AdminCommand::file_map_set(upload),
            _ => AdminCommand::function_load(upload, installation),
        };
        if choice & 32 == 0 {
            sqe.sgl = Sgl::in_capsule(whole);
            self.command(0, sqe, &object);
        } else {
            let length = self.input.edge() as u32;
            sqe.sgl = Sgl::transport(if length.is_multiple_of(2) { whole } else { length });
            self.command(0, sqe, &[]);
        }
    }
}
