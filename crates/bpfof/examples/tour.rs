//! Sends each kind of command to a target, over loopback, and prints the commands and their results.
//!
//!     cargo run --example tour -- 127.0.0.1:4420
//!
//! Listens at the given address. `interop/tshark.py` captures the traffic for Wireshark's dissector, and compares the
//! dissector's output with what is printed here. Commands are written with the numbers of the specifications and of
//! `docs/protocol.md`, not with the names of our code, so that this program and the code are independent readings of
//! the specifications. The first association has no digests, the second has both, the third is with the discovery
//! subsystem.
//!
//! A line is one of
//!
//! - `connection QUEUE DIGESTS NQN`: a TCP connection; DIGESTS are the bits of ICReq;
//! - `command QUEUE OPCODE SCT SC DW0 SENT RECEIVED`: a command on the connection last opened for such a queue; opcode
//!   and status in hexadecimal, DW0 and the bytes of its data in decimal;
//! - `namespace NSID BLOCKS BYTES`: the result of Identify Namespace on the last admin connection.
//!
//! QUEUE is `admin` or `io`.

use bpfkv::create::{Extent, write_database};
use bpfkv::format::value_text;
use bpfkv::pushdown::{get_answer, get_argument};
use bpfof_controller::{Server, TargetConfig};
use bpfof_host::{Controller, Error, Lane, Options, Request, RequestError, Sqe, Status, TargetUrl};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

fn main() -> Result<(), Failure> {
    let listen: SocketAddr = std::env::args().nth(1).ok_or("usage: tour ADDRESS:PORT")?.parse()?;
    let namespaces = vec!["mem:size=8MiB".parse()?, "mem:size=8MiB,lba=4096".parse()?];
    let config = TargetConfig { listen: listen.into(), namespaces, ..TargetConfig::default() };
    let _server = Server::start(&config)?;
    let url: TargetUrl = format!("nvme-tcp://{listen}/{}", config.nqn).parse()?;
    for digests in [0, 3] {
        let options = Options {
            header_digest: digests & 1 != 0,
            data_digest: digests & 2 != 0,
            ..Options::default()
        };
        println!("connection admin {digests} {}", config.nqn);
        let mut controller = Controller::connect(&url, options)?;
        for namespace in controller.namespaces() {
            println!("namespace {} {} {}", namespace.nsid, namespace.blocks, namespace.block_bytes);
        }
        let function = admin_commands(&mut controller)?;
        println!("connection io {digests} {}", config.nqn);
        let mut lane = controller.open_lane()?;
        plain_commands(&mut lane)?;
        chains(&mut lane, function)?;
        vectors(&mut lane, function)?;
        drop(lane);
        last_commands(&mut controller, function)?;
        controller.disconnect()?;
    }
    discover(&format!("nvme-tcp://{listen}/{DISCOVERY}").parse()?)
}

/// Sends an admin command and prints it.
fn admin(controller: &mut Controller, sqe: Sqe, out: &[u8], most: u32) -> Result<u32, Failure> {
    let (opcode, sent) = (sqe.opcode, out.len());
    let (status, dw0, received) = match controller.admin_command(sqe, out, most) {
        Ok((cqe, data)) => (cqe.status, cqe.dw0, data.len()),
        Err(Error::Command { source, .. }) => (source.status, source.dw0, 0),
        Err(error) => return Err(error.into()),
    };
    show("admin", opcode, status, dw0, (sent, received));
    Ok(dw0)
}

/// The same on a lane.
fn io(lane: &mut Lane, sqe: Sqe, out: &[u8], most: u32) -> Result<Vec<u8>, Failure> {
    let (opcode, sent) = (sqe.opcode, out.len());
    lane.submit(0, Request::Raw { sqe, data_out: out, data_in_max_bytes: most })?;
    let mut ended = None;
    while ended.is_none() {
        lane.wait(Duration::from_secs(10), &mut |completion| {
            ended = Some(completion.result.map(|done| (done.dw0, done.data.to_vec())));
        })?;
    }
    let (status, dw0, data) = match ended.ok_or("no completion")? {
        Ok((dw0, data)) => (Status::SUCCESS, dw0, data),
        Err(RequestError::Command(error)) => (error.status, error.dw0, Vec::new()),
        Err(error) => return Err(error.to_string().into()),
    };
    show("io", opcode, status, dw0, (sent, data.len()));
    Ok(data)
}

