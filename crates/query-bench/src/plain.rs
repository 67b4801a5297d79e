//! Plain reads of a file on the target's namespace: NVMe Reads on one lane, many in flight.

use crate::protocol::{Cost, Plain};
use bpfof_host::files::{
    FirstRead, NamespaceDevice, PlainCall, PlainChains, PlainError, StorageFunction, file_layout,
};
use bpfof_host::{Controller, Lane, NamespaceInfo, Options, Request, TargetUrl};
use bpfof_query::Argument;
use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

/// Size of a read in bytes.
pub(crate) const PIECE_BYTES: u64 = 128 << 10;
/// A lane without a completion for this long is lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Size of the records that [`Plain::Filter`] processes, and the offsets of their fields.
const RECORD_BYTES: usize = 32;
const ZONE_AT: usize = 8;
const AMOUNT_AT: usize = 12;
/// Offset of the number of rows that passed in an answer of stages.
const PASSED_AT: usize = 24;

/// A separate lane to the target.
pub(crate) struct PlainReads {
    lane: Lane,
    info: NamespaceInfo,
    device: NamespaceDevice,
    /// Keeps the association alive.
    _controller: Controller,
}

/// A piece of the file: its place in the namespace, and how many of its bytes belong to the file.
struct Piece {
    device_offset: u64,
    length: usize,
}

impl PlainReads {
    pub(crate) fn connect(url: &TargetUrl, device: &Path) -> Result<Self, Failure> {
        let mut controller = Controller::connect(url, Options::default())?;
        let info = controller.identify_namespace(url.nsid)?;
        let lane = controller.open_lane()?;
        let device = NamespaceDevice::new(device)?;
        Ok(Self { lane, info, device, _controller: controller })
    }

    /// Reads a whole file.
    pub(crate) fn run(
        &mut self,
        path: &Path,
        depth: usize,
        plain: &Plain,
        stages: Option<&(StorageFunction, Argument)>,
    ) -> Result<Cost, Failure> {
        let pieces = self.pieces(&File::open(path)?)?;
        let scanned_bytes = pieces.iter().map(|piece| piece.length as u64).sum();
        let before = self.lane.bytes_sent() + self.lane.bytes_received();
        let mut folded = Folded::default();
        match (plain, stages) {
            (Plain::Filter { below }, _) => {
                self.read(&pieces, depth, |data| folded.add(data, *below))?;
            }
            (Plain::Pipe(path), _) => {
                let mut pipe = OpenOptions::new().write(true).open(path)?;
                self.read(&pieces, depth, |data| Ok(pipe.write_all(data)?))?;
            }
            (Plain::Stages(_), Some(stages)) => {
                let mut here = Here::new(stages);
                self.read(&pieces, depth, |data| here.add(data))?;
                folded.count = here.finish()?;
            }
            (Plain::Discard | Plain::Stages(_), _) => self.read(&pieces, depth, |_| Ok(()))?,
        }
        let network_bytes = self.lane.bytes_sent() + self.lane.bytes_received() - before;
        let Folded { count, sum, least, greatest } = folded;
        let answer =
            format!("[{{\"count\":{count},\"sum\":{sum},\"min\":{least},\"max\":{greatest}}}]");
        Ok(Cost { scanned_bytes, network_bytes, passed: count, hops: 0, answer })
    }

    fn pieces(&self, file: &File) -> Result<Vec<Piece>, Failure> {
        let layout = file_layout(file, &self.device, &self.info)?;
        if layout.has_gaps() {
            return Err("the file has a hole".into());
        }
        let mut pieces = Vec::new();
        for extent in layout.extents() {
            let end = layout.length_bytes().min(extent.file_offset + extent.length_bytes);
            let mut at = extent.file_offset;
            while at < end {
                let length = (end - at).min(PIECE_BYTES);
                let device_offset = extent.device_offset + (at - extent.file_offset);
                pieces.push(Piece { device_offset, length: length as usize });
                at += length;
            }
        }
        Ok(pieces)
    }

