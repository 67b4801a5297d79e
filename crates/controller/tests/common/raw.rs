//! A peer that builds NVMe/TCP PDUs by hand, so that it can break the rules.

use super::NQN;
use bpfof_controller::Server;
use bpfof_nvme::fabrics::{CNTLID_DYNAMIC, ConnectData, ControllerConfig, FabricsCommand, offset};
use bpfof_nvme::tcp::{
    CapsuleCmd, DataPdu, Digests, Fes, H2cData, IcReq, Pdu, PduEvent, PduReceiver, R2t, data_digest,
};
use bpfof_nvme::{Cqe, Sqe, Status};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A message of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    IcResp,
    Response(Cqe),
    R2t(R2t),
    Data(Vec<u8>),
    Terminated(Fes, u32),
    /// The target closed the connection.
    Closed,
}

/// The name of a [`Peer`] unless it is given another.
pub(crate) const RAW_HOST: &str = "nqn.2026-01.io.bpf-of:raw";

pub(crate) struct Peer {
    /// The name that it uses.
    pub(crate) host: String,
    pub(crate) stream: TcpStream,
    pub(crate) digests: Digests,
    receiver: PduReceiver,
    inbox: Vec<u8>,
    pieces: Vec<u8>,
    next_cid: u16,
}

impl Peer {
    /// A TCP connection, nothing more.
    pub(crate) fn open(server: &Server) -> Peer {
        Peer::open_at(server.address())
    }

    pub(crate) fn open_at(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
        Peer {
            host: RAW_HOST.to_owned(),
            stream,
            digests: Digests::default(),
            receiver: PduReceiver::for_host(),
            inbox: Vec::new(),
            pieces: Vec::new(),
            next_cid: 0,
        }
    }

    /// Connects queue `qid` with `sqsize` + 1 entries to controller `cntlid`.
    pub(crate) fn queue(
        server: &Server,
        digests: Digests,
        qid: u16,
        sqsize: u16,
        cntlid: u16,
    ) -> Peer {
        let mut peer = Peer::open(server);
        peer.initialize(digests);
        assert_eq!(peer.connect(NQN, qid, sqsize, cntlid), Status::SUCCESS);
        peer
    }

    /// Sends Connect for a subsystem.
    pub(crate) fn connect(&mut self, nqn: &str, qid: u16, sqsize: u16, cntlid: u16) -> Status {
        let command = FabricsCommand::Connect { recfmt: 0, qid, sqsize, cattr: 0, kato_ms: 0 };
        let data = ConnectData {
            hostid: [5; 16],
            cntlid,
            subnqn: nqn.to_owned(),
            hostnqn: self.host.clone(),
        };
        self.status(command.to_sqe(), &data.to_bytes())
    }

    /// The admin queue of an enabled controller of a subsystem.
    pub(crate) fn admin(address: SocketAddr, nqn: &str) -> Peer {
        let mut peer = Peer::open_at(address);
        peer.initialize(Digests::default());
        assert_eq!(peer.connect(nqn, 0, 31, CNTLID_DYNAMIC), Status::SUCCESS);
        peer.enable();
        peer
    }

    pub(crate) fn enable(&mut self) {
        let value = u32::from(ControllerConfig::ENABLED).into();
        let enable = FabricsCommand::PropertySet { offset: offset::CC, size8: false, value };
        assert_eq!(self.status(enable.to_sqe(), &[]), Status::SUCCESS);
    }

    /// An enabled controller's admin queue, and one I/O queue of `sqsize` + 1 entries.
    pub(crate) fn pair(server: &Server, digests: Digests, sqsize: u16) -> (Peer, Peer) {
        let mut admin = Peer::queue(server, digests, 0, 31, CNTLID_DYNAMIC);
        admin.enable();
        let (page, _) = admin.call(bpfof_nvme::AdminCommand::identify(1, 0), &[]);
        let cntlid = u16::from_le_bytes([page[78], page[79]]);
        let io = Peer::queue(server, digests, 1, sqsize, cntlid);
        (admin, io)
    }

    /// The same with another host name.
    pub(crate) fn pair_as(server: &Server, host: &str) -> (Peer, Peer) {
        let open = || {
            let mut peer = Peer { host: host.to_owned(), ..Peer::open(server) };
            peer.initialize(Digests::default());
            peer
        };
        let (mut admin, mut io) = (open(), open());
        assert_eq!(admin.connect(NQN, 0, 31, CNTLID_DYNAMIC), Status::SUCCESS);
        admin.enable();
        let (page, _) = admin.call(bpfof_nvme::AdminCommand::identify(1, 0), &[]);
        let cntlid = u16::from_le_bytes([page[78], page[79]]);
        assert_eq!(io.connect(NQN, 1, 31, cntlid), Status::SUCCESS);
        (admin, io)
    }

