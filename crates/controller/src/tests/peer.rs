//! A well-behaved host on one line of a rig.

use crate::rig::{Rig, capsule, connect_command, enable_command};
use bpfof_nvme::fabrics::ConnectData;
use bpfof_nvme::tcp::{Digests, Fes, H2cData, IcReq, Pdu, PduEvent, PduReceiver, R2t};
use bpfof_nvme::vendor_specific::PushdownParts;
use bpfof_nvme::{Cqe, Sgl, Sqe, Status, opcode};
use std::net::Ipv4Addr;

/// A message of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    IcResp,
    Response(Cqe),
    R2t(R2t),
    /// A whole C2HData PDU: its data and whether it has the SUCCESS flag.
    Data(Vec<u8>, bool),
    Terminated(Fes, u32),
}

/// Parses the target's output into messages.
pub(super) struct Ear {
    receiver: PduReceiver,
    inbox: Vec<u8>,
}

impl Ear {
    pub(super) fn new() -> Ear {
        Ear { receiver: PduReceiver::for_host(), inbox: Vec::new() }
    }

    pub(super) fn hear(&mut self, bytes: &[u8]) -> Vec<Said> {
        self.inbox.extend_from_slice(bytes);
        let (mut used, mut said, mut pieces) = (0, Vec::new(), Vec::new());
        while let Some((length, event)) =
            self.receiver.next(&self.inbox[used..]).expect("the target obeys the rules")
        {
            used += length;
            said.push(match event {
                PduEvent::Header(Pdu::IcResp(response)) => {
                    self.receiver.set_digests(response.digests);
                    Said::IcResp
                }
                PduEvent::Header(Pdu::CapsuleResp(response)) => Said::Response(response.cqe),
                PduEvent::Header(Pdu::R2t(r2t)) => Said::R2t(r2t),
                PduEvent::Header(Pdu::TermReq(term)) => Said::Terminated(term.fes, term.fei),
                PduEvent::Data { pdu, bytes, last_fragment, digest_ok, .. } => {
                    pieces.extend_from_slice(bytes);
                    if !last_fragment {
                        continue;
                    }
                    assert!(digest_ok, "a wrong data digest");
                    let bpfof_nvme::tcp::DataPdu::C2h(pdu) = pdu else { panic!("a host's PDU") };
                    Said::Data(std::mem::take(&mut pieces), pdu.success)
                }
                other => panic!("a host's PDU: {other:?}"),
            });
        }
        self.inbox.drain(..used);
        said
    }
}

pub(super) struct Peer {
    pub(super) line: usize,
    pub(super) digests: Digests,
    ear: Ear,
    next_cid: u16,
}

impl Peer {
    /// Connects queue `qid` with `sqsize` + 1 entries. Queue 0 enables the controller as well.
    pub(super) fn connect(rig: &mut Rig, qid: u16, sqsize: u16) -> Peer {
        Peer::connect_with(rig, Digests::default(), (qid, sqsize))
    }

    /// The same with these digests.
    pub(super) fn connect_with(rig: &mut Rig, digests: Digests, (qid, sqsize): (u16, u16)) -> Peer {
        let line = rig.open();
        let mut peer = Peer::hello_on(rig, line, digests);
        let (sqe, data) = connect_command(qid, sqsize, 0);
        let answer = peer.call(rig, sqe, &data);
        assert_eq!((answer.status, answer.dw0), (Status::SUCCESS, 1));
        peer.enabled(rig, qid)
    }

    /// Connects the admin queue of another host.
    pub(super) fn connect_as(rig: &mut Rig, hostnqn: &str) -> Peer {
        let (sqe, data) = connect_command(0, 31, 0);
        let mut data = ConnectData::from_bytes(data.as_slice().try_into().expect("1024 bytes"))
            .expect("it is whole");
        (data.hostid, data.hostnqn) = ([4; 16], hostnqn.to_owned());
        let (peer, answer) = Peer::begin(rig, (sqe, data.to_bytes().to_vec()));
        assert_eq!(answer.status, Status::SUCCESS);
        peer.enabled(rig, 0)
    }

    /// Connects an admin queue of a host at an address to a subsystem; returns the answer.
    pub(super) fn ask(
        rig: &mut Rig,
        address: Ipv4Addr,
        (hostnqn, subnqn): (&str, &str),
    ) -> (Peer, Cqe) {
        let (sqe, data) = connect_command(0, 31, 0);
        let mut data = ConnectData::from_bytes(data.as_slice().try_into().expect("1024 bytes"))
            .expect("it is whole");
        (data.hostnqn, data.subnqn) = (hostnqn.to_owned(), subnqn.to_owned());
        let line = rig.open_from(address);
        let mut peer = Peer::hello_on(rig, line, Digests::default());
        let answer = peer.call(rig, sqe, &data.to_bytes());
        (peer, answer)
    }

    /// Opens a connection without connecting a queue.
    pub(super) fn hello(rig: &mut Rig) -> Peer {
        let line = rig.open();
        Peer::hello_on(rig, line, Digests::default())
    }

    fn hello_on(rig: &mut Rig, line: usize, digests: Digests) -> Peer {
        let mut peer = Peer { line, digests, ear: Ear::new(), next_cid: 0 };
        let mut request = Vec::new();
        IcReq { digests, ..IcReq::default() }.encode_into(&mut request);
        rig.feed(peer.line, &request);
        assert_eq!(peer.hear(rig), [Said::IcResp]);
        peer
    }

    fn begin(rig: &mut Rig, (sqe, data): (Sqe, Vec<u8>)) -> (Peer, Cqe) {
        let mut peer = Peer::hello(rig);
        let answer = peer.call(rig, sqe, &data);
        (peer, answer)
    }

    fn enabled(mut self, rig: &mut Rig, qid: u16) -> Peer {
        if qid == 0 {
            assert_eq!(self.call(rig, enable_command(), &[]).status, Status::SUCCESS);
        }
        self
    }

    /// Sends a command and returns its identifier.
    pub(super) fn send(&mut self, rig: &mut Rig, sqe: Sqe, data: &[u8]) -> u16 {
        let cid = self.next_cid;
        self.next_cid += 1;
        rig.feed(self.line, &capsule(Sqe { cid, ..sqe }, data, self.digests));
        cid
    }

    pub(super) fn send_data(&mut self, rig: &mut Rig, r2t: R2t, data: &[u8]) {
        let pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: r2t.offset_bytes,
            data_length_bytes: data.len() as u32,
            last: true,
        };
        rig.feed(self.line, &crate::rig::h2c_data(pdu, data, self.digests));
    }

    pub(super) fn hear(&mut self, rig: &mut Rig) -> Vec<Said> {
        let bytes = rig.output(self.line);
        self.ear.hear(&bytes)
    }

    /// Sends a command, runs the target, and returns the completion; drops data before it.
    pub(super) fn call(&mut self, rig: &mut Rig, sqe: Sqe, data: &[u8]) -> Cqe {
        let cid = self.send(rig, sqe, data);
        rig.work();
        match self.hear(rig).pop() {
            Some(Said::Response(cqe)) if cqe.cid == cid => cqe,
            other => panic!("no completion but {other:?}"),
        }
    }
}

/// A Pushdown command with its request.
pub(super) fn pushdown(parts: &PushdownParts<'_>) -> (Sqe, Vec<u8>) {
    let mut data = Vec::new();
    parts.encode_into(&mut data);
    let sqe = Sqe::new(opcode::nvm::PUSHDOWN, 1);
    (Sqe { sgl: Sgl::in_capsule(data.len() as u32), ..sqe }, data)
}