    /// Reads pieces, `depth` at a time, and calls `on_piece` with each in order.
    fn read(
        &mut self,
        pieces: &[Piece],
        depth: usize,
        mut on_piece: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (mut sent, mut given) = (0, 0);
        let mut early: HashMap<usize, Vec<u8>> = HashMap::new();
        let mut result = Ok(());
        let block = u64::from(self.info.block_bytes);
        while given < pieces.len() && result.is_ok() {
            while sent < pieces.len().min(given + depth.max(1)) {
                let Piece { device_offset: offset_bytes, length } = pieces[sent];
                let length_bytes = (length as u64).next_multiple_of(block) as u32;
                let read = Request::Read { nsid: self.info.nsid, offset_bytes, length_bytes };
                self.lane.submit(sent as u64, read)?;
                sent += 1;
            }
            let ended = self.lane.wait(PATIENCE, &mut |completion| {
                let at = completion.tag as usize;
                let piece = completion.result.map_err(Failure::from);
                let step = piece.and_then(|done| {
                    let data = done.data.get(..pieces[at].length).ok_or("a read was short")?;
                    if at != given {
                        early.insert(at, data.to_vec());
                        return Ok(());
                    }
                    on_piece(data)?;
                    given += 1;
                    while let Some(data) = early.remove(&given) {
                        on_piece(&data)?;
                        given += 1;
                    }
                    Ok(())
                });
                if result.is_ok() {
                    result = step;
                }
            })?;
            if ended == 0 {
                return Err("the target does not answer".into());
            }
        }
        while self.lane.requests_in_flight() > 0 {
            self.lane.wait(PATIENCE, &mut |_| ())?;
        }
        result
    }
}

/// The result of filtering and folding records.
struct Folded {
    count: u64,
    sum: i64,
    least: i32,
    greatest: i32,
}

impl Default for Folded {
    fn default() -> Self {
        Self { count: 0, sum: 0, least: i32::MAX, greatest: i32::MIN }
    }
}

impl Folded {
    fn add(&mut self, records: &[u8], below: i32) -> Result<(), Failure> {
        let (records, rest) = records.as_chunks::<RECORD_BYTES>();
        if !rest.is_empty() {
            return Err("a piece ends inside a record".into());
        }
        let field = |record: &[u8; RECORD_BYTES], at: usize| {
            i32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]])
        };
        for record in records {
            let (zone, amount) = (field(record, ZONE_AT), field(record, AMOUNT_AT));
            if zone >= 10 && amount < below {
                self.count += 1;
                self.sum += i64::from(amount);
                self.least = self.least.min(amount);
                self.greatest = self.greatest.max(amount);
            }
        }
        Ok(())
    }
}

/// The fused stages, as a chain over each piece.
struct Here<'a> {
    stages: &'a (StorageFunction, Argument),
    chains: PlainChains,
    answer: Vec<u8>,
    waiting: VecDeque<u8>,
    passed: u64,
}

impl<'a> Here<'a> {
    fn new(stages: &'a (StorageFunction, Argument)) -> Self {
        Self {
            stages,
            chains: PlainChains::default(),
            answer: Vec::new(),
            waiting: VecDeque::new(),
            passed: 0,
        }
    }

    fn add(&mut self, data: &[u8]) -> Result<(), Failure> {
        if data.len() as u64 == PIECE_BYTES && self.waiting.is_empty() {
            return self.go_through(data);
        }
        // The length in the argument must be correct: a shorter piece waits for more data.
        self.waiting.extend(data);
        while self.waiting.len() as u64 >= PIECE_BYTES {
            let piece: Vec<u8> = self.waiting.drain(..PIECE_BYTES as usize).collect();
            self.go_through(&piece)?;
        }
        Ok(())
    }

    /// Returns the number of rows that passed.
    fn finish(self) -> Result<u64, Failure> {
        if !self.waiting.is_empty() {
            return Err(format!("the file is not a multiple of {PIECE_BYTES} bytes").into());
        }
        Ok(self.passed)
    }

    fn go_through(&mut self, data: &[u8]) -> Result<(), Failure> {
        let (function, argument) = self.stages;
        let size_bytes = (data.len() as u32).min(argument.block_bytes);
        let call = PlainCall {
            function,
            first_read: FirstRead { file: 0, offset_bytes: 0, size_bytes },
            scratch: &argument.bytes,
            scratch_bytes: argument.scratch_bytes,
            answer_max_bytes: argument.scratch_bytes,
        };
        let read = |read: bpfof_host::files::PlainRead, to: &mut [u8]| {
            let from = data.get(read.offset_bytes as usize..).and_then(|data| data.get(..to.len()));
            to.copy_from_slice(from.ok_or("a read past the piece")?);
            Ok::<_, &'static str>(())
        };
        match self.chains.run(&call, &[data.len() as u64], read, &mut self.answer) {
            Ok(_) => {}
            Err(PlainError::Read(why)) => return Err(why.into()),
            Err(PlainError::Chain(error, _)) => return Err(format!("{error:?}").into()),
            Err(PlainError::TooLong(_)) => return Err("a piece is too long".into()),
        }
        let passed = self.answer.get(PASSED_AT..).and_then(|bytes| bytes.first_chunk());
        self.passed += u64::from_le_bytes(*passed.ok_or("the answer is too short")?);
        Ok(())
    }
}
