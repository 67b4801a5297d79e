//! Records a whole session once, and repeats it with its PDUs cut at every byte.

use super::peer::{Ear, Said, pushdown};
use crate::rig::{NQN, Rig, capsule, connect_command, enable_command, h2c_data};
use crate::{Limits, NamespaceConfig, NamespaceSource, Server, ServerOptions, TargetConfig};
use bpfkv::create::{Extent as Part, write_database};
use bpfkv::pushdown::{get_answer, get_argument};
use bpfof_nvme::fabrics::{FabricsCommand, offset};
use bpfof_nvme::identify::cns;
use bpfof_nvme::tcp::{Digests, H2cData, IcReq};
use bpfof_nvme::vendor_specific::{
    Extent, FileMapObject, FileVersion, PushdownParts, PushdownShort,
};
use bpfof_nvme::{AdminCommand, Cqe, Installation, Rw, Sgl, Sqe, Status, Upload, features, opcode};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::time::Duration;

const ADMIN: usize = 0;
const IO: usize = 1;
/// Data of one H2CData PDU, chosen so that no PDU is longer than a Connect.
const PIECE_BYTES: usize = 1000;

/// One PDU of the host, and the target's answer in bytes.
struct Step {
    line: usize,
    pdu: Vec<u8>,
    answer: Vec<u8>,
}

/// Plays a session on a rig and records it.
struct Recorder {
    rig: Rig,
    ears: [Ear; 2],
    digests: Digests,
    next_cid: u16,
    steps: Vec<Step>,
}

impl Recorder {
    fn pdu(&mut self, line: usize, pdu: Vec<u8>) -> Vec<Said> {
        self.rig.feed(line, &pdu);
        self.rig.work();
        let answer = self.rig.output(line);
        let said = self.ears[line].hear(&answer);
        self.steps.push(Step { line, pdu, answer });
        said
    }

    fn open(&mut self) {
        let line = self.rig.open();
        let mut request = Vec::new();
        IcReq { digests: self.digests, ..IcReq::default() }.encode_into(&mut request);
        assert_eq!(self.pdu(line, request), [Said::IcResp]);
    }

    fn send(&mut self, line: usize, sqe: Sqe, data: &[u8]) -> Vec<Said> {
        self.next_cid += 1;
        let sqe = Sqe { cid: self.next_cid, ..sqe };
        self.pdu(line, capsule(sqe, data, self.digests))
    }

    /// Runs a command that must succeed: returns its data and completion.
    fn call(&mut self, line: usize, sqe: Sqe, data: &[u8]) -> (Vec<u8>, Cqe) {
        match &self.send(line, sqe, data)[..] {
            [Said::Response(cqe)] if cqe.status.is_success() => (Vec::new(), *cqe),
            [Said::Data(data, false), Said::Response(cqe)] if cqe.status.is_success() => {
                (data.clone(), *cqe)
            }
            other => panic!("{sqe:?}: {other:?}"),
        }
    }

    /// Runs a command whose data the target requests.
    fn call_by_r2t(&mut self, line: usize, sqe: Sqe, data: &[u8]) -> Cqe {
        let sqe = Sqe { sgl: Sgl::transport(data.len() as u32), ..sqe };
        let said = self.send(line, sqe, &[]);
        let [Said::R2t(r2t)] = said[..] else { panic!("{said:?}") };
        let mut offset = 0;
        let mut said = Vec::new();
        for piece in data.chunks(PIECE_BYTES) {
            let pdu = H2cData {
                cccid: r2t.cccid,
                ttag: r2t.ttag,
                data_offset_bytes: offset,
                data_length_bytes: piece.len() as u32,
                last: offset as usize + piece.len() == data.len(),
            };
            offset += piece.len() as u32;
            said = self.pdu(line, h2c_data(pdu, piece, self.digests));
        }
        match said[..] {
            [Said::Response(cqe)] if cqe.status.is_success() => cqe,
            _ => panic!("{said:?}"),
        }
    }
}

fn rw(opcode: u8, slba: u64, bytes: usize) -> Sqe {
    let rw = Rw { slba, blocks: bytes as u32 / 512, fua: slba % 2 == 1 };
    Sqe { sgl: Sgl::transport(bytes as u32), ..rw.to_sqe(opcode, 1) }
}