fn show(queue: &str, opcode: u8, status: Status, dw0: u32, (sent, received): (usize, usize)) {
    let (sct, sc) = (status.sct(), status.sc());
    println!("command {queue} {opcode:02x} {sct:x} {sc:02x} {dw0} {sent} {received}");
}

/// A file map object of one extent (docs/protocol.md, Uploads).
fn file_map(file: u32, version: u64, length: u64) -> Vec<u8> {
    let mut object = Vec::new();
    object.extend(file.to_le_bytes());
    object.extend(1u32.to_le_bytes());
    object.extend(version.to_le_bytes());
    object.extend(length.to_le_bytes());
    let extents = u32::from(length > 0);
    object.extend(u64::from(extents).to_le_bytes());
    if extents > 0 {
        for word in [0, 0, length] {
            object.extend(word.to_le_bytes());
        }
    }
    object
}

fn upload(opcode: u8, object: &[u8]) -> Sqe {
    Sqe { opcode, cdw10: object.len() as u32, ..Sqe::default() }
}

/// Each admin command that hosts send themselves. Returns the id of a function.
fn admin_commands(controller: &mut Controller) -> Result<u32, Failure> {
    let plain = |opcode, cdw10| Sqe { opcode, cdw10, ..Sqe::default() };
    let limits = Sqe { cdw11: 64, ..plain(0xCA, 0) };
    admin(controller, limits, &[], 64)?;
    let object = bpfkv::GET_OBJECT;
    let function = admin(controller, upload(0xC1, object), object, 0)?;
    // The same in two chunks, of which the first fits a capsule.
    let (head, tail) = object.split_at(4096);
    let chunk = upload(0xC1, object);
    admin(controller, chunk, head, 0)?;
    admin(controller, Sqe { cdw11: 4096, ..chunk }, tail, 0)?;
    admin(controller, upload(0xC1, b"no object"), b"no object", 0)?;
    for cdw10 in [0, u32::MAX] {
        let report = Sqe { cdw11: 4096, ..plain(0xC6, cdw10) };
        admin(controller, report, &[], 4096)?;
    }
    // The maps of functions: their list; for a map that does not exist: an entry, all entries, and a removal.
    admin(controller, Sqe { cdw11: 4096, cdw12: 0xFFFF, ..plain(0xC2, 0) }, &[], 4096)?;
    let key = [0; 8];
    let get = Sqe { cdw11: 64, ..plain(0xC3, 9) };
    admin(controller, get, &key, 64)?;
    admin(controller, Sqe { cdw11: 512, ..plain(0xCE, 9) }, &[], 512)?;
    admin(controller, Sqe { cdw12: 3 << 16, ..plain(0xC9, 9) }, &key, 0)?;
    for map in [file_map(5, 1, 4096), file_map(5, 1, 100)] {
        admin(controller, upload(0xC5, &map), &map, 0)?;
    }
    // Get Log Page: SMART, firmware, effects, and one that does not exist. Not Error Information:
    // Wireshark 4.0 takes its last entry for two bytes longer than it is.
    for (page, bytes) in [(0x02, 512), (0x03, 512), (0x05, 4096), (0xBE, 64)] {
        admin(controller, plain(0x02, page | (bytes / 4 - 1) << 16), &[], bytes)?;
    }
    // Get Features: the number of queues, and one that does not exist.
    for feature in [0x07, 0x7E] {
        admin(controller, plain(0x0A, feature), &[], 0)?;
    }
    // Identify: the active namespaces, and a structure that does not exist.
    for structure in [0x02, 0xEE] {
        admin(controller, plain(0x06, structure), &[], 4096)?;
    }
    // Keep Alive; Abort; Delete I/O Submission Queue, which fabrics do not have.
    for opcode in [0x18, 0x08, 0x00] {
        admin(controller, plain(opcode, 0), &[], 0)?;
    }
    Ok(function)
}

