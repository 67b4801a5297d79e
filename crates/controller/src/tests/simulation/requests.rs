//! The requests of hosts.

use super::Checked;
use super::chains::Call;
use super::content::{CHAIN_BLOCK_BYTES, CHAIN_BLOCKS, Found};
use super::hosts::{Manner, Stage};
use super::model::Moment;
use super::world::World;
use bpfof_host::Request;
use bpfof_nvme::identify::{IDENTIFY_BYTES, cns};
use bpfof_nvme::{AdminCommand, DsmRange, FabricsCommand, Installation, Rw, Sqe, Upload, opcode};

/// Maximum blocks of one request.
const BLOCKS_MAX: u64 = 8;

/// A request in flight.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) link: usize,
    pub(super) begun: Moment,
    pub(super) what: What,
}

/// The kind of request.
#[derive(Debug)]
pub(super) enum What {
    // Commands that start, reset and end an association.
    Connect,
    Enable,
    Disable,
    Status,
    Queues,
    Shutdown,
    /// Must succeed; nothing else is checked.
    Plain,
    /// Function Load of an invalid object.
    NoFunction,
    /// A write beyond the end of the namespace.
    BehindEnd,
    Disconnect,
    Read {
        space: usize,
        first: usize,
        count: usize,
    },
    /// A write of data or zeroes: each block with its write's number.
    Write {
        space: usize,
        blocks: Vec<(usize, u64)>,
        fua: bool,
    },
    Flush {
        space: usize,
    },
    Compare {
        space: usize,
        first: usize,
        expected: Vec<Found>,
    },
    Chain(Call),
    /// Many chains in one command, and its room for the answer.
    Chains(Vec<Call>, u32),
    /// An expensive chain.
    Spin,
    /// So many expensive chains in one command.
    Spins(u16),
    Map {
        file: u32,
        version: u64,
    },
}

impl World {
    /// Submits a request to a queue, which has room for it.
    pub(super) fn submit(
        &mut self,
        link: usize,
        request: &Request<'_>,
        pending: Pending,
    ) -> Checked {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.done.requests += 1;
        self.trace(|| format!("link {link}: request {tag}: {:?}", pending.what));
        let Some(client) = &mut self.clients[link] else { return Err("no such link".into()) };
        let submitted = client.initiator.submit(tag, request);
        submitted.map_err(|error| format!("link {link}: {:?}: {error}", pending.what))?;
        client.initiator.ring();
        self.pending.insert(tag, pending);
        // Some requests wait for later ones, and are sent with them.
        if !self.random.one_in(4) {
            self.host_sends(link);
        } else {
            let delay = self.delay();
            self.after(delay, super::world::Event::Send { link });
        }
        Ok(())
    }

    /// A lane of a host that can take a request.
    pub(super) fn free_lane(&mut self, host: usize) -> Option<usize> {
        let lanes = self.hosts[host].lanes.iter().copied();
        let free: Vec<usize> = lanes
            .filter(|lane| self.stage(*lane) == Some(Stage::Ready) && self.has_room(*lane))
            .collect();
        (!free.is_empty()).then(|| self.random.pick(&free))
    }

    /// Submits a random request on a lane that has room for it.
    pub(super) fn random_request(&mut self, host: usize, lane: usize) -> Checked {
        self.hosts[host].requests_left -= 1;
        match self.hosts[host].manner {
            Manner::Any => {}
            Manner::Modest if self.random.one_in(2) => return self.read_blocks(lane, 2, 0, 1),
            Manner::Modest => return self.walk(lane, 2, 0, 1),
            Manner::Greedy if self.random.one_in(4) => return self.spin_all(lane),
            Manner::Greedy => return self.spin(lane),
        }
        match self.random.below(64) {
            0..=14 => self.read(lane),
            15..=28 => self.write(lane),
            29..=32 => self.flush(lane),
            33..=35 => self.write_zeroes(lane),
            36..=37 => self.deallocate(lane),
            38..=41 => self.compare(lane),
            42 => self.verify(lane),
            43..=55 => self.start_chain(host, lane),
            56..=59 => self.set_map(host),
            60 => self.write_behind_end(lane),
            61 | 62 => self.admin_request(host),
            _ => match self.random.below(4) {
                0 => self.hang_up(lane),
                1 => self.reset(host),
                2 => self.leave(host),
                _ => self.disconnect(lane),
            },
        }
    }