/// A BPF-KV database of one level: a leaf, then four blocks of values.
fn database() -> Vec<u8> {
    let part = Part::full(1).expect("one level");
    let mut file = vec![0; part.layout().file_bytes() as usize];
    let mut sink = |offset: u64, bytes: &[u8]| {
        file[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    };
    write_database(&part, &mut sink, &mut |_, _| ControlFlow::Continue(())).expect("it fits");
    file
}

fn record(digests: Digests) -> Vec<Step> {
    let mut recorder = Recorder {
        rig: Rig::new(Limits::default()),
        ears: [Ear::new(), Ear::new()],
        digests,
        next_cid: 0,
        steps: Vec::new(),
    };
    let function = record_admin(&mut recorder);
    record_io(&mut recorder, function);
    recorder.rig.finish();
    recorder.steps
}

fn record_admin(recorder: &mut Recorder) -> u32 {
    recorder.open();
    let (connect, data) = connect_command(0, 31, 0);
    recorder.call(ADMIN, connect, &data);
    for (offset, size8) in [(offset::CAP, true), (offset::VS, false), (offset::CC, false)] {
        recorder.call(ADMIN, FabricsCommand::PropertyGet { offset, size8 }.to_sqe(), &[]);
    }
    recorder.call(ADMIN, enable_command(), &[]);
    let ready = FabricsCommand::PropertyGet { offset: offset::CSTS, size8: false }.to_sqe();
    assert_eq!(recorder.call(ADMIN, ready, &[]).1.dw0, 1);
    for (cns, nsid) in [
        (cns::CONTROLLER, 0),
        (cns::ACTIVE_NAMESPACES, 0),
        (cns::NAMESPACE, 1),
        (cns::NAMESPACE_DESCRIPTORS, 1),
    ] {
        let (page, _) = recorder.call(ADMIN, AdminCommand::identify(cns, nsid), &[]);
        assert_eq!(page.len(), 4096);
    }
    let queues = AdminCommand::set_features(features::NUMBER_OF_QUEUES, 0x0003_0003);
    assert_eq!(recorder.call(ADMIN, queues, &[]).1.dw0, 0x0003_0003);
    recorder.call(ADMIN, AdminCommand::get_log_page(2, 0, 0, 512), &[]);
    recorder.call(ADMIN, AdminCommand::pushdown_identify(64), &[]);

    let object = bpfkv::GET_OBJECT;
    let upload = Upload { total_bytes: object.len() as u32, offset_bytes: 0 };
    let load = AdminCommand::function_load(upload, Installation::default());
    let function = recorder.call_by_r2t(ADMIN, load, object).dw0;
    assert_eq!(function, 1);

    // The five blocks of the file are in five places.
    let extent = |index: u64| Extent {
        file_offset: index * 512,
        device_offset: (100 - 7 * index) * 512,
        length_bytes: 512,
    };
    let extents = (0..5).map(extent).collect();
    let map = FileMapObject { file: 9, nsid: 1, version: 4, length_bytes: 2560, extents };
    let mut object = Vec::new();
    map.encode_into(&mut object);
    let upload = Upload { total_bytes: object.len() as u32, offset_bytes: 0 };
    let set = AdminCommand::file_map_set(upload);
    let sqe = Sqe { sgl: Sgl::in_capsule(object.len() as u32), ..set };
    recorder.call(ADMIN, sqe, &object);
    function
}

fn record_io(recorder: &mut Recorder, function: u32) {
    recorder.open();
    let (connect, data) = connect_command(1, 15, 0);
    recorder.call(IO, connect, &data);
    let database = database();
    for (index, block) in database.chunks(512).enumerate() {
        let slba = 100 - 7 * index as u64;
        let sqe = rw(opcode::nvm::WRITE, slba, 512);
        recorder.call(IO, Sqe { sgl: Sgl::in_capsule(512), ..sqe }, block);
        recorder.call(IO, Sqe { sgl: Sgl::in_capsule(512), ..rw(1, index as u64, 512) }, block);
    }
    let pattern: Vec<u8> = (0..1536u32).map(|index| (index / 5) as u8).collect();
    recorder.call_by_r2t(IO, rw(opcode::nvm::WRITE, 300, 1536), &pattern);
    recorder.call(IO, Sqe::new(opcode::nvm::FLUSH, 1), &[]);
    let (back, _) = recorder.call(IO, rw(opcode::nvm::READ, 299, 2560), &[]);
    assert_eq!((&back[..512], &back[512..2048]), (&[0; 512][..], &pattern[..]));
    recorder.call(IO, Rw { slba: 300, blocks: 2, fua: false }.to_sqe(8, 1), &[]);

    for (id, version) in [(9, 4), (0, 1)] {
        let (sqe, data) = pushdown(&PushdownParts {
            function,
            files: &[FileVersion { id, version }],
            first_file: 0,
            first_offset_bytes: 0,
            first_size_bytes: 512,
            scratch: &get_argument(23).expect("a key"),
            answer_max_bytes: 72,
            scratch_size_bytes: 72,
        });
        let (answer, cqe) = recorder.call(IO, sqe, &data);
        let value = get_answer(&answer).expect("an answer").expect("found");
        assert!(value.ends_with(b" 23\0") && (cqe.dw0, cqe.dw1) == (2, 72));
        let mut argument = [0; 24];
        argument[0] = 31;
        let short = PushdownShort { function, file: id as u16, first_blocks: 1, argument };
        let (answer, cqe) = recorder.call(IO, short.to_sqe(1, 72), &[]);
        assert_eq!((get_answer(&answer), cqe.dw0, cqe.dw1), (Ok(None), 1, 8));
    }
    let bad = rw(opcode::nvm::READ, u64::MAX, 512);
    let said = recorder.send(IO, bad, &[]);
    let out_of_range = Status::LBA_OUT_OF_RANGE.with_dnr();
    assert!(matches!(said[..], [Said::Response(cqe)] if cqe.status == out_of_range));
    recorder.call(IO, FabricsCommand::Disconnect.to_sqe(), &[]);
}

const BOTH: Digests = Digests { header: true, data: true };

fn longest(steps: &[Step]) -> usize {
    steps.iter().map(|step| step.pdu.len()).max().unwrap_or(0)
}

/// For each `cut`, cuts all PDUs that are longer there.
#[test]
fn pdus_cut_anywhere_mean_the_same() {
    for digests in [Digests::default(), BOTH] {
        let steps = record(digests);
        assert!(steps.len() > 40 && longest(&steps) < 1200);
        for cut in 1..longest(&steps) {
            let mut rig = Rig::new(Limits::default());
            for (index, step) in steps.iter().enumerate() {
                if step.line == rig.line_count() {
                    rig.open();
                }
                let (head, tail) = step.pdu.split_at(cut.min(step.pdu.len()));
                rig.feed(step.line, head);
                rig.work();
                let mut answer = rig.output(step.line);
                rig.feed(step.line, tail);
                rig.work();
                answer.extend(rig.output(step.line));
                assert!(answer == step.answer, "PDU {index} cut at {cut} is answered differently");
            }
            rig.finish();
        }
    }
}

/// Sends single bytes, and pieces that contain the end of one PDU and the start of the next.
#[test]
fn a_stream_has_no_boundaries() {
    for digests in [Digests::default(), BOTH] {
        let steps = record(digests);
        for piece in [1, 7] {
            let mut rig = Rig::new(Limits::default());
            for line in [ADMIN, IO] {
                rig.open();
                let mine = || steps.iter().filter(|step| step.line == line);
                let stream: Vec<u8> = mine().flat_map(|step| step.pdu.clone()).collect();
                let mut answer = Vec::new();
                for bytes in stream.chunks(piece) {
                    rig.feed(line, bytes);
                    rig.work();
                    answer.extend(rig.output(line));
                }
                let expected: Vec<u8> = mine().flat_map(|step| step.answer.clone()).collect();
                assert!(answer == expected, "in pieces of {piece} it is answered differently");
            }
            rig.finish();
        }
    }
}

fn server() -> Server {
    let source = NamespaceSource::Memory { size_bytes: 1 << 20, latency_us: 0, iops: 0 };
    let namespace = |lba_bytes| NamespaceConfig::new(source.clone(), lba_bytes);
    let config = TargetConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        nqn: NQN.to_owned(),
        namespaces: vec![namespace(512), namespace(4096)],
        ..TargetConfig::default()
    };
    // The recorded answers contain controller id 1.
    let started = Server::start_behind(&config, ServerOptions::default(), 0);
    let mut server = started.expect("it starts");
    server.begin_accepting().expect("a thread");
    server
}

#[test]
fn over_a_socket_too() {
    let steps = record(BOTH);
    // All cuts in headers, and some in data: `pdus_cut_anywhere` tries the rest.
    for cut in (1..longest(&steps)).filter(|cut| *cut <= 128 || cut % 8 == 0) {
        let server = server();
        let mut sockets = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            if step.line == sockets.len() {
                let socket = TcpStream::connect(server.address()).expect("it listens");
                socket.set_nodelay(true).expect("a socket");
                socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
                sockets.push(socket);
            }
            let socket = &mut sockets[step.line];
            let (head, tail) = step.pdu.split_at(cut.min(step.pdu.len()));
            socket.write_all(head).and_then(|()| socket.write_all(tail)).expect("it listens");
            let mut answer = vec![0; step.answer.len()];
            socket.read_exact(&mut answer).expect("it answers");
            assert!(answer == step.answer, "PDU {index} cut at {cut} is answered differently");
        }
        let end = sockets[IO].read(&mut [0]).expect("an end in order");
        assert_eq!(end, 0, "nothing comes after the last answer");
        server.stop();
    }
}