    pub(crate) fn initialize(&mut self, digests: Digests) {
        let mut request = Vec::new();
        IcReq { digests, ..IcReq::default() }.encode_into(&mut request);
        self.send_bytes(&request);
        assert_eq!(self.hear(), Said::IcResp);
        self.digests = digests;
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("it listens");
    }

    /// The bytes of the next command, and its identifier.
    pub(crate) fn capsule(&mut self, sqe: Sqe, data: &[u8]) -> (Vec<u8>, u16) {
        let cid = self.next_cid;
        self.next_cid += 1;
        let mut bytes = Vec::new();
        CapsuleCmd { sqe: Sqe { cid, ..sqe }, data }.encode_into(&mut bytes, self.digests, 0);
        (bytes, cid)
    }

    pub(crate) fn send(&mut self, sqe: Sqe, data: &[u8]) -> u16 {
        let (bytes, cid) = self.capsule(sqe, data);
        self.send_bytes(&bytes);
        cid
    }

    /// The bytes of an H2CData PDU that answers an R2T.
    pub(crate) fn h2c_data(&self, r2t: &R2t, data: &[u8]) -> Vec<u8> {
        let pdu = H2cData {
            cccid: r2t.cccid,
            ttag: r2t.ttag,
            data_offset_bytes: r2t.offset_bytes,
            data_length_bytes: data.len() as u32,
            last: true,
        };
        let mut bytes = Vec::new();
        pdu.encode_header_into(&mut bytes, self.digests, 0);
        bytes.extend_from_slice(data);
        if self.digests.data {
            bytes.extend_from_slice(&data_digest(data));
        }
        bytes
    }

    /// The next message of the target.
    pub(crate) fn hear(&mut self) -> Said {
        loop {
            if let Some(said) = self.next() {
                return said;
            }
            let mut buffer = vec![0; 64 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Said::Closed,
                Ok(length) => self.inbox.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Said::Closed,
                Err(error) => panic!("the target says nothing: {error}"),
            }
        }
    }

    fn next(&mut self) -> Option<Said> {
        loop {
            let next = self.receiver.next(&self.inbox).expect("the target obeys the rules");
            let (length, event) = next?;
            let said = match event {
                PduEvent::Header(Pdu::IcResp(response)) => {
                    self.receiver.set_digests(response.digests);
                    Some(Said::IcResp)
                }
                PduEvent::Header(Pdu::CapsuleResp(response)) => Some(Said::Response(response.cqe)),
                PduEvent::Header(Pdu::R2t(r2t)) => Some(Said::R2t(r2t)),
                PduEvent::Header(Pdu::TermReq(term)) => Some(Said::Terminated(term.fes, term.fei)),
                PduEvent::Data {
                    pdu: DataPdu::C2h(_), bytes, last_fragment, digest_ok, ..
                } => {
                    self.pieces.extend_from_slice(bytes);
                    assert!(digest_ok || !last_fragment, "a wrong data digest");
                    last_fragment.then(|| Said::Data(std::mem::take(&mut self.pieces)))
                }
                other => panic!("a host's PDU: {other:?}"),
            };
            self.inbox.drain(..length);
            if said.is_some() {
                return said;
            }
        }
    }

    /// Sends a command that needs no R2T and waits for its end.
    pub(crate) fn call(&mut self, sqe: Sqe, data: &[u8]) -> (Vec<u8>, Cqe) {
        let cid = self.send(sqe, data);
        let mut received = Vec::new();
        loop {
            match self.hear() {
                Said::Data(data) => received = data,
                Said::Response(cqe) if cqe.cid == cid => return (received, cqe),
                other => panic!("{sqe:?}: {other:?}"),
            }
        }
    }

    pub(crate) fn status(&mut self, sqe: Sqe, data: &[u8]) -> Status {
        self.call(sqe, data).1.status
    }

    /// Expects the end of the connection, with this reason if there is one.
    pub(crate) fn expect_end(&mut self, reason: Option<Fes>) {
        if let Some(expected) = reason {
            match self.hear() {
                Said::Terminated(fes, _) => assert_eq!(fes, expected),
                other => panic!("no {expected} but {other:?}"),
            }
        }
        assert_eq!(self.hear(), Said::Closed);
    }
}