    /// A random range of blocks, usually one that others also use.
    fn range(&mut self) -> (usize, usize, usize) {
        let space = self.random.pick(&[0, 0, 0, 1, 2]);
        let blocks = self.shapes[space].blocks;
        let count = match self.random.below(16) {
            0 => self.random.within(1, blocks),
            1..=7 => self.random.within(1, BLOCKS_MAX),
            _ => 1,
        };
        let end = if self.random.one_in(3) { blocks } else { blocks.min(12) };
        let count = count.min(end);
        let first = self.random.below(end - count + 1);
        (space, first as usize, count as usize)
    }

    fn block_bytes(&self, space: usize) -> u64 {
        u64::from(self.shapes[space].block_bytes)
    }

    fn raw(&mut self, link: usize, sqe: Sqe, data_out: &[u8], what: What) -> Checked {
        let begun = self.model.begin();
        let request = Request::Raw { sqe, data_out, data_in_max_bytes: 0 };
        self.submit(link, &request, Pending { link, begun, what })
    }

    fn read(&mut self, lane: usize) -> Checked {
        let (space, first, count) = self.range();
        self.read_blocks(lane, space, first, count)
    }

    pub(super) fn read_blocks(
        &mut self,
        link: usize,
        space: usize,
        first: usize,
        count: usize,
    ) -> Checked {
        let block_bytes = self.block_bytes(space);
        let request = Request::Read {
            nsid: space as u32 + 1,
            offset_bytes: first as u64 * block_bytes,
            length_bytes: (count as u64 * block_bytes) as u32,
        };
        let begun = self.model.begin();
        self.submit(
            link,
            &request,
            Pending { link, begun, what: What::Read { space, first, count } },
        )
    }

    /// Tells the model that each of these blocks will be written, with data if `data`, else with
    /// zeroes.
    fn announce(
        &mut self,
        space: usize,
        blocks: impl Iterator<Item = usize>,
        data: bool,
    ) -> Vec<(usize, u64)> {
        let mut written = Vec::new();
        for block in blocks {
            let write = self.next_tag << 8 | written.len() as u64;
            let found = if data { Found::Write(write) } else { Found::Zeroes };
            if data {
                let next = self.random.below(CHAIN_BLOCKS) * CHAIN_BLOCK_BYTES;
                self.contents.add(write, next);
            }
            self.model.write((space, block), write, found);
            written.push((block, write));
        }
        written
    }

    fn write(&mut self, link: usize) -> Checked {
        let (space, first, count) = self.range();
        let fua = self.random.one_in(4);
        let begun = self.model.begin();
        let blocks = self.announce(space, first..first + count, true);
        let block_bytes = self.block_bytes(space);
        let mut data = Vec::new();
        for (_, write) in &blocks {
            self.contents.append(*write, block_bytes as usize, &mut data);
        }
        let request = Request::Write {
            nsid: space as u32 + 1,
            offset_bytes: first as u64 * block_bytes,
            data: &data,
            fua,
        };
        let what = What::Write { space, blocks, fua };
        self.submit(link, &request, Pending { link, begun, what })
    }

    fn write_zeroes(&mut self, link: usize) -> Checked {
        let (space, first, count) = self.range();
        let fua = self.random.one_in(3);
        let begun = self.model.begin();
        let blocks = self.announce(space, first..first + count, false);
        let block_bytes = self.block_bytes(space);
        let request = Request::WriteZeroes {
            nsid: space as u32 + 1,
            offset_bytes: first as u64 * block_bytes,
            length_bytes: (count as u64 * block_bytes) as u32,
            fua,
        };
        let what = What::Write { space, blocks, fua };
        self.submit(link, &request, Pending { link, begun, what })
    }