/// Reads, writes and the other commands of a disk.
fn plain_commands(lane: &mut Lane) -> Result<(), Failure> {
    let io_sqe = |opcode, slba: u32, blocks: u32| Sqe {
        opcode,
        nsid: 1,
        cdw10: slba,
        cdw12: blocks - 1,
        ..Sqe::default()
    };
    let data: Vec<u8> = (0..128 << 10).map(|i: u32| (i / 512 + i) as u8).collect();
    // In the capsule, up to the most that fits one, and requested by R2T.
    for blocks in [1, 16, 17, 256] {
        io(lane, io_sqe(0x01, 0, blocks), &data[..blocks as usize * 512], 0)?;
    }
    for blocks in [1, 8, 256] {
        let read = io(lane, io_sqe(0x02, 0, blocks), &[], blocks * 512)?;
        if read != data[..read.len()] {
            return Err("what was read is not what was written".into());
        }
    }
    // Flush; Verify; Write Zeroes.
    for opcode in [0x00, 0x0C, 0x08] {
        let sqe = io_sqe(opcode, 300, 1);
        io(lane, if opcode == 0 { Sqe { cdw10: 0, ..sqe } } else { sqe }, &[], 0)?;
    }
    // Compare: with the right data, and with wrong data.
    for slba in [0, 1] {
        io(lane, io_sqe(0x05, slba, 1), &data[..512], 0)?;
    }
    // Dataset Management: one range to deallocate.
    let range: Vec<u8> = [0, 8, 400, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    let deallocate = Sqe { opcode: 0x09, nsid: 1, cdw11: 4, ..Sqe::default() };
    io(lane, deallocate, &range, 0)?;
    // Beyond the end; a namespace and a command that do not exist.
    io(lane, io_sqe(0x02, 1 << 20, 1), &[], 512)?;
    io(lane, Sqe { nsid: 9, ..io_sqe(0x02, 0, 1) }, &[], 512)?;
    io(lane, io_sqe(0x7A, 0, 1), &[], 0)?;
    Ok(())
}

/// A request of Pushdown (docs/protocol.md).
struct Chain {
    function: u32,
    file: (u32, u64),
    first_offset: u64,
    first_size: u32,
    answer_max: u32,
}

/// Lookups that find their key, and lookups that end with each status that a host can cause.
fn chains(lane: &mut Lane, function: u32) -> Result<(), Failure> {
    let extent = Extent::full(2)?;
    let mut sink = |offset: u64, data: &[u8]| {
        let sqe = Sqe {
            opcode: 0x01,
            nsid: 1,
            cdw10: (offset / 512) as u32,
            cdw12: data.len() as u32 / 512 - 1,
            ..Sqe::default()
        };
        io(lane, sqe, data, 0).map(|_| ()).map_err(|error| std::io::Error::other(error.to_string()))
    };
    write_database(&extent, &mut sink, &mut |_, _| ControlFlow::Continue(()))?;
    let good = Chain { function, file: (0, 1), first_offset: 0, first_size: 512, answer_max: 72 };
    let argument = get_argument(7).ok_or("a key")?;
    for chain in [
        Chain { ..good },
        Chain { function: 999, ..good },
        Chain { file: (6, 1), ..good },
        Chain { file: (5, 2), ..good },
        Chain { first_offset: 1 << 40, ..good },
        Chain { first_size: 0, ..good },
        Chain { answer_max: 8, ..good },
    ] {
        let mut request = Vec::new();
        request.extend(chain.function.to_le_bytes());
        // One file, of which the first read is.
        request.extend([1, 0, 0, 0]);
        request.extend(chain.first_offset.to_le_bytes());
        for word in [chain.first_size, argument.len() as u32, chain.answer_max, 0] {
            request.extend(word.to_le_bytes());
        }
        request.extend(u64::from(chain.file.0).to_le_bytes());
        request.extend(chain.file.1.to_le_bytes());
        request.extend(argument);
        let sqe = Sqe { opcode: 0x83, nsid: 1, ..Sqe::default() };
        io(lane, sqe, &request, chain.answer_max)?;
    }
    let mut words = [0; 6];
    for (word, bytes) in words.iter_mut().zip(argument.chunks_exact(4)) {
        *word = u32::from_le_bytes(*bytes.first_chunk().ok_or("four bytes")?);
    }
    let [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15] = words;
    let short = Sqe { opcode: 0x82, nsid: 1, cdw2: function, cdw3: 1 << 16, ..Sqe::default() };
    let short = Sqe { cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, ..short };
    let answer = io(lane, short, &[], 72)?;
    if get_answer(&answer)? != Some(&value_text(7)) {
        return Err("the chain found something else".into());
    }
    Ok(())
}

/// Lookups in one command: three that find their keys, three of which the last has no room for its
/// answer, and one that is malformed.
fn vectors(lane: &mut Lane, function: u32) -> Result<(), Failure> {
    let keys = [7, 300, 42];
    let (count, records) = (keys.len() as u16, 16 * keys.len());
    for (chains, room) in [(count, records + 3 * 72), (count, records + 2 * 72), (0, records)] {
        let mut request = Vec::new();
        request.extend(function.to_le_bytes());
        // One file; all chains begin at its offset 0, with 512 bytes; no tables.
        request.extend([1_u16, chains].into_iter().flat_map(u16::to_le_bytes));
        request.extend(0_u64.to_le_bytes());
        for word in [512, 0, 8, 0, 72, room as u32, 0, 0] {
            request.extend(u32::to_le_bytes(word));
        }
        request.extend([0_u64, 1].into_iter().flat_map(u64::to_le_bytes));
        for key in keys {
            request.extend(get_argument(key).ok_or("a key")?);
        }
        let sqe = Sqe { opcode: 0x87, nsid: 1, ..Sqe::default() };
        let answer = io(lane, sqe, &request, room as u32)?;
        for (record, key) in answer.chunks_exact(16).take(chains.into()).zip(keys) {
            let word = |at: usize| {
                record
                    .get(at..)
                    .and_then(|word| word.first_chunk())
                    .map_or(0, |word| u32::from_le_bytes(*word) as usize)
            };
            let (status, length, begins) = (word(0), word(8), word(12));
            let found = answer.get(begins..begins + length).unwrap_or(&[]);
            if status == 0 && get_answer(found)? != Some(&value_text(key)) {
                return Err("a chain of the vector found something else".into());
            }
            if status != 0 && (status & 0xFF != 0x13 || room > records + 2 * 72) {
                return Err("a chain of the vector has failed".into());
            }
        }
    }
    Ok(())
}

/// The commands that remove things again.
fn last_commands(controller: &mut Controller, function: u32) -> Result<(), Failure> {
    for _ in 0..2 {
        let unload = Sqe { opcode: 0xC4, cdw10: function, ..Sqe::default() };
        admin(controller, unload, &[], 0)?;
    }
    let map = file_map(5, 0, 0);
    admin(controller, upload(0xC5, &map), &map, 0)?;
    Ok(())
}

/// The discovery log page: its header and two entries.
fn discover(url: &TargetUrl) -> Result<(), Failure> {
    println!("connection admin 0 {DISCOVERY}");
    let mut controller = Controller::connect(url, Options::default())?;
    let (page, bytes) = (0x70, 3 * 1024);
    let sqe = Sqe { opcode: 0x02, cdw10: page | (bytes / 4 - 1) << 16, ..Sqe::default() };
    admin(&mut controller, sqe, &[], bytes)?;
    Ok(controller.disconnect()?)
}