    /// Deallocates one or two ranges, whose blocks read as zeroes afterwards.
    fn deallocate(&mut self, link: usize) -> Checked {
        let (space, first, count) = self.range();
        let middle = self.random.index(count);
        let begun = self.model.begin();
        let blocks = self.announce(space, first..first + count, false);
        let range = |from: usize, blocks: usize| DsmRange {
            attributes: 0,
            blocks: blocks as u32,
            slba: from as u64,
        };
        let ranges = [range(first + middle, count - middle), range(first, middle)];
        let data = ranges.map(|range| range.to_bytes()).concat();
        let sqe = Sqe {
            cdw10: 1,
            cdw11: 1 << 2,
            ..Sqe::new(opcode::nvm::DATASET_MANAGEMENT, space as u32 + 1)
        };
        let what = What::Write { space, blocks, fua: false };
        let request = Request::Raw { sqe, data_out: &data, data_in_max_bytes: 0 };
        self.submit(link, &request, Pending { link, begun, what })
    }

    fn flush(&mut self, link: usize) -> Checked {
        let space = self.random.pick(&[0, 0, 0, 1, 2]);
        let begun = self.model.begin();
        let what = What::Flush { space };
        let request = Request::Flush { nsid: space as u32 + 1 };
        self.submit(link, &request, Pending { link, begun, what })
    }

    /// Compares blocks with contents that they may have now.
    fn compare(&mut self, link: usize) -> Checked {
        let (space, first, count) = self.range();
        let block_bytes = self.block_bytes(space) as usize;
        let (mut expected, mut data) = (Vec::new(), Vec::new());
        for block in first..first + count {
            let possible = self.model.possible((space, block));
            let found = self.random.pick(&possible);
            match found {
                Found::Zeroes => data.resize(data.len() + block_bytes, 0),
                Found::Write(write) => self.contents.append(write, block_bytes, &mut data),
            }
            expected.push(found);
        }
        let rw = Rw { slba: first as u64, blocks: count as u32, fua: false };
        let sqe = rw.to_sqe(opcode::nvm::COMPARE, space as u32 + 1);
        self.raw(link, sqe, &data, What::Compare { space, first, expected })
    }

    fn verify(&mut self, link: usize) -> Checked {
        let (space, first, count) = self.range();
        let rw = Rw { slba: first as u64, blocks: count as u32, fua: false };
        let sqe = rw.to_sqe(opcode::nvm::VERIFY, space as u32 + 1);
        self.raw(link, sqe, &[], What::Plain)
    }

    fn write_behind_end(&mut self, link: usize) -> Checked {
        let blocks = self.shapes[0].blocks;
        let rw = Rw { slba: blocks - 1, blocks: 2, fua: false };
        let sqe = rw.to_sqe(opcode::nvm::WRITE, 1);
        self.raw(link, sqe, &[0xee; 1024], What::BehindEnd)
    }

    fn disconnect(&mut self, link: usize) -> Checked {
        self.links[link].excused = true;
        if let Some(client) = &mut self.clients[link] {
            client.leaves(self.now);
        }
        let host = &mut self.hosts[self.clients[link].as_ref().map_or(0, |client| client.host)];
        host.lanes.retain(|lane| *lane != link);
        self.raw(link, FabricsCommand::Disconnect.to_sqe(), &[], What::Disconnect)
    }

    fn admin_request(&mut self, host: usize) -> Checked {
        let Some(admin) = self.hosts[host].admin.filter(|admin| self.has_room(*admin)) else {
            return Ok(());
        };
        match self.random.below(4) {
            0 => {
                let sqe = AdminCommand::identify(cns::CONTROLLER, 0);
                let begun = self.model.begin();
                let request =
                    Request::Raw { sqe, data_out: &[], data_in_max_bytes: IDENTIFY_BYTES as u32 };
                self.submit(admin, &request, Pending { link: admin, begun, what: What::Plain })
            }
            // Names a command that may or may not be in flight.
            1 => {
                let cid = self.random.below(1 << 16) as u32;
                let sqe = Sqe { cdw10: cid << 16 | 1, ..Sqe::new(opcode::admin::ABORT, 0) };
                self.raw(admin, sqe, &[], What::Plain)
            }
            2 if !self.hosts[host].loads => {
                self.hosts[host].loads = true;
                let object = [7; 600];
                let upload = Upload { total_bytes: object.len() as u32, offset_bytes: 0 };
                let sqe = AdminCommand::function_load(upload, Installation::default());
                self.raw(admin, sqe, &object, What::NoFunction)
            }
            _ => self.raw(admin, AdminCommand::keep_alive(), &[], What::Plain),
        }
    }
}
